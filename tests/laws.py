"""The laws that every encoding keeps.

A *subject* is one encoding with one setting. Its traits are measured from behaviour, in float64
and with every parameter at random; which laws apply follows from what was measured, never from
what the class declares. `test_laws.py` runs them, `test_laws_bite.py` shows for each law a planted
encoding that breaks it.

Axes: B batch, S tokens, E = 32 model dim, H = 4 query heads, G = 2 key/value heads, D = 8.
"""

import copy
import pickle  # noqa: TID251 (that a model can be pickled is one of the laws)
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import whereness as wn
from whereness import NOWHERE, PositionalEncoding, Where, spans
from whereness.attend import blocks
from whereness.encoding import as_encoding

DIM, HEADS, GROUPS, HEAD_DIM, DEPTH, VOCAB = 32, 4, 2, 8, 2, 50
BATCH, LENGTH = 2, 12
SHIFTS = (1, 7, 1000, 100_000)
ROUNDING = 1e-10  # float64: sums of some hundred products
FAR_ROUNDING = 1e-7  # an angle at position 1e5 keeps 1e-11, a float32 bias its last digit


@dataclass(frozen=True)
class Subject:
    """One encoding with one setting. `make` gives an encoding, a list, a factory or a schedule."""

    name: str
    make: Callable[[], Any]
    axes: int = 1
    reach: int = 10**9
    """Positions below this are representable."""
    lengths: int | None = None
    """What `Where.lengths` says, for tables that depend on it."""
    any_groups: bool = True
    """Works with any number of key/value heads."""
    of_queries: bool = False
    """Where keys are does not matter."""
    between: tuple[float, float] | None = None
    """Parameters beyond these act as the bound and keep its gradient, which no difference shows."""

    def __repr__(self) -> str:
        return self.name

    def model(self, seed: int = 0, **options: Any) -> wn.Transformer:
        """A float64 model whose every parameter is away from its initial value."""
        options = {"depth": DEPTH, "num_kv_heads": GROUPS, **options}
        torch.manual_seed(seed)
        model = wn.Transformer(VOCAB, DIM, encoding=self.make(), num_heads=HEADS, **options)
        return scribble(model.double().eval(), seed)

    def encodings(self) -> list[PositionalEncoding]:
        """The distinct encodings of a small model, parameters at random."""
        model = self.model()
        return [e for e in (model.inputs, *model.encodings) if type(e) is not wn.NoPE] or [
            model.encodings[0]
        ]

    def ids(self, start: int = 0, length: int = LENGTH, step: int = 1) -> Tensor:
        """Positions start, start + step, ...; with axes, cells of a grid three wide."""
        line = torch.arange(length) * step
        if self.axes == 1:
            return line + start
        cells = [line % 3 if axis else line // 3 for axis in range(self.axes)]
        return torch.stack([c + start * (axis + 1) for axis, c in enumerate(cells)], -1)

    def where(self, positions: Tensor | None = None, **options: Any) -> Where:
        options = {"lengths": self.lengths, "num_axes": self.axes, **options}
        return Where(self.ids() if positions is None else positions, **options)

    def unplaced(self) -> Where | None:
        """No positions: the defaults are filled in."""
        return None if self.lengths is None else Where(lengths=self.lengths)


def scribble(module: nn.Module, seed: int) -> nn.Module:
    """Move every parameter by seeded noise, so that nothing is at a special value."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(noise.to(parameter.dtype), alpha=0.3)
    return module


def tokens(length: int = LENGTH, batch: int = BATCH, seed: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (batch, length), generator=generator)


def close(a: Tensor, b: Tensor, tolerance: float = ROUNDING) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def same(a: Tensor, b: Tensor, tolerance: float = ROUNDING) -> bool:
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance)


# Traits, measured


@dataclass(frozen=True)
class Traits:
    """What an encoding does, whatever it says."""

    doors: tuple[int, ...]
    reads: str
    relative: bool
    unbounded: bool
    learned: bool
    content_aware: bool
    norm_preserving: bool
    causal_only: bool
    cacheable: bool
    site: str | None
    num_axes: int


DECLARED = (
    "doors",
    "reads",
    "relative",
    "unbounded",
    "learned",
    "content_aware",
    "norm_preserving",
    "causal_only",
    "cacheable",
    "site",
    "num_axes",
)


@cache
def traits(subject: Subject) -> Traits:
    """Everything measured, once a subject."""
    door_two = _joins(subject)
    three, norms, widened = _turns(subject)
    four, content_aware = _changes_scores(subject)
    doors = set(door_two[0])
    doors |= {3} if three else set()
    doors |= {4} if four else set()
    doors |= {5} if _changes_values(subject) else set()
    return Traits(
        doors=tuple(sorted(doors)),
        reads=_reads(subject),
        relative=_relative(subject),
        unbounded=_unbounded(subject),
        learned=any(True for e in subject.encodings() for _ in e.parameters()),
        content_aware=content_aware,
        norm_preserving=norms and not widened,
        causal_only=_causal_only(subject),
        cacheable=_keys_stay(subject),
        site=door_two[1],
        num_axes=_axes(subject),
    )


def bare(model: wn.Transformer, x: Tensor, where: Where) -> Tensor:
    """The first layer without the norm before it, which would hide a code that is the same in
    every channel."""
    entered = model.inputs.tokens(model.embedding(x), model.inputs.prepare(where))
    attention = model.blocks[0].attention
    return attention(model.narrow(entered), where=attention.encoding.prepare(where))


def nudged(ids: Tensor) -> Tensor:
    """The last token but one moves back by one: offsets 1 and 0 are told apart by every table. The
    last one moves on, for what looks at queries alone."""
    warped = ids.clone()
    warped[-2] -= 1
    warped[-1] += 4
    return warped


def _reads(subject: Subject) -> str:
    """Last query: do positions, the order of earlier tokens, or neither matter?"""
    model, x = subject.model(), tokens()
    swapped = torch.cat([x[:, [1, 0, 3, 2]], x[:, 4:]], 1)
    last = bare(model, x, subject.where())[:, -1]
    if not same(bare(model, x, subject.where(nudged(subject.ids())))[:, -1], last, 1e-8):
        return "positions"
    return "nothing" if same(bare(model, swapped, subject.where())[:, -1], last) else "order"


def _relative(subject: Subject) -> bool:
    model, x = subject.model(), tokens()
    base = bare(model, x, subject.where())
    for shift in SHIFTS:
        if shift + LENGTH < subject.reach:
            moved = bare(model, x, subject.where().shifted(shift))
            if not same(moved, base, FAR_ROUNDING):
                return False
    return True


def _unbounded(subject: Subject) -> bool:
    far = subject.where(subject.ids(10**7, step=997), lengths=None)
    try:
        out = subject.model()(tokens(), where=far)
    except ValueError:
        return False
    return bool(out.isfinite().all())


class Recorder(PositionalEncoding):
    """Changes nothing and keeps what it sees at door 4."""

    reads = "nothing"
    relative = True

    def scores(self, logits: Tensor, call: wn.Call) -> Tensor:
        self.logits = logits.detach()
        self.call = call
        return logits

    def weights(self, weights: Tensor, logits: Tensor, call: wn.Call) -> Tensor:
        self.after = weights.detach()
        return weights


def _recorded(subject: Subject, seed: int) -> tuple[Recorder, Recorder, wn.Attention, Any] | None:
    """(before, after, layer, at) of a causal layer between two recorders; None for door 1."""
    encoding = subject.encodings()[-1]
    if encoding.site == "tokens":
        return None
    before, after = Recorder(), Recorder()
    combined = as_encoding([before, encoding, after])
    torch.manual_seed(1)
    layer = wn.Attention(DIM, HEADS, combined, GROUPS, causal=True).double().eval()
    x = torch.randn(BATCH, LENGTH, DIM, dtype=torch.float64, generator=_generator(seed))
    at = combined.prepare(subject.where())
    layer(x, where=at)
    return before, after, layer, at


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _changes_scores(subject: Subject) -> tuple[bool, bool]:
    """(door 4 does something, what it does depends on content).

    Free of content means: new = factor * old + bias, the same factor and bias for any content.
    Three contents must then give three points on one line, entry by entry.
    """
    runs = [_recorded(subject, seed) for seed in (1, 2, 3)]
    if runs[0] is None:
        return False, False
    allowed = runs[0][0].call.allowed.expand(runs[0][0].logits.shape)
    changed = content_aware = False
    for kind in ("logits", "after"):
        old = torch.stack([getattr(before, kind)[allowed] for before, *_ in runs])
        new = torch.stack([getattr(after, kind)[allowed] for _, after, *_ in runs])
        changed |= not same(old, new)
        area = (new[0] - new[1]) * (old[0] - old[2]) - (new[0] - new[2]) * (old[0] - old[1])
        content_aware |= bool((area.abs() > 1e-7).any())  # a bias is float32
    return changed, content_aware


def _turns(subject: Subject) -> tuple[bool, bool, bool]:
    """(door 3 does something, norms stay, widths change)."""
    encoding = subject.encodings()[-1]
    q = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM, dtype=torch.float64, generator=_generator(3))
    k = q[:, :GROUPS].clone()
    at = encoding.prepare(subject.where(subject.ids(3 if subject.reach > 20 else 0)))
    q2, k2 = encoding.queries_keys(q, k, at, {})
    widened = q2.shape != q.shape
    if widened:
        return True, False, True
    norms = same(q2.norm(dim=-1), q.norm(dim=-1)) and same(k2.norm(dim=-1), k.norm(dim=-1))
    return not (same(q2, q) and same(k2, k)), norms, False


def _changes_values(subject: Subject) -> bool:
    recorded = _recorded(subject, 1)
    if recorded is None:
        return False
    before, _, _, at = recorded
    encoding, own = at.encoding.members()[1:-1], at.data[1:-1]
    v = torch.randn(BATCH, GROUPS, LENGTH, HEAD_DIM, dtype=torch.float64, generator=_generator(4))
    out = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM, dtype=torch.float64, generator=_generator(4))
    for member, at_member in zip(encoding, own, strict=True):
        call = replace(before.call, at=at_member)
        if not same(member.values(v, at_member), v):
            return True
        if not same(member.outputs(out, before.after, call), out):
            return True
    return False


def _joins(subject: Subject) -> tuple[set[int], str | None]:
    """(doors 1 and 2 that are open, the site): who sees Π, the input, the values, or q and k?"""
    model = subject.model()
    where = subject.where()
    x = torch.randn(BATCH, LENGTH, DIM, dtype=torch.float64, generator=_generator(6))
    at_input = model.inputs.prepare(where)
    entered = model.inputs.tokens(x, at_input)
    if entered.shape != x.shape or not same(entered, x):
        return {1}, "tokens"
    encoding = model.encodings[0]
    x_q, _, x_v = encoding.inputs(x, x, encoding.prepare(where))
    if x_v.shape != x.shape or not same(x_v, x):
        return {1}, "every_layer"
    if x_q.shape != x.shape or not same(x_q, x):
        return {2}, "queries_keys"
    return set(), None


def _causal_only(subject: Subject) -> bool:
    """Some member has no meaning for keys after the query: a bidirectional layer with it alone
    cannot tell the first keys after the query apart, or their scores grow without bound. Of one
    that reads the order of tokens its word is taken: what it makes of later tokens is a convention,
    not a behaviour."""
    members = [m for e in subject.encodings() for m in e.members()]
    return any(
        _blind_ahead(subject, m) or _grows_ahead(subject, m)
        for m in members
        if m.reads != "nothing"
    )


def _blind_ahead(subject: Subject, member: PositionalEncoding) -> bool:
    if member.reads == "order" and _reads(replace(subject, make=lambda: member)) == "order":
        return member.causal_only
    model = replace(subject, make=lambda: member).model()
    model.blocks[0].attention.causal = False  # past the constructor's check of the declaration
    ids, x = subject.ids(), tokens()
    moved = ids.clone()
    moved[1] += 1  # the key just after the first query
    moved[-2] += 1  # one before the last query, which sees it
    old, new = (bare(model, x, subject.where(p)) for p in (ids, moved))
    return same(old[:, 0], new[:, 0]) and not same(old[:, -1], new[:, -1])


def _grows_ahead(subject: Subject, member: PositionalEncoding) -> bool:
    """Door 3 makes keys longer the farther ahead of the query they are."""
    if 3 not in member.doors:
        return False
    q, k = (torch.ones(1, n, LENGTH, HEAD_DIM, dtype=torch.float64) for n in (HEADS, GROUPS))
    at = member.prepare(subject.where(subject.ids(step=500)))
    sizes = member.queries_keys(q, k, at, {})[1].norm(dim=-1)
    return bool((sizes[..., -1] > 100 * sizes[..., 0]).any())


def _keys_stay(subject: Subject) -> bool:
    """Decoding step by step, with keys as they were cached, equals the full pass, and what was
    cached is what the scores need."""
    model, x = subject.model(), tokens()
    full = model(x, where=subject.where())
    forced = []
    for encoding in model.encodings:
        forced.append((encoding, encoding.cacheable))
        encoding.cacheable = True
    try:
        return same(decoded(subject, model, x, [1] * LENGTH), full, 1e-9)
    except (ValueError, RuntimeError, KeyError):
        return False


def _axes(subject: Subject) -> int:
    for axes in range(1, 6):
        one = torch.arange(LENGTH)
        positions = one if axes == 1 else torch.stack([one % 3] * axes, -1)
        try:
            subject.model(depth=1)(tokens(), where=Where(positions, num_axes=axes))
        except ValueError:
            continue
        return axes
    raise AssertionError(f"{subject} takes positions of no number of axes.")


def decoded(
    subject: Subject, model: wn.Transformer, x: Tensor, chunks: list[int], **options: Any
) -> Tensor:
    """The logits of x, fed in chunks through caches."""
    caches, outs, start = model.new_caches(), [], 0
    ids = subject.ids(length=x.shape[1])
    for size in chunks:
        stop = start + size
        where = subject.where(ids[start:stop], **options)
        outs.append(model(x[:, start:stop], where=where, caches=caches))
        start = stop
    return torch.cat(outs, 1)


# The laws


@dataclass(frozen=True)
class Law:
    """`check(subject)` raises AssertionError when the law is broken."""

    name: str
    check: Callable[[Subject], None]
    applies: Callable[[Traits], bool] = field(default=lambda t: True)

    def __repr__(self) -> str:
        return self.name


LAWS: dict[str, Law] = {}


def law(applies: Callable[[Traits], bool] = lambda t: True) -> Callable:
    def register(check: Callable[[Subject], None]) -> Callable[[Subject], None]:
        LAWS[check.__name__] = Law(check.__name__, check, applies)
        return check

    return register


@law()
def declared_traits_are_the_measured_ones(subject: Subject) -> None:
    measured = traits(subject)
    model = subject.model()
    # The whole: what joins the input, and what the first layer has.
    parts = [p for p in (model.inputs, model.encodings[0]) if type(p) is not wn.NoPE]
    whole = as_encoding(parts[0] if len(parts) == 1 else parts or None)
    for name in DECLARED:
        said, found = getattr(whole, name), getattr(measured, name)
        assert said == found, f"{subject}: {name} is declared {said!r}, measured {found!r}"


@law(lambda t: t.relative and t.reads == "positions")
def relative_ones_do_not_see_a_shift(subject: Subject) -> None:
    model, x = subject.model(), tokens()
    where = subject.where()
    base = model(x, where=where)
    for shift in SHIFTS:
        if shift + LENGTH < subject.reach:
            close(model(x, where=where.shifted(shift)), base, FAR_ROUNDING)


@law(lambda t: 3 in t.doors and t.norm_preserving)
def turning_keeps_norms_and_angles_between_pairs(subject: Subject) -> None:
    for encoding in subject.encodings():
        q = torch.randn(1, HEADS, LENGTH, HEAD_DIM, dtype=torch.float64)
        k = torch.randn(1, GROUPS, LENGTH, HEAD_DIM, dtype=torch.float64)
        for start in (0, 5, 4000):
            at = encoding.prepare(subject.where(subject.ids(start)))
            for old, new in zip((q, k), encoding.queries_keys(q, k, at, {}), strict=True):
                close(new.norm(dim=-1), old.norm(dim=-1))
            # linear: a turn, not a function of the content
            doubled, _ = encoding.queries_keys(2 * q, k, at, {})
            close(doubled, 2 * encoding.queries_keys(q, k, at, {})[0])


@law()
def decoding_in_chunks_equals_the_full_pass(subject: Subject) -> None:
    x = tokens()
    for groups in (GROUPS, HEADS, 1):
        model = subject.model(num_kv_heads=groups) if subject.any_groups else subject.model()
        full = model(x, where=subject.where())
        for size in (1, 3, 4, LENGTH):
            chunks = [size] * (LENGTH // size)
            close(decoded(subject, model, x, chunks), full)
        close(decoded(subject, model, x, [5, 1, 1, 4, 1]), full)


@law()
def default_positions_go_on_in_the_cache(subject: Subject) -> None:
    if subject.axes > 1:
        return
    model, x, caches = subject.model(), tokens(), None
    where = subject.unplaced()
    full = model(x, where=where)
    close(full, model(x, where=subject.where()))
    caches = model.new_caches()
    cuts = ((0, 5), (5, 6), (6, LENGTH))
    outs = [model(x[:, a:b], where=where, caches=caches) for a, b in cuts]
    close(torch.cat(outs, 1), full)


@law()
def pads_change_nothing(subject: Subject) -> None:
    model, x = subject.model(), tokens()
    full = model(x, where=subject.where())
    ids, pads = subject.ids(), 3
    hole = torch.full((pads, *ids.shape[1:]), NOWHERE)
    filler = torch.full((BATCH, pads), 7)
    real, none = torch.ones(LENGTH, dtype=torch.bool), torch.zeros(pads, dtype=torch.bool)
    for numbers in (hole, ids[:pads]):  # pads may have no place, or any place
        left = subject.where(torch.cat([numbers, ids]), key_mask=torch.cat([none, real]))
        close(model(torch.cat([filler, x], 1), where=left)[:, pads:], full)
        right = subject.where(torch.cat([ids, numbers]), key_mask=torch.cat([real, none]))
        close(model(torch.cat([x, filler], 1), where=right)[:, :LENGTH], full)


@law()
def rows_of_uneven_length_do_not_disturb_each_other(subject: Subject) -> None:
    if subject.axes > 1:
        return
    model, x = subject.model(), tokens()
    lengths = (LENGTH, LENGTH - 4)
    mask = torch.tensor([[1] * LENGTH, [0] * 4 + [1] * (LENGTH - 4)])
    padded = torch.stack([x[0], torch.cat([x[1, :4] * 0 + 9, x[1, : LENGTH - 4]])])
    where = subject.unplaced()
    out = model(padded, where=where, key_mask=mask)
    for row, length in enumerate(lengths):
        alone = model(x[row : row + 1, :length], where=where)
        close(out[row : row + 1, LENGTH - length :], alone)


@law()
def pads_inside_the_cache_change_nothing(subject: Subject) -> None:
    model, x, ids = subject.model(), tokens(), subject.ids()
    full = model(x, where=subject.where())
    hole = torch.full((2, *ids.shape[1:]), NOWHERE)
    prompt = torch.cat([x[:, :4], torch.full((BATCH, 2), 7)], 1)
    mask = torch.tensor([1, 1, 1, 1, 0, 0])
    caches = model.new_caches()
    where = subject.where(torch.cat([ids[:4], hole]), key_mask=mask)
    outs = [model(prompt, where=where, caches=caches)[:, :4]]
    outs += [
        model(x[:, i : i + 1], where=subject.where(ids[i : i + 1]), caches=caches)
        for i in range(4, LENGTH)
    ]
    close(torch.cat(outs, 1), full)


@law()
def packing_equals_separate_runs(subject: Subject) -> None:
    cut, x = 5, tokens()
    ids = torch.cat([subject.ids(length=cut), subject.ids(length=LENGTH - cut)])
    where = subject.where(ids, segments=wn.positions.segments([cut, LENGTH - cut]))
    weight = torch.randn(BATCH, LENGTH, VOCAB, dtype=torch.float64, generator=_generator(8))
    model = subject.model()
    packed = model(x, where=where)
    (packed * weight).sum().backward()
    packed_grads = _gradients(model)
    model.zero_grad()
    parts = [
        model(x[:, :cut], where=subject.where(subject.ids(length=cut))),
        model(x[:, cut:], where=subject.where(subject.ids(length=LENGTH - cut))),
    ]
    close(packed, torch.cat(parts, 1))
    (torch.cat(parts, 1) * weight).sum().backward()
    for name, grad in _gradients(model).items():
        torch.testing.assert_close(packed_grads[name], grad, rtol=1e-9, atol=1e-9, msg=name)


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@law(lambda t: t.learned)
def every_parameter_gets_a_finite_gradient(subject: Subject) -> None:
    model = subject.model()
    mask = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    mask[1, :5] = False
    out = model(tokens(), where=subject.where(key_mask=mask))
    (out**2).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        assert parameter.grad.isfinite().all(), f"{name} has a gradient that is not finite"


@law()
def the_future_does_not_leak(subject: Subject) -> None:
    model, x = subject.model(), tokens()
    changed = x.clone()
    changed[:, 6:] = (x[:, 6:] + 1) % VOCAB
    where = subject.where()
    close(model(changed, where=where)[:, :6], model(x, where=where)[:, :6])


@law(lambda t: not t.causal_only)
def encoders_see_both_sides_and_no_pads(subject: Subject) -> None:
    """Without a causal mask: pads, packing and implementations as with one, and later tokens are
    seen."""
    model, x, ids = subject.model(causal=False), tokens(), subject.ids()
    full = model(x, where=subject.where())
    changed = torch.cat([x[:, :-1], (x[:, -1:] + 1) % VOCAB], 1)
    assert not same(model(changed, where=subject.where())[:, 0], full[:, 0], 1e-6)
    hole, filler = torch.full((2, *ids.shape[1:]), NOWHERE), torch.full((BATCH, 2), 7)
    mask = torch.cat([torch.zeros(2), torch.ones(LENGTH)]).bool()
    left = subject.where(torch.cat([hole, ids]), key_mask=mask)
    close(model(torch.cat([filler, x], 1), where=left)[:, 2:], full)
    right = subject.where(torch.cat([ids, hole]), key_mask=mask.flip(0))
    close(model(torch.cat([x, filler], 1), where=right)[:, :LENGTH], full)
    cut = 5
    pieces = [subject.ids(length=cut), subject.ids(length=LENGTH - cut)]
    segments = wn.positions.segments([cut, LENGTH - cut])
    packed = model(x, where=subject.where(torch.cat(pieces), segments=segments))
    parts = (x[:, :cut], x[:, cut:])
    apart = [model(p, where=subject.where(i)) for p, i in zip(parts, pieces, strict=True)]
    close(packed, torch.cat(apart, 1))
    close(subject.model(causal=False, implementation="reference")(x, where=subject.where()), full)


@law(lambda t: t.reads == "positions" and not t.causal_only and t.site != "tokens")
def cross_attention_honours_both_streams(subject: Subject) -> None:
    """K13: queries and keys have positions of their own; moving one stream alone is seen."""
    encoding = subject.encodings()[-1]
    layer = wn.Attention(DIM, HEADS, encoding, GROUPS).double().eval()
    x = torch.randn(BATCH, 5, DIM, dtype=torch.float64, generator=_generator(1))
    context = torch.randn(BATCH, 7, DIM, dtype=torch.float64, generator=_generator(2))
    q_ids, k_ids = subject.ids(length=5), subject.ids(length=7)

    def run(q: Tensor, k: Tensor) -> Tensor:
        return layer(x, context, where=subject.where(q, k_positions=k))

    base = run(q_ids, k_ids)
    for stream in (0,) if subject.of_queries else (0, 1):
        ids = [q_ids.clone(), k_ids.clone()]
        ids[stream][3:] += 1  # not all alike: a constant on a row of logits is not seen
        assert not same(run(*ids), base, 1e-6)
    if traits(subject).relative:
        close(run(q_ids + 7, k_ids + 7), base)
    padded = torch.cat([context, context[:, :2] + 1], 1)
    mask = torch.tensor([True] * 7 + [False] * 2)
    longer = torch.cat([k_ids, k_ids[:2]])
    close(layer(x, padded, where=subject.where(q_ids, k_positions=longer, key_mask=mask)), base)


@law()
def batch_rows_are_independent(subject: Subject) -> None:
    model, x = subject.model(), tokens(batch=3)
    order = torch.tensor([2, 0, 1])
    where = subject.where()
    close(model(x[order], where=where), model(x, where=where)[order])
    # and with positions of their own
    ids = torch.stack([subject.ids(), subject.ids(1), subject.ids(0)])
    own = model(x, where=subject.where(ids))
    close(model(x[order], where=subject.where(ids[order])), own[order])
    close(own[1:2], model(x[1:2], where=subject.where(ids[1])))


@law(lambda t: t.site is None)
def heads_are_independent(subject: Subject) -> None:
    """Permuting heads permutes outputs, where an encoding treats heads alike; and no encoding lets
    one head's content into another's output. The hard case is S = H."""
    encoding = subject.encodings()[-1]
    layer = wn.Attention(DIM, HEADS, encoding, HEADS, causal=True).double().eval()
    if not subject.any_groups:
        return
    x = torch.randn(BATCH, HEADS, DIM, dtype=torch.float64)
    outs = []
    for touched in (False, True):
        if touched:
            with torch.no_grad():
                for proj in (layer.q_proj, layer.k_proj, layer.v_proj):
                    proj.weight[:HEAD_DIM] += 1.0  # head 0
        layer.out_proj = nn.Identity()
        outs.append(layer(x, where=subject.where(subject.ids(length=HEADS))))
    close(outs[0][..., HEAD_DIM:], outs[1][..., HEAD_DIM:])
    assert not same(outs[0][..., :HEAD_DIM], outs[1][..., :HEAD_DIM])


@law(lambda t: t.reads == "positions")
def warped_positions_change_the_output(subject: Subject) -> None:
    """K13: ids that are not uniform are honoured, for queries and for keys, on every axis."""
    model, x = subject.model(depth=1), tokens()
    base = bare(model, x, subject.where())
    warped = subject.ids()
    warped[3:] += 1
    assert not same(bare(model, x, subject.where(warped)), base, 1e-6)
    if subject.axes == 1:
        return
    for axis in range(subject.axes):
        one = subject.ids()
        one[3:, axis] += 2
        assert not same(bare(model, x, subject.where(one)), base, 1e-6), f"axis {axis}"
    assert not same(bare(model, x, subject.where(subject.ids().flip(-1))), base, 1e-6)


@law()
def a_cast_and_back_changes_no_constant(subject: Subject) -> None:
    """K06: angles, slopes and buckets are those of the exact constants after any cast."""
    model, x = subject.model(), tokens()
    weights = copy.deepcopy(model.state_dict())
    expected = model(x, where=subject.where())
    for dtype in (torch.float16, torch.bfloat16):
        model.to(dtype).double().load_state_dict(weights)
        close(model(x, where=subject.where()), expected, 0.0)
    half = copy.deepcopy(model).bfloat16()
    out = half(x, where=subject.where())
    assert out.dtype == torch.bfloat16 and out.isfinite().all()


@law()
def no_buffer_and_no_derived_key(subject: Subject) -> None:
    """K06, K07: nothing that a cast can round or a checkpoint can carry but the parameters."""
    model = subject.model()
    assert not list(model.named_buffers())
    assert set(model.state_dict()) == {n for n, _ in model.named_parameters(remove_duplicate=False)}
    addresses = [t.data_ptr() for t in model.state_dict().values()]
    assert len(addresses) == len(set(addresses)), "a parameter has two names"


@law()
def meta_then_empty_then_load_is_the_same(subject: Subject) -> None:
    """K07: constants survive a start without memory."""
    model, x = subject.model(), tokens()
    with torch.device("meta"):
        hollow = subject_on_meta(subject)
    hollow = hollow.double().to_empty(device="cpu").eval()
    for tensor in (*hollow.parameters(), *hollow.buffers()):
        if tensor.is_floating_point():
            tensor.data.fill_(6.9e-18)
        else:
            tensor.data.fill_(77)
    hollow.load_state_dict(model.state_dict())
    close(hollow(x, where=subject.where()), model(x, where=subject.where()), 0.0)


def subject_on_meta(subject: Subject) -> wn.Transformer:
    return wn.Transformer(
        VOCAB, DIM, DEPTH, encoding=subject.make(), num_heads=HEADS, num_kv_heads=GROUPS
    )


@law()
def copies_are_equal_and_independent(subject: Subject) -> None:
    """K07: deepcopy and pickle; shared encodings stay shared, copies are on their own."""
    model, x = subject.model(), tokens()
    expected = model(x, where=subject.where())
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        close(twin(x, where=subject.where()), expected, 0.0)
        for block in twin.blocks:
            assert any(block.attention.encoding is e for e in twin.encodings)
        scribble(twin, 9)
        close(model(x, where=subject.where()), expected, 0.0)


@law(lambda t: t.learned)
def reset_parameters_starts_anew(subject: Subject) -> None:
    for encoding in subject.encodings():
        fresh = copy.deepcopy(encoding)
        torch.manual_seed(11)
        fresh.reset_parameters()
        again = scribble(copy.deepcopy(encoding), 12)
        torch.manual_seed(11)
        again.reset_parameters()
        for (name, a), b in zip(fresh.named_parameters(), again.parameters(), strict=True):
            close(a, b, 0.0)
            assert a.isfinite().all(), name
        pairs = zip(fresh.parameters(), encoding.parameters(), strict=True)
        assert not any(same(a, b) for a, b in pairs)


@law()
def calls_leave_no_trace(subject: Subject) -> None:
    """K05: short, long, short; other positions in between; training and inference mode."""
    model, x = subject.model(), tokens()
    short = model(x[:, :5], where=subject.where(subject.ids(length=5)))
    model(x, where=subject.where(subject.ids(2)))
    elsewhere = subject.where(subject.ids(3, length=5, step=2))
    with torch.inference_mode():
        moved = model(x[:, :5], where=elsewhere)
    # Without gradients torch may take another kernel: equal to rounding, not to the bit.
    close(moved.clone(), subject.model()(x[:, :5], where=elsewhere))
    close(model(x[:, :5], where=subject.where(subject.ids(length=5))), short, 0.0)
    model(x, where=subject.where()).sum().backward()


@law()
def two_instances_do_not_share(subject: Subject) -> None:
    """K05: differently set instances, alive at once."""
    one, x = subject.model(seed=0), tokens()
    before = one(x, where=subject.where())
    two = subject.model(seed=1)
    other = two(x, where=subject.where())
    close(one(x, where=subject.where()), before, 0.0)
    assert not same(other, before)


@law()
def every_implementation_gives_the_same_numbers(subject: Subject) -> None:
    mask = torch.rand(BATCH, 1, LENGTH, LENGTH, generator=_generator(2)) > 0.2
    key_mask = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    key_mask[0, :3] = False
    settings: list[dict[str, Any]] = [{}, {"window": 4}]
    for options in settings:
        slow = subject.model(implementation="reference", **options)
        fast = subject.model(implementation="auto", **options)
        members = [m for b in fast.blocks for m in b.attention.encoding.members()]
        served = "blocks" if all(m.has_rows for m in members) else "auto"
        in_blocks = subject.model(implementation=served, **options)
        for where in (subject.where(), subject.where(key_mask=key_mask), _regular(subject)):
            for allowed in (None, mask):
                a = slow(tokens(), where=where, mask=allowed)
                close(fast(tokens(), where=where, mask=allowed), a)
                assert a.isfinite().all()
                with mock.patch.multiple(blocks, NUM_LOGITS=1, NUM_ROWS=3):
                    close(in_blocks(tokens(), where=where, mask=allowed), a)


def _regular(subject: Subject) -> Where | None:
    return subject.unplaced() if subject.axes == 1 else subject.where()


@law()
def built_positions_equal_given_ones(subject: Subject) -> None:
    """A strip of offsets (regular positions) and the dense form (given positions) agree.

    Given positions are a strip as well where a look shows that they are regular: no look here.
    """
    if subject.axes > 1:
        return
    model, x = subject.model(), tokens()
    strip = model(x, where=subject.unplaced())
    looked = model(x, where=subject.where())
    with mock.patch.object(spans, "may_look", return_value=False):
        dense = model(x, where=subject.where())
    close(strip, dense, 0.0)
    close(looked, dense, 0.0)


@law()
def compiled_equals_eager(subject: Subject) -> None:
    model, x = subject.model(depth=1), tokens()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    bare_ids = subject.axes == 1 and subject.lengths is None
    where = subject.ids() if bare_ids else subject.where()
    close(compiled(x, where=where), model(x, where=where))


@law()
def gradients_are_those_of_finite_differences(subject: Subject) -> None:
    model = subject.model(depth=1)
    block = model.blocks[0].attention
    encoding = block.encoding
    if subject.between:
        for parameter in encoding.parameters():
            parameter.data.clamp_(*subject.between)
    where = subject.where(subject.ids(length=4))
    x = torch.randn(1, 4, DIM, dtype=torch.float64, generator=_generator(3))
    inputs = model.inputs.prepare(where)
    at = encoding.prepare(where)

    def run(x: Tensor) -> Tensor:
        return block(model.narrow(model.inputs.tokens(x, inputs)), where=at)[..., :3]

    assert torch.autograd.gradcheck(
        run, (x.requires_grad_(),), fast_mode=True, raise_exception=False
    )
    for parameter in (*encoding.parameters(), *model.inputs.parameters()):

        def by_parameter(p: Tensor, target: nn.Parameter = parameter) -> Tensor:
            names = {id(q): n for n, q in model.named_parameters()}
            given = {names[id(target)]: p}
            stand_in = _Runner(model, x.detach(), where)
            return torch.func.functional_call(
                stand_in, {f"model.{n}": t for n, t in given.items()}, ()
            )

        assert torch.autograd.gradcheck(
            by_parameter,
            (parameter.detach().clone().requires_grad_(),),
            fast_mode=True,
            raise_exception=False,
        )


class _Runner(nn.Module):
    def __init__(self, model: wn.Transformer, x: Tensor, where: Where) -> None:
        super().__init__()
        self.model, self.x, self.where = model, x, where

    def forward(self) -> Tensor:
        model, attention = self.model, self.model.blocks[0].attention
        x = model.narrow(model.inputs.tokens(self.x, model.inputs.prepare(self.where)))
        return attention(x, where=attention.encoding.prepare(self.where))[..., :3]


@law(lambda t: t.site is not None or 3 in t.doors)
def a_token_without_a_place_passes_doors_1_to_3(subject: Subject) -> None:
    """NOWHERE is the identity there: no row of Π, no turn."""
    model, encodings = subject.model(), subject.encodings()
    ids = subject.ids()
    ids[0] = NOWHERE
    where = subject.where(ids)
    x = torch.randn(BATCH, LENGTH, DIM, dtype=torch.float64)
    joined = model.inputs.tokens(x, model.inputs.prepare(where))
    close(joined[:, 0, :DIM], x[:, 0])
    assert (joined[:, 0, DIM:] == 0).all()
    for encoding in encodings:
        x_q, x_k, _ = encoding.inputs(x, x, encoding.prepare(where))
        close(x_q[:, 0, :DIM], x[:, 0])
        close(x_k[:, 0, :DIM], x[:, 0])
        q = torch.randn(BATCH, HEADS, LENGTH, HEAD_DIM, dtype=torch.float64)
        k = torch.randn(BATCH, GROUPS, LENGTH, HEAD_DIM, dtype=torch.float64)
        placeless = encoding.queries_keys(q, k, encoding.prepare(where), {})
        zero = subject.where(torch.zeros_like(ids))
        unmoved = encoding.queries_keys(q, k, encoding.prepare(zero), {})
        for given, found, at_zero in zip((q, k), placeless, unmoved, strict=True):
            # What changes widths cannot be the identity: it turns by nothing.
            passed = given if found.shape == given.shape else at_zero
            close(found[:, :, 0], passed[:, :, 0])
    assert model(tokens(), where=where).isfinite().all()


@law()
def grouped_heads_equal_repeated_ones(subject: Subject) -> None:
    if not subject.any_groups:
        return
    encoding = subject.encodings()[-1]
    if encoding.site == "tokens":
        return
    grouped = wn.Attention(DIM, HEADS, encoding, GROUPS, causal=True).double().eval()
    full = wn.Attention(DIM, HEADS, encoding, HEADS, causal=True).double().eval()
    weights = grouped.state_dict()
    for name in ("k_proj.weight", "v_proj.weight"):
        by_head = weights[name].unflatten(0, (GROUPS, HEAD_DIM))
        weights[name] = by_head.repeat_interleave(HEADS // GROUPS, 0).flatten(0, 1)
    full.load_state_dict(weights)
    x = torch.randn(BATCH, LENGTH, DIM, dtype=torch.float64)
    close(grouped(x, where=subject.where()), full(x, where=subject.where()))


def on(*subjects: Subject) -> list[Any]:
    """The values of `@pytest.mark.parametrize(("subject", "law"), on(...))`.

    Which laws apply follows from measured traits.
    """
    untyped = {"compiled_equals_eager": pytest.mark.untyped}
    return [
        pytest.param(s, law, id=f"{s}:{law}", marks=untyped.get(law.name, ()))
        for s in subjects
        for law in LAWS.values()
        if law.applies(traits(s))
    ]


def registered(name: str) -> Subject:
    """The subject of an encoding by its name, at the sizes that the laws use."""
    length = 40
    options = {"num_kv_heads": GROUPS} if name == "mixed_rope" else {}

    def make() -> PositionalEncoding:
        return wn.create(name, dim=DIM, num_heads=HEADS, length=length, **options)

    between = (0.1, 1.9) if name == "kerple" else None
    probe = Subject(name, make, axes=make().num_axes, any_groups=not options, between=between)
    return probe if _unbounded(probe) else replace(probe, reach=length)
