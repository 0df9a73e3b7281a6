"""Finds text, source and id in a record, because every corpus names and nests them differently.

Fields are found record by record, never from the first one of a shard: a stream resumed in the
middle must yield the same documents as one read from its start.
"""

from __future__ import annotations

import re
from array import array
from typing import TYPE_CHECKING, Any

from recallkit import config

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np

TEXT_FIELDS = ("text", "content", "raw_content")
# Cheapest first: reading `meta` may parse JSON, as in RedPajama's sample, where `red_pajama_subset`
# is found before.
SOURCE_FIELDS = (
    "red_pajama_subset",
    "meta.pile_set_name",
    "meta.redpajama_set_name",
    "source",
    "meta.source",
)
IDS_FIELD = "input_ids"
"""Where the ids of a record are that has no text, as transformers calls them."""
ID_FIELDS = ("id", "doc_id", "meta.id")
MASK_FIELD = "attention_mask"
"""Has 1 for each id that is text and 0 for padding."""
_REMEDY = "name the field with --text-field"
_LABELS = (str, int, float)
_NUMBERS = (int, float)
_LONGEST_LABEL = 4096
"""Characters of a source or an id, of which each document in memory has its own."""
_MAX_NAMES_LISTED = 12


class FieldError(Exception):
    """A record lacks a required field; the reader adds file and line.

    `remedy` names the option that helps.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.remedy = remedy


class FieldFinder:
    """Text, source and id of records; names given by the user replace the default ones.

    A name with dots is that of a field, where there is one, as flattening leaves it; else the way
    to a field in objects.
    """

    def __init__(self, text_field: str | None = None, source_field: str | None = None) -> None:
        self._texts = (text_field,) if text_field else TEXT_FIELDS
        self._sources = (source_field,) if source_field else SOURCE_FIELDS

    def find(self, fields: Mapping[str, Any]) -> tuple[str | np.ndarray | None, str, str]:
        """Text, source and id; source and id are "" if the record has none.

        Where `input_ids` take the place of text, they are an array: in a record without a text, and
        in the text field that the user named. It has the ids that an attention mask leaves; it is
        None if that leaves none. Raises FieldError if the text is missing, not a string or longer
        than `config.MAX_RECORD_BYTES`, if ids and mask do not match, or if a source field named by
        the user is missing.
        """
        source = _first_label(fields, self._sources)
        if self._sources != SOURCE_FIELDS and not source:
            problem = f"no source in {' or '.join(self._sources)} ({present_names(fields)})"
            raise FieldError(problem, "name the field with --source-field")
        return self._text(fields), source, _first_label(fields, ID_FIELDS)

    def columns(self, available: Iterable[str]) -> list[str]:
        """The columns of a table that `find` reads. Raises FieldError if none can have the text."""
        names = list(available)
        texts = self._texts
        if not any(_is_in(name, texts) for name in names):
            if self._texts != TEXT_FIELDS or IDS_FIELD not in names:
                raise _no_text(texts, dict.fromkeys(names))
            texts = (IDS_FIELD,)
        masks = [_mask_of(name) for name in texts if texts != TEXT_FIELDS]
        fields = (*texts, *masks, *self._sources, *ID_FIELDS)
        return [name for name in names if _is_in(name, fields)]

    def _text(self, fields: Mapping[str, Any]) -> str | np.ndarray | None:
        null = None
        for name in self._texts:
            text = _look_up(fields, name)
            if isinstance(text, bytes):
                text = _decoded(text, name)
            if isinstance(text, str):
                # A character has at most 4 bytes: few texts need to be encoded to be measured.
                may_be_long = len(text) > config.MAX_RECORD_BYTES // 4
                if may_be_long and len(text.encode()) > config.MAX_RECORD_BYTES:
                    raise FieldError(*too_long())
                return text
            if text is None:
                null = null or name
            elif text is not _ABSENT:
                ids = _as_array(text, "iu") if self._texts != TEXT_FIELDS else None
                if ids is None:
                    raise FieldError(f"{name} is {kind_of(text)}, not text", _REMEDY)
                return _unmasked(_short(ids), fields, name)
        if self._texts == TEXT_FIELDS and (row := fields.get(IDS_FIELD)) is not None:
            if (ids := _as_array(row, "iu")) is None:
                raise FieldError(
                    f"{IDS_FIELD} is not a list of whole numbers",
                    "write token ids there, or name a field with --text-field",
                )
            return _unmasked(_short(ids), fields, IDS_FIELD)
        if null is not None:
            raise FieldError(f"its {null} is null", f"fill it in, or {_REMEDY}")
        raise _no_text(self._texts, fields)


def _decoded(text: bytes, name: str) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        problem = f"invalid UTF-8 at byte {error.start + 1} of {name}"
        raise FieldError(problem, "write it again from valid text") from error


def _as_array(value: Any, kinds: str) -> np.ndarray | None:
    """A flat list or array of numbers of these kinds of NumPy's; None for anything else."""
    import numpy as np

    if isinstance(value, list | tuple):
        try:
            values = np.array(array("q", value), np.int64)
            is_flag = len(value) > 0 and isinstance(value[0], bool)
        except (TypeError, OverflowError):
            # NumPy would give each text of a list the length of the longest.
            if not all(issubclass(kind, _NUMBERS) for kind in set(map(type, value))):
                return None
            values, is_flag = np.asarray(value), False
        return values if values.dtype.kind in kinds and not (is_flag and "b" not in kinds) else None
    if not isinstance(value, np.ndarray):
        return None
    if value.shape == (0,):
        return np.empty(0, np.int64)
    return value if value.ndim == 1 and value.dtype.kind in kinds else None


