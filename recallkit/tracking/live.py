"""Recall in a training loop: a small sample of text is scored with the model as it is, in seconds, and the table grows by a row."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.config import BUILTIN_SEQ_LEN
from recallkit.display import console
from recallkit.display.notebook import Shown
from recallkit.errors import UsageError, UserError
from recallkit.models.spec import ModelSpec, list_models
from recallkit.options import ScoringOptions
from recallkit.storage import artifacts
from recallkit.tracking.run import TrackedRun
from recallkit.tracking.tables import make_tables
from recallkit.tracking.view import look

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

    import polars as pl

SAMPLE_TOKENS = 20_000
"""Tokens that are scored each time."""

SAMPLED_HITS = 200
"""AR hits of them that are sampled, at most; the changed text has about twice as many tokens."""

METRICS = {
    "recall/ar_nll": "ar_nll",
    "recall/first_nll": "first_nll",
    "recall/other_nll": "other_nll",
    "recall/recalled_nats": "recall",
    "recall/ar_gap": "ar_gap",
}
"""What trainers log -> the column of `TrackTables.track`."""


class Tracker(Shown):
    """Follows the recall of a model while it is trained:

        tracker = recallkit.Tracker(sample_tokens=20_000)
        ...
        metrics = tracker.log(step, model)          # every few hundred steps

    It scores `sample_tokens` of the built-in text, or a slice directory (`slices`) as a whole, and writes `track.parquet` to `out`, the
    same table as `recallkit track`; `recallkit report OUT` draws it. Printed, it says what `recallkit track` would say; `chart()` is the
    curve, from the second step on. `tokenizer`: the model's, where it is not that of the slices: its NLLs are then aligned to the slices'
    tokens. `reference`: a model to compare with, scored once. An `out` that has rows of an earlier part of the run is continued. Raises
    UserError for everything a user can correct.
    """

    def __init__(
        self,
        *,
        sample_tokens: int | None = None,
        slices: str | PathLike[str] | None = None,
        reference: Any = None,
        tokenizer: Any = None,
        out: str | PathLike[str] = "track",
        device: str = "auto",
        force: bool = False,
    ) -> None:
        if sample_tokens is not None and slices is not None:
            problem = "slices are scored as they are"
            raise UsageError(
                problem, where="sample_tokens", remedy="leave it out, or draw slices of so many: `recallkit slice --sample 20k`"
            )
        if sample_tokens is not None and (type(sample_tokens) is not int or sample_tokens < 1):
            raise UsageError(f"{sample_tokens!r} is not a number of tokens", where="sample_tokens", remedy="give one such as 20_000")
        folder = Path(out)
        chosen = Path(slices) if slices is not None else _sample(folder / "slices", sample_tokens or SAMPLE_TOKENS)
        self._tokenizer = tokenizer
        self._name = f"run {artifacts.digest_json(str(folder.resolve()))[:6]}"
        """Begins the names of its scores, so that runs that share slices do not share them."""
        [first] = list_models(reference) if reference is not None else [None]
        self._run = TrackedRun(chosen, folder, first, ScoringOptions(device=device), SAMPLED_HITS, force, quiet=True)
        if not force:
            self._continue(folder / "track.parquet")
        self._update()

    def log(self, step: int, model: Any) -> dict[str, float]:
        """Scores `model`, a torch.nn.Module that maps ids to logits or a transformers model, after `step` steps; returns METRICS by name.

        These are in nats per token; `recall/ar_gap` is there with a reference. All columns and intervals are in `table`. The model is left
        as it was, in the mode and on the device where it was, and no random number generator of torch is moved. A step that was logged
        before is replaced.
        """
        if isinstance(step, bool) or not hasattr(step, "__index__") or step < 0:
            raise UsageError(f"{step!r} is not a step", where="step", remedy="give the number of steps done")
        if any(weight.device_mesh.size() > 1 for weight in getattr(model, "parameters", tuple)() if hasattr(weight, "device_mesh")):
            problem = "its weights are sharded over processes, of which each would wait for the others"
            raise UserError(problem, where="model", remedy="follow its checkpoints with `recallkit track`")
        step = int(step)
        spec = ModelSpec(model, f"{self._name} step {step}", tokenizer=self._tokenizer)
        with _random_state_kept():
            self._run.score([spec], force=True)
        self._run.add(step, spec)
        self._update()
        row = next(row for row in self.table.to_dicts() if row["step"] == step)
        return {name: row[column] for name, column in METRICS.items() if row[column] is not None}

    @property
    def table(self) -> pl.DataFrame:
        """The rows so far, see `TrackTables`."""
        return self._rows.track

    def attach(self, trainer: Any, every: int | None = None) -> None:
        """Logs the model of a `transformers.Trainer` every so many steps; without a number, whenever the Trainer evaluates.

        The Trainer logs the metrics as its own, to its `state.log_history` and wherever it reports to.
        """
        from transformers import TrainerCallback

        def log(state: Any, control: Any, model: Any) -> None:
            if state.is_world_process_zero:
                is_due = control.should_log  # logging settles what is due, and the Trainer's loss of this step is still to come
                trainer.log(self.log(state.global_step, model))
                control.should_log = is_due

        class Recall(TrainerCallback):  # type: ignore[misc]
            """Logs the model's recall."""

            def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
                if every is not None and state.global_step % every == 0:
                    log(state, control, model)

            def on_evaluate(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
                if every is None:
                    log(state, control, model)

        trainer.add_callback(Recall())

    def _update(self) -> None:
        """Writes the tables of what is scored, and shows them from now on."""
        if not self._run.scores:
            self._rows = make_tables([], self._run.hits)
            self.show_as(lambda: console.print_line("No step is logged yet."), tuple, lambda models: ())
            return
        self._rows = tables = self._run.write()
        seen = functools.cache(lambda: look(self._run.out, tables))
        self.show_as(lambda: seen().print(), lambda: list(seen().shown.values()), lambda models: seen().figures(models))

    def _continue(self, path: Path) -> None:
        """Takes over the rows of an earlier part of the run whose scores exist."""
        if not path.exists():
            return
        steps = artifacts.read_manifest(path).get("steps")
        for step, name in (steps if isinstance(steps, dict) else {}).items():
            scores = self._run.slices / "scores" / Path(str(name)).name
            if step.isdecimal() and scores.is_file() and (self._run.hits.changed.folder / "scores" / scores.name).is_file():
                self._run.scores[int(step)] = str(artifacts.read_manifest(scores)["model"]), scores


def _sample(folder: Path, num_tokens: int) -> Path:
    """The first tokens of the built-in text as a slice directory, made where it is missing."""
    from recallkit import builtin, slicing

    text = dataclasses.replace(builtin.VALIDATION_TEXT, limit_tokens=num_tokens)
    try:
        slicing.slice_text(text, folder, counts=builtin.counts(), seq_len=BUILTIN_SEQ_LEN)
    except UserError as error:
        raise UserError(error.problem, where=error.where, remedy="choose another `out`") from error
    return folder


@contextlib.contextmanager
def _random_state_kept() -> Iterator[None]:
    """A block after which torch's generators, those of GPUs included, are where they were."""
    import torch

    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
