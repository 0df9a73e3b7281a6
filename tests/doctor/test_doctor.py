"""`recallkit doctor`: what is well is said to be, what is not has a remedy; nothing raises or takes long, no secret is printed."""

from __future__ import annotations

import http.server
import json
import os
import threading
import time

import pytest

from recallkit.doctor import installation, machine, surroundings
from recallkit.doctor.checks import Check, Probe
from recallkit.doctor.examine import PROBES, doctor_json, failure_line, print_doctor
from recallkit.models import devices

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
    by_name = {check["name"]: check["found"] for check in found["checks"]}
    assert len(by_name) == len(found["checks"])
    for check in found["checks"]:
        assert check["status"] in ("ok", "warn")
        assert check["found"]
        assert (check["remedy"] is None) == (check["status"] == "ok"), check
    import duckdb
    import torch

    assert (by_name["duckdb"], by_name["torch"]) == (duckdb.__version__, torch.__version__)
    assert by_name.keys() >= {*installation.NEEDED, *installation.OPTIONAL}
    assert f"{len(os.sched_getaffinity(0))} of " in by_name["processor"]
    assert by_name["memory"].startswith(f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.1f} GB, ")
    assert by_name["this folder"].endswith("locks files and replaces them atomically")


def test_secrets_are_never_told(examined):
    done, _ = examined
    assert "secret" not in done.stdout + done.stderr
    [hub] = [check["found"] for check in json.loads(done.stdout)["checks"] if check["name"] == "hub"]
    assert hub == "HF_HUB_OFFLINE is set: cached files are used, nothing is downloaded; a token is set"


def test_people_read_a_line_each_and_what_every_command_needs_makes_it_fail(monkeypatch, capsys):
    monkeypatch.setenv("RECALLKIT_KERNELS", "fastest")
    monkeypatch.setenv("RECALLKIT_NO_SUCH_THING", "\x1b[31m\udcff")
    checks = [check for name in ("python", "memory", "variables") for check in look(name).inspect(60)]
    print_doctor(checks)
    out = capsys.readouterr().out
    lines = out.splitlines()
    for word in ("python", "memory", "variables"):
        assert sum(line.split()[1:2] == [word] for line in lines[1:]) == 1, word
    failed = " ".join(out[out.index("fail  variables") :].split())
    assert "RECALLKIT_KERNELS=fastest" in failed
    assert "RECALLKIT_NO_SUCH_THING=\\x1b[31m\\xdcff" in failed
    assert "-> set RECALLKIT_KERNELS to auto" in failed
    assert lines[0].endswith("1 failed: variables.")
    assert failure_line(checks) == "failed: variables; the remedy is given with each of these checks"


def look(name: str) -> Probe:
    return next(each for each in PROBES if each.name == name)


