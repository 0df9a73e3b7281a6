"""Known truths: control models lose what their formulas say, a constructed induction head all that
it recalls; and whole runs."""

from __future__ import annotations

import math
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import recallkit
from recallkit.errors import UserError
from recallkit.intervening import InterventionOptions, finished_intervention, intervene
from recallkit.intervening.changes import CHANGES
from recallkit.intervening.tables import MEASURES, InterveneTables
from recallkit.intervening.view import InterventionView
from recallkit.models.control import CACHE_WEIGHT
from recallkit.models.spec import list_models
from recallkit.scoring import ScoringOptions
from recallkit.storage import hashing, parquet_files
from tests.display.drawings import svg
from tests.made_tokenizers import made

FEW = InterventionOptions(samples=60)
EXACT = InterventionOptions(samples=60, design="exact", changes="all")
CONTROLS = ("control:recall", "control:bigram")


@pytest.fixture(scope="module")
def slices(home, short_text, tmp_path_factory) -> Path:
    """Short passages of 20 built-in documents: real text."""
    folder = tmp_path_factory.mktemp("sliced") / "slices"
    recallkit.slice(
        short_text(20, 800),
        folder,
        counts=recallkit.zoo_counts(),
        max_count=5,
        seq_len=256,
    )
    return folder


@pytest.fixture(scope="module")
def control(slices) -> InterveneTables:
    return intervene(CONTROLS, slices, options=EXACT)


def changed_folder(slices: Path, options: InterventionOptions) -> Path:
    """The folder of the changed text of these options."""
    for path in slices.glob("intervene/text-*/samples.parquet"):
        question = parquet_files.read_manifest(path)["options"]
        if (question["samples"], question["design"]) == (options.samples, options.design):
            return path.parent
    raise AssertionError(options)


def nlls(slices: Path, changed: Path, model: str) -> pl.DataFrame:
    """The sampled tokens with their NLLs in the text (`before`) and after each change."""
    samples = pl.read_parquet(changed / "samples.parquet").filter(excluded="")
    before, after = (
        pl.read_parquet(
            folder / "scores" / f"{hashing.file_slug(model)}.parquet",
        )["nll"]
        for folder in (slices, changed)
    )
    columns = {change: after[samples[f"{change}_row"].to_numpy()] for change in CHANGES}
    return samples.with_columns(before=before[samples["row"].to_numpy()], **columns)


def test_a_bigram_model_loses_nothing(control):
    """What is changed is further back than it looks: not by little, by nothing."""
    rows = control.intervene.filter(model="control:bigram")
    assert rows["slice"].to_list() == ["ar_hit", "repeated_frequent", "first_rare", "repeated"]
    assert (rows.select(*CHANGES).to_numpy() == 0).all()
    assert (rows["points"] == 0).all()


def test_a_cache_loses_what_its_formula_says(control, slices):
    """p = (1 - w) p_bigram + w [the id that followed the key last], and p_bigram alone where the
    key did not occur before."""
    changed = changed_folder(slices, EXACT)
    cache, bigram = (nlls(slices, changed, model) for model in CONTROLS)
    ids = pl.read_parquet(changed / "sequences.parquet")["tokens"].to_list()
    places = pl.read_parquet(changed / "tokens.parquet", columns=["sequence", "position"])
    differs = 0
    for row, without in zip(cache.iter_rows(named=True), bigram.iter_rows(named=True), strict=True):
        for change in CHANGES:
            sequence, position = places.row(row[f"{change}_row"])
            context, token = ids[sequence][:position], ids[sequence][position]
            earlier = [place for place in range(position - 1) if context[place] == context[-1]]
            p = math.exp(-without[change])
            if earlier:
                p = (1 - CACHE_WEIGHT) * p + CACHE_WEIGHT * (context[earlier[-1] + 1] == token)
            assert row[change] == pytest.approx(-math.log(p), abs=1e-5)
            differs += abs(row[change] - row["before"]) > 0.5
    assert differs > 100


