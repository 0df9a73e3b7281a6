"""One sequence as text: which model predicted each token correctly, which tokens are AR hits,
and their scores (Zoology D.1.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recallkit.display import console
from recallkit.display.cells import or_dash
from recallkit.display.charts import shorten
from recallkit.display.tables import Table
from recallkit.errors import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl
    from rich.text import Text


_MOST_ROWS = 40
"""Tokens in the table; `--json` has all of them."""

_SIGNS = {"\n": "↵", "\t": "⇥", " ": "·"}
_SIGNS_IN_TEXT = {"\n": "↵\n", "\t": "⇥   "}


_STATES: Mapping[tuple[bool | None, ...], str] = {
    (True, True): "both_right",
    (False, False): "both_wrong",
    (True, False): "reference_only",
    (False, True): "model_only",
}
"""What a token is called, by whether the reference and the model are right on it."""

_UNKNOWN = ("italic", "?", "unknown: its own tokens end elsewhere, or none is recorded")
_HIT_STYLE = "bold underline"


@dataclass(frozen=True, slots=True)
class ScoredSequence:
    """A sequence to show: its rows (`sequence.Excerpts.read`), and the models of its scores.

    With a reference and a model, these are numbers 0 and 1 in the rows' columns; a single model is
    number 0. `before` is the text of the first token, which is context and has no row.
    """

    number: int
    num_sequences: int
    rows: pl.DataFrame
    before: str
    reference: str | None = None
    model: str | None = None
    has_counts: bool = True
    is_chosen: bool = False
    """Whether it was chosen as the sequence with the largest difference."""

    @property
    def hits(self) -> str:
        """The column of the tokens of interest: AR hits, or repeated tokens if there are no
        training counts."""
        return "ar_hit" if self.has_counts else "repeated"

    @property
    def hits_name(self) -> str:
        """Their name."""
        return "AR hits" if self.has_counts else "repeated tokens"

    def rights(self) -> list[tuple[bool | None, ...]]:
        """For each token, which of the models were right; None if that is unknown."""
        if self.model is None:
            return [()] * len(self.rows)
        columns = ["right_0"] if self.reference is None else ["right_0", "right_1"]
        return self.rows.select(columns).rows()

    def states(self) -> list[str | None]:
        """Which model was right on each token; None if that is unknown, or if there are not two
        models."""
        return [_STATES.get(right) for right in self.rights()]

    def styles(self) -> Mapping[tuple[bool | None, ...], tuple[str, str, str]]:
        """The style (in colours), the sign (without) and the meaning of tokens by who is right;
        of others, _UNKNOWN."""
        if self.model is None:
            return {(): ("", "", "")}
        if self.reference is None:
            return {(True,): ("", "¹", "right"), (False,): ("bright_black", "⁰", "wrong")}
        return {
            (True, True): ("", "²", "both right"),
            (False, False): ("bright_black", "⁰", "both wrong"),
            (True, False): ("black on yellow", "ʳ", f"only {self.reference} right"),
            (False, True): ("black on cyan", "ᵐ", f"only {self.model} right"),
        }


def tokens_json(sequence: ScoredSequence) -> dict[str, Any]:
    """Every token with all that is known of it."""
    names = [name for name in ("reference", "model") if getattr(sequence, name) is not None]
    sides = {name: place for place, name in enumerate(names)}
    tokens = []
    rows = sequence.rows.iter_rows(named=True)
    for row, state in zip(rows, sequence.states(), strict=True):
        of_labels = [name for name in row if not name.endswith(("_0", "_1")) and name != "sequence"]
        labels = {name: row[name] for name in of_labels}
        token = {**labels, "state": state}
        for side, place in sides.items():
            token[side] = {name[:-2]: row[name] for name in row if name.endswith(f"_{place}")}
        tokens.append(token)
    facts = {
        "sequence": sequence.number,
        "num_sequences": sequence.num_sequences,
        "reference": sequence.reference,
        "model": sequence.model,
    }
    return {**facts, "before": sequence.before, "tokens": tokens}


def print_tokens(sequence: ScoredSequence) -> None:
    """The text, each token coloured by which model was right, a legend, and a table of the AR hits.

    Without colours, as in a pipe, AR hits are in brackets.
    """
    out = console.stdout()
    has_colours = out.color_system is not None and not out.no_color
    for line in _heading(sequence):
        console.print_line(line)
    console.print_line("")
    out.print(_text(sequence, has_colours=has_colours))
    console.print_line("")
    out.print(_legend(sequence, has_colours=has_colours))
    if sequence.rows[sequence.hits].any():
        console.print_line("")
        console.print_table(tokens_table(sequence))


def _heading(sequence: ScoredSequence) -> list[str]:
    """How much the models differ on the sequence, and which it is."""
    names = sequence.rows["source"].unique(maintain_order=True)
    sources = ", ".join(shorten(source, 60) for source in names)
    num_hits = int(sequence.rows[sequence.hits].sum())
    place = f"Sequence {sequence.number:,} (0 to {sequence.num_sequences - 1:,}; {sources})"
    which = f"{place}: {len(sequence.rows):,} tokens, {num_hits:,} {sequence.hits_name}."
    if sequence.reference is None or not num_hits:
        return [which]
    hits = sequence.rows.filter(sequence.hits)
    more = sum(hits["nll_1"].to_list()) - sum(hits["nll_0"].to_list())
    most = ""
    if sequence.is_chosen and sequence.num_sequences > 1:
        most = f", the largest difference of {sequence.num_sequences:,} sequences"
    difference = f"{abs(more):.1f} nats {'more' if more >= 0 else 'less'} than {sequence.reference}"
    return [
        f"{sequence.model} needs {difference} on {sequence.hits_name} of this sequence{most}.",
        which,
    ]


def _text(sequence: ScoredSequence, *, has_colours: bool) -> Text:
    """The text of the sequence; its first token, which is not predicted, is dim."""
    from rich.text import Text

    text = Text(_written(sequence.before, _SIGNS_IN_TEXT), style="")
    text.stylize("dim")
    styles, rights = sequence.styles(), sequence.rights()
    hits, repeated = sequence.rows[sequence.hits].to_list(), sequence.rows["repeated"].to_list()
    for place, token in enumerate(sequence.rows["text"]):
        style, sign, _ = styles.get(rights[place], _UNKNOWN)
        # A mark that extended over a line's end would colour the margin, or be closed on the next
        # line.
        written, end = (
            _written(token, _SIGNS_IN_TEXT).removesuffix("\n"),
            "\n" * token.endswith("\n"),
        )
        if not has_colours:
            text.append(f"⟦{written}⟧{sign}{end}" if hits[place] else f"{written}{end}")
            continue
        marks = "underline" if repeated[place] and sequence.model is None else ""
        marks = _HIT_STYLE if hits[place] else marks
        text.append(written, style=f"{style} {marks}".strip())
        text.append(end)
    return text


def _legend(sequence: ScoredSequence, *, has_colours: bool) -> Text:
    """The legend of colours, or of brackets and signs."""
    from rich.text import Text

    styles = sequence.styles() if sequence.model is not None else {}
    names = [
        *styles.values(),
        *([_UNKNOWN] if styles and not styles.keys() >= set(sequence.rights()) else []),
    ]
    if not has_colours:
        signs = "".join(f", {sign} {name}" for _, sign, name in names)
        return Text(printable(f"⟦ ⟧ {sequence.hits_name}{signs}"))
    who = Text("   ").join(Text(printable(name), style=style) for style, _, name in names)
    marks = [Text(sequence.hits_name, style=_HIT_STYLE)]
    if sequence.model is None and sequence.has_counts:
        marks.append(Text("other repeated tokens", style="underline"))
    return Text("\n").join(filter(None, [who, Text("   ").join(marks)]))


def tokens_table(sequence: ScoredSequence) -> Table:
    """The AR hits in order; if there are many, those where the models differ most, or the first
    ones."""
    rows = sequence.rows.filter(sequence.hits).to_dicts()
    most = sorted(
        sorted(rows, key=lambda row: -_difference(sequence, row))[:_MOST_ROWS],
        key=lambda row: row["position"],
    )
    headers = ["token", "at", "earlier\nat", "training\ncount"]
    if sequence.reference is not None:
        headers += ["NLL\nreference", "NLL\nmodel", "model\npredicted"]
    elif sequence.model is not None:
        headers += ["NLL", "predicted"]
    name = sequence.hits_name
    title = f"{name[0].upper()}{name[1:]}"
    if len(most) < len(rows):
        title += f", {len(most)} of {len(rows):,}"
    return Table(
        title,
        headers,
        [_cells(sequence, row) for row in most],
        caption=_caption(sequence, len(most) < len(rows)),
    )


def _caption(sequence: ScoredSequence, is_cut: bool) -> str:
    earlier = "where the bigram last ended before (0: the first token, which is not predicted)"
    sentences = [f"At: position in the sequence. Earlier at: {earlier}."]
    if sequence.model is not None:
        sentences.append("NLL in nats; predicted: what the model ranked first if it was wrong.")
    if is_cut:
        some = "the first of them"
        if sequence.reference is not None:
            some = "those where the models differ most"
        sentences.append(f"Shown are {some}; --json has all.")
    return " ".join(sentences)


def _difference(sequence: ScoredSequence, row: Mapping[str, Any]) -> float:
    return abs(row["nll_1"] - row["nll_0"]) if sequence.reference is not None else 0.0


def _cells(sequence: ScoredSequence, row: Mapping[str, Any]) -> list[str]:
    cells = [
        _written(row["text"]),
        f"{row['position']:,}",
        or_dash(row["earlier"], ","),
        or_dash(row["train_count"], ","),
    ]
    if sequence.model is None:
        return cells
    place = 0 if sequence.reference is None else 1
    guess = row[f"predicted_{place}"]
    predicted = "" if row[f"right_{place}"] else "–" if guess is None else _written(guess)
    return [*cells, *(f"{row[f'nll_{side}']:.2f}" for side in range(place + 1)), predicted]


def _written(token: str, signs: Mapping[str, str] = _SIGNS) -> str:
    """A token without control characters, spaces and line ends as `signs`: those of a table, or
    of running text."""

    def sign(character: str) -> str:
        if character in signs:
            return signs[character]
        return character if character.isprintable() else f"\\x{ord(character):02x}"

    return "".join(map(sign, token))
