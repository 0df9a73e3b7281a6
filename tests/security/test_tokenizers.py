"""Tokenizers that would never end, fail in native code, or fill the memory: one line, and the
process goes on or ends by itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from recallkit import config
from recallkit.errors import UserError
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec
from recallkit.text.encoding import fast_encoder
from recallkit.text.tokenizers import load_tokenizer
from tests.conftest import write_jsonl

END = "<|endoftext|>"
BACKTRACKING = "(a+)+$"
HARD = "a" * 21 + "!"
"""Each place of it costs the pattern above a fortieth to a tenth of a second, and no search as much
as the library's own limit."""
SECONDS_OF = HARD * 100
"""What is given up goes on in this process to its end."""
GROWING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


@pytest.fixture(autouse=True)
def quiet_panics(monkeypatch):
    monkeypatch.setenv("RUST_BACKTRACE", "0")


def settings(**changes: Any) -> dict[str, Any]:
    """A tokenizer of printable characters."""
    vocab = {chr(code): code - 32 for code in range(32, 127)} | {END: 95}
    added = {
        "id": 95,
        "content": END,
        "special": True,
        "normalized": False,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
    }
    model = {
        "type": "BPE",
        "vocab": vocab,
        "merges": [],
        "unk_token": None,
        **changes.pop("model", {}),
    }
    return {
        "version": "1.0",
        "added_tokens": [added],
        "model": model,
        "normalizer": None,
        "pre_tokenizer": None,
        **changes,
    }


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def written(folder: Path, made: dict[str, Any]) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(made))
    return path


def short_limit() -> None:
    """For a process that is started."""
    config.ENCODING_SECONDS, config.ENCODING_CHARACTERS_PER_SECOND = 1.0, 1_000_000
    os.environ["RUST_BACKTRACE"] = "0"


def test_a_pattern_without_end_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "ENCODING_SECONDS", 0.5)
    tokenizer = load_tokenizer(str(written(tmp_path, settings(pre_tokenizer=split(BACKTRACKING)))))
    begun = time.monotonic()
    with pytest.raises(
        UserError,
        match=r"tokenizer\.json: the tokenizer takes more than 1 s for 2,200 characters; its pattern may backtrack",
    ):
        tokenizer.encode([SECONDS_OF])
    assert time.monotonic() - begun < 60
    assert len(tokenizer.encode(["!b"])[0]) == 2, "another text is encoded meanwhile"


