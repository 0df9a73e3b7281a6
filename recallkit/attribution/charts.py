"""Charts of a comparison: what models make of a bigram's return, where they differ from the
reference, and what it depends on."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from recallkit.display import cells
from recallkit.display.cells import (
    bounds,
    counted,
    percent,
    share_range,
    shares_of_leads,
    size,
    span,
)
from recallkit.display.charts import (
    FEW,
    HEIGHT,
    TIP,
    WIDTH,
    Colour,
    Figure,
    column,
    labels,
    layer,
    log_number,
    model_channels,
    number,
    plot,
    share,
    shorten,
)
from recallkit.display.templates import across, front_layer, line_chart, on_front
from recallkit.measure.shares import is_void
from recallkit.slicing.threshold import papers_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from recallkit.attribution.comparison import Comparison
    from recallkit.display.charts import Spec

    Row = Mapping[str, Any]

_HOLLOW = f"Hollow: fewer than {FEW} tokens."
LEFT_OUT = (
    "Shares without a meaning, such as those of a gap that cannot be distinguished from zero, "
    "are omitted."
)


def figures(comparison: Comparison, only: Sequence[str] = ()) -> list[Figure]:
    """Every chart of a comparison that has something to show, in the order of a report; of
    `only` some models, or of all."""
    if only:
        comparison = replace(
            comparison, models=[model for model in comparison.models if model in only]
        )
    makers = (price_figure, _recall, _by_bucket, _by_threshold)
    return [figure for maker in makers for figure in maker(comparison)]


def _figure(
    comparison: Comparison, name: str, title: str, caption: str, spec: Spec
) -> list[Figure]:
    return [Figure(name, title, caption, spec, [comparison.reference, *comparison.models])]


def _names(comparison: Comparison) -> dict[str, str]:
    """The reference and the models with their labels."""
    return labels([comparison.reference, *comparison.models], reference=comparison.reference)


# --------------------------------------------------------------------------------- what state costs


def price_figure(comparison: Comparison) -> list[Figure]:
    """What is retained beside the bytes of state, a line per model for its variants, where
    states differ; as figure 2 of Based, on text."""
    by_price, models = comparison.tables.by_price, [comparison.reference, *comparison.models]
    if by_price is None:
        return []
    rows = by_price.filter(by_price["model"].is_in(models)).sort("state_bytes").to_dicts()
    known = [row for row in rows if row["state_bytes"] is not None and row["gain"] is not None]
    if len({row["state_bytes"] for row in known}) < 2:
        return []
    names = labels(
        list(dict.fromkeys(row["family"] for row in by_price.to_dicts() if row in known))
    )
    points = []
    for row, is_on_front in zip(known, on_front(known, "state_bytes", "gain"), strict=True):
        value, low, high = (
            None if row[f"gain{end}"] is None else 100 * row[f"gain{end}"]
            for end in ("", "_ci_low", "_ci_high")
        )
        variant = row["model"].removeprefix(row["family"]).strip()
        of_family = [other for other in known if other["family"] == row["family"]]
        within = "" if low is None else f" ({bounds(low, high, 'z.1f')})"
        points.append(
            {
                "model": row["family"],
                "x": row["state_bytes"],
                "y": value,
                "least": low,
                "most": high,
                "front": is_on_front,
                "label": shorten(variant.removeprefix("cache ") or names[row["family"]]),
                "apart": len(names) == 1
                or not on_front(of_family, "state_bytes", "gain")[of_family.index(row)],
                "at": ", ".join([*filter(None, [variant]), size(row["state_bytes"])]),
                "shown": f"{value:z.1f}{within} points",
            }
        )
    _place_labels(points)
    lengths = sorted({row["state_ids"] for row in known})
    ids = " or ".join(f"{number:,}" for number in lengths)
    x = log_number("x", f"bytes of state after {ids} ids", [point["x"] for point in points])
    y = number("y", "recall gain on AR hits, points", zero=True)
    place = {
        "align": {"expr": "datum.dx < 0 ? 'right' : 'left'"},
        "dx": {"expr": "datum.dx"},
        "dy": {"expr": "datum.dy"},
    }
    before = [
        front_layer(y),
        layer(
            "rule",
            "isValid(datum.least)",
            channels={"y": {**y, "field": "least"}, "y2": {"field": "most"}},
            color="soft",
        ),
        layer("text", channels={"y": y, "text": column("label")}, color="soft", **place),
    ]
    caption = (
        "Recall gain on AR hits, in points of probability, against the bytes of state of one "
        "sequence. "
    )
    caption += "The thick line is the Pareto front of all models."
    caption += " A line in a model's colour is the front of its own variants." * (
        1 < len(names) < len(known)
    )
    if left_out := [shorten(row["model"], 40) for row in rows if row not in known]:
        caption += f" Not drawn, as their state is unknown: {', '.join(left_out)}."
    drawn = line_chart(
        points,
        list(names),
        x,
        y,
        *before,
        reference=comparison.reference,
        some_first=False,
        height=_TALL,
    )
    return _figure(comparison, "price", "Recall by bytes of state", caption, drawn)


_TALL, _NARROW = 240, 270
"""Pixels: the chart's height, and its width in the column of a paper, where labels have the least
room."""
_LETTER, _LINE = 5.5, 11
"""Pixels of a label's letter, and between two lines of text."""
_ASIDE = [(dx, dy) for dy in (-6, 5, 16, -18, 28) for dx in (7, -7)]
"""Pixels: places of a label beside its point, the nearest first."""


