"""numba's `njit`, prepared for threads and read-only machines; every compiled loop of the package
uses it.

numba initialises itself, and the extensions of other packages, at the first call of a loop. Where
two threads make that call, one iterates over a table of types while the other adds to it, and fails
("dictionary changed size during iteration"); so it is initialised here, before there are threads.
In a process of the program itself the extensions of other packages are left out: our loops take
NumPy arrays alone, and awkward's, which comes with gigatoken, would take most of the time. So is
linear algebra, for which numba imports SciPy. Where recallkit is used in another's program both are
loaded, because that program's loops may need them.

Loops are compiled at their first call and cached beside their file, or in the user's cache folder
if the package's is read-only (`NUMBA_CACHE_DIR` overrides it). Where neither is writable, numba
refuses to define a loop; compiled code is then cached in a temporary folder for the run.
"""

from __future__ import annotations

import sys
import tempfile
from multiprocessing.util import Finalize

import numpy as np
from numba import njit, prange
from numba.core import config, entrypoints
from numba.core.caching import FunctionCache
from numba.core.registry import cpu_target

from recallkit import config as settings

__all__ = ["njit", "prange", "read_only"]

_BLAS = "scipy.linalg.cython_blas"


def _initialise() -> None:
    without_blas = settings.is_program and _BLAS not in sys.modules
    if settings.is_program:
        entrypoints._already_initialized = True
    if without_blas:
        sys.modules[_BLAS] = None  # type: ignore[assignment]  # importing it fails, and numba goes on without
    try:
        entrypoints.init_all()
        cpu_target.typing_context.refresh()
        cpu_target.target_context.refresh()
    finally:
        if without_blas:
            del sys.modules[_BLAS]


_initialise()


def read_only(array: np.ndarray) -> np.ndarray:
    """A plain, contiguous, read-only view, so that arrays that are mapped, sliced, Arrow's or
    ordinary share one compiled kernel."""
    view = np.ascontiguousarray(array).view(np.ndarray)
    view.flags.writeable = False
    return view


def _keep_what_is_compiled() -> tempfile.TemporaryDirectory[str] | None:
    """A cache folder for this process, if numba finds no writable one."""
    try:
        FunctionCache(_keep_what_is_compiled)
    except RuntimeError:
        folder = tempfile.TemporaryDirectory(prefix="recallkit-compiled-")
        config.CACHE_DIR = folder.name
        # worker processes end without running `atexit` functions
        Finalize(None, folder.cleanup, exitpriority=0)
        return folder
    return None


_KEPT = _keep_what_is_compiled()
