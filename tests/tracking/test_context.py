"""What checkpoints gain from far context: known amounts, the command's table and figures, and a checkpoint that is replaced."""

from __future__ import annotations

import math
import shutil

import polars as pl
import pytest

import recallkit
from recallkit.models.control import CACHE_WEIGHT
from recallkit.models.spec import list_models, parse_model
from recallkit.scoring import ScoringOptions, score_path
from recallkit.scoring.scores import LastIds
from recallkit.tracking.run import TrackedRun, watch
from recallkit.tracking.view import look
from tests.attribution.test_context_gain import begins
from tests.display.drawings import svg

STEPS = ("step-0=control:unigram", "step-10=control:bigram", "step-20=control:recall")
LASTS = (LastIds(4, 1), LastIds(16, 4))
KINDS = ("ar_hit", "other_repeated", "not_repeated")


@pytest.fixture(scope="module")
def tracked(few_slices, tmp_path_factory):
    out, counts = tmp_path_factory.mktemp("track"), few_slices.parent / "counts.duckdb"
    return recallkit.track({"ref": "control:recall"}, list(STEPS), slices=few_slices, counts=counts, context_gain=[4, 16], out=out), out


def known_gains(slices, last: LastIds) -> dict[str, float]:
    """What `control:recall` gains by its formula, mean nats of each class; the cache is of what is read alone."""
    labels = pl.read_parquet(slices / "tokens.parquet")
    ids = dict(pl.read_parquet(slices / "sequences.parquet").select("sequence", "tokens").iter_rows())
    bigram = pl.read_parquet(score_path(slices, "step-10"))["nll"]
    gains = {kind: [] for kind in KINDS}

    def nll(own: list[int], begin: int, position: int, alone: float) -> float:
        followed = [own[at + 1] for at in range(begin, position - 1) if own[at] == own[position - 1]]
        if not followed:
            return alone
        return -math.log((1 - CACHE_WEIGHT) * math.exp(-alone) + CACHE_WEIGHT * (followed[-1] == own[position]))

    for row, alone in zip(labels.iter_rows(named=True), bigram, strict=True):
        own, position = ids[row["sequence"]], row["position"]
        kind = KINDS[2 if not row["repeated"] else 0 if row["ar_hit"] else 1]
        gains[kind].append(nll(own, begins(position, last), position, alone) - nll(own, 0, position, alone))
    return {kind: sum(found) / len(found) for kind, found in gains.items()}


def gained(table: pl.DataFrame, step: int, last: LastIds, of: str = "gain_model") -> dict[str, float]:
    rows = table.filter(pl.col("reference_gains").is_null(), pl.col("slice").is_in(KINDS), step=step, last=last.ids)
    return dict(rows.select("slice", of).iter_rows())


def test_a_bigram_model_gains_nothing_and_a_cache_what_its_formula_says(tracked, few_slices):
    table = tracked[0].by_context
    assert table["step"].unique().sort().to_list() == [0, 10, 20]
    for last in LASTS:
        known = known_gains(few_slices, last)
        assert known["ar_hit"] > 0.4 > 0 > known["not_repeated"], "far context pays in AR hits, and costs where nothing is repeated"
        assert gained(table, 20, last) == pytest.approx(known, abs=1e-5)
        for step in (0, 10):
            assert gained(table, step, last) == dict.fromkeys(KINDS, 0)
            assert gained(table, step, last, "gain_reference") == gained(table, 20, last)
            assert gained(table, step, last, "far_gap") == pytest.approx(known, abs=1e-5)


def test_the_command_prints_draws_and_repeats(tracked, few_slices, run):
    counts = ("--slices", few_slices, "--counts", few_slices.parent / "counts.duckdb")
    command = ("track", "ref=control:recall", *STEPS, *counts, "--context-gain", "4,16")
    done = run(*command, "-o", tracked[1])
    assert done.returncode == 0, done.stderr
    firsts = [[last, step] for last in ("4", "16") for step in ("0", "10", "20", "ref")]
    lines = [words for words in map(str.split, done.stdout.splitlines()) if words[:2] in firsts]
    assert [words[:2] for words in lines] == firsts
    hits = {str(last.ids): f"{known_gains(few_slices, last)['ar_hit']:.3f}" for last in LASTS}
    assert all(words[3] == hits[words[0]] for words in lines if words[1] in ("20", "ref"))
    assert "Last row of each number of ids: the reference." in " ".join(done.stdout.split())
    drawn = {figure.name: svg(figure) for figure in look(tracked[1]).figures()}
    assert {"context-4", "context-16", "track"} <= set(drawn)
    assert all(drawing.startswith("<svg") for drawing in drawn.values())
    assert len({path.parent for path in (few_slices / "scores").glob("last-*/step-20.parquet")}) == 2
    again = look(tracked[1]).command
    assert again.endswith("--slices DIR --samples 500 --context-gain 4,16")
    assert run(*command, "-o", tracked[1], "--context-stride", "2").returncode == 1, "another result"
    for wrong in (("--context-stride", "2"), ("--context-gain", "64")):
        done = run(*command[:-2], *wrong)
        assert (done.returncode, done.stderr.count("\n")) in ((1, 1), (2, 1)), done.stderr


def test_a_checkpoint_may_be_the_reference_itself(few_slices, tmp_path):
    """Which `--watch` finds among the others."""
    [spec] = list_models({"step-1": "control:recall"})
    options = ScoringOptions(counts=few_slices.parent / "counts.duckdb")
    run = TrackedRun(few_slices, tmp_path, spec, options, 50, context_gain=[LastIds(16, 4)])
    run.score([spec])
    run.add(1, spec)
    tables = run.write()
    table = tables.by_context
    assert look(tmp_path, tables).shown["by_context"].caption.endswith(" Last row: the reference.")
    assert (
        gained(table, 1, LASTS[1])
        == gained(table, 1, LASTS[1], "gain_reference")
        == pytest.approx(known_gains(few_slices, LASTS[1]), abs=1e-5)
    )


def test_a_checkpoint_that_is_replaced_is_scored_again_from_its_last_ids(tiny_model, few_slices, tmp_path):
    """The files of its first weights, which would be refused as others', give way."""
    found, checkpoint = [], tmp_path / "run" / "checkpoint-1"

    def sleep(_: float) -> None:
        if len(found) == 2:
            (tmp_path / "run" / "checkpoint-2").mkdir()
            shutil.copytree(checkpoint, tmp_path / "run" / "checkpoint-2", dirs_exist_ok=True)
        elif found:
            shutil.rmtree(checkpoint)
            shutil.copytree(tiny_model("gpt_neox"), checkpoint)

    shutil.copytree(tiny_model("llama"), checkpoint)
    options = ScoringOptions(counts=few_slices.parent / "counts.duckdb")
    given = [parse_model(str(tmp_path / "run" / "checkpoint-*"))]
    tables, _ = watch(
        *list_models({"r": "control:recall"}),
        given,
        few_slices,
        tmp_path / "out",
        options,
        lambda made, _: found.append(made.by_context),
        context_gain=[LastIds(8, 8)],
        seconds=0.01,
        until=2,
        sleep=sleep,
    )
    before, after, other = (gained(table, step, LastIds(8, 8)) for table, step in ((found[0], 1), (found[1], 1), (tables.by_context, 2)))
    assert before != after == other
