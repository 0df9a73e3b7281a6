"""Reads the table of training counts, for labelling, control models and manifests."""

from __future__ import annotations

import contextlib
import json
import shlex
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.counting.sorted_runs import HASHES
from recallkit.errors import UserError, lacks_resources
from recallkit.ragged import run_starts
from recallkit.storage import artifacts, db, hashing, parquet_files
from recallkit.storage.artifacts import DamagedError
from recallkit.storage.records import CountsMeta, check_record
from recallkit.storage.result import Result

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import duckdb

NGRAM_HASHES = "ngram_hashes"
"""The fact of the meta about hashes of the training text's n-grams: how many were to be kept of
each size (`most`), their number by size (`num`), their `digest`. Tables that were imported, counted
with --only or made by older versions have none."""

REPEATED_ONLY = "repeated_only"
"""The fact of the meta of a table that `is_of_repeated`."""

_AGAIN = "make it again with --force"

_HALF = np.uint64(32)
"""Bits of the second token in the key of a bigram."""

_MAX_ROWS = 1 << 22
"""First tokens up to which a table of where the bigrams of each begin is made, 32 MB."""


@dataclass(frozen=True, slots=True)
class NgramHashes:
    """A sample of the training text's n-grams of `size` ids: all whose hash is at most `largest`
    (`hash_kernels`).

    `hashes` uint64, increasing.
    """

    size: int
    hashes: np.ndarray
    largest: int

    @property
    def fraction(self) -> float:
        """The fraction of all n-grams that is in the sample, 0 to 1."""
        return (self.largest + 1) / 2**64


