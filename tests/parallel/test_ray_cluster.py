"""Work on a Ray cluster, a real one on this machine: the same bytes, also where an actor is killed;
nothing of it is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from recallkit import scoring
from recallkit.errors import UserError
from recallkit.parallel import ray_cluster
from tests.counting.test_run import count, one_shard_per_range, text  # noqa: F401 - fixtures
from tests.parallel.test_parts import command, results  # noqa: F401 - a fixture
from tests.scoring.test_run import SETTLED, copy_of, finely, only_scores, scores_at_once  # noqa: F401 - a fixture

pytestmark = [pytest.mark.ci, pytest.mark.timeout(600)]

OPTIONS = replace(SETTLED, engine="ray", workers=2)


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    """That of a cluster of this machine alone, which these tests share; its processes end with
    it."""
    folder = Path(tmp_path_factory.mktemp("ray"))
    told = folder / "told.txt"
    given = ["--head", "--block", "--port", "0", "--num-cpus", "2"]
    given += [
        "--include-dashboard",
        "false",
        "--disable-usage-stats",
        "--object-store-memory",
        str(100 << 20),
    ]
    start = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", *given]
    with told.open("w") as log:
        cluster = subprocess.Popen(
            start, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 120
        while not (found := re.search(r"--address='([^']+)'", told.read_text())):
            assert cluster.poll() is None, told.read_text()
            assert time.monotonic() < deadline, told.read_text()
            time.sleep(0.1)
        yield found[1]
    finally:
        started = psutil.Process(cluster.pid).children(recursive=True)
        cluster.terminate()
        cluster.wait(60)
        _, alive = psutil.wait_procs(started, 30)
    assert not alive


def test_an_actor_that_is_killed_is_replaced_and_the_bytes_are_the_same(
    address,
    finely,  # noqa: F811
    small_slices,
    tiny_model,
    tmp_path,
):
    model, slices = str(tiny_model("gpt_neox")), copy_of(small_slices, tmp_path)
    whole = scores_at_once(model, copy_of(small_slices, tmp_path / "at-once"))
    stopped, killed = threading.Event(), []

    def kill_one() -> None:
        """Kills an actor's process as soon as parts appear."""
        while not stopped.is_set() and not killed:
            if list((slices / "scores").glob(".*.partial/part-*")):
                actors = [
                    each
                    for each in psutil.process_iter(["cmdline"])
                    if "ray::_Actor" in " ".join(each.info["cmdline"] or ())
                ]
                for actor in actors[:1]:
                    os.kill(actor.pid, signal.SIGKILL)
                    killed.append(actor.pid)
            time.sleep(0.001)

    killer = threading.Thread(target=kill_one)
    killer.start()
    scoring.score(model, slices, replace(OPTIONS, address=address))
    stopped.set()
    killer.join()
    assert killed
    assert only_scores(slices) == whole


def test_an_error_of_an_actor_is_one_line(address, small_slices, tiny_model, tmp_path):
    with pytest.raises(UserError, match="its vocabulary has 128 entries"):
        scoring.score(
            str(tiny_model("llama", vocab_size=128)),
            copy_of(small_slices, tmp_path),
            replace(OPTIONS, address=address),
        )


@pytest.mark.parametrize("name", ["intervene", "eval-recall"])
def test_other_commands_write_the_same_bytes(address, run, command, tmp_path, name):  # noqa: F811
    for way, options in {
        "one": [],
        "ray": ["--engine", "ray", "--workers", 2, "--address", address],
    }.items():
        done = run(*command(name, tmp_path / way), *options)
        assert done.returncode == 0, done.stderr
    assert results(tmp_path / "ray") == results(tmp_path / "one")


def test_a_cluster_that_a_command_starts_gives_the_same_table_and_ends_with_it(text, tmp_path):  # noqa: F811
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    assert count(text, tmp_path / "two.duckdb", engine="ray", workers=2) == count(
        text, tmp_path / "one.duckdb"
    )
    _, alive = psutil.wait_procs(
        [each for each in psutil.Process().children(recursive=True) if each.pid not in before], 30
    )
    assert not alive


def test_without_ray_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"recallkit-lm\[ray\]"):
        list(ray_cluster.work_on_cluster(None, [0], 2))


def test_a_cluster_that_is_not_there_is_told(small_slices, tiny_model, tmp_path):
    options = replace(OPTIONS, address="127.0.0.1:1")
    with pytest.raises(UserError, match="cannot reach a Ray cluster"):
        scoring.score(str(tiny_model("gpt_neox")), copy_of(small_slices, tmp_path), options)
    assert not list((tmp_path / "slices" / "scores").glob("*.parquet"))
