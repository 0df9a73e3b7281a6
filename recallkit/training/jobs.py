"""One run of a sweep: a model, a task, a learning rate; its outcome is a separate file, so that a sweep can be stopped at any time.

It needs torch and what recallkit's models need, nothing else.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from recallkit import registry
from recallkit.config import VERSION
from recallkit.errors import UserError
from recallkit.models.architecture import LayerConfig
from recallkit.models.mixers import MIXERS, options_of
from recallkit.storage.artifacts import read_json, write_json
from recallkit.storage.given_files import check_regular
from recallkit.training.loop import BYTES_PER_ELEMENT, Measured, Recipe, machine, made_model, mean_of, train
from recallkit.training.sequences import Task, examples_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch

    from recallkit.models.language_model import LanguageModel

WARM_UP = 0.1
"""Share of the steps in which the learning rate rises: Zoology, E.2."""
TAPS = 3
"""Of a short convolution."""
CONVOLUTIONS = ("none", "mixer", "layer")
"""Short convolutions: none; over a mixer's queries, keys and values; a BaseConv in place of every other mixer, as in Zoology's code."""


class Architecture(NamedTuple):
    """A model of a sweep. `model` is the name of its line; `options` are the mixer's own that are not usual."""

    model: str
    mixer: str
    convolution: str
    """One of `CONVOLUTIONS`; "own" where a mixer has no such option."""
    options: tuple[tuple[str, Any], ...]
    width: int
    layers: int
    mlp: bool

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
    def shown(self) -> str:
        """A readable name."""
        made = self.architecture
        parts = [made.model, f"width {made.width}", made.size, self._shape(), f"rate {self.learning_rate:.2g}"]
        return ", ".join(part for part in parts if part)

    def _shape(self) -> str:
        first, pairs = self.task.training[0], [part.pairs for part in self.task.training]
        return f"{first.length} ids, {' '.join(map(str, pairs))} pairs"

    def identity(self) -> dict[str, Any]:
        """All choices as JSON, except the line's name: a run belongs to every sweep that has it."""
        made = {**self.architecture._asdict(), "options": dict(self.architecture.options)}
        del made["model"]
        task = {**self.task._asdict(), **{name: [list(part) for part in getattr(self.task, name)] for name in ("training", "test")}}
        return {**self._asdict(), "architecture": made, "task": task}

    def path(self, folder: Path) -> Path:
        """The file of its outcome, whose name depends on all choices."""
        digest = hashlib.blake2b(json.dumps(self.identity(), sort_keys=True).encode(), digest_size=8).hexdigest()
        made = self.architecture
        readable = re.sub(r"[^a-z0-9_.]+", "-", f"{made.mixer} {made.convolution} {made.width} {made.size} {self.learning_rate:.2g}")
        return folder / "runs" / f"{readable}.{digest}.json"


# --------------------------------------------------------------------------------------------------------------- models


def known_options(mixer: str) -> dict[str, str]:
    """The options of a mixer and their types. Raises UserError for an unknown mixer."""
    return options_of(registry.resolve(MIXERS, mixer, "mixer"))


def layers_of(made: Architecture, length: int) -> tuple[LayerConfig, ...]:
    """The layers of a model that reads up to `length` ids. Raises UserError for an unknown mixer.

    Softmax and linear attention have one head, as in Zoology (E.2). Attention has rotary positions only where no short
    convolution precedes it. `base_conv` is a short filter in every other layer, then one as long as the sequence.
    """
    return tuple(_layer(made, place, length) for place in range(made.layers))


def _layer(made: Architecture, place: int, length: int) -> LayerConfig:
    if place % 2 == 0 and (made.convolution == "layer" or made.mixer == "base_conv"):
        return LayerConfig("base_conv", {"filter": "short", "kernel": TAPS})
    known = known_options(made.mixer)
    usual: dict[str, Any] = {
        "num_heads": 1,
        "short_conv": TAPS if made.convolution == "mixer" else 0,
        "layer": place,
        "num_layers": made.layers,
        "head_size": min(64, made.width),
    }
    if made.convolution in ("mixer", "layer"):
        usual["rope_fraction"] = 0.0
    if known.get("max_length") == "int" or dict(made.options).get("feature_map") == "cosformer":
        usual["max_length"] = length
    given = {"state": made.width // 4} if made.mixer == "h3" else {}
    return LayerConfig(made.mixer, {name: value for name, value in usual.items() if name in known} | given | dict(made.options))


def model_of(job: Job) -> LanguageModel:
    """The model of a job, untrained: per layer a mixer and an MLP (E.2), or mixers alone."""
    made = job.architecture
    mlp = "swiglu" if made.mlp else "none"
    return made_model(job.seed, job.task.vocab, made.width, layers_of(made, job.task.longest), mlp=mlp)


# ----------------------------------------------------------------------------------------------------------------- runs


def train_run(job: Job, folder: Path, device: torch.device) -> Iterator[int]:
    """Trains a job's model and writes its outcome, whole or not at all; yields the steps done since the last time, in all `job.steps`.

    Raises UserError for sizes that do not fit together.
    """
    model = model_of(job).to(device)
    training, test = ([some.to(device) for some in examples] for examples in examples_of(job.task))
    recipe = Recipe(job.learning_rate, job.steps, job.batch, job.seed, job.stop_above, job.measured_every, WARM_UP, None)
    begun, done = time.monotonic(), 0
    curve: list[list[float]] = []
    measured: list[Measured] = []
    for step, measured in train(model, training, test, recipe):
        curve.append([step, *(round(number, 4) for number in mean_of(measured))])
        yield step - done
        done = step
    mean = mean_of(measured)
    outcome = {
        "recallkit_version": VERSION,
        **job.identity(),
        "parameters": model.num_parameters(),
        "state_bytes": BYTES_PER_ELEMENT * model.state_size(max(part.length for part in job.task.test)),
        "accuracy": mean.accuracy,
        "loss_nats": mean.loss_nats,
        "by_pairs": [list(each) for each in measured],
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
