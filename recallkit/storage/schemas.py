"""What every table and manifest of ours must hold, in one place, because any of them may come back damaged or made by other tools.

A reader that has checked a table here may rely on its columns, their types, and where they have no nulls and nothing negative.
What figures mean together is left to those who read them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

from recallkit import config
from recallkit.errors import UserError, lacks_resources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    import numpy as np
    import polars as pl
    import pyarrow as pa

_AGAIN = "make it again with --force"

# --------------------------------------------------------------------------------------------------------------- columns


class Column(NamedTuple):
    """What a column holds: `text`, `whole` or `real` numbers, `flag`s, or a `list<TYPE>`; the smallest whole number."""

    values: str
    nullable: bool = False
    least: int = 0


def _layout(*, some: str = "", marked: str = "", **names: str) -> dict[str, Column]:
    """Names of columns by what they hold; those in `some` may be null, those in `marked` hold -1 for what is not there."""
    nullable, below = some.split(), marked.split()
    return {name: Column(values, name in nullable, -1 if name in below else 0) for values, of in names.items() for name in of.split()}


_NLLS = "nll_reference nll_model ppl_reference ppl_model delta_nll gap_share"
_BUCKETS = {
    "whole": "low high tokens",
    "real": f"share_of_tokens {_NLLS}",
    "some": "nll_reference nll_model ppl_reference ppl_model delta_nll gap_share",
}
_RECALL_BUCKETS = _layout(text="model task", whole="low high num_rows", real="accuracy answer_nll", some="answer_nll")
_SPREAD = ("_low", "_high", "_difference", "_difference_low", "_difference_high")
_MQAR_SHARES = " ".join(f"{name}{end}" for name in ("accuracy", "ar_nll", "filler_accuracy", "filler_nll") for end in ("", *_SPREAD))
_FIGURES = ("repeated_bigrams", "distinct_bigrams", "repeated_share", "ar_hit_share")
_PROFILE_FIGURES = " ".join(f"{name}{end}" for name in _FIGURES for end in ("", "_ci_low", "_ci_high"))
_FITTED = "alpha alpha_ci_low alpha_ci_high tail_share ks gain_geometric gain_lognormal gain_exposed alpha_exposed"
_ERRORS = "standard_error ci_low ci_high difference_error difference_low difference_high"

LAYOUTS: Mapping[str, Mapping[str, Column]] = {
    "sequences": _layout(
        text="source text",
        whole="sequence document",
        **{"list<uint32>": "tokens", "list<int32>": "span_starts span_documents", "list<string>": "span_sources"},
    ),
    "tokens": _layout(
        text="source",
        whole="sequence position document prev_token token distance occurrences match_length train_count",
        flag="repeated ar_hit",
        some="distance train_count ar_hit",
    ),
    "scores": _layout(whole="sequence position argmax rank context", real="nll", flag="exact", marked="argmax rank"),
    "gap/gap": _layout(
        text="reference model source slice note",
        whole="tokens bytes",
        real=f"share_of_tokens {_NLLS} bpb_reference bpb_model delta_ci_low delta_ci_high gap_share_clipped ci_low ci_high",
        some=f"bytes {_NLLS} bpb_reference bpb_model delta_ci_low delta_ci_high gap_share_clipped ci_low ci_high",
    ),
    "gap/by_count": _layout(text="reference model", flag="repeated", **_BUCKETS),
    "gap/by_distance": _layout(text="reference model", flag="ar_hit", **_BUCKETS),
    "gap/by_match": _layout(text="reference model", flag="ar_hit", **_BUCKETS),
    "gap/by_position": _layout(text="reference model slice", **_BUCKETS),
    "gap/by_partition": _layout(
        text="reference model slice",
        whole="tokens",
        real=f"share_of_tokens {_NLLS} ci_low ci_high",
        some=f"{_NLLS} ci_low ci_high",
    ),
    "gap/by_threshold": _layout(
        text="reference model note",
        whole="threshold tokens",
        real=f"share_of_tokens {_NLLS} gap_share_clipped ci_low ci_high",
        some=f"{_NLLS} gap_share_clipped ci_low ci_high",
    ),
    "profile/profile": _layout(
        text="source note",
        whole="tokens groups content_tokens content_repeated repeated ar_hits",
        real=_PROFILE_FIGURES,
        some=f"ar_hits {_PROFILE_FIGURES}",
    ),
    "profile/distances": _layout(text="source", whole="distance repeated content ar_hits", some="ar_hits"),
    "profile/positions": _layout(
        text="source",
        whole="low high tokens content_tokens repeated content_repeated ar_hits",
        real="repeated_share content_repeated_share ar_hit_share",
        some="ar_hits repeated_share content_repeated_share ar_hit_share",
    ),
    "profile/fits": _layout(
        text="source kind note",
        whole="distances median_distance x_min x_max tail_tokens",
        real=_FITTED,
        some=f"median_distance x_min x_max tail_tokens {_FITTED}",
    ),
    "recall documents": _layout(
        text="model task prompt cut doc_id key value generation",
        small="version",
        whole="row prompt_tokens tokens_cut answer_tokens answer_distance occurrences",
        flag="truncated answer_cut contains contains_any",
        real="answer_nll",
        some="key contains_any answer_nll answer_tokens answer_distance occurrences",
        marked="answer_distance",
    ),
    "recall/recall": _layout(
        text="reference model task prompt cut tokenizer",
        whole="version num_rows num_documents truncated answer_cut absent multiline empty dropped",
        flag="comparable",
        real=f"accuracy accuracy_any answer_nll answer_nats difference {_ERRORS}",
        some=f"accuracy_any answer_nll answer_nats {_ERRORS}",
    ),
    "recall/by_distance": _RECALL_BUCKETS,
    "recall/by_occurrences": _RECALL_BUCKETS,
    "recall/by_length": _RECALL_BUCKETS,
    "mqar queries": _layout(whole="pairs sample pair place distance rank", real="nll", flag="right"),
    "mqar fillers": _layout(whole="pairs sample filler_tokens filler_right", real="filler_nll"),
    "mqar/mqar": _layout(
        text="reference model tokenizer",
        whole="pairs length seed num_samples ar_tokens filler_tokens",
        real=f"power ar_ppl filler_ppl {_MQAR_SHARES}",
        some=f"ar_ppl filler_ppl {_MQAR_SHARES}",
    ),
    "mqar/by_distance": _layout(
        text="model", whole="pairs low high num_queries", real="accuracy ar_nll ar_ppl", some="accuracy ar_nll ar_ppl"
    ),
}
"""Columns of every table. A comparison's tables are named RESULT/TABLE, others by the kind in their manifests. More columns are no harm."""

