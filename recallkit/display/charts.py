"""Charts: Vega-Lite specifications, and the styles of models.

A figure is drawn from one description on a page, in the colours of its style sheet (light and
dark), and in files, in fixed ones. All that comes from data are values of rows, never an
expression, a field's name or an address. `figure_files.py` draws them.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from recallkit.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Spec = dict[str, Any]
"""A Vega-Lite specification, or a part of one."""

WIDTH, HEIGHT = 330, 200
"""Of a plot, in pixels: text of 11 pixels can be read when a chart is as wide as a phone."""
MOST_COLOURED = 8
"""Models in colour: more could not be distinguished."""
FEW = 100
"""A mean over fewer tokens is drawn hollow."""
MOST_SOURCES = 6
"""Sources in a chart, the largest: more could not be distinguished."""
_CHARACTER = 6.5
"""Pixels of a character of 11 pixels."""
_MOST_NAMED, _NAME = 12, 24
"""Names in a caption; characters of a name beside a plot."""

PAPER = {
    "ink": "#1b1b1b",
    "soft": "#5d6166",
    "rule": "#dcdee1",
    "page": "#ffffff",
    "hits": "#e69f00",
    "rest": "#86919c",
    **{
        f"m{place}": colour
        for place, colour in enumerate(
            ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#a6761d", "#7570b3")
        )
    },
}
"""Text, secondary text, grid, background, AR hits, other tokens, models: Okabe and Ito's
colours, and two more."""
PAGE = {name: f"var(--{name})" for name in PAPER}
"""The same colours by name, as `report.css` defines them for light and for dark."""

_FONT = "Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif"
_PAGE_FONT = "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif"

# --------------------------------------------------------------------------------- styles of models


class Style(NamedTuple):
    """How a model is drawn, everywhere: a name of PAPER's colours, dashes of its line, the shape
    of its points."""

    colour: str
    dash: Sequence[int]
    shape: str


_SHAPES = (
    "square",
    "triangle-up",
    "diamond",
    "triangle-left",
    "triangle-down",
    "cross",
    "triangle-right",
)
STYLES = (
    Style("ink", (1, 0), "circle"),
    *(
        Style(f"m{place}", dash, _SHAPES[(place + 3 * turn) % 7])
        for turn, dash in enumerate(((1, 0), (5, 3), (2, 2)))
        for place in range(7)
    ),
)
_ARCHITECTURES = (
    "attention",
    "mamba",
    "hyena",
    "based",
    "rwkv",
    "delta",
    "retnet",
    "hybrid",
    "base-conv-selective",
    "base-conv",
)
"""Architectures whose style is the same on every page: the n-th has the n-th style."""


def model_styles(names: Iterable[str]) -> dict[str, Style]:
    """Each model's style, no two alike for up to 22: that of the architecture in its name, or
    else the first that is free."""
    styles: dict[str, Style] = {}
    ordered = list(dict.fromkeys(names))
    for name in ordered:
        place = next(
            (place for place, part in enumerate(_ARCHITECTURES) if part in name.lower()), None
        )
        if place is not None and STYLES[place] not in styles.values():
            styles[name] = STYLES[place]
    for number, name in enumerate(name for name in ordered if name not in styles):
        styles[name] = next(
            (style for style in STYLES if style not in styles.values()),
            STYLES[number % len(STYLES)],
        )
    return {name: styles[name] for name in ordered}


# -------------------------------------------------------------------------------------------- names


def shorten(name: str, length: int = _NAME) -> str:
    """The name in one line of at most `length` characters: its beginning and its end."""
    name = printable(name) or "(no name)"
    first = (length - 1) // 2
    return name if len(name) <= length else f"{name[:first]}…{name[first + 1 - length :]}"


def labels(
    names: Sequence[str], length: int = _NAME, reference: str | None = None
) -> dict[str, str]:
    """A short label for each name, no two alike, the reference marked: without its folders and
    `zoo:`, if no other name ends so."""
    lasts = {name: name.rstrip("/").rpartition("/")[2].removeprefix("zoo:") for name in names}
    known = Counter(lasts.values())
    labelled: dict[str, str] = {}
    for name, last in lasts.items():
        mark = " (ref.)" if name == reference else ""
        base = last if last and known[last] == 1 else name
        label, number = shorten(base, length - len(mark)) + mark, 2
        while label in labelled.values():
            ending = f" ({number}){mark}"
            label, number = shorten(base, length - len(ending)) + ending, number + 1
        labelled[name] = label
    return labelled


def not_drawn(names: Sequence[str]) -> str:
    """A sentence for a caption that names what a chart leaves out, after a space; empty if that
    is nothing."""
    if not names:
        return ""
    listed = [shorten(name, 40) for name in names[:_MOST_NAMED]]
    rest = [f"{len(names) - len(listed):,} more"] if len(names) > len(listed) else []
    *before, last = [*listed, *rest]
    return f" Not drawn, being smaller: {', '.join(before)}{' and ' if before else ''}{last}."


# ----------------------------------------------------------------------------------- specifications


class Colour(str):
    """In a specification the name of one of PAPER's colours, for which `specification` puts that
    of a page or a file."""

    __slots__ = ()


class AtFirst(NamedTuple):
    """In a specification which of the models with these labels are chosen before somebody
    chooses, on a page; elsewhere none is."""

    labels: Mapping[str, str]
    reference: str | None


class StyleOf(NamedTuple):
    """In a specification what a channel shows of a style, or of a model's: that of all figures
    of a page."""

    style: str | Style
    channel: str


def model_channels(
    names: Mapping[str, str], *, styles: Mapping[str, Style] | None = None, legend: bool = True
) -> Spec:
    """Colours (of a bar, `fill`; of a line, `stroke`), shape and dash of the column `model`, which
    has labels: `names` -> label.

    `styles`, if these are no models.
    """
    key = legend_of(list(names.values())) if legend and len(names) > 1 else None
    chosen = {label: styles[name] if styles else name for name, label in names.items()}

    def channel(name: str, order: Mapping[str, Any], legend: Spec | None) -> Spec:
        styled = [StyleOf(style, name) for style in order.values()]
        return {
            **column("model"),
            "scale": {"domain": list(order), "range": styled},
            "legend": legend,
        }

    # In another order, else dashes join the legend, whose symbols would have broken outlines.
    turned = dict(reversed(chosen.items()))
    channels = {name: channel(name, chosen, key) for name in ("fill", "stroke", "shape")}
    return {**channels, "strokeDash": channel("strokeDash", turned, None)}


def legend_of(entries: Sequence[str]) -> Spec:
    """A legend with as many of its entries side by side as have room."""
    entry = 34 + _CHARACTER * max(map(len, entries))
    return {"columns": {"expr": f"max(1, min({len(entries)}, floor(room / {entry})))"}}


def column(name: str, kind: str = "nominal", **more: Any) -> Spec:
    """A channel's column of the rows."""
    return {"field": name, "type": kind, **more}


