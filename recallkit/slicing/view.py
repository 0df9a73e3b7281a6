"""Slices as people see them: the answer, the table, the chart of repeated tokens and AR hits by
source."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from recallkit.display.cells import abbreviate, counted, percent, timings_lines
from recallkit.display.charts import (
    MOST_SOURCES,
    TIP,
    WIDTH,
    Colour,
    Figure,
    column,
    labels,
    layer,
    not_drawn,
    share,
)
from recallkit.display.tables import Table
from recallkit.display.templates import bars
from recallkit.display.views import ResultView
from recallkit.slicing.threshold import (
    counts_warning,
    rate_and_rule,
    small_counts_note,
    what_is_unseen,
)
from recallkit.storage import parquet_files, records
from recallkit.storage.artifacts import MANIFEST
from recallkit.storage.timings import read_timings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl


_MOST_ROWS = 20
"""Sources in the table: as many as a terminal shows; the Parquet file contains all of them."""

_PACKS = ("Ids as arrays", "Ids of the changed text")
"""What the packs of a slice directory contain, in their order."""


class SlicesView(ResultView):
    """A slice directory, by its `summarise_slices`; `manifest` is that of the labels, with `reused`
    if none were made.

    `packs`: the folders of its packs, and of that of its changed text.
    """

    kind = "tokens"

    def __init__(
        self,
        folder: Path,
        manifest: Mapping[str, Any],
        summary: pl.DataFrame,
        packs: Sequence[Path] = (),
    ) -> None:
        super().__init__(folder, {"by_source": summary})
        self.labels, self.summary, self.packs = manifest, summary, packs
        self.warning = warn_of_counts(folder, summary, manifest)

    def answer(self) -> str:
        """See `answer`."""
        return answer(self.folder, self.summary, self.labels, self.warning)

    @cached_property
    def display_tables(self) -> dict[str, Table]:
        """See `slices_table`."""
        return {"by_source": slices_table(self.summary, self.labels, self.warning)}

    def draw(self, tables: Any) -> list[Figure]:
        """See `slice_figures`."""
        return slice_figures(tables["by_source"])

    def notes(self) -> list[str]:
        """What is special of the counts, where packs are, how long it took."""
        timings = read_timings(self.folder / MANIFEST, kind="tokens")
        return [
            *filter(None, [small_counts_note(self.labels)]),
            *(f"{ids}: {pack}" for ids, pack in zip(_PACKS, self.packs, strict=False)),
            *timings_lines(timings, "labelled", is_reused=self.labels.get("reused", False)),
        ]

    def facts(self) -> dict[str, Any]:
        """The text, the threshold, what is in the training text."""
        facts = {name: self.labels.get(name) for name in _FACTS}
        return {**facts, "warning": self.warning, "packs": [str(pack) for pack in self.packs]}


_FACTS = (
    *("num_sequences", "num_rows", "seq_len", "boundary", "tokenizer", "sequences_digest"),
    *("counts", "max_count", "threshold", "unseen", "in_training", "drawn"),
)


def answer(
    path: Path,
    summary: pl.DataFrame,
    manifest: Mapping[str, Any],
    warning: str | None,
) -> str:
    """How much of the text are AR hits, how much of it training has not, and what comes next."""
    import polars as pl

    total = summary.row(0, named=True)
    labelled = pl.scan_parquet(path / "tokens.parquet", glob=False)
    documents = labelled.select(pl.col("document").n_unique()).collect().item()
    tokens = f"{total['tokens']:,} tokens ({counted(documents, 'document')})"
    if total["ar_hit_share"] is None:
        return f"{percent(total['repeated_share'])} of {tokens} repeat a bigram of their context."
    unseen = what_is_unseen(manifest)
    more = f"; {unseen}" if unseen and unseen not in (warning or "") else ""
    return f"{percent(total['ar_hit_share'], 2)} of {tokens} are AR hits{more}."


def warn_of_counts(path: Path, summary: pl.DataFrame, manifest: Mapping[str, Any]) -> str | None:
    """The warning of `counts_warning` for a slice directory with this `summary`; reads the labels
    again only if there is one."""
    share = summary["ar_hit_share"][0]
    if counts_warning(manifest, share) is None:
        return None
    return counts_warning(manifest, share, _query(path, "slices/sweep_thresholds").rows())


def slices_table(
    summary: pl.DataFrame,
    manifest: Mapping[str, Any],
    warning: str | None = None,
) -> Table:
    """Tokens, repeated tokens and AR hits of the largest sources; `summary` is the result of
    `summarise_slices`."""
    rows, hidden = summary.head(_MOST_ROWS + 1).to_dicts(), len(summary) - _MOST_ROWS - 1
    facts = (what_is_drawn(manifest), what_is_rare(manifest), what_is_copied(manifest), warning)
    caption = "\n".join(filter(None, facts))
    title = "Predicted tokens, and those that repeat a bigram of their context"
    return Table.from_rows(title, _COLUMNS, rows, caption, hidden=hidden)


_COLUMNS = """
    source tokens repeated_share ar_hits
    ar_hit_share | share
