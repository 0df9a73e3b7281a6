"""Counts of infini-gram's indexes: `--counts infini-gram:INDEX` asks its public service,
infini-gram:URL#INDEX another server.

One request is one bigram, so only those are asked for that a text repeats: with them AR hits are
labelled, and the counts of other tokens stay unknown. Answers are kept in a DuckDB table of the
cache folder, from which interrupted work resumes; those of one text are a counts table as any
other. infini-gram puts a separator, the largest 16-bit number, between documents, where the text
has its end token. https://infini-gram.readthedocs.io/en/latest/api.html, arXiv 2401.17377
"""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from recallkit import config
from recallkit.counting.bigrams import CountedStream
from recallkit.counting.make_table import write_counts
from recallkit.counting.table import REPEATED_ONLY
from recallkit.display import console
from recallkit.display.cells import duration
from recallkit.display.progress import progress
from recallkit.errors import UserError
from recallkit.storage import db, hashing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import duckdb

    from recallkit.text.tokenizers import TextTokenizer

PREFIX = "infini-gram:"

_PUBLIC = "https://api.infini-gram.io"
_PER_SECOND = 10.0
"""Requests to the public service, one after another, at most."""
_CHUNK = 100
"""Answers between two commits."""
_BYTES = 1 << 16
_SEPARATOR = (1 << 16) - 1
_PROBES = (
    "The quick brown fox jumps over 1,250 lazy dogs.",
    "naïve café: def unhappiness(x_1): return x_1 ** 2",
)
_REMEDY = "check the name of the index; answers are kept, and the same command resumes"
_HALF = np.uint64(32)


def index_named(counts: object) -> str | None:
    """What names an index, infini-gram:INDEX or infini-gram:URL#INDEX; None for anything else."""
    return counts if isinstance(counts, str) and counts.startswith(PREFIX) else None


