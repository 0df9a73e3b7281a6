"""Imported by the process that the tests' processes are copies of: numba, as far as it is when the
first function was compiled.

That is a second which every command that counts or labels would spend anew. It starts no threads.
"""

from __future__ import annotations

import numba


@numba.njit
def _increase(number: int) -> int:
    return number + 1


_increase(1)
