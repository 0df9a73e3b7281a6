"""Live models: the NLLs of the same weights from files, the identity that notices any change, a
module that is left as it was."""

from __future__ import annotations

import copy
import shutil

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import recallkit
from recallkit.errors import UserError
from recallkit.models.loading import identify_model
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec
from recallkit.scoring import score_path
from recallkit.storage import parquet_files
from recallkit.text.tokenizers import load_tokenizer
from tests.made_tokenizers import byte_level


class Averages(nn.Module):
    """Predicts from the mean of what it has read."""

    def __init__(self, width: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.scale, self.label, self.sizes = 1.0, "mean", (width, 4096)
        self.embedding, self.head = nn.Embedding(4096, width), nn.Linear(width, 4096)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("shift", torch.zeros(width))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        states = (
            self.embedding(ids).cumsum(1)
            / torch.arange(1, ids.shape[1] + 1, device=ids.device)[None, :, None]
        )
        return self.scale * self.head(self.dropout(states + self.shift))


class ShiftedAverages(Averages):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) + 1e-3 * ids[:, :, None]


@pytest.fixture
def module() -> Averages:
    torch.manual_seed(3)
    return Averages(dropout=0.5)


@pytest.fixture
def slices(few_slices, tmp_path):
    return shutil.copytree(
        few_slices,
        tmp_path / "slices",
        ignore=shutil.ignore_patterns("scores", "gap"),
    )


def identity(module: nn.Module) -> str:
    return identify_model(ModelPlan(ModelSpec(module, "x"), 4096))


def changed(module: Averages, how: str) -> nn.Module:
    with torch.no_grad():
        if how == "a parameter":
            module.head.bias[7] += 1e-6
        elif how == "a buffer":
            module.shift[0] = 1e-6
        elif how == "a number":
            module.scale = 2.0
        elif how == "a tuple":
            module.sizes = (8, 4097)
        elif how == "a layer":
            module.dropout = nn.Dropout(0.25)
        elif how == "its precision":
            module.to(torch.bfloat16)
        elif how == "its class":
            module.__class__ = ShiftedAverages
    return module


def test_any_change_is_another_model(module):
    visible = {identity(module)}
    assert {
        identity(copy.deepcopy(module)),
        identity(module.train()),
        identity(module.eval()),
    } == visible
    changes = (
        "a parameter",
        "a buffer",
        "a number",
        "a tuple",
        "a layer",
        "its precision",
        "its class",
    )
    visible |= {identity(changed(copy.deepcopy(module), how)) for how in changes}
    assert len(visible) == 1 + len(changes)


def test_changed_code_is_another_model():
    source = (
        "from torch import nn\nclass Own(nn.Module):\n    def forward(self, ids):\n        "
        "return ids + {}\n"
    )

    def actual(number: int, lines: int = 0) -> nn.Module:
        names: dict[str, type] = {"__name__": "notebook"}
        exec("\n" * lines + source.format(number), names)
        return names["Own"]()

    assert identity(actual(1)) == identity(actual(1, lines=5)) != identity(actual(2))


def test_a_module_is_scored_as_its_own_forward_says(module, slices):
    module.train()
    table = recallkit.score({"averages": module}, slices=slices).frame
    assert table["model"].to_list() == ["averages"]
    assert table["dtype"].to_list() == ["float32"]
    assert module.training, "left as it was"
    row = pl.read_parquet(slices / "sequences.parquet")["tokens"][3].to_numpy().astype(np.int64)
    with torch.inference_mode():
        expected = torch.log_softmax(module.eval()(torch.tensor(row[None, :-1]))[0], -1)[
            range(len(row) - 1),
            row[1:],
        ]
    nll = (
        pl.read_parquet(slices / "scores/averages.parquet")
        .filter(pl.col("sequence") == 3)["nll"]
        .to_numpy()
    )
    assert np.allclose(nll, -expected.numpy(), atol=1e-5)


def test_scores_are_reused_until_the_module_changes(module, slices):
    recallkit.score({"own": module}, slices=slices)
    file = score_path(slices, "own")
    before = file.stat().st_mtime_ns
    recallkit.score({"own": copy.deepcopy(module)}, slices=slices)
    assert file.stat().st_mtime_ns == before
    changed(module, "a parameter")
    with pytest.raises(
        UserError,
        match=r"already made with other options .differs in model_digest.; give this model another name, or",
    ):
        recallkit.score({"own": module}, slices=slices)
    recallkit.score({"own": module}, slices=slices, force=True)
    assert file.stat().st_mtime_ns != before


