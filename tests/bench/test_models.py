"""`bench`: what is asked for is measured, printed and written from the same rows."""

from __future__ import annotations

import json

import polars as pl
import pytest
import torch

from recallkit.bench import models
from recallkit.bench.models import Results, Timing, Workload, choose_models, choose_work, measure, time_call
from recallkit.errors import UserError
from recallkit.models import zoo
from recallkit.models.architecture import ArchitectureConfig, LayerConfig
from recallkit.models.presets import PRESETS, Preset

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_the_command_prints_and_writes_what_it_measured_over_what_it_wrote_before(run, tmp_path):
    models.make_folder(tmp_path / "out")
    Results({}, []).write(tmp_path / "out")
    done = run("bench", "attention", "--quick", "--json", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed == json.loads((tmp_path / "out/bench.json").read_text())
    found = [(entry["benchmark"], entry["model"]) for entry in printed["rows"]]
    assert found == [("scoring", "attention 1.6m"), ("prefill", "attention 1.6m"), ("generation", "attention 1.6m")]
    assert all(0 < entry["seconds"] < 60 and entry["problem"] is None for entry in printed["rows"])
    table = pl.read_parquet(tmp_path / "out/bench.parquet", glob=False)
    assert table["seconds"].to_list() == [entry["seconds"] for entry in printed["rows"]]
    assert table["size"].to_list() == ["b=8 n=128", "b=1 n=256", "b=8 new=8"]
    assert printed["machine"]["device"] == "cpu"


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_measured(run, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/bench.json").write_text('{"mine": 1}')
    for place, line in (("file/below", "a file, where a directory is to be"), ("mine", "will not replace")):
        done = run("bench", "based", "--quick", "-o", tmp_path / place)
        assert (done.returncode, done.stdout) == (1, "")
        assert line in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert (tmp_path / "mine/bench.json").read_text() == '{"mine": 1}'


def test_a_model_that_does_not_fit_is_a_row_and_any_other_failure_the_status(monkeypatch):
    def full(name, *_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(models, "build", full)
        (row,) = measure("based", Workload(), CPU, torch.float32)
    assert (row.model, row.timing.problem, row.to_json()["seconds"]) == ("based 1.6m", "out of memory", None)
    assert Results({}, [row]).failure_line() is None
    monkeypatch.setattr(models, "time_call", lambda *_, repeats: Timing(problem="failed: so"))
    rows = list(measure("based", Workload(prompt=64, new=1), CPU, torch.float32))
    assert str(Results({}, rows).failure_line()).startswith("failed: based 1.6m, scoring; based 1.6m, prefill; based 1.6m, generation")


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

    monkeypatch.setattr(models.time, "perf_counter", lambda: now[0])
    assert time_call(takes(0.001), CPU, repeats=3).median == pytest.approx(0.001)
    assert len(calls) == 2 + 3 * 50, "two calls that are not timed, then three samples of 50 ms"
    compiled = time_call(takes(9.0, 0.1, 0.1, 0.3, 0.2), CPU, repeats=3)
    assert (compiled.fastest, compiled.median, compiled.slowest) == pytest.approx((0.1, 0.2, 0.3))
    full = RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried")
    errors = (ModuleNotFoundError("no module"), ValueError("it does not fit\nand more"), torch.OutOfMemoryError(), full)
    problems = [time_call(takes(1.0, error=error), CPU, repeats=3).problem for error in errors]
    assert problems == ["not installed", "failed: it does not fit", "out of memory", "out of memory"]


def test_models_and_sizes_are_the_usual_ones_of_the_device_unless_given():
    assert choose_models([]) == choose_models(["models", "based"]) == tuple(zoo.ARCHITECTURES)
    assert choose_models(["mamba-360m", "mamba", "based"]) == ("based", "mamba", "mamba-360m")
    assert choose_models(["presets"]) == tuple(PRESETS)
    with pytest.raises(UserError, match=r"mambo.*\n?.*mamba"):
        choose_models(["mambo"])
    assert choose_work(GPU) == Workload("360m", 4096, 128, 128)
    assert choose_work(CPU, repeats=2, size="360m", prompt=None, batch=3, new=None) == Workload("360m", batch=3, repeats=2)
    with pytest.raises(UserError, match="361m"):
        choose_work(CPU, size="361m")
    with pytest.raises(UserError, match="lengths"):
        choose_work(GPU, paper=True, prompt=5)
    lengths = {name: choose_work(GPU, paper=True, batch=4).of(name) for name in ("based-360m", "mamba-1.3b", "hyena-358m", "based")}
    found = [(work.prompt, work.new, work.batch) for work in lengths.values()]
    assert found == [(16_384, 2048, 4), (4096, 2048, 4), (4096, 2048, 4), (16_384, 2048, 4)], "of Based's table 1"


def test_a_preset_is_built_for_the_prompt_and_measured_under_its_own_name(monkeypatch):
    small = ArchitectureConfig(64, 32, (LayerConfig("hyena", {"max_length": 8}), LayerConfig("mamba")), mlp_width=32)
    monkeypatch.setitem(PRESETS, "small-1m", Preset("zoology:8", 1, small))
    work = Workload(prompt=40, batch=2, new=3, repeats=1)
    assert models.build("small-1m", work, CPU, torch.float32).max_length == 40
    assert [(row.model, row.rate > 0) for row in measure("small-1m", work, CPU, torch.float32)] == 3 * [("small-1m", True)]


@pytest.mark.parametrize(("prompt", "batch", "scored"), [(64, 2, 64), (1024, 4, 256), (1024, 64, 128)])
def test_rates_are_tokens_a_millisecond_and_scored_rows_share_the_length_of_a_prompt(monkeypatch, prompt, batch, scored):
    monkeypatch.setattr(models, "time_call", lambda *_, repeats: Timing(2.0, 2.0, 2.0))
    scoring, prefill, generation = measure("rwkv", Workload(prompt=prompt, batch=batch, new=3), CPU, torch.float32)
    assert scoring.size == {"b": batch, "n": scored}
    assert [row.rate for row in (scoring, prefill, generation)] == pytest.approx([batch * scored / 2e3, prompt / 2e3, 3 * batch / 2e3])


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
