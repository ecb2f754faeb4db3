"""wn.create and wn.encodings: every name, its sizes, its options, and names that do not exist."""

import pytest
import torch

import whereness as wn
from attend.oracle import differ
from whereness.registry import described

ON_A_GRID = {"axial_rope", "mixed_rope", "multimodal_rope"}
NAMES = ("nope", "integer", "binary", "sinusoidal", "learned", "relative_add", "relative_multiply")
NAMES += ("shaw", "t5", "alibi", "rope", "xpos", "lerope", "fope")
NAMES += ("axial_rope", "mixed_rope", "multimodal_rope", "kerple", "sandwich")


def test_the_names_of_the_contract():
    assert wn.encodings() == NAMES


CLASSES = {
    "nope": (wn.NoPE, {}),
    "integer": (wn.Integer, {"dim": 48, "length": None, "site": "tokens"}),
    "binary": (wn.Binary, {"dim": 48, "num_bits": 16, "gray": False}),
    "sinusoidal": (wn.Sinusoidal, {"dim": 48, "base": 10_000.0}),
    "learned": (wn.LearnedAbsolute, {"dim": 48}),
    "relative_add": (
        wn.LearnedRelative,
        {"num_heads": 6, "max_distance": 299, "operation": "add", "on": "logits"},
    ),
    "relative_multiply": (
        wn.LearnedRelative,
        {"num_heads": 6, "max_distance": 299, "operation": "multiply", "on": "logits"},
    ),
    "shaw": (wn.Shaw, {"head_dim": 8, "max_distance": 16, "needs_weights": True}),
    "t5": (wn.T5, {"num_heads": 6, "num_buckets": 32, "max_distance": 128}),
    "alibi": (wn.ALiBi, {"num_heads": 6}),
    "rope": (wn.RoPE, {"head_dim": 8, "base": 10_000.0, "pairing": "half"}),
    "xpos": (wn.XPos, {"head_dim": 8, "scale_base": 512.0, "centre": 0.0}),
    "lerope": (wn.LeRoPE, {"head_dim": 8, "base": 10_000.0, "scaling": None}),
    "fope": (wn.FoPE, {"head_dim": 8, "length": 300, "num_frequencies": 2, "num_kv_heads": 1}),
    "axial_rope": (wn.AxialRoPE, {"head_dim": 8, "num_axes": 2}),
    "mixed_rope": (wn.MixedRoPE, {"head_dim": 8, "num_heads": 6, "num_axes": 2}),
    "multimodal_rope": (wn.MultimodalRoPE, {"head_dim": 8, "num_axes": 3, "sections": (2, 1, 1)}),
    "kerple": (wn.KERPLE, {"num_heads": 6, "kind": "log"}),
    "sandwich": (wn.Sandwich, {"num_heads": 6, "dbar": 128, "head_scale": "divide"}),
}


def on_axes(columns: list[torch.Tensor], num_axes: int) -> wn.Where:
    """The columns, again from the first when there are more axes."""
    chosen = [columns[axis % len(columns)] for axis in range(num_axes)]
    return wn.Where(torch.stack(chosen, -1), num_axes=num_axes)


@pytest.mark.parametrize("name", NAMES)
def test_sizes_follow_from_those_of_the_model(name):
    kind, attributes = CLASSES[name]
    made = wn.create(name, dim=48, num_heads=6, length=300)
    assert type(made) is kind
    for attribute, value in attributes.items():
        assert getattr(made, attribute) == value, attribute


def test_tables_have_a_row_for_every_position_of_the_length():
    for length in (1, 7, 300):
        learned = wn.create("learned", dim=8, num_heads=2, length=length)
        assert learned(torch.tensor([length - 1])).shape == (1, 8)
        with pytest.raises(ValueError, match=f"{length}"):
            learned(torch.tensor([length]))
        for name in ("relative_add", "relative_multiply"):
            relative = wn.create(name, dim=8, num_heads=2, length=length)
            assert relative.table.shape == (2 * length - 1, 2)
        shaw = wn.create("shaw", dim=8, num_heads=2, length=length)
        assert shaw.max_distance == min(16, length - 1)


@pytest.mark.parametrize(("length", "bits"), [(1, 16), (2**16, 16), (2**16 + 1, 17), (2**18, 18)])
def test_bits_suffice_for_the_length(length, bits):
    binary = wn.create("binary", dim=32, num_heads=4, length=length)
    assert binary.num_bits == bits
    binary(torch.tensor([length - 1]))


def test_the_usual_length_is_2048():
    assert wn.create("relative_add", dim=8, num_heads=2).max_distance == 2047
    wn.create("learned", dim=8, num_heads=2)(torch.tensor([2047]))


@pytest.mark.parametrize("length", [1, 2, 33])
@pytest.mark.parametrize("name", NAMES)
def test_every_encoding_runs_at_its_length(name, length):
    made = wn.create(name, dim=32, num_heads=4, length=length)
    torch.manual_seed(0)
    model = wn.Transformer(20, 32, 2, 4, made).double().eval()
    ids = torch.arange(length)[None] % 20
    where = torch.arange(length)
    if name in ON_A_GRID:
        where = on_axes([where, where.flip(0)], made.num_axes)
    out = model(ids, where=where)
    assert out.shape == (1, length, 20)
    assert out.isfinite().all()
    if name not in ON_A_GRID:
        torch.testing.assert_close(model(ids), out)
    # the largest position alone, and beside the smallest
    ends = torch.tensor([0, length - 1])
    if name in ON_A_GRID:
        ends = on_axes([ends], made.num_axes)
    assert model(ids[:, :1].expand(1, 2), where=ends).isfinite().all()
    # and it does something (the norm hides a raw integer, which is the same in every channel)
    if name not in ("nope", "integer") and length > 2:
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.normal_()
        plain = wn.Transformer(20, 32, 2, 4).double().eval()
        plain.load_state_dict(
            {n: t for n, t in model.state_dict().items() if n in plain.state_dict()}
        )
        differ(model(ids, where=where), plain(ids))


