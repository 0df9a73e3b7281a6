"""Rows built of documents: chunks that partition a text, a row for each value that a chunk
contains, and what is no document."""

from __future__ import annotations

import itertools
import json

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recallkit
from recallkit.errors import UserError
from recallkit.recall.building import build_rows, chunks
from recallkit.recall.prompts import split_query
from recallkit.recall.tasks import load_rows
from recallkit.text.tokenizers import load_tokenizer

DOCUMENTS = [
    {
        "id": "k1",
        "text": "Applicant: Acme Ltd.\nDevice: a meter. "
        + "Filler words. " * 60
        + "ACME LTD. again.",
        "pairs": {"Applicant": "Acme Ltd"},
    },
    {
        "text": "Colour: red",
        "pairs": {"Colour": "red", "Shape": "round", "Blank": " ", "None": None},
    },
]


def write(folder, documents=DOCUMENTS, name="documents.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return path


@settings(max_examples=25)
@given(st.text(max_size=60), st.integers(1, 12), st.sampled_from([None, "bytes"]))
def test_chunks_partition_a_text(text, num_tokens, spec):
    tokenizer = load_tokenizer(spec)
    parts = list(chunks(text, tokenizer, num_tokens))
    assert "".join(parts) == text
    assert "" not in parts
    _, stops = tokenizer.encode_with_stops([text])[0]
    ends = [0]
    for chunk in parts:
        ends.append(ends[-1] + len(chunk.encode()))
    for begin, end in itertools.pairwise(ends):
        # Tokens that share a character are kept together, though they be more.
        inside = sum(begin < stop <= end for stop in stops.tolist())
        assert inside <= num_tokens or len(text.encode()[begin:end].decode()) == 1


def test_a_row_for_each_value_in_each_chunk(tmp_path):
    built = build_rows(write(tmp_path), tmp_path / "rows.jsonl", chunk_tokens=100)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert (built.documents, built.rows, built.absent) == (2, len(rows), 1)
    assert [(row["doc_id"], row["key"]) for row in rows] == [
        ("k1", "Applicant"),
        ("k1", "Applicant"),
        ("1", "Colour"),
    ]
    first, last = rows[0], rows[1]
    assert (first["chunk"], last["chunk"]) == (0, built.chunks - 2)
    assert first["text"].endswith("\nApplicant:")
    assert "acme ltd" in last["text"].lower()
    assert "".join(chunks(DOCUMENTS[0]["text"], load_tokenizer(None), 100)) == DOCUMENTS[0]["text"]
    loaded = load_rows("own", tmp_path / "rows.jsonl")
    assert [split_query(row)[1] for row in loaded.rows] == ["Applicant:", "Applicant:", "Colour:"]


def test_built_rows_are_asked(tmp_path, home):
    built = recallkit.build_rows(write(tmp_path), tmp_path / "rows.jsonl", chunk_tokens=100)
    tables = recallkit.eval_recall(["control:copy"], data=built.path, out=tmp_path / "evals")
    assert tables.recall.select("num_rows", "num_documents").row(0) == (3, 2)
    assert tables.recall["accuracy"].item() >= 2 / 3, (
        "the first chunk and the short document have the key before the value"
    )
    pl.DataFrame([{"text": "A: b", "pairs": {"A": "b"}, "id": "x", "more": 1}]).write_parquet(
        tmp_path / "d.parquet",
    )
    assert build_rows(tmp_path / "d.parquet", tmp_path / "more.jsonl").rows == 1, (
        "columns of Parquet do"
    )


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([DOCUMENTS[1], {"text": "a", "pairs": {"b": 1}}], "line 2: no pairs of texts"),
        ([{"pairs": {"a": "b"}}], "line 1: no text"),
        ([{"text": "a", "pairs": {"b": "c"}}], "no value is in its document"),
    ],
)
def test_what_makes_no_rows_is_told_and_leaves_no_file(tmp_path, documents, message):
    with pytest.raises(UserError, match=message):
        build_rows(write(tmp_path, documents), tmp_path / "rows.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["documents.jsonl"]


def test_a_file_that_is_there_is_kept(tmp_path, run):
    path, out = write(tmp_path), tmp_path / "rows.jsonl"
    out.write_text("mine")
    for mine, force in itertools.product(
        ("mine", '{"doc_id":"1","chunk":0}\n'),
        ((), ("--force",)),
    ):
        out.write_text(mine)
        refused = run("build-rows", path, "-o", out, *force)
        assert "did not write" in refused.stderr
        assert "--force" not in refused.stderr
        assert out.read_text() == mine
    out.unlink()
    assert run("build-rows", path, "-o", out).returncode == 0
    refused = run("build-rows", path, "-o", out)
    assert "rows.jsonl: is there already; give another name, or --force" in refused.stderr
    done = run("build-rows", path, "-o", out, "--force", "--json")
    assert json.loads(done.stdout) == {
        "path": str(out),
        "documents": 2,
        "chunks": 2,
        "rows": 2,
        "absent": 1,
    }
