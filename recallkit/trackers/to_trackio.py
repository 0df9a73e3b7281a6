"""trackio: a run with config, numbers, tables and images, in ~/.cache/huggingface/trackio (TRACKIO_DIR), or a Space (TRACKIO_SPACE_ID)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.trackers.destinations import PROJECT, Tracker, import_package, quiet

if TYPE_CHECKING:
    from recallkit.trackers.record import Record


class TrackioTracker(Tracker):
    """trackio's project, `recallkit` if none is named."""

    def __init__(self, project: str | None) -> None:
        self._trackio = import_package("trackio")
        self._project = project or PROJECT

    def log(self, record: Record) -> str:
        """The project and the run, and how to look at it."""
        from trackio import context_vars

        trackio, active = self._trackio, context_vars.current_run.get()
        with quiet():
            run = active or trackio.init(
                self._project, name=record.name, config=record.config, embed=False, auto_log_cpu=False, auto_log_gpu=False
            )
            try:
                self._write(run, record)
            finally:
                if active is None:
                    trackio.finish()
        return f"{run.name} in project {run.project}; trackio show --project {run.project}"

    def _write(self, run: Any, record: Record) -> None:
        tables = {f"tables/{name}": self._trackio.Table(data=frame.to_dicts()) for name, frame in record.tables.items()}
        images = {f"figures/{name}": self._trackio.Image(picture.path, caption=picture.title) for name, picture in record.pictures.items()}
        run.log({**record.numbers, **tables, **images})
