"""The copying control: each of its rules by hand, and its accuracy on real rows."""

from __future__ import annotations

import pytest

from recallkit.recall.copying import copy_answer
from recallkit.recall.prompts import make_prompt
from recallkit.recall.tasks import load_rows


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("Size: 3 m\nColour: red\nsize:", " : 3 m"),
        ("the colour of it\nColour: red\ncolour: ", " : red"),
        ("A. Colour:\n \n--\nred\nblue\ncolour:", " red"),
        ("Meta-size: 1\nsize\n3\nSize:", " 3"),
        ("Sizes: 1\n<b>Size</b> : <a href='x'>3</a> <i>m</i>\nsize:", " : 3 m"),
        ("<td>ISBN-13</td>\n<td>: 978</td>\nisbn 13:", " : 978"),
        ("Mail: Ann <ann@example.org>\nmail:", " : Ann <ann@example.org>"),
        ("<li>Date</li>: May 1\npublication date:", " : May 1"),
        (f"Size: {'x' * 600}\nsize:", f" : {'x' * 398}"),
        ("510(k) Number: K1\n510(k) number:", " : K1"),
        (
            "A cat sat. The dog ate it.\n\nQuestion: What did the dog eat?\nAnswer:",
            " The dog ate it.",
        ),
        ("A cat sat. The dogs ate it.\nThe dog ate", " The dogs ate it."),
        ("A cat sat. J. R. Dog ate it all.\nWho ate?", " J. R. Dog ate it all."),
        ("A cat sat.\nweight:", " A cat sat."),
        (
            "A mill stood. The mill burned in 1742. The mill on the Lode burned",
            " The mill burned in 1742.",
        ),
        ("<b>Size</b>: 3 m\nColour: red. Size:", " : 3 m"),
        ("size:", " "),
        ("", " "),
    ],
)
def test_what_is_copied(prompt: str, answer: str) -> None:
    assert copy_answer(prompt) == answer


def test_what_is_copied_of_packages_and_questions() -> None:
    for row in load_rows("metadata", limit=20).rows:
        assert row.value in copy_answer(make_prompt(row, version=1, kind="twice").text)
    prompt = "Who sat? A cat sat. Dogs ran.\n\nA cat sat. Dogs ran.\n\nQuestion: Who sat?\nAnswer:"
    assert copy_answer(prompt) == " A cat sat.", "a question is no answer to itself"
