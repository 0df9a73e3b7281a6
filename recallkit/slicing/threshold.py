"""Which bigrams are rare in training: the papers' rate where the counts resolve it, and a warning
where they are not: common bigrams, or counts of text of another kind."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recallkit import config
from recallkit.display.cells import abbreviate, percent
from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from recallkit.counting.infini_gram import InfiniGram
    from recallkit.counting.table import CountsTable

PAPERS_RATE = 125.0
"""Occurrences per billion training tokens: 1,250 in the 10B tokens of Zoology's training (section
3.1 and appendix C.1)."""

LEAST_COUNT = 5
"""The smallest count that stands for a rate.

Where a rate means fewer occurrences, their number is mostly chance: a Poisson count of mean 5 has a
relative standard deviation of 45 %, and which of two bigrams of the same rate is called rare is
decided by the sample.
"""

PAPERS_SHARE = 0.064
"""AR hits among all tokens at that rate: "approximately 6.4 % of validation tokens" (Zoology,
section 3.1 and appendix C.1)."""

COMMON_SHARE = 0.15
"""Above this share of tokens, more than twice the papers', a warning says that common bigrams are
called rare."""

OTHER_KIND = 1.5
"""Text is of another kind if the odds of its bigrams to be unseen are more than this times those of
held-out text of the counted corpus, even if its share of unseen bigrams were less by two standard
errors (docs/slices.md)."""

BY_COUNT, BY_RATE, BY_PAPERS, FALLBACK = "count", "rate", "papers", "fallback"
"""The rules by which a threshold is chosen: --max-count, --max-rate, neither, neither where counts
do not resolve the papers' rate."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """The largest training count that is rare, and how it was chosen: `rule` is one of these, None
    without training counts.

    `rate`: the occurrences per billion training tokens that were given or aimed at; None if a count
    was given.
    """

    max_count: int
    rule: str | None = None
    rate: float | None = None

    def facts(self) -> dict[str, Any] | None:
        """The rule as a manifest records it; None without training counts."""
        return None if self.rule is None else {"rule": self.rule, "rate": self.rate}


@dataclass(frozen=True, slots=True)
class RareCount:
    """What counts as rare in training: at most `max_count` times, or at most `max_rate` times per
    billion training tokens.

    With neither, at most PAPERS_RATE times per billion tokens, or LEAST_COUNT times where that is
    less.
    """

    max_count: int | None = None
    max_rate: float | None = None

    def resolve(self, counts: CountsTable | InfiniGram | None) -> Threshold:
        """The threshold for these counts.

        Raises UserError for a rate without counts, or one that is less than one occurrence.

        Without `counts` nothing is labelled as rare, and the threshold is of no consequence.
        """
        if self.max_count is not None and self.max_rate is None:
            return Threshold(self.max_count, None if counts is None else BY_COUNT)
        if self.max_rate is None:
            return self._default(counts)
        if counts is None:
            problem = "a rate needs the number of training tokens"
            raise UserError(problem, where="--max-rate", remedy="give --counts")
        expected = self.max_rate * counts.num_tokens / 1e9
        if expected < 1:
            tokens = f"{abbreviate(counts.num_tokens)} training tokens"
            rate = f"{self.max_rate:g} occurrences per billion"
            problem = f"{rate} are {expected:.2g} in {tokens}, less than one"
            remedy = "count more text, or give --max-count"
            raise UserError(problem, where="--max-rate", remedy=remedy)
        return Threshold(int(expected), BY_RATE, self.max_rate)

    @staticmethod
    def _default(counts: CountsTable | InfiniGram | None) -> Threshold:
        if counts is None:
            return Threshold(config.MAX_COUNT)
        expected = papers_count(counts.num_tokens)
        rule = BY_PAPERS if expected >= LEAST_COUNT else FALLBACK
        return Threshold(max(expected, LEAST_COUNT), rule, PAPERS_RATE)


BY_DEFAULT = RareCount()


def small_counts_note(labels: Mapping[str, Any]) -> str | None:
    """That a rate would need more counted text, where it means fewer than LEAST_COUNT occurrences;
    `labels`: the manifest of labels."""
    rule = (labels.get("threshold") or {}).get("rule")
    if rule == FALLBACK or (rule == BY_RATE and labels["max_count"] < LEAST_COUNT):
        remedy = "For a lower threshold, count more training text."
        return f"Counts below {LEAST_COUNT} are mostly chance. {remedy}"
    return None


def papers_count(num_tokens: int) -> int:
    """The largest count that is rare at the papers' rate in `num_tokens` training tokens."""
    return int(PAPERS_RATE * num_tokens / 1e9)


