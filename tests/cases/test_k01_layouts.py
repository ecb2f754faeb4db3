"""K01: one pairing for table, rotation and weights, and it is known which.

Axes: B batch, H heads, S tokens, D = 8 head_dim.
"""

import copy
import inspect
import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import whereness as wn
from cases.support import GROUPS, HEAD_DIM, HEADS, bitwise, case, differ, equal, heads
from whereness.interop.weights.checkpoint import convert_checkpoint
from whereness.rotary.base import Rotary

PAIRINGS = ("half", "interleaved")
OTHER = {"half": "interleaved", "interleaved": "half"}
FAR = torch.tensor([0, 1, 2, 5, 40, 1000])
ROTARY = [
    value
    for value in (getattr(wn, name) for name in wn.__all__)
    if inspect.isclass(value) and issubclass(value, Rotary)
]


def sizes(kind: type, head_dim: int) -> dict[str, int]:
    """What a class needs to be made."""
    more = {"num_heads": HEADS} if "num_heads" in inspect.signature(kind).parameters else {}
    more |= {"length": 64} if kind is wn.FoPE else {}
    return {"head_dim": head_dim, **more}


def rope(pairing: str, rotary_dim: int | None = None, side: str = "leading") -> wn.RoPE:
    return wn.RoPE(HEAD_DIM, 100.0, pairing, rotary_dim, side)


def scores(q: torch.Tensor, k: torch.Tensor, encoding: wn.RoPE, where: torch.Tensor):
    q, k = encoding(q, k, where)
    return q @ k.transpose(-1, -2)


def rows(x: torch.Tensor) -> torch.Tensor:
    """(B, H, S, D) -> (H * D, B * S): tokens as the columns of a projection's output."""
    return x.permute(1, 3, 0, 2).flatten(0, 1).flatten(1)


def tokens_of(x: torch.Tensor, count: int, like: torch.Tensor) -> torch.Tensor:
    """The inverse of rows."""
    return x.reshape(count, HEAD_DIM, like.shape[0], like.shape[2]).permute(2, 0, 3, 1)


def converted(x: torch.Tensor, to: str, *options) -> torch.Tensor:
    """The channels of queries or keys as convert_pairing moves the rows that made them."""
    return tokens_of(wn.convert_pairing(rows(x), x.shape[1], HEAD_DIM, to, *options), x.shape[1], x)


@case("P001")
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_one_object_owns_the_table_and_the_rotation(pairing):
    """Every head keeps norms, and scores under a shift; with a table of the other pairing not."""
    q, k, encoding = heads(6, seed=1), heads(6, seed=2), rope(pairing)
    turned, _ = encoding(q, k, FAR)
    for head in range(HEADS):
        equal(turned[:, head].norm(dim=-1), q[:, head].norm(dim=-1))
        before, after = (scores(q, k, encoding, FAR + shift)[:, head] for shift in (0, 7))
        equal(before, after)
    angles = encoding.angles(FAR)
    if pairing == "half":
        table, swapped = angles.repeat_interleave(2, -1), torch.cat([-q[..., 4:], q[..., :4]], -1)
    else:
        table = torch.cat([angles, angles], -1)
        swapped = torch.stack([-q[..., 1::2], q[..., 0::2]], -1).flatten(-2)
    faulty = q * table.cos() + swapped * table.sin()
    assert (faulty.norm(dim=-1) / q.norm(dim=-1) - 1).abs().max() > 0.01
    with pytest.raises(ValueError, match="prepared for another encoding"):
        rope(OTHER[pairing])(q, k, encoding.prepare(FAR))


def toy(seed: int = 0) -> dict[str, torch.Tensor]:
    """int8 projections of 2 heads with a scale a row, and biases."""
    rng = np.random.default_rng(seed)
    made = {}
    for name in ("q", "k"):
        made[f"{name}.weight"] = torch.from_numpy(rng.integers(-127, 128, (16, 12), dtype=np.int8))
        made[f"{name}.scale"] = torch.from_numpy(rng.random((16, 1)) + 0.1)
        made[f"{name}.bias"] = torch.from_numpy(rng.standard_normal(16))
    return made


