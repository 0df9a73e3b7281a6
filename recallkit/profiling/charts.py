"""What a text repeats, in the manner of Zoology's Figures 3 to 5: how much by source, at what distance, at what position.

At most `MOST_SOURCES` are drawn, the largest by tokens; captions name the others, the tables contain all.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from recallkit.display.chart_parts import FULL, MOST_SOURCES, labels, layered, name_axis, not_drawn
from recallkit.display.chart_theme import HEIGHT, WIDTH, Figure, model_colours
from recallkit.profiling.power_law import power_law_masses

if TYPE_CHECKING:
    import altair as alt
    import polars as pl

    from recallkit.display.chart_theme import Chart, Palette
    from recallkit.profiling.tables import ProfileTables

_ALL = "ALL"
_BUCKETS_PER_OCTAVE = 2
_ROW_HEIGHT = 24


def profile_figures(tables: ProfileTables, seq_len: int) -> list[Figure]:
    """The pictures for which the tables have enough data."""
    sources = drawn_sources(tables)
    rest = not_drawn(tables.profile["source"].to_list()[1 + len(sources) :]) if sources else ""
    figures = [
        Figure(
            "repeated_bigrams",
            "Repeated bigrams a sequence",
            f"Tokens in {seq_len:,} that complete a bigram which stood earlier in the sequence, stop words and punctuation left out, with "
            f"95 % intervals; the tick counts a bigram once a sequence.{rest}",
            partial(_draw_bigrams, tables, sources),
        ),
        Figure(
            "distances",
            "How far back a repeated bigram last stood",
            f"Share of the distances at each distance, in half octaves; lines: power laws fitted to the tails. Points fall "
            f"below them at the end, for few tokens of a sequence have so many before them.{rest}",
            partial(_draw_distances, tables, sources),
        ),
        Figure(
            "repeated_by_position",
            "Repeated tokens by position",
            f"Share of the tokens at each position of a sequence that complete a repeated bigram, of whatever tokens.{rest}",
            partial(_draw_positions, tables, sources, "repeated_share", "repeated tokens"),
        ),
    ]
    if tables.profile["ar_hits"].null_count() == 0:
        caption = f"Share of the tokens at each position of a sequence that are AR hits: repeated, and rare in training.{rest}"
        draw = partial(_draw_positions, tables, sources, "ar_hit_share", "AR hits")
        figures.append(Figure("ar_hits_by_position", "AR hits by position", caption, draw))
    drawable = {"distances": tables.distances["content"].sum() > 0}
    return [figure for figure in figures if drawable.get(figure.name, True)]


def drawn_sources(tables: ProfileTables) -> list[str]:
    """The largest sources, in the order of the table; none if there is only one, which equals ALL."""
    sources = tables.profile["source"].to_list()[1:]
    return sources[:MOST_SOURCES] if len(sources) > 1 else []


def _draw_bigrams(tables: ProfileTables, sources: list[str], palette: Palette) -> Chart:
    import altair as alt
    import polars as pl

    names = labels([_ALL, *sources])
    rows = [_bar(row, names) for row in tables.profile.to_dicts() if row["source"] in names]
    y, room = name_axis(list(names.values()), "source", "source")
    base = alt.Chart(pl.DataFrame(rows)).encode(y=y)
    x = alt.X("repeated:Q", axis=alt.Axis(title="repeated bigrams a sequence", tickCount=4, format="~s"))
    bars = base.mark_bar(height=13).encode(x=x, color=alt.condition(alt.datum.is_all, alt.value(palette.rest), alt.value(palette.hits)))
    known = alt.datum.low != None  # noqa: E711  (an expression of Vega, not of Python)
    whiskers = base.transform_filter(known).mark_rule(color=palette.ink, strokeWidth=1.5).encode(x="low:Q", x2="high:Q")
    distinct = base.mark_tick(color=palette.ink, thickness=2, height=13).encode(x="distinct:Q")
    return layered(bars, whiskers, distinct, width=FULL - room, height=max(2, len(rows)) * _ROW_HEIGHT)


def _bar(row: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    bounds = {"low": row["repeated_bigrams_ci_low"], "high": row["repeated_bigrams_ci_high"]}
    shown = {"source": names[row["source"]], "is_all": row["source"] == _ALL}
    return {**shown, "repeated": row["repeated_bigrams"], "distinct": row["distinct_bigrams"], **bounds}


def _draw_distances(tables: ProfileTables, sources: list[str], palette: Palette) -> Chart:
    import altair as alt
    import polars as pl

    names = labels([_ALL, *sources])
    points = [{**point, "source": shown} for name, shown in names.items() for point in _points(tables.distances, name)]
    lines = [{**point, "source": shown} for name, shown in names.items() for point in _line(tables.fits, name)]
    x = alt.X(
        "distance:Q",
        scale=alt.Scale(type="log", base=2, nice=False, padding=6),
        axis=_powers("tokens back to the latest occurrence", points),
    )
    y = alt.Y("share:Q", scale=alt.Scale(type="log", nice=False, padding=6), axis=_decades("share at each distance", points))
    colour = _colours(list(names.values()), palette)
    dots = alt.Chart(pl.DataFrame(points)).mark_circle(size=22, opacity=0.85).encode(x=x, y=y, color=colour)
    fitted = (
        alt.Chart(pl.DataFrame(lines, schema={"source": pl.String, "distance": pl.Float64, "share": pl.Float64}))
        .mark_line(strokeWidth=1.3)
        .encode(x=x, y=y, color=colour, detail="source:N")
    )
    return layered(fitted, dots, width=WIDTH, height=HEIGHT + 40)


def _powers(title: str, points: list[dict[str, Any]]) -> alt.Axis:
    import altair as alt

    longest = max((point["distance"] for point in points), default=1)
    return alt.Axis(title=title, values=[4**exponent for exponent in range(10) if 4**exponent <= 2 * longest], format=",d", grid=False)


def _decades(title: str, points: list[dict[str, Any]]) -> alt.Axis:
    import altair as alt

    least = min((point["share"] for point in points), default=1.0)
    return alt.Axis(title=title, values=[10.0**-exponent for exponent in range(10) if 10.0**-exponent >= least / 10], format="~%")


def _points(distances: pl.DataFrame, source: str) -> list[dict[str, Any]]:
    """The share of a source's distances of content bigrams at each distance of a bucket, at the bucket's geometric middle."""
    import numpy as np

    own = distances.filter(distances["source"] == source)
    distance, counted = own["distance"].to_numpy(), own["content"].to_numpy()
    if not counted.sum():
        return []
    octaves = np.log2(distance.max()) + 1
    edges = np.unique(np.round(2 ** (np.arange(_BUCKETS_PER_OCTAVE * octaves + 1) / _BUCKETS_PER_OCTAVE)).astype(int))
    sums, _ = np.histogram(distance, bins=edges, weights=counted)
    middle = np.sqrt(edges[:-1] * (edges[1:] - 1))
    shares = sums / np.diff(edges) / counted.sum()
    return [{"distance": float(d), "share": float(s)} for d, s in zip(middle, shares, strict=True) if s > 0]


def _line(fits: pl.DataFrame, source: str) -> list[dict[str, Any]]:
    """The fitted law, from x_min to x_max, as a share of all of the source's distances."""
    import numpy as np

    for row in fits.filter(fits["source"] == source).iter_rows(named=True):
        if row["kind"] == "content" and row["alpha"] is not None:
            masses = power_law_masses(row["alpha"], row["x_min"], row["x_max"]) * row["tail_share"]
            chosen = np.unique(np.geomspace(row["x_min"], row["x_max"], 24).astype(int))
            return [{"distance": float(d), "share": float(masses[d - row["x_min"]])} for d in chosen]
    return []


