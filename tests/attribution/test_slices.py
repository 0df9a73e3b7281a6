"""The gap by slices that are given, and by the partition of all tokens: against loops over the ids, and beside what was there before."""

from __future__ import annotations

import itertools
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recallkit
from recallkit import attribution
from recallkit.attribution.comparison import read_comparison
from recallkit.attribution.tables import EMPTY_SLICE, attribute_gap
from recallkit.attribution.view import given_table, look, partition_table, shown_tables
from recallkit.errors import UserError
from recallkit.measure import labelled
from recallkit.slicing.definitions import PARTITION, SLICES, members, parse_slice, parse_slices
from recallkit.slicing.view import manifest_of
from tests.attribution.test_tables import Corpus, assert_row
from tests.slicing.references import label_bigrams_reference

GIVEN = ("first_rare", "copy:k3", "far=distance > 3 AND source <> 'b'", "none=token < 0")
KEEP = {
    "repeated": lambda t: t["repeated"],
    "first_rare": lambda t: not t["repeated"] and t["train_count"] <= 5,
    "copy:k3": lambda t: t["match_length"] >= 2,
    "far": lambda t: t["distance"] is not None and t["distance"] > 3 and t["source"] != "b",
    "none": lambda t: False,
}


@st.composite
def texts(draw):
    """Sequences of ids with sources, training counts and NLLs, labelled as the reference labels them."""
    rows, pairs = [], []
    for sequence in range(draw(st.integers(1, 4))):
        ids = draw(st.lists(st.integers(0, 3), min_size=2, max_size=12))
        distances, *_ = label_bigrams_reference(ids)
        for place, distance in enumerate(distances, 1):
            source, count = draw(st.sampled_from("abc")), draw(st.sampled_from([0, 5, 6, 100]))
            rows.append((sequence, place, source, distance if distance > 0 else None, count))
            pairs.append((ids[place - 1], ids[place]))
    nlls = st.lists(st.floats(0, 20, width=32), min_size=len(rows), max_size=len(rows))
    return rows, pairs, draw(st.integers(1, 30)), draw(nlls), draw(nlls)


def class_of(corpus, token):
    """The class of a token, from the ids before it in its sequence."""
    own = [t for t in corpus.tokens if t["sequence"] == token["sequence"] and t["position"] < token["position"]]
    ids = [own[0]["prev_token"] if own else token["prev_token"], *(t["token"] for t in own)]
    bigrams = list(itertools.pairwise(ids))
    kind = "token new"
    if token["token"] in ids:
        kind = "bigram repeated" if (token["prev_token"], token["token"]) in bigrams else "token repeated"
    return f"{kind}, {'rare' if token['train_count'] <= 5 else 'frequent'}"


def assert_control(row, corpus):
    """The first-occurrence control of a row: the gap where the bigram of each of its tokens occurs first, over the whole gap."""
    gaps = [model - reference for model, reference in zip(corpus.nlls["model"], corpus.nlls["reference"], strict=True)]
    places = {}
    for place, token in enumerate(corpus.tokens):
        places.setdefault((token["sequence"], token["prev_token"], token["token"]), place)
    inside = [place for place, token in enumerate(corpus.tokens) if row["source"] in ("ALL", token["source"])]
    whole = math.fsum(gaps[place] for place in inside)
    if row["slice"] not in ("ar_hit", "repeated") or row["gap_share"] is None:
        assert row["control_share"] is None
    elif abs(whole) > 1e-6:
        own = [token for token in map(corpus.tokens.__getitem__, inside) if token[row["slice"]]]
        first = [gaps[places[token["sequence"], token["prev_token"], token["token"]]] for token in own]
        assert math.isclose(row["control_share"], math.fsum(first) / whole, rel_tol=1e-6, abs_tol=1e-6)
        assert math.isclose(row["enrichment"], row["gap_share"] / row["share_of_tokens"])


@settings(max_examples=25)
@given(texts())
def test_any_text_is_what_loops_over_its_ids_count(tmp_path_factory, drawn):
    rows, pairs, rows_per_group, reference, model = drawn
    corpus = Corpus(tmp_path_factory.mktemp("text"), rows, rows_per_group=rows_per_group, max_count=5, ids=pairs)
    paths = corpus.score("reference", reference), corpus.score("model", model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labelled, "_BATCH_ROWS", rows_per_group)
        tables = attribute_gap(corpus.path, paths[0], [paths[1]], slices=parse_slices(GIVEN), num_resamples=20)
    names = ["ALL", *sorted({t["source"] for t in corpus.tokens})]
    assert list(zip(tables.gap["source"], tables.gap["slice"], strict=True)) == [
        (source, name)
        for source in names
        for name in ("all", "ar_hit", "other", *KEEP)  # `repeated` is one of every comparison
    ]
    for row in tables.gap.filter(pl.col("slice").is_in(list(KEEP))).iter_rows(named=True):
        inside = lambda t, source=row["source"]: source in ("ALL", t["source"])  # noqa: E731
        keep = lambda t, inside=inside, name=row["slice"]: inside(t) and KEEP[name](t)  # noqa: E731
        assert_row(row, corpus.sums("model", keep), corpus.sums("model", inside))
        assert (EMPTY_SLICE in row["note"]) == (row["tokens"] == 0)
    for row in tables.gap.iter_rows(named=True):
        assert_control(row, corpus)
    everything = corpus.sums("model", lambda t: True)
    assert tables.by_partition["slice"].to_list() == [class_.name for class_ in PARTITION]
    for row in tables.by_partition.iter_rows(named=True):
        assert_row(row, corpus.sums("model", lambda t, row=row: class_of(corpus, t) == row["slice"]), everything)
    assert tables.by_partition["tokens"].sum() == len(rows)


