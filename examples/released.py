"""Measures released checkpoints as the papers do, and puts each figure beside the printed one:
needs a connection to the hub.

    python examples/released.py --plan                       # which models, and about how many
    bytes and hours python examples/released.py --device cuda                # all of them, into
    released/ python examples/released.py --models 'hazyresearch/*-360m' --limit 50 --tokens 1M
    --train-tokens 100M

Each group has a reference and models of the same size and training text: the checkpoints of Based's
Table 1 by Based's authors, then Pythia, Mamba and RWKV-4 of the Pile, then Olmo 3 and Olmo Hybrid,
of which no paper here prints figures. They read the Pile for `gap`, and SWDE, FDA and SQuAD as the
authors' harness asks them: task version 0, prompts cut to 2,048 ids. Finished results are reused,
and an interrupted run resumes. What cannot be had or read is named in a line, and the rest goes on.
`OUT/released.csv` is the table.
"""

from __future__ import annotations

import argparse
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

import recallkit
from recallkit.declarations import amount

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = "based:1"


def _of_table(attention: str, based: str, mamba: str) -> dict[str, str | None]:
    """Three models of Based's authors, and their rows in Table 1."""
    rows = {attention: "Transformer++", based: "Based", mamba: "Mamba"}
    return {f"hazyresearch/{model}": row for model, row in rows.items()}


GROUPS: dict[str, tuple[int, dict[str, str | None]]] = {
    "360M, 10B": (360, _of_table("attn-360m", "based-360m", "mamba-360m")),
    "360M, 30B": (360, _of_table("attn-360M-30B", "based-360M-30B", "mamba-360M-30B")),
    "1.3B, 10B": (1_330, _of_table("attn-1b", "based-1b", "mamba-1b")),
    "1.3B, 50B": (1_330, _of_table("attn-1b-50bn", "based-1b-50b", "mamba-1b-50b")),
    "Pile, 400M": (
        410,
        dict.fromkeys(
            ("EleutherAI/pythia-410m", "state-spaces/mamba-370m", "RWKV/rwkv-4-430m-pile")
        ),
    ),
    "Pile, 1.4B": (
        1_500,
        dict.fromkeys(
            ("EleutherAI/pythia-1.4b", "state-spaces/mamba-1.4b", "RWKV/rwkv-4-1b5-pile")
        ),
    ),
    "Olmo, 7B": (7_000, dict.fromkeys(("allenai/Olmo-3-1025-7B", "allenai/Olmo-Hybrid-7B"))),
}
"""Group, as Table 1 names it -> millions of parameters, and hub id -> row of the group in Table 1.
The first model is the reference."""

TOKENIZER = "openai-community/gpt2"
"""Of the slices: Based's models read it, and the NLLs of others are aligned to its tokens."""
TASKS = {"swde": "swde", "fda": "fda", "squad": "squad_f1"}
"""Tasks, and their columns in Table 1, whose `squad_f1` is an accuracy (docs/papers.md)."""
SLICES = {"all": "all", "ar_hit": "ar", "other": "other"}
"""Slices of `gap`, and the columns of their perplexities."""
CONTEXT, STRIDE = 2048, 512
"""Ids that a prompt is cut to, and predictions of a further window of a model that does not read a
sequence, in its own ids, at once."""
RECALL_TOKENS = 6_000_000
"""Of all prompts at most: the rows' 23.5 MB, as the data sets' cards say, at 4 bytes a token."""
TEXT_BYTES = 2
"""Of a token of the Pile as it is downloaded."""
APART = 0.01
"""A perplexity differs if it is further from the printed one than this share; other figures if that
is outside their interval."""


def chosen(patterns: list[str]) -> dict[str, list[str]]:
    """The models of each group that match a pattern, after the group's reference, without which
    there is no gap."""
    found = {}
    for group, (_, rows) in GROUPS.items():
        reference, *others = [*rows]
        kept = [model for model in others if any(fnmatch(model, pattern) for pattern in patterns)]
        if kept or any(fnmatch(reference, pattern) for pattern in patterns):
            found[group] = [reference, *kept]
    return found


def plan(groups: dict[str, list[str]], args: argparse.Namespace) -> pl.DataFrame:
    """A row for each model: bytes at 4 a parameter, and hours of reading at `--tflops`, at 2
    operations a parameter and token."""
    rows = []
    for group, models in groups.items():
        parameters = GROUPS[group][0] * 1e6
        hours = 2 * parameters * (amount(args.tokens) + RECALL_TOKENS) / (args.tflops * 1e12) / 3600
        rows += [
            {"group": group, "model": model, "GB": 4 * parameters / 1e9, "hours": round(hours, 2)}
            for model in models
        ]
    return pl.DataFrame(rows)