def number(name: str, title: str | None = None, *, axis: Spec | None = None, **scale: Any) -> Spec:
    """A channel with a number: `axis` and `scale` are Vega-Lite's."""
    zero = {} if scale.get("type") == "log" else {"zero": False}  # a logarithm has none
    return column(
        name, "quantitative", axis={"title": title, **(axis or {})}, scale={**zero, **scale}
    )


def share(name: str, title: str | None, **scale: Any) -> Spec:
    """A channel with a share in per cent."""
    return number(name, title, axis={"format": "~%", "tickCount": 5}, **scale)


def log_number(
    name: str, title: str, values: Iterable[float], *, base: int = 10, **axis: Any
) -> Spec:
    """A channel with a number from 0 on, on a logarithmic axis up to the largest of `values`; where
    one of them is 0, 0 is on it.

    With `base` 2, as for buckets, powers of two are labelled by their round names: 1k for 1,024.
    """
    known = sorted(set(values)) or [1.0]
    scale = {"type": "symlog", "constant": 1} if known[0] <= 0 else {"type": "log", "base": base}
    # a factor: 3 % of the axis at either end
    room = max(1.05, (known[-1] / (known[0] if known[0] > 0 else 1)) ** 0.03)
    if base == 2:
        powers = [0.0, *(2.0**power for power in range(60))]
        axis = {
            "values": [power for power in powers if known[0] <= power <= known[-1]],
            "labelExpr": _BINARY,
            **axis,
        }
    elif known[0] > 0:
        steps = (1,) if known[-1] > 300 * known[0] else (1, 2, 5)
        marked = [step * 10.0**power for power in range(-20, 20) for step in steps]
        axis = {
            "values": [tick for tick in marked if known[0] / room <= tick <= known[-1] * room],
            "format": "~s",
            **axis,
        }
    low, high = known[0] / room if known[0] > 0 else -0.15, known[-1] * room or 0.15
    return number(
        name, title, axis={"grid": False, **axis}, domain=[low, high], nice=False, **scale
    )