_ADDED = {("tokens", "match_length"): "sliced before match_length existed"}
"""Columns that came later: what is said of tables without them."""

_WORDS = {"text": "text", "whole": "whole numbers", "small": "whole numbers", "real": "numbers", "flag": "true or false"}


def check_schema(schema: pa.Schema, layout: str, path: Path, *, remedy: str = _AGAIN, columns: Iterable[str] | None = None) -> None:
    """Raises UserError where a table lacks a column of its layout (of `columns`, if given), or one is of another type."""
    for name, column in LAYOUTS[layout].items():
        if columns is not None and name not in columns:
            continue
        places = schema.get_all_field_indices(name)
        if len(places) != 1:
            number = f"{len(places)} columns" if places else "no column"
            raise UserError(_ADDED.get((layout, name), f"damaged ({number} {name})"), where=path, remedy=remedy)
        if not _is_of(schema.field(places[0]).type, column):
            kind, wanted = schema.field(places[0]).type, _WORDS.get(column.values, column.values)
            raise UserError(f"damaged (column {name} holds {kind}, not {wanted})", where=path, remedy=remedy)


def _is_of(kind: pa.DataType, column: Column) -> bool:
    import pyarrow as pa

    if pa.types.is_null(kind):
        return column.nullable
    if column.values.startswith("list"):
        return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind)) and f"list<{kind.value_type}>" == column.values
    if column.values in ("whole", "small"):  # sums of narrower numbers would overflow where they are added up
        return bool(pa.types.is_integer(kind)) and (column.values == "small" or kind.bit_width >= 32)
    if column.values == "real":
        return bool(pa.types.is_floating(kind)) and kind.bit_width >= 32
    if column.values == "flag":
        return bool(pa.types.is_boolean(kind))
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(inner) or pa.types.is_large_string(inner))


