"""The token view's data: which excerpts of the text are on a page, and their tokens in compact form.

An excerpt is a sequence, because bigrams repeat only within their context (longer sequences are divided into blocks of LONGEST
tokens). One pass finds where each model's NLL on AR hits exceeds the reference's; then only the rows of the chosen excerpts are read.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.errors import UserError, printable
from recallkit.report.sequence import open_excerpts
from recallkit.storage import artifacts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import polars as pl

    from recallkit.attribution.comparison import Comparison
    from recallkit.report.sequence import Excerpts
    from recallkit.text.tokenizers import TextTokenizer

    Shown = str | int | list[str | int]

LONGEST = 4096
"""Most tokens of an excerpt."""

MOST_BYTES = 1_500_000
"""Most bytes of a page's tokens."""

_TOP_OVERALL, _TOP_OF_MODEL = 32, 12

RIGHT, WRONG, UNKNOWN = 0, -1, -2
"""Codes for a prediction: it is the token itself; it is wrong and has no id on the page; it is unknown."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Block number `block` of a sequence, of LONGEST tokens but for the last; mostly the whole sequence.

    `gaps`: for each model, NLL summed over AR hits minus the reference's, in nats. `asked`: requested by the user.
    """

    sequence: int
    block: int
    tokens: int
    hits: int
    gaps: tuple[float, ...]
    asked: bool = False


@dataclass(frozen=True, slots=True)
class TokenView:
    """`data` for the page's script (see `_Packer`), and how many of all excerpts and of the requested ones it contains.

    `other_tokenizers`: the models that read other tokens than those of the slices.
    """

    data: str
    shown: int
    excerpts: int
    asked: int
    asked_shown: int
    sequences: int
    other_tokenizers: Sequence[str]
    has_bytes: bool


def token_view(
    comparison: Comparison, sequences: Sequence[int] = (), documents: Sequence[int] = (), most_bytes: int = MOST_BYTES
) -> TokenView:
    """The excerpts where models differ most from the reference on AR hits, and the sequences and documents asked for.

    `comparison.slices` must be known. As many as fit into `most_bytes` of JSON, those asked for first.
    Raises UserError if labels or scores are missing, damaged or not those compared, and for numbers that do not exist.
    """
    assert comparison.slices is not None
    text = open_excerpts(comparison.slices, [comparison.reference, *comparison.models], comparison)
    for name, scores in text.scores.items():
        if artifacts.read_manifest(scores.path)["options"] != comparison.manifest["scores"][name]:
            raise UserError("the scores have changed since the comparison", where=scores.path, remedy="run the same `recallkit gap` again")
    every = list_excerpts(text)
    asked = _asked(text, every, sequences, documents)
    packer = _Packer(text)
    chosen = packer.pack([*asked, *preferred(every, asked)], most_bytes)
    return TokenView(
        data=packer.document(chosen),
        shown=len(chosen),
        excerpts=len(every),
        asked=len(asked),
        asked_shown=sum(excerpt.asked for excerpt in chosen),
        sequences=text.num_sequences,
        other_tokenizers=packer.other_tokenizers,
        has_bytes=packer.pieces.has_bytes,
    )


# ------------------------------------------------------------------------------------------------------------ choosing


def list_excerpts(text: Excerpts) -> list[Excerpt]:
    """All excerpts of the text, in order; the first model is the reference."""
    return [
        Excerpt(sequence, block, tokens, hits, tuple(nll - reference for nll in nlls))
        for sequence, block, tokens, hits, reference, *nlls in text.sum_hits(LONGEST).iter_rows()
    ]


def _asked(text: Excerpts, every: Sequence[Excerpt], sequences: Sequence[int], documents: Sequence[int]) -> list[Excerpt]:
    """The requested excerpts, in the order requested: sequences, then documents. Raises UserError for numbers that do not exist."""
    wanted = list(sequences)
    for document in documents:
        if not (found := text.sequences_of(document)):
            problem = "no predicted token belongs to this document"
            raise UserError(problem, where=f"--document {document}", remedy="give a number of tokens.parquet")
        wanted += found
    for number in sequences:
        if not 0 <= number < text.num_sequences:
            raise UserError("no such sequence", where=f"--sequence {number}", remedy=f"give a number from 0 to {text.num_sequences - 1}")
    return [replace(excerpt, asked=True) for number in dict.fromkeys(wanted) for excerpt in every if excerpt.sequence == number]


