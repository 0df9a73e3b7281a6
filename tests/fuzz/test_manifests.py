"""Manifests of strangers: a field that is missing or of another type, with digests that fit, is a
line that names it."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recallkit.storage import artifacts, hashing, parquet_files
from tests.fuzz.harness import assert_manners, assert_refused, copy_of, invoke

_S = "--slices @/slices"
_GAP = f"gap control:recall control:bigram {_S}"
_RECALL = (
    "eval-recall control:copy control:unigram --data @/rows.jsonl --counts @/counts.duckdb -o "
    "@/evals"
)
_MQAR = "mqar control:recall --counts @/counts.duckdb -o @/mqar --pairs 4 --samples 2 --seq-len 32"

USES = {
    "slices/tokens.parquet": [
        "report @/slices -o @/p.html",
        f"{_GAP} --force",
        "tokens @/slices",
        "verify @",
        f"profile {_S} -o @/new",
    ],
    "slices/sequences.parquet": ["tokens @/slices", f"score control:unigram {_S}", "verify @"],
    "slices/scores/control-recall*.parquet": [
        "report @/slices -o @/p.html",
        f"{_GAP} --force",
        f"score control:recall {_S}",
        "verify @",
    ],
    "slices/gap/*/gap.parquet": [
        "report @/slices -o @/p.html",
        f"{_GAP} --full",
        "tokens @/slices",
        "verify @",
    ],
    "profile/profile.parquet": [
        "report @/profile -o @/p.html",
        f"profile {_S} -o @/profile",
        "verify @",
    ],
    "evals/compared/*/recall.parquet": ["report @/evals -o @/p.html", _RECALL, "verify @"],
    "evals/documents/control-copy*/*.parquet": [_RECALL, f"{_RECALL} --force", "verify @"],
    "mqar/compared/*/mqar.parquet": ["report @/mqar -o @/p.html", _MQAR, "verify @"],
    "mqar/queries/*/*.parquet": [_MQAR, "verify @"],
}
"""A table -> commands that read its manifest."""

GONE = object()
VALUES = [
    None,
    5,
    -1,
    10**12,
    10**400,
    1.5,
    float("nan"),
    True,
    "x",
    "../x",
    "/x",
    [],
    [1],
    {},
    {"a": 1},
    GONE,
    GONE,
]

Place = tuple[str | int, ...]


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Where every part of a JSON value is; of a list only the first."""
    yield place
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value[:1])
        if isinstance(value, list)
        else ()
    )
    for name, part in inner:
        yield from places(part, (*place, name))


def changed(value: Any, place: Place, other: Any) -> Any:
    """A JSON value with another part in a place; as it is where it has no such place."""
    value = copy.deepcopy(value)
    inner = value
    for name in place[:-1]:
        if not isinstance(inner, dict | list) or (isinstance(inner, dict) and name not in inner):
            return value
        inner = inner[name]
    if isinstance(inner, dict | list) and (isinstance(place[-1], int) or place[-1] in inner):
        if other is GONE:
            del inner[place[-1]]
        else:
            inner[place[-1]] = other
    return value


def list_of(path: Path) -> Path:
    """The list that names a file."""
    return next(
        listing
        for listing in artifacts.lists_beside(path)
        if path.name in artifacts.json_object(listing).get("members", {})
    )


def replace_table(path: Path, table: pa.Table) -> None:
    """Puts another table into the place of a result's, with digests that fit."""
    pq.write_table(table, path)
    listing = list_of(path)
    facts = artifacts.read_json(listing)
    facts["members"][path.name] = hashing.describe(path)
    listing.write_text(json.dumps(artifacts.with_digest(facts)))


def rewrite(path: Path, place: Place, other: Any) -> None:
    """Puts another value into the manifest of a result, in its list and in the footers of its
    tables, with digests that fit."""
    listing = list_of(path)
    facts = artifacts.read_json(listing)
    for name in facts["members"]:
        table = path.with_name(name)
        if table.suffix == ".parquet" and (
            listing.name != "manifest.json" or table == path or path.name != "tokens.parquet"
        ):
            content = pq.ParquetFile(table, pre_buffer=False).read(use_threads=False)
            footer = {
                **content.schema.metadata,
                parquet_files.MANIFEST_KEY: json.dumps(
                    changed(parquet_files.footer_facts(table), place, other),
                ).encode(),
            }
            pq.write_table(content.replace_schema_metadata(footer), table)
            facts["members"][name] = hashing.describe(table)
    listing.write_text(json.dumps(artifacts.with_digest(changed(facts, place, other))))


def tries(results: Path) -> list[tuple[str, Place, str]]:
    """Tables, places of their manifests, and commands."""
    rows = []
    for glob, commands in USES.items():
        path = sorted(results.glob(glob))[0]
        manifest = {
            **artifacts.read_json(list_of(path)),
            **(parquet_files.footer_facts(path) or {}),
        }
        rows += [
            (glob, place, command) for place in places(manifest) for command in commands if place
        ]
    return rows


def check(results: Path, seeds: Sequence[int]) -> None:
    """One value each is changed."""
    every = tries(results)
    for seed in seeds:
        drawn = random.Random(seed)
        (glob, place, command), other = drawn.choice(every), drawn.choice(VALUES)
        with copy_of(results) as folder:
            rewrite(sorted(folder.glob(glob))[0], place, other)
            assert_manners(invoke(*(word.replace("@", str(folder)) for word in command.split())))


def test_a_field_of_another_type_is_a_line(results: Path) -> None:
    check(results, range(24))


TABLES = {
    "slices/tokens.parquet": f"{_GAP} --force",
    "slices/scores/control-recall*.parquet": f"{_GAP} --force",
    "slices/gap/*/by_count.parquet": "report @/slices -o @/p.html",
}


@pytest.mark.parametrize(("glob", "command"), TABLES.items(), ids=["labels", "scores", "figures"])
def test_a_column_of_another_type_is_a_line(results: Path, glob: str, command: str) -> None:
    with copy_of(results) as folder:
        path = sorted(folder.glob(glob))[0]
        table = pq.ParquetFile(path, pre_buffer=False).read(use_threads=False)
        for name in table.column_names[:4]:
            place = table.column_names.index(name)
            texts = pa.array([[0]] * table.num_rows)
            for other in (
                table.drop_columns(name),
                table.set_column(place, name, texts),
                table.append_column(name, texts),
            ):
                replace_table(path, other)
                outcome = invoke(*command.replace("@", str(folder)).split())
                assert_refused(
                    outcome,
                    path.name,
                    f"its column {name} is missing or of another type",
                    "--force",
                )


@pytest.mark.slow
def test_a_field_of_another_type_is_a_line_often(results: Path) -> None:
    check(results, range(1000, 1736))
