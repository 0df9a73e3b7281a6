"""`python -m recallkit` and the `recallkit` script."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys

from recallkit import config, events


def main() -> None:
    """Runs the command line; Ctrl-C while it is still being loaded ends it like any other."""
    config.start_program()
    events.open_streams()
    # libraries make hundreds of thousands of objects while they are imported, and no garbage
    gc.set_threshold(100_000)
    statuses: list[int] = []
    atexit.register(_leave, statuses)  # registered first, hence called last
    try:
        from recallkit.cli import run
    except KeyboardInterrupt:
        sys.exit(130)
    try:
        run()
    except SystemExit as end:
        statuses += [end.code] if isinstance(end.code, int) else []
        raise


def _leave(statuses: list[int]) -> None:
    """Ends the process with its status, if it has one.

    All threads have ended and all files are closed by now. The interpreter would free every object
    of every library one by one, which takes it up to 0.5 s; the system frees their memory at once.
    """
    for status in statuses:
        for stream in (sys.stdout, sys.stderr):
            # its reader has gone: the status says so
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
