"""Configs with absurd numbers, and small files that become large: refused in a line, before memory
or minutes are spent."""

from __future__ import annotations

import json
import os
import resource
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from recallkit.errors import UserError
from recallkit.models.architecture import ArchitectureConfig, check_foreign
from recallkit.models.loading import load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec
from recallkit.recall import tasks
from recallkit.text import parquet_pages
from recallkit.text.corpus import CorpusOptions, open_corpus
from recallkit.text.records import Vocabulary

ABSURD = [
    (
        "num_hidden_layers",
        10**6,
        "num_hidden_layers is 1,000,000: more than the 1,000 of any model",
    ),
    ("hidden_size", 10**9, "hidden_size is 1,000,000,000"),
    ("vocab_size", 2**60, "vocab_size is"),
    ("intermediate_size", 10**12, "intermediate_size is"),
    ("num_attention_heads", 10**6, "num_attention_heads is"),
    ("layer_types", ["full_attention"] * 10**5, "the length of layer_types"),
    ("text_config", {"n_layer": 10**5}, "n_layer is 100,000"),
    ("hidden_size", float("inf"), "hidden_size is inf"),
    ("hidden_size", float("nan"), "hidden_size is nan"),
    ("num_attention_heads", "four", "Validation error"),
    ("pad_token_id", 10**9, "transformers cannot load it"),
]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    ABSURD,
    ids=[f"{name}-{str(value)[:12]}" for name, value, _ in ABSURD],
)
def test_a_config_of_transformers_is_checked_before_a_model_is_made(
    tiny_model, tmp_path, name, value, said
):
    path = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, name: value}))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=said) as caught:
        load_model(ModelPlan(ModelSpec(str(path)), 4096, device="cpu"))
    assert "\n" not in caught.value.line()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "KiB"


def test_large_models_of_today_are_let_by():
    check_foreign(
        {
            "num_hidden_layers": 126,
            "hidden_size": 16384,
            "vocab_size": 262_144,
            "num_attention_heads": 128,
            "rope_theta": 1e7,
        }
    )
    check_foreign(
        {
            "n_routed_experts": 384,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 2048,
            "max_position_embeddings": 10_485_760,
        }
    )
    check_foreign(
        {
            "id2label": {str(i): "x" for i in range(10**5)},
            "bos_token_id": 2**40,
            "num_key_value_heads": None,
            "tie": True,
        }
    )


@pytest.mark.parametrize(
    "changed",
    [{"d_model": 10**9}, {"vocab_size": 2**60}, {"layers": [{"mixer": "attention"}] * 2000}],
)
def test_a_config_of_ours_is_checked_before_a_model_is_made(changed):
    with pytest.raises(ValueError, match=r"more than fits anywhere|not 1 to 1,000"):
        ArchitectureConfig.from_json(
            {"vocab_size": 64, "d_model": 8, "layers": [{"mixer": "attention"}], **changed}
        )


# ---------------------------------------------------------------------------- small files that grow

MANY = 40_000_000
READER = """
import json, sys
from pathlib import Path
from recallkit.errors import UserError
from recallkit.text.corpus import CorpusOptions, open_corpus
from recallkit.text.records import Vocabulary
known = Vocabulary("small", 300, 0, end_is_text=False)
for name in sys.argv[1:]:
    try:
        for _ in open_corpus([name], CorpusOptions(vocabulary=known)).documents():
            pass
        line = "is read"
    except UserError as error:
        line = error.line()
    peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) // 1024
    print(json.dumps([name, line, peak]))
"""


def lists(lengths: list[int], values: pa.Array | None = None) -> pa.Array:
    """Lists of these lengths, of zeros by default."""
    values = pa.array(np.zeros(sum(lengths), np.int8)) if values is None else values
    return pa.LargeListArray.from_arrays(pa.array(np.cumsum([0, *lengths])), values)


def repeated(text: str, rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(rows, np.int8)), pa.array([text], pa.large_string())
    )


