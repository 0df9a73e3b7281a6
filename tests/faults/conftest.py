"""What tests of faults share: processes that commit often, signals once they are listened for, and
what a folder shows."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import Popen

import pytest

from recallkit import attribution
from recallkit.counting.table import read_meta
from tests.conftest import made_up_texts, write_jsonl


def commit_often() -> None:
    from recallkit.counting import bigrams
    from recallkit.mqar import run as mqar
    from recallkit.scoring import begun, plan, scores
    from recallkit.text import encoding, sequences
    from recallkit.training import text as training

    bigrams.SECONDS_PER_CHUNK = begun.SECONDS_BETWEEN_SAVES = training.SAVED_EVERY_SECONDS = 0.0
    encoding._BATCH_CHARACTERS = 20_000
    plan.SEQUENCES_PER_PART, mqar.CPU_BATCH_TOKENS = 2, 64
    sequences.SEQUENCES_PER_ROW_GROUP = scores.SEQUENCES_PER_ROW_GROUP = 16


def listens(process: BaseProcess | Popen[str]) -> bool:
    """Whether the process hears SIGTERM by now."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return False
    caught = int(
        next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16
    )
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
    """Every file that is not hidden, nor in a hidden folder, by its name: what others take for
    results."""
    names = {path: path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {
        str(name): path.read_bytes()
        for path, name in names.items()
        if not any(part.startswith(".") for part in name.parts)
    }


def made_of(folder: Path) -> dict[str, object]:
    """What a folder shows, bytes; of a counts table its facts, for DuckDB does not write the same
    bytes twice."""
    made: dict[str, object] = {}
    for name, content in visible(folder).items():
        if content[8:12] == b"DUCK":
            made[name] = {
                key: value for key, value in read_meta(folder / name).items() if key != "timings"
            }
        elif name.endswith(".json") and b'"kind": "counts"' in content:
            made[name] = {
                key: value
                for key, value in json.loads(content).items()
                if key not in ("members", "digest")
            }
        elif (
            name.endswith(".json") and b'"timings"' in content
        ):  # how long it took is another matter each time
            made[name] = {
                key: value
                for key, value in json.loads(content).items()
                if key not in ("timings", "digest")
            }
        elif "lm-eval/" in name:  # its files hold the time of day: whole is all that they can be
            assert content.endswith((b"\n", b"}"))
        else:
            made[name] = content
    return made


def left_over(folder: Path) -> list[Path]:
    """Unfinished files, those of journals aside."""
    hidden = [path for path in folder.rglob(".*") if not path.name.endswith(".partial")]
    return [
        path
        for path in hidden
        if not any(parent.name.endswith(".partial") for parent in path.parents)
    ]


def files_below(folder: Path) -> list[Path]:
    """Every file, of a folder that changes meanwhile: `rglob` fails where a folder has just
    gone."""
    return [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]


def has_committed(folder: Path) -> bool:
    """Whether a journal in it holds work: a state is written whole."""
    return any(
        json.loads(path.read_text())["num_parts"]
        for path in files_below(folder)
        if path.name == "state.json"
    )


def kept(folder: Path) -> set[tuple[str, int]]:
    """What is kept of unfinished work: parts that say whose they are, and the number of commits in
    a state. A journal's part is not kept before its state says so.
    """
    found = set()
    for path in files_below(folder):
        if path.parent.name.endswith(".partial") and re.fullmatch(
            r"(part|begun)-.+-\d+", path.name
        ):
            found.add((path.name, 0))
        if path.name == "state.json":
            with contextlib.suppress(OSError):  # it has just ended
                found.add((path.parent.name, json.loads(path.read_text())["num_parts"]))
    return found


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("text") / "t.jsonl", made_up_texts(160, 300, seed=5))


@pytest.fixture(scope="session")
def compared(small_slices: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    attribution.gap("control:recall", ["control:bigram"], small_slices, folder)
    return folder


@pytest.fixture
def command(
    text, small_slices, compared, tiny_model, tmp_path
) -> Callable[[str, Path], list[object]]:
    """A command that writes to a folder, which is made ready for it; more words of its name are of
    its options."""
    rows = [
        {"doc_id": str(i), "key": "of", "value": "the", "text": f"{text} of:"}
        for i, text in enumerate(made_up_texts(40, 80, seed=7))
    ]
    (tmp_path / "fda.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(name: str, folder: Path) -> list[object]:
        if (
            name.split()[0] in ("score", "gap", "ablate", "track")
            and not (folder / "slices").exists()
        ):
            shutil.copytree(
                small_slices, folder / "slices", ignore=shutil.ignore_patterns("scores", "gap")
            )
        training = [
            "--device",
            "cpu",
            "--tokens",
            2000,
            "--seq-len",
            64,
            "--batch",
            4,
            "--checkpoint-every",
            1000,
        ]
        evaluation = ["--device", "cpu", "--tasks", "fda", "--data", tmp_path, "--batch-size", 2]
        pair, of_slices = (
            [tiny_model("gpt_neox"), tiny_model("llama")],
            ["--slices", folder / "slices", "--device", "cpu"],
        )
        commands: dict[str, list[object]] = {
            "count": [text, "-o", folder / "c.duckdb", "--export", folder / "c.parquet"],
            "slice": [text, "-o", folder / "s", "--seq-len", 64],
            "profile": [text, "-o", folder / "p", "--seq-len", 64],
            "score": [
                tiny_model("gpt_neox"),
                "--device",
                "cpu",
                "--batch-tokens",
                512,
                "--slices",
                folder / "slices",
            ],
            "gap": [
                "control:recall",
                "control:bigram",
                "--slices",
                folder / "slices",
                "-o",
                folder / "gap",
            ],
            "gap far": [*pair, *of_slices, "--context-gain", "16", "-o", folder / "gap"],
            "track": [pair[0], f"step-1={pair[1]}", *of_slices, "-o", folder / "track"],
            "report": [compared, "-o", folder / "r.html"],
            "eval-recall": [tiny_model("rwkv"), *evaluation, "-o", folder / "e"],
            "ablate": [
                tiny_model("llama"),
                "--mixers",
                "1",
                "--slices",
                folder / "slices",
                "--device",
                "cpu",
                "-o",
                folder / "a",
            ],
            "ablate heads": [tiny_model("llama"), "--heads", *of_slices, "-o", folder / "a"],
            "train": ["zoo:mamba", text, "--no-lists", *training, "-o", folder / "t"],
            "mqar": [
                tiny_model("rwkv"),
                "--device",
                "cpu",
                "--seq-len",
                32,
                "--pairs",
                4,
                "--samples",
                64,
                "-o",
                folder / "m",
            ],
        }
        return [name.split()[0], *commands[name]]

    return make
