"""Every scaling against its formula in mpmath, pair by pair; what it does to logits.

Axes: B batch, H heads, S tokens, D head_dim, P pairs. Units: radians per token, tokens.
"""

import copy
import math
import pickle  # noqa: TID251 (that scalings can be pickled is tested)

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import whereness as wn
from rotary.scaled import BY_LENGTH, EVERY, LONG, SHORT, Scaled, exact
from rotary.support import drawn, pairs, turned

S = wn.scaling
LAST = 2**24 - 1
ROUNDINGS = 2.0**-46  # relative: powers whose exponents and bases are rounded, and a ramp of them
each_setting = pytest.mark.parametrize("setting", EVERY, ids=str)

widths = st.sampled_from([4, 6, 8, 10, 14, 32])
bases = st.sampled_from([10.0, 100.0, 10_000.0, 500_000.0, 1e7]) | st.floats(2.0, 1e8)
factors = st.sampled_from([1.0, 1.5, 2.0, 8.0, 40.0]) | st.floats(1.0, 1000.0)
originals = st.sampled_from([16, 100, 2048, 4096, 32768]) | st.integers(16, 2**20)
lengths = st.integers(0, 2**22)


def require_frequencies(
    scaling: S.Scaling, base: float, width: int, length: int = 1, rounding: float = ROUNDINGS
) -> None:
    """frequencies_at, and the angles of a forward pass, against the oracle."""
    rope = wn.RoPE(width + 1, base, rotary_dim=width, scaling=scaling)
    expected = [float(w) for w in exact(scaling, base, width, length)]
    found = rope.frequencies_at(length)
    assert found.dtype == torch.float64 and found.device.type == "cpu"
    assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=rounding, atol=0)
    where = wn.Where(torch.tensor([3, -5]), lengths=length)
    cos, sin = rope.exactly(rope.prepare(where).data.keys)
    size = rope.amplitude_at(length)
    angles = torch.tensor([[3.0], [-5.0]], dtype=torch.float64) * found
    assert_close(cos[0, :, 0], angles.cos() * size, rtol=0, atol=2.0**-48 * size)
    assert_close(sin[0, :, 0], angles.sin() * size, rtol=0, atol=2.0**-48 * size)


# The spectrum


@given(width=widths, base=bases, factor=factors | st.floats(0.01, 1.0), length=lengths)
def test_linear_divides(width, base, factor, length):
    require_frequencies(S.Linear(factor), base, width, length)


@settings(max_examples=40)
@given(width=widths, base=bases, original=originals, length=lengths, data=st.data())
def test_linear_takes_the_first_factor_that_reaches(width, base, original, length, data):
    several = sorted(data.draw(st.sets(st.integers(1, 9), min_size=1, max_size=4)))
    scaling = S.Linear(tuple(float(f) for f in several), original)
    assert scaling.reach == several[-1] * original
    near = [f * original + step for f in several for step in (-1, 0, 1)]
    for n in (*near, length % (several[-1] * original)):
        if n <= several[-1] * original:
            require_frequencies(scaling, base, width, n)
        else:
            with pytest.raises(ValueError, match="must fit the largest factor's reach"):
                wn.RoPE(width, base, scaling=scaling).frequencies_at(n)


def test_linear_with_one_factor_reaches_any_length():
    assert S.Linear(2.0).reach == math.inf
    assert S.Linear(2.0).original_length is None


@settings(max_examples=40)
@given(width=widths, base=bases, factor=factors | st.floats(0.1, 1.0), length=lengths)
def test_ntk_of_all_schools(width, base, factor, length):
    for school, b in (("bloc97", None), ("kexue", None), ("mixed", 0.625), ("mixed", 1.5)):
        require_frequencies(S.NTK(factor, school, b), base, width, length)


@given(width=widths, base=bases, factor=factors)
def test_ntk_keeps_the_highest_frequency_and_divides_the_lowest(width, base, factor):
    before = wn.RoPE(width, base).frequencies
    for school in ("bloc97", "kexue"):
        after = wn.RoPE(width, base, scaling=S.NTK(factor, school)).frequencies
        assert after[-1].item() == pytest.approx(before[-1].item() / factor, rel=1e-13)
        if school == "bloc97":
            assert after[0] == before[0] == 1
    mixed = wn.RoPE(width, base, scaling=S.NTK(factor, "mixed", 1.0)).frequencies
    assert_close(mixed, after, rtol=1e-13, atol=0)  # as its docstring has it: 1 is kexue


