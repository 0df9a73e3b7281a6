"""The columns of every table of ours, in one place, checked wherever a table is read
(`parquet_files.read_manifest`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import polars as pl
    import pyarrow as pa

# ----------------------------------------------------------------------------------------- columns


_SCALES = {"%": 100, "points": 100, "share": 100, "T": 1e-12}


class Column(NamedTuple):
    """A column: what it contains, and how people read it.

    `type`: an Arrow type, or, if a query determines it, `text`, `whole`, `real` or `flag`; it may
    be null if it is `nullable`. `unit`: a fraction in `%` or `points` is multiplied by 100; a
    `share` also gets the sign; `T` is 10^12. `label`: its header. `form`: Python's format of a
    figure, `size` (of bytes) or `amount` (1.23M); then, in any order, `±` (with its 95 % interval,
    NAME_ci_low to NAME_ci_high) or `to` (that alone), `struck` or `dash` (in rows that are `void`),
    and `optional1`, `optional2` ... (the turn in which a narrow terminal leaves it out). `meaning`:
    for docs/results.md.
    """

    name: str
    type: str = "real"
    nullable: bool = False
    unit: str = ""
    label: str = ""
    form: str = ""
    meaning: str = ""

    @property
    def family(self) -> str:
        """`text` or `flag` for Arrow's types of these, else the type."""
        return {"string": "text", "dictionary<string>": "text", "bool": "flag"}.get(
            self.type, self.type
        )

    @property
    def scale(self) -> float:
        """What a figure is multiplied by before people read it."""
        return _SCALES.get(self.unit, 1)

    @property
    def turn(self) -> str:
        """The turn in which a narrow terminal leaves it out; empty if it never does."""
        return next((word for word in self.form.split() if word.startswith("optional")), "")


def _split(declared: str) -> list[list[str]]:
    """The fields of each line."""
    lines = declared.strip().splitlines()
    return [list(map(str.strip, line.split("|"))) for line in lines]


# Name, unit, label, form, meaning; a slash in a label ends its line.
_READ = _split("""
    tokens            |        | tokens                    | ,
    share_of_tokens   | share  | tokens                    | z.2f             | of all tokens
    nll               | nats   | NLL                       | z.2f
    ppl               |        | ppl                       | ,.2f optional2
    ppl_reference     |        | reference/ppl             | ,.2f optional2
    ppl_model         |        | ppl                       | ,.2f optional3
    ar_nll            | nats   | AR hits                   | z.2f             | on AR hits
    first_nll         | nats   | first                     | z.2f optional1   | first occurrences
    other_nll         | nats   | other                     | z.2f optional2   | on other tokens
    step              |        | step                      | ,
    delta_nll         | nats   | gap,/nats                 | z.3f             | the gap
    gap_share         | %      | share of/the gap, %       | z.0f ± dash      | part of the gap here
    repeated_gap_share | %      | all/rep.                  | z.0f
    placebo_retained  | %      | placebo/retains           | z.0f ±
    placebo_gap_share | %      | placebo's/gap share       | z.1f ±
    control_share     | %      | control, %                | z.1f ± dash      | the control's
    gain              | points | gain, points              | z.1f ±           | recall gain
    retained | % | retained, % | z.0f ± | of the reference's; null if that may be below 0.1 points
    efficiency        | %      | effi-/ciency, %           | z.1f             | recall efficiency
    efficiency_model  | %      | recall effi-/ciency, %    | z.1f
    last              |        | last                      | ,
    context_gain      | nats   | gain                      | .3f
    long_ppl          |        | LongPPL                   | ,.2f
    score             | nats   | score                     | z.2f ±
    far_share         | %      | far share                 | z.1f ± struck    | of the gap
    mirror_share      | %      | mirror                    | z.1f struck
    state_bytes       | bytes  | state                     | size             | of one sequence
    loss_ar_hit       | nats   | loss in/AR hits           | z.3f optional1   | on AR hits
    loss_first        | nats   | loss in first/occurrences | z.3f ±           | at first occurrences
    repeated_bigrams  |        | bigrams                   | .1f
    repeated_share    | share  | repeated                  | z.1f
    ar_hits           |        | AR hits                   | ,
    ar_hit_share      | share  | AR hits                   | z.2f
    distances         |        | number                    | ,
    median_distance   |        | median                    | ,
    alpha             |        | alpha                     | .2f
    x_min             |        | from                      | ,
    tail_share        | share  | in tail                   | z.1f
    ks                |        | KS                        | .3f
    gain_exposed      | nats   | gain                      | .3f
    alpha_exposed     |        | beta                      | .2f
    loss_nats         | nats   | loss (nats)               | .3f
    learning_rate     |        | learning rate             | .2g
    lists_4           | share  | lists of 4                | z.1f
    lists_16          | share  | of 16 pairs               | z.1f
    accuracy          | share  | accuracy                  | z.1f
    same_argmax       | share  | same argmax               | z.2f
    gap_share_clipped | share  | clipped                   | z.1f struck
    share             | share  | share                     | z.1f
    printed           | share  | stated                    | z.1f
    parameters        |        | parameters                | amount
    state_elements    |        | state                     | amount
    flops_per_token   |        | FLOP per token            | amount
    flops_paper       | T      | TFLOP                     | .2f
    trained_tokens    |        | trained on                | amount
    miss              | share  | miss                      | +z.1f
    loss              | nats   | loss                      | +z.2f            | without the mixers
    loss_share        | share  | on them                   | z.1f struck      | on AR hits
    cache_bytes       | bytes  | cache                     | size             | that grows
    kl                | nats   | mean                      | #.3g             | KL divergence
    kl_p50            | nats   | 50 %                      | #.3g
    kl_p95            | nats   | 95 %                      | #.3g
    kl_p99            | nats   | 99 %                      | #.3g
    ratio             |        | ratio/to first            | z.2f ±           | `kl` over `kl_first`
    agreement         | %      | agree                     | z.1f             | of first choices
    points            | points | causal recall,/points     | z.1f ±           | causal recall
    causal            | points | causal, points            | z.1f ±           | causal recall
    causal_retained   | %      | causally, %               | z.0f ±
    completion        | nats   | completion                | z.2f
    floor             | nats   | floor                     | z.2f
    key               | nats   | key                       | z.2f
    use               | nats   | any use                   | z.2f
    recall            | nats   | causal recall,/nats       | z.2f ±           | causal recall
    causal_share      | %      | of the gap,/%             | z.1f ± struck    | of the gap
""")
"""Columns that people read, under the names that they have in all tables."""

