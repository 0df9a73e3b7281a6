"""NLLs of a pack by torchtitan, in any number of processes that share its batches out.

    torchrun --nproc-per-node 2 torchtitan_loop.py CHECKPOINT slices/pack attention.npy [PREFIX]

CHECKPOINT: a folder step-N of a Llama 3 of size FLAVOR. PREFIX: the id of a BOS, if the model needs
one. In a run, pass its model to `record`. Run with torchtitan 0.3.0 without a GPU, 2026-11-29.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.functional import cross_entropy

FLAVOR, BATCH = "debugmodel", 4


def load_model(checkpoint: str) -> torch.nn.Module:
    """The model of a checkpoint, complete in every process."""
    from torchtitan.models.llama3 import model_registry

    model = model_registry(FLAVOR).model.build()
    model.init_states(buffer_device=torch.device("cpu"))
    state = model.state_dict()  # of copies, where the model fuses weights
    dcp.load(state, checkpoint_id=checkpoint)
    model.load_state_dict(state)
    return model.eval()


@torch.no_grad()
def record(model: torch.nn.Module, pack: Path, out: Path, prefix: int = -1) -> None:
    """Writes OUT.npy and OUT.json from process 0; FSDP needs as many batches in each process."""
    facts = json.loads((pack / "manifest.json").read_text())
    ids, seq_len = np.load(pack / "ids.npy").astype(np.int64), facts["seq_len"]
    texts = ids if prefix < 0 else np.insert(ids, 0, prefix, axis=1)
    nll = torch.zeros(len(ids), seq_len, device=next(model.parameters()).device)
    for start in range(0, len(ids), BATCH * dist.get_world_size()):
        numbers = start + BATCH * dist.get_rank() + np.arange(BATCH)
        rows = torch.from_numpy(texts[numbers % len(ids)]).to(nll.device)  # the last ones again
        positions = torch.arange(rows.shape[1] - 1, device=nll.device).expand(BATCH, -1)
        logits = model(rows[:, :-1], positions, model.get_attention_masks(positions)).float()
        losses = cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none")
        new = numbers < len(ids)
        nll[numbers[new]] = losses[new, -seq_len:]  # without that of the first id
    dist.all_reduce(nll)  # a sum: each row is 0 in all processes but one
    if dist.get_rank() == 0:
        np.save(out, nll.cpu())
        stated = {"sequences_digest": facts["sequences_digest"], "unit": "nats", "prefix": prefix}
        out.with_suffix(".json").write_text(json.dumps(stated))


if __name__ == "__main__":
    dist.init_process_group()
    place = f"cuda:{dist.get_node_local_rank()}" if torch.cuda.is_available() else "cpu"
    model = load_model(sys.argv[1]).to(place)
    record(model, Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:]))
