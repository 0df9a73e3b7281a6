"""Multi-query associative recall (MQAR): sequences of keys and values in a model's own vocabulary, and its answers.

Zoology (arXiv 2312.04927), Algorithm 1, for models that were not trained on it (Appendix G). With P pairs a sequence is

    k1 v1 k2 v2 ... kP vP  . . k3 v3 . . . . k1 v1 . . k2 v2 . .

the pairs, then every key once more followed by its value, and one filler id (.) everywhere else. Keys are from the first half of
the vocabulary, values from the second, all different within a sequence. The tail is divided into slots of two ids. The pairs
in turn take a free slot each, slot s with a probability proportional to (s + 1)^(power - 1). So the queries of early pairs are
nearer, and nothing overlaps. (The paper says a power law, with an exponent of 0.1 where it trains, F.1, and none in Appendix G;
slots, distinct values and the 0.01 of `mqar` are those of its authors' code.)

Sampling slots without replacement is an exponential race: each slot gets an exponential time with its probability as the rate, and
the pairs take the slots in ascending order of these times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from recallkit.errors import UserError
from recallkit.models.protocol import TokenScores
from recallkit.storage import artifacts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recallkit.models.protocol import ScoringModel
    from recallkit.text.tokenizers import TextTokenizer

_FILLERS = (" ", "\n", ".", ",", "the")
"""The filler is the first of these that the tokenizer encodes as one plain id: preferably a space, which is common and ends no document."""


# ---------------------------------------------------------------------------------------------------------- vocabulary


@dataclass(frozen=True, slots=True)
class MqarVocabulary:
    """The vocabulary of sequences: ids of keys and of values (int64, ascending), the filler, ids put before every sequence."""

    keys: np.ndarray
    values: np.ndarray
    filler: int
    prefix: tuple[int, ...]

    def digest(self) -> str:
        """Its identity in manifests."""
        return artifacts.digest_json([artifacts.digest_arrays(self.keys, self.values), self.filler, self.prefix])

    def check_room(self, pairs: int, where: str) -> None:
        """Raises UserError if there are fewer keys or values than a sequence needs."""
        most = min(len(self.keys), len(self.values))
        if most < pairs:
            problem = f"its vocabulary has {len(self.keys):,} keys and {len(self.values):,} values, too few for {pairs:,} pairs"
            raise UserError(problem, where=where, remedy=f"give --pairs of {most:,} at most")


def split_vocabulary(tokenizer: TextTokenizer) -> MqarVocabulary:
    """The ids of a tokenizer that are plain text, except the filler: the first half are keys, the rest values.

    Left out are special and other added tokens, the end and the unknown token, and ids that are put before a text.
    """
    plain = _plain_ids(tokenizer)
    filler = _choose_filler(tokenizer, plain)
    ids = np.array(sorted(plain - {filler}), np.int64)
    half = len(ids) // 2
    return MqarVocabulary(ids[:half], ids[half:], filler, tuple(tokenizer.prefix_ids))


def _plain_ids(tokenizer: TextTokenizer) -> set[int]:
    backend = tokenizer.backend
    unknown = getattr(backend.model, "unk_token", None)
    special = {tokenizer.end_token_id, *tokenizer.prefix_ids, *backend.get_added_tokens_decoder()}
    vocabulary = backend.get_vocab(with_added_tokens=False)
    return {index for token, index in vocabulary.items() if index not in special and token != unknown}


def _choose_filler(tokenizer: TextTokenizer, plain: set[int]) -> int:
    """The filler's id. Raises UserError if there is no plain id at all."""
    for text in _FILLERS:
        ids = tokenizer.continuation.encode([text])[0].tolist()
        if len(ids) == 1 and ids[0] in plain:
            return int(ids[0])
    if not plain:
        raise UserError("no entry that is plain text", where=tokenizer.name, remedy="give another --model-tokenizer")
    return min(plain)


# ----------------------------------------------------------------------------------------------------------- sequences


@dataclass(frozen=True, slots=True)
class MqarTask:
    """The shape of a sequence: `length` ids, the first 2 `pairs` of which are the pairs; `power` of the law of places; `seed`."""

    length: int
    pairs: int
    power: float
    seed: int

    @property
    def num_slots(self) -> int:
        """Slots of two ids in the tail, for a query and its value; if the number of ids is odd, the last is filler."""
        return (self.length - 2 * self.pairs) // 2

    def check(self) -> None:
        """Raises UserError if the pairs and their queries do not fit, or the power is out of range."""
        if self.pairs < 1 or self.num_slots < self.pairs:
            problem = f"{self.pairs:,} pairs and their queries take {4 * self.pairs:,} ids, but a sequence has {self.length:,}"
            raise UserError(problem, where=f"--pairs {self.pairs}", remedy=f"give 1 to {self.length // 4:,} pairs, or a longer --seq-len")
        if not 0 < self.power <= 10:
            raise UserError("not above 0 and at most 10", where=f"--power {self.power}", remedy="give 0.01 (near the pairs) to 1 (uniform)")


