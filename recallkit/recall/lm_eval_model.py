"""Our models behind lm-eval's interface: its requests are answered in batches, each of which is saved as soon as it is done.

Batches are formed from all requests at once, longest first, and do not depend on what an earlier run has saved, so that a
resumed evaluation gives the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from lm_eval.api.model import LM, TemplateLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from recallkit.errors import UserError
from recallkit.models.generation import generate
from recallkit.ragged import offsets_of
from recallkit.recall.copying import copy_answer
from recallkit.recall.lm_eval_run import RecallInstance, stops_of
from recallkit.recall.prompts import GENERATED_TOKENS, Places, find_places
from recallkit.storage import artifacts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lm_eval.api.instance import Instance

    from recallkit.models.evaluated import EvaluatedModel
    from recallkit.models.protocol import ScoringModel
    from recallkit.storage.journal import Parts
    from recallkit.text.tokenizers import TextTokenizer

_MOST_GENERATED = 256
"""Ids generated if a task of lm-eval does not specify a number: lm-eval's own default."""

_GREEDY_OPTIONS = {"until", "max_gen_toks", "do_sample", "temperature"}
"""Options of a generation that are supported; any other is refused."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request in ids: the prompt, the continuation whose NLL is wanted, and how many ids to generate at most (0: none)."""

    prompt: np.ndarray
    answer: np.ndarray
    most: int = 0
    until: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a job: generated ids, the answer's NLLs (nats), and whether each of its ids was the argmax."""

    ids: list[int]
    answer_nll: list[float]
    is_greedy: bool | None = None


@dataclass(frozen=True, slots=True)
class Recall:
    """A model's result on one prompt of a recall evaluation."""

    generation: str
    answer_nll: list[float] | None
    """NLL (nats) of each id of the answer, up to the number of ids that could be generated; None for a model without likelihoods."""
    prompt_tokens: int
    """Ids of the prompt before truncation."""
    num_cut: int
    """Ids truncated on the left, so that the rest and the generated ids fit into the context."""
    places: Places


