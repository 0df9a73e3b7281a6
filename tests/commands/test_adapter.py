"""One declaration makes a command and a function: a toy in both, and the declarations of the real
commands."""

import inspect
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Literal

import polars as pl
import pytest
import typer

from recallkit import cli
from recallkit.commands import ALWAYS, COMMANDS, USUAL, adapter
from recallkit.commands.adapter import Outcome, command
from recallkit.commands.app import declared
from recallkit.declarations import (
    File,
    Options,
    amount,
    argument,
    names,
    option,
    parameters_of,
    path,
)
from recallkit.display import console
from recallkit.display.charts import Figure, StyleOf
from recallkit.errors import UserError
from recallkit.options import ScoringOptions

MANY = 2**60
MODELS = ["zoo:attention", "runs/one", "runs/two", "zoo:attention cache window:4+32, weights int8"]
STROKE = {"stroke": {"value": StyleOf(MODELS[2], "stroke")}}
FIGURE = Figure(
    "orders",
    "Orders",
    "A dot.",
    {"data": {"values": [{"x": 1}]}, "mark": "point", "encoding": STROKE},
    MODELS,
)


@dataclass(frozen=True, kw_only=True)
class Numbers(Options):
    size: int | str | None = option("How much.", metavar="N", parse=amount)
    order: int = option("Which.", 2, least=2, most=5)
    most: int | None = option("How many.", least=0, most=MANY)
    rate: float | None = option("How often.", least=0)
    pairs: int | Sequence[int] | None = option("Numbers.", least=1, joined=True)
    rows: int | Sequence[int] | None = option("Rows.", least=0)
    given: str = "not an option"


@dataclass(frozen=True)
class Toy(Numbers):
    sources: File | Sequence[File] | None = argument("What to read.", metavar="SOURCE")
    _: KW_ONLY
    out: File | None = option("Where.", flags=("-o", "--out"), metavar="DIR", default="here")
    how: Literal["pack", "document"] = option("How.", "pack")
    colour: Literal["red", "dark-blue"] | None = option("Colour.", flags=("--paint",))
    force: bool = option("Again.", False)
    given: str = field(default="set by the command", init=False)


@dataclass(frozen=True, kw_only=True)
class ToyLine(Toy):
    shout: bool = option("Say it loudly.", False)


def declare():
    @command(
        "toy",
        Toy,
        examples=("recallkit toy a b --size 10k",),
        prints=("figures", "width", "drawn", "export"),
    )
    def toy(asked: ToyLine) -> Outcome[dict[str, object]]:
        """Read what there is: in order.

        Returns all of it.
        """
        found = vars(asked) | {
            "sources": names(asked.sources),
            "out": str(path(asked.out)),
            "size": amount(asked.size),
        }
        frame = pl.DataFrame({"order": [asked.order]})
        return Outcome(
            value=lambda: found,
            show=lambda full: console.print_line(f"order {asked.order}"),
            json=lambda: found,
            exports=lambda: [({"toy": frame}, {}, path(asked.out))],
            figures=lambda models: (
                [replace(FIGURE, caption=f"Of {', '.join(models)}.", models=models or MODELS)]
                if asked.order == 2
                else []
            ),
            failure="out of order" if asked.order == 5 else None,
        )

    return toy


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(adapter.DECLARED, "toy", None)  # taken back afterwards
    monkeypatch.setitem(COMMANDS, "toy", __name__)
    return declare()


@pytest.fixture
def invoke(toy, capsys):
    """The toy on the command line: (status, stdout, stderr)."""

    def call(*words):
        with pytest.raises(SystemExit) as stopped:
            cli.run(["toy", *map(str, words)])
        told = capsys.readouterr()
        return int(stopped.value.code or 0), told.out, told.err

    return call


