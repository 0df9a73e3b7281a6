"""What recall gain measures: beside interventions, synthetic tasks, and models with known answers.

    python tests/benchmarks/validity.py --out FOLDER            # 70 minutes of one core; resumes
    python tests/benchmarks/validity.py --out FOLDER --quick    # half a minute: whether it works

Prints the tables of docs/validity.md and draws its picture, FOLDER/validity.svg. Models of the
family are trained to FOLDER/family, unless they are there. With $RECALLKIT_TEST_DATA, a folder of
other text and tokenizers, these are measured, too.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

sys.path.insert(0, str(Path(__file__).parents[2]))

import recallkit
from recallkit.display import charts
from recallkit.display.figure_files import WIDTHS, save_figures
from recallkit.models.control import CACHE_WEIGHT
from recallkit.text.tokenizers import BUILTIN
from tests.benchmarks import harness
from tests.known_truth import PATH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONTEXT, LONG, SHORT, GPT2 = 256, 2048, 96, 128
"""Tokens of a sequence: as the zoo was trained; longer; shorter; GPT-2's, about SHORT of ours."""
MAX_COUNT = 5
"""The training count up to which a repeated bigram is an AR hit, as in the demo."""
TEXT = "demo:validation"
HITS, ALL = pl.col("ar_hit"), pl.lit(value=True)
CONTROLS = {"recall": "control:recall", "bigram": "control:bigram"}
TASKS = ("mqar", "distractors", "copying")


ZOO = (
    *("attention", "base-conv-selective", "hybrid", "based", "retnet"),
    *("delta", "mamba", "hyena", "rwkv", "base-conv"),
)
READERS = ("attention", "hybrid", "based", "retnet", "delta", "mamba", "hyena")
TRUTHS = (
    *("bigram_cache", "unigram_cache", "trigram_cache", "presence", "recent"),
    *("window", "bigram", "worse", "worse_at_rare"),
)


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    zoo: Sequence[str] = ZOO
    readers: Sequence[str] = READERS
    """Those of the zoo that read other texts."""
    truths: Sequence[str] = TRUTHS
    sizes: Sequence[str] = ("window-256", "window-32", "window-8", "features-16", "features-8")
    """Members of the family with two seeds, the reference first."""
    less_trained: Sequence[str] = ("window-256", "window-32", "features-16")
    """The same after less training."""
    single: Sequence[str] = ("window-64", "window-16", "features-4")
    """Those with one seed."""
    tokens: Sequence[str] = ("1500k", "300k")
    """Of training text: of all members, and of the less trained."""
    seeds: Sequence[int] = (0, 1)
    lists: bool = True
    sample: str | None = None
    """Tokens of the demo's text; all if not given."""
    other_sample: str = "60k"
    samples: int = 1000
    sequences: int = 50
    pairs: Sequence[int] = (4, 8, 16, 32, 64)
    copied: Sequence[int] = (16, 32, 64, 127)


QUICK = Size(
    zoo=("attention", "mamba"),
    readers=("attention", "mamba"),
    truths=("bigram_cache", "presence"),
    sizes=("window-256", "window-8"),
    less_trained=(),
    single=(),
    tokens=("8k", "8k"),
    seeds=(0,),
    lists=False,
    sample="20k",
    other_sample="4k",
    samples=40,
    sequences=2,
    pairs=(4,),
    copied=(16,),
)

# ------------------------------------------------------------------ figures from labels and NLLs


def nll(model: str) -> pl.Expr:
    """NLLs of a model in `recallkit.tokens`, in nats."""
    return pl.col(f"nll_{model}").cast(pl.Float64)


def probability(model: str) -> pl.Expr:
    """p(token)."""
    return (-nll(model)).exp()


def gained(column: pl.Expr) -> pl.Expr:
    """A column of tokens less that at the first occurrences of their bigrams in the sequence."""
    first = pl.int_range(pl.len()) - pl.col("first_distance").fill_null(0)
    return column - column.gather(first)


def recall_gain(model: str, rows: pl.Expr) -> pl.Expr:
    """The mean over `rows`, in points."""
    return 100 * gained(probability(model)).filter(rows).mean()


def retained(model: str, reference: str, rows: pl.Expr) -> pl.Expr:
    """The model's recall gain on `rows` over the reference's, in per cent."""
    return 100 * recall_gain(model, rows) / recall_gain(reference, rows)


