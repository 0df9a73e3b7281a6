"""A file of recorded NLLs, read in pieces in the order of `tokens.parquet`: an array is mapped into
memory, a table streamed, so that memory does not grow with the text. docs/nlls.md is the format."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.errors import UserError, lacks_resources
from recallkit.models.prefix import AS_RECORDED
from recallkit.models.recorded import FORMAT, TABLES, VERSION
from recallkit.storage import given_files
from recallkit.text.arrow_messages import check_batches
from recallkit.text.special_tokens import NO_PREFIX, Prefix

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from recallkit.models.plan import ModelPlan
    from recallkit.text.tokenizers import TextTokenizer

BESIDE = ("argmax", "rank")
"""What a file may have of each token besides its NLL."""

FACTS: Mapping[str, type] = {"version": int, "sequences_digest": str, "unit": str, "prefix": int}
"""What may be stated: in a file's own metadata, or in NAME.json beside it.

`unit` is `nats`; `prefix` is the id that the model read before every sequence, -1 for none.
"""


def prefix_of(plan: ModelPlan, tokenizer: TextTokenizer) -> Prefix:
    """What the model read before every sequence, if that is stated. Raises UserError for an id that
    the tokenizer does not have."""
    number = facts_of(Path(plan.location)).get("prefix")
    if number is None:
        return NO_PREFIX
    if number < 0:
        return Prefix((), "", AS_RECORDED)
    if number >= tokenizer.vocab_size:
        problem = f"prefix {number} is no id of {tokenizer.name}"
        raise UserError(problem, where=plan.name, remedy="give the id of the slices' tokenizer")
    return Prefix((number,), tokenizer.generated_text([number], special=True), AS_RECORDED)


def facts_of(path: Path) -> dict[str, Any]:
    """What is stated of a file, by the names of FACTS; NAME.json comes before its own metadata.

    Raises UserError for a value of another type, for another version, and for a unit that is not
    nats.
    """
    beside = path.with_suffix(".json")
    where, stated = path, _metadata(path)
    if beside.is_file():
        where, stated = beside, stated | _json_object(beside)
    facts = {name: stated[name] for name in FACTS if name in stated}
    for name, value in facts.items():
        if type(value) is not FACTS[name]:
            problem = f"{name} is {value!r}, not a {FACTS[name].__name__}"
            raise UserError(problem, where=where, remedy=FORMAT)
    if facts.get("version", VERSION) != VERSION:
        problem = f"version {facts['version']} of the format, and this recallkit reads {VERSION}"
        raise UserError(problem, where=where, remedy="write it again")
    unit = facts.get("unit", "nats")
    if unit != "nats":
        remedy = "write natural logarithms, with unit nats"
        raise UserError(f"in {unit}, not in nats", where=where, remedy=remedy)
    return facts


def _json_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(given_files.read_file(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"not JSON ({error})", where=path, remedy=FORMAT) from error
    if not isinstance(value, dict):
        raise UserError("not a JSON object", where=path, remedy=FORMAT)
    return value


def _metadata(path: Path) -> dict[str, Any]:
    """The metadata of a table or of a safetensors file; all values are strings there."""
    facts: dict[str, Any] = {}
    with _readable(path):
        if path.suffix in TABLES:
            metadata = _dataset(path).schema.metadata or {}
            names = [name for name in FACTS if name.encode() in metadata]
            facts = {name: metadata[name.encode()].decode() for name in names}
        elif path.suffix == ".safetensors":
            with _open_tensors(path) as tensors:
                facts = tensors.metadata() or {}
    for name, kind in FACTS.items():
        if kind is int and name in facts:
            with contextlib.suppress(ValueError):  # it is refused as a string
                facts[name] = int(facts[name])
    return facts


def _check_integers(schema: pa.Schema, names: list[str], path: Path) -> None:
    """Raises UserError for columns of another type, which may take any memory."""
    import pyarrow as pa

    for name in names:
        kind = schema.field(name).type
        if not pa.types.is_integer(kind):
            problem = f"{name} is of type {kind}, not whole numbers"
            raise UserError(problem, where=path, remedy=f"write int32, or leave out {name}")


# ---------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive rows of `tokens.parquet`: whole sequences, from number `first` on.

    `start`: the first row's number; `lengths` (sequences,): the predictions of each.
    """

    start: int
    first: int
    lengths: np.ndarray

    @property
    def stop(self) -> int:
        """The number of the row after the last."""
        return self.start + int(self.lengths.sum())


