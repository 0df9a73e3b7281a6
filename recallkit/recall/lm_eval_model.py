"""Our models behind lm-eval's interface: its requests become questions in ids, which `answering` answers.

Batches are formed from all requests at once, longest first.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from lm_eval.api.model import LM, TemplateLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from recallkit.errors import UserError
from recallkit.models.evaluated import make_missing
from recallkit.parallel.parts import JOINED, make_parts
from recallkit.recall.answering import AnsweringJob, Question
from recallkit.recall.copying import copy_answer
from recallkit.recall.lm_eval_run import RecallInstance, stops_of
from recallkit.recall.prompts import GENERATED_TOKENS, Places, find_places
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lm_eval.api.instance import Instance

    from recallkit.models.evaluated import EvaluatedModel
    from recallkit.options import PromptOptions
    from recallkit.parallel.parts import Share
    from recallkit.recall.answering import Outcome
    from recallkit.storage.journal import PartsJournal
    from recallkit.storage.result import Result
    from recallkit.text.tokenizers import TextTokenizer

_MOST_GENERATED = 256
"""Ids generated if a task of lm-eval does not specify a number: lm-eval's own default."""

_GREEDY_OPTIONS = {"until", "max_gen_toks", "do_sample", "temperature"}
"""Options of a generation that are supported; any other is refused."""


@dataclass(frozen=True, slots=True)
class Recall:
    """A model's result on one prompt of a recall evaluation."""

    generation: str
    answer_nll: list[float] | None
    """NLL (nats) of each id of the answer, up to the number of ids that could be generated; None for a model without likelihoods."""
    prompt_tokens: int
    """Ids of the prompt before truncation, without what the model reads before every text."""
    num_cut: int
    """Ids truncated on the left, so that the rest and the generated ids fit into the context."""
    places: Places


class UnfinishedError(Exception):
    """Answers that other shares are to give are not all there."""


