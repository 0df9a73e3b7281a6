"""`python -m recallkit` and the `recallkit` script."""

from __future__ import annotations


def main() -> None:
    """Runs the command line."""
    from recallkit.cli import run

    run()


if __name__ == "__main__":
    main()
