"""Trains sparse attention on the copying task of Yun et al. and draws accuracy by pattern, direction and number of layers.

    python examples/06_train_copying.py                              # minutes on one core
    python examples/06_train_copying.py --full --device cuda         # sequences of 256 ids, on a GPU
    python examples/06_train_copying.py --draw copying/results.json

The task is that of section 5.2 of arXiv 2006.04862: a model reads "0 s 0" and predicts s, with causal attention id by id (Table 2),
with attention in both directions all at once, the second s hidden (Table 1). A pattern can copy only where its layers
together connect each position with the id half a sequence earlier, so the figure shows which patterns do, after how many
layers, and how sparse they are. The same command resumes an interrupted run. See docs/synthetic.md.
"""

from __future__ import annotations

import functools
import importlib
import math
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from synthetic_training import Examples, Recipe, Task, best, chosen, made_model, parser_of, perform, print_table, run_example
from torch import nn

from recallkit import registry
from recallkit.errors import UserError
from recallkit.models.architecture import LayerConfig
from recallkit.models.mixers.sparse_attention import SparseAttention

if TYPE_CHECKING:
    import argparse

    from torch import Tensor

    from recallkit.display.charts import Figure, Spec
    from recallkit.models.language_model import LanguageModel

sys.path.append(str(Path(__file__).parent / "theory"))
patterns = importlib.import_module("5_sparse_patterns")

TASK = "copying"
DIRECTIONS = ("causal", "both")
MARK = 0
"""Precedes each s, and is one of its ids, too."""
NUM_HEADS = 4
TEST_SEED = 1 << 20
"""Added to the seed for test examples, so that they differ from those of training."""


# ----------------------------------------------------------------------------------------------------------------- data


def copying_examples(num: int, length: int, vocab: int, seed: int) -> Examples:
    """Sequences "0 s 0 s" (num, length), s of length / 2 - 1 ids from 0 to vocab - 1; every id of the second s is to be predicted.

    The same for a seed on every machine. Raises UserError for a length that cannot be halved.
    """
    if length % 2 or length < 4:
        raise UserError(
            f"{length} ids are not two marks and two sequences", where="--seq-len", remedy="choose an even number of at least 4"
        )
    generator = torch.Generator().manual_seed(seed)
    half = length // 2
    first = torch.randint(vocab, (num, half), generator=generator)
    first[:, 0] = MARK
    ids = torch.cat([first, first], dim=1)
    places = torch.arange(half, length - 1).expand(num, -1)
    return Examples(ids, places, ids[:, half + 1 :])


def hidden_from(examples: Examples, mask: int) -> Examples:
    """The same examples with the second s replaced by the id `mask`, for a model that sees both directions."""
    ids = examples.ids.clone()
    ids[:, ids.shape[1] // 2 + 1 :] = mask
    return examples._replace(ids=ids)


# --------------------------------------------------------------------------------------------------------------- models


class PositionedEmbedding(nn.Embedding):
    """An embedding of ids to which a learned one of positions is added; the head stays tied to the ids' alone."""

    def __init__(self, vocab: int, width: int, length: int) -> None:
        super().__init__(vocab, width)
        self.positions = nn.Parameter(POSITION_SCALE * sinusoids(length, width))

    def forward(self, ids: Tensor) -> Tensor:
        """ids: (b, t) -> (b, t, d)."""
        return super().forward(ids) + self.positions[: ids.shape[1]]


POSITION_SCALE = 0.02
"""Position embeddings have the same initial scale as those of ids."""


def sinusoids(length: int, width: int) -> Tensor:
    """(length, width): sines and cosines of wavelengths from 2 pi to 10000 * 2 pi (Vaswani et al. 2017, section 3.5)."""
    frequencies = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    angles = torch.arange(length)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, :width]


class BothDirections(SparseAttention):
    """Sparse attention of an encoder: a query sees all keys of its pattern, later ones, too."""

    causal = False


PATTERNS: dict[str, dict[str, Any]] = {
    "dense": {"pattern": "strided", "stride": 1},
    **{
        f"{pattern} {configuration}": {"pattern": pattern, "configuration": configuration}
        for pattern in ("strided", "fixed")
        for configuration in ("union", "multihead", "sequential")
    },
    "star": {"pattern": "star"},
    "random": {"pattern": "random", "configuration": "multihead", "sparsity": 0.9},
    "longformer": {"pattern": "longformer"},
    "bigbird": {"pattern": "bigbird"},
}
"""Options of `SparseAttention`: the patterns of the paper's Tables 1 and 2, between all pairs, and two more that it names."""


def layers_of(pattern: str, num_layers: int, length: int) -> tuple[LayerConfig, ...]:
    """The layers of a model, of 4 heads, with positions from the embedding only. Raises UserError for an unknown pattern.

    The stride is the square root of the length: 16 at 256 ids, as in the paper. Random pairs are drawn for each layer and head.
    """
    common = {"num_heads": NUM_HEADS, "rope_fraction": 0.0, "stride": max(1, round(math.sqrt(length))), "length": length}
    options = common | registry.look_up(PATTERNS, pattern, "pattern")
    return tuple(LayerConfig("sparse_attention", options | {"layer": place, "seed": place}) for place in range(num_layers))


