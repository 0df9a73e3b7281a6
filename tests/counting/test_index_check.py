"""What is compared with an index's own package, and what happens where the package cannot answer."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from recallkit.counting import index_check
from recallkit.counting.bigram_kernels import BigramCounter, BigramRun
from recallkit.errors import UserError

END = 9


def run_of(ids: list[int]) -> BigramRun:
    return BigramCounter(num_threads=1).count(np.array(ids, np.uint16), np.zeros(1, np.int64))


def test_sampled_bigrams_have_their_counts_and_some_have_none():
    ids = np.random.default_rng(1).integers(0, 60, 2500).tolist()
    sampled = index_check.sample_bigrams(run_of(ids), END)
    counts = Counter(pairwise(ids))
    assert sampled == {bigram: counts[bigram] for bigram in sampled}
    assert not any(END in bigram for bigram in sampled)
    assert sum(count > 0 for count in sampled.values()) > 150
    assert sum(count == 0 for count in sampled.values()) > 20
    assert index_check.sample_bigrams(run_of([1]), END) == {}


PACKAGE = """
import time
class ShardedMemmapIndex:
    def __init__(self, files, vocab): {opening}
    def count(self, query): return {counting}
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package by the name of tokengrams that does as the test says, in the process that is asked."""

    def make(opening: str = "pass", counting: str = "1") -> None:
        (tmp_path / "tokengrams.py").write_text(PACKAGE.format(opening=opening, counting=counting))
        monkeypatch.syspath_prepend(str(tmp_path))
        sys.modules.pop("tokengrams", None)

    return make


QUESTION = {"package": "tokengrams", "files": [["a.bin", "a.idx"]], "vocab": 65536}


def check(tmp_path, ids=(1, 2, 3), unseen=(), **options):
    return index_check.check_counts(tmp_path / "a.bin", QUESTION, run_of(list(ids)), END, Counter(unseen), **options)


def test_equal_counts_are_counted(tmp_path, package):
    package(counting="int(query in ([1, 2], [2, 3]))")
    assert check(tmp_path) == index_check.Checked(4)


def test_a_bigram_over_files_is_added(tmp_path, package):
    package(counting="int(query == [1, 2])")
    assert check(tmp_path, unseen=[(2, 3)]).num_bigrams == 4
    with pytest.raises(UserError, match=r"bigram \(2, 3\) 1 times, but tokengrams counts 0.*build it again"):
        check(tmp_path)


@pytest.mark.parametrize("opening", ["1 / 0", "print([1, 1, 1, 1]); 1 / 0", "__import__('os').abort()", "__import__('sys').exit(3)"])
def test_a_package_that_fails_is_a_reason(tmp_path, package, opening):
    package(opening=opening)
    assert check(tmp_path) == index_check.Checked(0, "tokengrams fails on it")


def test_a_slow_package_is_not_waited_for(tmp_path, package):
    package(opening="time.sleep(60)")
    assert check(tmp_path, seconds=0.5) == index_check.Checked(0, "tokengrams takes more than 0.5 seconds")


def test_a_package_that_is_not_there_is_a_reason(tmp_path):
    asked = {**QUESTION, "package": "no_such_grams"}
    checked = index_check.check_counts(tmp_path, asked, run_of([1, 2]), END, Counter())
    assert checked == index_check.Checked(0, "no-such-grams is not installed")


def test_an_index_without_tables_is_not_asked(tmp_path, package):
    package()
    checked = index_check.check_counts(tmp_path, {**QUESTION, "folder": None}, run_of([1, 2]), END, Counter())
    assert checked == index_check.Checked(0, "the index has no tables")
