"""What a text repeats, in the manner of Zoology's Figures 3 to 5: how much by source, at what
distance, at what position.

At most `MOST_SOURCES` are drawn, the largest by tokens; captions name the others, the tables
contain all.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from recallkit.display.cells import percent, span
from recallkit.display.charts import (
    HEIGHT,
    MOST_SOURCES,
    TIP,
    WIDTH,
    Colour,
    Figure,
    Style,
    column,
    labels,
    layer,
    log_number,
    not_drawn,
    number,
    plot,
    share,
)
from recallkit.display.templates import bars, line_chart
from recallkit.profiling.power_law import power_law_masses

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from recallkit.display.charts import Spec
    from recallkit.profiling.tables import ProfileTables

_ALL = "ALL"
_BUCKETS_PER_OCTAVE = 2
_WHOLE, _SOURCE = "all sources", "the source"
_STYLES = {_WHOLE: Style("rest", (1, 0), "square"), _SOURCE: Style("ink", (1, 0), "circle")}
"""All sources together are grey behind one of them."""


def profile_figures(tables: ProfileTables, seq_len: int) -> list[Figure]:
    """The charts for which the tables have enough data."""
    sources = drawn_sources(tables)
    names = [_ALL, *sources]
    rest = not_drawn(tables.profile["source"].to_list()[1 + len(sources) :]) if sources else ""
    drawn = tables.profile.filter(tables.profile["source"].is_in(names))
    has_intervals = drawn["repeated_bigrams_ci_low"].is_not_null().any()
    has_fits = any(_line(tables.fits, name) for name in names)
    behind = "; grey: all sources together" * bool(sources)
    figures = {
        "repeated_bigrams": (
            f"Repeated bigrams per {seq_len:,} tokens",
            f"Tokens per {seq_len:,} that complete a bigram which is in the sequence already, "
            "except the bigrams that are left out"
            f"{', with 95 % intervals' * has_intervals}; the tick counts each bigram once per "
            "sequence.",
            _bigrams(tables, names),
        ),
        "repeated_by_position": (
            "Repeated tokens by position",
            (
                "Share of the tokens at each position of a sequence that complete a repeated "
                "bigram, whatever its tokens."
            ),
            _positions(tables, names, "repeated_share", "repeated tokens"),
        ),
        "ar_hits_by_position": (
            "AR hits by position",
            (
                "Share of the tokens at each position of a sequence that are AR hits: repeated, "
                "and rare in training."
            ),
            _positions(tables, names, "ar_hit_share", "AR hits"),
        ),
        "distances": (
            "How far back a repeated bigram last occurred",
            (
                "Distribution of the distances, in half "
                f"octaves{behind}{'; lines: power laws fitted to the tails' * has_fits}."
            ),
            _distances(tables, names),
        ),
    }
    absent = [] if tables.distances["content"].sum() > 0 else ["distances"]
    absent += [] if tables.profile["ar_hits"].null_count() == 0 else ["ar_hits_by_position"]
    return [
        Figure(name, title, caption + rest, draw)
        for name, (title, caption, draw) in figures.items()
        if name not in absent
    ]


def drawn_sources(tables: ProfileTables) -> list[str]:
    """The largest sources, in the order of the table; none if there is only one, which equals
    ALL."""
    sources = tables.profile["source"].to_list()[1:]
    return sources[:MOST_SOURCES] if len(sources) > 1 else []


def _bigrams(tables: ProfileTables, sources: Sequence[str]) -> Spec:
    names = labels(sources)
    columns = (
        "repeated_bigrams",
        "distinct_bigrams",
        "repeated_bigrams_ci_low",
        "repeated_bigrams_ci_high",
    )
    rows = []
    for row in tables.profile.to_dicts():
        source = row["source"]
        if source in names:
            colour = Colour("rest" if source == _ALL else "hits")
            tip = (
                f"{source}: {row['repeated_bigrams']:.1f} repeated bigrams, "
                f"{row['distinct_bigrams']:.1f} distinct"
            )
            figures = {name: row[name] for name in columns}
            rows.append({"source": names[source], "colour": colour, "tip": tip, **figures})
    x = number(
        "repeated_bigrams", "repeated bigrams", zero=True, axis={"tickCount": 4, "format": "~s"}
    )
    return bars(
        rows,
        list(names.values()),
        x,
        layer(
            "tick",
            channels={"x": {**x, "field": "distinct_bigrams"}},
            color="ink",
            thickness=2,
            height=13,
        ),
        y="source",
        ends=("repeated_bigrams_ci_low", "repeated_bigrams_ci_high"),
        rule={"color": "ink", "strokeWidth": 1.5},
        before=[layer("bar", channels={"color": column("colour", scale=None), **TIP}, height=13)],
        width=WIDTH + 30 - 6.5 * max(map(len, names.values())),
        height=24 * max(2, len(rows)),
    )


def _by_source(
    points: Mapping[str, Sequence[Mapping[str, Any]]],
) -> tuple[list[dict[str, Any]], Spec]:
    """The points of a plot for each source, with those of all sources together, and how the
    plots are placed; if ALL is alone, of one."""
    names, (every, *sources) = labels(list(points)), points
    drawn = [(source, name) for source in sources for name in (every, source)] or [(every, every)]
    rows = []
    for panel, name in drawn:
        place = {
            "panel": names[panel],
            "source": names[name],
            "model": _WHOLE if name == every else _SOURCE,
        }
        rows += [{**point, **place} for point in points[name]]
    panels = [names[source] for source in sources]
    return rows, {
        "panels": panels,
        "columns": 2,
        "width": WIDTH / 2 - 20,
        "height": HEIGHT / 2,
    } if panels else {}


def _distances(tables: ProfileTables, sources: Sequence[str]) -> Spec:
    points = {name: _points(tables.distances, name) for name in sources}
    every = list(itertools.chain(*points.values()))
    x = log_number("x", "tokens back", [point["x"] for point in every], base=2)
    y = log_number(
        "y", "share at each distance", [point["y"] for point in every], format="~%", grid=True
    )
    with_laws = {name: [*dots, *_line(tables.fits, name)] for name, dots in points.items()}
    rows, placed = _by_source(with_laws)
    layers: list[Spec] = []
    for kind, style in _STYLES.items():
        law, dot = (f"datum.model === '{kind}' && {which}" for which in ("datum.law", "!datum.law"))
        layers.append(
            layer("line", law, channels={"x": x, "y": y}, color=style.colour, strokeWidth=1.4)
        )
        layers.append(
            layer(
                "circle",
                dot,
                channels={"x": x, "y": y, **TIP},
                color=style.colour,
                size=20,
                opacity=0.85,
            )
        )
    return plot(rows, *layers, **placed)


def _points(distances: pl.DataFrame, source: str) -> list[dict[str, Any]]:
    """The share of a source's distances of content bigrams at each distance of a bucket, at the
    bucket's geometric middle."""
    import numpy as np

    own = distances.filter(distances["source"] == source)
    distance, counted = own["distance"].to_numpy(), own["content"].to_numpy()
    if not counted.sum():
        return []
    octaves = np.log2(distance.max()) + 1
    edges = np.unique(
        np.round(2 ** (np.arange(_BUCKETS_PER_OCTAVE * octaves + 1) / _BUCKETS_PER_OCTAVE)).astype(
            int
        )
    )
    sums, _ = np.histogram(distance, bins=edges, weights=counted)
    middle = np.sqrt(edges[:-1] * (edges[1:] - 1))
    shares = sums / np.diff(edges) / counted.sum()
    points = []
    for at, part, low, high in zip(middle, shares, edges[:-1], edges[1:] - 1, strict=True):
        if part > 0:
            tip = f"{source}: {percent(part, 3)} at each of {span(low, high)} tokens back"
            points.append({"x": float(at), "y": float(part), "law": False, "tip": tip})
    return points


