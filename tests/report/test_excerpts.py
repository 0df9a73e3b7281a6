"""The token view's data: the excerpts that are chosen, against plain loops; what is packed, against the tables it comes from."""

from __future__ import annotations

import itertools
import json
import shutil
from collections import defaultdict
from dataclasses import replace

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recallkit import attribution
from recallkit.attribution.comparison import read_comparison
from recallkit.errors import UserError
from recallkit.report import excerpts
from recallkit.report.excerpts import RIGHT, UNKNOWN, WRONG, list_excerpts, preferred, token_view
from recallkit.report.sequence import score_files
from recallkit.scoring import score_path
from recallkit.storage import artifacts
from tests.report.conftest import MODELS, REFERENCE


def rows_of(comparison, model=None):
    """The labels, or a model's scores, as rows; both in the order of the file."""
    path = comparison.slices / "tokens.parquet" if model is None else score_files(comparison, comparison.slices)[model]
    return pl.read_parquet(path).to_dicts()


def listed(comparison):
    tokens = excerpts.open_tokens(comparison.slices / "tokens.parquet")
    return list_excerpts(tokens, score_files(comparison, comparison.slices))


@pytest.fixture(scope="module")
def sums(comparison):
    """Sequence -> model -> NLL on AR hits less the reference's, and the number of hits, row by row."""
    labels, reference = rows_of(comparison), rows_of(comparison, REFERENCE)
    found, hits = defaultdict(lambda: dict.fromkeys(comparison.models, 0.0)), defaultdict(int)
    for model in comparison.models:
        for label, mine, theirs in zip(labels, rows_of(comparison, model), reference, strict=True):
            found[label["sequence"]][model] += (mine["nll"] - theirs["nll"]) * label["ar_hit"]
    for label in labels:
        hits[label["sequence"]] += label["ar_hit"]
    return found, hits


@pytest.mark.parametrize("rows", [1, 7, 100])
def test_where_ranges_of_rows_end_changes_nothing(comparison, monkeypatch, rows):
    whole = listed(comparison)
    total = whole[-1].stop
    ranges = [(start, min(start + rows, total)) for start in range(0, total, rows)]
    monkeypatch.setattr(excerpts, "batch_ranges", lambda path: ranges)
    found = listed(comparison)
    assert [replace(excerpt, gaps=()) for excerpt in found] == [replace(excerpt, gaps=()) for excerpt in whole]
    for mine, theirs in zip(found, whole, strict=True):
        assert mine.gaps == pytest.approx(theirs.gaps, abs=1e-9)


def test_every_sequence_is_listed_with_its_gaps(comparison, sums):
    gaps, hits = sums
    labels = rows_of(comparison)
    every = listed(comparison)
    assert [excerpt.sequence for excerpt in every] == sorted(gaps)
    for excerpt in every:
        assert {row["sequence"] for row in labels[excerpt.start : excerpt.stop]} == {excerpt.sequence}
        assert excerpt.hits == hits[excerpt.sequence]
        assert excerpt.gaps == pytest.approx([gaps[excerpt.sequence][model] for model in comparison.models], abs=1e-9)
    assert every[-1].stop == len(labels)


def test_sequences_where_models_pay_most_come_first(comparison, sums):
    gaps, hits = sums
    found = [excerpt.sequence for excerpt in preferred(listed(comparison))]
    with_hits = [sequence for sequence in gaps if hits[sequence]]
    overall = sorted(with_hits, key=lambda sequence: -sum(gaps[sequence].values()))
    by_model = {model: sorted(with_hits, key=lambda sequence, m=model: -gaps[sequence][m]) for model in comparison.models}
    assert len(found) == len(set(found))
    firsts = list(dict.fromkeys([overall[0], *(ranked[0] for ranked in by_model.values())]))
    assert found[: len(firsts)] == firsts
    assert set(found) == {*overall[:32], *(sequence for ranked in by_model.values() for sequence in ranked[:12])}


def test_what_is_asked_for_comes_first_and_is_marked(comparison):
    labels = rows_of(comparison)
    documents = defaultdict(list)
    for row in labels:
        if row["sequence"] not in documents[row["document"]]:
            documents[row["document"]].append(row["sequence"])
    number = max(documents, key=lambda document: len(documents[document]))
    view = json.loads(token_view(comparison, sequences=[3, 1], documents=[number], most_bytes=30_000).data)
    asked = {excerpt["sequence"] for excerpt in view["excerpts"] if excerpt["asked"]}
    wanted = list(dict.fromkeys([3, 1, *documents[number]]))
    assert asked == set(wanted[: len(asked)])
    assert len(asked) >= 2
    whole = json.loads(token_view(comparison, sequences=[3, 1], documents=[number]).data)
    assert {excerpt["sequence"] for excerpt in whole["excerpts"] if excerpt["asked"]} == set(wanted)
    assert [excerpt["sequence"] for excerpt in whole["excerpts"]] == sorted(excerpt["sequence"] for excerpt in whole["excerpts"])


