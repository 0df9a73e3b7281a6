"""Times what a tracker costs a training run besides the model's own forward passes: `add` and `log` of 100,000 tokens.

    python tests/benchmarks/tracker.py
    python tests/benchmarks/tracker.py --tokens 2000 --repeats 1

The built-in text is read by a model of the zoo, which is timed, too; the reference is recorded. Printed are the medians, in seconds, and
the tracker's as a share of the model's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import torch
from torch.nn.functional import cross_entropy


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    import recallkit
    from recallkit.models.loading import load_model
    from recallkit.models.protocol import ModelRequest

    model = load_model(ModelRequest("zoo:attention", 4096)).model
    with tempfile.TemporaryDirectory() as folder:
        tracker = recallkit.Tracker(sample_tokens=args.tokens, reference="control:bigram", out=folder)
        forward, own = [], []
        for step in range(args.repeats):
            spent = 0.0
            started = time.perf_counter()
            for batch in tracker.batches():
                ids = torch.from_numpy(batch.ids)
                with torch.inference_mode():
                    nlls = cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none")
                before = time.perf_counter()
                tracker.add(batch, nlls)
                spent += time.perf_counter() - before
            forward.append(time.perf_counter() - started - spent)
            before = time.perf_counter()
            tracker.log(step)
            own.append(spent + time.perf_counter() - before)
    ours, theirs = statistics.median(own), statistics.median(forward)
    tokens = int(np.sum(tracker.table["tokens"].to_list()[-1:]))
    print(f"{tokens:,} tokens: tracker {ours:.3f} s, the model's forward passes {theirs:.2f} s: {100 * ours / theirs:.2g} %")


if __name__ == "__main__":
    main()