def check_values(table: pa.Table, layout: str, path: Path, *, remedy: str = _AGAIN, most: Mapping[str, int] | None = None) -> None:
    """Raises UserError for nulls and numbers where a layout's columns, those that are there, have none; `most`: largest numbers."""
    import pyarrow.compute as pc

    for name in table.column_names:
        column = LAYOUTS[layout].get(name)
        if column is None:
            continue
        values = table[name]
        if values.null_count and not column.nullable:
            raise UserError(f"column {name} misses values", where=path, remedy=remedy)
        if column.values in ("whole", "small") and values.null_count < len(values):
            found, largest = pc.min_max(values).as_py(), (most or {}).get(name, config.MOST * 2 - 1)
            if found["min"] < column.least or found["max"] > largest:
                raise UserError(f"damaged (column {name} is not within {column.least}..{largest})", where=path, remedy=remedy)


def check_sequences(group: pa.Table, manifest: Mapping[str, Any], path: Path, *, remedy: str = _AGAIN) -> None:
    """Raises UserError where rows of `sequences.parquet` (`tokens`, and the spans if they are there) are no sequences."""
    import numpy as np

    check_values(group, "sequences", path, remedy=remedy)
    ids, bounds = _flat(group, "tokens", path, remedy)
    lengths = np.diff(bounds)
    is_sound = bool(lengths.size) and lengths.min() > 1 and lengths.max() <= manifest["seq_len"] + 1
    is_sound = is_sound and ids.max() < manifest["tokenizer"]["vocab_size"]
    if is_sound and "span_starts" in group.column_names:
        starts, edges = _flat(group, "span_starts", path, remedy)
        alike = all(np.array_equal(_flat(group, name, path, remedy)[1], edges) for name in ("span_documents", "span_sources"))
        is_sound = alike and _are_spans(starts, edges, bounds)
    if not is_sound:
        raise UserError("damaged (rows that are no sequences)", where=path, remedy=remedy)


def _are_spans(starts: np.ndarray, edges: np.ndarray, bounds: np.ndarray) -> bool:
    """Whether spans that begin at `starts`, those of sequence i from `edges[i]` on, divide the ids of sequence i, from `bounds[i]` on."""
    import numpy as np

    per_sequence = np.diff(edges)
    if per_sequence.min() < 1:
        return False
    begins = starts + np.repeat(bounds[:-1], per_sequence)
    rises = (np.diff(begins, append=bounds[-1]) > 0).all()
    return bool(rises and np.array_equal(begins[edges[:-1]], bounds[:-1]))


def _flat(group: pa.Table, name: str, path: Path, remedy: str) -> tuple[Any, Any]:
    """The elements of a column of lists and where each list begins and the last one ends. Raises UserError for elements that are null."""
    lists = group[name].combine_chunks()
    elements, offsets = lists.flatten(), lists.offsets.to_numpy()
    if elements.null_count:
        raise UserError(f"column {name} misses values", where=path, remedy=remedy)
    return elements if name == "span_sources" else elements.to_numpy(), (offsets - offsets[0]).astype("int64")


def read_table(path: Path, layout: str, *, schema: pa.Schema | None = None, remedy: str = _AGAIN) -> pa.Table:
    """A small table of ours as its layout says, every page of it checked; with `schema` just its columns, of just its types.

    Raises UserError where it is damaged or another one.
    """
    import pyarrow.parquet as pq

    with refusing_damage(path, remedy), pq.ParquetFile(path, page_checksum_verification=True) as file:
        check_schema(file.schema_arrow, layout, path, remedy=remedy)
        table = file.read()
        table.validate(full=True)
        if schema is not None:
            table = table.select(schema.names).cast(schema)
    check_values(table, layout, path, remedy=remedy)
    return table


def read_frame(path: Path, layout: str, *, schema: pa.Schema | None = None, remedy: str = _AGAIN) -> pl.DataFrame:
    """`read_table` as a polars frame."""
    import polars as pl

    return pl.DataFrame(read_table(path, layout, schema=schema, remedy=remedy))


