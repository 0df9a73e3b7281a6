"""What decides a model's scores: options of its own, those that it was scored with, its tokenizer, and all of it as an identity.

And where the scores of a slice directory are: a file for each model, by its name or place, and what is known of it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.declarations import path
from recallkit.errors import UserError
from recallkit.models.kinds import kind_of
from recallkit.models.loading import identify_tokenizer, own_tokenizer, tokenizer_name
from recallkit.models.protocol import ModelRequest
from recallkit.models.recorded import file_for
from recallkit.models.spec import one_model
from recallkit.storage import artifacts
from recallkit.storage.timings import read_timings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from recallkit.models.spec import ModelSpec
    from recallkit.options import ScoringOptions
    from recallkit.scoring.scores import LastIds
    from recallkit.storage.result import Result
    from recallkit.text.special_tokens import Prefix
    from recallkit.text.tokenizers import TextTokenizer


def of_model(options: ScoringOptions, model: ModelSpec) -> ScoringOptions:
    """The options of one model: its own come first."""
    own: dict[str, Any] = {name: getattr(model, name) for name in ("dtype", "context", "stride", "device")}
    chosen = replace(options, **{name: value for name, value in own.items() if value is not None})
    tokenizer = tokenizer_name(options.model_tokenizer if model.tokenizer is None else model.tokenizer)
    return replace(chosen, dtype=chosen.dtype or ("auto" if model.is_live else None), model_tokenizer=tokenizer)


def as_scored(options: ScoringOptions, found: Mapping[str, Any]) -> ScoringOptions:
    """The options, with omitted ones taken from the existing scores."""
    given_window = options.context is not None or options.stride is not None or options.carry_state
    window = {} if given_window else {name: found[name] for name in ("context", "stride", "carry_state") if name in found}
    return replace(
        options,
        dtype=options.dtype or found.get("dtype") or "float32",
        model_tokenizer=options.model_tokenizer or (found.get("tokenizer") or {}).get("given"),
        **window,
    )


def as_recorded(options: ScoringOptions, model: ModelSpec) -> ScoringOptions:
    """The options, without those on how a model is run. Raises UserError where this one has such of its own."""
    for name in ("tokenizer", "dtype", "context", "stride", "device"):
        if getattr(model, name) is not None:
            problem = f"{name}= is of a model that is run, and these are recorded NLLs"
            raise UserError(problem, where=model.shown, remedy="leave it out")
    return replace(options, model_tokenizer=None, context=None, stride=None, carry_state=False)


def remedy(model: ModelSpec, slices: Path, options: ScoringOptions, dtype: str) -> str:
    """What to do about finished scores of another model, or made with other options than these and this precision."""
    given = {
        "--dtype": dtype if dtype != "float32" else None,
        "--model-tokenizer": options.model_tokenizer,
        "--context": options.context,
        "--stride": options.stride,
    }
    flags = [f" {name} {value}" for name, value in given.items() if value is not None]
    typed = "".join([*flags, " --carry-state" * options.carry_state, " --trust-remote-code" * options.trust_remote_code])
    again = "force=True" if model.is_live else f"recallkit score {model.typed()}{typed} --slices {slices} --force"
    again = f"score it again with {again}" if model.is_live else f"score it again: {again}"
    return f"give this model another name, or {again}" if model.is_live or model.name else again


def sequences_of(slices: Path) -> dict[str, Any]:
    """The manifest of the sequences. Raises UserError if the labels beside them are of other sequences."""
    tokens, sequences = (artifacts.read_manifest(slices / f"{name}.parquet") for name in ("tokens", "sequences"))
    if tokens["sequences_digest"] != sequences["sequences_digest"]:
        raise UserError("labels and sequences do not belong together", where=slices, remedy="run `recallkit slice` again with --force")
    return {**sequences, "counts": tokens["counts"]}


def request_of(model: ModelSpec, slices: Path, sequences: Mapping[str, Any], options: ScoringOptions) -> ModelRequest:
    """The model as it is to be loaded for a slice directory."""
    known = sequences["counts"] if options.counts is None else None
    is_recorded = kind_of(model.location).name == "recorded"
    return ModelRequest(
        file_for(model.location, slices) if is_recorded else model.location,
        sequences["tokenizer"]["vocab_size"],
        sequences["largest_id"],
        sequences["tokenizer"],
        counts=path(options.counts) or (Path(known["path"]) if known else None),
        counts_id=known["id"] if known else None,
        device=options.device,
        dtype=options.dtype or "float32",
        trust_remote_code=options.trust_remote_code,
        cuda_graphs=not options.no_cuda_graphs,
        shown=model.shown,
        module=model.path if model.is_live else None,
        ablation=model.ablation,
        variant=model.variant,
    )


def identity_of(request: ModelRequest, sequences: Mapping[str, Any], options: ScoringOptions) -> dict[str, Any]:
    """Everything that determines the numbers; options with their usual values are left out."""
    from recallkit.models.loading import identify_model

    kind = kind_of(request.spec)
    if not kind.is_run and (options.model_tokenizer or options.carry_state):
        problem = f"{kind.called} is of the slices' own tokens and keeps no state"
        raise UserError(problem, where=request.spec, remedy="leave out --model-tokenizer and --carry-state")
    chosen = {
        "tokenizer": identify_tokenizer(request.spec, options.model_tokenizer),
        "prefix": list(request.prefix.ids) or None,
        "context": options.context,
        "stride": options.stride,
        "carry_state": options.carry_state or None,
    }
    return {
        "model_digest": identify_model(request),
        "sequences_digest": sequences["sequences_digest"],
        "dtype": request.dtype if kind.is_run else None,
        **{name: value for name, value in chosen.items() if value is not None},
    }


# ------------------------------------------------------------------------------------------------------ the tokenizer


@dataclass(frozen=True, slots=True)
class ReadTokenizer:
    """The tokenizer whose ids a model reads: its own, by the name under which it is opened, or (None) that of the slices.

    `doubt`: a note for the user where its own is not known.
    """

    name: str | None
    tokenizer: TextTokenizer
    doubt: str = ""

    def other(self, slices: Path, used: Mapping[str, Any]) -> tuple[str, TextTokenizer] | None:
        """The tokenizer with its name, where it gives other ids than the slices' (`used`)."""
        mine = self.tokenizer
        if self.name is None or mine.digest == used["digest"] or _gives_the_same_ids(mine, slices, used):
            return None
        return self.name, mine


