"""Every golden value whose encoding exists, at the tolerance that the file gives.

`data/golden.json` holds closed forms evaluated with mpmath, published tables and the outputs of
other people's code. A value has two tolerances: one for a float64 path, one for what a public call
returns in float32. Both paths are tested where both exist.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import whereness as wn
from zoo import CoPE, DeBERTa, FoX, PaTH, PoPE

GOLDEN = json.loads((Path(__file__).parent / "data/golden.json").read_text(encoding="utf-8"))
VALUES = GOLDEN["values"]

# Measured by the functions of whereness.properties and tested with them.
PROPERTIES = ("first_negative_offset", "unfinished_pairs", "decay_bound")

# (exact, value): `exact` says that the value was computed in float64.
Got = Iterator[tuple[bool, object]]
BOTH = ((True, torch.float64), (False, torch.float32))


def sinusoidal(value: dict) -> wn.Sinusoidal:
    return wn.Sinusoidal(**value["options"])


def positions_of(value: dict) -> torch.Tensor:
    """Integers where all of them are, else float64."""
    return torch.tensor(value["input"]["positions"], dtype=dtype_of(value["input"]["positions"]))


def dtype_of(numbers: list) -> torch.dtype:
    return torch.float64 if np.array(numbers).dtype.kind == "f" else torch.int64


def rows(encoding: Callable[..., torch.nn.Module]) -> Callable[[dict], Got]:
    def measure(value: dict) -> Got:
        made = encoding(**value["options"])
        narrow = made(positions_of(value))
        assert narrow.dtype == torch.float32
        yield False, narrow
        wide = made.rows(positions_of(value))
        if wide.dtype == torch.float64:
            yield True, wide

    return measure


def dot_products(value: dict) -> Got:
    query = value["input"]["query_position"]
    offsets = torch.tensor(value["input"]["offsets"])
    for order in ("interleaved", "sin_cos", "cos_sin"):
        made = wn.Sinusoidal(**value["options"], order=order)
        for exact, read in ((True, made.rows), (False, made)):
            # Summed in float64: the tolerance is that of the rows.
            keys, row = read(query + offsets).double(), read(torch.tensor([query])).double()
            yield exact, keys @ row[0]


def shift_matrix(value: dict) -> Got:
    """The one matrix that takes every row to the row `offset` later, found from 40 rows."""
    positions = torch.arange(-20, 20) * 37
    made = sinusoidal(value)
    before, after = (made.rows(positions + n) for n in (0, value["input"]["offset"]))
    yield True, torch.linalg.lstsq(before, after).solution.T


def longest_wavelength(value: dict) -> Got:
    yield True, 2 * math.pi / sinusoidal(value).frequencies.min()


def scaling_of(options: dict, pairs: int) -> wn.scaling.Scaling:
    """A scaling from the file's form; what a value does not depend on is filled in."""
    given = {**options}
    if "scaling" in given:
        given["scaling"] = scaling_of(given["scaling"], pairs)
    kind = given.pop("type")
    if kind == "LongRoPE":
        given = {"short_factor": [1.0] * pairs, "long_factor": [2.0] * pairs, **given}
    elif kind == "YaRN":
        given = {"factor": 2.0, **given}
    return getattr(wn.scaling, kind)(**given)


