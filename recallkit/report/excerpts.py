"""The AR hits on which models lose most, the excerpts of the text that are on a page, and their tokens in compact form.

An excerpt is a sequence, because bigrams repeat only within their context, or a part of one: of LONGEST tokens, or fewer where all AR hits
that are listed would have no room. One pass finds the AR hits; then only the rows of their sequences are read.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recallkit.display.exports import compact_json
from recallkit.errors import UserError, printable
from recallkit.report.sequence import open_excerpts
from recallkit.storage import artifacts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import polars as pl

    from recallkit.attribution.comparison import Comparison
    from recallkit.report.sequence import Excerpts
    from recallkit.text.tokenizers import TextTokenizer

    Shown = str | int | list[str | int]

LONGEST, SHORTEST = 4096, 256
"""Most tokens of an excerpt, if it need not be shorter, and if it need."""

MOST_BYTES = 1_500_000
"""Most bytes of a page's tokens."""

MOST_PLACES = 10
"""AR hits that are listed of each model."""

_MOST_SHOWN, _BEFORE = 40, 14
"""AR hits of each model whose excerpts are on a page if there is room, and tokens of the context of one that is listed."""

RIGHT, WRONG, UNKNOWN = 0, -1, -2
"""Codes for a prediction: it is the token itself; it is wrong and has no id on the page; it is unknown."""


