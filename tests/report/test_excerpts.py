"""The token view's data: the excerpts that are chosen, against plain loops; what is packed, against
the tables it comes from."""

from __future__ import annotations

import itertools
import json
import shutil
from collections import defaultdict
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallkit.attribution.comparison import read_comparison
from recallkit.errors import UserError
from recallkit.report import excerpts
from recallkit.report.excerpts import RIGHT, UNKNOWN, WRONG, Pieces, parts_of, token_view
from recallkit.report.sequence import open_excerpts, score_files
from recallkit.scoring import score_path
from recallkit.text.tokenizers import load_tokenizer
from tests.report.conftest import MODELS, REFERENCE


def rows_of(comparison, model=None):
    """The labels, or a model's scores, as rows; both in the order of the file."""
    path = (
        comparison.slices / "tokens.parquet"
        if model is None
        else score_files(comparison, comparison.slices)[model]
    )
    return pl.read_parquet(path).to_dicts()


def costliest(comparison, model):
    """The labels of the AR hits on which a model loses, with how much: the costliest first."""
    rows = zip(
        rows_of(comparison), rows_of(comparison, model), rows_of(comparison, REFERENCE), strict=True
    )
    lost = [(mine["nll"] - theirs["nll"], label) for label, mine, theirs in rows if label["ar_hit"]]
    return sorted(lost, key=lambda of: (-of[0], of[1]["sequence"], of[1]["position"]))


def test_places_are_the_hits_that_cost_a_model_most_and_are_on_the_page(comparison):
    view = token_view(comparison)
    shown = {excerpt["sequence"] for excerpt in json.loads(view.data)["excerpts"]}
    text = open_excerpts(comparison.slices, [REFERENCE, *comparison.models], comparison)
    assert len(view.places) == len(comparison.models)
    for model, places in zip(comparison.models, view.places, strict=True):
        worst = costliest(comparison, model)[:10]
        assert [place.lost for place in places] == pytest.approx([most for most, _ in worst])
        for place, (_, label) in zip(places, worst, strict=True):
            same = place.row.keys() & label.keys()
            assert {name: place.row[name] for name in same} == {name: label[name] for name in same}
            before = text.read(label["sequence"])["text"].to_list()[: label["position"] - 1]
            assert place.before.removeprefix("…").endswith("".join(before[-14:]))
            assert place.is_shown
    assert view.documents == {
        row["document"] for row in rows_of(comparison) if row["sequence"] in shown
    }
    first = {
        label["sequence"]
        for model in comparison.models
        for _, label in costliest(comparison, model)[:40]
    }
    assert first == shown, "of each model the excerpts of forty"


