"""Scores of a slice directory, by one process or by many: finished results are reused, interrupted runs resumed.

A score file is identified by everything that decides its numbers: the model's weights and precision, its tokenizer, the
sequences, and how sequences longer than the model's context are read.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit import config
from recallkit.counting.table import read_meta
from recallkit.declarations import amount, path
from recallkit.display import console
from recallkit.display.progress import progress
from recallkit.errors import UserError
from recallkit.models.kinds import kind_of
from recallkit.models.loading import check_model, find_precision
from recallkit.models.model_tokenizer import identify_tokenizer, own_tokenizer, tokenizer_name
from recallkit.models.protocol import ModelRequest
from recallkit.models.spec import ModelSpec, list_models, one_model
from recallkit.options import ScoringOptions
from recallkit.storage import artifacts
from recallkit.storage.journal import Parts, PartsJournal
from recallkit.storage.result import Result
from recallkit.storage.timings import Timings, read_timings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from recallkit.models.mixer_outputs import PlacedMixer
    from recallkit.scoring.mixer_means import MixerMeans
    from recallkit.scoring.scores import ContextWindow, LastIds, SequenceReader
    from recallkit.scoring.worker import Scorer, ScoringJob
    from recallkit.text.tokenizers import TextTokenizer


def score_path(slices: Path, model: str | ModelSpec, last: LastIds | None = None) -> Path:
    """The file of a model's scores of a slice directory; of a string, of the model with this name, or without a name in this place.

    Scores from its `last` ids alone are in a folder of their own beside those with all of the context.
    """
    folder = slices / "scores" if last is None else slices / "scores" / str(last)
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


def score(model: str | ModelSpec, slices: Path, options: ScoringOptions = ScoringOptions(), *, force: bool = False) -> dict[str, Any]:
    """Scores every predicted token of a slice directory with one model; returns the score file's manifest.

    Done once for a model and a set of sequences: a finished file is reused unless with `force`, an interrupted run resumed.
    Raises UserError for everything a user can correct.
    """
    return plan_scores([model], slices, options, force=force)[0].run()


def plan_scores(
    models: Sequence[str | ModelSpec],
    slices: Path,
    options: ScoringOptions = ScoringOptions(),
    *,
    force: bool = False,
    share: tuple[int, int] | None = None,
    quiet: bool = False,
) -> list[ScoringPlan]:
    """Finds models, tokenizers and finished scores, and checks what can be checked before a weight is read.

    So what is wrong with the last model is reported before hours of work with the first. `share` (k, n): only every n-th part, the
    k-th of each n, for one of n jobs that share the directory; then nothing is joined. `quiet`: no note where a model without a
    tokenizer is taken to read the ids of the slices. Raises UserError for everything a user can correct.
    """
    if options.counts is not None:
        read_meta(path(options.counts))
    return [_plan(model, slices, options, force=force, share=share, quiet=quiet) for model in list_models(models)]


@dataclass(frozen=True, slots=True)
class ScoringPlan:
    """One model's scores, finished or to be made."""

    model: ModelSpec
    request: ModelRequest
    slices: Path
    options: ScoringOptions
    sequences: Mapping[str, Any]
    result: Result
    tokenizer: tuple[str, TextTokenizer] | None = None
    """The model's own tokenizer with its name, if it is not that of the slices."""
    last: LastIds | None = None
    """If every prediction is made from its last ids alone."""
    share: tuple[int, int] | None = None

    def from_last(self, last: LastIds) -> ScoringPlan:
        """The plan of the same model's scores from its `last` ids alone, kept beside these.

        Raises UserError where windows would contain whole sequences, and for a model that cannot read so, or other ids than the slices'.
        """
        finished = self.result.finished()
        if self.tokenizer is not None or (finished or {}).get("tokenizer") is not None:
            problem = "a tokenizer of its own, so that its last ids are another text than the reference's"
            raise UserError(problem, where=self.model.shown, remedy="compare models of the slices' tokenizer")
        if last.most >= self.sequences["seq_len"]:
            problem = f"windows of {last.most:,} ids contain whole sequences of {self.sequences['seq_len']:,} predictions"
            raise UserError(problem, where=f"the last {last.ids:,} ids", remedy="give fewer ids, or slice with a larger --seq-len")
        full = {name: value for name, value in self.result.options.items() if name not in ("context", "stride", "carry_state")}
        options = {**full, "last": last.ids, "stride": last.stride}
        result = Result(score_path(self.slices, self.model, last), "scores", options, remedy="delete this file")
        plan = replace(self, result=result, last=last)
        if plan.result.finished() is None:
            _check_context(plan, check_model(self.request).max_length)
        return plan

    @property
    def window(self) -> ContextWindow:
        """How sequences are read."""
        from recallkit.scoring.scores import ContextWindow

        options = self.options
        return ContextWindow(options.context, options.stride, options.carry_state) if self.last is None else self.last.window

    @property
    def sequences_per_part(self) -> int:
        """Sequences that are scored and kept together."""
        from recallkit.scoring.scores import SEQUENCES_PER_PART

        return min(SEQUENCES_PER_PART, config.sequences_per_row_group(self.sequences["seq_len"]))

    def run(self) -> dict[str, Any]:
        """Makes what is missing; returns the manifest, or of a share the progress of all (`parts_done` of `num_parts`)."""
        from recallkit.models.live import evaluating

        options, result, sequences = self.options, self.result, self.sequences
        if (manifest := result.finished()) is not None:
            num_parts = -(-sequences["num_sequences"] // self.sequences_per_part)
            return manifest if self.share is None else {**manifest, "parts_done": num_parts, "num_parts": num_parts, "joined": True}
        cut: dict[str, Any] = {"batch_tokens": amount(options.batch_tokens), "sequences_per_part": self.sequences_per_part}
        means = self.means()
        cut |= {} if means is None else {"means": means.digest}
        with result.parts(shared=self.share is not None, **cut) as journal, evaluating(self.request.module):
            job = self.job(journal.parts)
            job = job if means is None else replace(job, request=replace(job.request, means=means.by_mixer))
            num_parts = job.reader().num_parts()
            timings = Timings()
            _score_parts(job, _wanted(num_parts, self.share), journal, sequences["num_rows"], options, timings)
            if self.share is not None:
                return {**result.options, "parts_done": len(journal.parts.done()), "num_parts": num_parts, "joined": False}
            manifest = _join(job, num_parts, result, sequences, timings)
            journal.finish()
        return manifest

    def means(self) -> MixerMeans | None:
        """The means of the mixers' outputs, made where they are missing; None where no ablation needs them."""
        if self.request.ablation is None or not self.request.ablation.needs_means:
            return None
        from recallkit.models.live import evaluating
        from recallkit.scoring.mixer_means import mixer_means

        shown = replace(self.model, ablate=None, name=None, shown="").shown
        intact = replace(self, request=replace(self.request, ablation=None, shown=shown))
        with evaluating(self.request.module):
            return mixer_means(
                score_path(self.slices, self.model).parent / "means", _identity(intact.request, self.sequences, self.options), intact.job
            )

    def mixers(self) -> list[PlacedMixer]:
        """The mixers of the model, which is loaded to find them. Raises UserError for one that has none that can be replaced."""
        from recallkit.models.live import evaluating
        from recallkit.models.loading import load_model, warn_remote_code
        from recallkit.models.mixer_outputs import find_mixers

        warn_remote_code(self.request, console.note)
        with evaluating(self.request.module):  # its vocabulary is checked where it is scored
            return [replace(mixer, module=None, block=None) for mixer in find_mixers(load_model(replace(self.request, vocab_size=1)))]

    def job(self, parts: Parts) -> ScoringJob:
        """The work as processes take it."""
        from recallkit.models.loading import identify_model, warn_remote_code
        from recallkit.scoring.worker import ScoringJob

        options, request = self.options, self.request
        warn_remote_code(request, console.note)
        model_digest = identify_model(request)
        tokenizer, end_token = None, None
        if self.tokenizer is not None:
            request = _with_tokenizer(request, self.tokenizer[1])
            tokenizer, end_token = self.tokenizer[0], self.tokenizer[1].end_token
        return ScoringJob(
            request,
            model_digest,
            self.slices.resolve(),
            self.sequences["sequences_digest"],
            replace(parts, folder=parts.folder.resolve()),
            self.sequences["seq_len"],
            tokenizer,
            end_token,
            amount(options.batch_tokens),
            self.window,
            self.sequences_per_part,
        )


def _plan(
    model: ModelSpec, slices: Path, options: ScoringOptions, *, force: bool, share: tuple[int, int] | None, quiet: bool
) -> ScoringPlan:
    """The plan of one model, checked. Raises UserError for everything a user can correct."""
    if model.is_live and (options.workers > 1 or options.engine != "local" or share is not None):
        problem = "a live model is scored in this process alone"
        raise UserError(problem, where=model.shown, remedy="leave out workers and engine, or save it and give its path")
    file = score_path(slices, model)
    Result(file, "scores", {}).check_replaceable()
    found = artifacts.manifest_options(file, force=force)
    options = _as_scored(_of_model(options, model), {} if force else found or {})
    sequences = _sequences(slices)
    request = _request(model, sequences, options)
    request = replace(request, dtype=find_precision(request))
    remedy = _remedy(model, slices, _as_typed(options, request.dtype))
    result = Result(file, "scores", _identity(request, sequences, options), force=force, remedy=remedy)
    plan = ScoringPlan(model, request, slices, options, sequences, result, share=share)
    if result.finished() is not None:
        return plan
    plan = replace(plan, tokenizer=_other_tokenizer(request, options.model_tokenizer, slices, sequences["tokenizer"], quiet=quiet))
    facts = check_model(request if plan.tokenizer is None else _with_tokenizer(request, plan.tokenizer[1]))
    _check_context(plan, facts.max_length)
    return plan


def _remedy(model: ModelSpec, slices: Path, options: str) -> str:
    """What to do about finished scores of another model, or made with other options."""
    again = f"score it again: recallkit score {model.typed()}{options} --slices {slices} --force"
    again = "score it again with force=True" if model.is_live else again
    return f"give this model another name, or {again}" if model.is_live or model.name else again


def _of_model(options: ScoringOptions, model: ModelSpec) -> ScoringOptions:
    """The options of one model: its own come first."""
    own: dict[str, Any] = {name: getattr(model, name) for name in ("dtype", "context", "stride", "device")}
    chosen = replace(options, **{name: value for name, value in own.items() if value is not None})
    tokenizer = tokenizer_name(options.model_tokenizer if model.tokenizer is None else model.tokenizer)
    return replace(chosen, dtype=chosen.dtype or ("auto" if model.is_live else None), model_tokenizer=tokenizer)


def _check_context(plan: ScoringPlan, max_length: int | None) -> None:
    """Raises UserError if a sequence is longer than a known context, as scoring it would."""
    from recallkit.scoring.scores import check_context, longest_sequence

    if plan.tokenizer is None and not plan.window.carry:
        check_context(plan.request.name, max_length, plan.window, longest_sequence(plan.slices))


def _as_scored(options: ScoringOptions, found: Mapping[str, Any]) -> ScoringOptions:
    """The options, with omitted ones taken from the existing scores."""
    given_window = options.context is not None or options.stride is not None or options.carry_state
    window = {} if given_window else {name: found[name] for name in ("context", "stride", "carry_state") if name in found}
    return replace(
        options,
        dtype=options.dtype or found.get("dtype") or "float32",
        model_tokenizer=options.model_tokenizer or (found.get("tokenizer") or {}).get("given"),
        **window,
    )


def _as_typed(options: ScoringOptions, dtype: str) -> str:
    """The options that determine numbers, as they are typed."""
    given = {
        "--dtype": dtype if dtype != "float32" else None,
        "--model-tokenizer": options.model_tokenizer,
        "--context": options.context,
        "--stride": options.stride,
    }
    flags = [f" {name} {value}" for name, value in given.items() if value is not None]
    return "".join([*flags, " --carry-state" * options.carry_state, " --trust-remote-code" * options.trust_remote_code])


def _sequences(slices: Path) -> dict[str, Any]:
    """The manifest of the sequences. Raises UserError if the labels beside them are of other sequences."""
    tokens, sequences = (artifacts.read_manifest(slices / f"{name}.parquet") for name in ("tokens", "sequences"))
    if tokens["sequences_digest"] != sequences["sequences_digest"]:
        raise UserError("labels and sequences do not belong together", where=slices, remedy="run `recallkit slice` again with --force")
    return {**sequences, "counts": tokens["counts"]}


def _with_tokenizer(request: ModelRequest, tokenizer: TextTokenizer) -> ModelRequest:
    return replace(request, vocab_size=tokenizer.vocab_size, tokenizer=tokenizer.describe())


def _request(model: ModelSpec, sequences: Mapping[str, Any], options: ScoringOptions) -> ModelRequest:
    known = sequences["counts"] if options.counts is None else None
    return ModelRequest(
        model.location,
        sequences["tokenizer"]["vocab_size"],
        sequences["tokenizer"],
        counts=path(options.counts) or (Path(known["path"]) if known else None),
        counts_id=known["id"] if known else None,
        device=options.device,
        dtype=options.dtype or "float32",
        trust_remote_code=options.trust_remote_code,
        shown=model.shown,
        module=model.path if model.is_live else None,
        ablation=model.ablation,
    )


def _identity(request: ModelRequest, sequences: Mapping[str, Any], options: ScoringOptions) -> dict[str, Any]:
    """Everything that determines the numbers; options with their usual values are left out."""
    from recallkit.models.loading import identify_model

    is_control = kind_of(request.spec).is_control
    if is_control and (options.model_tokenizer or options.carry_state):
        problem = "a control model reads the slices' own tokens and keeps no state"
        raise UserError(problem, where=request.spec, remedy="leave out --model-tokenizer and --carry-state")
    chosen = {
        "tokenizer": identify_tokenizer(request.spec, options.model_tokenizer),
        "context": options.context,
        "stride": options.stride,
        "carry_state": options.carry_state or None,
    }
    return {
        "model_digest": identify_model(request),
        "sequences_digest": sequences["sequences_digest"],
        "dtype": None if is_control else request.dtype,
        **{name: value for name, value in chosen.items() if value is not None},
    }


# ------------------------------------------------------------------------------------------------------ the tokenizer


def _other_tokenizer(
    request: ModelRequest, given: str | None, slices: Path, used: Mapping[str, Any], *, quiet: bool = False
) -> tuple[str, TextTokenizer] | None:
    """The model's tokenizer, with its name, if it gives other ids than those of the slices.

    None if it gives the same ids or is not known.
    """
    name, spec = given or own_tokenizer(request.spec), request.name
    if name is None:
        if not quiet and (Path(request.spec).is_dir() or request.module is not None):
            console.note(f"{spec}: no tokenizer beside it, taken to read ids of {used['name']} (else give its own: PATH,tokenizer=...)")
        return None
    try:
        mine = _load_tokenizer(name, used["end_token"])
    except UserError as error:
        if given is not None or Path(name).exists():
            remedy = "give another --model-tokenizer" if given else "give the model's tokenizer with --model-tokenizer"
            raise UserError(f"its tokenizer cannot be read ({error.problem})", where=name, remedy=remedy) from error
        console.note(f"{spec}: no tokenizer found ({error.problem}), taken to be {used['name']}")
        return None
    if mine.digest == used["digest"] or _gives_the_same_ids(mine, slices, used):
        return None
    console.note(
        f"{spec}: a tokenizer of its own ({mine.name}), so it reads the same bytes, and its NLLs are carried to tokens of {used['name']}"
    )
    return name, mine


def _load_tokenizer(name: str, end_token: str) -> TextTokenizer:
    """A tokenizer with this end token if it has it, else with its own."""
    from recallkit.text.tokenizers import load_tokenizer

    try:
        return load_tokenizer(name, end_token=end_token)
    except UserError:
        return load_tokenizer(name)


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
    with pq.ParquetFile(slices / "sequences.parquet") as file:
        rows = next(file.iter_batches(batch_size=8, columns=["tokens", "text"]))
    sequences = [row.values.to_numpy() for row in rows["tokens"]]
    texts = rows["text"].to_pylist()
    if any(sequence.max(initial=0) >= mine.vocab_size for sequence in sequences) or mine.decode(sequences) != texts:
        return False
    # The same text with other ids: one vocabulary may contain the other. Cuts at a sequence's ends cost a few ids.
    num_ids, num_mine = sum(map(len, sequences)), len(mine.encode(texts)[0])
    return abs(num_mine - num_ids) <= num_ids // 10 + 4 * len(sequences)


# ------------------------------------------------------------------------------------------------------------ the work


def _wanted(num_parts: int, share: tuple[int, int] | None) -> Sequence[int]:
    """The numbers of the parts that this run is to score."""
    if share is None:
        return range(num_parts)
    place, shares = share
    return range(place - 1, num_parts, shares)


def _score_parts(
    job: ScoringJob, wanted: Sequence[int], journal: PartsJournal, num_rows: int, options: ScoringOptions, timings: Timings
) -> None:
    """Scores the `wanted` parts that do not exist yet."""
    from recallkit.parallel.engines import work

    there = journal.parts.done()
    missing = [number for number in wanted if number not in there]
    before = done = _num_kept(job)
    if missing:
        journal.note_resumed(done, "tokens")
    telling = progress(f"scoring {job.where}", total=num_rows, kept=lambda: _num_kept(job))
    with timings.stage("scoring", of=job.where, resumed=done > 0) as stage:
        working = work(job, missing, engine=options.engine, workers=options.workers, address=options.address)
        with telling as show, contextlib.closing(working):
            show(done)
            for part in working:
                done += part.num_tokens
                show(done)
        stage.amounts["tokens"] = _num_kept(job) - before


def _num_kept(job: ScoringJob) -> int:
    """The predicted tokens whose scores are on disk, of parts that are complete or begun."""
    from recallkit.scoring.begun_parts import tokens_saved
    from recallkit.scoring.scores import part_rows

    there = job.parts.done()
    begun = (tokens_saved(job.parts.begun_path(number)) for number in range(job.reader().num_parts()) if number not in there)
    return sum(part_rows(job.parts.path(number)) for number in there) + sum(begun)


def _join(job: ScoringJob, num_parts: int, result: Result, sequences: Mapping[str, Any], timings: Timings) -> dict[str, Any]:
    from recallkit.scoring import scores

    facts = {
        **result.stamp(),
        "model": job.request.name,
        "source": job.request.spec,
        **result.options,
        "num_rows": sequences["num_rows"],
        "batch_tokens": job.parts.settle("batch_tokens", lambda: job.batch_tokens),
        "tokenizer": job.request.tokenizer if job.tokenizer is not None else None,
    }
    files = [job.parts.path(number) for number in range(num_parts)]
    manifest: dict[str, Any] = {}
    with result.writing(manifest, timings) as new, timings.stage("joining", of=job.where) as stage:
        manifest |= scores.join_parts(files, job.sequences_per_part, job.seq_len, new / result.path.name, facts)
        stage.amounts["tokens"] = sequences["num_rows"]
    return manifest


# ----------------------------------------------------------------------------------------------------------- the check

_CHECKED_SEQUENCES = 4


def check_scores(model: str | ModelSpec, slices: Path, options: ScoringOptions = ScoringOptions()) -> dict[str, Any]:
    """Compares finished scores of a few evenly spaced sequences with the same computation in float64 on CPU.

    Returns `tokens`, the `largest` and `mean` absolute difference of NLLs (nats), the place of the largest (`sequence`,
    `position`), and the share of tokens with the `same_argmax` (None if argmaxes cannot be compared).
    """
    import polars as pl

    from recallkit.scoring.worker import Scorer

    model = one_model(model)
    file = score_path(slices, model)
    manifest = artifacts.read_manifest(file)
    options = _as_scored(replace(_of_model(options, model), dtype=None), manifest["options"])
    sequences = _sequences(slices)
    options = replace(options, batch_tokens=1)
    request = replace(_request(model, sequences, options), device="cpu", dtype="float64")
    other = _other_tokenizer(request, options.model_tokenizer, slices, sequences["tokenizer"])
    plan = ScoringPlan(model, request, slices, options, sequences, Result(file, "scores", manifest["options"]), other)
    with tempfile.TemporaryDirectory() as folder:
        job = plan.job(Parts(Path(folder), "check"))
        scorer, reader = Scorer(job), job.reader()
        checked = sorted({sequences["num_sequences"] * place // _CHECKED_SEQUENCES for place in range(_CHECKED_SEQUENCES)})
        compared = [_compare(scorer, reader, file, number) for number in checked]
    table = pl.concat(compared)
    worst = table.row(int(table["difference"].arg_max() or 0), named=True)
    return {
        "tokens": len(table),
        "largest": worst["difference"],
        "mean": table["difference"].mean(),
        "sequence": worst["sequence"],
        "position": worst["position"],
        "same_argmax": table["same_argmax"].mean() if job.tokenizer is None else None,
    }


def _compare(scorer: Scorer, reader: SequenceReader, file: Path, number: int) -> pl.DataFrame:
    """The stored scores of one sequence beside those of `scorer`."""
    import numpy as np
    import polars as pl

    first, ids, offsets = reader.read(number // scorer.job.sequences_per_part)
    own = ids[offsets[number - first] : offsets[number - first + 1]]
    exact = scorer.score_sequences(own, np.array([0, len(own)]))
    stored = pl.read_parquet(file, glob=False, columns=["sequence", "position", "nll", "argmax"]).filter(pl.col("sequence") == number)
    return stored.select(
        "sequence",
        "position",
        difference=(pl.col("nll").cast(pl.Float64) - pl.Series(exact.nll.astype(np.float64))).abs(),
        same_argmax=pl.col("argmax") == pl.Series(exact.argmax),
    )


# ------------------------------------------------------------------------------------------------------ aligned scores


def count_inexact(model: str | ModelSpec, slices: Path) -> dict[str, float] | None:
    """The share of tokens (`all`, `ar_hit`, `other`) that do not begin and end where tokens of the model do.

    None for a model that reads the slices' own tokens.
    """
    from recallkit.storage import db

    file = score_path(slices, model)
    if artifacts.read_manifest(file).get("tokenizer") is None:
        return None
    with db.connect(threads=1) as connection:
        db.view_file(connection, "tokens", slices / "tokens.parquet")
        db.view_file(connection, "scores", file)
        rows = db.frame(connection, "scores/count_inexact").iter_rows(named=True)
        return {row["slice"]: row["share"] for row in rows}
