"""Trains sparse attention on the copying task of Yun et al. and draws accuracy by pattern and number of layers.

    python examples/06_train_copying.py                              # minutes on one core
    python examples/06_train_copying.py --full --device cuda         # sequences of 256 ids, on a GPU
    python examples/06_train_copying.py --draw copying/results.json

The task is that of section 5.1 of arXiv 2006.04862: a model reads "0 s 0" and predicts s, id by id. A pattern of
attention can copy only where its layers together connect each position with the id half a sequence earlier, so
the figure shows which patterns do, after how many layers, and how sparse they are. The same command resumes an interrupted
run. See docs/synthetic.md.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from itertools import product
from statistics import mean
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
    from collections.abc import Callable

    import altair as alt
    from torch import Tensor

    from recallkit.display.chart_theme import Figure, Palette
    from recallkit.models.language_model import LanguageModel
    from recallkit.models.mixers.attention import Attention

TASK = "copying"
MARK = 0
"""Marks the beginning of each s, and occurs nowhere else."""
NUM_HEADS = 4
TEST_SEED = 1 << 20
"""Added to the seed for test examples, so that they differ from those of training."""


# ----------------------------------------------------------------------------------------------------------------- data


def copying_examples(num: int, length: int, vocab: int, seed: int) -> Examples:
    """Sequences "0 s 0 s" (num, length), s of length / 2 - 1 ids from 1 to vocab - 1; every id of the second s is to be predicted.

    The same for a seed on every machine. Raises UserError for a length that cannot be halved.
    """
    if length % 2 or length < 4:
        raise UserError(f"{length} ids are not two marks and two sequences", where="--length", remedy="choose an even number of at least 4")
    generator = torch.Generator().manual_seed(seed)
    half = length // 2
    first = torch.randint(1, vocab, (num, half), generator=generator)
    first[:, 0] = MARK
    ids = torch.cat([first, first], dim=1)
    places = torch.arange(half, length - 1).expand(num, -1)
    return Examples(ids, places, ids[:, half + 1 :])


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


def _sparse(pattern: str, configuration: str = "union") -> Callable[[int, int, float], LayerConfig]:
    def layer(place: int, stride: int, sparsity: float) -> LayerConfig:
        return LayerConfig(
            "sparse_attention",
            {"pattern": pattern, "configuration": configuration, "stride": stride, "sparsity": sparsity, "layer": place, "seed": place},
        )

    return layer


PATTERNS: dict[str, Callable[[int, int, float], LayerConfig]] = {
    "dense": lambda place, stride, sparsity: LayerConfig("attention"),
    "strided union": _sparse("strided"),
    "strided multihead": _sparse("strided", "multihead"),
    "strided sequential": _sparse("strided", "sequential"),
    "fixed union": _sparse("fixed"),
    "fixed multihead": _sparse("fixed", "multihead"),
    "fixed sequential": _sparse("fixed", "sequential"),
    "star": _sparse("star"),
    "random": _sparse("random"),
    "sliding window": lambda place, stride, sparsity: LayerConfig("sliding_window", {"window": 2 * stride}),
    "blocked window": lambda place, stride, sparsity: LayerConfig("blocked_window", {"window": 2 * stride}),
}
"""The layer at an index, given stride and sparsity: the first of each is the reference, the last two see no further than 2 strides."""


def layers_of(pattern: str, num_layers: int, length: int) -> tuple[LayerConfig, ...]:
    """The layers of a model, of 4 heads, with positions from the embedding only. Raises UserError for an unknown pattern.

    The stride is the square root of the length, as Sparse Transformers choose it. Random pairs are drawn independently for each layer, as
    many as `strided union` has at this length.
    """
    layer = registry.look_up(PATTERNS, pattern, "pattern")
    stride = max(1, round(math.sqrt(length)))
    sparsity = sparsity_of(SparseAttention(1, num_heads=1, rope_fraction=0.0, pattern="strided", stride=stride), length)
    made = (layer(place, stride, sparsity) for place in range(num_layers))
    return tuple(LayerConfig(one.mixer, {"num_heads": NUM_HEADS, "rope_fraction": 0.0, **one.options}) for one in made)


def sparsity_of(mixer: Attention, length: int) -> float:
    """The fraction of pairs of a query and a key at or before it that a mixer does not see, over its heads."""
    places = torch.arange(length)
    seen = mixer.sees(places.view(1, -1, 1), places.view(1, 1, -1))
    return 1 - float(seen.double().mean(0).sum()) / (length * (length + 1) / 2)


@dataclass(frozen=True, slots=True)
class Job:
    """One run: everything that determines its outcome."""

    NAMED: ClassVar = ("pattern", "layers", "length", "learning_rate")

    pattern: str
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
    """The model of a job: blocks of attention and MLP."""
    model = made_model(job.seed, job.vocab, job.width, layers_of(job.pattern, job.layers, job.length))
    model.embedding = PositionedEmbedding(job.vocab, job.width, job.length)
    return model


def work(job: Job, device: torch.device) -> dict[str, Any]:
    """Trains the model of a job."""
    training, test = examples_of(job.examples, job.test_examples, job.length, job.vocab, job.seed)
    model = model_of(job)
    sparsity = mean(sparsity_of(block.mixer, job.length) for block in model.blocks)
    recipe = Recipe(job.learning_rate, job.steps, job.batch, job.seed, job.stop_above, job.measured_every)
    return {"sparsity": round(sparsity, 4), **perform(model, training, test, recipe, device)}


@functools.lru_cache(maxsize=1)
def examples_of(num: int, num_test: int, length: int, vocab: int, seed: int) -> tuple[Examples, Examples]:
    """Training and test examples, shared by all runs."""
    return copying_examples(num, length, vocab, seed), copying_examples(num_test, length, vocab, seed + TEST_SEED)


# ---------------------------------------------------------------------------------------------------------------- sweeps


SMALL: dict[str, Any] = {
    "patterns": ["dense", "strided union", "strided sequential", "fixed union", "fixed sequential", "star", "random", "sliding window"],
    "depths": [1, 2, 3, 4],
    "length": 64,
    "width": 64,
    "learning_rates": [3e-3],
    "examples": 10_000,
    "test_examples": 200,
    "steps": 300,
    "batch": 32,
    "measured_every": 25,
}
FULL: dict[str, Any] = {
    "patterns": list(PATTERNS),
    "depths": [1, 2, 3, 4],
    "length": 256,
    "width": 256,
    "learning_rates": [3e-4, 1e-3, 3e-3],
    "examples": 100_000,
    "test_examples": 1_000,
    "steps": 20_000,
    "batch": 128,
    "measured_every": 500,
}


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """The jobs of a command line."""
    options = chosen(args, FULL if args.full else SMALL)
    patterns, depths, rates = (options.pop(name) for name in ("patterns", "depths", "learning_rates"))
    common = options | {"vocab": args.vocab, "seed": args.seed, "stop_above": args.stop_above}
    return [Job(pattern=p, layers=n, learning_rate=rate, **common) for p, n, rate in product(patterns, depths, rates)]


def show(runs: list[dict[str, Any]]) -> None:
    """Prints accuracy by pattern and number of layers, and the sparsity of each pattern."""
    kept = {(run["pattern"], run["layers"]): run for run in best(runs, "pattern", "layers")}
    depths = sorted({depth for _, depth in kept})
    rows = []
    for pattern in dict.fromkeys(pattern for pattern, _ in kept):
        found = [kept.get((pattern, depth)) for depth in depths]
        cells = [f"{100 * run['accuracy']:.1f} %" if run else "" for run in found]
        rows.append((pattern, f"{100 * sparsity_shown(found):.0f} %", *cells))
    headers = ("pattern", "sparsity", *(f"{depth} layer{'s' if depth > 1 else ''}" for depth in depths))
    print_table(f"Copying {runs[0]['length'] // 2 - 1} ids: accuracy of the most likely token", headers, rows)


def sparsity_shown(found: list[dict[str, Any] | None]) -> float:
    """One figure for a pattern: of its deepest model, since a sequential one has both of its parts from two layers on."""
    return next(run["sparsity"] for run in reversed(found) if run)


# --------------------------------------------------------------------------------------------------------------- pictures


def figures_of(runs: list[dict[str, Any]]) -> list[Figure]:
    """Accuracy by pattern and layers as a heat map, with the sparsity of each pattern."""
    from recallkit.display.chart_theme import Figure

    kept = best(runs, "pattern", "layers")
    caption = (
        "Share of the second sequence that is copied correctly, by pattern of attention and number of layers, at the best learning rate; "
        "on the right the share of the pairs of a query and an earlier key that the pattern leaves out."
    )
    return [Figure("copying", "Accuracy on the copying task", caption, functools.partial(_draw, kept))]


def _draw(runs: list[dict[str, Any]], palette: Palette) -> alt.HConcatChart:
    import altair as alt

    from recallkit.display.chart_theme import WIDTH

    patterns = list(dict.fromkeys(run["pattern"] for run in runs))
    rows = [{name: run[name] for name in ("pattern", "layers", "accuracy")} for run in runs]
    row_height, names = 26, alt.Axis(title=None, labelLimit=130, ticks=False, domain=False)
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("layers:O", axis=alt.Axis(title="layers", labelAngle=0, orient="top", ticks=False, domain=False)),
        y=alt.Y("pattern:N", sort=patterns, axis=names),
    )
    cells = base.mark_rect(stroke=palette.page, strokeWidth=2, fill=palette.models[0]).encode(
        fillOpacity=alt.FillOpacity("accuracy:Q", scale=alt.Scale(domain=[0, 1], range=[0.06, 0.5]), legend=None)
    )
    figures = base.mark_text().encode(text=alt.Text("accuracy:Q", format=".0%"))
    height = row_height * len(patterns)
    left = alt.layer(cells, figures).properties(width=WIDTH - 140, height=height)
    found = {pattern: sparsity_shown([run for run in runs if run["pattern"] == pattern]) for pattern in patterns}
    bars = alt.Chart(alt.Data(values=[{"pattern": pattern, "sparsity": value} for pattern, value in found.items()])).encode(
        y=alt.Y("pattern:N", sort=patterns, axis=None)
    )
    scale = alt.Scale(domain=[0, 1.2], nice=False)  # room for the numbers next to the bars
    axis = alt.Axis(title="sparsity", format="%", orient="top", values=[0, 0.5, 1], grid=False, domain=False)
    pairs = bars.mark_bar(height=12, color=palette.rest).encode(x=alt.X("sparsity:Q", scale=scale, axis=axis))
    written = bars.mark_text(align="left", dx=4).encode(x=alt.X("sparsity:Q", scale=scale), text=alt.Text("sparsity:Q", format=".0%"))
    right = alt.layer(pairs, written).properties(width=140, height=height)
    return alt.hconcat(left, right, spacing=16)


# ----------------------------------------------------------------------------------------------------- the command line


def main() -> None:
    """Parses the command line, trains, prints and draws."""
    parser = parser_of(__doc__, "copying")
    parser.add_argument("--patterns", nargs="+", metavar="PATTERN", help=f"of {', '.join(map(repr, PATTERNS))}")
    parser.add_argument("--depths", type=int, nargs="+", help="numbers of layers")
    parser.add_argument("--length", type=int, help="ids a sequence: two marks, and s twice")
    parser.add_argument("--width", type=int)
    parser.add_argument("--vocab", type=int, default=128, help="ids of the vocabulary, the mark among them")
    run_example(parser, Task(TASK, jobs_of, work, show, figures_of))


if __name__ == "__main__":
    main()
