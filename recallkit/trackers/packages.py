"""Each tracker by its package, and the table of them all.

Opening one imports its package and checks what can be checked without a run: credentials, a store
that opens. So a mistake costs no hours of work.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import time
import warnings
from abc import ABC, abstractmethod
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.config import VERSION, check_installed, installing
from recallkit.errors import UserError
from recallkit.events import strict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from recallkit.trackers.record import Record

PROJECT = "recallkit"
"""Where none is named, neither by the user nor by the tracker's own environment variable."""


class Tracker(ABC):
    """A tracker that can be logged to."""

    @abstractmethod
    def __init__(self, project: str | None) -> None:
        """Raises UserError where a package is missing, or nothing could be logged.

        `project` is the user's, None for the default.
        """

    @abstractmethod
    def log(self, record: Record) -> str:
        """Logs a record as a run of its own, or into the run that the calling program has begun.

        Returns where it is, for people. Raises whatever the package raises.
        """

    @staticmethod
    @abstractmethod
    def log_step(metrics: Mapping[str, float], step: int, writer: Any) -> None:
        """Logs numbers of a training step into the run that the calling program has begun, if any.

        Nothing is imported: the package of an open run is loaded. `writer` is TensorBoard's.
        """


def import_package(name: str, *companions: str) -> Any:
    """The package of a tracker, whose name is its extra's too.

    Raises UserError if it or one of its companions is missing or broken.
    """
    where, remedy = f"--log-to {name}", installing(name)
    for distribution in (name, *companions):
        check_installed(distribution, name, where=where)
    try:
        with quiet():
            return import_module(name)
    except ImportError as error:
        problem = f"{name} cannot be imported ({error})"
        raise UserError(problem, where=where, remedy=f"reinstall it: {remedy}") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """A block in which a package prints nothing: stdout is the result's, and a line says where."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


class TrackioTracker(Tracker):
    """A run with config, numbers, tables and images.

    It is in ~/.cache/huggingface/trackio (TRACKIO_DIR), or a Space (TRACKIO_SPACE_ID).
    """

    def __init__(self, project: str | None) -> None:
        self._trackio = import_package("trackio")
        self._project = project or PROJECT

    def log(self, record: Record) -> str:
        """The project and the run, and how to read it."""
        from trackio import context_vars

        active = context_vars.current_run.get()
        with quiet():
            run = active or self._trackio.init(
                self._project,
                name=record.name,
                config=record.config,
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )
            try:
                self._write(run, record)
            finally:
                if active is None:
                    self._trackio.finish()
        return f"{run.name} in project {run.project}; trackio show --project {run.project}"

    def _write(self, run: Any, record: Record) -> None:
        values: dict[str, Any] = dict(record.numbers)
        for name, frame in record.tables.items():
            values[f"tables/{name}"] = self._trackio.Table(data=frame.to_dicts())
        for name, (title, path) in record.pictures.items():
            values[f"figures/{name}"] = self._trackio.Image(path, caption=title)
        run.log(values)

    @staticmethod
    def log_step(metrics: Mapping[str, float], step: int, writer: Any) -> None:
        """In the row of that step."""
        variables = sys.modules.get("trackio.context_vars")
        run = variables.current_run.get() if variables is not None else None
        if run is not None:
            run.log(dict(metrics), step=step)


class WandbTracker(Tracker):
    """A run with config, numbers, tables and images.

    Without a network with WANDB_MODE=offline (`wandb sync` uploads it). `project` may be
    ENTITY/PROJECT; WANDB_PROJECT, WANDB_ENTITY and the other variables of wandb count as ever.
    """

    STEP = "recall/step"
    """The axis of `recall/*`: W&B's own step may count something else, and only ever grows."""

    def __init__(self, project: str | None) -> None:
        self._wandb = import_package("wandb", "pillow")
        entity, _, name = (project or "").rpartition("/")
        self._entity = entity or None
        self._project = name or (None if os.environ.get("WANDB_PROJECT") else PROJECT)
        try:
            if self._wandb.run is None and self._wandb.setup().settings.mode == "online":
                self._wandb.login()
        except Exception as error:
            login = "run `wandb login`, set WANDB_API_KEY"
            remedy = f"{login}, or WANDB_MODE=offline for a run on this disk"
            problem = f"cannot log in ({error})"
            raise UserError(problem, where="--log-to wandb", remedy=remedy) from error

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

    def _begin(self, record: Record) -> Any:
        return self._wandb.init(
            project=self._project,
            entity=self._entity,
            name=record.name,
            job_type=record.command,
            config=record.config,
            settings=self._wandb.Settings(console="off", silent=True),
        )

    def _write(self, run: Any, record: Record) -> None:
        values: dict[str, Any] = dict(record.numbers)
        for name, frame in record.tables.items():
            rows = [list(row) for row in frame.iter_rows()]
            values[f"tables/{name}"] = self._wandb.Table(
                columns=frame.columns,
                data=rows,
                allow_mixed_types=True,
            )
        for name, (title, path) in record.pictures.items():
            values[f"figures/{name}"] = self._wandb.Image(str(path), caption=title)
        run.log(values)

    @staticmethod
    def log_step(metrics: Mapping[str, float], step: int, writer: Any) -> None:
        """In the row that the program's own next call completes."""
        run = getattr(sys.modules.get("wandb"), "run", None)
        if run is not None:
            run.define_metric("recall/*", step_metric=WandbTracker.STEP)
            run.log({**metrics, WandbTracker.STEP: step}, commit=False)


class MlflowTracker(Tracker):
    """A run with parameters, metrics, the manifest, tables and images.

    It is in the store of MLFLOW_TRACKING_URI, by default ./mlflow.db. `project` is the experiment,
    which is made if there is none; MLFLOW_EXPERIMENT_NAME if none is named.
    """

    UNNAMEABLE = re.compile(r"[^\w.\- :/]")
    LONGEST_KEY, LONGEST_VALUE, MOST_AT_ONCE = 250, 500, 100
    TABLES_TAG = "mlflow.loggedArtifacts"

    def __init__(self, project: str | None) -> None:
        self._mlflow = import_package("mlflow")
        self._experiment = project or os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        try:
            with quiet():
                self._client = self._mlflow.MlflowClient()
                self._client.search_experiments(max_results=1)
        except Exception as error:
            problem = f"the store {self._mlflow.get_tracking_uri()} cannot be opened ({error})"
            remedy = "see MLFLOW_TRACKING_URI: a server, or a file such as sqlite:///mlflow.db"
            raise UserError(problem, where="--log-to mlflow", remedy=remedy) from error

    def log(self, record: Record) -> str:
        """The run's name and id, and the store."""
        with quiet():
            active = self._mlflow.active_run()
            run = self._begin(record) if active is None else active
            status = "FAILED"
            try:
                self._write(run.info.run_id, record)
                status = "FINISHED"
            finally:
                if active is None:
                    self._client.set_terminated(run.info.run_id, status)
        return f"{run.info.run_name} ({run.info.run_id}) in {self._mlflow.get_tracking_uri()}"

    def _begin(self, record: Record) -> Any:
        from mlflow.entities import Param

        known = self._client.get_experiment_by_name(self._experiment)
        experiment = known and known.experiment_id
        if experiment is None:
            experiment = self._client.create_experiment(self._experiment)
        tags = {
            "mlflow.source.name": "recallkit",
            "mlflow.source.type": "LOCAL",
            "recallkit_version": VERSION,
        }
        run = self._client.create_run(experiment, run_name=record.name, tags=tags)
        options = {"command": record.command, **record.options}
        params = [Param(key, str(value)[: self.LONGEST_VALUE]) for key, value in options.items()]
        self._client.log_batch(run.info.run_id, params=params)
        return run

    def _write(self, run: str, record: Record) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = []
        for name, number in record.numbers.items():
            metrics.append(Metric(self._accepted(name), number, now, 0))
        for start in range(0, len(metrics), self.MOST_AT_ONCE):
            self._client.log_batch(run, metrics=metrics[start : start + self.MOST_AT_ONCE])
        self._client.log_dict(run, record.config, f"{record.command}.json")
        tables = json.loads(self._client.get_run(run).data.tags.get(self.TABLES_TAG, "[]"))
        for name, frame in record.tables.items():
            path = f"tables/{name}.json"
            # As log_table writes it, which would round to 10 digits.
            table = {"columns": frame.columns, "data": [list(row) for row in frame.iter_rows()]}
            self._client.log_dict(run, strict(table), path)
            if (entry := {"path": path, "type": "table"}) not in tables:
                tables.append(entry)
        self._client.set_tag(run, self.TABLES_TAG, json.dumps(tables))
        for name, picture in record.pictures.items():
            folder = f"figures/{name.rpartition('/')[0]}"
            self._client.log_artifact(run, str(picture.path), folder)

    @classmethod
    def _accepted(cls, name: str) -> str:
        """A name that MLflow accepts: other characters become underscores."""
        return cls.UNNAMEABLE.sub("_", name)[-cls.LONGEST_KEY :].lstrip("/")

    @staticmethod
    def log_step(metrics: Mapping[str, float], step: int, writer: Any) -> None:
        """As metrics of that step."""
        mlflow = sys.modules.get("mlflow")
        if mlflow is not None and mlflow.active_run() is not None:
            mlflow.log_metrics(dict(metrics), step=step)


class TensorboardTracker(Tracker):
    """An event file with scalars, images, and the tables and options as text, in its own folder.

    `project` is the folder that TensorBoard is pointed at, `runs` if none is named.
    """

    def __init__(self, project: str | None) -> None:
        import_package("tensorboard")
        self._folder = Path(project or "runs")
        for path in (self._folder, *self._folder.parents):
            if path.exists() and not path.is_dir():
                where = f"--log-to tensorboard:{project}"
                raise UserError("not a directory", where=where, remedy="name another")

    def log(self, record: Record) -> str:
        """The folder of the event file."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        values = []
        for name, number in record.numbers.items():
            values.append(Summary.Value(tag=name, simple_value=number))
        for name, picture in record.pictures.items():
            image = Summary.Image(encoded_image_string=picture.path.read_bytes())
            values.append(Summary.Value(tag=f"figures/{name}", image=image))
        config = json.dumps(record.config, indent=2, sort_keys=True)
        summaries = [Summary(value=values)]
        for name, table in record.printed.items():
            summaries.append(text_pb(f"tables/{name}", table.markdown()))
        summaries.append(text_pb(f"config/{record.command}", f"```json\n{config}\n```"))
        folder = self._folder / f"{record.name}-{datetime.now().astimezone():%Y%m%d-%H%M%S-%f}"
        writer = EventFileWriter(str(folder))
        for summary in summaries:
            writer.add_event(Event(wall_time=time.time(), step=0, summary=summary))
        writer.close()
        return f"{folder}; tensorboard --logdir {self._folder}"

    @staticmethod
    def log_step(metrics: Mapping[str, float], step: int, writer: Any) -> None:
        """As scalars of that step, by the program's own writer."""
        if writer is not None:
            for name, value in metrics.items():
                writer.add_scalar(name, value, step)


TRACKERS: dict[str, type[Tracker]] = {
    "trackio": TrackioTracker,
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
    "tensorboard": TensorboardTracker,
}
"""The destinations of `--log-to`. A name is also that of the package and of the extra."""
