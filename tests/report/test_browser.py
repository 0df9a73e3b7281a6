"""The page in a real browser, headless Chromium: it opens from disk, asks the network for nothing,
and does what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import recallkit
from recallkit.attribution.comparison import Comparison, read_comparison
from recallkit.report.excerpts import token_view
from recallkit.report.write import ReportOptions, write_report
from tests.report.conftest import MODELS, REFERENCE
from tests.report.reading import Page

pytestmark = pytest.mark.timeout(200)

TOKENS = ".text .t[role=option]"


@pytest.fixture(scope="module")
def page(words) -> Path:
    return write_report(words).page


@pytest.fixture(scope="module")
def data(page) -> dict:
    return Page.read(page).token_data()


class OpenPage:
    """A page in the browser."""

    def __init__(self, browser, path: Path) -> None:
        self.browser, self.path = browser, path
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
        self.emulate()
        self.requests()
        browser.get(path.as_uri())
        self.wait(
            "[...document.querySelectorAll('.chart')].every(chart => chart.querySelector('svg'))"
        )

    def js(self, program: str, *arguments):
        return self.browser.execute_script(f"return ({program})", *arguments)

    def wait(self, program: str) -> None:
        """Until this is true; fails after a while."""
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.browser, 20, 0.02).until(lambda _: self.js(program))

    def all(self, selector: str):
        return self.browser.find_elements("css selector", selector)

    def one(self, selector: str):
        return self.browser.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        return self.js("document.querySelector(arguments[0]).textContent", selector)

    def focus(self, at: int) -> None:
        self.js("document.querySelector(`.t[data-at='${arguments[0]}']`).focus()", at)

    def press(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        for key in keys:
            ActionChains(self.browser).send_keys(key).perform()

    def at(self) -> int:
        """The token that has the focus."""
        return int(self.js("document.activeElement.dataset.at"))

    def choose(self, selector: str, value: object) -> None:
        self.js(
            (
                "(e => { e.value = arguments[1]; e.dispatchEvent(new Event('change')); "
                "})(document.querySelector(arguments[0]))"
            ),
            selector,
            value,
        )

    def boxes(self, selector: str) -> list[list[float]]:
        """[left, right, top, bottom] of each element that there is, in the window."""
        box = (
            "(e => { const b = e.getBoundingClientRect(); return [b.left, b.right, b.top, "
            "b.bottom]; })"
        )
        return self.js(f"[...document.querySelectorAll(arguments[0])].map({box})", selector)

    def search(self, selector: str, words: str) -> None:
        act = "(e => { e.value = arguments[1]; e.dispatchEvent(new Event('input')); })"
        self.js(f"{act}(document.querySelector(arguments[0]))", selector, words)

    def marked(self, name: str) -> list[int]:
        return sorted(
            int(at)
            for at in self.js(
                "[...document.querySelectorAll(arguments[0])].map(e => e.dataset.at)",
                f".text .{name}",
            )
        )

    def emulate(
        self, scheme: str = "light", media: str = "", width: int = 1200, height: int = 900
    ) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"media": media, "features": features}
        )
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def classes(self) -> list[str]:
        return self.js("[...document.querySelectorAll(arguments[0])].map(e => e.className)", TOKENS)

    def click(self, selector: str) -> None:
        self.js("document.querySelector(arguments[0]).click()", selector)

    def complaints(self) -> list[dict]:
        return [
            entry
            for entry in self.browser.get_log("browser")
            if entry["level"] in ("SEVERE", "WARNING")
        ]

    def requests(self) -> list[str]:
        """What was asked for since the last call."""
        messages = [
            json.loads(entry["message"])["message"] for entry in self.browser.get_log("performance")
        ]
        return [
            m["params"]["request"]["url"]
            for m in messages
            if m["method"] == "Network.requestWillBeSent"
        ]

    def excerpt(self, data: dict) -> dict:
        return data["excerpts"][int(self.js("document.getElementById('excerpt').value"))]


@pytest.fixture
def shown(browser, page) -> OpenPage:
    return OpenPage(browser, page)


def hits_of(excerpt: dict, data: dict) -> list[int]:
    return [
        i
        for i, (d, c) in enumerate(zip(excerpt["distance"], excerpt["count"], strict=True))
        if d and c <= data["most"]
    ]


def test_it_opens_from_disk_asks_for_nothing_else_and_shows_the_costliest_excerpt(shown, data):
    assert shown.requests() == [shown.path.as_uri()]
    assert shown.complaints() == []
    excerpt = shown.excerpt(data)
    gaps = [other["gap"] for other in data["excerpts"]]
    model = int(shown.js("document.getElementById('model').value"))
    assert sum(gap[model - 1] for gap in gaps) == max(map(sum, zip(*gaps, strict=True))), (
        "the model that pays most is shown first"
    )
    assert excerpt["gap"][model - 1] == max(gap[model - 1] for gap in gaps), (
        "its costliest excerpt is shown first"
    )
    listed = [int(option.get_attribute("value")) for option in shown.all("#excerpt option")]
    assert [gaps[index][model - 1] for index in listed] == sorted(
        (gap[model - 1] for gap in gaps), reverse=True
    )
    assert shown.text(".summary").startswith(
        f"On the {excerpt['hits']} AR hits among these {len(excerpt['tokens'])} tokens"
    )
    assert (
        f"{abs(excerpt['gap'][model - 1]) / 100:.1f} nats more than {data['models'][0]}"
        in shown.text(".summary")
    )
    ids = [excerpt["before"], *excerpt["tokens"]]
    text = shown.js("[...document.querySelectorAll('.text .t')].map(e => e.textContent).join('')")
    assert text.replace("↵\n", "\n") == "".join(
        "end" if i == data["end"] else data["pieces"][str(i)] for i in ids
    )
    assert len(shown.all(".text .border")) == len(excerpt["spans"])
    assert len(shown.all(".text .end")) == ids.count(data["end"])


def test_a_token_shows_its_figures_and_marks_its_earlier_occurrence(shown, data):
    from selenium.webdriver.common.action_chains import ActionChains

    excerpt = shown.excerpt(data)
    model = int(shown.js("document.getElementById('model').value"))
    at = next(hit for hit in hits_of(excerpt, data) if hit - excerpt["distance"][hit] >= 1)
    shown.focus(at)
    back = excerpt["distance"][at]
    assert shown.marked("now") == [at]
    assert shown.marked("with") == [at - 1]
    assert shown.marked("earlier") == sorted([at - back - 1, at - back])
    rows = [
        [cell.text for cell in row.find_elements("css selector", "th, td")]
        for row in shown.all("#tip tbody tr")
    ]
    assert [row[0] for row in rows][:2] == [data["models"][0], data["models"][model]]
    for name, nll, rank, choice in rows:
        place = data["models"].index(name)
        assert nll == f"{excerpt['nll'][place][at] / 100:.2f}"
        assert rank == f"{excerpt['rank'][place][at]:,}"
        assert (choice == "right") == (excerpt["predicted"][place][at] == 0)
    tip = shown.text("#tip")
    assert f"AR hit: bigram last occurred {back} token{'s' * (back > 1)} earlier" in tip
    assert f"{excerpt['occurrences'][at]} earlier occurrence" in tip
    assert f"{excerpt['count'][at]} time" in tip or "never in training" in tip
    assert f"Position {excerpt['first'] + at} of sequence {excerpt['sequence']}" in tip
    shown.press("\ue00c")  # Escape
    assert shown.marked("now") == shown.marked("earlier") == []
    shown.js("document.activeElement.blur()")
    element = shown.all(TOKENS)[12]
    shown.js("arguments[0].scrollIntoView({block: 'center'})", element)
    ActionChains(shown.browser).move_to_element(element).perform()
    assert shown.marked("now") == [12], "hovering does what focusing does"
    ActionChains(shown.browser).move_to_element(shown.one("h1")).perform()
    assert shown.marked("now") == []


def test_colours_show_who_is_right_or_how_far_nlls_are_apart(shown, data):
    excerpt = shown.excerpt(data)
    verdicts = {
        (True, True): "both",
        (True, False): "reference",
        (False, True): "model",
        (False, False): "neither",
    }
    for model in range(1, len(data["models"])):
        shown.choose("#model", model)
        assert shown.excerpt(data) is excerpt, "another model, the same text"
        pairs = zip(excerpt["predicted"][0], excerpt["predicted"][model], strict=True)
        assert [name.split()[1] for name in shown.classes()] == [
            verdicts[a == 0, b == 0] for a, b in pairs
        ]
    shown.click("input[name=filter-mode][value=shade]")
    steps, expected = [(4, 4), (2, 3), (1, 2), (0.25, 1)], []
    for reference, other in zip(excerpt["nll"][0], excerpt["nll"][model], strict=True):
        size = next((step for least, step in steps if abs(other - reference) >= 100 * least), 0)
        expected.append(f"shade{size if other > reference else -size}")
    assert [name.split()[1] for name in shown.classes()] == expected
    assert len(set(expected)) >= 4
    counts = {
        label.find_element("css selector", "input").get_attribute("value"): label.text
        for label in shown.all(".chip:has(.amount)")
    }
    for shade in set(expected):
        assert counts[shade].split()[-1] == str(expected.count(shade)), (
            "the legend counts the tokens"
        )
    shown.click(f"input[name=filter-shade][value='{expected[0]}']")
    assert ["dim" in name.split() for name in shown.classes()] == [
        name != expected[0] for name in expected
    ]
    shown.click("input[name=filter-mode][value=verdict]")
    assert shown.all(".t.dim") == [], "a filter of colours that are not shown does nothing"


def test_the_keyboard_goes_everywhere(shown, data):
    from selenium.webdriver.common.keys import Keys

    excerpt = shown.excerpt(data)
    last, hits = len(excerpt["tokens"]) - 1, hits_of(excerpt, data)
    first, second = [hit for hit in hits if hit > 0][:2]
    shown.focus(0)
    for keys, at in (
        ([Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT], 1),
        ([Keys.END], last),
        ([Keys.ARROW_RIGHT], last),
        ([Keys.HOME], 0),
        (["n"], first),
        (["n"], second),
        (["p"], first),
        (["e"], first - excerpt["distance"][first]),
    ):
        shown.press(*keys)
        assert shown.at() == at, keys
        assert shown.js("document.activeElement.getAttribute('aria-selected')") == "true"
        assert len(shown.all(f"{TOKENS}[tabindex='0']")) == 1, "one stop for the tab key"
    shown.press(Keys.HOME, Keys.ARROW_DOWN)
    below = shown.at()
    tops = shown.js(
        "[...document.querySelectorAll(arguments[0])].map(e => e.getClientRects()[0].top)", TOKENS
    )
    assert tops[below] > tops[0]
    assert not any(tops[0] + 5 < top < tops[below] - 5 for top in tops), "a line was left out"
    shown.press(Keys.ARROW_UP)
    assert shown.at() == 0
    next(button for button in shown.all("button") if button.text == "next AR hit").click()
    assert shown.at() in hits


def rows_of(shown: OpenPage, name: str) -> list[dict]:
    """The rows of a figure's specification, with whole tips."""
    rows = json.loads(shown.text(f"#specification-{name}"))["data"]["values"]
    for row in rows:
        begin, end = (
            row.get("tip", f"{row.get('model')}, "),
            f"{row['at']}: {row['shown']}" if "at" in row else "",
        )
        row["tip"] = begin + end
    return rows


