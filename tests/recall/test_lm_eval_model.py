"""Our models behind lm-eval, beside lm-eval's own transformers models: the same generations,
likelihoods and cuts."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from recallkit.errors import UserError
from recallkit.options import RecallOptions
from recallkit.recall import lm_eval_run
from recallkit.recall.answering import Answering, open_prompted
from recallkit.recall.evaluation import recall_documents
from recallkit.recall.lm_eval_model import ModelLM
from recallkit.recall.prompts import make_documents
from recallkit.recall.rows import RecallRow
from recallkit.storage import artifacts
from recallkit.storage.journal import Parts
from recallkit.storage.timings import Timings
from tests.conftest import made_up_texts
from tests.made_tokenizers import byte_level

MAX_LENGTH = 256
"""Of the tiny attention models: some of the prompts are longer."""


@pytest.fixture(scope="module")
def model_path(tiny_model, tmp_path_factory):
    """A tiny model that says different things after different prompts, with a tokenizer beside
    it."""
    folder = tmp_path_factory.mktemp("evaluated")

    def path(family: str, *, begins: bool = False) -> Path:
        import torch
        from transformers import AutoModelForCausalLM

        place = folder / f"{family}{'-begins' * begins}"
        if not place.exists():
            model = AutoModelForCausalLM.from_pretrained(tiny_model(family, vocab_size=512))
            torch.manual_seed(3)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.3 * torch.randn_like(parameter))
            model.save_pretrained(place)
            tokenizer(begins=begins).save_pretrained(place)
        return place

    return path


def tokenizer(*, begins: bool):
    """A byte-level tokenizer, with a token of its own before every text if `begins`."""
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    backend = byte_level()
    if not begins:
        return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>")
    backend.add_special_tokens(["<|begin|>"])
    special = [("<|begin|>", backend.token_to_id("<|begin|>"))]
    backend.post_processor = processors.TemplateProcessing(
        "<|begin|> $A",
        "<|begin|> $A $B",
        special,
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|endoftext|>",
        bos_token="<|begin|>",
    )


@pytest.fixture
def ours(model_path, tmp_path):
    """A model behind lm-eval, whose answers are in the folder `mark`."""

    def lm(family: str, *, begins: bool = False, mark: str = "test", **options) -> ModelLM:
        return behind_lm_eval(model_path(family, begins=begins), tmp_path / mark, **options)

    return lm


def evaluation_of(model: Path, folder: Path, options: RecallOptions) -> tuple:
    """What an evaluation is made of: the model, a task, and a journal in the folder."""
    folder.mkdir(exist_ok=True)
    [evaluated] = open_prompted([str(model)], options).values()
    journal = SimpleNamespace(parts=Parts(folder, "test"), note_resumed=lambda *_: None)
    return evaluated, "test", journal


def behind_lm_eval(model: Path, folder: Path, **settings: object) -> ModelLM:
    options = RecallOptions(device="cpu", **settings)
    return ModelLM(Answering(*evaluation_of(model, folder, options), options, Timings()))


@pytest.fixture(scope="module")
def theirs(model_path):
    """lm-eval's own, a prompt at a time, so that nothing is padded."""

    def lm(family: str, *, begins: bool = False, **options):
        from lm_eval.models.huggingface import HFLM

        return HFLM(
            pretrained=str(model_path(family, begins=begins)),
            device="cpu",
            dtype="float32",
            batch_size=1,
            **options,
        )

    return lm


def rows(number: int = 10) -> list[dict[str, str]]:
    """Documents of many lengths, some beyond the context, some of the same length; texts and values
    with spaces around them."""
    texts = [
        *made_up_texts(number - 2, 250, seed=5),
        "the state of the model",
        "the model of the state",
    ]
    return [
        {"text": f" {text}\nkey:{' ' * (i % 3)}", "value": f" {text.split()[0]} ", "key": "key"}
        for i, text in enumerate(texts)
    ]


