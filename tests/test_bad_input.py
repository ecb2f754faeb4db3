"""Anything may come: the answer is a correct result, or an error that says what came.

Hypothesis draws options, positions and tensors for every encoding. `answered` is the property:
what the library refuses, it refuses itself, with a ValueError or TypeError that has a number or a
name of what came. What it gives back is then compared with Python's own numbers.

Axes: B batch, H heads, S queries or tokens, T keys, D head_dim, n axes of a position.
"""

import math
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import whereness as wn

pytestmark = pytest.mark.untyped

PACKAGE = str(Path(wn.__file__).parent)
FAR = 2**63  # beyond every size and every position
EXACT_BELOW = 2**24  # positions up to which angles are promised
SAYS = re.compile(
    r"\d|\bgot\b|positions|segments|key_mask|lengths|encoding|antialias|gradient|memory"
)
"""A number, what came after `got`, or the name of the argument."""
searched = settings(suppress_health_check=[HealthCheck.too_slow])


def answered(call: Callable[[], Any]) -> Any:
    """What `call` gives, or None if the library refused with an error that says what came."""
    try:
        return call()
    except (ValueError, TypeError) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        # What torch or Python raise in C has no frame of its own: the line must be a `raise`.
        if not (last.filename.startswith(PACKAGE) and (last.line or "").startswith("raise")):
            pytest.fail(f"not the library's own error: {error!r}")
        if not SAYS.search(str(error)):
            pytest.fail(f"says nothing of what came: {error}")
        return None


# Options


def size(most: int = 40) -> st.SearchStrategy[Any]:
    return st.integers(1, most)


plain_junk = st.one_of(
    st.integers(-3, 40),
    st.booleans(),
    st.floats(),
    st.text(max_size=3),
    st.none(),
    st.lists(st.integers(-1, 6), max_size=3),
    st.sampled_from([np.int64(4), np.float32(2.0), np.array([1, 2]), 1j, "half", b"half", object]),
    st.builds(torch.ones, st.just(2)),
)
huge = st.sampled_from([FAR, 10**30, 10**400, -FAR, 1e308, 5e-324, 1e-300])
# A size that no tensor has. Where the library makes a Python object of that size it would not come
# back: see test_sizes_that_no_machine_has.
huge_junk = plain_junk | huge
bases = st.sampled_from([10_000.0, 100, 1.0, 0.5]) | huge
sites = st.sampled_from(["tokens", "every_layer", "queries_keys"])
joins = st.sampled_from(["add", "concat"])
pairings = st.sampled_from(["half", "interleaved"])

