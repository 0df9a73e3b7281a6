"""Questions in ids, answered by a model in batches, each a part of the result as soon as it is answered.

What is in a batch depends on the questions alone, so that a resumed evaluation, and one of several workers, gives the same numbers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
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
from recallkit.ragged import offsets_of
from recallkit.storage import artifacts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from recallkit.models.protocol import ScoringModel
    from recallkit.models.spec import ModelSpec
    from recallkit.options import PromptOptions
    from recallkit.parallel.job import WorkerSlot
    from recallkit.storage.journal import Parts


def open_prompted(models: Sequence[str | ModelSpec], options: PromptOptions) -> dict[str, EvaluatedModel]:
    """The models that are asked, by the names that results show; see `open_models`. A control model has the built-in counts."""

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
class Question:
    """One request in ids: the prompt, the continuation whose NLL is wanted, and how many ids to generate at most (0: none)."""

    prompt: np.ndarray
    answer: np.ndarray
    most: int = 0
    until: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a question: generated ids, the answer's NLLs (nats), and whether each of its ids was the argmax."""

    ids: list[int]
    answer_nll: list[float]
    is_greedy: bool | None = None


@dataclass(frozen=True, slots=True)
class AnsweringJob:
    """Batches of questions for a model, the parts from `first` on; it can be pickled. `of`: where the questions are from."""

    model: EvaluatedModel
    of: str
    parts: Parts
    batches: Sequence[Sequence[Question]]
    first: int = 0

    doing: ClassVar[str] = "evaluating"
    unit: ClassVar[str] = "prompts"
    remedy: ClassVar[str] = "give fewer --workers or a smaller --batch-size"
    max_items_per_task: ClassVar[int] = 8

    @property
    def where(self) -> str:
        """The model, and what it is asked."""
        return f"{self.model.shown}, {self.of}"

    @property
    def prefers_gpu(self) -> bool:
        """Whether a GPU would be used."""
        return self.model.options.device != "cpu"

    @property
    def numbers(self) -> range:
        """The parts."""
        return range(self.first, self.first + len(self.batches))

    @property
    def total(self) -> int:
        """Questions."""
        return sum(map(len, self.batches))

    def kept(self) -> int:
        """The questions whose answers are on disk."""
        return sum(len(self.batches[number - self.first]) for number in self.parts.done().intersection(self.numbers))

    def outcomes(self) -> list[list[Outcome]]:
        """The answers to all batches, which are on disk."""
        return [[Outcome(**fields) for fields in artifacts.read_json(self.parts.path(number))["outcomes"]] for number in self.numbers]

    def open(self, slot: WorkerSlot | None = None) -> Answerer:
        """Loads the model, onto the slot's GPU if there is one. See `parallel.job.Job.open`."""
        return Answerer(self, self.model.model if slot is None else self.model.load_in(slot))


class Answerer:
    """A loaded model and its job."""

    def __init__(self, job: AnsweringJob, model: ScoringModel) -> None:
        self.job, self.model, self.tokenizer = job, model, job.model.tokenizer
        self.stop_ids = self.tokenizer.stop_ids | getattr(model, "end_ids", frozenset())
        """Ids that end a generation: the tokenizer's, and those of the model's own configuration."""

    def run(self, numbers: Sequence[int]) -> Iterator[Done]:
        """Answers batches; reports the questions of each as soon as its file is complete."""
        for number in numbers:
            questions = self.job.batches[number - self.job.first]
            answers = [asdict(outcome) for outcome in self.answer(questions)]
            artifacts.write_json(self.job.parts.path(number), {"outcomes": answers})
            yield Done(len(questions))

    def answer(self, questions: Sequence[Question]) -> list[Outcome]:
        """Answers one batch, in halves if it does not fit into memory. Raises UserError if a single question does not."""
        try:
            return self._generate(questions) if any(question.most for question in questions) else self._score(questions)
        except MemoryError:
            if len(questions) == 1:
                problem = f"out of memory on a prompt of {len(questions[0].prompt):,} ids"
                raise UserError(problem, where=self.job.model.spec, remedy="give a shorter --context") from None
            half = len(questions) // 2
            return self.answer(questions[:half]) + self.answer(questions[half:])

    def _generate(self, questions: Sequence[Question]) -> list[Outcome]:
        def is_done(number: int, ids: list[int]) -> bool:
            if ids[-1] in self.stop_ids or len(ids) >= questions[number].most:
                return True
            text = self.tokenizer.generated_text(ids, special=True)
            return any(stop in text for stop in questions[number].until)

        prompts, answers = [question.prompt for question in questions], [question.answer for question in questions]
        found = generate(self.model, prompts, answers, max(question.most for question in questions), is_done)
        return [Outcome([int(i) for i in each.ids], [float(nll) for nll in each.answer_nll]) for each in found]

    def _score(self, questions: Sequence[Question]) -> list[Outcome]:
        """NLLs only, reading each prompt and its answer at once."""
        sequences = [np.concatenate([question.prompt, question.answer]) for question in questions]
        offsets = offsets_of([len(sequence) for sequence in sequences])
        scores = self.model.score(np.concatenate(sequences).astype(np.uint32), offsets)
        outcomes = []
        for question, stop in zip(questions, offsets[1:] - np.arange(1, len(offsets)), strict=True):
            answered = slice(stop - len(question.answer), stop)
            is_greedy = bool((scores.argmax[answered] == question.answer).all())
            outcomes.append(Outcome([], [float(nll) for nll in scores.nll[answered]], is_greedy))
        return outcomes
