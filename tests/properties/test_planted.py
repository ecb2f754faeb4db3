"""Encodings that are wrong on purpose: every fault moves the measure that is about it, and the
encoding without the fault does not."""

import math

import pytest
import torch

import whereness as wn
from whereness.properties import consistency
from whereness.properties.doors import exact_copy


class MixedFrequencies(wn.Sinusoidal):
    """Cosines turn faster than their sines."""

    def rows(self, positions):
        rows = super().rows(positions)
        return torch.cat([rows[..., ::2], super().rows(positions * 1.5)[..., 1::2]], -1)


class Wrapped(wn.Sinusoidal):
    """Positions go round after 50."""

    def rows(self, positions):
        return super().rows(positions % 50)


class ByLength(wn.Sinusoidal):
    """Rows are divided by the number of tokens in the tensor."""

    def where_rows(self, where, positions, last):
        return super().where_rows(where, positions, last) * 64 / positions.shape[-1]


class Growing(wn.Sinusoidal):
    """Rows grow with position."""

    def rows(self, positions):
        return super().rows(positions) * (1 + positions.double()[..., None])


class Noisy(wn.Sinusoidal):
    """Another table in every call."""

    def rows(self, positions):
        return super().rows(positions) + torch.randn(*positions.shape, self.dim) * 0.01


class Ends(wn.Sinusoidal):
    """Not a number past position 500."""

    def rows(self, positions):
        return super().rows(positions).masked_fill((positions > 500)[..., None], math.nan)


class BySlot(wn.RoPE):
    """Ignores ids: counts the tokens of the tensor."""

    def angles(self, positions, lengths=None):
        return super().angles(torch.arange(positions.shape[-1]).expand_as(positions))


class Stretching(wn.RoPE):
    """Turns, and makes far queries longer."""

    def queries_keys(self, q, k, at, features):
        q, k = super().queries_keys(q, k, at, features)
        size = (1 + at.where.positions / 100)[:, None, :, None]
        return q * size.to(q.dtype), k


class HalfAngles(wn.RoPE):
    """Angles formed in the type of the tokens, as many models did."""

    dtype = torch.bfloat16

    def angles(self, positions, lengths=None):
        return super().angles(positions.to(self.dtype)).to(self.dtype).double()


class SingleAngles(HalfAngles):
    dtype = torch.float32

    def angles(self, positions, lengths=None):
        return (positions.float()[..., None] * self.frequencies.float()).double()


class Rewriting(wn.RoPE):
    """Old keys turn further when tokens come."""

    def queries_keys(self, q, k, at, features):
        return super().queries_keys(q, k * at.where.num_keys, at, features)


class Attracting(wn.ALiBi):
    """The farther, the higher."""

    def by_offset(self, offset):
        return -super().by_offset(offset)


class Counting(wn.ALiBi):
    """A bias on where the key is, not on how far."""

    def by_offset(self, offset):
        raise AssertionError("not used")

    def tables(self, where):
        return self.bias(where.positions, where.keys)

    def bias(self, q_positions, k_positions):
        row = -self.slopes[:, None, None] * k_positions[..., None, None, :].clamp(min=0) / 100
        return row.expand(*row.shape[:-2], q_positions.shape[-1], -1)


class Confused(wn.AxialRoPE):
    """Turns each pair by the sum of both coordinates: the natural mistake."""

    def angles(self, positions, lengths=None):
        return super().angles(positions.sum(-1, keepdim=True).expand_as(positions))


class PadsCount(wn.Sinusoidal):
    """Subtracts the mean row, pads included."""

    def where_rows(self, where, positions, last):
        rows = super().where_rows(where, positions, last)
        return rows - rows.mean(-2, keepdim=True)


