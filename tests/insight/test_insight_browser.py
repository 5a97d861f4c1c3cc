"""A report in a browser, with and without scripts."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from report_pages import page_without_scripts

from reinlm.insight.report import write_report
from reinlm.runs.metrics import read_metrics


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(find_chromium() is None, reason="needs chromium on the PATH")
def test_a_browser_draws_every_chart_and_runs_no_hostile_text(quickstart: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs the Python package playwright")
    path = write_report(quickstart)
    requests, complaints = [], []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(path.as_uri())
        for summary in page.locator("summary").all():
            summary.click()
        drawn = page.evaluate(
            "[...document.querySelectorAll('figure svg')].map((svg) => [svg.getBoundingClientRect().width, "
            "svg.querySelectorAll('.line, .area').length])"
        )
        figure = page.locator("figure", has_text="Gradient norm before clipping").first
        figure.locator("svg").hover()
        readout = figure.locator("output").inner_text()
        page.locator("h1").hover()
        resting = figure.locator("output").inner_text()
        width = page.evaluate("document.documentElement.scrollWidth")
        broken = page.evaluate(BROKEN_WORDS)
        hacked = page.evaluate("window.hacked")
        title = page.locator("h1").inner_text()
        browser.close()
    assert complaints == []
    assert requests == [path.as_uri()]
    assert hacked is None
    assert title == "quickstart"
    assert width == 390, "a phone scrolls in one direction alone"
    assert broken == []
    assert len(drawn) == page_without_scripts(path).count("<figure>") > 20
    assert all(wide > 300 and curves >= 1 for wide, curves in drawn)
    said = re.fullmatch(r"step (\d+): before clipping ([\d.]+)", readout)
    assert said is not None
    logged = {record["step"]: record["grad_norm"] for record in read_metrics(quickstart / "sft" / "metrics.jsonl")}
    assert 80 < int(said[1]) < 120
    assert float(said[2]) == pytest.approx(logged[int(said[1])], rel=1e-3)
    assert resting == ""


BROKEN_WORDS = """
[...document.querySelectorAll('h1, h2, h3, th, td, dt, dd, li, figcaption, .side, .meta, nav a')].flatMap((element) => {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT), broken = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    for (const word of node.textContent.matchAll(/[A-Za-z]{2,}/g)) {
      const range = document.createRange();
      range.setStart(node, word.index); range.setEnd(node, word.index + word[0].length);
      if (range.getClientRects().length > 1) broken.push(word[0]);
    }
  }
  return broken;
})
"""
"""Words that stand in two lines."""


@pytest.mark.skipif(find_chromium() is None, reason="needs chromium on the PATH")
def test_a_page_without_scripts_shows_the_same_charts(quickstart: Path, tmp_path: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs the Python package playwright")
    path = write_report(quickstart)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        page = browser.new_context(java_script_enabled=False).new_page()
        page.goto(path.as_uri())
        boxes = [page.locator("figure svg").nth(index).bounding_box() for index in range(3)]
        browser.close()
    assert all(box is not None and box["height"] > 150 for box in boxes)
