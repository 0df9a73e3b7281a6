"""Where the scores of a slice directory are: a file for each model, by its name or place, and what
is known of it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from recallkit.errors import UserError
from recallkit.models.spec import one_model
from recallkit.storage import hashing, parquet_files, records
from recallkit.storage.timings import read_timings

if TYPE_CHECKING:
    from pathlib import Path

    from recallkit.models.spec import ModelSpec
    from recallkit.scoring.windows import LastIds
    from recallkit.storage.result import Result
    from recallkit.text.special_tokens import Prefix


def sequences_of(slices: Path) -> dict[str, Any]:
    """The manifest of the sequences, with the `counts` of their labels. Raises UserError if the
    labels beside them are of other sequences."""
    tokens = parquet_files.read_manifest(slices / "tokens.parquet", records.Tokens)
    sequences = parquet_files.read_manifest(slices / "sequences.parquet", records.Sequences)
    if tokens["sequences_digest"] != sequences["sequences_digest"]:
        problem = "labels and sequences do not belong together"
        raise UserError(problem, where=slices, remedy="run `recallkit slice` again with --force")
    return {**sequences, "counts": tokens["counts"]}


def score_facts(
    result: Result,
    name: str,
    source: str,
    prefix: Prefix,
    num_rows: int,
) -> dict[str, Any]:
    """What the manifest of every score file says: of which model they are, and what it read."""
    return {
        **result.stamp(),
        "model": name,
        "source": source,
        "typed": None,
        **result.options,
        "prefix": prefix.describe(),
        "num_rows": num_rows,
        "tokenizer": None,
        "read_exactly": None,
    }


def score_path(
    slices: Path,
    model: str | ModelSpec,
    last: LastIds | None = None,
    *,
    against: ModelSpec | None = None,
) -> Path:
    """The file of a model's scores of a slice directory; of a string, of the model with this name,
    or without a name in this place.

    Scores from its `last` ids alone are in a folder of their own beside those with all of the
    context, and so is the divergence of its predictions from those of the model `against` it.
    """
    folder = slices / "scores"
    if last is not None:
        folder /= str(last)
    if against is not None:
        folder /= f"against-{hashing.file_slug(against.key)}"
    key = model if isinstance(model, str) else model.key
    return folder / f"{hashing.file_slug(key)}.parquet"


def find_scores(slices: Path, model: Any) -> Path:
    """The file of a model's scores, of a model given as to `score`, or by the name that results
    show where that is of one model alone.

    Whether or not there is such a file.
    """
    if isinstance(model, str) and (path := score_path(slices, model)).is_file():
        return path
    path = score_path(slices, one_model(model))
    if path.is_file() or not isinstance(model, str):
        return path
    shown = [file for file, name in scored_models(slices).items() if name == model]
    return shown[0] if len(shown) == 1 else path


def scored_models(slices: Path) -> dict[Path, str]:
    """The readable score files of a slice directory, and the names of their models."""
    names = {}
    for file in sorted((slices / "scores").glob("*.parquet")):
        with contextlib.suppress(UserError):
            manifest = parquet_files.read_manifest(file)
            if manifest.get("kind") == "scores":
                names[file] = str(manifest["model"])
    return names


def score_timings(slices: Path, model: str | ModelSpec) -> dict[str, Any] | None:
    """How long a model's scores took, if known: in the JSON file beside them, with their
    manifest."""
    return read_timings(score_path(slices, model).with_suffix(".json"))


def count_inexact(model: str | ModelSpec, slices: Path) -> dict[str, float] | None:
    """The share of tokens (`all`, `ar_hit`, `other`) that do not begin and end where tokens of the
    model do.

    None for a model that reads the slices' own tokens.
    """
    from recallkit.storage import db

    file = score_path(slices, model)
    if parquet_files.read_manifest(file).get("tokenizer") is None:
        return None
    views = {"tokens": slices / "tokens.parquet", "scores": file}
    with db.connect(threads=1, views=views) as connection:
        rows = db.frame(connection, "scores/count_inexact").iter_rows(named=True)
        return {row["slice"]: row["share"] for row in rows}
