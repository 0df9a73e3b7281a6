"""Sentences of a comparison, each where it is true and where it would be false: models behind and ahead, shares that mean nothing.

Every document has eight tokens: two AR hits, one other repeated token and five that repeat nothing. A model is so many nats worse than the
reference on AR hits and on other tokens, in half of the documents by a spread more and in half by it less: totals are known exactly.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl
import pytest

from recallkit.attribution.charts import figures
from recallkit.attribution.comparison import Comparison, read_comparison
from recallkit.attribution.context_gain import context_gains
from recallkit.attribution.gates import NOT_BEHIND, failure_line, judge_gates, parse_gate, unjudged_lines
from recallkit.published.arithmetic import ROUNDED_AWAY
from recallkit.attribution.tables import attribute_gap
from recallkit.attribution.view import look, shown_tables
from recallkit.config import SCHEMA_VERSION
from recallkit.display import console
from recallkit.display.charts import model_styles
from recallkit.report import sections, words
from recallkit.report.sections import losses_section
from recallkit.scoring.scores import LastIds
from recallkit.slicing.definitions import parse_slices
from recallkit.storage import artifacts
from tests.attribution.test_tables import Corpus

REFERENCE = [4.0, 1.0, 1.0, 3.9, 4.0, 4.0, 4.0, 4.0]
"""The reference's NLL of each token of a document. The first occurrence of what is repeated is the first token."""
HITS = np.array([0, 1, 1, 0, 0, 0, 0, 0])
SIZE = len(REFERENCE)


class Model(NamedTuple):
    """Nats above the reference on AR hits and on other tokens, and how much more or less in single documents."""

    hits: float
    other: float
    hits_spread: float = 0.05
    other_spread: float = 0.05

    def more(self, documents: int) -> np.ndarray:
        """By document and token."""
        sign = np.where(np.arange(documents) % 2, 1, -1)[:, None]
        return (self.hits + sign * self.hits_spread) * HITS + (self.other + sign * self.other_spread) * (1 - HITS)


BEHIND, AHEAD, EQUAL = Model(2, 0.2), Model(-2, -0.2), Model(0, 0, 0, 0)
UNTOLD = Model(-0.1, -0.01, 3, 3)


