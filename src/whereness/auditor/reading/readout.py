"""Reading a rotation off its effect: what door 3 did to queries or keys, channel by channel.

x_0 and x_p are the same content at positions 0 and p, B contents at a time. For channels u and v
of a pair

    x_p[u] = a_u x_0[u] + b_u x_0[v]        rotation: a_u = a_v = r cos t, b_v = -b_u = r sin t

so the partner of u is the v that leaves nothing over, the angle is t and the size is r. Nothing is
assumed of the pairing. Angles are unwrapped from position to position at powers of two, which every
format holds exactly; what the other positions differ from that line is rounding, or positions that
were not the ones asked for.

Axes: B contents, H heads, S slots, D channels. Units: radians a token.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

TURNED = 3e-6
"""Least relative change of a channel that turns. Clean float32 tables leave below 4e-7."""
FITS = 1e-4
"""What a partner may leave over of a channel's change, relative; float32 leaves below 1e-5."""
ROTATION = 1e-5
"""How far from a rotation a pair may be; clean ones stay below 2e-7."""

NEAR = 128
"""Every format in use holds the whole numbers up to here."""

ROUNDED = 2.0**-7
"""The most that a position in bfloat16, or an angle, is off, relative."""


@dataclass(frozen=True)
class Turning:
    """What happens to the channels of every head with position.

    partner: (H, D) the other channel of the pair, itself where it does not turn, -1 where the
    change is no function of two channels. speeds: (H, D) radians a token of the pair, above 0 where
    the lower channel turns towards the higher. growth: (H, D, S) size at each slot relative to slot
    0. skew: (H, D) how far from a rotation. bend: (H, D, S) what angles lack of speed x position.
    angles: (H, D, S) radians, as far as they can be told: between -pi and pi. shifted: (H,) whether
    something that is not content was added to the head.
    """

    positions: tuple[int, ...]
    partner: Tensor
    speeds: Tensor
    growth: Tensor
    skew: Tensor
    bend: Tensor
    angles: Tensor
    shifted: Tensor

    @property
    def farthest(self) -> int:
        """The largest exact position, which tells how fine speeds were read."""
        return max(p for p in self.positions if exact(p))

    @property
    def turns(self) -> Tensor:
        """(H, D): which channels turn."""
        own = torch.arange(self.partner.shape[-1])
        return self.partner != own

    def pairs(self, head: int = 0) -> dict[tuple[int, int], float]:
        """(lower, higher) channel -> speed, of a head."""
        partner, speeds = self.partner[head].tolist(), self.speeds[head].tolist()
        return {(u, v): speeds[u] for u, v in enumerate(partner) if v > u and partner[v] == u}

    def strays(self, head: int = 0) -> list[int]:
        """Channels that change and have no partner that agrees."""
        partner = self.partner[head].tolist()
        return [u for u, v in enumerate(partner) if v < 0 or (v != u and partner[v] != u)]

    @property
    def bent(self) -> list[int]:
        """Positions at which angles are not those of one speed, beyond what float32 rounds."""
        at = torch.tensor(self.positions, dtype=torch.float64)
        room = 4 * (2.0**-22 * self.speeds.abs()[..., None] * at + 1e-6)
        off = (self.bend.abs() > room).any(0).any(0).tolist()
        return [p for p, wrong in zip(self.positions, off, strict=True) if wrong]

    @property
    def warped(self) -> bool:
        """Whether even near positions are not the ones asked for, so that speeds mean nothing."""
        near = [p for p in self.bent if p < NEAR]
        return any(abs(self.taken(p) - p) > ROUNDED * p for p in near)

    def taken(self, position: int) -> float:
        """The position whose angle was found where this one was asked for.

        By the slowest pair that is off, whose angle has turned the fewest times.
        """
        slot = self.positions.index(position)
        bend, speed = self.bend[..., slot], self.speeds.abs()
        off = bend.abs() > 4 * (2.0**-22 * speed * position + 1e-6)
        slow = torch.where(off, speed, torch.inf).flatten().argmin()
        return position + float(bend.flatten()[slow] / self.speeds.flatten()[slow])

    def tolerance(self, speed: float) -> float:
        """How far a clean model's speed may be from the formula: float32 tables and angles."""
        return 3e-6 * abs(speed) + 8e-7 / self.farthest


