"""`build-rows`."""

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated

from recallkit import config
from recallkit.commands.adapter import Outcome, command
from recallkit.declarations import Argument, File, Option, path, text
from recallkit.options import ForceOptions, Tokenizer, out_option

if TYPE_CHECKING:
    from recallkit.recall.rows import BuiltRows


@dataclass(frozen=True)
class BuildRows(ForceOptions):
    """Of which documents rows are made, and how."""

    documents: Annotated[File, Argument("Documents with text and pairs: JSON Lines, JSON or Parquet.", metavar="FILE")]
    out: Annotated[File, out_option("The JSON Lines file to write.", metavar="FILE")]
    _: KW_ONLY
    tokenizer: Tokenizer = None
    chunk_tokens: Annotated[int, Option("Tokens of a chunk, as many as Based's.", least=1, most=1 << 20)] = config.CHUNK_TOKENS


@command(
    "build-rows",
    BuildRows,
    examples=(
        "recallkit build-rows filings.jsonl -o fda.jsonl --tokenizer gpt2.json",
        "recallkit eval-recall path/to/model --data fda.jsonl",
    ),
)
def build_rows(asked: BuildRows) -> Outcome["BuiltRows"]:
    """Build rows for `eval-recall --data` from documents with known pairs, as SWDE and FDA were: a prompt for each pair in each chunk.

    A record has `text` and `pairs`, {KEY: VALUE}. It is divided into chunks; for each pair whose value a chunk contains there is a row.
    """
    from recallkit.recall.rows import build_rows as build
    from recallkit.recall.view import built_json, print_built

    built = build(
        path(asked.documents), path(asked.out), tokenizer=text(asked.tokenizer), chunk_tokens=asked.chunk_tokens, force=asked.force
    )
    return Outcome(value=lambda: built, show=lambda: print_built(built), json=lambda: built_json(built))
