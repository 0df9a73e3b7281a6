"""Models of which it is known what they recall: training counts, and what of the context is mixed
with them.

    name=tests/known_truth.py:bigram_cache        as any user's model; `PATH` below is the file's

`presence` gives weight to the ids that are in the context, whatever precedes them, `recent` more to
the latest, `window` to the last 64 alone: they associate nothing. The caches give it to what
followed the last id, or the last two, in the context: they recall by association, and use nothing
else of it. `worse` knows less of everything, `worse_at_rare` has forgotten rare ones; neither
recalls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from recallkit.counting.table import open_counts

PATH = __file__
WEIGHT = 0.3
"""Probability that presence and the caches take from the base."""
HALF_LIFE = 32
WINDOW = 64
FORGOTTEN = 5
"""The training count up to which `worse_at_rare` has forgotten a bigram."""

Logits = Callable[[torch.Tensor], torch.Tensor]
Base = Callable[[np.ndarray], np.ndarray]
Context = Callable[[np.ndarray, int], np.ndarray]


def unigram(request) -> Logits:
    return _model(_unigram(request), None)


def bigram(request) -> Logits:
    return _model(_bigram(request), None)


def presence(request) -> Logits:
    """Bigram, and 0.3 to the ids in the context, each as often as it stands there."""
    return _model(_bigram(request), lambda ids, place: ids[: place + 1])


def recent(request) -> Logits:
    """Presence that fades: an id counts half as much HALF_LIFE tokens further back."""
    base = _bigram(request)

    def mixed(ids: np.ndarray) -> np.ndarray:
        probabilities, weights = base(ids), np.zeros(request.vocab_size)
        for place, last in enumerate(ids):
            weights *= 0.5 ** (1 / HALF_LIFE)
            weights[last] += 1
            probabilities[place] = (1 - WEIGHT) * probabilities[
                place
            ] + WEIGHT * weights / weights.sum()
        return probabilities

    return _logits(mixed)


def window(request) -> Logits:
    """Presence among the last WINDOW ids alone."""
    return _model(_bigram(request), lambda ids, place: ids[max(0, place + 1 - WINDOW) : place + 1])


def bigram_cache(request) -> Logits:
    """Bigram, and 0.3 to what followed the last id in the context."""
    return _model(_bigram(request), _followers(1))


def trigram_cache(request) -> Logits:
    """Bigram, and 0.3 to what followed the last two ids in the context."""
    return _model(_bigram(request), _followers(2))


def unigram_cache(request) -> Logits:
    """The cache of `bigram_cache`, at its weight, over another base: it recalls as much, and knows
    less."""
    return _model(_unigram(request), _followers(1))


def worse(request) -> Logits:
    """Bigram with half of its probability spread evenly over the vocabulary."""
    base = _bigram(request)
    return _model(lambda ids: 0.5 * base(ids) + 0.5 / request.vocab_size, None)


def worse_at_rare(request) -> Logits:
    """Bigram without the bigrams that training had at most FORGOTTEN times."""
    return _model(_bigram(request, forgotten=FORGOTTEN), None)


def _model(base: Base, context: Context | None) -> Logits:
    return _logits(lambda ids: _mixed(base, context, ids))


def _logits(mixed: Base) -> Logits:
    return lambda ids: torch.from_numpy(
        np.stack([np.log(mixed(sequence)).astype(np.float32) for sequence in ids.cpu().numpy()])
    )


def _mixed(base: Base, context: Context | None, ids: np.ndarray) -> np.ndarray:
    """The distributions after each of the ids of a sequence (t,), float64 (t, vocab)."""
    probabilities = base(ids)
    for place in range(len(ids)) if context else ():
        if len(found := context(ids, place)):
            probabilities[place] *= 1 - WEIGHT
            np.add.at(probabilities[place], found, WEIGHT / len(found))
    return probabilities


def _followers(length: int) -> Context:
    """What followed the last `length` ids at their earlier occurrences; nothing where there are
    none."""

    def found(ids: np.ndarray, place: int) -> np.ndarray:
        is_match = np.ones(max(0, place + 1 - length), bool)
        for back in range(length if len(is_match) else 0):
            is_match &= ids[length - 1 - back : place - back] == ids[place - back]
        return ids[np.flatnonzero(is_match) + length]

    return found


def _unigram(request) -> Base:
    frequencies = _smoothed(request)
    return lambda ids: np.tile(frequencies, (len(ids), 1))


def _bigram(request, forgotten: int = 0) -> Base:
    """Interpolated Witten-Bell smoothing, without bigrams of at most `forgotten` occurrences."""
    table, frequencies = open_counts(request.counts), _smoothed(request)
    starts, rows = table.row_starts(), {}

    def row(last: int) -> np.ndarray:
        if last not in rows:
            part = slice(*starts[last : last + 2]) if last + 1 < len(starts) else slice(0)
            followers, counts = (
                np.asarray(table.keys[part]).astype(np.uint32),
                np.asarray(table.counts[part]).astype(np.float64),
            )
            followers, counts = followers[counts > forgotten], counts[counts > forgotten]
            probabilities = np.zeros(request.vocab_size)
            probabilities[followers] = counts
            rows[last] = (probabilities + max(1, len(counts)) * frequencies) / (
                counts.sum() + max(1, len(counts))
            )
        return rows[last]

    return lambda ids: np.stack([row(int(last)) for last in ids])


def _smoothed(request) -> np.ndarray:
    """Frequencies of ids in training, each as if it had occurred half a time more."""
    counts = np.full(request.vocab_size, 0.5)
    known = open_counts(request.counts).unigram_counts
    counts[: len(known)] += known
    return counts / counts.sum()


def names() -> Iterator[str]:
    """Every model, as `name=PATH:function`."""
    for function in (
        unigram,
        bigram,
        presence,
        recent,
        bigram_cache,
        trigram_cache,
        unigram_cache,
        worse,
        worse_at_rare,
    ):
        yield f"{function.__name__}={PATH}:{function.__name__}"
