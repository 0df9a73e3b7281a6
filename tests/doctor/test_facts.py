"""`recallkit doctor`: facts of this machine; no secret is printed, what is broken is a line."""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata
from pathlib import Path

import pytest

from recallkit.doctor import facts
from recallkit.models import devices

SETTINGS = {
    "HF_TOKEN": "hf_abcsecret",
    "HF_ENDPOINT": "https://me:mysecret@hub.example/path?key=othersecret",
    "RECALLKIT_SOME_TOKEN": "thirdsecret",
    "RECALLKIT_HOME": "\x1b[31m\udcff",
}


def test_this_machine_is_described_without_secrets(run, monkeypatch):
    import duckdb
    import torch

    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    printed, as_json = run("doctor"), run("doctor", "--json")
    for done in (printed, as_json):
        assert (done.returncode, done.stderr) == (0, "")
    assert "secret" not in printed.stdout + as_json.stdout
    assert "\x1b" not in printed.stdout
    rows = json.loads(as_json.stdout)
    values = {row["name"]: row["description"] for row in rows}
    assert len(values) == len(rows)
    assert [name for name in values if f"\n{name} " not in printed.stdout] == []
    assert (values["duckdb"], values["torch"]) == (duckdb.__version__, torch.__version__)
    assert "pytest" not in values, "what only contributors need"
    assert f"{len(os.sched_getaffinity(0))} of " in values["processor"]
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert values["memory"].startswith(f"{total / 1e9:.1f} GB, ")
    assert values["HF_TOKEN"] == values["RECALLKIT_SOME_TOKEN"] == "(set)"
    assert values["HF_ENDPOINT"].startswith("https://***@hub.example/path")


@pytest.mark.parametrize(
    ("requirement", "versions", "rows"),
    [
        ("numpy>=2", {"numpy": "2.1"}, [("numpy", "2.1")]),
        ("numpy>=2", {"numpy": "3.0rc1"}, [("numpy", "3.0rc1")]),
        ("numpy>=99", {"numpy": "2.1"}, [("numpy", "2.1, recallkit requires >=99")]),
        ("numpy>=2", {}, [("numpy", 'not installed: pip install "numpy>=2"')]),
        ('ray>=2; extra == "ray"', {}, []),
        ('ray>=2; extra == "ray"', {"ray": "2.1"}, [("ray", "2.1")]),
        ('ray>=2; extra == "dev"', {"ray": "2.1"}, []),
        ('triton>=3; platform_system == "None"', {}, []),
    ],
)
def test_a_distribution_that_is_missing_old_or_optional(monkeypatch, requirement, versions, rows):
    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(facts.metadata, "requires", lambda _: [requirement])
    monkeypatch.setattr(facts.metadata, "version", version)
    assert facts.describe_versions() == rows


def test_a_library_that_does_not_load_is_a_line_among_the_others(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    values = dict(facts.describe_installation())
    assert values["GPUs"].startswith("ModuleNotFoundError: ")
    assert {"recallkit", "memory", "temporary files"} <= set(values)


def test_folders_are_described_and_left_as_they_were(tmp_path, monkeypatch):
    missing = tmp_path / "not" / "there"
    assert facts.describe_folder(tmp_path).endswith(" GB free")
    assert facts.describe_folder(missing).startswith(f"{missing}, ")
    assert facts.describe_folder(missing).endswith(" GB free, not there yet")
    monkeypatch.setattr(facts.os, "access", lambda *_: False)
    assert facts.describe_folder(tmp_path).endswith(" GB free, not writable")
    assert list(tmp_path.iterdir()) == []


def test_limits_of_groups_are_found_in_all_above(tmp_path, monkeypatch):
    def is_limited() -> list[bool]:
        values = dict(facts.describe_machine())
        return ["limited to 1.5 GB" in values["memory"], "a quota of 1.5" in values["processor"]]

    group = Path("/proc/self/cgroup").read_text().strip().rpartition(":")[2].lstrip("/")
    monkeypatch.setattr(devices, "_CGROUPS", tmp_path)
    assert is_limited() == [False, False]
    (tmp_path / group).mkdir(parents=True, exist_ok=True)
    settings = (("max\n", "max 100000\n", False), ("1500000000\n", "150000 100000\n", True))
    for memory, quota, expected in settings:
        (tmp_path / "memory.max").write_text(memory)
        (tmp_path / "cpu.max").write_text(quota)
        assert is_limited() == [expected, expected]