def measured(
    group: str, models: list[str], slices: Path, args: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Rows of the table without what is printed: perplexities, shares of the gap in AR hits in %,
    accuracies in %."""
    named, how = (
        {model.rpartition("/")[2]: model for model in models},
        {"device": args.device, "dtype": args.dtype},
    )
    folder = args.out / group.replace(", ", "-")
    if len(models) > 1:
        gap = recallkit.gap(
            named, slices=slices, out=folder / "gap", stride=STRIDE, **how
        ).gap.filter(source="ALL")
        for row in gap.filter(pl.col("slice").is_in([*SLICES])).to_dicts():
            of = {"figure": f"ppl {SLICES[row['slice']]}", "low": None, "high": None}
            if row["model"] == gap["model"][0]:
                yield {"model": models[0], **of, "measured": row["ppl_reference"]}
            yield {"model": named[row["model"]], **of, "measured": row["ppl_model"]}
            if row["slice"] == "ar_hit" and not row["void"]:
                share = {
                    "measured": row["gap_share"],
                    "low": row["gap_share_ci_low"],
                    "high": row["gap_share_ci_high"],
                }
                yield {"model": named[row["model"]], "figure": "gap share", **in_percent(share)}
    recall = recallkit.eval_recall(
        named,
        tasks=[*TASKS],
        out=folder / "recall",
        task_version=0,
        context=CONTEXT,
        limit=args.limit,
        data=args.data,
        **how,
    )
    for row in recall.recall.to_dicts():
        accuracy = {"measured": row["accuracy"], "low": row["ci_low"], "high": row["ci_high"]}
        yield {"model": named[row["model"]], "figure": row["task"], **in_percent(accuracy)}


def in_percent(shares: dict[str, float | None]) -> dict[str, float | None]:
    """Fractions in percent."""
    return {name: None if share is None else 100 * share for name, share in shares.items()}


def printed(group: str, model: str, figure: str) -> float | None:
    """The figure in Based's Table 1, and for a share of the gap what follows from its perplexities;
    None where there is none."""
    row = GROUPS[group][1][model]
    if row is None:
        return None
    if figure == "gap share":
        shares = recallkit.published(TABLE).frame.filter(group=group, model=row, void=False)[
            "gap_share"
        ]
        return 100 * float(shares.item()) if len(shares) else None
    value = (
        recallkit.paper_table(TABLE)
        .filter(group=group, model=row)[TASKS.get(figure, figure.removeprefix("ppl "))]
        .item()
    )
    return None if value is None else float(value)


def beside_printed(group: str, row: dict[str, Any]) -> dict[str, Any]:
    """A row of the table with the printed figure, and whether the measured one differs from it."""
    value, found, low, high = (
        printed(group, row["model"], row["figure"]),
        row["measured"],
        row["low"],
        row["high"],
    )
    differs = None
    if value is not None and found is not None:
        is_ppl = row["figure"].startswith("ppl ")
        differs = (
            abs(found / value - 1) > APART
            if is_ppl
            else None
            if low is None or high is None
            else not low <= value <= high
        )
    named = {"group": group, "model": row["model"], "figure": row["figure"]}
    return {
        **named,
        "printed": value,
        "measured": found,
        "low": low,
        "high": high,
        "differs": differs,
    }


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models",
        nargs="+",
        default=["*"],
        help="hub ids, or patterns; the reference of each group comes with them",
    )
    parser.add_argument("--plan", action="store_true", help="only say how much it is")
    parser.add_argument("--out", type=Path, default=Path("released"))
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--dtype", default="auto", help="auto: the checkpoint's own on a GPU, float32 on CPU"
    )
    parser.add_argument("--text", default="pile:validation", help="what is read for the gap")
    parser.add_argument(
        "--tokens",
        default="16M",
        help="of it, from its beginning (Based, appendix E.3, of the test set)",
    )
    parser.add_argument(
        "--train-text", default="pile:train", help="what is counted, to tell which bigrams are rare"
    )
    parser.add_argument("--train-tokens", default="1B")
    parser.add_argument("--limit", type=int, help="the first rows of each task only")
    parser.add_argument("--data", type=Path, help="a folder with local rows of the tasks")
    parser.add_argument(
        "--tflops",
        type=float,
        default=20.0,
        help="what the plan assumes of your machine, in 1e12 operations a second",
    )
    args = parser.parse_args()
    groups = chosen(args.models)
    if not groups:
        parser.error(
            "no model matches; there are "
            f"{', '.join(model for _, rows in GROUPS.values() for model in rows)}"
        )
    planned, text = (
        plan(groups, args),
        TEXT_BYTES * (amount(args.tokens) + amount(args.train_tokens)) / 1e9,
    )
    pl.Config(
        tbl_rows=-1,
        tbl_cols=-1,
        tbl_hide_dataframe_shape=True,
        tbl_hide_column_data_types=True,
        float_precision=2,
    )
    print(planned)
    weights, hours = planned["GB"].sum(), planned["hours"].sum()
    print(
        f"At most {weights:.0f} GB of weights and {text:.1f} GB of text; {hours:.1f} hours of "
        "reading, and generation."
    )
    if args.plan:
        return
    counts, slices, rows = args.out / "counts.duckdb", args.out / "slices", []
    recallkit.count(args.train_text, counts, tokenizer=TOKENIZER, limit_tokens=args.train_tokens)
    recallkit.slice(args.text, slices, tokenizer=TOKENIZER, counts=counts, limit_tokens=args.tokens)
    failed = []
    for group, models in groups.items():
        try:
            rows.extend(
                beside_printed(group, row) for row in measured(group, models, slices, args)
            )  # those before an error, too
        except recallkit.UserError as error:
            failed.append(group)
            print(f"{group}: {error}", file=sys.stderr)
        if rows:
            table = pl.DataFrame(rows, infer_schema_length=None).sort(
                "group", "model", maintain_order=True
            )
            table.write_csv(args.out / "released.csv")
    if rows:
        print(table)
        print(
            f"{table['differs'].sum()} of {table['differs'].count()} figures differ from print; "
            "of what else differs: docs/papers.md."
        )
    if failed:
        sys.exit(f"not measured in full: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
