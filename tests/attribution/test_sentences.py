"""The answer of a comparison, whole sentences of models whose figures are known by hand, each where
the others would be false.

The reference gives AR hits 50 % and the first occurrences of their bigrams 10 %; a quarter of the
tokens are AR hits. Where all documents are alike, intervals are points, which can be written down;
`…` stands for any interval.
"""

from __future__ import annotations

import math
import re

import pytest

from recallkit.attribution.answer import in_short
from tests.attribution.corpus import Model, compared
from tests.planted import TOKENIZER

# Of (2 hits + 5 others) / 8 tokens: ln 2.5 = 0.9163 nats on each hit, as many on all others
# together, of which one is repeated.
HALF = Model(0.2, other=2 * math.log(2.5) / 5)
AHEAD = Model(0.8, other=2 * math.log(5 / 8) / 5)
UNRESOLVED = Model(hit_spread=0.5, other_spread=0.1)
REF = (
    "When a rare bigram returns, ref predicts its last token with probability 50 % (10 % at its "
    "first occurrence)"
)
HITS = "On these AR hits (25.0 % of tokens),"
FEW = "effectively {} documents; 5 are needed"
COPY = "m does not differ significantly from ref: 0.000 nats per token (0.000 to 0.000)"
NO_GAP = "Over all tokens the difference is 0.000 nats per token"
NO_HITS = (
    "No token of this text is an AR hit, so recall of rare bigrams cannot be measured. Over all "
    "tokens, with ref as the reference,"
)

