"""Files that a command wrote beside its tables: exports and pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.display import console

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def print_files(files: Sequence[Path]) -> None:
    """The folder, then the names of the files in it."""
    for folder in dict.fromkeys(path.parent for path in files):
        console.print_line(f"Written to {folder}:", is_path=True)
        console.print_line(", ".join(path.name for path in files if path.parent == folder))