def stock_task(name: str):
    """lm-eval's own task class on these rows."""
    import datasets
    from lm_eval.tasks.fda.task import FDA
    from lm_eval.tasks.squad_completion.task import SQUADCompletion
    from lm_eval.tasks.swde.task import SWDE

    class Local({"fda": FDA, "swde": SWDE, "squad_completion": SQUADCompletion}[name]):
        def download(self, dataset_kwargs=None, **kwargs):
            self.dataset = {"validation": datasets.Dataset.from_list(rows())}

    task = Local()
    task.set_config("task", name)
    # it would run with defaults that lm-eval injects, not with its own
    if name == "squad_completion":
        task.set_config(
            "generation_kwargs",
            {"until": ["\n"], "max_gen_toks": 48, "do_sample": False},
        )
    return task


def samples(lm, task) -> list[dict]:
    results = lm_eval_run.run_tasks(lm, lm_eval_run.load_task(task), model="m")
    return next(iter(results["samples"].values()))


def generations(rows: list[dict]) -> list[str]:
    return [row["filtered_resps"][0] for row in rows]


@pytest.mark.parametrize(
    ("family", "name", "begins"),
    [("llama", "swde", True), ("gpt_neox", "squad_completion", False)],
)
def test_stock_tasks_give_what_lm_evals_own_model_gives(ours, theirs, family, name, begins):
    """Of prompts that fit, where a model reads a token before every text: of others lm-eval cuts
    that, too."""
    lm = ours(family, begins=begins)
    expected = samples(theirs(family, begins=begins), stock_task(name))
    actual = samples(lm, stock_task(name))
    if begins:
        sizes = [len(lm.tok_encode(row["doc"]["text"])) for row in expected]
        fitting = [place for place, size in enumerate(sizes) if size <= MAX_LENGTH - 60]
        assert 0 < len(fitting) < len(sizes)
        actual = [actual[place] for place in fitting]
        expected = [expected[place] for place in fitting]
    assert generations(actual) == generations(expected)
    assert [row["contains"] for row in actual] == [row["contains"] for row in expected]
    assert len(set(generations(actual))) > 3, "generations that are all alike prove nothing"


@pytest.fixture
def recalls(model_path, tmp_path):
    """The results of a tiny llama on our own evaluation of these rows."""

    def evaluate(mark: str, **settings: object) -> list:
        options = RecallOptions(device="cpu", **settings)
        evaluation = evaluation_of(model_path("llama"), tmp_path / mark, options)
        fields = [RecallRow("d", row["text"], row["value"], row["key"]) for row in rows()]
        documents = list(make_documents("fda", fields, evaluation[0].tokenizer, options))
        return recall_documents(*evaluation[:2], documents, evaluation[2], options, Timings())

    return evaluate


def test_our_own_evaluations_ask_what_the_stock_tasks_ask(recalls, theirs):
    results = recalls("own", batch_size=3)
    expected = samples(theirs("llama"), stock_task("fda"))
    assert [recall.generation for recall in results] == generations(expected)
    cut = [recall.num_cut for recall in results]
    assert cut == [max(0, recall.prompt_tokens - (MAX_LENGTH - 48)) for recall in results]
    assert 0 < sum(number > 0 for number in cut) < len(cut)


def requests(kind: str, arguments: list[tuple]) -> list:
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, argument, 0) for argument in arguments]