@pytest.mark.parametrize(
    ("asked", "problem"),
    [({"sequences": [10**6]}, "no such sequence; give a number from 0 to "), ({"documents": [10**6]}, "no predicted token")],
)
def test_what_is_not_there_is_told(comparison, asked, problem):
    with pytest.raises(UserError, match=problem):
        token_view(comparison, **asked)


def check_packed(comparison, data):
    """Every value of the packed excerpts against the tables."""
    labels = rows_of(comparison)
    names = [comparison.reference, *comparison.models]
    scores = [rows_of(comparison, name) for name in names]
    first = {}
    for place, row in enumerate(labels):
        first.setdefault(row["sequence"], place)
    assert data["models"] == names
    for excerpt in data["excerpts"]:
        start = first[excerpt["sequence"]] + excerpt["first"] - 1
        rows = labels[start : start + len(excerpt["tokens"])]
        assert {row["sequence"] for row in rows} == {excerpt["sequence"]}
        assert excerpt["before"] == rows[0]["prev_token"]
        columns = {"tokens": "token", "occurrences": "occurrences", "count": "train_count"}
        for name, column in columns.items():
            assert excerpt[name] == [row[column] for row in rows]
        assert excerpt["distance"] == [row["distance"] or 0 for row in rows]
        hits = [bool(distance) and count <= data["most"] for distance, count in zip(excerpt["distance"], excerpt["count"], strict=True)]
        assert hits == [row["ar_hit"] for row in rows], "the page tells hits by distance and count"
        assert sum(hits) == excerpt["hits"]
        spans = [*excerpt["spans"], [len(rows), None, None]]
        for (at, document, source), (end, *_) in itertools.pairwise(spans):
            assert {(row["document"], row["source"]) for row in rows[at:end]} == {(document, data["sources"][source])}
        for model, (nlls, ranks, predicted) in enumerate(zip(excerpt["nll"], excerpt["rank"], excerpt["predicted"], strict=True)):
            mine = scores[model][start : start + len(rows)]
            assert nlls == pytest.approx([100 * row["nll"] for row in mine], abs=0.5 + 1e-4)
            assert ranks == [row["rank"] for row in mine]
            for row, score, value in zip(rows, mine, predicted, strict=True):
                if not data["own"][model]:
                    assert value == (RIGHT if score["argmax"] == row["token"] else score["argmax"] + 1)
                elif score["exact"]:
                    assert value == (RIGHT if score["rank"] == 0 else WRONG)
                else:
                    assert value == UNKNOWN
                assert value <= 0 or str(value - 1) in data["pieces"]
    return data


def test_what_is_packed_is_what_the_tables_hold(comparison):
    check_packed(comparison, json.loads(token_view(comparison).data))


def test_a_model_with_another_tokenizer_and_text_in_bytes(hostile):
    comparison = read_comparison(hostile)
    view = token_view(comparison)
    data = check_packed(comparison, json.loads(view.data))
    assert view.own_tokenizers == [name for name in comparison.models if name.endswith("own.py:load")]
    assert data["end"] == -1
    predicted = [value for excerpt in data["excerpts"] for value in excerpt["predicted"][data["own"].index(1)]]
    assert {WRONG, UNKNOWN} <= set(predicted)
    assert not any(value > 0 for value in predicted), "its first choices have no ids among these tokens"
    # What is read from token to token is the text: whole characters, whatever is cut.
    texts = pl.read_parquet(hostile / "sequences.parquet")["text"]
    for excerpt in data["excerpts"]:
        shown = dict(excerpt["shown"])
        assert len(shown) == len(excerpt["shown"])
        ids = [excerpt["before"], *excerpt["tokens"]]
        entries = [shown.get(place, data["pieces"][str(index)]) for place, index in enumerate(ids)]
        parts = [part for entry in entries for part in (entry if isinstance(entry, list) else [entry])]
        # Characters cut at the ends of the sequence are U+FFFD in its text, and bytes here.
        assert "".join(part for part in parts if isinstance(part, str)) == texts[excerpt["sequence"]].strip("\ufffd")


def test_the_earlier_occurrence_is_the_latest_one(comparison, hostile):
    for of in (comparison, read_comparison(hostile)):
        for excerpt in json.loads(token_view(of).data)["excerpts"]:
            ids = [excerpt["before"], *excerpt["tokens"]]
            for at, distance in enumerate(excerpt["distance"]):
                bigram = ids[at : at + 2]
                earlier = [back for back in range(1, at + 1) if ids[at - back : at - back + 2] == bigram]
                assert distance == (earlier[0] if earlier else 0)
                assert excerpt["occurrences"][at] == len(earlier)