# fault, its right form, field of the result, what the fault does to it, what is right
FAULTS = {
    "frequencies of a pair differ": (
        MixedFrequencies(16), wn.Sinusoidal(16), "translation_invariance",
        lambda v: v > 1e-3, lambda v: v < 1e-12,
    ),
    "no matrix moves the codes": (
        MixedFrequencies(16), wn.Sinusoidal(16), "linear_relation",
        lambda v: v[3] > 1e-6, lambda v: v[3] < 1e-9,
    ),
    "positions repeat": (
        Wrapped(16), wn.Sinusoidal(16), "uniqueness", lambda v: v == 0, lambda v: v > 0.1,
    ),
    "where positions repeat": (
        Wrapped(16), wn.Sinusoidal(16), "first_repeat", lambda v: v == 50, lambda v: v is None,
    ),
    "rows depend on the length": (
        ByLength(16), wn.Sinusoidal(16), "length_dependence", lambda v: v > 0.3, lambda v: v == 0,
    ),
    "rows grow": (
        Growing(16), wn.Sinusoidal(16), "norm_growth", lambda v: v > 0.8, lambda v: abs(v) < 1e-9,
    ),
    "rows change from call to call": (
        Noisy(16), wn.Sinusoidal(16), "deterministic", lambda v: v is False, lambda v: v is True,
    ),
    "not a number far out": (
        Ends(16), wn.Sinusoidal(16), "defined_beyond", lambda v: v is False, lambda v: v is True,
    ),
    "not a number anywhere beyond": (
        Ends(16), wn.Sinusoidal(16), "unbounded", lambda v: v is False, lambda v: v is True,
    ),
    "ids are ignored": (
        BySlot(16), wn.RoPE(16), "decoding", lambda v: v > 1e-3, lambda v: v < 1e-12,
    ),
    "queries grow": (
        Stretching(16), wn.RoPE(16), "norm_preservation", lambda v: v > 1, lambda v: v < 1e-12,
    ),
    "growing queries are not relative": (
        Stretching(16), wn.RoPE(16), "exact_relativity", lambda v: v > 1, lambda v: v < 1e-10,
    ),
    "a shift shows": (
        Stretching(16), wn.RoPE(16), "relative", lambda v: v is False, lambda v: v is True,
    ),
    "angles in bfloat16": (
        HalfAngles(16), wn.RoPE(16), "precision",
        lambda v: v["float32"][30_000] > 1, lambda v: v["float32"][30_000] < 1e-5,
    ),
    "angles in float32": (
        SingleAngles(16), wn.RoPE(16), "precision",
        lambda v: v["float32"][1_000_000] > 1e-3, lambda v: v["float32"][1_000_000] < 1e-5,
    ),
    "old keys change": (
        Rewriting(16), wn.RoPE(16), "cacheable", lambda v: v is False, lambda v: v is True,
    ),
    "far keys score higher": (
        Attracting(2), wn.ALiBi(2), "monotonicity", lambda v: v == 0, lambda v: v == 1,
    ),
    "scores rise with distance": (
        Attracting(2), wn.ALiBi(2), "distance_correlation",
        lambda v: v > 1 - 1e-12, lambda v: v < 1e-12 - 1,
    ),
    "far keys score as nothing before": (
        Attracting(2), wn.ALiBi(2), "unseen_codes", lambda v: v == 1, lambda v: v == 0,
    ),
    "the bias knows the position": (
        Counting(2), wn.ALiBi(2), "translation_invariance", lambda v: v > 0.1, lambda v: v == 0,
    ),
    "cells of a grid share a code": (
        Confused(16), wn.AxialRoPE(16), "grid",
        lambda v: v["uniqueness"] < 1e-9, lambda v: v["uniqueness"] > 0.1,
    ),
    "pads count": (
        PadsCount(16), wn.Sinusoidal(16), "padding", lambda v: v > 1e-3, lambda v: v < 1e-12,
    ),
    "texts in one row mix": (
        PadsCount(16), wn.Sinusoidal(16), "packing", lambda v: v > 1e-3, lambda v: v < 1e-12,
    ),
}  # fmt: skip


FOUND = {}


def measured(encoding):
    """`wn.measure`, once for every class and size."""
    sizes = [getattr(encoding, name, None) for name in ("dim", "num_heads", "head_dim")]
    key = (type(encoding), *sizes)
    if key not in FOUND:
        FOUND[key] = wn.measure(encoding, num_positions=64)
    return FOUND[key]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_changes_its_measure(name):
    wrong, right, field, is_wrong, is_right = FAULTS[name]
    assert is_wrong(getattr(measured(wrong), field)), getattr(measured(wrong), field)
    assert is_right(getattr(measured(right), field)), getattr(measured(right), field)


