"""transformers without its chatter: what matters of it becomes one line of ours, the rest is not shown."""

from __future__ import annotations

import contextlib
import io
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
"""What transformers and its parsers raise at files that are damaged, or of a kind that they do not know."""


def first_line(error: Exception) -> str:
    """What a library says first; the name of its error where it says nothing."""
    if isinstance(error, struct.error):
        return "the file is damaged, or ends too early"
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextlib.contextmanager
def without_advice() -> Iterator[None]:
    """Nothing that transformers logs below an error reaches the user: of kernels that are not installed, for example."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    if level == logging.ERROR:  # in another such block: setting it again would take long, beside one step of a small model
        yield
        return
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars and no advice: what matters of it becomes an error of ours."""
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        # The GGUF reader has a bar of its own that heeds no switch: it asks for sys.stderr, the log has its own handle.
        with without_advice(), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        if bars:
            logging.enable_progress_bar()
