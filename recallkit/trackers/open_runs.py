"""Numbers of a training step in the runs that a program has open: trackio, W&B, MLflow.

Nothing is imported: a package whose run is open is loaded.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from recallkit.display import console

if TYPE_CHECKING:
    from collections.abc import Mapping

STEP = "recall/step"
"""W&B's axis of `recall/*`: its own step may count something else, and only ever grows."""


def log_step(metrics: Mapping[str, float], step: int, writer: Any = None) -> None:
    """Logs to every run that is open, and to `writer`, a SummaryWriter of TensorBoard.

    What a package raises is noted, and no more: a training must not end with its log.
    """

    def _to_writer(metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items() if writer is not None else ():
            writer.add_scalar(name, value, step)

    for log in (_to_wandb, _to_trackio, _to_mlflow, _to_writer):
        try:
            log(metrics, step)
        except Exception as error:  # noqa: BLE001 - packages raise what they like
            name = log.__name__.removeprefix("_to_")
            console.note(f"step {step:,} is not logged to {name} ({error}); it is in the table")


def _to_wandb(metrics: Mapping[str, float], step: int) -> None:
    run = getattr(sys.modules.get("wandb"), "run", None)
    if run is not None:
        run.define_metric("recall/*", step_metric=STEP)
        # Into the row that the program's own next call completes.
        run.log({**metrics, STEP: step}, commit=False)


def _to_trackio(metrics: Mapping[str, float], step: int) -> None:
    variables = sys.modules.get("trackio.context_vars")
    run = variables.current_run.get() if variables is not None else None
    if run is not None:
        run.log(dict(metrics), step=step)


def _to_mlflow(metrics: Mapping[str, float], step: int) -> None:
    mlflow = sys.modules.get("mlflow")
    if mlflow is not None and mlflow.active_run() is not None:
        mlflow.log_metrics(dict(metrics), step=step)
