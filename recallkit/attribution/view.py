"""A comparison as people see it: the answer, the table, and on request thresholds, control,
sources, slices and classes."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from recallkit.attribution import placebo, price
from recallkit.attribution.answer import in_short
from recallkit.attribution.charts import figures
from recallkit.attribution.context_gain import far_table, gains_table
from recallkit.attribution.divergence import divergence_table, in_a_sentence
from recallkit.attribution.tables import HITS_OF_REPEATED, rows_by_slice
from recallkit.counting.table import REPEATED_ONLY
from recallkit.display import cells, console
from recallkit.display.cells import (
    DASH,
    abbreviate,
    counted,
    percent,
    resampled,
    shares_of_leads,
    some_of,
)
from recallkit.display.exports import bare
from recallkit.display.tables import Table
from recallkit.display.views import Measured, ResultView
from recallkit.measure.ratio import MIN_CLUSTERS
from recallkit.measure.rows import count_cuts
from recallkit.measure.shares import is_void
from recallkit.models.prefix import other_prefixes
from recallkit.slicing.definitions import PARTITION, STANDARD
from recallkit.slicing.threshold import counts_warning
from recallkit.slicing.view import about_counts, what_is_copied, what_is_rare

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from recallkit.attribution.comparison import Comparison
    from recallkit.display.cells import Row
    from recallkit.display.charts import Figure

    Causal = Mapping[str, Row]
    """By model its causal recall on AR hits, `points` and `retained`, where an intervention
    measured it."""

_MOST_AS_TYPED = 10
"""Models that are shown in the order in which they were typed; more are ranked by perplexity, as
on a page."""
_MOST_SOURCES = 5
"""Sources in the table by source of a terminal; the Parquet file and pages contain all."""
_MOST_TEXTS = 4
"""Files of the text that a model card names."""
_ON_REQUEST = (
    "by_price",
    "gap",
    "by_slice",
    "context_gain",
    "by_context",
    "divergence",
    "by_placebo",
)
"""The first table, and those that there are only where somebody asked for what is in them."""
_ENDS = ("", "_ci_low", "_ci_high")
_SLASH = "Before the slash: recall gain in % of the reference's. –: unknown, or not meaningful."


class ComparisonView(ResultView):
    """A comparison as people see it: what was asked for comes right after the first table.

    `causal`: the causal recall of the same models on the same text, where that is known. With
    `is_page` models are by perplexity, and all sources are shown.
    """

    kind = "gap"
    for_parquet_alone = ("by_document",)

    def __init__(
        self,
        comparison: Comparison,
        causal: Causal | None = None,
        *,
        is_page: bool = False,
    ) -> None:
        super().__init__(comparison.folder, comparison.tables, comparison.manifest)
        self.comparison = comparison
        self.causal = causal or {}
        self.most_sources = None if is_page else _MOST_SOURCES
        is_ranked = is_page or len(comparison.models) > _MOST_AS_TYPED
        self.rows = comparison.tables.ordered(comparison.models) if is_ranked else comparison.tables
        self.models: list[str] = self.rows.gap["model"].unique(maintain_order=True).to_list()
        self.labels: Mapping[str, Any] = comparison.manifest["slices"]
        self.hits = f"{comparison.hit}s"
        self.hits_at_first = self.hits[0].upper() + self.hits[1:]

    def brief(self) -> int:
        """Notes on figures come before notes on the text."""
        return min(console.MOST_NOTES, len(self._notes_on_figures()))

    def leading(self) -> int:
        """The first table, and what was asked for."""
        return len(self._first_tables())

    def draw(self, tables: Any) -> Sequence[Figure]:
        """The charts of the models in these tables."""
        return figures(self.comparison, tables.gap["model"].unique().to_list())

    def facts(self) -> dict[str, Any]:
        """The threshold, the warning, and what is special of models."""
        labels = {name: self.labels.get(name) for name in ("max_count", "threshold", "in_training")}
        special = ("prefixes", "inexact", "in_context")
        more = {name: self.manifest[name] for name in special if name in self.manifest}
        return {
            **labels,
            "warning": self.warning,
            **more,
            "clean": self.manifest.get("clean", False),
        }

    def measured(self) -> Sequence[Measured]:
        """Perplexities, recall gain, and what is retained of the reference's, which comes first."""
        return list(self._measured())

    def _measured(self) -> Iterator[Measured]:
        names = self.labels.get("names") or ["text"]
        text = ", ".join(map(bare, names[:_MOST_TEXTS]))
        hit, sides = (
            self.comparison.hit,
            [("reference", self.models[0]), *(("model", model) for model in self.models)],
        )
        for side, model in sides:
            every, hits = self._total(model, "all"), self._total(model, "ar_hit")
            name = every[side]
            yield Measured(name, "perplexity", "Perplexity", every[f"ppl_{side}"], text)
            if hits["tokens"]:
                ppl, gain = hits[f"ppl_{side}"], hits[f"gain_{side}"]
                yield Measured(name, "perplexity", f"Perplexity of {hit}s", ppl, text)
                yield Measured(name, "recall_gain", f"Recall gain on {hit}s", gain, text)
            if side == "model" and hits["retained"] is not None:
                yield Measured(
                    name,
                    "recall_retained",
                    f"Retained of the recall of {hits['reference']}",
                    hits["retained"],
                    text,
                )

    # ----------------------------------------------------------------------------------- the answer

    def answer(self) -> str:
        """What is retained, how far behind on AR hits, where the gap lies; or what was asked
        besides."""
        tables, totals = self.rows, self.comparison.totals
        if tables.by_price is not None:
            sentences = [price.answer(tables.by_price)]
        else:
            sentences = [in_short(self.comparison.reference, self.models, totals)]
        if tables.by_placebo is not None:
            sentences.append(placebo.in_a_sentence(tables.by_placebo, totals))
        if tables.by_divergence is not None:
            sentences.append(in_a_sentence(tables.by_divergence))
        return self._plain(" ".join(sentences))

    @cached_property
    def warning(self) -> str | None:
        """The warning of `counts_warning`."""
        if not self.comparison.has_counts:
            return None
        model = self.models[0]
        of_model = self.rows.by_threshold.filter(model=model)
        shares = of_model.select("threshold", "share_of_tokens").rows()
        share = self._total(model, "ar_hit")["share_of_tokens"]
        return counts_warning(self.labels, share, shares)

    def _plain(self, text: str) -> str:
        """The text with the names of the zoo's models without `zoo:`, where there are no others."""
        names = [self.comparison.reference, *self.models]
        return text.replace("zoo:", "") if all(name.startswith("zoo:") for name in names) else text

    def _total(self, model: str, slice_: str) -> dict[str, Any]:
        """The row of a model and slice, all sources together."""
        return self.comparison.totals[model, slice_]

    def _leads(self) -> str:
        """Which of the models have shares of a lead, after a space; empty if none has."""
        rows = [self._total(model, "all") for model in self.models]
        leads = [row["model"] for row in rows if not is_void(row) and row["delta_nll"] < 0]
        return shares_of_leads(leads)

    # ------------------------------------------------------------------------------------ the notes

    def notes(self) -> list[str]:
        """Why shares mean nothing, what is special of models and counts, bits per byte."""
        return [
            *self._notes_on_figures(),
            *(self._void_notes() if self._is_priced else ()),
            *(() if self.warning else about_counts(self.labels, None)),
            *self._bits_per_byte(),
        ]

    def _notes_on_figures(self) -> list[str]:
        return [
            *(() if self._is_priced else self._void_notes()),
            *other_prefixes(self.manifest["prefixes"]),
            *_noise_of_reading(self.manifest.get("reading", {})),
            *_inexact(self.manifest["inexact"]),
        ]

    def _void_notes(self) -> list[str]:
        return void_notes(self._total(model, "ar_hit") for model in self.models)

    def _bits_per_byte(self) -> list[str]:
        """One line: bits per byte, which compare models with different tokenizers. Empty if the
        bytes are not known."""
        rows = [self._total(model, "all") for model in self.models]
        if rows[0]["bpb_reference"] is None:
            return []
        pairs = [
            (rows[0]["reference"], rows[0]["bpb_reference"]),
            *((row["model"], row["bpb_model"]) for row in rows),
        ]
        return ["Bits per byte: " + ", ".join(f"{model} {bits:.3f}" for model, bits in pairs)]

    # ----------------------------------------------------------------------------------- the tables

    @property
    def _is_priced(self) -> bool:
        return self.rows.by_price is not None

    @cached_property
    def display_tables(self) -> dict[str, Table]:
        """Every table with numbers that has something to show, by file name, the gap first."""
        tables, labels = self.rows, self.labels
        has_counts = self.comparison.has_counts
        has_all_counts = has_counts and not labels["counts"].get(REPEATED_ONLY)
        by_name = {
            "gap": self._gap_table(),
            "causal": self._causal_table(),
            "thresholds": self._thresholds_table() if has_counts else None,
            "control": self._control_table(),
            "by_source": self._by_source_table(),
            "by_slice": self._by_slice_table(),
            "by_partition": self._partition_table() if has_all_counts else None,
        }
        if tables.by_context is not None:
            in_context = self.manifest.get("in_context")
            by_name["context_gain"] = gains_table(tables.by_context, in_context)
            by_name["by_context"] = far_table(tables.by_context)
        if tables.by_price is not None:
            by_name["by_price"] = price.price_table(tables.by_price)
        if tables.by_placebo is not None:
            by_name["by_placebo"] = placebo.placebo_table(tables.by_placebo, self.comparison.totals)
        if tables.by_divergence is not None:
            by_name["divergence"] = divergence_table(tables.by_divergence)
        return {name: table for name, table in by_name.items() if table is not None}

    def _first_tables(self) -> list[Table]:
        names = [name for name in self.display_tables if name in _ON_REQUEST]
        if self._is_priced:
            names.remove("gap")
        return [self.display_tables[name] for name in names]

    def terminal_tables(self) -> list[Table]:
        """What was asked for comes first."""
        first = self._first_tables()
        return [*first, *(table for table in self.display_tables.values() if table not in first)]

    @property
    def is_in_bits(self) -> bool:
        """Whether bits per byte take the place of perplexities, because tokenizers differ and
        the bytes are known."""
        every = self._total(self.models[0], "all")
        return bool(self.manifest["inexact"]) and every["bpb_reference"] is not None

    def first_rows(self) -> list[dict[str, Any]]:
        """A row for the reference and each model: that of its AR hits, with what the first table
        shows of other slices.

        `all`, `hits`, `other`: perplexities or bits per byte. `gain` of the row's own side.
        `repeated_gap_share`: that of all repeated bigrams.
        """
        quality = "bpb" if self.is_in_bits else "ppl"
        rows = []
        for model in (None, *self.models):
            side, known = ("reference", self.models[0]) if model is None else ("model", model)
            slices = ("all", "ar_hit", "other", "repeated")
            every, hits, other, repeated = (self._total(known, name) for name in slices)
            rows.append(
                {
                    **hits,
                    "is_reference": model is None,
                    "model": hits[side],
                    "all": every[f"{quality}_{side}"],
                    "hits": hits[f"{quality}_{side}"],
                    "other": other[f"{quality}_{side}"],
                    "delta_nll": every["delta_nll"],
                    **{f"gain{end}": hits[f"gain_{side}{end}"] for end in _ENDS},
                    "repeated_gap_share": None if is_void(repeated) else repeated["gap_share"],
                }
            )
        return rows

    def _gap_table(self) -> Table:
        """Perplexities, the gap, recall gain, what is retained, and where the gap lies.

        Of models with tokenizers of their own bits per byte, which compare them, if the bytes are
        known. A narrow terminal leaves out the perplexity of other tokens.
        """
        quality, form = ("Bits per byte", ".3f") if self.is_in_bits else ("Perplexity", ",.2f")
        has_counts = self.comparison.has_counts
        shares = "gap_share | share in/AR hits, %\n repeated_gap_share"
        if not has_counts:  # all repeated bigrams take the place of AR hits
            shares = "gap_share | share of the/gap, %"
        columns = f"""
            model
            all       | all       | {form}
            hits      | {"AR/hits" if has_counts else "rep."} | {form}
            other     | other     | {form} optional1
            delta_nll
            gain      | gain,/pts | z.1f
            retained
            {shares}
        """
        rows = cells.without_zoo(self.first_rows())
        rows[0] |= {
            "delta_nll": "",
            "retained": "reference",
            "gap_share": "",
            "repeated_gap_share": "",
            "void": False,
            "retained_ci_low": None,
            "gap_share_ci_low": None,
        }
        spans = [
            ("", 1),
            (quality.lower(), 3),
            ("", 1),
            ("recall", 2),
            ("share of the gap", 2 if has_counts else 1),
        ]
        title = f"{quality}, recall, and where the gap to the reference lies"
        return Table.from_rows(title, columns, rows, self._first_caption(), groups=spans)

    def _first_caption(self) -> str:
        """What the columns of the first table are, and what its figures depend on."""
        labels = self.labels
        slices = ("all", "ar_hit", "repeated")
        every, hits, repeated = (self._total(self.models[0], name) for name in slices)
        rare = what_is_rare(labels)
        tokens = percent(repeated["share_of_tokens"], 0)
        shares = f"All rep.: share in all repeated bigrams, {tokens} of tokens."
        if not self.comparison.has_counts:
            rare = (
                "Without training counts it is unknown which of them are rare (AR hits) and so "
                "hardly memorised; --train SOURCE gives the counts."
            )
            shares = "Share of the gap: the part that repeated bigrams (rep.) carry."
        has_none = every["delta_nll_ci_low"] is None
        intervals = "Intervals:" if has_none else "Brackets: 95 % intervals,"
        sentences = [
            (
                f"{self.hits_at_first} are {percent(hits['share_of_tokens'], 2)} of "
                f"{every['tokens']:,} tokens."
            ),
            rare,
            *what_of_training(labels, every["tokens"]),
            (
                f"Gain: p(token) on {self.hits} less p at the bigram's first occurrence, in "
                "points. Retained: gain in % of the reference's."
            ),
            shares,
            f"{intervals} {resampled(every)}.",
        ]
        caption = self._plain(" ".join(sentences) + self._leads())
        return "\n".join([caption, *(about_counts(labels, self.warning) if self.warning else ())])

    def _causal_table(self) -> Table | None:
        """Recall gain beside causal recall, where an intervention measured that."""
        rows = []
        for row in self.first_rows():
            if causal := self.causal.get(row["model"]):
                points = {f"points{end}": causal[f"points{end}"] for end in _ENDS}
                retained = {f"causal_retained{end}": causal.get(f"retained{end}") for end in _ENDS}
                rows.append({**row, **points, **retained})
        if not rows:
            return None
        for row in rows:
            if row["is_reference"]:
                row |= {
                    "retained": "reference",
                    "retained_ci_low": None,
                    "causal_retained": "reference",
                    "causal_retained_ci_low": None,
                }
        columns = """
            model
            gain            | recall gain
            points          | causal recall
            retained
            causal_retained
        """
        caption = (
            "Points of probability on AR hits. Causal recall: how much less probable sampled AR "
            "hits become when the earlier occurrences of their bigrams are broken up (recallkit "
            "intervene). Recall gain also includes what a repetition brings besides association: "
            "that the token is present, and how far back."
        )
        title = "Recall gain beside causal recall"
        return Table.from_rows(title, columns, cells.without_zoo(rows), caption)

    def _thresholds_table(self) -> Table:
        """What is retained and the share of the gap where bigrams up to other training counts
        are AR hits."""
        cuts = count_cuts(self.labels["max_count"])
        names = ("quarter", "half", "most", "double", "fourfold")
        thresholds = sorted({cuts[name] for name in names})
        rows: dict[str, list[Row]] = {model: [] for model in self.models}
        for row in self.rows.by_threshold.sort("threshold", maintain_order=True).to_dicts():
            if row["threshold"] in thresholds:
                rows[row["model"]].append(row)
        return _of_shares(
            "AR hits by threshold: retained recall / share of the gap, %",
            [f"up to {threshold:,}" for threshold in thresholds],
            "AR hits, of tokens",
            rows,
            f"Threshold: the largest training count that a bigram of AR hits may have. {_SLASH}",
        )

    def _control_table(self) -> Table:
        """How far each model is behind on AR hits, and the share of the gap beside its control."""
        columns = """
            model
            delta_nll | behind, nats        | z.2f ±
            gap_share | share of the gap, % | z.1f ± dash
            control_share
        """
        rows = [self._total(model, "ar_hit") for model in self.models]
        sentences = [
            (
                f"Control: the share that {self.hits} would carry if models differed on them as on "
                "the first occurrences of the same bigrams."
            ),
            "It is not subtracted.",
        ]
        if len(rows) > 1 and rows[0]["effective_clusters"] >= MIN_CLUSTERS:
            number = f"{len(rows):,} models (Holm)"
            sentences.append(f"Each gap is tested against zero, corrected for {number}.")
        what = "nats behind the reference, share of the gap, and its control"
        title = f"{self.hits_at_first}: {what}"
        return Table.from_rows(title, columns, rows, " ".join(sentences) + self._leads())

    def _by_source_table(self) -> Table | None:
        """What is retained and the share of the gap by source, the largest first; None if there
        is only one source."""
        rows, models = rows_by_slice(self.rows.gap), self.models
        of_first = [
            source for model, source, name in rows if (model, name) == (models[0], "ar_hit")
        ]
        sources = [source for source in of_first if source != "ALL"]
        if len(sources) < 2:
            return None
        tokens = {source: rows[models[0], source, "all"]["tokens"] for source in sources}
        largest = sorted(sources, key=lambda source: (-tokens[source], source))[: self.most_sources]
        pairs = [(model, source) for model in models for source in largest]

        def is_of_lead(model: str, source: str) -> bool:
            every, hits = (rows[model, source, name] for name in ("all", "ar_hit"))
            return not is_void(hits) and every["delta_nll"] < 0

        leads = [f"{model} in {source}" for model, source in pairs if is_of_lead(model, source)]
        by_model: dict[str, list[Row]] = {}
        for model in models:
            by_model[model] = [rows[model, source, "ar_hit"] for source in largest]
        hidden = len(sources) - len(largest)
        more = f" The Parquet file also has {counted(hidden, 'smaller source')}." if hidden else ""
        return _of_shares(
            f"{self.hits_at_first} by source: retained recall / share of the gap, %",
            [f"{source}\n{abbreviate(tokens[source])} tokens" for source in largest],
            f"{self.hits.removesuffix(' bigrams')}, of tokens",
            by_model,
            f"{_SLASH}{more}{shares_of_leads(leads)}",
        )

    def _by_slice_table(self) -> Table | None:
        """The requested slices, one row per slice and model; None if there are none."""
        standard = [*(slice_.name for slice_ in STANDARD), *HITS_OF_REPEATED]
        slices = self.rows.gap["slice"].unique(maintain_order=True)
        names = [name for name in slices if name not in standard]
        if not names:
            return None
        columns = """
            slice share_of_tokens model ppl_reference ppl_model
            retained         | retained,/%
            efficiency_model | recall effi-/ciency, % | z.1f optional1
            gap_share
        """
        rows = [self._total(model, name) for name in names for model in self.models]
        overlap = ""
        if len(names) > 1:
            overlap = "Slices may overlap, so shares need not add up to 100 %. "
        retained = "Retained: recall gain on the slice's tokens in % of the reference's."
        title = "Slices: retained recall and share of the gap"
        return Table.from_rows(title, columns, rows, f"{overlap}{retained}{self._leads()}")

    def _partition_table(self) -> Table:
        """Where the gap is: one column per class of PARTITION, with its share of tokens, and of
        each model's gap."""
        rows: dict[str, list[Row]] = {model: [] for model in self.models}
        for row in self.rows.by_partition.to_dicts():
            rows[row["model"]].append(row)
        lines = [
            [
                "share of tokens",
                *(cells.figure(row, "share_of_tokens") for row in rows[self.models[0]]),
            ]
        ]
        for model, some in rows.items():
            shares = [DASH if is_void(row) else percent(row["gap_share"]) for row in some]
            lines.append([model, *shares])
        rare = f"Rare: seen at most {self.labels['max_count']:,} times in training."
        return Table(
            (
                "Where the gap lies: tokens by what the context already contains and by the "
                "bigram's training count"
            ),
            ["model", *(class_.name.replace(" ", "\n") for class_ in PARTITION)],
            lines,
            (
                f"{rare} The first class is the AR hits. A model's shares add up to 100 "
                f"%.{self._leads()}"
            ),
        )


def _of_shares(
    title: str,
    headers: Sequence[str],
    first: str,
    rows: Mapping[str, Sequence[Row]],
    caption: str,
) -> Table:
    """What is retained and the share of the gap, `11 / 29`: a row per model, a column for each
    of its rows. The `first` row has the share of tokens."""
    some = next(iter(rows.values()))
    tokens = [first, *(cells.figure(row, "share_of_tokens") for row in some)]
    body = [[model, *map(_retained_and_share, of_model)] for model, of_model in rows.items()]
    return Table(title, ["model", *headers], [tokens, *body], caption)


def _retained_and_share(row: Row) -> str:
    """`11 / 29`, in %; a dash where one is not known or means nothing."""
    share = DASH if is_void(row) else f"{100 * row['gap_share']:z.0f}"
    return f"{cells.figure(row, 'retained', 'z.0f')} / {share}"


def what_of_training(labels: Mapping[str, Any], tokens: int) -> list[str]:
    """How much of the text is in the training text, if it is known, and how many of its tokens are
    left out for that, if any.

    `labels`: their manifest; `tokens`: the number of those compared.
    """
    copied, left_out, exactly = (
        what_is_copied(labels),
        labels.get("num_rows", tokens) - tokens,
        labels.get("read_exactly"),
    )
    sentences = [copied] if copied else []
    if exactly:
        sentences.append(
            f"Left out: {counted(left_out, 'token')}, among them the first {exactly:,} of every "
            "sequence, which a variant reads exactly."
        )
    elif left_out:
        sentences.append(f"Left out (--clean): the {counted(left_out, 'token')} that are in it.")
    return sentences


def void_notes(rows: Iterable[Row]) -> list[str]:
    """Why shares mean nothing, a line for all models of which it holds; of each its row of AR
    hits."""
    models: dict[str, list[str]] = {}
    for row in rows:
        if row["note"]:
            models.setdefault(row["note"], []).append(row["model"])
    why = "no meaningful share of the gap"
    return [f"{some_of(names)}: {why}: {note}" for note, names in models.items()]


def _noise_of_reading(readings: Mapping[str, Sequence[float]]) -> list[str]:
    """A line of what reading in chunks alone changes in a sequence, at most of all variants, if
    it changes anything."""
    most = max((largest for largest, _ in readings.values()), default=0.0)
    mean = max((mean for _, mean in readings.values()), default=0.0)
    what = "reading in chunks with nothing compressed changes NLLs"
    return [f"Noise: {what} by up to {most:.1e} nats, on average by {mean:.1e}"] if most else []


def _inexact(shares: Mapping[str, Any]) -> list[str]:
    """A line for each model with a tokenizer of its own: how much of the text it splits
    elsewhere."""
    lines = []
    for model, share in shares.items():
        hits = f", {percent(share['ar_hit'])} of AR hits" if share.get("ar_hit") is not None else ""
        elsewhere = (
            f"{percent(share['all'])} of tokens{hits} do not begin and end where its tokens do"
        )
        lines.append(f"{model}: another tokenizer; {elsewhere}")
    return lines
