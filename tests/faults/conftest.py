"""What tests of faults share: processes that commit often, signals once they are listened for, and what a folder shows."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import Popen

import pytest

from recallkit.counting.table import read_meta
from tests.conftest import made_up_texts, write_jsonl


def commit_often() -> None:
    from recallkit.counting import bigrams
    from recallkit.mqar import run as mqar
    from recallkit.profiling import run as profiling
    from recallkit.scoring import scores
    from recallkit.text import sequences, tokenizers

    bigrams.SECONDS_PER_CHUNK = profiling.SECONDS_PER_COMMIT = 0.0
    tokenizers._BATCH_CHARACTERS = 20_000
    scores.SEQUENCES_PER_PART = mqar.SAMPLES_PER_PART = 2
    sequences.SEQUENCES_PER_ROW_GROUP = scores.SEQUENCES_PER_ROW_GROUP = 16


def listens(process: BaseProcess | Popen[str]) -> bool:
    """Whether the process hears SIGTERM by now."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return False
    caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


@pytest.fixture
def listening(start) -> Callable[..., BaseProcess]:
    def call(*arguments: object) -> BaseProcess:
        """Starts the command, and comes back when it can be interrupted."""
        process, begun = start(*arguments, prepared=commit_often), time.monotonic()
        while not listens(process) and process.exitcode is None:
            assert time.monotonic() - begun < 120
            time.sleep(0.005)
        return process

    return call


def visible(folder: Path) -> dict[str, bytes]:
    """Every file that is not hidden, nor in a hidden folder, by its name: what others take for results."""
    names = {path: path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {str(name): path.read_bytes() for path, name in names.items() if not any(part.startswith(".") for part in name.parts)}


def made_of(folder: Path) -> dict[str, object]:
    """What a folder shows, bytes; of a counts table its facts, for DuckDB does not write the same bytes twice."""
    made: dict[str, object] = {}
    for name, content in visible(folder).items():
        if content[8:12] == b"DUCK":
            made[name] = {key: value for key, value in read_meta(folder / name).items() if key != "timings"}
        elif name.endswith(".json") and b'"timings"' in content:  # how long it took is another matter each time
            made[name] = {key: value for key, value in json.loads(content).items() if key != "timings"}
        elif "lm-eval/" in name:  # its files hold the time of day: whole is all that they can be
            assert content.endswith((b"\n", b"}"))
        else:
            made[name] = content
    return made


def left_over(folder: Path) -> list[Path]:
    """Unfinished files, those of journals aside."""
    hidden = [path for path in folder.rglob(".*") if not path.name.endswith(".partial")]
    return [path for path in hidden if not any(parent.name.endswith(".partial") for parent in path.parents)]


def has_committed(folder: Path) -> bool:
    """Whether a journal in it holds work: a state is written whole."""
    return any(json.loads(path.read_text())["num_parts"] for path in folder.rglob("state.json"))


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("text") / "t.jsonl", made_up_texts(400, 300, seed=5))