@dataclass(frozen=True)
class CountsTable:
    """Bigram and unigram counts of a training text, and the facts recorded with them.

    `keys` (m,) uint64 strictly increasing, first << 32 | second; `counts` (m,) uint64; `tokens`
    uint32 sorted, those that occur, with `token_counts` uint64. `meta` contains the facts of the
    run (`tokenizer`, `num_tokens`, `boundary` ...).
    """

    path: Path
    meta: dict[str, Any]
    keys: np.ndarray
    counts: np.ndarray
    tokens: np.ndarray
    token_counts: np.ndarray

    @property
    def num_tokens(self) -> int:
        """Training tokens that were counted."""
        return int(self.meta["num_tokens"])

    @property
    def is_of_repeated(self) -> bool:
        """Whether it has the counts of those bigrams alone that one text repeats (`infini_gram`),
        and of no single token."""
        return bool(self.meta.get(REPEATED_ONLY))

    @cached_property
    def _rows(self) -> np.ndarray | None:
        """Where the bigrams of each first token begin (`index_rows`); None for ids too large."""
        if len(self.keys) and self.keys[-1] >> _HALF >= _MAX_ROWS:
            return None
        return index_rows(self.keys)

    def lookup(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Counts (int64) of the bigrams (first[i], second[i]); 0 for unseen ones."""
        return search_counts(self.keys, self.counts, first, second)

    @cached_property
    def unigram_counts(self) -> np.ndarray:
        """Occurrences of every token: uint64 (vocab,). Raises UserError for ids beyond 2^22."""
        entries = int((self.meta.get("tokenizer") or {}).get("vocab_size", 0))
        vocab = max(entries, int(self.tokens.max(initial=0)) + 1)
        if vocab > _MAX_ROWS:
            remedy = "control models need a common vocabulary"
            raise UserError("token ids beyond 4 million", where=self.path, remedy=remedy)
        dense = np.zeros(vocab, np.uint64)
        dense[self.tokens] = self.token_counts
        return dense

    def row_starts(self) -> np.ndarray:
        """Where the bigrams of each first token begin: int64 (vocab + 1,).

        Raises UserError for ids beyond 2^22.
        """
        vocab, starts = len(self.unigram_counts), self._rows
        assert starts is not None
        more = np.full(max(0, vocab + 1 - len(starts)), starts[-1])
        return np.concatenate([starts, more])[: vocab + 1]

    @property
    def hash_facts(self) -> dict[str, Any] | None:
        """The entry NGRAM_HASHES of the meta, if there is one."""
        return self.meta.get(NGRAM_HASHES)

    @cached_property
    def ngram_hashes(self) -> tuple[NgramHashes, ...]:
        """Hashes of the training text's n-grams, by size; none if the table has none.

        Raises UserError if they are damaged.
        """
        from recallkit.counting.ngram_hash import ALL

        facts = self.hash_facts
        if facts is None:
            return ()
        by_size = []
        with _reading(self.path) as connection:
            for size in HASHES.values():
                hashed = connection.execute(db.query("counts/select_ngram_hashes"), {"size": size})
                rows = hashed.fetchnumpy()
                hashes = np.asarray(rows["hash"], np.uint64)
                largest = ALL if len(hashes) < facts["most"] else int(hashes[-1])
                by_size.append(NgramHashes(size, hashes, largest))
        if digest_hashes({known.size: known.hashes for known in by_size}) != facts["digest"]:
            problem = "damaged (the digest of its hashes of n-grams differs)"
            raise DamagedError(problem, where=self.path, remedy=_AGAIN)
        return tuple(by_size)

    def check_tokenizer(self, described: Mapping[str, Any]) -> None:
        """Raises UserError unless this tokenizer, with its end token, is that of the counts (or
        theirs is unknown, as in imported tables).

        `described`: its `name`, `digest`, `end_token` and `end_token_id`.
        """
        mine = self.meta.get("tokenizer") or {}
        if mine.get("digest") not in (None, described["digest"]):
            other = f"here {described['name']} is used"
            problem = f"counted with tokenizer {mine.get('name')}, but {other}"
            own = "use the tokenizer of the counts here, too"
            remedy = f"count again with that tokenizer (--tokenizer), or {own}"
            raise UserError(problem, where=self.path, remedy=remedy)
        if mine.get("end_token_id") not in (None, described["end_token_id"]):
            ends = [repr(tokenizer["end_token"]) for tokenizer in (mine, described)]
            problem = f"counted with {ends[0]} between documents, but here {ends[1]} ends them"
            option = f"--end-token {shlex.quote(mine['end_token'])}"
            remedy = f"use that of the counts: recallkit slice {option}"
            raise UserError(problem, where=self.path, remedy=remedy)

    def recompute_id(self) -> str:
        """The id according to what is in the tables, which is that of the meta unless one of them
        was changed."""
        return counts_id(self.meta, self.keys, self.counts, self.tokens, self.token_counts)

    def describe(self) -> dict[str, Any]:
        """What the manifest of a result records about these counts."""
        return {
            "id": self.meta["id"],
            "path": str(self.path.resolve()),
            "num_tokens": self.num_tokens,
            "num_bigrams": len(self.keys),
            "boundary": self.meta.get("boundary"),
            "unseen": self.meta.get("unseen"),
            **({REPEATED_ONLY: True} if self.is_of_repeated else {}),
            **({} if self.hash_facts is None else {"hashes": self.hash_facts["digest"]}),
        }


def index_rows(keys: np.ndarray) -> np.ndarray:
    """Where each row of sorted bigram keys begins: int64 (num_rows + 1,); row r has the keys whose
    first token is r.

    Example: the bigrams (0, 5), (0, 7), (2, 1) have starts [0, 2, 2, 3].
    """
    num_rows = int(keys[-1] >> _HALF) + 1 if len(keys) else 1
    firsts = np.arange(num_rows, dtype=np.uint64) << _HALF
    return np.append(np.searchsorted(keys, firsts), len(keys))


def search_counts(
    keys: np.ndarray,
    counts: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
) -> np.ndarray:
    """Counts (int64) of the bigrams (first[i], second[i]) in a table, `keys` uint64 sorted, first
    << 32 | second; 0 for those not in it.

    Each is searched once, in the order of the keys, so that neighbours share what is in the cache.
    """
    if not len(keys) or not len(first):
        return np.zeros(len(first), np.int64)
    first, second = first.astype(np.uint64), second.astype(np.uint64)
    width, places = int(max(first.max(), second.max())).bit_length(), len(first).bit_length()
    if 2 * width + places <= 64:  # sorted together with their places, in half the time of `argsort`
        bigrams = (first << np.uint64(width) | second) << np.uint64(places)
        bigrams |= np.arange(len(first), dtype=np.uint64)
        bigrams.sort()
        order = (bigrams & np.uint64((1 << places) - 1)).view(np.int64)
        bigrams >>= np.uint64(places)
    else:
        width, bigrams = 32, first << _HALF | second
        order = np.argsort(bigrams)
        bigrams = bigrams[order]
    begins = run_starts(bigrams)
    distinct = bigrams[begins]
    distinct = distinct >> np.uint64(width) << _HALF | distinct & np.uint64((1 << width) - 1)
    rows = np.minimum(np.searchsorted(keys, distinct), len(keys) - 1)
    counted = np.where(keys[rows] == distinct, counts[rows], np.uint64(0)).astype(np.int64)
    result = np.empty(len(first), np.int64)
    result[order] = np.repeat(counted, np.diff(begins, append=len(first)))
    return result


def digest_hashes(hashes: Mapping[int, np.ndarray]) -> str:
    """A digest of the hashes of n-grams of each size."""
    digests = {str(size): hashing.digest_arrays(known) for size, known in hashes.items()}
    return hashing.digest_json(digests)


def counts_id(
    meta: Mapping[str, Any],
    keys: np.ndarray,
    counts: np.ndarray,
    tokens: np.ndarray,
    token_counts: np.ndarray,
) -> str:
    """The id of a table with these facts and arrays (`CountsTable`)."""
    identity = hashing.digest_json(
        [meta.get("tokenizer"), meta.get("boundary"), meta.get("only")],
    )
    digests = [identity, hashing.digest_arrays(keys, counts, tokens, token_counts)]
    return hashing.digest_bytes(*(digest.encode() for digest in digests))


def counts_result(out: Path, options: dict[str, Any], *, force: bool) -> Result:
    """A counts table as a result."""
    return Result(out, None, options, force=force, read=read_meta)


def read_meta(path: Path) -> dict[str, Any]:
    """The facts of a counts database.

    Raises UserError if it is missing, damaged, or of another schema version, and if a fact was
    changed.
    """
    with _reading(path) as connection:
        return _meta_in(connection, path)


def _meta_in(connection: duckdb.DuckDBPyConnection, path: Path) -> dict[str, Any]:
    rows = connection.execute(db.query("counts/select_meta")).fetchall()
    try:
        meta: dict[str, Any] = {key: json.loads(value) for key, value in rows}
    except (ValueError, RecursionError) as error:
        raise DamagedError("its meta is damaged", where=path, remedy=_AGAIN) from error
    parquet_files.check_schema_version(meta, path)
    facts = artifacts.without_digest(meta, path)
    check_record(facts, path, CountsMeta)
    return facts


def open_counts(path: Path) -> CountsTable:
    """Reads a counts database into memory: 16 bytes a distinct bigram.

    Raises UserError as `read_meta` does.

    Also for counts that do not have the id of the meta.
    """
    with _reading(path) as connection:
        meta = _meta_in(connection, path)
        bigrams = connection.execute(db.query("counts/select_bigrams")).fetchnumpy()
        unigrams = connection.execute(db.query("counts/select_unigrams")).fetchnumpy()
    table = CountsTable(
        path=path,
        meta=meta,
        keys=np.asarray(bigrams["key"], np.uint64),
        counts=np.asarray(bigrams["count"], np.uint64),
        tokens=np.asarray(unigrams["token"], np.uint32),
        token_counts=np.asarray(unigrams["count"], np.uint64),
    )
    if len(table.keys) != meta["num_bigrams"] or meta["id"] != table.recompute_id():
        raise DamagedError("damaged (the digest of its counts differs)", where=path, remedy=_AGAIN)
    return table


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to a counts table, and a UserError if there is none, and for what DuckDB finds
    damaged."""
    import duckdb

    if not path.is_file():
        remedy = "make it with `recallkit count`, or name it with --counts"
        raise UserError("no such counts table", where=path, remedy=remedy)
    try:
        with db.connect(path, read_only=True) as connection:
            yield connection
    except duckdb.Error as error:
        if lacks_resources(error):
            raise
        first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        problem = f"not a readable counts table ({first_line})"
        remedy = "name one that `recallkit count` made"
        if artifacts.is_listed(path):
            remedy = "make it again with --force"
        raise UserError(problem, where=path, remedy=remedy) from error