def per_billion(count: int, num_tokens: int) -> float:
    """A training count as occurrences per billion training tokens."""
    return count / max(1, num_tokens) * 1e9


def _papers_rate_allows(num_tokens: int) -> str:
    allowed = PAPERS_RATE * num_tokens / 1e9
    return f"the papers' rate would allow {'less than one' if allowed < 1 else f'{allowed:.3g}'}"


def rate_and_rule(labels: Mapping[str, Any]) -> str:
    """The threshold of a manifest of labels with training counts as a rate, and the rule by which
    it was chosen, if it is recorded."""
    tokens = labels["counts"]["num_tokens"]
    rate = f"{abbreviate(per_billion(labels['max_count'], tokens))} per billion"
    chosen = labels.get("threshold") or {}
    return {
        BY_COUNT: f"{rate}, as given",
        BY_RATE: f"{rate}, as given",
        BY_PAPERS: f"{rate}, the papers' rate",
        FALLBACK: _papers_rate_allows(tokens),
    }.get(chosen.get("rule", ""), rate)


def what_is_unseen(labels: Mapping[str, Any]) -> str | None:
    """How much of the text the counts do not have, beside what held-out text of the counted corpus
    has, if it is known; else None.

    `labels`: the manifest of labels.
    """
    if not (unseen := labels.get("unseen")):
        return None
    held_out = (labels["counts"].get("unseen") or {}).get("share")
    are_unseen = f"{percent(unseen['share'])} of the text's bigrams are not in the counts"
    if held_out is None:
        return are_unseen
    return f"{are_unseen} (held-out text of the counted corpus: {percent(held_out)})"


def _is_other_kind(labels: Mapping[str, Any]) -> bool:
    """Whether the text is of another kind than what was counted (OTHER_KIND).

    False where it is of one document, or nothing is known.
    """
    unseen, held_out = labels.get("unseen"), (labels["counts"] or {}).get("unseen")
    if not unseen or not held_out or unseen["standard_error"] is None:
        return False
    least, share = unseen["share"] - 2 * unseen["standard_error"], held_out["share"]
    return bool(least * (1 - share) > OTHER_KIND * share * (1 - least))


def counts_warning(
    labels: Mapping[str, Any],
    share: float | None,
    shares: Iterable[tuple[int, float]] = (),
) -> str | None:
    """One line where rare bigrams are not what they seem, with a remedy; else None.

    `labels`: the manifest of labels.

    Where the text is of another kind than what was counted (OTHER_KIND). Else where AR hits are
    more than COMMON_SHARE of tokens, with the threshold that gives about the papers' share.
    `share`: AR hits among all tokens (None if not known); `shares`: thresholds, and what `share`
    would be at each. The threshold proposed is the power of two, or 0, whose share is nearest to
    PAPERS_SHARE in ratio, if one gives at most COMMON_SHARE.
    """
    if (counts := labels["counts"]) is None:
        return None
    if _is_other_kind(labels):
        problem = f"these counts are of another kind of text: {what_is_unseen(labels)}"
        return f"Warning: {problem}. Count the models' training text."
    if share is None or share <= COMMON_SHARE:
        return None
    near = []
    for most, at in shares:
        is_power_of_two = not most & (most - 1)
        if is_power_of_two and 0 < at <= COMMON_SHARE:
            near.append((abs(math.log(at / PAPERS_SHARE)), most, at))
    hits = f"AR hits are {percent(share)} of tokens ({percent(PAPERS_SHARE)} in Zoology)"
    warning = f"Warning: {hits}, so this threshold calls common bigrams rare"
    if not near:
        return f"{warning}. Count more training text."
    _, most, at = min(near)
    rate = f"{abbreviate(per_billion(most, counts['num_tokens']))} per billion"
    return f"{warning}. --max-count {most} ({rate}) gives {percent(at)}."
