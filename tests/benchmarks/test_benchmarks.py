"""Benchmarks run: what they import is there, and (slow) each prints its ratios at its smallest
size."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.benchmarks import based, harness
from tests.benchmarks.intervals import KINDS, simulate
from tests.benchmarks.kernels import OPERATIONS, Setting, cases
from tests.benchmarks.table import BENCHMARKS, HEADER
from tests.conftest import ROOT, made_up_texts
from tests.kernels.checks import relative_error
from tests.text.test_corpus import write_zst

FOLDER, CPU = Path(__file__).parent, torch.device("cpu")


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """Modules of ours and the names that a file takes from them, in functions too; not what is
    there for its types alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    left_out = {id(node) for block in for_types for node in ast.walk(block)}
    for node in ast.walk(tree):
        is_import = isinstance(node, ast.ImportFrom) and id(node) not in left_out
        if is_import and (node.module or "").split(".")[0] in ("recallkit", "tests"):
            yield from ((str(node.module), alias.name) for alias in node.names)


def is_there(module: str, name: str) -> bool:
    loaded = importlib.import_module(module)
    is_package = hasattr(loaded, "__path__")
    return hasattr(loaded, name) or (
        is_package and importlib.util.find_spec(f"{module}.{name}") is not None
    )


def test_what_benchmarks_and_examples_import_is_there():
    scripts = [*FOLDER.glob("[!_t]*.py"), *(ROOT / "examples").glob("*.py")]
    others = {"__init__", "harness", "table", "test_benchmarks"}
    assert {path.stem for path in FOLDER.glob("*.py")} - others == set(BENCHMARKS)
    missing = []
    for path in scripts:
        missing += [(path.name, *name) for name in imported(path) if not is_there(*name)]
    assert missing == []


def test_every_example_is_used_by_a_test():
    """By its name, or by that of an example that imports it."""
    tests = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")
    )
    examples = {path.stem: path for path in (ROOT / "examples").iterdir() if path.is_file()}
    tested = {name for name in examples if name in tests}
    assert len(tested) >= 10
    text_of_tested = "".join(examples[name].read_text(encoding="utf-8") for name in tested)
    untested = examples.keys() - tested
    assert {name for name in untested if f"from {name} import" not in text_of_tested} == set()


def test_the_page_opens_with_the_table_whose_rows_benchmarks_print():
    page = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    assert page.index(HEADER) < page.index("\n## ")
    table = page.split(HEADER, 1)[1].split("\n\n", 1)[0].strip().splitlines()
    assert len(table) == 14
    for row in table:
        stage, ours, peer, ratio, target = map(str.strip, row.strip("|").split("|"))
        rates = [float(cell.split(": ")[-1].split()[0].replace(",", "")) for cell in (ours, peer)]
        expected = rates[1] / rates[0] if ours.endswith(" s") else rates[0] / rates[1]
        # The median of ratios is not the ratio of medians.
        assert float(ratio) == pytest.approx(expected, rel=0.05), stage
        if target != "–":
            least, verdict = target.split(": ")
            assert verdict == ("met" if float(ratio) >= float(least) else "**missed**"), stage


def test_a_stage_is_a_row_of_the_table(capsys):
    harness.print_stage("read", "`peer`", 387.0, 45.0, "MB/s")
    harness.print_stage("label", "polars", 0.066, 3.472, "s", target=20)
    harness.print_stage("score", "bare forward", 9009, 9788, "tok/s", target=0.97, ratio=0.95)
    assert [line.removeprefix(harness.STAGE) for line in capsys.readouterr().out.splitlines()] == [
        "| read | 387 MB/s | `peer`: 45.0 MB/s | 8.6 | – |",
        "| label | 0.066 s | polars: 3.472 s | 52.6 | 20: met |",
        "| score | 9,009 tok/s | bare forward: 9,788 tok/s | 0.95 | 0.97: **missed** |",
    ]


