"""The commands, which are also functions of the Python API; a module has those of one theme, and related functions of Python only."""

COMMANDS = {
    "gap": "recallkit.commands.gap",
    "demo": "recallkit.commands.gap",
    "count": "recallkit.commands.text",
    "slice": "recallkit.commands.text",
    "profile": "recallkit.commands.text",
    "score": "recallkit.commands.score",
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
    "doctor": "recallkit.commands.about",
}
"""The module of each command, in the order of the help."""

PANELS = {
    **dict.fromkeys(("gap", "demo", "count", "slice", "profile", "score", "published", "track"), "The gap"),
    **dict.fromkeys(("intervene", "ablate"), "Causal measures"),
    **dict.fromkeys(("eval-recall", "build-rows", "mqar", "train"), "Recall tasks"),
    **dict.fromkeys(("report", "tokens", "verify"), "Results"),
    **dict.fromkeys(("models", "sources", "tasks"), "What there is"),
    "doctor": "This machine",
}
"""The group of each command in the help."""

USUAL = {
    "count": "--tokenizer --limit-tokens --text-field --end-token --boundary --workers",
    "slice": "--sample --for --tokenizer --limit-tokens --counts --max-count --seq-len --pack",
    "profile": "--slices --tokenizer --limit-tokens --counts --figures --export --full",
    "score": "--slices --device --dtype --model-tokenizer --context --workers --check",
    "gap": "--text --train --sample --slices --device --dtype --figures --export --full",
    "track": "--slices --slice --causal --device --dtype --figures --export --full",
    "intervene": "--slices --slice --samples --device --dtype --workers --figures --full",
    "ablate": "--slices --mixers --heads --budget --by --device --dtype --figures --full",
    "eval-recall": "--tasks --data --limit --prompt --cut --device --dtype --batch-size --full",
    "mqar": "--task --seq-len --pairs --samples --device --dtype --figures --full",
    "train": "--task --preset --tokenizer --tokens --mixers --learning-rates --device",
}
"""The options in the help of commands that have many, besides ALWAYS; `--help-all` shows all."""

ALWAYS = "--out --force --json"
"""The options that every help shows."""