def _short(ids: np.ndarray) -> np.ndarray:
    """The ids. Raises FieldError for too many of them; those that are mapped take no memory."""
    import numpy as np

    if ids.nbytes > config.MAX_RECORD_BYTES and not isinstance(ids, np.memmap):
        raise FieldError(*too_long())
    return ids


def _mask_of(name: str) -> str:
    """The field with the mask of ids, beside them: `row.attention_mask` of `row.input_ids`."""
    return ".".join([*name.split(".")[:-1], MASK_FIELD])


def _unmasked(ids: np.ndarray, fields: Mapping[str, Any], name: str) -> np.ndarray | None:
    """The ids that their mask has 1 for, None if there are none; all ids where there is no mask."""
    values = _look_up(fields, _mask_of(name))
    if values is None or values is _ABSENT:
        return ids
    mask = _as_array(values, "biuf")
    if mask is None:
        problem = f"{MASK_FIELD} is not a flat list of numbers"
    elif len(mask) != len(ids):
        problem = f"{MASK_FIELD} has {len(mask):,} values for {len(ids):,} ids"
    elif ((mask != 0) & (mask != 1)).any():
        problem = f"{MASK_FIELD} has values other than 0 and 1"
    else:
        return ids[mask.astype(bool)] if mask.any() else None
    raise FieldError(
        problem,
        f"write a 1 for each id of the text, a 0 for others, or no {MASK_FIELD}",
    )


def too_long() -> tuple[str, str]:
    """Problem and remedy of a record that exceeds the length limit."""
    return (
        f"a record of more than {config.MAX_RECORD_BYTES:,} bytes",
        "split it, or check that records end in newlines",
    )


def _is_in(column: str, names: Iterable[str]) -> bool:
    """Whether a column has one of the fields: is it, or is the object in which it is."""
    return any(f"{name}.".startswith(f"{column}.") for name in names)


_ABSENT = object()


def _look_up(fields: Mapping[str, Any], name: str) -> Any:
    """The value of a field, if its name has dots perhaps in objects or in JSON; else `_ABSENT`.

    Example: `a.b.c` is `a.b.c`, or `c` in `a.b`, or `b.c` in `a`, the first of them that there is.
    """
    if name in fields:
        return fields[name]
    stop = name.rfind(".")
    while stop > 0:
        inner = _as_object(fields.get(name[:stop]))
        value = _ABSENT if inner is None else _look_up(inner, name[stop + 1 :])
        if value is not _ABSENT:
            return value
        stop = name.rfind(".", 0, stop)
    return _ABSENT


