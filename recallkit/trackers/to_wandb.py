"""Weights & Biases: a run with config, numbers, tables and images; without a network with WANDB_MODE=offline (`wandb sync` uploads it)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from recallkit.errors import UserError
from recallkit.trackers.destinations import PROJECT, Tracker, import_package

if TYPE_CHECKING:
    import polars as pl

    from recallkit.trackers.record import Record


class WandbTracker(Tracker):
    """`project` may be ENTITY/PROJECT; WANDB_PROJECT, WANDB_ENTITY and the other variables of wandb count as ever."""

    def __init__(self, project: str | None) -> None:
        self._wandb = import_package("wandb", "pillow")
        entity, _, name = (project or "").rpartition("/")
        self._entity = entity or None
        self._project = name or (None if os.environ.get("WANDB_PROJECT") else PROJECT)
        try:
            if self._wandb.run is None and self._wandb.setup().settings.mode == "online":
                self._wandb.login()
        except Exception as error:
            remedy = "run `wandb login`, set WANDB_API_KEY, or WANDB_MODE=offline for a run on this disk"
            raise UserError(f"cannot log in ({error})", where="--log-to wandb", remedy=remedy) from error

    def log(self, record: Record) -> str:
        """Its address, or the folder of an offline run."""
        own = self._wandb.run is None
        run = self._begin(record) if own else self._wandb.run
        try:
            self._write(run, record)
        except BaseException:
            if own:
                run.finish(exit_code=1)
            raise
        where = run.settings.sync_dir if run.offline else run.url
        if own:
            run.finish()
        return str(where)

    def _write(self, run: Any, record: Record) -> None:
        shown = {f"tables/{name}": self._table(frame) for name, frame in record.tables.items()}
        shown |= {f"figures/{name}": self._wandb.Image(str(path), caption=title) for name, (title, path) in record.pictures.items()}
        run.log({**record.numbers, **shown})

    def _table(self, frame: pl.DataFrame) -> Any:
        return self._wandb.Table(columns=frame.columns, data=[list(row) for row in frame.iter_rows()], allow_mixed_types=True)

    def _begin(self, record: Record) -> Any:
        settings = self._wandb.Settings(console="off", silent=True)
        return self._wandb.init(
            project=self._project, entity=self._entity, name=record.name, job_type=record.command, config=record.config, settings=settings
        )
