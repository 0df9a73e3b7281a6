"""End tokens and prefixes by what the files of tokenizers and models say, in the forms of the
families that have them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from recallkit import counting, slicing
from recallkit.errors import UserError
from recallkit.options import TextOptions
from recallkit.text.tokenizers import load_tokenizer

ORDINARY = ["</s>", "<s>", "<|im_end|>"]
"""Entries that are text, unless a row says that they are special."""


def write(
    folder: Path,
    special: list[str],
    *,
    template: str = "",
    tokenizer: dict | None = None,
    model: dict | None = None,
    name: str = "tokenizer.json",
) -> Path:
    """A byte-level tokenizer with these special tokens, and the configurations beside it."""
    ordinary = [token for token in ORDINARY if token not in special]
    tokens = [*special, *ordinary, *pre_tokenizers.ByteLevel.alphabet()]
    backend = Tokenizer(
        models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]),
    )
    backend.pre_tokenizer, backend.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    backend.add_tokens([AddedToken(token, special=False) for token in ordinary])
    backend.add_special_tokens([AddedToken(token, special=True) for token in special])
    if template:
        pairs = [(template, tokens.index(template))]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{template} $A",
            special_tokens=pairs,
        )
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / name))
    for file, content in (("tokenizer_config.json", tokenizer), ("config.json", model)):
        if content is not None:
            (folder / file).write_text(json.dumps(content))
    return folder


LLAMA_3 = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
GEMMA = ["<pad>", "<eos>", "<bos>", "<end_of_turn>"]
QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
DEEPSEEK = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"]

ENDS = {
    "Llama 2": (["<unk>", "<s>", "</s>"], {"eos_token": "</s>"}, None, "</s>"),
    "Llama 3": (LLAMA_3, {"eos_token": "<|end_of_text|>"}, None, "<|end_of_text|>"),
    "Llama 3, chat": (
        LLAMA_3,
        {"eos_token": "<|eot_id|>"},
        {"eos_token_id": [2, 1]},
        "<|end_of_text|>",
    ),
    "Gemma": (GEMMA, {"eos_token": {"content": "<eos>"}}, None, "<eos>"),
    "Gemma, chat": (
        GEMMA,
        {"eos_token": "<end_of_turn>"},
        {"text_config": {"eos_token_id": 1}},
        "<eos>",
    ),
    "Qwen": (QWEN, {"eos_token": "<|endoftext|>"}, None, "<|endoftext|>"),
    "Qwen, chat": (QWEN, {"eos_token": "<|im_end|>"}, {"eos_token_id": 2}, "<|endoftext|>"),
    "DeepSeek": (DEEPSEEK, {"eos_token": DEEPSEEK[1]}, None, DEEPSEEK[1]),
    "gpt-oss": (
        ["<|endoftext|>", "<|return|>"],
        {"eos_token": "<|return|>"},
        None,
        "<|endoftext|>",
    ),
    "Pythia": (["<|endoftext|>", "<|padding|>"], None, None, "<|endoftext|>"),
}
"""Special tokens, tokenizer_config.json, config.json, and the token that ends documents."""


@pytest.mark.parametrize("family", ENDS)
def test_the_end_of_documents_is_the_same_from_every_form(tmp_path, family):
    special, tokenizer, model, end = ENDS[family]
    folder = write(tmp_path / "model", special, tokenizer=tokenizer, model=model)
    alone = write(tmp_path, special, name="alone.json") / "alone.json"
    assert [
        load_tokenizer(str(path)).end_token for path in (folder, folder / "tokenizer.json", alone)
    ] == [end] * 3


def test_what_a_configuration_names_comes_first(tmp_path):
    """Its model's, where the tokenizer's names none; not a token that is not in the vocabulary, nor
    an id that means something else."""
    special = ["<|endoftext|>", "<stop>", "<bos>"]
    names = [({"eos_token": "<stop>"}, None), (None, {"eos_token_id": 1})]
    useless = [
        ({"eos_token": "<no>"}, None),
        *((None, {"eos_token_id": number}) for number in (2, 9, 999, -1, 1 << 40, True)),
    ]
    for number, (tokenizer, model) in enumerate([*names, *useless]):
        folder = write(tmp_path / str(number), special, tokenizer=tokenizer, model=model)
        assert load_tokenizer(str(folder)).end_token == (
            "<stop>" if number < 2 else "<|endoftext|>"
        )


@pytest.mark.parametrize(
    ("special", "tokenizer", "message"),
    [
        (["<bos>"], None, "no end token found in this vocabulary; name the one"),
        (
            ["<|im_end|>"],
            {"eos_token": "<|im_end|>"},
            r"its end token <\|im_end\|> ends a turn of a chat, not a document; name the one",
        ),
    ],
)
def test_ordinary_tokens_and_turns_end_no_document(tmp_path, special, tokenizer, message):
    with pytest.raises(UserError, match=message):
        load_tokenizer(str(write(tmp_path / "model", special, tokenizer=tokenizer)))


def test_an_html_tag_is_text(tmp_path):
    folder = write(tmp_path / "model", GEMMA)
    text = TextOptions(texts=["<s>struck out</s> and not"] * 3, tokenizer=str(folder))
    assert counting.count(text, tmp_path / "c.duckdb")["num_documents"] == 3
    tokens = slicing.slice_text(text, tmp_path / "s", counts=None, seq_len=1000)
    assert (
        tokens["num_rows"]
        == 3 * len(load_tokenizer(str(folder)).encode(["<s>struck out</s> and not"])[0]) + 2
    )


@pytest.mark.parametrize("tokenizer", ["bytes", "model"])
def test_counts_with_another_end_are_refused(tmp_path, tokenizer):
    name = (
        "bytes"
        if tokenizer == "bytes"
        else str(write(tmp_path / "model", ["<|endoftext|>", "<stop>"]))
    )
    other = ";" if tokenizer == "bytes" else "<stop>"
    counting.count(TextOptions(texts=["a b; a b"] * 3, tokenizer=name), tmp_path / "c.duckdb")
    with pytest.raises(
        UserError,
        match=f"between documents, but here '{other}' ends them; use that of the counts",
    ):
        slicing.slice_text(
            TextOptions(texts=["a b"], tokenizer=name, end_token=other),
            tmp_path / "s",
            counts=tmp_path / "c.duckdb",
        )


BEGINS = {
    "a template": ("<bos>", {}, {}, "<bos>"),
    "a template and what contradicts it": (
        "<bos>",
        {"bos_token": "<bos>", "add_bos_token": False},
        {},
        "<bos>",
    ),
    "DeepSeek 3: no template, but an option": (
        "",
        {"bos_token": "<bos>", "add_bos_token": True},
        {},
        "<bos>",
    ),
    "an option that says no": (
        "",
        {"bos_token": "<bos>", "add_bos_token": False, "tokenizer_class": "LlamaTokenizer"},
        {},
        "",
    ),
    "a class that adds it": (
        "",
        {"bos_token": "<bos>", "tokenizer_class": "LlamaTokenizerFast"},
        {},
        "<bos>",
    ),
    "Gemma 4: in its configuration alone": (
        "",
        {"bos_token": "<bos>"},
        {"model_type": "gemma4"},
        "<bos>",
    ),
    "RecurrentGemma": (
        "",
        {"bos_token": "<bos>", "add_bos_token": False},
        {"model_type": "recurrent_gemma"},
        "<bos>",
    ),
    "xLSTM": (
        "",
        {"bos_token": "<bos>"},
        {"model_type": "xlstm", "force_bos_token_insert": True},
        "<bos>",
    ),
    "GPT-2: named, and never added": ("", {"bos_token": "<bos>"}, {"model_type": "gpt2"}, ""),
    "none": ("", {}, {}, ""),
}
"""The template's token, tokenizer_config.json, config.json, and what a model reads before a
text."""


@pytest.mark.parametrize("kind", BEGINS)
def test_a_text_begins_as_its_files_say(tmp_path, kind):
    template, tokenizer, model, token = BEGINS[kind]
    prefix = load_tokenizer(
        str(
            write(
                tmp_path / "model",
                ["<eos>", "<bos>"],
                template=template,
                tokenizer=tokenizer,
                model=model,
            )
        )
    ).prefix
    assert (prefix.token, prefix.ids) == (token, (1,) if token else ())
    assert bool(prefix.reason) == bool(token)


def test_the_first_release_of_llama_3_has_no_template(tmp_path):
    names = {"bos_token": "<|begin_of_text|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    assert load_tokenizer(str(write(tmp_path / "model", LLAMA_3, tokenizer=names))).prefix.ids == (
        0,
    )


@pytest.mark.parametrize(
    "content",
    ['{"bos_token": "<b', "version https://git-lfs.github.com/spec/v1\n", "", "[]"],
)
@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
def test_a_damaged_configuration_is_not_the_same_as_none(tmp_path, file, content):
    folder = write(tmp_path / "model", ["<eos>", "<bos>"])
    (folder / file).write_text(content)
    with pytest.raises(UserError, match=rf"{file}: (cannot be read|not a JSON object)"):
        load_tokenizer(str(folder))


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (
            {"bos_token": "<bos>", "add_bos_token": "true"},
            "its add_bos_token is 'true', neither true nor false; write",
        ),
        (
            {"bos_token": "<s >", "add_bos_token": True},
            "its bos_token '<s >' is not in its vocabulary, and",
        ),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(tmp_path, tokenizer, message):
    with pytest.raises(UserError, match=message):
        _ = load_tokenizer(
            str(write(tmp_path / "model", ["<eos>", "<bos>"], tokenizer=tokenizer)),
        ).prefix


def test_a_tokenizer_of_few_letters_has_a_template_too(tmp_path):
    """It has no id for most texts."""
    backend = Tokenizer(
        models.BPE(
            vocab={token: number for number, token in enumerate(["<eos>", "<bos>", *"ACGT"])},
            merges=[],
        )
    )
    backend.add_special_tokens(["<eos>", "<bos>"])
    for begins in (False, True):
        if begins:
            backend.post_processor = processors.TemplateProcessing(
                single="<bos> $A",
                special_tokens=[("<bos>", 1)],
            )
        backend.save(str(tmp_path / "dna.json"))
        assert load_tokenizer(str(tmp_path / "dna.json")).prefix.ids == (1,) * begins


def test_rows_are_filled_up_with_the_token_that_is_configured(tmp_path):
    folder = write(tmp_path / "model", ["<eos>", "<unk>"], tokenizer={"pad_token": "<unk>"})
    tokenizer = load_tokenizer(str(folder))
    first, second = (tokenizer.encode([text])[0].tolist() for text in ("ab", "abcd"))
    rows = [{"input_ids": [*first, 0, 1, 1, 1]}, {"input_ids": [1, 1, *second]}]
    ids = counting.count(TextOptions(texts=rows, tokenizer=str(folder)), tmp_path / "ids")
    text = counting.count(
        TextOptions(texts=["ab", "abcd"], tokenizer=str(folder)),
        tmp_path / "text",
    )
    assert ids["num_tokens"] == text["num_tokens"] == 8
    assert ids["id"] == text["id"]


def test_a_hub_id_is_read_with_its_configuration(tmp_path, hub, capfd):
    names = {"bos_token": "<bos>", "eos_token": "<end_of_turn>"}
    hub(
        "owner/gemma",
        write(tmp_path / "model", GEMMA, tokenizer=names, model={"model_type": "gemma4"}),
    )
    tokenizer = load_tokenizer("owner/gemma")
    assert (tokenizer.end_token, tokenizer.prefix.ids) == ("<eos>", (2,))
    assert capfd.readouterr().err == ""
    hub("owner/bare", write(tmp_path / "bare", GEMMA))
    assert load_tokenizer("owner/bare").prefix.ids == ()
    assert (
        "owner/bare: its tokenizer_config.json is not available, so the token that begins its "
        "texts is unknown"
    ) in capfd.readouterr().err


def test_what_ends_documents_is_said_with_its_reason(tmp_path, capfd):
    folder = str(
        write(tmp_path / "model", ["<|endoftext|>", "<stop>"], tokenizer={"eos_token": "<stop>"}),
    )
    alone = str(write(tmp_path, ["<|endoftext|>"], name="alone.json") / "alone.json")
    lines = {
        (
            folder,
            None,
        ): (
            "documents end with '<stop>' (1), as its tokenizer_config.json says; `count` and "
            "`slice` take --end-token\n"
        ),
        (
            alone,
            None,
        ): (
            "documents end with '<|endoftext|>' (0), its special token for that; `count` and "
            "`slice` take --end-token\n"
        ),
        (folder, "<|endoftext|>"): "documents end with '<|endoftext|>' (0), as --end-token says\n",
        (None, None): None,
    }
    for number, ((tokenizer, end), line) in enumerate(lines.items()):
        text = TextOptions(texts=["a b a b"], tokenizer=tokenizer, end_token=end)
        for command in ("count", "slice"):
            target = tmp_path / f"{number}-{command}"
            counting.count(text, target) if command == "count" else slicing.slice_text(
                text,
                target,
                counts=None,
                seq_len=4,
            )
            err = capfd.readouterr().err
            assert ("documents end with" in err) == (line is not None)
            assert line is None or line in err
