"""Killed for real: SIGKILL at random moments of count, slice, score and eval-recall, and the same bytes in the end.

The commands run in processes of their own; only how often they commit is set, so that a run of seconds has many
moments to be killed between. The processes are warm ones: few of the moments are spent on imports.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recallkit.counting.table import read_meta
from recallkit.storage import artifacts
from tests.conftest import made_up_texts, write_jsonl


def commit_often() -> None:
    from recallkit.counting import bigrams
    from recallkit.scoring import scores
    from recallkit.text import sequences, tokenizers

    bigrams.SECONDS_PER_CHUNK = 0.0
    tokenizers._BATCH_CHARACTERS = 20_000
    scores.SEQUENCES_PER_PART = 2
    sequences.SEQUENCES_PER_ROW_GROUP = scores.SEQUENCES_PER_ROW_GROUP = 16


def without_timings(manifest: dict[str, Any]) -> dict[str, Any]:
    """What is the same whenever it was made, and in however many runs."""
    return {key: value for key, value in manifest.items() if key != "timings"}


@pytest.fixture
def finish(start) -> Callable[..., float]:
    def call(*arguments: object) -> float:
        """Lets the command end; seconds it took."""
        begun = time.monotonic()
        process = start(*arguments, prepared=commit_often)
        process.join(120)
        assert process.exitcode == 0, process.err.read_text()
        return time.monotonic() - begun

    return call


@pytest.fixture
def kill_often(start) -> Callable[..., None]:
    def call(arguments: list[object], seconds: float, outputs: list[Path], seed: int, *, times: int = 4) -> None:
        """Kills the command at random moments of its `seconds`; one that was faster starts again from nothing."""
        rng, killed = random.Random(seed), 0
        while killed < times:
            process, begun = start(*arguments, prepared=commit_often), time.monotonic()
            process.join(rng.uniform(0.3, 1.0) * seconds)
            if process.exitcode is None:
                killed += 1
                process.kill()
                process.join()
            else:
                assert process.exitcode == 0, process.err.read_text()
                seconds = time.monotonic() - begun
                for path in outputs:
                    artifacts.remove(path)

    return call


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("text") / "t.jsonl", made_up_texts(400, 400, seed=5))


def test_count_survives(finish, kill_often, text, tmp_path):
    def command(name: str) -> list[object]:
        return ["count", text, "-o", tmp_path / f"{name}.duckdb", "--export", tmp_path / f"{name}.parquet"]

    seconds = finish(*command("whole"))
    kill_often(command("cut"), seconds, [tmp_path / "cut.duckdb"], seed=1)
    finish(*command("cut"))
    assert (tmp_path / "cut.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert without_timings(read_meta(tmp_path / "cut.duckdb")) == without_timings(read_meta(tmp_path / "whole.duckdb"))
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("boundary", ["pack", "document"])
def test_slice_survives(finish, kill_often, text, tmp_path, boundary):
    def command(name: str) -> list[object]:
        return ["slice", text, "-o", tmp_path / name, "--seq-len", 256, "--boundary", boundary]

    seconds = finish(*command("whole"))
    kill_often(command("cut"), seconds, [tmp_path / "cut"], seed=2)
    finish(*command("cut"))
    for name in ("tokens.parquet", "sequences.parquet"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    cut, whole = (json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("cut", "whole"))
    assert without_timings(cut) == without_timings(whole)
    assert cut["timings"]["stages"]["labelling"]["tokens"] == whole["timings"]["stages"]["labelling"]["tokens"] == whole["num_rows"]


def test_score_survives(finish, kill_often, tiny_model, tmp_path):
    text = write_jsonl(tmp_path / "t.jsonl", made_up_texts(60, 300, seed=6))
    for name in ("whole", "cut"):
        finish("slice", text, "-o", tmp_path / name, "--seq-len", 64)
    command = ["score", tiny_model("gpt_neox"), "--device", "cpu", "--batch-tokens", 512, "--slices"]
    seconds = finish(*command, tmp_path / "whole")
    kill_often([*command, tmp_path / "cut"], seconds, [tmp_path / "cut" / "scores"], seed=3)
    finish(*command, tmp_path / "cut")
    [whole] = (tmp_path / "whole" / "scores").glob("*.parquet")
    assert (tmp_path / "cut" / "scores" / whole.name).read_bytes() == whole.read_bytes()
    assert not list((tmp_path / "cut" / "scores").glob(".*"))
    cut, told = (json.loads((tmp_path / name / "scores" / whole.name).with_suffix(".json").read_text()) for name in ("cut", "whole"))
    assert without_timings(cut) == without_timings(told)


def test_eval_recall_survives(finish, kill_often, tiny_model, tmp_path):
    rows = [{"doc_id": str(i), "key": "of", "value": "the", "text": f"{text} of:"} for i, text in enumerate(made_up_texts(40, 150, seed=7))]
    (tmp_path / "fda.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["eval-recall", tiny_model("rwkv"), "--device", "cpu", "--tasks", "fda", "--data", tmp_path, "--batch-size", 2, "-o"]
    seconds = finish(*command, tmp_path / "whole")
    kill_often([*command, tmp_path / "cut"], seconds, [tmp_path / "cut"], seed=4, times=5)
    finish(*command, tmp_path / "cut")
    [whole] = (tmp_path / "whole" / "documents").rglob("*.parquet")
    [cut] = (tmp_path / "cut" / "documents").rglob("*.parquet")
    assert cut.read_bytes() == whole.read_bytes()
    assert not list((tmp_path / "cut").rglob(".*"))
