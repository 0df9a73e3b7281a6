"""Generators of the tasks: keys and values that are asked for in places drawn by a power law; lists
that are repeated or compared.

`mqar` is Zoology's Algorithm 1 (arXiv 2312.04927); other tasks of pairs change one thing about it.
In the pictures `.` is id 0, the filler, and `?` below a key marks a question; what follows it there
is another filler, never the answer. Keys, values and what is between them are from ranges of their
own, and all different within a sequence. What stands behind the pairs is divided into slots as long
as a question and one filler, and question after question takes one of the free slots, slot s = 0,
1, ... with a probability proportional to (s + 1)^(power - 1). So early pairs are asked for nearer,
and nothing overlaps. Slots, and values that differ, are those of the authors' code; the paper says
a power law, whose exponent is 0.1 where it trains (F.1), and 0.01 in the code.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from recallkit.errors import UserError
from recallkit.synthetic.tasks import NOT_ASKED, Examples

if TYPE_CHECKING:
    from torch import Generator, Tensor

POWER = 0.1
"""The exponent of the power law of places: Zoology, F.1."""
FILLERS = ("zero", "random")
MARK = 0
"""Precedes each list of `copying`, and is one of its ids, too."""
BEGIN, BETWEEN, END = 1, 2, 3
"""The marks of `set_disjointness`; id 0 is unused, as in the authors' code, where it masks."""


def mqar(
    num: int,
    length: int,
    pairs: int,
    vocab: int,
    generator: Generator,
    *,
    power: float = POWER,
    filler: str = "zero",
) -> Examples:
    """Multi-query associative recall: Zoology, Algorithm 1 and E.1.

        k1 v1 k2 v2 k3 v3  k2 . . . k1 . k3 . . . . .
                           ?        ?    ?              -> v2, v1, v3

    Keys are ids 1 to vocab / 2 - 1, values the rest. `filler`: "zero" is id 0 in all other places;
    "random" draws them from all ids, keys and values among them, as the authors' code does by
    default since October 2023 and for Based's Figures 2 and 3.
    """
    return read_twice(num, length, pairs, vocab, generator, power=power, filler=filler, passes=1)