def test_a_check_that_hangs_or_raises_is_a_line_and_the_worst_decides(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # the folder of a duckdb that is broken
    for content, seconds, found in (
        ("import time; time.sleep(60)", 1.5, ("warn", "no answer within 1.5 s")),
        ("import os; os._exit(9)", 60, ("fail", "exit status 9")),
    ):
        (tmp_path / "duckdb.py").write_text(content)
        [check] = look("tables at work").inspect(seconds)
        assert (check.status, check.found) == found

    def broken() -> list[Check]:
        raise RuntimeError("first\x1b[2J\nsecond")

    [check] = Probe("n", broken).inspect(1)
    assert (check.name, check.status) == ("n", "warn")
    assert check.found.startswith("RuntimeError: first")
    assert check.found.isprintable()
    assert check.remedy
    for each, worst in (((), "ok"), (("ok",), "ok"), (("warn", "ok"), "warn"), (("ok", "fail", "warn"), "fail")):
        assert doctor_json([Check("n", status, "x") for status in each])["status"] == worst


# ----------------------------------------------------------------------------------------------------------- the machine


@pytest.fixture
def cache(monkeypatch):
    """Makes a folder the cache and checks it."""

    def check(folder) -> Check:
        monkeypatch.setenv("RECALLKIT_HOME", str(folder))
        [found] = machine.check_folder("cache")
        return found

    return check


def test_folders_are_tried_and_left_as_they_were(tmp_path, cache, monkeypatch):
    for folder in (tmp_path, tmp_path / "not" / "there"):
        check = cache(folder)
        assert (check.status, str(folder) in check.found) == ("ok", True)
        assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(machine.fcntl, "flock", lambda *_: None)
    check = cache(tmp_path)
    assert (check.status, check.found.endswith("without locks (flock)")) == ("warn", True), "locks that exclude nobody"
    check = cache("/proc/1")
    assert (check.status, "not writable" in check.found) == ("warn", True)
    assert "RECALLKIT_HOME" in str(check.remedy)
    monkeypatch.setitem(machine.FOLDERS, "temporary files", (lambda: "/proc/1", machine.FOLDERS["temporary files"][1]))
    [check] = machine.check_folder("temporary files")
    assert (check.status, "TMPDIR" in str(check.remedy)) == ("fail", True), "every command needs them"


def test_limits_of_groups_are_found_in_all_above(tmp_path, monkeypatch):
    def found() -> tuple[bool, bool]:
        return "limited to 1.5 GB" in machine.check_memory()[0].found, "a quota of 1.5" in machine.check_processor()[0].found

    group = machine.Path("/proc/self/cgroup").read_text().strip().splitlines()[-1].rpartition(":")[2].lstrip("/")
    monkeypatch.setattr(devices, "_CGROUPS", tmp_path)
    assert found() == (False, False)
    (tmp_path / group).mkdir(parents=True, exist_ok=True)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert "limited" not in machine.check_memory()[0].found
    assert "quota" not in machine.check_processor()[0].found
    (tmp_path / "memory.max").write_text("1500000000\n")
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert found() == (True, True)
    assert machine.check_memory()[0].status == "warn"


def test_a_driver_without_a_gpu_that_torch_sees_is_told(monkeypatch, tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 999.1\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    check = machine.check_devices()[-1]
    assert (check.name, check.status) == ("GPUs", "warn")
    assert "999.1" in check.found
    assert "CUDA_VISIBLE_DEVICES" in str(check.remedy)
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    assert machine.check_devices()[-1].status == "ok"


# ------------------------------------------------------------------------------------------------------- surroundings


def test_a_package_that_is_missing_or_old(monkeypatch):
    from packaging.specifiers import SpecifierSet

    monkeypatch.setattr(installation, "NEEDED", ("no-such-package-anywhere", "numpy", "another-that-is-missing"))
    monkeypatch.setattr(installation, "_ESSENTIAL", ("no-such-package-anywhere", "numpy"))
    monkeypatch.setattr(installation, "_requirements", lambda: {"numpy": SpecifierSet(">=99")})
    found = {check.name: check for check in installation.check_versions()}
    assert found["no-such-package-anywhere"].status == "fail"
    assert found["another-that-is-missing"].status == "warn"
    assert (found["numpy"].status, found["numpy"].remedy) == ("warn", 'pip install "numpy>=99"')


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
    monkeypatch.setenv("HF_ENDPOINT", f"http://me:secret@127.0.0.1:{server.server_port}/?key=secret")
    yield Hub
    server.shutdown()
    server.server_close()
    thread.join()
    Hub.status, Hub.seconds = 200, 0.0


def test_a_hub_that_answers_or_does_not(hub, monkeypatch):
    for status, answers in ((200, True), (401, True), (503, False)):
        hub.status = status
        [check] = surroundings.check_hub()
        assert (" answers, " in check.found, check.status) == (answers, "ok" if answers else "warn")
        assert "127.0.0.1" in check.found
        assert "secret" not in check.found
    monkeypatch.setattr(surroundings, "_SECONDS_FOR_HUB", 0.3)
    hub.seconds = 2.0
    begun = time.monotonic()
    [check] = surroundings.check_hub()
    assert time.monotonic() - begun < 1.5
    assert (check.status, "does not answer" in check.found) == ("warn", True)
    for endpoint in ("http://127.0.0.1:9", "file:///etc/passwd", "http://[", "http://a b"):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        [check] = Probe("hub", surroundings.check_hub).inspect(1)
        assert check.status == "warn"
