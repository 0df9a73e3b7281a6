"""Every command and every call in README and docs is taken by the command line and by the
signatures; docs/python.md is run, too."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
import tomllib
from dataclasses import fields

import click
import pytest
import typer

import recallkit
from recallkit import cli
from recallkit.commands import COMMANDS
from recallkit.commands.app import declared
from recallkit.declarations import numbers
from recallkit.errors import UserError
from recallkit.models.spec import list_models
from recallkit.mqar.run import plan_mqar, with_usual_size
from recallkit.options import MqarOptions, SweepOptions
from recallkit.training.runs import runs_of
from tests.conftest import ROOT
from tests.documented import PROGRAMS, blocks, documents, inline, words

BLOCKS = [block for path in documents() for block in blocks(path)]
GROUP = typer.main.get_command(cli.app)
REAL = {name: GROUP.get_command(None, name) for name in COMMANDS}
LINES = [(block, line) for block in BLOCKS if block.kind == "shell" for line in block.commands]
OWN = {flag for parameter in GROUP.params for flag in parameter.opts}
"""Options of the program itself, before a command's name."""


def accepted(given: list[str]) -> None:
    """Parses words as the command line does, and runs nothing. Raises for what it would refuse."""
    given = [word.replace("$SLURM_ARRAY_TASK_ID", "1") for word in given if word not in OWN]
    if not given:
        return
    context = REAL[given[0]].make_context(given[0], given[1:])
    if given[0] in ("score", "gap", "intervene", "ablate", "eval-recall", "mqar"):
        named = [context.params.get(name) or () for name in ("reference", "model", "models")]
        list_models(
            *(
                each
                for models in named
                for each in ([models] if isinstance(models, str) else models)
            )
        )


def test_every_command_line_is_accepted():
    refused = []
    for block, line in LINES:
        try:
            accepted(words(line))
        except (click.ClickException, UserError) as error:
            refused.append(f"{block.document}: {line}: {error}")
    assert not refused, "\n".join(refused)


def of_tasks():
    """Command lines with --task, of documents and of help, as words."""
    typed = [words(line) for _, line in LINES]
    typed += [
        shlex.split(code.removeprefix("recallkit "))
        for path in documents()
        for code in inline(path)
        if " --task " in code
    ]
    typed += [
        shlex.split(example)[1:]
        for name in ("train", "mqar")
        for example in declared(name).examples
    ]
    known = [one for one in typed if one and one[0] in ("train", "mqar") and "--task" in one]
    return [one for one in known if not any(re.fullmatch(r"[A-Z]+|\.\.\.", word) for word in one)]


@pytest.mark.parametrize("given", of_tasks(), ids=" ".join)
def test_the_sizes_of_documented_tasks_fit_them(given, home, tmp_path):
    params = REAL[given[0]].make_context(given[0], given[1:]).params
    group = SweepOptions if given[0] == "train" else MqarOptions
    asked = group(
        **{
            each.name: params[each.name]
            for each in fields(group)
            if each.init and each.name in params
        }
    )
    if given[0] == "train":
        assert runs_of(params["preset"], params["task"], asked)
    else:
        sized = with_usual_size(asked, is_zoo=False)
        assert plan_mqar(["control:recall"], numbers(sized.pairs), tmp_path, sized)


def test_blocks_of_all_kinds_are_found():
    """The README's, and that no command hides in what looks like an output."""
    assert [line for block, line in LINES if block.document == "README.md"][:2] != []
    assert {block.kind for block in BLOCKS} == {"shell", "python", "printed"}
    for block in BLOCKS:
        if block.kind == "printed":
            lines = [
                line
                for line in block.text.splitlines()
                if re.match(rf"(\$ )?recallkit ({'|'.join(REAL)})\b", line)
            ]
            assert not lines, f"{block.document}:{block.line}: commands beside other text: {lines}"


def test_other_programs_lines_name_what_is_there():
    """Targets of make, extras of pip, scripts and their options."""
    targets = set(
        re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    extras = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
            "optional-dependencies"
        ]
    )
    wrong = []
    for block, line in LINES:
        program = PROGRAMS.match(line)["program"]
        said = shlex.split(line)
        if program == "make":
            wrong += [(block.document, name) for name in said[1:] if name not in targets]
        if program == "pip":
            asked = {
                name for names in re.findall(r"\[([\w,]+)\]", line) for name in names.split(",")
            }
            wrong += [(block.document, name) for name in asked - extras]
        scripts = [
            word
            for word in said
            if re.fullmatch(r"(?:scripts|tests|examples)/[\w/]+\.(?:py|sh)", word)
        ]
        wrong += [(block.document, name) for name in scripts if not (ROOT / name).is_file()]
        if scripts:  # an example's options may be in the file that it shares with another
            text = "".join(
                path.read_text(encoding="utf-8") for path in (ROOT / scripts[0]).parent.glob("*.py")
            )
            wrong += [
                (block.document, line, word)
                for word in said
                if word.startswith("--") and f'"{word}"' not in text
            ]
    assert not wrong


OF_OTHERS = '"--append-eod" "--torch-backend"'
"""Options of other tools that documents name: Megatron-LM's, uv's."""


def options(name: str) -> set[str]:
    return {flag for parameter in REAL[name].params for flag in parameter.opts} | {"--help"} | OWN


def test_options_in_the_text_exist():
    """Of `recallkit NAME ...` and of `NAME --option` those of the command; an option by itself is
    one of any command, or of a script."""
    every = set().union(*map(options, REAL))
    paths = [
        path for folder in ("examples", "tests/benchmarks") for path in (ROOT / folder).glob("*.py")
    ]
    scripts = "".join(path.read_text(encoding="utf-8") for path in paths)
    wrong = []
    # those tell of what was
    told = [path for path in documents() if path.name not in ("CHANGELOG.md", "log.md")]
    spans = [(path.name, code) for path in told for code in inline(path)]
    for document, code in spans:
        said = re.sub(r"^recallkit ", "", code).split()
        flags = [
            word.partition("=")[0] for word in said if re.fullmatch(r"--?[a-z][\w-]*(?:=.*)?", word)
        ]
        if said and said[0] in REAL:
            wrong += [(document, code, flag) for flag in flags if flag not in options(said[0])]
        elif code.startswith("-"):
            wrong += [
                (document, code, flag)
                for flag in flags[:1]
                if flag not in every and f'"{flag}"' not in scripts + OF_OTHERS
            ]
    assert not wrong


# ------------------------------------------------------------------------------------------- Python


def test_python_calls_what_is_there():
    """Imports are found, and arguments of the package's functions are in their signatures."""
    nodes = [
        node
        for block in BLOCKS
        if block.kind == "python"
        for node in ast.walk(ast.parse(block.text))
    ]
    assert len(nodes) > 100
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module.startswith("recallkit"):
            assert all(
                hasattr(importlib.import_module(node.module), alias.name) for alias in node.names
            )
        if isinstance(node, ast.Call) and re.match(r"recallkit\.\w+$", ast.unparse(node.func)):
            function = getattr(recallkit, node.func.attr)
            named = {each.arg: literal(each.value) for each in node.keywords}
            bound = inspect.signature(function).bind_partial(*map(literal, node.args), **named)
            command = next(
                (
                    each
                    for each in map(declared, COMMANDS)
                    if inspect.unwrap(function) is each.function
                ),
                None,
            )
            taken = {each.name: each for each in command.parameters} if command else {}
            for name, value in bound.arguments.items():
                if name in taken and value is not None:
                    taken[name].take(value)


def literal(node: ast.expr) -> object:
    """What an expression says, None where that is not known before it is run."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
