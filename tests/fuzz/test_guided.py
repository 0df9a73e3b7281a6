"""The readers of bytes on bytes: a few made by hand everywhere, and by atheris where it is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.fuzz.guided import READERS, feed

BYTES = [
    b"",
    b"\x00",
    b"{}",
    b"[]",
    b"null",
    b"PAR1PAR1",
    b"PAR1" + bytes(16) + b"PAR1",
    b"\x28\xb5\x2f\xfd",
    b"\x1f\x8b\x08",
    b"\xff" * 64,
]
BYTES += [b"fmgg" + bytes(64), b"fmgg" + b"\xff" * 64, b'{"model": {}}', b"[" * 100_000, b'{"text": 1, "value": []}\n']


@pytest.mark.parametrize("name", READERS)
def test_a_few_bytes_are_read_or_refused(tmp_path: Path, name: str) -> None:
    for content in BYTES:
        feed(name, content, tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed")
@pytest.mark.parametrize("name", READERS)
def test_guided(tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-m", "tests.fuzz.guided", name, "-max_total_time=5", "-timeout=20", "-rss_limit_mb=2000"]
    done = subprocess.run([*command, f"-artifact_prefix={tmp_path}/"], capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
