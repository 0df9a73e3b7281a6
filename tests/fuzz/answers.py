"""Flipped bits and the numbers that commands print: `python -m tests.fuzz.answers [--seconds 3600]
[--seed 0]`.

One bit of one file is flipped, then a command that reads it runs: it prints the numbers that it
printed before, or refuses with a line. Files are results, finished and unfinished. What is found is
printed with the seed that finds it again.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.faults.dying import DEAD, die_at
from tests.fuzz.harness import Outcome, copy_of, invoke

_SLICES = "--slices @/slices"
_MODELS = "control:recall control:bigram"


@dataclass(frozen=True, slots=True)
class Question:
    """A command whose numbers are compared, and the files (globs) of which a bit is flipped before
    it runs."""

    command: str
    files: Sequence[str]

    def ask(self, folder: Path) -> Outcome:
        """How the command ends in a folder."""
        return invoke(*(word.replace("@", str(folder)) for word in self.command.split()))


FINISHED = {
    "count": Question("count @/text.jsonl -o @/counts.duckdb --json", ["counts.duckdb"]),
    "slice": Question(
        "slice @/text.jsonl --counts @/counts.duckdb -o @/slices --seq-len 32 --json",
        ["slices/*.parquet", "counts.duckdb"],
    ),
    "slice again": Question(
        "slice @/text.jsonl --counts @/counts.duckdb -o @/slices --seq-len 32 --force --json",
        ["slices/sequences.parquet", "counts.duckdb"],
    ),
    "score": Question(
        f"score control:bigram {_SLICES} --json",
        ["slices/scores/control-bigram*", "slices/sequences.parquet"],
    ),
    "score anew": Question(
        (
            f"score control:recall --stride 8 --context 16 --counts @/counts.duckdb {_SLICES} "
            "--force --json"
        ),
        ["slices/sequences.parquet", "counts.duckdb"],
    ),
    "gap": Question(
        f"gap {_MODELS} {_SLICES} --force --json",
        ["slices/*.parquet", "slices/scores/*.parquet"],
    ),
    "profile": Question(
        "profile --slices @/slices -o @/profile --json",
        ["profile/*", "slices/*.parquet"],
    ),
    "profile anew": Question("profile --slices @/slices -o @/other --json", ["slices/*.parquet"]),
    "eval-recall": Question(
        (
            "eval-recall control:copy control:unigram --data @/rows.jsonl --counts @/counts.duckdb "
            "-o @/evals --json"
        ),
        ["evals/documents/*/*", "evals/compared/*/*"],
    ),
    "mqar": Question(
        (
            "mqar control:recall --counts @/counts.duckdb -o @/mqar --pairs 4 --samples 2 "
            "--seq-len 32 --json"
        ),
        ["mqar/queries/*/*", "mqar/fillers/*/*", "mqar/compared/*/*"],
    ),
    "report": Question(
        "report @/slices -o @/page.html",
        ["slices/gap/*/*.parquet", "slices/*.parquet", "slices/scores/*.parquet"],
    ),
}
"""Commands that read finished results."""

UNFINISHED = {
    "count": Question("count @/text.jsonl -o @/new.duckdb --json", [".new.duckdb.partial/**/*"]),
    "slice": Question("slice @/text.jsonl -o @/new --seq-len 8 --json", ["new/.*.partial/*"]),
    "score": Question(
        (
            f"score control:recall --stride 8 --context 16 --counts @/counts.duckdb {_SLICES} "
            "--batch-tokens 64 --force --json"
        ),
        ["slices/scores/.*.partial/*"],
    ),
    "profile": Question(
        "profile @/text.jsonl -o @/new --seq-len 8 --boundary document --json",
        ["new/slices/.*.partial/*"],
    ),
    "mqar": Question(
        (
            "mqar control:bigram --counts @/counts.duckdb -o @/new --pairs 4 --samples 40 "
            "--seq-len 32 --json"
        ),
        ["new/queries/*/.*.partial/*"],
    ),
}
"""Commands that resume work that was killed."""


def kill_at(share: float, question: Question, folder: Path) -> None:
    """Runs a question's command in a process that ends itself after a share of what it does to
    files."""
    words = [word.replace("@", str(folder)) for word in question.command.split()]
    context = multiprocessing.get_context("forkserver")
    with copy_of(folder) as undamaged:
        tally = undamaged.parent / "tally"
        there = [word.replace("@", str(undamaged)) for word in question.command.split()]
        assert _run(context, there, partial(die_at, -1, undamaged, tally)) == 0
        number = int(int(tally.read_text()) * share)
        assert _run(context, words, partial(die_at, number, folder, tally)) == DEAD


def _run(context: Any, words: list[str], prepare: Callable[[], None]) -> int | None:
    process = context.Process(target=_be_command, args=(words, prepare))
    process.start()
    process.join(120)
    return int(process.exitcode)


def _be_command(words: list[str], prepare: Callable[[], None]) -> None:
    from recallkit import cli

    prepare()
    cli.run(words)


def numbers(outcome: Outcome, folder: Path) -> Any:
    """What a command printed, without times and places; of a page, its bytes."""
    page = folder / "page.html"
    if page.exists():
        return re.sub(r"[0-9.]+ (ms|s|min)", "", page.read_text(encoding="utf-8")).replace(
            str(folder),
            "@",
        )
    return _without(json.loads(outcome.out.replace(str(folder), "@")))


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _without(part) for name, part in value.items() if name not in ("timings", "path")
        }
    return [_without(part) for part in value] if isinstance(value, list) else value


def check(results: Path, question: Question, seed: int, wanted: Any) -> str:
    """Flips one bit, cuts the file there or puts zeros there, and asks; what is wrong with the
    answer, or nothing."""
    drawn = random.Random(seed)
    with copy_of(results) as folder:
        files = sorted(
            {
                path
                for glob in question.files
                for path in folder.glob(glob)
                if path.is_file() and path.stat().st_size
            }
        )
        path = drawn.choice(files)
        content = bytearray(path.read_bytes())
        # Half of the flips are within the last kilobyte, where the footers of tables are.
        at = drawn.randrange(
            max(0, len(content) - 1024) if drawn.random() < 0.5 else 0,
            len(content),
        )
        how = drawn.choices(["flipped", "cut", "zeroed"], [8, 1, 1])[0]
        if how == "flipped":
            content[at] ^= 1 << drawn.randrange(8)
        elif how == "cut":
            del content[at:]
        else:
            content[at : at + 64] = bytes(len(content[at : at + 64]))
        path.write_bytes(content)
        place = f"seed {seed}, {how} at byte {at:,} of {path.relative_to(folder)}: "
        outcome = question.ask(folder)
        if outcome.complaint:
            return place + outcome.complaint
        if outcome.status == 0 and numbers(outcome, folder) != wanted:
            return place + "other numbers than of the whole file, and no error"
    return ""


def answer(results: Path, question: Question) -> Any:
    """The numbers of an undamaged folder."""
    with copy_of(results) as folder:
        outcome = question.ask(folder)
        assert outcome.status == 0, outcome.err
        return numbers(outcome, folder)


def main() -> None:
    import argparse

    from tests.fuzz.conftest import make

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    end, wrong, tried = time.monotonic() + options.seconds, 0, 0
    with tempfile.TemporaryDirectory() as place:
        results = make(Path(place) / "made")
        questions: list[tuple[str, Path, Question, Any]] = [
            (name, results, q, answer(results, q)) for name, q in FINISHED.items()
        ]
        for number, (name, question) in enumerate(UNFINISHED.items()):
            cut = make(Path(place) / f"cut{number}")
            kill_at(0.6, question, cut)
            questions.append((f"unfinished {name}", cut, question, answer(cut, question)))
        while time.monotonic() < end:
            name, folder, question, wanted = questions[tried % len(questions)]
            if problem := check(folder, question, options.seed + tried, wanted):
                print(f"{name}: {problem}", flush=True)
                wrong += 1
            tried += 1
    print(f"{tried:,} flips, {wrong} wrong answers")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
