"""Biases as curves: the right numbers at the right offsets, whatever a row has got beside."""

import math

import pytest
import torch

from whereness.auditor.reading.curves import curves_of, told
from whereness.auditor.reading.scores import Bias
from whereness.auditor.reading.views import LayerView

SLOPES = (0.5, 0.125)


def view(values, **changed):
    return LayerView(where="a", heads=len(values), bias=Bias(values, 0.0), **changed)


def table(rule, queries=6, keys=6, heads=2):
    """(H, S, T) of rule(head, offset), the queries being the last ones; None is masked."""
    made = torch.full((heads, queries, keys), math.nan, dtype=torch.float64)
    for h in range(heads):
        for i in range(queries):
            for j in range(keys):
                value = rule(h, j - (i + keys - queries))
                made[h, i, j] = math.nan if value is None else value
    return made


def causal(h, n):
    return None if n > 0 else SLOPES[h] * n


def symmetric(h, n):
    return -SLOPES[h] * abs(n)


def learned(h, n):
    return math.sin(3.0 * n + h) if n else 0.0


@pytest.mark.parametrize("rule", [causal, symmetric, learned])
@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (3, 8)])
def test_curves_have_the_bias_at_every_offset_that_is_seen(rule, queries, keys):
    curves = curves_of(view(table(rule, queries, keys)), "no config")
    ahead = 0 if rule is causal else queries - 1
    assert curves.offsets == tuple(range(1 - keys, ahead + 1))
    for h, line in enumerate(curves.measured):
        assert line == pytest.approx([rule(h, n) for n in curves.offsets])
    assert curves.expected is None


def test_a_number_that_a_whole_row_gets_changes_no_curve():
    plain = table(causal)
    rows = torch.arange(6.0)[:, None] * 7
    assert curves_of(view(plain + rows), "") == curves_of(view(plain), "")


def test_rows_that_see_nothing_have_no_curve():
    assert curves_of(view(table(lambda h, _: None if h else 0.0)), "") is None


def test_far_offsets_are_thinned_out_and_near_ones_are_not():
    offsets = curves_of(view(table(symmetric, 100, 100)), "").offsets
    assert set(range(-32, 33)) <= set(offsets)
    assert {-96, -40, 96} <= set(offsets)
    assert not {-97, -39, 33} & set(offsets)


@pytest.mark.parametrize("changed", [{"content_aware": True}, {"crosses": True}])
def test_a_bias_that_is_no_curve_has_none(changed):
    assert curves_of(view(table(causal), **changed), "") is None
    assert curves_of(view(torch.zeros(2, 6, 6, dtype=torch.float64)), "") is None


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (causal, "bias of 2 heads, -0.5 to -0.125 a token of distance"),
        (symmetric, "bias of 2 heads, -0.5 to -0.125 a token of distance"),
        (lambda h, n: -0.25 * abs(n), "bias of 2 heads, -0.25 a token of distance"),
        (lambda h, n: float(abs(n) > 2), "bias of 2 heads, 0 to 1 beside the nearest key"),
        (lambda h, n: 0.5 * n, "bias of 2 heads, -2.5 to 2.5 beside the nearest key"),
    ],
)
def test_a_bias_is_told_as_a_slope_where_it_has_one(rule, said):
    assert told(curves_of(view(table(rule)), "")) == said


@pytest.mark.parametrize("sign", [1, -1])
def test_a_config_of_alibi_has_its_own_curves(sign):
    from whereness.auditor.reading.expectation import Expectation
    from whereness.interop.config.specs import Spec
    from whereness.relative.alibi import ALiBi

    expected = Expectation((Spec("ALiBi", (("num_heads", 2),)),), (ALiBi(2),))
    by_recipe = table(lambda h, n: None if n > 0 else sign * n * 2.0 ** (-4 * (h + 1)))
    curves = curves_of(view(by_recipe), expected)
    right = [[n * 2.0 ** (-4 * (h + 1)) for n in curves.offsets] for h in range(2)]
    assert [list(line) for line in curves.expected] == right
    assert (curves.measured == curves.expected) is (sign == 1)
