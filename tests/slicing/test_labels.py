"""Labels equal a brute-force reference on every token of real text, in both boundary modes, and on
made-up text."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import zstandard

from recallkit import counting, scoring, slicing
from recallkit.errors import UserError
from recallkit.options import TextOptions
from recallkit.slicing.definitions import CONTEXT_CLASSES
from recallkit.slicing.labels import summarise_slices
from recallkit.storage import parquet_files
from recallkit.storage.schemas import LAYOUTS
from recallkit.text import sequences
from recallkit.text.corpus import open_corpus
from recallkit.text.open_text import OpenText
from recallkit.text.tokenizers import load_slices_tokenizer, load_tokenizer
from tests.conftest import write_jsonl
from tests.made_tokenizers import made
from tests.slicing.references import label_bigrams_reference
from tests.slicing.test_match_kernels import by_automaton

COLUMNS = list(LAYOUTS["tokens"])
Documents = list[tuple[np.ndarray, str]]
"""Ids and source of each."""


def documents_of(sources: list[str]) -> Documents:
    """Those of files, by `tokenizers` alone."""
    tokenizer, documents, result = load_tokenizer(None), open_corpus(sources).documents(), []
    while batch := list(itertools.islice(documents, 256)):
        encodings = tokenizer.backend.encode_batch_fast(
            [d.text for d in batch],
            add_special_tokens=False,
        )
        result += [
            (np.array(e.ids, "<u2"), d.source) for e, d in zip(encodings, batch, strict=True)
        ]
    return result


def streams(documents: Documents, boundary: str) -> list[np.ndarray]:
    """The streams of ids that counts and sequences are made of; id 0 ends a document."""
    if boundary == "pack":
        return [
            np.concatenate(
                [piece for ids, _ in documents for piece in (ids, np.zeros(1, ids.dtype))],
            )
        ]
    return [np.insert(ids, 0, 0) for ids, _ in documents]


def brute_force_counts(documents: Documents, boundary: str) -> np.ndarray:
    """How often an id (column) follows another (row)."""
    counts = np.zeros((load_tokenizer(None).vocab_size,) * 2, np.int64)
    for ids in streams(documents, boundary):
        np.add.at(counts, (ids[:-1], ids[1:]), 1)
    return counts


def ngrams_of(texts: list[np.ndarray], size: int) -> Iterator[bytes]:
    """Every run of `size` ids, two bytes an id."""
    for content in (ids.tobytes() for ids in texts):
        for at in range(0, len(content) - 2 * size + 1, 2):
            yield content[at : at + 2 * size]


def brute_force_marks(valid: list[np.ndarray], train: list[np.ndarray]) -> Iterator[list[int]]:
    """Of each id of each stream, the size of the longest n-gram around it that is in the training
    text."""
    texts, common = [ids.tobytes() for ids in train], {}
    begins = [range(0, len(text), 2) for text in texts]
    for size in (13, 50):  # where a longer one begins, a shorter one does
        wanted = set(ngrams_of(valid, size))
        common[size] = set()
        for number, text in enumerate(texts):
            begins[number] = [at for at in begins[number] if text[at : at + 2 * size] in wanted]
            common[size] |= {text[at : at + 2 * size] for at in begins[number]}
    for ids in valid:
        marks = [0] * len(ids)
        for size in common:
            for at, ngram in enumerate(ngrams_of([ids], size)):
                if ngram in common[size]:
                    marks[at : at + size] = [size] * size
        yield marks


def brute_force_labels(
    valid: Documents,
    train: Documents,
    counts: np.ndarray,
    boundary: str,
    seq_len: int,
    max_count: int,
) -> Iterator[tuple]:
    """One row a predicted token, with a dictionary a sequence and no vectorisation."""
    inputs = streams(valid, boundary)
    owners = [
        (number, source) for number, (ids, source) in enumerate(valid) for _ in range(len(ids) + 1)
    ]
    begin = sequence = 0
    marks_of = brute_force_marks(inputs, streams(train, boundary))
    for ids, marks in zip(map(np.ndarray.tolist, inputs), marks_of, strict=True):
        for start in range(0, len(ids) - 1, seq_len):
            window = ids[start : start + seq_len + 1]
            pairs, matches = itertools.pairwise(window), by_automaton(window)
            rows = zip(pairs, matches, label_bigrams_reference(window), strict=True)
            for position, (pair, match, (distance, first, number, context, *more)) in enumerate(
                rows,
                1,
            ):
                place, count, repeated = start + position, int(counts[pair]), number > 0
                distances = (distance, first) if repeated else (None, None)
                yield (
                    *(sequence, position, *owners[begin + place], *pair),
                    *(repeated, CONTEXT_CLASSES[context], *distances, number, match, *more),
                    *(count, repeated and count <= max_count, marks[place]),
                )
            sequence += 1
        begin += len(ids)


def assert_labels(folder: Path, rows: Iterator[tuple]) -> None:
    """Some sequences at a time, so that the rows of a large text are never in memory together."""
    table = pl.read_parquet(folder / "tokens.parquet").with_columns(
        pl.col("source", "context_class").cast(pl.String),
    )
    assert table.columns == COLUMNS
    for part in table.iter_slices(1 << 16):
        for name, column in zip(
            COLUMNS,
            zip(*itertools.islice(rows, len(part)), strict=True),
            strict=True,
        ):
            assert part[name].to_list() == list(column), name
    assert next(rows, None) is None


EVERY = [
    pytest.param(1, id="whole", marks=[pytest.mark.slow, pytest.mark.timeout(3000)]),
    pytest.param(128, id="one in 128"),
]


@pytest.fixture(scope="module", params=EVERY)
def every(request) -> int:
    """One in so many documents is taken: all of them in minutes."""
    return request.param


@pytest.fixture(scope="module")
def real_text(test_data, every, tmp_path_factory) -> dict[str, list[str]]:
    """The shards: four of training text, one of other documents."""
    shards = [
        test_data / "corpus" / f"{name}.jsonl.zst"
        for name in ("train-00", "train-01", "train-02", "train-03", "valid")
    ]
    if every > 1:
        folder = tmp_path_factory.mktemp("sample")
        shards = [
            sample(shard, every, folder / shard.name.removesuffix(".zst")) for shard in shards
        ]
    return {"train": [str(shard) for shard in shards[:4]], "valid": [str(shards[4])]}


def sample(shard: Path, every: int, path: Path) -> Path:
    with zstandard.open(shard, "rt", encoding="utf-8", newline="\n") as file:
        path.write_text("".join(itertools.islice(file, None, None, every)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def real_documents(real_text) -> dict[str, Documents]:
    return {name: documents_of(shards) for name, shards in real_text.items()}


@pytest.mark.parametrize("boundary", ["pack", "document"])
def test_labels_equal_brute_force_on_every_token_of_real_text(
    real_text,
    real_documents,
    every,
    tmp_path,
    boundary,
    monkeypatch,
):
    if every > 1:  # as many row groups as of all text
        monkeypatch.setattr(
            sequences,
            "SEQUENCES_PER_ROW_GROUP",
            sequences.SEQUENCES_PER_ROW_GROUP // every,
        )
    train, valid = real_text["train"], real_text["valid"]
    options = counting.CountingOptions(hashes=1 << 26)  # all
    counting.count(
        TextOptions(train, "train", boundary=boundary),
        tmp_path / "counts.duckdb",
        options=options,
    )
    manifest = slicing.slice_text(
        TextOptions(valid, "validation", boundary=boundary),
        tmp_path / "slices",
        counts=tmp_path / "counts.duckdb",
        rare=slicing.RareCount(60),
    )
    counts = brute_force_counts(real_documents["train"], boundary)
    assert manifest["counts"]["num_bigrams"] == np.count_nonzero(counts)
    assert manifest["num_rows"] > 2_000_000 / every
    rows = brute_force_labels(
        real_documents["valid"],
        real_documents["train"],
        counts,
        boundary,
        2048,
        60,
    )
    assert_labels(tmp_path / "slices", rows)
    assert set(
        pl.read_parquet(tmp_path / "slices" / "tokens.parquet", columns=["in_training"])[
            "in_training"
        ]
    ) == {0, 13, 50}


@pytest.mark.parametrize("boundary", ["pack", "document"])
@pytest.mark.parametrize("seed", range(2))
def test_labels_equal_brute_force_on_made_up_text(tmp_path, boundary, seed):
    rng = np.random.default_rng(seed)
    words = np.array(["key", " value", " a", " a", "\n", " recall", " 17"])
    texts = ["".join(rng.choice(words, rng.integers(0, 90))) for _ in range(30)]
    train = [str(write_jsonl(tmp_path / "train.jsonl", texts[:15], "t"))]
    valid = [
        str(write_jsonl(tmp_path / f"v{n}.jsonl", texts[15 + 5 * n : 20 + 5 * n], f"v{n}"))
        for n in range(3)
    ]
    counting.count(TextOptions(train, "train", boundary=boundary), tmp_path / "counts.duckdb")
    options = TextOptions(valid, "validation", boundary=boundary)
    slicing.slice_text(
        options,
        tmp_path / "slices",
        counts=tmp_path / "counts.duckdb",
        rare=slicing.RareCount(3),
        seq_len=16,
    )
    valid_documents, train_documents = documents_of(valid), documents_of(train)
    counts = brute_force_counts(train_documents, boundary)
    assert_labels(
        tmp_path / "slices",
        brute_force_labels(valid_documents, train_documents, counts, boundary, 16, 3),
    )


def test_without_counts_rarity_is_unknown_not_false(tmp_path):
    text = [str(write_jsonl(tmp_path / "v.jsonl", ["a b a b a b"]))]
    slicing.slice_text(TextOptions(text, "validation"), tmp_path / "slices", counts=None)
    table = pl.read_parquet(tmp_path / "slices" / "tokens.parquet")
    assert table["train_count"].null_count() == table["ar_hit"].null_count() == len(table)
    assert table["repeated"].sum() > 0
    assert summarise_slices(tmp_path / "slices" / "tokens.parquet")["ar_hits"].to_list() == [
        None,
        None,
    ]


def test_counts_can_be_added_to_labels(run, few_slices, tiny_model, tmp_path, monkeypatch):
    """The bytes are those of labels with counts from the start, the text is not tokenised again,
    and scores stay valid."""
    sources = [few_slices.parent / name for name in ("valid.jsonl", "other.jsonl")]
    command = ["slice", *sources, "--seq-len", 64, "-o", tmp_path / "slices"]
    counted = [*command, "--counts", few_slices.parent / "counts.duckdb", "--max-count", 20]
    assert run(*command).returncode == 0
    model = tiny_model("llama")
    assert run("score", model, "--slices", tmp_path / "slices").returncode == 0
    score = scoring.score_path(tmp_path / "slices", str(model))
    scored = score.stat().st_mtime_ns, score.read_bytes()
    queries = [
        "gap",
        model,
        "control:bigram",
        "--counts",
        few_slices.parent / "counts.duckdb",
        "--slices",
        tmp_path / "slices",
    ]
    assert f"with --counts FILE -o {tmp_path / 'slices'}" in run(*queries, "--price").stderr

    monkeypatch.setattr(OpenText, "encoded", None)
    done = run(*counted)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "slices/tokens.parquet").read_bytes() == (
        few_slices / "tokens.parquet"
    ).read_bytes()
    assert run(*queries).returncode == 0
    assert (score.stat().st_mtime_ns, score.read_bytes()) == scored
    assert "already made with other options" in run(*counted[:-1], 21).stderr
    assert "already made with other options" in run(*command).stderr


def test_a_count_of_only_the_needed_bigrams_gives_the_same_labels(small_slices, tmp_path):
    train = [str(small_slices.parent / "train.jsonl")]
    meta = counting.count(TextOptions(train, "train"), tmp_path / "only.duckdb", only=small_slices)
    sources = [str(small_slices.parent / name) for name in ("valid.jsonl", "other.jsonl")]
    options = TextOptions(sources, "validation")
    slicing.slice_text(
        options,
        tmp_path / "slices",
        counts=tmp_path / "only.duckdb",
        rare=slicing.RareCount(20),
        seq_len=64,
    )
    one, other = (
        pl.read_parquet(folder / "tokens.parquet") for folder in (small_slices, tmp_path / "slices")
    )
    assert one.drop("in_training").equals(other.drop("in_training"))
    assert other["in_training"].null_count() == len(other), (
        "a count of some bigrams only keeps no hashes"
    )
    assert (
        meta["num_bigrams"]
        <= parquet_files.read_manifest(small_slices / "tokens.parquet")["counts"]["num_bigrams"]
    )


# ----------------------------------------------------------------------------- bytes, the tokenizer


def num_bytes_of(folder: Path) -> dict[str, list[int | None]]:
    return {
        source: rest
        for source, *rest in parquet_files.read_manifest(folder / "tokens.parquet")["num_bytes"]
    }


def test_labels_are_encoded_as_every_reader_knows(few_slices):
    """DuckDB reads whole numbers whose bytes are split from 2.0 only, and users' tools are
    older."""
    groups = pq.ParquetFile(few_slices / "tokens.parquet").metadata.to_dict()["row_groups"]
    result = {
        encoding
        for group in groups
        for column in group["columns"]
        for encoding in column["encodings"]
    }
    assert result == {"PLAIN", "RLE", "RLE_DICTIONARY", "DELTA_BINARY_PACKED"}


def test_bytes_of_text_are_counted_by_hand(tmp_path):
    # Of the bigrams " a b", " b a", " a b" the third stood there before.
    text = [
        str(write_jsonl(tmp_path / "v.jsonl", [" a b a b"], "letters")),
        str(write_jsonl(tmp_path / "w.jsonl", ["\u00e9"], "accents")),
    ]
    counting.count(TextOptions(text, "train"), tmp_path / "counts.duckdb")
    slicing.slice_text(
        TextOptions(text, "validation"),
        tmp_path / "slices",
        counts=tmp_path / "counts.duckdb",
    )
    tokens = pl.read_parquet(tmp_path / "slices" / "tokens.parquet")
    pieces = load_tokenizer(None).token_bytes
    assert [pieces[t] for t in tokens["token"]] == [
        b" b",
        b" a",
        b" b",
        b"<|endoftext|>",
        "é".encode(),
        b"<|endoftext|>",
    ]
    assert tokens["ar_hit"].to_list() == [False, False, True, False, False, False]
    assert num_bytes_of(tmp_path / "slices") == {
        "ALL": [8, 2],
        "accents": [2, 0],
        "letters": [6, 2],
    }


@pytest.mark.parametrize("name", ["built-in", "sentencepiece", "bytes"])
def test_bytes_are_those_of_the_texts(tmp_path, name):
    texts = {f"s{n}": [f"{'the model ' * n}é", "recalls"] for n in range(3)}
    shards = [
        str(write_jsonl(tmp_path / f"{source}.jsonl", texts[source], source)) for source in texts
    ]
    tokenizer = {"built-in": None, "bytes": "bytes"}.get(name, str(tmp_path / "t.json"))
    made(name).backend.save(str(tmp_path / "t.json"))
    options = TextOptions(shards, "validation", tokenizer=tokenizer, boundary="document")
    manifest = slicing.slice_text(options, tmp_path / "slices", counts=None, seq_len=5)
    expected = {
        source: [len("".join(documents).encode()), None] for source, documents in texts.items()
    }
    assert num_bytes_of(tmp_path / "slices") == {
        "ALL": [sum(num_bytes for num_bytes, _ in expected.values()), None],
        **expected,
    }
    assert manifest == parquet_files.read_manifest(tmp_path / "slices" / "tokens.parquet")


def test_slices_carry_their_tokenizer_and_get_it_back(tmp_path):
    made("unigram").backend.save(str(tmp_path / "t.json"))
    text = [str(write_jsonl(tmp_path / "v.jsonl", ["the model recalls"]))]
    options = TextOptions(text, "validation", tokenizer=str(tmp_path / "t.json"))
    out = tmp_path / "slices"
    manifest = slicing.slice_text(options, out, counts=None)
    (tmp_path / "t.json").rename(tmp_path / "moved.json")
    assert load_slices_tokenizer(out, manifest["tokenizer"]).describe() == manifest["tokenizer"]

    (out / "tokenizer.json").unlink()
    made_at = {name: (out / name).stat().st_mtime_ns for name in ("sequences.parquet",)}
    with pytest.raises(UserError, match="again"):
        load_slices_tokenizer(out, manifest["tokenizer"])
    (tmp_path / "moved.json").rename(tmp_path / "t.json")
    slicing.slice_text(options, out, counts=None)
    assert load_slices_tokenizer(out, manifest["tokenizer"]).describe() == manifest["tokenizer"]
    assert made_at == {name: (out / name).stat().st_mtime_ns for name in made_at}

    other = slicing.slice_text(TextOptions(text, "validation"), out, counts=None, force=True)
    assert load_slices_tokenizer(out, other["tokenizer"]).name == "recallkit-4k"
    with pytest.raises(UserError, match=r"not t\.json"):
        load_slices_tokenizer(out, manifest["tokenizer"])