SAME = [
    ([], {}),
    (["a"], {"sources": "a"}),
    (["a", "b"], {"sources": ["a", "b"]}),
    (["-o", "x/y"], {"out": "x/y"}),
    (["--size", "10M"], {"size": "10M"}),
    (["--size", "1250"], {"size": 1250}),
    (["--order", "3", "--most", str(MANY)], {"order": 3, "most": MANY}),
    (["--rate", "2"], {"rate": 2}),
    (["--pairs", "16, 4"], {"pairs": [16, 4]}),
    (["--pairs", "16"], {"pairs": 16}),
    (["--rows", "0", "--rows", "7"], {"rows": (0, 7)}),
    (
        ["--how", "document", "--paint", "dark-blue", "--force"],
        {"how": "document", "colour": "dark-blue", "force": True},
    ),
]


@pytest.mark.parametrize(("words", "arguments"), SAME)
def test_a_command_and_its_function_are_given_the_same(toy, invoke, words, arguments):
    status, out, _ = invoke(*words, "--json")
    assert status == 0
    assert json.loads(out) == toy(**arguments)


@pytest.mark.parametrize(
    ("words", "arguments", "told"),
    [
        (["--order", "1"], {"order": 1}, "1 is out of bounds; give 2 to 5"),
        (["--order", "two"], {"order": "two"}, "'two' is no whole number; give one such as 8"),
        (["--order", "2.5"], {"order": "2.5"}, "'2.5' is no whole number; give one such as 8"),
        (
            ["--most", str(MANY + 1)],
            {"most": MANY + 1},
            f"{MANY + 1} is out of bounds; give 0 to {MANY}",
        ),
        (["--rate", "-1"], {"rate": -1.0}, "-1.0 is out of bounds; give 0 or more"),
        (["--rate", "nan"], {"rate": float("nan")}, "nan is out of bounds; give 0 or more"),
        (["--rate", "often"], {"rate": "often"}, "'often' is no number; give one such as 0.5"),
        (
            ["--size", "many"],
            {"size": "many"},
            "'many' is not a number of tokens; give a whole number such as 1250, 10M or 1.5B",
        ),
        (["--pairs", "4,0"], {"pairs": [4, 0]}, "0 is out of bounds; give 1 or more"),
        (
            ["--rows", "3", "--rows", "x"],
            {"rows": [3, "x"]},
            "'x' is no whole number; give one such as 8",
        ),
        (
            ["--how", "packed"],
            {"how": "packed"},
            "'packed' is not one of pack, document; give one of them",
        ),
        (
            ["--paint", "blue"],
            {"colour": "blue"},
            "'blue' is not one of red, dark-blue; give one of them",
        ),
    ],
)
def test_a_wrong_value_is_one_line_in_both(toy, invoke, words, arguments, told):
    [name] = arguments
    with pytest.raises(UserError) as caught:
        toy(**arguments)
    assert str(caught.value) == f"{name}: {told}"
    assert invoke(*words) == (2, "", f"recallkit: {words[0]}: {told}\n")


def test_amounts_are_read_as_people_write_them():
    assert [amount(given) for given in ("1250", "1.5b", "16_000", "2k")] == [
        1250,
        1_500_000_000,
        16_000,
        2000,
    ]
    for wrong in ("", "-3", "0", "1.5", "nan", "1e400"):
        with pytest.raises(ValueError, match="is not a number of tokens"):
            amount(wrong)