READ = {name: dict(zip(Column._fields[3:], fields, strict=False)) for name, *fields in _READ}


def declared(name: str, type_: str = "real") -> Column:
    """A column by its name; of what is in tables alone only its type is declared."""
    return _read(name, READ.get(name, {"label": name}), type_)


def chosen(columns: str) -> list[Column]:
    """The columns of a table for people, one a line: `NAME`, or, where it has less room or shows
    fewer digits than usual, `NAME | label | form`. Several names may share a line."""
    table = []
    for names, *texts in _split(columns):
        own = dict(zip(("label", "form"), texts, strict=False))
        table += [
            _read(name, {"label": name, **READ.get(name, {}), **own}) for name in names.split()
        ]
    return table


def _read(name: str, reading: Mapping[str, str], type_: str = "real") -> Column:
    own = {**reading, "label": reading["label"].replace("/", "\n")}
    return Column(name, type_.rstrip("?"), type_.endswith("?"), **own)


def _columns(layout: str) -> dict[str, Column]:
    """`a b int32, c int64?`: names and their type, in the order of the file; `?`: may be null."""
    groups = [group.split() for group in layout.split(",")]
    return {name: declared(name, type_) for *names, type_ in groups for name in names}


def _with_ends(names: str, *ends: str) -> str:
    return " ".join(f"{name}{end}" for name in names.split() for end in ends)


_TRAINED = "task model text, width whole, size text"
_PAIR = "reference model"
_CI = ("", "_ci_low", "_ci_high")
_NLLS = _with_ends("nll ppl", "_reference", "_model")
_GAPS = _with_ends("delta_nll gap_share", *_CI)
_RECALL = _with_ends("gain_reference gain_model retained", *_CI)
_CLUSTERS = "clusters whole?, effective_clusters real?"
_BUCKETS = (
    f"low high tokens whole, share_of_tokens real, {_NLLS} {_GAPS} {_RECALL} real?, {_CLUSTERS}"
)
_RECALL_BUCKETS = _columns(
    "model task text, low high num_rows whole, accuracy real, answer_nll real?"
)
_SPREAD = ("", "_low", "_high", "_difference", "_difference_low", "_difference_high")
_FIGURES = _with_ends("repeated_bigrams distinct_bigrams repeated_share ar_hit_share", *_CI)
_CHANGES = "completion key span placebo moved moved_placebo"
"""Those of `intervening.changes`."""
_LOST = _with_ends(f"nll {_CHANGES} use recall points", *_CI)
_ASKED = "samples documents whole, effective_documents real"
_ERRORS = "standard_error ci_low ci_high difference_error difference_low difference_high"