def gap_share(model: str, reference: str, rows: pl.Expr, among: pl.Expr = ALL) -> pl.Expr:
    """The share, in per cent, of the gap on the rows `among` that `rows` of them carry."""
    gap = nll(model) - nll(reference)
    return 100 * gap.filter(rows & among).sum() / gap.filter(among).sum()


def rank_correlation(table: pl.DataFrame, one: str, other: str) -> float:
    """Spearman's, over rows where both are known."""
    known = table.drop_nulls([one, other])
    return known.select(pl.corr(one, other, method="spearman")).item()


# ---------------------------------------------------------------------------------- measurements


def make_slices(folder: Path, text: Any = TEXT, **options: Any) -> Path:
    """A slice directory of a text, by the zoo's counts unless others are given; returns it."""
    chosen = {"counts": recallkit.zoo_counts(), "seq_len": CONTEXT, **options}
    recallkit.slice(text, folder, max_count=MAX_COUNT, **chosen)
    return folder


def causal_recall(specs: Sequence[str], slices: Path, out: Path, size: Size) -> pl.DataFrame:
    """What `intervene` finds on AR hits, in points and in nats."""
    options = {"slice": "ar_hit", "samples": size.samples, "counts": recallkit.zoo_counts()}
    table = recallkit.intervene(specs, slices=slices, out=out, **options).intervene
    return table.select("model", causal=100 * pl.col("points"), causal_nats="recall")


def compare(specs: Sequence[str], slices: Path, out: Path, size: Size) -> pl.DataFrame:
    """A row per model, the reference first: shares and accuracies in per cent, gains in points."""
    table = recallkit.gap(specs[0], specs[1:], slices=slices, out=out / "gap").gap
    hits, total = (table.filter(source="ALL", slice=name) for name in ("ar_hit", "all"))
    models = hits.select(
        "model",
        gap_share=pl.when(~pl.col("void")).then(100 * pl.col("gap_share")),
        retained=100 * pl.col("retained"),
        gain=100 * pl.col("gain_model"),
        perplexity=total["ppl_model"],
        lead=-total["delta_nll"],
    )
    reference = hits[:1].select(
        model="reference",
        retained=pl.lit(100.0),
        gain=100 * pl.col("gain_reference"),
        perplexity=total["ppl_reference"][0],
        lead=pl.lit(0.0),
    )
    compared = pl.concat([reference, models], how="diagonal")
    columns = [causal_recall(specs, slices, out / "causal", size)]
    columns += [accuracy(task, specs, out / "mqar", size) for task in TASKS]
    for column in columns:
        compared = compared.join(column, on="model", maintain_order="left")
    return compared


