"""`bench`: what is asked for is measured, printed, written and drawn from the same rows."""

from __future__ import annotations

import json
import math

import polars as pl
import pytest
import torch

from recallkit.bench import models, plot
from recallkit.bench import results as shown
from recallkit.bench.cases import OPERATIONS
from recallkit.bench.models import Workload, measure_models, paper_workload
from recallkit.bench.results import Results, Row
from recallkit.bench.run import chosen_options, make_folder, split_names, write_results
from recallkit.bench.timing import Timing
from recallkit.display.chart_theme import SVG_HEAD
from recallkit.errors import UserError
from recallkit.models import zoo
from recallkit.models.architecture import ArchitectureConfig, LayerConfig
from recallkit.models.presets import PRESETS, Preset, Recipe
from tests.display.drawings import shapes

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def row(benchmark: str, who: str, seconds: float, *, problem: str | None = None, **size: int) -> Row:
    ratio = None if problem else seconds / 2
    return Row(benchmark, size, who, seconds, seconds / 2, seconds * 2, rate=2e9, unit="B/s", share=0.25, ratio=ratio, problem=problem)


ROWS = [
    *(row("scan", who, seconds * n, b=2, n=n) for n in (64, 128) for who, seconds in (("recallkit (torch)", 2e-3), ("peer", 4e-3))),
    row("scan", "absent", math.nan, problem="not installed", b=2, n=128),
    Row("prefill", {"b": 1, "n": 64}, "based 1.6m", 1.0, 1.0, 1.0, rate=12.345, unit="tokens/ms"),
    Row("generation", {"b": 4, "new": 8}, "based 1.6m", 1.0, 1.0, 1.0, rate=0.5, unit="tokens/ms"),
]
MACHINE = {"device": "cpu", "name": "a machine", "dtype": "float32", "torch": "2", "triton": None}


def test_the_command_prints_and_writes_what_it_measured(run, tmp_path):
    done = run("bench", "short_conv", "attention", "--quick", "--json", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed == json.loads((tmp_path / "out/bench.json").read_text())
    found = [(entry["benchmark"], entry["implementation"]) for entry in printed["rows"]]
    short = [("short_conv", "recallkit (torch)"), ("short_conv", "conv1d")]
    assert found == [*short, ("scoring", "attention 1.6m"), ("prefill", "attention 1.6m"), ("generation", "attention 1.6m")]
    assert all(0 < entry["seconds"] < 60 and entry["problem"] is None for entry in printed["rows"])
    table = pl.read_parquet(tmp_path / "out/bench.parquet", glob=False)
    assert table["seconds"].to_list() == [entry["seconds"] for entry in printed["rows"]]
    assert table["size"].to_list()[0] == "b=4 n=256 c=384"
    assert printed["machine"]["device"] == "cpu"


def test_an_unknown_name_is_a_mistake_with_a_remedy(run):
    done = run("bench", "taylor_atention")
    assert done.returncode == 1
    assert "taylor_attention" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("place", "line"),
    [("file", "it is a file, not a folder"), ("file/below", "cannot be made (Not a directory)"), ("mine", "will not replace")],
)
def test_a_folder_that_cannot_be_written_is_told_before_anything_is_measured(run, tmp_path, place, line):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/bench.json").write_text('{"mine": 1}')
    done = run("bench", "token_nll", "--quick", "-o", tmp_path / place)
    assert (done.returncode, done.stdout) == (1, "")
    assert line in done.stderr
    assert "measuring" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (tmp_path / "mine/bench.json").read_text() == '{"mine": 1}'


def test_results_are_written_again_over_results(tmp_path):
    for _ in range(2):
        make_folder(tmp_path / "out")
        write_results(Results(MACHINE, ROWS), tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"bench.json", "bench.parquet", "bench.svg"}


def test_a_model_that_does_not_fit_is_a_row(monkeypatch):
    def full(name, *_):
        raise MemoryError

    monkeypatch.setattr(models, "build", full)
    first, other = measure_models(["based", "mamba"], Workload(), CPU, torch.float32)
    assert (first.implementation, first.problem, other.implementation) == ("based 1.6m", "out of memory", "mamba 1.6m")
    assert shown.model_lines([first]) == [("based 1.6m", "out of memory", "", "")]


