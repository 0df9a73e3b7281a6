"""The work of `recallkit profile`: text, or a slice directory, to tables of what repeats in it.

    corpus -> tokens -> sequences -> labels -> histograms -> profile

Sequences are not written. Finished results are reused; interrupted runs resume from the histograms of the last commit and
give the same bytes.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit import config
from recallkit.counting.table import CountsTable, open_counts
from recallkit.display import console
from recallkit.display.progress import progress
from recallkit.errors import UserError
from recallkit.slicing.threshold import BY_DEFAULT, RareCount, note_threshold
from recallkit.storage import artifacts
from recallkit.storage.given_files import read_file
from recallkit.storage.result import Result, read_tables, table_files
from recallkit.storage.timings import Timings
from recallkit.text.open_text import OpenText, TextOptions

if TYPE_CHECKING:
    import numpy as np

    from recallkit.profiling.tables import Labeller, ProfileSums, ProfileTables
    from recallkit.storage.journal import Journal
    from recallkit.text.tokenizers import TextTokenizer

SECONDS_PER_COMMIT = 5.0
"""Work that a kill may cost. A commit writes all histograms, some megabytes."""

OUR_STOP_WORDS, NLTK_STOP_WORDS, NO_STOP_WORDS = "ours", "nltk", "none"


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """What is counted, for any text: the words that are dropped (`ours`, `nltk`, `none` or a file), where tails begin."""

    stop_words: str = OUR_STOP_WORDS
    x_min: int | None = None
    force: bool = False


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

    Without `counts` there are no AR hits. Raises UserError for everything a user can correct.
    """
    from recallkit.profiling.tables import Labeller, ProfileSums

    _check_lengths(seq_len, options.x_min)
    words = stop_words(options.stop_words)
    table = open_counts(counts) if counts else None
    opened = OpenText(text)
    if table is not None:
        _check_counts(table, opened.tokenizer, text.boundary)
    threshold = rare.resolve(table)
    key = {
        **opened.identity(),
        "seq_len": seq_len,
        **({"counts_id": table.meta["id"], "max_count": threshold.max_count} if table else {"counts_id": None, "max_count": None}),
        **_wanted(words, options),
    }
    note_threshold(threshold, table)
    result = _result(out, key, force=options.force)
    if result.reused() is not None:
        return read_profile(out)
    sums = ProfileSums(seq_len, options.x_min)
    labeller = Labeller(token_mask(opened.tokenizer, words), table, threshold.max_count)
    with result.journal() as journal:
        timings = Timings()
        with opened.reading(journal), timings.stage("profiling", before=journal.seconds_before) as stage:
            num_sequences = _count_text(opened, labeller, sums, journal)
            stage.amounts["tokens"] = sums.num_tokens
        if not sums.num_tokens:
            raise UserError("the text is too short for a single prediction", where=", ".join(text.sources))
        facts = {
            **{name: key[name] for name in ("boundary", "tokenizer", "sources", "limit_tokens", "seq_len")},
            "names": opened.names(),
            "counts": table.describe() if table else None,
            "max_count": threshold.max_count,
            "threshold": threshold.facts(),
            "num_sequences": num_sequences,
        }
        tables = _write(result, sums, facts, options, timings)
        journal.finish()
    return tables


def profile_slices(slices: Path, out: Path, options: ProfileOptions = _DEFAULTS) -> ProfileTables:
    """The same for the labelled tokens of a slice directory, with its sequences, training counts and threshold."""
    from recallkit.profiling.tables import ProfileSums, labelled_rows
    from recallkit.text.tokenizers import load_slices_tokenizer

    path = slices / "tokens.parquet"
    manifest = artifacts.read_manifest(path)
    if manifest.get("kind") != "tokens":
        raise UserError(f"a table of {manifest.get('kind')}, not of tokens", where=path, remedy="make one with `recallkit slice`")
    _check_lengths(manifest["seq_len"], options.x_min)
    words = stop_words(options.stop_words)
    key = {**{name: manifest["options"][name] for name in ("sequences_digest", "counts_id", "max_count")}, **_wanted(words, options)}
    result = _result(out, key, force=options.force)
    if result.reused() is not None:
        return read_profile(out)
    sums = ProfileSums(manifest["seq_len"], options.x_min)
    mask = token_mask(load_slices_tokenizer(slices, manifest["tokenizer"]), words)
    timings = Timings()
    with timings.stage("profiling") as stage, progress("profiling", total=manifest["num_rows"]) as show:
        for rows in labelled_rows(path, mask, show):
            try:
                sums.add(rows)
            except ValueError as error:
                raise UserError(f"damaged ({error})", where=path, remedy="slice again with --force") from error
        stage.amounts["tokens"] = manifest["num_rows"]
    kept = ("boundary", "tokenizer", "sources", "limit_tokens", "seq_len", "names", "counts", "max_count", "num_sequences")
    return _write(result, sums, {name: manifest[name] for name in kept} | {"threshold": manifest.get("threshold")}, options, timings)