@pytest.mark.parametrize(("family", "begins"), [("llama", True), ("rwkv", False)])
def test_likelihoods_are_lm_evals(ours, theirs, family, begins):
    texts = made_up_texts(6, 200, seed=8)
    pairs = [(text, f" {word}") for text in texts[:4] for word in ("the", "state of memory")] + [
        ("", "the key"),
        (texts[0] + " ", "x"),
    ]
    texts = [*texts, "a"]
    pairs += [("the", " of" * 200)]
    mine = ours(family, begins=begins, context=MAX_LENGTH)
    other = theirs(family, begins=begins, max_length=MAX_LENGTH)
    results, expected = (lm.loglikelihood(requests("loglikelihood", pairs)) for lm in (mine, other))
    assert [value for value, _ in results] == pytest.approx(
        [value for value, _ in expected],
        abs=2e-4,
    )
    assert [greedy for _, greedy in results] == [greedy for _, greedy in expected]
    # lm-eval predicts a token before every text from itself, and reads no later window behind it
    if not begins:
        rolling = requests("loglikelihood_rolling", [(text,) for text in texts])
        results, expected = (lm.loglikelihood_rolling(rolling) for lm in (mine, other))
        assert results == pytest.approx(list(expected), abs=2e-3)
    (space, _), (nothing, _) = mine.loglikelihood(
        requests("loglikelihood", [(" ", "a"), ("", " a")]),
    )
    assert space == pytest.approx(nothing), (
        "spaces belong to the continuation: nothing is left before it"
    )


def test_batches_are_reused_and_the_same_in_every_run(recalls, tmp_path):
    def evaluated(mark: str) -> tuple[list, list[bytes]]:
        results = recalls(mark, batch_size=4)
        return results, [path.read_bytes() for path in sorted((tmp_path / mark).glob("part-*"))]

    results, parts = evaluated("one")
    assert len(parts) == 3
    for number in (0, 2):
        (tmp_path / "one" / f"part-test-{number:06d}").unlink()
    assert evaluated("one") == (results, parts) == evaluated("two")
    part = tmp_path / "one" / "part-test-000001"
    changed = artifacts.read_json(part)
    changed["outcomes"][0]["ids"] = [1]
    artifacts.write_json(part, changed)
    assert evaluated("one")[0] != results, "a batch that is there is not made again"


def test_what_does_not_fit_is_one_line(ours):
    lm = ours("llama", context=40)
    with pytest.raises(UserError, match="no room for a prompt and 48 generated ones"):
        samples(lm, stock_task("fda"))
    for options, prompts in [
        ({"do_sample": True, "temperature": 1.0}, "sampling"),
        ({"num_beams": 3}, "num_beams"),
    ]:
        with pytest.raises(
            UserError,
            match=f"it asks for {prompts}, but generation is greedy here",
        ):
            lm.generate_until(
                requests(
                    "generate_until", [("a", {"until": ["\n"], "max_gen_toks": 2, **options})]
                ),
            )
    for continuation in ("", " the" * 50):
        with pytest.raises(UserError, match="but the context has room for 1 to 40"):
            lm.loglikelihood(requests("loglikelihood", [("of", continuation)]))


