"""Synthetic tasks, asked of models in their own vocabulary: finished results are reused,
interrupted runs resumed; and models compared.

A table of queries is identified by everything that determines its numbers: the model's weights and
precision, its tokenizer, the task, and the form of the sequences. Each number of pairs has tables
of its own, so that others can be added later.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from recallkit import builtin
from recallkit.declarations import amount
from recallkit.display.progress import progress
from recallkit.errors import UsageError, UserError
from recallkit.models.evaluated import (
    EvaluatedModel,
    check_named_once,
    make_missing,
    missing_results,
    open_models,
)
from recallkit.storage import artifacts
from recallkit.storage.result import Question, Result, folder_of, words_of
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from recallkit.models.protocol import ScoringModel
    from recallkit.models.spec import ModelSpec
    from recallkit.mqar.sequences import MqarTask, Vocabulary
    from recallkit.mqar.tables import MqarFiles, MqarTables
    from recallkit.options import MqarOptions
    from recallkit.storage.journal import PartsJournal

CPU_BATCH_TOKENS = 4096
"""Ids of a batch of a torch model on CPU: fixed, since a probe's result would depend on the
machine's other work."""

PAPER = {"seq_len": 1024, "pairs": (16, 32, 64, 128, 256), "samples": 1000}
"""Ids of a sequence, numbers of pairs, sequences for each: Zoology, Appendix G."""

BUILTIN = {"seq_len": 256, "pairs": (4, 8, 16, 32, 64), "samples": 50}
"""For the zoo, whose models read 256 tokens at once."""


def with_usual_size(options: MqarOptions, *, is_zoo: bool) -> MqarOptions:
    """The options with the zoo's or the paper's size where none is given: of its numbers of pairs
    those that the task can have, ascending.

    Raises UserError for no numbers of pairs.
    """
    given = {"seq_len": options.seq_len, "pairs": options.pairs, "samples": options.samples}
    size: dict[str, Any] = (BUILTIN if is_zoo else PAPER) | {name: value for name, value in given.items() if value is not None}
    if not size["pairs"]:
        raise UsageError(
            "no number of pairs",
            where="--pairs",
            remedy="give one or more, such as 16,64",
        )
    pairs = sorted(size["pairs"])
    sized = replace(options, **{**size, "pairs": pairs})
    fitting = [number for number in pairs if _fits(sized, number)] if options.pairs is None and options.task != "mqar" else []
    return replace(sized, pairs=fitting or pairs)


def _fits(options: MqarOptions, pairs: int) -> bool:
    """Whether sequences of this length, of a large vocabulary, can have so many pairs."""
    from recallkit.synthetic.tasks import make_examples

    task = task_of(options, pairs)
    with contextlib.suppress(UserError):
        make_examples(
            task.name,
            num=1,
            length=options.length,
            pairs=pairs,
            vocab=1 << 16,
            seed=0,
            **task.options,
        )
        return True
    return False


POWER = 0.01
"""The exponent of the law of places where none is given: that of Zoology's code, since Appendix G
gives none."""

MOST_IDS = 1 << 26
"""Most ids of all sequences of one number of pairs, which are in memory at once."""


def task_of(options: MqarOptions, pairs: int) -> MqarTask:
    """The task with this number of pairs. Raises UserError for an option that it does not have."""
    from recallkit.mqar.sequences import MqarTask
    from recallkit.synthetic.tasks import options_of_task, task_of

    name, given = task_of(options.task)
    if "power" in options_of_task(name):
        given = {"power": POWER if options.power is None else options.power} | given
    elif options.power is not None:
        raise UsageError(
            f"{name} has no power law of query positions",
            where="--power",
            remedy="leave it out",
        )
    return MqarTask(name, options.length, pairs, options.seed, given)


