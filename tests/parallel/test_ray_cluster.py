"""Scoring on a Ray cluster: two actors of a real local one, one of them killed, and the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from recallkit import scoring
from recallkit.errors import UserError
from recallkit.parallel import ray_cluster
from tests.scoring.test_run import SETTLED, copy_of, finely, only_scores, scores_at_once  # noqa: F401 - a fixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

OPTIONS = replace(SETTLED, engine="ray", workers=2)


@pytest.fixture
def whole(finely, small_slices, tiny_model, tmp_path) -> str:  # noqa: F811
    """The digest of a score file made by one process without interruption."""
    return scores_at_once(str(tiny_model("gpt_neox")), copy_of(small_slices, tmp_path / "at-once"))


def test_two_actors_write_the_same_bytes(whole, small_slices, tiny_model, tmp_path):
    pytest.importorskip("ray", reason="needs Ray: pip install 'recallkit-lm[ray]'")
    slices = copy_of(small_slices, tmp_path)
    scoring.score(str(tiny_model("gpt_neox")), slices, OPTIONS)
    assert only_scores(slices) == whole


def test_a_killed_actor_is_replaced(whole, small_slices, tiny_model, tmp_path):
    pytest.importorskip("ray", reason="needs Ray: pip install 'recallkit-lm[ray]'")
    slices = copy_of(small_slices, tmp_path)
    stopped, killed = threading.Event(), []

    def kill_one() -> None:
        """Kills an actor's process as soon as parts appear."""
        while not stopped.is_set() and not killed:
            if list((slices / "scores").glob(".*.partial/part-*")):
                found = subprocess.run(["pgrep", "-f", r"^ray::_Actor"], capture_output=True, text=True, check=False).stdout.split()
                if found:
                    os.kill(int(found[0]), signal.SIGKILL)
                    killed.append(found[0])
            time.sleep(0.001)

    killer = threading.Thread(target=kill_one)
    killer.start()
    scoring.score(str(tiny_model("gpt_neox")), slices, OPTIONS)
    stopped.set()
    killer.join()
    assert killed
    assert only_scores(slices) == whole


def test_an_error_of_an_actor_is_one_line(small_slices, tiny_model, tmp_path):
    pytest.importorskip("ray", reason="needs Ray: pip install 'recallkit-lm[ray]'")
    with pytest.raises(UserError, match="its vocabulary has 128 entries"):
        scoring.score(str(tiny_model("llama", vocab_size=128)), copy_of(small_slices, tmp_path), OPTIONS)


def test_without_ray_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"recallkit-lm\[ray\]"):
        list(ray_cluster.work_on_cluster(None, [0], 2))


def test_a_cluster_that_is_not_there_is_told(small_slices, tiny_model, tmp_path):
    pytest.importorskip("ray", reason="needs Ray: pip install 'recallkit-lm[ray]'")
    options = replace(OPTIONS, address="127.0.0.1:1")
    with pytest.raises(UserError, match="cannot reach a Ray cluster"):
        scoring.score(str(tiny_model("gpt_neox")), copy_of(small_slices, tmp_path), options)
    assert not list((tmp_path / "slices" / "scores").glob("*.parquet"))
