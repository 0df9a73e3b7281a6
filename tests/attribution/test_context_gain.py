"""What is gained from far context: known gains come out, every figure is that of its tokens, and
windows are what they are said to be."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recallkit
from recallkit.attribution.context_gain import (
    ALPHA,
    BETA,
    CLASSES,
    GAINS,
    KEY_TOKENS,
    context_gains,
)
from recallkit.errors import UsageError, UserError
from recallkit.measure import shares
from recallkit.models.control import CACHE_WEIGHT
from recallkit.ragged import offsets_of
from recallkit.scoring import ScoringOptions, make_scores, plan_scores, score_path
from recallkit.scoring.windows import LastIds, choose_last
from recallkit.slicing.view import manifest_of
from recallkit.storage import db, parquet_files

BIGRAM, CACHE, UNIGRAM = "control:bigram", "control:recall", "control:unigram"
LASTS = [LastIds(1, 1), LastIds(4, 1), LastIds(8, 2), LastIds(20, 5)]
SUMS = ["context_gain_reference", "context_gain_model", "delta_nll", "local_gap", "far_gap"]


def scored(slices: Path, model: str, last: LastIds | None = None) -> pl.DataFrame:
    """A model's scores of the slices, made where they are missing."""
    plan = plan_scores([model], slices)[0]
    make_scores(plan)
    if last is not None:
        make_scores(plan.from_last(last))
    return pl.read_parquet(score_path(slices, model, last))


def table_of(slices: Path, models: list[str], lasts: list[LastIds], **options) -> pl.DataFrame:
    for model in models:
        for last in lasts:
            scored(slices, model, last)
    full = {model: score_path(slices, model) for model in models}
    return context_gains(
        slices / "tokens.parquet",
        full,
        {last: [score_path(slices, model, last) for model in models] for last in lasts},
        **options,
    )


