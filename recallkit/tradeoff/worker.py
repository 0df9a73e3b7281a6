"""The training job: each item is a run, on a GPU of the worker's own if there is one."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from recallkit.parallel.job import Done

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from recallkit.parallel.job import WorkerSlot
    from recallkit.tradeoff.jobs import Job


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """Everything that a process needs to train; it can be pickled. Items are indices of `jobs`."""

    jobs: tuple[Job, ...]
    folder: Path
    device: str

    doing: ClassVar[str] = "training"
    where: ClassVar[str] = "train-mqar"
    remedy: ClassVar[str] = "give fewer --workers or a smaller --batch"
    max_items_per_task: ClassVar[int] = 1

    @property
    def prefers_gpu(self) -> bool:
        """Whether a GPU would be used."""
        return self.device != "cpu"

    def open(self, slot: WorkerSlot | None = None) -> Trainer:
        """Finds the device, GPUs by turns. Raises UserError where there is no such device."""
        import torch

        if slot is not None and self.device in ("auto", "cuda") and torch.cuda.is_available():
            return Trainer(replace(self, device=f"cuda:{slot.place % torch.cuda.device_count()}"))
        return Trainer(self)


class Trainer:
    """A job on its device."""

    def __init__(self, job: TrainingJob) -> None:
        from recallkit.tradeoff.jobs import device_of

        self.job, self.device = job, device_of(job.device)

    def run(self, items: Sequence[int]) -> Iterator[Done]:
        """Trains runs one after the other; reports steps at each measurement, and a run as whole when its file is on disk."""
        from recallkit.tradeoff.jobs import train_run

        for item in items:
            with _one_thread():
                for steps in train_run(self.job.jobs[item], self.job.folder, self.device):
                    yield Done(steps, is_whole=False)
            yield Done(0)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """One CPU thread: small models gain nothing from more, and sums in the last bit would depend on their number."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
