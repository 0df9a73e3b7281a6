"""`build-rows`."""

from typing import TYPE_CHECKING, Annotated

from recallkit import config
from recallkit.commands import options as opt
from recallkit.commands.adapter import Argument, File, Option, Outcome, command

if TYPE_CHECKING:
    from recallkit.recall.building import BuiltRows


@command(
    "build-rows",
    examples=(
        "recallkit build-rows filings.jsonl -o fda.jsonl --tokenizer gpt2.json",
        "recallkit eval-recall path/to/model --data fda.jsonl",
    ),
)
def build_rows(
    documents: Annotated[File, Argument("Documents with text and pairs: JSON Lines, JSON or Parquet.", metavar="FILE")],
    out: Annotated[File, opt.out("The JSON Lines file to write.", metavar="FILE")],
    *,
    tokenizer: opt.Tokenizer = None,
    chunk_tokens: Annotated[int, Option("Tokens of a chunk, as many as Based's.", least=1, most=1 << 20)] = config.CHUNK_TOKENS,
    force: opt.Force = False,
) -> Outcome["BuiltRows"]:
    """Build rows for `eval-recall --data` from documents with known pairs, as SWDE and FDA were: a prompt for each pair in each chunk.

    A record has `text` and `pairs`, {KEY: VALUE}. It is divided into chunks; for each pair whose value a chunk contains there is a row.
    """
    from recallkit.recall.building import build_rows as build
    from recallkit.recall.view import built_json, print_built

    built = build(opt.path(documents), opt.path(out), tokenizer=opt.text(tokenizer), chunk_tokens=chunk_tokens, force=force)
    return Outcome(value=lambda: built, show=lambda: print_built(built), json=lambda: built_json(built))