_BINARY = (
    "datum.value < 1024 ? format(datum.value, '~g') : datum.value < 1048576 ? format(datum.value "
    "/ 1024, '~g') + 'k' : format(datum.value / 1048576, '~g') + 'M'"
)


def layer(mark: str, where: str = "", /, channels: Spec | None = None, **properties: Any) -> Spec:
    """One mark; `where` is a condition on the rows it is drawn for. Marks without a column
    `description` are not announced.

    `color` and `stroke` of the mark are names of PAPER's colours.
    """
    chosen = dict(channels or {})
    silent = {} if "description" in chosen else {"aria": False}
    paint = {
        key: Colour(properties[key])
        for key in ("color", "stroke")
        if isinstance(properties.get(key), str)
    }
    filtered: Spec = {"transform": [{"filter": where}]} if where else {}
    return {**filtered, "mark": {"type": mark, **silent, **properties, **paint}, "encoding": chosen}


TIP: Spec = {"description": column("tip"), "tooltip": column("tip")}
"""What a mark is called, by the page's script, screen readers and notebooks: the column `tip`."""


def plot(
    rows: Sequence[Mapping[str, Any]],
    *layers: Spec,
    width: float = WIDTH,
    height: float = HEIGHT,
    panels: Sequence[str] = (),
    columns: int = 1,
    resolve: Spec | None = None,
    **shared: Any,
) -> Spec:
    """Layers over the same rows, with `shared` channels; with `panels` a plot for each value of the
    column `panel`, in this order.

    `room` is how wide it may be with its axes, by which entries of its legend are put in lines; a
    page's script sets it.
    """
    unit: Spec = {"layer": list(layers), "width": width, "height": height, "encoding": shared}
    room = {"name": "room", "value": WIDTH}
    frame: Spec = {"data": {"values": list(rows)}, "resolve": resolve or {}, "params": [room]}
    if not panels:
        return {**frame, **unit}
    facet = column("panel", sort=list(panels), title=None)
    # The last label of an axis and the first of the next are apart.
    return {
        **frame,
        "facet": facet,
        "columns": columns,
        "spacing": {"row": 16, "column": 28},
        "spec": unit,
    }