def test_every_kernel_is_compared_with_a_peer():
    benchmark = (FOLDER / "kernels.py").read_text(encoding="utf-8")
    packages = [path.parent.name for path in (ROOT / "kernels").glob("*/api.py")]
    assert [
        package
        for package in packages
        if f"recallkit.kernels.{package} import api" not in benchmark
    ] == []
    assert len(packages) > 5


@pytest.mark.parametrize("name", OPERATIONS)
def test_peers_of_a_kernel_compute_the_same(name):
    _, case = next(cases(name, Setting(torch.device("cpu"), torch.float32)))
    attends_to_all = {"SDPA"} if name in ("taylor_attention", "window_attention") else set()
    inputs, results = case.make(), []
    with torch.inference_mode():
        for who, run in case.runs.items():
            if who in attends_to_all:
                continue
            result = run(*(x.clone() for x in inputs))
            results.append(result[0] if isinstance(result, tuple) else result)
    ours, *theirs = results
    assert next(iter(case.runs)) == "recallkit (torch)"
    assert theirs or attends_to_all
    assert all(relative_error(result.reshape(ours.shape), ours) < 1e-4 for result in theirs)


def test_methods_take_turns_and_ratios_are_those_of_a_round(capsys):
    seconds = {
        "ours": iter([1.0, 2.0, 4.0]),
        "peer": iter([3.0, 4.0, 20.0]),
        "other": iter([9.0] * 3),
    }
    names = []

    def measure(name: str) -> harness.Run:
        names.append(name)
        return harness.Run(next(seconds[name]), 5.0, [1, 2 if name != "other" else 3])

    harness.compare(
        "t",
        list(seconds),
        measure,
        repeats=3,
        work=8,
        unit="x/s",
        stage="s",
        targets={"peer": 3},
        may_differ=True,
    )
    assert names == ["ours", "peer", "other"] * 3
    *_, ours, peer, other, stage = capsys.readouterr().out.splitlines()
    assert ours == "| ours | 4 | 2 - 8 | 5 | 1 | 1 - 1 | 2 of 2 |"
    assert peer == "| peer | 2 | 0.4 - 2.667 | 5 | 3 | 2 - 5 | 2 of 2 |"
    assert other.endswith("| 4.5 | 2.25 - 9 | 1 of 2 |")
    assert stage == "stage: | s | 4.000 x/s | peer: 2.000 x/s | 3 | 3: met |"
    seconds = {name: iter([1.0]) for name in seconds}
    with pytest.raises(AssertionError, match="other has other results"):
        harness.compare("t", list(seconds), measure, repeats=1)


@pytest.mark.parametrize(
    ("protocol", "model", "case", "repeats", "printed"),
    [
        ("table-1", "based-360m", ("prefill", {"b": 2, "n": 16_384}), 20, 514.57),
        ("table-1", "mamba-1.3b", ("generation", {"b": 128, "new": 2048}), 20, 25.69),
        ("figure-4", "transformer++-1.3b", ("prefill", {"b": 2, "n": 4096}), 20, 103.5),
        ("figure-4", "transformer++-1.3b", ("prefill", {"b": 2, "n": 32_768}), 20, None),
        ("figure-4", "based-1.3b", ("generation", {"b": 128, "new": 1024}), 20, 24.28),
        ("figure-1", "torch.bmm", ("product", {"b": 512, "n": 4096}), 100, None),
    ],
)
def test_protocols_have_baseds_models_sizes_repetitions_and_printed_rates(
    protocol, model, case, repeats, printed
):
    chosen = based.PROTOCOLS[protocol]
    assert model in chosen.models
    assert case in list(chosen.cases(model))
    assert chosen.repeats == repeats
    assert based.printed_rate(model, *case) == printed


def test_what_does_not_fit_ends_its_task(monkeypatch):
    full = harness.Timing(problem=harness.OUT_OF_MEMORY)
    timings = [harness.Timing((1.0, 3.0)), full, harness.Timing((1.0,))]
    monkeypatch.setattr(harness, "time_call", lambda *_, **__: timings.pop(0))
    protocol = based.Protocol(
        ("prefill", "generation"), ("based",), prompts=(8, 16, 32), batches=(2,), new=3
    )
    rows = list(based.measure("based", protocol, "1.6m", CPU, torch.float32))
    assert [(row["task"], row.get("n"), row["problem"]) for row in rows] == [
        ("prefill", 8, None),
        ("prefill", 16, "out of memory"),
        ("generation", None, None),
    ]
    assert (rows[0]["milliseconds"], rows[0]["rate"], rows[2]["rate"]) == (
        2000.0,
        2 * 8 / 2e3,
        2 * 3 / 1e3,
    )


def test_a_time_is_that_of_one_call_in_long_samples_and_what_fails_says_why(monkeypatch):
    clock, calls = [0.0], []

    def takes(*seconds: float, error: Exception | None = None):
        """A call that takes so long: the first time, the second, ..., and ever after the last of
        them; the fourth may fail."""
        calls.clear()

        def call(i: int) -> None:
            calls.append(i)
            clock[0] += seconds[min(len(calls), len(seconds)) - 1]
            if error is not None and len(calls) > 3:
                raise error

        return call

    monkeypatch.setattr(harness.time, "perf_counter", lambda: clock[0])
    assert harness.time_call(takes(0.001), CPU, repeats=3).median == pytest.approx(0.001)
    assert len(calls) == 2 + 3 * 50, "two calls that are not timed, then three samples of 50 ms"
    harness.time_call(takes(0.001), CPU, repeats=3, most_calls=1)
    assert len(calls) == 2 + 3
    compiled = harness.time_call(takes(9.0, 0.1, 0.1, 0.4, 0.1), CPU, repeats=3)
    assert (compiled.mean, compiled.median, *compiled.samples) == pytest.approx(
        (0.2, 0.1, 0.1, 0.4, 0.1)
    )
    full = RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you "
        "tried"
    )
    problems = {
        ModuleNotFoundError("no module"): "not installed",
        ValueError("it does not fit\nand more"): "failed: it does not fit",
        torch.OutOfMemoryError(): "out of memory",
        full: "out of memory",
    }
    for error, problem in problems.items():
        assert harness.time_call(takes(1.0, error=error), CPU, repeats=3).problem == problem


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_it_runs_at_its_smallest_size(name, test_data, home, tmp_path):
    shard = tmp_path / "t.jsonl.zst"
    lines = [json.dumps({"text": text}) for text in made_up_texts(60, 50)]
    write_zst(shard, "".join(f"{line}\n" for line in lines).encode(), 1)
    words = BENCHMARKS[name].smallest.format(shard=shard).split()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RECALLKIT_TEST_DATA": str(test_data)}
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip()
    if BENCHMARKS[name].stage:
        assert harness.STAGE in done.stdout


HARD = ("ar_nll, control:recall", "plain percentile")
"""Figures whose intervals do not cover: nearly a constant, and resampled without the rule
(docs/intervals.md)."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_cover(kind, test_data, home, tmp_path):
    """Each figure is covered in more than 85 % of 200 draws, half of them in about 95 %
    (docs/intervals.md)."""
    for population in KINDS[kind](test_data, tmp_path, None):
        # whole documents of very different sizes
        if kind in ("profile", "gap") and "at most" not in population.name:
            continue
        figures = {}
        for name, (_, by_number) in simulate(population, [50], 200).items():
            if by_number[50].widths:
                figures[name] = by_number[50]
        assert len(figures) > 2
        assert {
            name: coverage.missing
            for name, coverage in figures.items()
            if coverage.missing and "by_" not in name
        } == {}
        covered = {
            name: coverage.share for name, coverage in figures.items() if not name.startswith(HARD)
        }
        assert {name: share for name, share in covered.items() if share < 0.85} == {}
        # rare differences cover more
        usual = [share for name, share in covered.items() if "difference" not in name]
        assert 0.93 <= statistics.median(usual) <= 0.99, population.name