def parquet(columns: dict[str, pa.Array], **options: object) -> Callable[[Path], object]:
    return lambda path: pq.write_table(
        pa.table(columns), path, **{"compression": "zstd", "write_statistics": False, **options}
    )


def arrow(
    columns: dict[str, pa.Array], compression: str | None = "zstd"
) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        table, options = pa.table(columns), pa.ipc.IpcWriteOptions(compression=compression)
        with (
            pa.OSFile(str(path), "w") as file,
            pa.ipc.new_stream(file, table.schema, options=options) as writer,
        ):
            writer.write_table(table)

    return write


def zst(first: bytes, block: bytes, times: int, last: bytes = b"") -> Callable[[Path], object]:
    def write(path: Path) -> None:
        with path.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as writer:
            writer.write(first)
            for _ in range(times):
                writer.write(block)
            writer.write(last)

    return write


AMONG_OTHERS = [1] * 50 + [MANY] + [1] * 50
NOTHING = pa.nulls(MANY)
TEXT = pa.array(["a b"])

BOMBS: dict[str, tuple[Callable[[Path], object], str]] = {
    "one.parquet": (parquet({"input_ids": lists([MANY])}), "lists of up to"),
    "among.parquet": (parquet({"input_ids": lists(AMONG_OTHERS)}), "lists of up to"),
    "among2.parquet": (
        parquet({"input_ids": lists(AMONG_OTHERS)}, data_page_version="2.0"),
        "lists of up to",
    ),
    "plain.parquet": (
        parquet({"input_ids": lists(AMONG_OTHERS)}, use_dictionary=False),
        "lists of up to",
    ),
    "mask.parquet": (
        parquet(
            {"input_ids": lists([1] * 101), "attention_mask": lists(AMONG_OTHERS)},
            use_dictionary=False,
        ),
        "lists of up to",
    ),
    "meta.parquet": (parquet({"text": TEXT, "meta": lists([MANY])}), "lists of up to"),
    "nested.parquet": (
        parquet({"text": TEXT, "meta": lists([1], lists([MANY // 2]))}),
        "a record of more than",
    ),
    "fields.parquet": (
        parquet(
            {
                "text": TEXT,
                "meta": pa.StructArray.from_arrays(
                    [pa.array([1])] * 5000, list(map(str, range(5000)))
                ),
            }
        ),
        "5,001 columns in text, meta",
    ),
    "cell.parquet": (
        parquet(
            {"text": pa.array([b"a"] * 5 + [bytes(300_000_000)], pa.large_binary())},
            use_dictionary=False,
        ),
        "a page of 300,000,",
    ),
    "source.parquet": (
        parquet({"text": repeated("a", 99), "source": repeated("ab" * 10_000_000, 99)}),
        "its source has 20,000,000 characters",
    ),
    "row.arrow": (arrow({"input_ids": lists([8 * MANY])}), "a batch of 320,000,"),
    "other.arrow": (
        arrow({"text": TEXT, "x": pa.array([bytes(300_000_000)], pa.large_binary())}),
        "a batch of 300,000,",
    ),
    "dictionary.arrow": (arrow({"text": repeated("a" * 300_000_000, 9)}), "a batch of 300,000,"),
    "nulls.arrow": (arrow({"input_ids": lists([MANY], NOTHING)}, None), "a record of more than"),
    "objects.arrow": (
        arrow(
            {"text": TEXT, "meta": lists([MANY], pa.StructArray.from_arrays([NOTHING], ["a"]))},
            None,
        ),
        "a record of more than",
    ),
    "runs.arrow": (
        arrow(
            {
                "input_ids": lists(
                    [MANY],
                    pa.RunEndEncodedArray.from_arrays(pa.array([MANY], pa.int32()), pa.array([5])),
                )
            },
            None,
        ),
        "a record of more than",
    ),
    "views.arrow": (
        arrow(
            {
                "input_ids": pa.ListViewArray.from_arrays(
                    pa.array(np.zeros(2000, np.int32)),
                    pa.array(np.full(2000, 2_000_000, np.int32)),
                    pa.array(np.zeros(2_000_000, np.int8)),
                )
            },
            None,
        ),
        "a record of more than",
    ),
    "objects.json.zst": (
        zst(b"[{}", b",{}" * 100_000, 1000, b"]"),
        "an array of more than 67,108,864 bytes",
    ),
    "text.json.zst": (
        zst(b'["', b"a" * 1_000_000, 100, b'"]'),
        "an array of more than 67,108,864 bytes",
    ),
    "deep.json.zst": (zst(b"", b"[" * 1_000_000, 60), "more than 4,194,304 objects or lists"),
    "blank.json.zst": (zst(b"[", b"\n" * 1_000_000, 1000, b"]"), "of empty lines in a row"),
    "objects.jsonl.zst": (
        zst(b'{"text":"a","x":[0', b",{}" * 100_000, 150, b"]}\n"),
        "line 1: more than 1,048,576 objects",
    ),
    "values.jsonl.zst": (
        zst(b'{"text":"a","x":[0', b',"ab"' * 100_000, 99, b"]}\n"),
        "line 1: more than 8,388,608 values",
    ),
    "nan.jsonl.zst": (
        zst(b'{"text":"a","x":[0', b",NaN" * 100_000, 80, b"]}\n"),
        "line 1: more than 1,048,576 values",
    ),
    "texts.jsonl.zst": (
        zst(b'{"input_ids":["', b"a" * 1_000_000, 10, b'"' + b',""' * 1000 + b"]}\n"),
        "is not a list of whole numbers",
    ),
    "ids.jsonl.zst": (
        zst(b'{"input_ids":[0', b",1" * 100_000, 80, b"]}\n"),
        "a record of more than 50,000,000 bytes",
    ),
    "lines.jsonl.zst": (zst(b"", b"\n" * 1_000_000, 1000), "of empty lines in a row"),
    "lines.csv.zst": (zst(b"text\na\n", b"\r\n" * 500_000, 1000), "of empty lines in a row"),
    "cells.csv.zst": (zst(b"text\n", b"ab," * 100_000, 160, b"a\n"), "a row that does not end"),
    "header.csv.zst": (zst(b"text", b"," * 1_000_000, 40, b"\na\n"), "a row that does not end"),
    "quoted.csv.zst": (zst(b'text\n"a', b'","a\n' * 200_000, 100), "a row that does not end"),
    "endless.csv.zst": (zst(b'text\n"a', b"aaaaaa\n" * 150_000, 100), "a row that does not end"),
    "gap.fa.zst": (zst(b">a\nA", b"N" * 1_000_000, 280), "times N in a row"),
}
"""Files of at most 100 kB, and what is said of each."""


def test_small_files_do_not_become_large(tmp_path: Path) -> None:
    """Read one after the other by one process, whose memory stays small."""
    for name, (write, _) in BOMBS.items():
        write(tmp_path / name)
        assert (tmp_path / name).stat().st_size < 2_500_000, name
    command = [sys.executable, "-c", READER, *(str(tmp_path / name) for name in BOMBS)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    before = 0
    for line, (name, (_, words)) in zip(done.stdout.splitlines(), BOMBS.items(), strict=True):
        _, message, peak = json.loads(line)
        assert words in message, name
        assert name in message, name
        assert peak < 1000, f"{name}: from {before} MB"
        before = peak


SMALL = CorpusOptions(vocabulary=Vocabulary("small", 300, 0, end_is_text=False))


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
def test_lists_that_the_file_has_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version, compression
) -> None:
    """Few bytes that become many are refused, many that become a few times as many are not."""
    monkeypatch.setattr(parquet_pages, "LARGEST", 50_000)
    monkeypatch.setattr(parquet_pages, "MOST_GROWTH", 20)
    path, lengths = tmp_path / "ids.parquet", [0, 1, 9, 0, 5000, 500, 64, 3]
    options = {"data_page_version": version, "compression": compression, "use_dictionary": False}
    ids = pa.array(np.random.default_rng(0).integers(1, 300, sum(lengths)), pa.int64())
    parquet({"input_ids": lists(lengths, ids)}, **options)(path)
    assert [
        len(document.ids) for document in open_corpus([str(path)], SMALL).documents()
    ] == lengths
    parquet(
        {"input_ids": lists(lengths, pa.array(np.full(sum(lengths), 7)))},
        **{**options, "compression": "zstd"},
    )(path)
    with pytest.raises(UserError, match="lists of up to"):
        list(open_corpus([str(path)], SMALL).documents())


def test_pages_that_lie_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"input_ids": lists([3, 4])}), path, compression="none")
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    content = path.read_bytes()
    for header in (
        b"\x00",
        b"\xff" * 20,
        b"\x1c" * 2000,
        b"\x15" + b"\xff" * 12,
        b"\x18\xff\xff\xff\xff\x0f",
    ):
        place = column.dictionary_page_offset
        path.write_bytes(content[:place] + header + content[place + len(header) :])
        with pytest.raises(UserError, match=r"a\.parquet"):
            list(open_corpus([str(path)], SMALL).documents())


def test_texts_with_the_signs_of_json_are_no_objects(tmp_path: Path) -> None:
    """A program of 20 MB has millions of brackets and commas."""
    text = 'x = [{"a\\": 1}, {}]\n' * 1_000_000
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}) + "\n")
    [document] = open_corpus([str(tmp_path / "a.jsonl")]).documents()
    assert document.text == text


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_want_of_memory_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def loads(content: bytes) -> None:
        raise orjson.JSONDecodeError("Not enough memory to allocate buffer for parsing", "", 0)

    (tmp_path / name).write_text('[{"text": "a"}]' if name == "a.json" else '{"text": "a"}\n')
    monkeypatch.setattr(orjson, "loads", loads)
    with pytest.raises(MemoryError):
        list(open_corpus([str(tmp_path / name)]).documents())