NAMES = ("control:recall", "control:bigram", "control:unigram")


@pytest.fixture(scope="module")
def sliced(small_slices, tmp_path_factory):
    """A comparison with slices, and the same without."""
    folder = tmp_path_factory.mktemp("sliced")
    given_ = parse_slices(["copy:k4", "far=distance > 20"])
    return (
        attribution.gap(NAMES[0], NAMES[1:], small_slices, folder / "with", given=given_),
        attribution.gap(NAMES[0], NAMES[1:], small_slices, folder / "without"),
        folder,
    )


def test_what_is_asked_for_is_a_question_of_its_own(small_slices, sliced):
    _, _, folder = sliced
    assert attribution.gap_path(small_slices, NAMES[0], NAMES[1:]) != attribution.gap_path(
        small_slices, NAMES[0], NAMES[1:], parse_slices(["copy:k4"])
    )
    assert attribution.gap_path(small_slices, NAMES[0], NAMES[1:], parse_slices(["all"])) == attribution.gap_path(
        small_slices, NAMES[0], NAMES[1:]
    )
    with pytest.raises(UserError, match="--force"):
        attribution.gap(NAMES[0], NAMES[1:], small_slices, folder / "without", given=parse_slices(["copy:k4"]))
    comparison = read_comparison(folder / "with")
    assert [slice_.given for slice_ in comparison.given] == ["copy:k4", "far=distance > 20"]
    assert comparison.manifest["slice"] == ["copy:k4", "far=distance > 20"]
    plain = read_comparison(folder / "without")
    assert (plain.given, "slice" in plain.manifest, "slice" in plain.manifest["options"]) == ((), False, False)


def test_tables_json_and_exports_have_the_slices(small_slices, sliced):
    tables, plain, folder = sliced
    labels = manifest_of(small_slices)
    shown = given_table(tables)
    assert [row[:3:2] for row in shown.rows] == [[name, model] for name in ("copy:k4", "far") for model in NAMES[1:]]
    first = tables.gap.filter(source="ALL", slice="copy:k4").row(0, named=True)
    assert shown.rows[0][5:7] == [f"{100 * first['gap_share']:.1f} %", f"{100 * first['ci_low']:.1f} to {100 * first['ci_high']:.1f} %"]
    assert shown.rows[0][7] == f"{first['gap_share'] / first['share_of_tokens']:.1f}"
    assert given_table(plain) is None
    void = replace(tables, **{name: getattr(tables, name).with_columns(void=True) for name in ("gap", "by_partition")})
    for table in (given_table, lambda of: partition_table(of, labels)):
        assert ["Struck out: " in table(of).caption for of in (tables, void)] == [False, True], "what is struck out is explained"
    parts = partition_table(tables, labels)
    assert [header.replace("\n", " ") for header in parts.headers[1:]] == [class_.name for class_ in PARTITION]
    assert [row[0] for row in parts.rows] == ["share of tokens", *NAMES[1:]]
    of = tables.by_partition.filter(model=NAMES[2])
    assert parts.rows[2][1:] == [f"{100 * share:.1f} %" for share in of["gap_share"]]
    assert parts.rows[0][1:] == [f"{100 * share:.2f} %" for share in of["share_of_tokens"]]
    assert list(shown_tables(tables, labels, {})) == ["gap", "comparators", "by_source", "by_slice", "by_overlap", "by_partition"]
    assert list(shown_tables(plain, labels, {})) == ["gap", "comparators", "by_source", "by_partition"]
    assert look(read_comparison(folder / "with", small_slices)).json()["by_partition"] == tables.by_partition.to_dicts()


def test_every_line_of_the_documentation_is_right(small_slices, tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "slices.md").read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    commands, expressions = [[line for line in lines if line.startswith("recallkit ") is is_command] for is_command in (True, False)]
    assert (len(commands), len(expressions)) == (2, 6)
    for line in commands:
        words = shlex.split(line)
        asked = [value for option, value in itertools.pairwise(words) if option == "--slice"]
        recallkit.gap(words[2], words[3], slices=small_slices, out=tmp_path / str(len(asked)), slice=asked)
    rows = pq.read_table(small_slices / "tokens.parquet")
    assert len(members([parse_slice(f"x={expression}") for expression in expressions], rows, 9)) == len(expressions)
    named = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    assert {*named} == {*SLICES, "copy:kN"} - {"all"}
    assert [line.split("|")[1].strip() for line in text.splitlines() if line.startswith(("| bigram ", "| token "))] == list(
        dict.fromkeys(class_.name.split(",")[0] for class_ in PARTITION)
    )
    recallkit.gap("control:recall", "control:bigram", slices=small_slices, out=tmp_path / "python", slice=["copy:k4", "far=distance > 100"])
