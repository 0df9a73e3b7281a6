"""The work of `ablate`: scores a model as it is and without each set of its mixers, and tells what
of its recall is retained, and what is lost by slice."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from recallkit.ablation.sets import (
    EACH,
    budget_candidates,
    choose_sets,
    describe,
    groups_of_heads,
    halves,
)
from recallkit.ablation.tables import LEAST, AblationTables, measure_losses
from recallkit.display import console
from recallkit.display.cells import counted
from recallkit.display.progress import one_after_another
from recallkit.errors import UsageError
from recallkit.measure.labelled import open_tokens
from recallkit.models.ablation import NONE, Ablation
from recallkit.models.spec import one_model
from recallkit.options import ScoringOptions
from recallkit.scoring import make_scores, plan_scores, score_path
from recallkit.scoring.mixers import find_mixers
from recallkit.storage.result import Question, folder_of
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from recallkit.measure.labelled import LabelledTokens
    from recallkit.models.ablation import By, PlacedMixer
    from recallkit.models.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationQuestion:
    """Which mixers are replaced, by what, and on which tokens. Raises UsageError for parts that do
    not go together.

    mixers: sets, as `Ablation.parse` reads them, or `each`. heads: not these mixers, but their
    heads: those of a mixer together, then halves of every group without which recall is shown to be
    lost (by `LEAST` of what is lost without the group that matters most), down to single ones.
    budget: not these sets one by one, but all of their mixers except so many, with which most of
    the recall gain is retained; with `each` the mixers that have a cache, which grows with the
    text.
    clean: without tokens that are known to be in the training text. cluster: what intervals
    resample.
    """

    mixers: Sequence[str] = (EACH,)
    by: By = "zero"
    heads: bool = False
    budget: int | None = None
    clean: bool = False
    cluster: str = "document"

    def __post_init__(self) -> None:
        if self.heads and (self.by == "mean" or self.budget is not None):
            raise UsageError(
                "heads are searched by halves, and can only be replaced by zero",
                where="--heads",
                remedy="leave it out, or --by and --budget",
            )

    def identity(self, model: ModelSpec) -> dict[str, Any]:
        """What tells the answer from others."""
        return {"model": model.key, **asdict(self), "mixers": list(self.mixers)}


def ablation_path(
    slices: Path,
    model: ModelSpec,
    question: AblationQuestion = AblationQuestion(),
) -> Path:
    """Default folder of the ablations of a model, such as `ablation/hybrid-attention-mean`: each
    question has a folder of its own."""
    words = [model.shown, *(word for word in question.mixers if word != EACH)]
    words += [question.by] * (question.by != "zero") + ["heads"] * question.heads
    words += [] if question.budget is None else [f"budget {question.budget}"]
    words += ["clean"] * question.clean
    return folder_of(slices / "ablation", words, question.identity(model))


def ablate(
    model: str | ModelSpec,
    slices: Path,
    out: Path | None = None,
    options: ScoringOptions = ScoringOptions(),
    question: AblationQuestion = AblationQuestion(),
    *,
    force: bool = False,
) -> AblationTables:
    """What `model` retains of its recall, and loses, without its mixers, set by set; scores what is
    not scored yet.

    Writes `ablation.parquet` and `mixers.parquet` to `out` (default `ablation_path`). Raises
    UserError for everything a user can correct.
    """
    spec = one_model(model)
    if spec.ablate is not None:
        remedy = "give the unchanged model, and name mixers with --mixers"
        raise UsageError("it is ablated already", where=spec.typed(), remedy=remedy)
    folder = out or ablation_path(slices, spec, question)
    [intact] = plan_scores([spec], slices, options)
    identity = question.identity(spec) | {"scores": intact.result.options}
    answer = Question("ablation", AblationTables, folder, identity, force)
    if (tables := answer.reused()) is not None:
        return tables
    timings, tokens = Timings(), open_tokens(slices / "tokens.parquet")
    placed = find_mixers(intact, with_caches=question.budget is not None)
    work = _Work(spec, tokens, placed, options, question)
    if question.heads:
        tables = work.search_heads()
    elif question.budget is not None:
        tables = work.eliminate(question.budget)
    else:
        tables = work.each_set()
    answer.write(tables, {"model": spec.shown, "slices": tokens.facts}, timings)
    return tables


@dataclass(frozen=True, slots=True)
class _Work:
    """A model with its mixers, which are replaced set by set as the question says."""

    spec: ModelSpec
    tokens: LabelledTokens
    placed: Sequence[PlacedMixer]
    options: ScoringOptions
    question: AblationQuestion

    def each_set(self) -> AblationTables:
        """What is lost without each set, the largest loss first."""
        question = self.question
        sets = choose_sets(self.placed, question.mixers, question.by, self.spec.shown)
        self._note_passes(len(sets))
        return _largest_first(self._losses(sets))

    def eliminate(self, budget: int) -> AblationTables:
        """Backward elimination: the sets that are removed, from none on, one mixer larger each
        time.

        It begins with all mixers, because recall takes layers that work together: added to none, a
        layer would not show what it is worth. It ends at the budget, or with the first mixer of a
        model that recalls nothing.
        """
        question = self.question
        mixers = budget_candidates(self.placed, question.mixers, budget, self.spec.shown)
        self._note_passes(sum(range(budget + 1, len(mixers) + 1)))
        path, removed = [Ablation((NONE,), question.by)], tuple[str, ...]()
        while len(mixers) - len(removed) > budget:
            others = [mixer.name for mixer in mixers if mixer.name not in removed]
            names = ["+".join([*removed, name]) for name in others]
            sets = [Ablation.parse(f"{name}:{question.by}") for name in names]
            rows = self._losses(sets).mixers
            path.append(sets[rows["gain_lost"].arg_min() or 0])
            removed = path[-1].names
            if rows["retained"].null_count():
                break
        return self._losses(path, mixers)

    def search_heads(self) -> AblationTables:
        """What is lost without groups of heads: those of a mixer together, then halves of every
        group without which recall is lost, down to single heads."""
        groups = groups_of_heads(self.placed, self.question.mixers, self.spec.shown)
        searched, largest = list[Ablation](), 0.0
        while groups:
            number = counted(len(groups), "group")
            console.note(f"{number} of heads; those that recall needs are split")
            searched += groups
            lost = self._losses(groups).mixers
            largest = max([largest, *lost["gain_lost"].drop_nulls()])
            needed = set(lost.filter(lost["gain_lost_ci_low"] > LEAST * largest)["mixers"])
            groups = [half for group in groups if str(group) in needed for half in halves(group)]
        return _largest_first(self._losses(searched))

    def _note_passes(self, number: int) -> None:
        """Says how often the text is read, once of them by the model as it is."""
        passes = f"passes over {self.tokens.num_rows:,} tokens"
        console.note(f"{self.spec.shown}: {1 + number} {passes}")

    def _losses(
        self,
        sets: Sequence[Ablation],
        candidates: Sequence[PlacedMixer] = (),
    ) -> AblationTables:
        """What is lost without these sets, whose scores are made where they are missing;
        `candidates`: the mixers of a budget."""
        spec, question, slices = self.spec, self.question, self.tokens.path.parent
        models = [spec]
        models += [spec if one.names == (NONE,) else spec.ablated(one) for one in sets]
        plans = plan_scores(list(dict.fromkeys(models)), slices, self.options)
        for plan in one_after_another(plans):
            make_scores(plan)
        return measure_losses(
            self.tokens,
            [score_path(slices, model) for model in models],
            [describe(one, self.placed, spec.shown, candidates) for one in sets],
            spec.shown,
            question.cluster,
            clean=question.clean,
        )


def _largest_first(tables: AblationTables) -> AblationTables:
    """The tables, the set without which the most recall gain is lost first."""
    order = tables.mixers.sort("gain_lost", descending=True, nulls_last=True)
    return replace(tables, mixers=order)