def exact(position: int) -> bool:
    """0 or a power of two."""
    return position & (position - 1) == 0


def turning(x: Tensor, positions: tuple[int, ...]) -> Turning:
    """Read what turns in x (B, H, S, D), the same content in every slot, at these positions.

    The first position must be the least and is the reference.
    """
    x = x.detach().double()
    first, size = x[:, :, :1], x.norm(dim=0).clamp_min(1e-300)
    change = x - first
    moved = change.norm(dim=0) / size[:, :1]
    shifted = _shifted(change, first)
    turns = moved.amax(1) > TURNED
    partner = _partners(x, change, turns)
    a, b = _coefficients(x, partner)
    return _as_turning(a, b, partner, turns, positions, shifted)


def _shifted(change: Tensor, first: Tensor) -> Tensor:
    """(H,): the change is the same for every content, so it was added."""
    if change.shape[0] < 2:
        return torch.zeros(change.shape[1], dtype=torch.bool)
    whole = change.square().sum((0, 2, 3))
    apart = (change - change.mean(0, keepdim=True)).square().sum((0, 2, 3))
    least = TURNED**2 * first.square().sum((0, 2, 3))
    return (whole > least) & (apart < 1e-6 * whole)


def _partners(x: Tensor, change: Tensor, turns: Tensor) -> Tensor:
    """(H, D): for each channel the one that explains the rest of its change best."""
    heads, width = x.shape[1], x.shape[3]
    own = torch.arange(width)
    found = own.repeat(heads, 1)
    slots = _telling_slots(x.shape[2])
    for h in range(heads):
        moving = turns[h].nonzero()[:, 0]
        if not len(moving):
            continue
        left = _left_over(x[:, h], change[:, h], moving, slots)
        best = left.min(-1)
        found[h, moving] = torch.where(best.values < FITS, best.indices, -1)
    return found


