"""What mixers and models cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.display import cells, console
from recallkit.display.tables import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_COSTS = {
    "parameters": cells.amount("parameters"),
    "state": cells.amount("state_elements"),
    "FLOP per token": cells.amount("flops_per_token"),
}
_PRESETS = {
    "preset": cells.name("preset"),
    "table": cells.name("table"),
    "printed": cells.amount("printed"),
    "counted": cells.amount("parameters"),
    "miss": lambda row: f"{100 * row['miss']:+z.1f} %",
    "state": cells.amount("state_elements"),
    "FLOP": cells.amount("flops_per_token"),
    "TFLOP": lambda row: cells.or_dash(None if row["flops_paper"] is None else row["flops_paper"] / 1e12, ".2f"),
}


def print_costs(mixers: Sequence[Mapping[str, Any]], zoo_models: Sequence[Mapping[str, Any]], width: int, length: int) -> None:
    """What mixers of this width and the zoo's models cost."""
    from recallkit.models import zoo

    of_mixers = Table.of(
        f"Mixers of width {width:,}, sequences of {length:,} tokens",
        {"mixer": cells.name("mixer"), **_COSTS},
        mixers,
        "State: elements kept per sequence. FLOP: of the forward pass; a multiplication and an addition count as two.",
    )
    of_models = Table.of(
        f"Models of the zoo, sequences of {zoo.CONTEXT} tokens",
        {"model": cells.name("model"), **_COSTS, "trained on": cells.amount("trained_tokens")},
        zoo_models,
        f"Parameters without the embedding, which has {cells.abbreviate(zoo_models[0]['embeddings'])}.",
    )
    console.print_table(of_mixers)
    console.print_table(of_models)


def print_presets(rows: Sequence[Mapping[str, Any]]) -> None:
    """The architectures of the papers, printed and counted parameters beside, and their costs."""
    from recallkit.models.presets import CONTEXT

    title = f"Architectures of Zoology and Based, sequences of {CONTEXT:,} tokens"
    caption = (
        "Parameters with embeddings. FLOP: of the forward pass, per token. TFLOP: of a training step on one sequence, as Zoology counts."
    )
    console.print_table(Table.of(title, _PRESETS, rows, caption))
    for row in rows:
        if row["note"]:
            console.print_line(f"{row['preset']}: {row['note']}")
