"""Prints by how much NLLs fit their own tokens: the figures on which `scoring.token_fit` refuses numbers that do not.

    python tests/benchmarks/token_fit.py
    python tests/benchmarks/token_fit.py --models zoo:hyena --tokens 3000

Of each model and the built-in text: NLLs of the first four tokens of a sequence over the unigrams' surprisal, in nats and as bits; the
correlation of NLLs with the surprisal of their own tokens, and the larger one with that of a neighbour; and the sequence whose NLLs fit
their own tokens least better than a neighbour's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import polars as pl


def figures(slices: Path, scores: Path) -> list[float]:
    """The five figures of a score file."""
    from recallkit.ragged import positions_within
    from recallkit.scoring import token_fit

    tokens = pl.read_parquet(slices / "tokens.parquet", columns=["sequence", "token"])
    nll = pl.read_parquet(scores)["nll"].to_numpy()
    ids, lengths = tokens["token"].to_numpy(), np.bincount(tokens["sequence"].to_numpy())
    surprisal = token_fit.unigram_surprisal(np.bincount(ids, minlength=4096).astype(float))[ids]
    is_early = positions_within(lengths) < 4
    early = nll[is_early].sum() / surprisal[is_early].sum()
    usual = token_fit.usual_nlls(ids, nll, surprisal, lengths)
    of_all, margins = [], []
    for expected in (surprisal, usual):
        pairs = [(nll, expected, lengths), *(token_fit.shifted(nll, expected, lengths, shift) for shift in (1, -1))]
        of_all.append([np.corrcoef(left, right)[0, 1] for left, right, _ in pairs])
        own, *others = (token_fit.correlations(*pair)[lengths >= 32] for pair in pairs)
        margins.append(float((own - np.maximum(*others)).min()))
    own, *others = of_all[0]
    return [early, early / np.log(2), own, max(others), margins[1]]


def main() -> None:
    """Reads the command line."""
    import recallkit
    from recallkit import builtin
    from recallkit.scoring import find_scores

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(builtin.MODELS))
    parser.add_argument("--tokens", type=int)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        slices = Path(folder)
        if args.tokens is None:
            slices = builtin.slices()
        else:
            recallkit.slice("demo:validation", limit_tokens=args.tokens, seq_len=256, out=slices)
        recallkit.score(args.models, slices=slices)
        print(f"{'model':26}early  as bits  own  neighbour  least margin")
        for model in args.models:
            print(f"{model:26}" + "  ".join(f"{figure:5.2f}" for figure in figures(slices, find_scores(slices, model))))


if __name__ == "__main__":
    main()
