"""Runs tasks of lm-eval, and writes its own result files, atomically."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import logging
import os
import platform
import random
import sys
import tempfile
import time
import warnings
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import datasets
import lm_eval.api.task
import numpy as np
from lm_eval.evaluator import evaluate
from lm_eval.evaluator_utils import get_sample_size
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager
from lm_eval.utils import handle_non_serializable, sanitize_model_name

from recallkit.config import VERSION
from recallkit.errors import UserError
from recallkit.recall.prompts import word_f1, words_of
from recallkit.storage import artifacts, hashing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lm_eval.api.model import LM

_SEED = 1234
"""lm-eval's own default for few-shot examples."""

_BOOTSTRAP = 1000


def load_task(task: str | lm_eval.api.task.Task) -> dict[str, Any]:
    """What lm-eval loads of a task: by name, by the path of a YAML file, or as an object.

    A group of its tasks has several. Raises UserError for a task that does not exist.
    """
    _provide_squad_metrics()
    is_stock = isinstance(task, str) and not _is_yaml(task)
    with _quiet():
        manager = TaskManager(include_defaults=is_stock)
        if is_stock and not manager.match_tasks([task]):
            near = difflib.get_close_matches(task, manager.all_tasks, n=1)
            remedy = "see `lm-eval ls tasks`, or give the path of a YAML file"
            if near:
                remedy = f"did you mean {near[0]}?"
            raise UserError("lm-eval has no such task", where=task, remedy=remedy)
        _seed()
        try:
            loaded: dict[str, Any] = manager.load([task])
        except Exception as error:  # a task's code, its data and the hub may raise anything
            problem = f"lm-eval cannot load it ({error})"
            remedy = "check its file, its data and the network"
            raise UserError(problem, where=str(task), remedy=remedy) from error
    return loaded


def _provide_squad_metrics() -> None:
    """Makes `transformers.data.metrics.squad_metrics`, which transformers 5 no longer has and tasks
    of lm-eval import (ReCoRD, CoQA)."""
    name = "transformers.data.metrics"
    if name in sys.modules or find_spec(name) is not None:
        return
    package, module = ModuleType(name), ModuleType(f"{name}.squad_metrics")
    vars(module).update(
        compute_f1=lambda value, generation: word_f1(generation, value),
        compute_exact=lambda value, generation: int(words_of(generation) == words_of(value)),
    )
    vars(package).update(squad_metrics=module, __path__=[])
    sys.modules |= {name: package, module.__name__: module}


def _is_yaml(name: str) -> bool:
    """Whether a name is that of a file. Raises UserError if it looks like a path that does not
    exist."""
    if not (Path(name).is_file() or name.endswith((".yaml", ".yml"))):
        return False
    if not Path(name).is_file():
        remedy = "give the path of a task's YAML file, or a task's name"
        raise UserError("no such file", where=name, remedy=remedy)
    return True


def run_tasks(
    lm: LM,
    loaded: dict[str, Any],
    *,
    model: str,
    limit: int | None = None,
    shots: int | None = None,
) -> dict[str, Any]:
    """lm-eval's results of a loaded task, its samples under `samples`; `shots` examples precede
    each question, in place of the number that the task says."""
    _prepare(loaded, shots)
    # lm-eval would start a process for each core to bootstrap perplexity and the like, in one of
    # them. Where processes are not forked (Python 3.14, macOS) each imports the user's program,
    # which may run recallkit again.
    os.environ.setdefault("DISABLE_MULTIPROC", "1")
    begin = time.time()
    with _quiet():
        results: dict[str, Any] = evaluate(lm, loaded, limit=limit, bootstrap_iters=_BOOTSTRAP)
    config = {
        "model": model,
        "model_args": "",
        "limit": limit,
        "bootstrap_iters": _BOOTSTRAP,
        "fewshot_seed": _SEED,
    }
    return {**results, "config": config, "date": begin, **_environment()}