def _place_labels(points: Sequence[dict[str, Any]]) -> None:
    """Gives each label its place, `dx` and `dy` in pixels: the first of `_ASIDE` that is on no
    other label, point or interval, if one is.

    Where the plot is wider than _NARROW there is more room.
    """
    low, high = math.log1p(points[0]["x"]), math.log1p(points[-1]["x"])
    top = max(point["y"] if point["most"] is None else point["most"] for point in points) or 1

    def across(point: dict[str, Any]) -> float:
        return _NARROW * (math.log1p(point["x"]) - low) / (high - low or 1)

    def down(value: float) -> float:
        return -_TALL * value / top

    drawn: dict[int, list[tuple[float, ...]]] = {}
    for place, point in enumerate(points):
        x, y = across(point), down(point["y"])
        drawn[place] = [(x - 4, y - 4, x + 4, y + 4)]
        if point["least"] is not None:
            drawn[place].append((x - 1, down(point["most"]), x + 1, down(point["least"])))
    for place, point in reversed(list(enumerate(points))):
        x, y, long = across(point), down(point["y"]), _LETTER * len(point["label"])
        boxes = {}
        for dx, dy in _ASIDE:
            # With what is between a point and its label, which would else seem to be another's.
            left, right = (x, x + dx + long) if dx > 0 else (x + dx - long, x)
            boxes[dx, dy] = (left, y + dy - _LINE, right, y + dy)
        inside = [at for at, box in boxes.items() if box[0] > -_LETTER and box[2] < _NARROW + 10]
        inside = inside or _ASIDE
        others = [box for other in drawn.keys() - {place} for box in drawn[other]]
        chosen = next((at for at in inside if _is_free(boxes[at], others)), inside[0])
        point["dx"], point["dy"] = chosen
        drawn[place].append(boxes[chosen])


def _is_free(box: tuple[float, ...], others: Sequence[tuple[float, ...]]) -> bool:
    """Whether a box, left, top, right and bottom, has no place in common with any of the others."""
    left, top, right, bottom = box
    return not any(
        left < other[2] and other[0] < right and top < other[3] and other[1] < bottom
        for other in others
    )


# ------------------------------------------------------------------------ the picture of the answer


def _recall(comparison: Comparison) -> list[Figure]:
    """For each model a line from its mean probability at first occurrences to that on AR hits."""
    names, points = _names(comparison), []
    for model, name in names.items():
        is_reference = model == comparison.reference
        side = "reference" if is_reference else "model"
        hits = comparison.totals[comparison.models[0] if is_reference else model, "ar_hit"]
        if not hits["tokens"]:
            return []
        retained = side if is_reference else f"{percent(hits['retained'], 0)} retained"
        text = f"{name.removesuffix(' (ref.)')} {percent(hits[f'p_{side}'], 0)}"
        ends = {"first_p": "at first occurrences", "p": f"on {comparison.hit}s, {retained}"}
        for end, (column_of, where) in enumerate(ends.items()):
            mean = hits[f"{column_of}_{side}"]
            tip = f"{shorten(model, 60)}: {percent(mean)} {where}"
            point = {"model": name, "x": end, "y": mean, "tip": tip}
            points.append({**point, "text": text, "retained": retained})
    height = max(HEIGHT, _LABEL * len(names))
    returned = sorted(points[1::2], key=lambda point: point["y"])
    most = returned[-1]["y"]
    places = _spread([height * point["y"] / most for point in returned], height)
    for point, pixels in zip(returned, places, strict=True):
        point["place"] = pixels * most / height
    bigram = "a rare bigram" if comparison.has_counts else "a bigram"
    words = f"datum.value ? ['when it', 'returns'] : ['first occurrence', 'of {bigram}']"
    axis = {"values": [0, 1], "labelExpr": words, "labelFlush": False, "domain": False}
    x = number("x", axis={**axis, "labelPadding": 6}, domain=[0, 1])
    y = column("y", "quantitative", axis=None, scale={"domain": [0, most]})
    place = {**y, "field": "place"}
    paint = model_channels(names, legend=False)
    stroke = {"y": y, "stroke": paint["stroke"]}
    firsts = {"value": share_range((point["y"] for point in points[::2]), 0)}
    middle = {"y": {**y, "aggregate": "mean"}, "text": firsts}
    leader: Spec = {"x2": {"datum": 1}, "y": y, "y2": {"field": "place"}}
    label = {"y": place, "text": column("text")}
    below = {"y": place, "text": column("retained")}
    spec = plot(
        points,
        layer("line", channels={**stroke, "strokeDash": paint["strokeDash"]}, strokeWidth=2),
        layer("point", channels={**stroke, "fill": paint["fill"], **TIP}, size=36, opacity=1),
        layer("text", "!datum.x", channels=middle, align="right", dx=-10),
        layer("rule", "datum.x", channels=leader, xOffset=7, x2Offset=18, color="soft"),
        layer("text", "datum.x", channels=label, align="left", dx=22, dy=-6, fontWeight="bold"),
        layer("text", "datum.x", channels=below, align="left", dx=22, dy=7, color="soft"),
        width=WIDTH / 2,
        height=height,
        x=x,
    )
    title = {"anchor": "start", "frame": "bounds", "offset": 16, "color": Colour("ink")}
    spec["title"] = {"text": "Probability of the right token", **title}
    caption = (
        f"Mean probability of the last token of {bigram}: at its first occurrence, and where it "
        f"returns ({comparison.hit}s). The rise of a line is the model's recall gain; retained: "
        "the gain in per cent of the reference's."
    )
    return _figure(comparison, "recall", f"What models gain when {bigram} returns", caption, spec)