class Excerpt(NamedTuple):
    """The tokens of a sequence from position `first` on (from 1), `tokens` of them or as many as there are; mostly the whole sequence."""

    sequence: int
    first: int
    tokens: int

    @classmethod
    def around(cls, sequence: int, position: int, tokens: int) -> Excerpt:
        """The one with a position, of those that divide a sequence: with 20 tokens position 21 is the first of the second."""
        return cls(sequence, (position - 1) // tokens * tokens + 1, tokens)


@dataclass(frozen=True, slots=True)
class Place:
    """An AR hit on which a model loses: `row` of it and of all models' scores, as `Excerpts.read` has it; `lost` in nats.

    `before`: the text of its context. `is_shown`: whether it is in an excerpt of the page.
    """

    model: int
    row: Mapping[str, Any]
    before: str
    is_shown: bool

    @property
    def lost(self) -> float:
        """How much the model's NLL is above the reference's."""
        return float(self.row[f"nll_{self.model}"] - self.row["nll_0"])


@dataclass(frozen=True, slots=True)
class TokenView:
    """`data` for the page's script (see `_Packer`), with `shown` excerpts, whole or not, of `sequences` out of all `num_sequences`.

    `asked`: how many excerpts were asked for, and `asked_shown` of them are there. `places`: of each model but the reference the AR hits of
    all the text on which it loses most. `documents`: the numbers of those in the excerpts. `other_tokenizers`: the models that read other
    tokens than those of the slices.
    """

    data: str
    shown: int
    are_whole: bool
    sequences: int
    num_sequences: int
    asked: int
    asked_shown: int
    places: Sequence[Sequence[Place]]
    documents: Collection[int]
    other_tokenizers: Sequence[str]
    has_bytes: bool


def token_view(
    comparison: Comparison, sequences: Sequence[int] = (), documents: Sequence[int] = (), most_bytes: int = MOST_BYTES
) -> TokenView:
    """The excerpts of the sequences and documents asked for, and of the AR hits on which each model loses most.

    `comparison.slices` must be known. As many as fit into `most_bytes` of JSON, those asked for first, then those of every model's
    costliest AR hit, of its second ...
    Raises UserError if labels or scores are missing, damaged or not those compared, and for numbers that do not exist.
    """
    assert comparison.slices is not None
    text = open_excerpts(comparison.slices, [comparison.reference, *comparison.models], comparison)
    for name, scores in text.scores.items():
        if artifacts.read_manifest(scores.path)["options"] != comparison.manifest["scores"][name]:
            raise UserError("the scores have changed since the comparison", where=scores.path, remedy="run the same `recallkit gap` again")
    costliest = [frame.rows() for frame in text.costliest(_MOST_SHOWN)]
    listed = [places[:MOST_PLACES] for places in costliest]
    longest = _longest(text, {sequence for places in listed for sequence, _ in places}, most_bytes)
    asked = _asked(text, sequences, documents, longest)
    in_turn = (place for of_rank in itertools.zip_longest(*costliest) for place in of_rank if place is not None)
    around = (Excerpt.around(sequence, position, longest) for sequence, position in in_turn)
    packer = _Packer(text, asked)
    wanted = packer.hopeful(dict.fromkeys([*asked, *around]), most_bytes)
    read = {excerpt.sequence for excerpt in wanted} | {sequence for places in listed for sequence, _ in places}
    rows = {number: of for (number,), of in text.read(*read).partition_by("sequence", as_dict=True).items()}
    packed = packer.pack(wanted, rows, most_bytes)

    def place(model: int, sequence: int, position: int) -> Place:
        of, start = rows[sequence], max(0, position - 1 - _BEFORE)
        first = "…" if start else text.text_of(of["prev_token"].head(1))[0]
        before = "".join([first, *of["text"][start : position - 1]])
        return Place(model, of.row(position - 1, named=True), before, Excerpt.around(sequence, position, longest) in packed)

    return TokenView(
        data=packer.document(packed),
        shown=len(packed),
        are_whole=longest >= text.labelled.seq_len,
        sequences=len({excerpt.sequence for excerpt in packed}),
        num_sequences=text.num_sequences,
        asked=len(asked),
        asked_shown=len(asked & packed.keys()),
        places=[[found for of in places if (found := place(model, *of)).lost > 0] for model, places in enumerate(listed, 1)],
        documents=packer.documents,
        other_tokenizers=packer.other_tokenizers,
        has_bytes=packer.pieces.has_bytes,
    )


def _longest(text: Excerpts, listed: Collection[int], most_bytes: int) -> int:
    """Tokens of an excerpt of which about as many as `listed` sequences have room: mostly a whole sequence."""
    longest, per_token = LONGEST, 16 + 12 * len(text.scores)
    while longest > SHORTEST and min(longest, text.labelled.seq_len) * per_token * len(listed) > most_bytes:
        longest //= 2
    return longest


def _asked(text: Excerpts, sequences: Sequence[int], documents: Sequence[int], longest: int) -> dict[Excerpt, None]:
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
    tokens = text.num_tokens(wanted)
    return dict.fromkeys(Excerpt(number, first, longest) for number in wanted for first in range(1, 1 + tokens[number], longest))


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

    def __init__(self, text: Excerpts, asked: Collection[Excerpt]) -> None:
        self._text, self._asked, self.pieces = text, asked, Pieces(text.tokenizer)
        own = {name: artifacts.read_manifest(scores.path).get("tokenizer") for name, scores in text.scores.items()}
        self.other_tokenizers = [name for name, tokenizer in own.items() if tokenizer is not None]
        self._sources: dict[str, int] = {}
        self._ids: set[int] = set()
        self.documents: set[int] = set()
        """Those of the excerpts that are packed."""

    def hopeful(self, wanted: Iterable[Excerpt], most_bytes: int) -> list[Excerpt]:
        """The first of `wanted`, as many as could fit into `most_bytes` at the very best: the rows of others are not read."""
        found = list(wanted)
        least = (8 + 6 * len(self._text.scores)) * min(found[0].tokens if found else 1, self._text.labelled.seq_len)
        return found[: most_bytes // least + 1]

    def pack(self, wanted: Sequence[Excerpt], rows: Mapping[int, pl.DataFrame], most_bytes: int) -> dict[Excerpt, str]:
        """The JSON of as many of `wanted` as fit into `most_bytes` with all their pieces, in the order of the text."""
        found, size = dict[Excerpt, str](), 0
        for excerpt in wanted:
            of_excerpt = rows[excerpt.sequence].slice(excerpt.first - 1, excerpt.tokens)
            packed, ids = self._pack_one(excerpt, of_excerpt)
            size += len(packed.encode()) + sum(len(self._entry(index).encode()) + 1 for index in ids - self._ids)
            if size > most_bytes:
                break
            self._ids |= ids
            self.documents |= set(of_excerpt["document"])
            found[excerpt] = packed
        return dict(sorted(found.items()))

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
        return f'{compact_json(facts)[:-1]},\n"pieces":{{{pieces}}},\n"excerpts":[{excerpts}]}}'

    def _entry(self, index: int) -> str:
        return f'"{index}":{compact_json(self.pieces.alone(index))}'

    def _pack_one(self, excerpt: Excerpt, rows: pl.DataFrame) -> tuple[str, set[int]]:
        """An excerpt's JSON, and the ids in it."""
        ids = [rows["prev_token"][0], *rows["token"]]
        predicted = [self._predicted(rows, place, name) for place, name in enumerate(self._text.scores)]
        nlls = [rows[f"nll_{place}"].cast(float).to_numpy() for place in range(len(predicted))]
        hits = rows["ar_hit"].to_numpy()
        packed = {
            "sequence": excerpt.sequence,
            "first": excerpt.first,
            "asked": int(excerpt in self._asked),
            "hits": int(hits.sum()),
            "gap": [round(100 * float((nll - nlls[0])[hits].sum())) for nll in nlls[1:]],
            "before": ids[0],
            "tokens": ids[1:],
            "distance": rows["distance"].fill_null(0).to_list(),
            "occurrences": rows["occurrences"].to_list(),
            "count": rows["train_count"].to_list(),
            "spans": self._spans(rows),
            "shown": self.pieces.otherwise(ids),
            "nll": [np.rint(100 * nll).astype(int).tolist() for nll in nlls],
            "rank": [rows[f"rank_{place}"].to_list() for place in range(len(predicted))],
            "predicted": predicted,
        }
        return compact_json(packed), {*ids, *(value - 1 for column in predicted for value in column if value > 0)}

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
        is_text = not "\udc80" <= character <= "\udcff"  # else a byte that is not part of a character
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
