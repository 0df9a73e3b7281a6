"""NLLs of a pack by Megatron Core, in any number of processes that share its batches out.

    torchrun --nproc-per-node 2 megatron_loop.py CHECKPOINT slices/pack attention.npy [PREFIX]

PREFIX: the id of a BOS, if the model needs one. In a run, pass its model to `record`; no pipelines.
Run with megatron-core 0.16.1, two processes and no GPU, its calls of CUDA replaced, 2026-11-29.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

TENSOR_PARALLEL, BATCH = 1, 4


def load_model(checkpoint: str) -> torch.nn.Module:
    """The model of a distributed checkpoint: write here how yours is built."""
    from megatron.core import dist_checkpointing, transformer
    from megatron.core.models.gpt import GPTModel, gpt_layer_specs

    config = transformer.TransformerConfig(num_layers=2, hidden_size=48, num_attention_heads=4)
    model = GPTModel(config, gpt_layer_specs.get_gpt_layer_local_spec(), 4096, 2048)
    model.load_state_dict(dist_checkpointing.load(model.sharded_state_dict(), checkpoint))
    return model.eval()


@torch.no_grad()
def record(model, group, pack: Path, out: Path, prefix: int = -1) -> None:
    """Writes OUT.npy and OUT.json from process 0; a data parallel group shares the batches out."""
    facts = json.loads((pack / "manifest.json").read_text())
    ids, seq_len = np.load(pack / "ids.npy").astype(np.int64), facts["seq_len"]
    texts = ids if prefix < 0 else np.insert(ids, 0, prefix, axis=1)
    nll = torch.zeros(len(ids), seq_len, device=next(model.parameters()).device)
    for start in range(0, len(ids), BATCH * group.size()):
        numbers = start + BATCH * group.rank() + np.arange(BATCH)
        rows = torch.from_numpy(texts[numbers % len(ids)]).to(nll.device)  # the last ones again
        positions = torch.arange(rows.shape[1] - 1, device=nll.device).expand(BATCH, -1)
        losses = model(rows[:, :-1], positions, None, labels=rows[:, 1:])
        new = numbers < len(ids)
        nll[numbers[new]] = losses[new, -seq_len:].float()  # without that of the first id
    dist.all_reduce(nll, group=group)  # a sum: each row is 0 in all of the group but one
    if dist.get_rank() == 0:
        np.save(out, nll.cpu())
        stated = {"sequences_digest": facts["sequences_digest"], "unit": "nats", "prefix": prefix}
        out.with_suffix(".json").write_text(json.dumps(stated))


if __name__ == "__main__":
    from megatron.core import parallel_state, tensor_parallel

    dist.init_process_group()
    torch.cuda.set_device(dist.get_node_local_rank())
    parallel_state.initialize_model_parallel(TENSOR_PARALLEL)
    tensor_parallel.model_parallel_cuda_manual_seed(0)  # layers ask for it in evaluation, too
    model, group = load_model(sys.argv[1]).cuda(), parallel_state.get_data_parallel_group()
    record(model, group, Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:]))
