"""Which commands read which of our files: a row here, and a file of that kind is damaged in every way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.harness import Outcome, copy_of, invoke
from tests.fuzz.mutations import Damage


@dataclass(frozen=True, slots=True)
class Target:
    """A file of the folder that `conftest.make` makes (a glob: the first match), and the commands that read it there.

    `gone` are removed before, so that work that is finished is done again.
    """

    file: str
    commands: Sequence[str]
    gone: Sequence[str] = ()

    def run(self, made: Path, damage: Damage) -> list[Outcome]:
        """How the commands end that read a damaged copy."""
        with copy_of(made) as folder:
            damage(next(folder.glob(self.file)))
            for pattern in self.gone:
                for path in folder.glob(pattern):
                    path.unlink()
            return [invoke(*(word.replace("@", str(folder)) for word in command.split())) for command in self.commands]


_SCORE = "score control:bigram --counts @/counts.duckdb --slices @/slices"
_GAP = "gap control:recall control:bigram --counts @/counts.duckdb --slices @/slices --force"
_EVAL = "eval-recall control:copy control:unigram --data @/rows.jsonl --counts @/counts.duckdb -o @/evals"
_MQAR = "mqar control:recall --counts @/counts.duckdb -o @/mqar --pairs 4 --samples 2 --seq-len 32"
_SLICE = "slice @/text.jsonl --counts @/counts.duckdb -o @/slices --seq-len 32"
_COUNT = "count @/text.jsonl -o"

TARGETS = {
    "sequences": Target(
        "slices/sequences.parquet",
        (f"{_SLICE} --max-count 3 --force", _SCORE, "count @/text.jsonl -o @/only.duckdb --only @/slices"),
        ("slices/scores/control-bigram*", "slices/tokens.parquet.gone"),
    ),
    "tokens": Target("slices/tokens.parquet", (_GAP, "profile --slices @/slices -o @/profiled", "tokens @/slices --sequence 1", _SLICE)),
    "scores": Target("slices/scores/control-bigram*.parquet", (_GAP, "tokens @/slices --sequence 1", _SCORE)),
    "gap": Target("slices/gap/*/gap.parquet", ("report @/slices", "tokens @/slices", _GAP.removesuffix(" --force"))),
    "by_count": Target("slices/gap/*/by_count.parquet", ("report @/slices",)),
    "profile": Target("profile/profile.parquet", ("profile --slices @/slices -o @/profile", "report @/profile")),
    "documents": Target("evals/documents/control-copy*/*.parquet", (_EVAL,)),
    "recall": Target("evals/compared/*/recall.parquet", ("report @/evals",)),
    "queries": Target("mqar/queries/*/*.parquet", (_MQAR,)),
    "fillers": Target("mqar/fillers/*/*.parquet", (_MQAR,)),
    "mqar": Target("mqar/compared/*/mqar.parquet", ("report @/mqar",)),
    "bigrams": Target(
        "bigrams.parquet",
        ("count --import @/bigrams.parquet -o @/imported.duckdb", "count @/text.jsonl -o @/counts.duckdb --export @/bigrams.parquet"),
    ),
    "counts": Target(
        "counts.duckdb",
        (
            f"{_SLICE} --force",
            _SCORE,
            f"{_COUNT} @/counts.duckdb --export @/other.parquet",
            "mqar control:recall --counts @/counts.duckdb -o @/new --pairs 4 --samples 2 --seq-len 32",
        ),
        ("slices/scores/control-bigram*",),
    ),
    "tokenizer": Target(
        "slices/tokenizer.json",
        ("tokens @/slices", "slice @/text.jsonl --tokenizer @/slices/tokenizer.json -o @/other --seq-len 16", _SLICE),
    ),
    "rows": Target("rows.jsonl", (_EVAL,)),
    "text": Target("text.jsonl", ("count @/text.jsonl -o @/c.duckdb", "slice @/text.jsonl -o @/other --seq-len 16 --skip-bad")),
}
