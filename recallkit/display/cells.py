"""Figures as text, the same wherever they are read: numbers, shares, intervals, durations,
curves; and the cells of tables' columns."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from recallkit.config import MIN_CLUSTERS
from recallkit.storage.schemas import declared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from recallkit.storage.schemas import Column

    Row = Mapping[str, Any]
    SomeRow = TypeVar("SomeRow", bound=Mapping[str, Any])

DASH = "–"
"""In place of a figure that there is none of."""
MANY = 50
"""Documents from which on intervals cover also where a minority differs (docs/intervals.md)."""
_BLOCKS = "▁▂▃▄▅▆▇█"
_MOST_LEADS = 12
_MINUTE, _HOUR = 60, 3600


class Struck(str):
    """A cell whose figure means nothing: struck out, in plain text in brackets. A note beside the
    table says why."""

    __slots__ = ()


# ------------------------------------------------------------------------------------------ figures


def some_of(names: Sequence[str], most: int = 4) -> str:
    """The names, joined with commas; of more than `most` the first ones and how many there are
    besides: `a, b, c, d and 7 more`."""
    more = len(names) - most
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:most])} and {more:,} more"


def abbreviate(number: float) -> str:
    """1234567 -> 1.23M: three digits for people."""
    number = float(f"{number:.3g}")
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def size(number: float | None) -> str:
    """1234567 -> 1.23 MB, in powers of 1,000; a dash for None."""
    if number is None:
        return DASH
    text = abbreviate(number)
    return f"{text[:-1]} {text[-1]}B" if text[-1].isalpha() else f"{text} B"


def or_dash(value: float | None, form: str) -> str:
    """The value in a format such as `,` or `.2f`; a dash for None."""
    return DASH if value is None else format(value, form)


def percent(share: float | None, digits: int = 1) -> str:
    """0.0703 -> 7.0 %; a dash for None."""
    return DASH if share is None else f"{100 * share:z.{digits}f} %"


def percent_range(low: float | None, high: float | None, digits: int = 1) -> str:
    """0.0703, 0.08 -> 7.0 to 8.0 %; a dash if an end is None."""
    return (
        DASH
        if low is None or high is None
        else f"{100 * low:z.{digits}f} to {percent(high, digits)}"
    )


def share_range(shares: Iterable[float], digits: int = 1) -> str:
    """0.08, 0.0703 -> 7.0 to 8.0 %: the least to the largest, one figure if they read alike."""
    low, high = min(shares := list(shares)), max(shares)
    least = percent(low, digits)
    return least if least == percent(high, digits) else percent_range(low, high, digits)


def bounds(low: float | None, high: float | None, form: str = "z.2f") -> str:
    """0.071, 0.08 -> 0.07 to 0.08; a dash if an end is None."""
    return DASH if low is None or high is None else f"{low:{form}} to {high:{form}}"


def span(low: int, high: int) -> str:
    """3, 4 -> 3 to 4; 0, 0 -> 0."""
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def counted(number: int, noun: str) -> str:
    """1 -> 1 token, 1203 -> 1,203 tokens."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def duration(seconds: float) -> str:
    """0.0123 -> 0.01 s, 12.34 -> 12.3 s, 754 -> 12 min 34 s, 7500 -> 2 h 5 min."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    if round(seconds, 1) < _MINUTE:
        return f"{seconds:.1f} s"
    if round(seconds) < _HOUR:
        return f"{round(seconds) // _MINUTE} min {round(seconds) % _MINUTE} s"
    minutes = round(seconds / _MINUTE)
    return f"{minutes // 60:,} h {minutes % 60} min"


def sparkline(
    values: Sequence[float | None], low: float | None = None, high: float | None = None
) -> str:
    """A curve in a line of text: one block per value, higher for larger values, from `low` to
    `high` (default: their own extremes).

    A missing value is a space. Values that are all equal are drawn at half height.
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return " " * len(values)
    least, most = (min(known) if low is None else low), (max(known) if high is None else high)

    def block(value: float) -> str:
        height = (value - least) / (most - least) if most > least else 0.5
        return _BLOCKS[min(len(_BLOCKS) - 1, max(0, int(height * len(_BLOCKS))))]

    return "".join(
        " " if value is None or not math.isfinite(value) else block(value) for value in values
    )


def powers_of_two(highs: Sequence[int]) -> list[int]:
    """The largest values of all buckets between the first and the last of `highs`, which are
    powers of two, or 0."""
    last, buckets = max(highs, default=0), []
    power = min(highs, default=1)
    while power <= last:
        buckets.append(power)
        power = 2 * power or 1
    return buckets


# ------------------------------------------------------------------------------------------ columns


def cell(row: Row, column: Column) -> str:
    """The text of a column in a row: text as it is, a figure in the column's form, a dash for
    none."""
    value, (form, *options) = row[column.name], column.form.split() or [""]
    if "to" in options:
        value = _interval(row, column, form)
    if value is None:
        return DASH
    text = value if isinstance(value, str) else _figure(value, column, form)
    if "±" in options and (within := _interval(row, column, form)):
        text += f" ({within})"
    if row.get("void") and "dash" in options:
        return DASH
    return Struck(text) if row.get("void") and "struck" in options else text


def _figure(value: float, column: Column, form: str) -> str:
    if form == "size":
        return size(value)
    if form == "amount":
        return abbreviate(value)
    return f"{column.scale * value:{form}}" + " %" * (column.unit == "share")


def _interval(row: Row, column: Column, form: str) -> str | None:
    """`0.08 to 0.15`, None where there is none."""
    low, high = (row.get(f"{column.name}{end}") for end in ("_ci_low", "_ci_high"))
    if low is None or high is None:
        return None
    return bounds(column.scale * low, column.scale * high, form)