Option = tuple[st.SearchStrategy[Any], st.SearchStrategy[Any]]
OPTIONS: dict[str, tuple[type, dict[str, Option]]] = {
    "integer": (
        wn.Integer,
        {
            "dim": (size(), huge_junk),
            "length": (st.none() | st.integers(1, 10**9), huge_junk),
            "site": (sites, plain_junk),
            "join": (joins, plain_junk),
        },
    ),
    "binary": (
        wn.Binary,
        {
            "dim": (st.integers(8, 70), huge_junk),
            "num_bits": (st.none() | size(70), huge_junk),
            "gray": (st.booleans(), plain_junk),
        },
    ),
    "sinusoidal": (
        wn.Sinusoidal,
        {
            "dim": (size(), plain_junk),
            "base": (bases, huge_junk),
            "order": (st.sampled_from(["interleaved", "sin_cos", "cos_sin"]), plain_junk),
            "exponent": (st.sampled_from(["dim", "dim-2"]), plain_junk),
        },
    ),
    "learned": (
        wn.LearnedAbsolute,
        {
            "dim": (size(), huge_junk),
            "num_positions": (size() | st.lists(size(4), min_size=1, max_size=4), huge_junk),
            "num_prefix": (st.integers(0, 3), huge_junk),
            "first_row": (st.integers(0, 3), huge_junk),
        },
    ),
    "relative": (
        wn.LearnedRelative,
        {
            "num_heads": (size(6), huge_junk),
            "max_distance": (st.integers(0, 9), huge_junk),
            "operation": (st.sampled_from(["add", "multiply"]), plain_junk),
            "on": (st.sampled_from(["logits", "weights"]), plain_junk),
            "beyond": (st.sampled_from(["clip", "raise"]), plain_junk),
        },
    ),
    "shaw": (
        wn.Shaw,
        {
            "head_dim": (size(), huge_junk),
            "max_distance": (st.integers(0, 9), huge_junk),
            "values": (st.booleans(), plain_junk),
        },
    ),
    "t5": (
        wn.T5,
        {
            "num_heads": (size(6), huge_junk),
            "num_buckets": (size(), huge_junk),
            "max_distance": (size(300), huge_junk),
            "bidirectional": (st.booleans(), plain_junk),
            "scaled": (st.booleans(), plain_junk),
        },
    ),
    "alibi": (wn.ALiBi, {"num_heads": (size(), plain_junk)}),
    "rope": (
        wn.RoPE,
        {
            "head_dim": (size(), plain_junk),
            "base": (bases, huge_junk),
            "pairing": (pairings, plain_junk),
            "rotary_dim": (st.none() | size(), huge_junk),
            "rotary_side": (st.sampled_from(["leading", "trailing"]), plain_junk),
        },
    ),
    "axial_rope": (
        wn.AxialRoPE,
        {
            "head_dim": (st.sampled_from([8, 12, 24]), plain_junk),
            "num_axes": (size(4), huge_junk),
            "base": (bases, huge_junk),
            "pairing": (pairings, plain_junk),
            "layout": (
                st.sampled_from(["blocks", "heads", "alternating", "shared_blocks"]),
                plain_junk,
            ),
            "axis_dims": (
                st.none() | st.sampled_from([(4, 4), [2, 6], (4, 4, 4), (12, 6, 6)]),
                huge_junk,
            ),
            "axis_order": (st.none() | st.sampled_from([(1, 0), [2, 0, 1]]), huge_junk),
            "scale": (bases | st.just((2.0, 0.5)), huge_junk),
            "offset": (st.sampled_from([0.0, -3, (1.0, 2.0)]), huge_junk),
            "rotary_dim": (st.none() | st.sampled_from([4, 8, 12]), huge_junk),
        },
    ),
    "mixed_rope": (
        wn.MixedRoPE,
        {
            "head_dim": (st.sampled_from([8, 12, 24]), plain_junk),
            "num_heads": (st.sampled_from([4, 6]), plain_junk),
            "num_axes": (size(4), huge_junk),
            "base": (bases, huge_junk),
            "pairing": (pairings, plain_junk),
            "num_kv_heads": (st.none() | size(6), plain_junk),
        },
    ),
    "multimodal_rope": (
        wn.MultimodalRoPE,
        {
            "head_dim": (st.sampled_from([8, 12, 24]), plain_junk),
            "sections": (
                st.none() | st.sampled_from([(2, 1, 1), [4, 4, 4], (3, 3)]),
                huge_junk,
            ),
            "order": (st.sampled_from(["chunked", "interleaved", "ernie"]), plain_junk),
            "base": (bases, huge_junk),
            "pairing": (pairings, plain_junk),
            "rotary_dim": (st.none() | st.sampled_from([6, 8, 12]), huge_junk),
        },
    ),
    "dinov3_rope": (
        wn.DINOv3RoPE,
        {
            "head_dim": (st.sampled_from([8, 12, 24]), plain_junk),
            "num_axes": (size(3), huge_junk),
            "base": (bases, huge_junk),
            "normalise": (st.sampled_from(["separate", "max", "min"]), plain_junk),
            "shift": (st.none() | st.sampled_from([0, 0.5]), huge_junk),
            "jitter": (st.none() | st.sampled_from([1, 1.5]), huge_junk),
            "rescale": (st.none() | st.sampled_from([1, 2.0]), huge_junk),
        },
    ),
}


SWITCHES = ("gray", "values", "bidirectional", "scaled")


def drawn_options(data: st.DataObject, options: dict[str, Option]) -> dict[str, Any]:
    """Each option good, bad or left out; mostly good, so that bad ones are met alone too."""
    found = {}
    for name, (good, junk) in options.items():
        kind = data.draw(st.sampled_from(["good"] * 5 + ["bad", "left out"]), f"kind of {name}")
        if kind != "left out":
            found[name] = data.draw(good if kind == "good" else junk, name)
    return found


def used(made: wn.PositionalEncoding, name: str) -> None:
    """One ordinary call; whatever was accepted must work."""
    ids = torch.zeros(3, dtype=torch.int64)
    if made.num_axes > 1:
        ids = torch.zeros(3, made.num_axes, dtype=torch.int64)
    if name in ("integer", "binary", "sinusoidal", "learned"):
        out = made(ids)
        assert out.shape == (3, made.dim) and out.dtype == torch.float32
    elif name.endswith("rope"):
        x = torch.ones(2, made.num_heads or 1, 3, made.head_dim)
        out = made.rotate(x, ids + (0.5 if name == "dinov3_rope" else 1000))
        assert out.shape == x.shape and out.dtype == x.dtype
    elif name == "shaw":
        out = made.index(ids, ids + 2)
        assert out.shape == (3, 3)
    else:
        multiplies = name == "relative" and made.operation == "multiply"
        call = made.factor if multiplies else made.bias
        out = call(ids, ids)
        assert out.shape == (made.num_heads, 3, 3) and out.dtype == torch.float32
    assert out.isfinite().all(), f"{made}: {out}"