@given(width=widths, base=bases, factor=factors)
def test_ntk_has_an_equivalent_base(width, base, factor):
    scaling, spectrum = S.NTK(factor), S.Spectrum(base, width)
    same = wn.RoPE(width, scaling.equivalent_base(spectrum)).frequencies
    assert_close(wn.RoPE(width, base, scaling=scaling).frequencies, same, rtol=1e-13, atol=0)
    for school, b in (("kexue", None), ("mixed", 1.0)):
        with pytest.raises(ValueError, match=f"{school}.*has no base"):
            S.NTK(factor, school, b).equivalent_base(spectrum)
    with pytest.raises(ValueError, match="at least 4 rotated channels, got 2"):
        scaling.equivalent_base(S.Spectrum(base, 2))


@settings(max_examples=40)
@given(width=widths, base=bases, factor=factors, original=originals, length=lengths)
def test_dynamic_ntk(width, base, factor, original, length):
    for n in (length, original - 1, original, original + 1, 2 * original, 2 * original + 1):
        # The base grows by s n/L - (s - 1): what is near s is rounded, what is left is from 1.
        rounding = ROUNDINGS + 2 * factor * 2.0**-52
        require_frequencies(S.DynamicNTK(factor, original), base, width, n, rounding)
        require_frequencies(S.DynamicNTK(None, original, "qwen"), base, width, n)


@given(width=widths, base=bases, original=originals)
def test_dynamic_ntk_changes_nothing_up_to_the_original_length(width, base, original):
    before = wn.RoPE(width, base).frequencies
    for scaling in (S.DynamicNTK(4.0, original), S.DynamicNTK(None, original, "qwen")):
        rope = wn.RoPE(width, base, scaling=scaling)
        assert_close(rope.frequencies, before, rtol=2.0**-48, atol=0)
        assert_close(rope.frequencies_at(original), before, rtol=2.0**-48, atol=0)
        assert rope.frequencies_at(2 * original)[-1] < 0.8 * before[-1]


@given(
    width=widths,
    base=bases,
    factor=factors,
    original=originals,
    ramp=st.sampled_from(["code", "paper"]),
    turns=st.tuples(st.floats(0.1, 4.0), st.floats(5.0, 64.0)),
    truncate=st.booleans(),
    clamp=st.sampled_from(["dim", "pairs"]),
    extrapolation=st.sampled_from([1.0, 0.0, 0.4]),
)
def test_by_parts_with_all_options(
    width, base, factor, original, ramp, turns, truncate, clamp, extrapolation
):
    slow, fast = turns
    options = {
        "code": {
            "beta_fast": fast,
            "beta_slow": slow,
            "truncate": truncate,
            "clamp": clamp,
            "extrapolation_factor": extrapolation,
        },
        "paper": {"alpha": slow, "beta": fast},
    }[ramp]
    options["ramp"] = ramp
    ends = S.NTKByParts(factor, original, **options).correction_range(S.Spectrum(base, width))
    # Untruncated ends less than a pair apart enlarge the rounding of their difference.
    assume(not 0 < abs(ends[1] - ends[0]) < 0.1)
    for kind in (S.NTKByParts, S.YaRN):
        # What is rounded off the share that is kept counts `factor` times in what is divided.
        scaling = kind(factor, original, **options)
        require_frequencies(scaling, base, width, rounding=ROUNDINGS * (1 + factor))