def toy_scores(weights: dict[str, torch.Tensor], pairing: str) -> torch.Tensor:
    x = torch.linspace(-1, 1, 6 * 12, dtype=torch.float64).reshape(6, 12)
    q, k = (
        (x @ (weights[f"{n}.weight"] * weights[f"{n}.scale"]).T + weights[f"{n}.bias"])
        .unflatten(-1, (2, HEAD_DIM))
        .transpose(0, 1)[None]
        for n in ("q", "k")
    )
    return scores(q, k, rope(pairing), FAR)


@case("P002")
@pytest.mark.parametrize("to", PAIRINGS)
def test_packed_weights_biases_and_scales_of_rows_go_the_same_way(to):
    before = toy()
    there = {n: wn.convert_pairing(t, 2, HEAD_DIM, to) for n, t in before.items()}
    for name, tensor in before.items():
        bitwise(wn.convert_pairing(there[name], 2, HEAD_DIM, OTHER[to]), tensor)
    expected = toy_scores(before, OTHER[to])
    equal(toy_scores(there, to), expected)
    # The plain path: the numbers themselves, converted.
    plain = dict(before)
    for name in ("q", "k"):
        wide = before[f"{name}.weight"] * before[f"{name}.scale"]
        plain[f"{name}.weight"] = wn.convert_pairing(wide, 2, HEAD_DIM, to)
        plain[f"{name}.scale"] = torch.ones(16, 1, dtype=torch.float64)
        plain[f"{name}.bias"] = there[f"{name}.bias"]
    equal(toy_scores(plain, to), expected)
    for part in ("weight", "scale", "bias"):  # what one path forgets
        differ(toy_scores({**there, f"q.{part}": before[f"q.{part}"]}, to), expected)


