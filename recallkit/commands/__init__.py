"""The commands, which are also functions of the Python API; a module has those of one theme, and related functions of Python only."""

COMMANDS = {
    "demo": "recallkit.commands.gap",
    "count": "recallkit.commands.text",
    "slice": "recallkit.commands.text",
    "profile": "recallkit.commands.text",
    "score": "recallkit.commands.score",
    "gap": "recallkit.commands.gap",
    "published": "recallkit.commands.gap",
    "track": "recallkit.commands.gap",
    "intervene": "recallkit.commands.causal",
    "ablate": "recallkit.commands.causal",
    "eval-recall": "recallkit.commands.recall",
    "build-rows": "recallkit.commands.recall",
    "mqar": "recallkit.commands.recall",
    "train": "recallkit.commands.train",
    "report": "recallkit.commands.results",
    "tokens": "recallkit.commands.results",
    "verify": "recallkit.commands.results",
    "models": "recallkit.commands.about",
    "sources": "recallkit.commands.about",
    "tasks": "recallkit.commands.about",
    "bench": "recallkit.commands.about",
    "doctor": "recallkit.commands.about",
}
"""The module of each command, in the order of the help."""

PANELS = {
    **dict.fromkeys(("demo", "count", "slice", "profile", "score", "gap", "published", "track"), "The gap"),
    **dict.fromkeys(("intervene", "ablate"), "Causal measures"),
    **dict.fromkeys(("eval-recall", "build-rows", "mqar", "train"), "Recall tasks"),
    **dict.fromkeys(("report", "tokens", "verify"), "Results"),
    **dict.fromkeys(("models", "sources", "tasks"), "What there is"),
    **dict.fromkeys(("bench", "doctor"), "This machine"),
}
"""The group of each command in the help."""
