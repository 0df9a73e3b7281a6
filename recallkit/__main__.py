"""`python -m recallkit` and the `recallkit` script."""

from __future__ import annotations

import gc
import sys

from recallkit import config


def main() -> None:
    """Runs the command line; Ctrl-C while it is still being loaded ends it like any other."""
    config.start_program()
    gc.set_threshold(10_000)  # libraries make hundreds of thousands of objects while they are imported, and no garbage
    try:
        from recallkit.cli import run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