"""


def _query(slices: Path, name: str) -> pl.DataFrame:
    """The result of a query over the labelled tokens."""
    from recallkit.storage import db

    with db.connect(views={"tokens": slices / "tokens.parquet"}) as connection:
        return db.frame(connection, name)


def manifest_of(slices: Path) -> records.Tokens:
    """The manifest of a slice directory's labelled tokens."""
    return parquet_files.read_manifest(slices / "tokens.parquet", records.Tokens)


_MOST_LEFT_OUT = 5
"""Sources that a sample has nothing of: so many are named."""


def what_is_drawn(manifest: Mapping[str, Any]) -> str:
    """Which documents are in a sample; empty where the text is not one."""
    if (drawn := manifest.get("drawn")) is None:
        return ""
    amount = f"{drawn['documents']:,} of {drawn['of_documents']:,} documents"
    if drawn["of_sources"] > 1:
        amount += f" and {drawn['sources']:,} of {drawn['of_sources']:,} sources"
    sentences = [f"Sample: {amount}, drawn with seed {drawn['seed']}."]
    if names := drawn["left_out"]:
        more = ", ..." if len(names) > _MOST_LEFT_OUT else ""
        listed = ", ".join(names[:_MOST_LEFT_OUT]) + more
        sentences.append(f"Left out because all their documents are too long: {listed}.")
    return " ".join(sentences)


def what_is_rare(manifest: Mapping[str, Any]) -> str:
    """The threshold, always with the number of training tokens that gives it its meaning, and the
    rule by which it was chosen."""
    if manifest["counts"] is None:
        return "Without training counts only repetition is labelled; --counts adds AR hits."
    times = f"at most {manifest['max_count']:,} times"
    tokens = f"{abbreviate(manifest['counts']['num_tokens'])} training tokens"
    rare = f"was seen {times} in {tokens} ({rate_and_rule(manifest)})"
    return f"AR hit: a token whose bigram is in the context already and {rare}."


def about_counts(manifest: Mapping[str, Any], warning: str | None) -> list[str]:
    """How much of the text is not in the counts, unless the warning says it, and the warning, if
    there is one."""
    unseen = what_is_unseen(manifest)
    is_new = unseen is not None and unseen not in (warning or "")
    return list(filter(None, [f"{unseen}." if is_new else None, warning]))


def what_is_copied(manifest: Mapping[str, Any]) -> str:
    """How much of the text is in the training text, in words; empty if nothing is known of it.

    `manifest`: of tokens.parquet.

    Of a sample of n-grams, the share of tokens in one is too small, and the share of the text's
    n-grams an estimate.
    """
    copied = manifest.get("in_training")
    if copied is None:
        return ""
    tokens = percent(copied["tokens"] / max(1, manifest["num_rows"]))
    hits = percent(copied["ar_hits"] / max(1, copied["of_ar_hits"]))
    ngrams = copied["ngrams"]["13"]
    is_sample = ngrams["fraction"] < 1
    text = f"{'at least ' * is_sample}{tokens} of tokens and {hits} of AR hits"
    if ngrams["sampled"]:
        share = f"{percent(ngrams['found'] / ngrams['sampled'])} of its 13-grams"
        if is_sample:
            share += f", as a sample of {percent(ngrams['fraction'], 2)} shows"
        text += f" ({share})"
    return f"In the training text: {text}."


# ------------------------------------------------------------------------------------------- charts

_KINDS = {"repeated": "repeated bigrams", "ar_hit": "AR hits"}


def slice_figures(summary: pl.DataFrame) -> list[Figure]:
    """One chart of the largest sources; `summary` is that of `summarise_slices`, ALL first."""
    total, *sources = summary.to_dicts()
    has_hits, has_sources = total["ar_hit_share"] is not None, len(sources) > 1
    rows = [total, *sources[:MOST_SOURCES]] if has_sources else [total]
    caption = "Share of predicted tokens that repeat a bigram of their context"
    if has_hits:
        caption += ", and of AR hits, which are repeated and rare in training"
    if has_sources:
        others = not_drawn([row["source"] for row in sources[len(rows) - 1 :]])
        caption += f", by source.{others}"
    else:
        caption += "."
    names = labels([row["source"] for row in rows])
    kinds = _KINDS if has_hits else {"repeated": _KINDS["repeated"]}
    drawn = []
    for kind, words in kinds.items():
        for row in rows:
            if (value := row[f"{kind}_share"]) is not None:
                amount = f"{percent(value, 2)} {words} of {counted(row['tokens'], 'token')}"
                tip = f"{row['source']}: {amount}"
                name = names[row["source"]]
                drawn.append({"name": name, "kind": words, "share": value, "tip": tip})
    colours = [Colour("rest"), Colour("hits")][: len(kinds)]
    colour = column("kind", scale={"domain": list(kinds.values()), "range": colours})
    marks = []
    for words, height in zip(kinds.values(), (15, 9), strict=False):
        condition = f"datum.kind === '{words}'"
        marks.append(layer("bar", condition, channels={**TIP, "color": colour}, height=height))
    spec = bars(
        drawn,
        list(names.values()),
        share("share", "share of tokens", zero=True),
        *marks,
        y="name",
        width=WIDTH + 30 - 6.5 * max(map(len, names.values())),
        height=24 * len(rows),
    )
    title = "Repeated tokens and AR hits" if has_hits else "Repeated tokens"
    return [Figure("slices", f"{title}{' by source' * has_sources}", caption, spec)]
