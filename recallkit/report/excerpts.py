"""The token view's data: which excerpts of the text are on a page, and their tokens in compact form.

An excerpt is a sequence, because bigrams repeat only within their context (longer sequences are divided into blocks of LONGEST
tokens). One pass finds where each model's NLL on AR hits exceeds the reference's; then only the rows of the chosen excerpts are read.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING

from recallkit.errors import UserError, printable
from recallkit.measure.labelled import LabelledTokens, RowReader, batch_ranges, open_scores, open_tokens
from recallkit.report.markup import compact_json
from recallkit.report.pieces import Pieces
from recallkit.report.sequence import score_files
from recallkit.storage import artifacts, db
from recallkit.text.tokenizers import load_slices_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    import pyarrow as pa

    from recallkit.attribution.comparison import Comparison

LONGEST = 4096
"""Most tokens of an excerpt."""

MOST_BYTES = 3_000_000
"""Most bytes of a page's tokens."""

_TOP_OVERALL, _TOP_OF_MODEL = 32, 12
_REMEDY = "make it again with --force"
_LABELS = ("document", "source", "prev_token", "token", "distance", "occurrences", "train_count")
_SCORES = ("nll", "argmax", "rank", "exact")

RIGHT, WRONG, UNKNOWN = 0, -1, -2
"""Codes for a prediction: it is the token itself; it is wrong and has no id on the page; it is unknown."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Rows [start, stop) of the labels: a sequence, or block number `block` of one that is longer than LONGEST.

    `gaps`: for each model, NLL summed over AR hits minus the reference's, in nats. `asked`: requested by the user.
    """

    sequence: int
    block: int
    start: int
    stop: int
    hits: int
    gaps: tuple[float, ...]
    asked: bool = False


@dataclass(frozen=True, slots=True)
class TokenView:
    """`data` for the page's script (see `_Packer`), and how many of all excerpts and of the requested ones it contains."""

    data: str
    shown: int
    excerpts: int
    asked: int
    asked_shown: int
    sequences: int
    own_tokenizers: Sequence[str]
    has_bytes: bool


def token_view(
    comparison: Comparison, sequences: Sequence[int] = (), documents: Sequence[int] = (), most_bytes: int = MOST_BYTES
) -> TokenView:
    """The excerpts where models differ most from the reference on AR hits, and the sequences and documents asked for.

    `comparison.slices` must be known. As many as fit into `most_bytes` of JSON, those asked for first.
    Raises UserError if labels or scores are missing, damaged or not those compared, and for numbers that do not exist.
    """
    assert comparison.slices is not None
    tokens = open_tokens(comparison.slices / "tokens.parquet")
    scores = _score_files(comparison, comparison.slices, tokens)
    every = list_excerpts(tokens, scores)
    give_back_memory()
    asked = _asked(tokens, every, sequences, documents)
    own = [name for name in scores if artifacts.read_manifest(scores[name]).get("tokenizer") is not None]
    pieces = Pieces(load_slices_tokenizer(comparison.slices, tokens.manifest["tokenizer"]))
    packer = _Packer(tokens, scores, own, pieces)
    chosen = packer.pack([*asked, *preferred(every, asked)], most_bytes)
    return TokenView(
        data=packer.document(chosen, comparison.reference, comparison.models),
        shown=len(chosen),
        excerpts=len(every),
        asked=len(asked),
        asked_shown=sum(excerpt.asked for excerpt in chosen),
        sequences=int(tokens.manifest["num_sequences"]),
        own_tokenizers=own,
        has_bytes=pieces.has_bytes,
    )


