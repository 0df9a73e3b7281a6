"""A disk that cannot keep what it was given: fsync fails, and the command says so in one line and leaves nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int fsync(int file) {
    char link[64], path[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    if (readlink(link, path, sizeof path - 1) > 0 && strstr(path, "/.c.duckdb.new.partial/c.duckdb")) { errno = EIO; return -1; }
    return ((int (*)(int)) dlsym(RTLD_NEXT, "fsync"))(file);
}
int fdatasync(int file) { return fsync(file); }
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler")
def test_a_counts_table_that_cannot_be_synced(home, tmp_path):
    (tmp_path / "shim.c").write_text(SHIM)
    shim = tmp_path / "shim.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, tmp_path / "shim.c", "-ldl"], check=True)
    text = tmp_path / "text.jsonl"
    text.write_text(json.dumps({"text": "a b a b a b"}) + "\n")
    out = tmp_path / "out" / "c.duckdb"
    command = [sys.executable, "-m", "recallkit", "count", text, "-o", out, "--tokenizer", "bytes"]
    environment = {**os.environ, "RECALLKIT_HOME": str(home)}
    failed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env={**environment, "LD_PRELOAD": str(shim)})
    assert failed.returncode == 1, failed.stderr
    assert f"{out}: the counts table could not be written (" in failed.stderr.splitlines()[-1]
    assert "run the same command again" in failed.stderr.splitlines()[-1]
    assert not out.exists()
    assert not [*out.parent.glob("*.part"), *out.parent.glob("*.part.wal")]  # what was counted is kept in a folder
    again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert again.returncode == 0, again.stderr
    assert [path.name for path in out.parent.iterdir()] == ["c.duckdb"]
