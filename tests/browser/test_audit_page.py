"""The page of an audit in a browser: plots are drawn, nothing is fetched, it fits a phone.

Needs Chromium (`make browser`); without it these tests fail.
"""

import pytest

import audits
from whereness.auditor.findings import Report
from whereness.auditor.telling.page import html

pytestmark = [pytest.mark.more, pytest.mark.untyped]

PHONE, DESK = {"width": 400, "height": 844}, {"width": 1200, "height": 900}
VIEWPORTS = pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
SCHEMES = pytest.mark.parametrize("scheme", ["light", "dark"])
CONTRAST = """marks => {
    const light = (css) => {
        const part = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        const [r, g, b] = css.match(/[0-9.]+/g).map(Number).map(part);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = light(getComputedStyle(document.body).backgroundColor);
    const worst = [];
    for (const [mark, needed] of marks) {
        const found = document.querySelector(mark);
        if (found === null) { worst.push([mark, 'missing']); continue; }
        const style = getComputedStyle(found);
        const drawn = mark.includes('circle') || mark.includes('text');
        const own = light(drawn ? style.fill : style.color);
        const ratio = (Math.max(own, ground) + 0.05) / (Math.min(own, ground) + 0.05);
        if (ratio < needed) worst.push([mark, ratio]);
    }
    return [getComputedStyle(document.body).backgroundColor, worst];
}"""
MARKS = [
    *((mark, 4.5) for mark in ("body", ".quiet", "main a", ".badge", ".state.error", ".state.ok")),
    *((mark, 4.5) for mark in (".plot text", ".finding.warning .badge", "figcaption")),
    *((mark, 3.0) for mark in (".plot circle.measured", ".plot circle.off")),
]


@pytest.fixture
def visit(browser, tmp_path):
    """Open the page of a report; whatever it asks for or complains of fails the test."""
    contexts = []

    def opened(report, viewport=DESK, **options):
        path = tmp_path / f"{len(contexts)}.html"
        path.write_text(html(report), encoding="utf-8")
        context = browser.new_context(viewport=viewport, **options)
        contexts.append((context, path, asked := [], said := []))
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
        page.goto(path.as_uri())
        return page

    yield opened
    for context, path, asked, said in contexts:
        context.close()
        assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
        assert said == []


@VIEWPORTS
def test_every_plot_is_drawn_in_sight_and_to_scale(visit, viewport):
    page = visit(audits.faulty(), viewport)
    plots = page.locator("svg.plot").all()
    assert len(plots) == 6  # speed, difference and amplitude of two groups of layers
    for plot in plots:
        box = plot.bounding_box()
        assert box["width"] > 250
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= viewport["width"]
        assert plot.locator("circle").count() >= audits.PAIRS
        size = plot.locator("text").first.bounding_box()["height"]
        assert size >= 9  # not shrunk below what can be read
    for dot in page.locator("svg.plot circle").all()[:: audits.PAIRS // 2]:
        assert dot.bounding_box()["width"] > 2


def test_a_wrong_base_is_seen_as_dots_off_their_circles(visit):
    page = visit(audits.faulty())
    right, wrong = page.locator("#plots details").all()
    assert right.locator("circle.off").count() == 0
    assert right.locator("svg.plot").first.locator("circle.measured").count() == audits.PAIRS
    off, config = (
        wrong.locator("svg.plot").first.locator(f"circle.{kind}").last.bounding_box()
        for kind in ("off", "config")
    )
    assert abs(off["x"] + off["width"] / 2 - config["x"] - config["width"] / 2) < 1
    assert config["y"] - off["y"] > 20  # it turns faster: higher


def test_a_bias_has_a_line_for_each_head(visit):
    page = visit(audits.clean())
    lines = page.locator("svg.plot .curve").all()
    assert len(lines) == 4
    boxes = [line.bounding_box() for line in lines]
    assert boxes[0]["height"] > boxes[-1]["height"]
    assert all(box["width"] > 200 for box in boxes)


@SCHEMES
@VIEWPORTS
@pytest.mark.parametrize("of", ["faulty", "clean", "silent", "hostile"])
def test_the_page_never_scrolls_sideways(visit, of, viewport, scheme):
    page = visit(getattr(audits, of)(), viewport, color_scheme=scheme)
    inside = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert inside[0] <= inside[1]


def test_dark_and_light_are_different_and_readable(visit):
    grounds = []
    for scheme in ("light", "dark"):
        ground, worst = visit(audits.faulty(), color_scheme=scheme).evaluate(CONTRAST, MARKS)
        assert worst == []
        grounds.append(ground)
    assert grounds[0] != grounds[1]


def test_a_phone_names_what_each_cell_is(visit):
    page = visit(audits.faulty(), PHONE)
    row = page.locator("tbody tr").nth(2)
    assert "layers 2-29" in " ".join(row.inner_text().split())
    name = "e => getComputedStyle(e, '::before').content"
    assert row.locator("td[data-name=speed]").evaluate(name) == '"speed"'
    assert not page.locator("tbody tr").first.locator("td[data-name=speed]").is_visible()


def test_a_hostile_target_does_nothing(visit):
    page = visit(audits.hostile())
    assert "<script>alert(1)</script>" in page.locator("h1").inner_text()
    assert page.locator("script").count() == 0


def test_many_groups_of_layers_are_closed_but_those_with_findings(visit):
    layers = [audits.rotary(i, speeds=audits.speeds(1000.0 * (i + 1))) for i in range(12)]
    report = Report(target="x", layers=layers, findings=[audits.wrong_base(10)])
    opened = [
        group.get_attribute("open") is not None
        for group in visit(report).locator("#plots details").all()
    ]
    assert opened == [i < 6 or i == 10 for i in range(12)]


def test_the_keyboard_reaches_the_report(visit):
    page = visit(audits.faulty())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.querySelector('main').contains(document.activeElement)")
