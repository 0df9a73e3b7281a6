"""Recorded NLLs beside the labels of their tokens: checked, and written as a score file.

What a file states is compared with the slices; what it does not state is checked by what NLLs of
these tokens must look like (`token_fit`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.display import console
from recallkit.display.progress import progress
from recallkit.errors import UserError
from recallkit.models.recorded import identify, is_changed_text
from recallkit.models.spec import LIVE
from recallkit.ragged import offsets_of
from recallkit.scoring.identity import score_facts, score_path, sequences_of
from recallkit.scoring.recording import BESIDE, Recording, Rows, facts_of
from recallkit.scoring.scores import PARQUET_OPTIONS, check_finite
from recallkit.scoring.token_fit import TokenFit, place_of, unigram_surprisal
from recallkit.storage import hashing, parquet_files, records, schemas
from recallkit.storage.result import Result
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    from recallkit.scoring.plan import ScoringPlan
    from recallkit.text.special_tokens import Prefix

    Piece = tuple[Rows, pa.Table, Mapping[str, np.ndarray]]
    """Rows with their labels, and the scores of their tokens: `nll` float32 and, where they are
    known, `argmax` and `rank`."""


def record(plan: ScoringPlan, timings: Timings) -> dict[str, Any]:
    """Writes the score file of recorded NLLs; returns its manifest.

    Raises UserError where they are not the NLLs, in nats, of the tokens of the slices.
    """
    path, labels = (
        Path(plan.location),
        parquet_files.read_manifest(plan.slices / "tokens.parquet", records.Tokens),
    )
    stated = facts_of(path)
    if stated.get("sequences_digest", labels["sequences_digest"]) != labels["sequences_digest"]:
        problem = f"NLLs of other ids: its sequences_digest is not that of {plan.slices}"
        raise UserError(problem, where=path, remedy="record them for the ids of these slices")
    amounts = [labels[name] for name in ("num_rows", "num_sequences", "seq_len")]
    recording = Recording(path, *amounts)
    fit = _fit(plan.slices, path, stated)

    def checked_pieces() -> Iterator[Piece]:
        for rows, tokens in labelled_rows(plan.slices / "tokens.parquet"):
            columns = recording.read(rows)
            _check_order(columns, tokens, path, rows)
            with np.errstate(over="ignore"):  # what float32 does not hold is infinite, and refused
                nll = columns["nll"].astype(np.float32)
            check_finite(plan.name, nll, rows.first, offsets_of(rows.lengths + 1))
            fit.add(rows, tokens["token"].to_numpy(), nll)
            _check_integers(columns, path)
            if "rank" in columns:
                _check_ranks(columns["rank"], nll, path, rows)
            yield rows, tokens, {**columns, "nll": nll}
        fit.check_unit()
        if identify(plan) != plan.digest:
            problem, again = "it changed while it was read", "score it again as it is now"
            raise UserError(problem, where=path, remedy=again)

    manifest = write_scores(plan.result, plan.facts(), checked_pieces(), timings)
    _say_what_is_taken(plan.name, recording, fit, stated)
    return manifest


def record_array(slices: Path, name: str, nll: np.ndarray, prefix: Prefix) -> Path:
    """Writes NLLs (num_rows,) in nats as the scores of a model of this name; returns the file.

    They are of the tokens in their order, which the caller knows; that they fit others better is
    said, but ends no training. Scores of this name are replaced.
    """
    sequences = sequences_of(slices)
    options = {
        "model_digest": hashing.digest_arrays(nll),
        "sequences_digest": sequences["sequences_digest"],
        "dtype": None,
    }
    result = Result(score_path(slices, name), "scores", options, force=True)
    facts = score_facts(result, name, f"{LIVE}{name}", prefix, sequences["num_rows"])
    fit = _fit(slices, Path(name), {"sequences_digest": "", "unit": "nats"})

    def pieces() -> Iterator[Piece]:
        for rows, tokens in labelled_rows(slices / "tokens.parquet"):
            values = nll[rows.start : rows.stop]
            try:
                fit.add(rows, tokens["token"].to_numpy(), values)
            except UserError as error:
                console.note(f"{error.where}: {error.problem}: {error.remedy}")
            yield rows, tokens, {"nll": values}

    write_scores(result, facts, pieces(), Timings())
    return result.path


def write_scores(
    result: Result,
    facts: dict[str, Any],
    pieces: Iterable[Piece],
    timings: Timings,
) -> dict[str, Any]:
    """Writes a score file; returns its manifest. What `pieces` raises leaves the result as it
    was."""
    schema = schemas.arrow_schema("scores")
    manifest: dict[str, Any] = {}
    with result.writing(manifest, timings) as new, timings.stage("recording") as stage:
        with progress("reading NLLs", total=facts["num_rows"]) as show:

            def tables() -> Iterator[pa.Table]:
                for rows, tokens, columns in pieces:
                    yield _score_table(tokens, columns, schema)
                    show(rows.stop)

            file = new / result.path.name
            manifest |= parquet_files.write_parquet(
                file, tables(), schema, facts, **PARQUET_OPTIONS
            )
        stage.amounts["tokens"] = manifest["num_rows"]
    return manifest


def labelled_rows(tokens: Path) -> Iterator[tuple[Rows, pa.Table]]:
    """The row groups of `tokens.parquet`, each of whole sequences: `sequence`, `position` and
    `token`."""
    import pyarrow.parquet as pq

    start, file = 0, pq.ParquetFile(tokens, pre_buffer=False)
    for group in range(file.metadata.num_row_groups):
        table = file.read_row_group(group, columns=["sequence", "position", "token"])
        sequence = table["sequence"].to_numpy()
        first = int(sequence[0])
        rows = Rows(start, first, np.bincount(sequence - first))
        yield rows, table
        start = rows.stop


def _fit(slices: Path, path: Path, stated: Mapping[str, Any]) -> TokenFit:
    """The check of NLLs of a slice directory, of which these facts are stated."""
    # Changed text has few beginnings, each many times, which tell little of the unit: it is that of
    # the text's own NLLs, which are read first.
    is_unit_known = "unit" in stated or is_changed_text(slices)
    labels = parquet_files.read_manifest(slices / "tokens.parquet", records.Tokens)
    surprisal = unigram_surprisal(_token_counts(slices, labels["tokenizer"]["vocab_size"]))
    return TokenFit(path, surprisal, "sequences_digest" in stated, is_unit_known)


def _token_counts(slices: Path, vocab_size: int) -> np.ndarray:
    """How often each token is predicted, (vocab,)."""
    counts = np.zeros(vocab_size)
    for _, tokens in labelled_rows(slices / "tokens.parquet"):
        counts += np.bincount(tokens["token"].to_numpy(), minlength=vocab_size)
    return counts


def _score_table(
    tokens: pa.Table,
    columns: Mapping[str, np.ndarray],
    schema: pa.Schema,
) -> pa.Table:
    """Rows of a score file; without an argmax or a rank these are -1, and the context is that of
    whole sequences."""
    import pyarrow as pa

    unknown = np.full(tokens.num_rows, -1, np.int32)
    arrays = {
        "sequence": tokens["sequence"],
        "position": tokens["position"],
        "nll": columns["nll"],
        "argmax": np.asarray(columns.get("argmax", unknown), np.int32),
        "rank": np.asarray(columns.get("rank", unknown), np.int32),
        "context": tokens["position"],
        "exact": np.ones(tokens.num_rows, bool),
    }
    return pa.table(arrays, schema=schema)


def _check_order(
    columns: Mapping[str, np.ndarray],
    tokens: pa.Table,
    path: Path,
    rows: Rows,
) -> None:
    """Raises UserError where a table's rows are not those of `tokens.parquet`, in its order."""
    for name in ("sequence", "position"):
        if name not in columns:
            continue
        expected = tokens[name].to_numpy()
        other = np.flatnonzero(columns[name] != expected)
        if len(other):
            row = int(other[0])
            number = f"{rows.start + row:,}"
            problem = f"row {number} has {name} {columns[name][row]}, not {expected[row]}"
            remedy = "write the rows in the order of tokens.parquet: by sequence, then position"
            raise UserError(problem, where=path, remedy=remedy)


