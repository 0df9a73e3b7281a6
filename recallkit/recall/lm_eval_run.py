"""Runs lm-eval: recall evaluations as tasks of it, one model on some tasks, and lm-eval's own result files, written atomically.

lm-eval's own tasks swde, fda and squad_completion have only one version, read only the hub, match empty values, and do not report
prompts that were truncated; generation and matching are the same.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import logging
import math
import os
import platform
import random
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import datasets
import lm_eval.api.task
import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean
from lm_eval.evaluator import evaluate
from lm_eval.evaluator_utils import get_sample_size
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager
from lm_eval.utils import handle_non_serializable, sanitize_model_name

from recallkit.config import VERSION
from recallkit.errors import UserError
from recallkit.recall.prompts import GENERATED_TOKENS, has_any, word_f1, words_of
from recallkit.storage import artifacts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lm_eval.api.model import LM

STOP = "\n"
GENERATION: dict[str, Any] = {"until": [STOP], "max_gen_toks": GENERATED_TOKENS, "do_sample": False}


def stops_of(document: Mapping[str, Any]) -> list[str]:
    """What ends a generation: a newline, but not in prompts with a needle, as in RULER."""
    return [STOP] if document.get("length") is None else []


def answer_after(prompt: str, value: str) -> str:
    """The correct continuation of the prompt: the value, after a space unless the prompt ends with one."""
    value = value.strip()
    return value if not prompt or prompt[-1].isspace() else f" {value}"


@dataclass
class RecallInstance(Instance):  # type: ignore[misc]
    """A request for a generation or for the likelihood of the answer, linked to the other so that a prompt is read once for both."""

    answer: str = ""


class RecallTask(lm_eval.api.task.ConfigurableTask):  # type: ignore[misc]
    """A recall evaluation on given documents (`prompt`, `value`, ...; `right`: the answers of which any is right, if not the value alone).

    Metrics: `contains`, and `answer_nats`, nats of the whole answer. `name` and `version` appear in every output of lm-eval.
    """

    def __init__(self, name: str, documents: Sequence[dict[str, Any]], version: int, metadata: dict[str, Any]) -> None:
        self._documents = datasets.Dataset.from_list(list(documents))
        super().__init__(
            config={
                "task": name,
                "validation_split": "validation",
                "doc_to_text": "prompt",
                "doc_to_target": "value",
                "output_type": "generate_until",
                "generation_kwargs": dict(GENERATION),
                "metadata": {**metadata, "version": version},
            }
        )

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Does nothing: the documents are given."""
        self.dataset = {"validation": self._documents}

    def construct_requests(self, doc: dict[str, Any], ctx: str, **kwargs: Any) -> list[RecallInstance]:
        """A greedy generation and the likelihood of the answer."""
        kept = {name: kwargs[name] for name in ("metadata",) if name in kwargs}
        answer = answer_after(ctx, doc["value"])
        generation = (ctx, {**GENERATION, "until": stops_of(doc)})
        return [
            RecallInstance("generate_until", doc, generation, 0, **kept, answer=answer),
            RecallInstance("loglikelihood", doc, (ctx, answer), 1, **kept, answer=answer),
        ]

    def process_results(self, doc: dict[str, Any], results: Sequence[Any]) -> dict[str, float]:
        """Metrics of one document; without an NLL if the model has none (NaN)."""
        generation, (log_likelihood, _) = results
        nats = {} if math.isnan(log_likelihood) else {"answer_nats": -log_likelihood}
        return {"contains": float(has_any(generation, doc.get("right") or [doc["value"]])), **nats}

    def aggregation(self) -> dict[str, Callable[..., Any]]:
        """Means over documents: lm-eval's own function, for which it has a standard error."""
        return {"contains": mean, "answer_nats": mean}

    def higher_is_better(self) -> dict[str, bool]:
        """Accuracies are better if higher, NLLs are not."""
        return {"contains": True, "answer_nats": False}


# ------------------------------------------------------------------------------------------------------------- running


