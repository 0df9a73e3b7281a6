"""A model's results on the prompts of a recall evaluation: what it generates, and the NLL of the
answer, of which each prompt is read once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.errors import UserError
from recallkit.recall.answering import Answering, Request, until
from recallkit.recall.copying import copy_answer
from recallkit.recall.prompts import GENERATED_TOKENS, Places, find_places

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from recallkit.models.evaluated import EvaluatedModel
    from recallkit.options import PromptOptions
    from recallkit.storage.journal import PartsJournal
    from recallkit.storage.timings import Timings
    from recallkit.text.tokenizers import TextTokenizer

    Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Recall:
    """A model's result on one prompt of a recall evaluation."""

    generation: str
    answer_nll: list[float] | None
    """NLL (nats) of each id of the answer, up to the number of ids that could be generated; None
    for a model without likelihoods."""
    prompt_tokens: int
    """Ids of the prompt before truncation, without what the model reads before every text."""
    num_cut: int
    """Ids truncated on the left, so that the rest and the generated ids fit into the context."""
    places: Places


def recall_documents(
    model: EvaluatedModel,
    task: str,
    documents: Sequence[Document],
    journal: PartsJournal,
    options: PromptOptions,
    timings: Timings,
) -> list[Recall]:
    """The model's result on each document (see `prompts.make_documents`); answered batches are
    parts of `journal`."""
    if model.copies_text:
        return list(_copies(documents, model.tokenizer))
    answering = Answering(model, task, journal, options, timings)
    prompts = [_prompt(document, answering) for document in documents]
    questions = [question for question, _, _ in prompts]
    recalls = []
    for prompt, outcome in zip(prompts, answering.run(questions), strict=True):
        question, num_ids, places = prompt
        text, num_cut = answering.text(question, outcome), num_ids - len(question.prompt)
        recalls.append(Recall(text, outcome.answer_nll, num_ids, num_cut, places))
    return recalls


def _copies(documents: Sequence[Document], tokenizer: TextTokenizer) -> Iterator[Recall]:
    """Those of `control:copy`, which has no likelihoods; `tokenizer` measures distances."""
    for document in documents:
        prompt = document["prompt"]
        ids, stops = tokenizer.encode_with_stops([prompt])[0]
        places = find_places(prompt, document["value"], stops, 0)
        yield Recall(until(copy_answer(prompt), _stops(document)), None, len(ids), 0, places)


def _prompt(document: Document, answering: Answering) -> tuple[Request, int, Places]:
    """The question, the number of prompt ids before truncation, and where the value is in the
    prompt."""
    prompt, value, tokenizer = document["prompt"], document["value"], answering.tokenizer
    text_ids, stops = tokenizer.encode_with_stops([prompt])[0]
    ids = answering.context(text_ids.tolist())
    num_cut = answering.num_cut(len(ids), GENERATED_TOKENS)
    if num_cut and document["length"] is not None:
        size, limit = len(ids) + GENERATED_TOKENS, answering.max_length
        problem = f"reads {limit:,} ids, and a prompt with its answer has {size:,}"
        raise UserError(problem, where=answering.model.location, remedy="give shorter --lengths")
    answer = tokenizer.continuation.encode([answer_after(prompt, value)])[0].astype(np.int64)
    places = find_places(prompt, value, stops, num_cut)
    answer, ends = answer[:GENERATED_TOKENS], tuple(_stops(document))
    return Request(ids[num_cut:], answer, GENERATED_TOKENS, ends), len(ids), places


def _stops(document: Document) -> list[str]:
    """What ends a generation: a newline, but not in prompts with a needle, as in RULER."""
    return ["\n"] if document["length"] is None else []


def answer_after(prompt: str, value: str) -> str:
    """The correct continuation of the prompt: the value, after a space unless the prompt ends with
    one."""
    value = value.strip()
    return value if not prompt or prompt[-1].isspace() else f" {value}"
