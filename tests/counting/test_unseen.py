"""What a text's documents find in no other one: against plain loops, in bounded memory, and on real
text of several kinds."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import numpy as np
import polars as pl
import pytest
import zstandard

from recallkit import counting
from recallkit.counting import bigrams, unseen
from recallkit.counting.table import open_counts
from recallkit.options import TextOptions
from recallkit.slicing.labels import summarise_slices
from recallkit.slicing.run import slice_text
from recallkit.slicing.view import SlicesView
from recallkit.storage import parquet_files
from recallkit.text.open_text import OpenText
from recallkit.text.records import Position
from tests.conftest import made_up_texts, write_jsonl


def documents(text: TextOptions) -> list[Counter]:
    """The bigrams of two different ids of each document, the end token in front of it included."""
    opened = OpenText(text)
    result = []
    for encoded in opened.encoded(Position()):
        for start, stop in itertools.pairwise(encoded.offsets.tolist()):
            ids = [opened.tokenizer.end_token_id, *encoded.ids[start:stop].tolist()]
            result.append(Counter(pair for pair in itertools.pairwise(ids) if len({*pair}) == 2))
    return result


@pytest.mark.parametrize("copies", [0, 1])
def test_the_share_is_that_of_bigrams_in_no_other_document(tmp_path, copies):
    texts = made_up_texts(40, 60, seed=3)
    path = write_jsonl(tmp_path / "text.jsonl", [*texts, *texts[:20] * copies])
    text = TextOptions([str(path)], "train", boundary="document")
    meta = counting.count(text, tmp_path / "counts.duckdb")
    by_document = documents(text)
    total = sum(by_document, Counter())
    alone = sum(
        number
        for pairs in by_document
        for bigram, number in pairs.items()
        if number == total[bigram]
    )
    assert alone > 0
    assert meta["unseen"] == {
        "share": alone / total.total(),
        "bigrams": total.total(),
        "documents": 40 + 20 * copies,
    }


@pytest.mark.parametrize("boundary", ["pack", "document"])
def test_a_sample_is_bounded_and_the_same_however_the_text_is_divided(
    tmp_path,
    monkeypatch,
    boundary,
):
    texts = made_up_texts(200, 60, seed=4)
    joined = write_jsonl(tmp_path / "whole.jsonl", texts)
    for part in range(5):
        (tmp_path / "parts").mkdir(exist_ok=True)
        write_jsonl(tmp_path / "parts" / f"{part}.jsonl", texts[40 * part : 40 * part + 40])
    exact = counting.count(
        TextOptions([str(joined)], "train", boundary=boundary),
        tmp_path / "exact.duckdb",
    )
    monkeypatch.setattr(unseen, "SAMPLED_BIGRAMS", 4000)
    monkeypatch.setattr(bigrams, "SHARD_RANGE_BYTES", 1)
    result = [
        counting.count(
            TextOptions([str(tmp_path / name)], "train", boundary=boundary),
            tmp_path / f"{name}.duckdb",
        )
        for name in ("whole.jsonl", "parts")
    ]
    assert result[0]["unseen"] == result[1]["unseen"]
    assert 4000 <= result[0]["unseen"]["bigrams"] < 4600
    assert result[0]["unseen"]["share"] == pytest.approx(exact["unseen"]["share"], abs=0.03)
    assert result[0]["id"] == exact["id"], "the sample is no part of what identifies counts"


def test_it_is_not_known_of_few_documents_of_chosen_bigrams_and_of_tables_of_others(
    tmp_path,
    small_slices,
):
    few = write_jsonl(tmp_path / "few.jsonl", made_up_texts(19, 60))
    assert (
        counting.count(TextOptions([str(few)], "train"), tmp_path / "few.duckdb")["unseen"] is None
    )
    more = write_jsonl(tmp_path / "more.jsonl", made_up_texts(30, 60))
    assert (
        counting.count(
            TextOptions([str(more)], "train"),
            tmp_path / "only.duckdb",
            only=small_slices,
        )["unseen"]
        is None
    )
    meta = counting.count(TextOptions([str(more)], "train"), tmp_path / "more.duckdb")
    counting.export_counts(tmp_path / "more.duckdb", tmp_path / "ours.parquet", force=False)
    pl.read_parquet(tmp_path / "ours.parquet").write_parquet(tmp_path / "theirs.parquet")
    settings_of = {"tokenizer": None, "num_tokens": None, "boundary": "pack", "force": False}
    for name, known in (("ours", meta["unseen"]), ("theirs", None)):
        counting.import_counts(
            tmp_path / f"{name}.parquet",
            tmp_path / f"{name}.duckdb",
            **settings_of,
        )
        assert open_counts(tmp_path / f"{name}.duckdb").describe()["unseen"] == known
    assert meta["unseen"]["documents"] == 30


def test_what_a_text_finds_unseen_and_how_much_its_documents_differ(tmp_path):
    """Against plain loops, and documents drawn anew."""
    counted, read = (
        write_jsonl(tmp_path / f"{seed}.jsonl", made_up_texts(40, 60, seed=seed)) for seed in (3, 4)
    )
    text = TextOptions([str(counted)], "train", boundary="document")
    counting.count(text, tmp_path / "counts.duckdb")
    text, known = (
        TextOptions([str(read)], "validation", boundary="document"),
        set(sum(documents(text), Counter())),
    )
    result = slice_text(text, tmp_path / "slices", counts=tmp_path / "counts.duckdb", seq_len=1000)[
        "unseen"
    ]
    sums = []
    for pairs in documents(text):
        new = sum(number for pair, number in pairs.items() if pair not in known)
        sums.append([new, pairs.total()])
    by_document = np.array(sums)
    unseen, total = by_document.sum(0)
    assert (result["share"], result["bigrams"], result["documents"]) == (unseen / total, total, 40)
    drawn = by_document[np.random.default_rng(0).integers(0, 40, (4000, 40))].sum(1)
    assert result["standard_error"] == pytest.approx((drawn[:, 0] / drawn[:, 1]).std(), rel=0.1)


KINDS = ("FreeLaw", "Github")


@pytest.fixture(scope="module")
def of_kinds(test_data, tmp_path_factory):
    """Counts of 1.5 million characters of each kind, and 200,000 of other documents: (counts, text)
    by kind."""
    folder, result = tmp_path_factory.mktemp("kinds"), {}
    for kind in KINDS:
        paths = []
        for name in ("train-00", "valid"):
            lines, room = [], 1_500_000 if name != "valid" else 200_000
            with zstandard.open(
                test_data / "corpus" / f"{name}.jsonl.zst",
                "rt",
                encoding="utf-8",
                newline="\n",
            ) as file:
                for record in map(json.loads, file):
                    if record["meta"]["pile_set_name"] == kind and room > 0:
                        lines.append(record["text"][:20_000])
                        room -= len(lines[-1])
            paths.append(write_jsonl(folder / f"{kind}-{name}.jsonl", lines))
        counting.count(TextOptions([str(paths[0])], "train"), folder / f"{kind}.duckdb")
        result[kind] = folder / f"{kind}.duckdb", paths[1]
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_text_of_another_kind_is_warned_of_and_held_out_text_of_the_same_is_not(
    of_kinds,
    tmp_path,
    kind,
):
    for counted, (counts, _) in of_kinds.items():
        out = tmp_path / counted
        slice_text(
            TextOptions([str(of_kinds[kind][1])], "validation", limit_tokens=30_000),
            out,
            counts=counts,
            seq_len=256,
        )
        manifest = parquet_files.read_manifest(out / "tokens.parquet")
        result = SlicesView(out, manifest, summarise_slices(out / "tokens.parquet")).json()
        assert ("of another kind of text" in (result["warning"] or "")) == (counted != kind), (
            counted,
            result["by_source"][0],
            manifest["counts"],
        )
        json.dumps(result)
