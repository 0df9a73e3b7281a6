"""Multi-query associative recall: `mqar`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from recallkit import config
from recallkit.commands import options as opt
from recallkit.commands.adapter import Argument, File, Option, Outcome, command

if TYPE_CHECKING:
    from recallkit.mqar.tables import MqarTables


@command(
    "mqar",
    examples=(
        "recallkit mqar zoo:attention zoo:mamba --pairs 4,16,64 --figures figures",
        "recallkit mqar path/to/model --seq-len 512 --pairs 16,64 -o mqar",
    ),
    exports=True,
)
def eval_mqar(
    models: Annotated[
        opt.AnyModels | None,
        Argument(
            f"Models to ask (see `recallkit models`), {opt.MODEL_SYNTAX}; the reference first; the trained ones of the zoo if none.",
            metavar="MODEL",
        ),
    ] = None,
    *,
    seq_len: Annotated[int | None, Option("Ids of a sequence.", least=4, most=config.LONGEST, default="1024; 256 for the zoo")] = None,
    pairs: Annotated[
        int | Sequence[int] | None,
        Option(
            "Numbers of key-value pairs, joined with commas.",
            metavar="NUMBERS",
            default="16,32,64,128,256; 4,8,16,32,64 for the zoo",
            least=1,
            most=config.LONGEST,
            joined=True,
        ),
    ] = None,
    samples: Annotated[
        int | None, Option("Sequences for each number of pairs.", least=1, most=config.LONGEST, default="1000; 50 for the zoo")
    ] = None,
    power: Annotated[
        float,
        Option("Of the law by which queries are placed: near the pairs at 0.01 (Zoology's code; F.1 trains with 0.1), anywhere at 1."),
    ] = 0.01,
    seed: Annotated[int, Option("Decides keys, values and places.", least=0, most=config.MOST)] = 0,
    out: Annotated[
        File | None,
        opt.out(default="mqar; a folder in the cache without MODEL"),
    ] = None,
    counts: opt.Counts = None,
    model_tokenizer: opt.EvaluatedTokenizer = None,
    device: opt.Device = "auto",
    dtype: opt.EvaluatedDtype = "float32",
    batch_tokens: opt.BatchTokens = None,
    trust_remote_code: opt.TrustRemoteCode = False,
    log_to: opt.LogTo = None,
    force: opt.Force = False,
) -> Outcome["MqarTables"]:
    """Multi-query associative recall in a model's own vocabulary, without training: accuracy and perplexity by number of pairs; resumes.

    The first model is the reference. Columns: see `MqarTables`.
    """
    from recallkit import builtin
    from recallkit.mqar.charts import mqar_figures
    from recallkit.mqar.run import MqarOptions, choose_size, plan_mqar
    from recallkit.mqar.view import mqar_json, print_mqar, shown_mqar

    size = choose_size(seq_len, None if pairs is None else opt.numbers(pairs), samples, is_zoo=models is None)
    folder = builtin.results_folder("mqar", opt.path(out), is_builtin=models is None)
    options = MqarOptions(
        counts=opt.path(counts),
        device=device,
        dtype=dtype,
        tokenizer=model_tokenizer,
        trust_remote_code=trust_remote_code,
        force=force,
        length=size.length,
        samples=size.samples,
        power=power,
        seed=seed,
        batch_tokens=opt.amount(batch_tokens),
    )
    tables, compared = plan_mqar(opt.models(models, builtin.MODELS), size.pairs, folder, options).run()
    return Outcome(
        value=lambda: tables,
        show=lambda: print_mqar(tables, compared, folder),
        json=lambda: {"out": str(folder), **mqar_json(tables, compared)},
        exports=lambda: [(tables, shown_mqar(tables), compared)],
        figures=lambda: mqar_figures(tables.mqar, tables.by_distance),
    )