def read_twice(
    num: int,
    length: int,
    pairs: int,
    vocab: int,
    generator: Generator,
    *,
    power: float = POWER,
    filler: str = "zero",
    passes: int = 2,
) -> Examples:
    """MQAR with its pairs repeated, `passes` times in all: what does a model gain that reads twice
    (JRT, arXiv 2407.05483)?

        k1 v1 k2 v2 k1 v1 k2 v2  k2 . . . k1 . . .
                                 ?        ?          -> v2, v1

    As `num_passes` of the authors' MQAR, which repeats them in the same order (their published code
    fails above one pass). Distances are to the last repetition.
    """
    check_room("pairs", pairs, length, vocab, 2 * pairs * (passes + 1), 2 * pairs + 2)
    if passes < 1:
        raise UserError(f"passes is {passes}", where="passes", remedy="give 1 or more")
    keys, values = keys_and_values(num, pairs, pairs, vocab, generator)
    context = torch.stack([keys, values], dim=2).flatten(1).repeat(1, passes)
    stands = context.shape[1] - 2 * pairs + 2 * torch.arange(pairs) + 1
    facts = Facts(context, keys[..., None], values, stands, vocab // 2)
    return _ask(facts, length, vocab, generator, power, filler)


def overwriting(
    num: int,
    length: int,
    pairs: int,
    vocab: int,
    generator: Generator,
    *,
    power: float = POWER,
    filler: str = "zero",
    updates: int = 4,
) -> Examples:
    """Keys that are given a new value, of which the last one counts: `forgetting_mqar` of Zoology's
    code.

        k1 v1 k2 v2 k3 v3 k2 w2  k1 . k2 . . . . k3 . . . .
                                 ?    ?          ?            -> v1, w2, v3

    `updates` keys, or all where there are fewer, drawn at random, in random order. New values
    differ from all others; in the authors' code a new value can be one that another key has, or the
    key's old one.
    """
    updates = min(max(updates, 0), pairs)
    least_vocab = max(2 * pairs + 2, 2 * (pairs + updates))
    check_room("pairs", pairs, length, vocab, 4 * pairs + 2 * updates, least_vocab)
    keys, values = keys_and_values(num, pairs, pairs + updates, vocab, generator)
    changed = distinct(num, updates, pairs, generator)
    all_keys = torch.cat([keys, keys.gather(1, changed)], dim=1)
    context = torch.stack([all_keys, values], dim=2).flatten(1)
    # Of 3 pairs whose second is updated, the last value of each key is value 0, 3, 2.
    new = torch.arange(pairs, pairs + updates).expand(num, -1)
    last = torch.arange(pairs).repeat(num, 1).scatter_(1, changed, new)
    facts = Facts(context, keys[..., None], values.gather(1, last), 2 * last + 1, vocab // 2)
    return _ask(facts, length, vocab, generator, power, filler)


def distractors(
    num: int,
    length: int,
    pairs: int,
    vocab: int,
    generator: Generator,
    *,
    power: float = POWER,
) -> Examples:
    """MQAR whose filler is further pairs, which are never asked for: does a state keep what it read
    first?

        k1 v1 k2 v2  d1 u1 k2 . d2 u2 k1 . d3 u3
                           ?          ?            -> v2, v1

    Their keys are none of those asked for, so that every question has one answer, unlike with
    random ids as filler (`mqar`); they and their values can repeat. Ours.
    """
    check_room("pairs", pairs, length, vocab, 4 * pairs, 2 * pairs + 4)
    keys, values = keys_and_values(num, pairs, pairs, vocab, generator)
    context = torch.stack([keys, values], dim=2).flatten(1)
    stands = 2 * torch.arange(pairs) + 1
    facts = Facts(context, keys[..., None], values, stands, vocab // 2)
    examples = _ask(facts, length, vocab, generator, power)
    slots = (length - 2 * pairs) // 2
    others = torch.randint(vocab // 2 - 1 - pairs, (num, slots), generator=generator)
    # Number o of the keys that remain is key o + 1, and one more for each taken key that it passes:
    # 1 and 3 taken, 0 is 2, 1 is 4.
    passed = torch.searchsorted(keys.sort(1).values - 1 - torch.arange(pairs), others, right=True)
    further = torch.randint(vocab // 2, vocab, (num, slots), generator=generator)
    pair = torch.stack([1 + others + passed, further], dim=2)
    behind = examples.ids[:, 2 * pairs : 2 * (pairs + slots)].view(num, slots, 2)
    behind.copy_(torch.where(behind[..., :1] == 0, pair, behind))
    return examples


def compositional(
    num: int,
    length: int,
    pairs: int,
    vocab: int,
    generator: Generator,
    *,
    power: float = POWER,
    filler: str = "zero",
) -> Examples:
    """Keys of two ids, neither of which alone determines the value: `compositional_mqar` of
    Zoology's code.

        a x v1 b y v2 a y v3 b x v4  b y . . . . a x . ...
                                       ?           ?        -> v2, v1

    The pairs are all combinations of sqrt(pairs) first and as many second ids, in random order.
    Each of the three has a third of the vocabulary.
    """
    side = math.isqrt(pairs)
    if side * side != pairs:
        problem = f"{pairs} pairs of compound keys are not a square number"
        raise UserError(problem, where="compositional", remedy="choose 4, 9, 16, 25 ...")
    check_room("compound keys", pairs, length, vocab, 6 * pairs, max(3 * side + 3, 3 * pairs))
    third = vocab // 3
    firsts = 1 + distinct(num, side, third - 1, generator)
    seconds = third + distinct(num, side, third, generator)
    cells = distinct(num, pairs, pairs, generator)
    key = torch.stack([firsts.gather(1, cells // side), seconds.gather(1, cells % side)], dim=2)
    values = 2 * third + distinct(num, pairs, vocab - 2 * third, generator)
    context = torch.cat([key, values[..., None]], dim=2).flatten(1)
    facts = Facts(context, key, values, 3 * torch.arange(pairs) + 2, 2 * third)
    return _ask(facts, length, vocab, generator, power, filler)


def two_hops(
    num: int,
    length: int,
    pairs: int,
    vocab: int,
    generator: Generator,
    *,
    power: float = POWER,
    filler: str = "zero",
) -> Examples:
    """Chains from a key through a middle to a value, which a question must follow in two lookups.

        k1 m1 k2 m2 m2 v2 m1 v1  k2 . . . k1 . . .
                                 ?        ?          -> v2, v1

    First all keys with their middles, then these with their values in random order. Each of the
    three has a third of the vocabulary. Ours; the task of that name in Zoology's code is
    `compositional`.
    """
    check_room("chains", pairs, length, vocab, 6 * pairs, 3 * pairs + 3)
    third = vocab // 3
    keys = 1 + distinct(num, pairs, third - 1, generator)
    middles = third + distinct(num, pairs, third, generator)
    values = 2 * third + distinct(num, pairs, vocab - 2 * third, generator)
    order = distinct(num, pairs, pairs, generator)
    first = torch.stack([keys, middles], dim=2)
    second = torch.stack([middles.gather(1, order), values.gather(1, order)], dim=2)
    context = torch.cat([first, second], dim=1).flatten(1)
    stands = 2 * pairs + 2 * order.argsort(1) + 1
    facts = Facts(context, keys[..., None], values, stands, 2 * third)
    return _ask(facts, length, vocab, generator, power, filler)


def copying(num: int, length: int, pairs: int, vocab: int, generator: Generator) -> Examples:
    """A list is read, then copied: Yun et al. 2020 (arXiv 2006.04862), section 5.2, Table 2.

        0 s1 s2 s3 0 s1 s2 s3
                   ? ?  ?       -> s1, s2, s3

    `pairs` ids (s), of all ids below `vocab`, which can repeat, fill the length: 2 pairs + 2.
    """
    if length != 2 * pairs + 2:
        problem = f"{pairs:,} ids and their copy are {2 * pairs + 2:,} ids, not {length:,}"
        remedy = f"choose {length // 2 - 1:,} pairs and a length of {length // 2 * 2:,}"
        raise UserError(problem, where="copying", remedy=remedy)
    listed = torch.randint(vocab, (num, pairs + 1), generator=generator)
    listed[:, 0] = MARK
    ids = torch.cat([listed, listed], dim=1)
    # The place before an id of the copy is pairs ids behind it in the list: with s = s1 s2, place 3
    # (the second mark) asks for place 1.
    places = torch.arange(pairs + 1, length - 1).expand(num, -1)
    return _examples(ids, places, listed[:, 1:], pairs)


def set_disjointness(
    num: int,
    length: int,
    pairs: int,
    vocab: int,
    generator: Generator,
) -> Examples:
    """Two lists that share one id, which is asked for: `disjoint_sets` of the code of JRT (arXiv
    2407.05483).

        1 a1 a2 a3 2 b1 b2 a2 b3 b4 3
                                    ?   -> a2

    1, 2 and 3 are marks. The first list has `pairs` ids and the second fills the length, so that
    either can be the shorter; ids are from 4 to vocab - 1, all different but the shared one. The
    authors draw each list from a random half of them, which comes to the same, but bounds each list
    by half of the vocabulary. The distance is to the second list.
    """
    second = length - pairs - 3
    check_room("ids of the first set", pairs, length, vocab, pairs + 4, max(length, pairs + 4) + 1)
    listed = 4 + distinct(num, pairs + second, vocab - 4, generator)
    shared = listed.gather(1, torch.randint(pairs, (num, 1), generator=generator))
    place = torch.randint(second, (num, 1), generator=generator)
    marks = torch.tensor([BEGIN, BETWEEN, END]).expand(num, -1)
    begin, between, end = marks[:, :1], marks[:, 1:2], marks[:, 2:]
    other = listed[:, pairs:].scatter(1, place, shared)
    ids = torch.cat([begin, listed[:, :pairs], between, other, end], dim=1)
    places = torch.full((num, 1), length - 1)
    return _examples(ids, places, shared, second - place, END + 1)


# -------------------------------------------------------------------------------------------- draws


def check_room(
    what: str,
    count: int,
    length: int,
    vocab: int,
    least_length: int,
    least_vocab: int,
) -> None:
    """Raises UserError where so many pairs and their questions do not fit into the length, or their
    ids into the vocabulary."""
    if length < least_length or vocab < least_vocab:
        least = f"a length of {least_length:,} and a vocabulary of {least_vocab:,}"
        room = f"{length:,} ids of a vocabulary of {vocab:,}"
        problem = f"{count:,} {what} do not fit into {room}"
        raise UserError(problem, remedy=f"they need {least} at least")


def keys_and_values(
    num: int,
    pairs: int,
    num_values: int,
    vocab: int,
    generator: Generator,
) -> tuple[Tensor, Tensor]:
    """Keys (num, pairs) from 1 to vocab / 2 - 1, and values (num, num_values) from vocab / 2 on,
    all different in a row."""
    first_value = vocab // 2
    keys = 1 + distinct(num, pairs, first_value - 1, generator)
    return keys, first_value + distinct(num, num_values, vocab - first_value, generator)


class Facts(NamedTuple):
    """What is to be remembered, and what is asked of it, in n sequences.

    `context` (n, c): the ids that state it. `questions` (n, q, w): ids of w places each, whose
    answers (n, q) are at places `stands`, (n, q) or (q,), of the context. `first_value`: the lowest
    id that is an answer.
    """

    context: Tensor
    questions: Tensor
    answers: Tensor
    stands: Tensor
    first_value: int


def _ask(
    facts: Facts,
    length: int,
    vocab: int,
    generator: Generator,
    power: float,
    filler: str = "zero",
) -> Examples:
    """The context, and each of the questions in a slot of w + 1 ids behind it, asked for at its
    last id."""
    if not 0 < power <= 10:
        remedy = "give 0.01 (near the pairs) to 1 (uniform)"
        raise UserError("not above 0 and at most 10", where=f"power {power}", remedy=remedy)
    if filler not in FILLERS:
        remedy = f"choose {' or '.join(FILLERS)}"
        raise UserError(f"no such filler: {filler}", where="filler", remedy=remedy)
    (num, start), (_, count, width) = facts.context.shape, facts.questions.shape
    slots = weighted_draws(num, count, (length - start) // (width + 1), power, generator)
    first = start + (width + 1) * slots
    behind = torch.zeros(num, length - start, dtype=torch.int64)
    ids = torch.cat([facts.context, behind], dim=1)
    for place in range(width):
        ids.scatter_(1, first + place, facts.questions[..., place])
    places = first + width - 1
    if filler == "random":
        ids = torch.where(ids == 0, torch.randint(vocab, ids.shape, generator=generator), ids)
    return _examples(ids, places, facts.answers, places - facts.stands, facts.first_value)


def _examples(
    ids: Tensor,
    places: Tensor,
    answers: Tensor,
    distances: Tensor | int,
    first_value: int = 0,
) -> Examples:
    """Examples with these answers (n, q) at `places` (n, q)."""
    targets = torch.full_like(ids, NOT_ASKED).scatter_(1, places, answers)
    distances = torch.zeros_like(ids).scatter_(1, places, distances)
    return Examples(ids, targets, distances, first_value)


def distinct(num: int, size: int, population: int, generator: Generator) -> Tensor:
    """Rows of `size` distinct numbers below `population`, in random order: (num, size) int64, by
    Floyd's algorithm.

    A row costs size^2 comparisons, without a permutation of the population.
    """
    rows = torch.empty(num, size, dtype=torch.int64)
    for place, top in enumerate(range(population - size, population)):
        drawn = torch.randint(top + 1, (num, 1), generator=generator)
        is_taken = (rows[:, :place] == drawn).any(1, keepdim=True)
        rows[:, place : place + 1] = torch.where(is_taken, top, drawn)
    order = torch.rand(num, size, generator=generator).argsort(1)
    return rows.gather(1, order)


def weighted_draws(num: int, size: int, slots: int, power: float, generator: Generator) -> Tensor:
    """Rows of `size` distinct slots, drawn one after another with weights (slot + 1)^(power - 1):
    (num, size) int64.

    The largest of log-weights plus Gumbel noise, in descending order, are such draws without
    replacement (Efraimidis and Spirakis 2006).
    """
    log_weights = (power - 1) * torch.arange(1, slots + 1, dtype=torch.float64).log()
    noise = -torch.empty(num, slots, dtype=torch.float64).exponential_(generator=generator).log()
    return (log_weights + noise).topk(size, dim=1).indices