def test_tables_are_weighted_means_of_what_was_read(control, slices):
    """And retained and the share of the gap are ratios of the weighted sums of a slice, N tokens of
    it in all, by their definitions."""
    labels = pl.read_parquet(slices / "tokens.parquet")
    sizes = {
        "ar_hit": labels["ar_hit"].sum(),
        "repeated_frequent": (labels["repeated"] & ~labels["ar_hit"]).sum(),
    }
    scores = [
        pl.read_parquet(
            slices / "scores" / f"{hashing.file_slug(model)}.parquet",
        )["nll"].cast(pl.Float64)
        for model in CONTROLS
    ]
    gap = (scores[1] - scores[0]).sum()
    tau = {}
    for model in CONTROLS:
        read = nlls(slices, changed_folder(slices, EXACT), model)
        for row in control.intervene.filter(
            pl.col("model") == model,
            pl.col("slice") != "repeated",
        ).iter_rows(named=True):
            mine = read.filter(slice=row["slice"])
            lost = {
                change: mine[change]
                .to_numpy()
                .astype(
                    float,
                )
                - mine["before"].to_numpy()
                for change in CHANGES
            }
            less, more = (
                np.exp(
                    -mine[change].to_numpy().astype(float),
                )
                for change in ("moved", "moved_placebo")
            )
            lost |= {
                "use": lost["span"] - lost["placebo"],
                "recall": lost["moved"] - lost["moved_placebo"],
                "points": more - less,
            }
            lost["nll"] = mine["before"].to_numpy().astype(float)
            means = {
                name: np.average(
                    lost[name],
                    weights=mine["weight"].to_numpy(),
                )
                for name in MEASURES
            }
            assert {name: row[name] for name in MEASURES} == pytest.approx(means)
            size = sizes.get(row["slice"], sizes["ar_hit"])
            assert (row["samples"], row["tokens"]) == (len(mine), size)
            tau[model, row["slice"]] = size * means["recall"]
    shares = {row["slice"]: row for row in control.retained.iter_rows(named=True)}
    expected = {
        slice_: (tau[CONTROLS[0], slice_] - tau[CONTROLS[1], slice_]) / gap
        for slice_ in (
            *sizes,
            "first_rare",
        )
    }
    expected["repeated"] = expected["ar_hit"] + expected["repeated_frequent"]
    assert {name: row["causal_share"] for name, row in shares.items()} == pytest.approx(expected)
    # The cache is all that the two models differ in: it is retained in no slice, and is not in the
    # control.
    assert [shares[name]["retained"] for name in ("ar_hit", "repeated_frequent", "repeated")] == [
        0,
        0,
        0,
    ]
    assert abs(shares["first_rare"]["causal_share"]) < 0.01
    assert (
        0.5
        < shares["repeated"]["causal_share_ci_low"]
        < shares["repeated"]["causal_share"]
        < shares["repeated"]["causal_share_ci_high"]
    )
    hits = control.intervene.filter(model="control:recall", slice="ar_hit").row(0, named=True)
    assert hits["recall"] > 3
    assert hits["points_ci_low"] < hits["points"] < hits["points_ci_high"]


INDUCTION = """
    import torch

    def model(request):
        def logits(ids):
            '''An induction head by construction: attention from each id to all earlier ones after the same id, which copies.'''
            before = torch.nn.functional.pad(ids, (1, 0), value=-1)[:, :-1]
            earlier = torch.ones(ids.shape[1], ids.shape[1]).tril().bool()
            match = (ids[:, :, None] == before[:, None, :]) & earlier
            weights = match / match.sum(-1, keepdim=True).clamp(min=1)
            return 20 * weights @ torch.nn.functional.one_hot(ids, request.vocab_size).float()
        return logits
"""


def induction(folder: Path, certainty: int = 20) -> str:
    """The induction head as a model: the logit of what it has found."""
    (folder / "head.py").write_text(textwrap.dedent(INDUCTION).replace("20", str(certainty)))
    return f"head={folder / 'head.py'}:model"


def test_a_constructed_induction_head_loses_all_it_recalls(slices, tmp_path):
    """With the match it is certain where the key had one completion; without it, it knows nothing:
    the NLL is that of a uniform guess."""
    options = replace(EXACT, samples=14)
    tables = intervene(
        [induction(tmp_path), "control:unigram"],
        slices,
        options=options,
        scoring=ScoringOptions(batch_tokens=1024),
    )
    read = nlls(slices, changed_folder(slices, options), "head").filter(slice="ar_hit")
    ids = pl.read_parquet(slices / "sequences.parquet")["tokens"].to_list()
    certain = 0
    for row in read.iter_rows(named=True):
        context = ids[row["sequence"]][: row["position"]]
        places = [place for place in range(len(context) - 1) if context[place] == context[-1]]
        completions = {context[place + 1] for place in places}
        if len(completions) == 1:
            certain += 1
            assert row["before"] == pytest.approx(0, abs=1e-4)
            assert row["placebo"] == pytest.approx(0, abs=1e-4)
            assert row["span"] == row["key"] == pytest.approx(math.log(4096), abs=1e-4)
            assert row["completion"] == pytest.approx(20, abs=0.01)  # certain of the wrong id
            assert row["moved"] > math.log(4096) - 0.1  # the key has other completions
            assert row["moved_placebo"] == pytest.approx(0, abs=1e-4)
    assert certain > 4
    means = {
        row["model"]: row
        for row in tables.intervene.filter(
            slice="ar_hit",
        ).iter_rows(named=True)
    }
    assert means["head"]["recall"] > 5
    assert means["control:unigram"]["recall"] == 0


