"""One sequence as text: `tokens`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recallkit.commands.app import app
from recallkit.options import Json, Slices
from recallkit.report.token_view import Which

if TYPE_CHECKING:
    from recallkit.attribution.comparison import Comparison


@app.command()
def tokens(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]",
            help="The folder of a comparison (`recallkit gap`), or a slice directory; the embedded one if not given.",
            show_default=False,
        ),
    ] = None,
    sequence: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Number of the sequence, from 0; the one where the models differ most if not given.", show_default=False
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The model; that of the comparison which is farthest behind on AR hits if not given.", show_default=False
        ),
    ] = None,
    reference: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model beside it; the comparison's reference if not given.", show_default=False)
    ] = None,
    slices: Slices = None,
    which: Annotated[
        Which | None,
        typer.Option(
            "--filter", help="The tokens that are listed, and alone are marked in the text.  \\[default: ar_hit]", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the text of one sequence, each token marked: is it an AR hit, and which of two models was right?"""
    from recallkit.display import console
    from recallkit.report.sequence import open_excerpts
    from recallkit.report.token_view import ShownSequence, print_tokens, tokens_json

    directory, comparison = _find(folder, slices, is_named=model is not None and reference is not None)
    reference, model = _models(comparison, reference, model)
    excerpts = open_excerpts(directory, [name for name in (reference, model) if name is not None])
    number = excerpts.most_telling() if sequence is None else sequence
    rows = excerpts.read(number)
    shown = ShownSequence(
        number,
        excerpts.num_sequences,
        rows,
        excerpts.text_of(rows["prev_token"].head(1))[0],
        reference,
        model,
        has_counts=excerpts.has_counts,
        is_chosen=sequence is None,
    )
    if as_json:
        console.print_json({"slices": str(directory), **tokens_json(shown, which)})
    else:
        print_tokens(shown, which)


def _find(folder: Path | None, slices: Path | None, *, is_named: bool) -> tuple[Path, Comparison | None]:
    """The slice directory, and the comparison that names models: none needed where both `is_named`, nor where there is none.

    Raises UserError where there is nothing to show, or several comparisons to choose from.
    """
    from recallkit import attribution, builtin
    from recallkit.attribution.comparison import find_comparison, read_comparison
    from recallkit.errors import UserError

    if folder is None and slices is None:
        slices = builtin.slices()
        folder = attribution.gap_path(slices, builtin.MODELS[0], builtin.MODELS[1:])
        return slices, read_comparison(folder) if (folder / "gap.parquet").is_file() and not is_named else None
    folder = slices if folder is None else folder
    assert folder is not None
    is_comparison = (folder / "gap.parquet").is_file()
    if not is_comparison and (folder / "tokens.parquet").is_file():
        has_comparison = any((folder / "gap").glob("*/gap.parquet"))
        # It gives no more than names here: labels may have been made again since.
        return folder, read_comparison(find_comparison(folder)) if has_comparison and not is_named else None
    if not is_comparison:
        raise UserError("neither a comparison nor slices", where=folder, remedy="name a directory of `recallkit gap` or `recallkit slice`")
    comparison = read_comparison(folder, slices)
    if comparison.slices is None:
        raise UserError("the slices that were compared are not around it", where=folder, remedy="name them with --slices DIR")
    return comparison.slices, comparison


def _models(comparison: Comparison | None, reference: str | None, model: str | None) -> tuple[str | None, str | None]:
    """The reference and the model, as given, else of the comparison. A reference alone is a model alone."""
    from recallkit.errors import UserError

    if comparison is not None:
        reference = reference or comparison.reference
        others = [name for name in comparison.models if name != reference] or [comparison.reference]
        model = model or max(others, key=lambda name: _behind(comparison, name))
    if reference is not None and reference == model:
        raise UserError("given twice", where=model, remedy="name another --model or --reference")
    return (reference, model) if model is not None else (None, reference)


def _behind(comparison: Comparison, model: str) -> float:
    """How far a model is behind the reference on AR hits, in nats a token."""
    row = comparison.totals.get((model, "ar_hit"))
    return 0.0 if row is None or row["delta_nll"] is None else float(row["delta_nll"])