POINTS = "#figure-by_distance .mark-symbol.role-mark path"
LEGEND = "#figure-by_distance .role-legend-label text"


def point(row: dict) -> str:
    return f"#figure-by_distance [aria-label='{row['tip']}']"


def test_marks_have_tips(browser, evaluated):
    from selenium.webdriver.common.keys import Keys

    shown = OpenPage(browser, evaluated)
    stops = shown.js(
        "[...document.querySelectorAll('figure svg')].map(s => s.querySelectorAll('.role-mark "
        '[tabindex="0"]\').length)'
    )
    assert set(stops) == {1}
    shown.js(
        "document.querySelector('#figure-recall_accuracy .role-mark [tabindex=\"0\"]').focus()"
    )
    labels = []
    for key in (None, Keys.ARROW_RIGHT):
        shown.press(*filter(None, [key]))
        labels.append(shown.js("document.activeElement.getAttribute('aria-label')"))
        assert shown.text(".tip.small") == labels[-1]
    assert labels == [row["tip"] for row in rows_of(shown, "recall_accuracy")[:2]]
    shown.press(Keys.ESCAPE)
    assert not shown.one(".tip.small").is_displayed()


def test_a_crosshair_shows_every_models_value_at_its_place(shown):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    rows = rows_of(shown, "by_distance")
    middle = sorted({row["x"] for row in rows})[2]
    here = [row for row in rows if row["x"] == middle]
    assert [row["model"] for row in here] == shown.js(
        "[...document.querySelectorAll(arguments[0])].map(e => e.textContent)", LEGEND
    )
    shown.js("document.querySelector('#figure-by_distance').scrollIntoView({block: 'center'})")
    # In the plot far above every line, nearest to the middle place.
    x, top = shown.js(
        "[(b => b.left + b.width / "
        "2)(document.querySelector(arguments[0]).getBoundingClientRect()), "
        "document.querySelector('#figure-by_distance .background').getBoundingClientRect().top]",
        point(here[0]),
    )
    pointer = ActionChains(shown.browser)
    pointer.w3c_actions.pointer_action.move_to_location(int(x) + 4, int(top) + 2)
    pointer.perform()
    tip = (
        "[...document.querySelectorAll('.tip.small tr')].map(row => [...row.children].map(cell "
        "=> cell.textContent))"
    )
    assert shown.text(".tip.small .head") == here[0]["at"]
    assert shown.js(tip) == [[row["model"], row["shown"]] for row in here]
    assert shown.js(
        "document.querySelector('.crosshair').getBoundingClientRect().left"
    ) == pytest.approx(x, abs=1)
    shown.js("document.querySelector(arguments[0]).focus()", point(here[0]))
    shown.press(Keys.ARROW_RIGHT)
    after = [row for row in rows if row["x"] == min(row["x"] for row in rows if row["x"] > middle)]
    assert shown.js(tip) == [[row["model"], row["shown"]] for row in after]
    shown.press(Keys.ESCAPE)
    assert not shown.one(".crosshair").is_displayed()