@case("P004")
def test_the_pairing_travels_with_the_weights(tmp_path):
    """Also with a fused projection and an adapter on it; a second conversion is refused."""
    name = "model.layers.0.self_attn.qkv_proj"
    count = HEADS + 2 * GROUPS
    tensors = {
        f"{name}.weight": torch.randn(count * HEAD_DIM, 5),
        f"{name}.lora_A.default.weight": torch.randn(2, 5),
        f"{name}.lora_B.default.weight": torch.randn(count * HEAD_DIM, 2),
    }
    config = {
        "model_type": "phi3",
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "hidden_size": HEADS * HEAD_DIM,
    }
    folders = [tmp_path / n for n in ("a", "b", "c")]
    folders[0].mkdir()
    save_file(tensors, folders[0] / "model.safetensors")
    (folders[0] / "config.json").write_text(json.dumps(config), encoding="utf-8")
    convert_checkpoint(folders[0], folders[1], "interleaved")
    found = load_file(folders[1] / "model.safetensors")
    bitwise(found[f"{name}.lora_A.default.weight"], tensors[f"{name}.lora_A.default.weight"])
    for part in ("weight", "lora_B.default.weight"):
        wanted = wn.convert_fused_qkv(
            tensors[f"{name}.{part}"], HEADS, HEAD_DIM, GROUPS, "stacked", "interleaved"
        )
        bitwise(found[f"{name}.{part}"], wanted)
    (folders[1] / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for said in (None, "half", "interleaved"):
        with pytest.raises(ValueError, match="interleaved already|does not agree"):
            convert_checkpoint(folders[1], folders[2], "interleaved", said)
    convert_checkpoint(folders[1], folders[2], "half")
    for key, tensor in load_file(folders[2] / "model.safetensors").items():
        bitwise(tensor, tensors[key])


@case("P004")
@pytest.mark.parametrize("to", PAIRINGS)
def test_queries_and_keys_are_permuted_alike(to):
    q, k = heads(6, seed=1), heads(6, seed=2)
    expected = scores(q, k, rope(OTHER[to]), FAR)
    equal(scores(converted(q, to), converted(k, to), rope(to), FAR), expected)
    differ(scores(converted(q, to), k, rope(to), FAR), expected)
    differ(scores(q, k, rope(to), FAR), expected)


SETTINGS = [
    {"base": 100.0},
    {"pairing": "interleaved"},
    {"rotary_dim": 4},
    {"rotary_dim": 6, "rotary_side": "trailing"},
    {"base": 50.0, "pairing": "interleaved", "rotary_dim": 4, "rotary_side": "trailing"},
]


@case("P008")
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_no_setting_is_lost_on_the_way_through_wrappers(settings):
    """By name, in a layer, in a model, copied, in another dtype: what was asked for comes back."""
    made = wn.create("rope", dim=HEADS * HEAD_DIM, num_heads=HEADS, **settings)
    default = wn.RoPE(HEAD_DIM)
    asked = {
        n: settings.get(n, getattr(default, n))
        for n in ("head_dim", "base", "pairing", "rotary_side")
    }
    asked["rotary_dim"] = settings.get("rotary_dim", HEAD_DIM)
    whole = wn.Transformer(9, HEADS * HEAD_DIM, num_heads=HEADS, encoding=made, depth=1)
    layer = wn.Attention(HEADS * HEAD_DIM, HEADS, made)
    for module in (made, whole, layer, copy.deepcopy(whole), copy.deepcopy(made).bfloat16()):
        (found,) = {
            id(m): m
            for m in [*module.modules(), getattr(module, "encoding", None)]
            if (isinstance(m, wn.RoPE))
        }.values()
        read = {n: getattr(found, n) for n in asked}
        assert read == asked
        again = wn.RoPE(**read)
        bitwise(again.rotate(heads(6), FAR), found.rotate(heads(6), FAR))


@case("P008")
@pytest.mark.untyped
@pytest.mark.parametrize("kind", ROTARY, ids=lambda c: c.__name__)
def test_an_unknown_setting_raises_and_never_falls_back(kind):
    for name in inspect.signature(kind).parameters:
        if name in ("pairing", "layout", "order", "rotary_side", "compat"):
            with pytest.raises(ValueError, match=f"{name} must be one of"):
                kind(**{**sizes(kind, HEAD_DIM), name: "no such thing"})
    with pytest.raises(TypeError, match="unexpected keyword"):
        kind(**sizes(kind, HEAD_DIM), rotate_half=True)


@case("P008")
@pytest.mark.untyped
def test_an_unknown_encoding_or_option_by_name_raises():
    with pytest.raises(ValueError, match="Unknown encoding 'dinov3'"):
        wn.create("dinov3", dim=32, num_heads=4)
    with pytest.raises(TypeError, match="rope_type"):
        wn.create("rope", dim=32, num_heads=4, rope_type="axial")


def explicit(x: np.ndarray, positions: np.ndarray, channels: list[tuple[int, int]]) -> np.ndarray:
    """Every pair of channels by its own 2 x 2 matrix."""
    out = x.copy()
    for t, p in enumerate(positions):
        for k, (i, j) in enumerate(channels):
            a = p * 100.0 ** (-k / len(channels))
            matrix = np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]])
            out[..., t, [i, j]] = x[..., t, [i, j]] @ matrix.T
    return out


