"""The page in a real browser: it draws, reacts, asks nobody for anything, and fits a phone."""

from __future__ import annotations

import json
import shutil
from threading import Thread

import pytest
from made_runs import made_run, scored, write_run

from fedshift.report import html
from fedshift.report.results import Comparison, RunResult
from fedshift.report.web import LiveView

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium: apt-get install chromium"
)
HOSTILE = "x</script><img src=//e onerror=alert(1)>\"'<b>"


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as play:
        opened = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """Twenty methods x two seeds, one of them with a name that is markup, and confusion."""
    runs = []
    for i in range(20):
        for seed in (0, 1):
            last = (60 + i + seed, 70 + (7 * i) % 20)
            run = made_run(
                "fedavg", seed, [(40, 50), last, last], label=HOSTILE if i == 7 else f"m{i:02d}"
            )
            found = run.summary["protocols"]["personal"]
            counts = {"dark": [[0, 0, 5 + i], [0, 1, 2], [1, 1, 4]]}
            for row in found.values():
                row["metrics"]["confusion"] = counts
            runs.append(RunResult(run.config, run.history, run.summary, None))
    return html.write(Comparison(runs), tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture
def opened(browser, page_file):
    """A function that opens the page; afterwards nothing may have complained or been asked for."""
    problems: list[str] = []
    pages = []

    def visit(width, **options):
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        pages.append(page)
        page.on("console", lambda m: problems.append(m.text) if m.type != "log" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.on("request", lambda r: problems.append(r.url) if r.url[:5] != "file:" else None)
        page.goto(page_file.as_uri())
        return page

    yield visit
    for page in pages:
        page.close()
    assert problems == []


def see(page, selector):
    """Scroll to an element, which draws charts."""
    found = page.locator(selector).first
    found.scroll_into_view_if_needed()
    return found


def test_tables_sort_by_number_and_filter_by_method(opened):
    page = opened(1400)
    names = page.locator("table").first.locator("tbody tr:visible th")
    assert names.count() == 20
    by_score = page.get_by_role("button", name="personal", exact=True)
    by_score.click()  # numbers: highest first
    assert names.first.inner_text() == "m17"  # (77 + 78) / 2 and 70 + 119 % 20: the highest mean
    by_score.click()
    assert names.first.inner_text() == "m00"
    page.get_by_role("button", name="method", exact=True).first.click()
    assert names.first.inner_text() == "m00"
    page.get_by_placeholder("filter methods").fill("m1")
    assert names.all_inner_texts() == [f"m1{i}" for i in range(10)]
    page.get_by_role("button", name="none", exact=True).click()
    assert names.count() == 0
    page.get_by_role("button", name="all", exact=True).click()
    assert names.count() == 20


def test_charts_draw_every_method_apart_and_react(opened):
    page = opened(1400)
    chart = see(page, "[data-chart=curves-0]")
    chart.locator("svg").wait_for()
    lines = "svg g[aria-label=line]"
    looks = chart.locator(lines).evaluate_all(
        "all => all.map(g => getComputedStyle(g).stroke + g.getAttribute('stroke-dasharray'))"
    )
    assert len(looks) == len(set(looks)) == 20
    labels = chart.locator("svg g[aria-label=text] text").all_text_contents()
    assert len(labels) == 20
    assert "m00" in labels
    chart.locator("svg g.m3[aria-label=dot] > *").nth(1).hover(force=True)
    tip = chart.locator("svg g[aria-label=tip] text")
    tip.wait_for()
    assert "round 2" in tip.text_content()
    assert "(n = 2)" in tip.text_content()
    page.get_by_role("button", name="m03", exact=True).click()
    assert chart.locator(lines).count() == 19
    dots = see(page, "[data-chart=dots-0]")
    assert dots.locator("svg g[aria-label=dot]").count() == 2  # one per domain
    assert dots.locator("svg g[aria-label=dot] > *").count() == 2 * 19
    see(page, "[data-chart=cost]").locator("svg").wait_for()
    # A name from a run is text; taken for markup it would open a dialog or ask for an image.
    assert page.locator("img").count() == 0
    assert page.get_by_role("button", name=HOSTILE, exact=True).count() == 1
    assert page.locator("tbody th", has_text=HOSTILE).count() >= 3


def test_a_confusion_matrix_is_that_of_the_chosen_method(opened):
    page = opened(1000)
    see(page, "text=Confusion matrices").click()
    place = see(page, "[data-chart=confusion-0]")
    place.get_by_label("method").select_option(label="m19")
    cells = place.locator("svg g[aria-label=text] text")
    cells.first.wait_for()
    assert cells.all_text_contents() == ["48", "4", "8"]  # (5 + 19), 2, 4 of two seeds


def test_a_phone_scrolls_down_only_and_colours_follow_the_system(opened):
    page = opened(360, color_scheme="light")
    for place in ("curves-0", "dots-0", "cost"):
        see(page, f"[data-chart={place}]").locator("svg[aria-label]").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    shade = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(shade) == "rgb(246, 247, 249)"
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(shade) == "rgb(14, 17, 22)"


def test_a_script_that_slipped_in_would_not_run(browser, page_file, tmp_path):
    """The policy, on its own: our page with somebody's script and handler written into it."""
    text = page_file.read_text("utf-8")
    bad = "<script>document.title = 'ran'</script><img src='x' onerror=\"document.title = 'ran'\">"
    (tmp_path / "bad.html").write_text(text.replace("<main>", f"<main>{bad}"), "utf-8")
    page = browser.new_page()
    page.goto((tmp_path / "bad.html").as_uri())
    page.wait_for_timeout(100)
    assert page.title() != "ran"
    page.close()


def test_the_page_prints_with_its_charts(browser, page_file):
    page = browser.new_page(color_scheme="dark")
    page.goto(page_file.as_uri())
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("[data-chart=cost] svg").count() == 1
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert ink == "rgb(31, 35, 40)"  # dark ink on paper, whatever the screen has
    assert len(page.pdf()) > 50_000
    page.close()


def test_the_live_view_draws_runs_and_follows_them(browser, tmp_path, monkeypatch):
    monkeypatch.setattr("fedshift.report.web.LEAST", 0.0)
    write_run(tmp_path / "a", [scored(1, 40.0), scored(2, 50.0)])
    write_run(tmp_path / "b", [scored(1, 30.0)], name=HOSTILE)
    problems: list[str] = []
    with LiveView([tmp_path], every=0.5) as view:
        Thread(target=view.serve_forever, args=(0.01,), daemon=True).start()
        page = browser.new_page(viewport={"width": 360, "height": 900})
        page.on("console", lambda m: problems.append(m.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.on("request", lambda r: problems.extend([] if view.address in r.url else [r.url]))
        page.goto(view.address)
        first = page.locator("#runs tbody tr").first
        first.get_by_text("2/3").wait_for()
        assert "personal 50.0" in first.inner_text()
        page.locator("#chart svg g.m0[aria-label=line]").wait_for()
        assert page.locator("#runs tbody tr").nth(1).inner_text().startswith(HOSTILE)
        with (tmp_path / "a" / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(scored(3, 60.0)) + "\n")
        first.get_by_text("personal 60.0").wait_for()
        assert page.locator("#chart svg g.m0[aria-label=dot] > *").count() == 3
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        page.close()
        view.shutdown()
    assert problems == []
