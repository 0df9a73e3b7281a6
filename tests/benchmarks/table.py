"""One table of all stages: ours, the best peer, the ratio and the target. Runs the other benchmarks at a size of minutes.

    python tests/benchmarks/table.py                                # about a quarter of an hour on two cores
    python tests/benchmarks/table.py --only slice count scoring

The table is printed as Markdown, as docs/benchmarks.md begins with it. A ratio is that of rates within one run: above 1, ours is
faster. What a benchmark prints besides is in FOLDER/SCRIPT.txt, with --logs FOLDER. A benchmark that fails is named, its rows are left
out, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

HEADER = "| stage | ours | best peer | ratio | target |\n|---|---|---|---|---|"


@dataclass(frozen=True)
class Stage:
    """A row: which benchmark measures it, and where in its output the figures are."""

    name: str
    script: str
    options: str
    """For a size of minutes."""
    quick: str
    """For a size of seconds, at which only whether it works can be seen."""
    pattern: str
    """What is found in the output: the groups `ours` and `peer`, rates or seconds, `ratio` where the output has the median of
    those within rounds, and the `name` of the peer where the output chooses it."""
    peer: str
    """The peer, or `{name}`."""
    unit: str
    target: float | None
    is_seconds: bool = False

    def row(self, output: str) -> str:
        """The row of the table, from what the benchmark printed. Raises LookupError if the figures are not in it."""
        found = re.search(self.pattern, output, re.MULTILINE | re.DOTALL)
        if found is None:
            raise LookupError(f"{self.script}.py printed no figures of {self.name}")
        ours, peer = (float(found[group].replace(",", "")) for group in ("ours", "peer"))
        named = found.groupdict()
        ratio = float(named["ratio"]) if "ratio" in named else peer / ours if self.is_seconds else ours / peer
        name = self.peer.format(**named)
        met = "" if self.target is None else f"{self.target:.2g}: {'met' if ratio >= self.target else '**missed**'}"
        return f"| {self.name} | {found['ours']} {self.unit} | {name}: {found['peer']} {self.unit} | {ratio:.3g} | {met or '–'} |"


_SCORING = ("--no-scan --repeats 5 --models llama mamba", "--no-scan --repeats 1 --tokens 128 --seq-len 64 --models llama mamba")
_SLICING = ("--repeats 3 --only labels lookup", "--repeats 1 --only labels lookup")
_WHOLE = ("--repeats 1 --only slice", "--repeats 1 --only slice")
_CELL = r"\| *(?P<ours>[\d.,]+) \| *(?P<peer>[\d.,]+) \| *(?P<ratio>[\d.]+) \|"


def _scored(model: str) -> str:
    """The medians of recallkit and of the bare forward in what scoring.py prints of a model."""
    return rf"^{model}: .*?^recallkit +(?P<ours>[\d,]+) .*?^bare forward +(?P<peer>[\d,]+)(?: +[\d,]+){{3}} +(?P<ratio>[\d.]+) "


def _whole(tokenizer: str) -> str:
    return rf"^{tokenizer}, .*?s \((?P<ours>[\d.]+) Mtok/s\), .*?s \((?P<peer>[\d.]+) Mtok/s\)"


def _timed(task: str, rivals: str) -> str:
    """Seconds of ours, and of the better rival, as slicing.py names it."""
    return (
        rf"^{task} +seconds.*?^recallkit, 2 threads +(?P<ours>[\d.]+).*?"
        rf"(?=.*?^recallkit, 2 threads: [\d.]+x the better rival \((?P<name>{rivals})\))^(?P=name) +(?P<peer>[\d.]+)"
    )


STAGES = (
    Stage(
        "read `.jsonl.zst`",
        "reading",
        "--repeats 3",
        "--repeats 1",
        r"^recallkit +(?P<ours>\d+) MB/s\n^datasets +(?P<peer>\d+)",
        "`datasets`",
        "MB/s",
        None,
    ),
    Stage(
        "count bigrams of ids",
        "counting",
        "--tokens 20M --repeats 3",
        "--tokens 100000 --repeats 1",
        r"^recallkit(?: +[\d.]+){4} +(?P<ours>[\d.]+).*?^polars streaming(?: +[\d.]+){4} +(?P<peer>[\d.]+)",
        "polars streaming",
        "Mtok/s",
        1.2,
    ),
    Stage(
        "`count`, text to table",
        "scale",
        "--tokens 1M --megabytes 200 --repeats 1",
        "--tokens 200000 --megabytes 1 --repeats 1",
        r"^gigatoken alone.*?MB/s +(?P<peer>[\d.]+).*?^count --workers 2.*?MB/s +(?P<ours>[\d.]+)",
        "gigatoken alone",
        "Mtok/s",
        0.4,
    ),
    Stage(
        "label repeated bigrams", "slicing", *_SLICING, _timed("labels", "polars sort.shift|DuckDB lag window"), "{name}", "s", 20.0, True
    ),
    Stage("look training counts up", "slicing", *_SLICING, _timed("lookup", "DuckDB join|polars join"), "{name}", "s", 3.0, True),
    Stage("`slice`, with gigatoken", "slicing", *_WHOLE, _whole("gigatoken"), "gigatoken alone", "Mtok/s", 12 / 114),
    Stage("`slice`, with `tokenizers`", "slicing", *_WHOLE, _whole("tokenizers"), "`tokenizers` alone", "Mtok/s", 0.8),
    Stage("score a tiny llama", "scoring", *_SCORING, _scored("llama"), "bare forward", "tok/s", 0.97),
    Stage("score a tiny mamba", "scoring", *_SCORING, _scored("mamba"), "bare forward", "tok/s", 0.97),
    Stage(
        "`gap` from stored scores",
        "gap",
        "--sequences 4000 --repeats 3",
        "--sequences 16 --repeats 1",
        r"^recallkit: seven tables, intervals +(?P<ours>[\d.]+).*?^DuckDB keyed join: split only +(?P<peer>[\d.]+)",
        "DuckDB, keyed join",
        "s",
        2.5,
        True,
    ),
    Stage(
        "`eval-recall`, a tiny llama, batch 8",
        "recall",
        "--models llama --batches 8 --repeats 3",
        "--models llama --batches 8 --limit 2 --context 256 --repeats 1",
        r"^\| llama \| 8 " + _CELL,
        "lm-eval",
        "prompts/s",
        None,
    ),
    Stage(
        "generate, a tiny llama, batch 8",
        "generation",
        "--models llama --batches 8",
        "--models llama --batches 8 --length 16 --new 2 --repeats 1",
        r"^\| llama \| 8 " + _CELL,
        "`generate`",
        "tok/s",
        None,
    ),
)


def run(script: str, options: str, logs: Path | None) -> str:
    """What a benchmark prints. Raises LookupError with its last line of errors if it fails."""
    command = [sys.executable, str(Path(__file__).with_name(f"{script}.py")), *shlex.split(options)]
    print(f"{script}.py {options}", file=sys.stderr, flush=True)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / f"{script}.txt").open("a", encoding="utf-8") as file:
            file.write(f"$ {script}.py {options}\n{done.stdout}{done.stderr}\n")
    if done.returncode:
        raise LookupError(f"{script}.py failed: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="WORD", help="rows whose stage or script contains one of these words")
    parser.add_argument("--quick", action="store_true", help="at a size of seconds: whether it works, not how fast")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep what the benchmarks print")
    given = parser.parse_args()
    wanted = [stage for stage in STAGES if not given.only or any(word in f"{stage.name} {stage.script}" for word in given.only)]
    outputs: dict[tuple[str, str], str] = {}
    rows, problems = [], []
    for stage in wanted:
        call = stage.script, stage.quick if given.quick else stage.options
        try:
            if call not in outputs:
                outputs[call] = ""  # one that failed is not run again
                outputs[call] = run(*call, given.logs)
            rows.append(stage.row(outputs[call]))
        except LookupError as error:
            problems.append(str(error))
    print(f"{datetime.now(UTC):%d %B %Y}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end\n")
    print("\n".join([HEADER, *rows]))
    for problem in dict.fromkeys(problems):
        print(problem, file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
