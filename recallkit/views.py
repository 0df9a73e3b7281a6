"""Results as people and programs see them: tables for a terminal, plain data for `--json`.

Both are made from the same frames that are written to Parquet, so that a number is the same wherever it stands.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from recallkit import artifacts, console
from recallkit.console import percent
from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.bench.results import Results
    from recallkit.stages.gap import GapTables
    from recallkit.stages.published import PublishedGap
    from recallkit.stages.recall import RecallTables


_MOST_ROWS = 20
_MOST_COLUMNS = 3
"""Sources and models in the table by source: what a terminal shows; the Parquet file has all of them."""


def manifest_of(slices: Path) -> dict[str, Any]:
    """The manifest of a slice directory's labelled tokens."""
    return artifacts.read_manifest(slices / "tokens.parquet")


# ---------------------------------------------------------------------------------------------------------------- count


def counts_json(meta: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Facts of a counts table."""
    kept = ("id", "num_tokens", "num_documents", "num_bigrams", "boundary", "tokenizer", "only", "sources")
    return {"path": str(path), **{key: meta.get(key) for key in kept}}


def print_counts(meta: Mapping[str, Any], path: Path) -> None:
    """One line: how much was counted, and where it lies."""
    console.stdout().print(
        f"counts: {meta['num_tokens']:,} training tokens, {meta['num_bigrams']:,} distinct bigrams\n        {path}",
        markup=False,
        soft_wrap=True,
    )


# ---------------------------------------------------------------------------------------------------------------- slice


def slices_json(path: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes of the slices by source, with what they were made of."""
    from recallkit.stages.slices import summarise_slices

    kept = ("num_sequences", "num_rows", "seq_len", "boundary", "max_count", "counts", "tokenizer", "sequences_digest")
    return {"path": str(path), **{key: manifest[key] for key in kept}, "by_source": summarise_slices(path / "tokens.parquet").to_dicts()}


def print_slices(path: Path, manifest: Mapping[str, Any]) -> None:
    """Tokens, repeated tokens and AR hits by source."""
    from recallkit.stages.slices import summarise_slices

    summary = summarise_slices(path / "tokens.parquet")
    rows = [
        [
            row["source"],
            f"{row['tokens']:,}",
            percent(row["repeated_share"]),
            "–" if row["ar_hits"] is None else f"{row['ar_hits']:,}",
            percent(row["ar_hit_share"], 2),
        ]
        for row in summary.head(_MOST_ROWS + 1).iter_rows(named=True)
    ]
    hidden = len(summary) - len(rows)
    rows += [[f"and {hidden:,} more", "", "", "", ""]] if hidden else []
    console.print_table(f"Slices: {path}", ["source", "tokens", "repeated", "AR hits", "share"], rows, caption=_what_is_rare(manifest))


def _what_is_rare(manifest: Mapping[str, Any]) -> str:
    """The threshold, never without the number of training tokens that gives it its meaning."""
    if manifest["counts"] is None:
        return "No training counts: repetition only. Label AR hits with --counts."
    tokens = manifest["counts"]["num_tokens"]
    rate = manifest["max_count"] / max(1, tokens) * 1e9
    return (
        f"AR hit: bigram repeated in the context and seen at most {manifest['max_count']:,} times in "
        f"{console.abbreviate(tokens)} training tokens ({console.abbreviate(rate)} a billion)."
    )


# ---------------------------------------------------------------------------------------------------------------- score


def scores_json(slices: Path, model: str, manifest: Mapping[str, Any], check: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What was scored, where it lies, the mean NLL, and the comparison with float64 where one was made."""
    from recallkit.scoring import score_path

    path = score_path(slices, model)
    return {
        "model": model,
        "path": str(path),
        **_mean_scores(path),
        **{k: manifest[k] for k in ("num_rows", "model_digest", "dtype", "batch_tokens")},
        **{k: manifest[k] for k in ("tokenizer", "context", "stride", "carry_state", "num_inexact") if manifest.get(k) is not None},
        **({} if check is None else {"check": dict(check)}),
    }


def _mean_scores(path: Path) -> dict[str, float]:
    """Mean NLL (nats a token), perplexity and share of tokens ranked first."""
    from recallkit import db

    with db.connect() as connection:
        db.view_file(connection, "scores", path)
        return db.frame(connection, "scores/summarise_scores").row(0, named=True)


def print_scores(slices: Path, manifests: Mapping[str, Mapping[str, Any]]) -> None:
    """One row a model."""
    from recallkit.scoring import score_path

    rows = []
    for model, manifest in manifests.items():
        means = _mean_scores(score_path(slices, model))
        rows.append([model, f"{manifest['num_rows']:,}", f"{means['nll_nats']:.4f}", f"{means['ppl']:.2f}", percent(means["accuracy"])])
    console.print_table(f"Scores: {slices / 'scores'}", ["model", "tokens", "NLL (nats)", "ppl", "argmax right"], rows)


def print_shares(manifests: Mapping[str, Mapping[str, Any]]) -> None:
    """How far all shares together are."""
    for model, manifest in manifests.items():
        done, total = manifest["parts_done"], manifest["num_parts"]
        rest = "joined" if manifest["joined"] else "run it without --share to join them" if done == total else "other shares are not done"
        console.stdout().print(f"{model}: {done:,} of {total:,} parts are there, {rest}", markup=False, soft_wrap=True)


def print_checks(checks: Mapping[str, Mapping[str, Any]]) -> None:
    """How far the scores are from a float64 computation."""
    rows = [
        [
            model,
            f"{check['tokens']:,}",
            f"{check['largest']:.2e}",
            f"{check['mean']:.2e}",
            "–" if check["same_argmax"] is None else percent(check["same_argmax"], 2),
        ]
        for model, check in checks.items()
    ]
    console.print_table(
        "Difference to a float64 computation on CPU, in nats a token",
        ["model", "tokens", "largest", "mean", "same argmax"],
        rows,
        caption="The largest: "
        + ", ".join(f"sequence {check['sequence']}, position {check['position']} ({model})" for model, check in checks.items()),
    )


def print_costs(mixers: Sequence[Mapping[str, Any]], zoo_models: Sequence[Mapping[str, Any]], width: int, length: int) -> None:
    """What mixers of this width and the zoo's models cost."""
    from recallkit.models import zoo

    headers = ["parameters", "state", "FLOP a token"]
    console.print_table(
        f"Mixers of width {width:,}, sequences of {length:,} tokens",
        ["mixer", *headers],
        [[row["mixer"], *_costs(row)] for row in mixers],
        caption="State: elements that a sequence keeps. FLOP: of the forward pass, two for a multiplication and an addition.",
    )
    console.print_table(
        f"Models of the zoo, sequences of {zoo.CONTEXT} tokens",
        ["model", *headers, "trained on"],
        [[row["model"], *_costs(row), _amount(row["trained_tokens"])] for row in zoo_models],
        caption=f"Parameters without the embedding, which has {console.abbreviate(zoo_models[0]['embeddings'])}.",
    )


# ---------------------------------------------------------------------------------------------------------------- bench


def print_bench(results: Results, files: Sequence[Path]) -> None:
    """What was measured, a row each, the machine's own ceilings below."""
    from recallkit.bench import results as shown

    machine = results.machine
    ceilings = f"copies {shown.si(machine['copy_b_s'], 'B/s')}, matrix products {shown.si(machine['matrix_flop_s'], 'FLOP/s')}"
    title = f"{machine['name']}, {machine['dtype']}, torch {machine['torch']}"
    operations, models = shown.operation_lines(results.rows), shown.model_lines(results.rows)
    if operations:
        caption = (
            "Medians. Rate: of the work that cannot be left out. Share: of what a large copy\n"
            f"or matrix product reaches ({ceilings}).\n"
            "x ours: above 1, recallkit is faster."
        )
        console.print_table(title, shown.COLUMNS, operations, caption=caption)
    if models:
        console.print_table(f"{title}; random weights", shown.MODEL_COLUMNS, models, caption=shown.model_sizes(results.rows))
    for line in (*results.verdicts, *(f"Written: {path}" for path in files)):
        console.stdout().print(line, markup=False, soft_wrap=True)


def _amount(number: int | None) -> str:
    return "–" if number is None else console.abbreviate(number)


def _costs(row: Mapping[str, Any]) -> list[str]:
    return [console.abbreviate(row[name]) for name in ("parameters", "state_elements", "flops_per_token")]


# ------------------------------------------------------------------------------------------------------------------ gap


def gap_json(tables: GapTables, out: Path) -> dict[str, Any]:
    """The gap table row by row, as in `gap.parquet`."""
    return {
        "path": str(out),
        "gap": tables.gap.to_dicts(),
        "by_threshold": tables.by_threshold.to_dicts(),
        "inexact": artifacts.read_manifest(out / "gap.parquet")["inexact"],
    }


def worst_ar_gap(tables: GapTables) -> float:
    """The largest difference in NLL (nats) on AR hits, over all sources, of any model to the reference.

    Raises UserError where there are no AR hits to judge by.
    """
    import polars as pl

    worst = tables.gap.filter((pl.col("source") == "ALL") & (pl.col("slice") == "ar_hit"))["delta_nll"].max()
    if not isinstance(worst, float):
        raise UserError("there are no AR hits to judge by", where="--fail-above")
    return worst


def print_gap(tables: GapTables, slices: Mapping[str, Any], out: Path) -> None:
    """Perplexities of every model overall, on AR hits and on other tokens, and the share of the gap with its interval."""
    cells = {(row["model"], row["source"], row["slice"]): row for row in tables.gap.iter_rows(named=True)}
    models = list(dict.fromkeys(model for model, _, _ in cells))
    first = cells[models[0], "ALL", "all"]
    share = cells[models[0], "ALL", "ar_hit"]["share_of_tokens"]
    rows = [[first["reference"], *(_ppl(cells[models[0], "ALL", s]["ppl_reference"]) for s in ("all", "ar_hit", "other")), "", "reference"]]
    notes = []
    for model in models:
        row = cells[model, "ALL", "ar_hit"]
        rows.append(
            [
                model,
                *(_ppl(cells[model, "ALL", s]["ppl_model"]) for s in ("all", "ar_hit", "other")),
                percent(row["gap_share"]),
                _interval(row),
            ]
        )
        notes += [f"{model}: {row['note']}"] if row["note"] else []
    caption = f"AR hits are {percent(share, 2)} of {first['tokens']:,} tokens. {_what_is_rare(slices)}"
    console.print_table(
        "Perplexity, and the share of the gap to the reference that lies in AR hits",
        ["model", "all", "AR hits", "other", "AR share", "95 % interval"],
        rows,
        caption=caption,
    )
    for line in [*_bits_per_byte([cells[model, "ALL", "all"] for model in models]), *_inexact(out), *notes]:
        console.stdout().print(line, markup=False)
    if len({source for _, source, _ in cells}) > 2 and len(models) <= _MOST_COLUMNS:
        _print_by_source(cells, models)
    console.stdout().print(f"Tables (Parquet): {out}", markup=False, soft_wrap=True)


def _bits_per_byte(rows: list[Mapping[str, Any]]) -> list[str]:
    """One line: what compares models with different tokenizers. Nothing where the bytes are not known."""
    if rows[0]["bpb_reference"] is None:
        return []
    pairs = [(rows[0]["reference"], rows[0]["bpb_reference"]), *((row["model"], row["bpb_model"]) for row in rows)]
    return ["Bits per byte: " + ", ".join(f"{model} {bits:.3f}" for model, bits in pairs)]


def _inexact(out: Path) -> list[str]:
    """A line for each model with a tokenizer of its own: how much of the text its tokens part elsewhere."""
    found = artifacts.read_manifest(out / "gap.parquet")["inexact"]
    return [
        f"{model}: a tokenizer of its own; {percent(share['all'])} of tokens, {percent(share.get('ar_hit'))} of AR hits do not begin and "
        "end where its tokens do"
        for model, share in found.items()
    ]


def _print_by_source(cells: Mapping[tuple[str, str, str], Mapping[str, Any]], models: list[str]) -> None:
    """The share of the gap by source, a column a model."""
    whole = {source: cell["tokens"] for (model, source, kind), cell in cells.items() if (model, kind) == (models[0], "all")}
    sources = {source: tokens for source, tokens in whole.items() if source != "ALL"}
    largest = sorted(sources, key=lambda source: (-sources[source], source))[:_MOST_ROWS]
    rows = []
    for source in largest:
        shares = [percent(cells[model, source, "ar_hit"]["gap_share"]) for model in models]
        rows.append([source, f"{sources[source]:,}", percent(cells[models[0], source, "ar_hit"]["share_of_tokens"], 2), *shares])
    hidden = len(sources) - len(largest)
    console.print_table(
        "AR share of the gap by source",
        ["source", "tokens", "AR hits", *models],
        rows,
        caption=f"{hidden:,} smaller sources: see the Parquet file." if hidden else None,
    )


def _ppl(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"


def _interval(row: Mapping[str, Any]) -> str:
    low, high = row["ci_low"], row["ci_high"]
    return "–" if low is None or high is None else f"{100 * low:.1f} to {100 * high:.1f} %"


# ---------------------------------------------------------------------------------------------------------- eval-recall


def recall_json(tables: RecallTables, folder: Path) -> dict[str, Any]:
    """Every table of the comparison, row by row."""
    return {"path": str(folder), **{field.name: getattr(tables, field.name).to_dicts() for field in dataclasses.fields(tables)}}


def print_recall(tables: RecallTables, folder: Path, out: Path) -> None:
    """Accuracy of each model on each task with its standard error, the differences to the reference, and what was cut."""
    rows = tables.recall.to_dicts()
    tasks, models = (list(dict.fromkeys(row[name] for row in rows)) for name in ("task", "model"))
    cells = {(row["model"], row["task"]): row for row in rows}
    console.print_table(
        f"Recall: generations with the value in % (standard error); {_manner(rows[0])}",
        ["model", *tasks],
        [[model, *(_accuracy(cells[model, task]) for task in tasks)] for model in models],
        caption="\n".join([*(_what_was_asked(cells[models[0], task]) for task in tasks), "Greedy, 48 tokens, cut at the first newline."]),
    )
    if len(models) > 1:
        console.print_table(
            f"Difference to {models[0]}",
            ["model", "task", "points", "95 % interval"],
            [[row["model"], row["task"], f"{100 * row['difference']:+.1f}", _points(row)] for row in rows if row["model"] != models[0]],
        )
    console.print_table(
        "NLL of the answer after the prompt, in nats a token",
        ["model", *tasks],
        [[model, *(_nats(cells[model, task]["answer_nll"]) for task in tasks)] for model in models],
    )
    for line in filter(None, map(_worth_knowing, rows)):
        console.stdout().print(line, markup=False, soft_wrap=True)
    for what, where in (("Tables (Parquet)", folder), ("a row a prompt", out / "documents"), ("lm-eval's files", out / "lm-eval")):
        console.stdout().print(f"{what}: {where}", markup=False, soft_wrap=True)


def _manner(row: Mapping[str, Any]) -> str:
    twice, cut = ", document read twice" * (row["prompt"] == "twice"), ", cut around the answer" * (row["cut"] == "answer")
    return f"task version {row['version']}{twice}{cut}"


def _accuracy(row: Mapping[str, Any]) -> str:
    error = row["standard_error"]
    return f"{100 * row['accuracy']:.1f}" + ("" if error is None else f" ({100 * error:.1f})")


def _points(row: Mapping[str, Any]) -> str:
    low, high = row["difference_low"], row["difference_high"]
    return "–" if low is None else f"{100 * low:+.1f} to {100 * high:+.1f}"


def _nats(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _what_was_asked(row: Mapping[str, Any]) -> str:
    """Numbers of prompts and documents; never without those that were dropped."""
    dropped = f", {_counted(row['dropped'], 'row')} without a value dropped" if row["dropped"] else ""
    published = "" if row["comparable"] else "; comparable with no published figures"
    return f"{row['task']}: {_counted(row['num_rows'], 'prompt')} of {_counted(row['num_documents'], 'document')}{dropped}{published}."


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + "s" * (number != 1)


def _worth_knowing(row: Mapping[str, Any]) -> str:
    """What explains a low accuracy otherwise than by the model: "" where nothing does."""
    facts = {
        "cut on the left to fit its context": row["truncated"],
        "whose answer stood only in what was cut": row["answer_cut"],
        "in which the value does not stand": row["absent"],
        "whose value holds a newline, which no generation does": row["multiline"],
        "answered with nothing": row["empty"],
    }
    found = ", ".join(f"{number:,} {fact}" for fact, number in facts.items() if number)
    return f"{row['model']}, {row['task']}: of {_counted(row['num_rows'], 'prompt')} {found}" if found else ""


def print_metrics(metrics: pl.DataFrame, out: Path) -> None:
    """lm-eval's own metrics, a row each."""
    rows = [
        [
            row["model"],
            row["task"] if row["version"] is None else f"{row['task']} v{row['version']}",
            row["metric"] if row["filter"] == "none" else f"{row['metric']},{row['filter']}",
            f"{row['value']:.4f}",
            "–" if row["standard_error"] is None else f"{row['standard_error']:.4f}",
        ]
        for row in metrics.iter_rows(named=True)
    ]
    console.print_table("Tasks of lm-eval, unchanged", ["model", "task", "metric", "value", "std. error"], rows)
    console.stdout().print(f"lm-eval's files (JSON): {out / 'lm-eval'}", markup=False, soft_wrap=True)


# ------------------------------------------------------------------------------------------------------- gap --table


def published_json(published: PublishedGap) -> dict[str, Any]:
    """The arithmetic on printed perplexities, row by row."""
    return {"reference": published.reference, "ar_share": published.ar_share, "rows": published.frame.to_dicts()}


def print_published(published: PublishedGap) -> None:
    """Printed perplexities with the share of the gap that they imply."""
    rows = [
        [row["model"], _ppl(row["all"]), _ppl(row["ar"]), _ppl(row["other"]), percent(row["gap_share"]), percent(row["gap_share_clipped"])]
        for row in published.frame.iter_rows(named=True)
    ]
    console.print_table(
        "Share of the gap that is associative recall, from printed perplexities",
        ["model", "all", "AR hits", "other", "raw share", "clipped"],
        rows,
        caption=f"AR hits are {percent(published.ar_share, 2)} of tokens, by the row of {published.reference}.",
    )
    for row in published.frame.iter_rows(named=True):
        if row["note"]:
            console.stdout().print(f"{row['model']}: {row['note']}", markup=False)
