"""The script behind docs/exactness.md finds errors that were put in, and writes all of the page."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("exactness", ROOT / "benchmarks/exactness.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["exactness"] = module
    spec.loader.exec_module(module)
    return module


def formed_in(dtype: torch.dtype):
    def turn(positions, out):
        frequencies = 10_000.0 ** (-torch.arange(64, dtype=dtype) / 64)
        angles = torch.tensor(positions, dtype=dtype)[:, None] * frequencies
        return angles.cos().to(out), angles.sin().to(out)

    return turn


@pytest.mark.parametrize("octave", [12, 20, 23])
def test_errors_of_known_size(script, octave):
    positions = script.sampled(octave, 8)
    assert positions[0] == 2**octave and positions[-1] == 2 ** (octave + 1) - 1
    true = script.exact(positions)
    good = script.error(formed_in(torch.float64)(positions, torch.float32), true)
    assert 2.0**-26 < good.absolute < 2.0**-24.9
    poor = script.error(formed_in(torch.float32)(positions, torch.float32), true)
    assert 2.0 ** (octave - 26) < poor.absolute < 2.0 ** (octave - 22)
    assert poor.ulps > poor.absolute * 2.0**24
    cos, sin = (torch.from_numpy(x) for x in true)
    planted = cos.clone()
    planted[3, 5] += 0.001
    assert script.error((planted, sin), true).absolute == pytest.approx(0.001)
    planted[2, 1] = torch.inf - torch.inf
    assert np.isnan(script.error((planted, sin), true).absolute)


def test_this_library_as_the_script_sees_it(script):
    for name, dtype in script.TYPES.items():
        for turn in (script.ours, script.ours_in_torch):
            positions = script.sampled(23, 4)
            found = script.error(turn(positions, dtype), script.exact(positions))
            assert found.absolute < 1.01 * script.ROUNDING[name]


def test_the_page_names_every_library_and_type(script):
    page = (ROOT / "docs/exactness.md").read_text(encoding="utf-8")
    measured = page.split(script.MARKS[0])[1].split(script.MARKS[1])[0]
    for name in script.TYPES:
        assert f"| {name}: positions |" in measured
    for library, _, distribution in script.LIBRARIES:
        assert f"| {library} | " in measured and f"{distribution} " in measured
    assert (ROOT / "docs/exactness.svg").is_file()


def test_writing_keeps_the_rest_of_the_page(script):
    begin, end = script.MARKS
    page = f"# Title\n\n{begin}\nold\n{end}\n\nThe end.\n"
    once = script.written(page, ["", "| new |"])
    assert once == f"# Title\n\n{begin}\n\n| new |\n\n{end}\n\nThe end.\n"
    assert script.written(once, ["", "| new |"]) == once


@pytest.mark.more
@pytest.mark.parametrize("count", [3])
def test_every_library_can_be_measured(script, count):
    found = script.measure((12, 16), count)
    assert set(found["bfloat16"]) == {name for name, _, _ in script.LIBRARIES}
    for library, errors in found["float32"].items():
        if "whereness" not in library:
            assert 1e-5 < errors[12].absolute < 1e-3 < errors[16].absolute < 2e-2
    assert len(list(script.table(found, (12, 16)))) > 3 * len(script.LIBRARIES)