def test_figures_are_as_wide_as_asked_and_of_the_models_asked(invoke, tmp_path):
    def drawn(*words: str) -> tuple[str, str]:
        assert invoke("--figures", tmp_path, *words)[0] == 0
        return (tmp_path / "orders.svg").read_text(), (tmp_path / "figure-orders.tex").read_text()

    for width, points in (
        ((), "234.00pt"),
        (("--width", "column"), "234.00pt"),
        (("--width", "text"), "486.00pt"),
    ):
        assert f'width="{points}"' in drawn(*width)[0]
    assert 'width="396.00pt"' in drawn("--width", "5.5")[0]
    assert r"\caption{Of .}" in drawn()[1]
    assert drawn("--model", "two")[0] == drawn()[0], "in its usual colour"
    assert r"\caption{Of zoo:attention, runs/one.}" in drawn("--model", "one")[1], (
        "the reference, too"
    )
    assert (
        r"\caption{Of zoo:attention, runs/one, runs/two.}"
        in drawn("--model", "runs/two", "--model", "runs/one")[1]
    ), "in their order"
    for name in (
        "zoo:attention,cache=window:4+32,weights=int8",
        MODELS[3],
        MODELS[3].removeprefix("zoo:"),
    ):
        assert rf"\caption{{Of zoo:attention, {MODELS[3]}.}}" in drawn("--model", name)[1], (
            "as typed, or as it is shown"
        )
    assert invoke("--model", "one")[::2] == (
        2,
        "recallkit: --model: goes with --figures; give --figures as well\n",
    )
    others = f"choose from runs/one, runs/two, '{MODELS[3]}'"
    for words, out, told in (
        (("--model", "tow"), "order 2\n", f"tow: no such model in these figures; {others}"),
        (
            ("--model", "attention"),
            "order 2\n",
            f"zoo:attention: the reference, which is always drawn; {others}",
        ),
        (("--width", "broad"), "", "'broad': give column, text, or inches from 2 to 20"),
        (("--width", "1.9"), "", "1.9: give column, text, or inches from 2 to 20"),
    ):
        status, printed, said = invoke("--figures", tmp_path, *words)
        assert (status != 0, printed) == (True, out), "what is found is printed before it is drawn"
        assert told in said


def test_what_is_found_is_printed_written_and_judged(invoke, tmp_path):
    assert invoke("--order", 3) == (0, "order 3\n", "")
    status, out, _ = invoke("-o", tmp_path, "--export", "csv")
    assert (status, (tmp_path / "toy.csv").read_text()) == (0, "order\n2\n")
    assert out.splitlines()[0] == "order 2"
    assert out.splitlines()[-1] == f"1 file written to {tmp_path}"
    status, out, _ = invoke("--figures", tmp_path / "drawn", "--json")
    files = [
        str(tmp_path / "drawn" / name)
        for name in ("orders.svg", "orders.png", "orders.pdf", "figure-orders.tex")
    ]
    assert (status, json.loads(out)["files"]) == (0, files)
    assert [path.read_bytes()[:4] for path in map(Path, files)] == [
        b"<svg",
        b"\x89PNG",
        b"%PDF",
        b"% ma",
    ]
    assert "nothing to draw" in invoke("--order", 3, "--figures", tmp_path / "none")[2]
    assert not (tmp_path / "none").exists()
    assert "not a directory" in invoke("--figures", files[0])[2]
    assert invoke("--export", "csv")[::2] == (
        2,
        "recallkit: --export: no directory to write to; name it with -o DIR\n",
    )
    assert invoke("--export", "xls")[0] == 2
    assert invoke("--order", 5) == (1, "order 5\n", "recallkit: out of order\n")
    assert json.loads(invoke("--order", 5, "--json")[1])["order"] == 5


def test_options_of_the_command_line_alone_are_none_of_pythons(toy, invoke):
    assert json.loads(invoke("--shout", "--json")[1])["shout"] is True
    assert toy()["shout"] is False
    with pytest.raises(TypeError, match="shout"):
        toy(shout=True)


def test_the_function_is_told_with_its_arguments(toy):
    signature = inspect.signature(toy)
    assert next(iter(signature.parameters)) == "sources"
    assert signature.parameters["order"].annotation is int
    assert "Returns all of it." in toy.__doc__
    assert "order: Which.  [2 to 5]  [default: 2]" in toy.__doc__


