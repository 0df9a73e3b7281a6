"""What all pictures share: checked and tidied drawings, files that are whole and ours, colours that tell models apart."""

from __future__ import annotations

import os
import re
import struct
import xml.etree.ElementTree as ET
import zlib

import altair as alt
import pytest
import vl_convert

from recallkit.display import chart_theme
from recallkit.display.chart_theme import PAGE, PAPER, Figure, model_colours, model_dashes, model_shapes, save_figures, svg
from recallkit.errors import UserError
from tests.display.drawings import shapes

EVIL = "<script>alert('1')</script>&\"\x1b[31m <b>"
ROWS = [{"x": 1, "y": 2.123456, "name": "a.b[c]", "tip": EVIL}, {"x": 2, "y": 3, "name": EVIL, "tip": "second"}]


def points(palette, **more):
    encoded = {"x": "x:Q", "y": "y:Q", "color": alt.Color("name:N", scale=alt.Scale(range=list(palette.models))), "description": "tip:N"}
    return alt.Chart(alt.InlineData(values=ROWS)).mark_point().encode(**encoded, **more)


def figure(name="picture", draw=points) -> Figure:
    return Figure(name, "A picture", "of something", draw)


def test_a_drawing_is_text_and_shapes():
    drawn = svg(figure())
    root = ET.fromstring(drawn)
    assert (root.get("role"), root.get("aria-label")) == ("img", "A picture")
    assert not {"width", "height"} & set(root.attrib)
    assert "<script" not in drawn
    labels = [shape.label for shape in shapes(drawn) if shape.label]
    assert labels == [EVIL.replace("\x1b", "\N{REPLACEMENT CHARACTER}"), "second"]
    texts = [shape.text for shape in shapes(drawn)]
    assert "a.b[c]" in texts
    assert any(text.startswith("<script>alert('1')</script>") for text in texts)


def test_on_a_page_colours_are_the_page_s_own_and_nothing_is_fetched():
    drawn = svg(figure())
    paints = set(re.findall(r'(?:fill|stroke)="([^"]*)"', drawn))
    assert {"var(--m0)", "var(--m1)", "var(--soft)", "var(--rule)"} <= paints
    assert all(re.fullmatch(r"var\(--\w+\)|none|transparent", paint) for paint in paints), paints
    assert re.findall(r"https?:[^\"]*", drawn) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"url\(|href|src=|style=|<image|<foreignObject", drawn)


@pytest.mark.parametrize(
    ("draw", "told"),
    [
        (lambda palette: points(palette, href="name:N"), "<{.*}a>|href"),
        (lambda palette: alt.Chart(alt.InlineData(values=ROWS)).mark_image().encode(x="x:Q", url="tip:N"), "image"),
        (lambda palette: points(palette).configure_mark(cursor="pointer"), None),
        (lambda palette: points(palette, fill=alt.value("url(https://example.org/x)")), "fill"),
        (lambda palette: points(palette, stroke=alt.value("javascript:1")), "stroke"),
    ],
)
def test_links_and_pictures_in_a_drawing_are_refused(draw, told):
    if told is None:
        assert "style" not in svg(figure(draw=draw))
        return
    with pytest.raises(ValueError, match=told):
        svg(figure(draw=draw))


def test_data_are_never_fetched():
    with pytest.raises(ValueError, match=r"(?i)url|access|allowed|load"):
        svg(figure(draw=lambda palette: alt.Chart("https://example.org/x.csv").mark_point().encode(x="x:Q")))


def test_tidying_changes_nothing_that_is_seen():
    layered = alt.layer(points(PAPER), points(PAPER).mark_line(clip=True), points(PAPER).mark_bar(opacity=0.5)).properties(title="A title")
    raw = vl_convert.vegalite_to_svg(chart_theme.themed(layered, PAPER, chart_theme._FILE_FONT)).replace(
        "\x1b", "\N{REPLACEMENT CHARACTER}"
    )
    drawn = svg(figure(draw=lambda palette: layered), PAPER)
    assert len(drawn) < 0.7 * len(raw)
    before, after = (
        [shape for shape in shapes(text) if shape.paint.get("fill", "none") + shape.paint.get("stroke", "none") != "nonenone"]
        for text in (raw, drawn)
    )
    assert [(a.kind, a.text, a.label, a.attributes.get("opacity", "1")) for a in before] == [
        (b.kind, b.text, b.label, b.attributes.get("opacity", "1")) for b in after
    ]
    for a, b in zip(before, after, strict=True):
        assert a.paint == b.paint
        assert (b.x, b.y) == pytest.approx((a.x, a.y), abs=0.3)
        for key in ("d", "x2", "y2", "width", "height"):
            numbers = [[float(n) for n in re.findall(r"-?\d+\.?\d*", text.attributes.get(key, ""))] for text in (a, b)]
            assert numbers[0] == pytest.approx(numbers[1], abs=0.051)


def test_identifiers_of_two_drawings_do_not_meet():
    clipped = [svg(figure(name, lambda palette: points(palette).mark_line(clip=True))) for name in ("one", "two")]
    for name, drawn in zip(("one", "two"), clipped, strict=True):
        named = re.findall(r' id="([^"]+)"', drawn)
        assert named
        assert all(found.startswith(f"{name}-") for found in named)
        assert set(re.findall(r"url\(#([^)]+)\)", drawn)) <= set(named)


def chunks(png: bytes) -> list[tuple[bytes, bytes]]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    found, at = [], 8
    while at < len(png):
        length = struct.unpack(">I", png[at : at + 4])[0]
        kind, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert zlib.crc32(kind + data) == struct.unpack(">I", png[at + 8 + length : at + 12 + length])[0]
        found.append((kind, data))
        at += 12 + length
    return found


