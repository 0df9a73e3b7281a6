"""One run of a sweep: a model, a task, a learning rate; its outcome is a separate file, so that a sweep can be stopped at any time.

It needs torch and what recallkit's models need, nothing else.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from recallkit import registry
from recallkit.config import VERSION
from recallkit.errors import UserError
from recallkit.models.architecture import ArchitectureConfig, LayerConfig
from recallkit.models.mixers import MIXERS, options_of
from recallkit.storage.artifacts import read_json, write_json
from recallkit.storage.given_files import check_regular
from recallkit.synthetic.tasks import NOT_ASKED, identify_task, make_examples
from recallkit.training.loop import BYTES_PER_ELEMENT, Measured, Recipe, Trainer, batches, machine, made_model, mean_of, measure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch

    from recallkit.models.language_model import LanguageModel
    from recallkit.synthetic.tasks import Examples

TAPS = 3
"""Of a short convolution."""
CONVOLUTIONS = ("none", "mixer", "layer")
"""Short convolutions: none; over a mixer's queries, keys and values; a BaseConv in place of every other mixer, as in Zoology's code."""
POSITIONS = ("rotary", "learned", "none")


class Part(NamedTuple):
    """A set of examples of one shape: ids of a sequence, key-value pairs in it, number of examples."""

    length: int
    pairs: int
    examples: int


class Task(NamedTuple):
    """What is trained on, and what it is tested on: a task of `recallkit.synthetic`, its shapes and its options."""

    name: str
    training: tuple[Part, ...]
    test: tuple[Part, ...]
    vocab: int
    options: tuple[tuple[str, Any], ...]
    seed: int

    @property
    def longest(self) -> int:
        """Ids of the longest sequence."""
        return max(part.length for part in (*self.training, *self.test))


@functools.lru_cache(maxsize=1)
def examples_of(task: Task) -> tuple[list[Examples], list[Examples]]:
    """Training and test examples, made once for a task, each set with draws of its own. Raises UserError for what does not fit."""
    made: list[Examples] = []
    parts = (*task.training, *task.test)
    for place, part in enumerate(parts):
        again = sum(other[:2] == part[:2] for other in parts[:place])
        # A seed for each shape, and where it comes again, as in a test on what was trained; torch takes its lowest 32 bits.
        seed = ((part.length << 16) + part.pairs + 0x9E3779B1 * (2 * task.seed + again)) % (1 << 32)
        shape = {"num": part.examples, "length": part.length, "pairs": part.pairs, "vocab": task.vocab}
        made.append(make_examples(task.name, **shape, seed=seed, **dict(task.options)))
    return made[: len(task.training)], made[len(task.training) :]


class Architecture(NamedTuple):
    """A model of a sweep. `model` is the name of its line; `options` are the mixers' own that are not usual."""

    model: str
    mixer: str
    """Several joined by + take turns, layer by layer."""
    convolution: str
    """One of `CONVOLUTIONS`; "own" where a mixer has no such option."""
    options: tuple[tuple[str, Any], ...]
    width: int
    layers: int
    mlp: bool
    positions: str
    """Of attention: one of `POSITIONS`."""

    @property
    def size(self) -> str:
        """The options as text, such as `feature_dim 16`."""
        return ", ".join(f"{name} {value}" for name, value in self.options)


class Job(NamedTuple):
    """One run: everything that determines its outcome."""

    architecture: Architecture
    task: Task
    learning_rate: float
    steps: int
    batch: int
    seed: int
    stop_above: float
    measured_every: int

    @property
    def recipe(self) -> Recipe:
        """Zoology's E.2: AdamW, warm-up over a tenth of the steps; cosine decay and clipping are of its code."""
        return Recipe(self.learning_rate, 0.0, warm_up=0.1, betas=(0.9, 0.98), batch=self.batch)

    @property
    def shown(self) -> str:
        """A readable name."""
        made = self.architecture
        parts = [made.model, f"width {made.width}", made.size, self._shape(), f"rate {self.learning_rate:.2g}"]
        return ", ".join(part for part in parts if part)

    def _shape(self) -> str:
        first, pairs = self.task.training[0], [part.pairs for part in self.task.training]
        return f"{first.length} ids, {' '.join(map(str, pairs))} pairs"

    def identity(self) -> dict[str, Any]:
        """All choices as JSON, except the line's name: a run belongs to every sweep that has it. Of FILE.py:FUNCTION, its code."""
        made = {**self.architecture._asdict(), "options": dict(self.architecture.options)}
        del made["model"]
        task = {**self.task._asdict(), **{name: [list(part) for part in getattr(self.task, name)] for name in ("training", "test")}}
        return {
            **self._asdict(),
            "architecture": made,
            "task": {**task, "name": identify_task(self.task.name), "options": dict(self.task.options)},
        }

    def path(self, folder: Path) -> Path:
        """The file of its outcome, whose name depends on all choices."""
        digest = hashlib.blake2b(json.dumps(self.identity(), sort_keys=True).encode(), digest_size=8).hexdigest()
        made = self.architecture
        readable = re.sub(r"[^a-z0-9_.]+", "-", f"{made.mixer} {made.convolution} {made.width} {made.size} {self.learning_rate:.2g}")
        return folder / "runs" / f"{readable}.{digest}.json"