def test_files_that_a_saved_dataset_names_are_read_from_a_small_file(tmp_path: Path) -> None:
    (tmp_path / "dataset_info.json").write_text("{}")
    state = tmp_path / "state.json"
    state.write_bytes(b'{"_data_files":[' + b"{}," * 2_000_000 + b"{}]}")
    with pytest.raises(UserError, match="not in the form that save_to_disk writes"):
        open_corpus([str(tmp_path)])
    state.unlink()
    os.mkfifo(state)
    with pytest.raises(UserError, match="a pipe, but a file is expected"):
        open_corpus([str(tmp_path)])


def test_rows_of_an_evaluation_fit_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "own.jsonl"
    rows.write_text(
        json.dumps({"text": "a b:", "value": "c"})
        + "\n"
        + json.dumps({"text": "x" * 4000, "value": "c"})
        + "\n"
    )
    assert len(tasks.load_rows("own", rows).rows) == 2
    monkeypatch.setattr(tasks, "_MOST_ROW_CHARACTERS", 4000)
    with pytest.raises(UserError, match=r"own\.jsonl: rows of more than 4,000 characters in all"):
        tasks.load_rows("own", rows)


def test_an_index_of_a_thousand_million_sequences_is_read_in_parts(tmp_path: Path) -> None:
    """Of a file without blocks on the disk; at the end its sequences are not those of the file."""
    number = 10**8
    (tmp_path / "a.bin").write_bytes(bytes(2))
    with (tmp_path / "a.idx").open("wb") as file:
        file.write(struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, number, 2))
        file.seek(12 * number + 8, 1)
        file.write(struct.pack("<q", number))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match="do not fill its"):
        list(open_corpus([str(tmp_path / "a.bin")], SMALL).documents())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_500_000, (
        "KiB: the file's own pages, and parts of it"
    )
