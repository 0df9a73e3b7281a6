"""`bench`: what is asked for is measured, printed, drawn and written from the same rows; a sweep resumes."""

from __future__ import annotations

import json

import polars as pl
import pytest
import torch

from recallkit.bench import measure, timing
from recallkit.bench.measure import START, choose_work
from recallkit.bench.results import Results, make_row
from recallkit.bench.timing import Timing, time_call
from recallkit.errors import UserError
from recallkit.models import zoo
from recallkit.models.architecture import ArchitectureConfig, LayerConfig
from recallkit.models.presets import PRESETS, Preset

CPU, GPU = torch.device("cpu"), torch.device("cuda")
TINY = {"prompts": [16, 8], "batches": [1, 2], "new": 3, "repeats": 2, "size": None}


@pytest.fixture
def timed(monkeypatch):
    """Each measurement takes two samples, of 1 and 3 s, as the devices and numbers it was given say; the n-th can be made to fail."""
    calls, failures = [], {}

    def time_call(call, device, *, repeats, most_calls):
        calls.append((repeats, most_calls))
        if len(calls) in failures:
            raise failures.pop(len(calls))
        return Timing((1.0, 3.0))

    monkeypatch.setattr(measure, "time_call", time_call)
    return calls, failures


def test_a_protocol_at_tiny_sizes_is_printed_drawn_and_written(run, tmp_path):
    given = ("--paper", "figure-4", "--prompt", "16,8", "--batch", "1,2", "--new", 3, "--repeats", 2, "-o", tmp_path / "out")
    done = run("bench", "attention", "based", *given, "--json", "--figures", tmp_path)
    assert done.returncode == 0, done.stderr
    table = pl.read_parquet(tmp_path / "out/bench.parquet", glob=False)
    assert [(row["model"], row["benchmark"], row["b"], row["n"] or row["new"]) for row in table.to_dicts()] == [
        (model, *case)
        for model in ("attention 1.6m", "based 1.6m")
        for case in (("prefill", 2, 8), ("prefill", 2, 16), ("generation", 1, 3), ("generation", 2, 3))
    ]
    assert all(0 < row["fastest"] <= row["mean"] <= row["slowest"] < 60 for row in table.to_dicts())
    assert {path.stem for path in tmp_path.glob("*.svg")} == {"prefill", "generation"}
    again = run("bench", "attention", "based", *given, "--json")
    assert (again.returncode, json.loads(again.stdout)["rows"]) == (0, table.to_dicts())
    assert "reused" in again.stderr
    (tmp_path / "file").write_text("mine")
    for place, line in (("file/below", "a file, but a directory is expected"), ("out", "differs in batches")):
        refused = run("bench", "based", *given[:4], "-o", tmp_path / place)
        assert (refused.returncode, refused.stdout, len(refused.stderr.splitlines())) == (1, "", 1)
        assert line in refused.stderr


def test_an_interrupted_sweep_resumes_after_its_last_measurement(timed, tmp_path):
    calls, failures = timed
    work = choose_work(CPU, ["attention", "mamba"], **TINY)
    failures[8] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        measure.run(work, CPU, torch.float32, tmp_path)
    with pytest.raises(UserError, match="differs in new"):
        measure.run(choose_work(CPU, ["attention", "mamba"], **{**TINY, "new": 4}), CPU, torch.float32, tmp_path)
    found = measure.run(work, CPU, torch.float32, tmp_path)
    assert len(calls) == 8 + 12 - 7
    assert found.rows == measure.run(work, CPU, torch.float32).rows == measure.run(work, CPU, torch.float32, tmp_path).rows


def test_what_does_not_fit_ends_its_task_and_any_other_failure_is_the_status(timed):
    _, failures = timed
    failures |= {1: MemoryError(), 3: torch.OutOfMemoryError()}
    rows = measure.run(choose_work(CPU, ["based"], **TINY), CPU, torch.float32).rows
    assert [(row["benchmark"], row["n"] or row["b"], row["problem"], row["rate"]) for row in rows] == [
        ("scoring", 8, "out of memory", None),
        ("prefill", 8, None, 8.0 / 1e3),
        ("prefill", 16, "out of memory", None),
        ("generation", 1, None, 3 / 2 / 1e3),
        ("generation", 2, None, 3 / 1e3),
    ]
    assert Results({}, rows).failure_line() is None
    failed = make_row("scoring", "based", {"b": 1, "n": 2}, Timing(problem="failed: so"), 1)
    assert str(Results({}, [*rows, failed]).failure_line()).startswith("failed: based, scoring")


def test_a_time_is_that_of_one_call_in_samples_that_are_long_enough_and_what_fails_says_why(monkeypatch):
    now, calls = [0.0], []

    def takes(*seconds: float, error: Exception | None = None):
        """A call that takes so long: the first time, the second, ..., and ever after the last of them; the fourth may fail."""
        calls.clear()

        def call(i: int) -> None:
            calls.append(i)
            now[0] += seconds[min(len(calls), len(seconds)) - 1]
            if error is not None and len(calls) > 3:
                raise error

        return call

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    assert time_call(takes(0.001), CPU, repeats=3).median == pytest.approx(0.001)
    assert len(calls) == 2 + 3 * 50, "two calls that are not timed, then three samples of 50 ms"
    time_call(takes(0.001), CPU, repeats=3, most_calls=1)
    assert len(calls) == 2 + 3
    compiled = time_call(takes(9.0, 0.1, 0.1, 0.4, 0.1), CPU, repeats=3)
    assert (compiled.mean, compiled.median, *compiled.samples) == pytest.approx((0.2, 0.1, 0.1, 0.4, 0.1))
    full = RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried")
    errors = (ModuleNotFoundError("no module"), ValueError("it does not fit\nand more"), torch.OutOfMemoryError(), full)
    problems = [time_call(takes(1.0, error=error), CPU, repeats=3).problem for error in errors]
    assert problems == ["not installed", "failed: it does not fit", "out of memory", "out of memory"]


