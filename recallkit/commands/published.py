"""`published`: the gap's arithmetic on printed perplexities, and the papers' tables as numbers."""

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated

from recallkit.commands.adapter import Outcome, command
from recallkit.declarations import Argument, File, Option, path
from recallkit.options import LogOptions, out_option

if TYPE_CHECKING:
    import polars as pl

    from recallkit.attribution.published import PublishedGap


@dataclass(frozen=True)
class Published(LogOptions):
    """Which table is divided, and how."""

    table: Annotated[
        File,
        Argument(
            "A CSV with columns model, all, ar, other, or a paper's table, such as zoology:4 or based:1 (docs/papers.md).", metavar="TABLE"
        ),
    ]
    _: KW_ONLY
    reference: Annotated[
        str | None, Option("The model that others are compared with; the first row, or that of each group, if not given.", metavar="NAME")
    ] = None
    ar_share: Annotated[float | None, Option("The share of AR tokens, if not to be derived from the reference's row.", metavar="SHARE")] = (
        None
    )
    out: Annotated[File | None, out_option("Where --export writes.")] = None


@command("published", Published, examples=("recallkit published zoology:4",), exports=True)
def published(asked: Published) -> Outcome["PublishedGap"]:
    """Divide the gap between printed perplexities: how much of it lies in AR hits, by a paper's table or one of your own.

    By default `reference` is the first row (of each group, if there is a column `group`), and `ar_share`, the share of AR hits, follows
    from its three perplexities. A column `printed` with the share that the table states, in percent, is compared.
    """
    from recallkit.attribution import papers
    from recallkit.attribution.published import attribute_published
    from recallkit.attribution.view import print_published, published_json, published_tables

    named = str(asked.table)
    table = papers.table_path(named) if papers.is_name(named) else path(asked.table)
    found = attribute_published(table, reference=asked.reference, ar_share=asked.ar_share)
    return Outcome(
        value=lambda: found,
        show=lambda: print_published(found),
        json=lambda: published_json(found),
        exports=lambda: [({"published": found.frame}, published_tables(found), path(asked.out))],
    )


def paper_table(name: str) -> "pl.DataFrame":
    """A table that a paper prints, as numbers: `zoology:1` to `:5`, `based:1` to `:6`, `yun:1` and `:2` (docs/papers.md)."""
    from recallkit.attribution import papers

    return papers.read_table(name)