def _line(fits: pl.DataFrame, source: str) -> list[dict[str, Any]]:
    """The fitted law, from x_min to x_max, as a share of all of the source's distances."""
    import numpy as np

    for row in fits.filter(fits["source"] == source).iter_rows(named=True):
        if row["kind"] == "content" and row["alpha"] is not None:
            masses = power_law_masses(row["alpha"], row["x_min"], row["x_max"]) * row["tail_share"]
            chosen = np.unique(np.geomspace(row["x_min"], row["x_max"], 24).astype(int))
            return [
                {"x": float(d), "y": float(masses[d - row["x_min"]]), "law": True} for d in chosen
            ]
    return []


def _positions(tables: ProfileTables, sources: Sequence[str], name: str, title: str) -> Spec:
    points: dict[str, list[dict[str, Any]]] = {source: [] for source in sources}
    for row in tables.positions.to_dicts():
        if row["source"] in points:
            said = {
                "at": f"position {span(row['low'], row['high'])}",
                "shown": percent(row[name], 2),
            }
            points[row["source"]].append(
                {"x": (row["low"] + row["high"]) / 2, "y": row[name], **said}
            )
    x = number("x", "position", zero=True, nice=False, axis={"tickCount": 4, "grid": False})
    rows, placed = _by_source(points)
    return line_chart(
        rows,
        list(_STYLES) if placed else [_WHOLE],
        x,
        share("y", title, zero=True),
        styles=_STYLES,
        **placed,
    )