@pytest.mark.parametrize("name", OPTIONS)
@searched
@given(st.data())
def test_options(name, data):
    made_of, options = OPTIONS[name]
    chosen = drawn_options(data, options)
    if any(o not in chosen for o in ("dim", "head_dim", "num_heads") if o in options):
        chosen.setdefault(next(iter(options)), 8)
    if name == "mixed_rope":
        chosen.setdefault("num_heads", 4)
    if "num_positions" in options or "max_distance" in options:
        chosen.setdefault("num_positions" if "num_positions" in options else "max_distance", 40)
    made = answered(lambda: made_of(**chosen))
    if made is None:
        return
    used(made, name)
    for option, value in chosen.items():  # True is not the number 1
        assert isinstance(value, bool) == (option in SWITCHES), (option, value)


@pytest.mark.parametrize("base", [5e-324, 1e-320, 1e-300, 1e-100])
@pytest.mark.parametrize(
    "made_of",
    [
        lambda base: wn.RoPE(64, base),
        lambda base: wn.AxialRoPE(64, 1, base),
        lambda base: wn.Sinusoidal(64, base),
        lambda base: wn.Sinusoidal(4, base, exponent="dim-2"),
    ],
)
def test_bases_whose_frequencies_overflow(made_of, base):
    """Refused, or finite at every position that is taken."""
    made = answered(lambda: made_of(base))
    if made is None:
        return
    far = torch.tensor([2**53, -(2**53), 7])
    if isinstance(made, wn.Sinusoidal):
        found = answered(lambda: made(far))
    else:
        found = answered(lambda: made.rotate(torch.ones(1, 1, 3, 64), far))
    assert found is None or found.isfinite().all()


TOO_LARGE = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (40, 40))
import whereness as wn
for made in (
    lambda: wn.ALiBi(2**63),
    lambda: wn.Sinusoidal(2**63),
    lambda: wn.RoPE(2**63),
    lambda: wn.RoPE(2**63, rotary_dim=2**63),
    lambda: wn.AxialRoPE(2**63, 1),
):
    try:
        made()
    except ValueError as error:
        assert str(2**63) in str(error), error
    else:
        raise SystemExit("accepted")
