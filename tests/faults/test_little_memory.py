"""Less memory than a batch takes: smaller batches, or one line where not even one sequence fits;
nothing half, nothing lost."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from recallkit import cli, slicing
from recallkit.errors import UserError
from recallkit.options import TextOptions
from recallkit.storage import db, schemas
from recallkit.storage.journal import removing_damage
from recallkit.text import encoding
from tests.conftest import made_up_texts, write_jsonl
from tests.faults.conftest import left_over

BATCH = 8192
SEQUENCE = 256
M_MMAP_THRESHOLD = -3


def used() -> int:
    """Bytes of writable memory of this process, as its limit counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmData:")).split()[1])


class LittleMemory:
    """After `parts` parts are scored, scoring a part may take `megabytes` more than the process has
    by then, and no more."""

    def __init__(self, megabytes: int, parts: int = 0) -> None:
        self.megabytes, self.parts = megabytes, parts

    def __call__(self) -> None:
        from recallkit.scoring import scores

        # Tensors are given back at once: what is refused does not depend on luck. The program
        # leaves a configured allocator alone.
        os.environ["MALLOC_MMAP_THRESHOLD_"] = str(1 << 16)
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 16)
        run, waiting = scores.BatchedScores.run, [None] * self.parts

        def limited(batched: scores.BatchedScores) -> Iterator[None]:
            if waiting:
                waiting.pop()
                yield from run(batched)
                return
            # threads that read ahead and write behind are done: the limit is for scoring
            time.sleep(0.5)
            limit = used() + self.megabytes * 1_000_000
            resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
            try:
                yield from run(batched)
            finally:
                resource.setrlimit(
                    resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
                )

        scores.BatchedScores.run = limited


def within_threads(number: int, call: Callable[..., pl.DataFrame]) -> Callable[..., pl.DataFrame]:
    """A call during which so many further threads can start and no more: a stack is a gigabyte, and
    half a gigabyte is left besides."""
    libc = ctypes.CDLL(None)

    def limited(*arguments: object) -> pl.DataFrame:
        attributes = ctypes.create_string_buffer(64)
        libc.pthread_attr_init(attributes)
        libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(1 << 30))
        assert libc.pthread_setattr_default_np(attributes) == 0
        resource.setrlimit(
            resource.RLIMIT_DATA, (used() + (number << 30) + (1 << 29), resource.RLIM_INFINITY)
        )
        try:
            return call(*arguments)
        finally:
            resource.setrlimit(
                resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            )

    return limited


def one_thread_for_queries() -> None:
    db.frame = within_threads(1, db.frame)


def no_thread_for_tables() -> None:
    schemas.read_frame = within_threads(0, schemas.read_frame)