def _as_object(value: Any) -> dict[str, Any] | None:
    """An object, or the one in a string of JSON; None for anything else."""
    if isinstance(value, str | bytes):
        try:
            value = parse_json(value)
        except ValueError:
            return None
    return value if isinstance(value, dict) else None


def parse_json(content: bytes | str, most: int | None = None) -> Any:
    """The value in JSON; NaN, Infinity and -Infinity, which Python's `json` writes, become null.

    Raises orjson.JSONDecodeError, a ValueError, for anything else, and ValueError for more objects
    and lists than `most`, by default those of a record, and for more values than fit into memory.
    """
    import orjson

    most = most or _MOST_OBJECTS
    _check_values(content, most, _MOST_VALUES)
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        written = content.encode(errors="surrogatepass") if isinstance(content, str) else content
        if b"NaN" not in written and b"Infinity" not in written:
            raise
        _check_values(written, most, _MOST_OBJECTS)
        return orjson.loads(_NO_NUMBER.sub(lambda match: match[1] or b"null", written))


_MOST_OBJECTS = 1 << 20
"""A record may have so many objects and lists, 240 bytes each: 50 MB of JSON can contain 17
million."""
_MOST_VALUES = 1 << 23
"""The same of values, 64 bytes each: more than the ids of a record, which may have 6 million."""


def _check_values(content: bytes | str, objects: int, values: int) -> None:
    """Raises ValueError for more objects and lists, or more values, than these."""
    if len(content) <= _MOST_OBJECTS:
        return
    written = content.encode(errors="surrogatepass") if isinstance(content, str) else content
    for signs, number, kind in ((b"{[", objects, "objects or lists"), (b",", values, "values")):
        are_many = sum(written.count(sign) for sign in signs) > number
        if are_many and _count_outside(written, signs) > number:
            raise ValueError(f"more than {number:,} {kind} in a record")


def _count_outside(content: bytes, signs: bytes) -> int:
    """How many of these signs are outside strings."""
    import numpy as np

    content = content.replace(b"\\\\", b"").replace(b'\\"', b"")
    codes = np.frombuffer(content, np.uint8)
    is_inside = np.bitwise_xor.accumulate(codes == ord('"'))
    return sum(int(((codes == sign) & ~is_inside).sum()) for sign in signs)


_NO_NUMBER = re.compile(rb'("(?:[^"\\]++|\\.)*+")|-?Infinity|NaN', re.DOTALL)
"""A string, which stays as it is, or a number that JSON does not have. It never goes back."""


def _first_label(fields: Mapping[str, Any], names: Iterable[str]) -> str:
    for name in names:
        value = _look_up(fields, name)
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        # NaN is how pandas has none; it alone does not equal itself.
        if isinstance(value, _LABELS) and value != "" and value == value:
            label = str(value)
            if len(label) > _LONGEST_LABEL:
                length = f"{len(label):,} characters, and a name at most {_LONGEST_LABEL:,}"
                remedies = ["shorten it"]
                if names != ID_FIELDS:
                    remedies.append("name another field with --source-field")
                raise FieldError(f"its {name} has {length}", ", or ".join(remedies))
            return label
    return ""


def _no_text(names: Iterable[str], fields: Mapping[str, Any]) -> FieldError:
    return FieldError(f"no text in {' or '.join(names)} ({present_names(fields)})", _REMEDY)


def present_names(fields: Mapping[str, Any]) -> str:
    """The names of a record's fields, for messages."""
    names = [name[:40] for name in fields]
    if not names:
        return "the record is empty"
    more = ["..."] if len(names) > _MAX_NAMES_LISTED else []
    return f"the record has: {', '.join([*names[:_MAX_NAMES_LISTED], *more])}"


def kind_of(value: object) -> str:
    """The type of a value in words, for messages."""
    kinds = {
        dict: "an object",
        list: "a list",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    if hasattr(value, "dtype"):
        return "a list"
    return kinds.get(type(value), f"of type {type(value).__name__}")
