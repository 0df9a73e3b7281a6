"""Files of figures: of the size and with the text of a paper, members of their folder, replaced
only where they are ours."""

from __future__ import annotations

import re
import struct
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import pytest

from recallkit.display.charts import PAPER, Figure, number
from recallkit.display.figure_files import WIDTHS, save_figures
from recallkit.display.templates import line_chart
from recallkit.errors import UserError
from recallkit.storage import artifacts
from tests.display.drawings import marks, texts
from tests.display.test_charts import MODELS, figure

LONG = [f"a-model-with-a-name-{place}" for place in range(9)]
PANELS = [f"panel {place}" for place in range(6)]


def small_plots() -> Figure:
    """Nine models of long names in six plots."""
    rows = [
        {
            "model": model,
            "x": x,
            "y": x * y,
            "panel": panel,
            "at": f"{panel} {x}",
            "shown": f"{x * y}",
        }
        for y, model in enumerate(LONG)
        for panel in PANELS
        for x in (0, 1000)
    ]
    return figure(
        spec=line_chart(rows, LONG, number("x", "steps"), number("y", "nats"), panels=PANELS),
        models=LONG,
    )


def placed(element: ET.Element, x: float = 0.0) -> Iterator[tuple[float, ET.Element]]:
    """The elements of a drawing, each with where it begins, from the left."""
    x += sum(map(float, re.findall(r"translate\(([-\d.]+)", element.get("transform", ""))))
    yield x, element
    for child in element:
        yield from placed(child, x)


def columns_of(drawing: str, written: list[str]) -> int:
    """In how many columns these texts are."""
    return len(
        {round(x) for x, element in placed(ET.fromstring(drawing)) if element.text in written}
    )


@pytest.mark.parametrize(
    ("make", "inches"),
    [*((figure, inches) for inches in (*WIDTHS.values(), 5.5)), (small_plots, WIDTHS["column"])],
)
def test_files_have_their_final_size_and_text_of_8_points(tmp_path, make, inches):
    drawing, png, pdf, _ = save_figures([make()], tmp_path, inches)
    root, points = ET.fromstring(drawing.read_text(encoding="utf-8")), 72 * inches
    assert root.get("width") == f"{points:.2f}pt"
    width = float(root.get("viewBox").split()[2])
    sizes = [
        float(element.get("font-size").removesuffix("px")) * points / width
        for element in root.iter()
        if "font-size" in element.attrib
    ]
    assert sizes == pytest.approx([8.0] * len(sizes))
    right = max(
        x + float(element.get("x2")) for x, element in placed(root) if "x2" in element.attrib
    )
    assert width - 12 < right <= width, "grids fill the width"
    assert struct.unpack(">I", png.read_bytes()[16:20])[0] == pytest.approx(300 * inches, abs=1)
    [box] = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf.read_bytes())
    assert [f"{float(side):.2f}pt" for side in box] == [root.get("width"), root.get("height")]
    assert b"/FontFile" in pdf.read_bytes(), "fonts are in it"
    assert b"/Type3" not in pdf.read_bytes(), "which some publishers refuse"


def test_what_is_too_wide_is_laid_out_in_fewer_columns(tmp_path):
    columns = {}
    for name, inches in WIDTHS.items():
        drawing = save_figures([small_plots()], tmp_path, inches)[0].read_text(encoding="utf-8")
        assert {*PANELS, *LONG} <= set(texts(drawing))
        columns[name] = columns_of(drawing, PANELS), columns_of(drawing, LONG)
    assert columns == {"column": (1, 1), "text": (2, 4)}


def test_of_many_models_only_the_reference_has_a_colour(tmp_path):
    def strokes(models: list[str]) -> set[str | None]:
        rows = [{"model": model, "x": 1, "y": 1, "at": "1", "shown": "1"} for model in models]
        spec = line_chart(rows, models, number("x"), number("y"), reference=models[0])
        drawing = save_figures([figure(spec=spec, models=models)], tmp_path)[0].read_text(
            encoding="utf-8"
        )
        return {mark.paint["stroke"] for mark in marks(drawing).values()}

    assert len(strokes(LONG[:8])) == 8
    assert strokes(LONG) == {PAPER["ink"], PAPER["rest"]}


def test_a_figure_is_included_with_a_caption_of_one_sentence(tmp_path):
    shown = Figure(
        "by_count", "Counts", "95 % of a_b & c (in 1.5 nats). Hollow: few.", figure().spec, MODELS
    )
    assert save_figures([shown], tmp_path / "figures", WIDTHS["text"])[3].read_text(
        encoding="utf-8"
    ) == (
        "% made by recallkit; needs "
        "\\usepackage{graphicx}\n\\begin{figure*}\n\\centering\n\\includegraphics{figures/by_count.pdf}\n"
        "\\caption{95 \\% of a\\_b \\& c (in 1.5 nats).}\n\\label{fig:by_count}\n\\end{figure*}\n"
    )
    assert "\\begin{figure}\n" in save_figures([shown], tmp_path / "figures")[3].read_text(
        encoding="utf-8"
    ), "of one column"


def test_figures_are_members_of_their_folder_and_ours_are_replaced(tmp_path):
    written = save_figures([figure("one"), figure("two")], tmp_path)
    endings = ("{}.svg", "{}.png", "{}.pdf", "figure-{}.tex")
    assert [path.name for path in written] == [
        ending.format(name) for name in ("one", "two") for ending in endings
    ]
    assert set(artifacts.members(tmp_path / "manifest.json")) == {path.name for path in written}
    assert [path.read_bytes()[:4] for path in written[:4]] == [
        b"<svg",
        b"\x89PNG",
        b"%PDF",
        b"% ma",
    ]
    before = written[0].read_bytes()
    assert save_figures([figure("one"), figure("two")], tmp_path) == written
    assert written[0].read_bytes() == before, "the same every time"
    save_figures([figure("one", models=MODELS[::-1])], tmp_path)
    assert written[0].read_bytes() != before
    assert save_figures([], tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


def test_other_people_s_pictures_stay_and_nothing_else_is_written(tmp_path):
    (tmp_path / "picture.png").write_bytes(b"mine")
    with pytest.raises(UserError, match="did not write"):
        save_figures([figure("first"), figure()], tmp_path)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [
        ("picture.png", b"mine")
    ]