"""


def test_sizes_that_no_machine_has():
    """A list of 2^62 frequencies takes all memory. In a process of its own, with little."""
    command = [sys.executable, "-c", TOO_LARGE]
    found = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert found.returncode == 0, found.stderr[-500:]


@searched
@given(st.data())
def test_sizes_of_a_resized_table(data):
    grid = data.draw(st.lists(size(3), min_size=1, max_size=4), "grid")
    made = wn.LearnedAbsolute(3, grid, 1, 1)
    new = data.draw(
        st.lists(size(4), min_size=len(grid), max_size=len(grid)) | size(5) | plain_junk, "new"
    )
    if data.draw(st.booleans(), "extend"):
        fill = data.draw(st.sampled_from(["fresh", "repeat"]) | plain_junk, "fill")
        found = answered(lambda: made.extended(new, fill))
    else:
        mode = data.draw(st.sampled_from(["auto", "nearest"]) | plain_junk, "mode")
        antialias = data.draw(st.booleans() | plain_junk, "antialias")
        found = answered(lambda: made.resized(new, mode, antialias))
    if found is not None:
        wanted = tuple(new) if isinstance(new, list) else (new,)
        assert found.grid == wanted
        assert found.table.shape == (math.prod(wanted) + 2, 3)
        assert found.table.isfinite().all()


# Positions

WHOLE = (
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)
REAL = (torch.float32, torch.float64)
REFUSED = (
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.bool,
    torch.complex64,
)
EDGES = [
    wn.NOWHERE,
    wn.NOWHERE + 1,
    -(2**62) - 1,
    2**62,
    2**63 - 1,
    2**64 - 1,
    2**53 + 1,
    2**32,
    2**31 - 1,
    2**24 + 1,
    -1,
]
REAL_EDGES = [math.nan, math.inf, -math.inf, 1.7e308, -1.7e308, 3e38, -3e38, 1e39, 5e-324, -0.0]


@st.composite
def positions(draw: st.DrawFn, dims: st.SearchStrategy[int], last: int | None = None) -> Tensor:
    """Any dtype, shape and value. `last`: often the length of the last axis."""
    dtype = draw(st.sampled_from([torch.int64] * 8 + [*WHOLE, *REAL * 3, *REFUSED]))
    shape = [draw(st.integers(0, 3)) for _ in range(draw(dims))]
    if last is not None and shape and draw(st.integers(0, 3)):
        shape[-1] = last
    if dtype in WHOLE:
        ends = torch.iinfo(dtype)
        fits = [e for e in (*EDGES, ends.min, ends.max) if ends.min <= e <= ends.max]
        entry = st.integers(max(-3, ends.min), 40) | st.sampled_from(fits)
        numpy_type = str(dtype).removeprefix("torch.")
    else:
        entry = st.floats(-50, 50, width=16) | st.sampled_from(REAL_EDGES)
        numpy_type = "float64"
    if not draw(st.integers(0, 2)):
        entry = st.integers(0, 9)  # nothing wrong with the values
    count = math.prod(shape)
    entries = draw(st.lists(entry, min_size=count, max_size=count))
    made = torch.from_numpy(np.array(entries, dtype=numpy_type).reshape(shape))
    if dtype not in WHOLE:
        made = made.to(dtype)
    if len(shape) > 1 and draw(st.booleans()):
        made = made.mT.contiguous().mT  # the same numbers, not contiguous
    if made.is_floating_point() and dtype in REAL and draw(st.booleans()):
        made.requires_grad_()
    return made


def listed(made: Tensor) -> list:
    """All entries as Python numbers, None for a token without a place."""
    numbers = made.detach().numpy().ravel().tolist()
    return [None if n == wn.NOWHERE or math.isnan(n) else n for n in numbers]


def is_close(found: float, exact: Fraction | float, relative: float, absolute: float) -> bool:
    return abs(Fraction(found) - Fraction(exact)) <= Fraction(relative) * abs(
        Fraction(exact)
    ) + Fraction(absolute)


SINES = wn.Sinusoidal(6, 50.0)
TABLE = wn.LearnedAbsolute(3, 10)
ROWS = {
    "integer": wn.Integer(2),
    "normalised": wn.Integer(2, 512),
    "binary": wn.Binary(7, 6),
    "wide binary": wn.Binary(53, 53),
    "gray": wn.Binary(7, 6, gray=True),
    "sinusoidal": SINES,
    "learned": TABLE,
}


def right_row(name: str, p: float, row: list[float]) -> bool:
    made = ROWS[name]
    if name in ("integer", "normalised"):
        return all(is_close(v, Fraction(p) / (made.length or 1), 2**-23, 2**-149) for v in row)
    if name == "learned":
        return row == TABLE.table[int(p)].tolist()
    if name == "sinusoidal":
        if abs(p) > EXACT_BELOW:
            return all(-1 <= v <= 1 for v in row)
        angles = [p * 50.0 ** (-2 * k / 6) for k in range(3)]
        exact = [f(a) for a in angles for f in (math.sin, math.cos)]
        return all(is_close(v, e, 0, 2**-24) for v, e in zip(row, exact, strict=True))
    code = int(p) ^ (int(p) >> 1) if made.gray else int(p)
    bits = [c * made.num_bits // made.dim for c in range(made.dim)]
    return 0 <= p < 2**made.num_bits and row == [code >> b & 1 for b in bits]


@pytest.mark.parametrize("name", ROWS)
@searched
@given(given_positions=positions(st.integers(0, 4)))
def test_positions_of_rows(name, given_positions):
    made = ROWS[name]
    before = given_positions.detach().clone()
    rows = answered(lambda: made(given_positions))
    if given_positions.dtype not in REFUSED:
        np.testing.assert_array_equal(given_positions.detach(), before)
    if rows is None:
        return
    assert given_positions.dtype not in REFUSED
    assert rows.shape == (*given_positions.shape, made.dim) and rows.dtype == torch.float32
    for p, row in zip(listed(given_positions), rows.flatten(0, -2).tolist(), strict=True):
        assert row == [0.0] * made.dim if p is None else right_row(name, p, row), (p, row)


@pytest.mark.parametrize("num_axes", [2, 3])
@searched
@given(st.data())
def test_positions_of_a_grid(num_axes, data):
    given_positions = data.draw(positions(st.integers(0, 4), num_axes))
    made = wn.LearnedAbsolute(3, (10,) * num_axes, num_prefix=1)
    rows = answered(lambda: made(given_positions))
    if rows is None:
        return
    assert given_positions.dtype in WHOLE
    assert rows.shape == (*given_positions.shape[:-1], 3)
    cells = given_positions.reshape(-1, num_axes).tolist()
    found = rows.reshape(-1, 3).tolist()
    for cell, row in zip(cells, found, strict=True):
        if wn.NOWHERE in cell:
            assert row in ([0.0] * 3, made.table[0].tolist())
        else:
            index = int(np.ravel_multi_index(cell, made.grid)) + 1
            assert row == made.table[index].tolist()


RELATIVE = {
    "alibi": wn.ALiBi(3),
    "t5": wn.T5(3),
    "t5 both": wn.T5(3, bidirectional=True),
    "clip": wn.LearnedRelative(3, 4),
    "raise": wn.LearnedRelative(3, 60, beyond="raise"),
    "multiply": wn.LearnedRelative(3, 4, "multiply"),
    "shaw": wn.Shaw(2, 4),
}
for _made in RELATIVE.values():
    for _table in _made.parameters():
        torch.nn.init.normal_(_table, generator=torch.Generator().manual_seed(0))


def bucket(n: int, both: bool) -> int:
    side, ahead = (16, 16 if n > 0 else 0) if both else (32, 0)
    distance = abs(n) if both else max(-n, 0)
    if distance < side // 2:
        return ahead + distance
    steps = math.log(distance / (side // 2)) / math.log(128 / (side // 2)) * (side // 2)
    return ahead + min(side // 2 + math.floor(steps), side - 1)


def right_bias(name: str, q: float | None, k: float | None, found: list) -> bool:
    """One entry of the bias, (H,), or the row of Shaw's table."""
    made = RELATIVE[name]
    if name == "shaw":
        return q is None or k is None or found == min(max(k - q, -4), 4) + 4
    if q is None or k is None:
        return found == [made.at_nowhere] * 3
    if name == "alibi":
        far = abs(Fraction(k) - Fraction(q))
        # H = 3: 2^-4, 2^-8, then the odd one 2^-2. Real offsets may be rounded to float32 before.
        return all(
            is_close(v, -far * Fraction(s), 2**-23, 2**-149)
            for v, s in zip(found, (2**-4, 2**-8, 2**-2), strict=True)
        )
    if name.startswith("t5"):
        return found == made.table[bucket(k - q, made.bidirectional)].tolist()
    reach = made.max_distance
    if name == "raise" and abs(k - q) > reach:
        return False
    return found == made.table[min(max(k - q, -reach), reach) + reach].tolist()


