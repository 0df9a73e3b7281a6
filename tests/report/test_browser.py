"""The page in a real browser, headless Chromium: it opens from disk, asks the network for nothing, and does what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from recallkit.attribution.comparison import read_comparison
from recallkit.report.write import write_report
from tests.report.reading import Page

pytestmark = pytest.mark.timeout(200)

TOKENS = ".text .t[role=option]"


@pytest.fixture(scope="module")
def page(words) -> Path:
    return write_report(words).page


@pytest.fixture(scope="module")
def data(page) -> dict:
    return Page.read(page).token_data()


class Shown:
    """A page in the browser."""

    def __init__(self, browser, path: Path) -> None:
        self.browser, self.path = browser, path
        for command, settings in (
            ("Emulation.setEmulatedMedia", {"media": "", "features": [{"name": "prefers-color-scheme", "value": "light"}]}),
            ("Emulation.setScriptExecutionDisabled", {"value": False}),
            ("Emulation.setDeviceMetricsOverride", {"width": 1200, "height": 900, "deviceScaleFactor": 1, "mobile": False}),
        ):
            browser.execute_cdp_cmd(command, settings)
        self.requests()
        browser.get(path.as_uri())

    def js(self, program: str, *arguments):
        return self.browser.execute_script(f"return ({program})", *arguments)

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
            "(e => { e.value = arguments[1]; e.dispatchEvent(new Event('change')); })(document.querySelector(arguments[0]))",
            selector,
            value,
        )

    def marked(self, name: str) -> list[int]:
        return sorted(int(at) for at in self.js("[...document.querySelectorAll(arguments[0])].map(e => e.dataset.at)", f".text .{name}"))

    def requests(self) -> list[str]:
        """What was asked for since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.browser.get_log("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]

    def excerpt(self, data: dict) -> dict:
        return data["excerpts"][int(self.js("document.getElementById('excerpt').value"))]


@pytest.fixture
def shown(browser, page) -> Shown:
    return Shown(browser, page)


def test_it_opens_from_disk_and_asks_for_nothing_else(shown, data):
    assert shown.requests() == [shown.path.as_uri()]
    assert [entry for entry in shown.browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    excerpt = shown.excerpt(data)
    assert len(shown.all(TOKENS)) == len(excerpt["tokens"])
    gaps = [other["gap"] for other in data["excerpts"]]
    model = int(shown.js("document.getElementById('model').value"))
    assert sum(gap[model - 1] for gap in gaps) == max(map(sum, zip(*gaps, strict=True))), "the model that pays most is shown first"
    assert excerpt["gap"][model - 1] == max(gap[model - 1] for gap in gaps), "its costliest excerpt is shown first"
    listed = [int(option.get_attribute("value")) for option in shown.all("#excerpt option")]
    assert [gaps[index][model - 1] for index in listed] == sorted((gap[model - 1] for gap in gaps), reverse=True)
    assert shown.text(".summary").startswith(f"On the {excerpt['hits']} AR hits among these {len(excerpt['tokens'])} tokens")
    assert f"{abs(excerpt['gap'][model - 1]) / 100:.1f} nats more than {data['models'][0]}" in shown.text(".summary")


def test_the_text_is_the_text(shown, data):
    excerpt = shown.excerpt(data)
    pieces = [data["pieces"][str(index)] for index in (excerpt["before"], *excerpt["tokens"])]
    text = shown.js("[...document.querySelectorAll('.text .t')].map(e => e.textContent).join('')")
    ends = [index for index in (excerpt["before"], *excerpt["tokens"]) if index == data["end"]]
    assert text.replace("↵\n", "\n") == "".join(
        "end" if i == data["end"] else piece for i, piece in zip((excerpt["before"], *excerpt["tokens"]), pieces, strict=True)
    )
    assert len(shown.all(".text .border")) == len(excerpt["spans"])
    assert len(shown.all(".text .end")) == len(ends)


def test_a_token_tells_its_figures_and_lights_up_its_earlier_occurrence(shown, data):
    excerpt = shown.excerpt(data)
    model = int(shown.js("document.getElementById('model').value"))
    at = next(i for i, distance in enumerate(excerpt["distance"]) if distance and excerpt["count"][i] <= data["most"] and i - distance >= 1)
    shown.focus(at)
    back = excerpt["distance"][at]
    assert shown.marked("now") == [at]
    assert shown.marked("with") == [at - 1]
    assert shown.marked("earlier") == sorted([at - back - 1, at - back])
    rows = [[cell.text for cell in row.find_elements("css selector", "th, td")] for row in shown.all("#tip tbody tr")]
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


def test_hovering_does_what_focusing_does(shown):
    from selenium.webdriver.common.action_chains import ActionChains

    element = shown.all(TOKENS)[12]
    shown.js("arguments[0].scrollIntoView({block: 'center'})", element)
    ActionChains(shown.browser).move_to_element(element).perform()
    assert shown.marked("now") == [12]
    assert "NLL" in shown.text("#tip")
    ActionChains(shown.browser).move_to_element(shown.one("h1")).perform()
    assert shown.marked("now") == []


def test_colours_are_by_who_is_right(shown, data):
    excerpt, verdicts = (
        shown.excerpt(data),
        {(True, True): "both", (True, False): "reference", (False, True): "model", (False, False): "neither"},
    )
    for model in range(1, len(data["models"])):
        shown.choose("#model", model)
        assert shown.excerpt(data) is excerpt, "another model, the same text"
        found = shown.js("[...document.querySelectorAll(arguments[0])].map(e => e.classList[1])", TOKENS)
        pairs = zip(excerpt["predicted"][0], excerpt["predicted"][model], strict=True)
        assert found == [verdicts[a == 0, b == 0] for a, b in pairs]


def test_a_heat_map_has_the_differences_in_nll(shown, data):
    excerpt = shown.excerpt(data)
    model = int(shown.js("document.getElementById('model').value"))
    shown.js("document.querySelector('input[name=filter-mode][value=shade]').click()")
    steps = [(4, 4), (2, 3), (1, 2), (0.25, 1)]
    wanted = []
    for reference, other in zip(excerpt["nll"][0], excerpt["nll"][model], strict=True):
        size = next((step for least, step in steps if abs(other - reference) >= 100 * least), 0)
        wanted.append(f"shade{size if other > reference else -size}")
    kinds = shown.js("[...document.querySelectorAll(arguments[0])].map(e => e.className)", TOKENS)
    assert [name.split()[1] for name in kinds] == wanted
    assert len(set(wanted)) >= 4
    counts = {label.find_element("css selector", "input").get_attribute("value"): label.text for label in shown.all(".chip:has(.amount)")}
    for shade in set(wanted):
        assert counts[shade].split()[-1] == str(wanted.count(shade)), "the legend counts the tokens"
    shade = wanted[0]
    shown.js("document.querySelector(`input[name=filter-shade][value='${arguments[0]}']`).click()", shade)
    dim = shown.js("[...document.querySelectorAll(arguments[0])].map(e => e.classList.contains('dim'))", TOKENS)
    assert dim == [name != shade for name in wanted]
    shown.js("document.querySelector('input[name=filter-mode][value=verdict]').click()")
    assert shown.all(".t.dim") == [], "a filter of colours that are not shown does nothing"


def test_filters_dim_the_rest(shown, data):
    excerpt = shown.excerpt(data)
    is_hit = [bool(d) and c <= data["most"] for d, c in zip(excerpt["distance"], excerpt["count"], strict=True)]
    shown.js("document.querySelector('input[name=filter-slice][value=hit]').click()")
    dim = shown.js("[...document.querySelectorAll(arguments[0])].map(e => e.classList.contains('dim'))", TOKENS)
    assert dim == [not hit for hit in is_hit]
    shown.js("document.querySelector('input[name=filter-verdict][value=reference]').click()")
    kinds = shown.js("[...document.querySelectorAll(arguments[0])].map(e => [e.classList.contains('dim'), e.className])", TOKENS)
    assert all(dim == (not ("reference" in name.split() and "hit" in name.split())) for dim, name in kinds)
    amounts = {label.text: label for label in shown.all(".chip")}
    assert f"AR hits {sum(is_hit)}" in [text.replace("\n", " ") for text in amounts]
    shown.choose("#model", 1)
    assert shown.js("document.querySelector('input[name=filter-slice]:checked').value") == "hit", "filters stay when the model changes"
    for name in ("slice", "verdict"):
        shown.js("document.querySelector(`input[name=filter-${arguments[0]}][value='']`).click()", name)
    assert shown.all(".t.dim") == []


def test_hits_are_those_of_the_labels(shown, data):
    assert any(data["most"] in excerpt["count"] for excerpt in data["excerpts"]), "one as frequent as a hit may be"
    for option in [option.get_attribute("value") for option in shown.all("#excerpt option")]:
        shown.choose("#excerpt", option)
        assert len(shown.all(".t.hit")) == shown.excerpt(data)["hits"]


def test_another_excerpt_by_list_and_by_button(shown, data):
    options = [option.get_attribute("value") for option in shown.all("#excerpt option")]
    next_one = next(button for button in shown.all("button") if button.text.startswith("next ›"))
    next_one.click()
    assert shown.js("document.getElementById('excerpt').value") == options[1]
    assert len(shown.all(TOKENS)) == len(shown.excerpt(data)["tokens"])
    shown.choose("#excerpt", options[-1])
    assert len(shown.all(TOKENS)) == len(shown.excerpt(data)["tokens"])
    next_one.click()
    assert shown.js("document.getElementById('excerpt').value") == options[-1], "there is none after the last"


def test_the_keyboard_goes_everywhere(shown, data):
    from selenium.webdriver.common.keys import Keys

    excerpt = shown.excerpt(data)
    last = len(excerpt["tokens"]) - 1
    hits = [i for i, (d, c) in enumerate(zip(excerpt["distance"], excerpt["count"], strict=True)) if d and c <= data["most"]]
    assert len(shown.all(f"{TOKENS}[tabindex='0']")) == 1, "one stop for the tab key"
    shown.focus(0)
    shown.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT)
    assert shown.at() == 1
    assert shown.js("document.activeElement.getAttribute('aria-selected')") == "true"
    shown.press(Keys.END)
    assert shown.at() == last
    shown.press(Keys.ARROW_RIGHT)
    assert shown.at() == last
    shown.press(Keys.HOME)
    assert shown.at() == 0
    shown.press("n")
    assert shown.at() == next(hit for hit in hits if hit > 0)
    shown.press("n", "p")
    assert shown.at() == next(hit for hit in hits if hit > 0)
    shown.press("e")
    assert shown.at() == hits[0 if hits[0] else 1] - excerpt["distance"][hits[0 if hits[0] else 1]]
    shown.press(Keys.HOME, Keys.ARROW_DOWN)
    below = shown.at()
    tops = shown.js("[...document.querySelectorAll(arguments[0])].map(e => e.getClientRects()[0].top)", TOKENS)
    assert tops[below] > tops[0]
    assert not any(tops[0] + 5 < top < tops[below] - 5 for top in tops), "a line was left out"
    shown.press(Keys.ARROW_UP)
    assert shown.at() == 0
    assert len(shown.all(f"{TOKENS}[tabindex='0']")) == 1
    button = next(button for button in shown.all("button") if button.text == "next AR hit")
    button.click()
    assert shown.at() in hits


def test_points_of_pictures_have_tips(shown):
    from selenium.webdriver.common.keys import Keys

    points = shown.js("document.querySelectorAll('#figure-by_distance svg [aria-label], figure svg [aria-label]').length")
    assert points > 10
    stops = shown.js("[...document.querySelectorAll('figure svg')].map(s => s.querySelectorAll('[tabindex=\"0\"]').length)")
    assert set(stops) <= {0, 1}
    shown.js("document.querySelector('figure svg [tabindex=\"0\"]').focus()")
    label = shown.js("document.activeElement.getAttribute('aria-label')")
    assert label
    assert shown.text(".tip.small") == label
    shown.press(Keys.ARROW_RIGHT)
    second = shown.js("document.activeElement.getAttribute('aria-label')")
    assert shown.text(".tip.small") == second
    shown.press(Keys.ESCAPE)
    assert not shown.one(".tip.small").is_displayed()


@pytest.mark.parametrize("width", [320, 390, 700, 1600])
def test_nothing_is_wider_than_the_window(shown, width):
    shown.browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 844, "deviceScaleFactor": 2, "mobile": width < 500}
    )
    shown.focus(5)
    assert shown.js("document.documentElement.scrollWidth") <= width
    tip = shown.js("(b => [b.left, b.right])(document.getElementById('tip').getBoundingClientRect())")
    assert tip[0] >= -1
    assert tip[1] <= width + 1
    assert shown.js("(t => t.scrollWidth - t.clientWidth)(document.getElementById('tip'))") <= 1, "what is cut there cannot be reached"