def masks_of(pattern: str, num_layers: int, length: int, direction: str) -> list[torch.Tensor]:
    """The masks of a model's layers, (h, n, n) bool each: see `5_sparse_patterns.py`."""
    masks = []
    for place, layer in enumerate(layers_of(pattern, num_layers, length)):
        options = {name: value for name, value in layer.options.items() if name not in ("num_heads", "rope_fraction", "layer")}
        cycle = patterns.pattern_masks(**options, num_heads=NUM_HEADS, causal=direction == "causal")
        masks.append(cycle[place % len(cycle)])
    return masks


def reachable(pattern: str, num_layers: int, length: int, direction: str) -> float:
    """The share of the answers that the layers together connect with the place where they are asked for."""
    table = patterns.reached(masks_of(pattern, num_layers, length, direction), num_layers)
    places = torch.arange(length // 2, length - 1)
    return float(table[places, places + 1 - length // 2].double().mean())


@dataclass(frozen=True, slots=True)
class Job:
    """One run: everything that determines its outcome."""

    NAMED: ClassVar = ("pattern", "direction", "layers", "length", "learning_rate")

    pattern: str
    direction: str
    layers: int
    length: int
    width: int
    learning_rate: float
    vocab: int
    examples: int
    test_examples: int
    steps: int
    batch: int
    seed: int
    stop_above: float
    measured_every: int


def model_of(job: Job) -> LanguageModel:
    """The model of a job: blocks of attention and MLP. Beside the ids of s its vocabulary has one that hides an id."""
    layers = layers_of(job.pattern, job.layers, job.length)
    model = made_model(job.seed, job.vocab + 1, job.width, layers)
    model.embedding = PositionedEmbedding(job.vocab + 1, job.width, job.length)
    if job.direction == "both":
        for block, layer in zip(model.blocks, layers, strict=True):
            block.mixer = BothDirections(job.width, **layer.options)
    return model


def work(job: Job, device: torch.device) -> dict[str, Any]:
    """Trains the model of a job."""
    parts = examples_of(job.examples, job.test_examples, job.length, job.vocab, job.seed)
    training, test = (hidden_from(part, job.vocab) for part in parts) if job.direction == "both" else parts
    recipe = Recipe(job.learning_rate, job.steps, job.batch, job.seed, job.stop_above, job.measured_every)
    found = {
        "sparsity": round(patterns.sparsity_of(masks_of(job.pattern, job.layers, job.length, "both")), 4),
        "reachable": round(reachable(job.pattern, job.layers, job.length, job.direction), 4),
    }
    return found | perform(model_of(job), training, test, recipe, device)


@functools.lru_cache(maxsize=1)
def examples_of(num: int, num_test: int, length: int, vocab: int, seed: int) -> tuple[Examples, Examples]:
    """Training and test examples, shared by all runs."""
    return copying_examples(num, length, vocab, seed), copying_examples(num_test, length, vocab, seed + TEST_SEED)


# ---------------------------------------------------------------------------------------------------------------- sweeps


SMALL: dict[str, Any] = {
    "patterns": ["dense", "strided union", "strided sequential", "fixed union", "fixed sequential", "star", "random"],
    "directions": list(DIRECTIONS),
    "depths": [1, 2, 3, 4],
    "length": 36,
    "width": 64,
    "learning_rates": [1e-3],
    "examples": 10_000,
    "test_examples": 200,
    "steps": 500,
    "batch": 32,
    "measured_every": 25,
}
FULL: dict[str, Any] = {
    "patterns": list(PATTERNS),
    "directions": list(DIRECTIONS),
    "depths": [1, 2, 3, 4],
    "length": 256,
    "width": 256,
    "learning_rates": [1e-4, 3e-4, 1e-3],
    "examples": 100_000,
    "test_examples": 1_000,
    "steps": 20_000,
    "batch": 128,
    "measured_every": 500,
}


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """The jobs of a command line."""
    options = chosen(args, FULL if args.full else SMALL)
    patterns, directions, depths, rates = (options.pop(name) for name in ("patterns", "directions", "depths", "learning_rates"))
    common = options | {"vocab": args.vocab, "seed": args.seed, "stop_above": args.stop_above}
    grid = product(directions, patterns, depths, rates)
    return [Job(pattern=p, direction=way, layers=n, learning_rate=rate, **common) for way, p, n, rate in grid]


def show(runs: list[dict[str, Any]]) -> None:
    """Prints accuracy by pattern and number of layers for each direction, beside it how many answers can be reached, and sparsity."""
    kept = best(runs, "pattern", "direction", "layers")
    for direction in dict.fromkeys(run["direction"] for run in kept):
        found = {(run["pattern"], run["layers"]): run for run in kept if run["direction"] == direction}
        depths = sorted({depth for _, depth in found})
        rows = []
        for pattern in dict.fromkeys(pattern for pattern, _ in found):
            row = [found.get((pattern, depth)) for depth in depths]
            cells = [f"{100 * run['accuracy']:.1f} / {100 * run['reachable']:.0f}" if run else "" for run in row]
            rows.append((pattern, f"{100 * sparsity_shown(row):.0f} %", *cells))
        headers = ("pattern", "sparsity", *(f"{depth} layer{'s' if depth > 1 else ''}" for depth in depths))
        print_table(
            f"Copying {runs[0]['length'] // 2 - 1} ids, {WRITTEN[direction]}: accuracy / answers within reach, in percent", headers, rows
        )


WRITTEN = {"causal": "causal, by layers", "both": "both directions, by layers"}


def sparsity_shown(found: list[dict[str, Any] | None]) -> float:
    """One figure for a pattern: of its deepest model, since a sequential one has both of its parts from two layers on."""
    return next(run["sparsity"] for run in reversed(found) if run)


# --------------------------------------------------------------------------------------------------------------- pictures


def figures_of(runs: list[dict[str, Any]]) -> list[Figure]:
    """Accuracy by pattern and layers as a heat map, with the sparsity of each pattern."""
    from recallkit.display.charts import Figure

    kept = best(runs, "pattern", "direction", "layers")
    caption = (
        "Percent of the second sequence that is copied correctly, by pattern of attention, direction and number of layers, at the best "
        "learning rate; framed where the layers connect every id with the place where it is asked for. On the right the share of "
        "pairs that the pattern leaves out."
    )
    return [Figure("copying", "Accuracy on the copying task", caption, _draw(kept))]


def _draw(runs: list[dict[str, Any]]) -> Spec:
    import altair as alt

    from recallkit.display.charts import PAPER, WIDTH

    patterns = list(dict.fromkeys(run["pattern"] for run in runs))
    directions = list(dict.fromkeys(run["direction"] for run in runs))
    height, names = 26 * len(patterns), alt.Axis(title=None, labelLimit=130, ticks=False, domain=False)
    charts: list[Any] = []
    for direction in directions:
        rows = [
            {"pattern": run["pattern"], "layers": run["layers"], "percent": 100 * run["accuracy"], "whole": run["reachable"] == 1}
            for run in runs
            if run["direction"] == direction
        ]
        base = alt.Chart(alt.Data(values=rows)).encode(
            x=alt.X("layers:O", axis=alt.Axis(title=WRITTEN[direction], labelAngle=0, orient="top", ticks=False, domain=False)),
            y=alt.Y("pattern:N", sort=patterns, axis=None if charts else names),
        )
        cells = base.mark_rect(stroke=PAPER["page"], strokeWidth=2, fill=PAPER["m0"]).encode(
            fillOpacity=alt.FillOpacity("percent:Q", scale=alt.Scale(domain=[0, 100], range=[0.06, 0.5]), legend=None)
        )
        framed = base.mark_rect(filled=False, stroke=PAPER["m0"], strokeWidth=1).transform_filter("datum.whole")
        figures = base.mark_text().encode(text=alt.Text("percent:Q", format=".0f"))
        charts.append(alt.layer(cells, framed, figures).properties(width=(WIDTH - 90) / len(directions), height=height))
    found = {pattern: sparsity_shown([run for run in runs if run["pattern"] == pattern]) for pattern in patterns}
    bars = alt.Chart(alt.Data(values=[{"pattern": pattern, "sparsity": value} for pattern, value in found.items()])).encode(
        y=alt.Y("pattern:N", sort=patterns, axis=None)
    )
    scale = alt.Scale(domain=[0, 1.4], nice=False)  # room for the numbers next to the bars
    axis = alt.Axis(title="sparsity", format="%", orient="top", values=[0, 0.5, 1], grid=False, domain=False)
    pairs = bars.mark_bar(height=12, color=PAPER["rest"]).encode(x=alt.X("sparsity:Q", scale=scale, axis=axis))
    written = bars.mark_text(align="left", dx=4).encode(x=alt.X("sparsity:Q", scale=scale), text=alt.Text("sparsity:Q", format=".0%"))
    charts.append(alt.layer(pairs, written).properties(width=90, height=height))
    drawn: Spec = alt.hconcat(*charts, spacing=14).to_dict()
    return drawn


# ----------------------------------------------------------------------------------------------------- the command line


def main() -> None:
    """Parses the command line, trains, prints and draws."""
    parser = parser_of(__doc__, "copying")
    parser.add_argument("--patterns", nargs="+", metavar="PATTERN", help=f"of {', '.join(map(repr, PATTERNS))}")
    parser.add_argument("--directions", nargs="+", choices=DIRECTIONS, help="causal, as Table 2 of the paper, or both, as Table 1")
    parser.add_argument("--depths", type=int, nargs="+", help="numbers of layers")
    parser.add_argument("--seq-len", dest="length", type=int, help="ids a sequence: two marks, and s twice")
    parser.add_argument("--width", type=int)
    parser.add_argument("--vocab", type=int, default=128, help="ids of s")
    run_example(parser, Task(TASK, jobs_of, work, show, figures_of))


if __name__ == "__main__":
    main()