# --------------------------------------------------------------------------------------------------------------- models


def known_options(mixer: str) -> dict[str, str]:
    """The options of a mixer, or of several joined by +, and their types. Raises UserError for an unknown mixer."""
    return {name: kind for each in mixer.split("+") for name, kind in options_of(registry.resolve(MIXERS, each, "mixer")).items()}


def has_positions(mixer: str) -> bool:
    """Whether a mixer, or one of several joined by +, is attention. (Mamba-3 rotates its state, whatever the model's positions.)"""
    return any({"rope_fraction", "num_heads"} <= known_options(each).keys() for each in mixer.split("+"))


def layers_of(made: Architecture, length: int) -> tuple[LayerConfig, ...]:
    """The layers of a model that reads up to `length` ids. Raises UserError for an unknown mixer.

    Softmax and linear attention have one head, as in Zoology (E.2). `base_conv` is a short filter in every other layer, then one as
    long as the sequence.
    """
    mixers, is_mixed = made.mixer.split("+"), made.convolution == "layer"
    return tuple(
        LayerConfig("base_conv", {"filter": "short", "kernel": TAPS})
        if place % 2 == 0 and (is_mixed or made.mixer == "base_conv")
        else _layer(made, mixers[(place // 2 if is_mixed else place) % len(mixers)], place, length)
        for place in range(made.layers)
    )


def _layer(made: Architecture, mixer: str, place: int, length: int) -> LayerConfig:
    known = known_options(mixer)
    usual: dict[str, Any] = {
        "num_heads": 1,
        "short_conv": TAPS if made.convolution == "mixer" else 0,
        "layer": place,
        "num_layers": made.layers,
        "head_size": min(64, made.width),
    }
    if made.positions != "rotary" and has_positions(mixer):
        usual["rope_fraction"] = 0.0
    if known.get("max_length") == "int" or dict(made.options).get("feature_map") == "cosformer":
        usual["max_length"] = length
    given = {"state": made.width // 4} if mixer == "h3" else {}
    return LayerConfig(mixer, {name: value for name, value in (usual | given | dict(made.options)).items() if name in known})


def model_of(job: Job) -> LanguageModel:
    """The model of a job, untrained: per layer a mixer and an MLP (E.2), or mixers alone."""
    made, length = job.architecture, job.task.longest
    positions: Any = {"positions": "learned", "max_length": length} if made.positions == "learned" else {}
    try:
        config = ArchitectureConfig(job.task.vocab, made.width, layers_of(made, length), mlp="swiglu" if made.mlp else "none", **positions)
    except ValueError as error:
        raise UserError(str(error), where=f"width {made.width}", remedy="choose other sizes") from error
    return made_model(job.seed, config)


# ----------------------------------------------------------------------------------------------------------------- runs


def train_run(job: Job, folder: Path, device: torch.device) -> Iterator[int]:
    """Trains a job's model and writes its outcome, whole or not at all; yields the steps done since the last time, in all `job.steps`.

    It ends at `stop_above`, the mean accuracy of the tests. A batch is of one set of examples; each epoch reads them in another order.
    Raises UserError for sizes that do not fit together.
    """
    model = model_of(job).to(device)
    training, test = examples_of(job.task)
    trainer, recipe = Trainer(model, job.recipe), job.recipe
    begun, done = time.monotonic(), 0
    curve: list[list[float]] = []
    measured: list[Measured] = []
    read = batches([len(some.ids) for some in training], job.batch, job.seed)
    for step, (part, rows) in zip(range(1, job.steps + 1), read, strict=False):
        trainer.step(training[part].ids[rows], training[part].targets[rows], recipe.share(step - 1, job.steps))
        if step < job.steps and step % job.measured_every:
            continue
        measured = [measure(model, some) for some in test]
        curve.append([step, *(round(number, 4) for number in mean_of(measured))])
        yield step - done
        done = step
        if mean_of(measured).accuracy > job.stop_above:
            break
    mean = mean_of(measured)
    outcome = {
        "recallkit_version": VERSION,
        **job.identity(),
        "parameters": model.num_parameters(),
        "state_bytes": BYTES_PER_ELEMENT * model.state_size(max(part.length for part in job.task.test)),
        "accuracy": mean.accuracy,
        "loss_nats": mean.loss_nats,
        "by_pairs": [[*each, int((some.targets != NOT_ASKED).sum())] for each, some in zip(measured, test, strict=True)],
        "num_steps": done,
        "curve": curve,
        "machine": machine(device),
        "seconds": round(time.monotonic() - begun, 1),
    }
    path = job.path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, outcome)
    yield job.steps - done


def read_run(job: Job, folder: Path) -> dict[str, Any] | None:
    """The outcome of a job; None if it has not been run. Raises UserError for a damaged file."""
    path = job.path(folder)
    check_regular(path)
    try:
        return read_json(path) if path.exists() else None
    except UserError as error:
        problem = "damaged, or not the outcome of this run"
        raise UserError(problem, where=path, remedy="remove it: the same command makes it again") from error