WIDE = S.Spectrum(10_000.0, 128)
OPTIONS = [
    {"truncate": False},
    {"beta_fast": 20.0},
    {"beta_slow": 3.0},
    {"ramp": "paper"},
    {"ramp": "paper", "alpha": 2.0},
    {"ramp": "paper", "beta": 20.0},
    {"extrapolation_factor": 0.5},
    {"original_length": 2048},
    {"factor": 8.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", [S.NTKByParts, S.YaRN])
def test_every_option_of_by_parts_matters(options, kind):
    usual = {"factor": 16.0, "original_length": 4096}
    before, after = (kind(**{**usual, **o}) for o in ({}, options))
    require_frequencies(after, *WIDE)
    w_before, w_after = (wn.RoPE(128, scaling=s).frequencies for s in (before, after))
    assert (w_before / w_after - 1).abs().max() > 0.01


def test_the_clamp_matters_where_the_slow_end_lies_behind_the_last_pair():
    spectrum, long = S.Spectrum(10_000.0, 64), {"factor": 4.0, "original_length": 2**20}
    assert S.YaRN(**long).correction_range(spectrum) == (29, 42)
    assert S.YaRN(**long, clamp="pairs").correction_range(spectrum) == (29, 31)
    assert S.YaRN(**long, clamp="pairs", truncate=False).correction_range(spectrum)[1] == 31
    assert S.YaRN(4.0, 2**31 - 1).correction_range(S.Spectrum(10_000.0, 8)) == (7, 7)
    for clamp in ("dim", "pairs"):
        require_frequencies(S.YaRN(**long, clamp=clamp), *spectrum)


def test_extrapolation_factor_0_divides_every_pair():
    found = wn.RoPE(64, scaling=S.YaRN(4.0, 4096, extrapolation_factor=0.0)).frequencies
    assert_close(found, wn.RoPE(64).frequencies / 4, rtol=1e-15, atol=0)


@pytest.mark.parametrize("clamp", ["dim", "pairs"])
@pytest.mark.parametrize("truncate", [True, False])
def test_a_spectrum_that_is_fast_throughout_is_kept(clamp, truncate):
    """Where the ramp would begin behind the last pair, every pair turns often within L."""
    scaling = S.YaRN(4.0, 32768, clamp=clamp, truncate=truncate)
    low, high = scaling.correction_range(S.Spectrum(10.0, 128))
    assert low > high  # a division by high - low would turn the ramp round
    plain = wn.RoPE(128, 10.0).frequencies
    assert 32768 * plain[-1] / (2 * math.pi) > 500
    assert_close(wn.RoPE(128, 10.0, scaling=scaling).frequencies, plain, rtol=1e-15, atol=0)


@given(
    width=widths,
    base=bases,
    factor=factors,
    original=originals,
    ends=st.tuples(st.floats(0.1, 4.0), st.floats(4.5, 64.0)),
    length=lengths,
)
def test_llama3(width, base, factor, original, ends, length):
    require_frequencies(S.Llama3(factor, *ends, original), base, width, length)


@settings(max_examples=40)
@given(width=widths, base=bases, original=originals, seed=st.integers(0, 2**32 - 1))
def test_longrope(width, base, original, seed):
    short, long = np.random.default_rng(seed).uniform(0.5, 60.0, (2, width // 2)).tolist()
    for n in (0, original - 1, original, original + 1, 64 * original):
        require_frequencies(S.LongRoPE(short, long, original, 4.0), base, width, n)
    rope = wn.RoPE(width, base, scaling=S.LongRoPE(short, long, original))
    assert_close(rope.frequencies, rope.frequencies_at(original), rtol=0, atol=0)
    assert (rope.frequencies != rope.frequencies_at(original + 1)).all()


@given(width=widths, base=bases, factor=factors, eighths=st.integers(0, 8))
def test_proportional(width, base, factor, eighths):
    require_frequencies(S.Proportional(eighths / 8, factor), base, width)


def test_proportional_counts_pairs_as_gemma_does():
    """The product is formed in float64 before it is cut: 0.3 of 20 channels is 6.0."""
    for fraction, width, turning in ((0.3, 20, 3), (0.29, 200, 28), (0.0, 8, 0), (1.0, 8, 4)):
        found = wn.RoPE(width, scaling=S.Proportional(fraction)).frequencies
        assert (found != 0).tolist() == [k < turning for k in range(width // 2)]


@given(width=widths, base=bases, original=st.integers(1, 2**20))
def test_hope(width, base, original):
    require_frequencies(S.HoPE(original), base, width)


INNER = [None, S.Linear(1.5), S.NTK(4.0), S.YaRN(4.0, 4096), S.DynamicNTK(2.0, 64), S.HoPE(500)]


@given(
    width=widths,
    base=bases,
    inner=st.sampled_from(INNER),
    original=st.none() | st.integers(1, 5000),
    length=lengths,
)
def test_resonance_rounds_wavelengths_after_any_scaling(width, base, inner, original, length):
    scope = "all" if original is None else "pre_critical"
    scaling = S.Resonance(inner, scope, original)
    inner_found = exact(inner, base, width, length) if inner else []
    with mpmath.workdps(30):  # a wavelength between two whole numbers may be rounded to either
        halves = [2 * mpmath.pi / w for w in inner_found if w]
        assume(all(abs(x - mpmath.floor(x) - 0.5) > 1e-9 * x for x in halves))
    require_frequencies(scaling, base, width, length)


def test_resonance_says_what_the_inner_scaling_says():
    yarn = S.YaRN(4.0, 64, school="deepseek", mscale=1.0, mscale_all_dim=0.5)
    both = S.Resonance(yarn)
    assert (both.amplitude, both.logit_scale) == (yarn.amplitude, yarn.logit_scale)
    assert both.amplitude != 1 != both.logit_scale
    assert (both.keeps_norms, both.needs_lengths, both.reference_length) == (False, False, 64)
    mscales = S.LongRoPE(SHORT, LONG, 8, short_mscale=1.1, long_mscale=1.4)
    assert S.Resonance(mscales).needs_lengths
    assert wn.RoPE(8, scaling=S.Resonance(mscales)).amplitude_at(9) == 1.4
    alone = S.Resonance()
    assert (alone.amplitude, alone.logit_scale, alone.keeps_norms) == (1.0, 1.0, True)
    assert S.Resonance(scope="pre_critical", original_length=30).reference_length == 30


# Cosines and sines


@settings(max_examples=20)
@given(
    setting=st.sampled_from(EVERY),
    base=st.sampled_from([100.0, 10_000.0, 1e7]),
    drawn_positions=st.lists(st.integers(-LAST, LAST), min_size=1, max_size=4),
    length=st.sampled_from([5, 8, 9, 30, 32]),
)
def test_cosines_and_sines_are_within_2_to_the_minus_24(setting, base, drawn_positions, length):
    positions = [*drawn_positions, LAST, -LAST]
    rope = Scaled(setting.name, setting.scaling, base).make()
    where = wn.Where(torch.tensor(positions), lengths=length)
    table = rope.exactly(rope.prepare(where).data.queries)
    cos, sin = ((t / rope.amplitude_at(length)).float()[0, :, 0] for t in table)
    frequencies = exact(setting.scaling, base, 8, length)
    with mpmath.workdps(40):
        for row, p in enumerate(positions):
            for k, w in enumerate(frequencies):
                assert abs(mpmath.cos(p * w) - cos[row, k].item()) <= 2.0**-24
                assert abs(mpmath.sin(p * w) - sin[row, k].item()) <= 2.0**-24


@each_setting
def test_tables_hold_the_amplitude(setting):
    for length in (5, 8, 9, 30):
        rope = setting.make()
        turned_queries = rope.exactly(
            rope.prepare(wn.Where(torch.arange(5), lengths=length)).data.queries
        )
        size = torch.hypot(*turned_queries)
        assert_close(size, torch.full_like(size, rope.amplitude_at(length)), rtol=1e-14, atol=0)
        assert rope.norm_preserving == setting.scaling.keeps_norms
        if rope.norm_preserving:
            assert rope.amplitude_at(length) == 1


# Amplitude and the scale of logits


def m(scale: float, x: float) -> float:
    return 0.1 * x * math.log(scale) + 1


AMPLITUDES = [
    # scaling, (factor on cos and sin, factor on the logits)
    (S.Linear(4.0), (1.0, 1.0)),
    (S.NTK(4.0), (1.0, 1.0)),
    (S.DynamicNTK(4.0, 8), (1.0, 1.0)),
    (S.NTKByParts(4.0, 8), (1.0, 1.0)),
    (S.Llama3(4.0, 1.0, 4.0, 8), (1.0, 1.0)),
    (S.Proportional(0.5), (1.0, 1.0)),
    (S.HoPE(8), (1.0, 1.0)),
    (S.Resonance(), (1.0, 1.0)),
    (S.YaRN(16.0, 8), (1.2772588722239782, 1.0)),
    (S.YaRN(1.0, 8), (1.0, 1.0)),
    (S.YaRN(16.0, 8, mscale=0.5), (m(16, 0.5), 1.0)),
    (S.YaRN(16.0, 8, mscale=0.0), (1.0, 1.0)),
    (S.YaRN(16.0, 8, attention_factor=1.0), (1.0, 1.0)),
    (S.YaRN(16.0, 8, attention_factor=1.5), (1.5, 1.0)),
    (S.YaRN(16.0, 8, placement="logits"), (1.0, 1.2772588722239782**2)),
    (S.YaRN(16.0, 8, attention_factor=1.5, placement="logits"), (1.0, 2.25)),
    (S.YaRN(40.0, 8, school="huggingface"), (m(40, 1), 1.0)),
    (S.YaRN(40.0, 8, school="huggingface", mscale=0.707), (m(40, 1), 1.0)),
    (S.YaRN(40.0, 8, school="huggingface", mscale=0.707, mscale_all_dim=0.0), (m(40, 1), 1.0)),
    (S.YaRN(40.0, 8, school="huggingface", mscale_all_dim=0.5), (m(40, 1), m(40, 0.5) ** 2)),
    (
        S.YaRN(40.0, 8, school="huggingface", mscale=0.0, mscale_all_dim=1.0),
        (m(40, 1), m(40, 1) ** 2),
    ),
    (
        S.YaRN(40.0, 8, school="huggingface", mscale=0.707, mscale_all_dim=1.0),
        (m(40, 0.707) / m(40, 1), m(40, 1) ** 2),
    ),
    (S.YaRN(40.0, 8, school="deepseek"), (m(40, 1), 1.0)),
    (S.YaRN(40.0, 8, school="deepseek", mscale=0.707), (1.2608038, 1.0)),
    (S.YaRN(40.0, 8, school="deepseek", mscale=0.707, mscale_all_dim=0.0), (1.2608038, 1.0)),
    (S.YaRN(40.0, 8, school="deepseek", mscale=1.0, mscale_all_dim=1.0), (1.0, 1.8738542)),
    (S.YaRN(40.0, 8, school="deepseek", mscale=0.707, mscale_all_dim=0.707), (1.0, 1.5896261)),
    (
        S.YaRN(40.0, 8, school="deepseek", mscale_all_dim=0.5),
        (m(40, 1) / m(40, 0.5), m(40, 0.5) ** 2),
    ),
    (
        S.YaRN(40.0, 8, school="deepseek", mscale_all_dim=1.0, attention_factor=1.25),
        (1.25, m(40, 1) ** 2),
    ),
    (
        S.YaRN(40.0, 8, school="deepseek", mscale=0.5, mscale_all_dim=1.0, placement="logits"),
        (1.0, m(40, 0.5) ** 2),
    ),
    (S.LongRoPE(SHORT, LONG, 16), (1.0, 1.0)),
    (S.LongRoPE(SHORT, LONG, 16, 4.0), (1.22474487, 1.0)),
    (S.LongRoPE(SHORT, LONG, 4096, 32.0), (1.19023807, 1.0)),
    (S.LongRoPE(SHORT, LONG, 16, 1.0), (1.0, 1.0)),
    (S.LongRoPE(SHORT, LONG, 16, 0.5), (1.0, 1.0)),
    (S.LongRoPE(SHORT, LONG, 16, 4.0, attention_factor=1.0), (1.0, 1.0)),
    (S.LongRoPE(SHORT, LONG, 16, 4.0, attention_factor=1.3), (1.3, 1.0)),
    (S.LongRoPE(SHORT, LONG, 16, 4.0, short_mscale=1.1, long_mscale=1.4), (1.1, 1.0)),
]


@pytest.mark.parametrize(("scaling", "expected"), AMPLITUDES, ids=str)
def test_amplitude_and_scale_of_logits(scaling, expected):
    rope = wn.RoPE(8, scaling=scaling)
    assert (rope.amplitude, rope.logit_scale(8)) == pytest.approx(expected, rel=1e-7)
    assert rope.amplitude == rope.amplitude_at(scaling.reference_length)
    assert scaling.keeps_norms == (expected[0] == 1)


def test_amplitudes_of_longrope_by_length():
    rope = wn.RoPE(8, scaling=S.LongRoPE(SHORT, LONG, 8, short_mscale=1.0, long_mscale=1.4))
    assert [rope.amplitude_at(n) for n in (0, 8, 9, 1000)] == [1.0, 1.0, 1.4, 1.4]
    assert rope.amplitude == 1 and not rope.norm_preserving
    where = wn.Where(torch.zeros(2, 1), lengths=torch.tensor([8, 9]))
    cos = rope.exactly(rope.prepare(where).data.queries).cos
    assert_close(cos[:, 0, 0, 0], torch.tensor([1.0, 1.4], dtype=torch.float64))


def logits(rope: wn.RoPE, q: torch.Tensor, k: torch.Tensor) -> np.ndarray:
    """Attention's logits, from the weights that it returns: known up to a number a row."""
    v = torch.zeros_like(k)
    _, weights = wn.attention(q, k, v, rope, return_weights=True)
    found = weights.log().numpy()
    return found - found.mean(-1, keepdims=True)


@pytest.mark.parametrize(("scaling", "expected"), AMPLITUDES, ids=str)
@pytest.mark.parametrize("rotary_dim", [8, 12])
def test_logits_of_attention(scaling, expected, rotary_dim):
    """amplitude^2 on what turns, logit_scale on all of it, 1 / sqrt(D) beside them."""
    q, k = (drawn(i, (1, 2, 7, 12), torch.float64) for i in (0, 1))
    if rotary_dim == 12 and isinstance(scaling, S.LongRoPE):
        return  # its factors are for 4 pairs
    rope = wn.RoPE(12, 100.0, rotary_dim=rotary_dim, scaling=scaling)
    frequencies = [float(w) for w in exact(scaling, 100.0, rotary_dim, 7)]
    angles = np.arange(7)[:, None] * np.array(frequencies)
    channels = pairs("half", rotary_dim)
    turned_qk = [turned(t.numpy(), channels, angles)[0] for t in (q, k)]
    inner = [t[..., :rotary_dim] for t in turned_qk]
    outer = [t[..., rotary_dim:] for t in turned_qk]
    amplitude, scale = expected
    scores = amplitude**2 * inner[0] @ inner[1].swapaxes(-1, -2)
    scores = (scores + outer[0] @ outer[1].swapaxes(-1, -2)) * scale / np.sqrt(12)
    found = logits(rope, q, k)
    scores -= scores.mean(-1, keepdims=True)
    np.testing.assert_allclose(found, scores, rtol=0, atol=1e-6)


def test_placements_are_one_for_whole_heads_and_differ_for_parts_of_them():
    q, k, v = (drawn(i, (2, 3, 9, 12), torch.float64) for i in range(3))
    for school in (
        {},
        {"school": "huggingface", "mscale": 0.5, "mscale_all_dim": 1.0},
        {"school": "deepseek", "mscale": 0.7, "mscale_all_dim": 0.2},
        {"attention_factor": 1.7},
    ):
        for rotary_dim, agree in ((12, True), (8, False)):
            tables, on_logits = (
                wn.attention(
                    q,
                    k,
                    v,
                    wn.RoPE(
                        12,
                        rotary_dim=rotary_dim,
                        scaling=S.YaRN(16.0, 64, placement=placement, **school),
                    ),
                    causal=True,
                )
                for placement in ("tables", "logits")
            )
            assert torch.allclose(tables, on_logits, rtol=1e-12, atol=1e-12) == agree


def test_an_explicit_scale_replaces_the_scale_of_logits():
    q, k, v = (drawn(i, (1, 1, 5, 8), torch.float64) for i in range(3))
    scaling = S.YaRN(16.0, 64, placement="logits")
    found = wn.attention(q, k, v, wn.RoPE(8, scaling=scaling), scale=0.3)
    expected = wn.attention(q, k, v, wn.RoPE(8, scaling=S.NTKByParts(16.0, 64)), scale=0.3)
    assert_close(found, expected, rtol=1e-13, atol=1e-13)


# What they are


@each_setting
def test_frequencies_are_those_at_the_original_length(setting):
    rope, reference = setting.make(), setting.scaling.reference_length
    assert_close(rope.frequencies, rope.frequencies_at(reference), rtol=0, atol=0)
    assert rope.needs_lengths == setting.by_length
    at = [rope.frequencies_at(n) for n in (0, 8, 9, 32)]
    changed = any(not torch.equal(at[0], other) for other in at[1:])
    assert changed == setting.by_length


@pytest.mark.untyped
@each_setting
def test_a_length_is_a_count(setting):
    rope = setting.make()
    for call in (rope.frequencies_at, rope.amplitude_at):
        with pytest.raises(TypeError, match="length must be an int, got float"):
            call(8.0)
    for call in (rope.frequencies_at, rope.amplitude_at):
        with pytest.raises(ValueError, match="length must be at least 0, got -1"):
            call(-1)


@each_setting
def test_they_are_values(setting):
    scaling = setting.scaling
    for twin in (copy.deepcopy(scaling), pickle.loads(pickle.dumps(scaling))):
        assert twin == scaling and hash(twin) == hash(scaling)
    with pytest.raises(AttributeError):
        scaling.factor = 3.0
    assert len({s.scaling for s in EVERY}) == len(EVERY)


@pytest.mark.untyped
def test_lists_become_tuples():
    assert S.Linear([1.0, 2.0], 8) == S.Linear((1.0, 2.0), 8)
    assert S.LongRoPE([1], [2], 8) == S.LongRoPE((1.0,), (2.0,), 8)


# What is refused

REFUSED = [
    (lambda: S.Linear(0.0), "factor must be a finite number above 0, got 0.0"),
    (lambda: S.Linear(math.inf), "factor must be a finite number above 0, got inf"),
    (lambda: S.Linear(2.0, 8), "no effect with a single factor"),
    (lambda: S.Linear((1.0, 2.0)), "need original_length"),
    (lambda: S.Linear((2.0, 1.0), 8), r"must rise, got \(2.0, 1.0\)"),
    (lambda: S.Linear((2.0, 2.0), 8), r"must rise, got \(2.0, 2.0\)"),
    (lambda: S.Linear((), 8), r"must rise, got \(\)"),
    (lambda: S.Linear((-1.0, 2.0), 8), "every factor must be a finite number above 0, got -1.0"),
    (lambda: S.Linear((1.0, 2.0), 0), "original_length must be at least 1, got 0"),
    (lambda: S.NTK(-1.0), "factor must be a finite number above 0, got -1.0"),
    (lambda: S.NTK(2.0, "mixed"), "both or neither.*'mixed', mixed_b=None"),
    (lambda: S.NTK(2.0, mixed_b=1.0), "both or neither.*'bloc97', mixed_b=1.0"),
    (lambda: S.NTK(2.0, "mixed", 0.0), "mixed_b must be a finite number above 0, got 0.0"),
    (lambda: S.NTK(2.0, "yarn"), "'bloc97', 'kexue', 'mixed'; got 'yarn'"),
    (lambda: S.DynamicNTK(0.5, 8), "factor must be a finite number from 1, got 0.5"),
    (lambda: S.DynamicNTK(2.0, 0), "original_length must be at least 1, got 0"),
    (lambda: S.DynamicNTK(2.0, 8, "qwen"), "has no factor: give None, got 2.0"),
    (lambda: S.DynamicNTK(2.0, 8, "hf"), "'huggingface', 'qwen'; got 'hf'"),
    (lambda: S.NTKByParts(0.5, 8), "factor must be a finite number from 1, got 0.5"),
    (lambda: S.NTKByParts(2.0, 0), "original_length must be at least 1, got 0"),
    (lambda: S.NTKByParts(2.0, 8, ramp="text"), "'code', 'paper'; got 'text'"),
    (
        lambda: S.YaRN(2.0, 8, ramp="paper", truncate=False, beta_slow=2.0),
        "beta_slow, truncate belong to ramp 'code' and have no effect on 'paper'",
    ),
    (lambda: S.NTKByParts(2.0, 8, alpha=2.0), "alpha belong to ramp 'paper'"),
    (lambda: S.NTKByParts(2.0, 8, clamp="half"), "'dim', 'pairs'; got 'half'"),
    (lambda: S.NTKByParts(2.0, 8, beta_fast=0.9), "beta_fast must be more turns.*0.9 and 1.0"),
    (lambda: S.NTKByParts(2.0, 8, beta=0.5), "beta must be more turns than alpha, got 0.5 and 1.0"),
    (lambda: S.NTKByParts(2.0, 8, beta_slow=0.0), "beta_slow must be a finite number above 0"),
    (lambda: S.NTKByParts(2.0, 8, alpha=-1.0), "alpha must be a finite number above 0, got -1.0"),
    (lambda: S.NTKByParts(2.0, 8, extrapolation_factor=-0.1), "extrapolation_factor must be.*from"),
    (lambda: S.NTKByParts(2.0, 8, extrapolation_factor=1.1), "extrapolation_factor.*most 1, got"),
    (lambda: S.YaRN(2.0, 8, school="vllm"), "'paper', 'huggingface', 'deepseek'; got 'vllm'"),
    (lambda: S.YaRN(2.0, 8, placement="both"), "'tables', 'logits'; got 'both'"),
    (lambda: S.YaRN(2.0, 8, mscale=-1.0), "mscale must be a finite number from 0, got -1.0"),
    (lambda: S.YaRN(2.0, 8, attention_factor=0.0), "attention_factor must be.*above 0, got 0.0"),
    (lambda: S.YaRN(2.0, 8, mscale_all_dim=1.0), 'School "paper" has no mscale_all_dim'),
    (
        lambda: S.YaRN(2.0, 8, school="deepseek", mscale_all_dim=-1.0),
        "mscale_all_dim must be a finite number from 0, got -1.0",
    ),
    (lambda: S.Llama3(0.5, 1.0, 4.0, 8), "factor must be a finite number from 1, got 0.5"),
    (lambda: S.Llama3(2.0, 0.0, 4.0, 8), "low_freq_factor must be.*above 0, got 0.0"),
    (lambda: S.Llama3(2.0, 1.0, -4.0, 8), "high_freq_factor must be.*above 0, got -4.0"),
    (lambda: S.Llama3(2.0, 4.0, 3.0, 8), "high_freq_factor must not be below.*got 3.0 and 4.0"),
    (lambda: S.Llama3(2.0, 1.0, 4.0, 0), "original_length must be at least 1, got 0"),
    (lambda: S.LongRoPE([1.0], [1.0, 2.0], 8), "equally long, got 1 and 2 numbers"),
    (lambda: S.LongRoPE([0.0], [1.0], 8), "every entry of short_factor must be.*got 0.0"),
    (lambda: S.LongRoPE([1.0], [-1.0], 8), "every entry of long_factor must be.*got -1.0"),
    (lambda: S.LongRoPE([1.0], [1.0], 1), "original_length must be at least 2, got 1"),
    (lambda: S.LongRoPE([1.0], [1.0], 8, factor=0.0), "factor must be.*above 0, got 0.0"),
    (lambda: S.LongRoPE([1.0], [1.0], 8, short_mscale=1.0), "go together: give both or neither"),
    (lambda: S.LongRoPE([1.0], [1.0], 8, long_mscale=1.0), "go together: give both or neither"),
    (
        lambda: S.LongRoPE(
            [1.0], [1.0], 8, attention_factor=1.0, short_mscale=1.0, long_mscale=1.0
        ),
        "attention_factor or short_mscale and long_mscale, not both",
    ),
    (lambda: S.Proportional(1.5), "fraction must be at most 1, got 1.5"),
    (lambda: S.Proportional(-0.5), "fraction must be a finite number from 0, got -0.5"),
    (lambda: S.Proportional(0.5, 0.0), "factor must be a finite number above 0, got 0.0"),
    (lambda: S.HoPE(0), "original_length must be at least 1, got 0"),
    (lambda: S.Resonance(scope="pre_critical"), "both or neither.*'pre_critical', orig.*=None"),
    (lambda: S.Resonance(original_length=8), "both or neither.*'all', original_length=8"),
    (lambda: S.Resonance(scope="near"), "'all', 'pre_critical'; got 'near'"),
    (lambda: S.Resonance(scope="pre_critical", original_length=0), "at least 1, got 0"),
    # What does not fit an encoding
    (lambda: wn.RoPE(2, scaling=S.NTK(2.0)), "at least 4 rotated channels, got 2"),
    (lambda: wn.RoPE(2, scaling=S.DynamicNTK(2.0, 8)), "at least 4 rotated channels, got 2"),
    (lambda: wn.RoPE(8, 1.0, scaling=S.YaRN(2.0, 8)), "a base above 1, got 1.0"),
    (lambda: wn.RoPE(8, 0.5, scaling=S.Resonance()), "a base of at least 1, got 0.5"),
    (
        lambda: wn.RoPE(6, scaling=S.LongRoPE(SHORT, LONG, 8)),
        "one number for each of the 3 pairs, got 4",
    ),
    (
        lambda: wn.RoPE(8, rotary_dim=6, scaling=S.Resonance(S.LongRoPE(SHORT, LONG, 8))),
        "one number for each of the 3 pairs, got 4",
    ),
    # Frequencies that no angle could be made of
    (lambda: wn.RoPE(8, scaling=S.Linear(1e-300)), r"finite angles, got 10000.0 and Linear\("),
    (lambda: wn.RoPE(8, scaling=S.Linear((1e-300, 2.0), 8)), "finite angles"),
    (lambda: wn.RoPE(8, scaling=S.NTK(1e300)), r"finite angles, got 10000.0 and NTK\("),
    (lambda: wn.RoPE(8, scaling=S.NTK(2.0, "mixed", 1e3)), "finite angles"),
    (lambda: wn.RoPE(8, scaling=S.LongRoPE([1e-300] * 4, LONG, 8)), "finite angles"),
    (lambda: wn.RoPE(8, scaling=S.LongRoPE(SHORT, [1e-300] * 4, 8)), "finite angles"),
    # Wavelengths that round to no token at all
    (lambda: wn.RoPE(8, scaling=S.Resonance(S.Linear(0.05))), "finite angles"),
    (lambda: wn.RoPE(8, scaling=S.Resonance(S.LongRoPE(SHORT, [0.05] * 4, 8))), "finite angles"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[m for _, m in REFUSED])
@pytest.mark.untyped
def test_options_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


MISTYPED = [
    (lambda: S.Linear("2"), "factor must be a number, got str"),
    (lambda: S.Linear(True), "factor must be a number, got bool"),
    (lambda: S.Linear(torch.tensor(2.0)), "factor must be a number, got Tensor"),
    (lambda: S.NTK(None), "factor must be a number, got NoneType"),
    (lambda: S.DynamicNTK(None, 8), "factor must be a number, got NoneType"),
    (lambda: S.YaRN(2.0, 8.0), r"original_length must be an int, got float \(8.0\)"),
    (lambda: S.YaRN(2.0, 8, truncate=1), "truncate must be True or False, got 1"),
    (lambda: S.LongRoPE(1.0, [1.0], 8), "short_factor must be a list of numbers, one a pair"),
    (lambda: S.LongRoPE([1.0], [], 8), "long_factor must be a list of numbers, one a pair"),
    (lambda: S.LongRoPE([True], [1.0], 8), "every entry of short_factor must be a number"),
    (lambda: S.HoPE(True), "original_length must be an int, got bool"),
    (lambda: S.Resonance("yarn"), "scaling must be one of wn.scaling or None, got 'yarn'"),
    (lambda: wn.RoPE(8, scaling=S.Linear), "scaling must be one of wn.scaling or None"),
    (lambda: wn.RoPE(8, scaling={"type": "linear"}), "scaling must be one of wn.scaling or None"),
]


@pytest.mark.parametrize(("make", "message"), MISTYPED, ids=[m for _, m in MISTYPED])
@pytest.mark.untyped
def test_what_is_no_number_is_refused(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_settings_of_all_kinds_depend_on_lengths():
    assert {type(s.scaling).__name__ for s in BY_LENGTH} == {
        "Linear",
        "DynamicNTK",
        "LongRoPE",
        "Resonance",
    }