def test_where_there_is_no_room_the_costliest_hits_come_first_and_what_is_left_out_is_known(
    comparison,
):
    whole = token_view(comparison)
    view = token_view(comparison, most_bytes=len(whole.data.encode()) // 4)
    shown = {excerpt["sequence"] for excerpt in json.loads(view.data)["excerpts"]}
    ranked = [
        [label["sequence"] for _, label in costliest(comparison, model)]
        for model in comparison.models
    ]
    in_turn = list(dict.fromkeys(itertools.chain.from_iterable(zip(*ranked, strict=True))))
    assert shown == set(in_turn[: len(shown)])
    known = {place.row["sequence"]: place.is_shown for places in view.places for place in places}
    assert known == {sequence: sequence in shown for sequence in known}
    assert {True, False} == set(known.values())


def test_requested_sequences_and_documents_come_first_and_are_marked(comparison):
    documents = defaultdict(list)
    for row in rows_of(comparison):
        if row["sequence"] not in documents[row["document"]]:
            documents[row["document"]].append(row["sequence"])
    number = max(documents, key=lambda document: len(documents[document]))
    wanted = list(dict.fromkeys([3, 1, *documents[number]]))
    view = json.loads(token_view(comparison, sequences=[3, 1], documents=[number]).data)
    assert {excerpt["sequence"] for excerpt in view["excerpts"] if excerpt["asked"]} == set(wanted)
    assert [excerpt["sequence"] for excerpt in view["excerpts"]] == sorted(
        excerpt["sequence"] for excerpt in view["excerpts"]
    )
    with pytest.raises(UserError, match="no such sequence; give a number from 0 to "):
        token_view(comparison, sequences=[10**6])
    with pytest.raises(UserError, match="no predicted token"):
        token_view(comparison, documents=[10**6])


def test_where_whole_sequences_have_no_room_there_are_parts_of_them_around_all_that_is_listed(
    comparison, monkeypatch
):
    monkeypatch.setattr(excerpts, "SHORTEST", 8)
    whole = token_view(comparison)
    view = token_view(comparison, most_bytes=len(whole.data.encode()) // 4)
    assert whole.are_whole
    assert not view.are_whole
    assert [[place.row for place in places] for places in view.places] == [
        [place.row for place in places] for places in whole.places
    ]
    assert all(place.is_shown for places in view.places for place in places)
    data = check_packed(comparison, json.loads(view.data))
    parts = set()
    for excerpt in data["excerpts"]:
        parts |= {
            (excerpt["sequence"], excerpt["first"] + at) for at in range(len(excerpt["tokens"]))
        }
    assert {
        (place.row["sequence"], place.row["position"]) for places in view.places for place in places
    } <= parts


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
        for name, column in {
            "tokens": "token",
            "occurrences": "occurrences",
            "count": "train_count",
        }.items():
            assert excerpt[name] == [row[column] for row in rows]
        assert excerpt["distance"] == [row["distance"] or 0 for row in rows]
        hits = [
            bool(distance) and count <= data["most"]
            for distance, count in zip(excerpt["distance"], excerpt["count"], strict=True)
        ]
        assert hits == [row["ar_hit"] for row in rows], "the page finds hits by distance and count"
        assert sum(hits) == excerpt["hits"]
        for model, gap in enumerate(excerpt["gap"], 1):
            pairs = zip(scores[model][start:], scores[0][start:], hits, strict=False)
            of_hits = [mine["nll"] - theirs["nll"] for mine, theirs, is_hit in pairs if is_hit]
            assert gap == pytest.approx(100 * sum(of_hits), abs=0.6)
        for (at, document, source), (end, *_) in itertools.pairwise(
            [*excerpt["spans"], [len(rows), None, None]]
        ):
            assert {(row["document"], row["source"]) for row in rows[at:end]} == {
                (document, data["sources"][source])
            }
        for model, (nlls, ranks, predicted) in enumerate(
            zip(excerpt["nll"], excerpt["rank"], excerpt["predicted"], strict=True)
        ):
            mine = scores[model][start : start + len(rows)]
            assert nlls == pytest.approx([100 * row["nll"] for row in mine], abs=0.5 + 1e-4)
            assert ranks == [row["rank"] for row in mine]
            for row, score, value in zip(rows, mine, predicted, strict=True):
                if not data["own"][model]:
                    assert value == (
                        RIGHT if score["argmax"] == row["token"] else score["argmax"] + 1
                    )
                elif score["exact"] and score["rank"] >= 0:
                    assert value == (RIGHT if score["rank"] == 0 else WRONG)
                else:
                    assert value == UNKNOWN
                assert value <= 0 or str(value - 1) in data["pieces"]
    return data


def test_packed_values_are_those_of_the_tables(comparison, monkeypatch):
    check_packed(comparison, json.loads(token_view(comparison).data))
    # sequences of 64 tokens in four blocks, whose positions go on
    monkeypatch.setattr(excerpts, "LONGEST", 20)
    data = check_packed(comparison, json.loads(token_view(comparison, sequences=[2]).data))
    assert [excerpt["first"] for excerpt in data["excerpts"] if excerpt["asked"]] == [1, 21, 41, 61]
    last = rows_of(comparison)[-1]
    view = token_view(comparison, sequences=[last["sequence"]])
    assert view.requested == view.requested_shown == -(-last["position"] // 20) < 4, (
        "the last sequence is shorter"
    )


def test_a_model_with_another_tokenizer_and_text_in_bytes(hostile):
    comparison = read_comparison(hostile)
    view = token_view(comparison)
    data = check_packed(comparison, json.loads(view.data))
    assert view.other_tokenizers == [
        name for name in comparison.models if name.endswith("own.py:load")
    ]
    assert data["end"] == -1
    predicted = [
        value
        for excerpt in data["excerpts"]
        for value in excerpt["predicted"][data["own"].index(1)]
    ]
    assert {WRONG, UNKNOWN} <= set(predicted)
    assert not any(value > 0 for value in predicted), (
        "its predictions have no ids among these tokens"
    )
    # What is read from token to token is the text: whole characters, whatever is cut.
    texts = pl.read_parquet(hostile / "sequences.parquet")["text"]
    for excerpt in data["excerpts"]:
        shown = dict(excerpt["shown"])
        ids = [excerpt["before"], *excerpt["tokens"]]
        entries = [shown.get(place, data["pieces"][str(index)]) for place, index in enumerate(ids)]
        parts = [
            part for entry in entries for part in (entry if isinstance(entry, list) else [entry])
        ]
        # Characters cut at the ends of the sequence are U+FFFD in its text, and bytes here.
        assert "".join(part for part in parts if isinstance(part, str)) == texts[
            excerpt["sequence"]
        ].strip("\ufffd")


def test_no_more_bytes_than_there_is_room_for(comparison):
    whole = token_view(comparison)
    assert whole.num_excerpts == len(json.loads(whole.data)["excerpts"])
    sizes = []
    for most in (200, 10_000, len(whole.data.encode()) + 1000):
        view = token_view(comparison, most_bytes=most)
        assert len(view.data.encode()) < most + 400, (
            "the names of models, sources and columns come on top"
        )
        sizes.append(view.num_excerpts)
    assert 0 == sizes[0] < sizes[1] < sizes[2] == whole.num_excerpts


def test_scores_of_another_reading_are_not_shown(words, tmp_path):
    folder = shutil.copytree(words, tmp_path / "slices")
    compared = read_comparison(folder)
    options = {**compared.manifest["scores"], MODELS[0]: {"model_digest": "another"}}
    with pytest.raises(
        UserError,
        match="the scores have changed since the comparison; run the same `recallkit gap` again",
    ):
        token_view(replace(compared, manifest={**compared.manifest, "scores": options}))
    score_path(folder, MODELS[0]).unlink()
    with pytest.raises(UserError, match="not scored on these slices"):
        token_view(compared)


# ------------------------------------------------------------------------------------------- pieces


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([b"a\xc3", b"\xa9b"], [["a", 0xC3], ["éb"]]),
        ([b"x\xff\xa9y"], [["x", 0xFF, 0xA9, "y"]]),
        ([b"\xed\xa0\x80", b"\xc0A"], [[0xED, 0xA0, 0x80], [0xC0, "A"]]),
    ],
)
def test_a_cut_character_is_in_its_last_piece_and_bytes_that_are_no_text_are_bytes(pieces, shown):
    assert parts_of(pieces) == shown