def test_dark_and_light(shown):
    def colours() -> list[str]:
        return [shown.js(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color")]

    def brightness(colour: str) -> float:
        return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 765

    light = [brightness(colour) for colour in colours()]
    shown.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]})
    dark = [brightness(colour) for colour in colours()]
    assert light[0] > 0.9 > 0.3 > light[1]
    assert dark[1] > 0.7 > 0.2 > dark[0]


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
def test_text_stands_out_on_every_colour(shown, data, scheme):
    """Contrasts of at least 4.5 to 1 (WCAG 2.2, 1.4.3)."""
    shown.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    hits = [
        at
        for at, (d, c) in enumerate(zip(*(shown.excerpt(data)[key] for key in ("distance", "count")), strict=True))
        if d and c <= data["most"]
    ]
    for kind in ("neither", "both", "reference", "model", *(f"shade{step}" for step in range(-4, 5))):
        shown.js(
            "document.querySelectorAll('.text .t[role]').forEach(e => { e.className = `t hit ${arguments[0]}`; })",
            kind,
        )
        shown.focus(hits[-1])
        low = {name: ratio for name, ratio in shown.js(CONTRASTS).items() if ratio < 4.5}
        assert not low, kind


def test_in_print_there_is_nothing_to_press(shown):
    shown.browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    assert shown.js("getComputedStyle(document.body).backgroundColor") in ("rgb(255, 255, 255)", "rgba(0, 0, 0, 0)")
    assert not any(element.is_displayed() for element in shown.all("nav, button, select, .tip, .keys"))
    assert shown.one(".text").is_displayed()
    assert shown.one("figure svg").is_displayed()


