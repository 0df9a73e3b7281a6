"""Loops over tokens compiled by numba: counting, labelling, lookup, the control models' scores.

numba loads half of itself, and what other packages add to it, at the first call of a loop. Where two threads make that call, one
looks through a table of types while the other adds to it, and fails ("dictionary changed size during iteration"); so it is
loaded here, before there are threads.
"""

from __future__ import annotations

from numba.core.entrypoints import init_all
from numba.core.registry import cpu_target

init_all()
cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