@pytest.mark.parametrize("name", RELATIVE)
@searched
@given(q=positions(st.sampled_from([1, 1, 1, 2, 2, 0, 3])), data=st.data())
def test_positions_of_queries_and_keys(name, q, data):
    made = RELATIVE[name]
    k = data.draw(positions(st.just(q.dim()) | st.integers(0, 3)), "k")
    if name == "shaw":
        found = answered(lambda: made.index(q, k))
    else:
        found = answered(lambda: (made.factor if name == "multiply" else made.bias)(q, k))
    if found is None:
        return
    assert q.dtype not in REFUSED and k.dtype not in REFUSED
    if name != "alibi":
        assert q.dtype in WHOLE and k.dtype in WHOLE
    leading = torch.broadcast_shapes(q.shape[:-1], k.shape[:-1])
    queries, keys = q.shape[-1], k.shape[-1]
    if name == "shaw":
        assert found.shape == (*leading, queries, keys)
    else:
        assert found.shape == (*leading, 3, queries, keys) and found.dtype == torch.float32
        found = found.movedim(-3, -1)
    entries = found.detach().flatten(0, -1 - (name != "shaw")).tolist() if found.numel() else []
    qs = torch.tensor(range(q.numel())).view(q.shape)[..., :, None].expand(*leading, queries, keys)
    ks = torch.tensor(range(k.numel())).view(k.shape)[..., None, :].expand(*leading, queries, keys)
    all_q, all_k = listed(q), listed(k)
    for i, j, entry in zip(qs.flatten().tolist(), ks.flatten().tolist(), entries, strict=False):
        assert right_bias(name, all_q[i], all_k[j], entry), (all_q[i], all_k[j], entry)


ROTARY = {
    "rope": wn.RoPE(4),
    "partial": wn.RoPE(6, 3.0, "interleaved", 4, "trailing"),
    "axial 1": wn.AxialRoPE(4, 1),
    "axial 2": wn.AxialRoPE(8, 2),
    "heads 2": wn.AxialRoPE(8, 2, layout="heads"),
}


def turned_by_hand(name: str, x: list[float], cell: list) -> list[float] | None:
    """One token; None where the position is beyond the range that angles are promised for."""
    made = ROTARY[name]
    if None in cell:
        return x
    if any(abs(p) > EXACT_BELOW for p in cell):
        return None
    if name == "partial":
        pairs = [((2, 3), cell[0]), ((4, 5), cell[0] * 3.0**-0.5)]
    elif made.num_axes == 1:
        pairs = [((0, 2), cell[0]), ((1, 3), cell[0] * 0.01)]
    else:
        turns = [cell[0], cell[0] * 0.01, cell[1], cell[1] * 0.01]
        channels = {
            "axial 2": [(0, 4), (1, 5), (2, 6), (3, 7)],
            "heads 2": [(0, 2), (1, 3), (4, 6), (5, 7)],
        }[name]
        pairs = list(zip(channels, turns, strict=True))
    out = list(x)
    for (i, j), angle in pairs:
        z = complex(x[i], x[j]) * complex(math.cos(angle), math.sin(angle))
        out[i], out[j] = z.real, z.imag
    return out


