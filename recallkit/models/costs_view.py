"""What mixers and models cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.display import console
from recallkit.display.cells import abbreviate
from recallkit.display.tables import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def print_costs(mixers: Sequence[Mapping[str, Any]], zoo_models: Sequence[Mapping[str, Any]], width: int, length: int) -> None:
    """What mixers of this width and the zoo's models cost."""
    from recallkit.models import zoo

    headers = ["parameters", "state", "FLOP per token"]
    console.print_table(
        Table(
            f"Mixers of width {width:,}, sequences of {length:,} tokens",
            ["mixer", *headers],
            [[row["mixer"], *_costs(row)] for row in mixers],
            caption="State: elements kept per sequence. FLOP: of the forward pass; a multiplication and an addition count as two.",
        )
    )
    console.print_table(
        Table(
            f"Models of the zoo, sequences of {zoo.CONTEXT} tokens",
            ["model", *headers, "trained on"],
            [[row["model"], *_costs(row), _amount(row["trained_tokens"])] for row in zoo_models],
            caption=f"Parameters without the embedding, which has {abbreviate(zoo_models[0]['embeddings'])}.",
        )
    )


def print_presets(rows: Sequence[Mapping[str, Any]]) -> None:
    """The architectures of the papers, printed and counted parameters beside, and their costs."""
    from recallkit.models.presets import CONTEXT

    headers = ["preset", "table", "printed", "counted", "miss", "state", "FLOP", "TFLOP"]
    console.print_table(
        Table(
            f"Architectures of Zoology and Based, sequences of {CONTEXT:,} tokens",
            headers,
            [
                [
                    row["preset"],
                    row["table"],
                    *(abbreviate(row[name]) for name in ("printed", "parameters")),
                    f"{100 * row['miss']:+z.1f} %",
                    *(abbreviate(row[name]) for name in ("state_elements", "flops_per_token")),
                    "–" if row["flops_paper"] is None else f"{row['flops_paper'] / 1e12:.2f}",
                ]
                for row in rows
            ],
            caption="Parameters with embeddings. FLOP: of the forward pass, per token. TFLOP: of a training step on one sequence, as "
            "Zoology counts.",
        )
    )
    for row in rows:
        if row["note"]:
            console.print_line(f"{row['preset']}: {row['note']}")


def _costs(row: Mapping[str, Any]) -> list[str]:
    return [abbreviate(row[name]) for name in ("parameters", "state_elements", "flops_per_token")]


def _amount(number: int | None) -> str:
    return "–" if number is None else abbreviate(number)
