"""A clock that is set back while a command works: the same bytes, and no seconds below nought."""

from __future__ import annotations

import ast

from tests.conftest import ROOT

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
