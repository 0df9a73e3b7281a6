"""`python -m recallkit` and the `recallkit` script."""

from __future__ import annotations

import atexit
import gc
import sys

from recallkit import config


def main() -> None:
    """Runs the command line; Ctrl-C while it is still being loaded ends it like any other."""
    config.start_program()
    gc.set_threshold(100_000)  # libraries make hundreds of thousands of objects while they are imported, and no garbage
    atexit.register(gc.freeze)  # or the interpreter looks through all of them once more at its end, which takes up to 0.4 s
    try:
        from recallkit.cli import run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
