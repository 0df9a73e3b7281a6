"""Measures how well bigrams that are not in the counts tell text of another kind from held-out text of the same: see docs/slices.md.

    python tests/benchmarks/kinds.py                                                    # 1M tokens of each set
    python tests/benchmarks/kinds.py --text 'pile/*.jsonl.zst' --tokenizer gpt2.json --tokens 300k

Documents of each set (Pile format) are put in random order; the first ones, so many tokens, are counted alone, and 100 others of every set
are sliced with these counts. Printed are the odds of a bigram to be unseen over those that `count` has measured for held-out text, and how
often `slice` would warn: of all that was sliced, and of 20 draws of few documents.

Text comes from $RECALLKIT_TEST_DATA (corpus/*.jsonl.zst) unless it is named.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import polars as pl

from recallkit import counting, slicing
from recallkit.config import parse_amount
from recallkit.options import TextOptions
from recallkit.slicing.labels import share_of_documents
from recallkit.slicing.threshold import counts_warning
from recallkit.text.corpus import open_corpus

READ = 100
"""Documents of a set that are sliced, at most."""
DRAWS = 20
DRAWN = (50, 20, 10, 5)
"""Numbers of documents of a draw."""


def sets_of(sources: list[str]) -> dict[str, list[str]]:
    """Documents by set, in random order."""
    found = defaultdict(list)
    for document in open_corpus(sources).documents():
        found[document.source].append(document.text)
    rng = np.random.default_rng(0)
    return {name: [texts[at] for at in rng.permutation(len(texts))] for name, texts in sorted(found.items())}


def unseen_by_document(texts: list[str], counts: Path, tokenizer: str | None, folder: Path) -> tuple[np.ndarray, dict]:
    """[unseen, bigrams] of each document, (n, 2), and the manifest of the labels."""
    text = TextOptions(texts=texts, tokenizer=tokenizer)
    manifest = slicing.slice_text(text, folder, counts=counts, seq_len=1024, force=True)
    tokens = pl.scan_parquet(folder / "tokens.parquet").filter(pl.col("prev_token") != pl.col("token")).group_by("document")
    return tokens.agg((pl.col("train_count") == 0).sum(), pl.len()).sort("document").collect()[:, 1:].to_numpy().astype(np.int64), manifest


def is_warned(sums: np.ndarray, manifest: dict) -> bool:
    return counts_warning({**manifest, "unseen": share_of_documents(*sums.T)}, None) is not None


def main() -> None:
    """Parses the command line, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", nargs="+", default=[str(Path(os.environ.get("RECALLKIT_TEST_DATA", "."), "corpus", "*.jsonl.zst"))])
    parser.add_argument("--tokenizer")
    parser.add_argument("--tokens", type=parse_amount, default=1_000_000)
    args = parser.parse_args()
    sets, rng = sets_of(args.text), np.random.default_rng(0)
    warned = defaultdict(list)
    print(f"{'counted':18}{'documents':>10}{'held-out':>10}  odds over those of held-out text: itself, others ascending")
    with tempfile.TemporaryDirectory() as folder:
        for counted, texts in sets.items():
            counts = Path(folder, f"{len(warned)}-{counted.replace('/', ' ')}.duckdb")
            text = TextOptions(texts=texts, tokenizer=args.tokenizer, limit_tokens=args.tokens)
            meta = counting.count(text, counts)
            if meta["unseen"] is None or meta["num_documents"] == len(texts):
                continue
            odds = {}
            for name, others in sets.items():
                kept = others[meta["num_documents"] :] if name == counted else others
                sums, manifest = unseen_by_document(kept[:READ], counts, args.tokenizer, Path(folder, "slices"))
                share, held_out = manifest["unseen"]["share"], meta["unseen"]["share"]
                odds[name] = share / (1 - share) * (1 - held_out) / held_out
                warned[name == counted, "all"].append(is_warned(sums, manifest))
                for number in DRAWN:
                    if number < len(sums):
                        draws = [is_warned(sums[rng.permutation(len(sums))[:number]], manifest) for _ in range(DRAWS)]
                        warned[name == counted, number] += draws
            own = odds.pop(counted)
            nearest = ", ".join(f"{value:.2f} {name}" for value, name in sorted((value, name) for name, value in odds.items())[:3])
            print(f"{counted:18}{meta['num_documents']:10,}{meta['unseen']['share']:10.1%}  {own:.2f}; {nearest}")
    print("\nwarned of, % of texts of documents:  " + "".join(f"{number!s:>8}" for number in ("all", *DRAWN)))
    for is_same in (True, False):
        rates = (warned[is_same, number] for number in ("all", *DRAWN))
        shown = "".join(f"{100 * np.mean(rate):8.1f}" if rate else f"{'–':>8}" for rate in rates)
        print(f"{'the counted set' if is_same else 'other sets':37}{shown}")


if __name__ == "__main__":
    main()