class ModelLM(TemplateLM):  # type: ignore[misc]
    """A model of ours behind lm-eval's interface.

    `load` is called when the model is first needed. `parts` stores answered batches of `batch_size` prompts;
    `max_length` is the number of ids read at once at most, None for the model's own limit; `show` is called with the number of
    requests done.
    """

    def __init__(
        self,
        load: Callable[[], ScoringModel],
        tokenizer: TextTokenizer,
        parts: Parts,
        *,
        max_length: int | None = None,
        batch_size: int | None = None,
        show: Callable[[int], None] = lambda _: None,
    ) -> None:
        super().__init__()
        self._load = load
        self.text_tokenizer = tokenizer
        self.parts = parts
        self._given_length = max_length
        self._batch_size = batch_size
        self.show = show
        self.recalls: dict[tuple[str, str], Recall] = {}
        self._num_parts = 0
        self._num_done = 0

    @cached_property
    def model(self) -> ScoringModel:
        """The model, loaded on first use."""
        return self._load()

    @cached_property
    def max_length(self) -> int | None:
        """Ids read at once at most; None if there is no limit."""
        limits = [limit for limit in (self._given_length, self.model.max_length) if limit is not None]
        return min(limits) if limits else None

    @cached_property
    def batch_size(self) -> int:
        """Prompts per batch: the same in a resumed run."""
        on_gpu = str(getattr(self.model, "device", "cpu")).startswith("cuda")
        return int(self.parts.settle("batch_size", lambda: self._batch_size or (32 if on_gpu else 8)))

    @property
    def eot_token_id(self) -> int:
        """The end token."""
        return self.text_tokenizer.end_token_id

    @property
    def prefix_token_id(self) -> int:
        """The context of a text without any other context."""
        return self.text_tokenizer.begin_id

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end a generation: the tokenizer's, and those of the model's own configuration."""
        return self.text_tokenizer.stop_ids | getattr(self.model, "end_ids", frozenset())

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Ids of a text, preceded by those that the tokenizer puts before every text unless `add_special_tokens` is False."""
        ids: list[int] = self.text_tokenizer.encode([string])[0].tolist()
        return ids if add_special_tokens is False else [*self._prefix(ids), *ids]

    def _prefix(self, ids: list[int]) -> list[int]:
        """Ids to put before a text of these ids: none if it begins with them."""
        prefix = self.text_tokenizer.prefix_ids
        return [] if ids[: len(prefix)] == prefix else prefix

    # ---------------------------------------------------------------------------------------------- lm-eval's requests

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Greedy generations, each ended at the first of its stop sequences."""
        if _is_recall(requests):
            return [recall.generation for recall in self._recall(requests)]
        jobs = [self._generation(*request.args) for request in requests]
        return [self._text(job, outcome.ids) for job, outcome in zip(jobs, self._run(jobs), strict=True)]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log-likelihood (nats) of each continuation, and whether greedy generation would produce it (unknown for recall)."""
        if _is_recall(requests):
            return [(-math.fsum(recall.answer_nll or [math.nan]), False) for recall in self._recall(requests)]
        found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=True)
        return found

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood (nats) of each text, read in windows of the context, each token predicted once."""
        jobs, owners = [], []
        for owner, request in enumerate(requests):
            ids = self.tok_encode(request.args[0])  # as in lm-eval, a token put before every text is predicted, too
            windows = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length or max(1, len(ids)), 1)
            for context, continuation in map(make_disjoint_window, windows):
                jobs.append(Job(np.array(context), np.array(continuation)))
                owners.append(owner)
        sums = np.zeros(len(requests))
        for owner, outcome in zip(owners, self._run(jobs), strict=True):
            sums[owner] -= math.fsum(outcome.answer_nll)
        return [float(value) for value in sums]

    def _loglikelihood_tokens(self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_: Any) -> list[tuple[float, bool]]:
        jobs = []
        for texts, context, continuation in requests:
            room = self.max_length or len(context) + len(continuation)
            if not 0 < len(continuation) <= room:
                problem = f"a continuation of {len(continuation):,} ids, but the context has room for 1 to {room:,} ({texts[1][:40]!r} ...)"
                raise UserError(problem, where=self.model.name, remedy="choose another task, or give a longer --context")
            kept = (context or [self.prefix_token_id])[max(0, len(context) + len(continuation) - room - 1) :]
            jobs.append(Job(np.array(kept), np.array(continuation)))
        return [(-math.fsum(outcome.answer_nll), bool(outcome.is_greedy)) for outcome in self._run(jobs)]

    def _generation(self, context: str, options: dict[str, Any]) -> Job:
        wanted = normalize_gen_kwargs(options, _MOST_GENERATED)
        more = {name: value for name, value in wanted.items() if name not in _GREEDY_OPTIONS and (name, value) != ("num_beams", 1)}
        if wanted.get("do_sample") or more:
            asked = ", ".join(more) or "sampling"
            raise UserError(f"it asks for {asked}, but generation is greedy here", where="--lm-eval-task", remedy="choose another task")
        until = [stop for stop in handle_stop_sequences(wanted.get("until"), eos=None) if stop]
        most = int(wanted["max_gen_toks"])
        ids = self.tok_encode(context) or [self.prefix_token_id]
        return Job(np.array(ids[self._num_cut(len(ids), most) :]), np.empty(0, np.int64), most, tuple(until))

    def _num_cut(self, num_ids: int, most: int) -> int:
        """Ids to truncate on the left of a prompt, so that it and `most` further ones fit into the context."""
        if self.max_length is None:
            return 0
        if self.max_length <= most:
            problem = f"a context of {self.max_length:,} ids has no room for a prompt and {most} generated ones"
            is_own = self.max_length == self.model.max_length
            raise UserError(problem, where=self.model.name, remedy="leave it out" if is_own else "give a longer --context")
        return max(0, num_ids - (self.max_length - most))

    def _text(self, job: Job, ids: Sequence[int]) -> str:
        text = self.text_tokenizer.generated_text(ids)
        cut: str = postprocess_generated_text(text, list(job.until), None)
        return cut

    # ------------------------------------------------------------------------------------------------ recall prompts

    def _recall(self, requests: Sequence[RecallInstance]) -> list[Recall]:
        """The model's result on each prompt; both requests of a prompt are answered at the first of them."""
        if any(_key(request) not in self.recalls for request in requests):
            prompts = [self._recall_prompt(request) for request in requests]
            outcomes = self._run([job for job, _, _ in prompts])
            for request, (job, num_ids, places), outcome in zip(requests, prompts, outcomes, strict=True):
                generation = self._text(job, outcome.ids)
                recall = Recall(generation, outcome.answer_nll, num_ids, num_ids - len(job.prompt), places)
                self.recalls[_key(request)] = recall
        return [self.recalls[_key(request)] for request in requests]

    def _recall_prompt(self, request: RecallInstance) -> tuple[Job, int, Places]:
        """The job, the number of prompt ids before truncation, and where the value is in the prompt."""
        prompt = request.doc["prompt"]
        text_ids, stops = self.text_tokenizer.encode_with_stops([prompt])[0]
        prefix = self._prefix(text_ids.tolist())
        ids = np.array([*prefix, *text_ids.tolist()] or [self.prefix_token_id])
        num_cut = self._num_cut(len(ids), GENERATED_TOKENS)
        if num_cut and request.doc.get("length") is not None:
            problem = f"reads {self.max_length:,} ids, and a prompt with its answer has {len(ids) + GENERATED_TOKENS:,}"
            raise UserError(problem, where=self.model.name, remedy="give shorter --lengths")
        answer = self.text_tokenizer.continuation.encode([request.answer])[0].astype(np.int64)
        places = find_places(prompt, request.doc["value"], stops, max(0, num_cut - len(prefix)))
        return Job(ids[num_cut:], answer[:GENERATED_TOKENS], GENERATED_TOKENS, tuple(stops_of(request.doc))), len(ids), places

    # --------------------------------------------------------------------------------------------------------- batches

    def _run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """The outcome of every job, in order; longest first, in batches, of which those that an earlier run saved are reused."""
        order = sorted(range(len(jobs)), key=lambda number: (-len(jobs[number].prompt) - len(jobs[number].answer), number))
        outcomes: dict[int, Outcome] = {}
        for start in range(0, len(order), self.batch_size):
            batch = order[start : start + self.batch_size]
            outcomes |= zip(batch, self._saved_or_answered([jobs[number] for number in batch]), strict=True)
            self._num_done += len(batch)
            self.show(self._num_done)
        return [outcomes[number] for number in range(len(jobs))]

    def _saved_or_answered(self, jobs: Sequence[Job]) -> list[Outcome]:
        """The outcomes of the next batch: those saved under its number, or new ones, which are saved."""
        path = self.parts.path(self._num_parts)
        self._num_parts += 1
        if path.exists():
            return [Outcome(**fields) for fields in artifacts.read_json(path)["outcomes"]]
        found = self._answer(jobs)
        artifacts.write_json(path, {"outcomes": [asdict(outcome) for outcome in found]})
        return found

    def _answer(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Answers one batch, in halves if it does not fit into memory. Raises UserError if a single job does not."""
        try:
            return self._generate(jobs) if any(job.most for job in jobs) else self._score(jobs)
        except MemoryError:
            if len(jobs) == 1:
                problem = f"out of memory on a prompt of {len(jobs[0].prompt):,} ids"
                raise UserError(problem, where=self.model.name, remedy="give a shorter --context") from None
            half = len(jobs) // 2
            return self._answer(jobs[:half]) + self._answer(jobs[half:])

    def _generate(self, jobs: Sequence[Job]) -> list[Outcome]:
        def is_done(number: int, ids: list[int]) -> bool:
            if ids[-1] in self.stop_ids or len(ids) >= jobs[number].most:
                return True
            text = self.text_tokenizer.generated_text(ids, special=True)
            return any(stop in text for stop in jobs[number].until)

        prompts, answers = [job.prompt for job in jobs], [job.answer for job in jobs]
        found = generate(self.model, prompts, answers, max(job.most for job in jobs), is_done)
        return [Outcome([int(i) for i in each.ids], [float(nll) for nll in each.answer_nll]) for each in found]

    def _score(self, jobs: Sequence[Job]) -> list[Outcome]:
        """NLLs only, reading each prompt and its answer at once."""
        sequences = [np.concatenate([job.prompt, job.answer]) for job in jobs]
        offsets = offsets_of([len(sequence) for sequence in sequences])
        scores = self.model.score(np.concatenate(sequences).astype(np.uint32), offsets)
        outcomes = []
        for job, stop in zip(jobs, offsets[1:] - np.arange(1, len(offsets)), strict=True):
            answered = slice(stop - len(job.answer), stop)
            is_greedy = bool((scores.argmax[answered] == job.answer).all())
            outcomes.append(Outcome([], [float(nll) for nll in scores.nll[answered]], is_greedy))
        return outcomes


def _is_recall(requests: Sequence[Instance]) -> bool:
    return all(isinstance(request, RecallInstance) for request in requests)


def _key(request: RecallInstance) -> tuple[str, str]:
    """The key of a recall: its prompt and its value."""
    return request.doc["prompt"], request.doc["value"]


def lm_eval_model(evaluated: EvaluatedModel, parts: Parts, show: Callable[[int], None]) -> LM:
    """A model as lm-eval sees it; `parts` stores its answers, `show` is called with the number of requests done."""
    if evaluated.copies_text:
        return CopyLM(evaluated.tokenizer)
    options = evaluated.options
    context, batch_size = options.context, options.batch_size
    return ModelLM(lambda: evaluated.model, evaluated.tokenizer, parts, max_length=context, batch_size=batch_size, show=show)


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
