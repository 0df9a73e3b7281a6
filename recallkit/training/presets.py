"""Sweeps of the papers' figures as data, and the runs that a sweep consists of."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from recallkit.declarations import names, numbers
from recallkit.errors import UsageError
from recallkit.synthetic.tasks import make_examples, options_of_task, task_of
from recallkit.training.jobs import CONVOLUTIONS, Architecture, Job, Part, Task, has_positions, known_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from recallkit.options import SweepOptions

AS_WIDE = "width"
"""In place of a number: the model's width."""


class Family(NamedTuple):
    """Models of one line of a figure: every combination of width and options."""

    mixer: str
    """Several joined by + take turns, layer by layer."""
    convolution: str = "own"
    options: Mapping[str, tuple[Any, ...]] = {}
    widths: tuple[int, ...] = ()
    """Empty: those of the preset."""


Shape = tuple[int, tuple[int, ...]]
"""Ids of a sequence, and numbers of pairs."""


@dataclass(frozen=True)
class Preset:
    """A sweep. `tasks` are pairs of what is trained on and what is tested on, each a length and numbers of pairs."""

    what: str
    tasks: tuple[tuple[Shape, Shape], ...]
    families: Mapping[str, Family]
    """By the names of their lines."""
    widths: tuple[int, ...]
    learning_rates: tuple[float, ...]
    examples: int = 100_000
    """Training sequences an epoch, of all numbers of pairs together."""
    test_examples: int = 3_000
    """Test sequences, likewise."""
    vocab: int = 8192
    epochs: int = 64
    steps: int | None = None
    """Instead of epochs."""
    batch: int | None = None
    """None: 8, 16 or 64 by length and width, as in Zoology's E.2."""
    layers: int = 2
    mlp: bool = True
    options: tuple[tuple[str, Any], ...] = ()
    """Of the task."""
    positions: str = "rotary"
    """Of attention before which there is no short convolution; with one it has none."""


def _alone(*shapes: tuple[int, int]) -> tuple[tuple[Shape, Shape], ...]:
    """Tasks that are tested on what they train."""
    return tuple(((length, (pairs,)), (length, (pairs,))) for length, pairs in shapes)


ZOOLOGY_RATES = (1e-4, 4.641589e-4, 2.154435e-3, 1e-2)
"""logspace(-4, -2, 4): Zoology, E.2."""
BASED_RATES = (1e-3, 3.162278e-3, 1e-2, 3.162278e-2)
"""logspace(-3, -1.5, 4): the code published with Based; the paper gives none."""
RANDOM = (("filler", "random"),)
"""Ids between pairs and questions: of the authors' code since October 2023, and of Based's Figures 2 and 3."""
MIXED: tuple[Shape, Shape] = ((256, (4, 8, 16, 32, 64)), (1024, (4, 8, 16, 32, 64, 128, 256)))
"""Based, 3.1: trained on 256 ids with 4 to 64 pairs, tested on 1,024 with 4 to 256."""

_LONG = {"attention": Family("attention", "none"), "hyena": Family("hyena")}
_TAYLOR = {f"taylor {size}": Family("linear_attention", "layer", {"feature_map": ("taylor",), "feature_dim": (size,)}) for size in (16, 24)}
_MAPS = ("elu", "identity", "relu", "square", "cosformer", "performer")

