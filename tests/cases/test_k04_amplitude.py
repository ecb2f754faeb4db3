"""K04: both corrections of the logits, the one on cos and sin and the one on all logits."""

import math
import warnings

import pytest
import torch

import whereness as wn
from cases.support import bitwise, case, differ, equal, heads

S = wn.scaling


def both(scaling: S.Scaling) -> tuple[float, float]:
    """(factor on cos and sin, factor on the logits), as they are told."""
    rope = wn.RoPE(8, scaling=scaling)
    return rope.amplitude, rope.logit_scale(8)


def measured(scaling: S.Scaling, position: int) -> tuple[float, float]:
    """The same from what attention does: two keys, as one alone would hide any factor.

    At equal positions nothing turns between q and k: the difference of two logits is that of
    q . k, times the factors; the size of a turned key tells one of them.
    """
    rope = wn.RoPE(8, scaling=scaling)
    q, k = heads(1, 1), heads(2, 1, seed=3)
    where = wn.Where(torch.tensor([position]), torch.tensor([position, position]))
    _, weights = wn.attention(q, k, k, rope, where=where, return_weights=True)
    gap = (weights[..., 0].log() - weights[..., 1].log()).item()
    content = (q @ k.mT / math.sqrt(8))[0, 0, 0]
    amplitude = (rope.rotate_keys(k, torch.tensor([position] * 2)).norm() / k.norm()).item()
    return amplitude, gap / (content[0] - content[1]).item() / amplitude**2


@case("P048")
@pytest.mark.parametrize(
    ("mscale", "all_dim", "expected"),
    [
        (1.0, 1.0, (1.0, 1.87385416)),
        (0.707, 0.707, (1.0, 1.58962612)),
        (0.707, None, (1.26080382, 1.0)),
        (1.0, 0.707, (1.08572637, 1.58962612)),
    ],
)
@pytest.mark.parametrize("position", [0, 5, 3000])
def test_the_ratio_is_on_the_tables_and_the_square_on_all_logits(
    mscale, all_dim, expected, position
):
    scaling = S.YaRN(40.0, 64, school="deepseek", mscale=mscale, mscale_all_dim=all_dim)
    assert both(scaling) == pytest.approx(expected, rel=1e-7)
    assert measured(scaling, position) == pytest.approx(expected, rel=1e-6)


@case("P048")
def test_the_scale_of_logits_reaches_a_layer():
    scaling = S.YaRN(40.0, 64, school="deepseek", mscale=1.0, mscale_all_dim=1.0)
    q, k, v = heads(6), heads(6, seed=3), heads(6, seed=4)
    rope, bare = wn.RoPE(8, scaling=scaling), wn.RoPE(8, scaling=S.NTKByParts(40.0, 64))
    found = wn.attention(q, k, v, rope, causal=True)
    m = 0.1 * math.log(40.0) + 1
    equal(found, wn.attention(q, k, v, bare, causal=True, scale=m**2 / math.sqrt(8)))
    differ(found, wn.attention(q, k, v, bare, causal=True))


@case("P049")
def test_equal_mscales_cancel_on_the_tables_and_are_told_with_what_is_on_the_logits():
    """The numbers say it: 1.0 beside the square, or the whole amplitude where all_dim is 0."""
    one = 0.1 * math.log(64.0) + 1
    for school in ("huggingface", "deepseek"):
        equal_ones = S.YaRN(64.0, 64, school=school, mscale=1.0, mscale_all_dim=1.0)
        assert both(equal_ones) == pytest.approx((1.0, one**2))
        alone = S.YaRN(64.0, 64, school=school, mscale=1.0, mscale_all_dim=0.0)
        assert both(alone) == pytest.approx((1.41588831, 1.0))
        assert measured(equal_ones, 7)[0] ** 2 * measured(equal_ones, 7)[1] == pytest.approx(
            measured(alone, 7)[0] ** 2 * measured(alone, 7)[1]
        )


@case("P049")
def test_the_other_wish_is_said_by_the_amplitude_itself():
    """A model whose attention has no second correction: the ratio alone."""
    assert both(S.YaRN(64.0, 64, attention_factor=1.0)) == (1.0, 1.0)
    assert both(S.YaRN(64.0, 64)) == pytest.approx((1.41588831, 1.0))
    with pytest.raises(ValueError, match='"paper" has no mscale_all_dim: name the school'):
        S.YaRN(64.0, 64, mscale=1.0, mscale_all_dim=1.0)


