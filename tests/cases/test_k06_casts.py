"""K06: casts never change angles, slopes or buckets; only a result may be rounded."""

import mpmath
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import whereness as wn
from cases.support import HEAD_DIM, HEADS, bitwise, case, differ, heads, model, tokens
from rotary.scaled import EVERY

HALF_TYPES = (torch.bfloat16, torch.float16)
ROUNDED_ONCE = 2.0**-24
FAR = 2**24 - 1
BASE = 10_000.0


def ones_in_every_pair(rope: wn.RoPE, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Vectors whose every pair is (1, 0): turned, they are (cos, sin)."""
    half = torch.ones(rope.head_dim // 2, dtype=dtype)
    return torch.cat([half, 0 * half]).expand(1, 1, count, -1)


def table(rope: wn.RoPE, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(S, D): cosines, then sines, as a query of this dtype meets them."""
    return rope.rotate(ones_in_every_pair(rope, len(positions), dtype), positions)[0, 0]


def exact_table(positions: list[int], dim: int, base: float = BASE) -> torch.Tensor:
    """The same from the formula at 50 digits."""
    with mpmath.workdps(50):
        speeds = [mpmath.mpf(base) ** (mpmath.mpf(-2 * k) / dim) for k in range(dim // 2)]
        rows = [[f(p * w) for f in (mpmath.cos, mpmath.sin) for w in speeds] for p in positions]
        return torch.tensor([[float(x) for x in row] for row in rows], dtype=torch.float64)


def numpy_table(positions: np.ndarray, dim: int, base: float = BASE) -> torch.Tensor:
    """The same in numpy's float64, for many positions."""
    angles = positions[:, None] * base ** (-2 * np.arange(dim // 2) / dim)
    return torch.from_numpy(np.concatenate([np.cos(angles), np.sin(angles)], -1))


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return (found.double() - exact).abs().max().item()


def distinct(positions: torch.Tensor) -> int:
    return len(positions.unique())


@case("P062")
@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_every_position_below_4096_keeps_its_angles_in_a_cast_module(dtype):
    rope, positions = wn.RoPE(32).to(dtype), torch.arange(4096)
    exact = numpy_table(np.arange(4096), 32)
    assert error(table(rope, positions, torch.float32), exact) <= ROUNDED_ONCE
    # The only loss is that of the output's own type: 8 or 11 bits of a number of at most 1.
    eps = torch.finfo(dtype).eps
    assert error(table(rope, positions, dtype), exact) <= eps / 2
    assert distinct(torch.arange(4096).to(torch.bfloat16)) == 769  # what the fault would leave


@case("P062")
@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize("name", ["rope", "axial_rope", "sinusoidal", "alibi"])
def test_a_cast_of_the_whole_model_changes_no_constant(name, dtype):
    at = torch.tensor([255, 257, 1023, 4095, 32767])

    def constants(whole: wn.Transformer) -> torch.Tensor:
        if name == "sinusoidal":
            return whole.inputs(at)
        encoding = whole.encodings[0]
        return (
            encoding.bias(at, at)
            if name == "alibi"
            else encoding.exactly(encoding.prepare(at).data.queries).cos
        )

    whole = model(name)
    before = constants(whole)
    bitwise(constants(whole.to(dtype)), before)


@case("P063")
def test_frequencies_are_never_rounded_before_the_product():
    rope, positions = wn.RoPE(128).bfloat16(), [100, 1000, 4095]
    exact = exact_table(positions, 128)
    found = table(rope, torch.tensor(positions), torch.float32)
    assert error(found, exact) <= ROUNDED_ONCE
    assert rope.frequencies.dtype == torch.float64
    # What rounded frequencies would give.
    rounded = rope.frequencies.bfloat16().double()
    wrong = (torch.tensor(positions)[:, None] * rounded).cos()
    errors = (wrong - exact[:, :64]).abs().amax(-1)
    assert (errors > torch.tensor([0.1, 0.8, 1.5])).all()


class TensorFloat(TorchDispatchMode):
    """Matrix products whose inputs keep 10 bits of mantissa, as TF32 does; counts them."""

    PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "dot", "vdot", "linear", "matmul")

    def __init__(self) -> None:
        super().__init__()
        self.products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in self.PRODUCTS:
            self.products += 1
            args = [self._rounded(a) if isinstance(a, torch.Tensor) else a for a in args]
        return func(*args, **(kwargs or {}))

    @staticmethod
    def _rounded(x: torch.Tensor) -> torch.Tensor:
        fraction, exponent = torch.frexp(x)
        return torch.ldexp((fraction * 2**11).round() / 2**11, exponent)


@case("P065")
def test_the_emulated_low_precision_product_is_in_force():
    positions = torch.tensor([[2049.0]], dtype=torch.float64)
    with TensorFloat() as mode:
        assert (positions @ torch.ones(1, 1, dtype=torch.float64)).item() == 2048
    assert mode.products == 1


@case("P065")
@pytest.mark.parametrize("name", ["rope", "axial_rope", "sinusoidal", "alibi", "t5"])
def test_no_position_passes_through_a_matrix_product(name):
    positions = torch.arange(2040, 2060)
    encoding = wn.create(name, dim=64, num_heads=4, **{"axial_rope": {"num_axes": 1}}.get(name, {}))

    def made() -> torch.Tensor:
        if name == "sinusoidal":
            return encoding(positions)
        if name in ("alibi", "t5"):
            return encoding.bias(positions, positions - 2000).detach()
        return table(encoding, positions, torch.float32)

    plain = made()
    with TensorFloat() as mode:
        patched = made()
    bitwise(patched, plain)
    assert mode.products == 0


@case("P066")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_no_table_whatever_length_comes_next(dtype):
    rope, sinusoidal, alibi = wn.RoPE(HEAD_DIM), wn.Sinusoidal(8), wn.ALiBi(HEADS)

    def made(length: int) -> list[torch.Tensor]:
        ids = torch.arange(length)
        return [table(rope, ids, torch.float32), sinusoidal(ids), alibi.bias(ids[-1:], ids)]

    lengths = (3, 5000, 7)
    plain = [made(length) for length in lengths]
    rope.to(dtype)
    with torch.autocast("cpu", dtype):
        low = [made(length) for length in lengths]
    for p, q in zip(plain, low, strict=True):
        for a, b in zip(p, q, strict=True):
            bitwise(b, a)


def far_weights(encoding: wn.PositionalEncoding, implementation: str) -> torch.Tensor:
    """Weights on far keys only: their biases are hundreds of logits that differ by little."""
    where = wn.Where(torch.tensor([1000]), torch.arange(600))
    q, k = (torch.zeros(1, HEADS, n, HEAD_DIM) for n in (1, 600))
    v = torch.eye(600).expand(1, HEADS, -1, -1)
    out = wn.attention(q, k, v, encoding, where=where, implementation=implementation)
    return out.detach().float()


@case("P066", "P067", "P062")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("setting", EVERY, ids=str)
def test_neither_casts_nor_autocast_change_a_scaled_table(setting, dtype):
    """Short, long, short: where a table is made anew, nothing that was cast takes part."""
    rope = setting.make()

    def made() -> list[torch.Tensor]:
        ids = torch.tensor([3, 257, 4095])
        prepared = [rope.prepare(wn.Where(ids, lengths=n)) for n in (5, 30, 8, 9)]
        return [
            t for at in prepared for t in (*rope.exactly(at.data.queries), *at.data.queries[:2])
        ]

    plain = made()
    rope.to(dtype)
    with torch.autocast("cpu", dtype):
        low = made()
    rope.to(torch.float32)
    for a, b, c in zip(plain, low, made(), strict=True):
        bitwise(b, a)
        bitwise(c, a)


@case("P066")
@pytest.mark.parametrize("implementation", ["auto", "reference"])
@pytest.mark.parametrize("kind", ["alibi", "learned"])
def test_autocast_does_not_round_a_bias(kind, implementation):
    encoding = wn.ALiBi(HEADS)
    if kind == "learned":
        encoding = wn.LearnedRelative(HEADS, 1000)
        encoding.table.data.copy_(torch.linspace(300, 306, 2001)[:, None].expand(-1, HEADS))
    plain = far_weights(encoding, implementation)
    with torch.autocast("cpu", torch.bfloat16):
        low = far_weights(encoding, implementation)
    # A weight itself may be rounded to bfloat16; whole logits may not move.
    assert ((low - plain).abs() <= 2.0**-7 * plain + 1e-6).all()


@case("P067")
@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_a_round_trip_through_a_half_type_gives_the_table_back(dtype):
    rope, alibi, sinusoidal = wn.RoPE(64), wn.ALiBi(12), wn.Sinusoidal(64)
    ids = torch.tensor([1, 255, 4095, 131_071])
    made = lambda: [table(rope, ids, torch.float32), alibi.bias(ids, ids), sinusoidal(ids)]  # noqa: E731
    before = made()
    for module in (rope, alibi, sinusoidal):
        module.to(dtype).to(torch.float32)
    for a, b in zip(made(), before, strict=True):
        bitwise(a, b)


@case("P067")
def test_no_encoding_keeps_a_constant_where_a_cast_could_reach_it():
    for name in wn.encodings():
        encoding = wn.create(name, dim=32, num_heads=4)
        floats = [n for n, b in encoding.named_buffers() if b.is_floating_point()]
        assert not floats, name


@case("P069")
@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_slopes_stay_exact_in_a_cast_module(dtype):
    alibi = wn.ALiBi(8).to(dtype)
    assert alibi.slopes.dtype == torch.float32
    assert alibi.slopes.tolist() == [2.0**-n for n in range(1, 9)]
    odd = wn.ALiBi(12).to(dtype)
    assert odd.slopes[8:].tolist() == [np.float32(2.0 ** -(n + 0.5)) for n in range(4)]
    bias = alibi.bias(torch.tensor([100_001]), torch.tensor([0]))
    assert bias.dtype == torch.float32
    assert bias[0].item() == -50_000.5


@case("P069")
def test_buckets_do_not_move_when_their_table_is_cast():
    offsets, t5 = torch.arange(-3000, 1), wn.T5(HEADS)
    before = t5.buckets(offsets)
    bitwise(t5.half().buckets(offsets), before)
    assert t5.bias(torch.tensor([3000]), torch.arange(3001)).dtype == torch.float32


@case("P072")
def test_the_error_stays_within_its_budget_up_to_the_last_promised_position():
    positions = [262_143, 262_144, 262_145, 1_000_000, 8_388_609, FAR]
    exact = exact_table(positions, 128)
    rope = wn.RoPE(128)
    found = table(rope, torch.tensor(positions), torch.float32)
    assert error(found, exact) <= ROUNDED_ONCE
    # What float32 angles would cost at a million.
    wrong = (torch.tensor(1_000_000.0) * rope.frequencies.float()).cos()
    assert error(wrong, exact[3, :64]) > 1e-3


@case("P072")
@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_neighbours_far_out_stay_apart_in_half_precision(dtype):
    rope = wn.RoPE(64)
    positions = torch.tensor([262_144, 262_145, 262_146])
    found = table(rope, positions, dtype)
    assert error(found, exact_table(positions.tolist(), 64)) <= torch.finfo(dtype).eps / 2
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2])


@case("P072")
@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_half_precision_inputs_are_turned_in_float32_and_rounded_once(pairing, dtype):
    rope, x = wn.RoPE(HEAD_DIM, pairing=pairing), heads(200, dtype=dtype)
    positions = torch.arange(262_144, 262_344)
    exact = rope.rotate(x.double(), positions)
    off = (rope.rotate(x, positions).double() - exact).abs()
    largest = x.double().abs().amax()
    # Half a unit in the last place of the result, and what float32 lost before.
    assert (off <= torch.finfo(dtype).eps / 2 * exact.abs() + 2.0**-22 * largest).all()


CONSTRUCTORS = ("arange", "tensor", "linspace", "full", "ones", "zeros", "empty", "rand", "randn")


def lowered(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Constructors that give bfloat16 values for every float, as sharded initialisation does."""

    def wrap(original):
        def made(*args, **kwargs):
            x = original(*args, **kwargs)
            if x.is_floating_point():
                x.data = x.data.to(torch.bfloat16)
            return x

        return made

    for name in names:
        monkeypatch.setattr(torch, name, wrap(getattr(torch, name)))


def everything(ids: torch.Tensor) -> list[torch.Tensor]:
    """Tables of encodings that are built and used here."""
    rope, axial = wn.RoPE(32), wn.AxialRoPE(32, 1)
    return [
        *(r.exactly(r.prepare(ids).data.queries).cos for r in (rope, axial)),
        *(r.exactly(r.prepare(ids).data.queries).sin for r in (rope, axial)),
        wn.Sinusoidal(16)(ids),
        wn.ALiBi(6).bias(ids[-1:], ids),
        wn.T5(1).buckets(-ids),
        rope.frequencies,
    ]


@case("P073")
def test_a_lowered_arange_loses_no_position():
    ids = torch.arange(4096)
    before = everything(ids)
    with pytest.MonkeyPatch.context() as patch:
        lowered(patch, "arange")
        assert distinct(torch.arange(4096, dtype=torch.float32)) == 769  # the fault is in force
        after = everything(torch.arange(4096))
    for a, b in zip(after, before, strict=True):
        bitwise(a, b)


@case("P073")
@pytest.mark.parametrize("name", ["rope", "sinusoidal", "alibi", "learned"])
def test_a_lowered_arange_reaches_no_position_that_the_library_fills_in(name):
    """300 tokens, since 257 is the first that bfloat16 loses."""
    whole = model(wn.LearnedAbsolute(32, 300) if name == "learned" else name)
    q, ids = heads(300), tokens(300)

    def filled_in() -> list[torch.Tensor]:
        rope, caches = wn.RoPE(HEAD_DIM), whole.new_caches()
        steps = [whole(part, caches=caches) for part in ids.split([290, 10], 1)]
        return [*rope(q, q), wn.attention(q, q, q, rope, causal=True), whole(ids), *steps]

    with torch.no_grad():
        before = filled_in()
        with pytest.MonkeyPatch.context() as patch:
            lowered(patch, "arange")
            after = filled_in()
    for a, b in zip(after, before, strict=True):
        bitwise(a, b)


@case("P073")
def test_encodings_built_under_lowered_constructors_are_the_same_afterwards():
    whole = model("rope")
    ids = tokens(30)
    before = whole(ids)
    with pytest.MonkeyPatch.context() as patch:
        lowered(patch, *CONSTRUCTORS)
        rope, alibi, sinusoidal = wn.RoPE(32), wn.ALiBi(6), wn.Sinusoidal(16)
        built = wn.Transformer(50, 32, 2, HEADS, wn.RoPE(HEAD_DIM), num_kv_heads=2)
    far = torch.tensor([257, 4095])
    assert error(table(rope, far, torch.float32), exact_table([257, 4095], 32)) <= ROUNDED_ONCE
    bitwise(alibi.bias(far, far), wn.ALiBi(6).bias(far, far))
    bitwise(sinusoidal(far), wn.Sinusoidal(16)(far))
    built.double().eval().load_state_dict(whole.state_dict())
    bitwise(built(ids), before)


@case("P073")
def test_tables_built_under_lowered_constructors_are_right_or_refused():
    ids = torch.tensor([0, 257, 4095])
    before = everything(ids)
    with pytest.MonkeyPatch.context() as patch:
        lowered(patch, *CONSTRUCTORS)
        try:
            after = everything(ids)
        except (TypeError, ValueError, RuntimeError):
            return
    for a, b in zip(after, before, strict=True):
        bitwise(a, b)


@case("P073")
@pytest.mark.parametrize("setting", EVERY, ids=str)
def test_scaled_encodings_are_the_same_whatever_lowers_floats(setting):
    """Built, prepared and used inside; their constants are lists of floats and lengths."""
    x = heads(30)

    def turned(rope: wn.RoPE) -> torch.Tensor:
        return rope.rotate(x, wn.Where(torch.arange(30), lengths=30))

    before = turned(setting.make())
    with pytest.MonkeyPatch.context() as patch:
        lowered(patch, *CONSTRUCTORS)
        rope = setting.make()
        inside = turned(rope)
        frequencies = [rope.frequencies_at(n) for n in (1, 8, 30)]
    bitwise(turned(rope), before)
    bitwise(inside, before)
    for n, found in zip((1, 8, 30), frequencies, strict=True):
        bitwise(found, setting.make().frequencies_at(n))


@case("P073")
@pytest.mark.parametrize("dtype", [*HALF_TYPES, torch.float64])
def test_the_default_dtype_changes_no_table(dtype):
    ids = torch.arange(0, 4096, 5)
    before = everything(ids)
    torch.set_default_dtype(dtype)
    try:
        after = everything(ids)
    finally:
        torch.set_default_dtype(torch.float32)
    for a, b in zip(after, before, strict=True):
        bitwise(a, b)


SCALED = {
    setting.name: setting.make
    for setting in EVERY
    if setting.scaling.needs_lengths or not setting.scaling.keeps_norms
}
ROTARIES = {
    **SCALED,
    "xpos": lambda: wn.XPos(HEAD_DIM),
    "lerope": lambda: wn.LeRoPE(HEAD_DIM),
    "fope": lambda: wn.FoPE(HEAD_DIM, 100.0, length=40),
    "compat": lambda: wn.RoPE(HEAD_DIM, scaling=wn.scaling.YaRN(4.0, 64), compat="huggingface"),
    "half": lambda: wn.RoPE(HEAD_DIM),
    "interleaved": lambda: wn.RoPE(HEAD_DIM, pairing="interleaved"),
    "leading": lambda: wn.RoPE(HEAD_DIM, rotary_dim=4),
    "trailing": lambda: wn.RoPE(HEAD_DIM, rotary_dim=4, rotary_side="trailing"),
    "axial blocks": lambda: wn.AxialRoPE(HEAD_DIM, 1),
    "axial heads": lambda: wn.AxialRoPE(HEAD_DIM, 1, layout="heads"),
}


@case("P074")
@pytest.mark.parametrize("dtype", [*HALF_TYPES, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ROTARIES)
def test_queries_and_keys_leave_in_the_type_they_came_in(name, dtype):
    rope, ids = ROTARIES[name](), torch.arange(5)
    q, k = heads(5, dtype=dtype), heads(5, 2, seed=3, dtype=dtype)
    for found in (
        *rope(q, k, ids),
        rope.rotate(q, ids),
        rope.rotate(k, ids, inverse=True),
        rope.rotate_(q.clone(), ids),
        *rope.queries_keys(q, k, rope.prepare(ids), {}),
    ):
        assert found.dtype == dtype
    differ(rope(q, k, ids)[1].double(), k.double())


@case("P074")
@pytest.mark.parametrize("name", wn.encodings())
@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_a_half_precision_model_stays_one_through_its_cache(name, dtype):
    options = {"axial_rope": {"num_axes": 1}, "mixed_rope": {"num_kv_heads": 2}}.get(name, {})
    encoding = wn.create(name, dim=32, num_heads=4, length=40, **options)
    whole = wn.Transformer(50, 32, 2, 4, encoding, num_kv_heads=2).to(dtype).eval()
    caches = whole.new_caches()
    axes = encoding.num_axes
    for chunk, ids in zip(tokens(6).split(3, 1), torch.arange(6).split(3), strict=True):
        where = wn.Where(ids[:, None].expand(-1, axes), num_axes=axes) if axes > 1 else None
        assert whole(chunk, where=where, caches=caches).dtype == dtype
    assert {t.dtype for c in caches for t in (c.k, c.v)} == {dtype}


@case("P074")
def test_types_that_differ_are_refused_before_any_kernel_sees_them():
    q = heads(3, dtype=torch.bfloat16)
    with pytest.raises(TypeError, match=r"bfloat16 and torch\.float32"):
        wn.attention(q, q.float(), q, wn.RoPE(HEAD_DIM))
