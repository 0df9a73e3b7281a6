"""Identities: digests of files, arrays and JSON values, and names of files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from typing import TYPE_CHECKING, Any

from recallkit.config import SCHEMA_VERSION, VERSION, home
from recallkit.errors import UserError
from recallkit.storage.whole_files import replacing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import numpy as np

_SAMPLE_BLOCK = 1 << 16


_NUM_SAMPLES = 16


_REMEMBERED_BYTES = 64 << 20
"""Files larger than this are digested once: a smaller one takes a tenth of a second at most."""


_SETTLING_NS = 2_000_000_000
"""Times of files are coarse: a second write within this interval would not change them."""


def describe(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file, as lists have them; kept in this process until anything about the
    file changes."""
    with path.open("rb") as file:
        state, started = file_state(os.fstat(file.fileno())), time.time_ns()
        known = _known.get(path)
        if known is not None and known[0] == state:
            return known[1]
        description = {"size": state[0], "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
        if started - max(state[1:3]) > _SETTLING_NS and state == file_state(
            os.fstat(file.fileno())
        ):
            _known[path] = state, description
    return description


_known: dict[Path, tuple[tuple[int, ...], dict[str, Any]]] = {}
"""Files that this process read -> their state then, and their description."""


def file_state(state: os.stat_result) -> tuple[int, ...]:
    """What changes when a file does: length, times of change of the content and of the inode (ns),
    inode, device."""
    return state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino, state.st_dev


def digest_bytes(*parts: bytes) -> str:
    """A short digest (BLAKE2b, 128 bit, hex) of byte strings, their boundaries included."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()


def digest_json(value: Any) -> str:
    """The digest of a JSON value, independent of key order."""
    return digest_bytes(
        json.dumps(value, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")
    )


def digest_inputs(facts: Any, files: Sequence[Path]) -> str:
    """The digest of what a result is made of: this version of the program, JSON values, and the
    bytes of files."""
    return digest_json(
        [VERSION, SCHEMA_VERSION, facts, [describe(path)["sha256"] for path in files]]
    )


def digest_arrays(*arrays: np.ndarray) -> str:
    """The digest of arrays' contents, dtypes and lengths, read 64 MB at a time (memory-mapped
    arrays stay mapped)."""
    import numpy as np

    state = hashlib.blake2b(digest_size=16)
    for array in arrays:
        state.update(f"{array.dtype.str}{array.size};".encode())
        step = max(1, (1 << 26) // array.itemsize)
        for start in range(0, array.size, step):
            state.update(np.ascontiguousarray(array[start : start + step]).view(np.uint8).data)
    return state.hexdigest()


def digest_file(path: Path) -> str:
    """The digest of a whole file, for files in which every byte matters (weights, tokenizers)."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def digest_weights(path: Path) -> str:
    """`digest_file`, kept in the cache folder for files of more than 64 MB until anything about
    them changes.

    Weights of many gigabytes take seconds to read. A file is identified by its real path, length,
    inode and the times of the last change of content and inode; no program can set back the latter.
    A cache that cannot be read or written costs only time.
    """
    if path.stat().st_size <= _REMEMBERED_BYTES:
        return digest_file(path)
    before, started = file_state(path.stat()), time.time_ns()
    memory = home() / "digests" / digest_json([os.path.realpath(path), *before])
    with contextlib.suppress(OSError, ValueError):
        if re.fullmatch(r"[0-9a-f]{32}", known := memory.read_text(encoding="ascii")):
            return known
    digest = digest_file(path)
    if started - max(before[1:3]) > _SETTLING_NS and file_state(path.stat()) == before:
        with contextlib.suppress(OSError, UserError), replacing(memory) as temporary:
            temporary.write_text(digest, encoding="ascii")
    return digest


def digest_sample(path: Path) -> str:
    """A digest of a file's length and up to 16 evenly spaced blocks of 64 KiB: quick on shards of
    many gigabytes.

    A file of at most 1 MiB is read whole. Meant to notice a shard that was replaced, not to detect
    malice.
    """
    with path.open("rb") as handle:

        def read(start: int, stop: int) -> bytes:
            handle.seek(start)
            return handle.read(stop - start)

        return digest_samples(path.stat().st_size, read)


def digest_samples(size: int, read: Callable[[int, int], bytes]) -> str:
    """`digest_sample` of `size` bytes in any place: `read(start, stop)` gives some of them, fewer
    at the end."""
    state = hashlib.blake2b(str(size).encode(), digest_size=16)
    last = max(0, size - _SAMPLE_BLOCK)
    for sample in range(_NUM_SAMPLES):
        start = (
            sample * _SAMPLE_BLOCK
            if size <= _NUM_SAMPLES * _SAMPLE_BLOCK
            else last * sample // (_NUM_SAMPLES - 1)
        )
        state.update(read(start, min(size, start + _SAMPLE_BLOCK)) if start < size else b"")
    return state.hexdigest()


_LONGEST_SLUG = 60


def file_slug(name: str) -> str:
    """A file name for any model's name: readable, unique, and never a path outside its folder.

    Of a long name it has the end.
    """
    safe = re.sub("[^A-Za-z0-9_-]", "-", name).strip("-")[-_LONGEST_SLUG:] or "model"
    return safe if safe == name else f"{safe}.{digest_bytes(name.encode())[:8]}"
