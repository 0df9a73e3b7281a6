"""A flipped bit changes no number that is printed: what `make fuzz` does for an hour, a few of
each."""

from __future__ import annotations

from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from tests.fuzz.answers import FINISHED, UNFINISHED, answer, check, kill_at, numbers
from tests.fuzz.harness import assert_refused, copy_of

FEW = 3
QUICK = ("slice", "score", "gap", "count")


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FINISHED],
)
def test_finished_results_answer_rightly_or_not_at_all(results: Path, name: str) -> None:
    wanted = answer(results, FINISHED[name])
    assert not [
        problem for seed in range(FEW) if (problem := check(results, FINISHED[name], seed, wanted))
    ]


@pytest.mark.parametrize(
    "name",
    [
        name if name == "count" else pytest.param(name, marks=pytest.mark.slow)
        for name in UNFINISHED
    ],
)
def test_unfinished_work_answers_rightly_or_not_at_all(
    results: Path,
    warm: ForkServerContext,
    name: str,
) -> None:
    with copy_of(results) as folder:
        kill_at(0.6, UNFINISHED[name], folder)
        wanted = answer(folder, UNFINISHED[name])
        rows = [
            problem if isinstance(problem, list) else [problem]
            for problem in (wanted, answer(results, UNFINISHED[name]))
        ]
        # it depends on the size of groups, which is smaller in a process that is killed
        digest = {
            "sequences_digest": None,
        }
        assert [row | digest for row in rows[0]] == [row | digest for row in rows[1]]
        assert not [
            problem
            for seed in range(2 * FEW)
            if (problem := check(folder, UNFINISHED[name], seed, wanted))
        ]


@pytest.mark.slow
def test_a_part_of_unfinished_slices_that_is_missing_or_empty_is_a_line(results: Path) -> None:
    question = UNFINISHED["slice"]
    wanted = answer(results, question)
    for damage in (lambda part: part.write_bytes(b""), Path.unlink):
        with copy_of(results) as folder:
            kill_at(0.6, question, folder)
            (part, *_) = sorted(folder.glob("new/.sequences.parquet.partial/part-*"))
            damage(part)
            assert_refused(
                question.ask(folder),
                part.name,
                "missing or damaged",
                "run the same command again",
            )
            assert numbers(question.ask(folder), folder) == wanted
