"""A user's own model: scored as its own code computes, known by all that decides its numbers, its
mistakes in one line."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from recallkit.errors import UserError
from recallkit.models.loading import identify_model, load_model, own_tokenizer
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec
from recallkit.storage import hashing
from tests.conftest import ROOT

VOCAB = 4096

RECURRENT = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, vocab=4096, width=24):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.layer = nn.GRU(width, width, batch_first=True)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(width, vocab)

    def states(self, ids):
        return self.dropout(self.layer(self.embedding(ids))[0])

    def forward(self, ids):
        return self.head(self.states(ids))


def load(plan):
    torch.manual_seed(3)
    net = Net()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(2)
    return net
"""

LENGTHS = [33, 65, 2, 17]


def write(folder: Path, code: str, name: str = "mine.py") -> str:
    """Writes a user's file; the name of the model that its function `load` gives."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(code)
    return f"{folder / name}:load"


def plan(spec: str, **options: object) -> ModelPlan:
    return ModelPlan(ModelSpec(spec), VOCAB, device="cpu", **options)


def ragged(lengths: list[int] = LENGTHS) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return np.random.default_rng(0).integers(0, VOCAB, offsets[-1]).astype(np.uint32), offsets


def direct(code: str, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """NLL of each sequence alone, in float64, from the code as Python runs it without recallkit."""
    namespace: dict = {"__name__": "direct"}
    exec(code, namespace)
    net = namespace["load"](None).double().eval()
    nll = []
    for start, stop in itertools.pairwise(offsets):
        sequence = torch.from_numpy(ids[start:stop].astype(np.int64))
        with torch.no_grad():
            nll.append(
                torch.nn.functional.cross_entropy(
                    net(sequence[None, :-1])[0],
                    sequence[1:],
                    reduction="none",
                ),
            )
    return torch.cat(nll).numpy()


def refusal(spec: str, **options: object) -> str:
    """The line with which loading fails."""
    with pytest.raises(UserError) as caught:
        load_model(plan(spec, **options))
    line = caught.value.line()
    assert "\n" not in line
    return line


# ----------------------------------------------------------------------------------- what is scored


def test_the_command_line_scores_what_the_code_computes(run, few_slices, tmp_path):
    spec = write(tmp_path, "print('a word on stdout')\n" + RECURRENT)
    slices = shutil.copytree(
        few_slices,
        tmp_path / "slices",
        ignore=shutil.ignore_patterns("scores", "gap"),
    )
    done = run("score", spec, "--slices", slices, "--device", "cpu", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout), "what the user's code prints is no part of the result"
    assert "a word on stdout" in done.stderr
    sequences = pq.read_table(slices / "sequences.parquet")["tokens"].combine_chunks()
    expected = direct(RECURRENT, sequences.values.to_numpy(), sequences.offsets.to_numpy())
    scores = pq.read_table(slices / "scores" / f"{hashing.file_slug(spec)}.parquet")
    np.testing.assert_allclose(scores["nll"].to_numpy(), expected, rtol=0, atol=2e-5)


def test_a_ragged_batch_and_sequences_alone_give_the_same(tmp_path):
    ids, offsets = ragged()
    model = load_model(plan(write(tmp_path, RECURRENT)))
    expected = direct(RECURRENT, ids, offsets)
    np.testing.assert_allclose(model.score(ids, offsets).nll, expected, rtol=0, atol=2e-5)
    alone = [
        model.score(ids[a:b], np.array([0, b - a])).nll for a, b in itertools.pairwise(offsets)
    ]
    np.testing.assert_allclose(np.concatenate(alone), expected, rtol=0, atol=2e-5)
    assert (model.vocab_size, model.max_length) == (VOCAB, None)


def test_float64_is_float64_throughout(tmp_path):
    narrowing = RECURRENT.replace(
        "self.head(self.states(ids))",
        "self.head(self.states(ids).float().to(self.head.weight.dtype))",
    )
    ids, offsets = ragged()
    expected = direct(RECURRENT, ids, offsets)
    for number, code in enumerate([RECURRENT, narrowing]):
        model = load_model(plan(write(tmp_path / str(number), code), dtype="float64"))
        assert {parameter.dtype for parameter in model.module.parameters()} == {torch.float64}
        np.testing.assert_array_equal(model.score(ids, offsets).nll, expected.astype(np.float32))


CALLABLES = {
    "a function": "def load(plan):\n    return lambda ids: table[ids]",
    "an object with logits": """