@contextlib.contextmanager
def refusing_damage(path: Path, remedy: str = _AGAIN) -> Iterator[None]:
    """What Arrow raises in this block, reading `path`, as a UserError."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if lacks_resources(error):
            raise
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"damaged ({first_line})", where=path, remedy=remedy) from error


# ------------------------------------------------------------------------------------------------------------- manifests


class Manifest(dict[str, Any]):
    """A manifest, or an object in it: an entry that is asked for and missing is a UserError that names it."""

    path: Path | str = "a manifest"

    def __missing__(self, key: str) -> Any:
        raise UserError(f"its manifest tells no {key}", where=self.path, remedy=_AGAIN)


def check_manifest(manifest: Mapping[str, Any], path: Path) -> Manifest:
    """The manifest, entries that any reader relies on checked. Raises UserError where one is of another kind than it should be."""
    checked: Manifest = _guarded(manifest, path)
    for name, is_right in _ENTRIES.items():
        if name in manifest and not is_right(manifest[name]):
            raise UserError(f"its manifest is damaged (at {name})", where=path, remedy=_AGAIN)
    for facts in (manifest, manifest.get("slices")):
        if isinstance(facts, dict) and facts.get("counts") is not None and facts.get("max_count", 0) is None:
            raise UserError("its manifest is damaged (at max_count)", where=path, remedy=_AGAIN)
    return checked


def _guarded(value: Any, path: Path) -> Any:
    if isinstance(value, dict):
        guarded = Manifest((key, _guarded(item, path)) for key, item in value.items())
        guarded.path = path
        return guarded
    return value


def _is_text(value: Any) -> bool:
    """Text that can be written: JSON can hold halves of characters."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _whole(least: int = 0, most: int = config.MOST) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _maybe(inner: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or inner(value)


def _either(*inner: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: any(is_right(value) for is_right in inner)


def _list_of(inner: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(inner, value))


def _with(**entries: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """An object that may have these entries."""
    return lambda value: isinstance(value, dict) and all(is_right(value[name]) for name, is_right in entries.items() if name in value)


def _each(inner: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """An object of such values."""
    return lambda value: isinstance(value, dict) and all(map(_is_text, value)) and all(map(inner, value.values()))


def _is_bytes_row(value: Any) -> bool:
    """[source, bytes, bytes in AR hits or null]"""
    is_count = _whole()
    return isinstance(value, list) and len(value) == 3 and _is_text(value[0]) and is_count(value[1]) and _maybe(is_count)(value[2])


_is_count = _whole()
_is_tokenizer = _with(name=_is_text, digest=_is_text, vocab_size=_whole(1, 1 << 32), end_token=_is_text, end_token_id=_whole(0, 1 << 32))
_is_vocabulary = _with(digest=_is_text, filler=_is_count, filler_text=_is_text, num_keys=_is_count, num_values=_is_count)
_MOST_OF_ANY_RATE = 10**40
"""A rate times the number of training tokens is a threshold, however large."""
_SLICES: dict[str, Callable[[Any], bool]] = {
    "boundary": _is_text,
    "counts": _maybe(_with(id=_is_text, path=_is_text, num_tokens=_is_count, num_bigrams=_is_count)),
    "max_count": _maybe(_whole(0, _MOST_OF_ANY_RATE)),
    "num_rows": _is_count,
    "num_sequences": _is_count,
    "seq_len": _whole(1, config.LONGEST),
    "sequences_digest": _is_text,
    "tokenizer": _maybe(_is_tokenizer),
}
_OPTIONS = _with(
    dtype=_maybe(_is_text),
    context=_maybe(_is_count),
    stride=_maybe(_is_count),
    tokenizer=_either(_is_text, _with(given=_maybe(_is_text))),
    version=_is_count,
    prompt=_is_text,
    cut=_is_text,
)
_ENTRIES: dict[str, Callable[[Any], bool]] = {
    **_SLICES,
    **dict.fromkeys(("kind", "model", "recallkit_version", "origin", "counts_id", "filler_text"), _is_text),
    **dict.fromkeys(("batch_tokens", "num_dropped", "num_samples", "length", "seed", "num_groups", "num_tokens", "longest"), _is_count),
    "comparable": lambda value: isinstance(value, bool),
    "inexact": _each(_each(_is_real)),
    "models": _list_of(_is_text),
    "names": _list_of(_is_text),
    "num_bytes": _maybe(_either(_is_count, _list_of(_is_bytes_row))),
    "of_models": _each(_with(tokenizer=_is_tokenizer, vocabulary=_is_vocabulary)),
    "options": _OPTIONS,
    "pairs": _either(_is_count, _list_of(_is_count)),
    "power": _is_real,
    "scores": _each(_OPTIONS),
    "slice": _list_of(_is_text),
    "slices": lambda value: not isinstance(value, dict) or _with(**_SLICES)(value),  # what it should be a comparison says
    "stop_words": _with(name=_is_text, num_words=_is_count),
    "tasks": _list_of(_is_text),
    "vocabulary": _is_vocabulary,
}
"""Entries of manifests, of whatever table: what they are wherever they stand."""
