"""`wn.measure` as a whole: every encoding, its options, what it leaves alone, what it refuses."""

import dataclasses
import json
import math

import pytest
import torch

import whereness as wn
from whereness.properties import Properties, codes, cost, lines
from whereness.properties.axes import extends_to
from whereness.properties.doors import exact_copy, sizes, through
from whereness.properties.generalisation import free_parameters
from whereness.properties.probes import identical_scores, position_codes, usable_length, where_of
from zoo import CoPE, DeBERTa, FoX, PaTH, PoPE

NAMES = wn.encodings()


def of_width(encoding, dim: int):
    encoding.dim = dim
    return encoding


def made(name: str, **options):
    return wn.create(name, dim=16, num_heads=2, length=64, **options)


@pytest.fixture(scope="module")
def found():
    """Every registered encoding, measured once."""
    torch.manual_seed(0)
    return {name: wn.measure(made(name), num_positions=64) for name in NAMES}


def passed(properties: Properties, name: str) -> bool | None:
    return {v.name: v.passed for v in properties.verdicts()}[name]


# Every encoding


@pytest.mark.parametrize("name", NAMES)
def test_every_encoding_keeps_its_answers_however_tokens_are_arranged(name, found):
    for field in ("padding", "packing", "decoding"):
        assert getattr(found[name], field) < 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_the_result_is_plain_and_readable(name, found):
    properties = found[name]
    plain = json.loads(json.dumps(properties.as_dict(), allow_nan=False))
    assert set(plain) == {f.name for f in dataclasses.fields(Properties)} | {"verdicts"}
    assert plain["verdicts"] == {v.name: v.passed for v in properties.verdicts()}
    text = str(properties)
    assert text.startswith(f"{properties.encoding}, 64 positions\n")
    for verdict in properties.verdicts():
        assert verdict.title in text
        if verdict.meaning:
            assert (verdict.meaning in text) == (verdict.passed is False)
    for note in properties.notes:
        assert f"note: {note}" in text


@pytest.mark.parametrize("name", NAMES)
def test_the_verdicts_are_those_of_the_design_story(name, found):
    """What the articles say of each encoding, and no more than they say."""
    story = {
        "nope": {"unique": False, "order": False, "monotone": None, "decays": None,
                 "offset_only": None},
        "integer": {"unique": True, "bounded": False, "linear": True, "defined_beyond": True,
                    "familiar": False, "axes": False},
        "binary": {"unique": True, "bounded": True, "linear": False, "process": False},
        "sinusoidal": {"unique": True, "bounded": True, "linear": True, "process": True,
                       "deterministic": True, "defined_beyond": True, "familiar": False,
                       "offset_only": True, "relative": False},
        "learned": {"unique": True, "defined_beyond": False, "deterministic": False,
                    "linear": False, "axes": True},
        "relative_add": {"unique": None, "relative": True, "deterministic": False, "order": None,
                         "monotone": None, "offset_only": None, "linear": None},
        "relative_multiply": {"unique": None, "relative": True, "fused": False},
        "shaw": {"unique": False, "relative": True, "familiar": True, "fused": False},
        "t5": {"unique": False, "relative": True, "familiar": True, "bounded": True},
        "alibi": {"unique": True, "relative": True, "monotone": True, "familiar": True,
                  "bounded": False, "decays": True, "deterministic": True, "axes": False},
        "rope": {"unique": True, "bounded": True, "linear": True, "relative": True, "norm": True,
                 "exact": True, "process": True, "familiar": False, "axes": True,
                 "bandwidth": False},
        "axial_rope": {"unique": True, "relative": True, "norm": True, "exact": True,
                       "axes": True},
        "mixed_rope": {"unique": True, "relative": True, "norm": True, "exact": True,
                       "axes": True},
        "multimodal_rope": {"unique": True, "relative": True, "norm": True, "exact": True,
                            "axes": True},
    }  # fmt: skip
    for verdict, expected in story.get(name, {}).items():
        assert passed(found[name], verdict) is expected, verdict


