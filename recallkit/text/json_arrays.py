"""Divides an array of JSON into its items as its bytes arrive, in the memory that one of them
takes."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from recallkit import config
from recallkit.text.fields import too_long

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["\[\]{}]', re.DOTALL)
"""A string, or what opens or closes; a quote alone is that of a string without an end."""
_WORD = re.compile(rb'[^\s,"\[\]{}]++')
_TEXT = re.compile(rb"\S")
_LAST = b"\n"
_QUOTE, _OPENING, _CLOSING = b'"', (b"[", b"{"), (b"]", b"}")

_DEEPEST = 1024
"""What orjson reads."""

_BEGIN, _FIRST, _ITEM, _NEXT, _END = "[", "an item or ]", "an item", "a comma or ]", "the end"
"""What is expected next."""
_SIGNS = {(_BEGIN, b"["): _FIRST, (_FIRST, b"]"): _END, (_NEXT, b","): _ITEM, (_NEXT, b"]"): _END}


def items_of(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes of each item of an array, which need not be JSON.

    Raises ValueError for an item of more than `config.MAX_RECORD_BYTES`, and for what is no array.
    """
    arrived, size, needed, expected = list[bytes](), 0, 0, _BEGIN
    for block in itertools.chain(blocks, (_LAST,)):
        arrived.append(block)
        size += len(block)
        if size < needed and block is not _LAST:
            continue
        content, at = b"".join(arrived), 0
        while text := _TEXT.search(content, at):
            start = text.start()
            if (following := _SIGNS.get((expected, text[0]))) is not None:
                at, expected = start + 1, following
                continue
            if expected not in (_FIRST, _ITEM):
                raise ValueError(f"not JSON ({_shown(content, start)} instead of {expected})")
            stop = _end_of(content, start)
            if (stop or len(content)) - start > config.MAX_RECORD_BYTES:
                raise ValueError(too_long()[0])
            if stop is None:
                break
            yield content[start:stop]
            at, expected = stop, _NEXT
        # An item that arrives in many blocks is not searched in each of them.
        arrived, size = [content[at:]], len(content) - at
        needed = min(2 * size, config.MAX_RECORD_BYTES)
    if expected not in (_BEGIN, _END):
        raise ValueError(f"not JSON (it ends without {expected})")


def _end_of(content: bytes, start: int) -> int | None:
    """Where the value ends that begins at a byte; None if that has not arrived.

    Raises ValueError where no value begins.
    """
    if content[start : start + 1] not in (_QUOTE, *_OPENING):
        word = _WORD.match(content, start)
        if word is None:
            raise ValueError(f"not JSON ({_shown(content, start)} instead of a value)")
        return word.end() if word.end() < len(content) else None
    depth = 0
    for token in _TOKEN.finditer(content, start):
        sign = token[0]
        if sign == _QUOTE:
            return None
        depth += (sign in _OPENING) - (sign in _CLOSING)
        if depth == 0:
            return token.end()
        if depth > _DEEPEST:
            raise ValueError(
                f"not JSON that is read (more than {_DEEPEST:,} lists or objects in one another)",
            )
    return None


def _shown(content: bytes, at: int) -> str:
    return repr(content[at : at + 1].decode("ascii", "backslashreplace"))
