"""A clock that is set back while a command works: the same bytes, and no seconds below nought."""

from __future__ import annotations

import ast
import json
import shutil
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.faults.conftest import made_of

TIMES_OF_DAY = [
    "recallkit/events.py: _line",
    "recallkit/recall/lm_eval_run.py: run_tasks",
    "recallkit/storage/artifacts.py: digest_weights",
    "recallkit/storage/artifacts.py: describe",
    "recallkit/trackers/to_mlflow.py: _write",
    "recallkit/trackers/to_tensorboard.py: log",
    "recallkit/trackers/to_tensorboard.py: log",
    "recallkit/tracking/steps.py: _is_settled",
    "recallkit/tracking/steps.py: _is_settled",
]
"""What asks for the time of day: beside the times of a file, for lm-eval's date, for the time of an event or of a tracker's record."""


def set_back_often() -> None:
    """Every other time that it is asked for, the time of day is an hour less."""
    seconds, nanoseconds, asked = time.time, time.time_ns, iter(range(1 << 40))
    time.time = lambda: seconds() - 3600 * (next(asked) % 2)
    time.time_ns = lambda: nanoseconds() - 3600 * 10**9 * (next(asked) % 2)


def timings(folder: Path) -> list[dict[str, object]]:
    """The stages of every manifest."""
    manifests = [json.loads(path.read_text()) for path in folder.rglob("*.json")]
    return [stage for manifest in manifests if "timings" in manifest for stage in manifest["timings"]["stages"].values()]


def without_seconds(content: object) -> object:
    """A table, or the facts of counts less their timings."""
    return {name: fact for name, fact in content.items() if name not in ("timings", "digest")} if isinstance(content, dict) else content


@pytest.mark.parametrize("name", ["count", "slice", "score"])
def test_a_clock_set_back_changes_no_byte_and_no_seconds(start, text, small_slices, tmp_path, name):
    made = []
    for prepared in (None, set_back_often):
        folder = tmp_path / ("whole" if prepared is None else "back")
        shutil.copytree(small_slices, folder / "slices", ignore=shutil.ignore_patterns("scores", "gap"))
        commands: dict[str, list[object]] = {
            "count": [text, "-o", folder / "c.duckdb", "--limit-tokens", 20_000],
            "slice": [text, "-o", folder / "s", "--seq-len", 64, "--limit-tokens", 20_000],
            "score": ["control:bigram", "--slices", folder / "slices"],
        }
        process = start(name, *commands[name], prepared=prepared)
        process.join(120)
        assert process.exitcode == 0, process.err.read_text()
        stages = [stage for stage in timings(folder) if "tokens" in stage]
        assert stages or name == "count"
        for stage in stages:
            assert 0 <= stage["seconds"] < 120
            assert stage.get("tokens_per_second", 0) >= 0
        made.append({name: without_seconds(content) for name, content in made_of(folder).items() if not name.endswith(".json")})
    assert made[0] == made[1]


def test_nothing_is_timed_by_the_time_of_day():
    found = []
    for path in sorted((ROOT / "recallkit").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        for asked in filter(asks_the_time_of_day, ast.walk(tree)):
            inside = [function.name for function in functions if asked in ast.walk(function)]
            found.append(f"{path.relative_to(ROOT).as_posix()}: {inside[-1] if inside else 'outside'}")
    assert found == TIMES_OF_DAY


def asks_the_time_of_day(node: ast.AST) -> bool:
    """Whether it is `time.time`, `time.time_ns`, `datetime.now` and the like, or an import of one by its name."""
    if isinstance(node, ast.ImportFrom):
        return node.module == "time"
    names = {
        "time": ("time", "time_ns", "clock_gettime", "localtime", "gmtime"),
        "datetime": ("now", "utcnow", "today"),
        "date": ("today",),
    }
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name | ast.Attribute)
        and node.attr in names.get(_last(node.value), ())
    )


def _last(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr
