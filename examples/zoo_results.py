"""Collects what the zoo's training has found so far, tabulates and draws it.

    python examples/zoo_results.py collect --runs zoo-runs --results docs/zoo-lists.json     # from the pieces of train_zoo.py
    python examples/zoo_results.py restore --runs zoo-runs --results docs/zoo-lists.json     # on another machine: not to be repeated
    python examples/zoo_results.py table --results docs/zoo-lists.json
    python examples/zoo_results.py draw --results docs/zoo-lists.json --to docs

The file of results has one line for each finished piece, with its whole curve. `table` needs only torch and numpy, `draw` altair.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from synthetic_training import draw, print_table
from train_zoo import LEARNT, NAMES, SEEDS, list_file, list_outcomes, merit, rates_of
from zoo_measures import TEST_PAIRS

from recallkit.storage.artifacts import replacing

if TYPE_CHECKING:
    from recallkit.display.charts import Figure, Spec

TO_RUN = "to run"


def collect(args: argparse.Namespace) -> None:
    """Writes the outcomes of all finished pieces into one file, a line for each, so that what changes in it is what has finished."""
    lists = [run for name in NAMES for run in list_outcomes(args.runs, name)]
    texts = [json.loads(path.read_text()) for name in NAMES if (path := args.runs / f"text-{name}.json").exists()]
    args.results.parent.mkdir(parents=True, exist_ok=True)
    with replacing(args.results) as temporary:
        temporary.write_text(f'{{"lists": [\n{_lines(lists)}\n], "text": [\n{_lines(texts)}\n]}}\n')


def restore(args: argparse.Namespace) -> None:
    """Writes the outcomes of list runs back into a folder of runs that lacks them; the weights of the best are trained again for text."""
    args.runs.mkdir(parents=True, exist_ok=True)
    for run in json.loads(args.results.read_text())["lists"]:
        path = args.runs / list_file(run["architecture"], run["rate"], run["seed"])
        if not path.exists():
            with replacing(path) as temporary:
                temporary.write_text(json.dumps(run) + "\n")


def _lines(runs: list[dict[str, Any]]) -> str:
    return ",\n".join(json.dumps(run, separators=(",", ":")) for run in runs)


def table(args: argparse.Namespace) -> None:
    """Prints the accuracy of each architecture on lists by learning rate, its seeds, and what it recalls after text."""
    results = json.loads(args.results.read_text())
    lists, texts = results["lists"], {run["architecture"]: run for run in results["text"]}
    rates = sorted({rate for name in NAMES for rate in rates_of(name)})
    first, second = ({(r["architecture"], r["rate"]): r for r in lists if r["seed"] == seed} for seed in SEEDS)
    chosen = {name: _chosen(name, first) for name in NAMES}
    rows = [(name, *(_cell(name, rate, first) for rate in rates), _again(name, chosen[name], second)) for name in NAMES]
    title = f"Lists of {' and '.join(map(str, TEST_PAIRS))} pairs in 256 ids: accuracy in % @ steps until learnt (else the ids they had)"
    print_table(title, ("model", *(f"x {rate:g}" for rate in rates), "best, other seed"), rows)
    print_table("After text", _TEXT_HEADERS, [_text_cells(name, texts.get(name)) for name in NAMES])
    seconds = sum(run["cpu_seconds"] for run in [*lists, *results["text"]])
    missing = sum(row.count(TO_RUN) for row in rows)
    print(f"\n{len(lists)} list runs and {len(texts)} models finished, {seconds / 3600:.1f} hours of one core; {missing} list runs to run")


def _chosen(name: str, first: dict[tuple[str, float], dict[str, Any]]) -> dict[str, Any] | None:
    """The best run of an architecture, once all of its rates have finished."""
    found = [first.get((name, rate)) for rate in rates_of(name)]
    return max((run for run in found if run), key=merit) if all(found) else None


def _cell(name: str, rate: float, found: dict[tuple[str, float], dict[str, Any]]) -> str:
    if rate not in rates_of(name):
        return ""
    return _accuracy(found[name, rate]) if (name, rate) in found else TO_RUN


def _again(name: str, chosen: dict[str, Any] | None, found: dict[tuple[str, float], dict[str, Any]]) -> str:
    """The cell of the other seed at the best rate."""
    run = chosen and found.get((name, chosen["rate"]))
    return f"x {run['rate']:g}: {_accuracy(run)}" if run else TO_RUN


def _accuracy(run: dict[str, Any]) -> str:
    few, many = (100 * run["accuracy"][str(pairs)] for pairs in TEST_PAIRS)
    return f"{few:.1f} / {many:.1f}" + (f" @ {run['steps']}" if run["learnt"] else f" ({run['ids']})")


_TEXT_HEADERS = ("model", "copies: random ids", "text", "MQAR: 4", "16", "32 pairs", "AR hits", "rare, first time", "all, nats per token")


def _text_cells(name: str, run: dict[str, Any] | None) -> tuple[str, ...]:
    if run is None:
        return (name, *(TO_RUN for _ in _TEXT_HEADERS[1:]))
    recall, last = run["recall"], run["curve"][-1]
    percents = (recall["copies"]["copied_random"], recall["copies"]["copied_text"], *(recall["mqar"][pairs] for pairs in ("4", "16", "32")))
    return (name, *(f"{100 * share:.1f} %" for share in percents), *(f"{last[kind]:.2f}" for kind in ("ar_hit", "first_rare", "all")))


# -------------------------------------------------------------------------------------------------------------- the figure


def show(args: argparse.Namespace) -> None:
    """Draws accuracy by steps of each architecture at its best rate so far."""
    lists = json.loads(args.results.read_text())["lists"]
    draw(figures_of, [run for run in lists if run["seed"] == SEEDS[0]], args.to, args.results)


def figures_of(runs: list[dict[str, Any]]) -> list[Figure]:
    """One figure: accuracy with the larger number of pairs, while training on lists."""
    from recallkit.display.charts import Figure

    kept = [max(some, key=merit) for name in NAMES if (some := [run for run in runs if run["architecture"] == name])]
    few, many = TEST_PAIRS
    caption = (
        f"Share of requested values that are the most likely id, in lists of {many} pairs in 256 ids, by steps of 1,024 ids, each "
        f"architecture at its best rate so far. A run ends where {100 * LEARNT:g} % are right with {few} and with {many} pairs."
    )
    return [Figure("zoo-lists", "Who learns lists, and when", caption, _draw(kept))]


def _draw(runs: list[dict[str, Any]]) -> Spec:
    import altair as alt

    from recallkit.display.charts import PAPER

    values = [
        {"model": run["architecture"], "step": step, "accuracy": many, "rate": f"x {run['rate']:g}"}
        for run in runs
        for step, *_, many in run["curve"]
    ]
    order = list(dict.fromkeys(value["model"] for value in values))
    lines = (
        alt.Chart(alt.Data(values=values))
        .mark_line(color=PAPER["m0"])
        .encode(
            x=alt.X("step:Q", axis=alt.Axis(title="steps", tickCount=3)),
            y=alt.Y("accuracy:Q", axis=alt.Axis(title="accuracy", format="%", tickCount=3), scale=alt.Scale(domain=[0, 1])),
        )
    )
    drawn: Spec = lines.properties(width=120, height=80).facet(facet=alt.Facet("model:N", sort=order, title=None), columns=5).to_dict()
    return drawn


def main() -> None:
    """Parses the command line and runs its command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, command in {"collect": collect, "restore": restore, "table": table, "draw": show}.items():
        sub = commands.add_parser(name, help=(command.__doc__ or "").splitlines()[0])
        sub.set_defaults(run=command)
        sub.add_argument("--results", type=Path, required=True)
        if name in ("collect", "restore"):
            sub.add_argument("--runs", type=Path, required=True)
        if name == "draw":
            sub.add_argument("--to", type=Path, required=True)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