@pytest.mark.parametrize("way", ["encode", "encode_with_stops", "decode"])
def test_every_way_into_native_code_is_watched(tmp_path, monkeypatch, way):
    monkeypatch.setattr(config, "ENCODING_SECONDS", 0.5)
    replacing = {"type": "Replace", "pattern": {"Regex": BACKTRACKING}, "content": ""}
    changes = (
        {"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}, replacing]}}
        if way == "decode"
        else {"normalizer": replacing}
    )
    tokenizer = load_tokenizer(str(written(tmp_path, settings(**changes))))
    import numpy as np

    given = (
        [np.array([ord(c) - 32 for c in SECONDS_OF], np.uint32)]
        if way == "decode"
        else [SECONDS_OF]
    )
    with pytest.raises(UserError, match="takes more than"):
        getattr(tokenizer, way)(given)


def test_a_command_ends_with_one_line(start, small_slices, tmp_path):
    tokenizer = written(tmp_path, settings(pre_tokenizer=split(BACKTRACKING)))
    shard = write_jsonl(tmp_path / "hard.jsonl", [HARD * 400])
    process = start(
        "count", shard, "--tokenizer", tokenizer, "-o", tmp_path / "c.duckdb", prepared=short_limit
    )
    process.join(120)
    assert process.exitcode == 1
    lines = process.err.read_text().strip().splitlines()
    assert [line for line in lines if "takes more than" in line] == lines[-1:]
    assert "Traceback" not in process.err.read_text()
    assert not (tmp_path / "c.duckdb").exists()


def test_a_failure_of_native_code_is_one_line(tmp_path):
    tokenizer = load_tokenizer(str(written(tmp_path, settings(pre_tokenizer=split(BACKTRACKING)))))
    with pytest.raises(UserError, match=r"the tokenizer fails .*retry-limit-in-match"):
        tokenizer.encode(["a" * 40 + "!"])


def test_ids_beyond_any_vocabulary_are_refused_before_tables_of_them_are_made(tmp_path):
    made = settings()
    made["model"]["vocab"]["zz"] = 2**32 - 1
    with pytest.raises(UserError, match=r"ids up to 4,294,967,295, more than the 16,777,216"):
        load_tokenizer(str(written(tmp_path, made)))


@pytest.mark.parametrize(
    "normalizer",
    [
        {"type": "Sequence", "normalizers": [GROWING] * 40},
        {
            "type": "Sequence",
            "normalizers": [
                {"type": "Sequence", "normalizers": [GROWING] * 5},
                {"type": "Prepend", "prepend": "x" * 60},
            ],
        },
        {"type": "Replace", "pattern": {"Regex": "."}, "content": "x" * 257},
    ],
)
def test_replacements_that_would_fill_the_memory_are_refused(tmp_path, normalizer):
    with pytest.raises(UserError, match=r"its replacements can make a text [\d,]+ times as long"):
        load_tokenizer(str(written(tmp_path, settings(normalizer=normalizer))))
    with pytest.raises(UserError, match="times as long"):
        decoder = json.loads(
            json.dumps(normalizer).replace("normalizers", "decoders").replace("Prepend", "Replace")
        )
        if normalizer["type"] == "Sequence" and "Prepend" in json.dumps(normalizer):
            decoder = {"type": "Sequence", "decoders": [GROWING] * 9}
        load_tokenizer(str(written(tmp_path, settings(decoder=decoder))))


def test_ordinary_replacements_are_not(test_data):
    names = [str(path) for path in sorted((test_data / "tokenizers").glob("*.json"))]
    assert all(load_tokenizer(name).vocab_size for name in [None, "bytes", *names])


def test_a_file_too_long_is_not_read(tmp_path):
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(UserError, match="1,099,511,627,776 bytes: more than any tokenizer has"):
        load_tokenizer(str(path))


@pytest.mark.parametrize(
    "made",
    [
        settings(model={"merges": [["a", "b"], ["ab", "a"]]}),
        settings(pre_tokenizer=split("(" * 5000 + "a" + ")" * 5000)),
        settings(pre_tokenizer=split("(a")),
        settings(model={"type": "no such model"}),
    ],
)
def test_what_is_no_tokenizer_is_one_line(tmp_path, made):
    with pytest.raises(UserError) as caught:
        load_tokenizer(str(written(tmp_path, made)))
    assert "\n" not in caught.value.line()


def test_a_chat_template_is_never_rendered(tiny_model, tmp_path):
    """One that would loop for ever, beside a tokenizer that is read and a model that is scored."""
    import shutil

    from recallkit.models.loading import load_model

    path = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), path)
    template = (
        "{% for i in range(10**9) %}{% for j in range(10**9) %}{{ raise_exception('rendered') "
        "}}{% endfor %}{% endfor %}"
    )
    written(path, settings())
    (path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": template, "tokenizer_class": "PreTrainedTokenizerFast"})
    )
    (path / "chat_template.jinja").write_text(template)
    tokenizer = load_tokenizer(str(path))
    assert (
        tokenizer.generated_text(tokenizer.encode(["hello"])[0].tolist()).replace(" ", "")
        == "hello"
    )
    assert load_model(ModelPlan(ModelSpec(str(path)), 96, device="cpu")).vocab_size == 4096


