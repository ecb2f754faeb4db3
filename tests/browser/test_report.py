"""The report in a browser: the chart answers, nothing is fetched, and it fits a phone.

Needs Chromium (`make browser`); without it these tests fail.
"""

import pytest

import reports
from whereness.lab import report

pytestmark = [pytest.mark.more, pytest.mark.untyped]

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
NAMES = ["alibi", "learned", "nope", "rope"]  # by loss at the longest length


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return report.write(folder, reports.summary(), reports.encodings())


@pytest.fixture
def visit(browser, file):
    """Open the report; whatever it asks for or complains of fails the test."""
    contexts = []

    def opened(viewport=DESK, path=file, **options):
        context = browser.new_context(viewport=viewport, **options)
        contexts.append((context, asked := [], said := []))
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(path.as_uri())
        if options.get("java_script_enabled", True):
            page.locator("#plot .series").first.wait_for(state="attached")  # drawn in a frame
        return page

    yield opened
    for context, asked, said in contexts:
        context.close()
        assert [url for url in asked if not url.startswith("data:")] == [file.as_uri()]
        assert said == []


def values(page):
    """What the legend says: value and interval by name."""
    rows = page.locator("#legend li").all()
    return {
        row.locator(".name").inner_text(): (
            row.locator(".value").inner_text(),
            row.locator(".interval").inner_text().strip(),
        )
        for row in rows
    }


def expected(key, length):
    """The same from the summary."""
    entries = reports.summary()["encodings"]
    found = {}
    for name in NAMES:
        loss = entries[name]["language_model"][key][str(length)]
        found[name] = (f"{loss['mean']:.2f}", f"{loss['low']:.2f} to {loss['high']:.2f}")
    return found


def hover(page, share):
    """Point at the chart, `share` of its width from the left."""
    page.locator("#plot").scroll_into_view_if_needed()
    box = page.locator("#plot").bounding_box()
    page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)


def curve(page, name):
    return page.locator(f'[data-series="{NAMES.index(name)}"] .curve')


def test_every_encoding_has_a_curve_a_band_and_points(visit):
    page = visit()
    for number, name in enumerate(NAMES):
        group = f'[data-series="{number}"]'
        assert page.locator(f"{group} .point").count() == 3
        assert page.locator(f"{group} .band").count() == 1
        assert page.locator(f"{group} .label").text_content() == name
        kind = "dashed" if name == "learned" else "solid"
        paths = curve(page, name).all()
        assert [path.get_attribute("class") for path in paths] == [f"curve {kind}"]
    higher = [page.locator(f'[data-series="{n}"] .point').last.bounding_box()["y"] for n in (0, 3)]
    assert higher[0] > higher[1]  # alibi has the lower loss, so it stands lower


def test_the_length_axis_is_logarithmic(visit):
    page = visit()
    boxes = [p.bounding_box() for p in page.locator('[data-series="0"] .point').all()]
    x = [box["x"] + box["width"] / 2 for box in boxes]
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.5)


def test_the_legend_takes_a_curve_away_and_brings_it_back(visit):
    page = visit()
    button = page.get_by_role("button", name="rope")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert curve(page, "rope").count() == 0
    assert curve(page, "alibi").count() == 1
    button.click()
    assert curve(page, "rope").count() == 1
    button.click()
    page.get_by_role("button", name="Show all").click()
    assert curve(page, "rope").count() == 1


@pytest.mark.parametrize(("share", "length"), [(0.06, 16), (0.45, 32), (0.86, 64)])
def test_pointing_shows_the_values_of_the_nearest_length(visit, share, length):
    page = visit()
    hover(page, 0.45 if length != 32 else 0.06)
    hover(page, share)
    assert page.locator("#reading").inner_text() == f"At {length} bytes"
    assert values(page) == expected("loss", length)


def test_the_keyboard_moves_from_length_to_length(visit):
    page = visit()
    page.locator("#plot").focus()
    for key, length in (("Home", 16), ("ArrowRight", 32), ("ArrowLeft", 16), ("End", 64)):
        page.keyboard.press(key)
        assert page.locator("#plot").get_attribute("aria-valuenow") == str(length)
        assert values(page) == expected("loss", length)
    spoken = page.locator("#plot").get_attribute("aria-valuetext")
    assert spoken == "64 bytes: alibi 1.84, learned 2.21, nope 2.22, rope 2.26"


def test_a_touch_reads_values_too(visit):
    page = visit(PHONE, has_touch=True, is_mobile=True)
    page.locator("#plot").scroll_into_view_if_needed()
    box = page.locator("#plot").bounding_box()
    page.touchscreen.tap(box["x"] + 50, box["y"] + 100)
    assert values(page) == expected("loss", 16)