# `last`: ids of context that the shorter scores have at least, and `stride` fewer than this more;
# null `reference_gains`: both.
_BY_CONTEXT = _columns(
    f"{_PAIR} slice text, reference_gains flag?, last stride tokens whole, share_of_tokens real, "
    f"{_NLLS} {_GAPS} "
    f"{_with_ends('context_gain_reference context_gain_model local_gap far_gap', *_CI)} "
    f"{_with_ends('far_share mirror_share', *_CI)} real?, {_CLUSTERS}, note text, void flag"
)

LAYOUTS: Mapping[str, Mapping[str, Column]] = {
    # One row per sequence: its ids, the context's first one included. From id `span_starts[i]` on
    # they belong to document `span_documents[i]` of source `span_sources[i]`; `document` and
    # `source` repeat the first span, for queries.
    "sequences": _columns(
        "sequence int32, source string, document int32, tokens list<uint32>, span_starts "
        "span_documents list<int32>, span_sources list<string>, text string"
    ),
    # One row per predicted token, sorted by (sequence, position). `in_training`: the ids of the
    # longest n-gram around it, 13 or 50, that is known to be in the training text; 0 if none is;
    # null if nothing is known of its n-grams. `context_class`: what of the token is in its context
    # (slicing.definitions.CONTEXT_CLASSES).
    "tokens": _columns(
        "sequence position document int32, source dictionary<string>, prev_token token int32, "
        "repeated bool, context_class dictionary<string>, distance first_distance int32?, "
        "occurrences match_length int32, overwritten bool, train_count int64?, ar_hit bool?, "
        "in_training int8?"
    ),
    # One row per predicted token, in the order of `tokens`: of its word (slicing.words) whether it
    # occurred earlier in the sequence, as it is and without case and inflection; the smallest
    # training count of the bigrams inside it, null of a word of one token; what it is.
    "words": _columns(
        "word_repeated word_folded bool, word_count int64?, word_kind dictionary<string>?, "
        "opens_bracket closes_bracket opens_quote closes_quote bool"
    ),
    # One row per predicted token, in the order of `tokens`. `nll` in nats; `argmax` the model's
    # first choice; `rank` 0 is best, the number of vocabulary entries with a larger logit;
    # `context` the number of ids that the model had seen. A model with its own tokenizer has no
    # argmax among the slices' tokens (-1), its rank is the worst of its tokens that end in this one
    # (-1 if none does), and `exact` says whether its tokens begin and end where this one does.
    "scores": _columns(
        "sequence position int32, nll float32, argmax rank int32, context int32, exact bool"
    ),
    # The same of a model beside a reference, for both: parts of which the scores of each and a
    # table "divergence" are made. `kl`: KL(reference | model) in nats, of their predictions over
    # the tokenizer's entries; `agrees`: whether their argmax is the same.
    "paired scores": _columns(
        "sequence position int32, nll float32, argmax rank int32, context int32, exact bool, "
        "kl nll_reference float32, argmax_reference rank_reference int32"
    ),
    "divergence": _columns("sequence position int32, kl float32, agrees bool"),
    # One row per sampled token of an intervention. `row`: in tokens.parquet, from 0; `weight`:
    # tokens of the slice that it represents; `CHANGE_row`: the row in which it is read again in the
    # changed text, -1 if it is left out, which `excluded` explains. `distance` 0 if its bigram does
    # not occur earlier and no other token's places are borrowed.
    "samples": _columns(
        "slice string, row int64, sequence position document distance occurrences match_length "
        "int32, train_count int64, weight float64, excluded string, "
        f"{_with_ends(_CHANGES, '_row')} int64"
    ),
    # One row per mixer of a model: the mean of its outputs over a text, in the units of its
    # activations; `mixer`: LAYER.KIND.
    "mixer means": _columns("mixer string, mean list<double>"),
    # `p_*` and `first_p_*`: the mean probability of the tokens, and at the first occurrences of
    # their bigrams. `*_freedom`: degrees of freedom of the intervals; `is_distinct`: whether the
    # gap differs from 0 among all models of the command.
    "gap/gap": _columns(
        f"{_PAIR} source slice cluster text, tokens whole, bytes whole?, share_of_tokens real, "
        f"{_NLLS} {_GAPS} {_RECALL} {_with_ends('p first_p bpb', '_reference', '_model')} "
        "delta_freedom share_freedom "
        f"{_with_ends('control_share efficiency_reference efficiency_model', *_CI)} real?, "
        f"{_CLUSTERS}, is_distinct flag?, note text, void flag"
    ),
    "gap/by_count": _columns(f"{_PAIR} text, repeated flag, {_BUCKETS}"),
    "gap/by_distance": _columns(f"{_PAIR} slice text, {_BUCKETS}"),
    "gap/by_match": _columns(f"{_PAIR} slice text, {_BUCKETS}"),
    "gap/by_position": _columns(f"{_PAIR} slice text, {_BUCKETS}"),
    "gap/by_partition": _columns(
        f"{_PAIR} slice text, tokens whole, share_of_tokens real, {_NLLS} {_GAPS} {_RECALL} "
        f"real?, {_CLUSTERS}, note text, void flag"
    ),
    # NLLs in nats, summed over all tokens of the document, and over its AR hits.
    "gap/by_document": _columns(
        f"{_PAIR} text, document whole, source text, tokens ar_hits whole, "
        f"{_with_ends('nats ar_nats', '_reference', '_model')} real"
    ),
    "gap/by_context": _BY_CONTEXT,
    # `kl` and quantiles in nats; `low` and `high` of buckets of distance and position; `ratio`:
    # `kl` over `kl_first`.
    "gap/by_divergence": _columns(
        f"{_PAIR} by slice text, low high whole?, tokens whole, share_of_tokens real, "
        f"{_with_ends('kl agreement', *_CI)} kl_p50 kl_p95 kl_p99 kl_first "
        f"{_with_ends('ratio', *_CI)} real?, "
        f"{_CLUSTERS}"
    ),
    # One row per model, the reference first, which loses nothing. `family`: the model of which it
    # is a variant. Bytes of the state of one sequence after `state_ids` ids; losses in nats per
    # token.
    "gap/by_price": _columns(
        "model family cluster text, state_bytes state_ids clusters whole?, ppl effective_clusters "
        f"real, {_with_ends('gain retained loss_ar_hit loss_first', *_CI)} real?"
    ),
    # The reference's own earlier checkpoints, interpolated to the model's NLL: `weight` of
    # `checkpoint`, the rest of `next_checkpoint`.
    "gap/by_placebo": _columns(
        f"{_PAIR} checkpoint next_checkpoint text, weight nll "
        f"{_with_ends('gap_share gain retained', *_CI)} real?, note text, void flag"
    ),
    "gap/by_threshold": _columns(
        f"{_PAIR} note text, threshold tokens whole, share_of_tokens real, {_NLLS} {_GAPS} "
        f"{_RECALL} real?, {_CLUSTERS}, void flag"
    ),
    "intervene/intervene": _columns(f"model slice text, tokens {_ASKED}, {_LOST} real?"),
    "intervene/by_distance": _columns(f"model slice text, low high {_ASKED}, {_LOST} real?"),
    "intervene/by_count": _columns(f"model slice text, low high {_ASKED}, {_LOST} real?"),
    "intervene/retained": _columns(
        f"{_PAIR} slice note text, tokens {_ASKED}, share_of_tokens gap real, "
        f"{_with_ends('retained causal_share', *_CI)} real?, void flag"
    ),
    "track/track": _columns(
        "model text, step whole?, reference text?, tokens ar_hits documents whole, "
        "effective_documents real, "
        f"{_with_ends('nll ar_nll first_nll other_nll gain retained ar_gap causal', *_CI)} real?"
    ),
    "track/by_slice": _columns(
        "model text, step whole?, slice text, tokens whole, "
        f"{_with_ends('nll gain efficiency', *_CI)} real?"
    ),
    "track/verdict": _columns("verdict text, step step_ci_low step_ci_high whole?"),
    "ablation/ablation": _columns(
        "model mixers kind text, layer whole?, cluster slice text, tokens whole, share_of_tokens "
        f"real, nll nll_ablated {_with_ends('loss loss_share', *_CI)} real?, {_CLUSTERS}, note "
        "text, void flag"
    ),
    "ablation/mixers": _columns(
        "model mixers kind text, layer whole?, parts cluster text, layers text?, cache_bytes "
        "whole?, share_of_tokens real, "
        f"loss loss_ar_hit {_with_ends('loss_share gain gain_lost retained', *_CI)} real?, "
        f"{_CLUSTERS}, note text, void flag"
    ),
    "profile/profile": _columns(
        "source note text, tokens documents content_tokens content_repeated repeated whole, "
        "effective_documents real, ar_hits whole?, "
        f"{_FIGURES} real?"
    ),
    "profile/distances": _columns("source text, distance repeated content whole, ar_hits whole?"),
    "profile/positions": _columns(
        "source text, low high tokens content_tokens repeated content_repeated whole, ar_hits "
        "whole?, repeated_share content_repeated_share ar_hit_share real?"
    ),
    "profile/fits": _columns(
        "source kind string, distances int64, median_distance int64?, alpha alpha_ci_low "
        "alpha_ci_high float64?, x_min x_max tail_tokens int64?, tail_share ks gain_exposed "
        "alpha_exposed float64?, note string"
    ),
    # One row per prompt. `answer_nll`: nats per token; `answer_distance`: tokens from the value's
    # latest occurrence to the prompt's end; `characters_cut`: how many of the prompt's characters
    # were cut off on the left (of a character in part, all); `length` and `depth` of a needle in a
    # haystack: ids asked for, and the share of the context that precedes it.
    "recall documents": _columns(
        "model task string, version int8, prompt cut string, row int32, doc_id string, key "
        "string?, value string, length int32?, depth float64?, prompt_tokens tokens_cut int32, "
        "truncated answer_cut bool, generation string, contains bool, contains_any bool?, "
        "answer_nll float64?, answer_tokens int32?, answer_distance int32?, occurrences int32?, "
        "prompt_text string, characters_cut int32"
    ),
    "recall/recall": _columns(
        f"{_PAIR} task prompt cut tokenizer text, comparable flag, disagree flag?, accuracy "
        "difference real, version num_rows num_documents truncated answer_cut absent multiline "
        f"empty dropped whole, f1 accuracy_any answer_nll {_with_ends('answer_nats', *_SPREAD)} "
        f"{_ERRORS} real?"
    ),
    "recall/by_distance": _RECALL_BUCKETS,
    "recall/by_occurrences": _RECALL_BUCKETS,
    "recall/by_length": _RECALL_BUCKETS,
    "recall/by_depth": _columns(
        "model task text, length whole, depth real, num_rows whole, accuracy real, answer_nll real?"
    ),
    # One row per answer asked for. `place`: the index of the last id before it in the sequence,
    # from 0, without any prefix; `distance`: ids from where it stood to where it is asked for
    # (MQAR: from the pair's key to the query's); `nll`: nats; `rank`: 0 is best; `right`: whether
    # it is the model's argmax; `choices`: the different values before it, of which a guess takes
    # one.
    "mqar queries": _columns(
        "pairs sample place distance int32, nll float32, rank int32, right bool, choices int32"
    ),
    # One row per sequence: filler ids in the tail, how many are the argmax, their summed NLL
    # (nats).
    "mqar fillers": _columns("pairs sample filler_tokens filler_right int32, filler_nll float64"),
    "mqar/mqar": _columns(
        f"{_PAIR} task text, pairs length whole, power real?, seed whole, tokenizer text, "
        "num_samples ar_tokens filler_tokens whole, "
        f"guess {_with_ends('accuracy ar_nll', *_SPREAD)} ar_ppl "
        f"{_with_ends('filler_accuracy filler_nll', *_SPREAD)} filler_ppl real?"
    ),
    "mqar/by_distance": _columns(
        "model text, pairs low high num_queries whole, accuracy ar_nll ar_ppl real?"
    ),
    # One row per point of a training's curve; `tokens` of text read so far, `loss_nats` the mean
    # since the point before.
    "training/training": _columns(
        "model text, step tokens whole, loss_nats learning_rate real, lists_4 lists_16 real?"
    ),
    "tradeoff/tradeoff": _columns(
        f"{_TRAINED}, parameters state_bytes whole, accuracy loss_nats learning_rate real, "
        "at_edge flag, num_steps batch whole, pareto flag"
    ),
    "tradeoff/by_rate": _columns(
        f"{_TRAINED}, learning_rate accuracy loss_nats real, num_steps whole, best flag"
    ),
    "tradeoff/by_distance": _columns(
        f"{_TRAINED}, learning_rate real, length pairs low high num_queries whole, accuracy real"
    ),
}
"""Columns of every table. A comparison's tables are named RESULT/TABLE, others by the kind in
their manifests. More columns are allowed."""


