"""The tables of a gap: figures as in the frames, long names within 80 columns."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import polars as pl
import pytest

from recallkit.attribution import view
from recallkit.attribution.comparison import Comparison
from recallkit.attribution.tables import GapTables
from recallkit.attribution.view import by_source_table, comparators_table, gap_table, look, shown_tables
from recallkit.display import console
from recallkit.display.cells import Struck, some_of
from recallkit.measure.shares import GAP_MAY_BE_ZERO, NO_GAP
from recallkit.slicing.definitions import PARTITION

SLICES = {"counts": {"num_tokens": 10_000}, "max_count": 4}
_SLICE_NAMES = ("all", "ar_hit", "other", "repeated")


def made_tables(models=("behind", "ahead"), sources=("ALL", "books", "letters"), reference="ref") -> GapTables:
    """NLLs of model m: 2 + m on average, 3 + m on AR hits; of the reference 2 and 3. Rows that no curve shows lie off its scale."""
    gap = [
        {
            "reference": reference, "model": model, "source": source, "slice": kind, "tokens": 100, "share_of_tokens": 0.25,
            "nll_model": 2.0 + place + (kind == "ar_hit"), "ppl_reference": math.exp(2 + (kind == "ar_hit")),
            "ppl_model": math.exp(2 + place + (kind == "ar_hit")), "bpb_reference": 1.0, "bpb_model": 1.5, "delta_nll": float(place),
            "cluster": "document", "clusters": 20, "effective_clusters": 18.24,
            "gap_share": 0.3 + place, "ci_low": 0.2, "ci_high": 0.4, "enrichment": 4 * (0.3 + place), "control_share": 0.015,
            "control_ci_low": -0.002, "control_ci_high": 0.031, "range_low": 0.12, "range_high": 1.04,
            "note": "a note" if place else "", "void": False,
        }
        for place, model in enumerate(models) for source in sources for kind in _SLICE_NAMES
    ]  # fmt: skip
    buckets = [(1, 1), (2, 2), (5, 8)]
    by_distance = [
        {
            "model": model, "ar_hit": hit, "low": low, "high": high, "nll_reference": 1.0 + 20 * (not hit),
            "nll_model": 1.0 + place + 6 * (place and high == 8),
        }
        for place, model in enumerate(models) for hit in (True, False) for low, high in buckets
    ]  # fmt: skip
    by_count = [
        {
            "reference": reference, "model": model, "repeated": repeated, "low": low, "high": high, "tokens": 100,
            "nll_reference": 8.0 - low - 9 * (not repeated), "nll_model": 8.0,
            "nll_first_reference": 8.5 if repeated else None, "nll_first_model": 9.0 if repeated else None,
        }
        for model in models for repeated in (True, False) for low, high in [(0, 0), (1, 1), (2, 2), (3, 4), (5, 8)]
    ]  # fmt: skip
    by_match = [
        {
            "model": model, "ar_hit": low > 0, "low": low, "high": high, "nll_reference": 1.0 + 20 * (low == 0),
            "nll_model": 1.0 + place + 6 * (place and high == 15),
        }
        for place, model in enumerate(models) for low, high in [(0, 0), (1, 1), (2, 2), (4, 7), (8, 15)]
    ]  # fmt: skip
    by_partition = [
        {"model": model, "slice": class_.name, "share_of_tokens": 1 / 6, "gap_share": 1 / 6, "note": "", "void": False}
        for model in models
        for class_ in PARTITION
    ]
    by_threshold = [
        {"model": model, "threshold": threshold, "share_of_tokens": share}
        for model in models for threshold, share in [(0, 0.03), (1, 0.07), (2, 0.14), (3, 0.064), (4, 0.25)]
    ]  # fmt: skip
    frame = pl.DataFrame(gap)
    frames = [pl.DataFrame(rows) for rows in (by_count, by_distance, by_match)]
    return GapTables(frame, *frames, frame, pl.DataFrame(by_threshold), pl.DataFrame(by_partition), pl.DataFrame())


def print_all(tables, folder, monkeypatch, inexact=()) -> None:
    """Prints all of a comparison in 80 columns; its charts, which need what is not made up, are left out."""
    monkeypatch.setattr(view, "figures", lambda comparison: [])
    monkeypatch.setenv("COLUMNS", "80")
    console.terminal.cache_clear()
    models = tables.gap["model"].unique(maintain_order=True).to_list()
    look(Comparison(folder, tables.gap["reference"][0], models, tables, {"slices": SLICES, "inexact": dict(inexact)})).print(full=True)
    console.terminal.cache_clear()


def test_the_table_holds_the_reference_and_every_model():
    table = gap_table(made_tables(), SLICES)
    assert table.rows == [
        ["ref", "7.39", "20.09", "7.39", "", "", "reference", "", ""],
        ["behind", "7.39", "20.09", "7.39", "0.000", "30.0", "20.0 to 40.0", "12 to 104", "1.5"],
        ["ahead", "20.09", "54.60", "20.09", "1.000", "130.0", "20.0 to 40.0", "12 to 104", "1.5"],
    ]
    assert "at thresholds from 1 to 16." in table.caption
    in_bits = gap_table(made_tables(), SLICES, has_own_tokenizers=True)
    rows = {row["slice"]: row for row in made_tables().gap.filter(source="ALL", model="behind").to_dicts()}
    assert in_bits.title.startswith("Bits per byte, ")
    assert in_bits.rows[1][1:4] == [f"{rows[name]['bpb_model']:.3f}" for name in ("all", "ar_hit", "other")]
    known = gap_table(made_tables(), SLICES, {"behind": {"recall_share": 0.25}})
    assert [row[-1] for row in known.rows] == ["", "25.0", "–"], "what would be gone without recall, where it is known"
    assert [len(known.headers), sum(span for _, span in known.groups)] == [len(known.rows[0])] * 2
    assert "25.00 % of 100 tokens" in table.caption
    assert "at most 4 times" in table.caption
    assert sum(span for _, span in table.groups) == len(table.headers)


@pytest.mark.parametrize(
    ("held_out", "error", "is_warned"),
    [
        *[(0.05, 0.0, True), (0.14, 0.0, True), (0.15, 0.0, False), (0.3, 0.0, False), (None, 0.0, False)],
        *[(0.1, 0.02, True), (0.1, 0.03, False), (0.05, None, False)],
    ],
)
def test_counts_of_other_text_are_warned_of(held_out, error, is_warned):
    """A fifth of the bigrams was not counted: odds of 0.25, 1.54 times those of 0.14 and 1.42 times those of 0.15.

    Two standard errors less they are 0.19 or 0.163, where half as much again as those of 0.1 is 0.167; of one document nothing is known.
    """
    counts = {"num_tokens": 10_000, "unseen": held_out and {"share": held_out, "bigrams": 1000, "documents": 30}}
    unseen = {"share": 0.2, "standard_error": error, "bigrams": 90, "documents": 10}
    caption = gap_table(made_tables(), {**SLICES, "counts": counts, "unseen": unseen}).caption
    assert caption.count("20.0 % of the text's bigrams are not in the counts") == 1, "said once, in the warning or before another one"
    assert ("held-out text of the counted corpus has" in caption) == (held_out is not None)
    assert ("Count the models' training text." in caption) == ("Warning: 20.0 %" in caption) == is_warned
    assert ("common bigrams" in caption) == (not is_warned), "AR hits are 25 % of tokens: one warning, of the cause"


def test_what_a_share_can_be_compared_with_is_beside_it():
    table = comparators_table(made_tables())
    assert table.headers == ["model", "enrichment", "repeated", "95 % interval\nof the control"]
    assert table.rows == [["behind", "1.2", "30.0 %", "-0.2 to 3.1 %"], ["ahead", "5.2", "130.0 %", "-0.2 to 3.1 %"]]
    assert "(25.00 % of tokens)" in table.caption
    assert "not subtracted" in table.caption


def is_struck(cell):
    return isinstance(cell, Struck)


def test_figures_that_mean_nothing_are_struck_out_in_every_table(tmp_path, monkeypatch, capsys):
    """Every share, enrichment and control of the model `void`, and none of the other."""
    made = made_tables(models=("void", "sound"))
    frames = {name: getattr(made, name) for name in ("gap", "by_partition")}
    note = pl.when(model="void").then(pl.lit(f"a note; {GAP_MAY_BE_ZERO}")).otherwise(pl.lit("another note"))
    tables = replace(made, **{name: frame.with_columns(note=note, void=pl.col("model") == "void") for name, frame in frames.items()})
    shown = shown_tables(tables, SLICES, {})
    struck = {name: [[is_struck(cell) for cell in row] for row in table.rows] for name, table in shown.items()}
    assert struck["gap"] == [[False] * 9, [*[False] * 5, True, False, False, True], [False] * 9]
    assert shown["gap"].rows[1][6:8] == ["–", "–"], "no interval, and no range, of what means nothing"
    assert struck["comparators"] == [[False, True, True, False], [False] * 4]
    assert shown["comparators"].rows[0][3] == "–"
    assert struck["by_source"] == [[False] * 3, [False, True, True], [False] * 3]
    assert struck["by_partition"] == [[False] * 7, [False, *[True] * 6], [False] * 7]
    print_all(tables, tmp_path, monkeypatch)
    out = capsys.readouterr().out
    assert f"void: the share means nothing: a note; {GAP_MAY_BE_ZERO}" in " ".join(out.split())
    assert "sound: another note" in out.splitlines()
    assert out.count("~~") == 2 * (2 + 2 + 2 + 6)


def test_sources_stand_beside_each_other_where_there_are_some():
    table = by_source_table(made_tables())
    assert table.headers == ["model", "books\n100 tokens", "letters\n100 tokens"]
    assert [row[:2] for row in table.rows] == [["AR hits, of tokens", "25.00 %"], ["behind", "30.0 %"], ["ahead", "130.0 %"]]
    assert by_source_table(made_tables(sources=("ALL", "books"))) is None
    assert len(by_source_table(made_tables(), 1).headers) == 2
    assert "1 smaller source:" in by_source_table(made_tables(), 1).caption
    assert list(shown_tables(made_tables(), SLICES, {})) == ["gap", "comparators", "by_source", "by_partition"]


@pytest.mark.parametrize(
    "models", [("a/very/long/path/to/checkpoints/" + "mamba" * 20, "b" * 150, "short"), tuple(f"model {n}" for n in range(9))]
)
def test_long_names_fold_within_80_columns(tmp_path, monkeypatch, capsys, models):
    tables = made_tables(models=models, sources=("ALL", "s" * 100, "t"), reference="r" * 90)
    print_all(tables, tmp_path, monkeypatch, inexact={models[0]: {"all": 0.1, "ar_hit": 0.2}})
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[-1] == f"Tables (Parquet): {tmp_path}"
    assert max(map(len, lines[:-1])) <= 80
    assert "…" not in out
    shown = out.partition("Bits per byte, and how much")[2]  # of models with tokenizers of their own
    assert shown.count("20.0 to 40.0") == shown.count("-0.2 to 3.1 %") == len(models), "intervals stay whole"
    assert "".join(models[0].split()) in "".join(out.split()), "its note, folded"


@pytest.mark.parametrize("inexact", [{}, {"ahead": {"all": 0.1, "ar_hit": 0.2}}])
def test_where_tokenizers_differ_the_sentence_is_in_bits_per_byte(tmp_path, monkeypatch, capsys, inexact):
    print_all(made_tables(), tmp_path, monkeypatch, inexact=inexact)
    sentence = " ".join(capsys.readouterr().out.partition("\n\n")[0].split())
    assert ("ahead (1.500 bits per byte against 1.000)" in sentence) == bool(inexact)
    assert ("ahead (perplexity 20.09 against 7.39)" in sentence) == (not inexact)


def test_sources_in_which_a_model_leads_are_named():
    made = made_tables()
    ahead = pl.when((pl.col("model") == "ahead") & (pl.col("source") == "letters")).then(-0.1).otherwise(0.1)
    assert by_source_table(replace(made, gap=made.gap.with_columns(delta_nll=ahead))).caption == "Shares of a lead: ahead in letters."
    assert by_source_table(replace(made, gap=made.gap.with_columns(delta_nll=ahead, void=True))).caption.startswith("Struck out: ")


def test_the_largest_source_stands_first():
    made = made_tables(sources=("ALL", "a", "b", "c"))
    tokens = pl.col("source").replace_strict({"ALL": 60, "a": 10, "b": 30, "c": 20})
    tables = replace(made, gap=made.gap.with_columns(tokens=tokens))
    assert [header[0] for header in by_source_table(tables).headers[1:]] == ["b", "c", "a"]


def test_of_many_models_the_terminal_ranks_all_and_says_the_same_once(small_slices, run, tmp_path):
    """Eleven names of three models: one line for all with equal notes, the knees' range, the best model on top."""
    named = [f"{name}-{size}=control:{name}" for size in range(4) for name in ("unigram", "bigram", "recall")][:11]
    done = run("gap", "reference=control:recall", *named, "--slices", small_slices, "-o", tmp_path / "gap", "--full")
    assert done.returncode == 0, done.stderr
    table = done.stdout.split("Perplexity, and")[1].split("\n\n")[0]
    shown = re.findall(r"^(\w+-\d)\b", table, re.MULTILINE)
    assert len(shown) == 11
    assert [name.split("-")[0] for name in shown] == ["bigram"] * 4 + ["recall"] * 3 + ["unigram"] * 4
    notes = " ".join(done.stdout.split())
    assert f"recall-0, recall-1, recall-2: the share means nothing: {NO_GAP}" in notes
    assert re.search(r"Knee, .* repetitions: from [^,(]+ \(\S+\) to [^,(]+ \(\S+\)\.", notes)
    few = run("gap", "reference=control:recall", *named[:4], "--slices", small_slices, "-o", tmp_path / "few", "--full")
    shown = re.findall(r"^(\w+-\d)\b", few.stdout.split("Perplexity, and")[1].split("\n\n")[0], re.MULTILINE)
    assert shown == ["unigram-0", "bigram-0", "recall-0", "unigram-1"], "as they were named"
    assert "recall-0 " in " ".join(few.stdout.split()).split("Knee, ")[1]


def test_names_of_many_models_are_counted():
    assert some_of(["a", "b", "c", "d"]) == "a, b, c, d"
    assert some_of(list("abcdefg")) == "a, b, c, d and 3 more"