class MqarModel(EvaluatedModel):
    """A model that is asked for values, with the vocabulary of its sequences. Raises UserError for
    one that reads only text."""

    takes = ("tokenizer", "dtype", "device")

    def __init__(self, model: str | ModelSpec, options: MqarOptions) -> None:
        super().__init__(model, options, builtin.counts)
        if self.copies_text:
            raise UserError(
                "it reads text, and these are sequences of ids",
                where=self.spec,
                remedy="evaluate it with `recallkit eval-recall`",
            )

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The tokens of its sequences."""
        from recallkit.mqar.sequences import vocabulary_of

        return vocabulary_of(self.tokenizer)

    def check_sequences(self, task: MqarTask, most: int | None) -> None:
        """Raises UserError if a task's sequences do not fit into the vocabulary or the context,
        `most` ids or None without a limit."""
        from recallkit.mqar.sequences import make_sequences

        one = make_sequences(task, self.vocabulary, 1).ids
        num_read = one.shape[1] - 1  # the last id is predicted and not read
        if most is not None and num_read > most:
            problem = f"its context is {most:,} ids, but of a sequence of {task.length:,} it would read {num_read:,}"
            raise UserError(
                problem,
                where=self.spec,
                remedy=f"give --seq-len {task.length - num_read + most} or less",
            )


def files_of(out: Path, model: str, length: int, pairs: int, task: str = "mqar") -> MqarFiles:
    """The tables of a model, a task (NAME,option=value,...) and a number of pairs."""
    from recallkit.mqar.tables import MqarFiles

    name = f"{artifacts.file_slug(task)}.length-{length}.pairs-{pairs}.parquet"
    return MqarFiles(
        *(out / kind / artifacts.file_slug(model) / name for kind in ("queries", "fillers")),
    )


def comparison_path(out: Path, models: Sequence[str], question: Mapping[str, Any]) -> Path:
    """The folder of the comparison of these models, such as
    `compared/mqar-length-256-attention-mamba`.

    Each question has a folder of its own.
    """
    words = [f"{question['task']} length {question['length']}", *words_of(models)]
    return folder_of(out / "compared", words, question)


@dataclass(frozen=True, slots=True)
class MqarPlan:
    """MQAR of models, with everything checked that can be before one is loaded."""

    models: dict[str, MqarModel]
    """By the names that results show."""
    pairs: tuple[int, ...]
    queries: dict[tuple[str, int], Result]
    """The tables of each model and number of pairs."""
    out: Path
    options: MqarOptions

    def run(self) -> tuple[MqarTables, Path]:
        """Makes what is missing, and the comparison; returns it with its folder. Raises UserError
        for what a user can correct."""
        from recallkit.mqar.tables import MqarFiles, MqarTables, compare_mqar

        models = list(self.models)
        keys = [asked.key for asked in self.models.values()]
        identity = {
            "reference": keys[0],
            "models": keys,
            "pairs": list(self.pairs),
            **_asked(self.options),
        }
        folder = comparison_path(self.out, models, identity)
        question = Question("mqar", MqarTables, folder, identity)
        question.result.check_replaceable()
        make_missing(self.models, self.queries, self._make)
        timings = Timings()
        for (model, pairs), queries in self.queries.items():
            timings.keep(f"{model}, {pairs} pairs", queries.path.with_suffix(".json"), "evaluating")
        with timings.stage("comparing"):
            tables = compare_mqar(
                {asked: MqarFiles(queries.path, *queries.others) for asked, queries in self.queries.items()},
            )
        facts = {
            **identity,
            "reference": models[0],
            "models": models,
            "of_models": self._ids_of_models(),
        }
        question.write(tables, facts, timings)
        return tables, folder

    def _ids_of_models(self) -> dict[str, Any]:
        """The ids with which each model was tested."""
        manifests = {model: artifacts.read_manifest(self.queries[model, self.pairs[0]].path) for model in self.models}
        return {model: {"tokenizer": m["tokenizer"], "vocabulary": m["vocabulary"]} for model, m in manifests.items()}

    def _make(self, asked: MqarModel, pairs: int, result: Result) -> None:
        """Makes the two tables of one model and one number of pairs."""
        from recallkit.mqar.tables import MqarFiles, join_parts

        options = self.options
        task = task_of(options, pairs)
        asked.check_sequences(task, asked.model.max_length)
        with result.parts(batch_tokens=amount(options.batch_tokens), part="batch") as journal:
            settled = journal.parts.settle(
                "batch_tokens",
                lambda: amount(options.batch_tokens) or _choose_batch(asked.model, options.length),
            )
            batch_tokens = int(settled)
            timings = Timings()
            parts = _make_parts(asked, task, journal, options.num_samples, batch_tokens, timings)
            manifest = {
                **result.stamp(),
                **_asked(options),
                "pairs": pairs,
                "batch_tokens": batch_tokens,
                **_facts(asked),
            }
            with result.writing(manifest, timings) as new:
                join_parts(
                    parts,
                    pairs,
                    MqarFiles(new / result.path.name, *result.others),
                    manifest,
                )
            journal.finish()


def plan_mqar(
    models: Sequence[str | ModelSpec],
    pairs: Sequence[int],
    out: Path,
    options: MqarOptions,
) -> MqarPlan:
    """Finds models, tokenizers and finished results, so that an error is reported before hours of
    work.

    The first model is the reference of the comparison. Raises UserError for everything a user can
    correct.
    """
    check_named_once("number of pairs", [str(number) for number in pairs])
    if options.num_samples * options.length > MOST_IDS:
        most = MOST_IDS // options.length
        problem = f"{options.num_samples:,} sequences of {options.length:,} ids do not fit into memory at once"
        raise UserError(problem, where="--samples", remedy=f"give --samples {most} or less")
    asked = open_models(models, options, lambda spec: MqarModel(spec, options))
    queries = {(name, number): _result(model, number, out, options) for name, model in asked.items() for number in pairs}
    for model, number in missing_results(asked, queries):
        asked[model].check_sequences(task_of(options, number), asked[model].facts.max_length)
    return MqarPlan(asked, tuple(pairs), queries, out, options)


def evaluate_mqar(
    models: Sequence[str | ModelSpec],
    pairs: Sequence[int],
    out: Path,
    options: MqarOptions,
) -> tuple[MqarTables, Path]:
    """Evaluates each model and compares them: `plan_mqar` and `MqarPlan.run`."""
    return plan_mqar(models, pairs, out, options).run()


def _asked(options: MqarOptions) -> dict[str, Any]:
    """What determines the sequences, besides pairs and vocabulary."""
    from recallkit.synthetic.tasks import identify_task

    task = task_of(options, 1)
    chosen = {
        "task": options.task,
        "of_task": [identify_task(task.name), task.options],
        "power": task.options.get("power"),
    }
    return {
        **chosen,
        "length": options.length,
        "num_samples": options.num_samples,
        "seed": options.seed,
    }


def _result(asked: MqarModel, pairs: int, out: Path, options: MqarOptions) -> Result:
    """The two tables of one model and one number of pairs as a result, with everything that
    determines their numbers."""
    files = files_of(out, asked.key, options.length, pairs, options.task)
    identity = {**asked.identity, **_asked(options), "pairs": pairs}
    return Result(
        files.queries,
        "mqar queries",
        identity,
        options.force,
        [files.fillers],
        remedy=asked.remedy,
    )


def _make_parts(
    asked: MqarModel,
    task: MqarTask,
    journal: PartsJournal,
    num_samples: int,
    batch_tokens: int,
    timings: Timings,
) -> list[Path]:
    """The parts, each the answers to a batch of samples; those that do not exist yet are made, one
    after the other."""
    from recallkit.mqar.sequences import ask, make_sequences
    from recallkit.mqar.tables import write_part

    size = max(1, batch_tokens // task.length)
    parts = [range(first, min(first + size, num_samples)) for first in range(0, num_samples, size)]
    there = journal.parts.done()
    done = sum(len(parts[number]) for number in there)
    journal.note_resumed(done, "sequences")
    telling = progress(f"{asked.shown}, {task.pairs} pairs", total=num_samples, unit="sequences")
    with (
        timings.stage(
            "evaluating",
            item=f"{asked.shown}, {task.pairs} pairs",
            resumed=bool(there),
        ) as stage,
        telling as show,
    ):
        show(done)
        made = make_sequences(task, asked.vocabulary, num_samples)
        for number, samples in enumerate(parts):
            if number not in there:
                some = made.rows(slice(samples.start, samples.stop))
                write_part(
                    journal.parts.path(number),
                    samples,
                    ask(asked.model, some, batch_tokens),
                )
                stage.amounts["sequences"] = stage.amounts.get("sequences", 0) + len(samples)
                show(done + stage.amounts["sequences"])
    return [journal.parts.path(number) for number in range(len(parts))]


def _choose_batch(model: ScoringModel, length: int) -> int:
    on_cpu = str(getattr(model, "device", "")).startswith("cpu")
    return CPU_BATCH_TOKENS if on_cpu else model.batch_tokens(length)


def _facts(asked: MqarModel) -> dict[str, Any]:
    """The fields of a manifest on a model and the ids of its sequences."""
    vocabulary, tokenizer = asked.vocabulary, asked.tokenizer
    ids = {
        "digest": vocabulary.digest(),
        "num_ids": len(vocabulary.ids),
        "filler": vocabulary.filler,
        "filler_text": tokenizer.generated_text([vocabulary.filler]),
        "prefix": asked.prefix.token,
    }
    return {
        "model": asked.shown,
        "source": asked.spec,
        "tokenizer": tokenizer.describe(),
        "vocabulary": ids,
    }
