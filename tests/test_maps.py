"""Maps of positions: in training what the sources say, in eval nothing, and once a forward pass."""

import math

import pytest
import torch

import whereness as wn
from whereness import NOWHERE, Where
from whereness.maps import CAPE, SHAPE, Abacus, Randomized

MAPS = {
    "randomized": lambda: Randomized(100),
    "shape": lambda: SHAPE(50),
    "cape": lambda: CAPE(5.0, 1.0, 1.03),
    "abacus": lambda: Abacus(50),
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(batch: int, length: int) -> Where:
    return Where(torch.arange(length).expand(batch, -1))


@pytest.mark.parametrize("name", MAPS)
def test_eval_mode_changes_nothing(name):
    where, made = rows(2, 5), MAPS[name]()
    assert made.train().move(where, seeded()) is not where
    assert made.eval().move(where, seeded()) is where


@pytest.mark.parametrize("name", MAPS)
def test_a_generator_makes_draws_repeatable_and_each_is_new(name):
    made, where = MAPS[name](), rows(3, 6)
    first, again = (made.move(where, seeded(1)).positions for _ in range(2))
    assert first.equal(again)
    assert not made.move(where, seeded(2)).positions.equal(first)
    generator = seeded(1)
    made.move(where, generator)
    assert not made.move(where, generator).positions.equal(first)
    torch.manual_seed(1)
    first = made.move(where).positions
    torch.manual_seed(1)
    assert made.move(where).positions.equal(first)


@pytest.mark.parametrize("name", MAPS)
def test_tokens_without_a_place_stay_without(name):
    where = Where(torch.tensor([[NOWHERE, 0, 1, 2], [1, NOWHERE, 2, NOWHERE]]))
    found = MAPS[name]().move(where, seeded()).positions
    marked = found.isnan() if found.is_floating_point() else found == NOWHERE
    assert marked.equal(where.positions == NOWHERE)


@pytest.mark.parametrize("name", MAPS)
def test_a_map_opens_no_door_and_has_no_parameter(name):
    made = MAPS[name]()
    assert (made.doors, made.learned, made.relative) == ((), False, True)
    assert repr(made).startswith(type(made).__name__ + "(")


# Each by its source


def test_randomized_gives_the_rank_its_draw():
    drawn = wn.positions.randomized(6, 100, seeded()).tolist()
    where = Where(torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 1, 2]]))
    found = Randomized(100).move(where, seeded()).positions.tolist()
    assert found == [drawn, drawn[:3] * 2]
    # Queries that are the last of the keys move as those do.
    both = Where(torch.tensor([4, 5]), torch.arange(6))
    moved = Randomized(100).move(both, seeded())
    assert (moved.positions.tolist(), moved.k_positions.tolist()) == ([drawn[4:]], [drawn])


def test_randomized_refuses_what_has_no_draw():
    with pytest.raises(ValueError, match="needed 6, got 5"):
        Randomized(5).move(rows(1, 6))
    for bad in ([0, 1, 6], [-1, 0, 1]):
        with pytest.raises(ValueError, match=r"0 \.\. 2.*got"):
            Randomized(100).move(Where(torch.tensor(bad)))
    with pytest.raises(TypeError, match="integer positions"):
        Randomized(100).move(Where(torch.tensor([0.0, 1.0])))


def test_shape_draws_one_shift_a_sequence_from_0_to_the_largest():
    where = rows(400, 3)
    shifts = SHAPE(3).move(where, seeded()).positions - where.positions
    assert shifts.equal(shifts[:, :1].expand(-1, 3))
    assert set(shifts[:, 0].tolist()) == {0, 1, 2, 3}
    counts = torch.bincount(shifts[:, 0]) / 400
    assert ((counts - 0.25).abs() < 0.1).all()
    assert SHAPE(0).move(where, seeded()).positions.equal(where.positions)


def test_shape_moves_all_axes_and_both_sides_by_the_same():
    grid = wn.positions.grid(2, 2).expand(5, -1, -1)
    shifts = SHAPE(9).move(Where(grid, num_axes=2), seeded()).positions - grid
    assert shifts.equal(shifts[:, :1, :1].expand(-1, 4, 2))
    assert len(shifts.unique()) > 1
    both = SHAPE(9).move(Where(torch.tensor([[4, 5]] * 5), torch.arange(6).expand(5, -1)), seeded())
    assert (both.positions - both.k_positions[:, 4:]).abs().max() == 0