def test_a_transformers_model_has_the_scores_of_its_files(tiny_model, slices):
    path = tiny_model("llama")
    model = AutoModelForCausalLM.from_pretrained(path).train()
    tables = recallkit.gap({"live": model, "files": path}, slices=slices)
    files, live = (pl.read_parquet(score_path(slices, name)) for name in ("files", "live"))
    assert files.equals(live)
    assert tables.gap["model"].unique().to_list() == ["files"]
    assert tables.gap["delta_nll"].abs().max() == 0
    assert all(part.training for part in model.modules())
    checked = recallkit.check_scores({"live": model}, slices=slices)
    assert checked.frame["largest"][0] < 1e-4
    half = recallkit.score({"half": model}, slices=slices, dtype="bfloat16")
    assert half.frame["dtype"].to_list() == ["bfloat16"]
    assert model.dtype is torch.float32, "copies were widened, and narrowed"
    own = recallkit.score({"own": model.to(torch.bfloat16)}, slices=slices)
    assert own.frame["dtype"].to_list() == ["bfloat16"], "without one, in the precision that it has"


@pytest.mark.parametrize("form", ["tokenizers", "transformers", "path"])
def test_a_tokenizer_may_be_an_object(form, tiny_model, slices, tmp_path, home):
    """One with other ids: the model reads the same bytes."""
    backend = byte_level()
    backend.save(str(tmp_path / "tokenizer.json"))
    ours = load_tokenizer(str(tmp_path / "tokenizer.json"))
    tokenizer = {
        "tokenizers": backend,
        "transformers": PreTrainedTokenizerFast(tokenizer_object=backend),
        "path": tmp_path / "tokenizer.json",
    }[form]
    model = AutoModelForCausalLM.from_pretrained(tiny_model("llama"))
    recallkit.score(recallkit.ModelSpec(model, "own", tokenizer=tokenizer), slices=slices)
    manifest = parquet_files.read_manifest(score_path(slices, "own"))
    assert manifest["tokenizer"]["digest"] == ours.digest
    assert manifest["num_inexact"] > 0


def test_a_live_model_is_evaluated_as_its_files_are(tiny_model, home, tmp_path):
    path = tiny_model("llama")
    model = AutoModelForCausalLM.from_pretrained(path).train()
    tokenizer = byte_level()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    models = [
        recallkit.ModelSpec(model, "live", tokenizer=tokenizer),
        recallkit.ModelSpec(path, "files", tokenizer=tmp_path / "tokenizer.json"),
    ]
    requested = recallkit.eval_mqar(
        models,
        seq_len=32,
        pairs=[2, 4],
        samples=6,
        out=tmp_path / "mqar",
    ).mqar
    live, files = (
        requested.filter(pl.col("model") == name).select(
            "pairs",
            "accuracy",
            "ar_nll",
            "filler_nll",
        )
        for name in ("live", "files")
    )
    assert live.equals(files)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "key: some value. The key is", "value": "some"}\n')
    recalled = recallkit.eval_recall(models, data=rows, out=tmp_path / "evals", context=64)
    assert recalled.recall["model"].to_list() == ["live", "files"]
    assert len(recalled.recall["answer_nll"].unique()) == 1
    assert all(part.training for part in model.modules()), "left as it was"
    with torch.no_grad():
        model.lm_head.weight[7, 0] += 1
    with pytest.raises(
        UserError,
        match="give this model another name, or evaluate it again with force=True",
    ):
        recallkit.eval_mqar(models, seq_len=32, pairs=[2, 4], samples=6, out=tmp_path / "mqar")


def test_what_needs_another_process_is_refused(module, slices):
    for options in ({"workers": 2}, {"engine": "ray"}):
        with pytest.raises(
            UserError,
            match="Averages: a live model runs only in this process; leave out workers and engine",
        ):
            recallkit.score(module, slices=slices, **options)
    with pytest.raises(UserError, match="an object of object is not a model"):
        recallkit.score([object()], slices=slices)