_LABEL = 28
"""Pixels from one label of two lines to the next."""


def _spread(ends: Sequence[float], height: float) -> Iterable[float]:
    """Heights of labels that are _LABEL apart, nearest to the `ends` of their lines, in pixels.

    `ends` ascend. Nearest by least squares: above the lowest places that labels can have, heights
    are an isotonic regression.
    """
    import numpy as np
    from scipy.optimize import isotonic_regression  # type: ignore[import-untyped]

    lowest = _LABEL * np.arange(len(ends))
    above = isotonic_regression(ends - lowest).x
    places: Iterable[float] = lowest + above.clip(_LABEL / 2, height - lowest[-1])
    return places


# --------------------------------------------------------------------------------- a line per model


def _by_bucket(comparison: Comparison) -> list[Figure]:
    """Mean NLLs by training frequency of the bigram; recall gains by distance and by length of
    match."""
    tables, threshold = comparison.tables, comparison.max_count
    of_counts = tables.by_count.to_dicts()
    has_hits = any(row["repeated"] and row["low"] <= threshold for row in of_counts)
    panels = {
        True: f"bigram repeated{' (shaded: AR hits)' * has_hits}",
        False: "bigram not repeated",
    }
    by_count = [{**row, "panel": panels[row["repeated"]]} for row in of_counts]
    hits = f" (shaded: AR hits, up to a count of {threshold:,})" * has_hits
    which = {
        True: f"tokens that repeat a bigram of their context{hits}",
        False: "tokens that do not repeat a bigram of their context",
    }
    kinds = {row["repeated"] for row in of_counts}
    drawn = [words for kind, words in which.items() if kind in kinds]
    caption = (
        "Mean NLL by the training count of the bigram, as in Figure 1 of Zoology, for "
        f"{', and for '.join(drawn)}."
    )
    shaded, axis = (
        (panels[True], threshold) if has_hits else None,
        "training count of the bigram, up to",
    )
    count = _lines(
        comparison,
        ("by_count", "By training frequency", caption),
        by_count,
        "training count",
        axis,
        shaded=shaded,
    )
    gains = []
    for name, (title, axis, at, what) in _GAINS.items():
        rows = (
            getattr(tables, name)
            .filter(slice="ar_hit" if comparison.has_counts else "repeated")
            .to_dicts()
        )
        caption = f"Recall gain of {comparison.hit}s by {title}: {what}."
        gains += _lines(
            comparison, (name, f"By {title}", caption), rows, title, axis, at=at, value="gain"
        )
    return [*count, *gains]


_GAINS = {
    "by_distance": (
        "distance",
        "tokens back to the bigram, up to",
        "high",
        "tokens back to the latest earlier occurrence of their bigram",
    ),
    "by_match": (
        "length of match",
        "tokens matched, from",
        "low",
        "tokens of the longest context that an earlier occurrence shares",
    ),
}
"""Tables of recall gains by bucket: what they are by, their axis, the column drawn, and what it
is."""