class Output:
    def __init__(self, logits):
        self.logits = logits

def load(plan):
    return lambda ids: Output(table[ids])
""",
    "a class": """
class load:
    vocab_size = 4096
    def __init__(self, plan):
        assert plan.device == "cpu"
    def __call__(self, ids):
        return table[ids]
""",
}


@pytest.mark.parametrize("kind", CALLABLES)
def test_any_callable_will_do(tmp_path, kind):
    table = (
        "import torch\ntable = torch.randn(4096, 4096, "
        "generator=torch.Generator().manual_seed(1))\n"
    )
    model = load_model(
        ModelPlan(ModelSpec(write(tmp_path, table + CALLABLES[kind])), VOCAB, device="cpu")
    )
    ids, offsets = ragged([9, 4])
    logits = torch.randn(4096, 4096, generator=torch.Generator().manual_seed(1)).double()
    inputs, targets = (
        torch.from_numpy(np.delete(ids.astype(np.int64), without)) for without in ([8, 12], [0, 9])
    )
    expected = torch.nn.functional.cross_entropy(logits[inputs], targets, reduction="none")
    np.testing.assert_allclose(model.score(ids, offsets).nll, expected, rtol=0, atol=1e-5)


SCORES_ITSELF = """
import numpy as np
from recallkit.models.protocol import TokenScores

class Uniform:
    vocab_size, max_length = 4096, 100

    def batch_tokens(self, seq_len):
        return 1000

    def score(self, ids, offsets):
        n = len(ids) - len(offsets) + 1
        return TokenScores(np.full(n, np.log(4096), np.float32), np.zeros(n, int), np.zeros(n, int))

def load(plan):
    return Uniform()
"""


def test_an_object_that_scores_is_taken_as_it_is(tmp_path):
    model = load_model(plan(write(tmp_path, SCORES_ITSELF)))
    ids, offsets = ragged()
    scores = model.score(ids, offsets)
    assert (model.vocab_size, model.max_length, model.batch_tokens(64)) == (VOCAB, 100, 1000)
    np.testing.assert_array_equal(
        scores.nll,
        np.full(len(ids) - len(LENGTHS), np.log(4096), np.float32),
    )
    assert scores.argmax.dtype == scores.rank.dtype == np.int32


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (
            "TokenScores(np.zeros(3), np.zeros(3), np.zeros(3))",
            r"score\(\) returned no array nll of 113 numbers",
        ),
        ("TokenScores(['a'] * n, [0] * n, [0] * n)", "raised ValueError: could not convert"),
    ],
)
def test_scores_of_the_wrong_kind_are_one_line(tmp_path, gives, said):
    code = SCORES_ITSELF.replace(
        "TokenScores(np.full(n, np.log(4096), np.float32), np.zeros(n, int), np.zeros(n, int))",
        gives,
    )
    model = load_model(plan(write(tmp_path, code)))
    with pytest.raises(UserError, match=said):
        model.score(*ragged())


def test_complex_weights_stay_complex(tmp_path):
    code = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.polar(torch.ones(4096, 8), torch.randn(4096, 8, generator=torch.Generator().manual_seed(1))))
    def forward(self, ids):
        return (self.table[ids] @ self.table.conj().T).real
def load(plan):
    return Net()
"""
    ids, offsets = ragged([20])
    nll = load_model(plan(write(tmp_path, code))).score(ids, offsets).nll
    np.testing.assert_allclose(
        nll,
        direct(code.replace("conj().T", "conj().T.to(self.table.dtype)"), ids, offsets),
        rtol=0,
        atol=1e-5,
    )


# --------------------------------------------------------------------- what would be silently wrong