def test_a_click_in_the_legend_isolates_a_model_and_another_undoes_it(shown):
    from selenium.webdriver.common.keys import Keys

    models = [row["model"] for row in rows_of(shown, "by_distance")]
    paints = (
        "[...document.querySelectorAll(arguments[0])].map(e => [e.getAttribute('stroke'), "
        "Number(e.getAttribute('opacity'))])"
    )
    before = dict(zip(models, shown.js(paints, POINTS), strict=True))
    _, first, second = dict.fromkeys(models)
    assert [paint for paint, _ in before.values()] == ["var(--ink)", "var(--m0)", "var(--m1)"]
    entry = shown.all(LEGEND)[1]
    assert entry.text == first

    entries = "[...document.querySelectorAll('[aria-pressed]')]"

    def check_all(chosen: str) -> None:
        assert shown.js(f"new Set({entries}.map(e => e.closest('figure'))).size") > 2
        shown.wait(
            f"{entries}.every(e => (e.getAttribute('aria-pressed') === 'true') === "
            f"(e.textContent === '{chosen}'))"
        )

    def check(chosen: str, *, faint: set[str]) -> None:
        now = dict(zip(models, shown.js(paints, POINTS), strict=True))
        assert {model for model in now if now[model] == ["var(--rest)", 0.4]} == faint
        assert {model for model in now if now[model] == before[model]} == set(models) - faint
        assert [e.get_attribute("aria-pressed") for e in shown.all(LEGEND)] == [
            str(name == chosen).lower() for name in before
        ]
        check_all(chosen)

    shown.js("document.querySelector('#figure-by_distance').scrollIntoView({block: 'center'})")
    entry.click()
    check(first, faint={second})
    entry.click()
    check("", faint=set())
    shown.js("document.querySelectorAll(arguments[0])[1].focus()", LEGEND)
    shown.press(Keys.ARROW_RIGHT, Keys.ENTER)
    check(second, faint={first})
    shown.js(
        "document.querySelectorAll('.chart svg').forEach(svg => { svg.dataset.drawn = 'before'; })"
    )
    shown.emulate(width=600)  # charts of several panels are drawn anew
    shown.wait("document.querySelectorAll('.chart svg:not([data-drawn])').length > 0")
    check_all(second)


def test_charts_fill_their_place_in_the_colours_of_the_scheme(shown):
    label = "getComputedStyle(document.querySelector(arguments[0])).fill"
    inks = []
    for scheme, width in (("light", 1280), ("dark", 390), ("dark", 1280)):
        shown.emulate(scheme, width=width)
        filled = (
            "[...document.querySelectorAll('.chart')].every(c => Math.abs(c.clientWidth - "
            "c.querySelector('svg').clientWidth) <= 12)"
        )
        shown.wait(filled)
        assert shown.js("document.documentElement.scrollWidth") <= width
        sizes = shown.js(
            "[...document.querySelectorAll('.chart text')].map(t => "
            "t.getBoundingClientRect().height)"
        )
        assert min(sizes) >= 11, "text is not shrunk with its chart"
        inks.append(shown.js(label, LEGEND))
    assert inks[0] != inks[1] == inks[2] == shown.js("getComputedStyle(document.body).color")


@pytest.fixture(scope="module")
def many(words, tmp_path_factory) -> Comparison:
    """A comparison of nine models in two further slices, as a page."""
    out = tmp_path_factory.mktemp("many")
    models = [f"m{number}={MODELS[number % 2]}" for number in range(9)]
    recallkit.gap(REFERENCE, models, slices=words, slice=["copy:k2", "far=distance > 20"], out=out)
    write_report(out, options=ReportOptions(slices=words))
    return read_comparison(out, words)


def test_the_first_screen_has_every_model_with_its_line_in_place(browser, many):
    shown = OpenPage(browser, many.folder / "report.html")
    shown.emulate(width=1280, height=800)
    rows = shown.boxes(".models tbody tr")
    assert len(rows) == 1 + 9
    assert max(bottom for *_, bottom in rows) <= 800
    end = float(shown.text(".scale span:last-child").removesuffix(" %")) / 100
    axes, *dots = (shown.boxes(f".models .{part}") for part in ("axis", "at-first", "on-hits"))
    for model, (left, right, *_), *pair in zip([None, *many.models], axes, *dots, strict=True):
        hits, side = (
            (many.totals[many.models[0], "ar_hit"], "reference")
            if model is None
            else (many.totals[model, "ar_hit"], "model")
        )
        at = [left + (right - left) * hits[f"{name}_{side}"] / end for name in ("first_p", "p")]
        assert [sum(dot[:2]) / 2 for dot in pair] == pytest.approx(at, abs=1.5), model
    ticks = [sum(box[:2]) / 2 for box in shown.boxes(".scale span")]
    assert ticks == pytest.approx([left, (left + right) / 2, right], abs=1.5), (
        "the axis is where its ends are written"
    )


def test_no_name_is_too_long_for_any_window(browser, words, tmp_path):
    recallkit.gap(
        REFERENCE, [f"{'m' * 32}=control:bigram", "control:unigram"], slices=words, out=tmp_path
    )
    shown = OpenPage(browser, write_report(tmp_path, options=ReportOptions(slices=words)).page)
    for width in (1280, 1100, 865, 768, 641, 390):
        shown.emulate(width=width)
        assert shown.js("document.documentElement.scrollWidth") <= width


def column(shown: OpenPage, table: str, at: int) -> list[str]:
    return shown.js(
        f"[...document.querySelectorAll('{table} tbody tr')].map(row => "
        f"row.cells[{at}].textContent)"
    )


def test_tables_are_sorted_as_numbers_and_filtered_by_a_word(browser, many):
    from selenium.webdriver.common.keys import Keys

    shown = OpenPage(browser, many.folder / "report.html")
    table = "#losses-1 .documents"
    shown.choose("#losses-model", 1)
    heads = shown.js(
        f"[...document.querySelectorAll('{table} th[scope=col]')].map(head => head.textContent)"
    )
    at = heads.index("nats on AR hits")
    before = column(shown, table, at)
    for order, is_down in (("descending", True), ("ascending", False)):
        shown.js(f"document.querySelectorAll('{table} th button')[{at}].focus()")
        shown.press(Keys.ENTER)
        cells = column(shown, table, at)
        found = [float(cell.replace(",", "")) for cell in cells]
        assert found[:-1] == sorted(found[:-1], reverse=is_down), "the row of all others stays last"
        assert cells[-1] == before[-1]
        assert shown.js(f"document.querySelectorAll('{table} th')[{at}].ariaSort") == order
        assert sorted(cells) == sorted(before)
    values = [float(cell.replace(",", "")) for cell in before[:-1]]
    assert sorted(values) != sorted(values, key=str), "as words they would be in another order"
    lengths = shown.js(
        "[...document.querySelectorAll('.wide')].map(region => region.querySelectorAll('tbody "
        "tr').length)"
    )
    assert len(shown.all(".filter")) == sum(length > 12 for length in lengths) > 0
    first = "document.querySelector('.filter + .wide')"
    rows = (
        f"[...{first}.querySelectorAll('tbody tr')].filter(row => row.offsetHeight).map(row => "
        "row.textContent)"
    )
    every = shown.js(rows)
    shown.one(".filter input").send_keys("M3")
    assert shown.js(rows) == [row for row in every if "m3" in row] != every
    assert shown.text(".filter span") == f"2 of {len(every)} rows"
    shown.emulate(media="print")
    assert len(shown.js(rows)) == len(every), "paper has every row"


def test_links_of_a_model_lead_to_its_tokens_and_documents(browser, many):
    shown = OpenPage(browser, many.folder / "report.html")
    data = Page.read(shown.path).token_data()
    choices = shown.js(
        "['model', 'losses-model'].map(id => [...document.getElementById(id).options].map(option "
        "=> option.text))"
    )
    assert choices == [many.models, many.models], "the names that titles have"
    shown.click(".models a[href='#losses-5']")
    assert [place.is_displayed() for place in shown.all(".of-model")] == [
        number == 5 for number in range(1, 10)
    ]
    [[*_, controls]], [[_, _, top, _]] = (
        shown.boxes("#losses .controls"),
        shown.boxes("#losses-5 > h3"),
    )
    assert controls <= top < 300, (
        "its part of the page is shown, and not covered by the choice of a model"
    )
    assert shown.js(
        "[document.getElementById('model').value, document.getElementById('losses-model').value]"
    ) == ["5", "5"]
    place = token_view(many).places[4][3].row
    shown.js("document.querySelectorAll('#losses-5 tbody a')[3].click()")
    excerpt = shown.excerpt(data)
    assert (excerpt["sequence"], shown.at()) == (
        place["sequence"],
        place["position"] - excerpt["first"],
    )
    assert 0 < shown.js("document.activeElement.getBoundingClientRect().top") < 900
    assert f"{place['nll_5']:.2f}" in shown.text("#tip")
    shown.choose("#losses-model", 2)
    assert shown.js("document.getElementById('model').value") == "2"
    link = shown.js("document.querySelector('#losses-2 .documents tbody a').dataset.document")
    shown.click("#losses-2 .documents tbody a")
    assert int(link) in [document for _, document, _ in shown.excerpt(data)["spans"]]
    assert f"document {int(link):,}" in shown.text("#tip")


def test_the_contents_stay_in_view_and_mark_the_section_that_is_read(shown):
    for width in (390, 1280):
        shown.emulate(width=width, height=800)
        for section in ("tables", "losses"):
            shown.js("document.getElementById(arguments[0]).scrollIntoView()", section)
            shown.js(
                "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
            )
            assert shown.js("document.querySelector('nav [aria-current]').hash") == f"#{section}"
            [[left, right, top, bottom]] = shown.boxes("nav [aria-current]")
            assert 0 <= top < bottom <= 800, "the contents scrolled away"
            assert 0 <= left < right <= width
            [[_, _, heading, _]] = shown.boxes(f"#{section} h2")
            assert heading >= (bottom if width == 390 else 0), "the contents cover the heading"


def test_on_a_phone_every_column_can_be_reached(browser, many):
    shown = OpenPage(browser, many.folder / "report.html")
    shown.emulate(width=390, height=844)
    assert shown.js("document.documentElement.scrollWidth") <= 390
    cells = shown.boxes(".models tbody :is(th, td):not(:empty)")
    assert all(0 <= left < right <= 390 and top < bottom for left, right, top, bottom in cells)
    assert not shown.js(
        "[...document.querySelectorAll('#tables .wide :is(th, td)')].filter(c => "
        "!c.offsetWidth).length"
    )
    shown.js("document.querySelector('#tables .wide').scrollTo(1e6, 0)")
    left, right, *_ = shown.boxes("#tables .wide th:last-child")[0]
    assert 0 <= left < right <= 390
    assert 0 <= shown.boxes("#tables .wide tbody th")[0][0] < 30, "the name of the row stays"


def test_nothing_is_wider_than_the_window(shown):
    for width in (320, 1600):
        shown.emulate(width=width)
        shown.focus(5)
        assert shown.js("document.documentElement.scrollWidth") <= width
        left, right = shown.js(
            "(b => [b.left, b.right])(document.getElementById('tip').getBoundingClientRect())"
        )
        assert -1 <= left < right <= width + 1
        assert (
            shown.js("(t => t.scrollWidth - t.clientWidth)(document.getElementById('tip'))") <= 1
        ), "what is cut there cannot be reached"


