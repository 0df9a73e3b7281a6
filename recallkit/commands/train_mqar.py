"""Models trained on multi-query associative recall: `train-mqar`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from recallkit import config
from recallkit.commands.adapter import Outcome, command
from recallkit.declarations import File, Option, names, numbers, path
from recallkit.options import MANY_DEVICES, Device, WritingOptions, out_option

if TYPE_CHECKING:
    from recallkit.training.tables import TradeoffTables

_AS_PRESET = "as in the preset"
Whole = int | Sequence[int] | None


def _sizes(what: str) -> Option:
    return Option(what, metavar="NUMBERS", default=_AS_PRESET, least=1, most=1 << 16, joined=True)


def _names(what: str) -> Option:
    return Option(what, metavar="NAMES", default=_AS_PRESET, joined=True)


def _number(what: str, most: int = config.MOST) -> Option:
    return Option(what, least=1, most=most, default=_AS_PRESET)


@dataclass(frozen=True, kw_only=True)
class TrainMqar(WritingOptions):
    """Which models are trained, and on what."""

    preset: Annotated[
        Literal["cpu", "zoology:2", "zoology:6", "based:2", "based:3"],
        Option("The sweep: a small one for a CPU, or that of a paper's figure, for a GPU (docs/train-mqar.md)."),
    ] = "cpu"
    mixers: Annotated[str | Sequence[str] | None, _names("Lines of the preset, or any mixers (see `recallkit models --describe`).")] = None
    widths: Annotated[Whole, _sizes("Widths of the models.")] = None
    feature_dims: Annotated[Whole, _sizes("Dimensions of linear attention's queries and keys.")] = None
    feature_maps: Annotated[str | Sequence[str] | None, _names("Feature maps of linear attention: taylor, elu, relu ...")] = None
    windows: Annotated[Whole, _sizes("Windows of sliding and blocked attention, ids.")] = None
    state_sizes: Annotated[Whole, _sizes("Sizes of the state per channel: Mamba, H3, S4D ...")] = None
    convolutions: Annotated[
        str | Sequence[str] | None,
        _names("Short convolutions: none; mixer, over queries, keys and values; layer, a BaseConv in place of every other mixer."),
    ] = None
    learning_rates: Annotated[
        float | Sequence[float] | None,
        Option("All are tried, and the best counts.", metavar="NUMBERS", default=_AS_PRESET, least=1e-9, most=10, joined=True),
    ] = None
    seq_len: Annotated[int | None, _number("Ids of a training sequence.", config.LONGEST)] = None
    pairs: Annotated[Whole, _sizes("Numbers of pairs in training, of each equally many sequences.")] = None
    test_seq_len: Annotated[int | None, _number("Ids of a test sequence.", config.LONGEST)] = None
    test_pairs: Annotated[Whole, _sizes("Numbers of pairs in the tests.")] = None
    examples: Annotated[int | None, _number("Training sequences.")] = None
    test_examples: Annotated[int | None, _number("Test sequences.")] = None
    vocab: Annotated[int | None, _number("Ids of the vocabulary, half of them values.", 1 << 20)] = None
    power: Annotated[
        float, Option("Exponent of the law of places: 0.1 in Zoology's F.1, 0.01 in its code, 1 for anywhere.", least=0, most=10)
    ] = 0.1
    steps: Annotated[int | None, _number("Steps of a run that does not end early.")] = None
    batch: Annotated[int | None, _number("Sequences a step.")] = None
    layers: Annotated[int | None, _number("Layers of a model.", 64)] = None
    no_mlp: Annotated[bool, Option("Mixers alone, as in Zoology's code; else each layer has an MLP, as in its E.2.")] = False
    stop_above: Annotated[float, Option("Accuracy above which a run ends early.", least=0, most=1)] = 0.99
    seed: Annotated[int, Option("Decides examples, weights and their order.", least=0, most=1 << 19)] = 0
    out: Annotated[File, out_option()] = "train-mqar"
    device: Device = "auto"
    workers: Annotated[
        int,
        Option("Processes that share the runs, one per GPU in turn. The bytes are the same.", least=1, most=1024, panel=MANY_DEVICES),
    ] = 1


@command(
    "train-mqar",
    TrainMqar,
    examples=(
        "recallkit train-mqar --figures figures",
        "recallkit train-mqar --mixers attention,mamba --seq-len 64 --pairs 4,8 --widths 32,64 -o mamba",
    ),
    exports=True,
)
def train_mqar(asked: TrainMqar) -> Outcome["TradeoffTables"]:
    """Train small models on multi-query associative recall, at several learning rates: accuracy against bytes of state; resumes run by run.

    Columns: see `TradeoffTables`.
    """
    from recallkit.training.charts import tradeoff_figures
    from recallkit.training.presets import Choices
    from recallkit.training.sweep import plan_sweep
    from recallkit.training.view import print_tradeoff, shown_tradeoff, tradeoff_json

    rates = asked.learning_rates
    choices = Choices(
        mixers=names(asked.mixers),
        widths=numbers(asked.widths),
        feature_dims=numbers(asked.feature_dims),
        feature_maps=names(asked.feature_maps),
        windows=numbers(asked.windows),
        state_sizes=numbers(asked.state_sizes),
        convolutions=names(asked.convolutions),
        learning_rates=[] if rates is None else [rates] if isinstance(rates, int | float) else rates,
        length=asked.seq_len,
        pairs=numbers(asked.pairs),
        test_length=asked.test_seq_len,
        test_pairs=numbers(asked.test_pairs),
        examples=asked.examples,
        test_examples=asked.test_examples,
        vocab=asked.vocab,
        steps=asked.steps,
        batch=asked.batch,
        layers=asked.layers,
        mlp=not asked.no_mlp,
        power=asked.power,
        seed=asked.seed,
        stop_above=asked.stop_above,
    )
    planned = plan_sweep(asked.preset, choices, path(asked.out))
    tables, folder = planned.run(device=asked.device, workers=asked.workers, force=asked.force)
    return Outcome(
        value=lambda: tables,
        show=lambda: print_tradeoff(tables, folder),
        json=lambda: tradeoff_json(tables, folder),
        exports=lambda: [(tables, shown_tradeoff(tables), folder)],
        figures=lambda: tradeoff_figures(tables),
    )
