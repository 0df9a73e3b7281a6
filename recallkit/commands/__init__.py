"""The commands, in the order in which the help lists them."""

from recallkit.commands import demo, text, scores, tokens, report, recall, lists, bench  # noqa: F401, I001  (to import a module is to register its commands)
from recallkit.commands.app import app

__all__ = ["app"]