class Recording:
    """An open file of recorded NLLs of `num_rows` tokens in `num_sequences` sequences, of which a
    whole one has `seq_len` predictions.

    `dtype` is that of its NLLs. Raises UserError for a file of another form, or of other amounts.
    """

    def __init__(self, path: Path, num_rows: int, num_sequences: int, seq_len: int) -> None:
        self.path = path
        self._num_rows = num_rows
        with _readable(path):
            if path.suffix in TABLES:
                self._open_table(path)
            else:
                self._open_arrays(path, [(num_rows,), (num_sequences, seq_len)])
        if self.dtype not in (np.float16, np.float32, np.float64):
            problem = f"NLLs of type {self.dtype}"
            raise UserError(problem, where=path, remedy="write float16, float32 or float64")

    def _open_table(self, path: Path) -> None:
        dataset, names = _dataset(path), ["sequence", "position", "nll"]
        schema = dataset.schema
        if lacking := [name for name in names if name not in schema.names]:
            problem = f"no column {lacking[0]}"
            raise UserError(problem, where=path, remedy=f"write the columns {', '.join(names)}")
        names += [name for name in BESIDE if name in schema.names]
        _check_integers(schema, [name for name in names if name != "nll"], path)
        self.dtype = np.dtype(schema.field("nll").type.to_pandas_dtype())
        self._rows = _Pieces(dataset.to_batches(columns=names))

    def _open_arrays(self, path: Path, shapes: list[tuple[int, ...]]) -> None:
        arrays = _tensors(path) if path.suffix == ".safetensors" else {"nll": _mapped(path)}
        self.dtype = arrays["nll"].dtype
        for name, array in arrays.items():
            if array.shape not in shapes:
                [flat], grid = shapes
                problem = f"{name} has the shape {array.shape}"
                remedy = f"write ({flat},) or {grid}: the first id of a sequence is not predicted"
                raise UserError(problem, where=path, remedy=remedy)
        self._arrays = arrays

    def read(self, rows: Rows) -> dict[str, np.ndarray]:
        """The next rows: `nll`, what the file has of BESIDE, and of a table `sequence` and
        `position`. A table is read in order, each row once.

        Raises UserError where a table has fewer rows, or more behind the last.
        """
        if self.path.suffix not in TABLES:
            return {name: _of_rows(array, rows) for name, array in self._arrays.items()}
        with _readable(self.path):
            table = self._rows.take(rows.stop - rows.start)
            is_last = rows.stop == self._num_rows
            rest = self._rows.take(1).num_rows if is_last else 0
        if rest or table.num_rows < rows.stop - rows.start:
            amount = "more" if rest else f"{rows.start + table.num_rows:,}"
            problem = f"{amount} rows for {self._num_rows:,} predicted tokens"
            raise UserError(problem, where=self.path, remedy="write one row for each")
        return {name: table[name].to_numpy() for name in table.column_names}


def _of_rows(array: Any, rows: Rows) -> np.ndarray:
    """The values of rows in an array of one value a row, or of one row a sequence, whose values
    behind a shorter sequence's end are not read.

    Example: lengths 3, 2 of rows [[1, 2, 3], [4, 5, x]] are 1 2 3 4 5.
    """
    if array.ndim == 1:
        return np.asarray(array[rows.start : rows.stop])
    grid = np.asarray(array[rows.first : rows.first + len(rows.lengths)])
    return grid[np.arange(grid.shape[1]) < rows.lengths[:, None]]


class _Pieces:
    """Record batches, from which any number of rows is taken at a time."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches, self._waiting = batches, list[Any]()

    def take(self, number: int) -> pa.Table:
        """The next `number` rows, fewer at the end."""
        import pyarrow as pa

        while sum(batch.num_rows for batch in self._waiting) < number:
            batch = next(self._batches, None)
            if batch is None:
                break
            self._waiting.append(batch)
        if not self._waiting:
            return pa.table({})
        table = pa.Table.from_batches(self._waiting)
        self._waiting = table.slice(number).to_batches()
        return table.slice(0, number)


def _dataset(path: Path) -> Any:
    """A table, of which schema and record batches are read when they are needed."""
    from pyarrow import OSFile, dataset

    if path.suffix != ".parquet":
        with OSFile(str(path)) as file:
            check_batches(file, str(path))
    return dataset.dataset(path, format="parquet" if path.suffix == ".parquet" else "ipc")


def _open_tensors(path: Path) -> Any:
    from safetensors import safe_open

    return safe_open(path, framework="numpy")


def _mapped(path: Path) -> np.ndarray:
    array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def _tensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors `nll` and those of BESIDE."""
    with _open_tensors(path) as tensors:
        names = tensors.keys()
        return {name: tensors.get_tensor(name) for name in ("nll", *BESIDE) if name in names}


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """A block in which a damaged file raises UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # of pyarrow, numpy and safetensors, which have no common kind
        if lacks_resources(error):
            raise
        first = (str(error) or type(error).__name__).splitlines()[0]
        problem = f"cannot be read as {path.suffix} ({first})"
        raise UserError(problem, where=path, remedy="write it again; " + FORMAT) from error
