"""The stages as functions for Python: what `import recallkit` gives, with the names and the options of the command line.

Each does what the command of its name does, finds finished work again, goes on with interrupted work, and returns polars
frames in place of what is printed. Arguments are the command line's options (`--max-count` is `max_count`); paths may be
`str` or `Path`, numbers of tokens also `"10M"`, one source or one model also a plain string. Whatever a user can mend
is a `UserError`; nothing prints results and nothing exits. Torch, lm-eval and the charts are imported by the functions
that need them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import index
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from recallkit import attribution, builtin, config, counting, scoring
from recallkit.attribution.comparison import Comparison
from recallkit.attribution.comparison import read_comparison as _read_comparison
from recallkit.counting.run import CountingOptions
from recallkit.errors import UserError
from recallkit.storage import artifacts
from recallkit.text.open_text import TextOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    import altair as alt

    from recallkit.attribution.published import PublishedGap
    from recallkit.attribution.tables import GapTables
    from recallkit.display.chart_theme import Figure
    from recallkit.mqar.tables import MqarTables
    from recallkit.profiling.tables import ProfileTables
    from recallkit.recall.run import RecallOptions
    from recallkit.recall.tables import RecallTables

    Chart = alt.Chart | alt.LayerChart | alt.HConcatChart | alt.VConcatChart | alt.ConcatChart | alt.FacetChart

File = str | PathLike[str]
Boundary = Literal["pack", "document"]
Dtype = Literal["float32", "bfloat16", "float16"]

BOUNDS = {
    "max_count": (0, config.MOST),
    "seq_len": (1, config.LONGEST),
    "x_min": (1, config.LONGEST),
    "context": (1, config.LONGEST),
    "stride": (1, config.LONGEST),
    "workers": (1, 1024),
    "order": (2, 5),
    "batch_size": (1, 4096),
    "limit": (1, config.MOST),
    "length": (4, config.LONGEST),
    "samples": (1, config.LONGEST),
    "seed": (0, config.MOST),
    "task_version": (0, 1),
}
"""Smallest and largest number that an argument takes, where the work itself does not tell; those of the command line."""


# ----------------------------------------------------------------------------------------------------------- arguments


def _path(given: File) -> Path:
    return Path(fspath(given))


def _optional(given: File | None) -> Path | None:
    return None if given is None else _path(given)


def _several(given: File | Sequence[File] | None) -> list[str]:
    """One name or many as a list of them: a string is one name and never its letters."""
    if given is None:
        return []
    return [fspath(given)] if isinstance(given, str | PathLike) else [fspath(each) for each in given]


def _numbers(name: str, given: Any) -> list[int]:
    """One number or many, of whatever kind, as a list of them. Raises UserError for what is no whole number."""
    many = [] if given is None else given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    try:
        return [index(each) for each in many]
    except TypeError as error:
        raise UserError(f"{given!r} is no whole number", where=name) from error


def _amount(name: str, given: int | str | None) -> int | None:
    """A number of tokens, such as 10M. Raises UserError where it is none."""
    if given is None:
        return None
    try:
        return config.parse_amount(str(given))
    except (ValueError, OverflowError) as error:
        raise UserError(
            f"{given!r} is no number of tokens", where=name, remedy='give a whole number such as 1250, "10M" or "1.5B"'
        ) from error


def _check_bounds(**given: int | None) -> None:
    """Raises UserError for a number outside its BOUNDS, and for what is no number: these are kept in files as they are."""
    for name, number in given.items():
        low, high = BOUNDS[name]
        if number is not None and not isinstance(number, int):
            raise UserError(f"{number!r} is no int", where=name)
        if number is not None and not low <= number <= high:
            raise UserError(f"{number} is out of bounds", where=name, remedy=f"give {low} to {high}")


def _check_choice(name: str, given: str, choices: Sequence[str]) -> None:
    if given not in choices:
        raise UserError(f"{given!r} is none of {', '.join(choices)}", where=name)


def _text(
    sources: File | Sequence[File] | None,
    tokenizer: File | None,
    end_token: str | None,
    boundary: str,
    limit_tokens: int | str | None,
    text_field: str | None,
    source_field: str | None,
    skip_bad: bool,
) -> TextOptions:
    """The text that is meant; without sources the embedded one, which `embedded` fills in with its split."""
    _check_choice("boundary", boundary, ("pack", "document"))
    limit = _amount("limit_tokens", limit_tokens)
    named = tuple(_several(sources))
    if sources is not None and not named:
        raise UserError("no source is named", where="sources", remedy="name one, or leave it out for the embedded text")
    spec = None if tokenizer is None else fspath(tokenizer)
    return TextOptions(named, "validation", spec, end_token, boundary, limit, text_field, source_field, skip_bad)  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------------------- text: counts


def count(
    sources: File | Sequence[File] | None = None,
    out: File | None = None,
    *,
    tokenizer: File | None = None,
    end_token: str | None = None,
    boundary: Boundary = "pack",
    limit_tokens: int | str | None = None,
    text_field: str | None = None,
    source_field: str | None = None,
    skip_bad: bool = False,
    only: File | None = None,
    order: int = 2,
    import_file: File | None = None,
    training_tokens: int | str | None = None,
    workers: int = 1,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    export: File | None = None,
    force: bool = False,
) -> pl.DataFrame:
    """Counts training bigrams exactly into the DuckDB file `out`, by default `counts.duckdb`; `recallkit count`.

    Without `sources` it reads the embedded training text. `only` names a slice directory: other bigrams than its own
    are left out. `order` 3 to 5 counts n-grams of that length too, into the table `ngrams`. `workers` processes share the
    work, or with `engine` "ray" actors of the cluster at `address`. `import_file` makes the table of a Parquet or CSV file
    (first, second, count), or of the ids of a tokengrams or infini-gram index, instead.

    Returns one row: path, id, num_tokens, num_documents, num_bigrams, boundary, tokenizer (its name), only.
    """
    if import_file is not None:
        if sources is not None:
            raise UserError("sources and import_file", where="count", remedy="give one of them")
        path = _optional(out) or Path("counts.duckdb")
        _check_choice("boundary", boundary, ("pack", "document"))
        spec, num_tokens = None if tokenizer is None else fspath(tokenizer), _amount("training_tokens", training_tokens)
        meta = counting.import_counts(
            _path(import_file), path, tokenizer=spec, end_token=end_token, num_tokens=num_tokens, boundary=boundary, force=force
        )
    else:
        text = _text(sources, tokenizer, end_token, boundary, limit_tokens, text_field, source_field, skip_bad)
        text, path = builtin.what_to_count(text, only=_optional(only), out=_optional(out))
        _check_bounds(order=order, workers=workers)
        _check_choice("engine", engine, ("local", "ray"))
        options = CountingOptions(order, engine, workers, address)
        meta = counting.count(text, path, only=_optional(only), force=force, options=options)
    if export is not None:
        counting.export_counts(path, _path(export), force=force)
    numbers = {name: meta.get(name) for name in ("num_tokens", "num_documents", "num_bigrams")}
    names = {"boundary": meta.get("boundary"), "tokenizer": (meta.get("tokenizer") or {}).get("name"), "only": meta.get("only")}
    schema = {"path": pl.String, "id": pl.String, **dict.fromkeys(numbers, pl.Int64), **dict.fromkeys(names, pl.String)}
    return pl.DataFrame([{"path": str(path), "id": meta["id"], **numbers, **names}], schema=schema)


def zoo_counts() -> Path:
    """The counts of the 3 million tokens that the zoo's models were trained on, made in the cache folder if they are not there.

    What `counts` is to be where other text than the embedded one is sliced for models of the zoo.
    """
    return builtin.counts()


def bigrams(counts: File | None = None, *, limit: int | None = None) -> pl.DataFrame:
    """The bigrams of a counts table, the most frequent first, `limit` of them; without `counts` those of the zoo's training.

    Columns: first, second (ids), count (in training). Reads the table into memory, 16 bytes a bigram.
    """
    from recallkit.counting.table import open_counts

    _check_bounds(limit=limit)
    table = open_counts(_optional(counts) or zoo_counts())
    keys = pl.Series("key", table.keys)
    ids = {"first": (keys // (1 << 32)).cast(pl.Int32), "second": (keys % (1 << 32)).cast(pl.Int32)}
    frame = pl.DataFrame({**ids, "count": pl.Series(table.counts).cast(pl.Int64)})
    return frame.sort("count", "first", "second", descending=[True, False, False]).head(len(frame) if limit is None else limit)


# -------------------------------------------------------------------------------------------------------- text: slices


def slice_(
    sources: File | Sequence[File] | None = None,
    out: File | None = None,
    *,
    counts: File | None = None,
    max_count: int | None = None,
    max_rate: float | None = None,
    seq_len: int | None = None,
    tokenizer: File | None = None,
    end_token: str | None = None,
    boundary: Boundary = "pack",
    limit_tokens: int | str | None = None,
    text_field: str | None = None,
    source_field: str | None = None,
    skip_bad: bool = False,
    force: bool = False,
) -> pl.DataFrame:
    """Labels every predicted token into the slice directory `out`, by default `slices`; `recallkit slice`, as `recallkit.slice`.

    An AR hit completes a bigram that stood before in its sequence and occurs at most `max_count` times in training
    (default 1250), or at most `max_rate` times a billion training tokens. Without `counts` only repetition is labelled.
    Without `sources` it reads the embedded text with the counts of the zoo's training, and what is rare among those.

    Returns a row a source, ALL first: source, tokens, repeated, repeated_share, ar_hits, ar_hit_share (fractions of the
    row's tokens; the last two null without counts). The labels themselves: `tokens`.
    """
    _check_bounds(max_count=max_count, seq_len=seq_len)
    slicing = builtin.what_to_slice(
        _text(sources, tokenizer, end_token, boundary, limit_tokens, text_field, source_field, skip_bad),
        out=_optional(out),
        counts_file=_optional(counts),
        max_count=max_count,
        max_rate=max_rate,
        seq_len=seq_len,
    )
    slicing.run(force=force)
    from recallkit.slicing.labels import summarise_slices

    return summarise_slices(slicing.out / "tokens.parquet")


def _slices(given: File | None) -> Path:
    """A slice directory, the embedded one if none is given."""
    return builtin.slices() if given is None else _path(given)


def tokens(slices: File | None = None, models: str | Sequence[str] | Mapping[str, str] = ()) -> pl.LazyFrame:
    """Every predicted token of a slice directory with its labels, and with what the scores of `models` say beside them.

    Columns of the labels: sequence, position, document, source, prev_token, token, repeated, distance (tokens back to the
    bigram's latest earlier occurrence), occurrences (earlier ones), match_length (tokens before this one that also
    stood before an earlier occurrence of it, the most over all of these), train_count, ar_hit. Of each model: nll_NAME (nats),
    argmax_NAME, rank_NAME (0 is best), where NAME is the model, or its name in the mapping {NAME: model}.

    Lazy: only the columns that a query asks for are read. Row i of labels and scores is the same token; that they are of
    the same sequences is checked here. Raises UserError where a model has no scores of these slices (`score` makes them).
    """
    folder = _slices(slices)
    chosen = models if isinstance(models, Mapping) else {name: name for name in _several(models)}
    labels = folder / "tokens.parquet"
    columns = [pl.scan_parquet(labels, glob=False)]
    artifacts.read_manifest(labels)
    for name, model in chosen.items():
        columns.append(_score_columns(labels, model, name))
    return pl.concat(columns, how="horizontal") if len(columns) > 1 else columns[0]


def _score_columns(labels: Path, model: str, name: str) -> pl.LazyFrame:
    """What a model's scores say of every token, named for it. Raises UserError where there are none of these labels."""
    from recallkit.attribution.aligned import LabelledTokens, open_scores

    path = scoring.score_path(labels.parent, model)
    if not path.is_file():
        raise UserError("not scored yet", where=model, remedy=f"recallkit.score({model!r}, slices={str(labels.parent)!r})")
    open_scores(path, LabelledTokens(labels, artifacts.read_manifest(labels)))
    return pl.scan_parquet(path, glob=False).select(pl.col(kind).alias(f"{kind}_{name}") for kind in ("nll", "argmax", "rank"))


def token_texts(slices: File | None = None) -> pl.DataFrame:
    """The text of every id of a slice directory's tokenizer, to be joined with `tokens` on token or prev_token.

    Columns: token (id), text; bytes that are no whole character become U+FFFD.
    """
    from recallkit import profiling
    from recallkit.text.tokenizers import load_slices_tokenizer

    folder = _slices(slices)
    tokenizer = load_slices_tokenizer(folder, artifacts.read_manifest(folder / "tokens.parquet")["tokenizer"])
    texts = profiling.token_texts(tokenizer)
    return pl.DataFrame({"token": range(len(texts)), "text": texts}, schema={"token": pl.Int32, "text": pl.String})


def profile(
    sources: File | Sequence[File] | None = None,
    out: File | None = None,
    *,
    slices: File | None = None,
    counts: File | None = None,
    max_count: int | None = None,
    max_rate: float | None = None,
    seq_len: int | None = None,
    stop_words: str = "ours",
    x_min: int | None = None,
    tokenizer: File | None = None,
    end_token: str | None = None,
    boundary: Boundary = "pack",
    limit_tokens: int | str | None = None,
    text_field: str | None = None,
    source_field: str | None = None,
    skip_bad: bool = False,
    force: bool = False,
) -> ProfileTables:
    """What repeats in a text, by source: how often, how far back, where; `recallkit profile`. Writes to `out`, by default `profile`.

    Text in the same words as for `slice`, or a slice directory as `slices`. Columns: see `ProfileTables`.
    """
    from recallkit import profiling

    _check_bounds(max_count=max_count, seq_len=seq_len, x_min=x_min)
    options = profiling.ProfileOptions(stop_words, x_min, force)
    text = _text(sources, tokenizer, end_token, boundary, limit_tokens, text_field, source_field, skip_bad)
    if slices is not None:
        said = (counts, max_count, max_rate, seq_len) != (None, None, None, None)
        if said or text != TextOptions((), "validation"):
            remedy = "leave out what decides them"
            raise UserError("a slice directory brings its own text, sequences and counts", where="slices", remedy=remedy)
        return profiling.profile_slices(_path(slices), _optional(out) or Path("profile"), options)
    slicing = builtin.what_to_slice(
        text,
        out=_optional(out),
        counts_file=_optional(counts),
        max_count=max_count,
        max_rate=max_rate,
        seq_len=seq_len,
        name="profile",
        usual=x_min is None and stop_words == "ours",
    )
    return profiling.profile(slicing.text, slicing.out, counts=slicing.counts, rare=slicing.rare, seq_len=slicing.seq_len, options=options)


# --------------------------------------------------------------------------------------------------------------- models


def score(
    models: str | Sequence[str] | None = None,
    *,
    slices: File | None = None,
    counts: File | None = None,
    device: str = "auto",
    dtype: Dtype | None = None,
    batch_tokens: int | str | None = None,
    model_tokenizer: str | None = None,
    context: int | None = None,
    stride: int | None = None,
    carry_state: bool = False,
    trust_remote_code: bool = False,
    workers: int = 1,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    force: bool = False,
) -> pl.DataFrame:
    """Scores every predicted token of a slice directory with each model; `recallkit score`. Without `models` the zoo's.

    Returns a row a model: model, tokens, nll_nats (mean, a token), ppl, accuracy (share of tokens that no vocabulary entry
    outranks), dtype, path (the Parquet file). The scores themselves: `tokens`.
    """
    _check_choice("engine", engine, ("local", "ray"))
    _check_bounds(context=context, stride=stride)
    options = replace(
        _scoring_options(counts, device, dtype, batch_tokens, trust_remote_code, workers, force),
        tokenizer=model_tokenizer,
        context=context,
        stride=stride,
        carry_state=carry_state,
        engine=engine,
        address=address,
    )
    folder = _slices(slices)
    names = _named(models, builtin.MODELS)
    manifests = {name: scoring.score(name, folder, options) for name in names}
    return pl.concat([_scored(name, scoring.score_path(folder, name), manifest) for name, manifest in manifests.items()])


def _named(models: str | Sequence[str] | None, default: Sequence[str]) -> list[str]:
    names = list(default) if models is None else _several(models)
    if not names:
        raise UserError("no model is named", where="models", remedy="name one, or leave it out for the models of the zoo")
    return names


def _scoring_options(
    counts: File | None, device: str, dtype: str | None, batch_tokens: int | str | None, trust_remote_code: bool, workers: int, force: bool
) -> scoring.ScoringOptions:
    """What `score` and `gap` share."""
    _check_bounds(workers=workers)
    if dtype is not None:
        _check_choice("dtype", dtype, ("float32", "bfloat16", "float16"))
    size = _amount("batch_tokens", batch_tokens)
    return scoring.ScoringOptions(_optional(counts), device, dtype, size, force, trust_remote_code=trust_remote_code, workers=workers)


def _scored(model: str, path: Path, manifest: Mapping[str, Any]) -> pl.DataFrame:
    """The row of one model."""
    from recallkit.scoring.scores import summarise_scores

    first = pl.DataFrame({"model": [model], "tokens": [manifest["num_rows"]]})
    last = pl.DataFrame({"dtype": [manifest["dtype"]], "path": [str(path)]}, schema={"dtype": pl.String, "path": pl.String})
    return pl.concat([first, summarise_scores(path), last], how="horizontal")


def check_scores(
    models: str | Sequence[str], *, slices: File | None = None, counts: File | None = None, trust_remote_code: bool = False
) -> pl.DataFrame:
    """Compares the scores of a few sequences with a float64 computation on CPU, as `recallkit score --check` does.

    Returns a row a model: model, tokens, largest and mean (absolute differences of NLLs in nats), sequence and position
    (where the largest is), same_argmax (fraction of tokens; null where argmaxes do not compare).
    """
    folder = _slices(slices)
    options = scoring.ScoringOptions(_optional(counts), trust_remote_code=trust_remote_code)
    return pl.DataFrame([{"model": name, **scoring.check_scores(name, folder, options)} for name in _named(models, ())])


def gap(
    reference: str | None = None,
    models: str | Sequence[str] | None = None,
    *,
    slices: File | None = None,
    slice: str | Sequence[str] = (),  # noqa: A002 - the option's name
    out: File | None = None,
    counts: File | None = None,
    device: str = "auto",
    dtype: Dtype | None = None,
    batch_tokens: int | str | None = None,
    trust_remote_code: bool = False,
    workers: int = 1,
    force: bool = False,
) -> GapTables:
    """Splits the gap between `reference` and each model over AR hits and other tokens; `recallkit gap`. The zoo's if none is named.

    Scores what is not scored yet. The tables also go to `out`, by default a folder of their own in the slice directory
    (`read_comparison` reads them). `slice`: further slices, as `--slice` takes them ("copy:k4", "far=distance > 100").
    Columns: see `GapTables`; `by_count` is Figure 1 of Zoology.
    """
    from recallkit.slicing.definitions import parse_slices

    if (reference is None) != (models is None):
        raise UserError("a gap is between two models", where="gap", remedy="name the reference, and the models to compare with it")
    first, *others = builtin.MODELS if reference is None else (reference, *_named(models, ()))
    options = _scoring_options(counts, device, dtype, batch_tokens, trust_remote_code, workers, force)
    return attribution.gap(
        first, others, _slices(slices), _optional(out), options, given=parse_slices([slice] if isinstance(slice, str) else slice)
    )


def gap_of_table(table: File, *, reference: str | None = None, ar_share: float | None = None) -> PublishedGap:
    """The same arithmetic on printed perplexities, `recallkit gap --table`: a CSV with columns model, all, ar, other.

    Without `reference` the first row is it; without `ar_share` the share of AR hits follows from its three perplexities.
    """
    from recallkit.attribution.published import attribute_published

    return attribute_published(_path(table), reference=reference, ar_share=ar_share)


def read_comparison(folder: File, *, slices: File | None = None) -> Comparison:
    """What `gap` wrote: its tables, the reference, the models (best first), the manifest of how it was measured.

    `folder` is that of the tables, or a slice directory that holds exactly one comparison.
    """
    return _read_comparison(_path(folder), _optional(slices))


# --------------------------------------------------------------------------------------------------------------- recall


def eval_recall(
    models: str | Sequence[str] | None = None,
    *,
    tasks: str | Sequence[str] | None = None,
    data: File | None = None,
    out: File | None = None,
    limit: int | None = None,
    task_version: int = 1,
    prompt: Literal["standard", "twice"] = "standard",
    cut: Literal["left", "answer"] = "left",
    context: int | None = None,
    counts: File | None = None,
    model_tokenizer: str | None = None,
    device: str = "auto",
    dtype: Dtype = "float32",
    batch_size: int | None = None,
    trust_remote_code: bool = False,
    force: bool = False,
) -> RecallTables:
    """Recall from real documents (swde, fda, squad, metadata); `recallkit eval-recall`. The first model is the reference.

    Without `tasks` those that `data` holds rows for, else metadata; without `models` three control models. Writes to
    `out`, by default `evals`. Columns: see `RecallTables`, and docs/recall.md.
    """
    from recallkit.recall.run import plan_recall
    from recallkit.recall.stock_tasks import task_names
    from recallkit.recall.tasks import tasks_of

    rows = _optional(data)
    options = _recall_options(limit, context, batch_size, counts, device, dtype, model_tokenizer, trust_remote_code, force)
    _check_bounds(task_version=task_version)
    _check_choice("prompt", prompt, ("standard", "twice"))
    _check_choice("cut", cut, ("left", "answer"))
    named = tasks_of(rows) if tasks is None else task_names(tasks)
    folder = builtin.results_folder("evals", _optional(out), is_builtin=models is None and rows is None)
    compared = _named(models, builtin.RECALL_MODELS)
    plan = plan_recall(compared, named, folder, replace(options, version=task_version, prompt=prompt, cut=cut, data=rows))
    return plan.run()[0]


def eval_stock(
    tasks: str | Sequence[str],
    models: str | Sequence[str] | None = None,
    *,
    out: File | None = None,
    limit: int | None = None,
    context: int | None = None,
    counts: File | None = None,
    model_tokenizer: str | None = None,
    device: str = "auto",
    dtype: Dtype = "float32",
    batch_size: int | None = None,
    trust_remote_code: bool = False,
    force: bool = False,
) -> pl.DataFrame:
    """Tasks of lm-eval, unchanged: names, paths of YAML files, `commonsense` for the six of Based; `eval-recall --lm-eval-task`.

    Returns a row a model, task and metric: model, task, version, metric, filter, value, standard_error, num_documents.
    """
    from recallkit.recall.stock_tasks import lm_eval_names, plan_stock, task_names

    options = _recall_options(limit, context, batch_size, counts, device, dtype, model_tokenizer, trust_remote_code, force)
    named = lm_eval_names(task_names(tasks))
    folder = builtin.results_folder("evals", _optional(out), is_builtin=models is None)
    return plan_stock(_named(models, builtin.LIKELIHOOD_MODELS), named, folder, options).run()


def _recall_options(
    limit: int | None,
    context: int | None,
    batch_size: int | None,
    counts: File | None,
    device: str,
    dtype: str,
    model_tokenizer: str | None,
    trust_remote_code: bool,
    force: bool,
) -> RecallOptions:
    """How models are run, whatever they are asked."""
    from recallkit.recall.run import RecallOptions

    _check_bounds(limit=limit, context=context, batch_size=batch_size)
    _check_choice("dtype", dtype, ("float32", "bfloat16", "float16"))
    return RecallOptions(limit, context, batch_size, _optional(counts), device, dtype, model_tokenizer, trust_remote_code, force)


def eval_mqar(
    models: str | Sequence[str] | None = None,
    *,
    length: int | None = None,
    pairs: int | Sequence[int] | None = None,
    samples: int | None = None,
    power: float = 0.01,
    seed: int = 0,
    out: File | None = None,
    counts: File | None = None,
    model_tokenizer: str | None = None,
    device: str = "auto",
    dtype: Dtype = "float32",
    batch_tokens: int | str | None = None,
    trust_remote_code: bool = False,
    force: bool = False,
) -> MqarTables:
    """Multi-query associative recall in the models' own vocabularies; `recallkit mqar`. The first model is the reference.

    Without `models` those of the zoo, with sizes for them. Writes to `out`, by default `mqar`. Columns: see `MqarTables`.
    """
    from recallkit.mqar.run import MqarOptions, choose_size, plan_mqar

    _check_bounds(length=length, samples=samples, seed=seed)
    _check_choice("dtype", dtype, ("float32", "bfloat16", "float16"))
    size = choose_size(length, None if pairs is None else _numbers("pairs", pairs), samples, is_zoo=models is None)
    options = MqarOptions(
        counts=_optional(counts),
        device=device,
        dtype=dtype,
        tokenizer=model_tokenizer,
        trust_remote_code=trust_remote_code,
        force=force,
        length=size.length,
        samples=size.samples,
        power=power,
        seed=seed,
        batch_tokens=_amount("batch_tokens", batch_tokens),
    )
    folder = builtin.results_folder("mqar", _optional(out), is_builtin=models is None)
    return plan_mqar(_named(models, builtin.MODELS), size.pairs, folder, options).run()[0]


# ------------------------------------------------------------------------------------------------------------- to look at


def figures(of: File | Comparison) -> dict[str, Chart]:
    """The pictures of results by name, as altair charts in the colours of a paper: shown by a notebook, `.save("x.svg")`.

    `of` is a comparison, or a folder of what `gap`, `profile`, `eval_mqar` and `eval_recall` wrote: the pictures of a report.
    """
    import altair as alt

    from recallkit.display.chart_theme import PAPER, themed

    drawn = {figure.name: themed(figure.draw(PAPER), PAPER) for figure in _figures(of)}
    return {name: alt.Chart.from_dict(specification) for name, specification in drawn.items()}


def _figures(of: File | Comparison) -> list[Figure]:
    from recallkit.attribution.charts import figures as gap_figures
    from recallkit.report.found import find_results
    from recallkit.report.sections import OTHERS

    if isinstance(of, Comparison):
        return gap_figures(of)
    found = find_results(_path(of))
    compared = gap_figures(_read_comparison(found["gap"])) if "gap" in found else []
    return [*compared, *(figure for kind, place in found.items() if kind != "gap" for figure in OTHERS[kind](place)[1])]


def write_report(
    folder: File | None = None,
    out: File | None = None,
    *,
    slices: File | None = None,
    more: File | Sequence[File] | None = None,
    sequence: int | Sequence[int] | None = None,
    document: int | Sequence[int] | None = None,
    figures: File | None = None,
) -> Path:
    """One page of HTML, which needs nothing else, of the results in `folder`; `recallkit report`. Returns the page.

    Without `folder` it is of the zoo on the embedded text. `out` is by default report.html beside the comparison, `slices`
    its slice directory where it does not lie in that; `more` names further folders with results, `sequence` and
    `document` text to show beside the usual, `figures` a folder where the pictures go as SVG and PNG.
    """
    from recallkit.report import write

    own = _optional(slices)
    asked = _numbers("sequence", sequence), _numbers("document", document)
    options = write.ReportOptions(own, [Path(name) for name in _several(more)], _optional(figures), *asked)
    return write.write_report(builtin.comparison(own) if folder is None else _path(folder), _optional(out), options).page
