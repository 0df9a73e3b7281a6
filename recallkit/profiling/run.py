"""The work of `recallkit profile`: text is labelled as `slice` labels it, and its labels are counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit import config, slicing
from recallkit.errors import UserError
from recallkit.options import ProfileOptions
from recallkit.profiling.content import NLTK, NONE, OURS, stop_words, token_mask
from recallkit.slicing.threshold import BY_DEFAULT
from recallkit.storage import artifacts
from recallkit.storage.result import Result, read_tables, table_files
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from pathlib import Path

    from recallkit.options import TextOptions
    from recallkit.profiling.tables import ProfileTables
    from recallkit.slicing.threshold import RareCount

_DEFAULTS = ProfileOptions()


def profile(
    text: TextOptions,
    out: Path,
    *,
    counts: Path | None = None,
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
    import pyarrow.dataset as ds

    from recallkit.measure.labelled import open_tokens
    from recallkit.profiling.tables import ProfileTables, make_tables
    from recallkit.text.tokenizers import load_slices_tokenizer

    path = slices / "tokens.parquet"
    manifest = open_tokens(path, needs_counts=False).manifest
    _check_x_min(options.x_min, manifest["seq_len"])
    words = stop_words(options.stop_words)
    question = {
        **{name: manifest["options"][name] for name in ("sequences_digest", "counts_id", "max_count")},
        "stop_words": {"digest": artifacts.digest_json(words), "num_words": len(words)},
        "x_min": options.x_min,
    }
    main, *others = sorted(table_files(ProfileTables, out), key=lambda file: file.stem != "profile")
    result = Result(main, "profile", question, force=options.force, others=others)
    if result.reused() is not None:
        return read_profile(out)
    timings = Timings()
    with timings.stage("profiling") as stage:
        mask = token_mask(load_slices_tokenizer(slices, manifest["tokenizer"]), words)
        knows_hits = manifest["counts"] is not None
        tables = make_tables(ds.dataset(path), mask, manifest["seq_len"], knows_hits=knows_hits, x_min=options.x_min)
        stage.amounts["tokens"] = manifest["num_rows"]
    kept = ("boundary", "tokenizer", "sources", "limit_tokens", "seq_len", "names", "counts", "max_count", "num_sequences", "threshold")
    listed = options.stop_words if options.stop_words in (OURS, NLTK, NONE) else "file"
    facts = {
        **{name: manifest[name] for name in kept},
        "num_tokens": manifest["num_rows"],
        "stop_words": {**question["stop_words"], "name": listed},
        "x_min": options.x_min,
    }
    result.write_tables(tables, facts, timings)
    return tables


def _check_x_min(x_min: int | None, seq_len: int) -> None:
    if x_min is not None and not 1 <= x_min < max(2, seq_len - 1):
        problem, most = f"no tail of distances begins at {x_min}", max(1, seq_len - 2)
        raise UserError(problem, where="--x-min", remedy=f"give 1 to {most}, as sequences have {seq_len}")


def read_profile(folder: Path) -> ProfileTables:
    """The tables that `recallkit profile` wrote to a directory. Raises UserError if they are missing or damaged."""
    from recallkit.profiling.tables import ProfileTables

    return read_tables(ProfileTables, folder)
