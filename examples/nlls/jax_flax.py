"""NLLs of a pack by JAX: replace `load_model` by your model and its parameters.

    python jax_flax.py params.msgpack slices/pack attention.npy [PREFIX]

PREFIX: the id of a BOS, if the model needs one. Run with jax 0.10.2 and flax 0.12.8, 2026-11-29.
"""

import json
import sys
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
from flax import serialization

BATCH = 4
jax.config.update("jax_default_matmul_precision", "float32")  # not TF32 or bfloat16


class TinyModel(nn.Module):
    """One head of attention; `shape` is that of the embeddings."""

    shape: tuple[int, int]

    @nn.compact
    def __call__(self, ids: jax.Array) -> jax.Array:
        """Logits (b, t, vocabulary) of ids (b, t)."""
        embed, dense = nn.Embed(*self.shape, name="embed"), nn.Dense(3 * self.shape[1], name="qkv")
        qkv = jax.numpy.split(dense(embed(ids))[:, :, None], 3, axis=3)
        y = embed(ids) + jax.nn.dot_product_attention(*qkv, is_causal=True)[:, :, 0]
        return embed.attend(y)


def load_model(path: Path):
    """A function from ids (b, t) to logits (b, t, vocabulary)."""
    params = serialization.msgpack_restore(path.read_bytes())
    return TinyModel(params["embed"]["embedding"].shape).bind({"params": params})


def main(name: str, pack: Path, out: Path, prefix: int = -1) -> None:
    """Reads the pack, and writes OUT.npy and OUT.json."""
    facts = json.loads((pack / "manifest.json").read_text())
    ids, seq_len = np.load(pack / "ids.npy"), facts["seq_len"]
    texts = ids if prefix < 0 else np.insert(ids, 0, prefix, axis=1)
    model = load_model(Path(name))

    @jax.jit
    def nlls_of(rows: jax.Array) -> jax.Array:
        logs = jax.nn.log_softmax(model(rows[:, :-1]).astype("float32"))
        return -jax.numpy.take_along_axis(logs, rows[:, 1:, None], axis=2)[:, -seq_len:, 0]

    batches = np.split(texts, range(BATCH, len(texts), BATCH))
    np.save(out, np.concatenate([nlls_of(rows) for rows in batches]))
    stated = {"sequences_digest": facts["sequences_digest"], "unit": "nats", "prefix": prefix}
    out.with_suffix(".json").write_text(json.dumps(stated))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:]))