# ----------------------------------------------------------------------------------------- drawings


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with its text: `name` is the file's, `title` and `caption` are plain text; colours
    and styles of `spec` are names as yet.

    The first sentence of the caption, in which there are no names of data, says what is drawn: it
    is the caption in a paper. `models` are those whose styles it shares with the other figures of a
    page.
    """

    name: str
    title: str
    caption: str
    spec: Spec
    models: Sequence[str] = field(default=())


def styles_of(figures: Iterable[Figure]) -> dict[str, Style]:
    """The styles of all models of some figures."""
    return model_styles(model for figure in figures for model in figure.models)


def specification(
    figure: Figure, styles: Mapping[str, Style] | None = None, *, on_page: bool = False
) -> Spec:
    """The whole Vega-Lite specification of a figure. `styles` are those of all figures beside
    it, if there are others."""
    colours = PAGE if on_page else PAPER
    ink, soft, grid = colours["ink"], colours["soft"], colours["rule"]
    size = 12 if on_page else 11
    text = {
        "labelColor": soft,
        "titleColor": soft,
        "labelFontSize": size,
        "titleFontSize": size,
        "titleFontWeight": "normal",
    }
    config = {
        "background": "transparent" if on_page else colours["page"],
        "font": _PAGE_FONT if on_page else _FONT,
        "padding": 4 if on_page else 12,
        "view": {"stroke": None},
        "axis": {
            **text,
            "gridColor": grid,
            "domainColor": grid,
            "tickColor": grid,
            "tickSize": 3,
            "aria": False,
            "labelLimit": 0,
            "labelSeparation": 6,
        },
        "axisY": {"domain": False, "ticks": False},
        "legend": {
            **text,
            "labelColor": ink,
            "orient": "bottom",
            "title": None,
            "labelLimit": 0,
            "aria": on_page,  # a legend that can be clicked is announced
            "symbolOpacity": 1,
            "unselectedOpacity": 0.5,
        },
        "header": {
            **text,
            "labelColor": ink,
            "labelAnchor": "start",
            "labelFontWeight": "bold",
            "labelLimit": WIDTH,
        },
        "text": {"color": ink, "fontSize": size},
    }
    spec = {**(_compact(figure.spec) if on_page else figure.spec), "config": config}
    resolved: Spec = _resolved(spec, colours, styles or styles_of([figure]))
    return resolved


def _compact(spec: Spec) -> Spec:
    """The specification with rows as a page has them: of many models on one text they would be most
    of its bytes.

    Figures have as many digits as can be seen; of a tip that ends with what is in other columns,
    only its beginning is left.
    """
    rows = []
    for row in spec.get("data", {}).get("values", ()):
        compact = {
            key: float(f"{value:.5g}") if isinstance(value, float) else value
            for key, value in row.items()
            if key != "few" or value
        }
        ending = f"{row.get('at')}: {row.get('shown')}"
        if row.get("tip", "").endswith(ending):
            compact["tip"] = row["tip"].removesuffix(ending)
            if compact["tip"] == f"{row['model']}, ":
                del compact["tip"]
        rows.append(compact)
    if not any("at" in row for row in rows):
        return {**spec, "data": {"values": rows}} if rows else spec
    name, figure = (
        "datum.tip || datum.model + ', '",
        "datum.at ? datum.at + ': ' + datum.shown : ''",
    )
    tip = {"calculate": f"({name}) + ({figure})", "as": "tip"}
    return {**spec, "data": {"values": rows}, "transform": [tip, *spec.get("transform", ())]}


_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that names may contain but XML may not: vl-convert aborts the process if it meets
one."""


def _resolved(value: Any, colours: Mapping[str, str], styles: Mapping[str, Style]) -> Any:
    """A part of a specification with colours and styles in place of their names, and with text
    that XML may contain."""
    if isinstance(value, StyleOf):
        style = value.style if isinstance(value.style, Style) else styles[value.style]
        return {"shape": style.shape, "strokeDash": list(style.dash)}.get(
            value.channel, colours[style.colour]
        )
    if isinstance(value, Colour):
        return colours[value]
    if isinstance(value, AtFirst):
        return (
            _resolved(_chosen_at_first(value, styles), colours, styles) if colours is PAGE else []
        )
    if isinstance(value, dict):
        return {key: _resolved(item, colours, styles) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_resolved(item, colours, styles) for item in value]
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", value) if isinstance(value, str) else value


def _chosen_at_first(chosen: AtFirst, order: Iterable[str]) -> list[dict[str, str]]:
    """None, which colours all, or if these are too many the reference and four others at equal
    steps of the page's order."""
    if len(chosen.labels) <= MOST_COLOURED:
        return []
    others = [
        name
        for name in dict.fromkeys([*order, *chosen.labels])
        if name in chosen.labels and name != chosen.reference
    ]
    some = [others[round(step * (len(others) - 1) / 3)] for step in range(4)]
    return [{"model": chosen.labels[name]} for name in (*filter(None, [chosen.reference]), *some)]
