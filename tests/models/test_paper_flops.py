"""Zoology's printed TFLOPs: printed, ours and the difference of every row; what does not match is named."""

from __future__ import annotations

import dataclasses

import pytest

from recallkit.attribution.papers import read_table
from recallkit.models.describe import paper_flops
from recallkit.models.presets import PRESETS

MATCHED = {
    "attention-73m": (1.52, 1.521),
    "attention-125m": (2.46, 2.456),
    "hyena-158m": (2.41, 2.411),
    "hyena-358m": (5.03, 5.031),
    "h3-72m": (1.33, 1.329),
    "h3-168m": (2.55, 2.553),
    "h3-357m": (4.85, 4.854),
    "rwkv-169m": (2.08, 2.079),
    "rwkv-351m": (4.31, 4.309),
    "long-conv-76m": (1.20, 1.204),
    "long-conv-128m": (1.74, 1.744),
    "long-conv-360m": (4.08, 4.081),
    "base-conv-354m": (4.81, 4.809),
}
UNMATCHED = {"attention-360m": (6.23, 6.213), "hyena-72m": (1.34, 1.422), "rwkv-72m": (1.89, 1.144), "base-conv-168m": (2.46, 2.408)}
"""Printed and ours. RWKV's 72M is farthest off: by its rule 1.89 are 154M parameters."""

NOT_COUNTED = {"RetNet (128)", "Hyena + Slide Attn. (64)", "Hyena + Slide Attn. (256)"}
"""Rows whose operations no table of the paper gives."""

_NAMES = {"Attention": "attention", "Long Conv": "long-conv", "H3": "h3", "Hyena": "hyena", "RWKV": "rwkv", "BaseConv": "base-conv"}


def printed():
    """Preset -> printed TFLOPs of the tables 1, 2 and 4, and the models of 1 and 4 without one."""
    found, left = {}, set()
    for table in ("zoology:1", "zoology:4", "zoology:2"):
        for row in read_table(table).iter_rows(named=True):
            # Table 4 calls the Hyena of table 1 160M.
            name = f"{_NAMES.get(row['model'])}-{ {160: 158}.get(row['params_m'], row['params_m']) }m"
            if name in PRESETS:
                assert found.setdefault(name, row["tflops"]) == row["tflops"]
            elif table != "zoology:2":
                left.add(row["model"])
    return found, left


def test_every_printed_row_is_matched_or_named():
    found, left = printed()
    assert left == NOT_COUNTED
    assert found == {name: theirs for name, (theirs, _) in (MATCHED | UNMATCHED).items()}


@pytest.mark.parametrize("name", MATCHED | UNMATCHED)
def test_tflops(name):
    theirs, ours = (MATCHED | UNMATCHED)[name]
    found = paper_flops(PRESETS[name]) / 1e12
    assert found == pytest.approx(ours, abs=0.0005)
    assert (abs(found - theirs) <= 0.005) == (name in MATCHED)


@pytest.mark.parametrize(
    ("name", "entries", "wanted"),
    [
        ("hyena-72m", {"d_model": 736}, 1.34),
        ("base-conv-168m", {"d_model": 864}, 2.46),
    ],
)
def test_the_width_in_a_note_gives_the_printed_operations(name, entries, wanted):
    entry = PRESETS[name]
    other = dataclasses.replace(entry, config=dataclasses.replace(entry.config, **entries))
    assert paper_flops(other) / 1e12 == pytest.approx(wanted, abs=0.005)
    assert f"width of {entries['d_model']}" in entry.note


@pytest.mark.parametrize(("name", "entries"), [("hyena-358m", {"layers": 24}), ("long-conv-128m", {"d_model": 864})])
def test_the_entries_of_the_table_that_were_corrected_miss_the_printed_operations(name, entries):
    entry = PRESETS[name]
    layers = entry.config.layers[: entries.pop("layers", None)]
    as_printed = dataclasses.replace(entry, config=dataclasses.replace(entry.config, layers=layers, **entries))
    assert abs(paper_flops(as_printed) / paper_flops(entry) - 1) > 0.15


def test_the_formula_of_attention_by_hand():
    """Six times: embedding and head, four projections, scores and values, and an MLP of 8 D^2."""
    n, d, v = 100, 704, 50_257
    layer = n * d * 3 * d + n * d * d + 2 * n * n * d + 8 * n * d * d
    assert paper_flops(PRESETS["attention-73m"], n) == 6 * (2 * n * d * v + 6 * layer)


def test_architectures_without_a_table_have_none():
    none = {name for name, entry in PRESETS.items() if paper_flops(entry) is None}
    assert none == {"retnet-152m", *(name for name, entry in PRESETS.items() if entry.table.startswith("based"))}