PRESETS: Mapping[str, Preset] = {
    "cpu": Preset(
        "about 20 minutes of one core: trained on 64 ids with 4 to 16 pairs, tested on 256 with 4 to 64",
        (((64, (4, 8, 16)), (256, (4, 8, 16, 32, 64))),),
        {
            "attention": Family("attention", "mixer", widths=(16, 32)),
            "sliding_window": Family("sliding_window", "mixer", {"window": (8, 32, 128)}),
            "linear_attention": Family("linear_attention", "mixer", {"feature_dim": (4, 8, 16)}),
            "linear_attention alone": Family("linear_attention", "none", {"feature_dim": (4, 8, 16)}),
            "window alone": Family("sliding_window", "none", {"window": (16,)}),
            "linear_attention + window": Family("linear_attention+sliding_window", "none", {"feature_dim": (4, 8, 16), "window": (16,)}),
            "delta_net": Family("delta_net", "mixer", widths=(16, 32)),
            "mamba": Family("mamba", "own", {"state": (4, 16)}),
        },
        widths=(32,),
        learning_rates=BASED_RATES,
        examples=30_000,
        test_examples=500,
        vocab=256,
        steps=600,
        batch=32,
    ),
    "zoology:2": Preset(
        "Zoology, Figure 2: accuracy by width, at four lengths",
        _alone((64, 4), (128, 8), (256, 16), (512, 64)),
        {
            **_LONG,
            "base_conv": Family("base_conv"),
            "rwkv4": Family("rwkv4"),
            "h3": Family("h3"),
            "programmatic_conv": Family("programmatic_conv"),
            "autocorrelation_conv": Family("autocorrelation_conv"),
            "base_conv + attention": Family("attention", "layer"),
        },
        widths=(64, 128, 256, 512),
        learning_rates=ZOOLOGY_RATES,
        positions="learned",
    ),
    "zoology:6": Preset(
        "Zoology, Figure 6: accuracy by width, for four numbers of pairs in 256 ids",
        _alone((256, 8), (256, 16), (256, 32), (256, 64)),
        {
            **_LONG,
            "retnet": Family("retnet", "none"),
            **{f"sliding_window {size}": Family("sliding_window", "none", {"window": (size,)}) for size in (8, 32)},
            **{f"blocked_window {size}": Family("blocked_window", "none", {"window": (size,)}) for size in (8, 32)},
        },
        widths=(64, 128, 256),
        learning_rates=ZOOLOGY_RATES,
        positions="learned",
    ),
    "based:2": Preset(
        "Based, Figure 2: accuracy by bytes of state",
        (MIXED,),
        {
            "attention": Family("attention", "layer", widths=(64, 128)),
            "sliding_window": Family("sliding_window", "layer", {"window": (8, 16, 32, 64, 128, 256, 512, 1024)}, widths=(128,)),
            "mamba": Family("mamba", "own", {"state": (8, 16, 24)}),
            "h3": Family("h3"),
            "hyena": Family("hyena"),
            "based": Family("linear_attention", "layer", {"feature_dim": (8, 16, 24)}, widths=(48, 64, 128)),
        },
        widths=(64, 128, 256),
        learning_rates=BASED_RATES,
        test_examples=7_000,
        epochs=32,
        batch=256,
        mlp=False,
        options=RANDOM,
    ),
    "based:3": Preset(
        "Based, Figure 3: feature maps of linear attention, at 256 pairs",
        ((MIXED[0], (1024, (256,))),),
        {**_TAYLOR, **{name: Family("linear_attention", "layer", {"feature_map": (name,), "feature_dim": (AS_WIDE,)}) for name in _MAPS}},
        widths=(64, 128, 192, 256, 320, 384, 448, 512),
        learning_rates=BASED_RATES,
        test_examples=1_000,
        epochs=32,
        batch=256,
        mlp=False,
        options=RANDOM,
    ),
}
"""The sweeps of figures, by paper and number, and a small one."""

SWEPT = {"feature_dims": "feature_dim", "feature_maps": "feature_map", "windows": "window", "state_sizes": "state"}
"""Lists of a sweep -> the mixers' option that they are of."""


_ADDED = {"none": " alone", "mixer": " + conv", "layer": " + layer"}


def jobs_of(name: str, task: str, choices: SweepOptions) -> list[Job]:
    """The runs of a preset on a task, changed by the choices: grouped by task, the learning rates of a model next to each other.

    `task`: a name, and its options after commas.

    Raises UserError for names that there are not, and for sizes that do not fit together.
    """
    if name not in PRESETS:
        raise UsageError(f"no preset {name}", where="--preset", remedy=f"give one of {', '.join(PRESETS)}")
    for kind in names(choices.convolutions):
        if kind not in CONVOLUTIONS:
            raise UsageError(f"{kind!r} is not one of {', '.join(CONVOLUTIONS)}", where="--convolutions", remedy="give some of them")
    preset = _changed(PRESETS[name], choices)
    tasks = [_task(preset, task, choices.seed, *shapes) for shapes in preset.tasks]
    models = [made for line, family in preset.families.items() for made in _architectures(preset, choices, line, family)]
    unused = [named for named, option in SWEPT.items() if _chosen(choices, named) and not any(option in dict(m.options) for m in models)]
    if unused:
        where = f"--{unused[0].replace('_', '-')}"
        raise UsageError(f"none of these mixers has the option {SWEPT[unused[0]]}", where=where, remedy="leave it out")
    jobs = [_job(preset, choices, task, made, rate) for task in tasks for made in models for rate in preset.learning_rates]
    return list(dict.fromkeys(jobs))


def _chosen(choices: SweepOptions, name: str) -> tuple[Any, ...]:
    """The values of one of the lists."""
    given = getattr(choices, name)
    return tuple(names(given) if name == "feature_maps" else numbers(given))


