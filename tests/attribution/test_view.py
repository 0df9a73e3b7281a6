"""What is shown of a comparison: figures as in the tables, clauses where they are true and nowhere
else, names within 80 columns."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from recallkit.attribution.charts import figures
from recallkit.attribution.view import ComparisonView
from recallkit.display import console
from tests.attribution.corpus import Model, compared
from tests.planted import COUNTS

HALF, AHEAD = Model(0.2, other=0.3665), Model(0.8, other=-0.188)
EQUAL = Model(0.2, other=-0.3665, other_spread=1)

CASES = {
    "behind": {"models": {"m": HALF}},
    "ahead": {"models": {"m": AHEAD}, "documents": 60},
    "may be zero": {"models": {"m": EQUAL._replace(other=-0.4)}},
    "a copy": {"models": {"m": Model()}},
    "no hits": {"models": {"m": AHEAD}, "with_hits": 0},
    "hits of two": {"models": {"m": AHEAD}, "with_hits": 2},
    "one document": {"models": {"m": AHEAD}, "documents": 1},
    "three models": {"models": {"m": AHEAD, "n": HALF, "o": Model()}},
    "a slice": {"models": {"m": HALF}, "slices": ["far=distance > 1"]},
    "slices": {"models": {"m": HALF}, "slices": ["far=distance > 1", "rare=train_count < 6"]},
    "never trained": {"models": {"m": HALF}, "max_count": 0},
}
CLAUSES = {
    "Shares of a lead, not a gap: m.": {"ahead", "no hits", "hits of two", "three models"},
    "Shares of a lead, not a gap: m in books, m in letters.": {"ahead", "three models"},
    "m: no meaningful share of the gap: the overall gap cannot be distinguished from zero": {"may be zero"},
    "m: no meaningful share of the gap: no gap overall": {"a copy"},
    "o: no meaningful share of the gap: no gap overall": {"three models"},
    "m: no meaningful share of the gap: no token is an AR hit": {"no hits"},
    "m: no meaningful share of the gap: AR hits come from effectively 2.0 documents": {"hits of two"},
    "m: no meaningful share of the gap: all tokens come from effectively 1.0 documents": {"one document"},
    "Each gap is tested against zero, corrected for 3 models (Holm).": {"three models"},
    "(Holm)": {"three models"},
    "Brackets: 95 % intervals, a bootstrap over 40 documents": {*CASES} - {"ahead", "one document"},
    "Intervals: none (effectively 1.0 documents; 5 are needed).": {"one document"},
    "kinds of text rarer than one document in 14 may be missing": {*CASES} - {"ahead", "one document"},
    "AR hits are 0.00 % of 320 tokens.": {"no hits"},
    "AR hits are 12.50 % of 320 tokens.": {"never trained"},
    "Slices may overlap, so shares need not add up to 100 %.": {"slices"},
    "Retained: recall gain on the slice's tokens in % of the reference's.": {"a slice", "slices"},
    "recall: Mean probability of the last token of a rare bigram": {*CASES} - {"no hits"},
    "(shaded: AR hits, up to a count of 8)": {*CASES} - {"no hits", "never trained"},
    "by_distance: Recall gain of AR hits by distance": {*CASES} - {"no hits"},
    ("at other thresholds of the training count, with 95 % intervals. Dashed: the threshold used "
        "here, 8. Shares without"):
        {*CASES} - {"no hits", "one document", "hits of two", "never trained"},
    "are omitted. Shares of a lead, not a gap: m.": {"ahead", "three models"},
    "Hollow: fewer than 100 tokens.": {*CASES},
}  # fmt: skip


@pytest.fixture
def said(monkeypatch, capsys):
    """All that a comparison says in a terminal and in the captions of its figures, in one line."""

    def read(comparison, columns=400):
        monkeypatch.setenv("COLUMNS", str(columns))
        console.terminal.cache_clear()
        ComparisonView(comparison).print(full=True)
        console.terminal.cache_clear()
        return capsys.readouterr().out

    return read


@pytest.mark.parametrize("case", CASES)
def test_what_is_said_is_true_and_what_would_be_false_is_not_said(tmp_path, said, case):
    comparison = compared(tmp_path, **CASES[case])
    captions = [f"{figure.name}: {figure.caption}" for figure in figures(comparison)]
    text = " ".join(f"{said(comparison)} {' '.join(captions)}".split())
    assert {clause: clause in text for clause in CLAUSES} == {
        clause: case in cases for clause, cases in CLAUSES.items()
    }


def test_the_first_table_has_the_figures_of_its_rows(tmp_path):
    comparison = compared(
        tmp_path,
        {"m": HALF, "n": Model(), "o": EQUAL},
        num_bytes=[["ALL", 1000, 100], ["books", 500, 50]],
    )
    shown = ComparisonView(comparison).display_tables
    totals = comparison.totals
    rows = [[totals[model, name] for name in ("all", "ar_hit", "other")] for model in "mno"]
    of_models = [
        [model, *(f"{row['ppl_model']:.2f}" for row in of)]
        for model, of in zip("mno", rows, strict=True)
    ]
    assert shown["gap"].rows == [
        [
            "ref",
            *(f"{row['ppl_reference']:.2f}" for row in rows[0]),
            "",
            "40.0",
            "reference",
            "",
            "",
        ],
        [*of_models[0], "0.458", "10.0", "25 (25 to 25)", "50 (50 to 50)", "60"],
        [*of_models[1], "0.000", "40.0", "100 (100 to 100)", "–", "–"],
        [
            *of_models[2],
            "0.000",
            "10.0",
            "25 (25 to 25)",
            "–",
            "–",
        ],
    ]
    assert sum(span for _, span in shown["gap"].groups) == len(shown["gap"].headers)
    assert [row[2:] for row in shown["control"].rows[1:]] == [["–", "–"], ["–", "–"]], (
        "a gap of zero, one that may be"
    )
    assert set(shown["by_partition"].rows[3][1:]) == {"–"}
    assert list(shown) == ["gap", "thresholds", "control", "by_source", "by_partition"]
    inexact = replace(comparison, manifest={**comparison.manifest, "inexact": {"m": {"all": 0.1}}})
    in_bits = ComparisonView(inexact).display_tables["gap"]
    assert in_bits.title.startswith("Bits per byte")
    assert in_bits.rows[1][1:4] == [f"{row['bpb_model']:.3f}" for row in rows[0]]


def test_further_tables_have_the_figures_of_their_rows(tmp_path, monkeypatch):
    causal = {"points": 0.2, "points_ci_low": 0.1, "points_ci_high": 0.3}
    retained = {"retained": 0.5, "retained_ci_low": 0.4, "retained_ci_high": 0.6}
    comparison = compared(
        tmp_path, {"m": HALF, "n": AHEAD, "o": EQUAL}, documents=41, slices=["far=distance > 1"]
    )
    shown = ComparisonView(comparison, {"ref": causal, "m": causal | retained}).display_tables
    assert shown["causal"].rows == [
        ["ref", "40.0 (40.0 to 40.0)", "20.0 (10.0 to 30.0)", "reference", "reference"],
        ["m", "10.0 (10.0 to 10.0)", "20.0 (10.0 to 30.0)", "25 (25 to 25)", "50 (40 to 60)"],
    ]
    assert [row[3] for row in shown["thresholds"].rows] == [
        "25.00 %",
        "25 / 50",
        "175 / 50",
        "25 / –",
    ]
    assert [row[1] for row in shown["control"].rows[:2]] == [
        "0.92 (0.92 to 0.92)",
        "-0.47 (-0.47 to -0.47)",
    ]
    assert shown["by_source"].headers == ["model", "books\n168 tokens", "letters\n160 tokens"]
    assert shown["by_source"].rows[1:3] == [
        ["m", "25 / 50", "25 / 50"],
        ["n", "175 / 50", "175 / 50"],
    ]
    monkeypatch.setattr("recallkit.attribution.view._MOST_SOURCES", 1)
    fewer = ComparisonView(comparison).display_tables["by_source"]
    assert len(fewer.headers) == 2
    assert len(ComparisonView(comparison, is_page=True).display_tables["by_source"].headers) == 3
    assert "The Parquet file also has 1 smaller source." in fewer.caption
    assert [row[:3:2] for row in shown["by_slice"].rows] == [
        ["far", "m"],
        ["far", "n"],
        ["far", "o"],
    ]
    far = comparison.tables.gap.filter(model="m", source="ALL", slice="far")["efficiency_model"][0]
    assert shown["by_slice"].rows[0][-3:] == ["25 (25 to 25)", f"{100 * far:.1f}", "25 (25 to 25)"]
    shares = comparison.tables.by_partition.filter(model="m")["gap_share"].to_list()
    assert shown["by_partition"].rows[1][1:] == [
        "–" if share is None else f"{100 * share:.1f} %" for share in shares
    ]


def test_long_names_fold_within_80_columns(tmp_path, said):
    names = ["a/very/long/path/to/checkpoints/" + "mamba" * 20, "b" * 150, "short"]
    comparison = compared(
        tmp_path, dict(zip("abc", (HALF, AHEAD, EQUAL), strict=True)), slices=["far=distance > 1"]
    )
    frames = comparison.tables.frames()
    named = {
        name: frame.with_columns(model=frame["model"].replace(dict(zip("abc", names, strict=True))))
        for name, frame in frames.items()
    }
    comparison = replace(comparison, models=names, tables=replace(comparison.tables, **named))
    text = said(comparison, 80)
    assert text.splitlines()[-1] == f"Tables (Parquet): {tmp_path / 'gap'}"
    assert max(map(len, text.splitlines()[:-1])) <= 80
    assert "…" not in text
    assert "175 (175 to 175)" in text, "intervals stay whole"
    assert names[0] in "".join(text.split())


def test_of_many_models_the_terminal_ranks_all(tmp_path, said):
    models = {f"m{number}": Model(0.2 + 0.05 * (5 * number % 11)) for number in range(11)}
    for size, order in (
        (11, sorted(models, key=lambda name: -models[name].hit)),
        (3, ["m0", "m1", "m2"]),
    ):
        text = said(compared(tmp_path / str(size), dict(list(models.items())[:size])))
        table = text.split("Perplexity, recall")[1].split("\n\n")[0]
        assert re.findall(r"^(m\d+)\b", table, re.MULTILINE) == order


@pytest.mark.parametrize("inexact", [{}, {"m": {"all": 0.1, "ar_hit": 0.2}}])
@pytest.mark.parametrize("most", [0.0, 2e-3])
def test_what_depends_on_tokenizers_and_on_reading_is_said(tmp_path, said, inexact, most):
    comparison = compared(tmp_path, {"m": HALF}, num_bytes=[["ALL", 1000, 100]])
    more = {"inexact": inexact, "reading": {"m": [most, most / 2]}}
    text = " ".join(said(replace(comparison, manifest={**comparison.manifest, **more})).split())
    assert "Bits per byte: ref " in text
    is_unlike = (
        "m: another tokenizer; 10.0 % of tokens, 20.0 % of AR hits do not begin and end where "
        "its tokens do"
    )
    assert (is_unlike in text) == bool(inexact)
    noise = "changes NLLs by up to 2.0e-03 nats, on average by 1.0e-03"
    assert (noise in text) == (most > 0)


@pytest.mark.parametrize(
    ("held_out", "error", "is_warned"),
    [
        *[
            (0.05, 0.0, True),
            (0.14, 0.0, True),
            (0.15, 0.0, False),
            (0.3, 0.0, False),
            (None, 0.0, False),
        ],
        *[(0.1, 0.02, True), (0.1, 0.03, False), (0.05, None, False)],
    ],
)
def test_counts_of_other_text_are_warned_of(tmp_path, held_out, error, is_warned):
    """A fifth of the bigrams was not counted: odds of 0.25, 1.54 times those of 0.14 and 1.42 times
    those of 0.15.

    Two standard errors less they are 0.19 or 0.163, where half as much again as those of 0.1 is
    0.167; of one document nothing is known.
    """
    unseen = {"share": 0.2, "standard_error": error, "bigrams": 90, "documents": 10}
    counts = COUNTS | {
        "num_tokens": 10_000,
        "unseen": held_out and {"share": held_out, "bigrams": 1000, "documents": 30},
    }
    comparison = compared(tmp_path, {"m": HALF}, counts=counts, unseen=unseen)
    caption = ComparisonView(comparison).display_tables["gap"].caption
    assert caption.count("20.0 % of the text's bigrams are not in the counts") == 1, (
        "said once, in the warning or before another one"
    )
    assert ("held-out text of the counted corpus" in caption) == (held_out is not None)
    assert (
        ("Count the models' training text." in caption)
        == ("another kind of text: 20.0 %" in caption)
        == is_warned
    )
    assert ("common bigrams" in caption) == (not is_warned), (
        "AR hits are 25 % of tokens: one warning, of the cause"
    )