def arrow_schema(layout: str) -> pa.Schema:
    """The schema with which a table is written, for layouts of Arrow types only."""
    import pyarrow as pa

    def arrow_type(name: str) -> pa.DataType:
        outer, _, inner = name.rstrip(">").partition("<")
        if outer == "list":
            return pa.list_(pa.type_for_alias(inner))
        if outer == "dictionary":
            return pa.dictionary(pa.int32(), pa.type_for_alias(inner))
        return pa.type_for_alias(name)

    columns = LAYOUTS[layout].values()
    return pa.schema(
        [
            pa.field(column.name, arrow_type(column.type), nullable=column.nullable)
            for column in columns
        ]
    )


def check_columns(path: Path, kind: str | None) -> None:
    """Raises UserError unless a Parquet file has the columns of its table in a result of this kind,
    each of its family."""
    import pyarrow.parquet as pq

    table = f"{kind}/{path.stem}"
    columns = LAYOUTS.get(table if table in LAYOUTS else str(kind), {})
    schema = pq.read_schema(path)
    for name, column in columns.items():
        place = schema.get_field_index(name)  # -1 also of a name that several columns have
        if place < 0 or not _fits(schema.field(place).type, column):
            problem = f"its column {name} is missing or of another type"
            raise UserError(problem, where=path, remedy="make it again with --force")