def _changed(preset: Preset, choices: SweepOptions) -> Preset:
    """The preset with what is chosen in its place."""
    found = {name: getattr(choices, name) for name in ("examples", "test_examples", "vocab", "steps", "batch", "layers")}
    found |= {"learning_rates": _chosen(choices, "learning_rates"), "mlp": {None: None, "yes": True, "no": False}[choices.mlp]}
    changed = {name: value for name, value in found.items() if value not in (None, ())}
    return replace(preset, tasks=_shapes(preset, choices), families=_lines(preset, choices), **changed)


def _shapes(preset: Preset, choices: SweepOptions) -> tuple[tuple[Shape, Shape], ...]:
    """What each task trains on and is tested on. A length or pairs for training alone apply to the tests, too, where those were equal."""
    found = []
    for training, test in preset.tasks:
        trained = (choices.seq_len or training[0], _chosen(choices, "pairs") or training[1])
        base = trained if training == test else test
        found.append((trained, (choices.test_seq_len or base[0], _chosen(choices, "test_pairs") or base[1])))
    return tuple(dict.fromkeys(found))


def _task(preset: Preset, named: str, seed: int, training: Shape, test: Shape) -> Task:
    """Each number of pairs gets an equal part of the examples."""
    made = []
    for (length, pairs), examples, where in ((training, preset.examples, "--examples"), (test, preset.test_examples, "--test-examples")):
        if examples < len(pairs):
            raise UsageError(f"fewer than {len(pairs)} numbers of pairs", where=where, remedy="give more")
        made.append(tuple(Part(length, number, examples // len(pairs)) for number in pairs))
    name, options = task_of(named)
    usual = {option: value for option, value in preset.options if option in options_of_task(name)}
    task = Task(name, made[0], made[1], preset.vocab, tuple(sorted((usual | options).items())), seed)
    for part in (*task.training, *task.test):  # what does not fit is reported before hours of work
        make_examples(name, num=1, length=part.length, pairs=part.pairs, vocab=task.vocab, seed=0, **dict(task.options))
    return task


def _lines(preset: Preset, choices: SweepOptions) -> dict[str, Family]:
    """The lines of the figure: with `convolutions`, one for each where the mixer can have one."""
    found = {}
    for name in names(choices.mixers) or preset.families:
        has_choice = "short_conv" in known_options(preset.families[name].mixer if name in preset.families else name)
        family = preset.families.get(name) or Family(name, "mixer" if has_choice else "own")
        kinds = (has_choice and names(choices.convolutions)) or [family.convolution]
        for kind in kinds:
            line = name if len(kinds) == 1 else f"{family.mixer}{_ADDED[kind]}"
            found[line] = family._replace(convolution=kind)
    return found


def _architectures(preset: Preset, choices: SweepOptions, line: str, family: Family) -> list[Architecture]:
    """The models of a line: every combination of its widths and options."""
    known = known_options(family.mixer)
    options = dict(family.options) | {
        option: given for named, option in SWEPT.items() if (given := _chosen(choices, named)) and option in known
    }
    positions = choices.positions or ("none" if family.convolution in ("mixer", "layer") else preset.positions)
    if not has_positions(family.mixer):
        positions = "none"
    made = []
    for width in _chosen(choices, "widths") or family.widths or preset.widths:
        for values in itertools.product(*options.values()):
            own = tuple((name, width if value == AS_WIDE else value) for name, value in zip(options, values, strict=True))
            made.append(Architecture(line, family.mixer, family.convolution, own, width, preset.layers, preset.mlp, positions))
    return made


def _job(preset: Preset, choices: SweepOptions, task: Task, made: Architecture, rate: float) -> Job:
    batch = preset.batch or paper_batch(max(part.length for part in task.training), made.width)
    fewest = min(part.examples for part in task.training)
    if batch > fewest:
        raise UsageError(f"{batch:,} is more than the {fewest:,} examples of a number of pairs", where="--batch", remedy="give fewer")
    epoch = sum(part.examples // batch for part in task.training)
    steps = preset.steps or preset.epochs * epoch
    return Job(made, task, rate, steps, batch, choices.seed, choices.stop_above, min(epoch, max(1, steps // 8)))


def paper_batch(length: int, width: int) -> int:
    """Sequences a step: 8 where the length or the width is 512 or more, 16 from 256 on, else 64 (Zoology, E.2)."""
    largest = max(length, width)
    return 8 if largest >= 512 else 16 if largest >= 256 else 64