_SEED = 1234
"""lm-eval's own default for few-shot examples."""

_BOOTSTRAP = 1000


def load_tasks(names: Sequence[str | lm_eval.api.task.Task]) -> dict[str, Any]:
    """Tasks of lm-eval by name, by the path of a YAML file, or as objects. Raises UserError for a task that does not exist."""
    _provide_squad_metrics()
    stock = [name for name in names if isinstance(name, str) and not _is_yaml(name)]
    with _quiet():
        manager = TaskManager(include_defaults=bool(stock))
        for name in stock:
            if not manager.match_tasks([name]):
                near = difflib.get_close_matches(name, manager.all_tasks, n=1)
                remedy = f"did you mean {near[0]}?" if near else "see `lm-eval ls tasks`, or give the path of a YAML file"
                raise UserError("lm-eval has no such task", where=name, remedy=remedy)
        _seed()
        try:
            loaded: dict[str, Any] = manager.load(list(names))
        except Exception as error:  # a task's code, its data and the hub may raise anything
            named = ", ".join(map(str, names))
            raise UserError(f"lm-eval cannot load it ({error})", where=named, remedy="check its file, its data and the network") from error
    return loaded


def _provide_squad_metrics() -> None:
    """Makes `transformers.data.metrics.squad_metrics`, which transformers 5 no longer has and tasks of lm-eval import (ReCoRD, CoQA)."""
    name = "transformers.data.metrics"
    if name in sys.modules or find_spec(name) is not None:
        return
    package, module = ModuleType(name), ModuleType(f"{name}.squad_metrics")
    functions = {
        "compute_f1": lambda value, generation: word_f1(generation, value),
        "compute_exact": lambda value, generation: int(words_of(generation) == words_of(value)),
    }
    vars(module).update(functions)
    vars(package).update(squad_metrics=module, __path__=[])
    sys.modules |= {name: package, module.__name__: module}


def _is_yaml(name: str) -> bool:
    """Whether a name is that of a file. Raises UserError if it looks like a path that does not exist."""
    if not (Path(name).is_file() or name.endswith((".yaml", ".yml"))):
        return False
    if not Path(name).is_file():
        raise UserError("no such file", where=name, remedy="give the path of a task's YAML file, or a task's name")
    return True


def run_tasks(lm: LM, loaded: dict[str, Any], *, model: str, limit: int | None = None, shots: int | None = None) -> dict[str, Any]:
    """lm-eval's results of `load_tasks`' tasks, their samples under `samples`; `shots` examples precede each question, if it is given."""
    _prepare(loaded, shots)
    # lm-eval would start a process for each core to bootstrap perplexity and the like, in one of them. Where processes are not
    # forked (Python 3.14, macOS) each imports the user's program, which may run recallkit again.
    os.environ.setdefault("DISABLE_MULTIPROC", "1")
    begun = time.time()
    with _quiet():
        results: dict[str, Any] = evaluate(lm, loaded, limit=limit, bootstrap_iters=_BOOTSTRAP)
    config = {"model": model, "model_args": "", "limit": limit, "bootstrap_iters": _BOOTSTRAP, "fewshot_seed": _SEED}
    return {**results, "config": config, "date": begun, **_environment()}


def digest_requests(loaded: dict[str, Any], limit: int | None, shots: int | None = None) -> str:
    """Digest of all requests of `load_tasks`' tasks, which covers their data, templates and code."""
    state = hashlib.blake2b(digest_size=16)
    for name, instances in _instances(loaded, limit, shots).items():
        asked = [name, *([instance.request_type, instance.args, instance.doc] for instance in instances)]
        state.update(json.dumps(asked, default=handle_non_serializable, sort_keys=True).encode())
    return state.hexdigest()


def requests_of(loaded: dict[str, Any], limit: int | None = None, shots: int | None = None) -> dict[str, list[Instance]]:
    """The requests of `load_tasks`' tasks by their types, as `run_tasks` has a model answer them: in the same order."""
    found: dict[str, list[Instance]] = {}
    for instances in _instances(loaded, limit, shots).values():
        for instance in instances:
            found.setdefault(instance.request_type, []).extend([instance] * instance.repeats)
    return found