def preferred(every: Sequence[Excerpt], asked: Sequence[Excerpt] = ()) -> list[Excerpt]:
    """The excerpts with the largest gap on AR hits: alternately the next one overall, and the next of each model.

    Overall: by the mean over models. Among equals the first in the text. Those that were requested are left out.
    """
    taken = {(excerpt.sequence, excerpt.block) for excerpt in asked}
    with_hits = [excerpt for excerpt in every if excerpt.hits and (excerpt.sequence, excerpt.block) not in taken]

    def first_by(size: Callable[[tuple[float, ...]], float], most: int) -> list[Excerpt]:
        return sorted(with_hits, key=lambda excerpt: size(excerpt.gaps), reverse=True)[:most]

    lists = [first_by(sum, _TOP_OVERALL), *(first_by(itemgetter(model), _TOP_OF_MODEL) for model in range(len(every[0].gaps)))]
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*lists))
    return list(dict.fromkeys(excerpt for excerpt in in_turn if excerpt is not None))


# ------------------------------------------------------------------------------------------------------------- packing


class _Packer:
    """Excerpts as JSON: columns of integers, one value per predicted token; NLLs and gaps in hundredths of a nat.

    Global fields: `models` (the reference first), `own` (which of them have another tokenizer), `most` (largest training count of
    an AR hit), `sources`, `end` (id of the end token, -1 if it is text), `spaced` (whether pieces have no bytes),
    `pieces` (id -> parts, see Pieces), `excerpts`. Of an excerpt: `sequence`, `first` (position of its first token), `asked`, `hits`,
    `gap` (one value per model), `before` (the id before the first token), `tokens` (ids), `distance` (0: not repeated), `occurrences`,
    `count` (in training), `spans` ([place, document, source] where a document begins), `shown` ([place, parts] of tokens displayed
    differently in context), and one column per model of `nll`, `rank` and `predicted` (RIGHT, WRONG, UNKNOWN, or the id + 1).
    """

    def __init__(self, text: Excerpts) -> None:
        self._text, self.pieces = text, Pieces(text.tokenizer)
        own = {name: artifacts.read_manifest(scores.path).get("tokenizer") for name, scores in text.scores.items()}
        self.other_tokenizers = [name for name, tokenizer in own.items() if tokenizer is not None]
        self._sources: dict[str, int] = {}
        self._ids: set[int] = set()

    def pack(self, wanted: Sequence[Excerpt], most_bytes: int) -> dict[Excerpt, str]:
        """The JSON of as many of `wanted` as fit into `most_bytes` with all their pieces, in the order of the text."""
        # Rows are read in one pass, so excerpts that can never fit are left out first.
        least = 8 + 6 * len(self._text.scores)
        sizes = itertools.accumulate(least * excerpt.tokens for excerpt in wanted)
        hopeful = list(itertools.compress(wanted, (size <= most_bytes for size in sizes)))
        rows = self._text.read(*{excerpt.sequence for excerpt in hopeful}).partition_by("sequence", as_dict=True)
        found, size = dict[Excerpt, str](), 0
        for excerpt in hopeful:
            packed, ids = self._pack_one(excerpt, rows[excerpt.sequence,].slice(excerpt.block * LONGEST, LONGEST))
            size += len(packed.encode()) + sum(len(self._entry(index).encode()) + 1 for index in ids - self._ids)
            if size > most_bytes:
                break
            self._ids |= ids
            found[excerpt] = packed
        return dict(sorted(found.items(), key=lambda item: (item[0].sequence, item[0].block)))

    def document(self, packed: Mapping[Excerpt, str]) -> str:
        """The JSON of all that is packed."""
        facts = {
            "models": [printable(name) for name in self._text.scores],
            "own": [int(name in self.other_tokenizers) for name in self._text.scores],
            "most": self._text.labelled.max_count,
            "sources": [printable(name) for name in self._sources],
            "end": self.pieces.end,
            "spaced": int(not self.pieces.has_bytes),
        }
        pieces, excerpts = ",".join(map(self._entry, sorted(self._ids))), ",\n".join(packed.values())
        return f'{_json(facts)[:-1]},\n"pieces":{{{pieces}}},\n"excerpts":[{excerpts}]}}'

    def _entry(self, index: int) -> str:
        return f'"{index}":{_json(self.pieces.alone(index))}'

    def _pack_one(self, excerpt: Excerpt, rows: pl.DataFrame) -> tuple[str, set[int]]:
        """An excerpt's JSON, and the ids in it."""
        ids = [rows["prev_token"][0], *rows["token"]]
        predicted = [self._predicted(rows, place, name) for place, name in enumerate(self._text.scores)]
        packed = {
            "sequence": excerpt.sequence,
            "first": excerpt.block * LONGEST + 1,
            "asked": int(excerpt.asked),
            "hits": excerpt.hits,
            "gap": [round(100 * gap) for gap in excerpt.gaps],
            "before": ids[0],
            "tokens": ids[1:],
            "distance": rows["distance"].fill_null(0).to_list(),
            "occurrences": rows["occurrences"].to_list(),
            "count": rows["train_count"].to_list(),
            "spans": self._spans(rows),
            "shown": self.pieces.otherwise(ids),
            "nll": [np.rint(100 * rows[f"nll_{place}"].cast(float).to_numpy()).astype(int).tolist() for place in range(len(predicted))],
            "rank": [rows[f"rank_{place}"].to_list() for place in range(len(predicted))],
            "predicted": predicted,
        }
        return _json(packed), {*ids, *(value - 1 for column in predicted for value in column if value > 0)}

    def _predicted(self, rows: pl.DataFrame, place: int, model: str) -> list[int]:
        """What a model predicted of each token. Predictions of a model with another tokenizer have no ids here.

        Such a model is right if all of its own tokens that end in this one were ranked first; if its token boundaries do not
        include those of this token, that is unknown.
        """
        if model in self.other_tokenizers:
            codes = {True: RIGHT, False: WRONG, None: UNKNOWN}
            return [codes[right] for right in rows[f"right_{place}"]]
        return [RIGHT if guess == token else guess + 1 for guess, token in zip(rows[f"argmax_{place}"], rows["token"], strict=True)]

    def _spans(self, rows: pl.DataFrame) -> list[list[int]]:
        """Where documents begin among the rows, with their numbers and sources."""
        first = rows.with_row_index("place").unique("document", keep="first", maintain_order=True)
        return [
            [place, document, self._sources.setdefault(source, len(self._sources))]
            for place, document, source in first.select("place", "document", "source").iter_rows()
        ]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


