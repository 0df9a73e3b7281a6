"""Tasks of lists: a list is repeated, or compared with another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from recallkit.errors import UserError
from recallkit.synthetic.pairs import check_room, distinct
from recallkit.synthetic.tasks import NOT_ASKED, Examples

if TYPE_CHECKING:
    from torch import Generator, Tensor

MARK = 0
"""Precedes each list of `copying`, and is one of its ids, too."""
BEGIN, BETWEEN, END = 1, 2, 3
"""The marks of `set_disjointness`; id 0 is unused, as in the authors' code, where it masks."""


def copying(num: int, length: int, pairs: int, vocab: int, generator: Generator) -> Examples:
    """A list is read, then copied: Yun et al. 2020 (arXiv 2006.04862), section 5.2, Table 2.

        0 s1 s2 s3 0 s1 s2 s3
                   ? ?  ?       -> s1, s2, s3

    `pairs` ids (s), of all ids below `vocab`, which can repeat, fill the length: 2 pairs + 2.
    """
    if length != 2 * pairs + 2:
        raise UserError(
            f"{pairs:,} ids and their copy are {2 * pairs + 2:,} ids, not {length:,}",
            where="copying",
            remedy=f"choose {length // 2 - 1:,} pairs and a length of {length // 2 * 2:,}",
        )
    listed = torch.randint(vocab, (num, pairs + 1), generator=generator)
    listed[:, 0] = MARK
    ids = torch.cat([listed, listed], dim=1)
    # The place before an id of the copy is pairs ids behind it in the list: with s = s1 s2, place 3 (the second mark) asks for place 1.
    return _examples(ids, torch.arange(pairs + 1, length - 1).expand(num, -1), listed[:, 1:], pairs)


def set_disjointness(num: int, length: int, pairs: int, vocab: int, generator: Generator) -> Examples:
    """Two lists that share one id, which is asked for: `disjoint_sets` of the code of JRT (arXiv 2407.05483).

        1 a1 a2 a3 2 b1 b2 a2 b3 b4 3
                                    ?   -> a2

    1, 2 and 3 are marks. The first list has `pairs` ids and the second fills the length, so that either can be the shorter; ids are
    from 4 to vocab - 1, all different but the shared one. The authors draw each list from a random half of them, which comes to
    the same, but bounds each list by half of the vocabulary. The distance is to the second list.
    """
    second = length - pairs - 3
    check_room("ids of the first set", pairs, length, vocab, pairs + 4, max(length, pairs + 4) + 1)
    listed = 4 + distinct(num, pairs + second, vocab - 4, generator)
    shared = listed.gather(1, torch.randint(pairs, (num, 1), generator=generator))
    place = torch.randint(second, (num, 1), generator=generator)
    marks = torch.tensor([BEGIN, BETWEEN, END]).expand(num, -1)
    ids = torch.cat([marks[:, :1], listed[:, :pairs], marks[:, 1:2], listed[:, pairs:].scatter(1, place, shared), marks[:, 2:]], dim=1)
    return _examples(ids, torch.full((num, 1), length - 1), shared, second - place)


def _examples(ids: Tensor, places: Tensor, answers: Tensor, distances: Tensor | int) -> Examples:
    """Examples with these answers (n, q) at `places` (n, q)."""
    targets = torch.full_like(ids, NOT_ASKED).scatter_(1, places, answers)
    return Examples(ids, targets, torch.zeros_like(ids).scatter_(1, places, distances))
