"""Passes that are recorded and replayed: the figures of Python's launches to the bit, or none.

On CPU, with the stand-in of `graph_stand_in.py`; the same on a GPU is marked `gpu`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from recallkit import scoring
from recallkit.models import cuda_graphs
from recallkit.models.ablation import observe_means
from recallkit.models.architecture import ArchitectureConfig, LayerConfig
from recallkit.models.language_model import LanguageModel
from recallkit.models.loading import load_model
from recallkit.models.mixers.mamba import Mamba
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec
from tests.models.graph_stand_in import graphs as graphs
from tests.scoring.test_run import SETTLED, copy_of, interrupting_batches, only_scores

VOCAB = 61


def native(*mixers: str | tuple[str, dict[str, Any]]) -> LanguageModel:
    """A small model of ours with these mixers, a layer each."""
    layers = [LayerConfig(*((mixer,) if isinstance(mixer, str) else mixer)) for mixer in mixers]
    return LanguageModel(ArchitectureConfig(vocab_size=VOCAB, d_model=16, layers=layers)).eval()


def both(module: Any, **plan: Any) -> tuple[Any, Any]:
    """A model that may be recorded, and the same one that may not."""
    spec = ModelSpec(module) if isinstance(module, str) else ModelSpec(module, "model")
    actual = ModelPlan(spec, VOCAB, device="cpu", **plan)
    first, second = load_model(actual), load_model(replace(actual, cuda_graphs=False))
    return first, second


def batch(rows: int, length: int, seed: int, vocab: int = VOCAB) -> tuple[np.ndarray, np.ndarray]:
    """Random sequences of one length, whose inputs are (rows, length)."""
    ids = np.random.default_rng(seed).integers(0, vocab, rows * (length + 1), dtype=np.uint32)
    return ids, np.arange(rows + 1) * (length + 1)


def check_scores(recorded: Any, launched: Any, *shapes: tuple[int, int]) -> None:
    """Every score of batches of these shapes in turn has the same bits."""
    for seed, shape in enumerate(shapes):
        sequences = batch(*shape, seed)
        one, other = recorded.score(*sequences), launched.score(*sequences)
        for name, values in other.of_model.items():
            assert one.of_model[name].tobytes() == values.tobytes(), (name, seed, shape)


@pytest.mark.parametrize("kind", ["mamba", "linear_attention", "attention", "llama"])
def test_a_shape_is_recorded_once_and_replayed_to_the_bit(graphs, tiny_model, kind):
    is_ours = kind != "llama"
    module = native(kind, kind) if is_ours else str(tiny_model(kind, vocab_size=VOCAB))
    check_scores(*both(module), *[(3, 9), (2, 20)] * 6)
    # Once to compare, then for the fourth to sixth batch of each shape.
    assert [graph.num_replays for graph in graphs] == [4, 4]


def generated(model: Any, most: int, stops: list[int]) -> list[tuple[list[int], bytes]]:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, VOCAB, length, dtype=np.uint32) for length in (9, 14, 9, 5)]
    answers = [rng.integers(0, VOCAB, length, dtype=np.uint32) for length in (2, 0, 0, 0)]
    results = model.generate(prompts, answers, most, lambda number, ids: len(ids) >= stops[number])
    return [(item.ids, item.answer_nll.tobytes()) for item in results]


@pytest.mark.parametrize(
    ("mixers", "num_recorded"),
    [
        (["mamba", "linear_attention"], 3),
        (["sliding_window"], 3),
        (["mamba", "attention"], 0),
    ],
)
def test_steps_are_replayed_where_the_state_does_not_grow(graphs, mixers, num_recorded):
    """Steps of four, three and two rows."""
    recorded, launched = both(native(*mixers))
    for _ in range(2):
        assert generated(recorded, 16, [4, 9, 16, 16]) == generated(launched, 16, [4, 9, 16, 16])
    assert [graph.num_replays > 1 for graph in graphs] == [True] * num_recorded


def test_the_option_turns_it_off(graphs):
    _, launched = both(native("mamba"))
    check_scores(launched, launched, *[(3, 9)] * 5)
    assert graphs == []


class CountingMamba(Mamba):
    """A mixer of a user's, which may do anything in Python: here it counts its passes."""

    passes = 0

    def forward(self, u: torch.Tensor, ids: torch.Tensor | None = None) -> torch.Tensor:
        self.passes += 1
        return super().forward(u, ids)


def test_foreign_code_and_hooks_are_not_recorded(graphs):
    foreign = native("mamba")
    foreign.blocks[0].mixer = mixer = CountingMamba(16)
    check_scores(*both(foreign), *[(3, 9)] * 5)
    assert mixer.passes == 10
    means = []
    for model in both(native("mamba", "attention")):
        with observe_means(model) as observed:
            for seed in range(6):
                model.score(*batch(3, 9, seed))
            means.append({name: mean.tobytes() for name, mean in observed().items()})
    assert means[0] == means[1]
    assert graphs == []