@pytest.mark.parametrize("name", NAMES)
def test_every_call_makes_a_new_encoding(name):
    one, two = (wn.create(name, dim=32, num_heads=4) for _ in range(2))
    assert one is not two


def test_options_replace_and_add_to_the_sizes():
    shaw = wn.create("shaw", dim=32, num_heads=4, max_distance=3, values=False)
    assert (shaw.max_distance, shaw.needs_weights, shaw.head_dim) == (3, False, 8)
    sinusoidal = wn.create(
        "sinusoidal", dim=32, num_heads=4, site="every_layer", base=100.0, join="concat"
    )
    assert (sinusoidal.site, sinusoidal.base, sinusoidal.join) == ("every_layer", 100.0, "concat")
    assert wn.create("rope", dim=32, num_heads=4, head_dim=16, rotary_dim=4).rotary_dim == 4
    assert wn.create("axial_rope", dim=32, num_heads=4, num_axes=4).num_axes == 4
    relative = wn.create("relative_multiply", dim=32, num_heads=4, on="weights", beyond="raise")
    assert (relative.operation, relative.on, relative.beyond) == ("multiply", "weights", "raise")
    assert wn.create("t5", dim=32, num_heads=4, bidirectional=True).causal_only is False
    assert wn.create("learned", dim=32, num_heads=4, num_positions=(2, 3)).num_axes == 2
    assert wn.create("binary", dim=32, num_heads=4, num_bits=5).num_bits == 5


@pytest.mark.untyped
def test_options_that_do_not_exist():
    with pytest.raises(TypeError, match="basis"):
        wn.create("rope", dim=32, num_heads=4, basis=100.0)
    with pytest.raises(TypeError, match="site"):
        wn.create("nope", dim=32, num_heads=4, site="tokens")


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("rop", "rope"),
        ("alibby", "alibi"),
        ("sinusoid", "sinusoidal"),
        ("relative_ad", "relative_add"),
        ("axialrope", "axial_rope"),
        ("learned_", "learned"),
    ],
)
def test_a_name_that_does_not_exist_is_answered_with_the_nearest(wrong, meant):
    with pytest.raises(
        ValueError, match=f"Unknown encoding '{wrong}': did you mean '{meant}'.*nope, .*axial_rope"
    ):
        wn.create(wrong, dim=32, num_heads=4)


@pytest.mark.parametrize("wrong", ["ALIBI", "Alibi", "RoPE", "T5", "NoPE", "Shaw"])
def test_another_spelling_of_a_name_is_answered_with_it(wrong):
    with pytest.raises(ValueError, match=f"did you mean '{wrong.lower()}'"):
        wn.create(wrong, dim=32, num_heads=4)


def test_a_name_near_to_none_lists_them_all():
    with pytest.raises(ValueError, match="Unknown encoding 'zzzz': The names are nope, integer"):
        wn.create("zzzz", dim=32, num_heads=4)


@pytest.mark.untyped
def test_sizes_that_make_no_sense():
    good = {"dim": 32, "num_heads": 4, "length": 10}
    for size in good:
        for bad in (0, -3):
            with pytest.raises(ValueError, match=f"{size} must be at least 1, got {bad}"):
                wn.create("nope", **{**good, size: bad})
        for bad in (2.0, "8", None, True):
            with pytest.raises(TypeError, match=f"{size} must be an int"):
                wn.create("nope", **{**good, size: bad})
    with pytest.raises(ValueError, match="dim must be a multiple of num_heads, got 32 and 5"):
        wn.create("rope", dim=32, num_heads=5)
    with pytest.raises(TypeError, match="positional"):
        wn.create("rope", 32, 4)


@pytest.mark.untyped
@pytest.mark.parametrize("bad", [None, 3, wn.RoPE])
def test_a_name_that_is_no_name(bad):
    with pytest.raises((TypeError, ValueError), match="name|Unknown encoding"):
        wn.create(bad, dim=32, num_heads=4)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", wn.encodings())
def test_a_described_encoding_is_the_one_that_is_created(name, causal):
    sizes = {"dim": 32, "num_heads": 2, "length": 20, "causal": causal}
    told = described(name, **sizes)
    ours, theirs = eval(f"wn.{told}", {"wn": wn}), wn.create(name, **sizes)
    assert type(ours) is type(theirs)
    simple = (bool, int, float, str, tuple, type(None))
    one, two = ({k: v for k, v in vars(e).items() if isinstance(v, simple)} for e in (ours, theirs))
    assert one == two
    shapes = [[(n, p.shape) for n, p in e.named_parameters()] for e in (ours, theirs)]
    assert shapes[0] == shapes[1]


def test_a_description_shows_defaults_as_well():
    assert described("nope", dim=8, num_heads=2) == "NoPE()"
    assert described("shaw", dim=64, num_heads=4) == (
        "Shaw(head_dim=16, max_distance=16, values=True)"
    )
    assert "bidirectional=True" in described("t5", dim=8, num_heads=2, causal=False)
