"""The commands, each the function of Python's too; a module a command, and beside it the functions that Python alone has."""

COMMANDS = {
    "demo": "recallkit.commands.demo",
    "count": "recallkit.commands.count",
    "slice": "recallkit.commands.slice",
    "profile": "recallkit.commands.profile",
    "score": "recallkit.commands.score",
    "gap": "recallkit.commands.gap",
    "tokens": "recallkit.commands.tokens",
    "eval-recall": "recallkit.commands.eval_recall",
    "mqar": "recallkit.commands.mqar",
    "report": "recallkit.commands.report",
    "models": "recallkit.commands.lists",
    "sources": "recallkit.commands.lists",
    "tasks": "recallkit.commands.lists",
    "bench": "recallkit.commands.bench",
    "doctor": "recallkit.commands.doctor",
}
"""Where each is declared, in the order in which the help lists them."""