def compared(
    folder, models: dict[str, Model], *, documents=40, with_hits=10**9, max_count=8, counts=(0, 3), run=2, slices=()
) -> Comparison:
    """Models compared with `ref`, written and read back.

    Only the first `with_hits` documents repeat anything; `counts`: of the two bigrams that are AR hits if at most `max_count`. Sources
    take turns after `run` documents.
    """
    tokens = [
        (s, p, ("books", "letters")[s // run % 2], back if s < with_hits else None, count)
        for s in range(documents)
        for p, back, count in zip(range(1, SIZE + 1), (None, 1, 2, 1, *[None] * 4), (9, *counts, 2000, 5, 5000, 5, 5000), strict=True)
    ]
    corpus = Corpus(folder, tokens, max_count=max_count, rows_per_group=100)
    nlls = {"ref": np.tile(REFERENCE, documents)}
    nlls |= {name: nlls["ref"] + model.more(documents).ravel() for name, model in models.items()}
    paths = [corpus.score(name, of) for name, of in nlls.items()]
    given = parse_slices(slices)
    tables = attribute_gap(corpus.path, paths[0], paths[1:], slices=given)
    labels = artifacts.read_manifest(corpus.path)
    facts = {"schema_version": SCHEMA_VERSION, "reference": "ref", "models": list(models), "slices": labels, "inexact": {}, "kind": "gap"}
    artifacts.write_frames(tables, folder / "gap", {**facts, "slice": [slice_.given for slice_ in given]})
    return read_comparison(folder / "gap")


@pytest.fixture
def said(monkeypatch, capsys):
    """All that a comparison says: in a terminal, on its page, in the captions of its figures, each as one line."""

    def read(comparison: Comparison) -> str:
        monkeypatch.setenv("COLUMNS", "400")
        console.terminal.cache_clear()
        look(comparison).print(full=True)
        console.terminal.cache_clear()
        styles = model_styles([comparison.reference, *comparison.models])
        page = words.opening(comparison, {}, styles, {}) + sections.tables_section(comparison, {}).body
        page += losses_section(comparison, None).body
        captions = [f"{figure.name}: {figure.caption}" for figure in figures(comparison)]
        return " ".join([capsys.readouterr().out, re.sub("<[^>]*>", " ", page), *captions]).replace(" .", ".")

    return lambda comparison: re.sub(r"\s+", " ", read(comparison))


LEAD = "m: model is better than the reference overall: shares are of its lead"
LEADS = "Shares of a lead: m."
NO_INTERVALS = "none (effectively 1.0 documents; 5 are needed)."
SUM = "rows add up to 100 %"
KNEES = ("Knee,",)
SHARE = "the share means nothing"

CASES: dict[str, tuple[dict, tuple[str, ...], tuple[str, ...]]] = {
    "behind": (
        {"models": {"m": BEHIND}},
        ("76.9 % (95 % interval", "of this gap lies in AR hits", SUM, "How far each model is behind the reference, split",
         "with the 95 % interval of the share in AR hits", "Range: the AR share at thresholds from 2 to 32.",
         "Intervals: 40 documents resampled", "the dashed line is the share of all sources together",
         "AR hits up to the threshold of 8 (shaded); and of tokens that do not",
         "Hollow: fewer than 100"),
        (LEAD, "lead", "ahead", SHARE, "(Holm)", "Nearest", "1,250", "the papers' rate", "at the edge", *KNEES),
    ),
    "ahead": (
        {"models": {"m": AHEAD}},
        ("of this lead lies in AR hits", LEAD, LEADS, "by_partition: The share", "(to the left: ahead of it), split", SUM,
         "Shares of a lead: m in books, m in letters.", "-0.650 ahead", "The documents that add most to the lead of m",
         "share of the lead"),
        ("of this gap lies in AR hits", SHARE, "worse on", "better on"),
    ),
    "behind, but better on AR hits": (
        {"models": {"m": Model(-1, 1)}},
        ("none of this gap lies in AR hits; there it is better than the reference (share -50.0 %",
         "m: negative share: model is better on AR hits"),
        (LEAD, LEADS, "may be positive", "shown to"),
    ),
    "ahead, but worse on AR hits": (
        {"models": {"m": Model(1, -1)}},
        ("none of this lead lies in AR hits; there it is worse than the reference (share -50.0 %",
         f"{LEAD}; negative share: model is worse on AR hits"),
        ("better on AR", "may be positive"),
    ),
    "behind on AR hits alone": (
        {"models": {"m": Model(3, -0.2)}},
        ("all of this gap lies in AR hits; on the other tokens it is better than the reference (share 125.0 %",
         "m: share above 100 %: model is better on the other tokens"),
        (LEAD, "may be below", "shown to lie"),
    ),
    "a share beyond the axis": (
        {"models": {"m": Model(1, -0.3, 0, 0)}},
        ("drawn at the edge.", "Below -100 % and above 200 %", "(share 1000.0 %", "by_threshold: The AR hits' share of the gap where"),
        (LEAD, "the papers' rate"),
    ),
    "a share that may be none": (
        {"models": {"m": Model(-0.1, 1, 3, 0.1)}},
        ("no part of this gap is shown to lie in AR hits (share -3.4 %", "m: negative share, but by its interval it may be positive"),
        ("none of this", "model is better", LEAD),
    ),
    "a lead that may all be in AR hits": (
        {"models": {"m": Model(-1, 0.03, 0.1, 0.2)}},
        ("no part of this lead is shown to lie elsewhere (share 109.9 %",
         f"{LEAD}; share above 100 %, but by its interval it may be below"),
        ("all of this", "model is worse"),
    ),
    "a gap that may be none": (
        {"models": {"m": UNTOLD}},
        ("a share of this gap means nothing (overall gap cannot be", f"m: {SHARE}: overall gap cannot be distinguished from zero"),
        (LEAD, LEADS, "this lead", SUM, "Range:", "with the 95 % interval of the share", "by_partition:", "by_threshold:", "by_source:"),
    ),
    "no gap": (
        {"models": {"m": EQUAL}},
        ("a share of this gap means nothing (no gap overall)", "m: the share means nothing: no gap overall"),
        (LEAD, "this lead", "ahead", SUM, "Range:", "cannot be distinguished from zero)", "-0.0"),
    ),
    "no AR hits": (
        {"models": {"m": BEHIND}, "with_hits": 0},
        ("AR hits are 0.00 % of 320 tokens", f"m: {SHARE}: no token is an AR hit",
         "tokens that do not repeat a bigram of their context.", SUM, 'AR hits are the class "bigram repeated, rare"'),
        ("shaded", "; and of tokens", "NLL of AR hits", "with the 95 % interval of the share", "by_source:", LEAD),
    ),
    "repeated bigrams are all frequent": (
        {"models": {"m": BEHIND}, "counts": (3000, 3000)},
        ("AR hits are 0.00 %", "of tokens that repeat a bigram of their context; and of tokens that do not repeat"),
        ("shaded", "NLL of AR hits"),
    ),
    "a gap in each source, none in all": (
        {"models": {"m": UNTOLD}, "run": 1},
        (f"m: {SHARE}: overall gap cannot", "by_source: The AR hits' share of each source's gap, with its 95 % interval.",
         "Shares of a lead: m in books."),
        (LEAD, "dashed line is the share", "m in letters", LEADS),
    ),
    "AR hits in two documents, ahead": (
        {"models": {"m": AHEAD}, "with_hits": 2},
        (LEAD, f"m: {SHARE}: AR hits come from effectively 2.0 documents", "a share of this lead means nothing (AR hits come from effect",
         'AR hits are the class "bigram repeated, rare"', LEADS),
        (SUM, f"{SHARE}: model is better", "Range:", "the dashed line is"),
    ),
    "no AR hits, ahead": (
        {"models": {"m": AHEAD}, "with_hits": 0},
        (LEAD, f"m: {SHARE}: no token is an AR hit", f"are left out. {LEADS}"),
        (f"{SHARE}: model is better",),
    ),
    "bigrams that training never had": (
        {"models": {"m": BEHIND}, "max_count": 0},
        ("bigrams up to another", "AR hits are 12.50 %"),
        ("Range:", "AR hits here", "Dashed:"),
    ),
    "one document": (
        {"models": {"m": BEHIND, "n": AHEAD}, "documents": 1},
        (f"Intervals: {NO_INTERVALS}", f"95 % intervals: {NO_INTERVALS}", f"m: {SHARE}: all tokens come from effectively 1.0 documents",
         "a share of this gap means nothing"),
        ("resampled", "(Holm)", LEAD, "this lead", SUM, "Range:", "share of the gap by source", "by_source:", "interval of the share"),
    ),
    "of three models one ahead and one equal": (
        {"models": {"m": AHEAD, "behind": Model(3, 0.5), "equal": EQUAL}},
        ("Gaps are tested against zero over all 3 models (Holm).", "Nearest to ref is equal", "Farthest from ref is behind", LEADS, LEAD,
         "equal: the share means nothing: no gap overall", "the dashed line is"),
        ("lose to", "behind: ", SUM),
    ),
    "two models alike": (
        {"models": {"m": BEHIND, "n": BEHIND}},
        ("76.9 % of what 2 models lose to ref lies in the 25.00 % of tokens that are AR hits: 3.1 times their share.",),
        ("Nearest", "Farthest", LEAD),
    ),
    "one slice": (
        {"models": {"m": AHEAD}, "slices": ["far=distance > 1"]},
        ("by_slice: The slices' shares", f"are left out. {LEADS}"),
        ("Slices may overlap", "counts for each in equal parts"),
    ),
    "two slices": (
        {"models": {"m": BEHIND}, "slices": ["far=distance > 1", "rare=train_count < 6"]},
        ("Slices may overlap: their shares need not", "Slices may overlap. far:",
         "in equal parts, so that tokens and shares add up to 100 %"),
        (LEADS,),
    ),
    "two slices of no gap": (
        {"models": {"m": EQUAL}, "slices": ["far=distance > 1", "rare=train_count < 6"]},
        ("counts for each in equal parts (Shapley values)",),
        ("so that tokens", SUM),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_said_is_true_and_what_would_be_false_is_not_said(tmp_path, said, case):
    how, there, absent = CASES[case]
    text = said(compared(tmp_path, **how))
    assert not [sentence for sentence in there if sentence not in text], text
    assert not [sentence for sentence in absent if sentence in text], text


@pytest.mark.parametrize(
    ("models", "documents", "said_of_knees"),
    [
        ({"m": Model(3, 0.1)}, 120, "ref 652, m 0."),
        ({"m": Model(0, -2, 0, 0)}, 40, None),
        ({"m": Model(3, 0.1), "n": Model(0, -3, 0, 0)}, 120, "ref 652, m 0, n 0."),
    ],
)
def test_knees_are_spoken_of_where_they_are(tmp_path, said, models, documents, said_of_knees):
    text = said(compared(tmp_path, models, documents=documents))
    for told in KNEES:
        assert (told in text) == (said_of_knees is not None), text
    assert said_of_knees is None or said_of_knees in text


# ------------------------------------------------------------------------------------------------------------------ gates


@pytest.mark.parametrize(
    ("model", "gates", "failure", "unjudged"),
    [
        (BEHIND, ["0.5", "30%"],
         "m: NLL on ar_hit 2 nats above the reference's, more than 0.5; m: 76.9 % of the gap lies in ar_hit, more than 30 %", []),
        (BEHIND, ["2.5", "80%", "all=1"], None, []),
        (AHEAD, ["0", "30%"], None, [f"--fail-above ar_hit=30%: not judged for m: {NOT_BEHIND}"]),
        (Model(1, -1), ["0", "0%"], "m: NLL on ar_hit 1 nats above the reference's, more than 0",
         [f"--fail-above ar_hit=0%: not judged for m: {NOT_BEHIND}"]),
        (Model(-1, 1), ["0", "0%"], None, []),
        (UNTOLD, ["0", "0%"], None, ["--fail-above ar_hit=0%: not judged for m: overall gap cannot be distinguished from zero"]),
        (EQUAL, ["0", "0%"], None, ["--fail-above ar_hit=0%: not judged for m: no gap overall"]),
    ],
)  # fmt: skip
def test_gates_say_what_is_above_them_and_what_is_not_judged(tmp_path, model, gates, failure, unjudged):
    verdicts = judge_gates([parse_gate(gate) for gate in gates], compared(tmp_path, {"m": model}).tables)
    assert failure_line(verdicts) == failure
    assert unjudged_lines(verdicts) == unjudged


# ------------------------------------------------------------------------------------------------------ far context, papers


@pytest.mark.parametrize(
    ("model", "gains", "far_share", "lead"),
    [
        (BEHIND, (1.0, 0.5), "76.9 %", False),
        (BEHIND, (0.5, -0.5), "153.8 %", False),
        (AHEAD, (0.5, 1.0), "76.9 %", True),
        (EQUAL, (1, 1), "–", False),
    ],
)
def test_the_far_share_is_the_difference_in_gain_over_the_gap(tmp_path, said, model, gains, far_share, lead):
    """Gains from far context of the reference and the model, nats per token, also negative; the gap is 0.65 nats."""
    comparison = compared(tmp_path, {"m": model})
    corpus = tmp_path / "tokens.parquet"
    full = {name: tmp_path / "scores" / f"{name}.parquet" for name in ("ref", "m")}
    short = [_added(path, gain) for path, gain in zip(full.values(), gains, strict=True)]
    far = context_gains(corpus, full, {LastIds(4, 1): short})
    found = replace(comparison, tables=replace(comparison.tables, by_context=far))
    shown = shown_tables(found.tables, found.manifest["slices"], {})
    assert shown["context_gain"].rows[1][:4] == ["m", "4", f"{gains[1]:.3f}", far_share]
    for table in shown.values():
        assert (" Shares of a lead: m" in f" {table.caption}") == lead, "also of one that is exported alone"
    text = said(found)
    assert "Gain: NLL with the last ids alone (4 of them) less NLL with the full context." in text
    assert (LEAD in text) == lead


def _added(path, nats):
    """Scores with so many nats more of each token."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    nlls = pl.from_arrow(table["nll"]) + nats
    out = path.with_name(f"{path.stem}-last.parquet")
    table = table.set_column(table.schema.get_field_index("nll"), "nll", nlls.cast(pl.Float32).to_arrow())
    artifacts.write_parquet(out, [table], table.schema, artifacts.read_manifest(path))
    return out


PRINTED = "model,all,ar,other\nref,10.00,3.00,12.00\n"


@pytest.mark.parametrize(
    ("rows", "options", "there", "absent"),
    [
        ("m,11.00,4.00,\n", [], ("by the row of ref", "After ±"), ("m: ", "as given")),
        ("m,11.00,4.00,\n", ["--ar-share", "0.1"], ("10.00 % of tokens, as given", "After ±"), ("by the row",)),
        ("m,11.00,4.0e0,\n", [], ("by the row of ref",), (ROUNDED_AWAY, "After ±", "m: ")),
        ("m,10.01,4.00,\n", [], (f"m: the share means nothing: {ROUNDED_AWAY}", "~~"), ("lead",)),
        ("m,9.00,2.50,\n", [], (LEAD,), ("means nothing", "negative", "~~")),
        ("m,11.00,2.99,\n", [], ("-0.5 ±",), ("m: ",)),
        ("m,11.00,2.50,\n", [], ("m: negative share: model is better on AR hits",), ("lead",)),
        ("m,10.00,3.00,\n", [], ("m: no gap overall",), ("means nothing", "~~")),
    ],
)
def test_published_tables_say_what_rounding_leaves_certain(run, tmp_path, rows, options, there, absent):
    table = tmp_path / "table.csv"
    table.write_text(PRINTED + rows)
    done = run("published", table, *options)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert not [sentence for sentence in there if sentence not in text], text
    assert not [sentence for sentence in absent if sentence in text], text


GONE = "recall by association in AR hits, "
RECALLED = {
    "one, shown": (
        {"m": (BEHIND, 0.4, 0.2, 0.6)},
        "If neither could recall by association in AR hits, 40.0 % of the gap of m would be gone.",
    ),
    "one, not shown": ({"m": (BEHIND, 0.1, -0.1, 0.3)}, None),
    "more than the gap": ({"m": (BEHIND, 1.4, 1.2, 1.6)}, None),
    "of a lead": ({"m": (AHEAD, 0.4, 0.2, 0.6)}, None),
    "without an interval": ({"m": (BEHIND, 0.4, None, None)}, None),
    "several": (
        {"m": (BEHIND, 0.4, 0.2, 0.6), "n": (BEHIND, 0.2, 0.1, 0.3), "o": (BEHIND, 0.1, -0.1, 0.3)},
        "If no model could recall by association in AR hits, 20.0 to 40.0 % of the gaps of 2 models would be gone.",
    ),
    "one of several": (
        {"m": (BEHIND, 0.4, 0.2, 0.6), "n": (BEHIND, 0.1, -0.1, 0.3)},
        "If neither could recall by association in AR hits, 40.0 % of the gap of m would be gone.",
    ),
}


@pytest.mark.parametrize("case", RECALLED)
def test_what_would_be_gone_without_recall_is_said_where_it_is_shown(tmp_path, capsys, case):
    models, sentence = RECALLED[case]
    comparison = compared(tmp_path, models={name: model for name, (model, *_) in models.items()})
    names = ("recall_share", "recall_share_ci_low", "recall_share_ci_high")
    recalled = {name: dict(zip(names, figures, strict=True)) for name, (_, *figures) in models.items()}
    console.terminal.cache_clear()
    seen = look(comparison, recalled)
    assert "without\nrecall" in seen.shown["gap"].headers, "exported, too"
    seen.print()
    console.terminal.cache_clear()
    text = " ".join(capsys.readouterr().out.split())
    assert GONE in text if sentence else GONE not in text
    assert sentence is None or sentence in text
    assert (LEADS in text) == (AHEAD in [model for model, *_ in models.values()]), "in the caption, and not once more below it"
    assert "model is better" not in text
    assert "with --full" in text