def give_back_memory() -> None:
    """Returns to the system what Arrow keeps of tables that are gone, a hundred megabytes of a long text."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()


def _score_files(comparison: Comparison, slices: Path, tokens: LabelledTokens) -> dict[str, Path]:
    """The score files of the reference and each model, checked to be those that were compared."""
    files = score_files(comparison, slices)
    for name, path in files.items():
        open_scores(path, tokens)
        if artifacts.read_manifest(path).get("options") != comparison.manifest["scores"].get(name):
            raise UserError("the scores have changed since the comparison", where=path, remedy="run the same `recallkit gap` again")
    return files


# ------------------------------------------------------------------------------------------------------------ choosing


def list_excerpts(tokens: LabelledTokens, scores: Mapping[str, Path]) -> list[Excerpt]:
    """All excerpts of the text, in order. `scores`: the reference's file first, then the models'. Reads some row groups at a time."""
    import numpy as np

    labels = RowReader(tokens.path, ("sequence", "position", "ar_hit"), remedy=_REMEDY)
    nlls = [RowReader(path, ("nll",), remedy=_REMEDY) for path in scores.values()]
    excerpts: list[Excerpt] = []
    for start, stop in batch_ranges(tokens.path):
        rows = labels.read(start, stop)
        hits = rows["ar_hit"].fill_null(False).to_numpy()
        sequence, block = rows["sequence"].to_numpy(), (rows["position"].to_numpy() - 1) // LONGEST
        begins = np.flatnonzero(np.diff(sequence, prepend=-1) | np.diff(block, prepend=-1))
        reference, *models = (reader.read(start, stop)["nll"].to_numpy().astype(np.float64) for reader in nlls)
        gaps = [np.add.reduceat(np.where(hits, nll - reference, 0.0), begins) for nll in models]
        for path, gap in zip(list(scores.values())[1:], gaps, strict=True):
            if not np.isfinite(gap).all():
                raise UserError("contains NLLs that are not finite, or the reference's scores do", where=path, remedy=_REMEDY)
        ends = [*begins[1:].tolist(), stop - start]
        counted = np.add.reduceat(hits.astype(np.int64), begins).tolist()
        columns = (
            sequence[begins].tolist(),
            block[begins].tolist(),
            begins.tolist(),
            ends,
            counted,
            zip(*(g.tolist() for g in gaps), strict=True),
        )
        excerpts += [Excerpt(seq, part, start + first, start + end, n, gap) for seq, part, first, end, n, gap in zip(*columns, strict=True)]
    return _joined(excerpts)


def _joined(excerpts: Sequence[Excerpt]) -> list[Excerpt]:
    """The excerpts, with those in one that ranges of rows have divided."""
    joined: list[Excerpt] = []
    for excerpt in excerpts:
        last = joined[-1] if joined else None
        if last is not None and (last.sequence, last.block) == (excerpt.sequence, excerpt.block):
            gaps = tuple(a + b for a, b in zip(last.gaps, excerpt.gaps, strict=True))
            joined[-1] = replace(last, stop=excerpt.stop, hits=last.hits + excerpt.hits, gaps=gaps)
        else:
            joined.append(excerpt)
    return joined


def _asked(tokens: LabelledTokens, every: Sequence[Excerpt], sequences: Sequence[int], documents: Sequence[int]) -> list[Excerpt]:
    """The requested excerpts, in the order requested: sequences, then documents. Raises UserError for numbers that do not exist."""
    wanted = [*sequences, *_sequences_of(tokens, documents)]
    found: dict[int, list[Excerpt]] = {}
    for excerpt in every:
        found.setdefault(excerpt.sequence, []).append(excerpt)
    for number in sequences:
        if number not in found:
            raise UserError("no such sequence", where=f"--sequence {number}", remedy=f"give a number from 0 to {every[-1].sequence}")
    return [replace(excerpt, asked=True) for number in dict.fromkeys(wanted) for excerpt in found[number]]


def _sequences_of(tokens: LabelledTokens, documents: Sequence[int]) -> list[int]:
    """The sequences of each document in order."""
    if not documents:
        return []
    with db.connect(threads=1) as connection:
        db.view_file(connection, "tokens", tokens.path)
        rows = connection.sql(db.query("report/find_documents"), params={"documents": list(documents)}).fetchall()
    for document in documents:
        if not any(found == document for found, _ in rows):
            problem = "no predicted token belongs to this document"
            raise UserError(problem, where=f"--document {document}", remedy="give a number of tokens.parquet")
    return [sequence for document in documents for found, sequence in rows if found == document]


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

    Global fields: `models` (the reference first), `own` (which of them have a tokenizer of their own), `most` (largest training count of
    an AR hit), `sources`, `end` (id of the end token, -1 if it is text), `spaced` (whether pieces have no bytes of their own),
    `pieces` (id -> parts, see pieces.py), `excerpts`. Of an excerpt: `sequence`, `first` (position of its first token), `asked`, `hits`,
    `gap` (one value per model), `before` (the id before the first token), `tokens` (ids), `distance` (0: not repeated), `occurrences`,
    `count` (in training), `spans` ([place, document, source] where a document begins), `shown` ([place, parts] of tokens displayed
    differently in context), and one column per model of `nll`, `rank` and `predicted` (RIGHT, WRONG, UNKNOWN, or the id + 1).
    """

    def __init__(self, tokens: LabelledTokens, scores: Mapping[str, Path], own: Sequence[str], pieces: Pieces) -> None:
        self._labels = RowReader(tokens.path, _LABELS, remedy=_REMEDY)
        self._scores = {name: RowReader(path, _SCORES, remedy=_REMEDY) for name, path in scores.items()}
        self._own, self._pieces, self._tokens = frozenset(own), pieces, tokens
        self._packed: dict[Excerpt, tuple[str, frozenset[int]]] = {}
        self._sources: dict[str, int] = {}
        self._entries: dict[int, str] = {}

    def pack(self, wanted: Sequence[Excerpt], most_bytes: int) -> list[Excerpt]:
        """Packs as many of `wanted` as fit into `most_bytes` with all their pieces, in order; returns them."""
        # Rows are read in file order, so excerpts that can never fit are left out first.
        least = 8 + 6 * len(self._scores)
        sizes = itertools.accumulate(least * (excerpt.stop - excerpt.start) for excerpt in wanted)
        hopeful = list(itertools.compress(wanted, (size <= most_bytes for size in sizes)))
        for excerpt in sorted(hopeful, key=lambda excerpt: excerpt.start):
            self._packed[excerpt] = self._pack_one(excerpt)
        chosen, known, size = [], set[int](), 0
        for excerpt in hopeful:
            packed, ids = self._packed[excerpt]
            size += len(packed.encode()) + sum(len(self._entry(index).encode()) + 1 for index in ids - known)
            if size > most_bytes:
                break
            known |= ids
            chosen.append(excerpt)
        return chosen

    def document(self, chosen: Sequence[Excerpt], reference: str, models: Sequence[str]) -> str:
        """The JSON of the chosen excerpts, in the order of the text."""
        ordered = sorted(chosen, key=lambda excerpt: excerpt.start)
        ids = sorted(set[int]().union(*(self._packed[excerpt][1] for excerpt in ordered)))
        names = [reference, *models]
        facts = {
            "models": [printable(name) for name in names],
            "own": [int(name in self._own) for name in names],
            "most": self._tokens.max_count,
            "sources": [printable(name) for name in self._sources],
            "end": self._pieces.end,
            "spaced": int(not self._pieces.has_bytes),
        }
        pieces = ",".join(map(self._entry, ids))
        excerpts = ",\n".join(self._packed[excerpt][0] for excerpt in ordered)
        return f'{compact_json(facts)[:-1]},\n"pieces":{{{pieces}}},\n"excerpts":[{excerpts}]}}'

    def _entry(self, index: int) -> str:
        if index not in self._entries:
            self._entries[index] = f'"{index}":{compact_json(self._pieces.alone(index))}'
        return self._entries[index]

    def _pack_one(self, excerpt: Excerpt) -> tuple[str, frozenset[int]]:
        """An excerpt's JSON, and the ids in it."""
        labels = self._labels.read(excerpt.start, excerpt.stop)
        before, tokens = labels["prev_token"][0].as_py(), labels["token"].to_numpy()
        columns = {
            name: _Columns.of(reader.read(excerpt.start, excerpt.stop), tokens, name in self._own) for name, reader in self._scores.items()
        }
        ids = {before, *tokens.tolist(), *(value - 1 for column in columns.values() for value in column.predicted if value > 0)}
        packed = {
            "sequence": excerpt.sequence,
            "first": excerpt.block * LONGEST + 1,
            "asked": int(excerpt.asked),
            "hits": excerpt.hits,
            "gap": [round(100 * gap) for gap in excerpt.gaps],
            "before": before,
            "tokens": tokens.tolist(),
            "distance": labels["distance"].fill_null(0).to_pylist(),
            "occurrences": labels["occurrences"].to_pylist(),
            "count": labels["train_count"].to_pylist(),
            "spans": self._spans(labels),
            "shown": self._pieces.otherwise([before, *tokens.tolist()]),
            **{name: [getattr(column, name) for column in columns.values()] for name in ("nll", "rank", "predicted")},
        }
        return compact_json(packed), frozenset(ids)

    def _spans(self, labels: pa.Table) -> list[list[int]]:
        """Where documents begin among the rows, with their numbers and sources."""
        import numpy as np

        documents = labels["document"].to_numpy()
        sources = labels["source"].combine_chunks().cast("string").to_pylist()
        starts = [0, *(np.flatnonzero(np.diff(documents)) + 1).tolist()]
        return [[start, int(documents[start]), self._sources.setdefault(sources[start], len(self._sources))] for start in starts]


@dataclass(frozen=True, slots=True)
class _Columns:
    """One model's scores of an excerpt."""

    nll: list[int]
    rank: list[int]
    predicted: list[int]

    @classmethod
    def of(cls, rows: pa.Table, tokens: np.ndarray, is_own: bool) -> _Columns:
        """`is_own`: the model has a tokenizer of its own, so its predictions have no ids here.

        Such a model is right if all of its own tokens that end in this one were ranked first; if its token boundaries do not
        include those of this token, that is unknown.
        """
        import numpy as np

        nll, argmax, rank, exact = (rows[name].to_numpy() for name in _SCORES)
        if not np.isfinite(nll).all():
            raise UserError("contains NLLs that are not finite", where="scores", remedy=_REMEDY)
        predicted = np.where(argmax == tokens, RIGHT, argmax + 1)
        if is_own:
            predicted = np.where(exact & (rank >= 0), np.where(rank == 0, RIGHT, WRONG), UNKNOWN)
        return cls(np.rint(nll.astype(np.float64) * 100).astype(np.int64).tolist(), rank.tolist(), predicted.tolist())