def _lines(
    comparison: Comparison,
    words: tuple[str, str, str],
    rows: Sequence[Row],
    what: str,
    title: str,
    *,
    at: str = "high",
    value: str = "nll",
    shaded: tuple[str, int] | None = None,
) -> list[Figure]:
    """A figure by the column `at` of `value`, NLLs or recall gains; `words`: name, title,
    caption. A model's rows have the reference's."""
    points = []
    scale, unit, axis = (
        (1, "nats", "NLL, nats per token")
        if value == "nll"
        else (100, "points", "recall gain, points")
    )
    for model in (comparison.reference, *comparison.models):
        is_reference = model == comparison.reference
        for row in (
            row for row in rows if row["model"] == (comparison.models[0] if is_reference else model)
        ):
            figure = row[f"{value}_reference" if is_reference else f"{value}_model"]
            if figure is not None and math.isfinite(figure):
                place = (
                    f"{what} {span(row['low'], row['high'])} ({counted(row['tokens'], 'token')})"
                )
                point = {
                    "model": model,
                    "x": row[at],
                    "y": scale * figure,
                    "few": row["tokens"] < FEW,
                    "panel": row.get("panel"),
                }
                points.append({**point, "at": place, "shown": f"{scale * figure:.2f} {unit}"})
    panels = list(dict.fromkeys(point["panel"] for point in points if point["panel"] is not None))
    if not points:
        return []
    places = [point["x"] for point in points]
    x = log_number("x", title, places, base=2)
    y = number("y", axis, zero=value != "nll")
    before = []
    if shaded is not None and shaded[0] in panels:
        low, high = x["scale"]["domain"]
        edges = {"x": {"datum": low, "type": "quantitative"}, "x2": {"datum": min(shaded[1], high)}}
        one_row = [{"filter": f"datum.panel === '{shaded[0]}'"}, {"sample": 1}]
        before = [
            {**layer("rect", channels=edges, color="hits", opacity=0.13), "transform": one_row}
        ]
    names = [comparison.reference, *comparison.models]
    # Panels have one axis: how much more a model loses in one than in the other is what there is to
    # see.
    more: Spec = {"panels": panels, "height": 150} if panels else {}
    name, called, caption = words
    caption += f" {_HOLLOW}" * any(point["few"] for point in points)
    return _figure(
        comparison,
        name,
        called,
        caption,
        line_chart(points, names, x, y, *before, reference=comparison.reference, **more),
    )


# ------------------------------------------------------------------------------------- by threshold


def _by_threshold(comparison: Comparison) -> list[Figure]:
    """What is retained, and the AR hits' share of the gap, at every threshold on the training
    count."""
    panels = {"retained": "retained", "gap_share": "share of the gap"}
    points = []
    for row in comparison.tables.by_threshold.to_dicts():
        at = f"up to {row['threshold']:,} ({counted(row['tokens'], 'AR hit')})"
        for name, panel in panels.items():
            if (
                row["model"] in comparison.models
                and row[name] is not None
                and (name == "retained" or not is_void(row))
            ):
                within = cells.percent_range(row[f"{name}_ci_low"], row[f"{name}_ci_high"])
                ends = {"low": row[f"{name}_ci_low"], "high": row[f"{name}_ci_high"]}
                point = {
                    "model": row["model"],
                    "x": row["threshold"],
                    "y": row[name],
                    "panel": panel,
                }
                points.append(
                    {**point, **ends, "at": at, "shown": f"{percent(row[name])} ({within})"}
                )
    if len({point["x"] for point in points}) < 2 or comparison.counts is None:
        return []
    rate = papers_count(comparison.counts["num_tokens"])
    marks = {comparison.max_count: "the threshold used here", rate: "the papers' rate"}
    x = log_number("x", "threshold on the training count", [point["x"] for point in points], base=2)
    y = share(
        "y",
        "%",
        domain=[min(0.0, *(point["y"] for point in points)), max(point["y"] for point in points)],
        clamp=True,
    )
    first, last = x["scale"]["domain"]
    marks = {count: name for count, name in marks.items() if max(0, first) < count <= last}
    before = [across("soft", x=mark, strokeDash=[4, 3]) for mark in marks]
    drawn = {point["model"] for point in points}
    models = [model for model in comparison.models if model in drawn]
    caption = (
        "Retained recall, and the AR hits' share of the gap, at other thresholds of the training "
        "count, with 95 % intervals."
    )
    dashed = ", ".join(f"{name}, {count:,}" for count, name in marks.items())
    caption += f" Dashed: {dashed}." if marks else ""
    have_shares = [point["model"] for point in points if point["panel"] == panels["gap_share"]]
    leads = shares_of_leads(
        model for model in have_shares if comparison.totals[model, "all"]["delta_nll"] < 0
    )
    caption += f" {LEFT_OUT}{leads}"
    caption += " Intervals are clipped to the plot."
    have_points = {point["panel"] for point in points}
    panel_names = [panel for panel in panels.values() if panel in have_points]
    spec = line_chart(points, models, x, y, *before, panels=panel_names, height=180)
    return _figure(comparison, "by_threshold", "By threshold", caption, spec)
