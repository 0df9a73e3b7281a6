"""Recall in a training loop: a small sample of text is read by the model as it is, in seconds, and
the table grows by a row."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.config import BUILTIN_SEQ_LEN
from recallkit.declarations import names
from recallkit.display import console
from recallkit.display.notebook import Shown
from recallkit.errors import UsageError, UserError
from recallkit.models.loading import tokenizer_name
from recallkit.models.prefix import prefix_notes
from recallkit.models.spec import one_model
from recallkit.options import ScoringOptions
from recallkit.scoring.recorded import record_array
from recallkit.slicing.definitions import parse_slices
from recallkit.storage import artifacts
from recallkit.storage.result import read_tables
from recallkit.trackers import log_step
from recallkit.tracking.reading import Reading, process_group
from recallkit.tracking.run import TrackedRun
from recallkit.tracking.tables import TrackTables, make_tables
from recallkit.tracking.view import TrackView

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from os import PathLike

    from recallkit.tracking.reading import Batch

SAMPLE_TOKENS = 20_000
"""Tokens that are read each time."""

METRICS = {
    "recall/gain": ("gain", 100.0),
    "recall/retained": ("retained", 100.0),
    "recall/ar_nll": ("ar_nll", 1.0),
    "recall/first_nll": ("first_nll", 1.0),
    "recall/other_nll": ("other_nll", 1.0),
    "recall/ar_gap": ("ar_gap", 1.0),
}
"""What is logged -> the column of `TrackTables.track`, and by what it is multiplied: points, per
cent, nats per token."""


class Tracker(Shown):
    """Follows the recall of a model while it is trained:

        tracker = recallkit.Tracker(sample_tokens=20_000)
        ...
        for batch in tracker.batches(rank, world):   # every few hundred steps, on every process
            tracker.add(batch, nlls_of(model, batch.ids))
        metrics = tracker.log(step)

    The model reads `sample_tokens` of the built-in text, or all of a slice directory (`slices`).
    Its weights are never asked for, so they may be sharded in any way. `track.parquet` in `out` is
    the table of `recallkit track`; `recallkit report OUT` draws it. Printed, a tracker says what
    `recallkit track` would say; `chart()` is the curve, from the second step on.

    `tokenizer`: the model's, in whose tokens the built-in text is then read and counted; slices
    have their own. `bos`: the token that is read before every text, `none`, or None for what the
    tokenizer says. `slice`: slices to follow besides AR hits and other tokens, as `recallkit track
    --slice` takes them. `reference`: a model or recorded NLLs to compare with, read once, on
    `device`. `writer`: a SummaryWriter of TensorBoard. An `out` that has rows of an earlier part of
    the run is continued.
    Raises UserError for everything a user can correct.
    """

    def __init__(
        self,
        *,
        sample_tokens: int | None = None,
        slices: str | PathLike[str] | None = None,
        slice: str | Sequence[str] | None = None,  # noqa: A002 - as in `gap`
        reference: Any = None,
        tokenizer: Any = None,
        bos: str | None = None,
        writer: Any = None,
        out: str | PathLike[str] = "track",
        device: str = "auto",
        force: bool = False,
    ) -> None:
        if slices is not None and (sample_tokens is not None or tokenizer is not None):
            where = "tokenizer" if sample_tokens is None else "sample_tokens"
            remedy = "leave it out, or slice with it: `recallkit slice --tokenizer F --sample 20k`"
            raise UsageError("slices are read as they are", where=where, remedy=remedy)
        if sample_tokens is not None and (type(sample_tokens) is not int or sample_tokens < 1):
            problem = f"{sample_tokens!r} is not a number of tokens"
            raise UsageError(problem, where="sample_tokens", remedy="give one such as 20_000")
        folder, self._writer = Path(out), writer
        first = None if reference is None else one_model(reference)
        with _first_process_first():
            if slices is None:
                slices = _sample(folder, sample_tokens or SAMPLE_TOKENS, tokenizer)
            followed = parse_slices(names(slice), without=())
            scoring = ScoringOptions(device=device)
            self._run = TrackedRun(
                Path(slices),
                folder,
                first,
                scoring,
                force=force,
                followed=followed,
            )
            if first is not None:
                self._run.add_models({None: first})
            self._reading = Reading(self._run.slices, bos)
        self._name = f"run {artifacts.digest_json(str(folder.resolve()))[:6]}"
        """Begins the names of its scores, so that runs that share slices do not share them."""
        self.table = make_tables([]).track
        """The rows so far, see `TrackTables`."""
        if _is_first_process():
            for line in prefix_notes({"the model": self._reading.prefix}):
                console.note(line)
            if not force and (folder / "track.parquet").exists():
                self._continue()

    def batches(self, rank: int = 0, world: int = 1, size: int = 8) -> Iterator[Batch]:
        """What the model reads: batches of `size` sequences, whose `ids` are int64 (b, t).

        `rank` of `world` processes gets every `world`-th of them, each as many; without them every
        process gets all. A shorter sequence is filled up with 0 at its end.
        """
        return self._reading.batches(rank, world, size)

    def add(self, batch: Batch, nlls: Any) -> None:
        """Takes the NLLs of a batch, a tensor or an array (b, t - 1) in nats: -ln p of each id but
        the first of its sequence, given those before it. Raises UsageError for another shape."""
        self._reading.add(batch, nlls)

    def log(self, step: int, model: Any = None) -> dict[str, float]:
        """Measures what was added after `step` steps; returns METRICS by name, and logs them to the
        runs that are open: of trackio, W&B and MLflow, and to `writer`.

        The recall gain is in points, what is retained in per cent, all else in nats per token;
        `recall/retained` and `recall/ar_gap` need a reference. All columns and intervals are in
        `table`. A step that was logged before is replaced. With torch.distributed every process
        must call it: the first one measures, the others get {}. `model`, a torch.nn.Module that maps
        ids to logits or a transformers model, reads the text first, whole on this process; it is
        left as it was, in the mode and on the device where it was, and no random number generator
        of torch is moved.
        """
        metrics = self._measure(step, model)
        if metrics:
            log_step(metrics, step, self._writer)
        return metrics

    def attach(self, trainer: Any, every: int | None = None) -> None:
        """Logs the model of a `transformers.Trainer` every so many steps; without a number,
        whenever the Trainer evaluates.

        The Trainer logs the metrics as its own, to its `state.log_history` and wherever it reports
        to.
        """
        from transformers import TrainerCallback

        def log(args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
            if every is not None and state.global_step % every:
                return
            if metrics := self._measure(state.global_step, model):
                # Logging settles what is due, and the Trainer's loss of this step is still to come.
                is_due = control.should_log
                trainer.log(metrics)
                control.should_log = is_due

        callback = TrainerCallback()
        setattr(callback, "on_evaluate" if every is None else "on_step_end", log)
        trainer.add_callback(callback)

    def _measure(self, step: int, model: Any) -> dict[str, float]:
        """See `log`, which this does without logging."""
        if isinstance(step, bool) or not hasattr(step, "__index__") or step < 0:
            problem = f"{step!r} is not a step"
            raise UsageError(problem, where="step", remedy="give the number of steps done")
        if model is not None:
            with _random_state_kept():
                self._reading.read(model)
        nll = self._reading.take()
        if not _is_first_process():
            return {}
        step, name = int(step), f"{self._name} step {step}"
        file = record_array(self._run.slices, name, nll, self._reading.prefix)
        self._run.add(step, name, file)
        self._update()
        checkpoint = self._run.checkpoints[step]
        metrics = {}
        for name, (column, scale) in METRICS.items():
            metrics[name] = checkpoint.row[column], scale
        of_slices = [] if checkpoint.by_slice is None else checkpoint.by_slice.to_dicts()
        for row in of_slices:
            metrics[f"recall/{row['slice']}/nll"] = row["nll"], 1.0
            metrics[f"recall/{row['slice']}/gain"] = row["gain"], 100.0
        known = {name: pair for name, pair in metrics.items() if pair[0] is not None}
        return {name: scale * value for name, (value, scale) in known.items()}

    def _update(self) -> None:
        """Writes the tables of what is measured, and shows them from now on."""
        tables = self._run.write()
        self.table = tables.track
        view = TrackView(self._run.out, tables)
        self.show_as(view.print, lambda: list(view.display_tables.values()), view.figures)

    def _continue(self) -> None:
        """Takes over the rows of an earlier part of the run whose scores exist."""
        folder = self._run.out
        names = artifacts.read_manifest(folder / "track.parquet")["score_files"]
        rows = read_tables(TrackTables, folder).track.to_dicts()
        for row, name in zip(rows, names, strict=True):
            file = self._run.slices / "scores" / name
            if row["step"] is not None and file.is_file():
                self._run.add(row["step"], row["model"], file)
        self._update()


def _sample(folder: Path, num_tokens: int, tokenizer: Any) -> Path:
    """The first tokens of the built-in text as a slice directory, made where it is missing: in
    tokens of the built-in tokenizer, or of another, with which the training text is counted."""
    from recallkit import builtin, counting, slicing

    name, counts = tokenizer_name(tokenizer), folder / "counts.duckdb"
    text = dataclasses.replace(builtin.VALIDATION_TEXT, limit_tokens=num_tokens, tokenizer=name)
    try:
        if name is None:
            counts = builtin.counts()
        else:
            counting.count(dataclasses.replace(builtin.TRAINING_TEXT, tokenizer=name), counts)
        slicing.slice_text(text, folder / "slices", counts=counts, seq_len=BUILTIN_SEQ_LEN)
    except UserError as error:
        raise UserError(error.problem, where=error.where, remedy="choose another `out`") from error
    return folder / "slices"


def _is_first_process() -> bool:
    group = process_group()
    return group is None or group.get_rank() == 0


@contextlib.contextmanager
def _first_process_first() -> Iterator[None]:
    """A block that the first process runs before the others, which then find its files."""
    group = process_group()
    if not _is_first_process():
        group.barrier()
    try:
        yield
    finally:
        if group is not None and _is_first_process():
            group.barrier()


@contextlib.contextmanager
def _random_state_kept() -> Iterator[None]:
    """A block after which torch's generators, those of GPUs included, are where they were."""
    import torch

    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
