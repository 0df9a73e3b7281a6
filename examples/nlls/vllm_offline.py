"""NLLs of a pack by vLLM in this process, as log-probabilities of prompts.

    python vllm_offline.py MODEL slices/pack attention.npy

The model reads the last id, too, and writes one: its context must be two longer than the pack's
seq_len (`slice --seq-len`), three with a BOS.

Not run: written against the documentation of vLLM 0.28 (2026-11-29), and tested with a stand-in.
"""

import json
import sys
from pathlib import Path

import numpy as np
from vllm import LLM, SamplingParams


def main(name: str, pack: Path, out: Path) -> None:
    """Reads the pack, and writes OUT.npy and OUT.json."""
    facts = json.loads((pack / "manifest.json").read_text())
    ids, lengths = np.load(pack / "ids.npy"), np.load(pack / "lengths.npy")
    seq_len = facts["seq_len"]

    llm = LLM(model=name, max_model_len=seq_len + 3)
    tokenizer = llm.get_tokenizer()
    first = tokenizer.encode("a")[0]
    prefix = first if first == tokenizer.bos_token_id else -1
    lead = [prefix] if prefix >= 0 else []

    texts = [lead + row[:length].tolist() for row, length in zip(ids, lengths, strict=True)]
    prompts = [{"prompt_token_ids": text} for text in texts]
    # 0 asks for the log-probability of each token alone, before any temperature.
    params = SamplingParams(prompt_logprobs=0, max_tokens=1, temperature=0)
    nll = np.zeros((len(ids), seq_len), np.float32)
    for row, (text, output) in enumerate(zip(texts, llm.generate(prompts, params), strict=True)):
        places = range(len(lead) + 1, len(text))  # the first id, and the BOS, are not predicted
        values = [-output.prompt_logprobs[place][text[place]].logprob for place in places]
        nll[row, : len(values)] = values

    np.save(out, nll)
    stated = {"sequences_digest": facts["sequences_digest"], "unit": "nats", "prefix": prefix}
    out.with_suffix(".json").write_text(json.dumps(stated))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