@pytest.mark.parametrize("name", ROTARY)
@searched
@given(st.data())
def test_positions_of_turned_tokens(name, data):
    made = ROTARY[name]
    several = made.num_axes > 1
    dims = st.sampled_from([1, 2, 3, 4, 0]) if several else st.sampled_from([1, 1, 2, 2, 3, 0])
    where = data.draw(positions(dims, made.num_axes if several else None), "where")
    # Tokens that the positions fit, if any do.
    shape = tuple(where.shape[:-1] if several or where.dim() == 3 else where.shape)
    batch, length = {1: (2, *shape), 2: shape}.get(len(shape), (1, 2))
    layout = data.draw(st.sampled_from(["bhsd", "bshd", "thd"]), "layout")
    sizes = {"bhsd": (batch, 2, length), "bshd": (batch, length, 2), "thd": (length, 2)}[layout]
    x = torch.arange(1.0, 1 + math.prod(sizes) * made.head_dim, dtype=torch.float64)
    x = (x % 7 - 3).view(*sizes, made.head_dim)
    inverse = data.draw(st.booleans(), "inverse")
    out = answered(lambda: made.rotate(x, where, inverse=inverse, layout=layout))
    if out is None:
        return
    assert where.dtype not in REFUSED
    assert out.shape == x.shape and out.dtype == x.dtype
    heads_first = {
        "bhsd": lambda t: t,
        "bshd": lambda t: t.transpose(1, 2),
        "thd": lambda t: t.transpose(0, 1)[None],
    }[layout]
    if not x.numel():
        return
    x, out = heads_first(x), heads_first(out.detach())
    cells = np.array(listed(where), dtype=object).reshape(-1, length, made.num_axes)
    for b, h, s in np.ndindex(*x.shape[:3]):
        cell = cells[b % len(cells), s].tolist()
        signed = [p if p is None or not inverse else -p for p in cell]
        expected = turned_by_hand(name, x[b, h, s].tolist(), signed)
        if expected is None:
            assert math.isclose(out[b, h, s].norm(), x[b, h, s].norm(), rel_tol=1e-12)
        else:
            widest = 1 + max((abs(p) for p in cell if p is not None), default=0)
            np.testing.assert_allclose(out[b, h, s], expected, rtol=0, atol=widest * 2.0**-47)


@pytest.mark.parametrize("start", [2**53, 2**60, -(2**61)])
@pytest.mark.parametrize("name", ["sinusoidal", *ROTARY])
def test_positions_that_float64_cannot_tell_apart(name, start):
    """Refused, or turned by angles that differ: one token further is never the same place."""
    made = {**ROWS, **ROTARY}[name]
    ids = torch.tensor([start, start + 1])
    if made.num_axes > 1:
        ids = torch.stack([ids, ids], -1)
    if name == "sinusoidal":
        found = answered(lambda: made(ids))
    else:
        x = torch.ones(1, 1, 2, made.head_dim, dtype=torch.float64)
        found = answered(lambda: made.rotate(x, ids)[0, 0])
    assert found is None or not torch.equal(found[0], found[1])


ALL = {**ROWS, **RELATIVE, **ROTARY}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("given_positions", [None, 3, [0, 1], (0, 1), "01", np.arange(2)], ids=str)
def test_positions_that_are_no_tensor(name, given_positions):
    made = ALL[name]
    calls = [lambda: made.prepare(given_positions), lambda: wn.Where(given_positions, [0])]
    if name in ROWS:
        calls.append(lambda: made(given_positions))
    elif name == "shaw":
        calls.append(lambda: made.index(given_positions, torch.arange(2)))
    elif name == "multiply":
        calls.append(lambda: made.factor(torch.arange(2), given_positions))
    elif name in RELATIVE:
        calls.append(lambda: made.bias(given_positions, torch.arange(2)))
    elif given_positions is not None:  # None means counted from 0 there
        calls.append(lambda: made.rotate(torch.ones(1, 1, 2, made.head_dim), given_positions))
    for call in calls:
        assert answered(call) is None


@pytest.mark.parametrize("name", ALL)
def test_positions_on_another_device(name):
    """There they are computed, or refused with both devices named; parameters stay here."""
    made = ALL[name]
    ids = torch.zeros(2, made.num_axes, dtype=torch.int64, device="meta")
    ids = ids[:, 0] if made.num_axes == 1 else ids
    here = ids.new_zeros(ids.shape, device="cpu")

    def call() -> Tensor:
        if name in ROWS:
            return made(ids)
        if name == "shaw":
            return made.index(ids, ids)
        if name in RELATIVE:
            return (made.factor if name == "multiply" else made.bias)(ids, ids)
        return made.rotate(torch.ones(1, 1, 2, made.head_dim), ids)

    found = answered(call)
    assert found is None or found.device.type == "meta"
    if name in RELATIVE:
        read = made.index if name == "shaw" else made.factor if name == "multiply" else made.bias
        assert answered(lambda: read(ids, here)) is None
        assert answered(lambda: read(here, ids)) is None
    elif name in ROTARY:
        x = torch.ones(1, 1, 2, made.head_dim, device="meta")
        assert answered(lambda: made.rotate(x, here)) is None


# What a Where is made of


