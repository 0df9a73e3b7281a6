"""NLLs of a pack by MLX.

    python mlx_loop.py MODEL slices/pack attention.npy

MODEL is a folder or a name on the hub. Run with mlx-lm 0.32.2 and mlx 0.32.4 on a CPU, 2026-11-29.
"""

import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.nn.losses import cross_entropy
from mlx_lm import load

BATCH = 4


def main(name: str, pack: Path, out: Path) -> None:
    """Reads the pack, and writes OUT.npy and OUT.json."""
    facts = json.loads((pack / "manifest.json").read_text())
    ids, seq_len = np.load(pack / "ids.npy"), facts["seq_len"]
    model, tokenizer = load(name)
    first = tokenizer.encode("a")[0]
    prefix = first if first == tokenizer.bos_token_id else -1
    texts = ids if prefix < 0 else np.insert(ids, 0, prefix, axis=1)

    nll = np.zeros((len(ids), seq_len), np.float32)
    for start in range(0, len(texts), BATCH):
        # A shorter sequence is filled up at its end, which a causal model does not see before.
        rows = mx.array(texts[start : start + BATCH])
        logits = model(rows[:, :-1]).astype(mx.float32)
        losses = cross_entropy(logits, rows[:, 1:], reduction="none")
        nll[start : start + BATCH] = losses[:, -seq_len:]  # without that of the first id

    np.save(out, nll)
    stated = {"sequences_digest": facts["sequences_digest"], "unit": "nats", "prefix": prefix}
    out.with_suffix(".json").write_text(json.dumps(stated))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