BAG = """
    import torch

    def model(request):
        def logits(ids):
            '''How often each id is in the context: any change of it is felt.'''
            return torch.nn.functional.one_hot(ids, request.vocab_size).float().cumsum(1)
        return logits
"""


def test_a_placebo_is_subtracted_and_text_is_read_as_it_was(slices, tmp_path):
    """A bag of words feels every change. The changed text is read in the windows, and with the
    tokenizer, in which the text was."""
    (tmp_path / "bag.py").write_text(textwrap.dedent(BAG))
    bag = f"bag={tmp_path / 'bag.py'}:model"
    made("built-in").backend.save(str(tmp_path / "same.json"))
    recallkit.score(
        bag,
        slices=slices,
        context=64,
        stride=32,
        batch_tokens=1024,
        model_tokenizer=tmp_path / "same.json",
    )
    options = replace(EXACT, samples=8)
    tables = intervene(
        ["control:recall", bag],
        slices,
        options=options,
        scoring=ScoringOptions(batch_tokens=1024),
    )
    changed = changed_folder(slices, options)
    read = parquet_files.read_manifest(
        changed / "scores" / f"{hashing.file_slug('bag')}.parquet",
    )["options"]
    assert (
        read["context"],
        read["stride"],
        read["tokenizer"]["given"],
    ) == (64, 32, str(tmp_path / "same.json"))
    means = {(row["model"], row["slice"]): row for row in tables.intervene.iter_rows(named=True)}
    for row in means.values():
        assert row["use"] == pytest.approx(row["span"] - row["placebo"])
    mine = means["bag", "ar_hit"]
    assert abs(mine["placebo"]) > 1e-4
    assert mine["use"] > 0.1


def test_both_designs_say_the_same(control, slices):
    joint = intervene(CONTROLS, slices, options=FEW)
    for one, other in zip(
        control.intervene.iter_rows(named=True),
        joint.intervene.iter_rows(named=True),
        strict=True,
    ):
        assert one["samples"] == other["samples"]
        assert one["recall"] == pytest.approx(other["recall"], abs=0.25)
    sizes = [
        parquet_files.read_manifest(
            changed_folder(slices, of) / "samples.parquet",
        )["changed_tokens"]
        for of in (FEW, EXACT)
    ]
    assert sizes[0] < sizes[1]


def test_changed_text_is_labelled_text(control, slices):
    """In a slice directory of its own: asked tokens are repeated where a placebo is, and nowhere
    else."""
    folder = changed_folder(slices, EXACT)
    labels = pl.read_parquet(folder / "tokens.parquet")
    original = pl.read_parquet(slices / "tokens.parquet")
    samples = pl.read_parquet(
        folder / "samples.parquet",
    ).filter(pl.col("excluded") == "", pl.col("slice") != "first_rare")
    for change in CHANGES:
        rows = labels[samples[f"{change}_row"].to_numpy()]
        assert (rows["token"] == original[samples["row"].to_numpy()]["token"]).all()
        assert (rows["document"] == original[samples["row"].to_numpy()]["document"]).all()
        assert rows["repeated"].sum() == (
            len(
                rows,
            )
            if change in ("placebo", "moved_placebo")
            else 0
        )


def test_finished_work_is_reused_and_other_questions_have_other_folders(slices, control):
    files = {path: path.stat().st_mtime_ns for path in slices.glob("intervene/**/*.parquet")}
    again = intervene(CONTROLS, slices, options=EXACT)
    assert {path: path.stat().st_mtime_ns for path in files} == files
    for name in ("intervene", "by_distance", "by_count", "retained"):
        assert getattr(again, name).equals(getattr(control, name))
    intervene(CONTROLS, slices, options=InterventionOptions(samples=5, slice=["copy:k3"]))
    assert len(list(slices.glob("intervene/*/intervene.parquet"))) >= 2