def _check_lengths(seq_len: int, x_min: int | None) -> None:
    from recallkit.profiling.tables import MAX_SEQ_LEN

    if not 1 <= seq_len <= MAX_SEQ_LEN:
        raise UserError(f"sequences of {seq_len:,}", where="--seq-len", remedy=f"profile sequences of 1 to {MAX_SEQ_LEN:,} predictions")
    if x_min is not None and not 1 <= x_min < max(2, seq_len - 1):
        problem, most = f"no tail of distances begins at {x_min}", max(1, seq_len - 2)
        raise UserError(problem, where="--x-min", remedy=f"give 1 to {most}, as sequences have {seq_len}")


def _check_counts(table: CountsTable, tokenizer: TextTokenizer, boundary: str) -> None:
    table.check_tokenizer(tokenizer.digest, tokenizer.name)
    if table.meta.get("only") is not None:
        remedy = "count without --only, or profile those sequences with --slices"
        problem = "counted with --only for certain sequences: bigrams that are missing would look unseen"
        raise UserError(problem, where=table.path, remedy=remedy)
    if table.meta.get("boundary") != boundary:
        console.note(f"{table.path} was counted with --boundary {table.meta.get('boundary')}, this text is profiled with {boundary}")


def _wanted(words: list[str], options: ProfileOptions) -> dict[str, Any]:
    """The options that determine the tables; `clusters`: what intervals take as independent."""
    return {
        "clusters": "documents",
        "stop_words": {"digest": artifacts.digest_json(words), "num_words": len(words)},
        "x_min": options.x_min,
    }


def _result(out: Path, key: dict[str, Any], *, force: bool) -> Result:
    """The tables in `out` as a result."""
    from recallkit.profiling.tables import ProfileTables

    *others, last, _ = table_files(ProfileTables, out)
    return Result(last, "profile", key, force=force, others=others)


def read_profile(folder: Path) -> ProfileTables:
    """The tables that `recallkit profile` wrote to a directory. Raises UserError if they are missing or damaged."""
    from recallkit.profiling.tables import ProfileTables

    return read_tables(ProfileTables, folder)


def _count_text(opened: OpenText, labeller: Labeller, sums: ProfileSums, journal: Journal) -> int:
    """Adds the stream from the journal's position to its end; returns the total number of sequences."""
    from recallkit.text.sequences import PackingState, pack_sequences, source_label

    state = PackingState()
    if journal.resumed:
        state = PackingState.from_json(journal.state["packing"])
        sums.restore(journal.part(journal.num_parts - 1), journal.state["sums"])
        journal.note_resumed(sums.num_tokens, "tokens")
    with progress("profiling", total=opened.options.limit_tokens) as show:
        blocks = pack_sequences(
            opened.encoded(state.position),
            end_token_id=opened.tokenizer.end_token_id,
            seq_len=sums.seq_len,
            boundary=opened.options.boundary,
            limit_predictions=opened.options.limit_tokens,
            state=state,
        )
        due = time.monotonic() + SECONDS_PER_COMMIT
        for block in blocks:
            labels = {document: source_label(source) for document, source in block.sources.items()}
            sums.add(labeller.label(block.ids, block.offsets, block.documents, labels))
            state = block.state
            show(sums.num_tokens, opened.estimated_tokens(sums.num_tokens))
            if time.monotonic() >= due:
                _commit(journal, asdict(state), sums)
                due = time.monotonic() + SECONDS_PER_COMMIT
    return state.sequence