def figure(row: Row, name: str, form: str | None = None) -> str:
    """A figure in a sentence, as the tables show it or in another form."""
    column = declared(name)
    return cell(row, column if form is None else column._replace(form=form))


def without_zoo(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a table, the names of their models without `zoo:` where all have that."""
    every = all(row["model"].startswith("zoo:") for row in rows)
    return [{**row, "model": row["model"].removeprefix("zoo:" if every else "")} for row in rows]


# ---------------------------------------------------------------------------------------- sentences


def resampled(row: Row, units: str = "cluster", noun: str | None = None, which: str = "") -> str:
    """What intervals resample, from the columns CLUSTERs and effective_CLUSTERs: `a bootstrap over
    75 documents (effective number 71.2)`.

    With effectively fewer than MIN_CLUSTERS units there is no interval. With fewer than MANY the
    sentence adds how rare a kind of text can be and yet be missing from the sample, which no
    resample shows: it is absent from more than one in twenty samples of that size.
    """
    number, effective, noun = row[f"{units}s"], row[f"effective_{units}s"], noun or row[units]
    if effective < MIN_CLUSTERS:
        return f"none ({too_few(None, effective, f'{noun}s{which}')})"
    rare = math.ceil(1 / -math.expm1(math.log(0.05) / number)) if number else 0
    missing = (
        f"; kinds of text rarer than one {noun} in {rare} may be missing"
        if 1 < number < MANY
        else ""
    )
    return (
        f"a bootstrap over {counted(number, noun)}{which} (effective number "
        f"{effective:,.1f}){missing}"
    )


def too_few(what: str | None, effective: float, units: str = "documents") -> str:
    """Why there is no interval: `AR hits come from effectively 4.5 documents; 5 are needed`.
    4.97 are 4.9, not 5.0."""
    whose = "" if what is None else f"{what} come from "
    return (
        f"{whose}effectively {min(effective, MIN_CLUSTERS - 0.1):.1f} {units}; {MIN_CLUSTERS} "
        "are needed"
    )


def interval_phrase(low: float | None, high: float | None) -> str:
    """0.07, 0.08 -> `95 % interval 7.0 to 8.0 %`; without one it says so."""
    return (
        "no interval"
        if low is None or high is None
        else f"95 % interval {percent_range(low, high)}"
    )


def difference_phrase(difference: float, low: float | None, high: float | None) -> str:
    """-0.3, -0.4, -0.2 -> `30.0 points fewer, 95 % interval 20.0 to 40.0`; where the interval
    contains 0 it says so."""
    said = (
        f"{100 * abs(difference):.1f} points {'more' if difference > 0 else 'fewer'}"
        if difference
        else "as many"
    )
    if low is None or high is None:
        return f"{said}, no interval"
    if low <= 0 <= high:
        return (
            f"{said}{', not significant' if difference else ''}: 95 % interval {100 * low:+.1f} "
            f"to {100 * high:+.1f}"
        )
    ends = sorted((abs(low), abs(high)))
    return f"{said}, 95 % interval {100 * ends[0]:.1f} to {100 * ends[1]:.1f}"


def shares_of_leads(leads: Iterable[str]) -> str:
    """Which of the shares shown are of a lead, named by model or source, once each, after a
    space; empty if none is."""
    names = list(dict.fromkeys(leads))
    return f" Shares of a lead, not a gap: {some_of(names, _MOST_LEADS)}." if names else ""


def extremes(values: Mapping[str, float], form: Callable[[float], str]) -> str:
    """The range of a figure over models, with those at its ends: `1 % (rwkv) to 100 % (hybrid)`;
    one if all read alike.

    The one rule of ranges: over all models of which the figure is known, none left out or clipped.
    """
    least, most = (end(values, key=lambda model: values[model]) for end in (min, max))
    low, high = form(values[least]), form(values[most])
    if low == high:
        return low
    return f"{low} ({least}) to {high} ({most})"


def nearest_and_farthest(rows: Sequence[SomeRow], column: str) -> list[SomeRow]:
    """The rows with the least and the largest absolute value in a column; all if there are at
    most two."""
    placed = sorted(rows, key=lambda row: abs(row[column]))
    return placed if len(placed) <= 2 else [placed[0], placed[-1]]


def made_earlier(timings: Mapping[str, Any], did: str) -> str:
    """`, scored on cpu on 26 November 2026`, without what is not known."""
    if "ended" not in timings:
        return ""
    ended = datetime.fromisoformat(timings["ended"])
    where = f" on {timings['device']}" if timings.get("device") else ""
    return f", {did}{where} on {ended.day} {ended:%B %Y}"


def timings_lines(
    timings: Mapping[str, Any] | None, did: str, *, is_reused: bool = False
) -> list[str]:
    """`Took 12.3 s: slicing 10.1 s (1.2M tokens/s), labelling 2.2 s (5.6M tokens/s).`; empty if
    nothing is known.

    Of what was reused `Reused, scored on cpu on 26 November 2026.`, where `did` is "scored".
    """
    if is_reused:
        return [f"Reused{made_earlier(timings or {}, did)}."]
    end, stages = "_per_second", []
    if timings is None or not timings["stages"]:
        return []
    for stage, facts in timings["stages"].items():
        rates = ", ".join(
            f"{abbreviate(rate)} {key.removesuffix(end)}/s"
            for key, rate in facts.items()
            if key.endswith(end)
        )
        stages.append(f"{stage} {duration(facts['seconds'])}" + (f" ({rates})" if rates else ""))
    rest = "; the time of an interrupted run is not included" if timings.get("resumed") else ""
    return [f"Took {duration(timings['seconds'])}: {', '.join(stages)}{rest}."]
