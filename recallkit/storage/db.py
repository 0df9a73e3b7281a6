"""DuckDB: connections and queries.

Queries are in `queries/<stage>/<verb_noun>.sql`, one per file, with `$name` parameters; no SQL is
assembled from data.
"""

from __future__ import annotations

import glob
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from recallkit.errors import UserError
from recallkit.storage.hashing import file_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    import duckdb
    import polars as pl
    import pyarrow as pa


@cache
def query(name: str) -> str:
    """The text of `queries/NAME.sql` (`name` such as "measure/sum_by_slice")."""
    return (files("recallkit") / "queries" / f"{name}.sql").read_text(encoding="utf-8")


def connect(
    path: Path | None = None,
    *,
    read_only: bool = False,
    threads: int | None = None,
    views: Mapping[str, Path | pa.Table] | None = None,
) -> duckdb.DuckDBPyConnection:
    """A connection to a database file, or to memory; no progress bar.

    `views`: what queries of a connection to memory have under these names, Arrow tables, and
    Parquet or CSV files, read on demand. DuckDB itself reads them: Arrow's scanner, where the
    system refuses it a thread, waits for ever.

    Whatever a query or a database requests, the connection reads no other file, no environment
    variable and no network, loads no extension, and cannot change these settings. A file opened
    read-only must contain tables and nothing that computes: raises UserError for views and macros,
    which could replace what a query names.
    """
    import duckdb

    state = file_state(path.stat()) if path is not None and path.exists() else None
    # an absolute path has no prefix such as `md:`
    where = ":memory:" if path is None else str(path.absolute())
    if "?" in where:
        raise UserError(
            "a name with a question mark, which DuckDB does not take",
            where=path,
            remedy="give another name",
        )
    tables = views or {}
    files = {name: str(view.resolve()) for name, view in tables.items() if isinstance(view, Path)}
    assert path is None or not tables, (
        "a database that is not ours to trust is opened with no file within reach"
    )
    settings = (
        _SETTINGS
        | {"enable_external_access": bool(files)}
        | ({} if threads is None else {"threads": threads})
    )
    connection = duckdb.connect(where, read_only=read_only, config=settings)
    try:
        if connection.execute("SELECT current_setting('enable_progress_bar')").fetchall() != [
            (False,)
        ]:
            # fails in a notebook without ipywidgets, where there is no bar
            connection.execute("SET enable_progress_bar = false")
        if files:
            # what is asked for and what that is found to be are both checked
            names = [
                *files.values(),
                *map(glob.escape, files.values()),
            ]
            connection.execute("SET allowed_paths = $names", {"names": names})
            connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        for name, view in tables.items():
            if name in files:
                _open_file(connection, files[name]).create_view(name)
            else:
                connection.register(name, view)
        if path is not None and read_only and (state is None or _checked.get(where) != state):
            _check_holds_tables(connection, path)
            _checked[where] = state
    except BaseException:
        # otherwise the next connection to this file would share its settings, which are locked
        connection.close()
        raise
    return connection


_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "allow_persistent_secrets": False,
    "python_enable_replacements": False,
}


_checked: dict[str, tuple[int, ...] | None] = {}
"""Files that contain nothing that computes -> their state then: to list DuckDB's functions takes
longer than to open a file."""


def _check_holds_tables(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    computed = connection.execute(query("counts/find_computed")).fetchone()
    if computed is not None:
        problem = (
            f"it contains a {computed[0]}, {computed[1]}, which recallkit never writes, and it "
            "is not asked"
        )
        raise UserError(problem, where=path, remedy="make the table with `recallkit count`")


def frame(connection: duckdb.DuckDBPyConnection, name: str) -> pl.DataFrame:
    """The result of the query `name`, over views registered on the connection, as a polars
    frame."""
    result: pl.DataFrame = connection.sql(query(name)).pl()
    return result


def _open_file(connection: duckdb.DuckDBPyConnection, name: str) -> duckdb.DuckDBPyRelation:
    """The rows of a Parquet or CSV file; its name is taken literally, whatever characters it
    has."""
    if name.endswith(".parquet"):
        return connection.read_parquet(glob.escape(name), hive_partitioning=False)
    return connection.read_csv(glob.escape(name), header=True, sep=",", hive_partitioning=False)
