"""A recall evaluation as a task of lm-eval: prompts made beforehand, answers matched regardless of case.

lm-eval's own tasks swde, fda and squad_completion have only one version, read only the hub, match empty values, and do not report
prompts that were truncated; generation and matching are the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import datasets
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean
from lm_eval.api.task import ConfigurableTask

from recallkit.recall.prompts import has_any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GENERATED_TOKENS = 48
STOP = "\n"
GENERATION: dict[str, Any] = {"until": [STOP], "max_gen_toks": GENERATED_TOKENS, "do_sample": False}


def answer_after(prompt: str, value: str) -> str:
    """The correct continuation of the prompt: the value, after a space unless the prompt ends with one."""
    value = value.strip()
    return value if not prompt or prompt[-1].isspace() else f" {value}"


@dataclass
class RecallInstance(Instance):  # type: ignore[misc]
    """A request for a generation or for the likelihood of the answer, linked to the other so that a prompt is read once for both."""

    answer: str = ""


class RecallTask(ConfigurableTask):  # type: ignore[misc]
    """A recall evaluation on given documents (`prompt`, `value`, ...; `right`: the answers of which any is right, if not the value alone).

    Metrics: `contains`, and `answer_nats`, nats of the whole answer. `name` and `version` appear in every output of lm-eval.
    """

    def __init__(self, name: str, documents: Sequence[dict[str, Any]], version: int, metadata: dict[str, Any]) -> None:
        self._documents = datasets.Dataset.from_list(list(documents))
        super().__init__(
            config={
                "task": name,
                "output_type": "generate_until",
                "generation_kwargs": dict(GENERATION),
                "metadata": {**metadata, "version": version},
            }
        )

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Does nothing: the documents are given."""
        self.dataset = {"validation": self._documents}

    def has_training_docs(self) -> bool:
        """False: there are none to learn from."""
        return False

    def has_validation_docs(self) -> bool:
        """True: all documents are validation documents."""
        return True

    def has_test_docs(self) -> bool:
        """See `has_validation_docs`."""
        return False

    def validation_docs(self) -> datasets.Dataset:
        """The documents."""
        return self.dataset["validation"]

    def doc_to_text(self, doc: dict[str, Any], doc_to_text: Any = None) -> str:
        """The prompt."""
        return str(doc["prompt"])

    def doc_to_target(self, doc: dict[str, Any], doc_to_target: Any = None) -> str:
        """The value."""
        return str(doc["value"])

    def construct_requests(self, doc: dict[str, Any], ctx: str, **kwargs: Any) -> list[RecallInstance]:
        """A greedy generation and the likelihood of the answer."""
        kept = {name: kwargs[name] for name in ("metadata",) if name in kwargs}
        answer = answer_after(ctx, doc["value"])
        generation = (ctx, dict(GENERATION))
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
