"""Probes that run in a process of their own: imports that may be broken, GPUs, compilers, clusters.

`python -m recallkit.doctor.probes NAME` prints one line of JSON, with `error` where something is wrong.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from recallkit.doctor.checks import described

if TYPE_CHECKING:
    from collections.abc import Callable


def probe_tables() -> dict[str, Any]:
    """Tables and SQL: whether the three libraries load and work together."""
    import duckdb
    import polars as pl

    table = pl.DataFrame({"x": [1, 2, 3]}).to_arrow()
    with duckdb.connect() as connection:
        connection.register("given", table)
        row = connection.execute("select sum(x) from given").fetchone()
    if row is None or row[0] != 6:
        raise ValueError("1 + 2 + 3 is not 6 in DuckDB")
    return {}


def probe_numba() -> dict[str, Any]:
    """Whether the compiled loops load, and the folder of numba's cache."""
    from numba.core.dispatcher import Dispatcher

    from recallkit.counting import lookup_kernels

    kernels: list[Any] = [value for value in vars(lookup_kernels).values() if isinstance(value, Dispatcher)]
    return {"cache": str(kernels[0]._cache.cache_path)}


def probe_torch() -> dict[str, Any]:
    """Threads and GPUs."""
    import torch

    gpus = []
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(number)
            free, total = torch.cuda.mem_get_info(number)
            sizes = {"memory_bytes": total, "free_bytes": free}
            gpus.append({"name": facts.name, **sizes, "capability": [facts.major, facts.minor], "bf16": facts.major >= 8})
    return {"threads": torch.get_num_threads(), "cuda": torch.version.cuda, "gpus": gpus}


def probe_transformers() -> dict[str, Any]:
    """Whether it loads."""
    from transformers import AutoConfig

    return {"class": AutoConfig.__name__}


def probe_tokenizer() -> dict[str, Any]:
    """Whether the built-in tokenizer works, and the fast implementation agrees with it on probe texts."""
    from recallkit.text.tokenizers import fast_encoder, load_tokenizer

    told: list[str] = []
    tokenizer = load_tokenizer(None)
    ids, _ = tokenizer.encode(["How are you?"])
    if not len(ids):
        raise ValueError("the built-in tokenizer gives no ids")
    has_fast = fast_encoder(tokenizer, told.append) is not None
    agrees = has_fast and tokenizer.checked_encoder((), told.append) != tokenizer.encode
    return {"vocab_size": tokenizer.vocab_size, "fast": has_fast, "agrees": agrees, "told": told}


def probe_triton() -> dict[str, Any]:
    """Runs one of our kernels, compiled on a GPU and interpreted without one, and compares it with PyTorch."""
    import torch

    from recallkit.kernels.token_nll.api import token_nll

    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(rows, 64, generator=generator).to(device) for rows in (3, 100))
    targets = torch.arange(3, device=device)
    ours, theirs = (token_nll(hidden, weight, targets, impl=impl) for impl in ("triton", "torch"))
    difference = float((ours[0] - theirs[0]).abs().max())
    if not difference < 1e-3:
        raise ValueError(f"a kernel differs from PyTorch by {difference} nats")
    return {"device": device, "difference": difference}


def probe_ray() -> dict[str, Any]:
    """Starts Ray on this machine and computes a sum in it."""
    import logging

    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        add: Any = ray.remote(lambda numbers: sum(numbers))
        if ray.get(add.remote([1, 2, 3])) != 6:
            raise ValueError("1 + 2 + 3 is not 6 in Ray")
    finally:
        ray.shutdown()
    return {}


PROBES: dict[str, Callable[[], dict[str, Any]]] = {
    "tables": probe_tables,
    "numba": probe_numba,
    "torch": probe_torch,
    "transformers": probe_transformers,
    "tokenizer": probe_tokenizer,
    "triton": probe_triton,
    "ray": probe_ray,
}


def main(name: str) -> None:
    """Prints the finding of the probe, or its error."""
    try:
        answer = PROBES[name]()
    except Exception as error:  # noqa: BLE001 - the caller reports it
        answer = {"error": described(error)}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
