"""The surroundings of the program: compiled kernels, tokenizers, the hub, the built-in text, environment variables."""

from __future__ import annotations

import locale
import os
import shutil
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from recallkit.config import installing
from recallkit.doctor.checks import Check, ProbeError, probe
from recallkit.doctor.machine import what_lacks
from recallkit.doctor.packages import installed

_GROUP = "surroundings"
_HUB = "https://huggingface.co"
_SECONDS_FOR_HUB = 3.0
_OTHERS = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TRITON_INTERPRET", "NUMBA_CACHE_DIR", "NUMBA_DISABLE_JIT", "HF_HOME", "TMPDIR")
"""Environment variables of other packages that affect recallkit."""
_SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD")
_IMPLS = ("auto", "reference", "torch", "triton")


def check_numba(seconds: float) -> list[Check]:
    """Whether the compiled loops load, and are cached between runs."""
    try:
        folder = Path(probe("numba", seconds=seconds)["cache"])
    except ProbeError as error:
        return [Check(_GROUP, "compiled loops", "fail", str(error), "set NUMBA_CACHE_DIR to a writable folder, or reinstall numba")]
    facts = {"cache": str(folder)}
    place = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        what_lacks(place)
    except OSError as error:
        problem = f"its cache cannot be written ({error.strerror}): {folder}"
        return [Check(_GROUP, "compiled loops", "warn", problem, "set NUMBA_CACHE_DIR to a writable folder to cache compiled code", facts)]
    return [Check(_GROUP, "compiled loops", "ok", f"caches compiled code in {folder}", facts=facts)]


def check_tokenizer(seconds: float) -> list[Check]:
    """The built-in tokenizer, and whether the fast implementation agrees with it."""
    try:
        facts = probe("tokenizer", seconds=seconds)
    except ProbeError as error:
        return [Check(_GROUP, "tokenizer", "fail", str(error), "reinstall recallkit and tokenizers")]
    if installed("gigatoken") is None:
        found, remedy = "the built-in one works, gigatoken (the fast implementation) is not installed", installing("fast")
        return [Check(_GROUP, "tokenizer", "warn", found, remedy, facts)]
    if not facts["agrees"]:
        found = "gigatoken is installed but not used: " + ("; ".join(facts["told"]) or "it does not load")
        return [Check(_GROUP, "tokenizer", "warn", found, "pip install --upgrade gigatoken", facts)]
    return [Check(_GROUP, "tokenizer", "ok", "the built-in one works, gigatoken agrees with it", facts=facts)]


def check_triton(seconds: float) -> list[Check]:
    """Whether our kernels compile here, or can only be interpreted."""
    if installed("triton") is None:
        return [Check(_GROUP, "kernels", "ok", "Triton is not installed: PyTorch computes", facts={"triton": None})]
    has_gpu = shutil.which("nvidia-smi") is not None
    try:
        facts = probe("triton", seconds=seconds, environment={} if has_gpu else {"TRITON_INTERPRET": "1"})
    except ProbeError as error:
        compiler = "" if any(map(shutil.which, ("cc", "gcc", "clang"))) else "; there is no C compiler, which Triton needs"
        remedy = f"RECALLKIT_KERNELS=torch works without them{compiler}"
        return [Check(_GROUP, "kernels", "warn", f"Triton's do not run ({error})", remedy)]
    if facts["device"] == "cuda":
        return [Check(_GROUP, "kernels", "ok", "Triton compiles them, and they agree with PyTorch", facts=facts)]
    found = "no GPU: PyTorch computes; Triton only interprets kernels for tests, and they agree with PyTorch"
    return [Check(_GROUP, "kernels", "ok", found, facts=facts)]


def check_ray(seconds: float, *, full: bool) -> list[Check]:
    """Whether Ray is installed, and with `full` whether it starts."""
    version = installed("ray")
    if version is None:
        return [Check(_GROUP, "ray", "ok", "not installed: --engine ray needs it")]
    if not full:
        return [Check(_GROUP, "ray", "ok", f"{version} is installed; --full starts it", facts={"version": version})]
    try:
        probe("ray", seconds=seconds)
    except ProbeError as error:
        return [Check(_GROUP, "ray", "warn", f"{version} does not start ({error})", "use --engine local", {"version": version})]
    return [Check(_GROUP, "ray", "ok", f"{version} starts and computes", facts={"version": version})]


