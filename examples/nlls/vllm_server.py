"""NLLs of a pack by vLLM's server, or another that answers OpenAI's completions with `echo`.

    vllm serve MODEL
    python vllm_server.py http://localhost:8000/v1#MODEL slices/pack attention.npy [PREFIX]

PREFIX: the id of a BOS, if the model needs one. The model reads the last id, too, and writes one:
its context must be two longer than the pack's seq_len (`slice --seq-len`), three with a BOS.

Not run with vLLM: written against the documentation of 0.28 (2026-11-29), and run with a server
that answers as it does.
"""

import json
import os
import sys
import urllib.request
from pathlib import Path

import numpy as np

BATCH = 8  # sequences in a request


def completions(url: str, request: dict) -> list[dict]:
    """The choices that a server answers, in the order of the prompts."""
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    body = json.dumps(request).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
        return sorted(json.load(answer)["choices"], key=lambda choice: choice["index"])


def main(server: str, pack: Path, out: Path, prefix: int = -1) -> None:
    """Reads the pack, and writes OUT.npy and OUT.json."""
    facts = json.loads((pack / "manifest.json").read_text())
    ids, lengths = np.load(pack / "ids.npy"), np.load(pack / "lengths.npy")
    url, _, model = server.partition("#")
    lead = [prefix] if prefix >= 0 else []
    texts = [lead + row[:length].tolist() for row, length in zip(ids, lengths, strict=True)]

    request = {"model": model, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    nll = np.zeros((len(ids), facts["seq_len"]), np.float32)
    for start in range(0, len(texts), BATCH):
        prompts = texts[start : start + BATCH]
        choices = completions(f"{url}/completions", request | {"prompt": prompts})
        for row, (text, choice) in enumerate(zip(prompts, choices, strict=True), start):
            values = choice["logprobs"]["token_logprobs"][len(lead) + 1 : len(text)]
            nll[row, : len(values)] = np.negative(values)

    np.save(out, nll)
    stated = {"sequences_digest": facts["sequences_digest"], "unit": "nats", "prefix": prefix}
    out.with_suffix(".json").write_text(json.dumps(stated))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:]))
