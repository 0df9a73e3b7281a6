"""Rows of recall evaluations: every kind of file, the hub on local folders, what is dropped, and
every mistake in one line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recallkit.errors import UserError
from recallkit.recall import tasks
from recallkit.recall.packages import installed_packages
from recallkit.recall.rows import QuestionRow, RecallRow
from recallkit.recall.run import plan_recall
from recallkit.recall.tasks import load_rows

RECORDS: list[dict[str, Any]] = [
    {"doc_id": "a", "text": "Colour: réd\nSize: 3\ncolour:", "key": "colour", "value": "réd"},
    {"doc_id": "a", "text": "Colour: réd\nSize: 3\nsize:", "key": "size", "value": " \n"},
    {"doc_id": "b", "text": "Size: 4\nsize:", "key": "size", "value": "4"},
]
ROWS = [RecallRow(**record) for record in RECORDS]


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    """The records in the format of the file's suffix."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([{"unused": 1, **record} for record in records]), path)
        return path
    compression = {".zst": "zstd", ".gz": "gzip"}.get(path.suffix)
    with pa.output_stream(str(path), compression=compression) as stream:
        stream.write("".join(json.dumps(record) + "\n" for record in records).encode())
    return path


def read(tmp_path: Path, *records: dict[str, Any]) -> list[RecallRow]:
    return load_rows("fda", write(tmp_path / "fda.jsonl", list(records))).rows


@pytest.mark.parametrize("suffix", tasks.SUFFIXES)
def test_every_kind_of_file_gives_the_same_rows(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"fda{suffix}", RECORDS)
    loaded = load_rows("fda", path)
    assert loaded.rows == [ROWS[0], ROWS[2]]
    assert loaded.num_dropped == 1
    assert loaded.digest == load_rows("fda", write(tmp_path / "other.jsonl", RECORDS)).digest
    assert loaded.origin == str(path)
    assert load_rows("fda", tmp_path / f"fda{suffix}", limit=1).rows == [ROWS[0]]


def test_the_digest_is_of_all_rows_and_their_order_whatever_the_limit(tmp_path: Path) -> None:
    changes = [
        RECORDS,
        RECORDS[::-1],
        RECORDS[:2],
        [{**RECORDS[0], "key": "Colour"}, *RECORDS[1:]],
        [{**RECORDS[0], "note": 1}, *RECORDS[1:]],
    ]
    paths = [write(tmp_path / f"{i}.jsonl", records) for i, records in enumerate(changes)]
    digests = [load_rows("fda", path).digest for path in paths]
    assert len(set(digests)) == 4
    assert digests[0] == digests[4] == load_rows("fda", paths[0], limit=1).digest
    assert load_rows("fda", paths[0], limit=2) == load_rows("fda", paths[0]), (
        "a limit counts rows with a value"
    )


ASKED: list[dict[str, Any]] = [
    {
        "context": "Eels were rent.",
        "question": "Rent was",
        "answers": ["eels", "an eel"],
        "orig_question": "What was rent?",
        "doc_id": "fen",
    },
    {
        "context": "Reed is cut.",
        "question": "One cuts",
        "answers": {"text": ["reed", "Reed", "reed", " "]},
        "orig_question": None,
    },
    {"context": "Reed is cut.", "question": "One cuts", "answers": []},
]
QUESTIONS = [
    QuestionRow("fen", "Eels were rent.", "Rent was", ("eels", "an eel"), "What was rent?"),
    QuestionRow("1", "Reed is cut.", "One cuts", ("reed", "Reed")),
]


def test_rows_with_several_answers(tmp_path: Path) -> None:
    for task in ("nq_512", "drop", "own"):
        loaded = load_rows(task, write(tmp_path / f"{task}.jsonl", ASKED))
        assert loaded.rows == QUESTIONS
        assert loaded.num_dropped == 1, "any generation would be right, or none"
    path = write(tmp_path / "drop.parquet", [{**ASKED[0], "title": "t"}])
    assert load_rows("drop", path).rows == QUESTIONS[:1]
    text = {"text": "a b", "value": "b", "context": "a", "question": "b", "answers": ["c"]}
    mixed = load_rows("own", write(tmp_path / "mine.jsonl", [ASKED[0], text])).rows
    assert mixed == [
        QUESTIONS[0],
        RecallRow("1", "a b", "b", answers=("c",), question="b", context="a"),
    ], "a text is a prompt already made"


