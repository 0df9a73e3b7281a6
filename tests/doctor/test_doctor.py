"""`recallkit doctor`: what is well is told so, what is not has a remedy, nothing throws, nothing takes long, no secret is told."""

from __future__ import annotations

import http.server
import json
import os
import sys
import threading
import time

import pytest

from recallkit.doctor import checks, machine, packages, surroundings
from recallkit.doctor.checks import Check, ProbeError, guarded, probe, within, worst

SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "HF_TOKEN": "hf_abcsecret",
    "HF_ENDPOINT": "https://me:mysecret@hub.example/path?key=othersecret",
    "RECALLKIT_SOME_TOKEN": "thirdsecret",
}


@pytest.fixture(scope="module")
def examined(run):
    """The command with --json, the hub switched off and secrets all around, and the time it took."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        begun = time.monotonic()
        done = run("doctor", "--json")
        return done, time.monotonic() - begun


def test_this_machine_is_well(examined):
    done, took = examined
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    assert took < 120
    found = json.loads(done.stdout)
    assert found["status"] in ("ok", "warn")
    by_name = {(check["group"], check["name"]): check for check in found["checks"]}
    assert len(by_name) == len(found["checks"])
    for check in found["checks"]:
        assert check["status"] in ("ok", "warn")
        assert check["found"]
        assert (check["remedy"] is None) == (check["status"] == "ok"), check
    import duckdb
    import torch

    assert by_name["packages", "duckdb"]["version"] == duckdb.__version__
    assert by_name["packages", "torch"]["version"] == torch.__version__
    assert {name for group, name in by_name if group == "packages"} >= {*packages.NEEDED, *packages.OPTIONAL}
    assert by_name["machine", "processor"]["allowed"] == len(os.sched_getaffinity(0))
    assert by_name["machine", "memory"]["total_bytes"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert by_name["surroundings", "hub"]["offline"] is True
    assert by_name["folders", "this folder"]["lacks"] == []


def test_secrets_are_never_told(examined):
    done, _ = examined
    assert "secret" not in done.stdout + done.stderr
    [hub] = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "hub"]
    assert (hub["token"], hub["endpoint"]) == (True, "https://hub.example/path")


def test_people_read_a_line_each_and_what_every_command_needs_makes_it_fail(run, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("RECALLKIT_KERNELS", "fastest")
    monkeypatch.setenv("RECALLKIT_NO_SUCH_THING", "\x1b[31m\udcff")
    done = run("doctor")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    for word in ("python", "memory", "numba", "kernels", "hub", "variables"):
        assert sum(line.split()[1:2] == [word] for line in lines) == 1, word
    [line] = [line for line in lines if line.strip().startswith("fail")]
    assert "RECALLKIT_KERNELS=fastest" in line
    assert "-> set RECALLKIT_KERNELS to auto" in done.stdout
    assert "\x1b" not in done.stdout
    assert "RECALLKIT_NO_SUCH_THING=\\x1b[31m\\xdcff" in line
    assert lines[-1].endswith(".")
    assert "1 failed: variables" in lines[-1]
    assert done.stderr == "recallkit: failed: variables; the remedy is given with each of these checks\n"


def test_a_package_that_is_broken_is_found_and_a_file_of_its_name_here_is_not_taken_for_it(tmp_path, monkeypatch):
    (tmp_path / "duckdb.py").write_text("raise RuntimeError('broken here')")
    monkeypatch.chdir(tmp_path)
    [check] = packages.check_working("tables", 60)
    assert check.status == "ok"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "polars.py").write_text("import os; os._exit(9)")
    for content, told in (("import os; os._exit(9)", "9"), ("raise RuntimeError('broken here')", "broken here")):
        (tmp_path / "polars.py").write_text(content)
        (tmp_path / "duckdb.py").write_text(content)
        [check] = packages.check_working("tables", 60)
        assert (check.status, told in check.found) == ("fail", True), check
        assert check.remedy


def test_a_probe_that_hangs_is_ended_with_all_it_started(tmp_path, monkeypatch):
    left = tmp_path / "left"
    child = f"import time; time.sleep(4); open({str(left)!r}, 'w')"
    program = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {child!r}])\ntime.sleep(60)\n"
    (tmp_path / "duckdb.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        probe("tables", seconds=2)
    assert time.monotonic() - begun < 15
    time.sleep(3.5)
    assert not left.exists()


def test_an_unknown_probe_is_an_error():
    with pytest.raises(ProbeError, match="nonsense"):
        probe("nonsense", seconds=60)


def test_nothing_throws_and_nothing_hangs():
    def broken() -> list[Check]:
        raise RuntimeError("first\x1b[2J\nsecond")

    [check] = guarded("g", "n", broken)
    assert (check.group, check.name, check.status) == ("g", "n", "warn")
    assert "first" in check.found
    assert check.found.isprintable()
    begun = time.monotonic()
    [check] = guarded("g", "n", lambda: time.sleep(30) or [], seconds=0.1)  # type: ignore[func-returns-value]
    assert time.monotonic() - begun < 5
    assert "0.1 s" in check.found
    with pytest.raises(RuntimeError):
        within(1, broken)


def test_the_worst_decides():
    def made(status: checks.Status) -> Check:
        return Check("g", "n", status, "x")

    assert worst([]) == worst([made("ok")]) == "ok"
    assert worst([made("warn"), made("ok")]) == "warn"
    assert worst([made("ok"), made("fail"), made("warn")]) == "fail"


# ----------------------------------------------------------------------------------------------------------- the machine


def test_folders_are_tried_and_left_as_they_were(tmp_path):
    [check] = machine.check_folder("this folder", tmp_path)
    assert (check.status, check.facts["lacks"]) == ("ok", [])
    assert list(tmp_path.iterdir()) == []
    [check] = machine.check_folder("cache", tmp_path / "not" / "there")
    assert check.status == "ok"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("is_needed", "status"), [(False, "warn"), (True, "fail")])
def test_a_folder_that_cannot_be_written_is_told_with_its_remedy(is_needed, status):
    [check] = machine.check_folder("cache", machine.Path("/proc/1"), is_needed=is_needed)
    assert (check.status, check.facts["writable"]) == (status, False)
    assert "RECALLKIT_HOME" in str(check.remedy)


def test_locks_that_exclude_nobody_are_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.fcntl, "flock", lambda *_: None)
    [check] = machine.check_folder("this folder", tmp_path)
    assert (check.status, check.facts["lacks"]) == ("warn", ["locks (flock)"])


def test_limits_of_groups_are_found_in_all_above(tmp_path, monkeypatch):
    own = machine.Path("/proc/self/cgroup").read_text().strip().splitlines()[-1].rpartition(":")[2].lstrip("/")
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path)
    assert machine.memory_limit() is None
    assert machine.cpu_quota() is None
    (tmp_path / own).mkdir(parents=True, exist_ok=True)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert machine.memory_limit() is None
    assert machine.cpu_quota() is None
    (tmp_path / "memory.max").write_text("1500000000\n")
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert machine.memory_limit() == 1_500_000_000
    assert machine.cpu_quota() == 1.5
    [check] = machine.check_memory()
    assert (check.status, check.facts["limit_bytes"]) == ("warn", 1_500_000_000)


def test_a_driver_without_a_gpu_that_torch_sees_is_told(monkeypatch, tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 999.1\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machine.nvidia_driver() == "999.1"
    check = machine.check_torch(120)[-1]
    assert (check.name, check.status) == ("GPUs", "warn")
    assert "999.1" in check.found
    assert "CUDA_VISIBLE_DEVICES" in str(check.remedy)
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    assert machine.nvidia_driver() is None


# ------------------------------------------------------------------------------------------------------- surroundings


def test_a_package_that_is_missing_or_old(monkeypatch):
    from packaging.specifiers import SpecifierSet

    monkeypatch.setattr(packages, "NEEDED", ("no-such-package-anywhere", "numpy", "another-that-is-missing"))
    monkeypatch.setattr(packages, "_NUM_ESSENTIAL", 2)
    monkeypatch.setattr(packages, "_requirements", lambda: {"numpy": SpecifierSet(">=99")})
    found = {check.name: check for check in packages.check_versions()}
    assert found["no-such-package-anywhere"].status == "fail"
    assert found["another-that-is-missing"].status == "warn"
    assert (found["numpy"].status, found["numpy"].remedy) == ("warn", 'pip install "numpy>=99"')


def test_what_recallkit_asks_for_is_read_from_its_own_metadata():
    asked = packages._requirements()
    assert not asked or [asked["typer"].contains(version) for version in ("0.23", "0.24")] == [False, True]


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers as its class says."""

    status = 200
    seconds = 0.0

    def do_HEAD(self) -> None:
        time.sleep(self.seconds)
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch):
    """A hub on this machine, with a password in its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "http_proxy", "HTTP_PROXY", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield Hub
    server.shutdown()
    server.server_close()
    thread.join()
    Hub.status, Hub.seconds = 200, 0.0


@pytest.mark.parametrize(("status", "answers"), [(200, True), (401, True), (404, True), (503, False)])
def test_a_hub_that_answers(hub, status, answers):
    hub.status = status
    [check] = surroundings.check_hub()
    assert (check.facts["answers"], check.status) == (answers, "ok" if answers else "warn")


def test_a_hub_that_is_slow_or_away_is_not_waited_for(hub, monkeypatch):
    monkeypatch.setattr(surroundings, "_SECONDS_FOR_HUB", 0.3)
    hub.seconds = 2.0
    begun = time.monotonic()
    [check] = surroundings.check_hub()
    assert time.monotonic() - begun < 1.5
    assert (check.status, check.facts["answers"]) == ("warn", False)
    for endpoint in ("http://127.0.0.1:9", "file:///etc/passwd", "nonsense", "http://[", "http://a b"):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        [check] = guarded("surroundings", "hub", surroundings.check_hub)
        assert check.status == "warn"


def test_a_token_in_a_file_counts(tmp_path, monkeypatch):
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert not surroundings.has_token()
    (tmp_path / "token").write_text("x")
    assert surroundings.has_token()


def test_an_encoding_that_is_not_utf8_is_told(monkeypatch):
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    [check] = surroundings.check_encoding()
    assert (check.status, check.facts["files"]) == ("warn", "ascii")


def test_a_numba_cache_that_cannot_be_written_is_told(monkeypatch):
    monkeypatch.setattr(surroundings, "probe", lambda *_, **__: {"cache": "/proc/1/cache"})
    [check] = surroundings.check_numba(1)
    assert check.status == "warn"
    assert "NUMBA_CACHE_DIR" in str(check.remedy)


@pytest.mark.slow
def test_ray_is_started_when_all_is_asked_for(monkeypatch):
    if packages.installed("ray") is None:
        pytest.skip("Ray is not installed")
    [check] = surroundings.check_ray(120, full=True)
    assert check.status == "ok", check
    assert "starts" in check.found
