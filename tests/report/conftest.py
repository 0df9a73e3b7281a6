"""Comparisons that pages are made of: made-up words in packed sequences, and hostile text in bytes
read by three kinds of model."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from recallkit import attribution, counting, scoring, slicing
from recallkit.attribution.comparison import Comparison, read_comparison
from recallkit.options import TextOptions
from tests.conftest import made_up_texts, write_jsonl

REFERENCE, MODELS = "control:recall", ["control:bigram", "control:unigram"]

HOSTILE = [
    "</script><script>alert(1)</script> <img src=x onerror=alert(2)> </script>" * 2,
    "<!-- <script> --> &lt;b&gt; &amp; \\u003c ]]> " * 3,
    "line\u2028separator\u2029and\x00nul\x07bell\x1b[31m\ttab\r\nnext\x7f\u0085 " * 3,
    "\u202eright to left\u202c \u200f\u05e9\u05dc\u05d5\u05dd \u200d\ufeff " * 3,
    "👩‍👩‍👧 naïve 中文字符 한국어 🏳️‍🌈 \U0010ffff \ufffe " * 4,
]

OWN_MODEL = '''"""A model with a tokenizer of its own: its next id depends on the last one alone."""
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.table = torch.nn.Embedding(4096, 4096)

    def forward(self, ids):
        return 3 * self.table(ids)


def load(request):
    return Model().eval()
'''


@pytest.fixture(scope="session")
def words(small_slices, tmp_path_factory) -> Path:
    """A slice directory of its own that holds one comparison of control models; a part of the
    repeated tokens are AR hits."""
    made, folder = small_slices.parent, tmp_path_factory.mktemp("words") / "slices"
    text = TextOptions([str(made / "valid.jsonl"), str(made / "other.jsonl")], "validation")
    slicing.slice_text(
        text, folder, counts=made / "counts.duckdb", rare=slicing.RareCount(9), seq_len=64
    )
    attribution.gap(REFERENCE, MODELS, folder)
    return folder


@pytest.fixture(scope="session")
def comparison(words) -> Comparison:
    return read_comparison(words)


@pytest.fixture(scope="session")
def own_model(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("own") / "own.py"
    path.write_text(OWN_MODEL)
    return f"{path}:load"


@pytest.fixture(scope="session")
def hostile(home, own_model, tmp_path_factory) -> Path:
    """A slice directory of hostile text in bytes, with a comparison of a control model and one that
    reads other tokens."""
    folder = tmp_path_factory.mktemp("hostile")
    train = write_jsonl(
        folder / "train.jsonl", [*made_up_texts(20, 80, seed=5), *HOSTILE[:3]], "books"
    )
    valid = write_jsonl(
        folder / "valid.jsonl", [*HOSTILE, *made_up_texts(4, 60, seed=6)], "<img onerror=alert(3)>"
    )
    text = {"tokenizer": "bytes"}
    counting.count(TextOptions([str(train)], "train", **text), folder / "counts.duckdb")
    options = TextOptions([str(valid)], "validation", **text)
    slicing.slice_text(
        options,
        folder / "slices",
        counts=folder / "counts.duckdb",
        rare=slicing.RareCount(9),
        seq_len=96,
    )
    scoring.score(
        own_model,
        folder / "slices",
        scoring.ScoringOptions(device="cpu", model_tokenizer="recallkit-4k"),
    )
    attribution.gap(REFERENCE, ["control:bigram", own_model], folder / "slices")
    return folder / "slices"


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """Headless Chromium, one for all tests; its console and its requests are kept."""
    chromium, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if chromium is None or driver is None:
        pytest.skip("needs a browser: apt-get install chromium chromium-driver")
    pytest.importorskip("selenium", reason="needs selenium: pip install selenium")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1200,900",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(executable_path=driver))
    yield started
    started.quit()