@given(st.text(alphabet="aé中👩\u200d").map(str.encode), st.lists(st.integers(0, 200), max_size=30))
def test_text_cut_anywhere_shows_the_text(data, places):
    ends = sorted({place % (len(data) + 1) for place in places})
    pieces = [data[start:stop] for start, stop in zip([0, *ends], [*ends, len(data)], strict=True)]
    shown = parts_of(pieces)
    assert (
        "".join(part for parts in shown for part in parts if isinstance(part, str)) == data.decode()
    )
    assert all(parts for parts, piece in zip(shown, pieces, strict=True) if piece), (
        "a token that shows nothing"
    )


def test_pieces_without_bytes_are_those_of_the_vocabulary(tmp_path):
    from tokenizers import Tokenizer, models

    path = tmp_path / "tokenizer.json"
    backend = Tokenizer(
        models.WordPiece({"[UNK]": 0, "</s>": 1, "recall": 2, "##s": 3}, unk_token="[UNK]")
    )
    backend.add_special_tokens(["</s>"])
    backend.save(str(path))
    pieces = Pieces(load_tokenizer(str(path)))
    assert not pieces.has_bytes
    assert [pieces.alone(index) for index in (2, 3, 1, 9)] == ["recall", "##s", "</s>", 9]
    assert pieces.otherwise([2, 3]) == []
