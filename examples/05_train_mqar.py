"""Trains mixers on multi-query associative recall (MQAR) and draws accuracy by width and by size of the state.

    python examples/05_train_mqar.py                              # minutes on one core
    python examples/05_train_mqar.py --full --device cuda         # the grid of Zoology's Figure 2, on a GPU
    python examples/05_train_mqar.py --draw mqar-training/results.json

The task is Zoology's Algorithm 1 (arXiv 2312.04927): D keys with their values, then each key once more, for which the model predicts
its value. The first picture is Zoology's Figure 2, the second Based's Figure 2 (arXiv 2402.18668). The
same command resumes an interrupted run. See docs/synthetic.md.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from synthetic_training import (
    BYTES_PER_ELEMENT,
    Examples,
    Recipe,
    Task,
    best,
    chosen,
    made_model,
    parser_of,
    perform,
    print_table,
    run_example,
)

from recallkit import registry
from recallkit.errors import UserError
from recallkit.models.architecture import LayerConfig
from recallkit.models.mixers import MIXERS, options_of

if TYPE_CHECKING:
    import argparse

    import altair as alt
    from torch import Tensor

    from recallkit.display.chart_theme import Chart, Figure, Palette
    from recallkit.models.language_model import LanguageModel

TASK = "mqar"
FILLER = 0
"""Fills the other positions: it is neither a key nor a value."""
POWER = 0.01
"""The exponent a of Zoology's power law: P(gap g) is proportional to g^(a - 1)."""
PAIRS = {64: 4, 128: 8, 256: 16, 512: 64}
"""Pairs by length, Zoology's Figure 2."""
TEST_SEED = 1 << 20
"""Added to the seed for test examples, so that they differ from those of training."""


# ----------------------------------------------------------------------------------------------------------------- data


