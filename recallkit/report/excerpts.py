"""The AR hits on which models lose most, the excerpts of the text on a page, and their tokens.

An excerpt is a sequence, because bigrams repeat only within their context, or a part of one: of
LONGEST tokens, or fewer where all AR hits that are listed would have no room. One pass finds the AR
hits; then only the rows of their sequences are read.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recallkit.display.cells import DASH
from recallkit.display.exports import compact_json
from recallkit.errors import UserError, printable
from recallkit.ragged import positions_within
from recallkit.report.sequence import open_excerpts
from recallkit.storage import parquet_files, records

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import polars as pl

    from recallkit.attribution.comparison import Comparison
    from recallkit.report.sequence import Excerpts
    from recallkit.text.tokenizers import TextTokenizer

    Display = str | int | list[str | int]

LONGEST, SHORTEST = 4096, 256
"""Most tokens of an excerpt, if it need not be shorter, and if it need."""

MOST_BYTES = 1_500_000
"""Most bytes of a page's tokens."""

MOST_PLACES, _MOST_LISTED = 10, 300
"""AR hits that are listed of each model, and of all of them if each has one."""

_MOST_SHOWN, _BEFORE = 40, 14
"""AR hits of each model whose excerpts are shown if there is room; tokens before one that is
listed."""

RIGHT, WRONG, UNKNOWN = 0, -1, -2
"""Codes for a prediction: the token itself; wrong, without an id on the page; unknown."""


