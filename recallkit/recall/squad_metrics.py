"""SQuAD's metrics: how many words a generation and a value have in common, and whether they are the same."""

from __future__ import annotations

import re
import string
import sys
from collections import Counter
from importlib.util import find_spec
from types import ModuleType

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


def provide_to_lm_eval() -> None:
    """Makes `transformers.data.metrics.squad_metrics`, which transformers 5 no longer has and tasks of lm-eval import (ReCoRD, CoQA)."""
    name = "transformers.data.metrics"
    if name in sys.modules or find_spec(name) is not None:
        return
    package, module = ModuleType(name), ModuleType(f"{name}.squad_metrics")
    functions = {
        "compute_f1": lambda value, generation: word_f1(generation, value),
        "compute_exact": lambda value, generation: int(_words(generation) == _words(value)),
    }
    vars(module).update(functions)
    vars(package).update(squad_metrics=module, __path__=[])
    sys.modules |= {name: package, module.__name__: module}


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()