def _telling_slots(count: int) -> list[int]:
    """Slots enough to tell partners by, near and far."""
    return sorted({1, count // 4, count // 2, (3 * count) // 4, count - 2, count - 1} - {0, -1})


def _left_over(x: Tensor, change: Tensor, moving: Tensor, slots: list[int]) -> Tensor:
    """(moving, D): part of the change of u that x_0[u] and x_0[v] do not explain together."""
    zero = x[:, 0]
    units = zero / zero.norm(dim=0).clamp_min(1e-300)
    along = units.T[moving] @ units  # cos between u and v
    free = (1 - along.square()).clamp_min(1e-12)
    rest = torch.zeros_like(along)
    for s in slots:
        y = change[:, s][:, moving]
        y = y - (y * units[:, moving]).sum(0) * units[:, moving]
        rest += y.square().sum(0)[:, None] - (y.T @ units).square() / free
    left = (rest.clamp_min(0) / _size(x, change, moving, slots)[:, None]).sqrt()
    # A channel that only grows leaves nothing over whatever v is: it is its own partner.
    alone = _alone(x, change, moving, slots)
    mine = torch.full_like(alone, torch.inf).masked_fill(alone < FITS, -1.0)
    left[torch.arange(len(moving)), moving] = mine
    return left


def _size(x: Tensor, change: Tensor, moving: Tensor, slots: list[int]) -> Tensor:
    """(moving,): what is left over is measured by the change, or by the channel if it hardly turns.

    In float32 a channel is known to 1e-7 of its size, however little it changes.
    """
    whole = change[:, slots][:, :, moving].square().sum((0, 1))
    return whole + len(slots) * (1e-2 * x[:, 0][:, moving].norm(dim=0)).square() + 1e-300


def _alone(x: Tensor, change: Tensor, moving: Tensor, slots: list[int]) -> Tensor:
    """(moving,): part of the change of u that x_0[u] does not explain."""
    zero = x[:, 0][:, moving]
    units = zero / zero.norm(dim=0).clamp_min(1e-300)
    y = change[:, slots][:, :, moving]
    rest = y - (y * units[:, None]).sum(0) * units[:, None]
    return (rest.square().sum((0, 1)) / _size(x, change, moving, slots)).sqrt()


def _coefficients(x: Tensor, partner: Tensor) -> tuple[Tensor, Tensor]:
    """a and b (H, D, S): x_p[u] = a x_0[u] + b x_0[v], by least squares."""
    zero = x[:, :, 0]
    alone = partner == torch.arange(partner.shape[-1])
    v = partner.clamp_min(0)[None].expand(zero.shape)
    other = zero.gather(-1, v)
    uu, vv = zero.square().sum(0), other.square().sum(0)
    uv = (zero * other).sum(0)
    yu = torch.einsum("bhd,bhsd->hds", zero, x)
    yv = torch.einsum("bhd,bhsd->hds", other, x)
    determinant = (uu * vv - uv.square()).clamp_min(1e-300)[..., None]
    a = (yu * vv[..., None] - yv * uv[..., None]) / determinant
    b = (yv * uu[..., None] - yu * uv[..., None]) / determinant
    single = yu / uu.clamp_min(1e-300)[..., None]
    return torch.where(alone[..., None], single, a), torch.where(alone[..., None], 0.0, b)


def _as_turning(
    a: Tensor,
    b: Tensor,
    partner: Tensor,
    turns: Tensor,
    positions: tuple[int, ...],
    shifted: Tensor,
) -> Turning:
    """Angles and sizes of pairs from their coefficients."""
    other = partner.clamp_min(0)[..., None].expand(a.shape)
    a_v, b_v = a.gather(1, other), b.gather(1, other)
    lower = (torch.arange(partner.shape[-1]) < partner)[..., None]
    sign = torch.where(lower, 1.0, -1.0).to(a.dtype)
    # A norm after the rotation scales u and v apart: b_u / b_v is then not -1 at all slots alike.
    ratio = (b.square().sum(-1) / b_v.square().sum(-1).clamp_min(1e-300)).sqrt()
    ratio = torch.where((ratio > 1e-3) & (ratio < 1e3), ratio, 1.0)[..., None].sqrt()
    b, b_v = b / ratio, b_v * ratio
    cos, sin = (a + a_v) / 2, sign * (b_v - b) / 2
    paired = (partner != torch.arange(partner.shape[-1])) & (partner >= 0)
    growth = torch.where(paired[..., None], torch.hypot(cos, sin), a)
    off = torch.hypot(a - a_v, b + b_v).amax(-1)
    skew = torch.where(paired, off / growth.amax(-1).clamp_min(1e-300), 0.0)
    angles = torch.atan2(sin, cos)
    speeds, bend = unwrapped(angles, positions)
    zero = ~paired
    return Turning(
        positions,
        torch.where(turns, partner, torch.arange(partner.shape[-1])),
        speeds.masked_fill(zero, 0.0),
        growth,
        skew,
        bend.masked_fill(zero[..., None], 0.0),
        angles.masked_fill(zero[..., None], 0.0),
        shifted,
    )


def unwrapped(angles: Tensor, positions: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Speeds (...) and what angles (..., S) lack of speed x position, at growing positions."""
    turn = 2 * torch.pi
    speed = torch.zeros(angles.shape[:-1], dtype=angles.dtype)
    for s, p in enumerate(positions):
        if p > 0 and exact(p):
            guess = speed * p
            found = angles[..., s] + turn * ((guess - angles[..., s]) / turn).round()
            # Where the line breaks off, positions were wrapped or clamped: keep the speed before.
            holds = (found - guess).abs() <= 16 * (2.0**-22 * guess.abs() + 1e-6)
            speed = torch.where(holds | (p == 1), found / p, speed)
    at = torch.tensor(positions, dtype=angles.dtype)
    bend = angles - speed[..., None] * at
    return speed, bend - turn * (bend / turn).round()
