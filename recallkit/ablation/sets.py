"""Sets of mixers that are replaced together: those that a user names, and those that a search
tries."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from recallkit.ablation.tables import AblatedSet
from recallkit.display.cells import counted
from recallkit.errors import UsageError, UserError
from recallkit.models.ablation import NONE, Ablation, choose_mixers, heads_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recallkit.models.ablation import By, PlacedMixer

EACH = "each"
"""Every mixer by itself, and every kind of mixers as a whole where there are several kinds; of a
budget, every mixer that has a cache."""


def choose_sets(
    placed: Sequence[PlacedMixer],
    mixers: Sequence[str],
    by: By,
    where: str,
) -> list[Ablation]:
    """The ablations that these names mean, without repetitions.

    Raises UsageError for what names no mixers, and UserError, about the model `where`, for a mixer
    that it does not have.
    """
    if not mixers or any(":" in name or name == NONE for name in mixers):
        problem = f"no sets of mixers: {','.join(mixers)}"
        examples = "layers and kinds such as 0,3,attention or 1+3"
        remedy = f"give each, or {examples}, by their mean with --by"
        raise UsageError(problem, where="--mixers", remedy=remedy)
    kinds = Counter(mixer.kind for mixer in placed)
    several = [kind for kind, number in kinds.items() if number > 1 and len(kinds) > 1]
    names = list[str]()
    for name in mixers:
        names += [*(mixer.name for mixer in placed), *several] if name == EACH else [name]
    sets = list(dict.fromkeys(Ablation.parse(f"{name}:{by}") for name in names))
    for ablation in sets:
        choose_mixers(placed, ablation, where)
    return sets


def mixers_of_sets(
    placed: Sequence[PlacedMixer],
    mixers: Sequence[str],
    where: str,
) -> list[PlacedMixer]:
    """The mixers of all these sets, in the order of the layers. Raises UsageError for heads."""
    keys = set[str]()
    for ablation in choose_sets(placed, mixers, "zero", where):
        parts = choose_mixers(placed, ablation, where)
        if any(part.heads for part in parts):
            raise UsageError("heads are named", where="--mixers", remedy="name layers or kinds")
        keys |= {part.key for part in parts}
    return [mixer for mixer in placed if mixer.key in keys]


def describe(
    ablation: Ablation,
    placed: Sequence[PlacedMixer],
    where: str,
    candidates: Sequence[PlacedMixer],
) -> AblatedSet:
    """The set in words; `candidates`: the mixers of a budget, of which the others are left."""
    mixers = choose_mixers(placed, ablation, where)
    parts = list[str]()
    for mixer in mixers:
        first, last = mixer.heads or (0, -1)
        parts += [f"{mixer.key}.h{head}" for head in range(first, last + 1)] or [mixer.key]
    kinds = dict.fromkeys(mixer.kind for mixer in mixers)
    layers = {mixer.layer for mixer in mixers}
    left = [mixer for mixer in candidates if mixer.name not in ablation.names]
    return AblatedSet(
        mixers="+".join(ablation.names),
        kind="+".join(kinds),
        layer=layers.pop() if len(layers) == 1 else None,
        parts=" ".join(parts),
        layers="+".join(mixer.name for mixer in left) or None,
        cache_bytes=sum(mixer.cache_bytes or 0 for mixer in left) if left else None,
    )


def budget_candidates(
    placed: Sequence[PlacedMixer],
    mixers: Sequence[str],
    budget: int,
    where: str,
) -> list[PlacedMixer]:
    """The mixers of which a budget leaves so many: those of the sets, or every one that has a
    cache.

    Raises UserError where the bytes of caches are not known, UsageError where the budget has room
    for all.
    """
    if placed[0].cache_bytes is None:
        problem = "the bytes of its caches are not known layer by layer"
        raise UserError(problem, where=where, remedy="leave out --budget")
    candidates, which = mixers_of_sets(placed, mixers, where), "that --mixers names"
    if tuple(mixers) == (EACH,):
        candidates = [mixer for mixer in candidates if mixer.cache_bytes]
        which = "whose cache grows with the text"
    if budget >= len(candidates):
        number = counted(len(candidates), "mixer")
        problem = f"it has {number} {which}, and a budget has to be smaller"
        remedy = "name more mixers with --mixers, or give a smaller one"
        raise UsageError(problem, where=f"--budget {budget}", remedy=remedy)
    return candidates


# ------------------------------------------------------------------------------------------ heads


def groups_of_heads(
    placed: Sequence[PlacedMixer],
    mixers: Sequence[str],
    where: str,
) -> list[Ablation]:
    """All heads of each mixer of the sets, with which a search begins. Raises UserError where none
    has heads."""
    chosen = mixers_of_sets(placed, mixers, where)
    groups = [_group(mixer.name, 0, mixer.num_heads - 1) for mixer in chosen if mixer.num_heads]
    if not groups:
        kinds = ", ".join(dict.fromkeys(mixer.kind for mixer in chosen))
        why = "the input of its last matrix is not divided into heads"
        remedy = "leave out --heads, or name others with --mixers"
        raise UserError(f"no heads of {kinds} can be replaced: {why}", where=where, remedy=remedy)
    return groups


def halves(group: Ablation) -> list[Ablation]:
    """`2.h0-2` -> `2.h0-1`, `2.h2`; none of a single head."""
    [(mixer, first, last)] = filter(None, map(heads_of, group.names))
    if first == last:
        return []
    middle = (first + last) // 2
    return [_group(mixer, first, middle), _group(mixer, middle + 1, last)]


def _group(mixer: str, first: int, last: int) -> Ablation:
    """The heads of a mixer from the first to the last."""
    return Ablation.parse(f"{mixer}.h{first}" if first == last else f"{mixer}.h{first}-{last}")