def test_untrained_constants_are_told(found):
    for name in NAMES:
        expected = name in ("relative_add", "relative_multiply")
        assert found[name].untrained is expected
        # LeRoPE begins as RoPE: its codes are not flat, and its parameters say nothing yet.
        told = any(note.startswith("untrained") for note in found[name].notes)
        assert told is (expected or name == "lerope")


@pytest.mark.parametrize("operation", ["add", "multiply"])
@pytest.mark.parametrize("on", ["logits", "weights"])
def test_a_trained_table_is_seen_through_its_effect_on_scores(operation, on):
    relative = wn.LearnedRelative(2, 40, operation, on)
    offset = torch.arange(-40, 41)
    falling = 1.0 - offset.abs() / 100
    relative.table.data.copy_(falling[:, None].expand(-1, 2))
    properties = wn.measure(relative, num_positions=30)
    assert properties.monotonicity == 1
    assert properties.distance_correlation == pytest.approx(-1)
    assert properties.translation_invariance < 1e-12
    assert not properties.untrained
    relative.table.data.copy_(falling.flip(0).roll(1)[:, None].expand(-1, 2) * -1)
    assert wn.measure(relative, num_positions=30).monotonicity < 0.1


# Probes


def test_codes_of_position_are_the_rows_of_every_site():
    positions = torch.arange(20)
    rows = wn.Sinusoidal(8).rows(positions)
    for site in ("tokens", "every_layer", "queries_keys"):
        for join in ("add", "concat"):
            encoding = exact_copy(wn.Sinusoidal(8, site=site, join=join))
            assert torch.equal(position_codes(encoding, where_of(encoding, positions)), rows)


def test_codes_of_a_rotation_are_the_turned_ones():
    rope = exact_copy(wn.RoPE(6, base=50.0, pairing="interleaved"))
    got = position_codes(rope, where_of(rope, torch.arange(9)))
    for p in range(9):
        for k in range(3):
            a = p * 50 ** (-2 * k / 6)
            expected = (math.cos(a) - math.sin(a), math.cos(a) + math.sin(a))
            assert got[p, 2 * k : 2 * k + 2].tolist() == pytest.approx(expected, abs=1e-12)


def test_scores_are_those_of_plain_matrix_products():
    positions = torch.arange(7)
    sinusoidal, alibi = exact_copy(wn.Sinusoidal(6)), exact_copy(wn.ALiBi(3))
    zeros = torch.zeros(1, 6).double()
    rows = wn.Sinusoidal(6).rows(positions)
    got = identical_scores(sinusoidal, where_of(sinusoidal, positions), zeros)[0, 0]
    torch.testing.assert_close(got, rows @ rows.T, rtol=0, atol=1e-12)
    got = identical_scores(alibi, where_of(alibi, positions), torch.zeros(1, 48).double())[0]
    expected = alibi.bias(positions, positions).double()
    assert torch.equal(got, expected)


def test_scores_average_over_contents():
    shaw = exact_copy(wn.Shaw(4, 3, values=False))
    contents = torch.randn(5, 4).double()
    got = identical_scores(shaw, where_of(shaw, torch.arange(6)), contents)
    for r, q in enumerate(contents):
        for i in range(6):
            for j in range(6):
                row = max(-3, min(3, j - i)) + 3
                expected = float(q @ (q + shaw.key_table[row]))
                assert float(got[r, 0, i, j]) == pytest.approx(expected, abs=1e-12)


def test_codes_of_offsets_count_from_the_own_place():
    t5 = wn.T5(2)
    before = wn.measure(t5, num_positions=16)
    t5.table.data += 7
    after = wn.measure(t5, num_positions=16)
    assert before.code_of == after.code_of == "offset"
    assert after.max_abs == pytest.approx(before.max_abs, abs=1e-5)