ONE = {
    "behind": (
        HALF, {},
        f"{REF}, m with 20 % (10 %): m retains 25 % of ref's recall (25 to 25). {HITS} m is 0.92 "
            "nats behind (0.92 to 0.92). "
        "AR hits carry 50 % of its gap of 0.458 nats per token; all repeated bigrams carry 60 %.",
    ),
    "ahead": (
        AHEAD, {},
        f"{REF}, m with 80 % (10 %): m retains 175 % of ref's recall (175 to 175). {HITS} m is "
            "0.47 nats ahead (0.47 to 0.47). "
        "AR hits carry 50 % of its lead of 0.235 nats per token; all repeated bigrams carry 60 %.",
    ),
    "equal perplexity, worse recall": (
        Model(0.2, other=-HALF.other, other_spread=1), {},
        f"{REF}, m with 20 % (10 %): m retains 25 % of ref's recall (25 to 25). {HITS} m is 0.92 "
            "nats behind (0.92 to 0.92). "
        "Over all tokens the difference is 0.000 nats per token (…); no share of it is meaningful: "
        "the overall gap cannot be distinguished from zero.",
    ),
    "equal perplexity, recall not shown to differ": (
        Model(hit_spread=0.5, other=-0.05, other_spread=-1), {},
        f"{REF}, m with 50 % (10 %): m retains 100 % of ref's recall (…). {HITS} m does not "
            "differ significantly from ref: 0.144 nats "
        "per token (…). Over all tokens the difference is 0.005 nats per token (…); no share of "
            "it is meaningful: "
        "the overall gap cannot be distinguished from zero.",
    ),
    "a gap, recall not shown to differ": (
        UNRESOLVED._replace(other=0.5), {},
        f"{REF}, m with 50 % (10 %): m retains 100 % of ref's recall (…). {HITS} m does not "
            "differ significantly from ref: 0.144 nats "
        "per token (…). AR hits carry 10 % of its gap of 0.348 nats per token; all repeated "
            "bigrams carry 28 %.",
    ),
    "a share above 100 %": (
        Model(0.2, other=-0.1), {},
        f"{REF}, m with 20 % (10 %): m retains 25 % of ref's recall (25 to 25). {HITS} m is 0.92 "
            "nats behind (0.92 to 0.92). "
        "AR hits carry 138 % of its gap of 0.167 nats per token; all repeated bigrams carry 130 %.",
    ),
    "a negative share": (
        Model(0.8, other=0.4), {},
        f"{REF}, m with 80 % (10 %): m retains 175 % of ref's recall (175 to 175). {HITS} m is "
            "0.47 nats ahead (0.47 to 0.47). "
        "AR hits carry -89 % of its gap of 0.132 nats per token; all repeated bigrams carry -51 %.",
    ),
    "a negative share of a lead": (
        Model(0.4, other=-0.4), {},
        f"{REF}, m with 40 % (10 %): m retains 75 % of ref's recall (75 to 75). {HITS} m is 0.22 "
            "nats behind (0.22 to 0.22). "
        "AR hits carry -29 % of its lead of 0.194 nats per token; all repeated bigrams carry "
            "-3.0 %.",
    ),
    "worse where bigrams first occur alone": (
        Model(first=0.06), {},
        f"{REF}, m with 50 % (6.0 %): m retains 110 % of ref's recall (110 to 110). {HITS} {COPY}. "
        "AR hits carry 0.0 % of its gap of 0.064 nats per token; all repeated bigrams carry 0.0 %.",
    ),
    "it forgets what it has met": (
        Model(0.06), {},
        f"{REF}, m with 6.0 % (10 %): m retains -10 % of ref's recall (-10 to -10). {HITS} m is "
            "2.12 nats behind (2.12 to 2.12). "
        "AR hits carry 100 % of its gap of 0.530 nats per token; all repeated bigrams carry 100 %.",
    ),
    "a copy": (
        Model(), {},
        f"{REF}, m with 50 % (10 %): m retains 100 % of ref's recall (100 to 100). {HITS} "
            f"{COPY}. {NO_GAP} (0.000 to 0.000); "
        "no share of it is meaningful: no gap overall.",
    ),
    "AR hits of one document": (
        Model(0.2), {"with_hits": 1},
        f"{REF}, m with 20 % (10 %): there are too few documents to say what is retained. On "
            "these AR hits (0.6 % of tokens), m "
        "is 0.92 nats behind (too few documents for an interval). Over all tokens the difference "
            "is 0.229 nats per token "
        f"(0.229 to 0.229); no share of it is meaningful: AR hits come from {FEW.format(1.0)}.",
    ),
    "three documents": (
        Model(0.2), {"documents": 3},
        f"{REF}, m with 20 % (10 %): there are too few documents to say what is retained. {HITS} "
            "m is 0.92 nats "
        "behind (too few documents for an interval). Over all tokens the difference is 0.229 "
            "nats per token; no share of it is meaningful: "
        f"all tokens come from {FEW.format(3.0)}.",
    ),
    "no AR hits": (Model(0.2, other=0.3), {"with_hits": 0}, (f"{NO_HITS} m is 0.42 nats behind "
        "(0.42 to 0.42).")),
    "no AR hits, a copy": (
        Model(), {"with_hits": 0}, (f"{NO_HITS} m does not differ significantly from ref: 0.000 "
            "nats per token (0.000 to "
            "0.000)."),
    ),
    "a reference that recalls nothing": (
        Model(0.2), {"reference": Model(0.1, hit_spread=0.5)},
        f"{REF.replace('50', '10')}, m with 20 % (10 %): ref's recall gain is not shown to "
            "exceed 0.1 points (0.0 points, …), so there "
        f"is no recall to retain. {HITS} m is 0.84 nats ahead (…). AR hits carry 100 % of its lead "
        "of 0.209 nats per "
            "token; all repeated bigrams carry 100 %.",
    ),
    "a reference that gains too little": (
        Model(0.2), {"reference": Model(0.1003)},
        f"{REF.replace('50', '10')}, m with 20 % (10 %): ref's recall gain is not shown to "
            "exceed 0.1 points (0.0 points, 0.0 to 0.0), "
        f"so there is no recall to retain. {HITS} m is 0.69 nats ahead (0.69 to 0.69). AR hits "
            "carry 100 % of its lead of 0.173 nats "
        "per token; all repeated bigrams carry 100 %.",
    ),
    "a reference that forgets": (
        Model(0.2), {"reference": Model(0.05)},
        f"{REF.replace('50', '5.0')}, m with 20 % (10 %): ref's recall gain is not shown to "
            "exceed 0.1 points (-5.0 points, -5.0 to "
        "-5.0), so there is no recall to "
        f"retain. {HITS} m is 1.39 nats ahead (1.39 to 1.39). AR hits carry 100 % of its lead of "
            "0.347 nats per token; "
        "all repeated bigrams carry 100 %.",
    ),
    "no better than uniform": (
        Model(0.001, 0.001, 6), {"tokenizer": TOKENIZER | {"vocab_size": 1000}},
        f"{REF}, m with 0.1 % (0.1 %): m retains 0.0 % of ref's recall (0 to 0). {HITS} m is "
            "6.21 nats behind (6.21 to 6.21). "
        "Over all tokens the difference is 5.879 nats per token (5.879 to 5.879); no share of it "
            "is meaningful: "
        "the model predicts no better than a uniform guess.",
    ),
}  # fmt: skip

