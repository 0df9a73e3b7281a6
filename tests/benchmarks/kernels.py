"""Times operations and models beside their peers, prints tables, and writes JSON and a picture: `recallkit bench` for bare machines.

    python tests/benchmarks/kernels.py
    python tests/benchmarks/kernels.py operations --device cuda --json kernels.json --plot kernels.svg
    python tests/benchmarks/kernels.py token_nll taylor_attention --device cuda --repeats 15
    python tests/benchmarks/kernels.py models --device cuda --size 1.3b --prompt 4096 --batch 128 --new 128
    python tests/benchmarks/kernels.py --from kernels.json --plot kernels.svg

Each implementation's time is the median of samples taken in turn with the others', of so many calls that a sample takes 20 ms
or more (50 on CPU). On a GPU time is between events, inputs go through copies that exceed its second-level cache three times,
and single steps of decoding are replayed from a graph. Shares are of a large copy and a large matrix product measured in the
same run. It needs torch and numpy, triton on a GPU; fla, liger-kernel and cut-cross-entropy are timed where they are
installed, and pictures want altair and vl-convert-python.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive whole number")
    return int(text)


def main() -> None:
    from recallkit.errors import UserError

    try:
        run()
    except UserError as error:
        sys.exit(f"kernels.py: {error.line()}")


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="operations and architectures by name, or `operations`, `models`; everything if none")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--paper", action="store_true", help="prompts and new tokens as in Based's table 1")
    for name in ("repeats", "prompt", "batch", "new"):
        parser.add_argument(f"--{name}", type=_positive)
    parser.add_argument("--size")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--from", dest="measured", type=Path, help="draw and print what was measured before")
    given = parser.parse_args()
    for path in (given.json, given.plot):
        if path and not path.absolute().parent.is_dir():
            parser.error(f"{path.absolute().parent} is no folder")
    if given.plot and given.plot.suffix not in (".svg", ".png"):
        parser.error(f"{given.plot}: use .svg or .png")
    if given.plot and not all(find_spec(name) for name in ("altair", "vl_convert")):
        parser.error("--plot needs altair and vl-convert-python: write --json here, and draw it where they are with --from")

    from recallkit.bench import results as shown
    from recallkit.bench.plot import draw
    from recallkit.bench.run import bench, chosen_options, usual_dtype
    from recallkit.models.torch_model import choose_device, choose_dtype

    if given.measured:
        if not given.measured.is_file():
            parser.error(f"{given.measured} is no file")
        results = shown.Results.from_json(json.loads(given.measured.read_text(encoding="utf-8")))
    else:
        device = choose_device(given.device)
        names = {name: getattr(given, name) for name in ("repeats", "size", "prompt", "batch", "new")}
        options = chosen_options(device, given.what, quick=given.quick, paper=given.paper, **names)
        results = bench(options, device, choose_dtype(given.dtype) if given.dtype else usual_dtype(device))
    print(json.dumps(results.machine))
    for columns, lines in (
        (shown.COLUMNS, shown.operation_lines(results.rows)),
        (shown.MODEL_COLUMNS, shown.model_lines(results.rows)),
    ):
        if lines:
            print(plain_table(columns, lines))
    print("\n".join(results.verdicts))
    if given.json:
        given.json.write_text(json.dumps(results.to_json(), indent=1), encoding="utf-8")
    if given.plot:
        print(f"{draw(results, given.plot)} axes in {given.plot}")


def plain_table(columns: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    """A table in plain text."""
    table = [columns, *lines]
    titles = [line for line in table if any(line[1:])]
    widths = [max(len(line[i]) for line in titles) for i in range(len(columns))]
    return "\n".join("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in table)


if __name__ == "__main__":
    main()