def test_the_worst_axis_is_reported():
    encodings = [wn.AxialRoPE(16, 2, base=base) for base in (20.0, 10_000.0)]
    both = wn.AxialRoPE(16, 2, (20.0, 10_000.0))
    first, second, found = (wn.measure(e, num_positions=32) for e in (*encodings, both))
    for field, worst in (("uniqueness", min), ("monotonicity", min), ("lipschitz", max)):
        values = [getattr(p, field) for p in (first, second)]
        assert values[0] != pytest.approx(values[1])
        assert getattr(found, field) == pytest.approx(worst(values))


def test_a_scaled_pass_has_the_factor_that_the_encoding_asks_for():
    x = torch.randn(1, 4, 16).double()
    for encoding, factor in ((wn.RoPE(16), 0.25), (wn.T5(1, scaled=False), 1.0)):
        exact = exact_copy(encoding)
        plain = through(exact, x, where_of(exact, torch.zeros(4).long()))
        scaled = through(exact, x, where_of(exact, torch.zeros(4).long()), scaled=True)
        bias = float(exact.table[0, 0]) if isinstance(exact, wn.T5) else 0.0
        a, b = plain.after["logits"] - bias, scaled.after["logits"] - bias
        torch.testing.assert_close(a * factor, b)
        torch.testing.assert_close(a[0, 0], x[0] @ x[0].T)


def test_sizes_follow_from_the_members():
    assert sizes(wn.NoPE()).dim == sizes(wn.NoPE()).head_dim
    assert sizes(wn.ALiBi(6)).num_heads == 6
    both = wn.Combined([wn.Sinusoidal(12), wn.RoPE(4)])
    assert (sizes(both).dim, sizes(both).num_heads, sizes(both).head_dim) == (12, 3, 4)
    with pytest.raises(ValueError, match="heads that fill the width"):
        wn.measure([wn.Sinusoidal(10), wn.RoPE(4)])


@pytest.mark.parametrize("length", [1, 5, 16, 17, 100])
def test_usable_length(length):
    table = exact_copy(wn.LearnedAbsolute(4, length))
    assert usable_length(table, 50) == min(50, length)


# Single measures that need an encoding


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        (wn.RoPE(16), {1: True, 2: True, 3: True, 4: True}),
        (wn.RoPE(4), {1: True, 2: True, 3: False, 4: False}),
        (wn.AxialRoPE(8, 2), {1: True, 2: True, 3: True, 4: True}),
        (wn.LearnedAbsolute(4, 9), {1: True, 2: True, 3: True, 4: True}),
        (wn.ALiBi(2), {1: True, 2: False, 3: False, 4: False}),
        (wn.NoPE(), None),
    ],
)
def test_extends_to(encoding, expected):
    assert extends_to(encoding) == expected


def test_a_family_that_confuses_two_axes_does_not_extend_to_them():
    class Summed(wn.AxialRoPE):
        def angles(self, positions, lengths=None):
            return super().angles(positions.sum(-1, keepdim=True).expand_as(positions))

    assert extends_to(Summed(16))[2] is False


def test_a_table_that_is_a_parameter_costs_no_bytes():
    class Whole(wn.LearnedAbsolute):
        def tables(self, where):
            return self.table[1:]

    assert cost.table_bytes(Whole(8, 10), 10) == 0


@pytest.mark.parametrize(
    ("encoding", "length", "expected"),
    [
        (wn.Sinusoidal(8), 64, 0),
        (wn.LearnedAbsolute(8, 64), 64, 32 * 8),
        (wn.LearnedAbsolute(8, 64), 40, 20 * 8),
        (wn.LearnedRelative(2, 63), 64, 2 * 32 * 2),
        (wn.LearnedRelative(2, 10), 64, 0),
        (wn.Shaw(8, 31), 64, 0),
        (wn.Shaw(8, 34), 64, 2 * 3 * 8 * 2),  # offsets 32 .. 34, both sides, both tables
        (wn.T5(2, num_buckets=8), 64, 2),  # from 4 * 32^0.75 = 53.8 on it is the last bucket
    ],
)
def test_free_parameters(encoding, length, expected):
    assert free_parameters(exact_copy(encoding), length) == expected


@pytest.mark.parametrize(
    ("encoding", "parameters", "size", "growth", "fused"),
    [
        (wn.NoPE(), 0, 0, "none", True),
        (wn.Sinusoidal(8), 0, 100 * 8 * 8, "O(L)", True),
        (wn.RoPE(8), 0, 2 * 100 * 4 * 4 + 100 * 8, "O(L)", True),
        (wn.LearnedAbsolute(8, 100), 800, 100 * 8 * 4, "O(L)", True),
        (wn.ALiBi(2), 0, 2 * 199 * 4, "O(L)", True),
        (wn.LearnedRelative(2, 9, "multiply"), 38, 2 * 199 * 4, "O(L)", False),
        (wn.Shaw(8, 2), 80, 199 * 8, "O(L)", False),
        (CoPE(8, 4), 32, 0, "none", False),
    ],
)
def test_cost(encoding, parameters, size, growth, fused):
    got = cost.cost(encoding, 100)
    assert (got.parameters, got.table_bytes) == (parameters, size)
    assert (got.table_growth, got.fused) == (growth, fused)


def test_decay_for_independent_contents_is_that_of_the_bias_alone():
    ones = torch.ones(1, 16).double()
    rope = lines.decay(exact_copy(wn.RoPE(16)), 64, ones)
    assert rope["identical"] > 1
    assert abs(rope["independent"]) < 1e-12
    alibi = lines.decay(exact_copy(wn.ALiBi(2)), 64, torch.zeros(1, 32).double())
    # Distances 1 .. 8 against 56 .. 63, slopes 1/16 and 1/256.
    expected = (59.5 - 4.5) * (1 / 16 + 1 / 256) / 2
    assert alibi == pytest.approx({"identical": expected, "independent": expected})


def test_precision_near_the_start_is_the_rounding_of_the_type():
    precision = wn.measure(wn.RoPE(32)).precision
    for dtype, bits in (("float32", 24), ("bfloat16", 8), ("float16", 11)):
        assert set(precision[dtype]) == {0, 1_000, 30_000, 1_000_000}
        # Four roundings (queries, keys, cosines and sines) of products of at most 64 / sqrt(32).
        bound = 4 * 64 / 32**0.5 * 2.0**-bits
        assert all(0 < error < bound for error in precision[dtype].values())


def test_precision_is_none_where_positions_are_not_defined():
    precision = wn.measure(wn.LearnedAbsolute(8, 64), num_positions=32).precision
    assert precision["bfloat16"][0] is not None
    assert precision["bfloat16"][1_000] is None


def test_fractions(found):
    expected = {"integer", "sinusoidal", "alibi", "rope", "axial_rope", "mixed_rope"}
    expected |= {"multimodal_rope", "xpos", "lerope", "fope", "kerple", "sandwich"}
    assert {name for name, p in found.items() if p.fractional} == expected
    assert found["nope"].fractional is None


# Options and borders


def test_grids():
    axial = wn.measure(wn.AxialRoPE(16, 2), num_positions=64)
    assert set(axial.grid) == {"uniqueness", "translation_invariance", "separability", "anisotropy"}
    assert axial.grid["uniqueness"] > 0.1
    assert axial.grid["translation_invariance"] < 1e-12
    assert axial.grid["separability"] < 1e-12
    assert axial.grid["anisotropy"] > 0.01
    table = wn.measure(wn.LearnedAbsolute(16, (9, 7)), num_positions=64)
    assert table.grid["translation_invariance"] > 0.1
    assert table.num_positions == 7
    assert wn.measure(wn.RoPE(16), num_positions=16).grid is None


def test_fewer_positions_than_asked_for_are_told():
    properties = wn.measure(wn.LearnedAbsolute(8, 20))
    assert properties.num_positions == 20
    assert "measured on 20 of 128 positions: it has no more" in properties.notes
    assert properties.defined_beyond is False