def accuracy(task: str, specs: Sequence[str], out: Path, size: Size) -> pl.DataFrame:
    """A task's column, in per cent: the mean over numbers of pairs, or over lengths of a copy."""
    lengths = {CONTEXT: [pairs for pairs in size.pairs if task == "mqar" or pairs <= CONTEXT // 8]}
    if task == "copying":
        lengths = {2 * copied + 2: [copied] for copied in size.copied}
    tables = []
    for length, pairs in lengths.items():
        options = {"task": task, "seq_len": length, "pairs": pairs, "samples": size.sequences}
        tables.append(recallkit.eval_mqar(specs, out=out, **options).mqar)
    mean = (100 * pl.col("accuracy").mean()).alias(task)
    return pl.concat(tables).group_by("model").agg(mean)


def controls(slices: Path) -> pl.DataFrame:
    """Models that differ from `control:recall` in the weight of its cache, or in all but the cache.

    They are computed from the NLLs of two control models: a mixture's probability is linear in its
    weights. `noise`: the share of the bigrams' probability that is spread over all ids.
    """
    recallkit.score(list(CONTROLS.values()), slices=slices, counts=recallkit.zoo_counts())
    tokens = recallkit.tokens(slices, CONTROLS).collect()
    base, full = probability("bigram"), probability("recall")
    # 1 or 0: whether the cache completes the key with this token; the base's where it has no key.
    cache = (full - base) / CACHE_WEIGHT + base
    has_key = full != base
    vocab = 1 + max(tokens["prev_token"].max(), tokens["token"].max())
    weights = (0.0, 0.05, 0.1, 0.2, 0.3)
    mixtures = [(weight, 0.0, base + weight * (cache - base)) for weight in weights]
    for noise in (0.25, 0.5, 0.75):
        known = (1 - noise) * base + noise / vocab
        mixed = known + CACHE_WEIGHT * (cache - known)
        mixtures.append((CACHE_WEIGHT, noise, pl.when(has_key).then(mixed).otherwise(known)))
    rows = []
    for weight, noise, mixture in mixtures:
        figures = tokens.with_columns(nll_model=-mixture.log()).select(
            perplexity=nll("model").mean().exp(),
            gap_share=gap_share("model", "recall", HITS),
            retained=retained("model", "recall", HITS),
        )
        row = {"weight": f"{weight:g}", "noise": f"{noise:g}"}
        row["known"] = 100 * weight / CACHE_WEIGHT
        rows.append(row | figures.row(0, named=True))
    return pl.DataFrame(rows)


def known_truths(slices: Path, out: Path, size: Size) -> pl.DataFrame:
    """Recall gain beside causal recall, in points and nats, where it is known what is recalled."""
    specs = [f"{name}={PATH}:{name}" for name in size.truths]
    causal = causal_recall(specs, slices, out / "truths", size)
    tokens = recallkit.tokens(slices, dict(zip(size.truths, specs, strict=True))).collect()
    rows = []
    for name in size.truths:
        nats = -gained(nll(name)).filter(HITS).mean()
        gains = tokens.select(gain=recall_gain(name, HITS), gain_nats=nats)
        rows.append({"model": name, **gains.row(0, named=True)})
    columns = ("model", "gain", "causal", "gain_nats", "causal_nats")
    return pl.DataFrame(rows).join(causal, on="model", maintain_order="left").select(columns)


def other_texts(slices: Path, out: Path, size: Size) -> pl.DataFrame:
    """What is retained of attention's recall, and the gap share in brackets, by text and hits."""
    repeated, even = pl.col("repeated"), pl.col("document") % 2 == 0
    rows = []
    for count in (1, MAX_COUNT, 20):
        hits = repeated & (pl.col("train_count") <= count)
        rows.append((f"training count up to {count}", slices, hits, ALL))
    rows.append(("all repeated bigrams", slices, repeated, ALL))
    rows += [("even documents", slices, HITS, even), ("odd documents", slices, HITS, ~even)]
    for name, folder in text_folders(out, size).items():
        specs = [f"zoo:{model}" for model in size.readers]
        recallkit.score(specs, slices=folder, model_tokenizer=BUILTIN)
        rows.append((name, folder, HITS, ALL))
    return pl.DataFrame([{"": name, **text_row(size.readers, *row)} for name, *row in rows])


def text_folders(out: Path, size: Size) -> dict[str, Path]:
    """Slices of shorter sequences, of another tokenizer and of another text, by what they are."""
    short = make_slices(out / "short", seq_len=SHORT, sample=size.sample)
    folders = {f"{SHORT} tokens of context": short}
    if data := os.environ.get("RECALLKIT_TEST_DATA"):
        tokenizer, counts = Path(data) / "tokenizers/gpt2.json", out / "gpt2.duckdb"
        recallkit.count("demo:train", counts, tokenizer=tokenizer, limit_tokens="3M")
        options = {"tokenizer": tokenizer, "counts": counts, "seq_len": GPT2, "sample": size.sample}
        folders[f"{GPT2} tokens of GPT-2's"] = make_slices(out / "gpt2", **options)
        text = Path(data) / "corpus/valid.jsonl.zst"
        folders["other text"] = make_slices(out / "other", text, sample=size.other_sample)
    return folders


def text_row(models: Sequence[str], slices: Path, hits: pl.Expr, among: pl.Expr) -> dict[str, str]:
    """The number of AR hits, the reference's recall gain, what others retain (their gap share)."""
    tokens = recallkit.tokens(slices, {name: f"zoo:{name}" for name in models}).collect()
    reference, *others = models
    rows = hits & among
    number, gain = tokens.select(rows.sum().alias("n"), recall_gain(reference, rows)).row(0)
    row = {"AR hits": f"{number:,}", f"{reference}, points": f"{gain:.1f}"}
    for name in others:
        share = gap_share(name, reference, hits, among).alias("share")
        figures = tokens.select(retained(name, reference, rows), share).row(0)
        row[name] = f"{cell(figures[0], 0)} ({cell(figures[1], 0)})"
    return row


def retained_far(specs: Sequence[str], out: Path, size: Size) -> pl.DataFrame:
    """What members of the family retain where sequences have 2,048 tokens, in per cent."""
    names = [spec.partition("=")[0] for spec in specs]
    slices = make_slices(out / "long", seq_len=LONG, sample=size.sample)
    recallkit.score(specs, slices=slices)
    tokens = recallkit.tokens(slices, dict(zip(names, specs, strict=True))).collect()
    figures = tokens.select(**{name: retained(name, names[0], HITS) for name in names})
    return pl.DataFrame({"model": names, f"in {LONG:,}": figures.row(0)})


def means(members: pl.DataFrame) -> pl.DataFrame:
    """A row per kind of member: the number of its seeds, and the means over them."""
    kinds = members.with_columns(pl.col("model").str.replace(r"-seed\d+$", ""))
    figures = pl.all().exclude("model").mean()
    return kinds.group_by("model").agg(pl.len().alias("seeds"), figures)


def printed() -> pl.DataFrame:
    """Rank correlations of tasks with minus perplexities, of the models of two tables of Based."""
    columns = ("all", "ar", "swde", "fda", "squad")
    table_1 = recallkit.paper_table("based:1").rename({"squad_f1": "squad"})
    tables = table_1.select(columns), recallkit.paper_table("based:6").select(columns)
    models = pl.concat(tables).drop_nulls().unique()
    rows = []
    for task in columns[2:]:
        ranks = {name: -rank_correlation(models, task, name) for name in ("ar", "all")}
        rows.append({"task": task, "models": models.height, **ranks})
    return pl.DataFrame(rows)


# ------------------------------------------------------------------------------------ the family

MODEL = """
[model]
d_model = 128
mlp = "swiglu"
mlp_width = 288
layers = [
    {{ mixer = "gated_short_conv" }},
    {{ mixer = "{mixer}", options = {{ num_heads = 4, short_conv = 3, {options} }} }},
]

[recipe]
learning_rate = 3e-3
lowest = 6e-5
warm_up = 50
decay = "linear"
falling = 0.4
weight_decay = 0.0
clip = 0.0
batch = 4
muon = 0.02
lists = {lists}
"""
"""The recipe is the zoo's."""
MIXERS = {
    "window": ("sliding_window", "rope_fraction = 0.5, qk_norm = true, window = {}"),
    "features": ("linear_attention", 'feature_map = "taylor", feature_dim = {}'),
}


def family(out: Path, size: Size) -> list[str]:
    """NAME=CHECKPOINT of models that differ in what one layer can recall, and in what they read.

    Those that are not there are trained.
    """
    out.mkdir(parents=True, exist_ok=True)
    full, less = size.tokens
    members = [(name, full, seed) for seed in size.seeds for name in size.sizes]
    members += [(name, less, seed) for seed in size.seeds for name in size.less_trained]
    members += [(name, full, size.seeds[0]) for name in size.single]
    specs = []
    for name, tokens, seed in members:
        folder = out / (f"{name}-seed{seed}" if tokens == full else f"{name}-{tokens}-seed{seed}")
        if not any(folder.glob("checkpoint-*/model.safetensors")):
            description = describe(name, out, lists=size.lists)
            options = {"tokens": tokens, "seq_len": CONTEXT, "seed": seed, "device": "cpu"}
            recallkit.train(description, "demo:train", out=folder, **options)
        specs.append(f"{folder.name}={next(folder.glob('checkpoint-*'))}")
    return specs


def describe(name: str, out: Path, *, lists: bool) -> Path:
    """The file from which a member is trained, such as that of `window-8`."""
    kind, number = name.split("-")
    mixer, options = MIXERS[kind]
    text = MODEL.format(mixer=mixer, options=options.format(number), lists=str(lists).lower())
    path = out / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path


# ---------------------------------------------------------------------------------------- output


def show(title: str, table: pl.DataFrame, digits: int = 1) -> None:
    """Prints a table in Markdown."""
    print(f"\n{title}\n\n{harness.markdown(table.columns, is_header=True)}")
    for row in table.rows():
        print(harness.markdown([cell(value, digits) for value in row]))


def cell(value: object, digits: int) -> str:
    """A value as the page has it; `+ 0.0` makes zero of minus zero."""
    if value is None:
        return "–"
    is_real = isinstance(value, float)
    return f"{round(value, digits) + 0.0:.{digits}f}" if is_real else str(value)


RANKED = {"retained": "retained", "gap share": "gap_share", "minus gap": "lead"}


def show_ranks(title: str, table: pl.DataFrame) -> None:
    """Prints rank correlations of what `gap` says with what else is known of the models."""
    rows = []
    for name, measure in RANKED.items():
        known = {column: rank_correlation(table, measure, column) for column in ("causal", *TASKS)}
        rows.append({"": name, **known})
    show(f"{title}, {table.height} models", pl.DataFrame(rows), 2)


def relative(table: pl.DataFrame, column: str) -> pl.DataFrame:
    """The models but the first, with `known`: the column in per cent of the first one's."""
    return table.with_columns(known=100 * pl.col(column) / pl.col(column).first())[1:]


KINDS = {"retained": "retained", "gap_share": "gap share"}


def points_of(panel: str, table: pl.DataFrame) -> list[dict[str, Any]]:
    """Points of a panel: what is retained, and the gap share, against `known` recall, in per
    cent."""
    finite = pl.col("x").is_finite() & pl.col("y").is_finite()
    long = table.unpivot(list(KINDS), index="known", variable_name="kind", value_name="y")
    points = long.rename({"known": "x"}).drop_nulls().filter(finite)
    return points.with_columns(pl.col("kind").replace(KINDS), panel=pl.lit(panel)).to_dicts()


def draw(panels: Mapping[str, pl.DataFrame], out: Path) -> None:
    """The picture: equal parts of recall are on its lines."""
    points = [point for panel, table in panels.items() for point in points_of(panel, table)]
    names = list(KINDS.values())
    legend = charts.legend_of(names)
    colours = {"domain": names, "range": [charts.Colour("m0"), charts.Colour("hits")]}
    shapes = {"domain": names, "range": ["circle", "diamond"]}
    ticks = {"values": list(range(0, 126, 25))}
    axes = {
        "x": charts.number("x", "known recall, % of the reference's", axis=ticks, domain=[-5, 130]),
        "y": charts.number("y", "retained, and gap share, %", axis=ticks, domain=[-10, 110]),
    }
    kinds = {
        "color": charts.column("kind", scale=colours, legend=legend),
        "shape": charts.column("kind", scale=shapes, legend=legend),
    }
    equal = charts.layer("line", channels=axes, color="rule", strokeWidth=1.5)
    equal["data"] = {"values": [{"x": 0, "y": 0}, {"x": 100, "y": 100}]}
    dots = charts.layer(
        "point", channels=axes | kinds, filled=True, size=36, opacity=0.8, clip=True
    )
    spec = charts.plot(points, equal, dots, panels=list(panels), columns=3, width=170, height=170)
    caption = "What is retained, and the gap share of AR hits, against what is known of recall."
    figure = charts.Figure("validity", "Retained and known recall", caption, spec)
    save_figures([figure], out, WIDTHS["text"])


COLUMNS = ("model", "perplexity", "gap_share", "retained", "gain", "causal", *TASKS)


def main() -> None:
    args = harness.parse(__doc__, {"--out": "validity", "--quick": False})
    out, size = Path(args.out), QUICK if args.quick else Size()
    slices = make_slices(out / "slices", sample=size.sample)
    weights = controls(slices)
    show("Control models", weights)
    show("Models with known answers", known_truths(slices, out, size), 2)
    zoo = compare([f"zoo:{name}" for name in size.zoo], slices, out / "zoo", size)
    members = family(out / "family", size)
    sizes = compare(members, slices, out / "members", size)
    show("The zoo", zoo.select(COLUMNS).sort("gain", descending=True))
    show_ranks("The zoo: rank correlations", zoo)
    far = retained_far(members, out, size)
    sizes = sizes.join(far, on="model", maintain_order="left")
    kinds = means(sizes).select(COLUMNS[0], "seeds", *COLUMNS[1:], far.columns[1])
    show("The family", kinds.sort("gain", descending=True))
    show_ranks("The family: rank correlations", sizes)
    is_full = ~pl.col("model").str.contains(f"-{size.tokens[1]}-")
    show_ranks("Those of all training tokens alone", sizes.filter(is_full))
    show("Texts", other_texts(slices, out, size))
    show("Based, tables 1 and 6", printed(), 2)
    panels = {
        "controls: weight of the cache": weights,
        "zoo: causal recall": relative(zoo, "causal"),
        "family: copying": relative(sizes, "copying"),
    }
    draw(panels, out)


if __name__ == "__main__":
    main()
