"""Synthetic tasks in a model's own vocabulary: the sequences, and a model's answers to them.

The sequences are those that models are trained on (`recallkit.synthetic`), with each answer behind
its question, as a language model reads on. For MQAR (Zoology, arXiv 2312.04927, Algorithm 1;
Appendix G for models that were not trained on it) that is

    k1 v1 k2 v2 ... kP vP  . . k3 v3 . . . . k1 v1 . . k2 v2 . .

the pairs, then every key once more followed by its value, and one filler id (.) everywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.errors import UserError
from recallkit.models.protocol import TokenScores
from recallkit.storage import hashing
from recallkit.synthetic import tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recallkit.models.protocol import ScoringModel
    from recallkit.text.tokenizers import TextTokenizer

_FILLERS = (" ", "\n", ".", ",", "the")
"""The filler is the first of these that the tokenizer encodes as one plain id: preferably a space,
which is common and ends no document."""


# --------------------------------------------------------------------------------------- vocabulary


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The vocabulary of sequences: `ids` (vocab,) int64, what id 0 (the filler), 1, 2 ... of a task
    are."""

    ids: np.ndarray

    @property
    def filler(self) -> int:
        """What fills the places that are neither pair nor question."""
        return int(self.ids[0])

    def digest(self) -> str:
        """Its identity in manifests."""
        return hashing.digest_json([hashing.digest_arrays(self.ids)])


def vocabulary_of(tokenizer: TextTokenizer) -> Vocabulary:
    """The filler and the other ids of a tokenizer that are plain text, ascending.

    Left out are special and other added tokens, the end and the unknown token, and ids that are put
    before a text.
    """
    plain = _plain_ids(tokenizer)
    filler = _choose_filler(tokenizer, plain)
    return Vocabulary(np.array([filler, *sorted(plain - {filler})], np.int64))


def _plain_ids(tokenizer: TextTokenizer) -> set[int]:
    backend = tokenizer.backend
    unknown: str | None = getattr(backend.model, "unk_token", None)
    special = {tokenizer.end_token_id, *tokenizer.prefix.ids, *backend.get_added_tokens_decoder()}
    vocabulary = backend.get_vocab(with_added_tokens=False)
    if unknown is not None:
        vocabulary.pop(unknown, None)
    return set(vocabulary.values()) - special


def _choose_filler(tokenizer: TextTokenizer, plain: set[int]) -> int:
    """The filler's id. Raises UserError if there is no plain id at all."""
    for text in _FILLERS:
        ids = tokenizer.continuation.encode([text])[0].tolist()
        if len(ids) == 1 and ids[0] in plain:
            return int(ids[0])
    if not plain:
        remedy = "give another --model-tokenizer"
        raise UserError("no entry that is plain text", where=tokenizer.name, remedy=remedy)
    return min(plain)


# ---------------------------------------------------------------------------------------- sequences


@dataclass(frozen=True, slots=True)
class MqarTask:
    """What is asked: a task by its name, ids of a sequence, pairs in it, a seed, options of the
    task."""

    name: str
    length: int
    pairs: int
    seed: int
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def has_filler(self) -> bool:
        """Whether id 0 is nothing else than filler, which a model can predict."""
        filler = self.options.get("filler", "zero")
        return filler == "zero" and "filler" in tasks.options_of_task(self.name)


@dataclass(frozen=True, slots=True)
class Sequences:
    """Some sequences in a vocabulary: `ids` int64 (n, t), and of each next id, (n, t - 1), what it
    is.

    `answers` bool: an answer; `filler` bool; `distances` int64: of an answer, the ids back to where
    it stands, else 0; `choices` int64: the different values before it, of which a guess takes one.
    """

    ids: np.ndarray
    answers: np.ndarray
    filler: np.ndarray
    distances: np.ndarray
    choices: np.ndarray

    def rows(self, places: slice) -> Sequences:
        """Some of them."""
        return Sequences(*(getattr(self, part.name)[places] for part in fields(self)))