SEVERAL = {
    "behind, ahead, unresolved": (
        {"m": HALF, "n": UNRESOLVED._replace(other=0.5), "o": AHEAD}, {},
        f"{REF}; 3 models retain 25 % (m) to 175 % (o) of this recall gain. {HITS} they are 0.47 "
            "nats ahead (o) to 0.92 nats behind (m); "
        "not significant for n. AR hits carry 10 % (n) to 50 % (m) of the gaps of 2 models and "
            "50 % of the lead of o.",
    ),
    "alike": (
        {"m": HALF, "n": HALF}, {},
        f"{REF}; both models retain 25 % of this recall gain. {HITS} they are 0.92 nats behind. "
        "AR hits carry 50 % of the gaps of 2 models.",
    ),
    "above 100 % and below 0": (
        {"m": Model(0.2, other=-0.1), "n": Model(0.8, other=0.4)}, {},
        f"{REF}; both models retain 25 % (m) to 175 % (n) of this recall gain. {HITS} they are "
            "0.47 nats ahead (n) to 0.92 nats "
        "behind (m). AR hits carry -89 % (n) to 138 % (m) of the gaps of 2 models.",
    ),
    "one is a copy": (
        {"m": Model(), "n": HALF}, {},
        f"{REF}; both models retain 25 % (n) to 100 % (m) of this recall gain. {HITS} they are "
            "level (m) to 0.92 nats behind (n); "
        "not significant for m. AR hits carry 50 % of the gap of n; no share is meaningful for m.",
    ),
    "copies": (
        dict.fromkeys("abcdef", Model()), {},
        f"{REF}; 6 models retain 100 % of this recall gain. {HITS} they are level; not "
            "significant for a, b, "
        "c, d and 2 more. No share of their gaps is meaningful (a, b, c, d and 2 more: no gap "
        "overall).",
    ),
    "no share, for two reasons": (
        {"m": Model(), "n": Model(0.2, other=-HALF.other, other_spread=1)}, {},
        f"{REF}; both models retain 25 % (n) to 100 % (m) of this recall gain. {HITS} they are "
            "level (m) to 0.92 nats behind (n); "
        "not significant for m. No share of their gaps is meaningful (m: no gap overall; n: the "
            "overall gap cannot "
        "be distinguished from zero).",
    ),
    "three documents": (
        {"m": HALF, "n": HALF}, {"documents": 3},
        f"{REF}; there are too few documents to say what is retained. {HITS} they are 0.92 nats "
            "behind; not significant for m, n. "
        f"No share of their gaps is meaningful (m, n: all tokens come from {FEW.format(3.0)}).",
    ),
    "a reference that recalls nothing": (
        {"m": Model(0.2), "n": Model(0.2)}, {"reference": Model(0.1, hit_spread=0.5)},
        f"{REF.replace('50', '10')}; ref's recall gain is not shown to exceed 0.1 points (0.0 "
            "points, …), so there is no recall to retain. "
        f"{HITS} they are 0.84 nats ahead. AR hits carry 100 % of the leads of 2 models.",
    ),
    "no AR hits": (
        {"m": HALF, "n": Model(other=-0.1, other_spread=3)}, {"with_hits": 0},
        (f"{NO_HITS} both models are 0.06 nats ahead (n) to 0.46 nats behind (m); not significant "
            "for n."),
    ),
}  # fmt: skip
CASES = {
    **{f"one: {name}": ({"m": model}, *case) for name, (model, *case) in ONE.items()},
    **SEVERAL,
}


@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_what_the_models_are(tmp_path, case):
    models, options, sentence = CASES[case]
    comparison = compared(tmp_path, models, **options)
    pattern = re.escape(sentence).replace("…", r"-?[\d.]+ to -?[\d.]+")
    answer = in_short("ref", list(models), comparison.totals)
    assert re.fullmatch(pattern, answer), answer


@pytest.mark.parametrize("models", [{"m": HALF}, {"m": HALF, "n": AHEAD}])
def test_repeated_bigrams_are_not_called_ar_hits(tmp_path, models):
    """Without training counts they take the place of AR hits."""
    totals = compared(tmp_path, models).totals
    rows = {key: {**row, "slice": "repeated"} for key, row in totals.items()}
    answer = in_short("ref", list(models), rows)
    assert "On these repeated bigrams" in answer
    assert "They carry" in answer
    assert "AR hit" not in answer


@pytest.mark.parametrize("model", [HALF, AHEAD])
def test_intervals_of_the_answer_are_those_of_the_table_the_smaller_number_first(tmp_path, model):
    totals = compared(tmp_path, {"m": model._replace(hit_spread=0.2, other_spread=0.1)}).totals
    hits = totals["m", "ar_hit"]
    retained, nats = re.findall(r"\(([\d.]+) to ([\d.]+)\)", in_short("ref", ["m"], totals))
    assert retained == tuple(f"{100 * hits[f'retained_ci_{end}']:.0f}" for end in ("low", "high"))
    assert sorted(map(float, nats)) == list(map(float, nats))
    assert set(nats) == {f"{abs(hits[f'delta_nll_ci_{end}']):.2f}" for end in ("low", "high")}
    assert all(float(low) < float(high) for low, high in (retained, nats))
