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

USUAL = {
    "count": "--tokenizer --limit-tokens --text-field --end-token --boundary --workers --out --force --json",
    "slice": "--sample --for --tokenizer --limit-tokens --text-field --counts --max-count --seq-len --out --force --json",
    "profile": "--slices --tokenizer --limit-tokens --text-field --counts --out --figures --export --full --force --json",
    "score": "--slices --device --dtype --model-tokenizer --batch-tokens --context --workers --check --force --json",
    "gap": "--slices --device --dtype --out --figures --export --full --force --json",
    "track": "--slices --causal --watch --device --dtype --out --figures --export --full --force --json",
    "intervene": "--slices --slice --samples --device --dtype --workers --out --figures --full --force --json",
    "ablate": "--slices --mixers --heads --by --device --dtype --out --figures --full --force --json",
    "eval-recall": "--tasks --data --limit --prompt --cut --device --dtype --batch-size --out --full --force --json",
    "mqar": "--task --seq-len --pairs --samples --device --dtype --out --figures --full --force --json",
    "train": "--task --preset --tokenizer --tokens --mixers --widths --learning-rates --device --out --force --json",
    "bench": "--paper --size --batch --device --dtype --repeats --out --figures --force --json",
}
"""The options in the help of commands that have many; `--help-all` shows the others, too."""