def make_sequences(task: MqarTask, vocabulary: Vocabulary, num: int) -> Sequences:
    """The sequences of a task. Raises UserError where sizes do not fit."""
    sizes = {
        "num": num,
        "length": task.length,
        "pairs": task.pairs,
        "vocab": len(vocabulary.ids),
        "seed": task.seed,
    }
    examples = tasks.make_examples(task.name, **sizes, **task.options)
    ids = tasks.answered(examples).numpy()
    following = slice(None, ids.shape[1] - 1)
    answers = examples.targets.numpy()[:, following] != tasks.NOT_ASKED
    distances = np.where(answers, examples.distances.numpy()[:, following] + 1, 0)
    filler = (ids[:, 1:] == 0) & ~answers & task.has_filler
    choices = _count_values(ids, examples.first_value)[:, :-1]
    return Sequences(vocabulary.ids[ids], answers, filler, distances, choices)


def _count_values(ids: np.ndarray, first_value: int) -> np.ndarray:
    """How many different ids from `first_value` on a place and those before it have: (n, t) int64.

    ids 2 9 7 9 8 from 5 on: 0 1 2 2 3
    """
    order = np.argsort(ids, axis=1, kind="stable")
    ascending = np.take_along_axis(ids, order, axis=1)
    differs = np.diff(ascending, axis=1, prepend=-1) > 0
    is_new = np.empty_like(differs)
    np.put_along_axis(is_new, order, differs, axis=1)
    return (is_new & (ids >= first_value)).cumsum(axis=1)


# ------------------------------------------------------------------------------------------ answers


@dataclass(frozen=True, slots=True)
class MqarAnswers:
    """A model's answers to n sequences.

    Of the questions, sequence after sequence: `place` int32 of the last id before the answer,
    `distance` int32, `nll` float32 nats, `rank` int32 (0 is best), `right` bool, whether the answer
    is the model's argmax, `choices` int32, the different values before it; `questions` (n,) is
    their number. Of the filler, (n,): the number of its ids, how many are the argmax, the sum of
    their NLLs.
    """

    questions: np.ndarray
    place: np.ndarray
    distance: np.ndarray
    nll: np.ndarray
    rank: np.ndarray
    right: np.ndarray
    choices: np.ndarray
    filler_tokens: np.ndarray
    filler_right: np.ndarray
    filler_nll: np.ndarray


def ask(model: ScoringModel, sequences: Sequences, batch_tokens: int) -> MqarAnswers:
    """A model's answers to some sequences, batched by whole sequences of up to `batch_tokens` ids.

    Raises UserError if one sequence does not fit into memory.
    """
    ids, answers, filler = sequences.ids, sequences.answers, sequences.filler
    step = max(1, batch_tokens // ids.shape[1])
    batches = [_score(model, ids[start : start + step]) for start in range(0, len(ids), step)]
    scores = _join(batches)
    is_best = scores.argmax == ids[:, 1:]  # column c predicts id c + 1
    return MqarAnswers(
        questions=answers.sum(axis=1),
        place=np.nonzero(answers)[1].astype(np.int32),
        distance=sequences.distances[answers].astype(np.int32),
        nll=scores.nll[answers],
        rank=scores.rank[answers],
        right=is_best[answers],
        choices=sequences.choices[answers].astype(np.int32),
        filler_tokens=filler.sum(axis=1),
        filler_right=(is_best & filler).sum(axis=1),
        filler_nll=np.where(filler, scores.nll.astype(np.float64), 0.0).sum(axis=1),
    )


def _score(model: ScoringModel, ids: np.ndarray) -> TokenScores:
    """Scores rows of ids (n, t) at once, or in halves if they do not fit into memory: arrays (n, t
    - 1)."""
    try:
        scores = model.score(ids.ravel().astype(np.uint32), np.arange(len(ids) + 1) * ids.shape[1])
    except MemoryError:
        if len(ids) == 1:
            problem = f"out of memory on a sequence of {ids.shape[1]:,} ids"
            raise UserError(problem, where=model.name, remedy="give a shorter --seq-len") from None
        return _join([_score(model, half) for half in np.array_split(ids, 2)])
    shape = (len(ids), ids.shape[1] - 1)
    arrays = (scores.nll, scores.argmax, scores.rank)
    return TokenScores(*(array.reshape(shape) for array in arrays))


def _join(batches: Sequence[TokenScores]) -> TokenScores:
    return TokenScores(
        np.concatenate([batch.nll for batch in batches]),
        np.concatenate([batch.argmax for batch in batches]),
        np.concatenate([batch.rank for batch in batches]),
    )