def test_names_are_operations_and_architectures_in_the_order_of_their_tables():
    assert split_names([]) == (tuple(OPERATIONS), tuple(zoo.ARCHITECTURES))
    assert split_names(["mamba", "token_nll", "based"]) == (("token_nll",), ("based", "mamba"))
    assert split_names(["models"]) == ((), tuple(zoo.ARCHITECTURES))
    assert split_names(["operations", "token_nll"]) == (tuple(OPERATIONS), ())
    with pytest.raises(UserError, match="mambo"):
        split_names(["mambo"])


def test_defaults_suit_the_device_and_what_is_given_replaces_them():
    gpu = chosen_options(GPU)
    assert (gpu.work.size, gpu.work.prompt, gpu.repeats, gpu.quick) == ("360m", 4096, 9, False)
    assert chosen_options(CPU).work.size == "1.6m"
    mine = chosen_options(CPU, ["based"], repeats=2, size="360m", prompt=None, batch=3, new=None)
    assert (mine.repeats, mine.work.size, mine.work.batch, mine.work.prompt) == (2, "360m", 3, Workload().prompt)
    assert (mine.operations, mine.models) == ((), ("based",))


def test_presets_are_models_by_name_but_not_by_default():
    assert split_names(["mamba-360m", "based-360m", "based"]) == ((), ("based", "based-360m", "mamba-360m"))
    assert split_names(["presets"]) == ((), tuple(PRESETS))


def test_the_lengths_of_the_paper_s_table_1_depend_on_the_model():
    chosen = chosen_options(GPU, ["based-360m"], paper=True, batch=4)
    assert (chosen.paper, chosen.work.batch) == (True, 4)
    lengths = {name: paper_workload(name, Workload("360m")) for name in ("based-360m", "mamba-1.3b", "hyena-358m", "based")}
    assert {name: (work.prompt, work.new) for name, work in lengths.items()} == {
        "based-360m": (16_384, 2048),
        "mamba-1.3b": (4096, 2048),
        "hyena-358m": (4096, 2048),
        "based": (16_384, 2048),
    }
    assert paper_workload("based", Workload("1.3b")).prompt == 4096
    for given in ({"prompt": 5}, {"new": 5}, {"quick": True}):
        with pytest.raises(UserError, match="lengths"):
            chosen_options(GPU, ["based-360m"], paper=True, **given)


def test_a_preset_is_built_and_measured_under_its_own_name(monkeypatch):
    small = ArchitectureConfig(64, 32, (LayerConfig("hyena", {"max_length": 8}), LayerConfig("mamba")), mlp_width=32)
    monkeypatch.setitem(PRESETS, "small-1m", Preset("zoology:8", 1, small, Recipe()))
    work = Workload(prompt=40, batch=2, new=3, repeats=1)
    assert models.build("small-1m", work, CPU, torch.float32).max_length == 40
    rows = list(measure_models(["small-1m"], work, CPU, torch.float32))
    assert [(found.benchmark, found.implementation) for found in rows] == [
        (kind, "small-1m") for kind in ("scoring", "prefill", "generation")
    ]
    assert all(found.rate > 0 for found in rows)


def test_a_model_is_measured_in_tokens_a_millisecond(monkeypatch):
    def two_seconds(calls, device, repeats):
        for call in calls.values():
            call(0)
        return dict.fromkeys(calls, Timing(2.0, 2.0, 2.0))

    monkeypatch.setattr(models, "compare", two_seconds)
    work = Workload(prompt=64, batch=2, new=3)
    scoring, prefill, generation = measure_models(["based"], work, CPU, torch.float32)
    assert [found.benchmark for found in (scoring, prefill, generation)] == ["scoring", "prefill", "generation"]
    # Two seconds each: 2 x 64 ids, 64 ids, 2 x 3 new ids.
    assert [found.rate for found in (scoring, prefill, generation)] == pytest.approx([128 / 2e3, 64 / 2e3, 6 / 2e3])


def test_rows_that_are_scored_together_share_a_prompt_s_length(monkeypatch):
    monkeypatch.setattr(models, "compare", lambda calls, device, repeats: dict.fromkeys(calls, Timing(1.0, 1.0, 1.0)))
    lengths = {}
    for prompt, batch in ((1024, 4), (1024, 64), (100, 2)):
        scoring = next(measure_models(["rwkv"], Workload(prompt=prompt, batch=batch), CPU, torch.float32))
        lengths[prompt, batch] = scoring.size["n"]
        assert scoring.rate == batch * scoring.size["n"] / 1e3
    assert lengths == {(1024, 4): 256, (1024, 64): 128, (100, 2): 100}