LEAKS = {
    "one id": "torch.cat([x[:, 1:], x[:, -1:]], 1)",
    "attention without a mask": "torch.softmax(x @ x.mT / 50, -1) @ x",
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_model_that_sees_what_follows_is_refused(tmp_path, leak):
    code = RECURRENT.replace(
        "return self.head(",
        "x = self.embedding(ids); x = LEAK; return self.head(x + 0 * ",
    ).replace("LEAK", LEAKS[leak])
    assert "it is not causal" in refusal(write(tmp_path, code))


@pytest.mark.parametrize(
    "change",
    [("batch_first=True", "batch_first=False"), ("self.dropout(", "torch.nn.functional.dropout(")],
)
def test_values_that_depend_on_the_batch_or_on_chance_are_refused(tmp_path, change):
    assert "it is not causal" in refusal(write(tmp_path, RECURRENT.replace(*change)))


# ----------------------------------------------------------------------------------------- identity


def test_identity_follows_code_function_files_and_modules_beside(tmp_path):
    code = "from beside import net\nFILES = ['weights.bin']\nload = other = lambda plan: net\n"

    def identity(
        folder: str,
        code: str = code,
        weights: str = "w",
        beside: str = "net = None",
        function: str = "load",
    ) -> str:
        spec = write(tmp_path / folder, code)
        (tmp_path / folder / "weights.bin").write_text(weights)
        (tmp_path / folder / "beside.py").write_text(beside)
        return identify_model(plan(spec.replace(":load", f":{function}")))

    first = identity("a")
    assert identity("b") == first, "the same model in another folder"
    others = {
        identity("c", code=code + "# changed"),
        identity("d", weights="x"),
        identity("e", beside="net = 1"),
        identity("f", function="other"),
    }
    assert len({first, *others}) == 5


# ------------------------------------------------------------------------------------- files beside


def test_models_of_the_same_name_beside_two_files_are_kept_apart(tmp_path):
    beside = (
        "import torch\ndef logits(ids):\n    from late import SIZE\n    return SIZE * "
        "torch.nn.functional.one_hot(ids, 4096).float()\n"
    )
    code = "import model.net\ndef load(plan):\n    return lambda ids: model.net.logits(ids)\n"
    specs = []
    for size in (1, 5):
        folder = tmp_path / str(size)
        specs.append(write(folder, code))
        write(folder / "model", beside, "net.py")
        write(folder / "model", "", "__init__.py")
        write(folder, f"SIZE = {size}\n", "late.py")
    models = [load_model(plan(spec)) for spec in specs]
    ids, offsets = np.array([7, 7], np.uint32), np.array([0, 2])
    nll = [float(model.score(ids, offsets).nll[0]) for model in [*models, *models]]
    expected = [np.log(4095 + np.exp(size)) - size for size in (1, 5)]
    np.testing.assert_allclose(nll, expected * 2, rtol=0, atol=1e-5)


def test_a_file_may_name_its_models_tokenizer(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    listed = {
        "bytes": "bytes",
        "owner/name": "owner/name",
        "tokenizer.json": str(tmp_path / "tokenizer.json"),
    }
    for number, (operands, results) in enumerate(listed.items()):
        assert (
            own_tokenizer(
                write(tmp_path, f"TOKENIZER = {operands!r}\nload = print", f"m{number}.py"),
            )
            == results
        )
    assert own_tokenizer(write(tmp_path, "load = print")) is None
    with pytest.raises(UserError, match="TOKENIZER is 3"):
        own_tokenizer(write(tmp_path, "TOKENIZER = 3\nload = print"))


# ----------------------------------------------------------------------------------------- mistakes


MISTAKES = {
    "broken code": ("def load(:\n", r"raised SyntaxError: invalid syntax \(mine.py line 1\)"),
    "it raises": (
        "def load(plan):\n    x = 1\n    raise ValueError('too\\nbad')\n",
        r"raised ValueError: too bad \(mine.py line 3\)",
    ),
    "it raises nothing said": (
        "def load(plan):\n    raise NotImplementedError\n",
        r"raised NotImplementedError \(mine.py line 2\)",
    ),
    "no function": (
        "def lode(plan):\n    return 1\n",
        r"no function 'load' in it; did you mean lode\?",
    ),
    "not callable": ("load = 3\n", "load is an object of int, not a function"),
    "nothing": (
        "def load(plan):\n    pass\n",
        "the function returned None, which is not a model; return a torch.nn.Module",
    ),
    "last id only": (
        "def load(plan):\n    return lambda ids: __import__('torch').zeros(len(ids), 9)\n",
        r"float32 of shape \(1, 9\): floating-point values",
    ),
    "fewer than it says": (
        RECURRENT.replace("    def states", "    vocab_size = 5000\n    def states"),
        r"\(2, 64, 4096\).*\(2, 64, 5000\)",
    ),
    "no number": (
        RECURRENT.replace("    def states", "    vocab_size = 'x'\n    def states"),
        "vocab_size is 'x', not a positive",
    ),
    "it fails later": (
        RECURRENT.replace("return self.head(", "return self.haed("),
        r"AttributeError: .*haed.* \(mine.py line 18\)",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_with_its_place(tmp_path, mistake):
    import re

    code, message = MISTAKES[mistake]
    line = refusal(write(tmp_path, code))
    assert re.search(message, line), line
    assert "mine.py" in line


def test_a_file_or_function_that_is_not_named_is_one_line(tmp_path):
    spec = write(tmp_path, "def load(plan): ...\n")
    assert "no such file; give path/to/file.py:function" in refusal(str(tmp_path / "none.py:load"))
    for unnamed in (spec.removesuffix(":load"), spec.removesuffix("load")):
        assert "its function is not named; write mine.py:FUNCTION; it has load" in refusal(unnamed)


def test_a_full_memory_makes_a_smaller_batch_and_no_mistake(tmp_path):
    full = (
        'if len(ids) > 2: raise RuntimeError("DefaultCPUAllocator: can\'t allocate memory")\n    '
        "    return self.head("
    )
    model = load_model(plan(write(tmp_path, RECURRENT.replace("return self.head(", full))))
    ids, offsets = ragged([5, 5, 5])
    with pytest.raises(MemoryError):
        model.score(ids, offsets)
    assert len(model.score(ids[:10], offsets[:3]).nll) == 8
    never = RECURRENT.replace("return self.head(", "raise MemoryError\n        return self.head(")
    assert "out of memory while it was loaded" in refusal(write(tmp_path / "never", never))


def test_the_example_says_how_to_train_it_and_scores_its_recurrence(tmp_path, monkeypatch):
    monkeypatch.setenv("RECALLKIT_HOME", str(tmp_path / "home"))
    (tmp_path / "untrained").mkdir()
    assert "no weights yet; train it: python" in refusal(
        f"{shutil.copy(ROOT / 'examples/03_own_model.py', tmp_path / 'untrained')}:load",
    )
    spec = f"{shutil.copy(ROOT / 'examples/03_own_model.py', tmp_path)}:load"
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "embedding.weight": (VOCAB, 8),
        "norm.weight": (8,),
        "mix.weight": (24, 8),
        "mix.bias": (24,),
        "out.weight": (8, 8),
    }
    shapes |= {"head.weight": (VOCAB, 8), "head.bias": (VOCAB,)}
    w = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    save_file(w, tmp_path / "03_own_model.safetensors")
    ids, offsets = ragged([41])
    state, nll = torch.zeros(8), []
    for before, target in itertools.pairwise(ids.tolist()):
        x = w["embedding.weight"][before]
        forget, value, gate = (
            w["mix.weight"] @ (x * x.pow(2).mean().rsqrt() * w["norm.weight"]) + w["mix.bias"]
        ).chunk(3)
        state = forget.sigmoid() * state + (1 - forget.sigmoid()) * value
        y = x + w["out.weight"] @ (state * gate * gate.sigmoid())
        nll.append(-torch.log_softmax(w["head.weight"] @ y + w["head.bias"], 0)[target].item())
    np.testing.assert_allclose(
        load_model(plan(spec)).score(ids, offsets).nll,
        nll,
        rtol=1e-4,
        atol=1e-4,
    )