VERDICTS = {
    "unique": (Wrapped(16), wn.Sinusoidal(16)),
    "length_free": (ByLength(16), wn.Sinusoidal(16)),
    "bounded": (Growing(16), wn.Sinusoidal(16)),
    "linear": (MixedFrequencies(16), wn.Sinusoidal(16)),
    "defined_beyond": (Ends(16), wn.Sinusoidal(16)),
    "familiar": (Attracting(2), wn.ALiBi(2)),
    "deterministic": (Noisy(16), wn.Sinusoidal(16)),
    "process": (Wrapped(16), wn.Sinusoidal(16)),
    "axes": (wn.Sinusoidal(16), wn.RoPE(16)),
    "offset_only": (Counting(2), wn.ALiBi(2)),
    "relative": (Stretching(16), wn.RoPE(16)),
    "monotone": (Attracting(2), wn.ALiBi(2)),
    "decays": (Attracting(2), wn.ALiBi(2)),
    "norm": (Stretching(16), wn.RoPE(16)),
    "exact": (Stretching(16), wn.RoPE(16)),
    "bandwidth": (wn.RoPE(16), wn.RoPE(2)),
    "context": (wn.RoPE(2), wn.RoPE(64)),
    "precision": (SingleAngles(16), wn.RoPE(16)),
    "padding": (PadsCount(16), wn.Sinusoidal(16)),
    "packing": (PadsCount(16), wn.Sinusoidal(16)),
    "decoding": (BySlot(16), wn.RoPE(16)),
    "order": (wn.NoPE(), wn.RoPE(16)),
    "cacheable": (Rewriting(16), wn.RoPE(16)),
    "fused": (wn.Shaw(16, 4), wn.RoPE(16)),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_a_fault_is_told(name):
    passed = []
    for encoding in VERDICTS[name]:
        [verdict] = [v for v in measured(encoding).verdicts() if v.name == name]
        passed.append(verdict.passed)
        assert verdict.meaning.endswith((".", ")"))
    assert passed == [False, True]


def test_every_judged_property_has_a_fault_here():
    from whereness.properties.verdicts import RULES

    assert {rule.name for rule in RULES if rule.judged} == set(VERDICTS)


def test_a_repeated_row_of_a_table_is_found():
    table = wn.LearnedAbsolute(8, 40)
    assert wn.measure(table).first_repeat is None
    table.table.data[23] = table.table.data[7]
    found = wn.measure(table)
    assert (found.uniqueness, found.min_distance, found.first_repeat) == (0, 0, 23)


def test_an_encoding_that_writes_into_its_input_is_seen_through():
    class InPlace(wn.RoPE):
        def queries_keys(self, q, k, at, features):
            turned = super().queries_keys(q, k, at, features)
            return q.copy_(turned[0]), k.copy_(turned[1])

    found, right = wn.measure(InPlace(16)), wn.measure(wn.RoPE(16))
    assert found.uniqueness == right.uniqueness
    assert found.monotonicity == right.monotonicity


# Order


def test_without_positions_an_encoder_sees_a_set():
    nothing = exact_copy(wn.NoPE())
    assert consistency.permutation_sensitivity(nothing) < 1e-12
    assert consistency.same_word(nothing) < 1e-12
    assert consistency.permutation_sensitivity(nothing, causal=True) > 1e-3


@pytest.mark.parametrize("name", ["sinusoidal", "learned", "alibi", "rope", "axial_rope", "shaw"])
def test_with_positions_two_equal_words_differ(name):
    encoding = exact_copy(wn.create(name, dim=16, num_heads=2, length=32))
    assert consistency.same_word(encoding) > 1e-3
    assert consistency.permutation_sensitivity(encoding) > 1e-3


def test_the_demo_of_the_article():
    """The dog chased another dog: words 2 and 5, seen without this library's probes."""
    words = torch.randn(5, 16, dtype=torch.float64)[[0, 1, 2, 3, 4, 2]][None]
    layers = {
        name: wn.Attention(16, 2, e).double()
        for name, e in {"none": None, "rope": wn.RoPE(8)}.items()
    }
    layers["rope"].load_state_dict(layers["none"].state_dict())
    out = {name: layer(words) for name, layer in layers.items()}
    assert torch.allclose(out["none"][0, 2], out["none"][0, 5], atol=1e-12)
    assert (out["rope"][0, 2] - out["rope"][0, 5]).abs().max() > 1e-3
