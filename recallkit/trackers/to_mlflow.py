"""MLflow: a run with parameters, metrics, the manifest, tables and images, in the store of MLFLOW_TRACKING_URI, by default ./mlflow.db."""

from __future__ import annotations

import json
import os
import re
import time
from typing import TYPE_CHECKING, Any

from recallkit.config import VERSION
from recallkit.errors import UserError
from recallkit.events import strict
from recallkit.trackers.destinations import PROJECT, Tracker, import_package, quiet

if TYPE_CHECKING:
    from recallkit.trackers.record import Record

_UNNAMEABLE = re.compile(r"[^\w.\- :/]")
_LONGEST_KEY, _LONGEST_VALUE, _MOST_AT_ONCE = 250, 500, 100
_SHOWN_AS_TABLES = "mlflow.loggedArtifacts"


class MlflowTracker(Tracker):
    """`project` is the experiment, which is made if there is none; MLFLOW_EXPERIMENT_NAME if none is named."""

    def __init__(self, project: str | None) -> None:
        self._mlflow = import_package("mlflow")
        self._experiment = project or os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        try:
            with quiet():
                self._client = self._mlflow.MlflowClient()
                self._client.search_experiments(max_results=1)
        except Exception as error:
            where = self._mlflow.get_tracking_uri()
            remedy = "see MLFLOW_TRACKING_URI: a server, or a file such as sqlite:///mlflow.db"
            raise UserError(f"the store {where} cannot be opened ({error})", where="--log-to mlflow", remedy=remedy) from error

    def log(self, record: Record) -> str:
        """The experiment, the run's name and id, and the store."""
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

        found = self._client.get_experiment_by_name(self._experiment)
        experiment = self._client.create_experiment(self._experiment) if found is None else found.experiment_id
        tags = {"mlflow.source.name": "recallkit", "mlflow.source.type": "LOCAL", "recallkit_version": VERSION}
        run = self._client.create_run(experiment, run_name=record.name, tags=tags)
        options = {"command": record.command, **record.options}
        self._client.log_batch(run.info.run_id, params=[Param(key, str(value)[:_LONGEST_VALUE]) for key, value in options.items()])
        return run

    def _write(self, run: str, record: Record) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(_named(name), number, now, 0) for name, number in record.numbers.items()]
        for start in range(0, len(metrics), _MOST_AT_ONCE):
            self._client.log_batch(run, metrics=metrics[start : start + _MOST_AT_ONCE])
        self._client.log_dict(run, record.config, f"{record.command}.json")
        for name, frame in record.tables.items():  # as log_table does it, which rounds to 10 digits
            table = {"columns": frame.columns, "data": [list(row) for row in frame.iter_rows()]}
            self._client.log_dict(run, strict(table), f"tables/{name}.json")
        known = json.loads(self._client.get_run(run).data.tags.get(_SHOWN_AS_TABLES, "[]"))
        shown = [{"path": f"tables/{name}.json", "type": "table"} for name in record.tables]
        self._client.set_tag(run, _SHOWN_AS_TABLES, json.dumps([*known, *(each for each in shown if each not in known)]))
        for name, picture in record.pictures.items():
            self._client.log_artifact(run, str(picture.path), f"figures/{name.rpartition('/')[0]}")


def _named(name: str) -> str:
    """A name that MLflow accepts: other characters become underscores."""
    return _UNNAMEABLE.sub("_", name)[-_LONGEST_KEY:].lstrip("/")
