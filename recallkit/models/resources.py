"""Threads and memory of this machine, as models take them."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_FEW_TOKENS = 64
"""With fewer rows, the last bit of a matrix product may depend on the number of threads: they get one thread."""


def physical_memory() -> int:
    """In bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@contextlib.contextmanager
def threads_for(num_tokens: int) -> Iterator[None]:
    """One thread for a handful of tokens, so that the bits of a result do not depend on how many threads there are."""
    import torch

    threads = torch.get_num_threads()
    if num_tokens < _FEW_TOKENS and threads > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Raises MemoryError for torch's out-of-memory errors."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise MemoryError from error
    except RuntimeError as error:
        if "can't allocate memory" in str(error) or "not enough memory" in str(error):
            raise MemoryError from error
        raise
