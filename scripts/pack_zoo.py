"""Packs the weights of trained models as the zoo ships them: large matrices in 8 bits with a scale
for each row, the rest in float16.

    python scripts/pack_zoo.py run/checkpoint-3125 [...]

rewrites each folder's model.safetensors: 2.4 MB for 2.4M parameters.
`recallkit.models.zoo.read_ours` reads it.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from recallkit.models import zoo

LARGE = 16_384
"""Numbers from which a matrix is rounded to 8 bits."""


def pack(folder: Path) -> None:
    """Rounds the weights of a checkpoint of ours, in place; packed ones stay as they are."""
    packed: dict[str, torch.Tensor] = {}
    for name, values in zoo.read_ours(folder)[1].items():
        if values.dim() == 2 and values.numel() >= LARGE:
            scale = (values.float().abs().amax(1, keepdim=True) / 127).clamp(min=1e-12)
            packed[name], packed[name + zoo.SCALE] = (
                (values.float() / scale).round().to(torch.int8),
                scale,
            )
        else:
            packed[name] = values.half()
    old, new = folder / zoo.WEIGHTS, folder / f"{zoo.WEIGHTS}.new"
    save_file(packed, new)
    shutil.copymode(old, new)
    new.replace(old)


if __name__ == "__main__":
    for given in sys.argv[1:]:
        pack(Path(given))
