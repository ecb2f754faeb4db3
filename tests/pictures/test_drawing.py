"""The pictures themselves: what is drawn, and that they can stand in any page."""

import base64
import io
import re
from xml.etree import ElementTree as ET

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes

import whereness as wn
from whereness.pictures import codes, drawing, pictures, rotation, scores, subject, values
from whereness.registry import encodings

DOORS = {1: "codes", 2: "codes", 3: "rotation", 4: "scores", 5: "values"}
ALL = encodings()


def made(name):
    torch.manual_seed(0)
    return wn.create(name, dim=16, num_heads=2, length=32)


@pytest.fixture
def images(monkeypatch):
    """Every array that is drawn as a heat map, with its extreme colours."""
    seen = []
    draw = Axes.imshow

    def look(axes, array, **options):
        seen.append((np.array(array), options["norm"], options["cmap"]))
        return draw(axes, array, **options)

    monkeypatch.setattr(Axes, "imshow", look)
    return seen


@pytest.mark.parametrize("name", ALL)
def test_every_encoding_has_the_pictures_of_its_doors_and_its_scores(name):
    encoding = made(name)
    kinds = [p.kind for p in pictures(encoding, 16)]
    expected = list(dict.fromkeys(DOORS[door] for door in encoding.doors))
    assert kinds[: len(expected)] == expected
    flat = name in ("nope", "relative_add", "relative_multiply")  # the last two: not yet trained
    assert kinds[len(expected) :] == (["offsets"] if flat else ["offsets", "spectrum"])


@pytest.mark.parametrize("name", ALL)
def test_every_picture_is_a_small_self_contained_svg(name):
    for picture in pictures(made(name), 64, name=f"my {name}"):
        root = ET.fromstring(picture.svg)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.get("role") == "img"
        assert root.get("aria-label") == root[0].text
        assert root[0].tag.endswith("title")
        assert len(picture.svg) < 40_000
        assert picture.caption.endswith(".")
        tags = {element.tag.rpartition("}")[2] for element in root.iter()}
        assert not tags & {"style", "metadata", "script"}
        assert drawing.INK not in picture.svg
        assert "currentColor" in picture.svg
        assert not re.search(r"fill: (#000000|black|#ffffff|white)", picture.svg)
        for element in root.iter():
            for key, value in element.attrib.items():
                if key.endswith("href") and not value.startswith("#"):
                    assert value.startswith("data:image/png;base64,")


@pytest.mark.parametrize("name", ALL)
def test_ids_are_the_pictures_own_and_references_find_them(name):
    seen = set()
    for number in (1, 2):
        for picture in pictures(made(name), 16, name=f"n {number}"):
            ids = re.findall(r'\bid="([^"]*)"', picture.svg)
            assert len(ids) == len(set(ids))
            assert all(i.startswith(f"n-{number}-{picture.kind}-") for i in ids)
            assert not seen & set(ids)
            seen |= set(ids)
            used = re.findall(r"url\(#([^)]*)\)", picture.svg)
            used += re.findall(r'href="#([^"]*)"', picture.svg)
            assert set(used) == set(ids)
    assert seen


@pytest.mark.parametrize("name", ["alibi", "shaw", "sinusoidal"])
def test_the_same_encoding_gives_the_same_bytes(name, monkeypatch):
    encoding = made(name)
    first = pictures(encoding, 16)
    torch.manual_seed(7)
    monkeypatch.setitem(mpl.rcParams, "font.size", 30)
    monkeypatch.setitem(mpl.rcParams, "axes.grid", True)
    assert pictures(encoding, 16) == first
    assert mpl.rcParams["font.size"] == 30
    assert mpl.rcParams["svg.fonttype"] == "path"


def test_drawing_leaves_the_encoding_and_the_random_state():
    encoding = made("shaw").train()
    before = {name: value.clone() for name, value in encoding.state_dict().items()}
    state = torch.get_rng_state()
    pictures(encoding, 16)
    assert torch.equal(torch.get_rng_state(), state)
    assert encoding.training
    assert all(p.requires_grad for p in encoding.parameters())
    for name, value in encoding.state_dict().items():
        assert torch.equal(value, before[name])


def test_heat_maps_show_the_numbers_position_or_offset_to_the_right(images):
    for name, module in (("binary", codes), ("rope", rotation), ("shaw", values)):
        images.clear()
        of = subject(made(name), 12)
        module.picture(of, "x")
        expected = module.numbers(of)
        expected = expected[0] if module is rotation else expected.T
        [(array, _, _)] = images
        np.testing.assert_array_equal(array, expected.numpy())


def test_scores_are_masked_after_the_query_unless_told_otherwise(images):
    of = subject(made("alibi"), 6)
    expected = scores.numbers(of).values.numpy()
    scores.picture(of, "x")
    future = np.triu(np.ones((6, 6), dtype=bool), 1)
    assert len(images) == 2
    for head, (array, _, cmap) in enumerate(images):
        assert np.isnan(array[future]).all()
        np.testing.assert_array_equal(array[~future], expected[head][~future])
        assert mpl.colors.to_hex(cmap.get_bad()) == drawing.MASKED
    images.clear()
    scores.picture(of, "x", causal=False)
    np.testing.assert_array_equal(images[1][0], expected[1])


def test_a_factor_is_shown_less_the_one_that_changes_nothing(images):
    encoding = wn.LearnedRelative(1, 4, operation="multiply")
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.fill_(3.0)
    scores.picture(subject(encoding, 4), "x", causal=False)
    assert (images[0][0] == 2.0).all()


def test_zero_is_the_middle_of_the_colours(images):
    pictures(made("learned"), 8)
    _, norm, _ = images[0]
    assert norm(0.0) == pytest.approx(0.5)


def test_an_image_holds_one_pixel_a_cell():
    from PIL import Image

    [picture, *_] = pictures(made("learned"), 9)
    encoded = re.findall(r"base64,([A-Za-z0-9+/=\s]*)", picture.svg)
    sizes = [Image.open(io.BytesIO(base64.b64decode(e))).size for e in encoded]
    assert (9, 16) in sizes


def test_a_few_towering_values_do_not_hide_the_others():
    towering = torch.tensor([0.1, -0.2, 0.1, 1000.0])
    norm = drawing.signed(towering)
    assert abs(norm(-0.2) - 0.5) > 0.05
    assert norm(0.0) == pytest.approx(0.5)
    assert drawing.signed(torch.zeros(3))(0.0) == pytest.approx(0.5)


def test_long_ticks_are_shortened():
    assert [drawing.short(v) for v in (250_000, -0.25, 9000)] == ["250k", "−0.25", "9000"]


def test_a_combination_is_drawn_as_one():
    both = wn.Combined([wn.ALiBi(2), wn.RoPE(8)])
    kinds = [p.kind for p in pictures(both, 12)]
    assert kinds == ["rotation", "scores", "offsets", "spectrum"]
