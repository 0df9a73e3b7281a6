"""Recall in a training loop: a small sample of text is scored with the model as it is, in seconds,
and the table grows by a row."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.config import BUILTIN_SEQ_LEN
from recallkit.display.notebook import Shown
from recallkit.errors import UsageError, UserError
from recallkit.models.spec import ModelSpec, one_model
from recallkit.options import ScoringOptions
from recallkit.storage import artifacts
from recallkit.storage.result import read_tables
from recallkit.tracking.run import TrackedRun
from recallkit.tracking.tables import TrackTables, make_tables
from recallkit.tracking.view import look

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

SAMPLE_TOKENS = 20_000
"""Tokens that are scored each time."""

METRICS = {
    "recall/gain": ("gain", 100.0),
    "recall/retained": ("retained", 100.0),
    "recall/ar_nll": ("ar_nll", 1.0),
    "recall/first_nll": ("first_nll", 1.0),
    "recall/other_nll": ("other_nll", 1.0),
    "recall/ar_gap": ("ar_gap", 1.0),
}
"""What trainers log -> the column of `TrackTables.track`, and by what it is multiplied: points, per
cent, nats per token."""


class Tracker(Shown):
    """Follows the recall of a model while it is trained:

        tracker = recallkit.Tracker(sample_tokens=20_000)
        ...
        metrics = tracker.log(step, model)          # every few hundred steps

    It scores `sample_tokens` of the built-in text, or a slice directory (`slices`) as a whole, and
    writes `track.parquet` to `out`, the same table as `recallkit track`; `recallkit report OUT`
    draws it. Printed, it says what `recallkit track` would say; `chart()` is the curve, from the
    second step on. `tokenizer`: the model's, where it is not that of the slices: its NLLs are then
    aligned to the slices' tokens. `bos`: the token that it reads before every text, `none`, or None
    for what its tokenizer says. `reference`: a model to compare with, scored once. An `out` that
    has rows of an earlier part of the run is continued. Raises UserError for everything a user can
    correct.
    """

    def __init__(
        self,
        *,
        sample_tokens: int | None = None,
        slices: str | PathLike[str] | None = None,
        reference: Any = None,
        tokenizer: Any = None,
        bos: str | None = None,
        out: str | PathLike[str] = "track",
        device: str = "auto",
        force: bool = False,
    ) -> None:
        if sample_tokens is not None and slices is not None:
            remedy = "leave it out, or draw slices of so many: `recallkit slice --sample 20k`"
            raise UsageError("slices are scored as they are", where="sample_tokens", remedy=remedy)
        if sample_tokens is not None and (type(sample_tokens) is not int or sample_tokens < 1):
            problem = f"{sample_tokens!r} is not a number of tokens"
            raise UsageError(problem, where="sample_tokens", remedy="give one such as 20_000")
        folder = Path(out)
        if slices is None:
            slices = _sample(folder / "slices", sample_tokens or SAMPLE_TOKENS)
        first = None if reference is None else one_model(reference)
        self._tokenizer, self._bos = tokenizer, bos
        self._name = f"run {artifacts.digest_json(str(folder.resolve()))[:6]}"
        """Begins the names of its scores, so that runs that share slices do not share them."""
        scoring = ScoringOptions(device=device)
        self._run = TrackedRun(Path(slices), folder, first, scoring, force=force, quiet=True)
        self._run.add_reference()
        self.table = make_tables([]).track
        """The rows so far, see `TrackTables`."""
        if not force and (folder / "track.parquet").exists():
            self._continue()

    def log(self, step: int, model: Any) -> dict[str, float]:
        """Scores `model`, a torch.nn.Module that maps ids to logits or a transformers model, after
        `step` steps; returns METRICS by name.

        The recall gain is in points, what is retained in per cent, all else in nats per token;
        `recall/retained` and `recall/ar_gap` need a reference. All columns and intervals are in
        `table`. The model is left as it was, in the mode and on the device where it was, and no
        random number generator of torch is moved. A step that was logged before is replaced.
        """
        if isinstance(step, bool) or not hasattr(step, "__index__") or step < 0:
            problem = f"{step!r} is not a step"
            raise UsageError(problem, where="step", remedy="give the number of steps done")
        weights = model.parameters() if hasattr(model, "parameters") else ()
        meshes = [weight.device_mesh for weight in weights if hasattr(weight, "device_mesh")]
        if any(mesh.size() > 1 for mesh in meshes):
            problem = "its weights are sharded over processes, which would wait for each other"
            remedy = "follow its checkpoints with `recallkit track`"
            raise UserError(problem, where="model", remedy=remedy)
        step = int(step)
        spec = ModelSpec(model, f"{self._name} step {step}", tokenizer=self._tokenizer, bos=self._bos)
        with _random_state_kept():
            self._run.score([spec], force=True)
        self._run.add(step, spec)
        self._update()
        row = self._run.checkpoints[step].row
        metrics = {}
        for name, (column, scale) in METRICS.items():
            if row[column] is not None:
                metrics[name] = scale * row[column]
        return metrics

    def attach(self, trainer: Any, every: int | None = None) -> None:
        """Logs the model of a `transformers.Trainer` every so many steps; without a number,
        whenever the Trainer evaluates.

        The Trainer logs the metrics as its own, to its `state.log_history` and wherever it reports
        to.
        """
        from transformers import TrainerCallback

        def log(args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
            is_now = every is None or state.global_step % every == 0
            if is_now and state.is_world_process_zero:
                # Logging settles what is due, and the Trainer's loss of this step is still to come.
                is_due = control.should_log
                trainer.log(self.log(state.global_step, model))
                control.should_log = is_due

        callback = TrainerCallback()
        setattr(callback, "on_evaluate" if every is None else "on_step_end", log)
        trainer.add_callback(callback)

    def _update(self) -> None:
        """Writes the tables of what is scored, and shows them from now on."""
        tables = self._run.write()
        self.table = tables.track
        shown = functools.cache(lambda: look(self._run.out, tables))
        self.show_as(
            lambda: shown().print(),
            lambda: list(shown().shown.values()),
            lambda models: shown().figures(models),
        )

    def _continue(self) -> None:
        """Takes over the rows of an earlier part of the run whose scores exist."""
        folder = self._run.out
        names = artifacts.read_manifest(folder / "track.parquet")["score_files"]
        rows = read_tables(TrackTables, folder).track.to_dicts()
        for row, name in zip(rows, names, strict=True):
            file = self._run.slices / "scores" / name
            if row["step"] is not None and file.is_file():
                self._run.add_file(row["step"], row["model"], file)
        self._update()


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
