"""DuckDB: one way to connect, one way to find a query.

Queries live in `queries/<stage>/<verb_noun>.sql`, one a file, with `$name` parameters; no SQL is put together from data.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb
    import polars as pl


@cache
def query(name: str) -> str:
    """The text of `queries/NAME.sql` (`name` such as "gap/attribute_gap")."""
    return (files("recallkit") / "queries" / f"{name}.sql").read_text(encoding="utf-8")


def connect(path: Path | None = None, *, read_only: bool = False, threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """A connection to a database file, or to memory; no progress bar, no extension fetched from anywhere."""
    import duckdb

    settings: dict[str, str | bool | int | float | list[str]] = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    if threads is not None:
        settings["threads"] = threads
    connection = duckdb.connect(str(path) if path else ":memory:", read_only=read_only, config=settings)
    connection.execute("SET enable_progress_bar = false")
    return connection


def frame(connection: duckdb.DuckDBPyConnection, name: str) -> pl.DataFrame:
    """The result of the query `name`, over views registered on the connection, as a polars frame."""
    result: pl.DataFrame = connection.sql(query(name)).pl()
    return result


def view_file(connection: duckdb.DuckDBPyConnection, name: str, path: Path) -> None:
    """Makes a Parquet or CSV file a view, read as it is asked for; its name is taken literally, whatever it holds."""
    import pyarrow.dataset as ds

    connection.register(name, ds.dataset(path, format="parquet" if path.suffix == ".parquet" else "csv"))