def test_without_scripts_all_but_the_token_view_is_there(browser, page):
    shown = Shown(browser, page)
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    browser.get(page.as_uri())
    try:
        assert shown.one("table").is_displayed()
        assert all(drawing.is_displayed() for drawing in shown.all("figure svg"))
        assert "needs JavaScript" in shown.one("noscript").text
        assert shown.all("select") == []
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_hostile_text_is_shown_and_nothing_of_it_runs(browser, hostile):
    written = write_report(hostile)
    data = Page.read(written.page).token_data()
    shown = Shown(browser, written.page)
    assert shown.requests() == [written.page.as_uri()]
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    assert shown.all("img") == []
    texts = ""
    for option in [option.get_attribute("value") for option in shown.all("#excerpt option")]:
        shown.choose("#excerpt", option)
        assert len(shown.all(TOKENS)) == len(shown.excerpt(data)["tokens"])
        texts += shown.text(".text")
    assert "</script>" in texts
    assert "<img src=x onerror=alert(2)>" in texts
    assert "👩" in texts
    assert "U+202E" in texts, "what would turn the text around is written out"
    assert "U+0000" in texts
    assert not re.search("[\u202e\x00\x1b\u200f\u2028]", texts)
    own = read_comparison(hostile).models.index(next(name for name in data["models"] if name.endswith("own.py:load"))) + 1
    shown.choose("#model", own)
    assert {"unknown"} & set(shown.js("[...document.querySelectorAll(arguments[0])].map(e => e.classList[1])", TOKENS))
    assert "unknown" in shown.text(".filters")