def digest_requests(loaded: dict[str, Any], limit: int | None, shots: int | None = None) -> str:
    """Digest of all requests of a loaded task, which covers its data, templates and code."""
    _prepare(loaded, shots)
    state = hashlib.blake2b(digest_size=16)
    for name, task in loaded["tasks"].items():
        with _quiet():
            task.build_all_requests(limit=get_sample_size(task, limit))
        requests = [[one.request_type, one.args, one.doc] for one in task.instances]
        content = [name, *requests]
        state.update(json.dumps(content, default=handle_non_serializable, sort_keys=True).encode())
    return state.hexdigest()


def _prepare(loaded: dict[str, Any], shots: int | None) -> None:
    """Prepares tasks as lm-eval's own command does before it runs them; `shots` as its
    `--num_fewshot`."""
    for task in loaded["tasks"].values():
        if task.get_config("num_fewshot") is None or shots is not None:
            task.set_config(key="num_fewshot", value=shots or 0)
        task.set_fewshot_seed(seed=_SEED)
    _seed()


def _seed() -> None:
    random.seed(_SEED)
    np.random.seed(_SEED)


def _environment() -> dict[str, str]:
    """Versions and machine, under lm-eval's names; lm-eval itself would run pip and git, which
    takes seconds."""
    libraries = [f"{name} {version(name)}" for name in ("torch", "tokenizers", "datasets")]
    python = f"Python {platform.python_version()}"
    return {
        "pretty_env_info": ", ".join(
            [platform.platform(), python, f"recallkit {VERSION}", *libraries],
        ),
        "transformers_version": version("transformers"),
        "lm_eval_version": version("lm_eval"),
    }


def write_results(
    results: dict[str, Any],
    folder: Path,
    model: str,
    shown: str | None = None,
) -> list[Path]:
    """Writes lm-eval's results JSON, and a samples JSONL per task, under their usual names in
    `folder`/MODEL; in them it is called `shown`.

    They are added to the list of that folder. Returns their paths. Raises UserError if one could
    not be written.
    """
    samples = results.pop("samples", {})
    target = folder / _folder_name(model)
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target, prefix=".") as temporary, _quiet():
        tracker = EvaluationTracker(output_path=temporary)
        facts = tracker.general_config_tracker
        facts.model_source, facts.model_name = "recallkit", shown or model
        facts.model_name_sanitized = "model"
        tracker.save_results_aggregated(results=results, samples=samples)
        for name, of_task in samples.items():
            tracker.save_results_samples(task_name=name, samples=of_task)
        files = sorted((Path(temporary) / "model").glob("*"))
        if not _are_complete(files, samples):  # it logs errors rather than raising them
            problem = "lm-eval could not write its results"
            remedy = "check the disk and run the same command again"
            raise UserError(problem, where=target, remedy=remedy)
        with artifacts.adding_members(target, [file.name for file in files]) as new:
            for file in files:
                file.replace(new / file.name)
    return [target / file.name for file in files]


def _are_complete(files: Sequence[Path], samples: Mapping[str, Sequence[Any]]) -> bool:
    """Whether lm-eval's files are all there to their last line: on a full disk it leaves truncated
    ones."""
    lines = sorted(path.read_bytes().count(b"\n") for path in files if path.suffix == ".jsonl")
    results = [artifacts.json_object(path) for path in files if path.suffix == ".json"]
    is_one = len(results) == 1 and results[0] != {}
    return is_one and lines == sorted(map(len, samples.values()))


def _folder_name(model: str) -> str:
    """lm-eval's name of a model's folder, which can never lead out of its parent."""
    name: str = sanitize_model_name(model)
    is_plain = name.isprintable() and len(name) <= 200 and not name.startswith(".")
    return name if is_plain else hashing.file_slug(name)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences lm-eval, which logs its progress, draws short-lived progress bars, and warns about
    its own code.

    What it prints goes to stderr, because stdout is for results.
    """
    bars, lm_eval.api.task.tqdm = lm_eval.api.task.tqdm, lambda rows, **_: rows
    had_bars = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    loggers = [logging.getLogger(name) for name in ("lm_eval", "datasets", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            yield
    finally:
        lm_eval.api.task.tqdm = bars
        if had_bars:
            datasets.enable_progress_bars()
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