@searched
@given(st.data())
def test_parts_of_a_where(data):
    """What Where accepts has one batch size and fitting lengths."""
    num_axes = data.draw(st.sampled_from([1, 1, 1, 2]) | plain_junk, "num_axes")
    part = positions(st.sampled_from([1, 2, 2, 3]))
    given_parts = {
        name: data.draw(st.none() | part, name)
        for name in ("positions", "k_positions", "segments", "k_segments", "key_mask")
        if data.draw(st.booleans(), f"has {name}")
    }
    if data.draw(st.booleans(), "has lengths"):
        given_parts["lengths"] = data.draw(part | huge_junk, "lengths")
    where = answered(lambda: wn.Where(**given_parts, num_axes=num_axes))
    if where is None:
        return
    batches = set()
    for name in given_parts:
        value = getattr(where, name)
        if value is not None:
            assert value.dim() == 2 + (num_axes > 1 and name.endswith("positions"))
            batches.add(value.shape[0])
    assert len(batches - {1}) <= 1
    keys = where.k_positions if where.k_positions is not None else where.positions
    for name, other in (("segments", where.positions), ("key_mask", keys), ("k_segments", keys)):
        value = getattr(where, name)
        if value is not None and other is not None:
            assert value.shape[1] == other.shape[1]
    for name in ("positions", "segments", "lengths"):  # no wrap on the way to int64
        if isinstance(given_parts.get(name), Tensor) and not given_parts[name].is_floating_point():
            assert listed(getattr(where, name)) == listed(given_parts[name])


def test_a_shift_beyond_64_bits_does_not_wrap():
    for start in (2**63 - 2, -(2**63) + 2, 2**62 - 1, 7):
        for offset in (5, -5, 2**63 - 1, 2**62, FAR, -FAR, 10**30):
            ids = torch.tensor([start, wn.NOWHERE])
            moved = answered(lambda i=ids, o=offset: wn.Where(i).shifted(o))
            if moved is not None:
                assert moved.positions.tolist() == [[start + offset, wn.NOWHERE]]


# Tensors


@st.composite
def tensors(draw: st.DrawFn, good: tuple[int, ...], dtype: torch.dtype | None = None) -> Any:
    """Mostly of shape `good`; else another rank or width, an odd dtype, or no tensor at all."""
    shape = list(good)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2]))):
        change = draw(st.sampled_from(["longer", "shorter", "other size"]))
        if change == "longer":
            shape.insert(draw(st.integers(0, len(shape))), draw(st.integers(0, 2)))
        elif change == "shorter" and shape:
            shape.pop(draw(st.integers(0, len(shape) - 1)))
        elif shape:
            shape[draw(st.integers(0, len(shape) - 1))] = draw(st.integers(0, 5))
    kinds = [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64]
    usual = torch.float32 if dtype is None else dtype
    made = torch.arange(float(math.prod(shape))).remainder(5).sub(2).view(shape)
    made = made.to(draw(st.sampled_from([usual] * 6 + kinds)))
    form = draw(st.sampled_from(["plain"] * 4 + ["strided", "expanded", "grad", "leaf", "other"]))
    if form == "strided" and made.dim() > 1:
        made = made.mT.contiguous().mT
    elif form == "expanded" and made.dim():
        made = made[:1].expand(shape) if shape[0] else made
    elif form in ("grad", "leaf") and made.is_floating_point():
        made = made.requires_grad_()
        made = made * 1.0 if form == "grad" else made
    elif form == "other":
        return draw(st.sampled_from([None, 3.0, [1.0], np.ones(good, dtype=np.float32), "x"]))
    return made


@pytest.mark.parametrize("name", ROTARY)
@pytest.mark.parametrize("call", ["forward", "rotate", "rotate_"])
@searched
@given(st.data())
def test_tensors_that_turn(name, call, data):
    made = ROTARY[name]
    layout = data.draw(st.sampled_from(["bhsd", "bshd", "thd"]) | plain_junk, "layout")
    sizes = {"bshd": (2, 3, 4), "thd": (3, 4)}
    good = (*sizes.get(layout if isinstance(layout, str) else "", (2, 4, 3)), made.head_dim)
    x = data.draw(tensors(good), "x")
    ids = torch.tensor([[0, 5], [1, 2], [7, 1]]) if made.num_axes > 1 else torch.tensor([0, 1, 7])
    where = data.draw(st.sampled_from([ids, ids.double(), wn.Where(ids, num_axes=made.num_axes)]))
    options = {"layout": layout}
    if call == "forward":
        k = data.draw(tensors(good), "k")
        found = answered(lambda: made(x, k, where, **options))
        if found is not None:
            for given_tensor, out in zip((x, k), found, strict=True):
                fits(given_tensor, out)
        return
    options["inverse"] = data.draw(st.booleans() | plain_junk, "inverse")
    before = x.detach().clone() if isinstance(x, Tensor) else None
    rotate = getattr(made, call)
    found = answered(lambda: rotate(x, where, **options))
    if found is None:
        assert before is None or torch.equal(x.detach(), before), "changed, and then refused"
        return
    assert isinstance(options["inverse"], bool)
    fits(x, found)
    if call == "rotate_":
        assert found is x


