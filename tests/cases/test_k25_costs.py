"""K25: a bias costs what it must: a strip of offsets, made once for all layers, never S x T."""

import pytest
import torch

import whereness as wn
from cases.support import DIM, HEADS, case, encoding, equal, model, tokens
from whereness.cli import env
from whereness.kernels import rotary
from whereness.relative.bias import OffsetBias, Strip

BIASES = ("relative_add", "t5", "alibi", "kerple", "sandwich")


def watched(made: OffsetBias, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Everything that preparations of encodings of this kind give from now on."""
    given, tables = [], type(made).tables

    def kept(self: OffsetBias, where: wn.Where) -> object:
        given.append(tables(self, where))
        return given[-1]

    monkeypatch.setattr(type(made), "tables", kept)
    return given


@case("P235")
@pytest.mark.parametrize("name", BIASES)
def test_a_bias_is_lazy_and_small(name, monkeypatch):
    """Less than a megabyte for 4096 tokens and 8 heads, where a table would hold 512."""
    length = 4096
    made = wn.create(name, dim=64, num_heads=8, length=length)
    given = watched(made, monkeypatch)
    q = torch.zeros(1, 8, 1, 8)
    k = torch.zeros(1, 8, length, 8)
    with torch.no_grad():
        wn.attention(q, k, k, made, causal=True)
        made.prepare(wn.Where(torch.arange(length)).as_regular())
    row, strip = given
    for held, numbers in ((row, length), (strip, 2 * length - 1)):
        assert isinstance(held, Strip)
        assert held.values.shape == (8, numbers)
        assert held.values.untyped_storage().nbytes() < 2**20
    assert wn.ALiBi(8).slopes.nbytes == 32


@case("P235")
@pytest.mark.parametrize("name", BIASES)
def test_the_table_is_made_on_request_and_says_the_same(name):
    made, line = encoding(name), torch.arange(7)
    at = made.prepare(wn.Where(line).as_regular())
    equal(at.bias()[0], made.bias(line, line), 0.0)


@case("P235")
@pytest.mark.parametrize("name", BIASES)
def test_layers_share_what_was_prepared_once(name, monkeypatch):
    whole = model(encoding(name), depth=3)
    given = watched(whole.encodings[0], monkeypatch)
    whole(tokens(9))
    assert len(whole.blocks) == 3 and len(given) == 1


@case("P235")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_bias_far_away_is_not_rounded_to_the_type_of_the_model(dtype):
    """-slope * 4095 has no bfloat16: keys there would share a bias."""
    made, length = wn.ALiBi(HEADS), 4096
    q = torch.zeros(1, HEADS, 1, DIM, dtype=dtype)
    k = torch.zeros(1, HEADS, length, DIM, dtype=dtype)
    v = torch.zeros(1, HEADS, length, 1, dtype=torch.float64)
    v[:, :, 0] = 1
    mask = torch.zeros(1, length, dtype=torch.bool)
    mask[:, :2] = True  # the two farthest keys: exp(-slope) apart
    out = wn.attention(q, k, v.to(dtype), made, causal=True, mask=mask)
    expected = (-made.slopes.double()).exp() / (1 + (-made.slopes.double()).exp())
    equal(out[0, :, 0, 0].double(), expected, 2.0**-8)


@case("P234")
@pytest.mark.parametrize("layout", ["bhsd", "bshd", "thd"])
def test_one_path_serves_every_layout_and_says_which(layout, monkeypatch):
    served = []
    name = rotary.backend(torch.device("cpu"))
    write = rotary._writer(name)

    def counted(*arguments):
        served.append(name)
        return write(*arguments)

    monkeypatch.setattr(rotary, "_usual_writer", lambda _: counted)
    x = torch.randn(1, 2, 5, 8)
    x = {"bhsd": x, "bshd": x.transpose(1, 2), "thd": x[0].transpose(0, 1)}[layout]
    rope = wn.RoPE(8)
    rope(x, x, layout=layout)
    rope.rotate_(x.clone(), torch.arange(5), layout=layout)
    assert served == [name] * 2
    assert (name == "native") == (env.kernels() == "native")
    assert (name == "native") == (rotary.reason(torch.device("cpu")) == "")


@case("P236")
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_bfloat16_is_rounded_once(pairing):
    """By float64 numbers: half a place of the result, and what float32 leaves of its terms."""
    rope, x = wn.RoPE(64, pairing=pairing), torch.randn(1, 2, 64, 64).bfloat16()
    found, exact = rope.rotate(x).double(), rope.rotate(x.double())
    bound = exact.abs() * 2.0**-8 + 2.0**-20 * x.double().abs().max()
    assert ((found - exact).abs() <= bound).all()


@case("P232")
def test_a_hundred_lengths_keep_nothing():
    rope = wn.RoPE(8)
    x = torch.randn(1, 2, 100, 8)
    before = {n: id(v) for n, v in vars(rope).items()}
    for length in range(1, 101):
        rope.rotate(x[:, :, :length])
    assert {n: id(v) for n, v in vars(rope).items()} == before
    assert not list(rope.buffers())