def read_tokenizer(request: ModelRequest, given: str | None, slices: Path, used: Mapping[str, Any]) -> ReadTokenizer:
    """The tokenizer whose ids a model reads. Raises UserError for one that is named, or is beside it, and cannot be read."""
    from recallkit.text.tokenizers import load_slices_tokenizer

    name, spec, doubt = given or own_tokenizer(request.spec), request.name, ""
    if name is not None:
        try:
            return ReadTokenizer(name, _load_tokenizer(name, used["end_token"]))
        except UserError as error:
            if given is not None or Path(name).exists():
                remedy = "give another --model-tokenizer" if given else "give the model's tokenizer with --model-tokenizer"
                raise UserError(f"its tokenizer cannot be read ({error.problem})", where=name, remedy=remedy) from error
            doubt = f"{spec}: no tokenizer found ({error.problem}); {used['name']} is assumed"
    elif Path(request.spec).is_dir() or request.module is not None:
        doubt = f"{spec}: no tokenizer beside it; {used['name']} is assumed (to name its own: PATH,tokenizer=...)"
    return ReadTokenizer(None, load_slices_tokenizer(slices, used), doubt)


def with_tokenizer(request: ModelRequest, tokenizer: TextTokenizer) -> ModelRequest:
    """The request of a model that reads another tokenizer's ids."""
    return replace(request, vocab_size=tokenizer.vocab_size, largest_id=None, tokenizer=tokenizer.describe())


def _load_tokenizer(name: str, end_token: str) -> TextTokenizer:
    """A tokenizer with its own end token, or with the slices' where it names none."""
    from recallkit.text.tokenizers import load_tokenizer

    try:
        return load_tokenizer(name)
    except UserError as error:
        try:
            return load_tokenizer(name, end_token=end_token)
        except UserError:
            raise error from None