CONTRASTS = """(() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (colour) => numbers(colour).slice(0, 3).map((v) => linear(v / 255))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const below = (element) => { const colour = getComputedStyle(element).backgroundColor; const [, , , alpha = 1] = numbers(colour);
    return alpha ? colour : element.parentElement ? below(element.parentElement) : "rgb(255, 255, 255)"; };
  const found = {};
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || element.closest("svg, script, noscript")) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(below(element))].sort((x, y) => y - x);
    const name = `${element.tagName} ${element.className} in ${element.parentElement.className}`;
    found[name] = Math.min(found[name] ?? 99, (a + 0.05) / (b + 0.05));
  }
  return found;
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_a_contrast_of_at_least_4_5_on_every_colour(shown, data, scheme):
    """WCAG 2.2, 1.4.3."""
    shown.emulate(scheme)
    colour = shown.js("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 765
    assert brightness > 0.9 if scheme == "light" else brightness < 0.2
    hits = hits_of(shown.excerpt(data), data)
    for kind in (
        "neither",
        "both",
        "reference",
        "model",
        *(f"shade{step}" for step in range(-4, 5)),
    ):
        shown.js(
            (
                "document.querySelectorAll('.text .t[role]').forEach(e => { e.className = `t hit "
                "${arguments[0]}`; })"
            ),
            kind,
        )
        shown.focus(hits[-1])
        low = {name: ratio for name, ratio in shown.js(CONTRASTS).items() if ratio < 4.5}
        assert not low, kind


def test_in_print_and_without_scripts_there_is_nothing_to_press(browser, page):
    shown = OpenPage(browser, page)
    shown.emulate("dark", media="print")
    assert shown.js("getComputedStyle(document.body).backgroundColor") in (
        "rgb(255, 255, 255)",
        "rgba(0, 0, 0, 0)",
    )
    assert not any(
        element.is_displayed()
        for element in shown.all("nav, .controls, select, input, .tip, .keys")
    )
    every = shown.all(".of-model, .wide th, .wide td, .models td")
    assert all(element.is_displayed() for element in every), "nothing is left out"
    assert shown.one(".text").is_displayed()
    assert shown.one("figure svg").is_displayed()
    shown.emulate()
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    browser.get(page.as_uri())
    try:
        assert all(element.is_displayed() for element in shown.all("table, .of-model"))
        assert "need JavaScript" in shown.one("noscript").text
        assert shown.all("select") == []
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_hostile_text_is_shown_and_nothing_of_it_runs(browser, hostile):
    written = write_report(hostile)
    data = Page.read(written.page).token_data()
    shown = OpenPage(browser, written.page)
    assert shown.requests() == [written.page.as_uri()]
    assert shown.complaints() == []
    assert shown.all("img") == []
    assert data["sources"] == ["<img onerror=alert(3)>"]
    texts = ""
    for option in [option.get_attribute("value") for option in shown.all("#excerpt option")]:
        shown.choose("#excerpt", option)
        excerpt = shown.excerpt(data)
        assert (len(shown.all(TOKENS)), len(shown.all(".t.hit"))) == (
            len(excerpt["tokens"]),
            excerpt["hits"],
        )
        texts += shown.text(".text")
    assert "</script>" in texts
    assert "<img src=x onerror=alert(2)>" in texts
    assert "👩" in texts
    assert "U+202E" in texts, "what would turn the text around is written out"
    assert "U+0000" in texts
    assert not re.search("[\u202e\x00\x1b\u200f\u2028]", texts)
    own = (
        read_comparison(hostile).models.index(
            next(name for name in data["models"] if name.endswith("own.py:load"))
        )
        + 1
    )
    shown.choose("#model", own)
    assert "unknown" in {name.split()[1] for name in shown.classes()}
    assert "unknown" in shown.text(".filters")


PROMPT = ".prompts .prompt"


@pytest.fixture(scope="module")
def evaluated(home, tmp_path_factory) -> Path:
    """A page of a recall evaluation whose prompts are hostile, one model with a context that is too
    short."""
    from recallkit.recall.run import RecallOptions, evaluate_recall

    folder = tmp_path_factory.mktemp("evaluated")
    rows = [
        {
            "doc_id": f"<i>{i}</i>",
            "key": "<b>Name",
            "value": f"v{i}",
            "text": (
                f"<b>Name: v{i}\n</script><img src=x onerror=alert({i})>\u202e{'x ' * 90}\n<b>Name:"
            ),
        }
        for i in range(30)
    ]
    (folder / "fda.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, compared = evaluate_recall(
        ["control:copy", "control:recall"],
        ["fda"],
        folder / "evals",
        RecallOptions(data=folder / "fda.jsonl", context=128),
    )
    return write_report(compared).page


def test_prompts_and_generations_are_filtered_and_are_text(browser, evaluated):
    shown = OpenPage(browser, evaluated)
    assert shown.requests() == [evaluated.as_uri()]
    assert shown.complaints() == []
    data = json.loads(Page.read(evaluated).with_id("samples"))
    assert shown.text("#prompts .summary") == f"{len(data['prompts'])} prompts here of 30."
    assert len(shown.all(PROMPT)) == 8
    shown.one("#prompts > button").click()
    assert len(shown.all(PROMPT)) == min(16, len(data["prompts"])) > 8
    first = shown.one(PROMPT)
    assert data["prompts"][0]["value"] in first.text
    assert [mark.text for mark in first.find_elements("css selector", ".text mark")] == [
        data["prompts"][0]["value"]
    ]
    shown.choose("#prompts-model", 1)
    chosen = shown.all("#prompts .chip input")
    assert [entry.get_attribute("value") for entry in chosen] == ["", "right", "wrong", "cut"]
    shown.click("#prompts input[value=cut]")
    cut = [prompt for prompt in data["prompts"] if prompt["answers"][1][0] == "cut"]
    assert (
        shown.text("#prompts .summary") == f"{len(cut)} prompts here of {data['totals'][0][1][2]}."
    )
    assert {row.text for row in shown.all(f"{PROMPT} .chosen .sample")} == {"cut"}
    shown.click("#prompts input[value=right]")
    assert shown.all(PROMPT) == []
    assert shown.text("#prompts .summary") == "0 prompts here of 0."
    shown.click("#prompts input[value='']")
    for words, by in ((data["prompts"][3]["value"].upper(), "value"), ("<B>NAME", "key")):
        shown.search("#prompts-search", words)
        found = [
            prompt
            for prompt in data["prompts"]
            if words.lower() in json.dumps(prompt, ensure_ascii=False).lower()
        ]
        assert (
            shown.text("#prompts .summary")
            == f"{len(found)} prompt{'s' * (len(found) != 1)} here of 30."
        )
        assert all(words.lower() in prompt[by].lower() for prompt in found)
    shown.search("#prompts-search", "")
    assert shown.all("img, i") == []
    text = shown.text(".prompts")
    assert "</script><img src=x onerror=alert(" in text, "hostile prompts are text"
    assert "U+202E" in text
    assert "\u202e" not in text
    shown.emulate("dark", width=320)
    assert not {name: ratio for name, ratio in shown.js(CONTRASTS).items() if ratio < 4.5}
    assert shown.js("document.documentElement.scrollWidth") <= 320