def _draw_positions(tables: ProfileTables, sources: list[str], column: str, title: str, palette: Palette) -> Chart:
    import altair as alt
    import polars as pl

    names = labels([_ALL, *sources])
    rows = [row for row in tables.positions.iter_rows(named=True) if row["source"] in names]
    points = [{"source": names[row["source"]], "position": (row["low"] + row["high"]) / 2, "share": row[column]} for row in rows]
    x = alt.X(
        "position:Q", scale=alt.Scale(nice=False, zero=True), axis=alt.Axis(title="position in the sequence", tickCount=6, grid=False)
    )
    y = alt.Y("share:Q", scale=alt.Scale(zero=True), axis=alt.Axis(title=title, format="~%", tickCount=5))
    colour = _colours(list(names.values()), palette)
    lines = alt.Chart(pl.DataFrame(points)).mark_line(strokeWidth=1.6).encode(x=x, y=y, color=colour, detail="source:N")
    chart: Chart = lines.properties(width=WIDTH, height=HEIGHT)
    return chart


def _colours(names: list[str], palette: Palette) -> alt.Color:
    import altair as alt

    domain, colours = model_colours(names, palette, reference=_ALL)
    legend = alt.Legend(title=None, columns=2) if len(names) > 1 else None
    return alt.Color("source:N", scale=alt.Scale(domain=domain, range=colours), legend=legend, sort=domain)