class ModelLM(TemplateLM):  # type: ignore[misc]
    """A model of ours behind lm-eval's interface, asked the requests of a task.

    Answered batches are parts of `journal`. With a `share` only its batches are answered: then every request raises UnfinishedError,
    and `of_shares` is how far all shares are together.
    """

    def __init__(
        self,
        model: EvaluatedModel,
        task: str,
        journal: PartsJournal,
        options: PromptOptions,
        timings: Timings,
        share: Share | None = None,
    ) -> None:
        super().__init__()
        self.evaluated, self.text_tokenizer, self.recalls = model, model.tokenizer, dict[tuple[str, str], Recall]()
        self._task, self._journal, self._options, self._timings, self._share = task, journal, options, timings, share
        self._num_parts = 0
        self.of_shares: dict[str, Any] = {"parts_done": 0, "num_parts": 0, "joined": False}

    @cached_property
    def _settled(self) -> dict[str, int | None]:
        """What the model decides of batches, the same in a resumed run and for all workers: its longest context, prompts per batch."""

        def look() -> dict[str, int | None]:
            model, options = self.evaluated.model, self._options
            on_gpu = str(getattr(model, "device", "cpu")).startswith("cuda")
            found = {"max_length": model.max_length, "batch_size": options.batch_size or (32 if on_gpu else 8)}
            if options.workers > 1 or options.engine != "local":  # each of them loads it
                self.evaluated.unload()
            return found

        settled: dict[str, int | None] = self._journal.parts.settle("batches", look)
        return settled

    @property
    def max_length(self) -> int | None:
        """Ids read at once at most; None if there is no limit."""
        limits = [limit for limit in (self.evaluated.options.context, self._settled["max_length"]) if limit is not None]
        return min(limits, default=None)

    @property
    def eot_token_id(self) -> int:
        """The end token."""
        return self.text_tokenizer.end_token_id

    @property
    def prefix_token_id(self) -> int:
        """The context of a text without any other context: what the model reads before it, else the end of another document."""
        return self._nothing[-1]

    @cached_property
    def _nothing(self) -> list[int]:
        """The ids of an empty context."""
        return list(self.evaluated.prefix.ids) or [self.text_tokenizer.end_token_id]

    def _context(self, ids: Sequence[int]) -> np.ndarray:
        """A context in ids; where it is empty, also as lm-eval writes that, all that is read before a text."""
        return np.array(self._nothing if list(ids) in ([], [self.prefix_token_id]) else ids)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Ids of a text alone: what the model reads before every text it adds itself, whatever is truncated."""
        ids: list[int] = self.text_tokenizer.encode([string])[0].tolist()
        return ids

    # ---------------------------------------------------------------------------------------------- lm-eval's requests

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Greedy generations, each ended at the first of its stop sequences."""
        if _is_recall(requests):
            return [recall.generation for recall in self._recall(requests)]
        questions = [self._generation(*request.args) for request in requests]
        return [self._text(question, outcome.ids) for question, outcome in zip(questions, self._run(questions), strict=True)]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log-likelihood (nats) of each continuation, and whether greedy generation would produce it (unknown for recall)."""
        if _is_recall(requests):
            return [(-math.fsum(recall.answer_nll or [math.nan]), False) for recall in self._recall(requests)]
        found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=True)
        return found

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood (nats) of each text, read in windows of the context, each of its tokens predicted once."""
        questions, owners = [], []
        for owner, request in enumerate(requests):
            ids = self.tok_encode(request.args[0])
            windows = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length or max(1, len(ids)), 1)
            for context, continuation in map(make_disjoint_window, windows):
                questions.append(Question(self._context(context), np.array(continuation)))
                owners.append(owner)
        sums = np.zeros(len(requests))
        for owner, outcome in zip(owners, self._run(questions), strict=True):
            sums[owner] -= math.fsum(outcome.answer_nll)
        return [float(value) for value in sums]

    def _loglikelihood_tokens(self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_: Any) -> list[tuple[float, bool]]:
        questions = []
        for texts, context, continuation in requests:
            room = self.max_length or len(context) + len(continuation)
            if not 0 < len(continuation) <= room:
                problem = f"a continuation of {len(continuation):,} ids, but the context has room for 1 to {room:,} ({texts[1][:40]!r} ...)"
                raise UserError(problem, where=self.evaluated.spec, remedy="choose another task, or give a longer --context")
            num_cut = max(0, len(context) + len(continuation) - room - 1)
            questions.append(Question(self._context(context[num_cut:]), np.array(continuation)))
        return [(-math.fsum(outcome.answer_nll), bool(outcome.is_greedy)) for outcome in self._run(questions)]

    def _generation(self, context: str, options: dict[str, Any]) -> Question:
        wanted = normalize_gen_kwargs(options, _MOST_GENERATED)
        more = {name: value for name, value in wanted.items() if name not in _GREEDY_OPTIONS and (name, value) != ("num_beams", 1)}
        if wanted.get("do_sample") or more:
            asked = ", ".join(more) or "sampling"
            raise UserError(f"it asks for {asked}, but generation is greedy here", where="--lm-eval-task", remedy="choose another task")
        until = [stop for stop in handle_stop_sequences(wanted.get("until"), eos=None) if stop]
        most = int(wanted["max_gen_toks"])
        ids = self.tok_encode(context)
        prompt = self._context(ids[self._num_cut(len(ids), most) :])
        return Question(prompt, np.empty(0, np.int64), most, tuple(until))

    def _num_cut(self, num_ids: int, most: int) -> int:
        """Ids to truncate on the left of a prompt, so that it and `most` further ones fit into the context."""
        if self.max_length is None:
            return 0
        if self.max_length <= most:
            problem = f"a context of {self.max_length:,} ids has no room for a prompt and {most} generated ones"
            is_own = self.max_length == self._settled["max_length"]
            raise UserError(problem, where=self.evaluated.spec, remedy="leave it out" if is_own else "give a longer --context")
        return max(0, num_ids - (self.max_length - most))

    def _text(self, question: Question, ids: Sequence[int]) -> str:
        text = self.text_tokenizer.generated_text(ids)
        cut: str = postprocess_generated_text(text, list(question.until), None)
        return cut

    # ------------------------------------------------------------------------------------------------ recall prompts

    def _recall(self, requests: Sequence[RecallInstance]) -> list[Recall]:
        """The model's result on each prompt; both requests of a prompt are answered at the first of them."""
        if any(_key(request) not in self.recalls for request in requests):
            prompts = [self._recall_prompt(request) for request in requests]
            outcomes = self._run([question for question, _, _ in prompts])
            for request, (question, num_ids, places), outcome in zip(requests, prompts, outcomes, strict=True):
                generation = self._text(question, outcome.ids)
                recall = Recall(generation, outcome.answer_nll, num_ids, num_ids - len(question.prompt), places)
                self.recalls[_key(request)] = recall
        return [self.recalls[_key(request)] for request in requests]

    def _recall_prompt(self, request: RecallInstance) -> tuple[Question, int, Places]:
        """The question, the number of prompt ids before truncation, and where the value is in the prompt."""
        prompt = request.doc["prompt"]
        text_ids, stops = self.text_tokenizer.encode_with_stops([prompt])[0]
        ids = self._context(text_ids.tolist())
        num_cut = self._num_cut(len(ids), GENERATED_TOKENS)
        if num_cut and request.doc.get("length") is not None:
            problem = f"reads {self.max_length:,} ids, and a prompt with its answer has {len(ids) + GENERATED_TOKENS:,}"
            raise UserError(problem, where=self.evaluated.spec, remedy="give shorter --lengths")
        answer = self.text_tokenizer.continuation.encode([request.answer])[0].astype(np.int64)
        places = find_places(prompt, request.doc["value"], stops, num_cut)
        return Question(ids[num_cut:], answer[:GENERATED_TOKENS], GENERATED_TOKENS, tuple(stops_of(request.doc))), len(ids), places

    # --------------------------------------------------------------------------------------------------------- batches

    def _run(self, questions: Sequence[Question]) -> list[Outcome]:
        """The outcome of every question, in order; longest first, in batches, of which those that an earlier run saved are reused."""
        order = sorted(range(len(questions)), key=lambda number: (-len(questions[number].prompt) - len(questions[number].answer), number))
        size = self._settled["batch_size"]
        assert size is not None
        batches = [[questions[number] for number in order[start : start + size]] for start in range(0, len(order), size)]
        job = AnsweringJob(self.evaluated, self._task, self._journal.parts, batches, self._num_parts)
        self._num_parts += len(batches)
        found = make_parts(job, self._journal, self._options, self._timings, self._share)
        if self._share is not None:
            self.of_shares = {**found, **{name: self.of_shares[name] + found[name] for name in ("parts_done", "num_parts")}}
            raise UnfinishedError
        outcomes = dict(zip(order, (outcome for batch in job.outcomes() for outcome in batch), strict=True))
        return [outcomes[number] for number in range(len(questions))]


