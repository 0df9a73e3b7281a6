"""Lists of names with descriptions, one per line."""

from __future__ import annotations

import typer

from recallkit.display import console


def print_list(rows: list[tuple[str, str]], as_json: bool) -> None:
    """Names, and beside them their descriptions."""
    if as_json:
        console.print_json([{"name": name, "description": description} for name, description in rows])
        return
    width = max(len(name) for name, _ in rows)
    for name, description in rows:
        typer.echo(f"{name:<{width}}  {description}")
