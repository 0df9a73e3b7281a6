"""The processes that torchrun begins: all of them train one model, and the first one writes."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import distributed


def join_processes(device: torch.device) -> torch.device:
    """Joins the process group that torchrun has begun, if it has; the device of this process."""
    # Schedulers set WORLD_SIZE alone.
    if "RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        return device
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return device


def is_first() -> bool:
    """Whether this is the process that writes."""
    return os.environ.get("RANK", "0") == "0"


def wait_for_all() -> None:
    """Returns once every process of the group, if there is one, is here."""
    if distributed.is_initialized():
        distributed.barrier()


def from_first(value: Any) -> Any:
    """What the first process gives."""
    values = [value]
    if distributed.is_initialized():
        distributed.broadcast_object_list(values)
    return values[0]


def leave_processes() -> None:
    """Waits for all, and ends the group."""
    wait_for_all()
    if distributed.is_initialized():
        distributed.destroy_process_group()