def fits(x: Tensor, out: Tensor) -> None:
    assert x.is_floating_point()
    assert out.shape == x.shape and out.dtype == x.dtype and out.isfinite().all()
    assert out.requires_grad == x.requires_grad


JOINED = {
    "integer": lambda **o: wn.Integer(6, 10, **o),
    "binary": lambda **o: wn.Binary(6, **o),
    "sinusoidal": lambda **o: wn.Sinusoidal(6, **o),
    "learned": lambda **o: wn.LearnedAbsolute(6, 9, 1, **o),
}


@pytest.mark.parametrize("name", JOINED)
@pytest.mark.parametrize("site", ["tokens", "every_layer", "queries_keys"])
@searched
@given(st.data())
def test_tensors_that_rows_join(name, site, data):
    made = JOINED[name](site=site, join=data.draw(joins, "join"))
    ids = data.draw(st.sampled_from([torch.arange(3), torch.tensor([[0, 1, 2], [2, 2, 1]])]), "ids")
    x = data.draw(tensors((2, 3, 6)), "x")
    at = made.prepare(ids)
    if site == "tokens":
        outs = answered(lambda: (made.tokens(x, at),))
    else:
        context = data.draw(st.just(x) | tensors((2, 3, 6)), "context")
        outs = answered(lambda: made.inputs(x, context, at))
    sources = (x,) if site == "tokens" else (x, context, context)
    for out, source in zip(outs or (), sources, strict=outs is not None):
        assert source.is_floating_point()
        assert out.dtype == source.dtype and out.shape[:-1] == source.shape[:-1]
        assert out.shape[-1] in (source.shape[-1], made.width(source.shape[-1]))
        assert out.isfinite().all()


@pytest.mark.parametrize("name", JOINED)
@searched
@given(st.data())
def test_tensors_of_a_layer_with_rows(name, data):
    made = JOINED[name](site="queries_keys")
    layer = wn.Attention(6, 2, made)
    x = data.draw(tensors((2, 3, 6)), "x")
    if isinstance(x, Tensor) and x.is_floating_point():
        x = x.float()  # the layer's own type: another one is between torch.nn.Linear and the user
    where = data.draw(st.sampled_from([None, torch.arange(3), wn.Where(torch.arange(3))]), "where")
    out = answered(lambda: layer(x, where=where))
    if out is not None:
        assert x.is_floating_point() and out.shape == x.shape and out.isfinite().all()


SCORED: dict[str, wn.PositionalEncoding] = {
    **{n: e for n, e in RELATIVE.items() if n != "raise"},
    "rope": wn.RoPE(2),
    "shaw keys": wn.Shaw(2, 4, values=False),
}


@pytest.mark.parametrize("name", SCORED)
@searched
@given(st.data())
def test_tensors_of_attention(name, data):
    made = SCORED[name]
    heads = made.num_heads or 3
    q = data.draw(tensors((2, heads, 3, 2)), "q")
    k = data.draw(tensors((2, heads, 3, 2)), "k")
    v = data.draw(tensors((2, heads, 3, 2)), "v")
    causal = data.draw(st.sampled_from([True, True, False]), "causal")
    where = data.draw(st.sampled_from([None, torch.arange(3), torch.tensor([[0, 9, 2]] * 2)]))
    out = answered(lambda: wn.attention(q, k, v, made, where=where, causal=causal))
    if out is None:
        return
    assert all(t.is_floating_point() for t in (q, k, v))
    assert out.shape == (*q.shape[:3], v.shape[-1]) and out.dtype == q.dtype
    assert out.isfinite().all()


@pytest.mark.parametrize("name", SCORED)
@pytest.mark.parametrize("causal", [True, False])
def test_no_tokens_at_all(name, causal):
    """Nothing in, nothing out: a row of a batch may be finished."""
    made = SCORED[name]
    if made.causal_only and not causal:
        return
    heads = made.num_heads or 3
    k = torch.ones(2, heads, 3, 2)
    for batch, queries in ((2, 0), (0, 3)):
        q = torch.ones(batch, heads, queries, 2)
        for where in (None, wn.Where(torch.arange(queries), torch.arange(3))):
            if where is None and not causal and queries != 3:
                continue  # ambiguous: refused
            out = answered(
                lambda q=q, w=where, b=batch: wn.attention(
                    q, k[:b], k[:b], made, where=w, causal=causal
                )
            )
            assert out is not None and out.shape == q.shape
    empty = torch.ones(2, heads, 0, 2)
    assert answered(lambda: wn.attention(empty, empty, empty, made, causal=causal)) is None
