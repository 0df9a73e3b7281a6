"""Batches and devices."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from recallkit.errors import UserError
from recallkit.models.devices import choose_device
from recallkit.models.loading import load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec


def test_a_batch_on_cpu_is_of_whole_sequences(tiny_model):
    model = load_model(ModelPlan(ModelSpec(str(tiny_model("llama"))), 4096, device="cpu"))
    assert [model.batch_tokens(length) for length in (1, 255, 3000, 10_000)] == [
        2048,
        2040,
        3000,
        10_000,
    ]


def count_new_pages(configured: dict[str, str], to: Path) -> None:
    """Writes how many pages the system gives for twenty blocks of 48 MiB, each freed before the
    next, after the first."""
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_"))]:
        del os.environ[name]
    os.environ.update(configured)
    choose_device("cpu")
    torch.ones(12 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(12 << 20)
    to.write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize("configured", [{}, {"MALLOC_MMAP_THRESHOLD_": "131072"}], ids=str)
def test_what_torch_frees_is_used_again(warm, tmp_path, configured):
    """Twenty blocks are 245,760 pages, unless each is where the last one was; who has configured
    malloc is let be."""
    process = warm.Process(target=count_new_pages, args=(configured, tmp_path / "pages"))
    process.start()
    process.join(60)
    huge = "[always]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    assert (int((tmp_path / "pages").read_text()) > 200_000) == (bool(configured) and not huge)


def test_devices_that_are_not_there_are_one_line():
    assert choose_device("cpu").type == "cpu"
    with pytest.raises(UserError, match="no such device"):
        choose_device("tpu?")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="no CUDA GPU"):
            choose_device("cuda")


def test_kernels_that_no_one_knows_are_a_mistake(monkeypatch):
    monkeypatch.setenv("RECALLKIT_KERNELS", "fast")
    with pytest.raises(UserError, match="RECALLKIT_KERNELS=fast"):
        choose_device("cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llama", "mamba"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("bfloat16", 0.1)])
def test_a_gpu_gives_the_scores_of_the_cpu(tiny_model, family, dtype, tolerance):
    ids = np.random.default_rng(0).integers(0, 4096, 5 * 129).astype(np.uint32)
    offsets = np.array([0, 129, 200, 400, 516, 645])
    there, here = (
        load_model(ModelPlan(ModelSpec(str(tiny_model(family))), 4096, device=d, dtype=dtype))
        for d in ("cuda", "cpu")
    )
    np.testing.assert_allclose(
        there.score(ids, offsets).nll,
        here.score(ids, offsets).nll,
        rtol=0,
        atol=tolerance,
    )


@pytest.mark.gpu
def test_a_batch_that_does_not_fit_on_a_gpu_is_a_memory_error(tiny_model):
    model = load_model(ModelPlan(ModelSpec(str(tiny_model("llama"))), 4096, device="cuda"))
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, 2 * (1 << 30) / total))
    try:
        with pytest.raises(MemoryError):
            model.score(np.zeros(1 << 24, np.uint32), np.arange(0, (1 << 24) + 1, 256))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
