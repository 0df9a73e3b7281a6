"""NLLs of a pack by transformers, in float32 from the logits of whole batches.

    python transformers_loop.py MODEL slices/pack attention.npy

MODEL is a folder or a name on the hub. Run with transformers 5.23.0, 2026-11-29.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

BATCH = 4  # logits are (BATCH, seq_len, vocabulary) numbers of 4 bytes


def begin_id(model: str) -> int:
    """The id that the tokenizer puts before every text, -1 for none."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    first = tokenizer("a").input_ids[0]
    return first if first == tokenizer.bos_token_id else -1


@torch.inference_mode()
def main(name: str, pack: Path, out: Path) -> None:
    """Reads the pack, and writes OUT.npy and OUT.json."""
    facts = json.loads((pack / "manifest.json").read_text())
    ids, seq_len = np.load(pack / "ids.npy").astype(np.int64), facts["seq_len"]
    prefix = begin_id(name)
    texts = ids if prefix < 0 else np.insert(ids, 0, prefix, axis=1)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(name, dtype="auto").to(device).eval()
    nll = np.zeros((len(ids), seq_len), np.float32)
    for start in range(0, len(texts), BATCH):
        # A shorter sequence is filled up at its end, which a causal model does not see before.
        rows = torch.from_numpy(texts[start : start + BATCH]).to(device)
        logits = model(rows[:, :-1]).logits.float()
        losses = cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none")
        nll[start : start + BATCH] = losses[:, -seq_len:].cpu()  # without that of the first id

    np.save(out, nll)
    stated = {"sequences_digest": facts["sequences_digest"], "unit": "nats", "prefix": prefix}
    out.with_suffix(".json").write_text(json.dumps(stated))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