def mqar_examples(num: int, length: int, pairs: int, vocab: int, seed: int) -> Examples:
    """Examples (num, length) with `pairs` questions each, the same for a seed on every machine.

    Keys are ids 1 to vocab / 2 - 1 and values the rest, all different within an example. After the 2 D ids of the pairs each key
    occurs once more, and the other ids are `FILLER`; the gaps are even numbers, drawn by the power law without replacement, as
    Zoology's code draws them. Raises UserError where they do not fit.
    """
    if 4 * pairs > length or pairs >= vocab // 2 - 1 or pairs < 1:
        needed = f"they need a length of {4 * pairs} and a vocabulary of {2 * pairs + 4} at least"
        raise UserError(f"{pairs} pairs in {length} ids, of {vocab}", remedy=needed)
    generator = torch.Generator().manual_seed(seed)
    first_value = vocab // 2
    keys = 1 + distinct(num, pairs, first_value - 1, generator)
    values = first_value + distinct(num, pairs, vocab - first_value, generator)
    slots = weighted_draws(num, pairs, (length - 2 * pairs) // 2, generator)
    places = 2 * pairs + 2 * slots
    ids = torch.full((num, length), FILLER)
    ids[:, 0 : 2 * pairs : 2], ids[:, 1 : 2 * pairs : 2] = keys, values
    ids.scatter_(1, places, keys)
    return Examples(ids, places, values)


def distinct(num: int, size: int, population: int, generator: torch.Generator) -> Tensor:
    """Rows of `size` distinct numbers below `population`, in random order: (num, size) int64, by Floyd's algorithm.

    A row costs size^2 comparisons, without a permutation of the population.
    """
    chosen = torch.empty(num, 0, dtype=torch.int64)
    for top in range(population - size, population):
        drawn = torch.randint(top + 1, (num, 1), generator=generator)
        taken = (chosen == drawn).any(1, keepdim=True)
        chosen = torch.cat([chosen, torch.where(taken, top, drawn)], dim=1)
    order = torch.rand(num, size, generator=generator).argsort(1)
    return chosen.gather(1, order)


def weighted_draws(num: int, size: int, slots: int, generator: torch.Generator) -> Tensor:
    """Rows of `size` distinct slots, drawn one after another with weights (slot + 1)^(a - 1): (num, size) int64.

    The largest of log-weights plus Gumbel noise, in descending order, are such draws without replacement (Efraimidis and Spirakis 2006).
    """
    log_weights = (POWER - 1) * torch.arange(1, slots + 1, dtype=torch.float64).log()
    noise = -torch.empty(num, slots, dtype=torch.float64).exponential_(generator=generator).log()
    return (log_weights + noise).topk(size, dim=1).indices


# --------------------------------------------------------------------------------------------------------------- models


ALTERNATING: dict[str, tuple[LayerConfig, ...]] = {
    "based": (LayerConfig("base_conv", {"filter": "short"}), LayerConfig("linear_attention", {"num_heads": 1, "feature_dim": 16})),
    "base_conv": (LayerConfig("base_conv", {"filter": "short"}), LayerConfig("base_conv")),
}
"""Models whose layers alternate as in Zoology's code: a short convolution, then the mixer."""

ONE_HEAD = ("attention", "sliding_window", "blocked_window", "sparse_attention", "selective_attention", "linear_attention")
"""Mixers that get one head, as in Zoology's code; others keep their default."""


def layers_of(mixer: str, width: int, length: int, num_layers: int) -> tuple[LayerConfig, ...]:
    """The layers of a model: `mixer` is a name of `MIXERS` or of `ALTERNATING`. Raises UserError for another one.

    A mixer that can have a short convolution over queries, keys and values gets one of three taps, as in the zoo; filters are
    as long as the sequence.
    """
    turns = ALTERNATING.get(mixer) or (LayerConfig(mixer),)
    return tuple(_fitted(turns[place % len(turns)], place, num_layers, width, length) for place in range(num_layers))


def _fitted(layer: LayerConfig, place: int, num_layers: int, width: int, length: int) -> LayerConfig:
    known = options_of(registry.resolve(MIXERS, layer.mixer, "mixer"))
    wanted: dict[str, Any] = {"short_conv": 3, "layer": place, "num_layers": num_layers, "head_size": min(64, width)}
    if known.get("max_length") == "int":
        wanted["max_length"] = length
    if layer.mixer in ONE_HEAD:
        wanted["num_heads"] = 1
    if layer.mixer in ("sliding_window", "blocked_window"):
        wanted["window"] = max(8, length // 8)
    return LayerConfig(layer.mixer, {name: value for name, value in wanted.items() if name in known} | dict(layer.options))


@dataclass(frozen=True, slots=True)
class Job:
    """One run: everything that determines its outcome."""

    NAMED: ClassVar = ("mixer", "width", "length", "learning_rate")

    mixer: str
    width: int
    length: int
    pairs: int
    learning_rate: float
    vocab: int
    layers: int
    examples: int
    test_examples: int
    steps: int
    batch: int
    seed: int
    stop_above: float
    measured_every: int


def model_of(job: Job) -> LanguageModel:
    """The model of a job, without MLPs, as in Zoology: only the mixers are compared."""
    layers = layers_of(job.mixer, job.width, job.length, job.layers)
    return made_model(job.seed, job.vocab, job.width, layers, mlp="none")


def work(job: Job, device: torch.device) -> dict[str, Any]:
    """Trains the model of a job."""
    training, test = examples_of(job.examples, job.test_examples, job.length, job.pairs, job.vocab, job.seed)
    model = model_of(job)
    recipe = Recipe(job.learning_rate, job.steps, job.batch, job.seed, job.stop_above, job.measured_every)
    state_bytes = BYTES_PER_ELEMENT * model.state_size(job.length)
    return {"state_bytes": state_bytes, **perform(model, training, test, recipe, device)}


@functools.lru_cache(maxsize=1)
def examples_of(num: int, num_test: int, length: int, pairs: int, vocab: int, seed: int) -> tuple[Examples, Examples]:
    """Training and test examples, shared by the runs of a length."""
    made = (mqar_examples(n, length, pairs, vocab, s) for n, s in ((num, seed), (num_test, seed + TEST_SEED)))
    training, test = made
    return training, test


# ---------------------------------------------------------------------------------------------------------------- sweeps


SMALL: dict[str, Any] = {
    "mixers": ["attention", "based", "mamba", "hyena", "base_conv"],
    "widths": [16, 32, 64],
    "lengths": [64],
    "vocab": 8192,
    "learning_rates": [1e-2],
    "examples": 20_000,
    "test_examples": 500,
    "steps": 600,
    "batch": 64,
    "measured_every": 100,
}
FULL: dict[str, Any] = {
    "mixers": ["attention", "based", "mamba", "hyena", "base_conv", "h3", "rwkv4", "retnet", "gla", "sliding_window"],
    "widths": [64, 128, 256, 512],
    "lengths": [64, 128, 256, 512],
    "vocab": 8192,
    "learning_rates": [1e-4, 4.6e-4, 2.2e-3, 1e-2],
    "examples": 100_000,
    "test_examples": 3_000,
    "steps": None,
    "batch": None,
    "measured_every": None,
}
EPOCHS = 64
FULL_BATCH = {64: 512, 128: 512, 256: 256, 512: 128}


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """The jobs of a command line, grouped by length. Raises UserError where lengths and numbers of pairs differ in number."""
    options = chosen(args, FULL if args.full else SMALL)
    lengths = options.pop("lengths")
    pairs = args.pairs or [PAIRS.get(length, max(1, length // 16)) for length in lengths]
    if len(pairs) != len(lengths):
        raise UserError(f"{len(pairs)} numbers for {len(lengths)} lengths", where="--pairs", remedy="give one for each length")
    mixers, widths, rates = (options.pop(name) for name in ("mixers", "widths", "learning_rates"))
    common = options | {"layers": args.layers, "seed": args.seed, "stop_above": args.stop_above}
    grid = product(zip(lengths, pairs, strict=True), mixers, widths, rates)
    return [Job(mixer, width, length, num, rate, **_with_steps(common, length)) for (length, num), mixer, width, rate in grid]


def _with_steps(common: dict[str, Any], length: int) -> dict[str, Any]:
    """Batch, steps and steps between measurements with Zoology's values as defaults: 64 epochs, a measurement after each."""
    batch = common["batch"] or FULL_BATCH.get(length, 128)
    epoch = max(1, common["examples"] // batch)
    return common | {"batch": batch, "steps": common["steps"] or EPOCHS * epoch, "measured_every": common["measured_every"] or epoch}


def show(runs: list[dict[str, Any]]) -> None:
    """Prints the best run of each mixer, width and length."""
    counts = ("length", "pairs", "width", "parameters", "state_bytes", "steps")
    rows = [
        (run["mixer"], *(f"{run[name]:,}" for name in counts), f"{run['learning_rate']:g}", f"{100 * run['accuracy']:.1f} %",
         f"{run['loss_nats']:.3f}", f"{run['seconds']:.0f}")
        for run in best(runs, "length", "mixer", "width")
    ]  # fmt: skip
    headers = ("mixer", "length", "pairs", "width", "parameters", "state bytes", "steps", "rate", "accuracy", "nats", "seconds")
    print_table("MQAR: accuracy: the share of queries whose value is the most likely token, at the best learning rate", headers, rows)


# --------------------------------------------------------------------------------------------------------------- pictures


def figures_of(runs: list[dict[str, Any]]) -> list[Figure]:
    """One picture of two rows: accuracy by width (Zoology's Figure 2), and by size of the state (Based's Figure 2)."""
    from recallkit.display.chart_theme import Figure

    kept = best(runs, "length", "mixer", "width")
    caption = (
        "Accuracy on MQAR at the best learning rate, by width and by bytes of state in float32, for attention the keys and values "
        "of all tokens."
    )
    return [Figure("mqar-training", "Accuracy on multi-query associative recall", caption, functools.partial(_draw, kept))]


def _draw(runs: list[dict[str, Any]], palette: Palette) -> Chart:
    import altair as alt

    lengths = sorted({run["length"] for run in runs})
    rows = [[_panel(runs, length, by, palette) for length in lengths] for by in ("width", "state_bytes")]
    if len(lengths) == 1:
        return alt.hconcat(*(panel for row in rows for panel in row), spacing=24)
    return alt.vconcat(*(alt.hconcat(*row, spacing=24) for row in rows))


def _panel(runs: list[dict[str, Any]], length: int, by: str, palette: Palette) -> alt.LayerChart:
    """Accuracy by `width` or `state_bytes` at a length, a line per mixer; the legend is below the panels."""
    import altair as alt

    from recallkit.display.chart_theme import HEIGHT, WIDTH, model_colours, model_dashes

    shown = [run for run in runs if run["length"] == length]
    mixers = list(dict.fromkeys(run["mixer"] for run in runs))
    reference = mixers[0] if mixers[0] == "attention" else None
    domain, colours = model_colours(mixers, palette, reference)
    dashes = model_dashes(mixers, reference)[1]
    values = [{name: run[name] for name in ("mixer", "accuracy", by)} for run in shown]
    title = f"{'width' if by == 'width' else 'bytes of state'} (length {length}, {shown[0]['pairs']} pairs)"
    ticks = sorted({run["width"] for run in shown}) if by == "width" else _powers([run["state_bytes"] for run in shown])
    axis = alt.Axis(title=title, format="d" if by == "width" else "~s", values=ticks, grid=False)
    base = alt.Chart(alt.Data(values=values)).encode(
        x=alt.X(f"{by}:Q", scale=alt.Scale(type="log", base=2, nice=False, padding=8), axis=axis),
        y=alt.Y("accuracy:Q", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(title="accuracy", format="%", tickCount=5)),
        color=alt.Color("mixer:N", scale=alt.Scale(domain=domain, range=colours), legend=alt.Legend(title=None, columns=5)),
    )
    lines = base.mark_line(strokeWidth=1.75).encode(
        strokeDash=alt.StrokeDash("mixer:N", scale=alt.Scale(domain=domain, range=dashes), legend=None)
    )
    return alt.layer(lines, base.mark_point(filled=True, size=32)).properties(width=WIDTH - 60, height=HEIGHT)


def _powers(sizes: list[int]) -> list[int]:
    """1, 2 and 5 times powers of ten between the smallest and the largest size."""
    marks = [step * 10**power for power in range(1, 12) for step in (1, 2, 5)]
    return [mark for mark in marks if min(sizes) <= mark <= max(sizes)]


# ----------------------------------------------------------------------------------------------------- the command line


def main() -> None:
    """Parses the command line, trains, prints and draws."""
    parser = parser_of(__doc__, "mqar-training")
    parser.add_argument("--mixers", nargs="+", help=f"of {', '.join(dict.fromkeys([*ALTERNATING, *MIXERS]))}")
    parser.add_argument("--widths", type=int, nargs="+")
    parser.add_argument("--lengths", type=int, nargs="+", help="ids a sequence")
    parser.add_argument("--pairs", type=int, nargs="+", help="pairs at each length; else as in Zoology's Figure 2")
    parser.add_argument("--vocab", type=int, help="ids of the vocabulary, half of them values")
    parser.add_argument("--layers", type=int, default=2)
    run_example(parser, Task(TASK, jobs_of, work, show, figures_of))


if __name__ == "__main__":
    main()
