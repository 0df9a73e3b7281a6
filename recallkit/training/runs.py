"""The runs of a sweep: each a model, a task and a learning rate, as a preset and a user's choices
have them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from recallkit import registry
from recallkit.declarations import names, numbers
from recallkit.errors import UsageError, UserError
from recallkit.models.architecture import ArchitectureConfig, LayerConfig
from recallkit.models.mixers import MIXERS, options_of
from recallkit.storage import hashing
from recallkit.synthetic.tasks import (
    identify_task,
    make_examples,
    options_of_task,
    task_of,
    value_of,
)
from recallkit.training.presets import AS_WIDE, PRESETS, Line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from recallkit.options import SweepOptions
    from recallkit.training.presets import Preset, Shape

TAPS = 3
"""Of the short filter of a BaseConv."""


_OF_RUN = ("learning_rate", "batch", "steps", "measured_every", "seed")
_OF_PRESET = ("examples", "test_examples", "vocab", "steps", "batch", "layers")


class Part(NamedTuple):
    """A set of examples of one shape: ids of a sequence, key-value pairs in it, number of
    examples."""

    length: int
    pairs: int
    examples: int


class Task(NamedTuple):
    """What is trained on, and what it is tested on: a task of `recallkit.synthetic`, its shapes and
    its options."""

    name: str
    training: tuple[Part, ...]
    test: tuple[Part, ...]
    vocab: int
    options: tuple[tuple[str, Any], ...]
    seed: int

    @property
    def shown(self) -> str:
        """The task, what is trained on, and what is tested on where that differs."""
        name = ", ".join([self.name, *(f"{option} {value}" for option, value in self.options)])
        trained, tested = _shape(self.training), _shape(self.test)
        if trained == tested:
            return f"{name}: {trained}"
        return f"{name}: trained on {trained}, tested on {tested}"


class Run(NamedTuple):
    """Everything that determines an outcome; and how the model is called: the line of the figure,
    and its options as text."""

    line: str
    size: str
    config: ArchitectureConfig
    task: Task
    learning_rate: float
    batch: int
    steps: int
    measured_every: int
    seed: int

    def identity(self) -> dict[str, Any]:
        """All choices as JSON, without the names: a run belongs to every sweep that has it. Of
        functions and plug-ins, their code."""
        task = self.task._asdict()
        task |= {"name": identify_task(self.task.name), "options": dict(self.task.options)}
        choices = {name: getattr(self, name) for name in _OF_RUN}
        return {"config": self.config.identity(), "task": task, **choices}

    @property
    def digest(self) -> str:
        """Of its identity: the name of its file."""
        return hashing.digest_json(self.identity())[:16]


def runs_of(name: str, task: str, choices: SweepOptions) -> list[Run]:
    """The runs of a preset on a task, changed by the choices: grouped by task, the learning rates
    of a model next to each other.

    `task`: a name, and its options after commas. Raises UserError for names that there are not, and
    for sizes that do not fit together.
    """
    preset = _changed(PRESETS[name], choices)
    further, used = _options(names(choices.mixer_options)), set[str]()
    runs: dict[str, Run] = {}
    for shapes in preset.tasks:
        examples = _task(preset, task, choices, *shapes)
        for label in names(choices.mixers) or preset.lines:
            line = preset.lines.get(label, Line(label))
            mixers = line.mixers.split("+")
            known = {option for mixer in mixers for option in _known(mixer)}
            options: dict[str, Sequence[Any]] = dict(line.options)
            options |= {option: values for option, values in further.items() if option in known}
            used |= options.keys()
            widths = numbers(choices.widths) or line.widths or preset.widths
            for width, *values in itertools.product(widths, *options.values()):
                sizes = dict(zip(options, values, strict=True))
                sizes = {name: width if size == AS_WIDE else size for name, size in sizes.items()}
                size = ", ".join(f"{option} {value}" for option, value in sizes.items())
                config = _config(mixers, sizes, width, preset, examples)
                steps = _steps(preset, examples, width)
                for rate in preset.learning_rates:
                    run = Run(label, size, config, examples, rate, *steps, choices.seed)
                    runs.setdefault(run.digest, run)
    if unused := sorted(further.keys() - used):
        problem = f"none of these mixers has the option {unused[0]}"
        raise UsageError(problem, where="--mixer-options", remedy="leave it out")
    return list(runs.values())


def _changed(preset: Preset, choices: SweepOptions) -> Preset:
    """A preset with these choices in the place of its sizes and rates."""
    changes = {name: getattr(choices, name) for name in _OF_PRESET}
    rates: Any = choices.learning_rates
    changes["learning_rates"] = numbers(rates) or None
    changes = {name: value for name, value in changes.items() if value is not None}
    return replace(preset, **changes)


def _options(words: Sequence[str]) -> dict[str, list[Any]]:
    """feature_dim=4,8,window=16 -> {"feature_dim": [4, 8], "window": [16]}."""
    options: dict[str, list[Any]] = {}
    option = ""
    for word in ",".join(words).split(",") if words else ():
        name, _, value = word.rpartition("=")
        option = name or option
        if not option or not value:
            remedy = "write feature_dim=4,8,window=16"
            problem = f"{word!r} is not the value of an option"
            raise UsageError(problem, where="--mixer-options", remedy=remedy)
        options.setdefault(option, []).append(value_of(value))
    return options


def _task(preset: Preset, task: str, choices: SweepOptions, training: Shape, test: Shape) -> Task:
    """What is trained on and tested on, each number of pairs with an equal part of the examples.
    One of each is made, to see if it fits.

    A length or pairs that are chosen for training alone apply to the tests, too, where both are
    equal in the preset.
    """
    name, options = task_of(task)
    known = options_of_task(name)
    usual = {option: value for option, value in preset.options.items() if option in known}
    options = usual | options
    trained = (choices.seq_len or training[0], numbers(choices.pairs) or training[1])
    tested = trained if training == test else test
    tested = (choices.test_seq_len or tested[0], numbers(choices.test_pairs) or tested[1])

    def parts(length: int, pairs: Sequence[int], where: str, examples: int) -> tuple[Part, ...]:
        if examples < len(pairs):
            problem = f"fewer than {len(pairs)} numbers of pairs"
            raise UsageError(problem, where=where, remedy="give more")
        sizes = {"num": 1, "length": length, "vocab": preset.vocab, "seed": 0}
        for number in pairs:
            make_examples(name, pairs=number, **sizes, **options)
        return tuple(Part(length, number, examples // len(pairs)) for number in pairs)

    of_training = parts(*trained, "--examples", preset.examples)
    of_test = parts(*tested, "--test-examples", preset.test_examples)
    chosen = tuple(sorted(options.items()))
    return Task(name, of_training, of_test, preset.vocab, chosen, choices.seed)


def _steps(preset: Preset, task: Task, width: int) -> tuple[int, int, int]:
    """Sequences a step, steps, and after how many of these accuracy is measured: each epoch, or
    each eighth of the steps."""
    # Zoology, E.2: 8 where the length or the width is 512 or more, 16 from 256 on, else 64.
    largest = max(width, *(part.length for part in task.training))
    batch = preset.batch or (8 if largest >= 512 else 16 if largest >= 256 else 64)
    fewest = min(part.examples for part in task.training)
    if batch > fewest:
        problem = f"{batch:,} is more than the {fewest:,} examples per number of pairs"
        raise UsageError(problem, where="--batch", remedy="give fewer")
    epoch = sum(part.examples // batch for part in task.training)
    steps = preset.steps or preset.epochs * epoch
    return batch, steps, min(epoch, max(1, steps // 8))


def _known(mixer: str) -> dict[str, str]:
    """The options of a mixer and their types. Raises UserError for an unknown one."""
    return options_of(registry.resolve(MIXERS, mixer, "mixer"))


def _config(
    mixers: Sequence[str],
    options: Mapping[str, Any],
    width: int,
    preset: Preset,
    task: Task,
) -> ArchitectureConfig:
    """A model: per layer a mixer and an MLP (Zoology, E.2), or mixers alone. Raises UserError where
    its sizes are incompatible.

    Attention has positions unless a short convolution or a BaseConv comes before it.
    """
    length = max(part.length for part in (*task.training, *task.test))
    taps = options.get("short_conv", 0 if "base_conv" in mixers else preset.taps)
    positions = "none" if taps or "base_conv" in mixers else preset.positions
    is_learned = positions == "learned" and any(map(_has_positions, mixers))
    more: dict[str, Any] = {"positions": "learned", "max_length": length} if is_learned else {}
    more["mlp"] = "swiglu" if preset.mlp else "none"
    options = {"short_conv": taps, **options}
    layers = tuple(_layers(mixers, options, width, preset.layers, positions, length))
    try:
        return ArchitectureConfig(task.vocab, width, layers, **more)
    except ValueError as error:
        raise UserError(str(error), where=f"width {width}", remedy="choose other sizes") from error


def _layers(
    mixers: Sequence[str],
    options: Mapping[str, Any],
    width: int,
    number: int,
    positions: str,
    length: int,
) -> Iterator[LayerConfig]:
    """Softmax and linear attention have one head, as in Zoology (E.2).

    A BaseConv has a short filter in the first layer and every other one, as in Zoology's code, else
    one as long as the sequence.
    """
    for place in range(number):
        mixer = mixers[place % len(mixers)]
        if mixer == "base_conv" and place % 2 == 0:
            yield LayerConfig(mixer, {"filter": "short", "kernel": TAPS})
            continue
        known = _known(mixer)
        usual: dict[str, Any] = {
            "num_heads": 1,
            "layer": place,
            "num_layers": number,
            "head_size": min(64, width),
        }
        if positions != "rotary" and _has_positions(mixer):
            usual["rope_fraction"] = 0.0
        if known.get("max_length") == "int" or options.get("feature_map") == "cosformer":
            usual["max_length"] = length
        if mixer == "h3":
            usual["state"] = width // 4
        every = {**usual, **options}
        yield LayerConfig(mixer, {name: every[name] for name in every if name in known})


def _has_positions(mixer: str) -> bool:
    """Whether a mixer is attention. (Mamba-3 rotates its state, whatever the model's positions.)"""
    return {"rope_fraction", "num_heads"} <= _known(mixer).keys()


def _shape(parts: Sequence[Part]) -> str:
    lengths = " ".join(map("{:,}".format, sorted({part.length for part in parts})))
    pairs = sorted({part.pairs for part in parts})
    rest = f" to {pairs[-1]}" if len(pairs) > 1 else ""
    return f"{lengths} ids with {pairs[0]}{rest} pairs"
