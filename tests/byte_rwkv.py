"""A really trained byte-level RWKV-5.2 in rwkv.cpp's file format, as a user would bring it: `byte_rwkv.py:load`.

The file's folder is named by RECALLKIT_TEST_DATA. Header `<IIiiiI` (magic, version, vocabulary, width, layers, type), then
a record a tensor: `<iii` dimensions, length of the name, type; the shape reversed; the name; float32 values.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

FOLDER = Path(os.environ.get("RECALLKIT_TEST_DATA", ".")) / "models" / "tiny-rwkv-5v2"
WEIGHTS = FOLDER / "tiny-rwkv-5v2-730K-FP32.bin"
EXPECTED_LOGITS = FOLDER / "expected-logits-5v2-730K.bin"
TOKENIZER = "bytes"
FILES = [str(WEIGHTS)]
HEAD_SIZE = 8


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """All tensors by name."""
    content, place = path.read_bytes(), struct.calcsize("<IIiiiI")
    weights = {}
    while place < len(content):
        num_dimensions, name_length, kind = struct.unpack_from("<iii", content, place)
        assert kind == 0, "only float32 is read"
        shape = struct.unpack_from(f"<{num_dimensions}i", content, place + 12)[::-1]
        start = place + 12 + 4 * num_dimensions
        name = content[start : start + name_length].decode()
        values = np.frombuffer(content, "<f4", int(np.prod(shape)), start + name_length)
        weights[name] = torch.from_numpy(values.reshape(shape).copy())
        place = start + name_length + values.nbytes
    return weights


class ByteRwkv(torch.nn.Module):
    """RWKV-5.2: ids (b, t) to logits (b, t, 256)."""

    vocab_size = 256
    max_length = None

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.w = torch.nn.ParameterDict({name.replace(".", "/"): torch.nn.Parameter(w, requires_grad=False) for name, w in weights.items()})
        self.num_layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks."))

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.w[name.replace(".", "/")]

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.layer_norm(x, x.shape[-1:], self[f"{name}.weight"], self[f"{name}.bias"])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.read(ids, None)[0]

    def read(self, ids: torch.Tensor, state: dict[str, torch.Tensor] | None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Logits of ids that follow a state, and the state after them: the last inputs of each mix, and each layer's memory."""
        before, after = state or {}, {}
        x = self.norm(self["emb.weight"][ids], "blocks.0.ln0")
        for layer in range(self.num_layers):
            x = x + self.mix_time(self.norm(x, f"blocks.{layer}.ln1"), f"blocks.{layer}.att", before, after)
            x = x + self.mix_channels(self.norm(x, f"blocks.{layer}.ln2"), f"blocks.{layer}.ffn", before, after)
        return self.norm(x, "ln_out") @ self["head.weight"].T, after

    def shifted(self, x: torch.Tensor, name: str, letter: str, before: dict[str, torch.Tensor]) -> torch.Tensor:
        """Each position mixed with the one before it."""
        mix = self[f"{name}.time_mix_{letter}"]
        first = before.get(name, torch.zeros_like(x[:, :1]))
        return x * mix + torch.cat([first, x[:, :-1]], dim=1) * (1 - mix)

    def mix_time(self, x: torch.Tensor, name: str, before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> torch.Tensor:
        b, t, d = x.shape
        letters = {"r": "receptance", "k": "key", "v": "value", "g": "gate"}
        r, k, v, g = (self.shifted(x, name, letter, before) @ self[f"{name}.{word}.weight"].T for letter, word in letters.items())
        r, k, v = (y.view(b, t, -1, HEAD_SIZE) for y in (r, k, v))
        decay, bonus = self[f"{name}.time_decay"], self[f"{name}.time_faaaa"]
        state, outputs = before.get(f"{name}.memory", x.new_zeros(b, d // HEAD_SIZE, HEAD_SIZE, HEAD_SIZE)), []
        for i in range(t):
            now = k[:, i, :, :, None] * v[:, i, :, None, :]
            outputs.append((r[:, i, :, None, :] @ (bonus * now + state))[:, :, 0])
            state = now + decay * state
        after[name], after[f"{name}.memory"] = x[:, -1:], state
        mixed = torch.stack(outputs, 1).reshape(b * t, d)
        normed = functional.group_norm(mixed, d // HEAD_SIZE, self[f"{name}.ln_x.weight"], self[f"{name}.ln_x.bias"], eps=1e-5)
        return (normed.view(b, t, d) * functional.silu(g)) @ self[f"{name}.output.weight"].T

    def mix_channels(self, x: torch.Tensor, name: str, before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> torch.Tensor:
        k = torch.relu(self.shifted(x, name, "k", before) @ self[f"{name}.key.weight"].T) ** 2
        r = torch.sigmoid(self.shifted(x, name, "r", before) @ self[f"{name}.receptance.weight"].T)
        after[name] = x[:, -1:]
        return r * (k @ self[f"{name}.value.weight"].T)


def load(request: object) -> ByteRwkv:
    """For `recallkit score byte_rwkv.py:load`."""
    return ByteRwkv(read_weights(WEIGHTS))