def test_no_more_bytes_than_there_is_room_for(comparison):
    whole = token_view(comparison)
    assert whole.shown == len(json.loads(whole.data)["excerpts"])
    sizes = []
    for most in (200, 2_000, 10_000, 40_000, len(whole.data.encode()) + 1000):
        view = token_view(comparison, most_bytes=most)
        assert len(view.data.encode()) < most + 400, "the names of models, sources and columns come on top"
        sizes.append(view.shown)
    assert sizes == sorted(sizes)
    assert sizes[0] == 0
    assert sizes[-1] == whole.shown
    assert 1 <= sizes[2] < sizes[3] < whole.shown or whole.shown == sizes[3]


def test_long_sequences_are_shown_in_blocks(comparison, monkeypatch):
    """As if the longest excerpt had 20 tokens: the data of a block are its rows, its positions go on."""
    monkeypatch.setattr(excerpts, "LONGEST", 20)
    every = listed(comparison)
    assert max(excerpt.stop - excerpt.start for excerpt in every) == 20
    assert [excerpt.block for excerpt in every[:4]] == [0, 1, 2, 3]
    data = check_packed(comparison, json.loads(token_view(comparison, sequences=[2]).data))
    asked = [excerpt for excerpt in data["excerpts"] if excerpt["asked"]]
    assert [excerpt["first"] for excerpt in asked] == [1, 21, 41, 61]


def test_the_same_tables_give_the_same_data(comparison):
    assert token_view(comparison).data == token_view(comparison).data


def test_scores_of_another_reading_are_not_shown(words, tmp_path):
    folder = tmp_path / "slices"
    shutil.copytree(words, folder)
    compared = read_comparison(folder)
    options = {**compared.manifest["scores"], MODELS[0]: {"model_digest": "another"}}
    with pytest.raises(UserError, match="the scores have changed since the comparison; run the same `recallkit gap` again"):
        token_view(replace(compared, manifest={**compared.manifest, "scores": options}))
    score_path(folder, MODELS[0]).unlink()
    with pytest.raises(UserError, match="no such table"):
        token_view(compared)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("is_hit", [True, False])
def test_scores_that_are_no_numbers_are_refused(comparison, words, tmp_path, value, is_hit):
    """Someone edited them: the options in the manifest are still those that were compared."""
    folder = tmp_path / "slices"
    shutil.copytree(words, folder)
    path = score_path(folder, MODELS[0])
    at = next(place for place, row in enumerate(rows_of(comparison)) if row["ar_hit"] == is_hit)
    table, manifest = pq.read_table(path), artifacts.read_manifest(path)
    nlls = table["nll"].to_numpy().copy()
    nlls[at] = value
    table = table.set_column(table.schema.get_field_index("nll"), "nll", pa.array(nlls, table.schema.field("nll").type))
    artifacts.write_parquet(path, [table], table.schema, manifest)
    sequence = rows_of(comparison)[at]["sequence"]
    with pytest.raises(UserError, match=r"NLLs that are not finite.*make it again with --force"):
        token_view(read_comparison(folder), sequences=[] if is_hit else [sequence], most_bytes=10 if is_hit else excerpts.MOST_BYTES)


def test_one_model_alone(words, tmp_path):
    folder = tmp_path / "one"
    attribution.gap(REFERENCE, MODELS[:1], words, folder)
    data = json.loads(token_view(read_comparison(folder, words)).data)
    assert data["models"] == [REFERENCE, MODELS[0]]
    assert all(len(excerpt["gap"]) == 1 for excerpt in data["excerpts"])


def test_when_a_model_with_a_tokenizer_of_its_own_is_right():
    """Where all of its tokens that end in the token are its first choice; not to be told where none does, or where they begin elsewhere."""
    rows = {"nll": [0.5, 0.25, 0.0, 2.0, 1.004], "argmax": [-1] * 5, "rank": [0, 1, -1, 0, 7], "exact": [True, True, True, False, True]}
    table = pa.table(rows, schema=pa.schema([("nll", pa.float32()), ("argmax", pa.int32()), ("rank", pa.int32()), ("exact", pa.bool_())]))
    columns = excerpts._Columns.of(table, np.arange(5), is_own=True)
    assert columns.predicted == [RIGHT, WRONG, UNKNOWN, UNKNOWN, WRONG]
    assert columns.nll == [50, 25, 0, 200, 100]
    same = table.set_column(1, "argmax", pa.array([0, 5, 2, 3, 0], pa.int32()))
    assert excerpts._Columns.of(same, np.arange(5), is_own=False).predicted == [RIGHT, 6, RIGHT, RIGHT, 1]
