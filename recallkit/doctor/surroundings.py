"""The surroundings of the program: compiled kernels, tokenizers, the hub, environment variables."""

from __future__ import annotations

import os
import shutil
import urllib.parse
from pathlib import Path
from typing import Any

from recallkit.config import installing
from recallkit.doctor.checks import Check, described
from recallkit.doctor.installation import installed
from recallkit.doctor.machine import excludes_others

_HUB = "https://huggingface.co"
_SECONDS_FOR_HUB = 3.0
_OTHERS = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TRITON_INTERPRET", "NUMBA_CACHE_DIR", "NUMBA_DISABLE_JIT", "HF_HOME", "TMPDIR")
"""Environment variables of other packages that affect recallkit."""
_SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD")
NUMBA_REMEDY = "set NUMBA_CACHE_DIR to a writable folder"
_IMPLS = ("auto", "reference", "torch", "triton")


def check_numba() -> list[Check]:
    """Whether the compiled loops load, and are cached between runs."""
    from numba.core.dispatcher import Dispatcher

    from recallkit.slicing import label_kernels

    kernels: list[Any] = [value for value in vars(label_kernels).values() if isinstance(value, Dispatcher)]
    folder = Path(kernels[0]._cache.cache_path)
    try:
        excludes_others(next(place for place in (folder, *folder.parents) if place.exists()))
    except OSError as error:
        problem = f"its cache cannot be written ({error.strerror}): {folder}"
        return [Check("compiled loops", "warn", problem, f"{NUMBA_REMEDY} to cache compiled code")]
    return [Check("compiled loops", "ok", f"caches compiled code in {folder}")]


def check_tokenizer() -> list[Check]:
    """The built-in tokenizer, and whether the fast implementation agrees with it."""
    from recallkit.text.encoding import fast_encoder
    from recallkit.text.tokenizers import load_tokenizer

    notes: list[str] = []
    tokenizer = load_tokenizer(None)
    if not len(tokenizer.encode(["How are you?"])[0]):
        raise ValueError("the built-in tokenizer gives no ids")
    if fast_encoder(tokenizer, notes.append) is not None and tokenizer.checked_encoder((), notes.append) != tokenizer.encode:
        return [Check("tokenizer", "ok", "the built-in one works, gigatoken agrees with it")]
    found, remedy = "the built-in one works, gigatoken (the fast implementation) is not installed", installing("fast")
    if installed("gigatoken") is not None:
        found = "gigatoken is installed but not used: " + ("; ".join(notes) or "it does not load")
        remedy = "pip install --upgrade gigatoken"
    return [Check("tokenizer", "warn", found, remedy)]


def check_triton() -> list[Check]:
    """Runs one of our kernels, compiled on a GPU and interpreted without one, and compares it with PyTorch."""
    if installed("triton") is None:
        return [Check("kernels", "ok", "Triton is not installed: PyTorch computes")]
    if shutil.which("nvidia-smi") is None:
        os.environ["TRITON_INTERPRET"] = "1"
    elif not any(map(shutil.which, ("cc", "gcc", "clang"))):
        raise ValueError("there is no C compiler, which Triton needs")
    import torch

    from recallkit.kernels.token_nll.api import token_nll

    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(rows, 64, generator=generator).to(device) for rows in (3, 100))
    ours, theirs = (token_nll(hidden, weight, torch.arange(3, device=device), impl=impl)[0] for impl in ("triton", "torch"))
    difference = float((ours - theirs).abs().max())
    if not difference < 1e-3:
        raise ValueError(f"a kernel differs from PyTorch by {difference} nats")
    found = "no GPU: PyTorch computes; Triton only interprets kernels for tests, and they agree with PyTorch"
    found = "Triton compiles them, and they agree with PyTorch" if device == "cuda" else found
    return [Check("kernels", "ok", found)]


# --------------------------------------------------------------------------------------------------------------- the hub


def check_hub() -> list[Check]:
    """Whether models and data can be downloaded."""
    from huggingface_hub import get_token

    endpoint, has_token = os.environ.get("HF_ENDPOINT") or _HUB, get_token() is not None
    is_offline = any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    token = "a token is set" if has_token else "no token"
    shown = _without_secrets(endpoint)
    if is_offline:
        return [Check("hub", "ok", f"HF_HUB_OFFLINE is set: cached files are used, nothing is downloaded; {token}")]
    problem = _no_answer(endpoint)
    if problem is None:
        return [Check("hub", "ok", f"{shown} answers, {token}")]
    remedy = "check the network, or work with local files (with HF_HUB_OFFLINE=1 nothing waits for it)"
    return [Check("hub", "warn", f"{shown} does not answer ({problem}), {token}", remedy)]


def _no_answer(endpoint: str) -> str | None:
    """Why an address does not respond; None for any response of a working server."""
    from huggingface_hub import get_session

    try:
        status = get_session().head(endpoint, timeout=_SECONDS_FOR_HUB).status_code
    except Exception as error:  # noqa: BLE001 - the address, a name server, a proxy or the network
        return described(error)
    return f"status {status}" if status >= 500 else None


def _without_secrets(address: str) -> str:
    """An address without the user name, password and query that it may contain."""
    parts = urllib.parse.urlsplit(address)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


# ------------------------------------------------------------------------------------------------------ ours, and the rest


def check_settings() -> list[Check]:
    """Environment variables that affect recallkit or its dependencies."""
    names = sorted(name for name in os.environ if name.startswith("RECALLKIT_") or name in _OTHERS)
    values = {name: "(set)" if any(word in name for word in _SECRET) else os.environ[name] for name in names}
    found = ", ".join(f"{name}={value}" for name, value in values.items()) or "none is set"
    if os.environ.get("RECALLKIT_KERNELS", "auto") not in _IMPLS:
        return [Check("variables", "fail", found, f"set RECALLKIT_KERNELS to {', '.join(_IMPLS)}, or unset it")]
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return [Check("variables", "warn", found, "unset NUMBA_DISABLE_JIT: it disables compilation")]
    return [Check("variables", "ok", found)]
