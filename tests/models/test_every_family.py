"""Every family of transformers, and what holds of a few ids but not of more."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT
from tests.models import every_family
from tests.models.every_family import outcome

PAGE = ROOT / "docs" / "models.md"


@pytest.mark.parametrize(
    ("name", "sharing"),
    [
        ("moshi", "any"),  # its window is applied to what is carried alone
        # Beyond its window it keeps the ids that weigh most, of those that are read at once.
        ("doge", "equal"),
        ("mistral_large4", "equal"),  # ids whose index scores are all zero are equally good
    ],
)
def test_what_a_window_or_a_selection_changes_is_no_part_of_a_score(tmp_path, name, sharing):
    """Each gives one pass's scores of the few ids that are read when it is loaded, also in a batch
    and in chunks."""
    family = outcome(name, tmp_path)
    assert (family.result, family.sharing, family.carried) == ("equal", sharing, "no")
    assert re.match(
        r"its state cannot be carried over \d+ ids in chunks of \d+.*; read it in windows with --stride",
        family.why,
    )


@pytest.mark.parametrize(
    ("name", "settings", "carried"),
    [
        ("granitemoehybrid", {"layer_types": ["linear_attention"] * 2}, "chunks"),
        ("bamba", {"attn_layer_indices": []}, "chunks"),
        ("jamba", {"attn_layer_period": 4, "attn_layer_offset": 3}, "steps"),
        ("blenderbot", {}, "chunks"),
    ],
)
def test_layers_of_one_kind_and_a_decoder_behind_a_wrapper_are_carried(
    tmp_path,
    name,
    settings,
    carried,
):
    family = outcome(name, tmp_path, **settings)
    assert (family.result, family.carried) == ("equal", carried)


def test_a_model_of_text_within_another_is_scored_and_one_without_is_refused(tmp_path):
    """Both before their weights are read and after: a class of images and sounds, and one that
    names no head."""
    assert outcome("nemotron_h_omni", tmp_path / "wraps").result == "equal"
    refused = outcome("blip", tmp_path / "none")
    assert (refused.result, refused.why) == (
        "refused",
        "not a language model with input and output embeddings; give one with a head",
    )


@pytest.mark.ci
def test_what_is_run_each_night_runs(warm, tmp_path, capfd):
    page = tmp_path / "page.md"
    page.write_text(f"Before.\n{every_family.BEGIN}\nold\n{every_family.END}\nAfter.\n")
    every_family.main(["--only", "llama", "pix2struct", "--write", str(page)])
    before, rows, after = re.split(r"<!--.*?-->", page.read_text())
    assert (before, after) == ("Before.\n", "\nAfter.\n")
    assert "| equal, state carried in chunks | 1 | all others |" in rows
    assert "| refused: an encoder with a decoder, or of images alone | 1 | pix2struct |" in rows
    assert "llama" in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_page_says_what_becomes_of_every_family(warm):
    import transformers

    everything = list(every_family.outcomes(every_family.names(), at_once=2))
    assert [item for item in everything if item.result == "different"] == []
    page = PAGE.read_text(encoding="utf-8")
    if f"of transformers {transformers.__version__}:" not in page:
        pytest.skip("the page is of another version of transformers")
    text = every_family.section(everything, transformers.__version__)
    assert every_family.with_section(page, text) == page, (
        f"python -m tests.models.every_family --write {PAGE}"
    )