def test_the_last_quarter_draws_other_curves(visit):
    page = visit()
    before = curve(page, "rope").get_attribute("d")
    page.get_by_label("its last quarter").check()
    assert curve(page, "rope").get_attribute("d") != before
    assert values(page) == expected("loss_last_quarter", 64)
    page.get_by_label("the whole window").check()
    assert curve(page, "rope").get_attribute("d") == before


def test_differences_are_those_of_the_summary(visit):
    page = visit()
    page.get_by_label("difference to", exact=True).check()
    assert values(page)["nope"] == ("+0.380", "+0.350 to +0.410")
    assert values(page)["alibi"] == ("0.000", "")
    assert not page.locator("#chart-note").is_visible()
    page.locator("#reference").select_option("nope")
    assert values(page)["alibi"] == ("−0.380", "")
    assert values(page)["nope"] == ("0.000", "")
    assert page.locator("#chart-note").is_visible()
    page.locator("#reference").select_option("alibi")  # the best: its intervals are known
    assert values(page)["nope"] == ("+0.380", "+0.350 to +0.410")
    page.get_by_label("its last quarter").check()
    assert values(page)["nope"] == ("+0.380", "")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, DESK])
def test_the_page_never_scrolls_sideways(visit, viewport, scheme):
    page = visit(viewport, color_scheme=scheme)
    inside = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert inside[0] <= inside[1]
    page.mouse.move(10, 10)
    page.evaluate("window.scrollTo(100, 0)")
    assert page.evaluate("window.scrollX") == 0


def test_dark_and_light_are_different_and_readable(visit):
    contrast = """() => {
        const light = (css) => {
            const part = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
            const [r, g, b] = css.match(/[0-9.]+/g).map(Number).map(part);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const ground = light(getComputedStyle(document.body).backgroundColor);
        const worst = [];
        const marks = 'body|.quiet|main a|.fails|.best|.note|figcaption|#plot text';
        for (const mark of marks.split('|')) {
            const style = getComputedStyle(document.querySelector(mark));
            const own = light(mark === '#plot text' ? style.fill : style.color);
            const ratio = (Math.max(own, ground) + 0.05) / (Math.min(own, ground) + 0.05);
            if (ratio < 4.5) worst.push([mark, ratio]);
        }
        return [getComputedStyle(document.body).backgroundColor, worst];
    }"""
    grounds = []
    for scheme in ("light", "dark"):
        ground, worst = visit(color_scheme=scheme).evaluate(contrast)
        assert worst == []
        grounds.append(ground)
    assert grounds[0] != grounds[1]


def test_pictures_take_the_colour_of_the_text(visit):
    page = visit(color_scheme="dark")
    fill = "e => getComputedStyle(e).fill"
    text = page.locator(".pictures svg text").first.evaluate(fill)
    assert text == page.evaluate("getComputedStyle(document.body).color")


def test_what_can_be_operated_can_be_reached_and_is_named(visit):
    page = visit()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.querySelector('main').contains(document.activeElement)")
    for role in ("button", "radio", "combobox", "slider"):
        for element in page.get_by_role(role).all():
            assert element.evaluate("e => e.tabIndex") == 0
            name = "e => e.ariaLabel || e.innerText || (e.labels && e.labels[0].innerText)"
            assert element.evaluate(name)


def test_without_scripts_a_picture_stands_in(visit):
    page = visit(java_script_enabled=False)
    assert page.locator(".still svg").is_visible()
    assert not page.locator("#chart").is_visible()


def test_one_length_is_drawn_as_points_side_by_side(browser, tmp_path):
    path = report.write(tmp_path, reports.summary(lengths=(16,)), {})
    page = browser.new_page()
    page.goto(path.as_uri())
    page.locator(".point").first.wait_for(state="attached")
    boxes = [p.bounding_box() for p in page.locator(".point").all()]
    assert len({round(box["x"]) for box in boxes}) == len(NAMES)
    assert page.locator(".curve").count() == 0
    assert page.locator("#reading").inner_text() == "At 16 bytes"
    page.close()


def test_a_hostile_name_does_nothing(browser, tmp_path):
    summary = reports.summary()
    summary["text"]["source"] = "<script>alert(1)</script>.txt"
    entry = summary["encodings"].pop("rope")
    summary["encodings"]["</script><script>alert(2)</script>"] = entry
    summary["settings"]["constructors"]["</script><script>alert(2)</script>"] = "<b>wn.X()"
    path = report.write(tmp_path, summary, {})
    page, opened = browser.new_page(), []
    page.on("dialog", lambda dialog: (opened.append(dialog.message), dialog.dismiss()))
    page.goto(path.as_uri())
    assert opened == []
    assert "<script>alert(1)</script>.txt" in page.locator("header").inner_text()
    assert "</script><script>alert(2)</script>" in page.locator("#legend").inner_text()
    page.close()