def begins(position: int, last: LastIds) -> int:
    """The first id that the prediction at a position sees: windows step by the stride."""
    return max(0, (position - last.ids) // last.stride * last.stride)


# -------------------------------------------------------------------------------------- the windows


@pytest.mark.parametrize("family", ["llama", "mamba"])
def test_a_prediction_sees_its_last_ids_and_no_others(few_slices, tiny_model, tmp_path, family):
    """The stored NLL is that of a text which begins where the window does, also for a model with a
    state, and at any place."""
    from recallkit.models.loading import load_model

    slices = shutil.copytree(
        few_slices, tmp_path / "slices", ignore=shutil.ignore_patterns("scores", "gap")
    )
    spec, last = str(tiny_model(family)), LastIds(8, 3)
    plan = plan_scores([spec], slices)[0]
    make_scores(plan)
    make_scores(plan.from_last(last))
    model, full = load_model(plan), pl.read_parquet(score_path(slices, plan.spec))
    found = pl.read_parquet(score_path(slices, plan.spec, last))
    ids = dict(
        pl.read_parquet(slices / "sequences.parquet").select("sequence", "tokens").iter_rows()
    )
    rows = found.filter(pl.col("sequence").is_in([0, max(ids)])).to_dicts()
    texts = [
        ids[row["sequence"]][begins(row["position"], last) : row["position"] + 1] for row in rows
    ]
    alone = model.score(
        np.concatenate(texts).astype(np.uint32), offsets_of([len(text) for text in texts])
    ).nll
    ends = np.cumsum([len(text) - 1 for text in texts]) - 1
    for row, text, nll in zip(rows, texts, alone[ends], strict=True):
        assert row["context"] == len(text) - 1
        assert (
            row["context"] == row["position"] if row["position"] < 11 else 8 <= row["context"] <= 10
        )
        assert row["nll"] == pytest.approx(float(nll), abs=2e-5)
    same = found["context"] == full["context"]
    assert (found["nll"] - full["nll"]).filter(same).abs().max() < 2e-5
    assert (found["nll"] - full["nll"]).filter(~same).abs().max() > 1e-3


def test_a_quarter_of_the_ids_is_the_stride_and_each_number_is_read_once():
    assert choose_last([128, 8, 8, 1, 3]) == [
        LastIds(1, 1),
        LastIds(3, 1),
        LastIds(8, 2),
        LastIds(128, 32),
    ]
    assert choose_last([32, 8], 1) == [LastIds(8, 1), LastIds(32, 1)]


# -------------------------------------------------------------------------------------- known truth


def test_a_bigram_model_gains_nothing_and_a_cache_what_its_formula_says(small_slices):
    """p = 0.65 p_bigram + 0.35 [the id is what followed the latest earlier occurrence of the last
    one in what is read]."""
    ids = dict(
        pl.read_parquet(small_slices / "sequences.parquet").select("sequence", "tokens").iter_rows()
    )
    bigram = scored(small_slices, BIGRAM)
    for last in LASTS:
        assert scored(small_slices, BIGRAM, last)["nll"].equals(bigram["nll"])
        found = scored(small_slices, CACHE, last)
        for row, probability in zip(
            found.iter_rows(named=True),
            np.exp(-bigram["nll"].to_numpy().astype(np.float64)),
            strict=True,
        ):
            own, position = ids[row["sequence"]], row["position"]
            followed = [
                own[at + 1]
                for at in range(begins(position, last), position - 1)
                if own[at] == own[position - 1]
            ]
            if followed:
                probability = (1 - CACHE_WEIGHT) * probability + CACHE_WEIGHT * (
                    followed[-1] == own[position]
                )
            assert row["nll"] == pytest.approx(-math.log(probability), abs=1e-5)
    table = table_of(small_slices, [CACHE, BIGRAM], LASTS)
    assert table["context_gain_model"].drop_nulls().eq(0).all()
    assert table["context_gain_reference"].max() > 1
    whole = table.filter(pl.col("reference_gains").is_null(), slice="all")
    assert whole["far_share"][0] == pytest.approx(1, abs=1e-6), (
        "the last id alone is all that a bigram model reads"
    )
    assert whole["far_share"].is_sorted(descending=True)


@pytest.mark.parametrize("models", [(CACHE, UNIGRAM), (UNIGRAM, CACHE)])
def test_every_figure_is_that_of_the_tokens_themselves(small_slices, models):
    """Against a computation token by token, of a model that gains nothing and one that does."""
    last, most = LastIds(4, 1), manifest_of(small_slices)["max_count"]
    table = table_of(small_slices, list(models), [last])
    labels = pl.read_parquet(small_slices / "tokens.parquet")
    kind = (
        pl.when(~pl.col("repeated"))
        .then(2)
        .when(pl.col("train_count") <= most)
        .then(0)
        .otherwise(1)
    )
    of_files = {
        "r": (models[0], None),
        "rs": (models[0], last),
        "m": (models[1], None),
        "ms": (models[1], last),
    }
    nlls = [
        scored(small_slices, *of)["nll"].cast(float).rename(name) for name, of in of_files.items()
    ]
    tokens = labels.select(kind=kind).with_columns(*nlls)
    gained, by_model = pl.col("rs") - pl.col("r"), pl.col("ms") - pl.col("m")
    tokens = tokens.with_columns(
        gains=gained >= 1,
        key=(gained > 2) & (pl.col("r") < 2),
        far=gained - by_model,
        mirror=by_model >= 1,
    )
    whole = (tokens["m"] - tokens["r"]).sum()
    for row in table.iter_rows(named=True):
        of_class = tokens.filter(key=True) if row["slice"] == KEY_TOKENS else tokens
        of_class = (
            of_class.filter(kind=list(CLASSES).index(row["slice"]))
            if row["slice"] in CLASSES
            else of_class
        )
        own = (
            of_class
            if row["reference_gains"] is None
            else of_class.filter(gains=row["reference_gains"])
        )
        mirror = -of_class.filter(mirror=True)["far"].sum() / whole
        assert row["mirror_share"] == (
            pytest.approx(mirror, abs=1e-9) if row["reference_gains"] else None
        )
        assert row["tokens"] == len(own)
        assert row["far_share"] == (
            pytest.approx(own["far"].sum() / whole, abs=1e-9) if len(own) else None
        )
        if len(own):
            r, rs, m, ms = (own[name].to_numpy() for name in of_files)
            expected = [
                (rs - r).mean(),
                (ms - m).mean(),
                (m - r).mean(),
                (ms - rs).mean(),
                own["far"].mean(),
            ]
            assert [row[name] for name in SUMS] == pytest.approx(expected, abs=1e-9)
            assert row["ppl_model"] == pytest.approx(math.exp(m.mean()), rel=1e-9), (
                "of key tokens: LongPPL"
            )
    assert (table.filter(slice=KEY_TOKENS)["tokens"][0] > 20) == (models[0] == CACHE)
    assert table["mirror_share"].abs().max() > 0.01 or models[1] == UNIGRAM


def is_key(full: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Which tokens the query calls key tokens, bool (n,), by the evaluator's NLLs: each token is a
    cluster of its own."""
    columns = {
        "cluster": np.arange(len(full)),
        "repeated": np.ones(len(full), bool),
        "ar_hit": np.ones(len(full), bool),
    }
    nlls = {"nll_0": full, "nll_1": full, "nll_2": last, "nll_3": last}
    with db.connect(threads=1) as database:
        database.register("tokens", pa.table({**columns, **nlls}))
        asked = database.sql(
            db.query("measure/sum_by_gain"), params={"gains": GAINS, "alpha": ALPHA, "beta": BETA}
        )
        return asked.pl().sort("cluster")["is_key"].to_numpy()


def test_key_tokens_are_strictly_above_both_thresholds():
    """LongPPL: the difference is above 2 nats, and the log-probability with all of the context
    above -2."""
    full, last = np.array([[1.9, 1.9, 2.0, 0.0, 0.5], [4.0, 3.9, 4.5, 2.0, 2.75]], np.float32)
    assert is_key(full, last).tolist() == [True, False, False, False, True]


# --------------------------------------------------------------------------- intervals, the command


@pytest.mark.parametrize("cluster", ["document", "sequence", "source"])
def test_intervals_are_of_the_same_resamples_as_those_of_the_gap(small_slices, tmp_path, cluster):
    tables = recallkit.gap(
        CACHE,
        BIGRAM,
        slices=small_slices,
        cluster=cluster,
        context_gain=[4, 20],
        out=tmp_path / "gap",
    )
    whole, gap = (
        tables.by_context.filter(pl.col("reference_gains").is_null(), slice="all"),
        tables.gap.row(0, named=True),
    )
    for row in whole.iter_rows(named=True):
        for name in (
            "delta_nll",
            "delta_nll_ci_low",
            "delta_nll_ci_high",
            "clusters",
            "effective_clusters",
        ):
            assert row[name] == pytest.approx(gap[name], abs=1e-12)
    rows = tables.by_context.filter(pl.col("far_share_ci_low").is_not_null())
    assert rows.is_empty() == (cluster == "source")
    for name in ("far_gap", "far_share", "context_gain_reference", "local_gap"):
        assert rows.select(
            pl.col(name).is_between(f"{name}_ci_low", f"{name}_ci_high").all()
        ).item()


def test_copies_of_training_text_are_left_out(small_slices, tmp_path):
    slices = shutil.copytree(
        small_slices, tmp_path / "slices", ignore=shutil.ignore_patterns("scores", "gap")
    )
    path = slices / "tokens.parquet"
    labels, manifest = pq.read_table(path), parquet_files.read_manifest(path)
    marks = pa.array([13 * (row % 5 == 0) for row in range(len(labels))], pa.int8())
    known = {
        "tokens": int(np.count_nonzero(marks)),
        "ar_hits": 0,
        "of_ar_hits": 1,
        "ngrams": {"13": {"fraction": 1.0, "sampled": 1, "found": 1}},
    }
    labels = labels.set_column(labels.schema.get_field_index("in_training"), "in_training", marks)
    parquet_files.write_parquet(path, [labels], labels.schema, {**manifest, "in_training": known})
    tables = recallkit.gap(CACHE, BIGRAM, slices=slices, context_gain=4, clean=True)
    row, gap = tables.by_context.row(0, named=True), tables.gap.row(0, named=True)
    assert row["tokens"] == gap["tokens"] == np.count_nonzero(np.asarray(marks) == 0)
    for name in ("delta_nll", "delta_nll_ci_low", "gap_share_ci_high"):
        assert row[name] == pytest.approx(gap[name], abs=1e-12)


def test_the_command_keeps_both_scores_and_shows_the_tables(small_slices, tmp_path):
    slices = shutil.copytree(
        small_slices, tmp_path / "slices", ignore=shutil.ignore_patterns("scores", "gap")
    )
    plain = recallkit.gap(CACHE, [BIGRAM, UNIGRAM], slices=slices)
    assert plain.by_context is None
    full = {path: path.read_bytes() for path in (slices / "scores").glob("*.parquet")}
    tables = recallkit.gap(CACHE, [BIGRAM, UNIGRAM], slices=slices, context_gain=[16, 4])
    assert tables.gap.equals(plain.gap)
    assert {path: path.read_bytes() for path in full} == full
    kept = {path: path.stat().st_mtime_ns for path in (slices / "scores").glob("last-*/*.parquet")}
    assert sorted({path.parent.name for path in kept}) == ["last-16-stride-4", "last-4-stride-1"]
    recallkit.gap(CACHE, [BIGRAM, UNIGRAM], slices=slices, context_gain=[4, 16])
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "reused"
    found = [path.parent for path in (slices / "gap").glob("*/by_context.parquet")]
    assert len(found) == 1
    assert len(list((slices / "gap").iterdir())) == 2, "another question has a folder of its own"
    read = recallkit.read_comparison(found[0])
    assert read.tables.by_context.equals(tables.by_context)
    assert read.manifest["context_gain"] == [[4, 1], [16, 4]]
    page = recallkit.write_report(found[0], tmp_path / "page.html").read_text()
    for text in ("The far gap by class of token", "Mirror: the same share", "LongPPL"):
        assert text in page


def test_what_cannot_be_asked_is_one_line(small_slices, tiny_model, tmp_path):
    with pytest.raises(
        UserError, match=r"windows of 79 ids contain whole sequences of 64 predictions"
    ):
        recallkit.gap(CACHE, BIGRAM, slices=small_slices, context_gain=64)
    with pytest.raises(UsageError, match="goes with --context-gain"):
        recallkit.gap(CACHE, BIGRAM, slices=small_slices, context_stride=1)
    byte_level = shutil.copytree(tiny_model("llama", vocab_size=256), tmp_path / "bytes")
    plan = plan_scores([str(byte_level)], small_slices, ScoringOptions(model_tokenizer="bytes"))[0]
    with pytest.raises(UserError, match="another tokenizer, so its last ids"):
        plan.from_last(LastIds(4, 1))


def test_a_class_of_too_few_documents_is_void_and_says_so(few_slices, monkeypatch):
    monkeypatch.setattr(shares, "MIN_CLUSTERS", 6)
    found = table_of(few_slices, [CACHE, BIGRAM], LASTS).drop_nulls("far_share")
    few = found["effective_clusters"] < 6
    assert found["void"].equals(few, check_names=False)
    assert found["note"].str.contains("effectively").equals(few, check_names=False)
    assert few.sum() in range(1, len(few)), "some are"
