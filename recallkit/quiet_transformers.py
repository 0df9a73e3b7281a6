"""transformers without its log messages and progress bars: errors are reported in one line, the
rest is not shown."""

from __future__ import annotations

import contextlib
import io
import logging
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

FAILURES_TO_READ = (
    OSError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    TypeError,
    RuntimeError,
    ImportError,
    EOFError,
    struct.error,
)
"""What transformers and its parsers raise for files that are damaged or of an unknown kind."""


def first_line(error: Exception) -> str:
    """The first line of an error's message, with the next where it ends in a colon; its type where
    there is no message."""
    if isinstance(error, struct.error):
        return "the file is damaged, or ends too early"
    first, *others = str(error).strip().splitlines() or [type(error).__name__]
    return f"{first} {others[0].strip()}" if first.endswith(":") and others else first


@contextlib.contextmanager
def without_logs() -> Iterator[None]:
    """Hides what any library logs below the level of errors: transformers, and torchao, which it
    imports, advise kernels and versions."""
    level = logging.root.manager.disable
    # Inside another such block, setting it again would be slow beside a step of a small model.
    if level >= logging.WARNING:
        yield
        return
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hides progress bars and advice; failures become our own errors."""
    from transformers.utils import logging as log

    bars = log.is_progress_bar_enabled()
    log.disable_progress_bar()
    try:
        # The GGUF reader has a progress bar that cannot be switched off: it writes to sys.stderr,
        # while the log has its own handle.
        with without_logs(), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        if bars:
            log.enable_progress_bar()