def draw(task: MqarTask, num_keys: int, num_values: int, sample: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A time for each slot, float64 (num_slots,), and the keys and values of the pairs, (pairs,), of a sample.

    They are determined by seed, number of pairs and number of the sample alone.

    Times are drawn first, so that queries have the same places with any vocabulary, and models with different tokenizers are
    compared on sequences of the same shape.
    """
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([task.seed, task.pairs, sample])))
    times = rng.exponential(size=task.num_slots)
    keys, values = (rng.choice(number, task.pairs, replace=False) for number in (num_keys, num_values))
    return times, keys, values


def place_queries(times: np.ndarray, power: float, pairs: int) -> np.ndarray:
    """The slot of each pair, int64 (n, pairs), by `times` (n, num_slots): the first pair takes the slot that rings first, and so on."""
    rates = np.arange(1, times.shape[1] + 1, dtype=np.float64) ** (power - 1)
    slots: np.ndarray = np.argsort(times / rates, axis=1, kind="stable")[:, :pairs]
    return slots


@dataclass(frozen=True, slots=True)
class MqarSequences:
    """Some sequences: `ids` int64 (n, length); `places` int64 (n, pairs) of each pair's key in the tail, followed by its value."""

    ids: np.ndarray
    places: np.ndarray


def make_sequences(task: MqarTask, vocabulary: MqarVocabulary, samples: Sequence[int]) -> MqarSequences:
    """The sequences of these numbers, each independent of which others are made with it."""
    draws = [draw(task, len(vocabulary.keys), len(vocabulary.values), sample) for sample in samples]
    times, keys, values = (np.stack(each) for each in zip(*draws, strict=True))
    keys, values, tail = vocabulary.keys[keys], vocabulary.values[values], 2 * task.pairs
    places = tail + 2 * place_queries(times, task.power, task.pairs)
    ids = np.full((len(draws), task.length), vocabulary.filler, np.int64)
    ids[:, 0:tail:2], ids[:, 1:tail:2] = keys, values
    np.put_along_axis(ids, places, keys, axis=1)
    np.put_along_axis(ids, places + 1, values, axis=1)
    return MqarSequences(ids, places)


# ------------------------------------------------------------------------------------------------------------- answers


@dataclass(frozen=True, slots=True)
class MqarAnswers:
    """A model's answers to n sequences.

    For the queried values, (n, pairs) in the order of the pairs: `nll` float32 nats, `rank` int32 (0 is best), `right` bool, whether the
    value is the model's argmax. For the filler ids of the tail, (n,): their number, how many are the argmax, the sum of their NLLs.
    """

    nll: np.ndarray
    rank: np.ndarray
    right: np.ndarray
    filler_tokens: np.ndarray
    filler_right: np.ndarray
    filler_nll: np.ndarray


def ask(model: ScoringModel, vocabulary: MqarVocabulary, task: MqarTask, made: MqarSequences, batch_tokens: int) -> MqarAnswers:
    """A model's answers to some sequences, batched by whole sequences of up to `batch_tokens` ids.

    Raises UserError if one sequence does not fit into memory.
    """
    ids, before = np.hstack([np.tile(np.array(vocabulary.prefix, np.int64), (len(made.ids), 1)), made.ids]), len(vocabulary.prefix)
    step = max(1, batch_tokens // ids.shape[1])
    found = [_score(model, ids[start : start + step]) for start in range(0, len(ids), step)]
    nll, argmax, rank = (np.concatenate([getattr(scores, name) for scores in found]) for name in ("nll", "argmax", "rank"))
    is_best = argmax == ids[:, 1:]

    def of_values(array: np.ndarray) -> np.ndarray:
        return np.take_along_axis(array, made.places + before, axis=1)  # column c predicts id c + 1

    tail = 2 * task.pairs
    is_filler = made.ids[:, tail:] == vocabulary.filler
    of_tail = slice(before + tail - 1, None)
    return MqarAnswers(
        nll=of_values(nll),
        rank=of_values(rank),
        right=of_values(is_best),
        filler_tokens=is_filler.sum(axis=1),
        filler_right=(is_best[:, of_tail] & is_filler).sum(axis=1),
        filler_nll=np.where(is_filler, nll[:, of_tail].astype(np.float64), 0.0).sum(axis=1),
    )


def _score(model: ScoringModel, ids: np.ndarray) -> TokenScores:
    """Scores rows of ids (n, t) at once, or in halves if they do not fit into memory: arrays (n, t - 1)."""
    try:
        scores = model.score(ids.ravel().astype(np.uint32), np.arange(len(ids) + 1) * ids.shape[1])
    except MemoryError:
        if len(ids) == 1:
            problem = f"out of memory on a sequence of {ids.shape[1]:,} ids"
            raise UserError(problem, where=model.name, remedy="give a shorter --seq-len") from None
        halves = [_score(model, half) for half in np.array_split(ids, 2)]
        return TokenScores(*(np.concatenate([getattr(half, name) for half in halves]) for name in ("nll", "argmax", "rank")))
    shape = (len(ids), ids.shape[1] - 1)
    return TokenScores(scores.nll.reshape(shape), scores.argmax.reshape(shape), scores.rank.reshape(shape))