def test_generation_stops_where_the_models_configuration_says(ours, theirs, model_path):
    """An end-of-turn token that is no tokenizer's end token, as instruction-tuned models have."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    prompts = [("the state of the", {"until": [], "max_gen_toks": 12})]
    folder = model_path("llama").parent / "llama-turns"
    reader = AutoTokenizer.from_pretrained(model_path("llama"))
    ids = reader(ours("llama", mark="free").generate_until(requests("generate_until", prompts))[0])[
        "input_ids"
    ]
    model = AutoModelForCausalLM.from_pretrained(model_path("llama"))
    model.generation_config.eos_token_id = [0, ids[3]]
    model.save_pretrained(folder)
    reader.save_pretrained(folder)
    from lm_eval.models.huggingface import HFLM

    expected = HFLM(
        pretrained=str(folder),
        device="cpu",
        dtype="float32",
        batch_size=1,
    ).generate_until(requests("generate_until", prompts))
    lm = behind_lm_eval(folder, folder / "answers")
    assert lm.generate_until(requests("generate_until", prompts)) == expected
    assert len(reader(expected[0])["input_ids"]) == 4


def test_a_batch_that_does_not_fit_is_halved(ours):
    lm, unlimited = (ours("llama", batch_size=8, mark=mark) for mark in ("a", "b"))
    pairs = [(f"the state {word}", " model") for word in ("a", "b", "c", "d", "e")]
    model = lm.answering.model.model
    score, sizes = model.score, []

    def small(ids: np.ndarray, offsets: np.ndarray):
        sizes.append(len(offsets) - 1)
        if len(offsets) > 3:
            raise MemoryError
        return score(ids, offsets)

    model.score = small
    results = lm.loglikelihood(requests("loglikelihood", pairs))
    expected = unlimited.loglikelihood(requests("loglikelihood", pairs))
    assert [value for value, _ in results] == pytest.approx([v for v, _ in expected], abs=1e-5)
    assert sizes == [5, 2, 3, 1, 2]
    model.score = lambda ids, offsets: (_ for _ in ()).throw(MemoryError())
    with pytest.raises(UserError, match="out of memory on a prompt of"):
        lm.loglikelihood(requests("loglikelihood", [("the", " x y")]))


def test_what_a_text_begins_with_is_neither_cut_nor_predicted(ours, model_path):
    """lm-eval cuts it with the rest of a long prompt's beginning, and predicts it from itself: no
    model was trained to read so."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = model_path("llama", begins=True)
    reader, model = (
        AutoTokenizer.from_pretrained(path),
        AutoModelForCausalLM.from_pretrained(path).eval(),
    )
    begin, text = reader.bos_token_id, " ".join(made_up_texts(4, 250, seed=5))
    ids = reader(text, add_special_tokens=False)["input_ids"]
    assert len(ids) > MAX_LENGTH
    lm = ours("llama", begins=True)
    last = torch.tensor([[begin, *ids[-(MAX_LENGTH - 1 - 6) :]]])
    expected = model.generate(
        last,
        attention_mask=torch.ones_like(last),
        max_new_tokens=6,
        do_sample=False,
        eos_token_id=None,
    )
    [results] = lm.generate_until(
        requests("generate_until", [(text, {"until": [], "max_gen_toks": 6})]),
    )
    assert results == reader.decode(expected[0, last.shape[1] :], skip_special_tokens=True)

    some = ids[:200]
    with torch.no_grad():
        logits = model(torch.tensor([[begin, *some]])).logits[0].double()
    nll = -torch.log_softmax(logits[:-1], 1).gather(1, torch.tensor(some)[:, None]).sum()
    [rolled] = ours("llama", begins=True, mark="rolling").loglikelihood_rolling(
        requests("loglikelihood_rolling", [(reader.decode(some),)]),
    )
    assert -rolled == pytest.approx(float(nll), rel=1e-5)


def test_an_empty_context_is_all_that_is_read_before_a_text(model_path, tmp_path):
    """Two tokens, as GLM's models have."""
    import torch
    from tokenizers import Tokenizer, processors
    from transformers import AutoModelForCausalLM

    folder = shutil.copytree(model_path("llama", begins=True), tmp_path / "model")
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    pair = ["<|begin|>", "<|endoftext|>"]
    prefix = [backend.token_to_id(token) for token in pair]
    special = list(zip(pair, prefix, strict=True))
    backend.post_processor = processors.TemplateProcessing(
        single=f"{' '.join(pair)} $A",
        special_tokens=special,
    )
    backend.save(str(folder / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = backend.encode("the key", add_special_tokens=False).ids
    with torch.no_grad():
        logits = model(torch.tensor([[*prefix, *ids]])).logits[0].double()
    nll = -torch.log_softmax(logits[1:-1], 1).gather(1, torch.tensor(ids)[:, None]).sum()
    lm = behind_lm_eval(folder, tmp_path / "answers")
    [(value, _)] = lm.loglikelihood(requests("loglikelihood", [("", "the key")]))
    assert -value == pytest.approx(float(nll), rel=1e-5)
