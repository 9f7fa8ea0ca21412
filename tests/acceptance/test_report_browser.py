"""The audit's report in a browser: it opens without errors, and a finding can be followed.

Chromium is looked for on the PATH, and comes from no package index; `.ci/run` installs it. With CI
set these tests fail without one.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from minibroker.audit.model import Finding
from minibroker.audit.report.page import write_report
from tests.unit.audit.sample import NASTY, sample_findings, sample_partitions, sample_summary

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "microsoft-edge")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)

pytestmark = pytest.mark.skipif(
    CHROMIUM is None and "CI" not in os.environ,
    reason=f"none of {', '.join(NAMES)} is on the PATH (on Debian: apt-get install chromium)",
)

# Contrast of every text with what lies behind it, by WCAG 2; texts in pictures have their spans.
FAINT = """() => {
  const parse = color => color.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (; element; element = element.parentElement) {
      const rect = element.matches("svg[class^=e]") && element.querySelector(":scope > rect");
      const style = rect ? getComputedStyle(rect).fill : getComputedStyle(element).backgroundColor;
      const color = style === "none" ? [0, 0, 0, 0] : parse(style);
      if (color.length === 3 || color[3] === 1) return color;
    }
  };
  const faint = [];
  for (const element of document.querySelectorAll("body *:not(script, title, option)")) {
    const own = [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!own || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const color = element instanceof SVGElement ? style.fill : style.color;
    const [a, b] = [luminance(parse(color)), luminance(behind(element))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) faint.push(element.textContent.trim() + " " + color);
  }
  return faint;
}"""


# Leaves in the document how often the page itself scrolled, and that it has heard of a new address.
COUNT_SCROLLS = """() => {
  const seen = document.documentElement.dataset, own = Element.prototype.scrollIntoView;
  Element.prototype.scrollIntoView = function (...given) {
    seen.scrolls = Number(seen.scrolls ?? 0) + 1;
    own.apply(this, given);
  };
  addEventListener("hashchange", () => { seen.heard = "yes"; });
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium without windows."""
    assert CHROMIUM, f"none of {NAMES} is on the PATH: apt-get install chromium"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an audit with findings of all kinds, in more partitions than are open at first."""
    findings = sample_findings()
    findings += [
        Finding("index", findings[3].severity, "clicks", number, 2, None, 500 * number, 0, 8)
        for number in range(1, 25)
    ]
    summary = sample_summary(findings, [*sample_partitions(40)])
    return write_report(summary, findings, tmp_path_factory.mktemp("report"))


@pytest.fixture
def opened(browser: Browser, report: Path) -> Iterator[Page]:
    """The report, in a wide window; whatever goes wrong in it fails the test."""
    page = browser.new_page(viewport={"width": 1600, "height": 900})
    wrong: list[str] = []
    requests: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(report.as_uri())
    yield page
    assert not wrong
    assert set(requests) == {report.as_uri()}
    page.close()


def expect_in_view(page: Page, selector: str) -> None:
    """The whole of an element is to be seen without scrolling, once the page has followed a link.

    It hears of its new address a moment after the click."""
    expect(page.locator(selector)).to_be_in_viewport(ratio=1)


def test_the_report_opens_with_its_verdict_and_its_pictures(opened: Page) -> None:
    """The verdict is the first thing to be seen; each lane has a picture with something in it."""
    assert opened.locator(".verdict p").inner_text().startswith("4 errors and 27 warnings")
    expect_in_view(opened, ".verdict")
    lanes = opened.locator(".partition[open] .lane > svg")
    assert lanes.count() >= 12 * 3
    for lane in lanes.all()[:8]:
        box = lane.bounding_box()
        assert box
        assert box["width"] > 600
        assert box["height"] > 30
    spans = opened.locator(".partition[open] svg.e0 > rect")
    assert spans.first.evaluate("each => each.getBoundingClientRect().width") > 50
    assert NASTY.split("\x00")[0] in opened.locator("body").inner_text()


def test_a_finding_can_be_followed_to_its_place_and_back(opened: Page) -> None:
    """The offset in the table leads to the mark in the lane of its broker, and the mark back."""
    opened.click("#f0 .offset a")
    mark = opened.locator(".mark:target")
    expect_in_view(opened, ".mark:target")
    assert "divergence at offset 61,220" in (mark.locator("title").text_content() or "")
    lane = mark.locator("xpath=ancestor::div[contains(@class, 'lane')][1]")
    assert "Broker 2" in lane.inner_text()
    framed = opened.locator(".mark:target .hit").evaluate("each => getComputedStyle(each).stroke")
    assert framed != "none"
    mark.locator(".hit").click()
    assert opened.url.endswith("#f0")
    expect_in_view(opened, "#f0")


@pytest.mark.parametrize("is_folded", [False, True])
def test_a_followed_link_moves_the_page_once(opened: Page, is_folded: bool) -> None:
    """Only the browser scrolls. A page that scrolled again a moment later would take the target of
    the next click away from under the pointer."""
    opened.evaluate(COUNT_SCROLLS)
    row = opened.locator("tbody tr[data-topic=clicks]").last if is_folded else opened.locator("#f0")
    link = row.locator(".offset a")
    place = link.get_attribute("href")
    assert place
    link.click()
    opened.locator("html[data-heard]").wait_for()
    expect_in_view(opened, place)
    assert opened.evaluate("document.documentElement.dataset.scrolls") is None


def test_no_label_covers_another_mark(opened: Page) -> None:
    """The label of a log's first error lies over its neighbours, and lets clicks through."""
    labels = opened.locator(".mark text")
    assert labels.count() > 0
    for label in labels.all():
        assert label.evaluate("each => getComputedStyle(each).pointerEvents") == "none"


def test_the_first_screen_says_what_to_do(opened: Page) -> None:
    """What is lost, whose copy is bad, and the first steps are seen without scrolling."""
    expect_in_view(opened, ".answer dt >> nth=2")
    expect_in_view(opened, ".answer li >> nth=0")
    assert "Broker 2: orders-0" in opened.locator(".answer").inner_text()


def test_a_finding_leads_to_its_place_where_that_is_folded(opened: Page) -> None:
    """The picture opens; a row that the filter hides is shown again."""
    row = opened.locator("tbody tr[data-topic=clicks]").last
    number = row.get_attribute("id")
    place = row.locator(".offset a").get_attribute("href")
    assert place
    folded = opened.locator(f"details:has({place})")
    assert folded.get_attribute("open") is None
    row.locator(".offset a").click()
    opened.locator(f"details[open]:has({place})").wait_for()  # the page hears of it after the click
    expect_in_view(opened, place)
    opened.select_option("select[name=severity]", "error")
    assert not row.is_visible()
    opened.locator(f"{place} .hit").click()
    assert opened.url.endswith(f"#{number}")
    row.wait_for()
    expect_in_view(opened, f"#{number}")


def test_the_table_is_filtered(opened: Page) -> None:
    """By severity, check and topic together; it says how many rows are left."""
    rows = opened.locator(".findings-table tbody tr:visible")
    assert rows.count() == 32
    opened.select_option("select[name=severity]", "warning")
    opened.select_option("select[name=check]", "index")
    opened.select_option("select[name=topic]", "orders")
    assert rows.count() == 1
    assert opened.locator("output").inner_text() == "1 shown"
    assert "entry 64" in rows.first.inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 800, 1600])
def test_it_reads_well_on_any_window(opened: Page, width: int, scheme: Any) -> None:
    """Nothing is cut off or runs out sideways, and every text stands out from what is behind."""
    opened.set_viewport_size({"width": width, "height": 800})
    opened.emulate_media(color_scheme=scheme)
    assert opened.evaluate("document.documentElement.scrollWidth") == width
    assert opened.evaluate(FAINT) == []
    lane = opened.locator(".lane > svg").first.bounding_box()
    assert lane
    assert lane["width"] > 300
    cells = opened.locator("#f0 td").all()
    boxes = [box for cell in cells if (box := cell.bounding_box())]
    assert len(boxes) == 7
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)