def _is_recall(requests: Sequence[Instance]) -> bool:
    return all(isinstance(request, RecallInstance) for request in requests)


def _key(request: RecallInstance) -> tuple[str, str]:
    """The key of a recall: its prompt and its value."""
    return request.doc["prompt"], request.doc["value"]


def lm_eval_model(
    model: EvaluatedModel, task: str, journal: PartsJournal, options: PromptOptions, timings: Timings, share: Share | None = None
) -> ModelLM | CopyLM:
    """A model as lm-eval sees it, asked the requests of a task, or with a `share` some of them: see `ModelLM`."""
    return CopyLM(model.tokenizer) if model.copies_text else ModelLM(model, task, journal, options, timings, share)


def answer_share(
    models: Mapping[str, EvaluatedModel],
    results: Mapping[tuple[str, str], Result],
    requests: Callable[[EvaluatedModel, str], Mapping[str, Sequence[Instance]]],
    options: PromptOptions,
    share: Share,
) -> dict[str, dict[str, Any]]:
    """Answers a share of `requests` (see `lm_eval_run.requests_of`) of each model and task whose result is not complete.

    Returns how far all shares are together, by model and task; `control:copy` needs none.
    """

    def answer(model: EvaluatedModel, task: str, result: Result) -> dict[str, Any]:
        with result.parts(shared=True, batch_size=options.batch_size) as journal:
            lm = lm_eval_model(model, task, journal, options, Timings(), share)
            if isinstance(lm, CopyLM):
                return JOINED
            for kind, of_kind in requests(model, task).items():
                if kind == "generate_until" or not _is_recall(of_kind):  # the other request of a prompt is answered with its first
                    with contextlib.suppress(UnfinishedError):
                        getattr(lm, kind)(of_kind)
            return lm.of_shares

    made = make_missing(models, results, answer)
    return {f"{model}, {task}": made.get((model, task), JOINED) for model, task in results}


class CopyLM(LM):  # type: ignore[misc]
    """`control:copy`: a control model on text, without likelihoods; `tokenizer` measures prompts and distances."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        super().__init__()
        self.text_tokenizer = tokenizer
        self.recalls: dict[tuple[str, str], Recall] = {}

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The text that `copy_answer` copies, ended at the first of the stop sequences."""
        generations = []
        for request in requests:
            generation = postprocess_generated_text(copy_answer(request.args[0]), request.args[1]["until"], None)
            generations.append(generation)
            if _is_recall([request]):
                ids, stops = self.text_tokenizer.encode_with_stops([request.doc["prompt"]])[0]
                places = find_places(request.doc["prompt"], request.doc["value"], stops, 0)
                self.recalls[_key(request)] = Recall(generation, None, len(ids), 0, places)
        return generations

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """NaN for recall evaluations, because it has no likelihoods. Raises UserError for other tasks."""
        if _is_recall(requests):
            return [(math.nan, False)] * len(requests)
        raise UserError("it copies text and has no likelihoods", where="control:copy", remedy="leave it out of this task")

    loglikelihood_rolling = loglikelihood