@pytest.mark.parametrize(
    "model",
    [
        {"type": "BPE", "unk_token": "[UNK]"},
        {"type": "WordLevel", "unk_token": "[UNK]"},
        {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
        {"type": "Unigram", "unk_id": None, "vocab": [["a", 0.0], [END, 0.0]]},
    ],
    ids=lambda model: model["type"],
)
def test_a_tokenizer_without_its_unknown_token_is_one_line(tmp_path, model):
    made = settings(model=model)
    made["added_tokens"][0]["id"] = 1 if model["type"] == "Unigram" else 95
    tokenizer = load_tokenizer(str(written(tmp_path, made)))
    for way in (tokenizer.encode, tokenizer.encode_with_stops):
        with pytest.raises(
            UserError,
            match=r"tokenizer\.json: the tokenizer fails \(.*(?i:unk).*\); add the token that it lacks",
        ):
            way(["é\n"])


def test_a_panic_leaves_no_backtrace(start, tmp_path, monkeypatch):
    monkeypatch.setenv("RUST_BACKTRACE", "1")
    tokenizer = written(tmp_path, settings(pre_tokenizer=split(BACKTRACKING)))
    shard = write_jsonl(tmp_path / "hard.jsonl", ["a" * 40 + "!"])
    process = start("count", shard, "--tokenizer", tokenizer, "-o", tmp_path / "c.duckdb")
    process.join(120)
    assert process.exitcode == 1
    said = process.err.read_text()
    assert "stack backtrace" not in said
    assert not [line for line in said.splitlines() if line.startswith(("Traceback", "  File"))]
    assert re.search(r"the tokenizer fails \(.*retry-limit-in-match", said.splitlines()[-1])


def test_a_panic_in_python_leaves_no_backtrace(tmp_path):
    tokenizer = written(tmp_path, settings(pre_tokenizer=split(BACKTRACKING)))
    program = (
        "from recallkit.text.tokenizers import load_tokenizer; "
        f"load_tokenizer({str(tokenizer)!r}).encode(['a' * 40 + '!'])"
    )
    environment = {**os.environ, "RUST_BACKTRACE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "stack backtrace" not in done.stderr
    assert re.search(r"UserError: .*the tokenizer fails \(.*retry-limit-in-match", done.stderr)


@pytest.mark.parametrize("dropout", [0.1, 1.0])
def test_merges_dropped_at_random_are_refused(tmp_path, dropout):
    with pytest.raises(
        UserError, match=rf"drops merges at random \(dropout {dropout:g}\).*; set dropout to null"
    ):
        load_tokenizer(str(written(tmp_path, settings(model={"dropout": dropout}))))
    assert load_tokenizer(str(written(tmp_path, settings(model={"dropout": 0.0})))).encode(["a"])[
        0
    ].tolist() == [65]


@pytest.mark.parametrize("times", [0, 2])
def test_a_template_that_gives_the_text_another_number_of_times_is_refused(tmp_path, times):
    text, end = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": END, "type_id": 0}}
    named = {END: {"id": END, "ids": [95], "tokens": [END]}}
    for single, refused in (([end] + [text] * times, True), ([end, text, end], False)):
        template = {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [text, text],
            "special_tokens": named,
        }
        byte_level = {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": False,
            "use_regex": True,
        }
        path = written(
            tmp_path,
            settings(post_processor={"type": "Sequence", "processors": [byte_level, template]}),
        )
        if refused:
            with pytest.raises(
                UserError, match="its post-processor repeats the text or leaves it out"
            ):
                load_tokenizer(str(path))
        else:
            assert load_tokenizer(str(path)).prefix.ids == (95,)


def test_gigatoken_is_not_given_an_added_token_that_it_takes_minutes_for(tmp_path):
    pytest.importorskip("gigatoken", reason="the extra `fast` is not installed")
    made = json.loads(load_tokenizer(None).backend.to_str())
    notes: list[str] = []
    for length, is_fast in ((1000, True), (1001, False)):
        more = {**made["added_tokens"][0], "id": 4096, "content": "x" * length}
        path = written(tmp_path, {**made, "added_tokens": [*made["added_tokens"], more]})
        assert (fast_encoder(load_tokenizer(str(path)), notes.append) is not None) == is_fast
    [note] = notes
    reason = "an added token of 1,001 characters"
    assert note.startswith(
        f"gigatoken does not support this tokenizer ({reason}): using tokenizers, "
    )