@pytest.mark.parametrize("shift", [0.0, 5.0])
@pytest.mark.parametrize("jitter", [0.0, 1.0])
@pytest.mark.parametrize("scale", [1.0, 1.5])
@pytest.mark.parametrize("step", [1.0, 0.03])
def test_cape_draws_within_its_bounds(shift, jitter, scale, step):
    """(p + shift + jitter_p) * scale, told from 4000 sequences."""
    length = 4
    where = Where((torch.arange(length).double() * step).expand(4000, -1))
    found = CAPE(shift, jitter, scale, step=step).move(where, seeded()).positions
    assert found.dtype == torch.float64
    gaps = found.diff(dim=1)
    assert (gaps > 0).all()  # the order of the tokens stays
    if not jitter:
        factors = gaps / step
        assert (factors - factors[:, :1]).abs().max() < 1e-9
        factors = factors[:, 0]
        assert 1 / scale - 1e-9 <= factors.min() and factors.max() <= scale + 1e-9
        logs = factors.log()
        spread = 2 * math.log(scale) / 12**0.5  # of a uniform law
        assert abs(logs.mean()) < 5 * spread / 4000**0.5 + 1e-12
        assert abs(logs.std() - spread) < 0.05 * spread + 1e-9
        shifts = found[:, 0] / factors
        assert shifts.abs().max() <= shift + 1e-9
        assert abs(shifts.mean()) < 5 * 2 * shift / 12**0.5 / 4000**0.5 + 1e-12
        assert abs(shifts.std() - 2 * shift / 12**0.5) < 0.05 * shift + 1e-9
    if jitter and scale == 1.0 and not shift:
        noise = (found - where.positions) / step
        assert noise.abs().max() <= 0.5
        assert abs(noise.std() - 1 / 12**0.5) < 0.01
        assert abs(torch.corrcoef(noise.T)[0, 1]) < 0.1  # each token for itself


def test_cape_draws_for_every_axis_but_scales_once():
    grid = wn.positions.grid(2, 3).expand(50, -1, -1)
    found = CAPE(5.0, 0.0, 1.5).move(Where(grid, num_axes=2), seeded()).positions
    factor = found[:, 3, 0] - found[:, 0, 0]
    torch.testing.assert_close(factor, found[:, 1, 1] - found[:, 0, 1])
    shifts = found[:, 0] / factor[:, None]
    assert (shifts[:, 0] - shifts[:, 1]).abs().max() > 1


def test_a_centred_cape_centres_in_eval_mode_too():
    where = Where(torch.tensor([[0, 1, 2, 3], [NOWHERE, 4, 5, 9]]))
    made = CAPE(0.0, centred=True)
    expected = [[-1.5, -0.5, 0.5, 1.5], [-2.0, -1.0, 3.0]]
    for mode in (True, False):
        found = made.train(mode).move(where, seeded()).positions
        assert found[0].tolist() == expected[0]
        assert found[1, 0].isnan()
        assert found[1, 1:].tolist() == expected[1]


@pytest.mark.parametrize("options", [{"max_local_shift": 1.0}, {"centred": True}], ids=str)
def test_cape_refuses_two_streams_that_it_cannot_tell_apart(options):
    where = Where(torch.arange(2), torch.arange(4))
    with pytest.raises(ValueError, match="one stream"):
        CAPE(1.0, **options).move(where)
    moved = CAPE(1.0).move(where, seeded())
    torch.testing.assert_close(moved.positions, moved.k_positions[:, :2])


def test_abacus_moves_digits_alone_once_a_batch():
    digits = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 1]]).bool()
    where = Where(wn.positions.abacus(digits))
    made, generator = Abacus(3), seeded()
    shifts = [made.move(where, generator).positions - where.positions for _ in range(200)]
    seen = set()
    for shift in shifts:
        assert len(shift[digits].unique()) == 1
        assert (shift[~digits] == 0).all()
        seen.add(int(shift.max()))
    assert seen == {0, 1, 2, 3}


@pytest.mark.untyped
def test_what_no_map_takes():
    for make, error, message in (
        (lambda: Randomized(0), ValueError, "max_position must be at least 1"),
        (lambda: Randomized(2.0), TypeError, "max_position must be an int"),
        (lambda: SHAPE(-1), ValueError, "max_shift must be at least 0"),
        (lambda: Abacus(1.5), TypeError, "max_shift must be an int"),
        (lambda: CAPE(-1.0), ValueError, "max_global_shift must be at least 0"),
        (lambda: CAPE(1.0, -0.1), ValueError, "max_local_shift must be at least 0"),
        (lambda: CAPE(1.0, 0.0, 0.9), ValueError, "max_scale must be at least 1"),
        (lambda: CAPE(math.inf), ValueError, "finite"),
        (lambda: CAPE(1.0, step=0), ValueError, "step must be"),
        (lambda: CAPE(1.0, centred=1), TypeError, "centred must be True or False"),
        (lambda: CAPE("1"), TypeError, "max_global_shift must be a number"),
    ):
        with pytest.raises(error, match=message):
            make()


