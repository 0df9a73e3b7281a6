"""The commands, in the order in which the help lists them."""

# To import a module is to register its commands.
from recallkit.commands import demo, text, profile, scores, tokens, recall, mqar, report, lists, bench, doctor  # noqa: F401, I001
from recallkit.commands.app import app

__all__ = ["app"]