def _fits(type_: pa.DataType, column: Column) -> bool:
    """Whether a column of an Arrow type can be read as one of a layout."""
    from pyarrow import types

    if types.is_dictionary(type_):
        return _fits(type_.value_type, column)
    if types.is_null(type_):  # of nulls alone
        return column.nullable
    if column.family == "text":
        tests = [types.is_string, types.is_large_string, types.is_string_view]
    elif column.family == "flag":
        tests = [types.is_boolean]
    elif column.family.startswith("list"):
        tests = [types.is_list, types.is_large_list]
    elif column.family == "whole" or "int" in column.family:
        tests = [types.is_integer]
    else:
        tests = [types.is_floating, types.is_integer]
    return any(test(type_) for test in tests)


def frame_of(layout: str, rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """A frame of a layout's columns, in its order, from rows that have at least these."""
    import polars as pl

    schema = _polars_types(layout)

    def of_layout(row: Mapping[str, Any]) -> dict[str, Any]:
        return {name: row[name] for name in schema}

    return pl.DataFrame(list(map(of_layout, rows)), schema=schema)


def _polars_types(layout: str) -> dict[str, Any]:
    """By column of a layout its type."""
    import polars as pl

    types = {"text": pl.String, "whole": pl.Int64, "real": pl.Float64, "flag": pl.Boolean}
    return {name: types[column.family] for name, column in LAYOUTS[layout].items()}


def frame_of_columns(layout: str, keys: pl.DataFrame, columns: Mapping[str, Any]) -> pl.DataFrame:
    """A frame of a layout's columns, in its order, from `keys` and further columns, arrays or
    one value for all rows; NaN is null."""
    import polars as pl

    of_all_rows = {
        name: value
        for name, value in columns.items()
        if value is None or isinstance(value, str | int | float)
    }
    series = [pl.Series(name, value) for name, value in columns.items() if name not in of_all_rows]
    frame = keys.with_columns(
        *series, **{name: pl.lit(value) for name, value in of_all_rows.items()}
    )
    typed = [pl.col(name).cast(type_) for name, type_ in _polars_types(layout).items()]
    return frame.with_columns(pl.selectors.float().fill_nan(None)).select(typed)


def read_frame(path: Path) -> pl.DataFrame:
    """A small table of ours, whose digest was checked."""
    import polars as pl
    import pyarrow.parquet as pq

    with pq.ParquetFile(
        path, pre_buffer=False
    ) as file:  # without threads: one that cannot start would be an error after all the work
        return pl.DataFrame(file.read(use_threads=False))
