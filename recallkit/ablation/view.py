"""Ablations as text and as a map of losses: what is lost by slice, layer by layer, and which mixers recall."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.ablation.tables import LEAST, AblationTables
from recallkit.display import cells
from recallkit.display.cells import or_dash, percent, resampled, too_few
from recallkit.display.charts import TIP, WIDTH, Figure, column, labels, layer, plot, shorten
from recallkit.display.exports import Look, command_line
from recallkit.display.tables import Table
from recallkit.measure.shares import enrichment
from recallkit.models.ablation import heads_of
from recallkit.slicing.view import what_is_rare
from recallkit.storage import artifacts
from recallkit.storage.result import read_tables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    Row = Mapping[str, Any]
    from collections.abc import Mapping, Sequence

    from recallkit.display.charts import Spec


def look(folder: Path, tables: AblationTables | None = None) -> Look:
    """The ablations in a folder as people see them: their tables are read unless they are given."""
    tables, manifest = tables or read_tables(AblationTables, folder), artifacts.read_manifest(folder / "ablation.parquet")
    return Look(
        folder,
        "ablation",
        tables,
        ablation_tables(tables, manifest),
        ablation_figures,
        which_recall(tables),
        method(tables, manifest),
        command(manifest),
        facts={"by": manifest["by"], "placed": manifest["placed"]},
    )


def method(tables: AblationTables, manifest: Mapping[str, Any]) -> dict[str, str]:
    """How it was measured: the text, what replaces the outputs, the intervals."""
    slices, one = manifest["slices"], tables.ablation.filter(slice="ar_hit").row(0, named=True)
    instead = "their mean over the text" if manifest["by"] == "mean" else "zero"
    which = "heads of a mixer" if _are_heads(tables) else "a mixer, or of all of a kind,"
    return {
        "Text": f"{slices['num_rows']:,} predicted tokens in {slices['num_sequences']:,} sequences of up to {slices['seq_len']:,}; "
        f"{SLICES}",
        "Ablation": f"the outputs of {which} are replaced by {instead}; the text is read again, nothing is trained",
        "Recall": f"by association, of {manifest['asked']:,} AR hits",
        "95 % intervals": resampled(one, which=" with AR hits"),
    }


def command(manifest: Mapping[str, Any]) -> str:
    """The command that makes it again."""
    options = manifest["options"]
    cluster = None if options["cluster"] == "document" else options["cluster"]
    more = {"heads": options["heads"], "by": options["by"], "cluster": cluster, "clean": options["clean"], "samples": options["samples"]}
    return command_line("ablate", manifest["model"], slices="DIR", mixers=list(options["mixers"]), **more)


def ablation_tables(tables: AblationTables, manifest: Mapping[str, Any]) -> dict[str, Table]:
    """What is printed, by file name."""
    return {"mixers": _mixers(tables), "ablation": _losses(tables, manifest)}


def which_recall(tables: AblationTables) -> str:
    """Which mixers or sets of them recall by association goes through, or why none can be named; of a set and a part of it the part.

    Without them less is recalled, with an interval above `LEAST` of what is recalled, and AR hits lose in particular, since a model that
    breaks recalls nothing either: their share of the whole loss is more than `ENRICHED` times their share of the tokens, with its interval.
    """
    hits = {row["mixers"]: row for row in tables.ablation.iter_rows(named=True) if row["slice"] == "ar_hit"}
    rows = list(tables.mixers.iter_rows(named=True))
    whole, single = rows[0], [row for row in rows if row["layer"] is not None]
    recall = f"{whole['recall']:z.2f} nats per AR hit, {_RECALL(whole)}"
    if whole["recall_ci_low"] is None:
        return f"Which mixers recall goes through is not known: {too_few('AR hits', whole['effective_documents'])}."
    if whole["recall_ci_low"] <= 0:
        return f"{whole['model']} is not shown to recall by association ({recall}), so no mixer can be named."
    less = [row for row in rows if row["recall_lost_ci_low"] > LEAST * whole["recall"]]
    enriched = [row for row in less if _is_enriched(hits[row["mixers"]])]
    through = [row for row in enriched if not any(_is_part(other, row) for other in enriched)]
    rest = [row for row in less if row not in enriched and (row in single or not single)]
    others = ", ".join(labelled(row) for row in rest if not any(_is_part(other, row) for other in less))
    named = ", ".join(f"{labelled(row)} ({row['recall_lost']:.2f} lost without it)" for row in through)
    said = f"Recall by association ({recall}) {f'goes through {named}' if named else 'is not shown to go through any of these mixers'}."
    if not others:
        return said
    also = "Less is also recalled" if named else "Less is recalled"
    return f"{said} {also} without {others}, but there AR hits are not shown to bear twice their share of the loss."


_RECALL = cells.interval("recall")


ENRICHED = 2.0
"""How many times as much of a loss as of the tokens AR hits must have at least, by its interval, to be lost in particular."""


def _is_enriched(hits: Row) -> bool:
    return not hits["void"] and hits["share_ci_low"] is not None and hits["share_ci_low"] > ENRICHED * hits["share_of_tokens"]


def _is_part(row: Row, of: Row) -> bool:
    """Whether the mixers or heads of one row are some of those of the other: where both are needed, the smaller set is named."""
    part, whole = heads_of(row["mixers"]), heads_of(of["mixers"])
    if part is None or whole is None or part == whole:
        parts, of_whole = (set(each["mixers"].split("+")) for each in (row, of))
        return parts < of_whole or (row["layer"] is not None and of["layer"] is None and row["kind"] in of_whole)
    return part[0] == whole[0] and whole[1] <= part[1] and part[2] <= whole[2]


def _losses(tables: AblationTables, manifest: Mapping[str, Any]) -> Table:
    losses: dict[str, dict[str, Row]] = {}
    for row in tables.ablation.iter_rows(named=True):
        losses.setdefault(row["mixers"], {})[row["slice"]] = row
    first = next(iter(losses.values()))
    rows = [[labelled(of["all"]), *(or_dash(of[name]["loss"], "+z.2f") for name in HEADERS)] for of in losses.values()]
    nll = ["as it is (NLL)", *(or_dash(first[name]["nll"], ".2f") for name in HEADERS)]
    share = ["share of tokens", *(percent(first[name]["share_of_tokens"]) for name in HEADERS)]
    instead = "their mean over the text" if manifest["by"] == "mean" else "zero"
    what = "heads" if _are_heads(tables) else "mixers"
    caption = f"The outputs of {what} are replaced by {instead}. {SLICES} {what_is_rare(manifest['slices'])}"
    title = f"What {first['all']['model']} loses without its {what}, nats per token"
    return Table(title, ["without", *HEADERS.values()], [nll, *rows, share], caption=caption)


def _mixers(tables: AblationTables) -> Table:
    hits = {row["mixers"]: row for row in tables.ablation.iter_rows(named=True) if row["slice"] == "ar_hit"}
    one, effective = next(iter(hits.values())), tables.mixers["effective_documents"][0]
    times = {mixers: enrichment(row["share"], row["share_of_tokens"]) for mixers, row in hits.items()}
    rows = [{**hits[row["mixers"]], **row, "enrichment": times[row["mixers"]]} for row in tables.mixers.iter_rows(named=True)]
    lost = {"recall lost": cells.number("recall_lost", "+z.2f"), "95 % interval": cells.interval("recall_lost", "+z.2f")}
    caption = (
        f"Recall lost: of the {tables.mixers['recall'][0]:z.2f} nats per AR hit that the model recalls by association "
        "(lost when the ids of earlier matches are separated). "
    )
    ends = f"Intervals: {resampled(one, which=' with AR hits')}; of recall lost, effectively {effective:,.1f} documents."
    if _are_heads(tables):
        excess = {"AR beyond other": cells.number("excess", "+z.2f"), "interval": cells.interval("excess", "+z.2f")}
        caption = f"AR beyond other: nats per token that AR hits lose beyond what other tokens lose. {caption}"
        return Table.of("Which heads recall goes through", {"without": labelled, **excess, **lost}, rows, caption + ends)
    shares = {"AR share": cells.valid(cells.share("share")), "enrichment": cells.valid(cells.number("enrichment", "z.1f"))}
    caption += f"AR share: of the whole loss; enrichment: over their share of the tokens, {percent(one['share_of_tokens'], 2)}. "
    return Table.of("Which mixers recall goes through", {"without": labelled, **lost, **shares}, rows, caption + ends)


def _are_heads(tables: AblationTables) -> bool:
    return any(map(heads_of, tables.mixers["mixers"]))


# ------------------------------------------------------------------------------------------------------------- charts

HEADERS = {
    "all": "all",
    "ar_hit": "AR hits",
    "first_rare": "new, rare",
    "repeated_frequent": "repeated",
    "first_frequent": "new",
}
"""What the slices are called where there is little room."""
SLICES = "AR hits and repeated: the bigram is in the context already, rare in training or not; new: it is not."
_DARKEST = 0.8
"""Opacity of the largest loss: figures can be read on it, in light and in dark."""


def ablation_figures(tables: AblationTables) -> list[Figure]:
    """The map of losses: a row per set of mixers, a column per slice."""
    rows = tables.ablation.to_dicts()
    caption = (
        "Nats per token lost on each slice without each of the model's mixers; the stronger the colour, the more, by the square root. "
        f"The model is {shorten(rows[0]['model'], 60)}. "
        f"{SLICES}"
    )
    return [Figure("ablation", "What each mixer is worth, by slice", caption, _drawn(rows))]


def labelled(row: Row) -> str:
    """`3 mamba`, `3 mamba h0-1`; of mixers of several layers only what they are named."""
    if row["layer"] is None or "+" in row["mixers"]:
        return str(row["mixers"])
    heads = heads_of(row["mixers"])
    return f"{row['layer']} {row['kind']}" + ("" if heads is None else f" {row['mixers'].rpartition('.')[2]}")


def _drawn(rows: Sequence[Row]) -> Spec:
    names, drawn = labels(list(dict.fromkeys(map(labelled, rows)))), []
    for row in (row for row in rows if row["loss"] is not None):
        loss, low, high = row["loss"], row["loss_ci_low"], row["loss_ci_high"]
        ends = "" if low is None else f" ({low:.2f} to {high:.2f})"
        tip = f"without {labelled(row)}, {HEADERS[row['slice']]}: {loss:.3f} nats per token{ends}"
        drawn.append({"name": names[labelled(row)], "slice": HEADERS[row["slice"]], "loss": loss, "shown": f"{loss:.2f}", "tip": tip})
    plain: Spec = {"ticks": False, "domain": False}
    x = column("slice", sort=list(HEADERS.values()), axis={"title": "nats per token lost", "orient": "top", "labelAngle": 0, **plain})
    y = column("name", sort=list(names.values()), axis={"title": "without", **plain})
    most = max((cell["loss"] for cell in drawn), default=0.0)
    scale = {"type": "sqrt", "domain": [0, max(most, 1e-9)], "range": [0, _DARKEST], "clamp": True}
    opacity = column("loss", "quantitative", scale=scale, legend=None)
    return plot(
        drawn,
        layer("rect", channels={"x": x, "y": y, "opacity": opacity, **TIP}, color="m0", stroke="page"),
        layer("text", channels={"x": x, "y": y, "text": column("shown")}),
        width=WIDTH - 6.5 * max(map(len, names.values())),
        height=18 * len(names),
    )
