"""The runs of `recallkit train-mqar` on a machine with torch, triton, numpy, transformers, tokenizers and safetensors alone.

    python examples/05_train_mqar.py --preset based:2 --device cuda --out mqar
    recallkit train-mqar --preset based:2 --out mqar --figures figures        # then, on another machine, with that folder

It trains the runs of a preset and keeps a file of each; the command finds them, and makes the tables and the pictures. The same
command resumes an interrupted sweep. Several GPUs can work on one folder: --share 1/2 on one, --share 2/2 on the other. See
docs/train-mqar.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from recallkit.errors import UserError
from recallkit.models.devices import choose_device
from recallkit.options import SweepOptions
from recallkit.training.jobs import Job, read_run, train_run
from recallkit.training.presets import PRESETS, jobs_of


def main() -> None:
    """Parses the command line and trains. Errors are one line with exit status 1, as in `recallkit`; 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="cpu")
    parser.add_argument("--mixers", nargs="+", default=(), help="lines of the preset, or any mixers; else all lines")
    parser.add_argument("--widths", nargs="+", type=int, default=())
    parser.add_argument("--learning-rates", nargs="+", type=float, default=())
    parser.add_argument("--steps", type=int, help="steps of a run that does not end early")
    parser.add_argument("--examples", type=int, help="training sequences")
    parser.add_argument("--test-examples", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--share", default="1/1", metavar="I/N", help="every N-th run, beginning with the I-th")
    parser.add_argument("--out", type=Path, default=Path("train-mqar"))
    args = parser.parse_args()
    try:
        _train(args)
    except UserError as error:
        raise SystemExit(str(error)) from error
    except KeyboardInterrupt:
        print("stopped: finished runs are kept; the same command resumes", file=sys.stderr)
        raise SystemExit(130) from None


def _train(args: argparse.Namespace) -> None:
    device = choose_device(args.device)
    torch.set_num_threads(1)
    names = ("mixers", "widths", "learning_rates", "steps", "examples", "test_examples", "seed")
    jobs = jobs_of(args.preset, SweepOptions(**{name: getattr(args, name) for name in names}))
    for number, job in _share(list(enumerate(jobs, 1)), args.share):
        found = read_run(job, args.out)
        if found is None:
            for _ in train_run(job, args.out, device):
                pass
            found = read_run(job, args.out)
            assert found is not None
            said = f"accuracy {found['accuracy']:.3f}, {found['num_steps']:,} steps, {found['seconds']:.0f} s"
            print(f"[{number}/{len(jobs)}] {job.shown}: {said}", file=sys.stderr, flush=True)


def _share(jobs: list[tuple[int, Job]], share: str) -> list[tuple[int, Job]]:
    first, _, every = share.partition("/")
    if not (first.isdigit() and every.isdigit() and 1 <= int(first) <= int(every)):
        raise UserError("not I/N", where=f"--share {share}", remedy="give one such as 1/2")
    return jobs[int(first) - 1 :: int(every)]


if __name__ == "__main__":
    main()
