"""Finds text, source and id in a record, because every corpus names and nests them differently.

Fields are found record by record, never from the first one of a shard: a stream resumed in the middle must yield the same
documents as one read from its start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit import config

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np

TEXT_FIELDS = ("text", "content", "raw_content")
# Cheapest first: reading `meta` may parse JSON, as in RedPajama's sample, where `red_pajama_subset` is found before.
SOURCE_FIELDS = ("red_pajama_subset", "meta.pile_set_name", "meta.redpajama_set_name", "source", "meta.source")
IDS_FIELD = "input_ids"
"""Where the ids of a record are that has no text, as transformers calls them."""
ID_FIELDS = ("id", "doc_id", "meta.id")
_LABELS = (str, int, float)
_MAX_NAMES_LISTED = 12


class FieldError(Exception):
    """A record lacks a required field; the reader adds file and line. `remedy` names the option that helps."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.remedy = remedy


class FieldFinder:
    """Text, source and id of records; dotted paths given by the user replace the default names."""

    def __init__(self, text_field: str | None = None, source_field: str | None = None) -> None:
        self._text_paths = _paths((text_field,) if text_field else TEXT_FIELDS)
        self._source_paths = _paths((source_field,) if source_field else SOURCE_FIELDS)
        self._id_paths = _paths(ID_FIELDS)
        self._source_is_given = source_field is not None
        self._text_is_given = text_field is not None

    def find(self, fields: Mapping[str, Any]) -> tuple[str | np.ndarray, str, str]:
        """Text, source and id; source and id are "" if the record has none. Where `input_ids` take the place of text, they are an array.

        So they do in a record without a text, and in the text field that the user named. Raises FieldError if the text is missing,
        not a string or longer than `config.MAX_RECORD_BYTES`, or if a source
        field named by the user is missing.
        """
        source = _first_label(fields, self._source_paths)
        if self._source_is_given and not source:
            problem = f"no source in {_listed(self._source_paths)} ({present_names(fields)})"
            raise FieldError(problem, "name the field with --source-field")
        return self._text(fields), source, _first_label(fields, self._id_paths)

    def columns(self, available: Iterable[str]) -> list[str]:
        """The columns of a table that `find` reads. Raises FieldError if none can contain the text."""
        names = list(available)
        texts = {path[0] for path in self._text_paths}
        if texts.isdisjoint(names):
            if self._text_is_given or IDS_FIELD not in names:
                raise _no_text(self._text_paths, dict.fromkeys(names))
            texts = {IDS_FIELD}
        roots = {*texts, *(path[0] for path in (*self._source_paths, *self._id_paths))}
        return [name for name in names if name in roots]

    def _text(self, fields: Mapping[str, Any]) -> str | np.ndarray:
        for path in self._text_paths:
            text = _look_up(fields, path)
            if isinstance(text, str):
                # A character has at most 4 bytes, so nearly all texts need not be encoded to be measured.
                if len(text) > config.MAX_RECORD_BYTES // 4 and len(text.encode()) > config.MAX_RECORD_BYTES:
                    raise FieldError(*too_long())
                return text
            if text is not None:
                ids = _as_ids(text) if self._text_is_given else None
                if ids is None:
                    raise FieldError(f"{'.'.join(path)} is {kind_of(text)}, not text", "name the field with --text-field")
                return ids
        if not self._text_is_given and (given := fields.get(IDS_FIELD)) is not None:
            if (ids := _as_ids(given)) is None:
                raise FieldError(f"{IDS_FIELD} is not a list of whole numbers", "write token ids there, or name a field with --text-field")
            return ids
        raise _no_text(self._text_paths, fields)


def _as_ids(value: Any) -> np.ndarray | None:
    """A list or array of whole numbers as a flat array; None for anything else."""
    import numpy as np

    if not isinstance(value, list | tuple | np.ndarray):
        return None
    if not len(value):
        return np.empty(0, np.int64)
    try:
        ids = np.asarray(value)
    except (ValueError, OverflowError):  # lists of unequal length
        return None
    return ids if ids.ndim == 1 and ids.dtype.kind in "iu" else None


def too_long() -> tuple[str, str]:
    """Problem and remedy of a record that exceeds the length limit."""
    return f"a record of more than {config.MAX_RECORD_BYTES:,} bytes", "split it, or check that records end in newlines"


def _paths(names: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(name.split(".")) for name in names)


def _look_up(fields: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """The value at a dotted path, through objects and strings that contain a JSON object; None if it ends."""
    value = fields.get(path[0])
    for name in path[1:]:
        if isinstance(value, str):
            import orjson

            try:
                value = orjson.loads(value)
            except orjson.JSONDecodeError:
                return None
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _first_label(fields: Mapping[str, Any], paths: Iterable[tuple[str, ...]]) -> str:
    for path in paths:
        value = _look_up(fields, path)
        if isinstance(value, _LABELS) and value != "":
            return str(value)
    return ""


def _no_text(paths: tuple[tuple[str, ...], ...], fields: Mapping[str, Any]) -> FieldError:
    return FieldError(f"no text in {_listed(paths)} ({present_names(fields)})", "name the field with --text-field")


def _listed(paths: tuple[tuple[str, ...], ...]) -> str:
    return " or ".join(".".join(path) for path in paths)


def present_names(fields: Mapping[str, Any]) -> str:
    """The names of a record's fields, for messages."""
    names = [name[:40] for name in fields]
    more = ", ..." if len(names) > _MAX_NAMES_LISTED else ""
    return f"the record has: {', '.join(names[:_MAX_NAMES_LISTED])}{more}" if names else "the record is empty"


def kind_of(value: object) -> str:
    """The type of a value in words, for messages."""
    kinds = {dict: "an object", list: "a list", bool: "true or false", int: "a number", float: "a number"}
    if hasattr(value, "dtype"):
        return "a list"
    return kinds.get(type(value), f"of type {type(value).__name__}")
