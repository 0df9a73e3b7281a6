"""The work of `profile`: text is labelled as `slice` labels it, and its labels are counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from recallkit import config, slicing
from recallkit.errors import UserError
from recallkit.options import ProfileOptions
from recallkit.profiling.words import NLTK, NONE, OURS, stop_words, token_mask
from recallkit.slicing.threshold import BY_DEFAULT
from recallkit.storage import hashing
from recallkit.storage.result import Question
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from pathlib import Path

    from recallkit.options import TextOptions
    from recallkit.profiling.tables import ProfileTables
    from recallkit.slicing.threshold import RareCount

_DEFAULTS = ProfileOptions()
_OF_SLICES: Final = ("sequences_digest", "counts_id", "max_count")
"""Options of the labels that decide the profile."""
_COPIED: Final = (
    "boundary",
    "tokenizer",
    "sources",
    "limit_tokens",
    "seq_len",
    "names",
    "counts",
    "max_count",
    "num_sequences",
    "threshold",
)
"""Fields of the labels' manifest that the profile's has, too."""


def profile(
    text: TextOptions,
    out: Path,
    *,
    counts: Path | str | None = None,
    rare: RareCount = BY_DEFAULT,
    seq_len: int = config.SEQ_LEN,
    options: ProfileOptions = _DEFAULTS,
) -> ProfileTables:
    """Profiles a text into the directory `out`, in bounded memory.

    Its labels are in `out`/slices, a slice directory as any other. Without `counts` there are no AR
    hits. Raises UserError for everything a user can correct.
    """
    _check_x_min(options.x_min, seq_len)
    stop_words(options.stop_words)  # a list that is missing is reported before the work
    slicing.slice_text(
        text,
        out / "slices",
        counts=counts,
        rare=rare,
        seq_len=seq_len,
        force=options.force,
    )
    return profile_slices(out / "slices", out, options)


def profile_slices(slices: Path, out: Path, options: ProfileOptions = _DEFAULTS) -> ProfileTables:
    """The same of the tokens of a slice directory, with its sequences, counts and threshold."""
    from recallkit.measure.labelled import open_tokens
    from recallkit.profiling.tables import ProfileTables, make_tables
    from recallkit.text.tokenizers import load_slices_tokenizer

    path = slices / "tokens.parquet"
    manifest = open_tokens(path, needs_counts=False).manifest
    seq_len, x_min = manifest["seq_len"], options.x_min
    _check_x_min(x_min, seq_len)
    words = stop_words(options.stop_words)
    listed = {"digest": hashing.digest_json(words), "num_words": len(words)}
    identity: dict[str, Any] = {name: manifest["options"][name] for name in _OF_SLICES}
    identity |= {"stop_words": listed, "x_min": x_min}
    question = Question("profile", ProfileTables, out, identity, options.force)
    if (answer := question.reused()) is not None:
        return answer
    timings = Timings()
    with timings.stage("profiling") as stage:
        mask = token_mask(load_slices_tokenizer(slices, manifest["tokenizer"]), words)
        knows_hits = manifest["counts"] is not None
        tables = make_tables(path, mask, seq_len, knows_hits=knows_hits, x_min=x_min)
        stage.amounts["tokens"] = manifest["num_rows"]
    name = options.stop_words if options.stop_words in (OURS, NLTK, NONE) else "file"
    facts = {
        **{field: manifest[field] for field in _COPIED},
        "num_tokens": manifest["num_rows"],
        "stop_words": {**listed, "name": name},
        "x_min": x_min,
    }
    question.write(tables, facts, timings)
    return tables


def _check_x_min(x_min: int | None, seq_len: int) -> None:
    if x_min is not None and not 1 <= x_min < max(2, seq_len - 1):
        problem = f"no tail of distances begins at {x_min}"
        remedy = f"give 1 to {max(1, seq_len - 2)}, as sequences have {seq_len}"
        raise UserError(problem, where="--x-min", remedy=remedy)