@pytest.mark.parametrize("size", zoo.SIZES)
@pytest.mark.parametrize("name", zoo.ARCHITECTURES)
def test_architectures_of_a_size_have_its_parameters_and_context(name, size):
    from recallkit.models.language_model import LanguageModel

    config = zoo.architecture(name, size, 512)
    with torch.device("meta"):
        model = LanguageModel(config)
    assert model.num_parameters(embeddings=False) == pytest.approx(zoo.SIZES[size].parameters, rel=0.01)
    assert model.max_length == 512
    assert len(config.layers) == 4 * zoo.SIZES[size].repeats
    heads = {layer.options["num_heads"] for layer in config.layers if "num_heads" in layer.options}
    assert heads <= {zoo.SIZES[size].num_heads}
    assert [layer.options["layer"] for layer in config.layers if "layer" in layer.options] in ([], list(range(len(config.layers))))


def test_results_survive_json_with_what_was_not_measured():
    results = Results(MACHINE, ROWS, ["a target"])
    again = Results.from_json(json.loads(json.dumps(results.to_json(), allow_nan=False)))
    assert again.to_json() == results.to_json()
    assert math.isnan(again.rows[4].seconds)


def test_tables_name_a_size_once_and_show_what_is_missing():
    lines = shown.operation_lines(ROWS)
    assert lines[:3] == [
        ("scan b=2 n=64", "", "", "", ""),
        ("· recallkit (torch)", "128 ms", "2 GB/s", "25 %", "0.06"),
        ("· peer", "256 ms", "2 GB/s", "25 %", "0.13"),
    ]
    assert lines[-1] == ("· absent", "not installed", "", "", "")
    assert shown.model_lines(ROWS) == [("based 1.6m", "", "12.3", "0.5")]
    assert shown.model_sizes(ROWS) == "prefill: b=1 n=64; generation: b=4 new=8"


def test_a_picture_shows_milliseconds_in_the_order_of_what_varied(tmp_path):
    assert plot.draw(Results(MACHINE, [*ROWS[3::-1], *ROWS[4:]]), tmp_path / "bench.svg") == 1
    found = {shape.label: shape for shape in shapes((tmp_path / "bench.svg").read_bytes()) if shape.kind == "path" and shape.label}
    # Seconds are 2e-3 n and 4e-3 n, the fastest half of it, the slowest twice.
    expected = {("recallkit (torch)", 64): 128, ("recallkit (torch)", 128): 256, ("peer", 64): 256, ("peer", 128): 512}
    told = {f"{who}, n={n}: {ms} ms ({ms // 2} to {2 * ms})": (n, ms) for (who, n), ms in expected.items()}
    assert found.keys() == told.keys()
    (first, low), (second, high) = ((found[label].y, ms) for label, (n, ms) in told.items() if label.startswith("recall"))
    scale = (second - first) / math.log(high / low)
    for label, (n, ms) in told.items():
        assert found[label].y == pytest.approx(first + scale * math.log(ms / low), abs=0.2)
        assert (n == 64) is (found[label].x < 100)


def test_a_picture_has_an_axis_for_what_was_varied(tmp_path):
    path = tmp_path / "bench.svg"
    assert plot.draw(Results(MACHINE, ROWS), path) == 1
    text = path.read_bytes()
    assert text.startswith(SVG_HEAD)
    words = [shape.text for shape in shapes(text) if shape.text]
    assert {"scan b=2", "milliseconds", "tokens", "recallkit (torch)", "peer", "a machine, float32, torch 2"} <= set(words)
    assert "prefill" not in " ".join(words)
    assert plot.draw(Results(MACHINE, ROWS), tmp_path / "bench.png") == 1
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert plot.draw(Results(MACHINE, ROWS[:2]), tmp_path / "none.svg") == 0
    assert not (tmp_path / "none.svg").exists()
    for name in ("bench.txt", "bench.eps"):
        with pytest.raises(UserError, match=r"use \.svg, \.png or \.pdf"):
            plot.draw(Results(MACHINE, ROWS), tmp_path / name)
    path.write_text("<svg>mine</svg>")
    with pytest.raises(UserError, match="did not write"):
        plot.draw(Results(MACHINE, ROWS), path)
    assert path.read_text() == "<svg>mine</svg>"
    ((title, letter, drawn),) = plot._varied(ROWS)
    assert (title, letter) == ("scan b=2", "n")
    assert drawn == ROWS[:4]