class InfiniGram:
    """An index, ready to be asked. `num_tokens`: its tokens.

    Raises UserError where it cannot be reached, answers what cannot be, or has another tokenizer
    than `tokenizer`.
    """

    def __init__(self, name: str, tokenizer: TextTokenizer) -> None:
        """`name`: infini-gram:INDEX or infini-gram:URL#INDEX."""
        # This imports http and ssl, which only an index needs.
        from recallkit.text.json_server import JsonServer

        url, _, index = name.removeprefix(PREFIX).rpartition("#")
        is_url = urlsplit(url).scheme in ("", "http", "https") and not {"@", "?"} & {*url}
        if not is_url or not re.fullmatch(r"[\w.-]{1,200}", index, re.ASCII):
            remedy = "give infini-gram:INDEX, such as infini-gram:v4_rpj_llama_s4"
            raise UserError("not an index", where=name, remedy=remedy)
        self._index, self._url, self._tokenizer = index, (url or _PUBLIC).rstrip("/"), tokenizer
        self._server = JsonServer(self._url, name, _REMEDY, has_key=False)
        self._pace = _Pace(_PER_SECOND if self._url == _PUBLIC else float("inf"))
        self.num_tokens = 1 << 62
        self.num_tokens = self._ask(query="")[0]
        for probe in _PROBES:
            self._check_tokenizer(probe)

    def table(self, keys: np.ndarray, sequences_digest: str) -> Path:
        """The counts table, in the cache folder, of these repeated bigrams of a text: sorted keys
        (uint64), first << 32 | second."""
        identity = {
            "url": self._url,
            "index": self._index,
            "tokenizer": self._tokenizer.digest,
            "num_tokens": self.num_tokens,
        }
        options = {**identity, "sequences_digest": sequences_digest}
        target = config.home() / "counts" / f"{hashing.digest_json(options)}.duckdb"
        if target.exists():
            return target
        answers = config.home() / "infini-gram" / f"{hashing.digest_json(identity)}.duckdb"
        counts = self._all_counts(keys, answers)
        none = np.empty(0, np.uint32)
        # This imports numba, which `gap` does not need.
        from recallkit.counting.bigram_kernels import BigramRun

        counted = CountedStream(
            BigramRun(keys, counts),
            none,
            none.astype(np.uint64),
            self.num_tokens,
            0,
        )
        facts = {
            "tokenizer": self._tokenizer.describe(),
            "boundary": "pack",
            "only": sequences_digest,
            REPEATED_ONLY: True,
        }
        write_counts(
            target,
            counted,
            {"recallkit_version": config.VERSION, "options": options, **facts},
        )
        return target

    def _all_counts(self, keys: np.ndarray, answers: Path) -> np.ndarray:
        """The count of each bigram, uint64 (n,): those that `answers` has, and of the others what
        the server answers."""
        with _answers(answers) as connection:
            rows = connection.execute(db.query("counts/select_bigrams")).fetchnumpy()
            pairs = (np.asarray(rows[name]).tolist() for name in ("key", "count"))
            known = dict(zip(*pairs, strict=True))
            missing = [key for key in keys.tolist() if key not in known]
            if missing:
                bigrams = f"{len(missing):,} of {len(keys):,} bigrams"
                if self._pace.seconds:
                    bigrams += f", {duration(len(missing) * self._pace.seconds)} or more"
                console.note(f"querying {self._url} for {bigrams}; answers are kept")
            with progress(
                "querying counts",
                total=len(keys),
                unit="bigrams",
                saved=lambda: len(known),
            ) as show:
                for start in range(0, len(missing), _CHUNK):
                    show(len(keys) - len(missing) + start)
                    chunk = missing[start : start + _CHUNK]
                    counts = [self._count(key) for key in chunk]
                    _keep(connection, np.array(chunk, np.uint64), np.array(counts, np.uint64))
                    known.update(zip(chunk, counts, strict=True))
        return np.array([known[key] for key in keys.tolist()], np.uint64)

    def _count(self, key: int) -> int:
        end = self._tokenizer.end_token_id if self._tokenizer.vocab_size <= _SEPARATOR else None
        ids = [_SEPARATOR if token == end else token for token in (key >> 32, key & 0xFFFFFFFF)]
        count, tokens = self._ask(query_ids=ids)
        if tokens != ids:
            raise self._server.refusal(f"it answers for the tokens {tokens}, not {ids}")
        return count

    def _ask(self, **query: Any) -> tuple[int, list[int]]:
        """The count of a query and its tokens, as the server has them.

        Everything in an answer is checked here.
        """
        self._pace.wait()
        content = {"index": self._index, "query_type": "count", **query}
        answer = self._server.ask("", content, _BYTES)
        if "error" in answer:
            raise self._server.refusal(f"it answers: {str(answer['error'])[:200]}")
        count, tokens = answer.get("count"), answer.get("token_ids")
        is_exact = answer.get("approx", False) is False
        if type(count) is not int or not 0 <= count <= self.num_tokens or not is_exact:
            raise self._server.refusal("its answer is not an exact count of its tokens")
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            problem = "its answer does not say which tokens it counted (token_ids)"
            raise self._server.refusal(problem)
        return count, tokens

    def _check_tokenizer(self, text: str) -> None:
        """Raises UserError unless the index has the tokens of `text` that we have; servers put a
        space before it for most tokenizers."""
        _, theirs = self._ask(query=text)
        ids, offsets = self._tokenizer.encode([text, f" {text}"])
        if theirs not in [part.tolist() for part in np.split(ids, offsets[1:-1])]:
            other = f"it has {len(theirs)} other tokens for {text!r}"
            problem = f"its tokenizer is not {self._tokenizer.name}: {other}"
            remedy = "slice with the tokenizer of the index (--tokenizer)"
            raise UserError(problem, where=f"{PREFIX}{self._index}", remedy=remedy)


class _Pace:
    """At most so many calls of `wait` return per second."""

    def __init__(self, per_second: float) -> None:
        self.seconds, self._next = 1 / per_second, 0.0

    def wait(self) -> None:
        time.sleep(max(0.0, self._next - time.monotonic()))
        self._next = time.monotonic() + self.seconds


@contextlib.contextmanager
def _answers(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """The table of answers, made if it is missing.

    Raises UserError where another process uses it, or it is damaged.
    """
    import duckdb

    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        connection = db.connect(path)
    except duckdb.Error as error:
        problem = "answers are kept here: another process uses them, or they are damaged"
        raise UserError(problem, where=path, remedy="wait for it, or remove the file") from error
    with connection:
        with contextlib.suppress(duckdb.CatalogException):  # it is there
            connection.execute(db.query("counts/create_tables"))
        yield connection


def _keep(connection: duckdb.DuckDBPyConnection, keys: np.ndarray, counts: np.ndarray) -> None:
    import pyarrow as pa

    columns = {
        "first": (keys >> _HALF).astype(np.uint32),
        "second": keys.astype(np.uint32),
        "count": counts,
    }
    connection.register("batch", pa.table(columns))
    connection.execute(db.query("counts/insert_bigrams"))
    connection.unregister("batch")