def channels_of(pairing: str, width: int) -> list[tuple[int, int]]:
    if pairing == "half":
        return [(k, k + width // 2) for k in range(width // 2)]
    return [(2 * k, 2 * k + 1) for k in range(width // 2)]


@case("P009")
@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_both_pairings_at_both_widths_are_explicit_rotations(pairing, width):
    x, encoding = heads(6), rope(pairing, width)
    wanted = explicit(x.numpy(), FAR.numpy(), channels_of(pairing, width))
    np.testing.assert_allclose(encoding.rotate(x, FAR), wanted, rtol=1e-12, atol=1e-12)
    bitwise(encoding.rotate(x, FAR)[..., width:], x[..., width:])


@case("P009")
@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_one_hot_inputs_tell_the_pairing_and_the_width(pairing, width):
    one_hot = torch.eye(HEAD_DIM, dtype=torch.float64)[None, :, None]  # a channel a head
    out = rope(pairing, width).rotate(one_hot, torch.tensor([1]))[0, :, 0]
    mixed = {
        (i, j) for i, j in itertools.combinations(range(HEAD_DIM), 2) if out[i, j].abs() > 1e-9
    }
    assert mixed == set(channels_of(pairing, width))


@case("P010")
@pytest.mark.parametrize("to", PAIRINGS)
def test_weights_of_the_other_pairing_are_right_at_the_first_token_and_wrong_afterwards(to):
    """The signature of the fault: no error at position 0, and one that grows with the angles."""
    layers = [
        wn.Attention(HEADS * HEAD_DIM, HEADS, wn.RoPE(HEAD_DIM, 10_000.0, p), GROUPS, True).double()
        for p in (OTHER[to], to)
    ]
    state = layers[0].state_dict()
    x = torch.randn(1, 40, HEADS * HEAD_DIM, dtype=torch.float64)
    expected = layers[0](x)
    layers[1].load_state_dict(state)
    error = (layers[1](x) - expected).abs().amax(-1)[0]
    assert error[0] < 1e-12
    assert error[1:].max() > 1e-4
    for name, count in (("q_proj", HEADS), ("k_proj", GROUPS)):
        for part in ("weight", "bias"):
            key = f"{name}.{part}"
            if key in state:
                state[key] = wn.convert_pairing(state[key], count, HEAD_DIM, to)
    layers[1].load_state_dict(state)
    equal(layers[1](x), expected)


@case("P010")
def test_the_error_of_a_wrong_pairing_grows_with_the_distance():
    q, k = heads(6, seed=1), heads(6, seed=2)
    errors = []
    for far in (0, 1e-3, 1e-2, 1e-1, 1.0):
        where = wn.Where(torch.full((6,), far, dtype=torch.float64), torch.zeros(6).double())
        found, wanted = (scores(q, k, rope(p), where) for p in PAIRINGS)
        errors.append(float((found - wanted).abs().max()))
    assert errors[0] == 0
    assert errors == sorted(errors) and errors[-1] > 0.1


@case("P011")
@pytest.mark.untyped
@pytest.mark.parametrize("kind", ROTARY, ids=lambda c: c.__name__)
def test_pairing_and_the_order_of_axes_have_names_of_their_own(kind):
    """'interleaved' alone says neither: it is never taken without the name of what it is of."""
    parameters = inspect.signature(kind).parameters
    assert not {"interleaved", "mode", "style", "is_neox", "rotate_half"} & set(parameters)
    options = sizes(kind, 16)
    with pytest.raises((TypeError, ValueError)):
        kind(16, "interleaved")
    with pytest.raises(TypeError, match="unexpected keyword"):
        kind(**options, interleaved=True)
    if "pairing" not in parameters:
        return
    for pairing in PAIRINGS:
        made = kind(**options, pairing=pairing)
        assert made.pairing == pairing
    for name in ("layout", "order"):
        if name in parameters:
            default = parameters[name].default
            assert getattr(kind(**options, pairing="interleaved"), name, default) == default


@case("P012")
@given(
    st.sampled_from([(None, "leading"), (4, "leading"), (6, "trailing"), (2, "trailing")]),
    st.sampled_from(PAIRINGS),
    st.integers(0, 2**16),
)
def test_half_on_permuted_weights_is_interleaved_on_the_original_ones(width, to, seed):
    q, k = heads(6, seed=seed), heads(6, seed=seed + 1)
    expected = scores(q, k, rope(OTHER[to], *width), FAR)
    found = scores(converted(q, to, *width), converted(k, to, *width), rope(to, *width), FAR)
    equal(found, expected, 1e-12)


@case("P014")
def test_a_quarter_turn_of_neighbours():
    """(x0, x1) -> (-x1, x0) for each pair."""
    encoding = wn.RoPE(4, 1.0, "interleaved")  # base 1: every pair turns by the position
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)[None, None, None]
    quarter = torch.tensor([np.pi / 2], dtype=torch.float64)
    equal(encoding.rotate(x, quarter)[0, 0, 0], torch.tensor([-2.0, 1.0, -4.0, 3.0]).double())
    x = heads(3)
    as_complex = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    angles = torch.arange(3.0).double()[:, None] * 100.0 ** (-torch.arange(4.0).double() / 4)
    wanted = torch.view_as_real(as_complex * torch.polar(torch.ones_like(angles), angles))
    equal(rope("interleaved").rotate(x, torch.arange(3)), wanted.flatten(-2), 1e-12)
