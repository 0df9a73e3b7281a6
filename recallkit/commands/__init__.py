"""The commands, which are also functions of the Python API; a module has those of one theme, and
related functions of Python only."""

GROUPS = {
    "The gap": {
        "gap": "gap",
        "demo": "gap",
        "count": "text",
        "slice": "text",
        "profile": "text",
        "score": "score",
        "published": "gap",
        "track": "gap",
    },
    "Causal measures": {"intervene": "causal", "ablate": "causal"},
    "Recall tasks": {
        "eval-recall": "recall",
        "build-rows": "recall",
        "mqar": "recall",
        "train": "train",
    },
    "Results": {"report": "results", "tokens": "results", "verify": "results"},
    "What there is": {"models": "about", "sources": "about", "tasks": "about"},
    "This machine": {"doctor": "about"},
}
"""The module of each command, in the order and under the headings of the help."""

COMMANDS = {
    name: f"{__name__}.{module}" for group in GROUPS.values() for name, module in group.items()
}
"""The full name of each command's module."""

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
