"""Multi-query associative recall: `mqar`."""

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated

from recallkit.commands.adapter import Outcome, command
from recallkit.declarations import Argument, File, numbers, path
from recallkit.options import MODEL_SYNTAX, AnyModels, LogOptions, MqarOptions, out_option

if TYPE_CHECKING:
    from recallkit.mqar.tables import MqarTables


@dataclass(frozen=True)
class Mqar(MqarOptions, LogOptions):
    """Which models are asked."""

    models: Annotated[
        AnyModels | None,
        Argument(
            f"Models to ask (see `recallkit models`), {MODEL_SYNTAX}; the reference first; the trained ones of the zoo if none.",
            metavar="MODEL",
        ),
    ] = None
    _: KW_ONLY
    out: Annotated[File | None, out_option(default="mqar; a folder in the cache without MODEL")] = None


@command(
    "mqar",
    Mqar,
    examples=(
        "recallkit mqar zoo:attention zoo:mamba --pairs 4,16,64 --figures figures",
        "recallkit mqar path/to/model --seq-len 512 --pairs 16,64 -o mqar",
    ),
    exports=True,
)
def eval_mqar(asked: Mqar) -> Outcome["MqarTables"]:
    """Multi-query associative recall in a model's own vocabulary, without training: accuracy and perplexity by number of pairs; resumes.

    The first model is the reference. Columns: see `MqarTables`.
    """
    from recallkit import builtin
    from recallkit.mqar.charts import mqar_figures
    from recallkit.mqar.run import plan_mqar, with_usual_size
    from recallkit.mqar.view import mqar_json, print_mqar, shown_mqar

    folder = builtin.results_folder("mqar", path(asked.out), is_builtin=asked.models is None)
    sized = with_usual_size(asked, is_zoo=asked.models is None)
    tables, compared = plan_mqar(builtin.named_models(asked.models), numbers(sized.pairs), folder, sized).run()
    return Outcome(
        value=lambda: tables,
        show=lambda: print_mqar(tables, compared, folder),
        json=lambda: {"out": str(folder), **mqar_json(tables, compared)},
        exports=lambda: [(tables, shown_mqar(tables), compared)],
        figures=lambda: mqar_figures(tables.mqar, tables.by_distance),
    )