@pytest.fixture(scope="module")
def slices(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    folder = tmp_path_factory.mktemp("memory")
    text = write_jsonl(folder / "t.jsonl", made_up_texts(60, 400, seed=3))
    slicing.slice_text(
        TextOptions([str(text)], "validation"), folder / "slices", counts=None, seq_len=SEQUENCE
    )
    return folder / "slices"


@pytest.fixture
def score(
    start: Callable[..., BaseProcess],
    tiny_model: Callable[[str], Path],
    slices: Path,
    tmp_path: Path,
):
    def call(name: str, prepared: Callable[[], None] | None = None) -> tuple[int, list[str]]:
        """Scores a copy of the slices called `name`: status, lines on stderr."""
        if not (tmp_path / name).exists():
            shutil.copytree(slices, tmp_path / name)
        process = start(
            "score",
            tiny_model("llama"),
            "--device",
            "cpu",
            "--batch-tokens",
            BATCH,
            "--slices",
            tmp_path / name,
            prepared=prepared,
        )
        process.join(120)
        return process.exitcode, [
            line
            for line in process.err.read_text().splitlines()
            if "no tokenizer beside it" not in line
        ]

    return call


def scores_of(folder: Path) -> Path:
    [path] = (folder / "scores").glob("*.parquet")
    return path


def out_of_memory(said: list[str]) -> list[str]:
    return [line.split(": ", 2)[2] for line in said if "out of memory with" in line]


def test_a_batch_that_does_not_fit_is_scored_in_halves(score, tmp_path):
    """Smaller batches round in other places, and nothing else."""
    assert score("whole") == (0, [])
    # all 32 sequences take 16 to 18 megabytes, half of them 7 or 8
    status, said = score("cut", LittleMemory(9))
    assert status == 0, said
    assert (
        out_of_memory(said)[0]
        == f"out of memory with 32 x {SEQUENCE} tokens, retrying with half of them"
    )
    one, other = (pl.read_parquet(scores_of(tmp_path / name)) for name in ("whole", "cut"))
    assert one.drop("nll", "argmax", "rank").equals(other.drop("nll", "argmax", "rank"))
    np.testing.assert_allclose(one["nll"], other["nll"], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_where_not_one_sequence_fits_a_line_says_so_and_what_was_scored_is_kept(score, tmp_path):
    assert score("whole") == (0, [])
    status, said = score("cut", LittleMemory(1, parts=2))
    assert status == 1
    assert out_of_memory(said)[-1].startswith(
        f"out of memory with one sequence of {SEQUENCE} ids; read it in windows"
    )
    assert said[-1].startswith("recallkit: ")
    assert not list((tmp_path / "cut" / "scores").glob("*.parquet"))
    assert list((tmp_path / "cut" / "scores").glob(".*.partial/part-*"))
    assert not left_over(tmp_path / "cut")
    status, said = score("cut")
    assert status == 0
    assert "resuming after" in said[0]
    assert scores_of(tmp_path / "cut").read_bytes() == scores_of(tmp_path / "whole").read_bytes()


def test_a_query_of_a_file_waits_for_no_thread_that_cannot_start(start, tmp_path):
    """Arrow's scanner of files fails there, or waits for ever."""
    text = write_jsonl(tmp_path / "t.jsonl", made_up_texts(20, 400, seed=3))
    process = start(
        "slice", text, "-o", tmp_path / "s", "--seq-len", 64, prepared=one_thread_for_queries
    )
    process.join(120)
    process.kill()
    assert process.exitcode == 0, process.err.read_text()
    assert "ALL" in process.out.read_text()


def test_training_that_has_finished_shows_its_table_without_a_thread(start, command, tmp_path):
    process = start(*command("train", tmp_path), prepared=no_thread_for_tables)
    process.join(240)
    process.kill()
    assert process.exitcode == 0, process.err.read_text()
    assert "every other" in process.out.read_text()


@pytest.mark.parametrize(
    "error",
    [
        pa.ArrowMemoryError("malloc of size 64 failed"),
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.EIO, "Input/output error"),
    ],
)
def test_what_the_machine_lacks_removes_no_part(tmp_path, error):
    part = tmp_path / "part"
    part.write_bytes(b"hours of work")
    with pytest.raises(type(error)), removing_damage(part):
        raise error
    assert part.exists()
    with pytest.raises(UserError, match="now removed"), removing_damage(part):
        raise pa.ArrowInvalid("no Parquet file")
    assert not part.exists()


def lacking(what: str) -> BaseException:
    """An error as libraries raise it where the machine has no more memory, threads or files."""
    if what == "a library":  # as llvmlite calls it
        error = OSError("Could not find/load shared object file 'libllvmlite.so'")
        error.__context__ = OSError("libllvmlite.so: failed to map segment from shared object")
        return error
    if what == "threads of tokenizers":
        panic = type("PanicException", (BaseException,), {})
        return panic("ThreadPoolBuildError: Resource temporarily unavailable")
    return duckdb.Error(what)


LACKING = [
    (encoding, "call_within", "a library", "writing"),
    (encoding, "call_within", "threads of tokenizers", "another tokenizer"),
    (db, "query", "Out of Memory Error: failed to allocate data of size 16.0 KiB", "--force"),
    (db, "query", "IO Error: Cannot open file: Too many open files", "--force"),
    (db, "query", "Failed to launch worker thread: Resource temporarily unavailable", "--force"),
    (db, "query", "_pydantic_core.so: failed to map segment from shared object", "--force"),
    (db, "query", "could not create a primitive", "--force"),
    (db, "query", "error return without exception set", "--force"),
]


@pytest.mark.parametrize(
    ("module", "name", "what", "blamed"), LACKING, ids=[what for *_, what, _ in LACKING]
)
def test_nothing_else_is_blamed_where_the_machine_lacks_something(
    small_slices, monkeypatch, capsys, module, name, what, blamed
):
    """No table is called damaged, no tokenizer wrong: whoever is told to make counts again loses
    days."""
    error = lacking(what)

    def lack(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(module, name, lack)
    folder = small_slices.parent
    command = [
        "slice",
        folder / "valid.jsonl",
        "-o",
        folder / "unmade",
        "--counts",
        folder / "counts.duckdb",
    ]
    with pytest.raises(SystemExit) as ended:
        cli.run([str(word) for word in command])
    line = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 1
    assert "not enough memory, threads or open files" in line
    assert blamed not in line