def _commit(journal: Journal, packing: dict[str, Any], sums: ProfileSums) -> None:
    """Writes the histograms as a new part each time and removes the previous one: one of the two is always complete."""
    saved = sums.save(journal.part(journal.num_parts))
    journal.commit({"packing": packing, "sums": saved})
    if journal.num_parts > 1:
        artifacts.remove(journal.part(journal.num_parts - 2))


def _write(result: Result, sums: ProfileSums, facts: dict[str, Any], options: ProfileOptions, timings: Timings) -> ProfileTables:
    from recallkit.profiling.tables import NUM_GROUPS, OTHER_SOURCES, make_tables

    if sums.has_others:
        console.note(f"{len(sums.sources)} sources are kept apart, those that came first; the others are one row, {OTHER_SOURCES}")
    with timings.stage("fitting"):
        tables = make_tables(sums, knows_hits=facts["counts"] is not None, x_min=options.x_min)
    words = {
        **result.options["stop_words"],
        "name": options.stop_words if options.stop_words in (OUR_STOP_WORDS, NLTK_STOP_WORDS, NO_STOP_WORDS) else "file",
    }
    manifest = {
        **result.stamp(),
        **facts,
        "num_tokens": sums.num_tokens,
        "num_groups": NUM_GROUPS,
        "stop_words": words,
        "x_min": options.x_min,
    }
    facts = {name: value for name, value in manifest.items() if name != "schema_version"}  # only in the tables
    artifacts.write_frames(tables, result.path.parent, manifest, more=lambda staged: result.write_json(facts, timings, staged))
    return tables


# ----------------------------------------------------------------------------------------------------------- stop words


def stop_words(name: str) -> list[str]:
    """Words in lower case, sorted: `ours` (data/stop_words.txt), `nltk`'s English ones, `none`, or those of a file.

    A file contains one word per line in UTF-8; lines that begin with `#` are comments. Raises UserError if it does not exist.
    """
    if name == NO_STOP_WORDS:
        return []
    if name == NLTK_STOP_WORDS:
        words = _nltk_words()
    else:
        from importlib.resources import files

        path = Path(str(files("recallkit") / "data" / "stop_words.txt")) if name == OUR_STOP_WORDS else Path(name)
        words = _words_of(path)
    return sorted({word.strip().lower() for word in words} - {""})


def _words_of(path: Path) -> list[str]:
    remedy = "give ours, nltk, none, or a file of a word a line"
    if not path.is_file():
        raise UserError("no such list of stop words", where=path, remedy=remedy)
    try:
        return [line for line in read_file(path).decode("utf-8-sig").splitlines() if not line.startswith("#")]
    except UnicodeDecodeError as error:
        raise UserError("not text in UTF-8", where=path, remedy=remedy) from error


def _nltk_words() -> list[str]:
    try:
        from nltk.corpus import stopwords  # type: ignore[import-untyped]

        return list(stopwords.words("english"))
    except (ImportError, LookupError, OSError) as error:
        remedy = "python -m nltk.downloader stopwords, or leave --stop-words out"
        raise UserError("nltk's list of stop words is not there", where="--stop-words nltk", remedy=remedy) from error


def token_mask(tokenizer: TextTokenizer, words: list[str]) -> np.ndarray:
    """Which ids can be part of a content bigram (profiling.tables.content_mask), by the tokenizer's own text of each."""
    from recallkit.profiling.tables import content_mask

    special = {index for index, token in tokenizer.backend.get_added_tokens_decoder().items() if token.special}
    return content_mask(token_texts(tokenizer), words, {*special, tokenizer.end_token_id})


def token_texts(tokenizer: TextTokenizer) -> list[str]:
    """The text of every id by itself; bytes that are not a whole character become U+FFFD."""
    pieces = tokenizer.token_bytes
    if pieces is None:
        ids = [[index] for index in range(tokenizer.vocab_size)]
        return list(tokenizer.backend.decode_batch(ids, skip_special_tokens=False))
    return [piece.decode("utf-8", "replace") for piece in pieces] + [""] * (tokenizer.vocab_size - len(pieces))
