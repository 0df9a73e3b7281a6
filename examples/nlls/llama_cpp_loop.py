"""NLLs of a pack by llama.cpp: `recallkit slice --tokenizer MODEL.gguf` makes it of its ids.

    python llama_cpp_loop.py MODEL.gguf slices/pack attention.npy

The cache is float32; llama.cpp's own is float16, which changed NLLs by 0.002 nats on average. Run
with llama-cpp-python 0.3.36 on a CPU, 2026-11-29.
"""

import json
import sys
from pathlib import Path

import numpy as np
from llama_cpp import GGML_TYPE_F32, Llama


def nlls_of(logits: np.ndarray, targets: list[int]) -> np.ndarray:
    """-ln p of targets (t,) by logits (t, vocabulary)."""
    largest = logits.max(axis=1)
    sums = np.exp(logits - largest[:, None]).sum(axis=1)
    return np.log(sums) + largest - logits[np.arange(len(targets)), targets]


def main(model: str, pack: Path, out: Path) -> None:
    """Reads the pack, and writes OUT.npy and OUT.json."""
    facts = json.loads((pack / "manifest.json").read_text())
    ids, lengths = np.load(pack / "ids.npy"), np.load(pack / "lengths.npy")
    seq_len = facts["seq_len"]

    exact = {"logits_all": True, "type_k": GGML_TYPE_F32, "type_v": GGML_TYPE_F32}
    llama = Llama(model, n_ctx=seq_len + 1, n_batch=seq_len + 1, verbose=False, **exact)
    first = llama.tokenize(b"a")[0]  # the BOS, if the file says that the model reads one
    prefix = first if first == llama.token_bos() else -1
    lead = [prefix] if prefix >= 0 else []

    nll = np.zeros((len(ids), seq_len), np.float32)
    for row, (sequence, length) in enumerate(zip(ids, lengths, strict=True)):
        text = lead + sequence[:length].tolist()
        llama.reset()
        llama.eval(text[:-1])
        values = nlls_of(llama.scores[: len(text) - 1], text[1:])
        nll[row, : length - 1] = values[len(lead) :]

    np.save(out, nll)
    stated = {"sequences_digest": facts["sequences_digest"], "unit": "nats", "prefix": prefix}
    out.with_suffix(".json").write_text(json.dumps(stated))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
