"""The stages put together: what each command does, as a function.

    corpus -> tokens -> sequences -> bigram counts -> slices -> scores -> gap

Stages know nothing of each other; here their streams and tables meet. Every function finds finished work again, goes on
with unfinished work, and refuses to replace work that was made with other options unless `force` is given.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit import __version__, artifacts, config, console
from recallkit.counting import CountingOptions, count_text
from recallkit.counts import CountsTable, open_counts, read_meta
from recallkit.errors import UserError
from recallkit.journal import Journal, PartsJournal, is_finished
from recallkit.scoring import ScoringOptions, count_inexact, score, score_path
from recallkit.texts import OpenText, TextOptions
from recallkit.timings import Timings, read_timings, write_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recallkit.joining import Boundary
    from recallkit.stages.gap import GapTables
    from recallkit.stages.tokens import TextTokenizer


# ---------------------------------------------------------------------------------------------------------------- count


def count(
    text: TextOptions,
    out: Path,
    *,
    only: Path | None = None,
    force: bool = False,
    options: CountingOptions = CountingOptions(),
) -> dict[str, Any]:
    """Counts training bigrams into `out` (DuckDB), with `options.order` longer n-grams too; returns the table's meta.

    `only` names a slice directory: bigrams that its sequences do not hold are left out, to save memory and disk.
    Raises UserError for everything a user can mend.
    """
    from recallkit.stages import counts, slices

    options.check(only)
    opened = OpenText(text)
    identity = {**opened.identity(), "only": _sequences_digest(only) if only else None}
    if options.order > 2:
        identity["order"] = options.order
    _check_output(out, opened)
    if is_finished(read_meta(out).get("options") if out.exists() and not force else None, identity, out, force=force):
        console.note(f"{out} is complete, nothing to do (--force counts again)")
        return read_meta(out)
    needed = slices.needed_bigrams(only / "sequences.parquet") if only else None
    with PartsJournal(out, identity, force=force) as journal:
        timings = Timings()
        counted = count_text(opened, journal, options, timings, only=needed)
        if not counted.num_tokens:
            raise UserError("no text to count", where=", ".join(text.sources))
        meta = counts.write_counts(out, counted, {**_stamp(), "options": identity, **identity, "names": opened.names()}, timings)
        journal.finish()
    return meta


def _check_output(out: Path, opened: OpenText) -> None:
    """Raises UserError where writing `out` would replace the text itself, or a file that is no counts table."""
    if any(Path(name).exists() and Path(name).resolve() == out.resolve() for name in opened.names()):
        raise UserError("the output is one of the inputs", where=out, remedy="give another name with -o")
    artifacts.check_replaceable(out, b"DUCK", at=8)


def export_counts(counts: Path, parquet: Path, *, force: bool) -> None:
    """Writes the bigrams of a counts table to Parquet; a file that is there and holds others is replaced with `force` alone."""
    from recallkit.stages import counts as tables

    artifacts.check_replaceable(parquet, artifacts.PARQUET_MAGIC)
    table = open_counts(counts)
    if parquet.exists() and not force:
        if artifacts.read_manifest(parquet).get("counts_id") == table.meta["id"]:
            return
        raise UserError("holds other counts", where=parquet, remedy="give another --export, or replace it with --force")
    tables.export_counts(table, parquet)


def import_counts(
    file: Path, out: Path, *, tokenizer: str | None, num_tokens: int | None, boundary: Boundary, force: bool, end_token: str | None = None
) -> dict[str, Any]:
    """Makes a counts database of what was counted elsewhere, or indexed there; returns its meta.

    `file` is a table (Parquet or CSV: first, second, count) or an index of tokengrams or infini-gram, whose ids are counted as
    a text's would be: `tokenizer` says what they are, `end_token` what ends documents. Raises UserError for everything a user can mend.
    """
    from recallkit import index_import
    from recallkit.stages import counts as tables
    from recallkit.stages import indexes
    from recallkit.stages.tokens import load_tokenizer

    if indexes.is_index(file):
        if num_tokens is not None:
            raise UserError("an index holds its number of tokens", where="--training-tokens", remedy="leave it out")
        return index_import.import_index(file, out, tokenizer=tokenizer, end_token=end_token, boundary=boundary, force=force)
    described = load_tokenizer(tokenizer, end_token=end_token).describe() if tokenizer else None
    options = {
        "imported": artifacts.digest_file(file) if file.is_file() else None,
        "tokenizer": described,
        "boundary": boundary,
        "given_num_tokens": num_tokens,
    }
    artifacts.check_replaceable(out, b"DUCK", at=8)
    if is_finished(read_meta(out).get("options") if out.exists() and not force else None, options, out, force=force):
        return read_meta(out)
    counted = tables.read_foreign_counts(file)
    if num_tokens is not None:
        counted = replace(counted, num_tokens=num_tokens)
    return tables.write_counts(out, counted, {**_stamp(), "options": options, "tokenizer": described, "boundary": boundary, "only": None})


def _stamp() -> dict[str, Any]:
    return {"recallkit_version": __version__}


def _note_resumed(journal: Journal, num_tokens: int) -> None:
    if journal.resumed:
        message = f"{journal.target}: going on after {num_tokens:,} tokens of an interrupted run"
        console.note(message, event="resumed", done=num_tokens, unit="tokens", seconds_before=journal.seconds_before)


# ---------------------------------------------------------------------------------------------------------------- slice


@dataclass(frozen=True, slots=True)
class RareCount:
    """What counts as rare in training: at most `max_count` times, or at most `max_rate` times a billion tokens."""

    max_count: int = config.MAX_COUNT
    max_rate: float | None = None

    def resolve(self, counts: CountsTable | None) -> int:
        """The largest count that is still rare. Raises UserError for a rate without counts."""
        if self.max_rate is None:
            return self.max_count
        if counts is None:
            raise UserError("a rate needs the number of training tokens", where="--max-rate", remedy="give --counts")
        return int(self.max_rate * counts.num_tokens / 1e9)


def slice_text(
    text: TextOptions, out: Path, *, counts: Path | None, rare: RareCount = RareCount(), seq_len: int = config.SEQ_LEN, force: bool = False
) -> dict[str, Any]:
    """Labels every predicted token of a text into the directory `out`; returns the manifest of `tokens.parquet`.

    Tokenising is the slow part and resumable: sequences that are there already are labelled anew without it. Without
    `counts` only repetition is labelled. Raises UserError for everything a user can mend.
    """
    from recallkit.stages import tokens

    if seq_len < 1:
        raise UserError("a sequence needs at least one prediction", where=f"--seq-len {seq_len}")
    table = open_counts(counts) if counts else None
    opened = OpenText(text)
    tokens.check_tokenizer_file(out, opened.tokenizer)
    if table is not None:
        table.check_tokenizer(opened.tokenizer.digest, opened.tokenizer.name)
        if table.meta.get("boundary") != text.boundary:
            console.note(f"{counts} was counted with --boundary {table.meta.get('boundary')}, this text is sliced with {text.boundary}")
    for name in ("sequences.parquet", "tokens.parquet"):
        artifacts.check_replaceable(out / name, artifacts.PARQUET_MAGIC)
    timings = Timings()
    sequences = _make_sequences(opened, out / "sequences.parquet", seq_len, timings, force=force)
    tokens.keep_tokenizer(out, opened.tokenizer)
    if table is not None and table.meta.get("only") not in (None, sequences["sequences_digest"]):
        raise UserError(
            "counted with --only for other sequences: bigrams that are missing would look unseen",
            where=counts,
            remedy=f"count with --only {out}, or without --only",
        )
    return _make_labels(out, opened.tokenizer, sequences, table, rare, timings, force=force)


def _make_sequences(opened: OpenText, path: Path, seq_len: int, timings: Timings, *, force: bool) -> dict[str, Any]:
    from recallkit.stages import sequences

    options = {**opened.identity(), "seq_len": seq_len}
    found = artifacts.manifest_options(path, force=force)
    if is_finished(found, options, path, force=force and found != options):
        manifest = artifacts.read_manifest(path)
        timings.keep("tokenising", _seconds_of_tokenising(path.parent, manifest))
        return manifest
    with Journal(path, options, force=force) as journal, timings.stage("tokenising", before=journal.seconds_before) as stage:
        state = sequences.PackingState.from_json(journal.state) if journal.resumed else sequences.PackingState()
        _note_resumed(journal, state.num_predictions)
        with opened.reading(journal), console.progress("tokenising", total=opened.options.limit_tokens) as show:
            blocks = sequences.pack_sequences(
                opened.encoded(state.position),
                end_token_id=opened.tokenizer.end_token_id,
                seq_len=seq_len,
                boundary=opened.options.boundary,
                limit_predictions=opened.options.limit_tokens,
                state=state,
            )
            for block in blocks:
                table = sequences.sequences_table(block, opened.tokenizer)
                artifacts.write_parquet(
                    journal.part(journal.num_parts), [table], sequences.sequences_schema(), {}, use_dictionary=False, compression="lz4"
                )
                journal.commit(block.state.to_json())
                show(block.state.num_predictions)
        if not journal.num_parts:
            raise UserError("the text is too short for a single prediction", where=", ".join(opened.options.sources))
        facts = {**_stamp(), "kind": "sequences", "options": options, **options, "names": opened.names()}
        manifest = sequences.write_sequences(path, journal, facts)
        stage.amounts["tokens"] = manifest["num_rows"]
        journal.finish()
    return manifest


def _seconds_of_tokenising(out: Path, sequences: dict[str, Any]) -> dict[str, Any] | None:
    """What the manifest beside finished sequences says of how they were made; None where it is of others."""
    known = read_timings(out / "manifest.json", sequences_digest=sequences["sequences_digest"])
    return None if known is None else known["stages"].get("tokenising")


def _make_labels(
    out: Path,
    tokenizer: TextTokenizer,
    sequences: dict[str, Any],
    table: CountsTable | None,
    rare: RareCount,
    timings: Timings,
    *,
    force: bool,
) -> dict[str, Any]:
    from recallkit.stages import slices

    path = out / "tokens.parquet"
    max_count = rare.resolve(table)
    counts = table.describe() if table is not None else None
    options = {"sequences_digest": sequences["sequences_digest"], "counts_id": counts and counts["id"], "max_count": max_count}
    if is_finished(artifacts.manifest_options(path, force=force), options, path, force=force):
        console.note(f"{out} is complete, nothing to do (--force labels again)")
        return artifacts.read_manifest(path)
    kept = ("sequences_digest", "num_rows", "num_sequences", "seq_len", "boundary", "tokenizer", "sources", "names", "limit_tokens")
    facts = {
        **_stamp(),
        "kind": "tokens",
        "options": options,
        "counts": counts,
        "max_count": max_count,
        **{k: sequences[k] for k in kept},
    }
    num_bytes = slices.BytesBySource(tokenizer.document_text) if tokenizer.document_text is not None else None

    def manifest_at_end() -> dict[str, Any]:
        return {**facts, "num_bytes": None if num_bytes is None else num_bytes.rows()}

    with timings.stage("labelling") as stage, console.progress("labelling", total=sequences["num_rows"]) as show:
        tables = slices.label_sequences(out / "sequences.parquet", table, max_count, num_bytes=num_bytes, progress=show)
        manifest = artifacts.write_parquet(path, tables, slices.tokens_schema(), manifest_at_end, **slices.PARQUET_OPTIONS)
        stage.amounts["tokens"] = sequences["num_rows"]
    write_manifest(out / "manifest.json", manifest, timings)
    return manifest


def _sequences_digest(slices: Path) -> str:
    return str(artifacts.read_manifest(slices / "sequences.parquet")["sequences_digest"])


# ------------------------------------------------------------------------------------------------------------------ gap


def gap_path(slices: Path, reference: str, models: Sequence[str]) -> Path:
    """Where the gap between these models lies unless the user says otherwise: each question has a folder of its own."""
    return slices / "gap" / artifacts.file_slug(" vs ".join([reference, *models]))


def gap(
    reference: str, models: Sequence[str], slices: Path, out: Path | None = None, options: ScoringOptions = ScoringOptions()
) -> GapTables:
    """Attributes the gap between `reference` (the attention model) and each model; scores what is not scored yet.

    Writes `gap.parquet` and the `by_*` tables to `out` (default `gap_path`). Raises UserError for everything a user can mend.
    """
    from recallkit.attribution.aligned import open_tokens
    from recallkit.stages.gap import attribute_gap

    names = [reference, *models]
    if len(set(names)) < len(names):
        raise UserError("a model is named twice", where=" ".join(names), remedy="compare different models")
    out = out or gap_path(slices, reference, models)
    question = {"reference": reference, "models": list(models)}
    artifacts.check_replaceable(out / "gap.parquet", artifacts.PARQUET_MAGIC)
    is_finished(artifacts.manifest_options(out / "gap.parquet", force=options.force), question, out, force=options.force)
    open_tokens(slices / "tokens.parquet")  # labels without AR hits are told before hours of scoring
    # --force is about the tables here: scores may have taken days, and are made again by `score --force` alone.
    manifests = {name: score(name, slices, replace(options, force=False)) for name in names}
    _note_other_readings(manifests)
    timings = Timings()
    with timings.stage("attributing") as stage:
        tables = attribute_gap(slices / "tokens.parquet", score_path(slices, reference), [score_path(slices, name) for name in models])
        stage.amounts["tokens"] = manifests[reference]["num_rows"] * len(names)
    tokens = artifacts.read_manifest(slices / "tokens.parquet")
    kept = ("sequences_digest", "num_rows", "num_sequences", "seq_len", "boundary", "max_count", "counts", "tokenizer")
    facts = {
        **_stamp(),
        "schema_version": config.SCHEMA_VERSION,
        "kind": "gap",
        "options": question,
        **question,
        "slices": {key: tokens[key] for key in kept},
        "scores": {name: manifests[name]["options"] for name in names},
        "inexact": {name: share for name in names if (share := count_inexact(name, slices)) is not None},
    }
    artifacts.write_frames(tables, out, facts)
    write_manifest(out / "manifest.json", facts, timings)
    return tables


def _note_other_readings(manifests: Mapping[str, Mapping[str, Any]]) -> None:
    """Tells where models were scored in other precisions or contexts: a part of their gap is that."""
    for name in ("dtype", "context", "stride", "carry_state"):
        values = {model: m["options"].get(name) for model, m in manifests.items() if not (name == "dtype" and m["options"][name] is None)}
        if len(set(values.values())) > 1 and any(not model.startswith("control:") for model in values):
            console.note(f"scored with different {name}: " + ", ".join(f"{model} {value or 'default'}" for model, value in values.items()))
