"""Questions in ids, answered by a model in batches, each a part of the result as soon as it is
answered.

What is in a batch depends on the questions alone, so that a resumed evaluation, and one of several
workers, gives the same numbers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from recallkit import builtin
from recallkit.display import console
from recallkit.errors import UserError
from recallkit.models.evaluated import EvaluatedModel, open_models
from recallkit.models.generation import generate
from recallkit.models.live import check_alone
from recallkit.models.prefix import other_prefixes, prefix_notes
from recallkit.parallel.job import Done
from recallkit.parallel.parts import make_parts
from recallkit.ragged import offsets_of
from recallkit.storage import artifacts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from recallkit.models.protocol import ScoringModel
    from recallkit.models.spec import ModelSpec
    from recallkit.options import PromptOptions
    from recallkit.parallel.job import WorkerSlot
    from recallkit.storage.journal import Parts, PartsJournal
    from recallkit.storage.timings import Timings


def open_prompted(
    models: Sequence[str | ModelSpec],
    options: PromptOptions,
) -> dict[str, EvaluatedModel]:
    """The models that are asked, by the names that results show; see `open_models`. A control model
    has the built-in counts."""

    def opened(spec: ModelSpec) -> EvaluatedModel:
        check_alone(spec, options)
        return EvaluatedModel(spec, options, builtin.counts)

    prompted = open_models(models, options, opened)
    prefixes = {name: model.prefix for name, model in prompted.items() if not model.is_control}
    tokens = {name: prefix.token for name, prefix in prefixes.items()}
    for line in (*prefix_notes(prefixes), *other_prefixes(tokens)):
        console.note(line)
    return prompted


@dataclass(frozen=True, slots=True)
class Request:
    """One request in ids: the prompt, the continuation whose NLL is wanted, and how many ids to
    generate at most (0: none)."""

    prompt: np.ndarray
    answer: np.ndarray
    most: int = 0
    until: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a question: generated ids, the answer's NLLs (nats), and whether each of its
    ids was the argmax."""

    ids: list[int]
    answer_nll: list[float]
    is_greedy: bool | None = None


@dataclass(frozen=True, slots=True)
class AnsweringJob:
    """Batches of a task's questions for a model, the parts from `first` on; it can be pickled."""

    model: EvaluatedModel
    task: str
    parts: Parts
    batches: Sequence[Sequence[Request]]
    first: int = 0

    doing: ClassVar[str] = "evaluating"
    unit: ClassVar[str] = "prompts"
    remedy: ClassVar[str] = "give fewer --workers or a smaller --batch-size"
    max_items_per_task: ClassVar[int] = 8

    @property
    def where(self) -> str:
        """The model, and what it is asked."""
        return f"{self.model.shown}, {self.task}"

    @property
    def prefers_gpu(self) -> bool:
        """Whether a GPU would be used."""
        return self.model.plan.device != "cpu"

    @property
    def numbers(self) -> range:
        """The parts."""
        return range(self.first, self.first + len(self.batches))

    @property
    def total(self) -> int:
        """Questions."""
        return sum(map(len, self.batches))

    def amount_done(self) -> int:
        """The questions whose answers are on disk."""
        done = self.parts.done().intersection(self.numbers)
        return sum(len(self.batches[number - self.first]) for number in done)

    def outcomes(self) -> Iterator[Outcome]:
        """The answers to all questions, which are on disk, batch after batch."""
        for number in self.numbers:
            for fields in artifacts.read_json(self.parts.path(number))["outcomes"]:
                yield Outcome(**fields)

    def open(self, slot: WorkerSlot | None = None) -> Answerer:
        """Loads the model, onto the slot's GPU if there is one. See `parallel.job.Job.open`."""
        return Answerer(self, self.model.model if slot is None else self.model.load_in(slot))