def _gives_the_same_ids(mine: TextTokenizer, slices: Path, used: Mapping[str, Any]) -> bool:
    """Whether a tokenizer is the slices' own, saved in another form.

    Every entry is the same, it decodes the first sequences' ids to their text, and it encodes that text in about as many ids. If
    in doubt the answer is no: NLLs aligned needlessly are correct, ids of another vocabulary are not.
    """
    import pyarrow.parquet as pq

    from recallkit.text.tokenizers import load_slices_tokenizer

    entries = mine.backend.get_vocab() if mine.name != "bytes" else {}
    theirs = load_slices_tokenizer(slices, used)
    if theirs.name == "bytes" or any(entries.get(token) != index for token, index in theirs.backend.get_vocab().items()):
        return False
    with pq.ParquetFile(slices / "sequences.parquet", pre_buffer=False) as file:
        rows = next(file.iter_batches(batch_size=8, columns=["tokens", "text"]))
    sequences = [row.values.to_numpy() for row in rows["tokens"]]
    texts = rows["text"].to_pylist()
    if any(sequence.max(initial=0) >= mine.vocab_size for sequence in sequences) or mine.decode(sequences) != texts:
        return False
    # The same text with other ids: one vocabulary may contain the other. Cuts at a sequence's ends cost a few ids.
    num_ids, num_mine = sum(map(len, sequences)), len(mine.encode(texts)[0])
    return abs(num_mine - num_ids) <= num_ids // 10 + 4 * len(sequences)


def score_facts(result: Result, name: str, source: str, prefix: Prefix, num_rows: int) -> dict[str, Any]:
    """What the manifest of every score file says: of which model they are, and what it read."""
    return {
        **result.stamp(),
        "model": name,
        "source": source,
        "typed": None,
        **result.options,
        "prefix": prefix.describe(),
        "num_rows": num_rows,
        "tokenizer": None,
        "read_exactly": None,
    }


def score_path(slices: Path, model: str | ModelSpec, last: LastIds | None = None, *, against: ModelSpec | None = None) -> Path:
    """The file of a model's scores of a slice directory; of a string, of the model with this name, or without a name in this place.

    Scores from its `last` ids alone are in a folder of their own beside those with all of the context, and so is the divergence of its
    predictions from those of the model that they are held `against`.
    """
    folder = slices / "scores" if last is None else slices / "scores" / str(last)
    folder = folder if against is None else folder / f"against-{artifacts.file_slug(against.key)}"
    return folder / f"{artifacts.file_slug(model if isinstance(model, str) else model.key)}.parquet"


def find_scores(slices: Path, model: Any) -> Path:
    """The file of a model's scores, of a model given as to `score`, or by the name that results show where that is of one model alone.

    Whether or not there is such a file.
    """
    if isinstance(model, str) and (found := score_path(slices, model)).is_file():
        return found
    found = score_path(slices, one_model(model))
    if found.is_file() or not isinstance(model, str):
        return found
    shown = [file for file, name in scored_models(slices).items() if name == model]
    return shown[0] if len(shown) == 1 else found


def scored_models(slices: Path) -> dict[Path, str]:
    """The readable score files of a slice directory, and the names of their models."""
    names = {}
    for file in sorted((slices / "scores").glob("*.parquet")):
        with contextlib.suppress(UserError):
            manifest = artifacts.read_manifest(file)
            if manifest.get("kind") == "scores":
                names[file] = str(manifest["model"])
    return names


def score_timings(slices: Path, model: str | ModelSpec) -> dict[str, Any] | None:
    """How long a model's scores took, if known: in the JSON file beside them, with their manifest."""
    return read_timings(score_path(slices, model).with_suffix(".json"))


def count_inexact(model: str | ModelSpec, slices: Path) -> dict[str, float] | None:
    """The share of tokens (`all`, `ar_hit`, `other`) that do not begin and end where tokens of the model do.

    None for a model that reads the slices' own tokens.
    """
    from recallkit.storage import db

    file = score_path(slices, model)
    if artifacts.read_manifest(file).get("tokenizer") is None:
        return None
    with db.connect(threads=1, views={"tokens": slices / "tokens.parquet", "scores": file}) as connection:
        rows = db.frame(connection, "scores/count_inexact").iter_rows(named=True)
        return {row["slice"]: row["share"] for row in rows}
