"""The work of `recallkit profile`: text is labelled as `slice` labels it, and its labels are counted.

Content bigrams consist of tokens that are not stop words, and have a letter or digit.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from recallkit import config, slicing
from recallkit.declarations import path
from recallkit.errors import UserError
from recallkit.options import ProfileOptions
from recallkit.slicing.threshold import BY_DEFAULT
from recallkit.storage import artifacts
from recallkit.storage.given_files import read_file
from recallkit.storage.result import Question, read_tables
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from recallkit.options import TextOptions
    from recallkit.profiling.tables import ProfileTables
    from recallkit.slicing.threshold import RareCount
    from recallkit.text.tokenizers import TextTokenizer

_DEFAULTS = ProfileOptions()


def profile(
    text: TextOptions,
    out: Path,
    *,
    counts: Path | str | None = None,
    rare: RareCount = BY_DEFAULT,
    seq_len: int = config.SEQ_LEN,
    options: ProfileOptions = _DEFAULTS,
) -> ProfileTables:
    """Profiles a text into the directory `out`, in bounded memory; returns the tables of profiling.tables.

    Its labels are in `out`/slices, a slice directory as any other. Without `counts` there are no AR hits. Raises UserError for everything
    a user can correct.
    """
    _check_x_min(options.x_min, seq_len)
    stop_words(options.stop_words)  # a list that is missing is reported before the work
    slicing.slice_text(text, out / "slices", counts=counts, rare=rare, seq_len=seq_len, force=options.force)
    return profile_slices(out / "slices", out, options)


def profile_slices(slices: Path, out: Path, options: ProfileOptions = _DEFAULTS) -> ProfileTables:
    """The same of the labelled tokens of a slice directory, with its sequences, training counts and threshold."""
    from recallkit.measure.labelled import open_tokens
    from recallkit.profiling.tables import ProfileTables, make_tables
    from recallkit.text.tokenizers import load_slices_tokenizer

    path = slices / "tokens.parquet"
    manifest = open_tokens(path, needs_counts=False).manifest
    _check_x_min(options.x_min, manifest["seq_len"])
    words = stop_words(options.stop_words)
    identity = {
        **{name: manifest["options"][name] for name in ("sequences_digest", "counts_id", "max_count")},
        "stop_words": {"digest": artifacts.digest_json(words), "num_words": len(words)},
        "x_min": options.x_min,
    }
    question = Question("profile", ProfileTables, out, identity, options.force)
    if (answer := question.reused()) is not None:
        return answer
    timings = Timings()
    with timings.stage("profiling") as stage:
        mask = token_mask(load_slices_tokenizer(slices, manifest["tokenizer"]), words)
        knows_hits = manifest["counts"] is not None
        tables = make_tables(path, mask, manifest["seq_len"], knows_hits=knows_hits, x_min=options.x_min)
        stage.amounts["tokens"] = manifest["num_rows"]
    kept = ("boundary", "tokenizer", "sources", "limit_tokens", "seq_len", "names", "counts", "max_count", "num_sequences", "threshold")
    listed = options.stop_words if options.stop_words in (OURS, NLTK, NONE) else "file"
    facts = {
        **{name: manifest[name] for name in kept},
        "num_tokens": manifest["num_rows"],
        "stop_words": {**identity["stop_words"], "name": listed},
        "x_min": options.x_min,
    }
    question.write(tables, facts, timings)
    return tables


def _check_x_min(x_min: int | None, seq_len: int) -> None:
    if x_min is not None and not 1 <= x_min < max(2, seq_len - 1):
        problem, most = f"no tail of distances begins at {x_min}", max(1, seq_len - 2)
        raise UserError(problem, where="--x-min", remedy=f"give 1 to {most}, as sequences have {seq_len}")


def read_profile(folder: Path) -> ProfileTables:
    """The tables that `recallkit profile` wrote to a directory. Raises UserError if they are missing or damaged."""
    from recallkit.profiling.tables import ProfileTables

    return read_tables(ProfileTables, folder)


OURS, NLTK, NONE = "ours", "nltk", "none"
"""Names of lists of stop words: data/stop_words.txt, nltk's English ones, the empty one. Any other name is a file's."""


def stop_words(name: str) -> list[str]:
    """Words in lower case, sorted: of a list of this name, or of a file of one word per line in UTF-8 (`#` begins a comment line).

    Raises UserError if it does not exist.
    """
    if name == NONE:
        return []
    if name == NLTK:
        words = _nltk_words()
    else:
        words = _words_of(Path(str(files("recallkit") / "data" / "stop_words.txt")) if name == OURS else path(name))
    return sorted({word.strip().lower() for word in words} - {""})


def _words_of(file: Path) -> list[str]:
    remedy = "give ours, nltk, none, or a file with one word per line"
    if not file.is_file():
        raise UserError("no such list of stop words", where=file, remedy=remedy)
    try:
        return [line for line in read_file(file).decode("utf-8-sig").splitlines() if not line.startswith("#")]
    except UnicodeDecodeError as error:
        raise UserError("not text in UTF-8", where=file, remedy=remedy) from error


def _nltk_words() -> list[str]:
    try:
        from nltk.corpus import stopwords  # type: ignore[import-untyped]

        return list(stopwords.words("english"))
    except (ImportError, LookupError, OSError) as error:
        remedy = "python -m nltk.downloader stopwords, or leave --stop-words out"
        raise UserError("nltk's list of stop words is not there", where="--stop-words nltk", remedy=remedy) from error


def token_mask(tokenizer: TextTokenizer, words: Collection[str]) -> np.ndarray:
    """Which ids of a vocabulary can be part of a content bigram, by the tokenizer's own text of each: bool (vocab,)."""
    special = {index for index, token in tokenizer.backend.get_added_tokens_decoder().items() if token.special}
    return content_mask(token_texts(tokenizer), words, {*special, tokenizer.end_token_id})


def content_mask(texts: Sequence[str], stop_words: Collection[str], dropped: Collection[int] = ()) -> np.ndarray:
    """The same of ids whose texts are given.

    Excluded are ids whose text, stripped and in lower case, is in `stop_words` (in lower case) or contains no letter or digit, such
    as bytes that are not a whole character, and the ids in `dropped` (end tokens and other special ones).
    """
    stopped = frozenset(stop_words)
    words = (text.strip().lower() for text in texts)
    mask = np.fromiter((word not in stopped and any(map(str.isalnum, word)) for word in words), bool, len(texts))
    mask[list(dropped)] = False
    return mask


def token_texts(tokenizer: TextTokenizer) -> list[str]:
    """The text of every id by itself; bytes that are not a whole character become U+FFFD."""
    pieces = tokenizer.token_bytes
    if pieces is None:
        ids = [[index] for index in range(tokenizer.vocab_size)]
        return list(tokenizer.backend.decode_batch(ids, skip_special_tokens=False))
    return [piece.decode("utf-8", "replace") for piece in pieces] + [""] * (tokenizer.vocab_size - len(pieces))
