"""Which mixers of a model are ablated, as it is named and shown: nothing of a model is needed, nor imported.

A mixer is what moves something from one token to another: attention, a convolution, a recurrence. `mixer_outputs.py` replaces them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from recallkit.errors import UsageError

By = Literal["zero", "mean"]
"""What replaces an output: zero, or the mean of the mixer's outputs over the tokens of a text."""

NONE = "none"
"""An ablation of no mixer: the model as it is."""

_NAMED = re.compile(r"(0|[1-9]\d{0,5})(\.[a-z][a-z0-9_]*)?|[a-z][a-z0-9_]*")
SYNTAX = "layers or kinds joined with +, such as ablate=1+3, ablate=attention or ablate=1:mean"


@dataclass(frozen=True, slots=True)
class Ablation:
    """Which mixers are replaced, by what. `named`: layers (`3`), kinds (`attention`), one of several in a layer (`3.attention`)."""

    named: tuple[str, ...]
    by: By = "zero"

    @classmethod
    def parse(cls, text: str) -> Ablation:
        """The ablation that `1+3`, `attention`, `3.mamba:mean` or `none` means, in one order. Raises UsageError for anything else."""
        names, _, by = text.partition(":")
        named = names.split("+")
        if not all(map(_NAMED.fullmatch, named)) or (NONE in named and len(named) > 1) or (by or "zero") not in get_args(By):
            raise UsageError("no mixers", where=f"ablate={text}", remedy=f"give {SYNTAX}")
        return cls(tuple(sorted(dict.fromkeys(named), key=_in_order)), "mean" if by == "mean" else "zero")

    def __str__(self) -> str:
        """As it is typed."""
        return "+".join(self.named) + (":mean" if self.by == "mean" else "")

    @property
    def needs_means(self) -> bool:
        """Whether it needs the means of the mixers' outputs."""
        return self.by == "mean" and self.named != (NONE,)

    @property
    def shown(self) -> str:
        """What the names of ablated models end in."""
        return f"{'with the mean of' if self.by == 'mean' else 'without'} {'+'.join(self.named)}"


def _in_order(name: str) -> tuple[bool, int, str]:
    layer = name.partition(".")[0]
    return (not layer.isdecimal(), int(layer) if layer.isdecimal() else 0, name)
