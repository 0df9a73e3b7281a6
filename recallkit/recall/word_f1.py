"""SQuAD's F1: how many words a generation and a value have in common."""

from __future__ import annotations

import re
import string
from collections import Counter

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def word_f1(generation: str, value: str) -> float:
    """The harmonic mean of the shares of each one's words that the other has, too; SQuAD's metric (Rajpurkar et al. 2016, section 6.1).

    Words are in lower case, without ASCII punctuation and the articles a, an, the; a word counts as often as it occurs. Where either has
    no words, 1 if neither has any, else 0.
    """
    ours, theirs = _words(generation), _words(value)
    if not ours or not theirs:
        return float(ours == theirs)
    common = (Counter(ours) & Counter(theirs)).total()
    return 2 * common / (len(ours) + len(theirs))


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()