def rope_of(value: dict) -> wn.RoPE:
    options = {**value["options"]}
    if "scaling" in options:
        options["scaling"] = scaling_of(options["scaling"], options["head_dim"] // 2)
    return wn.RoPE(**options)


def rope_frequencies(value: dict) -> Got:
    rope, length = rope_of(value), value["input"].get("length")
    yield True, rope.frequencies if length is None else rope.frequencies_at(length)
    if length is None:
        yield True, rope.frequencies_at(1_000_000)
    # The same from the angles of a forward pass, at position 1 of a sequence so long.
    where = wn.Where(torch.tensor([1]), lengths=length or 1)
    turned = rope.exactly(rope.prepare(where).data.queries)
    yield True, torch.atan2(turned.sin, turned.cos)[0, 0, 0]


def equivalent_base(value: dict) -> Got:
    """The base of a plain spectrum, from the frequency of the last pair."""
    rope = rope_of(value)
    slowest = rope.frequencies_at(value["input"].get("length", 1))[-1].item()
    dim = rope.rotary_dim
    yield True, slowest ** -(dim / (dim - 2))


def correction_range(value: dict) -> Got:
    plain = wn.scaling.Spectrum(value["options"]["base"], value["options"]["head_dim"])
    scaling = rope_of(value).scaling
    raw = [scaling.pair_of(plain, turns) for turns in (scaling.beta_fast, scaling.beta_slow)]
    yield True, {"raw": raw, "truncated": scaling.correction_range(plain)}


def amplitude(value: dict) -> Got:
    rope = rope_of(value)
    yield True, rope.amplitude
    turned = rope.exactly(rope.prepare(torch.tensor([5])).data.queries)
    yield True, torch.hypot(turned.cos, turned.sin).mean()


def logit_scale(value: dict) -> Got:
    yield True, rope_of(value).logit_scale(64)


def wavelengths(value: dict) -> Got:
    rounded = 2 * math.pi / rope_of(value).frequencies[value["input"]["pairs"]]
    assert rounded.sub(rounded.round()).abs().max() < 1e-13
    yield True, rounded.round()


def axial_frequencies(value: dict) -> Got:
    found = wn.AxialRoPE(**value["options"]).frequencies
    widths = value["options"].get("axis_dims", [1])
    assert isinstance(found, tuple) == (len(set(widths)) > 1)
    yield True, [f.tolist() for f in found]


def rotated(encoding: Callable[..., torch.nn.Module]) -> Callable[[dict], Got]:
    def measure(value: dict) -> Got:
        rotary = rope_of(value) if encoding is wn.RoPE else encoding(**value["options"])
        positions, inverse = positions_of(value), value["input"].get("inverse", False)
        for exact, dtype in BOTH:
            x = torch.tensor(value["input"]["x"], dtype=dtype).expand(1, 1, len(positions), -1)
            yield exact, rotary.rotate(x, positions, inverse=inverse)[0, 0]
            yield exact, rotary.rotate_(x.clone(), positions, inverse=inverse)[0, 0]
            if not inverse:
                q, k = rotary(x, x, positions)
                yield exact, q[0, 0]
                yield exact, k[0, 0]

    return measure


def mixed_directions(value: dict) -> Got:
    a = torch.tensor(value["input"]["head_angle"], dtype=torch.float64)
    cross = torch.stack([a.cos(), a.sin(), -a.sin(), a.cos()]).view(1, 2, 2)
    x, y = wn.MixedRoPE(**value["options"]).along(cross)[:, 0].tolist()
    yield True, {"x": x, "y": y}


def mixed_rotated(value: dict) -> Got:
    directions = [value["input"][f"directions_{axis}"] for axis in "xy"]
    for exact, dtype in BOTH:
        made = wn.MixedRoPE(**value["options"]).to(dtype)
        made.directions.data = torch.tensor(directions, dtype=dtype)[:, None]
        x = torch.tensor(value["input"]["x"], dtype=dtype).expand(1, 1, 2, -1)
        yield exact, made.rotate(x, positions_of(value))[0, 0]


def dinov3_periods(value: dict) -> Got:
    for axis in wn.DINOv3RoPE(**value["options"]).periods:
        yield True, axis


def dinov3_coordinates(value: dict) -> Got:
    cells = wn.DINOv3RoPE(8, **value["options"]).coordinates(*value["input"]["grid"])
    some = {"first": cells[0].tolist(), "second": cells[1].tolist(), "last": cells[-1].tolist()}
    yield True, some if isinstance(value["expected"], dict) else cells


def dinov3_angle(value: dict) -> Got:
    rope, given = wn.DINOv3RoPE(**value["options"]), value["input"]
    yield True, rope.angles(rope.coordinates(*given["grid"]))[given["token"], given["pair"]]


def dinov3_rotated(value: dict) -> Got:
    rope, given = wn.DINOv3RoPE(**value["options"]), value["input"]
    cell = rope.coordinates(*given["grid"])[given["token"], None]
    for exact, dtype in BOTH:
        x = torch.tensor(given["x"], dtype=dtype)[None, None, None]
        turned = rope.rotate(x, cell)[0, 0, 0].tolist()
        yield exact, {"angles": rope.angles(cell)[0].tolist(), "rotated": turned}


def axis_of_pair(value: dict) -> Got:
    yield True, wn.MultimodalRoPE(**value["options"]).axis_of_pair


def rope_table(part: int) -> Callable[[dict], Got]:
    """cos (part 0) or sin (part 1), read from vectors whose every pair is (1, 0)."""

    def measure(value: dict) -> Got:
        positions, pairs = positions_of(value), value["input"]["pairs"]
        for pairing in ("half", "interleaved"):
            rope = wn.RoPE(**value["options"], pairing=pairing)
            half = rope.head_dim // 2
            for _, dtype in BOTH:
                ones, zeros = torch.ones(half, dtype=dtype), torch.zeros(half, dtype=dtype)
                if pairing == "half":
                    x = torch.cat([ones, zeros])
                else:
                    x = torch.stack([ones, zeros], -1).flatten()
                turned = rope.rotate(x.expand(1, 1, len(positions), -1), positions)[0, 0]
                axis = {"half": (2, half), "interleaved": (half, 2)}[pairing]
                tables = turned.unflatten(-1, axis).movedim(-2 if pairing == "half" else -1, 0)
                # The table's tolerance, 2^-24, is that of both paths.
                yield True, tables[part][:, pairs]

    return measure


def scores_by_offset(encoding: Callable[..., wn.RoPE]) -> Callable[[dict], Got]:
    def measure(value: dict) -> Got:
        rope = encoding(**value["options"])
        offsets = torch.tensor(value["input"]["offsets"])
        for query_position in (0, 7, 500):
            for exact, dtype in BOTH:
                q, k = (
                    torch.tensor(value["input"][n], dtype=dtype).view(1, 1, 1, -1) for n in "qk"
                )
                k = k.expand(-1, -1, len(offsets), -1)
                where = wn.Where(torch.tensor([query_position]), query_position + offsets)
                q, k = rope(q, k, where)
                yield exact, (k @ q.mT)[0, 0, :, 0]

    return measure


def xpos_zeta(value: dict) -> Got:
    yield True, wn.XPos(**value["options"]).zeta


def xpos_net_factor(value: dict) -> Got:
    """Size of a query times that of a key, pair by pair: what is left of a score."""
    xpos, offset = wn.XPos(**value["options"]), value["input"]["offset"]
    for query_position in (600, 777):
        where = wn.Where(torch.tensor([query_position]), torch.tensor([query_position + offset]))
        queries, keys = map(xpos.exactly, xpos.prepare(where).data)
        yield True, (torch.hypot(*queries) * torch.hypot(*keys))[0, 0, 0]
        ones = torch.ones(1, 1, 1, xpos.head_dim)
        q, k = (x.unflatten(-1, (2, -1)).norm(dim=-2) for x in xpos(ones, ones, where))
        yield False, (q * k)[0, 0, 0] / 2


def query_scale(value: dict) -> Got:
    options = {**value["options"]}
    for theirs, ours in (("beta", "scale"), ("alpha", "scale"), ("original_length", "floor")):
        if theirs in options:
            options[ours] = options.pop(theirs)
    temperature, positions = wn.Temperature(**options), positions_of(value)
    yield True, temperature.factors(positions)
    for exact, dtype in BOTH:
        ones = torch.ones(1, 1, len(positions), 1, dtype=dtype)
        yield (
            exact,
            temperature.queries_keys(ones, ones, temperature.prepare(positions), {})[0][0, 0, :, 0],
        )


def drope_scale(value: dict) -> Got:
    made = [wn.DroPE(factor, value["options"]["c"]) for factor in value["input"]["factors"]]
    yield True, [drope.logit_scale(64) for drope in made]


def alibi_slopes(value: dict) -> Got:
    slopes = wn.ALiBi(**value["options"]).slopes
    assert slopes.dtype == torch.float32
    yield False, slopes


def alibi_bias(value: dict) -> Got:
    q, k = (torch.tensor(value["input"][n]) for n in ("q_positions", "k_positions"))
    yield False, wn.ALiBi(**value["options"]).bias(q, k)
    yield False, wn.ALiBi(**value["options"]).bias(q.double(), k.double())


def kerple_bias(value: dict) -> Got:
    options = {**value["options"]}
    given = [options.pop(name) for name in ("r1", "r2")]
    for exact, dtype in BOTH:
        made = wn.KERPLE(**options).to(dtype)
        made.r1.data, made.r2.data = (torch.tensor(g, dtype=dtype) for g in given)
        for first in (0, 1000):
            keys = first + torch.tensor(value["input"]["offsets"])
            found = made.bias(torch.tensor([first]), keys)
            assert found.dtype == dtype
            yield exact, found[:, 0]


def sandwich_bias(value: dict) -> Got:
    made, offsets = wn.Sandwich(**value["options"]), torch.tensor(value["input"]["offsets"])
    assert made.bias(torch.tensor([0]), offsets).dtype == torch.float32
    yield True, made.by_offset(offsets)
    for first in (0, 1000):
        yield False, made.bias(torch.tensor([first]), first + offsets)[:, 0]


def sandwich_sum(value: dict) -> Got:
    made = wn.Sandwich(8, **value["options"], subtract_constant=False)
    yield True, made.by_offset(torch.tensor(value["input"]["offsets"]))[0]  # the factor of head 1


def t5_buckets(value: dict) -> Got:
    given = value["input"]
    offsets = given.get("offsets") or range(given["offsets_from"], given["offsets_to"] + 1)
    offsets = torch.tensor(list(offsets))
    t5 = wn.T5(num_heads=1, **value["options"])
    yield True, t5.buckets(offsets)
    # The same through the table: a row that holds its own number.
    t5.table.data[:, 0] = torch.arange(t5.num_buckets)
    yield True, t5.bias(torch.tensor([0]), offsets)[0, 0].detach()
    yield True, t5.bias(torch.tensor([1000]), offsets + 1000)[0, 0].detach()


def shaw_index(value: dict) -> Got:
    q, k = (torch.tensor(value["input"][n]) for n in ("q_positions", "k_positions"))
    shaw = wn.Shaw(head_dim=2, **value["options"])
    yield True, shaw.index(q, k)
    # The same through attention: q picks the table's row number out of the key term.
    shaw.key_table.data[:, 0] = torch.arange(2.0 * shaw.max_distance + 1)
    spied = Spied(shaw)
    query = torch.tensor([1.0, 0.0]).expand(1, 1, len(q), 2)
    nothing = torch.zeros(1, 1, len(k), 2)
    wn.attention(query, nothing, nothing, spied, where=wn.Where(q, k), scale=1.0)
    yield True, spied.logits[0, 0].detach()


class Spied(wn.Combined):
    """Keeps the logits that attention masks: after door 4."""

    def __init__(self, encoding: wn.PositionalEncoding) -> None:
        super().__init__([encoding])

    def scores(self, logits, call):
        self.logits = super().scores(logits, call)
        return self.logits


def shaw_attention(value: dict) -> Got:
    for exact, dtype in BOTH:
        given = {n: torch.tensor(x, dtype=dtype) for n, x in value["input"].items()}
        shaw = wn.Shaw(head_dim=given["q"].shape[-1], **value["options"]).to(dtype)
        shaw.key_table.data, shaw.value_table.data = given["key_table"], given["value_table"]
        spied = Spied(shaw)
        out = wn.attention(*(given[n][None, None] for n in "qkv"), spied)
        found = {"scores": spied.logits[0, 0], "output": out[0, 0]}
        yield exact, {n: t.detach().tolist() for n, t in found.items()}


def deberta(value: dict) -> DeBERTa:
    return DeBERTa(dim=2, **value["options"])


def deberta_buckets(value: dict) -> Got:
    yield True, deberta(value).buckets(torch.tensor(value["input"]["query_minus_key"]))


def deberta_index(value: dict) -> Got:
    q, k = (torch.tensor(value["input"][n]) for n in ("q_positions", "k_positions"))
    yield True, deberta(value).index(q, k)[0]


class Projected(DeBERTa):
    """DeBERTa whose table has gone through W_q and W_k already."""

    def scores(self, logits, call):
        return super().scores(logits, replace(call, project=lambda _: self.rows))


def deberta_scores(value: dict) -> Got:
    given = {n: torch.tensor(x, dtype=torch.float64) for n, x in value["input"].items()}
    encoding = Projected(dim=2, **value["options"])
    encoding.rows = tuple(given[n][None] for n in ("position_queries", "position_keys"))
    spied = Spied(encoding)
    q, k = (given[n][None, None] for n in "qk")
    wn.attention(q, k, k, spied)
    yield True, spied.logits[0, 0]


def cope_positions(value: dict) -> Got:
    cope = CoPE(head_dim=2, num_positions=value["options"].get("num_positions", 100))
    for exact, dtype in BOTH:
        yield exact, cope.counts(torch.tensor(value["input"]["gates"], dtype=dtype))


def cope_interpolated(value: dict) -> Got:
    for exact, dtype in BOTH:
        given = (torch.tensor(value["input"][n], dtype=dtype) for n in value["input"])
        yield exact, CoPE.interpolated(*given)


def cope_scores(value: dict) -> Got:
    for exact, dtype in BOTH:
        given = {n: torch.tensor(x, dtype=dtype)[None, None] for n, x in value["input"].items()}
        cope = CoPE(head_dim=4, **value["options"])
        cope.table.data = given["table"][0, 0]
        spied = Spied(cope)
        wn.attention(given["q"], given["k"], given["k"], spied, causal=True)
        yield exact, spied.logits[0, 0]


def fox_decay(value: dict) -> Got:
    for exact, dtype in BOTH:
        gates, logits = (value["input"].get(n) for n in ("forget_gates", "gate_logits"))
        if gates is None:
            fox = FoX(dim=1, num_heads=1).to(dtype)
            fox.gate.weight.data.fill_(1.0)
            fox.gate.bias.data.fill_(0.0)
            x = torch.tensor(logits, dtype=dtype)[None, :, None]
            log_forget = fox.features(x, fox.prepare(torch.arange(len(logits))), None)["log_f"]
            yield exact, FoX.decay(log_forget[0, :, 0])
        else:
            yield exact, FoX.decay(torch.tensor(gates, dtype=dtype).log())


def path_scores(value: dict) -> Got:
    for exact, dtype in BOTH:
        given = {n: torch.tensor(value["input"][n], dtype=dtype) for n in ("q", "k", "w", "beta")}
        scores = PaTH.path_scores(*(t[None, None] for t in given.values()))
        yield exact, scores[0, 0] * value["input"]["scale"]


def pope_frequencies(value: dict) -> Got:
    yield True, PoPE(**value["options"]).frequencies


def pope_scores(value: dict) -> Got:
    offsets = torch.tensor(value["input"]["offsets"])
    for exact, dtype in BOTH:
        q, k, delta = (torch.tensor(value["input"][n], dtype=dtype) for n in ("q", "k", "delta"))
        pope = PoPE(**value["options"])
        pope.delta.data = delta[None, None]
        at = pope.prepare(wn.Where(torch.tensor([50]), 50 + offsets))
        k = k.expand(1, 1, len(offsets), -1)
        q, k = pope.queries_keys(q[None, None, None], k, at, {})
        yield exact, (k @ q.mT)[0, 0, :, 0]


MEASURES: dict[tuple[str, str], Callable[[dict], Got]] = {
    ("alibi", "bias"): alibi_bias,
    ("alibi", "slopes"): alibi_slopes,
    ("axial_rope", "frequencies"): axial_frequencies,
    ("axial_rope", "rotated"): rotated(wn.AxialRoPE),
    ("binary", "rows"): rows(wn.Binary),
    ("cope", "interpolated"): cope_interpolated,
    ("cope", "positions_from_gates"): cope_positions,
    ("cope", "scores"): cope_scores,
    ("deberta", "relative_buckets"): deberta_buckets,
    ("deberta", "scores"): deberta_scores,
    ("deberta", "table_index"): deberta_index,
    ("dinov3", "angle"): dinov3_angle,
    ("dinov3", "coordinates"): dinov3_coordinates,
    ("dinov3", "periods"): dinov3_periods,
    ("dinov3", "rotated"): dinov3_rotated,
    ("fox", "decay"): fox_decay,
    ("integer", "rows"): rows(wn.Integer),
    ("kerple", "bias_by_offset"): kerple_bias,
    ("mixed_rope", "initial_directions"): mixed_directions,
    ("mixed_rope", "rotated"): mixed_rotated,
    ("mrope", "axis_of_pair"): axis_of_pair,
    ("mrope", "rotated"): rotated(wn.MultimodalRoPE),
    ("path", "scores"): path_scores,
    ("pope", "frequencies"): pope_frequencies,
    ("pope", "scores_by_offset"): pope_scores,
    ("rope", "amplitude"): amplitude,
    ("rope", "correction_range"): correction_range,
    ("rope", "cos"): rope_table(0),
    ("rope", "equivalent_base"): equivalent_base,
    ("rope", "frequencies"): rope_frequencies,
    ("rope", "logit_scale"): logit_scale,
    ("rope", "rotated"): rotated(wn.RoPE),
    ("rope", "scores_by_offset"): scores_by_offset(wn.RoPE),
    ("rope", "sin"): rope_table(1),
    ("rope", "wavelengths"): wavelengths,
    ("sandwich", "bias_by_offset"): sandwich_bias,
    ("sandwich", "cosine_sum"): sandwich_sum,
    ("shaw", "scores_and_output"): shaw_attention,
    ("shaw", "table_index"): shaw_index,
    ("sinusoidal", "dot_products"): dot_products,
    ("sinusoidal", "longest_wavelength"): longest_wavelength,
    ("sinusoidal", "rows"): rows(wn.Sinusoidal),
    ("sinusoidal", "shift_matrix"): shift_matrix,
    ("t5", "buckets"): t5_buckets,
    ("temperature", "logit_scale"): drope_scale,
    ("temperature", "query_scale"): query_scale,
    ("xpos", "net_factor"): xpos_net_factor,
    ("xpos", "scores_by_offset"): scores_by_offset(wn.XPos),
    ("xpos", "zeta"): xpos_zeta,
}
ENCODINGS = {encoding for encoding, _ in MEASURES}


def fate(value: dict) -> str:
    """Why a value is not tested here; "here" if it is."""
    if value["quantity"].startswith("property:") or value["quantity"] in PROPERTIES:
        return "a property"
    if value["encoding"] == "randomized":
        return "a draw"  # sampled in positions/test_draws.py
    if value["encoding"] not in ENCODINGS:
        return "an encoding to come"
    return "here"


HERE = [value for value in VALUES if fate(value) == "here"]


def numbers(x: object) -> np.ndarray:
    """Any nesting of lists, tensors and null as float64; null is NaN."""
    if isinstance(x, torch.Tensor):
        return x.detach().to(torch.float64).numpy()
    return np.array(x, dtype=np.float64)


def require_close(got: object, expected: object, tolerance: float, relative: bool) -> None:
    """As the file's conventions have it; null is not compared, NaN elsewhere is an error."""
    if isinstance(expected, dict):
        assert got.keys() == expected.keys()
        for name in expected:
            require_close(got[name], expected[name], tolerance, relative)
        return
    if isinstance(expected, list) and len({np.shape(row) for row in expected}) > 1:
        assert len(got) == len(expected)
        for mine, theirs in zip(got, expected, strict=True):
            require_close(mine, theirs, tolerance, relative)
        return
    mine, theirs = numbers(got), numbers(expected)
    assert mine.shape == theirs.shape
    compared = ~np.isnan(theirs)
    error = np.abs(mine - theirs)[compared]
    allowed = tolerance * np.abs(theirs[compared]) if relative else tolerance
    worst = error.max(initial=0)
    assert (error <= allowed).all(), f"largest error {worst:g}, tolerance {tolerance:g}"


@pytest.mark.parametrize("value", HERE, ids=lambda value: value["id"])
def test_value(value):
    found = list(MEASURES[value["encoding"], value["quantity"]](value))
    assert found
    for exact, got in found:
        tolerance = value["tolerance"] if exact else value["tolerance_float32"]
        require_close(got, value["expected"], tolerance, value.get("relative", False))


def test_no_value_is_dropped_silently():
    assert len(VALUES) == 552
    assert len({value["id"] for value in VALUES}) == 552
    assert Counter(fate(value) for value in VALUES) == {
        "here": 374,
        "a property": 155,
        "a draw": 4,
        "an encoding to come": 19,
    }
    assert Counter(value["encoding"] for value in HERE) == {
        "alibi": 39,
        "axial_rope": 19,
        "binary": 11,
        "cope": 6,
        "deberta": 10,
        "dinov3": 10,
        "fox": 4,
        "integer": 6,
        "kerple": 6,
        "mixed_rope": 5,
        "mrope": 12,
        "path": 3,
        "pope": 3,
        "rope": 171,
        "sandwich": 8,
        "shaw": 5,
        "sinusoidal": 31,
        "t5": 13,
        "temperature": 5,
        "xpos": 7,
    }


@pytest.mark.parametrize(
    ("got", "expected", "relative"),
    [
        ([1.0, 2.0], [1.0, 2.2], False),
        ([100.0, 1.0], [100.0, 1.2], True),
        ([0.01], [0.0], True),
        ([math.nan], [1.0], False),
        ([[1.0, 2.0], [3.0]], [[1.0, 2.0], [3.2]], False),
        ({"a": [1.0], "b": [2.0]}, {"a": [1.0], "b": [2.2]}, False),
        ([1.0, 1.0], [1.0], False),
    ],
)
def test_what_is_further_off_than_the_tolerance_is_noticed(got, expected, relative):
    require_close(expected, expected, 0.0, relative)
    with pytest.raises(AssertionError):
        require_close(got, expected, 0.1, relative)


def test_null_is_not_compared():
    require_close([1.0, 7.0], [1.0, None], 0.0, relative=False)
    with pytest.raises(AssertionError):
        require_close([7.0, 1.0], [1.0, None], 0.0, relative=False)