def test_files_are_pictures_and_the_same_every_time(tmp_path):
    written = [save_figures([figure("one"), figure("two")], tmp_path / folder) for folder in ("a", "b")]
    assert [path.name for path in written[0]] == ["one.svg", "one.png", "one.pdf", "two.svg", "two.png", "two.pdf"]
    assert [path.read_bytes() for path in written[0]] == [path.read_bytes() for path in written[1]]
    root = ET.fromstring(written[0][0].read_bytes())
    found = dict(chunks(written[0][1].read_bytes()))
    assert found[b"tEXt"] == b"Software\x00recallkit"
    assert b"IEND" in found
    width, height = struct.unpack(">II", found[b"IHDR"][:8])
    assert (width, height) == pytest.approx((float(root.get("width")) * 300 / 72, float(root.get("height")) * 300 / 72), abs=5)
    text = written[0][0].read_text()
    assert "var(" not in text
    assert 'fill="#ffffff"' in text


def test_a_pdf_is_whole_and_ours_and_the_same_every_time(tmp_path):
    """Of several fonts and many see-through marks, which vl-convert writes in another order on every run."""

    def busy(palette):
        title = alt.TitleParams("A title", fontWeight="bold")
        return alt.layer(
            points(palette, opacity=alt.value(0.4)), points(palette).mark_bar(opacity=0.5), points(palette).mark_line(clip=True)
        ).properties(title=title)

    raw = {vl_convert.svg_to_pdf(svg(figure(draw=busy), PAPER)) for _ in range(4)}
    assert len(raw) > 1, "no longer needed"
    files = [chart_theme._pdf_file(figure(str(number), busy)) for number in range(6)]
    assert len(set(files)) == 1
    [drawn] = set(files)
    assert drawn.startswith(b"%PDF-1.7\n")
    assert b"% made by recallkit\n" in drawn[:40]
    start = int(re.search(rb"startxref\n(\d+)\n%%EOF$", drawn)[1])
    assert drawn[start:].startswith(b"xref\n0 ")
    size = int(re.search(rb"/Size (\d+)", drawn[start:])[1])
    offsets = [int(offset) for offset in re.findall(rb"^(\d{10}) 00000 n\r\n", drawn[start:], re.MULTILINE)]
    assert len(offsets) == size - 1 == raw.pop().count(b" 0 obj\n")
    assert [drawn[at:].split(b" ", 1)[0] for at in offsets] == [b"%d" % number for number in range(1, size)]
    assert {int(number) for number in re.findall(rb"\b(\d+) 0 R\b", drawn)} == set(range(1, size)), "each is referred to"
    root, page = (re.search(pattern, drawn) for pattern in (rb"/Root (\d+) 0 R", rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]"))
    assert drawn[offsets[int(root[1]) - 1] :].split(b"endobj")[0].count(b"/Type /Catalog") == 1
    drawing = ET.fromstring(chart_theme._svg_file(figure(draw=busy)))
    assert [float(end) for end in page.groups()] == pytest.approx([float(drawing.get(end)) for end in ("width", "height")], abs=1)


def test_ours_are_replaced_whole(tmp_path):
    save_figures([figure()], tmp_path)
    os.link(tmp_path / "picture.svg", tmp_path / "before.svg")
    before = (tmp_path / "before.svg").read_bytes()
    save_figures([figure(draw=lambda palette: points(palette).mark_line())], tmp_path)
    assert (tmp_path / "picture.svg").read_bytes() != before
    assert (tmp_path / "before.svg").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"picture.svg", "picture.png", "picture.pdf", "before.svg", "manifest.json"}


@pytest.mark.parametrize("name", ["picture.svg", "picture.png", "picture.pdf"])
def test_other_people_s_pictures_stay_and_nothing_else_is_written(tmp_path, name):
    mine = {
        "picture.svg": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
        "picture.png": vl_convert.svg_to_png("<svg xmlns='http://www.w3.org/2000/svg'/>"),
        "picture.pdf": vl_convert.svg_to_pdf("<svg xmlns='http://www.w3.org/2000/svg'/>"),
    }
    (tmp_path / name).write_bytes(mine[name])
    with pytest.raises(UserError, match="did not write"):
        save_figures([figure("first"), figure()], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == mine[name]


def test_a_chart_that_fails_leaves_no_half_file(tmp_path):
    def fails(palette):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        save_figures([figure(draw=fails)], tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", [".eps", "", ".jpg"])
def test_other_kinds_of_files_are_a_mistake(tmp_path, ending):
    with pytest.raises(UserError, match=r"use \.svg, \.png or \.pdf"):
        chart_theme.save_figure(figure(), tmp_path / f"picture{ending}")


def test_twenty_one_models_are_told_apart_and_not_by_colour_alone():
    models = [f"m{number}" for number in range(21)]
    looks = list(
        zip(
            *(of(models)[1] if of is not model_colours else of(models, PAPER)[1] for of in (model_colours, model_dashes, model_shapes)),
            strict=True,
        )
    )
    assert len({(colour, tuple(dash)) for colour, dash, _ in looks}) == 21
    assert len({shape for _, _, shape in looks[:7]}) == 7
    for of in (lambda *a: model_colours(a[0], PAGE, a[1]), model_dashes, model_shapes):
        domain, shown = of([*models[:3], "ref", *models[3:]], "ref")
        assert domain == ["ref", *models]
        assert len(shown) == 22
    assert model_colours(["ref", "a"], PAPER, "ref")[1] == [PAPER.reference, PAPER.models[0]]
