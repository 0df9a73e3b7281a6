"""Lists of names with descriptions, one per line."""

from __future__ import annotations

import typer


def print_list(rows: list[tuple[str, str]]) -> None:
    """Names, and beside them their descriptions."""
    width = max(len(name) for name, _ in rows)
    for name, description in rows:
        typer.echo(f"{name:<{width}}  {description}")