class Excerpt(NamedTuple):
    """The tokens of a sequence from position `first` on (from 1), at most `tokens`: mostly all."""

    sequence: int
    first: int
    tokens: int

    @classmethod
    def around(cls, sequence: int, position: int, tokens: int) -> Excerpt:
        """The one with a position, of parts of so many tokens: of 20, position 21 begins the
        second."""
        return cls(sequence, (position - 1) // tokens * tokens + 1, tokens)

    def among(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Its rows, of some of the rows of its sequence."""
        position = rows["position"]
        return rows.filter((position >= self.first) & (position < self.first + self.tokens))


def _before(sequence: int, position: int) -> Excerpt:
    """The token at a position that is listed, and those before it."""
    first = max(1, position - _BEFORE)
    return Excerpt(sequence, first, position + 1 - first)


def _rows_of(excerpts: Sequence[Excerpt]) -> pl.DataFrame:
    """The `sequence` and `position` of every token of excerpts."""
    import polars as pl

    lengths = [excerpt.tokens for excerpt in excerpts]
    sequences = np.repeat([excerpt.sequence for excerpt in excerpts], lengths)
    firsts = np.repeat([excerpt.first for excerpt in excerpts], lengths)
    positions = firsts + positions_within(np.asarray(lengths, np.int64))
    return pl.DataFrame(
        {"sequence": sequences.astype(np.int32), "position": positions.astype(np.int32)}
    ).unique()


@dataclass(frozen=True, slots=True)
class Place:
    """An AR hit on which a model loses; `row`: its labels and all models' scores (`Excerpts.read`).

    `before`: the text of its context. `is_shown`: whether it is in an excerpt of the page.
    """

    model: int
    row: Mapping[str, Any]
    before: str
    is_shown: bool

    @property
    def lost(self) -> float:
        """How much the model's NLL is above the reference's, nats."""
        return float(self.row[f"nll_{self.model}"] - self.row["nll_0"])

    @property
    def predicted(self) -> str:
        """What the model ranks first, as text."""
        if self.row[f"right_{self.model}"]:
            return "the token"
        return self.row[f"predicted_{self.model}"] or DASH


@dataclass(frozen=True, slots=True)
class TokenView:
    """`data` for the page's script (see `_Packer`).

    It has `num_excerpts` excerpts of `sequences` out of `num_sequences`. `requested`: how many
    excerpts were asked for, of which `requested_shown` are there. `places`: of each model but the
    reference the AR hits of all the text on which it loses most. `documents`: the numbers of those
    in the excerpts.
    `other_tokenizers`: the models that read other tokens than the slices'.
    """

    data: str
    num_excerpts: int
    are_whole: bool
    sequences: int
    num_sequences: int
    requested: int
    requested_shown: int
    places: Sequence[Sequence[Place]]
    documents: Collection[int]
    other_tokenizers: Sequence[str]
    has_bytes: bool


def token_view(
    comparison: Comparison,
    sequences: Sequence[int] = (),
    documents: Sequence[int] = (),
    most_bytes: int = MOST_BYTES,
) -> TokenView:
    """The excerpts that are asked for, and those of the AR hits on which each model loses most.

    `comparison.slices` must be known. As many as fit into `most_bytes` of JSON: the `sequences` and
    `documents` asked for, then the excerpts of every model's costliest AR hit, of its second ...
    Raises UserError if labels or scores are missing, damaged or not those compared, and for numbers
    that do not exist.
    """
    assert comparison.slices is not None
    text = open_excerpts(comparison.slices, [comparison.reference, *comparison.models], comparison)
    for name, scores in text.scores.items():
        if (
            parquet_files.read_manifest(scores.path, records.Scores)["options"]
            != comparison.manifest["scores"][name]
        ):
            problem = "the scores have changed since the comparison"
            raise UserError(problem, where=scores.path, remedy="run the same `recallkit gap` again")
    costliest = [frame.rows() for frame in text.costliest(_MOST_SHOWN)]
    most_places = max(1, min(MOST_PLACES, _MOST_LISTED // len(costliest)))
    listed = [hits[:most_places] for hits in costliest]
    with_listed = {sequence for hits in listed for sequence, _ in hits}
    longest = _longest(text, with_listed, most_bytes)
    requested = _requested(text, sequences, documents, longest)
    ranks = itertools.zip_longest(*costliest)
    in_turn = [hit for rank in ranks for hit in rank if hit is not None]
    around = (Excerpt.around(sequence, position, longest) for sequence, position in in_turn)
    # The rows of excerpts that cannot fit at the very best are not read.
    least = (8 + 6 * len(text.scores)) * min(longest, text.labelled.seq_len)
    wanted = list(dict.fromkeys([*requested, *around]))[: most_bytes // least + 1]
    packer = _Packer(text, requested)
    needed = [*wanted, *(_before(*hit) for hits in listed for hit in hits)]
    read = text.read(*{excerpt.sequence for excerpt in needed}, places=_rows_of(needed))
    rows = {number: part for (number,), part in read.partition_by("sequence", as_dict=True).items()}
    packed = packer.pack(wanted, rows, most_bytes)

    def place(model: int, sequence: int, position: int) -> Place:
        window = _before(sequence, position)
        part = window.among(rows[sequence])
        first = "…" if window.first > 1 else text.text_of(part["prev_token"].head(1))[0]
        before = "".join([first, *part["text"][:-1]])
        is_shown = Excerpt.around(sequence, position, longest) in packed
        return Place(model, part.row(-1, named=True), before, is_shown)

    places = []
    for model, hits in enumerate(listed, 1):
        all_places = [place(model, *hit) for hit in hits]
        places.append([lost for lost in all_places if lost.lost > 0])
    return TokenView(
        data=packer.document(packed),
        num_excerpts=len(packed),
        are_whole=longest >= text.labelled.seq_len,
        sequences=len({excerpt.sequence for excerpt in packed}),
        num_sequences=text.num_sequences,
        requested=len(requested),
        requested_shown=len(requested & packed.keys()),
        places=places,
        documents=packer.documents,
        other_tokenizers=packer.other_tokenizers,
        has_bytes=packer.pieces.has_bytes,
    )


def _longest(text: Excerpts, listed: Collection[int], most_bytes: int) -> int:
    """Tokens of an excerpt of which about as many as `listed` sequences have room: mostly all."""
    longest = LONGEST
    most_tokens = most_bytes / (16 + 12 * len(text.scores))
    while longest > SHORTEST and min(longest, text.labelled.seq_len) * len(listed) > most_tokens:
        longest //= 2
    return longest


def _requested(
    text: Excerpts,
    sequences: Sequence[int],
    documents: Sequence[int],
    longest: int,
) -> dict[Excerpt, None]:
    """The requested excerpts, in the order requested: sequences, then documents.

    Raises UserError for numbers that do not exist.
    """
    for number in sequences:
        if not 0 <= number < text.num_sequences:
            remedy = f"give a number from 0 to {text.num_sequences - 1}"
            raise UserError("no such sequence", where=f"--sequence {number}", remedy=remedy)
    wanted = list(sequences)
    for document in documents:
        inside = text.sequences_of(document)
        if not inside:
            problem = "no predicted token belongs to this document"
            remedy = "give a document number from tokens.parquet"
            raise UserError(problem, where=f"--document {document}", remedy=remedy)
        wanted += inside
    tokens = text.num_tokens(wanted)
    excerpts = dict[Excerpt, None]()
    for number in wanted:
        for first in range(1, 1 + tokens[number], longest):
            excerpts[Excerpt(number, first, longest)] = None
    return excerpts


# --------------------------------------------------------------------------------------- packing


class _Packer:
    """Excerpts as JSON: columns of integers, a value per predicted token; NLLs in hundredths of a
    nat.

    Global fields: `models` (the reference first), `own` (which of them have another tokenizer),
    `most` (largest training count of an AR hit), `sources`, `end` (id of the end token, -1 if it is
    text), `spaced` (whether pieces have no bytes), `pieces` (id -> parts, see Pieces), `excerpts`.
    Of an excerpt: `sequence`, `first` (position of its first token), `asked` (for), `hits`, `gap`
    (one value per model, hundredths of a nat), `before` (the id before the first token), `tokens`
    (ids), `distance` (0: not repeated), `occurrences`, `count` (in training), `spans` ([place,
    document, source] where a document begins), `shown` ([place, parts] of tokens displayed
    differently in context), and one column per model of `nll`, `rank` and `predicted` (RIGHT,
    WRONG, UNKNOWN, or the id + 1).
    """

    def __init__(self, text: Excerpts, requested: Collection[Excerpt]) -> None:
        self._text, self._requested, self.pieces = text, requested, Pieces(text.tokenizer)
        self.other_tokenizers = []
        for name, scores in text.scores.items():
            if (
                parquet_files.read_manifest(scores.path, records.Scores).get("tokenizer")
                is not None
            ):
                self.other_tokenizers.append(name)
        self._sources: dict[str, int] = {}
        self._ids: set[int] = set()
        self.documents: set[int] = set()
        """Those of the excerpts that are packed."""

    def pack(
        self,
        wanted: Sequence[Excerpt],
        rows: Mapping[int, pl.DataFrame],
        most_bytes: int,
    ) -> dict[Excerpt, str]:
        """The JSON of as many of `wanted` as fit with all their pieces, in the order of the
        text."""
        packed, size = dict[Excerpt, str](), 0
        for excerpt in wanted:
            part = excerpt.among(rows[excerpt.sequence])
            entry, ids = self._pack_one(excerpt, part)
            size += len(entry.encode())
            size += sum(len(self._entry(index).encode()) + 1 for index in ids - self._ids)
            if size > most_bytes:
                break
            self._ids |= ids
            self.documents |= set(part["document"])
            packed[excerpt] = entry
        return dict(sorted(packed.items()))

    def document(self, packed: Mapping[Excerpt, str]) -> str:
        """The JSON of all that is packed."""
        facts = {
            "models": [printable(name) for name in self._text.scores],
            "own": [int(name in self.other_tokenizers) for name in self._text.scores],
            "most": self._text.labelled.max_count,
            "hit": "AR hit" if self._text.has_counts else "repeated bigram",
            "sources": [printable(name) for name in self._sources],
            "end": self.pieces.end,
            "spaced": int(not self.pieces.has_bytes),
        }
        pieces, excerpts = (
            ",".join(map(self._entry, sorted(self._ids))),
            ",\n".join(packed.values()),
        )
        return f'{compact_json(facts)[:-1]},\n"pieces":{{{pieces}}},\n"excerpts":[{excerpts}]}}'

    def _entry(self, index: int) -> str:
        return f'"{index}":{compact_json(self.pieces.alone(index))}'

    def _pack_one(self, excerpt: Excerpt, rows: pl.DataFrame) -> tuple[str, set[int]]:
        """An excerpt's JSON, and the ids in it."""
        ids = [rows["prev_token"][0], *rows["token"]]
        predicted = [
            self._predicted(rows, place, name) for place, name in enumerate(self._text.scores)
        ]
        nlls = [rows[f"nll_{place}"].cast(float).to_numpy() for place in range(len(predicted))]
        hits = rows["ar_hit" if self._text.has_counts else "repeated"].to_numpy()
        packed = {
            "sequence": excerpt.sequence,
            "first": excerpt.first,
            "asked": int(excerpt in self._requested),
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
        return compact_json(packed), {
            *ids,
            *(value - 1 for column in predicted for value in column if value > 0),
        }

    def _predicted(self, rows: pl.DataFrame, place: int, model: str) -> list[int]:
        """What a model predicted of each token; of one with another tokenizer predictions have no
        ids.

        Such a model is right if all of its own tokens that end in this one were ranked first; if
        its token boundaries do not include those of this token, that is unknown. So is the first
        choice of recorded NLLs without one.
        """
        codes = {True: RIGHT, False: WRONG, None: UNKNOWN}
        rights = [codes[right] for right in rows[f"right_{place}"]]
        if model in self.other_tokenizers:
            return rights
        columns = zip(rows[f"argmax_{place}"], rows["token"], rights, strict=True)
        return [
            right if guess < 0 else RIGHT if guess == token else guess + 1
            for guess, token, right in columns
        ]

    def _spans(self, rows: pl.DataFrame) -> list[list[int]]:
        """Where documents begin among the rows, with their numbers and sources."""
        first = rows.with_row_index("place").unique("document", keep="first", maintain_order=True)
        return [
            [place, document, self._sources.setdefault(source, len(self._sources))]
            for place, document, source in first.select("place", "document", "source").iter_rows()
        ]


# ---------------------------------------------------------------------------------------- pieces


class Pieces:
    """The display of a tokenizer's ids on a page.

    `Display` is text, or a list of texts and single bytes (integers), or an id without a piece
    itself.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._bytes = tokenizer.token_bytes
        self.has_bytes = self._bytes is not None
        text = tokenizer.document_text
        is_text = text is not None and not text.is_end(np.array([tokenizer.end_token_id]))[0]
        self.end = -1 if is_text else tokenizer.end_token_id
        """The id that ends documents; -1 if it is an ordinary piece of text."""

    def alone(self, index: int) -> Display:
        """The display of a single id."""
        if self._bytes is None:
            return self._tokenizer.backend.id_to_token(index) or index
        piece = self._piece(index)
        return _simple(*parts_of([piece])) if piece else index

    def otherwise(self, ids: Sequence[int]) -> list[tuple[int, Display]]:
        """The positions in `ids` that are displayed otherwise in context than alone, and how."""
        if self._bytes is None:
            return []
        displayed = [_simple(parts) for parts in parts_of(list(map(self._piece, ids)))]
        alone = {index: self.alone(index) for index in set(ids)}
        pairs = enumerate(zip(ids, displayed, strict=True))
        return [(place, here) for place, (index, here) in pairs if here and here != alone[index]]

    def _piece(self, index: int) -> bytes:
        assert self._bytes is not None
        return self._bytes[index] if index < len(self._bytes) else b""


def parts_of(pieces: Sequence[bytes]) -> list[list[str | int]]:
    """For each piece of a text, the characters that end in it as text, its other bytes as integers.

    A character whose bytes are in several pieces is shown in the last of them, and the others show
    their bytes: b"a\xc3", b"\xa9b" are ["a", 0xc3], ["éb"]. Read from piece to piece this gives the
    text, and only empty pieces have no parts.
    """
    owner = [number for number, piece in enumerate(pieces) for _ in piece]  # of each byte
    parts_of_piece: list[list[str | int]] = [[] for _ in pieces]
    place = 0
    for character in b"".join(pieces).decode(errors="surrogateescape"):
        # else a byte that is not part of a character
        is_text = not "\udc80" <= character <= "\udcff"
        encoded = character.encode(errors="surrogateescape")
        owners = owner[place : place + len(encoded)]
        for byte, number in zip(encoded, owners, strict=True):
            if not is_text or number != owners[-1]:
                parts_of_piece[number].append(byte)
        if is_text:
            parts = parts_of_piece[owners[-1]]
            if parts and isinstance(parts[-1], str):
                parts[-1] += character
            else:
                parts.append(character)
        place += len(encoded)
    return parts_of_piece


def _simple(parts: list[str | int]) -> Display:
    return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts
