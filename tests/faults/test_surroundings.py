"""Odd surroundings: terminals of no width, streams that are closed or full, network disks, folders
that may only be read."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import left_over, made_of, visible

GAP = ("gap", "control:recall", "control:bigram")


def by_shell(
    line: str, *arguments: object, **environment: str | None
) -> subprocess.CompletedProcess[str]:
    """`recallkit ARGUMENTS` in place of `@` in a line of the shell; a variable that is None is not
    set."""
    words = [sys.executable, "-m", "recallkit", *map(str, arguments)]
    surroundings = {
        name: value
        for name, value in {**os.environ, "COLUMNS": "80", **environment}.items()
        if value is not None
    }
    command = ["bash", "-c", line.replace("@", '"$0" "$@"'), *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env=surroundings
    )


# ---------------------------------------------------------------------------------------- terminals


@pytest.mark.parametrize("name", ["gap", "report", pytest.param("score", marks=pytest.mark.slow)])
def test_commands_end_as_usual_without_a_width(
    command: Callable[..., list[object]], tmp_path: Path, name: str
) -> None:
    done = by_shell("@", *command(name, tmp_path), COLUMNS="0", LINES="0", TERM=None)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) > 20


LOCALES: list[dict[str, str | None]] = [
    {"TERM": "dumb"},
    {"TERM": ""},
    {"NO_COLOR": "1"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1:strict"},
    {"PYTHONUNBUFFERED": "1"},
]


@pytest.mark.parametrize("surroundings", LOCALES, ids=str)
def test_so_they_do_with_other_letters(
    small_slices: Path, tmp_path: Path, surroundings: dict[str, str | None]
) -> None:
    done = by_shell("@", *GAP, "--slices", small_slices, "-o", tmp_path, **surroundings)
    assert done.returncode == 0, done.stderr
    assert "control:bigram" in done.stdout


# ------------------------------------------------------------------------------------------ streams


@pytest.fixture(scope="module")
def usual(
    tmp_path_factory: pytest.TempPathFactory, small_slices: Path, text: Path
) -> Callable[[str], tuple[Path, str]]:
    """What a command makes, and prints, where nothing is odd."""

    @functools.cache
    def make(name: str) -> tuple[Path, str]:
        folder = tmp_path_factory.mktemp(name)
        done = by_shell("@", *words_of(name, folder, small_slices, text))
        assert done.returncode == 0, done.stderr
        return folder, done.stdout

    return make


def words_of(name: str, folder: Path, slices: Path, text: Path) -> list[object]:
    """A command that writes to a folder."""
    if name == "gap" and not (folder / "slices").exists():
        shutil.copytree(slices, folder / "slices", ignore=shutil.ignore_patterns("scores", "gap"))
    commands: dict[str, list[object]] = {
        "count": ["count", text, "-o", folder / "c.duckdb"],
        "slice": ["slice", text, "-o", folder / "s", "--seq-len", 64],
        "gap": [*GAP, "--slices", folder / "slices", "-o", folder / "gap"],
    }
    return commands[name]


@pytest.fixture
def words(small_slices: Path, text: Path, tmp_path: Path) -> Callable[[str], list[object]]:
    return lambda name: words_of(name, tmp_path, small_slices, text)


UNHEARD = (
    "@ 2>&-",
    "@ 2>/dev/full",
    "{ @ 3>&1 1>&2 2>&3 3>&-; } | true; exit ${PIPESTATUS[0]}",
    "@ <&-",
    "@ 2>&- <&-",
)
"""Lines in which notes cannot be written, or nothing read."""
UNWRITABLE = {
    "@ >&-": "standard output: Bad file descriptor",
    "@ >/dev/full": "standard output: no space left on the disk",
    "@ >&- 2>&-": "",
    "@ >&- 2>&- <&-": "",
    "@ >/dev/full 2>/dev/full": "",
    "{ @; } | true; exit ${PIPESTATUS[0]}": "",
}
"""Lines in which no result can be printed, and what is said of it where that can be read."""


@pytest.mark.parametrize("line", UNHEARD)
@pytest.mark.parametrize("more", [(), ("--log-json",)], ids=["notes", "events"])
def test_what_cannot_be_said_changes_nothing(words, usual, tmp_path, line, more):
    folder, printed = usual("count")
    done = by_shell(line, *words("count"), *more)
    assert done.returncode == 0, done.stderr
    assert made_of(tmp_path) == made_of(folder)
    assert not left_over(tmp_path)
    assert first_words(done.stderr if "1>&2" in line else done.stdout) == first_words(printed)


def first_words(text: str) -> list[str]:
    """Those of each line: figures of time are at the ends."""
    return [line.split()[0] for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("line", UNWRITABLE)
def test_a_result_that_cannot_be_printed_is_kept_and_the_status_says_so(
    words, usual, tmp_path, line
):
    done = by_shell(line, *words("gap"), "--json")
    assert done.returncode == 1
    assert UNWRITABLE[line] in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    assert set(visible(tmp_path)) == set(visible(usual("gap")[0]))
    assert not left_over(tmp_path)


@pytest.mark.parametrize("line", ["@ 2>&-", "@ 2>/dev/full", "@ >&- 2>&-"])
def test_errors_that_nobody_hears_have_their_status(line):
    assert by_shell(line, "gap", "--none").returncode == 2


def test_workers_without_streams_make_the_same(words, usual, tmp_path):
    assert by_shell("@ 2>&- <&-", *words("count"), "--workers", 2).returncode == 0
    assert made_of(tmp_path) == made_of(usual("count")[0])


# -------------------------------------------------------------------------------------------- disks

SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>

static int fails(const char *name) {
    const char *number = getenv(name);
    if (number != NULL) errno = atoi(number);
    return number != NULL;
}

int fsync(int descriptor) {
    struct stat status;
    int is_folder = fstat(descriptor, &status) == 0 && S_ISDIR(status.st_mode);
    if (fails(is_folder ? "FSYNC_OF_FOLDER" : "FSYNC_OF_FILE")) return -1;
    return ((int (*)(int)) dlsym(RTLD_NEXT, "fsync"))(descriptor);
}

int flock(int descriptor, int kind) {
    if (fails("FLOCK")) return -1;
    return ((int (*)(int, int)) dlsym(RTLD_NEXT, "flock"))(descriptor, kind);
}
"""
"""Calls of the system that answer with the number of an error, which a variable of their name
has."""


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler, and Linux")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", folder / "shim.so", folder / "shim.c", "-ldl"],
        check=True,
    )
    return str(folder / "shim.so")


UNABLE = {
    "FSYNC_OF_FOLDER": (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EROFS, errno.EACCES),
    "FSYNC_OF_FILE": (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EROFS),
    "FLOCK": (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.EBADF),
}
"""What network disks and FUSE answer where they cannot do something that is not needed."""
FAILING = {
    "FSYNC_OF_FOLDER": (errno.EIO, errno.ENOSPC),
    "FSYNC_OF_FILE": (errno.EIO, errno.ENOSPC, errno.EDQUOT),
    "FLOCK": (errno.EIO,),
}


def cases(answers: dict[str, tuple[int, ...]]) -> list[Any]:
    """Calls with the number that each answers; the first of each is tried always."""
    made = []
    for call, numbers in answers.items():
        for number in numbers:
            marks = [pytest.mark.slow] if number != numbers[0] else []
            made.append(
                pytest.param(call, number, id=f"{call} {errno.errorcode[number]}", marks=marks)
            )
    return made


@pytest.mark.parametrize(("call", "number"), cases(UNABLE))
def test_a_disk_without_what_is_not_needed_is_enough(shim, words, usual, tmp_path, call, number):
    done = by_shell("@", *words("slice"), LD_PRELOAD=shim, **{call: str(number)})
    assert done.returncode == 0, done.stderr
    assert made_of(tmp_path) == made_of(usual("slice")[0])
    assert not left_over(tmp_path)


def test_so_it_is_for_a_gap_and_a_table_of_counts(shim, words, usual, tmp_path):
    unable = {call: str(errno.EINVAL) for call in UNABLE}
    for name in ("gap", "count"):
        done = by_shell("@", *words(name), LD_PRELOAD=shim, **unable)
        assert done.returncode == 0, done.stderr
        assert usual(name)[1].splitlines()[0] == done.stdout.splitlines()[0]


@pytest.mark.parametrize(("call", "number"), cases(FAILING))
def test_a_disk_that_fails_is_one_line_with_a_remedy(shim, words, tmp_path, call, number):
    done = by_shell("@", *words("slice"), LD_PRELOAD=shim, **{call: str(number)})
    line = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert line.startswith(f"recallkit: {tmp_path}")
    assert "same command again" in line
    assert not visible(tmp_path)


# ------------------------------------------------------------------------------------------ folders


def be_like_others() -> None:
    """Takes from root, whom no folder's permissions stop, all that sets it apart (capset(2),
    version 3)."""
    if os.getuid() == 0:
        header, nothing = struct.pack("Ii", 0x20080522, 0), bytes(24)
        assert ctypes.CDLL(None).capset(header, nothing) == 0


WITHOUT_OUT = {
    "gap": (*GAP, "--slices", "SLICES", "--force"),
    "report": ("report", "SLICES"),
    "report of a comparison": ("report", "SLICES/gap"),
    "export": ("gap", "control:recall", "control:bigram", "--slices", "SLICES", "--export", "csv"),
}
BESIDE_SLICES = {
    "score": ("score", "control:bigram", "--slices", "SLICES", "--force"),
    "gap that scores": (
        "gap",
        "control:recall",
        "control:unigram",
        "--slices",
        "SLICES",
        "-o",
        "OUT",
    ),
    "track": (
        "track",
        "step-1=control:recall",
        "step-2=control:bigram",
        "--slices",
        "SLICES",
        "-o",
        "OUT",
    ),
    "intervene": ("intervene", "control:recall", "--slices", "SLICES", "-o", "OUT"),
}
ELSEWHERE = {
    "slice": ("slice", "TEXT", "-o", "SLICES/new"),
    "count": ("count", "TEXT", "-o", "SLICES/counts.duckdb"),
    "profile": ("profile", "TEXT", "-o", "SLICES/new"),
}


@pytest.fixture
def may_not_write(
    start: Callable[..., BaseProcess], small_slices: Path, text: Path, tmp_path: Path
) -> Callable[..., tuple[int | None, str]]:
    """Runs a command whose slices are in folders that may only be read; gives its status and last
    line."""
    slices = Path(
        shutil.copytree(
            small_slices, tmp_path / "slices", ignore=shutil.ignore_patterns("scores", "gap")
        )
    )
    assert by_shell("@", *GAP, "--slices", slices).returncode == 0
    folders = [slices, *(path for path in slices.rglob("*") if path.is_dir())]

    def call(words: tuple[str, ...]) -> tuple[int | None, str]:
        places = {"SLICES": str(slices), "OUT": str(tmp_path / "out"), "TEXT": str(text)}
        named = [
            next(
                (word.replace(name, place) for name, place in places.items() if name in word), word
            )
            for word in words
        ]
        for folder in folders:
            folder.chmod(0o555)
        process = start(*named, prepared=be_like_others)
        process.join(120)
        for folder in folders:
            folder.chmod(0o755)
        return process.exitcode, process.err.read_text().strip().rpartition("\n")[2]

    return call


@pytest.mark.parametrize("name", [*WITHOUT_OUT, *ELSEWHERE, *BESIDE_SLICES])
def test_a_place_that_may_not_be_written_names_the_options_that_name_another(may_not_write, name):
    status, line = may_not_write({**WITHOUT_OUT, **ELSEWHERE, **BESIDE_SLICES}[name])
    assert status == 1, line
    assert "Permission denied; write elsewhere: to a place that -o names" in line


@pytest.mark.parametrize("name", ["gap", "report"])
def test_that_option_is_enough(may_not_write, name):
    words = WITHOUT_OUT[name]
    status, line = may_not_write((*words, "-o", "OUT.html" if words[0] == "report" else "OUT"))
    assert status == 0, line


def test_a_file_that_may_not_be_read_has_no_such_remedy(start, text, tmp_path):
    (tmp_path / "text.jsonl").write_bytes(text.read_bytes())
    (tmp_path / "text.jsonl").chmod(0)
    process = start(
        "count", tmp_path / "text.jsonl", "-o", tmp_path / "counts.duckdb", prepared=be_like_others
    )
    process.join(120)
    assert process.exitcode == 1
    assert "-o" not in process.err.read_text().splitlines()[-1].split()