def _instances(loaded: dict[str, Any], limit: int | None, shots: int | None) -> dict[str, list[Instance]]:
    """The requests of each task."""
    _prepare(loaded, shots)
    with _quiet():
        for task in loaded["tasks"].values():
            task.build_all_requests(limit=get_sample_size(task, limit))
    return {name: task.instances for name, task in loaded["tasks"].items()}


def _prepare(loaded: dict[str, Any], shots: int | None) -> None:
    """Prepares tasks as lm-eval's own command does before it runs them; `shots` as its `--num_fewshot`."""
    for task in loaded["tasks"].values():
        if task.get_config("num_fewshot") is None or shots is not None:
            task.set_config(key="num_fewshot", value=shots or 0)
        task.set_fewshot_seed(seed=_SEED)
    _seed()


def _seed() -> None:
    random.seed(_SEED)
    np.random.seed(_SEED)


def _environment() -> dict[str, str]:
    """Versions and machine, under lm-eval's names; lm-eval itself would run pip and git, which takes seconds."""
    versions = [f"recallkit {VERSION}", *(f"{name} {version(name)}" for name in ("torch", "tokenizers", "datasets"))]
    return {
        "pretty_env_info": ", ".join([platform.platform(), f"Python {platform.python_version()}", *versions]),
        "transformers_version": version("transformers"),
        "lm_eval_version": version("lm_eval"),
    }


def write_results(results: dict[str, Any], folder: Path, model: str, shown: str | None = None) -> list[Path]:
    """Writes lm-eval's results JSON, and a samples JSONL per task, under their usual names in `folder`/MODEL; in them it is called `shown`.

    They are added to the list of that folder. Returns their paths. Raises UserError if one could not be written.
    """
    samples = results.pop("samples", {})
    target = folder / _folder_name(model)
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target, prefix=".") as temporary, _quiet():
        tracker = EvaluationTracker(output_path=temporary)
        facts = tracker.general_config_tracker
        facts.model_source, facts.model_name, facts.model_name_sanitized = "recallkit", shown or model, "model"
        tracker.save_results_aggregated(results=results, samples=samples)
        for name, of_task in samples.items():
            tracker.save_results_samples(task_name=name, samples=of_task)
        written = sorted((Path(temporary) / "model").glob("*"))
        if not _are_whole(written, samples):  # it logs errors rather than raising them
            raise UserError("lm-eval could not write its results", where=target, remedy="check the disk and run the same command again")
        with artifacts.adding_members(target, [file.name for file in written]) as new:
            for file in written:
                file.replace(new / file.name)
    return [target / file.name for file in written]


def _are_whole(written: Sequence[Path], samples: Mapping[str, Sequence[Any]]) -> bool:
    """Whether lm-eval's files are all there to their last line: on a full disk it leaves truncated ones."""
    lines = sorted(path.read_bytes().count(b"\n") for path in written if path.suffix == ".jsonl")
    results = [artifacts.json_object(path) for path in written if path.suffix == ".json"]
    return lines == sorted(map(len, samples.values())) and len(results) == 1 and results[0] != {}


def _folder_name(model: str) -> str:
    """lm-eval's name of a model's folder, which can never lead out of its parent."""
    name: str = sanitize_model_name(model)
    is_plain = name.isprintable() and len(name) <= 200 and not name.startswith(".")
    return name if is_plain else artifacts.file_slug(name)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences lm-eval, which logs its progress, draws short-lived progress bars, and warns about its own code.

    What it prints goes to stderr, because stdout is for results.
    """
    bars, lm_eval.api.task.tqdm = lm_eval.api.task.tqdm, lambda rows, **_: rows
    drew = datasets.is_progress_bar_enabled()
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
        if drew:
            datasets.enable_progress_bars()
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