# In a model


class Seen(wn.RoPE):
    """Keeps the positions of every preparation."""

    def __init__(self) -> None:
        super().__init__(8)
        self.seen: list[torch.Tensor] = []

    def tables(self, where: Where):
        self.seen.append(where.positions)
        return super().tables(where)


def model(encoding, **options) -> wn.Transformer:
    torch.manual_seed(0)
    return wn.Transformer(20, 16, 3, 2, encoding, **options)


IDS = torch.arange(12).view(2, 6)


@pytest.mark.parametrize("name", MAPS)
def test_a_model_moves_once_for_all_layers_and_all_members(name):
    one, two = Seen(), Seen()
    made = MAPS[name]()
    whole = model(wn.schedules.every(2, [made, one], otherwise=[made, two])).train()
    whole(IDS, generator=seeded(4))
    assert [len(e.seen) for e in (one, two)] == [1, 1]
    assert one.seen[0].equal(two.seen[0])
    expected = made.move(rows(2, 6), seeded(4)).positions
    assert one.seen[0].expand(2, -1).equal(expected)
    whole(IDS, generator=seeded(4))
    assert one.seen[1].equal(one.seen[0])
    whole(IDS)
    assert not one.seen[2].equal(one.seen[0])
    whole.eval()(IDS, generator=seeded(4))
    assert one.seen[3].tolist() == [[0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize("name", ["shape", "cape"])
def test_every_sequence_has_a_draw_of_its_own_though_positions_are_shared(name):
    seen = Seen()
    model([MAPS[name](), seen]).train()(IDS, generator=seeded())
    (found,) = seen.seen
    assert found.shape == (2, 6)
    assert not found[0].equal(found[1])
    layer = wn.Attention(16, 2, [MAPS[name](), seen])
    layer(torch.randn(3, 4, 16))
    assert seen.seen[-1].shape == (3, 4)


@pytest.mark.untyped
@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_model_that_moves_compiles_in_one_graph(name, dynamic):
    whole = model([MAPS[name](), wn.RoPE(8)]).train()
    torch._dynamo.reset()
    compiled = torch.compile(whole, fullgraph=True, backend="eager", dynamic=dynamic)
    torch.manual_seed(5)
    found = compiled(IDS)
    torch.manual_seed(5)
    torch.testing.assert_close(found, whole(IDS))


def test_what_joins_the_input_is_moved_with_the_layers():
    whole = model([SHAPE(1000), wn.Sinusoidal(16)]).train()
    by_hand = model(wn.Sinusoidal(16)).train()
    by_hand.load_state_dict(whole.state_dict(), strict=False)
    moved = SHAPE(1000).move(rows(2, 6), seeded(7))
    found = whole(IDS, generator=seeded(7))
    assert found.equal(by_hand(IDS, where=moved))
    assert not found.equal(by_hand(IDS))
    assert whole.eval()(IDS).equal(by_hand(IDS))


def test_a_shifted_model_of_a_relative_encoding_is_the_same_model():
    whole = model([SHAPE(1000), wn.RoPE(8)]).double()
    torch.testing.assert_close(whole.train()(IDS), whole.eval()(IDS), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", MAPS)
def test_a_cache_refuses_moved_positions(name):
    whole = model([MAPS[name](), wn.RoPE(8)])
    caches = whole.new_caches()
    with pytest.raises(ValueError, match=r"eval\(\)"):
        whole.train()(IDS, caches=caches)
    assert len(caches[0]) == 0
    whole.eval()(IDS, caches=caches)
    assert len(caches[0]) == 6
    layer = wn.Attention(16, 2, [MAPS[name](), wn.RoPE(8)], causal=True)
    with pytest.raises(ValueError, match=r"eval\(\)"):
        layer(torch.randn(1, 2, 16), cache=wn.KVCache())


def test_a_shift_leaves_regular_positions_regular():
    where = rows(2, 4).as_regular()
    assert SHAPE(5).move(where, seeded()).regular
    assert not Randomized(9).move(where, seeded()).regular
    assert not CAPE(5.0, 1.0).move(where, seeded()).regular


def test_cape_takes_an_int_that_no_tensor_holds():
    cape = wn.maps.CAPE(2**70)
    assert cape.moved(wn.Where(torch.arange(3)), None).positions.isfinite().all()
