"""Models scored and compared: `score` and `gap`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recallkit import config
from recallkit.commands.app import EXIT_FAILED, app
from recallkit.options import (
    Address,
    BatchTokens,
    CarryState,
    Check,
    Context,
    Counts,
    Device,
    Dtype,
    Engine,
    EngineChoice,
    Export,
    Force,
    Json,
    ModelTokenizer,
    Share,
    Slices,
    Stride,
    TrustRemoteCode,
    Workers,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


@app.command()
def score(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...", help="Models to score (see `recallkit models`); the trained ones of the zoo if none.", show_default=False
        ),
    ] = None,
    slices: Slices = None,
    counts: Counts = None,
    device: Device = "auto",
    dtype: Dtype = None,
    batch_tokens: BatchTokens = None,
    model_tokenizer: ModelTokenizer = None,
    context: Context = None,
    stride: Stride = None,
    carry_state: CarryState = False,
    trust_remote_code: TrustRemoteCode = False,
    workers: Workers = 1,
    engine: Engine = EngineChoice.local,
    address: Address = None,
    share: Share = None,
    check: Check = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Score every predicted token with a model: NLL (nats), argmax and rank to Parquet; resumes."""
    from recallkit import builtin, scoring
    from recallkit.display import console
    from recallkit.models.kinds import kind_of
    from recallkit.scoring.view import print_checks, print_scores, print_shares, scores_json

    if share is not None and (force or check or engine is EngineChoice.ray):
        raise typer.BadParameter("--share goes with none of --force, --check and --engine ray")
    options = scoring.ScoringOptions(
        counts,
        device,
        dtype.value if dtype else None,
        batch_tokens,
        force,
        model_tokenizer,
        context,
        stride,
        carry_state,
        trust_remote_code,
        workers,
        engine.value,
        address,
        _share(share),
    )
    folder = slices or builtin.slices()
    names = models or list(builtin.MODELS)
    manifests = {name: scoring.score(name, folder, options) for name in names}
    if share is not None:
        console.print_json(manifests) if as_json else print_shares(manifests)
        return
    checks = {name: scoring.check_scores(name, folder, options) for name in names if check and not kind_of(name).is_control}
    if as_json:
        console.print_json([scores_json(folder, name, manifests[name], checks.get(name)) for name in names])
        return
    print_scores(folder, manifests)
    if checks:
        print_checks(checks)


@app.command()
def gap(
    reference: Annotated[str | None, typer.Argument(help="The reference, usually the attention model.", show_default=False)] = None,
    models: Annotated[list[str] | None, typer.Argument(metavar="[MODEL]...", help="Models to compare with it.", show_default=False)] = None,
    slices: Slices = None,
    slice_: Annotated[
        list[str] | None,
        typer.Option(
            "--slice",
            metavar="NAME",
            help="A further slice, by name (repeated, first_rare, copy:kN), or as 'NAME=EXPRESSION' over columns of tokens.parquet, "
            "such as 'far=distance > 100'. May be repeated.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="DIR", help="Directory of the result tables.  \\[default: a folder in the slices]", show_default=False
        ),
    ] = None,
    counts: Counts = None,
    device: Device = "auto",
    dtype: Dtype = None,
    batch_tokens: BatchTokens = None,
    trust_remote_code: TrustRemoteCode = False,
    workers: Workers = 1,
    table: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Do the arithmetic on printed perplexities instead: a CSV with columns model, all, ar, other.",
            show_default=False,
        ),
    ] = None,
    ar_share: Annotated[
        float | None,
        typer.Option(help="With --table: the share of AR tokens, if not to be derived from the reference's row.", show_default=False),
    ] = None,
    fail_above: Annotated[
        float | None,
        typer.Option(
            metavar="NATS", help="Exit 1 if a model's NLL on AR hits is more than this above the reference's.", show_default=False
        ),
    ] = None,
    export: Export = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Attribute the perplexity gap between REFERENCE and each MODEL to AR hits and other tokens, with 95 % intervals."""
    from recallkit import attribution, builtin, scoring
    from recallkit.attribution.view import gap_json, gap_tables, print_gap, worst_ar_gap
    from recallkit.display import console, exports
    from recallkit.display.files import print_files
    from recallkit.slicing.definitions import parse_slices
    from recallkit.slicing.view import manifest_of

    if table is not None and slice_:
        raise typer.BadParameter("--slice needs models, not a --table")
    if table is not None and fail_above is not None:
        raise typer.BadParameter("--fail-above needs models, not a --table")
    if table is not None:
        _attribute_printed(table, reference, ar_share, out, export or (), as_json)
        return
    if reference is not None and not models:
        raise typer.BadParameter("name at least one model to compare with the reference")
    compared = (reference, *(models or ())) if reference is not None else builtin.MODELS
    folder = slices or builtin.slices()
    given = parse_slices(slice_ or ())
    target = out or attribution.gap_path(folder, compared[0], compared[1:], given)
    options = scoring.ScoringOptions(
        counts, device, dtype.value if dtype else None, batch_tokens, force, trust_remote_code=trust_remote_code, workers=workers
    )
    tables = attribution.gap(compared[0], compared[1:], folder, target, options, given=given)
    written = exports.export(tables, gap_tables(tables, manifest_of(folder)), target, export or ())
    if as_json:
        console.print_json(gap_json(tables, target))
    else:
        print_gap(tables, manifest_of(folder), target)
        print_files(written)
    if fail_above is not None and worst_ar_gap(tables) > fail_above:
        console.note(f"a model's NLL on AR hits is more than {fail_above} nats above the reference's")
        raise typer.Exit(EXIT_FAILED)


def _attribute_printed(
    table: Path, reference: str | None, ar_share: float | None, out: Path | None, formats: Sequence[str], as_json: bool
) -> None:
    """`gap --table`: the arithmetic on printed perplexities."""
    from recallkit.attribution.published import attribute_published
    from recallkit.attribution.published_view import print_published, published_json, published_table
    from recallkit.display import console, exports
    from recallkit.display.files import print_files

    if formats and out is None:
        raise typer.BadParameter("--export with --table needs a directory to write to: -o DIR")
    published = attribute_published(table, reference=reference, ar_share=ar_share)
    shown = {"published": published_table(published)}
    written = exports.export({"published": published.frame}, shown, out, formats) if out is not None else []
    if as_json:
        console.print_json(published_json(published))
        return
    print_published(published)
    print_files(written)


def _share(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    place, _, shares = text.partition("/")
    if not (place.isdecimal() and shares.isdecimal() and 1 <= int(place) <= int(shares) <= config.LONGEST):
        raise typer.BadParameter(f"{text!r}: give a share such as 3/16, from 1/16 to 16/16")
    return int(place), int(shares)
