"""What `train` can be asked for by name: a preset of the papers, a zoo architecture, or a file;
each with its recipe."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from recallkit import config, registry
from recallkit.errors import UserError
from recallkit.models import presets, zoo
from recallkit.models.architecture import ArchitectureConfig
from recallkit.storage.given_files import read_file
from recallkit.training.loop import Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from recallkit.options import TextTrainingOptions

PAPER = Recipe()
"""Zoology's tables 6, 10 and 15, Based's 7 to 10 and 13."""

_HYENA = replace(PAPER, betas=(0.9, 0.98), lowest=1e-5)
TABLES: Mapping[str, Recipe] = {
    "zoology:4": _HYENA,
    "zoology:8": _HYENA,
    "zoology:11": replace(PAPER, betas=(0.9, 0.999), lowest=1e-5),
    "zoology:12": replace(PAPER, betas=(0.9, 0.98), lowest=1e-5, decay="linear", weight_decay=0.05),
    "zoology:13": replace(PAPER, decay="linear"),
    "based:11": replace(PAPER, betas=(0.9, 0.99)),
    "based:12": replace(PAPER, betas=(0.9, 0.99)),
}
"""The tables whose recipe differs from `PAPER`; Zoology's table 4 has hybrids of Hyena, its table 2
those of BaseConv."""


def zoo_recipe(rate: float) -> Recipe:
    """That of the shipped models, at a multiple of its learning rates (docs/zoo.md)."""
    adam = rate * 3e-3
    return Recipe(
        adam,
        0.02 * adam,
        50,
        "linear",
        0.4,
        weight_decay=0.0,
        clip=0.0,
        batch=4,
        muon=rate * 0.02,
        lists=True,
    )


ZOO_RATES = {"attention": 2.0, "rwkv": 2.0, "mamba": 0.5, "hyena": 0.5, "base-conv": 0.25}
"""The multiples that are best on lists, where they are not 1."""


class Trained(NamedTuple):
    """A model to train: its config, whose vocabulary is the tokenizer's in the end, its recipe and
    its sequences."""

    name: str
    config: ArchitectureConfig
    recipe: Recipe
    seq_len: int


def find(model: str, options: TextTrainingOptions) -> Trained:
    """`zoo:NAME`, a preset, or a .toml file with tables model and recipe; the recipe is changed by
    the options.

    Raises UserError for an unknown name, and for a file that is not such a table.
    """
    trained = _find(model, options.seq_len)
    recipe = trained.recipe
    lists = recipe.lists and not options.no_lists
    recipe = replace(recipe, batch=options.batch or recipe.batch, lists=lists)
    rates = options.learning_rates
    if rates is not None:
        rate = rates[0] if isinstance(rates, Sequence) else rates
        scale = rate / recipe.learning_rate
        lowest, muon = recipe.lowest * scale, recipe.muon * scale
        recipe = replace(recipe, learning_rate=rate, lowest=lowest, muon=muon)
    return trained._replace(recipe=recipe)


def _find(model: str, seq_len: int | None) -> Trained:
    if model.endswith(".toml"):
        return _read(Path(model), seq_len or config.SEQ_LEN)
    if model.startswith(zoo.PREFIX):
        name, length = model.removeprefix(zoo.PREFIX), seq_len or zoo.CONTEXT
        architecture = zoo.architecture(name, context=length)
        return Trained(model, architecture, zoo_recipe(ZOO_RATES.get(name, 1.0)), length)
    if not difflib.get_close_matches(model, presets.PRESETS, n=1):  # too many to list
        remedy = "give one of `recallkit models --presets`, zoo:NAME or a .toml file"
        raise UserError("no such preset", where=model, remedy=remedy)
    preset = registry.look_up(presets.PRESETS, model, "preset")
    length = seq_len or presets.CONTEXT
    return Trained(model, presets.preset(model, length), TABLES.get(preset.table, PAPER), length)


def _read(path: Path, seq_len: int) -> Trained:
    """Example: [model] d_model = 256, layers = [{mixer = "mamba"}, {mixer = "attention"}]; [recipe]
    batch = 16."""
    try:
        tables: dict[str, Any] = tomllib.loads(read_file(path).decode())
        _check_names("unknown tables", tables, {"model", "recipe"})
        architecture = ArchitectureConfig.from_json({"vocab_size": 1, **tables["model"]})
        recipe = tables.get("recipe", {})
        _check_names("a recipe has no", recipe, {field.name for field in fields(Recipe)})
        if isinstance(rate := recipe.get("learning_rate"), float):
            recipe.setdefault("lowest", rate / 10)  # as that of the papers
        if isinstance(recipe.get("betas"), list):
            recipe["betas"] = tuple(recipe["betas"])
        return Trained(path.stem, architecture, replace(PAPER, **recipe), seq_len)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        model = "a table model, as config.json has it (docs/train.md)"
        remedy = f"give it {model}, and a table recipe, if any"
        problem = f"not a model to train ({error})"
        raise UserError(problem, where=path, remedy=remedy) from error


def _check_names(problem: str, table: Mapping[str, Any], names: set[str]) -> None:
    """Raises ValueError, as the parser does, for what is not among these names."""
    if unknown := sorted(set(table) - names):
        raise ValueError(f"{problem} {', '.join(unknown)}")