def _check_integers(columns: Mapping[str, np.ndarray], path: Path) -> None:
    """Raises UserError for an argmax or a rank that int32 does not hold; -1 is unknown."""
    for name in columns.keys() & set(BESIDE):
        values = columns[name]
        if values.dtype.kind not in "iu" or values.min() < -1 or values.max() >= 2**31:
            problem = f"{name} is not a whole number from -1 (unknown) on for every token"
            raise UserError(problem, where=path, remedy=f"write int32, or leave out {name}")


def _check_ranks(rank: np.ndarray, nll: np.ndarray, path: Path, rows: Rows) -> None:
    """Raises UserError where a token of rank r has a probability above 1 / (r + 1)."""
    # A little less, because NLLs are rounded.
    impossible = np.flatnonzero(nll < np.log1p(np.maximum(rank, 0)) * 0.99 - 0.01)
    if len(impossible):
        row = int(impossible[0])
        problem = f"{place_of(rows, row)} has rank {rank[row]} and an NLL of {nll[row]:.3g} nats"
        remedy = "write natural logarithms, and how many entries have a larger logit as the rank"
        raise UserError(f"{problem}, which cannot be", where=path, remedy=remedy)


def _say_what_is_taken(
    name: str,
    recording: Recording,
    fit: TokenFit,
    stated: Mapping[str, Any],
) -> None:
    """Notes on what the file does not state, and on float16."""
    facts = {
        "unit": "its unit",
        "sequences_digest": "a digest of its ids",
        "prefix": "what was read before them",
    }
    unstated = [words for fact, words in facts.items() if fact not in stated]
    if unstated:
        mean = f"a mean of {fit.nats / fit.num_tokens:.2f} nats"
        lacking = " or ".join(unstated)
        judged = f"its numbers fit these tokens, with {mean}"
        console.note(f"{recording.path} does not state {lacking}; {judged}")
    if recording.dtype == np.float16:
        rounding = float(np.spacing(np.float16(fit.largest))) / 2
        console.note(f"{name}: float16 has rounded each NLL, by up to {rounding:.2g} nats")