@pytest.mark.parametrize("length", [4, 17])
def test_short_texts(length):
    for name in ("learned", "t5", "axial_rope"):
        assert wn.measure(made(name), num_positions=length).num_positions == length


def test_combinations_lists_and_none():
    assert wn.measure([wn.Sinusoidal(16), wn.RoPE(8)], num_positions=16).content == "ones"
    both = wn.measure([wn.RoPE(8), wn.ALiBi(2)], num_positions=32)
    assert (both.encoding, both.content, both.code_of) == ("RoPE+ALiBi", "ones", "position")
    assert both.relative
    assert both.exact_relativity < 1e-9
    assert wn.measure(None, num_positions=16).encoding == "NoPE"


@pytest.mark.parametrize("length", [3, 0, True])
def test_the_number_of_positions_is_checked(length):
    with pytest.raises((ValueError, TypeError), match="num_positions must be"):
        wn.measure(wn.RoPE(8), num_positions=length)


@pytest.mark.untyped
def test_wrong_types_are_refused():
    with pytest.raises(TypeError, match="must be a whereness encoding"):
        wn.measure("rope")
    with pytest.raises(TypeError, match="num_positions must be an int"):
        wn.measure(wn.RoPE(8), num_positions=64.0)
    with pytest.raises(TypeError, match="seed must be an int"):
        wn.measure(wn.RoPE(8), seed=None)


def test_a_table_of_three_rows_is_too_short():
    with pytest.raises(ValueError, match=r"at least 4 positions .* LearnedAbsolute has \[3\]"):
        wn.measure(wn.LearnedAbsolute(8, 3))


def test_the_seed_decides_all():
    shaw = wn.Shaw(8, 4)
    first, again = (wn.measure(shaw, num_positions=16) for _ in range(2))
    assert first == again
    assert wn.measure(shaw, num_positions=16, seed=1) != first


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_encodings_of_other_types(dtype):
    encoding = wn.T5(2).to(dtype)
    assert wn.measure(encoding, num_positions=32).decoding < 1e-12
    assert encoding.table.dtype == dtype


def test_nothing_is_left_behind():
    encoding = wn.LearnedAbsolute(8, 32).train()
    table, state = encoding.table.detach().clone(), torch.get_rng_state()
    attributes, threads = set(vars(encoding)), torch.get_num_threads()
    wn.measure(encoding, num_positions=32)
    assert torch.equal(encoding.table, table)
    assert torch.equal(torch.get_rng_state(), state)
    assert encoding.training
    assert encoding.table.requires_grad
    assert encoding.table.grad is None
    assert set(vars(encoding)) == attributes
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    "make",
    [
        lambda: of_width(DeBERTa(16, 8), 16),
        lambda: CoPE(8, 4),
        lambda: of_width(FoX(16, 2), 16),
        lambda: of_width(PaTH(16, 2, 8), 16),
        lambda: PoPE(8),
    ],
)
def test_encodings_of_the_other_doors_can_be_measured(make):
    properties = wn.measure(make(), num_positions=32)
    assert max(properties.padding, properties.packing, properties.decoding) < 1e-9
    assert properties.relative
    assert properties.learned


def test_the_five_properties_come_first():
    groups = [v.name for v in wn.measure(wn.RoPE(8), num_positions=16).verdicts()]
    assert groups[:9] == [
        "unique", "length_free", "bounded", "linear", "defined_beyond", "familiar",
        "deterministic", "process", "axes",
    ]  # fmt: skip


def test_every_measure_has_its_definition():
    from whereness.properties import consistency, generalisation, precision, rotations, scores

    for module in (codes, scores, rotations, generalisation, precision, consistency, cost):
        for name, function in vars(module).items():
            own = getattr(function, "__module__", None) == module.__name__
            if own and callable(function) and not name.startswith("_"):
                assert function.__doc__, f"{module.__name__}.{name}"
