"""Folders that may not be written: one line that names the place, and nothing written."""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import shutil
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from recallkit import attribution
from tests.conftest import made_up_texts, write_jsonl


def be_like_others() -> None:
    """Takes from root, whom no folder's permissions stop, all that sets it apart (capset(2), version 3)."""
    if os.getuid() == 0:
        header, nothing = struct.pack("Ii", 0x20080522, 0), bytes(24)
        assert ctypes.CDLL(None).capset(header, nothing) == 0


def run_all(commands: dict[str, list[str]], folder: str) -> None:
    """Runs commands one after the other, as one whom permissions stop.

    What each says lies in `folder`/scratch/NAME.err, its exit status in NAME.status.
    """
    os.environ |= {"RECALLKIT_HOME": f"{folder}/home", "HF_DATASETS_CACHE": f"{folder}/scratch", "COLUMNS": "100"}
    os.chdir(f"{folder}/shut")
    be_like_others()
    for name, arguments in commands.items():
        said = os.open(f"{folder}/scratch/{name}.err", os.O_WRONLY | os.O_CREAT)
        os.dup2(said, 2)
        with contextlib.redirect_stdout(io.StringIO()):
            status = status_of(arguments)
        sys.stderr.flush()
        Path(f"{folder}/scratch/{name}.status").write_text(str(status))


def status_of(arguments: list[str]) -> int:
    from recallkit import cli

    try:
        cli.run(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    except Exception:  # noqa: BLE001 (whatever it is, it is told)
        traceback.print_exc()
    return 99


@pytest.fixture(scope="module")
def folder(small_slices: Path, tiny_model: Callable[[str], Path]) -> Iterator[Path]:
    """A folder that all may read, and none may write but for `scratch`."""
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as made:
        place = Path(made)
        write_jsonl(place / "text.jsonl", made_up_texts(20, 100, seed=5))
        (place / "evals").mkdir()
        rows = [{"doc_id": str(i), "key": "of", "value": "the", "text": f"{text} of:"} for i, text in enumerate(made_up_texts(4, 40))]
        (place / "evals" / "fda.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        shutil.copytree(tiny_model("rwkv"), place / "model")
        shutil.copytree(small_slices, place / "slices", ignore=shutil.ignore_patterns("scores", "gap"))
        shutil.copytree(place / "slices", place / "scored")
        attribution.gap("control:recall", ["control:bigram"], place / "scored")
        for name in ("scratch", "shut", "home"):
            (place / name).mkdir()
        for path in (place, *place.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        (place / "scratch").chmod(0o777)
        yield place
        for path in (place, *place.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)


def contents(folder: Path) -> dict[Path, tuple[int, int]]:
    """Whatever there is but for `scratch`: time of the last change and length."""
    found = (path for path in folder.rglob("*") if path.relative_to(folder).parts[0] != "scratch")
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in found}


@pytest.fixture(scope="module")
def ended(folder: Path, warm: ForkServerContext) -> dict[str, tuple[int, list[str]]]:
    """Exit status and lines on stderr of every command."""
    text, shut, scratch = folder / "text.jsonl", folder / "shut", folder / "scratch"
    model = [folder / "model", "--device", "cpu"]
    evaluation = [*model, "--tasks", "fda", "--data", folder / "evals", "--limit", 2]
    synthetic = [*model, "--seq-len", 16, "--pairs", 2, "--samples", 2]
    commands: dict[str, list[object]] = {
        "count": [text, "-o", shut / "c.duckdb"],
        "slice": [text, "-o", shut / "s", "--seq-len", 64],
        "profile": [text, "-o", shut / "p", "--seq-len", 64],
        "score": ["control:bigram", "--slices", folder / "slices"],
        "gap": ["control:recall", "control:bigram", "--slices", folder / "scored", "-o", shut / "g"],
        "report": [folder / "scored", "-o", shut / "r.html"],
        "eval-recall": [*evaluation, "-o", shut / "e"],
        "mqar": [*synthetic, "-o", shut / "m"],
        "count built-in": [],
        "slice built-in": [],
        "score built-in": [],
        "gap built-in": [],
        "count elsewhere": [text, "-o", scratch / "c.duckdb"],
        "slice elsewhere": [text, "-o", scratch / "s", "--seq-len", 64],
        "mqar elsewhere": [*synthetic, "-o", scratch / "m"],
    }
    before = contents(folder)
    process = warm.Process(target=run_all, args=({name: [name.split()[0], *map(str, a)] for name, a in commands.items()}, str(folder)))
    process.start()
    process.join(240)
    assert process.exitcode == 0
    assert contents(folder) == before
    return {name: (int((scratch / f"{name}.status").read_text()), (scratch / f"{name}.err").read_text().splitlines()) for name in commands}


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("count", "shut"),
        ("slice", "shut"),
        ("profile", "shut"),
        ("score", "slices"),
        ("gap", "shut"),
        ("report", "shut"),
        ("eval-recall", "shut"),
        ("mqar", "shut"),
        *((f"{command} built-in", "home") for command in ("count", "slice", "score", "gap")),
    ],
)
def test_a_folder_that_may_not_be_written_is_one_line(ended, folder, name, where):
    status, said = ended[name]
    assert status == 1, "\n".join(said[-6:])
    assert said[-1].startswith(f"recallkit: {folder / where}")
    assert "Permission denied" in said[-1]
    assert not [line for line in said[:-1] if "no tokenizer beside it" not in line]


@pytest.mark.parametrize("name", ["count", "slice", "mqar"])
def test_a_cache_folder_that_may_not_be_written_is_not_needed(ended, folder, name):
    status, said = ended[f"{name} elsewhere"]
    assert status == 0, said
    assert not [line for line in said if "ermission" in line]
