"""The commands, which are also the functions of the Python API; one module per command, with related functions of Python only."""

COMMANDS = {
    "demo": "recallkit.commands.demo",
    "count": "recallkit.commands.count",
    "slice": "recallkit.commands.slice",
    "profile": "recallkit.commands.profile",
    "score": "recallkit.commands.score",
    "gap": "recallkit.commands.gap",
    "published": "recallkit.commands.published",
    "track": "recallkit.commands.track",
    "intervene": "recallkit.commands.intervene",
    "ablate": "recallkit.commands.ablate",
    "eval-recall": "recallkit.commands.eval_recall",
    "build-rows": "recallkit.commands.build_rows",
    "mqar": "recallkit.commands.mqar",
    "train-mqar": "recallkit.commands.train_mqar",
    "report": "recallkit.commands.report",
    "tokens": "recallkit.commands.tokens",
    "verify": "recallkit.commands.verify",
    "models": "recallkit.commands.lists",
    "sources": "recallkit.commands.lists",
    "tasks": "recallkit.commands.lists",
    "bench": "recallkit.commands.bench",
    "doctor": "recallkit.commands.doctor",
}
"""The module of each command, in the order of the help."""

PANELS = {
    **dict.fromkeys(("demo", "count", "slice", "profile", "score", "gap", "published", "track"), "The gap"),
    **dict.fromkeys(("intervene", "ablate"), "Is it recall?"),
    **dict.fromkeys(("eval-recall", "build-rows", "mqar", "train-mqar"), "Recall tasks"),
    **dict.fromkeys(("report", "tokens", "verify"), "Results"),
    **dict.fromkeys(("models", "sources", "tasks"), "What there is"),
    **dict.fromkeys(("bench", "doctor"), "This machine"),
}
"""The group of each command in the help."""