def test_a_group_is_handed_on_as_it_is():
    """Its values are checked and converted wherever an instance is made; what a command sets itself
    is no option of it."""
    asked = ToyLine("a", size="10k", pairs=4)
    assert isinstance(asked, Numbers)
    assert (asked.size, asked.pairs, asked.given) == (10_000, [4], "set by the command")
    assert replace(asked, order=3) == ToyLine("a", size=10_000, pairs=[4], order=3)
    with pytest.raises(UserError, match="order: 9 is out of bounds"):
        replace(asked, order=9)
    assert asked.is_usual(Toy) is False
    assert (
        ToyLine("a", size="10k").is_usual(ToyLine) is ToyLine(how="document").is_usual(Toy) is False
    )
    assert ToyLine(how="pack", shout=True).is_usual(Toy)
    assert "given" not in parameters_of(Toy)


# -------------------------------------------------------------------------------- the real commands

REAL = {name: typer.main.get_command(cli.app).get_command(None, name) for name in COMMANDS}


def test_every_command_that_scores_takes_every_option_of_how_models_are_run():
    """`demo` has its own models, which need none."""
    for name in ("score", "gap", "track", "intervene", "ablate"):
        assert parameters_of(ScoringOptions).keys() <= {
            each.name for each in declared(name).parameters
        }, name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_is_for_people_and_ends_in_an_example_that_runs(name, run):
    lines = run(name, "--help-all").stdout.rstrip()
    shown = " ".join(lines.replace("│", " ").split())
    assert not re.search(r"<(bool|str|int|float|list)\b", shown), "the name of a type of Python's"
    assert [number for number in re.findall(r"\d+", shown) if int(number) > 10**9] == []
    assert max(map(len, lines.partition("Examples:")[0].splitlines())) <= 80
    needed = [each for each in declared(name).parameters if each.default is inspect.Parameter.empty]
    assert shown.count("[required]") == len(needed)
    examples = declared(name).examples
    assert shown.partition("Examples: ")[2].strip() == " ".join(examples)
    asked = [shlex.split(example) for example in examples]
    assert (asked[0][1], {program for program, *_ in asked}) == (name, {"recallkit"})
    for _, command_name, *words in asked:
        # it exits, or raises, for what it cannot take
        REAL[command_name].make_context(command_name, words)


def test_help_has_options_by_group_with_what_they_are_beside_them(run):
    shown = run("gap", "--help-all").stdout
    headings = re.findall(r"^(\w.*):$", shown, re.MULTILINE)
    assert headings == [
        "Arguments",
        "Options",
        "Models",
        "Many devices",
        "Long sequences",
        "Output",
        "Examples",
    ]
    assert re.search(r"^Models:\n  --device DEVICE +auto, cpu, cuda, cuda:N", shown, re.MULTILINE)
    assert re.search(r"^The gap:\n  gap +Measure how much", run("--help").stdout, re.MULTILINE)


@pytest.mark.parametrize("name", USUAL)
def test_the_help_of_a_command_fits_a_screen_and_says_how_many_options_it_leaves_out(name, run):
    shown = run(name, "--help").stdout
    options = re.findall(r"^  (?:-o, )?(--[a-z-]+)", shown, re.MULTILINE)
    every = [each.flags[-1] for each in declared(name).parameters if not each.option.is_argument]
    assert set(USUAL[name].split()) <= set(options) <= {*USUAL[name].split(), *ALWAYS.split()}
    assert len(shown.splitlines()) <= 48
    more = len(every) - len(options)
    assert shown.endswith(f"\n`recallkit {name} --help-all` shows {more} more options.\n")
    of_all = run(name, "--help-all").stdout
    shown_flags = re.findall(r"^  (?:-o, )?(--[a-z-]+)", of_all, re.MULTILINE)
    assert sorted(shown_flags) == sorted(every)
    assert "--help-all" not in of_all


def test_every_option_of_a_command_is_declared():
    """A flag that typer makes up, such as --no-force, would be one that no declaration knows."""
    for name in COMMANDS:
        flags = {
            flag
            for option in declared(name).parameters
            for flag in option.flags
            if not option.option.is_argument
        }
        known = {
            flag
            for option in REAL[name].params
            for flag in (*option.opts, *option.secondary_opts)
            if flag.startswith("-")
        }
        assert known == {*flags, "--help-all"}, name
