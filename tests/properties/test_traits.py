"""Traits are what an encoding does: known ones come out, wrong declarations change nothing."""

import pytest
import torch

import whereness as wn
from whereness.encoding import PositionalEncoding, as_encoding
from whereness.properties import Traits, measured_traits
from zoo import CoPE, FoX, PoPE


def traits(doors, site=None, reads="positions", **told) -> Traits:
    usual = {
        "relative": False, "unbounded": True, "content_aware": False, "cacheable": True,
        "learned": False, "norm_preserving": None,
    }  # fmt: skip
    return Traits(doors=doors, site=site, reads=reads, **{**usual, **told})


def of_width(encoding: PositionalEncoding, dim: int) -> PositionalEncoding:
    encoding.dim = dim
    return encoding


TURNING = {"relative": True, "norm_preserving": True}
LEARNED_BIAS = {"relative": True, "learned": True}

KNOWN = {
    "nope": (wn.NoPE, traits((), reads="nothing", relative=True)),
    "integer": (lambda: wn.Integer(6), traits((1,), "tokens")),
    "integer by length": (lambda: wn.Integer(6, length=4096), traits((1,), "tokens")),
    "binary": (lambda: wn.Binary(16, 16), traits((1,), "tokens", unbounded=False)),
    "binary of 40 bits": (lambda: wn.Binary(40, 40), traits((1,), "tokens", unbounded=False)),
    "sinusoidal": (lambda: wn.Sinusoidal(16), traits((1,), "tokens")),
    "every layer": (
        lambda: wn.Sinusoidal(16, site="every_layer"),
        traits((1,), "every_layer"),
    ),
    "queries and keys": (
        lambda: wn.Sinusoidal(16, site="queries_keys", join="concat"),
        traits((2,), "queries_keys"),
    ),
    "learned": (
        lambda: wn.LearnedAbsolute(8, 16),
        traits((1,), "tokens", unbounded=False, learned=True),
    ),
    "grid": (
        lambda: wn.LearnedAbsolute(8, (6, 7)),
        traits((1,), "tokens", unbounded=False, learned=True),
    ),
    "one position": (
        lambda: wn.LearnedAbsolute(8, 1),
        traits((1,), "tokens", "nothing", unbounded=False, learned=True),
    ),
    "add": (lambda: wn.LearnedRelative(2, 9), traits((4,), **LEARNED_BIAS)),
    "multiply": (lambda: wn.LearnedRelative(2, 9, "multiply"), traits((4,), **LEARNED_BIAS)),
    "add to weights": (
        lambda: wn.LearnedRelative(2, 9, "add", "weights"),
        traits((4,), **LEARNED_BIAS),
    ),
    "multiply weights": (
        lambda: wn.LearnedRelative(2, 9, "multiply", "weights"),
        traits((4,), **LEARNED_BIAS),
    ),
    "refuse": (
        lambda: wn.LearnedRelative(2, 9, beyond="raise"),
        traits((4,), unbounded=False, **LEARNED_BIAS),
    ),
    "shaw": (lambda: wn.Shaw(8, 4), traits((4, 5), content_aware=True, **LEARNED_BIAS)),
    "shaw keys": (
        lambda: wn.Shaw(8, 4, values=False),
        traits((4,), content_aware=True, **LEARNED_BIAS),
    ),
    "t5": (lambda: wn.T5(2), traits((4,), **LEARNED_BIAS)),
    "t5 both ways": (lambda: wn.T5(2, bidirectional=True), traits((4,), **LEARNED_BIAS)),
    "alibi": (lambda: wn.ALiBi(3), traits((4,), relative=True)),
    "kerple": (lambda: wn.KERPLE(3), traits((4,), **LEARNED_BIAS)),
    "kerple power": (lambda: wn.KERPLE(3, "power"), traits((4,), **LEARNED_BIAS)),
    "sandwich": (lambda: wn.Sandwich(3), traits((4,), relative=True)),
    "rope": (lambda: wn.RoPE(16), traits((3,), **TURNING)),
    "partial": (
        lambda: wn.RoPE(64, rotary_dim=2, rotary_side="trailing"),
        traits((3,), **TURNING),
    ),
    "wide": (lambda: wn.RoPE(512), traits((3,), **TURNING)),
    "axial": (lambda: wn.AxialRoPE(24, 3), traits((3,), **TURNING)),
    "pope": (
        lambda: PoPE(16),
        traits((3,), relative=True, learned=True, norm_preserving=False),
    ),
    "cope": (
        lambda: CoPE(8, 16),
        traits((4,), reads="order", content_aware=True, **LEARNED_BIAS),
    ),
    "wide cope": (
        lambda: CoPE(512, 16),
        traits((4,), reads="order", content_aware=True, **LEARNED_BIAS),
    ),
    "fox": (
        lambda: of_width(FoX(8, 2), 8),
        traits((4,), reads="order", content_aware=True, **LEARNED_BIAS),
    ),
    "rope and alibi": (
        lambda: as_encoding([wn.RoPE(8), wn.ALiBi(2)]),
        traits((3, 4), **TURNING),
    ),
    "factor and bias": (
        lambda: as_encoding([wn.LearnedRelative(2, 9, "multiply"), wn.ALiBi(2)]),
        traits((4,), **LEARNED_BIAS),
    ),
    "sinusoid and rope": (
        lambda: as_encoding([wn.Sinusoidal(16), wn.RoPE(8)]),
        traits((1, 3), "tokens", norm_preserving=True),
    ),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", KNOWN)
def test_known_traits(name, seed):
    make, expected = KNOWN[name]
    assert measured_traits(make(), seed=seed) == expected


class ThresholdedBias(wn.ALiBi):
    """Moves with the text up to position 512, as if it were relative."""

    def tables(self, where):
        late = (where.positions > 512).to(torch.float32)[:, None, :, None]
        return self._by_positions(where.positions, where.keys) * (1 + late)


class OnlyFar(wn.RoPE):
    """Turns from position 100 on."""

    def angles(self, positions, lengths=None):
        return super().angles((positions - 100).clamp(min=0))


@pytest.mark.parametrize("encoding", [ThresholdedBias(2), OnlyFar(8)])
def test_a_threshold_is_passed(encoding):
    assert encoding.relative
    assert not measured_traits(encoding).relative


def liar(cls: type, *arguments, **wrong) -> PositionalEncoding:
    return type("Liar", (cls,), wrong)(*arguments)


@pytest.mark.parametrize(
    ("cls", "arguments", "wrong"),
    [
        (wn.Sinusoidal, (8,), {"relative": True}),
        (wn.RoPE, (8,), {"relative": False}),
        (wn.RoPE, (8,), {"cacheable": False}),
        (wn.ALiBi, (2,), {"content_aware": True, "unbounded": False}),
        (wn.ALiBi, (2,), {"doors": (3,)}),
        (wn.Shaw, (8, 2), {"content_aware": False}),
        (wn.Binary, (8,), {"unbounded": True, "learned": True}),
    ],
)
def test_declarations_are_not_believed(cls, arguments, wrong):
    assert measured_traits(liar(cls, *arguments, **wrong)) == measured_traits(cls(*arguments))


def test_a_parameter_that_does_nothing_is_not_learned():
    alibi = wn.ALiBi(2)
    alibi.register_parameter("idle", torch.nn.Parameter(torch.zeros(3)))
    assert alibi.learned
    assert not measured_traits(alibi).learned


def test_an_encoding_without_any_position_is_refused():
    class Nowhere(wn.Sinusoidal):
        def rows(self, positions):
            raise ValueError("never")

    with pytest.raises(ValueError, match="takes no position, not even 0"):
        measured_traits(Nowhere(8))


def test_neither_the_encoding_nor_the_random_state_changes():
    encoding = wn.T5(2).train()
    before, state = encoding.table.detach().clone(), torch.get_rng_state()
    measured_traits(encoding)
    assert torch.equal(encoding.table, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert encoding.training
    assert encoding.table.requires_grad
    assert encoding.table.dtype == torch.float32