BAD = [
    ("fda", {"value": "b"}, r"no text \(the record has: value\)"),
    ("fda", {"text": "a"}, r"no value \(the record has: text\)"),
    ("fda", {"text": "a", "value": 3}, "value is a number, not text"),
    ("fda", {"text": "a", "value": "b", "doc_id": True}, "doc_id is true or false, not text"),
    ("fda", {"text": " \n", "value": "b"}, "the text is empty"),
    (
        "fda",
        {"text": "a", "value": "b", "answers": {"text": [3]}},
        "answers are not a list of strings",
    ),
    (
        "drop",
        {"text": "a", "value": "b"},
        r"no context \(the record has: text, value\); every row needs a context, a question and answers",
    ),
    (
        "nq_512",
        {"context": "a", "question": "b", "answers": "c"},
        r'answers are not a list of strings; write them as \["..."',
    ),
    (
        "triviaqa",
        {"context": "a", "question": " ", "answers": ["c"]},
        "the question is empty; fix or remove the row",
    ),
    (
        "own",
        {"context": "a", "question": "b"},
        "no answers .* a text and a value, or a context, a question and answers",
    ),
    (
        "squad",
        {"context": "a", "question": "b", "answers": ["c"]},
        "no text .*; every row needs a text and a value",
    ),
]


@pytest.mark.parametrize(("task", "record", "message"), BAD)
def test_a_bad_row_is_one_line_with_place_and_remedy(
    task: str,
    record: dict[str, Any],
    message: str,
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "rows.jsonl", [record])
    with pytest.raises(UserError, match=message) as caught:
        load_rows(task, path)
    assert caught.value.where == f"{path}, line 1"
    assert caught.value.remedy


def test_the_tasks_of_jrt_have_the_hub_ids_of_the_authors_code() -> None:
    names = ["swde", "fda", "squad", "nq_512", "nq_1024", "nq_2048", "triviaqa", "drop"]
    assert tasks.expand_groups(["jrt", "own"]) == [*names, "own"]
    ids = ["based-swde-v2", "based-fda", "based-squad", *(f"based_{name}" for name in names[3:])]
    assert [tasks.TASKS[name].hub_id for name in names] == [
        f"hazyresearch/{dataset}" for dataset in ids
    ]


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no value \(the record has: unused, text\)"):
        load_rows("fda", write(tmp_path / "fda.parquet", [{"text": "a"}]))
    (tmp_path / "broken.jsonl").write_text('{"text": "a", "value": "b"}\n{"text"')
    with pytest.raises(UserError, match=r"broken.jsonl, line 2: not JSON"):
        load_rows("fda", tmp_path / "broken.jsonl")
    with pytest.raises(UserError, match="no row has a value"):
        read(tmp_path, {"text": "a", "value": ""})
    with pytest.raises(UserError, match="no such file or folder"):
        load_rows("fda", tmp_path / "gone.jsonl")
    with pytest.raises(
        UserError,
        match=r"xyz: no such recall task; choose one of commonsense, drop, fda, jrt, .*, niah, .*, superglue, swde",
    ):
        plan_recall(["control:copy"], ["xyz"], tmp_path)
    with pytest.raises(UserError, match=r"sqad: no such recall task; did you mean squad\?"):
        load_rows("sqad")
    (tmp_path / "fda.csv").write_text("text,value\na,b\n")
    with pytest.raises(
        UserError,
        match=r"not a supported kind of file.*give .jsonl, .jsonl.zst, .jsonl.gz, .*.parquet",
    ):
        load_rows("fda", tmp_path / "fda.csv")


def test_a_folder_holds_the_task_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"looked for fda.jsonl, fda.jsonl.zst, fda.jsonl.gz, .*fda.parquet, fda\*.jsonl",
    ):
        load_rows("fda", tmp_path)
    write(tmp_path / "fda_cut.jsonl.gz", RECORDS[:1])
    write(tmp_path / "squad_qa.jsonl", RECORDS)
    (tmp_path / "fda_notes.md").write_text("no rows")
    assert len(load_rows("fda", tmp_path).rows) == 1
    write(tmp_path / "fda-2.parquet", RECORDS)
    with pytest.raises(
        UserError,
        match=r"several files for fda: fda-2.parquet, fda_cut.jsonl.gz; give one of them",
    ):
        load_rows("fda", tmp_path)
    write(tmp_path / "fda.jsonl.zst", RECORDS)
    assert load_rows("fda", tmp_path).origin == str(tmp_path / "fda.jsonl.zst")