def test_slices_of_ones_own_and_of_words_too(slices):
    far = "far=distance > 100 AND context_class <> 'new'"
    tables = intervene(
        CONTROLS,
        slices,
        options=InterventionOptions(samples=10, slice=[far, "rare_word"]),
    )
    assert tables.intervene["slice"].unique(maintain_order=True).to_list() == ["far", "rare_word"]
    assert tables.intervene["tokens"][0] == len(
        pl.read_parquet(slices / "tokens.parquet").filter(pl.col("distance") > 100),
    )
    assert tables.by_distance.filter(slice="far")["low"].min() >= 65
    assert (tables.intervene.filter(model="control:recall")["recall"] > 0).all()
    assert tables.retained["slice"].to_list() == ["far", "rare_word"]
    alone = intervene(
        ["control:recall"],
        slices,
        options=InterventionOptions(samples=4, slice=[far, "rare_word"]),
    )
    assert len(alone.retained) == 0


def test_what_cannot_be_asked_is_an_error(slices, tmp_path, small_slices):
    with pytest.raises(UserError, match="none of the sampled tokens"):
        intervene(
            ["control:recall"],
            slices,
            options=InterventionOptions(slice=["none=distance > 100000"]),
        )
    other = small_slices.parent / "counts.duckdb"
    with pytest.raises(UserError, match="other counts"):
        recallkit.intervene(induction(tmp_path), slices=slices, samples=7, counts=other)
    recallkit.slice(
        "demo:validation",
        tmp_path / "plain",
        limit_tokens="2k",
        counts=None,
        tokenizer="bytes",
    )
    with pytest.raises(UserError, match="without training counts"):
        recallkit.intervene("control:copy", slices=tmp_path / "plain")


def test_the_command_prints_exports_and_draws(slices, control, run, tmp_path):
    done = run(
        *("intervene", *CONTROLS, "--slices", slices, "--samples", 60, "--design", "exact"),
        *("--export", "csv,tex", "--full"),
    )
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "Causal recall: AR hits" in said
    assert "Causal recall: all repeated bigrams" in said
    assert "Nats lost when the text before rare first occurrences (control) is changed" in said
    assert "any use" not in said, "what other changes cost is not known"
    assert "every second id of each match is swapped" in said
    [folder] = [path.parent for path in slices.glob("intervene/*/retained.csv")]
    assert (folder / "lost_ar_hit.tex").is_file()
    seen = InterventionView(folder, control)
    drawn = {figure.name: svg(figure) for figure in seen.figures()}
    assert "control:bigram" in drawn["causal_by_distance"]
    assert seen.json()["intervene"][0]["recall"] == control.intervene["recall"][0]
    recallkit.write_report(folder, out=tmp_path / "page.html")
    assert "of control:recall&#39;s causal recall" in (tmp_path / "page.html").read_text()


def test_causal_recall_alone_is_what_it_is_beside_the_other_changes(slices, control):
    """A third of the text is read, and what other changes cost is not known."""
    tables = intervene(CONTROLS, slices, options=replace(EXACT, changes="moved"))
    for name in ("recall", "points", "points_ci_low", "moved"):
        assert tables.intervene[name].to_list() == pytest.approx(
            control.intervene[name].to_list(),
            abs=1e-9,
        )
    assert tables.retained["causal_share"].to_list() == pytest.approx(
        control.retained["causal_share"].to_list(),
        abs=1e-9,
    )
    assert (
        tables.intervene["use"].null_count()
        == tables.intervene["completion"].null_count()
        == len(
            tables.intervene,
        )
    )


def test_a_finished_one_is_of_these_labels_and_these_scores(home, short_text, tmp_path, capsys):
    """Not of other models, of a model that is scored again, or of labels with another threshold,
    which have other AR hits."""
    text, slices = short_text(8, 400), tmp_path / "slices"
    recallkit.slice(text, slices, counts=recallkit.zoo_counts(), max_count=5, seq_len=64)

    def finished(*models: str) -> InterveneTables | None:
        return finished_intervention(slices, list_models(models))

    models = ("control:recall", induction(tmp_path, 6))
    tables = intervene(models, slices)
    assert finished(*models).intervene.equals(tables.intervene)
    assert "left out" not in capsys.readouterr().err
    assert finished("control:recall", "control:unigram") is None
    recallkit.score(induction(tmp_path, 7), slices=slices, force=True)
    assert finished(*models) is None
    assert capsys.readouterr().err.count("not shown: run `recallkit intervene` again") == 1
    again = intervene(models, slices).intervene
    for model, is_same in (("control:recall", True), ("head", False)):
        pair = [
            frame.filter(
                model=model,
            )["recall"].to_list()
            for frame in (tables.intervene, again)
        ]
        assert (pair[0] == pair[1]) == is_same
    assert finished(*models).intervene.equals(again)
    recallkit.slice(
        text,
        slices,
        counts=recallkit.zoo_counts(),
        max_count=50,
        seq_len=64,
        force=True,
    )
    assert finished(*models) is None