PROMPT = ".prompts .prompt"


@pytest.fixture(scope="module")
def evaluated(home, tmp_path_factory) -> Path:
    """A page of a recall evaluation whose prompts are hostile, one model with a context that is too short."""
    from recallkit.recall.run import RecallOptions, evaluate_recall

    folder = tmp_path_factory.mktemp("evaluated")
    rows = [
        {
            "doc_id": f"<i>{i}</i>",
            "key": "<b>Name",
            "value": f"v{i}",
            "text": f"<b>Name: v{i}\n</script><img src=x onerror=alert({i})>\u202e{'x ' * 90}\n<b>Name:",
        }
        for i in range(30)
    ]
    (folder / "fda.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, compared = evaluate_recall(
        ["control:copy", "control:recall"], ["fda"], folder / "evals", RecallOptions(data=folder / "fda.jsonl", context=128)
    )
    return write_report(compared).page


def test_prompts_and_generations_are_filtered(browser, evaluated):
    shown = Shown(browser, evaluated)
    assert [entry for entry in shown.browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    data = json.loads(Page.read(evaluated).with_id("samples"))
    assert shown.text("#prompts .summary") == f"{len(data['prompts'])} prompts here of 30."
    assert len(shown.all(PROMPT)) == 8
    shown.one("#prompts > button").click()
    assert len(shown.all(PROMPT)) == min(16, len(data["prompts"])) > 8
    first = shown.one(PROMPT)
    assert data["prompts"][0]["value"] in first.text
    assert [mark.text for mark in first.find_elements("css selector", ".text mark")] == [data["prompts"][0]["value"]]
    shown.choose("#prompts-model", 1)
    chosen = shown.all("#prompts .chip input")
    assert [entry.get_attribute("value") for entry in chosen] == ["", "right", "wrong", "cut"]
    shown.js("document.querySelector('#prompts input[value=cut]').click()")
    cut = [prompt for prompt in data["prompts"] if prompt["answers"][1][0] == "cut"]
    assert shown.text("#prompts .summary") == f"{len(cut)} prompts here of {data['totals'][0][1][2]}."
    assert {row.text for row in shown.all(f"{PROMPT} .chosen .sample")} == {"cut"}
    shown.js("document.querySelector('#prompts input[value=right]').click()")
    assert shown.all(PROMPT) == []
    assert shown.text("#prompts .summary") == "0 prompts here of 0."


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_hostile_prompts_are_text_that_stands_out(browser, evaluated, scheme):
    shown = Shown(browser, evaluated)
    shown.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    assert shown.requests() == [evaluated.as_uri()]
    assert shown.all("img, i") == []
    text = shown.text(".prompts")
    assert "</script><img src=x onerror=alert(" in text
    assert "U+202E" in text
    assert "\u202e" not in text
    low = {name: ratio for name, ratio in shown.js(CONTRASTS).items() if ratio < 4.5}
    assert not low
    for width in (320, 390, 1200):
        settings = {"width": width, "height": 844, "deviceScaleFactor": 2, "mobile": width < 500}
        shown.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", settings)
        assert shown.js("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("kind", ["by_count", "by_partition"])
def test_the_first_figures_are_above_the_fold(browser, page, kind):
    shown = Shown(browser, page)
    shown.browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    )
    top, bottom = shown.js("(b => [b.top, b.bottom])(document.querySelector(arguments[0]).getBoundingClientRect())", f"#figure-{kind} svg")
    assert 0 < top < bottom <= 800