class Answerer:
    """A loaded model and its job."""

    def __init__(self, job: AnsweringJob, model: ScoringModel) -> None:
        self.job, self.model, self.tokenizer = job, model, job.model.tokenizer
        self.stop_ids = self.tokenizer.stop_ids | getattr(model, "end_ids", frozenset())
        """Ids that end a generation: the tokenizer's, and those of the model's own
        configuration."""

    def run(self, numbers: Sequence[int]) -> Iterator[Done]:
        """Answers batches; reports the questions of each as soon as its file is complete."""
        for number in numbers:
            questions = self.job.batches[number - self.job.first]
            answers = [asdict(outcome) for outcome in self.answer(questions)]
            artifacts.write_json(self.job.parts.path(number), {"outcomes": answers})
            yield Done(len(questions))

    def answer(self, questions: Sequence[Request]) -> list[Outcome]:
        """Answers one batch, in halves if it does not fit into memory. Raises UserError if a single
        question does not."""
        try:
            is_generated = any(question.most for question in questions)
            return self._generate(questions) if is_generated else self._score(questions)
        except MemoryError:
            if len(questions) == 1:
                problem = f"out of memory on a prompt of {len(questions[0].prompt):,} ids"
                remedy = "give a shorter --context"
                raise UserError(problem, where=self.job.model.location, remedy=remedy) from None
            half = len(questions) // 2
            return self.answer(questions[:half]) + self.answer(questions[half:])

    def _generate(self, questions: Sequence[Request]) -> list[Outcome]:
        def is_done(number: int, ids: list[int]) -> bool:
            if ids[-1] in self.stop_ids or len(ids) >= questions[number].most:
                return True
            text = self.tokenizer.generated_text(ids, special=True)
            return any(stop in text for stop in questions[number].until)

        prompts = [question.prompt for question in questions]
        answers = [question.answer for question in questions]
        most = max(question.most for question in questions)
        generations = generate(self.model, prompts, answers, most, is_done)
        return [Outcome(list(map(int, one.ids)), _floats(one.answer_nll)) for one in generations]

    def _score(self, questions: Sequence[Request]) -> list[Outcome]:
        """NLLs only, reading each prompt and its answer at once."""
        sequences = [np.concatenate([question.prompt, question.answer]) for question in questions]
        offsets = offsets_of([len(sequence) for sequence in sequences])
        scores = self.model.score(np.concatenate(sequences).astype(np.uint32), offsets)
        stops = offsets[1:] - np.arange(1, len(offsets))  # n ids have n - 1 predictions
        outcomes = []
        for question, stop in zip(questions, stops, strict=True):
            place = slice(stop - len(question.answer), stop)
            is_greedy = bool((scores.argmax[place] == question.answer).all())
            outcomes.append(Outcome([], _floats(scores.nll[place]), is_greedy))
        return outcomes


def _floats(values: Sequence[float] | np.ndarray) -> list[float]:
    return [float(value) for value in values]


class Answering:
    """A model that answers the questions of one result, of which answered batches are parts.

    Batches are formed of all questions at once, longest first.
    """

    def __init__(
        self,
        model: EvaluatedModel,
        task: str,
        journal: PartsJournal,
        options: PromptOptions,
        timings: Timings,
    ) -> None:
        self.model, self.tokenizer = model, model.tokenizer
        self._task, self._journal, self._options, self._timings = task, journal, options, timings
        self._num_parts = 0

    @cached_property
    def _settled(self) -> dict[str, int | None]:
        """What the model decides of batches, the same in a resumed run and for all workers: its
        longest context, prompts per batch."""

        def propose() -> dict[str, int | None]:
            model, options = self.model.model, self._options
            on_gpu = str(getattr(model, "device", "cpu")).startswith("cuda")
            size = options.batch_size or (32 if on_gpu else 8)
            limits = {"max_length": model.max_length, "batch_size": size}
            if options.workers > 1 or options.engine != "local":
                self.model.unload()  # each worker loads it
            return limits

        settled: dict[str, int | None] = self._journal.parts.settle("batches", propose)
        return settled

    @property
    def max_length(self) -> int | None:
        """Ids read at once at most; None if there is no limit."""
        limits = (self.model.context, self._settled["max_length"])
        return min((limit for limit in limits if limit is not None), default=None)

    @cached_property
    def nothing(self) -> list[int]:
        """The ids of an empty context: what the model reads before every text, else the end of
        another document."""
        return list(self.model.prefix.ids) or [self.tokenizer.end_token_id]

    def context(self, ids: Sequence[int]) -> np.ndarray:
        """A context in ids; where it is empty, also as lm-eval writes that, all that is read
        before a text."""
        is_empty = list(ids) in ([], self.nothing[-1:])
        return np.array(self.nothing if is_empty else ids)

    def num_cut(self, num_ids: int, most: int) -> int:
        """Ids to truncate on the left of a prompt, so that it and `most` further ones fit into the
        context. Raises UserError where they never do."""
        limit = self.max_length
        if limit is None:
            return 0
        if limit <= most:
            needed = f"a prompt and {most} generated ones"
            is_own = limit == self._settled["max_length"]
            raise UserError(
                f"a context of {limit:,} ids has no room for {needed}",
                where=self.model.location,
                remedy="leave it out" if is_own else "give a longer --context",
            )
        return max(0, num_ids - (limit - most))

    def run(self, questions: Sequence[Request]) -> list[Outcome]:
        """The outcome of every question, in order; batches that an earlier run saved are reused."""

        def size_of(number: int) -> int:
            return len(questions[number].prompt) + len(questions[number].answer)

        order = sorted(range(len(questions)), key=size_of, reverse=True)
        size = self._settled["batch_size"]
        assert size is not None
        ordered = [questions[number] for number in order]
        batches = [ordered[start : start + size] for start in range(0, len(ordered), size)]
        parts = self._journal.parts
        job = AnsweringJob(self.model, self._task, parts, batches, self._num_parts)
        self._num_parts += len(batches)
        make_parts(job, self._journal, self._options, self._timings)
        outcomes = dict(zip(order, job.outcomes(), strict=True))
        return [outcomes[number] for number in range(len(questions))]

    def text(self, question: Request, outcome: Outcome) -> str:
        """A generation as text, to the first of the question's stops."""
        return until(self.tokenizer.generated_text(outcome.ids), question.until)


def until(text: str, stops: Sequence[str]) -> str:
    """A text to the first of some stops."""
    for stop in stops:
        text = text.partition(stop)[0]
    return text
