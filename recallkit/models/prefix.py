"""The ids that a model reads: a text, behind its beginning-of-text token if it was trained with
one.

A model that has one adds it itself: scoring and generation hand over text alone, `max_length`
is the room for text, and the prefix is in front of every sequence and of every window of one, as
context that is never predicted. A text that begins with the prefix already gets no second one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from recallkit.errors import UserError
from recallkit.models.protocol import TokenScores
from recallkit.ragged import offsets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from recallkit.text.special_tokens import Prefix

AS_NAMED, AS_RECORDED = "as bos= says", "as its file says"
"""Why a model reads a prefix that the user names, or that recorded NLLs are said to be behind."""


def check_ids(name: str, vocab_size: int, largest: int | None, prefix: Sequence[int] = ()) -> None:
    """Raises UserError for ids of a text, or before it, that a model has no embeddings of."""
    if max(prefix, default=0) >= vocab_size:
        first = f"it reads id {max(prefix):,} before every text"
        problem = f"its vocabulary has {vocab_size:,} entries, and {first}"
        raise UserError(
            problem,
            where=name,
            remedy="name its own tokenizer with --model-tokenizer, or write bos=none",
        )
    check_id(name, largest or 0, vocab_size)


def check_id(name: str, number: int, vocab_size: int) -> None:
    """Raises UserError for an id of a text that a model has no embedding of."""
    if number >= vocab_size:
        problem = f"its vocabulary has {vocab_size:,} entries, and the text has id {number:,}"
        own = "name its own tokenizer with --model-tokenizer (`bytes` for 256 entries)"
        remedy = f"{own}, or slice with it (--tokenizer)"
        raise UserError(problem, where=name, remedy=remedy)


def prefix_notes(prefixes: Mapping[str, Prefix]) -> list[str]:
    """A line for each prefix that models, by name, read: which it is, of whom, and why."""
    readers: dict[Prefix, list[str]] = {}
    for model, prefix in prefixes.items():
        if prefix.ids:
            readers.setdefault(prefix, []).append(model)
    lines = []
    for prefix, models in readers.items():
        shown = models if len(models) < 4 else [*models[:2], f"{len(models) - 2} more"]
        otherwise = "" if prefix.reason in (AS_NAMED, AS_RECORDED) else "; bos=none prevents it"
        why = f"{prefix.reason}{otherwise}"
        lines.append(f"{', '.join(shown)}: {prefix.token} is read before every sequence ({why})")
    return lines


def other_prefixes(tokens: Mapping[str, str]) -> list[str]:
    """A line where models read different `tokens` before every sequence; "" is none.

    Part of the difference between them may be due to that.
    """
    if len(set(tokens.values())) < 2:
        return []
    read = ", ".join(f"{model} {token or 'nothing'}" for model, token in tokens.items())
    return [f"Read before every sequence: {read} (bos= makes them equal)"]


def begins_with(ids: np.ndarray, prefix: Sequence[int]) -> bool:
    """Whether a text of ids (t,) begins with a prefix."""
    return bool(ids[: len(prefix)].tolist() == list(prefix))


def behind(ids: np.ndarray, prefix: Sequence[int]) -> np.ndarray:
    """A text of ids (t,) behind a prefix, or as it is where it begins with that."""
    if begins_with(ids, prefix):
        return ids
    return np.concatenate([np.array(prefix, ids.dtype), ids])


def score_behind(
    prefix: Sequence[int],
    score: Callable[[np.ndarray, np.ndarray], TokenScores],
    ids: np.ndarray,
    offsets: np.ndarray,
) -> TokenScores:
    """What `score` gives for flat sequences behind a prefix, without those of their first ids.

    Prefix 2, sequences 5 6 | 2 7: 2 5 6 | 2 7 are scored, which predict 5, 6 | 7; returned are the
    scores of 6 | 7. A single id predicts nothing, and stays alone.
    """
    if not len(prefix):
        return score(ids, offsets)
    texts = np.split(ids, offsets[1:-1])
    sequences = [behind(text, prefix) if len(text) > 1 else text for text in texts]
    added = [len(sequence) - len(text) for sequence, text in zip(sequences, texts, strict=True)]
    lengths = [len(sequence) for sequence in sequences]
    scores = score(np.concatenate(sequences), offsets_of(lengths))
    wanted = np.concatenate(
        [np.arange(1, length) > lead for length, lead in zip(lengths, added, strict=True)],
    )
    return TokenScores(scores.nll[wanted], scores.argmax[wanted], scores.rank[wanted])
