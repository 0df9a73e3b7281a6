"""All stages on the built-in text: `demo`."""

from typing import TYPE_CHECKING

from recallkit.commands.adapter import Outcome, command
from recallkit.options import ForceOptions

if TYPE_CHECKING:
    from recallkit.attribution.tables import GapTables


@command("demo", ForceOptions, examples=("recallkit demo",), exports=True)
def demo(asked: ForceOptions) -> Outcome["GapTables"]:
    """Run the whole pipeline on the built-in text: slice it, score the zoo's models, find where their gaps lie, and write a page."""
    from recallkit import attribution, builtin, scoring
    from recallkit.attribution import comparison
    from recallkit.attribution.charts import figures
    from recallkit.attribution.view import gap_json, gap_tables, print_gap
    from recallkit.display import console
    from recallkit.report.write import write_report
    from recallkit.slicing.view import manifest_of, print_slices, slices_json

    slices = builtin.slices(force=asked.force)
    reference, *models = builtin.MODELS
    for model in builtin.MODELS:
        scoring.score(model, slices, force=asked.force)
    tables = attribution.gap(reference, models, slices, force=asked.force)
    out = attribution.gap_path(slices, reference, models)
    page = write_report(out, builtin.page()).page
    sliced = manifest_of(slices)

    def show() -> None:
        print_slices(slices, sliced)
        print_gap(tables, sliced, out)
        console.print_line("The same as a page, with the text token by token (`recallkit report --open` opens it):")
        console.print_page(page)

    return Outcome(
        value=lambda: tables,
        show=show,
        json=lambda: {"slices": slices_json(slices, sliced), "gap": gap_json(tables, sliced, out), "page": str(page)},
        exports=lambda: [(tables, gap_tables(tables, sliced, out), out)],
        figures=lambda: figures(comparison.read_comparison(out, slices)),
    )