@case("P049")
def test_a_config_whose_mscales_cancel_is_told():
    """Of a model without the second correction; the numbers are those of the case."""
    rope = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 64.0}
    rope |= {"original_max_position_embeddings": 4096, "mscale": 1.0}
    config = {"model_type": "mistral", "head_dim": 128, "hidden_size": 4096}
    config |= {"num_attention_heads": 32, "num_hidden_layers": 2, "rope_parameters": rope}
    config["max_position_embeddings"] = 64 * 4096
    with pytest.warns(wn.ConfigWarning, match=r"cancel, so YaRN does not sharpen.*1\.4159"):
        found = wn.from_config({**config, "rope_parameters": {**rope, "mscale_all_dim": 1.0}})
    assert (found.amplitude, found.logit_scale(128)) == (1.0, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wn.ConfigWarning)
        found = wn.from_config({**config, "rope_parameters": {**rope, "mscale_all_dim": 0.0}})
    assert found.amplitude == pytest.approx(1.41588831)


@case("P051")
@pytest.mark.parametrize("school", ["paper", "huggingface", "deepseek"])
def test_an_explicit_factor_replaces_the_computed_one(school):
    computed = S.YaRN(16.0, 64, school=school)
    assert both(computed)[0] == pytest.approx(1.27725887)
    for given in (1.0, 0.5, 1.3):
        scaling = S.YaRN(16.0, 64, school=school, attention_factor=given)
        assert both(scaling)[0] == given
        assert measured(scaling, 9)[0] == pytest.approx(given)
    off, x = wn.RoPE(8, scaling=S.YaRN(16.0, 64, attention_factor=1.0)), heads(5)
    bitwise(off.rotate(x), wn.RoPE(8, scaling=S.NTKByParts(16.0, 64)).rotate(x))
    differ(off.rotate(x), wn.RoPE(8, scaling=computed).rotate(x), 0.1)


@case("P051")
def test_longrope_and_logits_take_it_as_well():
    lists = [1.0] * 4, [2.0] * 4
    assert both(S.LongRoPE(*lists, 16, 4.0))[0] == pytest.approx(1.22474487)
    assert both(S.LongRoPE(*lists, 16, 4.0, attention_factor=1.0)) == (1.0, 1.0)
    on_logits = S.YaRN(16.0, 64, attention_factor=1.5, placement="logits")
    assert both(on_logits) == (1.0, 2.25)
    assert measured(on_logits, 3) == pytest.approx((1.0, 2.25))
    with pytest.raises(ValueError, match="attention_factor must be a finite number above 0"):
        S.YaRN(16.0, 64, attention_factor=0.0)


@case("P054")
@pytest.mark.parametrize(
    ("factor", "original", "expected"), [(64 / 16, 16, 1.22474487), (131_072 / 4096, 4096, 1.19024)]
)
def test_every_way_to_turn_has_the_amplitude_of_longrope(factor, original, expected):
    """At 6 tokens as well, where only the short set of divisors is in use."""
    scaling = S.LongRoPE([1.0, 1.1, 1.2, 1.5], [2.0, 4.0, 6.0, 9.0], original, factor)
    rope, x = wn.RoPE(8, scaling=scaling), heads(6)
    assert rope.amplitude == pytest.approx(expected, rel=1e-5)
    heads_last = x.transpose(1, 2)
    whole = wn.RoPE(8, scaling=scaling, compat="huggingface")
    for found in (
        *rope(x, x),
        rope.rotate(x),
        rope.rotate_keys(x),
        rope.rotate_(x.clone()),
        rope.rotate(heads_last, layout="bshd").transpose(1, 2),
        rope.rotate(heads_last[0], layout="thd").transpose(0, 1)[None],
        *rope.queries_keys(x, x, rope.prepare(torch.arange(6)), {}),
        wn.LeRoPE(8, scaling=scaling).rotate(x).detach(),
        whole.rotate(x),
    ):
        size = found.norm(dim=-1) / x.norm(dim=-1)
        assert (size - expected).abs().max() < 1e-5


@case("P054")
def test_attention_by_every_implementation_has_it():
    scaling = S.LongRoPE([1.0] * 4, [2.0] * 4, 16, 4.0)
    q, k, v = heads(6), heads(6, seed=3), heads(6, seed=4)
    bare = wn.RoPE(8, scaling=S.LongRoPE([1.0] * 4, [2.0] * 4, 16))
    expected = wn.attention(q, k, v, bare, causal=True, scale=1.5 / math.sqrt(8))
    for implementation in ("auto", "reference", "sdpa"):
        rope = wn.RoPE(8, scaling=scaling)
        equal(wn.attention(q, k, v, rope, causal=True, implementation=implementation), expected)
