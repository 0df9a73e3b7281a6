"""Name -> "module:attribute" tables: plain dictionaries, resolved when a name is used, with "did
you mean" in the error."""

from __future__ import annotations

import difflib
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from recallkit import plugins
from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

Entry = TypeVar("Entry")

OLD_NAMES = dict.fromkeys(
    ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "openai-gpt"), "openai-community"
) | {"distilgpt2": "distilbert"}
"""The hub's old names of one word, which people, adapters and articles still use, and who owns them
now."""


def split_revision(hub_id: str) -> tuple[str, str | None]:
    """OWNER/NAME and the revision of OWNER/NAME@REVISION; None for the newest."""
    name, _, revision = hub_id.partition("@")
    return name, revision or None


def may_be_hub_id(name: str) -> bool:
    """Whether a name can be of the hub rather than a mistyped path: OWNER/NAME, and no such folder
    here, or an old name of one word."""
    owner, slash, rest = name.partition("/")
    if not slash:
        return split_revision(name)[0] in OLD_NAMES
    return (
        bool(owner and rest)
        and "/" not in rest
        and owner not in (".", "..", "~")
        and not Path(owner).is_dir()
    )


def look_up(table: Mapping[str, Entry], name: str, kind: str) -> Entry:
    """The entry of `table`; `kind` ("control model", ...) is the word used in the error.

    Raises UserError for an unknown name, with the nearest known one.
    """
    if name not in table:
        near = difflib.get_close_matches(name, table, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(sorted(table))}"
        raise UserError(f"no such {kind}", where=name, remedy=remedy)
    return table[name]


def resolve(table: Mapping[str, str], name: str, kind: str) -> Any:
    """The object that `table` names, or a package's plug-in of this kind, imported now; see
    `look_up`."""
    if name not in table and (plugin := plugins.find(name, kind)):
        return plugin.load()
    module, _, attribute = look_up(table, name, kind).partition(":")
    return getattr(importlib.import_module(module), attribute)
