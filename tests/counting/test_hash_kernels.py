"""The sample of n-gram hashes equals the smallest of a set of all, however the text is divided; the
hash itself never changes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.counting import hash_kernels
from recallkit.counting.hash_kernels import HashSampler, smallest
from recallkit.counting.ngram_hash import ngram_hash


def all_hashes(ids: list[int], starts: list[int], size: int) -> set[int]:
    """The hashes of all n-grams that no segment start is inside of."""
    edges = [*starts, len(ids)]
    return {
        ngram_hash(ids[i : i + size])
        for first, end in pairwise(edges)
        for i in range(first, end - size + 1)
    }


texts = st.one_of(
    st.lists(st.integers(0, 2), max_size=120),
    st.lists(st.integers(0, 2**32 - 1), max_size=120),
    st.integers(0, 200).map(lambda n: [7] * n),
)


@settings(max_examples=150)
@given(
    ids=texts,
    cuts=st.sets(st.integers(0, 120), max_size=4),
    chunks=st.sets(st.integers(0, 120), max_size=3),
    size=st.sampled_from([1, 2, 13, 50]),
    most=st.sampled_from([1, 2, 9, 1000]),
    block=st.sampled_from([1, 7, 60, 1000]),
)
def test_a_sample_is_the_smallest_of_all_hashes(
    ids,
    cuts,
    chunks,
    size,
    most,
    block,
):
    starts = sorted({0, *(cut for cut in cuts if cut <= len(ids))})
    wanted = sorted(all_hashes(ids, starts, size))[:most]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hash_kernels, "_BLOCK", block)
        sampler = HashSampler(size, most)
        assert (
            sampler.count(np.array(ids, np.uint32), np.array(starts, np.int64)).hashes.tolist()
            == wanted
        )
        # In chunks, each with the ids before it that its n-grams begin in.
        sampler, runs = HashSampler(size, most), []
        for first, stop in pairwise(
            [0, *sorted(cut for cut in chunks if cut < len(ids)), len(ids)],
        ):
            begin = max(0, first - size + 1)
            within = sorted({0, *(start - begin for start in starts if begin < start <= stop)})
            runs.append(
                sampler.count(np.array(ids[begin:stop], np.uint32), np.array(within, np.int64)),
            )
        assert smallest(runs, most).hashes.tolist() == wanted


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("num_distinct", [3, 40, 60_000])
def test_a_sample_of_much_text_is_exact(dtype, num_distinct):
    ids = np.random.default_rng(5).integers(0, num_distinct, 30_000).astype(dtype)
    # most n-grams are repeated: fewer are distinct than a first guess expects
    ids[1000:20_000] = np.resize(
        ids[:700],
        19_000,
    )
    wanted = sorted(all_hashes(ids.tolist(), [0], 13))
    for most in (10, 900, len(wanted), 10**6):
        assert (
            HashSampler(13, most).count(ids, np.zeros(1, np.int64)).hashes.tolist() == wanted[:most]
        )


def test_the_hash_never_changes():
    """Tables of counts contain it: with another one, text sliced later would share nothing with
    them."""
    assert ngram_hash(range(13)) == 0x3FBF48A0699E8161
    assert ngram_hash([50_256] * 50) == 0x878F3DED2E3090EE