def test_a_pass_that_waits_for_a_result_is_launched_from_python(graphs, capsys):
    """Lists of matches are as long as the text has them."""
    matches = "selective_attention", {"selection": "programmatic", "keys": "matches"}
    check_scores(*both(native("mamba", matches)), *[(3, 9), (2, 20)] * 5)
    assert [graph.num_replays for graph in graphs] == [0]
    [line] = [line for line in capsys.readouterr().err.splitlines() if "CUDA graphs" in line]
    assert "live:model: every kernel is launched from Python" in line
    assert "(CUDA error: operation not permitted when stream is capturing)" in line


def test_a_replay_with_other_figures_is_not_used(graphs, capsys, monkeypatch):
    """A number that Python has of the ids is the recorded one in each replay."""
    mix = Mamba.forward

    def scaled(self: Mamba, u: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return mix(self, u, ids) * (1 + int(ids.numpy().sum()) % 7)

    monkeypatch.setattr(Mamba, "forward", scaled)
    check_scores(*both(native("mamba")), *[(3, 9), (2, 20)] * 5)
    assert [graph.num_replays for graph in graphs] == [1]
    assert "without CUDA graphs (a replay gives different results)" in capsys.readouterr().err


def test_few_shapes_are_recorded_and_none_whose_work_takes_longer(graphs, monkeypatch):
    recorded, launched = both(native("mamba"))
    check_scores(recorded, launched, *[(2, length) for length in range(3, 15)] * 4)
    assert len(graphs) == cuda_graphs.MOST_GRAPHS < 12

    module = native("mamba")
    sizes = [weight.numel() for weight in module.parameters()]
    monkeypatch.setattr(cuda_graphs, "MOST_WORK", 2 * 18 * sum(sizes) // len(sizes) + 1)
    check_scores(*both(module), *[(2, 9), (1, 19)] * 4)
    assert len(graphs) == cuda_graphs.MOST_GRAPHS + 1, "18 ids, not 19"


def test_other_weights_are_read(graphs):
    recorded, launched = both(native("mamba"))
    check_scores(recorded, launched, *[(3, 9)] * 5)
    for model in (recorded, launched):
        model.model.norm.weight = torch.nn.Parameter(torch.full((16,), 3.0))
    check_scores(recorded, launched, *[(3, 9)] * 5)
    assert [graph.num_replays for graph in graphs] == [3], "of the first five batches alone"


def test_where_memory_does_not_suffice_graphs_are_given_up_first(graphs, monkeypatch):
    recorded, launched = both(native("mamba"))
    check_scores(recorded, launched, *[(3, 9)] * 5)
    reduce, failures = recorded.reduce, [True]

    def failing(*arguments: Any) -> Any:
        if failures:
            failures.pop()
            raise MemoryError
        return reduce(*arguments)

    monkeypatch.setattr(recorded, "reduce", failing)
    check_scores(recorded, launched, *[(3, 9)] * 3)
    # Of the first five batches, and of the one that did not fit.
    assert [graph.num_replays for graph in graphs] == [4]
    failures.append(True)
    with pytest.raises(MemoryError):
        recorded.score(*batch(3, 9, 0))


def test_score_files_have_the_same_bytes_also_resumed(
    graphs,
    few_slices,
    tiny_model,
    tmp_path,
    monkeypatch,
):
    model, one_by_one = str(tiny_model("gpt_neox")), replace(SETTLED, batch_tokens=1)
    names = ("launched", "recorded")
    launched, recorded = (copy_of(few_slices, tmp_path / name) for name in names)
    scoring.score(model, launched, replace(one_by_one, no_cuda_graphs=True))
    assert graphs == []
    interrupting_batches(monkeypatch, 6)
    with pytest.raises(KeyboardInterrupt):
        scoring.score(model, recorded, one_by_one)
    scoring.score(model, recorded, one_by_one)
    assert only_scores(recorded) == only_scores(launched)
    assert sum(graph.num_replays for graph in graphs) > 2


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["attention", "based", "mamba", "retnet", "rwkv"])
def test_a_gpu_replays_to_the_bit(name):
    actual = ModelPlan(ModelSpec(f"zoo:{name}"), 4096, device="cuda")
    recorded, launched = load_model(actual), load_model(replace(actual, cuda_graphs=False))
    for seed in range(6):
        sequences = batch(4, 64, seed, 4096)
        assert recorded.score(*sequences).nll.tobytes() == launched.score(*sequences).nll.tobytes()
    assert generated(recorded, 40, [20, 30, 40, 40]) == generated(launched, 40, [20, 30, 40, 40])