def test_the_hub_gives_the_validation_split(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    splits = {
        "good/train": RECORDS[:1],
        "good/validation": RECORDS,
        "bad/validation": [{"text": "a", "value": 3}],
    }
    for split, records in splits.items():
        (tmp_path / split).parent.mkdir(exist_ok=True)
        write(tmp_path / f"{split}.jsonl", records)
    task = tasks.TASKS["fda"]
    monkeypatch.setitem(
        tasks.TASKS,
        "fda",
        dataclasses.replace(task, hub_id=str(tmp_path / "good")),
    )
    loaded = load_rows("fda")
    assert loaded.rows == [ROWS[0], ROWS[2]]
    assert loaded.digest == load_rows("fda", tmp_path / "good" / "validation.jsonl").digest
    assert loaded.origin == f"{tmp_path / 'good'}@main"
    assert (loaded.is_comparable, loaded.note) == (
        False,
        "3 rows, while published figures are of 1,102",
    )
    monkeypatch.setitem(
        tasks.TASKS,
        "fda",
        dataclasses.replace(task, hub_id=str(tmp_path / "good"), num_rows=3),
    )
    assert all(
        (rows.is_comparable, rows.note) == (True, "")
        for rows in (load_rows("fda"), load_rows("fda", limit=1))
    )
    monkeypatch.setitem(tasks.TASKS, "fda", dataclasses.replace(task, hub_id=str(tmp_path / "bad")))
    with pytest.raises(UserError, match=r"bad@main, row 0: value is a number, not text"):
        load_rows("fda")


def test_the_tasks_of_data_that_are_meant_where_none_is_named(tmp_path):
    assert tasks.tasks_of(None) == ["metadata"]
    assert tasks.tasks_of(tmp_path / "fda_small.jsonl.zst") == ["fda"]
    assert tasks.tasks_of(tmp_path / "mine.parquet") == ["own"]
    with pytest.raises(UserError, match="no rows in this folder"):
        tasks.tasks_of(tmp_path)
    for name in ("squad_qa.jsonl", "swde.parquet", "mine.jsonl", "fda.txt"):
        (tmp_path / name).touch()
    assert tasks.tasks_of(tmp_path) == ["swde", "squad"]
    with pytest.raises(UserError, match="give them with --data FILE"):
        tasks.load_rows("own")


def test_a_text_longer_than_any_prompt_is_refused_before_it_is_encoded(tmp_path: Path) -> None:
    row = {"text": "Size: 3\nsize:", "key": "size", "value": "3"}
    assert read(tmp_path, {**row, "context": "a" * 4_000_000})
    with pytest.raises(
        UserError,
        match=r"line 1: the text has 4,000,001 characters, more than the 4,000,000 .*`recallkit build-rows`",
    ):
        read(tmp_path, {**row, "text": "a" * 4_000_001})


# ------------------------------------------------------------------------------- installed packages


def install(folder: Path, name: str, headers: str, description: str) -> None:
    (folder / f"{name}.dist-info").mkdir()
    (folder / f"{name}.dist-info" / "METADATA").write_text(
        f"Name: {name}\n{headers}\n{description}",
        encoding="utf-8",
    )


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path of installed packages, empty yet."""
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    return tmp_path


def test_headers_become_rows(installed: Path) -> None:
    headers = (
        "Version: 2.0\nSummary: A  café \nAuthor: Ann\nAuthor: Bob\nMaintainer: X\nLicense: "
        "MIT\n  and more\nClassifier: Topic :: Text\n"
        f"Requires-Dist: other\nKeywords: {'k' * 101}\nHome-page: {'h' * 100}\n"
    )
    install(installed, "My_Pkg", headers, "What it is.\n")
    document = (
        "Name: My_Pkg\nVersion: 2.0\nSummary: A  café\nAuthor: Ann\nAuthor: Bob\nMaintainer: "
        "X\nClassifier: Topic :: Text\n"
        f"Requires-Dist: other\nKeywords: {'k' * 101}\nHome-page: {'h' * 100}\n\nWhat it is."
    )
    loaded = load_rows("metadata")
    assert {(row.doc_id, row.text) for row in loaded.rows} == {
        ("my-pkg", f"{document}\n{row.key}:") for row in loaded.rows
    }
    values = {str(row.key): row.value for row in loaded.rows}
    assert values == {
        "Name": "My_Pkg",
        "Version": "2.0",
        "Summary": "A  café",
        "Home-page": "h" * 100,
    }
    assert (loaded.num_dropped, loaded.origin) == (0, "METADATA of 1 installed packages")


def test_of_copies_the_first_on_the_path_counts_and_broken_metadata_do_not(
    installed: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for folder, metadata in {
        "first/My_Pkg-1.0.dist-info": "Name: My_Pkg\nVersion: 1.0\n\nfirst é\n\nmore\n",
        "second/my.pkg-2.0.dist-info": "Name: my.pkg\nVersion: 2.0\n\nsecond",
        "second/unknown-1.dist-info": "Name: unknown\nVersion: 11\n\nUNKNOWN\n",
        "second/nameless-1.dist-info": "Metadata-Version: 2.1\n\ntext",
    }.items():
        (installed / folder).mkdir(parents=True)
        (installed / folder / "METADATA").write_text(metadata, encoding="utf-8")
    monkeypatch.setattr("sys.path", [str(installed / name) for name in ("first", "second")])
    versions = {name: fields["Version"] for name, fields in installed_packages().items()}
    assert versions == {"my-pkg": "1.0", "unknown": "11"}
    texts = {row.doc_id: row.text for row in load_rows("metadata").rows if row.key == "Version"}
    assert texts["my-pkg"] == "Name: My_Pkg\nVersion: 1.0\n\nfirst é\n\nmore\nVersion:"
    assert texts["unknown"] == "Name: unknown\nVersion: 11\n\n\nVersion:"
