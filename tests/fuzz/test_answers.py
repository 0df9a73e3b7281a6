"""A flipped bit changes no number that is printed: what `make fuzz` does for an hour, a few of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.answers import FINISHED, UNFINISHED, answer, check, kill_at
from tests.fuzz.harness import copy_of

FEW = 3


@pytest.mark.parametrize("name", FINISHED)
def test_finished_results_answer_rightly_or_not_at_all(made: Path, name: str) -> None:
    wanted = answer(made, FINISHED[name])
    assert not [found for seed in range(FEW) if (found := check(made, FINISHED[name], seed, wanted))]


@pytest.mark.parametrize("name", [name if name == "count" else pytest.param(name, marks=pytest.mark.slow) for name in UNFINISHED])
def test_unfinished_work_answers_rightly_or_not_at_all(made: Path, name: str) -> None:
    with copy_of(made) as folder:
        kill_at(0.6, UNFINISHED[name], folder)
        wanted = answer(folder, UNFINISHED[name])
        assert wanted == answer(made, UNFINISHED[name])
        assert not [found for seed in range(2 * FEW) if (found := check(folder, UNFINISHED[name], seed, wanted))]