def test_protocols_have_the_papers_models_sizes_and_repetitions():
    def cases(paper, model):
        work = choose_work(GPU, [], paper)
        assert model in work.models
        return [(task, *size.values()) for task, size in work.cases(model)]

    assert cases("table-1", "based-360m") == [("prefill", 2, 16_384), ("generation", 128, 2048)]
    assert cases("table-1", "mamba-1.3b") == [("prefill", 2, 4096), ("generation", 128, 2048)]
    figure_4 = cases("figure-4", "transformer++-1.3b")
    assert {("prefill", 2, 4096), ("prefill", 2, 16_384), ("generation", 128, 1024)} < set(figure_4)
    assert cases("figure-1", "torch.bmm")[-1] == ("gemm", 512, 4096)
    assert [choose_work(GPU, [], paper).repeats for paper in measure.PROTOCOLS] == [20, 20, 100]
    assert choose_work(GPU, ["based"], "table-1", repeats=3, prompts=[64]).cases("based 360m")[0] == ("prefill", {"b": 2, "n": 64})
    with pytest.raises(UserError, match="name no model"):
        choose_work(GPU, ["based"], "figure-1")


def test_models_and_sizes_are_the_usual_ones_of_the_device_unless_given():
    every = tuple(zoo.ARCHITECTURES)
    assert choose_work(CPU, []).models == choose_work(GPU, ["models", "based"]).models == every
    assert choose_work(CPU, ["mamba-360m", "mamba", "based"]).models == ("based", "mamba", "mamba-360m")
    assert choose_work(CPU, ["presets"]).models == tuple(PRESETS)
    for names, size, line in ((["mambo"], None, "mamba"), ([], "361m", "360m")):
        with pytest.raises(UserError, match=line):
            choose_work(CPU, names, size=size)
    assert (choose_work(GPU, []).size, choose_work(CPU, []).size) == ("360m", zoo.SHIPPED_SIZE)


def test_a_preset_is_built_for_the_longest_text_and_measured_under_its_own_name(monkeypatch):
    small = ArchitectureConfig(64, 32, (LayerConfig("hyena", {"max_length": 8}), LayerConfig("mamba")), mlp_width=32)
    monkeypatch.setitem(PRESETS, "small-1m", Preset("zoology:8", 1, small))
    work = choose_work(CPU, ["small-1m"], prompts=[40, 4], batches=[2], new=50, repeats=1)
    assert measure.build("small-1m", work, CPU, torch.float32).max_length == START + 50
    rows = measure.run(work, CPU, torch.float32).rows
    assert [(row["model"], row["rate"] > 0) for row in rows] == 5 * [("small-1m", True)]


def test_products_are_timed_one_by_one_and_rates_stand_beside_printed_ones(timed):
    work = choose_work(CPU, [], "figure-1", batches=[2])
    rows = measure.run(work, CPU, torch.float32).rows
    assert timed[0] == [(100, 1)] * len(rows)
    assert (rows[-1]["n"], rows[-1]["rate"]) == (256, pytest.approx(2 * 2 * 256**3 / 2e12)), "TFLOP/s"
    of = {"name": "here", "dtype": "bfloat16", "torch": "2"}
    sizes = (
        ("prefill", {"b": 2, "n": 4096}),
        ("generation", {"b": 128, "new": 1024}),
        ("scoring", {"b": 2, "n": 4096}),
        ("prefill", {"b": 1, "n": 4096}),
    )
    tables = Results(of, [make_row(task, "based-1.3b", size, Timing((1.0,)), 1) for task, size in sizes]).tables()
    assert [row[-2:] for row in tables["printed"].rows] == [["161.71", "0.05"], ["24.28", "5.40"]], "Based, table 1"
    assert [len(tables["models"].headers), *tables] == [5, "models", "printed"]
    assert list(Results(of, rows).tables()) == ["gemm"]


@pytest.mark.parametrize("size", ["1.6m", "360m"])
def test_architectures_of_a_size_have_its_parameters_and_context(size):
    from recallkit.models.language_model import LanguageModel

    for name in ("attention", "based", "hyena"):
        config = zoo.architecture(name, size, 512)
        with torch.device("meta"):
            model = LanguageModel(config)
        assert model.num_parameters(embeddings=False) == pytest.approx(zoo.SIZES[size].parameters, rel=0.01), name
        assert model.max_length == 512
        assert len(config.layers) == 4 * zoo.SIZES[size].repeats
        heads = {layer.options["num_heads"] for layer in config.layers if "num_heads" in layer.options}
        assert heads <= {zoo.SIZES[size].num_heads}