# -------------------------------------------------------------------------------------------------------------- pieces


class Pieces:
    """The display of a tokenizer's ids on a page.

    `Shown` is text, or a list of texts and single bytes (integers), or, for an id without a piece, the id itself.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._bytes = tokenizer.token_bytes
        self.has_bytes = self._bytes is not None
        text = tokenizer.document_text
        is_text = text is not None and not text.is_end(np.array([tokenizer.end_token_id]))[0]
        self.end = -1 if is_text else tokenizer.end_token_id
        """The id that ends documents; -1 if it is an ordinary piece of text."""

    def alone(self, index: int) -> Shown:
        """The display of a single id."""
        if self._bytes is None:
            return self._tokenizer.backend.id_to_token(index) or index
        piece = self._piece(index)
        return _simple(*parts_of([piece])) if piece else index

    def otherwise(self, ids: Sequence[int]) -> list[tuple[int, Shown]]:
        """The positions in `ids` that are displayed differently in context than alone, and their display."""
        if self._bytes is None:
            return []
        shown = [_simple(parts) for parts in parts_of(list(map(self._piece, ids)))]
        alone = {index: self.alone(index) for index in set(ids)}
        return [(place, here) for place, (index, here) in enumerate(zip(ids, shown, strict=True)) if here and here != alone[index]]

    def _piece(self, index: int) -> bytes:
        assert self._bytes is not None
        return self._bytes[index] if index < len(self._bytes) else b""


def parts_of(pieces: Sequence[bytes]) -> list[list[str | int]]:
    """For each piece of a text, the characters that end in it as text, and its remaining bytes as integers.

    A character whose bytes are in several pieces is shown in the last of them, and the others show their bytes: b"a\xc3", b"\xa9b" are
    ["a", 0xc3], ["éb"]. Read from piece to piece this gives the text, and only empty pieces have no parts.
    """
    owner = [number for number, piece in enumerate(pieces) for _ in piece]  # of each byte
    found: list[list[str | int]] = [[] for _ in pieces]
    place = 0
    for character in b"".join(pieces).decode(errors="surrogateescape"):
        is_text = not "\udc80" <= character <= "\udcff"  # else a byte that is no part of a character
        encoded = character.encode(errors="surrogateescape")
        owners = owner[place : place + len(encoded)]
        for byte, number in zip(encoded, owners, strict=True):
            if not is_text or number != owners[-1]:
                found[number].append(byte)
        if is_text:
            parts = found[owners[-1]]
            parts[-1:] = [f"{parts[-1]}{character}"] if parts and isinstance(parts[-1], str) else [*parts[-1:], character]
        place += len(encoded)
    return found


def _simple(parts: list[str | int]) -> Shown:
    return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts
