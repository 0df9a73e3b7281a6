"""A published table of perplexities, attributed without the models: each row is `model, all, ar,
other`.

The share of AR hits, which papers state rarely and not always correctly, follows from the
reference's own three perplexities. These are rounded in print, so each share has a range: all the
values that the unrounded perplexities could give. The tables that the papers print are in
`recallkit/data/papers`, one CSV each: figures only, with the digits as printed.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.display.notebook import NotebookResult
from recallkit.errors import UserError, lacks_resources
from recallkit.measure.shares import NO_GAP

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import polars as pl

REFERENCE = "reference"
NO_AR_PERPLEXITY = "no perplexity on AR hits"
ROUNDED_AWAY = "rounding hides which of the two is better"
MISSTATED = "no rounding of these figures gives the stated share"
_FAULT = "one is wrong, or is of other tokens"
_UNEXPLAINED = "which rounding does not explain"
MISFIT = f"its own perplexities imply {{:.1f}} % of AR hits, {_UNEXPLAINED}: {_FAULT}"
MODEL_BETTER = "model is better than the reference overall: shares are of its lead"
WORSE_ON_HITS = "negative share: model is worse on AR hits"
WORSE_ON_OTHER = "share above 100 %: model is worse on the other tokens"
BETTER_ON_HITS = "negative share: model is better on AR hits"
BETTER_ON_OTHER = "share above 100 %: model is better on the other tokens"

Range = tuple[float | None, float | None]

_OF_HITS = "perplexity of AR hits and other tokens on the Pile"

TABLES = {
    "zoology:1": f"{_OF_HITS}, and the share of the gap, at 125M and 360M parameters",
    "zoology:2": "the same of BaseConv with attention at selected positions",
    "zoology:3": "the same of Liquid S4",
    "zoology:4": "the same of all models, at 70M, 125M and 360M parameters",
    "zoology:5": "the same at 1.4B parameters",
    "based:1": f"throughput, {_OF_HITS}, recall and common-sense accuracy",
    "based:2": "common-sense tasks",
    "based:3": "SuperGLUE with 0, 1 and 5 examples",
    "based:4": "perplexity of DNA at three sequence lengths",
    "based:5": "classification of DNA",
    "based:6": "ablations of Based: perplexities and recall",
    "yun:1": "copying by sparse pattern and layers, in both directions",
    "yun:2": "the same, causal",
}
"""Paper and number -> what the table is of: Zoology (arXiv 2312.04927), Based (2402.18668), and
Yun et al. 2020 (2006.04862)."""

_NAME = re.compile(r"(zoology|based|yun):\S+")

_COLUMNS = "the columns are model, all, ar, other"


@dataclass(frozen=True, slots=True)
class PublishedGroup:
    """Rows that are compared with one reference; `ar_share` is the fraction of AR hits among
    tokens on which their shares are based."""

    name: str
    reference: str
    ar_share: float


@dataclass(frozen=True, slots=True, repr=False)
class PublishedGap(NotebookResult):
    """The attribution of a published table, group by group: a table without a column `group` is
    one group, whose name is "".

    frame: one row per model, in the table's order: group; model; all, ar, other (perplexities, as
    given); implied_ar_share (fraction of tokens, from the row's own three perplexities); gap_share
    and gap_share_clipped (fractions of the gap to the reference, null on its own row);
    gap_share_low, gap_share_high (what the perplexities before rounding can give; null where
    rounding hides which model is better); printed (the share that the table itself states, a
    fraction); void (whether the share means nothing, as rounding hides which of the two is better);
    note.
    """

    frame: pl.DataFrame
    groups: tuple[PublishedGroup, ...]


@dataclass(frozen=True, slots=True)
class _Printed:
    """A perplexity, and half a unit of its last printed digit."""

    value: float
    half: float

    def ends(self) -> tuple[float, float]:
        return self.value - self.half, self.value + self.half


@dataclass(frozen=True, slots=True)
class _Row:
    group: str
    model: str
    all: _Printed
    ar: _Printed | None
    other: _Printed | None
    printed: float | None

    @property
    def implied(self) -> float | None:
        """The share of AR hits among tokens by these three perplexities, None without them."""
        if self.ar is None or self.other is None:
            return None
        return implied_ar_share(self.all.value, self.ar.value, self.other.value)


def is_name(text: str) -> bool:
    """Whether a text names a paper's table (`zoology:4`), not a file."""
    return _NAME.fullmatch(text) is not None


def table_path(name: str) -> Path:
    """The CSV of a paper's table. Raises UserError for one that is not there."""
    if name not in TABLES:
        remedy = f"give one of {', '.join(TABLES)}, or a file"
        raise UserError("no such table", where=name, remedy=remedy)
    folder = Path(str(resources.files("recallkit"))) / "data" / "papers"
    return folder / f"{name.replace(':', '-')}.csv"


def read_table(name: str) -> pl.DataFrame:
    """A paper's table with figures as numbers: perplexities, accuracies and shares in percent,
    an empty field null.

    Raises UserError for one that is not there.
    """
    import polars as pl

    return pl.read_csv(table_path(name), infer_schema_length=None)


def attribute_published(
    table: Path,
    *,
    reference: str | None = None,
    ar_share: float | None = None,
) -> PublishedGap:
    """Attributes the gaps in `table` (CSV; `other` may be empty) to the row
    `reference`, or to the first, of each group.

    With p the share of AR hits among tokens, log all = p log ar + (1 - p) log other. p is solved on
    the reference's row unless `ar_share` (a fraction) gives it; a model's share of the gap in AR
    hits is then p (log ar - log ar_ref) / (log all - log all_ref) (Zoology section 3.1 and appendix
    C.1). Two more columns are optional: `group`, by which rows are compared, and `printed`, the
    share in percent that the table states.

    Raises UserError for a table without the necessary columns or rows, perplexities that are not
    positive numbers, a reference that is not in the table or lacks what p needs, and a p outside
    (0, 1).
    """
    rows = _read_rows(table)
    groups, frame = [], []
    for name in dict.fromkeys(row.group for row in rows):
        members = [row for row in rows if row.group == name]
        first = _find_reference(table, members, reference)
        share = _share_of_tokens(table, first, ar_share)
        groups.append(PublishedGroup(name, first.model, share))
        is_exact = ar_share is not None
        frame += [_attribute(row, first, share, is_exact=is_exact) for row in members]
    return PublishedGap(_frame(frame), tuple(groups))


def implied_ar_share(ppl_all: float, ppl_ar: float, ppl_other: float) -> float | None:
    """The share p of AR hits among tokens with log all = p log ar + (1 - p) log other; None
    where ar equals other."""
    spread = math.log(ppl_ar) - math.log(ppl_other)
    return None if spread == 0 else (math.log(ppl_all) - math.log(ppl_other)) / spread


def _share_of_tokens(table: Path, row: _Row, ar_share: float | None) -> float:
    """p as it is stated, or as the reference's row implies it."""
    remedy = "give it as a fraction: 0.07 for 7 %"
    if ar_share is None:
        ar_share = row.implied
        order = "all lies between ar and other"
        remedy = f"check the perplexities of {row.model} ({order}), or give --ar-share"
    if ar_share is None:
        problem = "ar and other are equal"
        if row.ar is None:
            problem = "no perplexity in column ar"
        elif row.other is None:
            problem = "no perplexity in column other"
        problem = f"row {row.model}: {problem}, so the share of AR hits cannot be derived"
        remedy = "fill it in, or give the share with --ar-share"
        raise UserError(problem, where=table, remedy=remedy)
    if not 0 < ar_share < 1:
        problem = f"the share of AR hits is {ar_share:.4g}, not between 0 and 1"
        raise UserError(problem, where=table, remedy=remedy)
    return ar_share


def _attribute(row: _Row, reference: _Row, ar_share: float, *, is_exact: bool) -> dict[str, Any]:
    """The row of the frame. `is_exact`: whether `ar_share` is not derived from rounded
    perplexities."""
    result: dict[str, Any] = {
        "group": row.group,
        "model": row.model,
        "all": row.all.value,
        "ar": row.ar and row.ar.value,
        "other": row.other and row.other.value,
        "implied_ar_share": row.implied,
        "printed": row.printed,
        "void": False,
    }
    if row is reference:
        return result | {"note": REFERENCE}
    if row.ar is None or reference.ar is None:
        return result | {"note": NO_AR_PERPLEXITY}
    gap = math.log(row.all.value) - math.log(reference.all.value)
    low, high = _range_of_share(row, reference, ar_share if is_exact else None)
    share = _share(ar_share, *(one.value for one in (row.all, row.ar, reference.all, reference.ar)))
    is_void = gap != 0 and _may_be_equal(row, reference)
    notes = [ROUNDED_AWAY] if is_void else _which_is_better(gap, share, low, high)
    if row.implied is not None and _contradict(row, reference):
        notes.append(MISFIT.format(100 * row.implied))
    if row.printed is not None and low is not None and high is not None:
        ends = [clipped_share(gap, end) or 0.0 for end in (low, high)]
        if not min(ends) <= row.printed <= max(ends):
            notes.append(MISSTATED)
    return result | {
        "gap_share": share,
        "gap_share_low": low,
        "gap_share_high": high,
        "gap_share_clipped": clipped_share(gap, share),
        "void": is_void,
        "note": "; ".join(notes),
    }


def _which_is_better(
    gap: float,
    share: float | None,
    low: float | None,
    high: float | None,
) -> list[str]:
    """Where a model is better, by its gap in nats and a share that no rounding brings into 0 to
    1."""
    if share is None:
        return [NO_GAP]
    notes = [] if gap > 0 else [MODEL_BETTER]
    if share < 0 and (high is None or high < 0):
        notes.append(BETTER_ON_HITS if gap > 0 else WORSE_ON_HITS)
    if share > 1 and (low is None or low > 1):
        notes.append(BETTER_ON_OTHER if gap > 0 else WORSE_ON_OTHER)
    return notes


def clipped_share(gap: float, share: float | None) -> float | None:
    """The share as the papers report it: at most 1, and 1 of a lead despite a loss on AR hits.

    A negative share of a positive gap stays negative: the papers clip above only (Zoology, appendix
    C.1). None without a share, that is, if there is no gap.
    """
    if share is None:
        return None
    return 1.0 if gap < 0 and share < 0 else min(share, 1.0)


def _share(
    ar_share: float | None,
    ppl: float,
    ar: float,
    reference_ppl: float,
    reference_ar: float,
) -> float | None:
    """The fraction of the gap in AR hits; None without a gap, or a share of AR hits among
    tokens."""
    gap = math.log(ppl) - math.log(reference_ppl)
    if gap == 0 or ar_share is None:
        return None
    return ar_share * (math.log(ar) - math.log(reference_ar)) / gap


def _may_be_equal(row: _Row, reference: _Row) -> bool:
    """Whether rounding hides which of two models is better."""
    (low, high), (reference_low, reference_high) = row.all.ends(), reference.all.ends()
    return low <= reference_high and reference_low <= high


def _range_of_share(row: _Row, reference: _Row, ar_share: float | None) -> Range:
    """Of the share before rounding; with `ar_share` None that is derived from the reference's
    perplexities before rounding, too."""
    if _may_be_equal(row, reference):
        return None, None
    four = [row.all, row.ar, reference.all, reference.ar]
    if ar_share is not None:
        return _range(lambda *values: _share(ar_share, *values), four)
    five = [*four, reference.other]
    return _range(lambda *values: _share(implied_ar_share(*values[2:]), *values[:4]), five)


def _contradict(row: _Row, reference: _Row) -> bool:
    """Whether two rows imply different shares of AR hits, however they were rounded."""
    low, high = _range(implied_ar_share, [row.all, row.ar, row.other])
    least, most = _range(implied_ar_share, [reference.all, reference.ar, reference.other])
    if low is None or high is None or least is None or most is None:
        return False
    return max(low, least) > min(high, most)


def _range(function: Callable[..., float | None], printed: Sequence[_Printed | None]) -> Range:
    """The least and the greatest value of a function of perplexities, within their rounding.

    None where a perplexity is not known.
    """
    known = [perplexity for perplexity in printed if perplexity is not None]
    if len(known) < len(printed):
        return None, None
    corners = itertools.product(*(perplexity.ends() for perplexity in known))
    values = [value for corner in corners if (value := function(*corner)) is not None]
    return min(values), max(values)


def _frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    import polars as pl

    shares = ("gap_share", "gap_share_low", "gap_share_high", "gap_share_clipped", "printed")
    figures = ("all", "ar", "other", "implied_ar_share", *shares)
    schema = dict.fromkeys(("group", "model"), pl.String) | dict.fromkeys(figures, pl.Float64)
    return pl.DataFrame(rows, schema=schema | {"void": pl.Boolean, "note": pl.String})


def _find_reference(table: Path, rows: Sequence[_Row], name: str | None) -> _Row:
    for row in rows:
        if name in (None, row.model):
            return row
    group = f" of group {rows[0].group}" if rows[0].group else ""
    remedy = f"name one of {', '.join(row.model for row in rows)}"
    raise UserError(f"no row of model {name}{group}", where=table, remedy=remedy)


def _read_rows(table: Path) -> list[_Row]:
    """The rows of `table`, checked."""
    frame = _read_frame(table)
    for column in ("model", "all", "ar"):
        if column not in frame.columns:
            problem = f"no column {column} (found: {', '.join(frame.columns)})"
            raise UserError(problem, where=table, remedy=_COLUMNS)
    if frame.is_empty():
        remedy = "give one row per model: model, all, ar, other"
        raise UserError("no rows", where=table, remedy=remedy)
    rows: dict[tuple[str, str], _Row] = {}
    for line in frame.iter_rows(named=True):
        group, model = (str(line.get(column) or "").strip() for column in ("group", "model"))
        if not model:
            problem = f"row {len(rows) + 1} has no model"
            raise UserError(problem, where=table, remedy="name the model of each row")
        if (group, model) in rows:
            problem = f"two rows of model {model}"
            raise UserError(problem, where=table, remedy="keep one, or rename one")
        columns = ("all", "ar", "other", "printed")
        total, hits, other, printed = (_positive(table, model, name, line) for name in columns)
        if total is None:
            problem = f"row {model}: no perplexity in column all"
            raise UserError(problem, where=table, remedy="fill it in, or leave the row out")
        share = None if printed is None else printed.value / 100
        rows[group, model] = _Row(group, model, total, hits, other, share)
    return list(rows.values())


def _positive(table: Path, model: str, column: str, line: Mapping[str, Any]) -> _Printed | None:
    """The number in a field; None if it is empty."""
    text = (line.get(column) or "").strip()
    if not text:
        return None
    is_number = re.fullmatch(r"(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", text, re.ASCII | re.IGNORECASE)
    if not is_number or not 0 < float(text) < math.inf:
        remedy = "shares are in percent" if column == "printed" else "perplexities are above 0"
        problem = f"row {model}: {column} is {text!r}, not a positive number"
        raise UserError(problem, where=table, remedy=remedy)
    digits, _, exponent = text.lower().partition("e")
    step = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return _Printed(float(text), step / 2)


def _read_frame(table: Path) -> pl.DataFrame:
    """The table as text, with column names in lower case."""
    import polars as pl

    remedy = "give a CSV file"
    try:
        frame = pl.read_csv(table, infer_schema=False, glob=False)
    except FileNotFoundError:
        raise UserError("no such file", where=table, remedy=remedy) from None
    except (pl.exceptions.PolarsError, OSError) as error:
        if lacks_resources(error):
            raise
        raise UserError(f"not a readable table ({error})", where=table, remedy=remedy) from error
    names = {name: name.strip().lower() for name in frame.columns}
    if len(set(names.values())) < len(names):
        raise UserError("two columns with the same name", where=table, remedy=_COLUMNS)
    return frame.rename(names)
