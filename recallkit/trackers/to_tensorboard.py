"""TensorBoard: an event file with scalars, images, and the tables and options as text, in a folder of its own under `runs`."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from recallkit.errors import UserError
from recallkit.trackers.destinations import Tracker, import_package

if TYPE_CHECKING:
    from recallkit.trackers.record import Record

_FOLDER = "runs"


class TensorboardTracker(Tracker):
    """`project` is the folder that TensorBoard is pointed at, `runs` if none is named."""

    def __init__(self, project: str | None) -> None:
        import_package("tensorboard")
        self._folder = Path(project or _FOLDER)
        if any(path.exists() and not path.is_dir() for path in (self._folder, *self._folder.parents)):
            raise UserError("not a directory", where=f"--log-to tensorboard:{project}", remedy="name another")

    def log(self, record: Record) -> str:
        """The folder of the event file."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        texts = {f"tables/{name}": table.markdown() for name, table in record.shown.items()}
        texts[f"config/{record.command}"] = f"```json\n{json.dumps(record.config, indent=2, sort_keys=True)}\n```"
        values = [Summary.Value(tag=name, simple_value=number) for name, number in record.numbers.items()]
        for name, picture in record.pictures.items():
            image = Summary.Image(encoded_image_string=picture.path.read_bytes())
            values.append(Summary.Value(tag=f"figures/{name}", image=image))
        summaries = [Summary(value=values), *(text_pb(name, text) for name, text in texts.items())]
        folder = self._folder / f"{record.name}-{datetime.now().astimezone():%Y%m%d-%H%M%S-%f}"
        writer = EventFileWriter(str(folder))
        for summary in summaries:
            writer.add_event(Event(wall_time=time.time(), step=0, summary=summary))
        writer.close()
        return f"{folder}; tensorboard --logdir {self._folder}"
