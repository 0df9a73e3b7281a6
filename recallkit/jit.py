"""`njit` of numba, made ready for threads and read-only machines: what every compiled loop of ours is decorated with.

numba loads half of itself, and what other packages add to it, at the first call of a loop. Where two threads make that call, one
looks through a table of types while the other adds to it, and fails ("dictionary changed size during iteration"); so it is
loaded here, before there are threads.

Where neither the package's folder nor the user's cache may be written, numba refuses to define a loop; there what it compiles is
kept for the run alone.
"""

from __future__ import annotations

import tempfile
from multiprocessing.util import Finalize

from numba import njit, prange
from numba.core import config
from numba.core.caching import FunctionCache
from numba.core.entrypoints import init_all
from numba.core.registry import cpu_target

__all__ = ["njit", "prange"]

init_all()
cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()


def _keep_what_is_compiled() -> tempfile.TemporaryDirectory[str] | None:
    """A folder for this process, where numba finds none that it may write."""
    try:
        FunctionCache(_keep_what_is_compiled)
    except RuntimeError:
        made = tempfile.TemporaryDirectory(prefix="recallkit-compiled-")
        config.CACHE_DIR = made.name
        Finalize(None, made.cleanup, exitpriority=0)  # worker processes end without what `atexit` knows
        return made
    return None


_KEPT = _keep_what_is_compiled()
