"""Ablations as text: what is lost by slice, layer by layer, and which mixers recall."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.ablation.charts import HEADERS, SLICES, ablation_figures, labelled
from recallkit.ablation.tables import AblationTables
from recallkit.display import cells
from recallkit.display.again import command_line
from recallkit.display.cells import or_dash, percent, resampled
from recallkit.display.exports import Look
from recallkit.display.tables import Table
from recallkit.measure.shares import enrichment
from recallkit.slicing.view import what_is_rare
from recallkit.storage import artifacts
from recallkit.storage.result import read_tables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    Row = Mapping[str, Any]


def look(folder: Path, tables: AblationTables | None = None) -> Look:
    """The ablations in a folder as people see them: their tables are read unless they are given."""
    tables, manifest = tables or read_tables(AblationTables, folder), artifacts.read_manifest(folder / "ablation.parquet")
    return Look(
        folder,
        "ablation",
        tables,
        ablation_tables(tables, manifest),
        ablation_figures(tables),
        answer(tables),
        method(tables, manifest),
        command(manifest),
        lines=[which_recall(tables)],
        facts={"by": manifest["by"], "placed": manifest["placed"]},
    )


def answer(tables: AblationTables) -> str:
    """Which mixer AR hits need most, in nats, and which mixers recall."""
    first = tables.mixers.row(0, named=True)
    most = f", the most of {len(tables.mixers):,}" if len(tables.mixers) > 1 else ""
    lost = (
        f"Without mixer {labelled(first)}, {first['model']} loses {or_dash(first['loss_ar_hit'], '.2f')} nats per AR hit, "
        f"{or_dash(first['loss'], '.2f')} per token of all{most}."
    )
    return f"{lost} {which_recall(tables)}"


def method(tables: AblationTables, manifest: Mapping[str, Any]) -> dict[str, str]:
    """How it was measured: the text, what replaces the outputs, the intervals."""
    slices, one = manifest["slices"], tables.ablation.filter(slice="ar_hit").row(0, named=True)
    instead = "their mean over the text" if manifest["by"] == "mean" else "zero"
    return {
        "Text": f"{slices['num_rows']:,} predicted tokens in {slices['num_sequences']:,} sequences of up to {slices['seq_len']:,}; "
        f"{SLICES}",
        "Ablation": f"the outputs of a mixer, or of all of a kind, are replaced by {instead}; the text is read again, nothing is trained",
        "Intervals": f"95 %, {resampled(one, which=' with AR hits')}",
    }


def command(manifest: Mapping[str, Any]) -> str:
    """The command that makes it again."""
    options = manifest["options"]
    cluster = None if options["cluster"] == "document" else options["cluster"]
    more = {"by": options["by"], "cluster": cluster, "clean": options["clean"]}
    return command_line("ablate", manifest["model"], slices="DIR", mixers=list(options["mixers"]), **more)


def ablation_tables(tables: AblationTables, manifest: Mapping[str, Any]) -> dict[str, Table]:
    """What is printed, by file name."""
    return {"ablation": _losses(tables, manifest), "mixers": _mixers(tables)}


def which_recall(tables: AblationTables) -> str:
    """Which single mixers recall (of sets if there are no single ones), and without which the model loses AR hits as it loses everything.

    Both lose more on AR hits than on new, rare bigrams, with an interval above 0: AR hits have more to lose wherever a model breaks. Those
    that recall lose there in particular: the AR hits' share of the whole loss is more than `ENRICHED` times their share of the tokens, with
    its interval.
    """
    hits = {row["mixers"]: row for row in tables.ablation.iter_rows(named=True) if row["slice"] == "ar_hit"}
    rows = list(tables.mixers.iter_rows(named=True))
    single = [row for row in rows if row["layer"] is not None]
    more = [row for row in single or rows if row["specific_ci_low"] is not None and row["specific_ci_low"] > 0]
    recall = [row for row in more if _is_enriched(hits[row["mixers"]])]
    names = [f"{labelled(row)} ({row['specific']:.2f} nats per AR hit)" for row in recall]
    sentences = [f"Recall is in {', '.join(names)}." if names else "None of these is shown to matter to AR hits in particular."]
    if others := [labelled(row) for row in more if row not in recall]:
        lost = "AR hits lose more than new, rare bigrams, but are not shown to lose in particular"
        sentences.append(f"Without these {lost}: {', '.join(others)}.")
    return " ".join(sentences)


ENRICHED = 2.0
"""How many times as much of a loss as of the tokens AR hits must have at least, by its interval, to be lost in particular."""


def _is_enriched(hits: Row) -> bool:
    return not hits["void"] and hits["share_ci_low"] is not None and hits["share_ci_low"] > ENRICHED * hits["share_of_tokens"]


def _losses(tables: AblationTables, manifest: Mapping[str, Any]) -> Table:
    losses: dict[str, dict[str, Row]] = {}
    for row in tables.ablation.iter_rows(named=True):
        losses.setdefault(row["mixers"], {})[row["slice"]] = row
    first = next(iter(losses.values()))
    rows = [[labelled(of["all"]), *(or_dash(of[name]["loss"], "+.2f") for name in HEADERS)] for of in losses.values()]
    nll = ["as it is (NLL)", *(or_dash(first[name]["nll"], ".2f") for name in HEADERS)]
    share = ["share of tokens", *(percent(first[name]["share_of_tokens"]) for name in HEADERS)]
    instead = "their mean over the text" if manifest["by"] == "mean" else "zero"
    caption = f"The mixers' outputs are replaced by {instead}. {SLICES} {what_is_rare(manifest['slices'])}"
    title = f"What {first['all']['model']} loses without its mixers, nats per token"
    return Table(title, ["without", *HEADERS.values()], [nll, *rows, share], caption=caption)


def _mixers(tables: AblationTables) -> Table:
    hits = {row["mixers"]: row for row in tables.ablation.iter_rows(named=True) if row["slice"] == "ar_hit"}
    one = next(iter(hits.values()))
    times = {mixers: enrichment(row["share"], row["share_of_tokens"]) for mixers, row in hits.items()}
    return Table.of(
        "Which mixers recall",
        {
            "without": labelled,
            "recall": cells.number("specific", "+.2f"),
            "95 % interval": cells.interval("specific", "+.2f"),
            "AR share": cells.valid(cells.share("share")),
            "enrichment": cells.valid(cells.number("enrichment", ".1f")),
        },
        [{**hits[row["mixers"]], **row, "enrichment": times[row["mixers"]]} for row in tables.mixers.iter_rows(named=True)],
        "Recall: what AR hits lose less what equally rare tokens lose whose bigram is new, where nothing can be recalled. AR share: of the "
        f"whole loss; enrichment: over their share of the tokens, {percent(one['share_of_tokens'], 2)}. "
        f"Intervals: {resampled(one, which=' with AR hits')}.",
    )