# --------------------------------------------------------------------------------------------------------------- the hub


def check_hub() -> list[Check]:
    """Whether models and data can be downloaded."""
    endpoint = os.environ.get("HF_ENDPOINT") or _HUB
    token = "a token is set" if has_token() else "no token"
    facts = {"endpoint": without_secrets(endpoint), "token": has_token(), "offline": is_offline()}
    if is_offline():
        return [Check(_GROUP, "hub", "ok", f"HF_HUB_OFFLINE is set: cached files are used, nothing is downloaded; {token}", facts=facts)]
    problem = _no_answer(endpoint)
    if problem is None:
        return [Check(_GROUP, "hub", "ok", f"{facts['endpoint']} answers, {token}", facts={**facts, "answers": True})]
    remedy = "check the network, or work with local files (with HF_HUB_OFFLINE=1 nothing waits for it)"
    return [Check(_GROUP, "hub", "warn", f"{facts['endpoint']} does not answer ({problem}), {token}", remedy, {**facts, "answers": False})]


def _no_answer(endpoint: str) -> str | None:
    """Why an address does not respond; None for any response."""
    if urllib.parse.urlsplit(endpoint).scheme not in ("http", "https"):
        return "no http address"
    request = urllib.request.Request(endpoint, method="HEAD")  # noqa: S310 - the scheme was checked
    try:
        urllib.request.urlopen(request, timeout=_SECONDS_FOR_HUB).close()  # noqa: S310
    except urllib.error.HTTPError as error:
        return f"status {error.code}" if error.code >= 500 else None
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
    return None


def is_offline() -> bool:
    """Whether the hub's own offline switch is set."""
    return any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def has_token() -> bool:
    """Whether there is a token for the hub; it is not used otherwise."""
    if os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN"):
        return True
    home = os.environ.get("HF_HOME") or str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    file = Path(os.environ.get("HF_TOKEN_PATH") or str(Path(home) / "token")).expanduser()
    return file.is_file() and file.stat().st_size > 0


def without_secrets(address: str) -> str:
    """An address without the user name, password and query that it may contain."""
    parts = urllib.parse.urlsplit(address)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


# ------------------------------------------------------------------------------------------------------ ours, and the rest


def check_builtin() -> list[Check]:
    """Whether the default slices of commands without arguments are built already."""
    from recallkit import builtin

    folder = builtin.folder()
    is_built = (folder / "slices" / "tokens.parquet").exists()
    found = f"built, in {folder}" if is_built else "not built yet: the first command that needs it builds it in seconds"
    return [Check(_GROUP, "built-in text", "ok", found, facts={"path": str(folder), "built": is_built})]


def check_encoding() -> list[Check]:
    """Whether text in every language can be read and printed."""
    facts = {
        "output": (getattr(sys.stdout, "encoding", None) or "").lower(),
        "files": sys.getfilesystemencoding(),
        "locale": locale.getpreferredencoding(False).lower(),
    }
    found = ", ".join(f"{encoding or 'none'} for {what}" for what, encoding in facts.items())
    if all(encoding.replace("-", "") == "utf8" for encoding in facts.values()):
        return [Check(_GROUP, "encoding", "ok", "UTF-8", facts=facts)]
    return [Check(_GROUP, "encoding", "warn", found, "set LC_ALL=C.UTF-8, or PYTHONUTF8=1", facts)]


def check_settings() -> list[Check]:
    """Environment variables that affect recallkit or its dependencies."""
    names = sorted(name for name in os.environ if name.startswith("RECALLKIT_") or name in _OTHERS)
    values = {name: "(set)" if any(word in name for word in _SECRET) else os.environ[name] for name in names}
    found = ", ".join(f"{name}={value}" for name, value in values.items()) or "none is set"
    if os.environ.get("RECALLKIT_KERNELS", "auto") not in _IMPLS:
        remedy = f"set RECALLKIT_KERNELS to {', '.join(_IMPLS)}, or unset it"
        return [Check(_GROUP, "variables", "fail", found, remedy, {"variables": values})]
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return [Check(_GROUP, "variables", "warn", found, "unset NUMBA_DISABLE_JIT: it disables compilation", {"variables": values})]
    return [Check(_GROUP, "variables", "ok", found, facts={"variables": values})]
