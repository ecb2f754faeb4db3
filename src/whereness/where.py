"""Where the tokens of one forward pass are.

Axes: B batch, S new tokens (queries), T keys, n axes of a position. Positions are in tokens,
or in any real unit. A *slot* is a token's place in the tensor, a *position* its place in the
text, image or whatever the tokens describe.
"""

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whereness.checks import (
    INTEGER_TYPES,
    LARGEST_POSITION,
    REAL_TYPES,
    as_int,
    require,
    require_device,
    require_int,
    require_number,
)

TENSORS = ("positions", "k_positions", "segments", "k_segments", "key_mask", "lengths")
NOWHERE: int = torch.iinfo(torch.int64).min
"""Position of a token without a place (CLS, register, pad); NaN where positions are real."""


def is_nowhere(positions: Tensor, num_axes: int = 1) -> Tensor:
    """True where a token has no place. (..., S) for one axis, (..., S, n) -> (..., S) for more."""
    marked = positions.isnan() if positions.is_floating_point() else positions == NOWHERE
    return marked.any(-1) if num_axes > 1 else marked


def filled(positions: Tensor, num_axes: int = 1) -> tuple[Tensor, Tensor]:
    """(positions with 0 where there is no place, mask of the tokens that have none)."""
    absent = is_nowhere(positions, num_axes)
    mask = absent[..., None] if num_axes > 1 else absent
    return positions.masked_fill(mask, 0), absent


def moved_by(positions: Tensor, offset: float | Tensor) -> Tensor:
    """`positions` plus `offset`; tokens without a place stay without.

    Inside a token of several axes one NOWHERE coordinate is enough; each stays as it is.
    """
    moved, absent = positions + offset, is_nowhere(positions)
    nowhere = torch.nan if moved.is_floating_point() else NOWHERE
    return moved.masked_fill(absent, nowhere)


def placed_advice(value: object) -> str:
    """What to give in place of a `wn.positions.Placed`; empty for other values."""
    found = getattr(value, "positions", None)
    if not isinstance(found, Tensor):
        return ""
    return f" Give Where(its .positions, num_axes={found.shape[-1]})."


def checked_positions(name: str, positions: object, num_axes: int = 1) -> Tensor:
    """`positions` as int64, float32 or float64 of shape (..., S) or (..., S, n).

    Raises:
        TypeError: not a tensor, or a bool, half-precision or complex one (bfloat16 cannot tell
            256 from 257).
        ValueError: no token axis, a last axis that is not num_axes long, positions that are
            infinite or beyond 2^53.
    """
    if not isinstance(positions, Tensor):
        advice = placed_advice(positions) or " Use torch.arange."
        raise TypeError(f"{name} must be a tensor, got {type(positions).__name__}.{advice}")
    if positions.dtype not in (*INTEGER_TYPES, *REAL_TYPES):
        raise TypeError(
            f"{name} must hold int64, float32 or float64, got {positions.dtype}. "
            "Build positions as integers: half precision cannot tell 256 from 257."
        )
    if positions.dim() < (2 if num_axes > 1 else 1):
        shape = "(..., S, n)" if num_axes > 1 else "(..., S)"
        raise ValueError(f"{name} must have shape {shape}, got {tuple(positions.shape)}.")
    if num_axes > 1 and positions.shape[-1] != num_axes:
        raise ValueError(
            f"{name} must end in num_axes={num_axes} coordinates a token, got "
            f"{tuple(positions.shape)}."
        )
    if positions.is_floating_point():
        require(
            ~positions.isinf(),
            f"{name} must be finite (NaN marks a token without a place).",
            positions,
        )
        return positions
    positions = positions if positions.dtype == torch.int64 else positions.long()
    within = (positions.abs() <= LARGEST_POSITION) | (positions == NOWHERE)
    require(
        within, f"{name} must lie within 2^53 of 0, where float64 holds every integer.", positions
    )
    return positions


def _batched(name: str, value: Tensor, trailing: int) -> Tensor:
    """Give `value` its batch axis; `trailing` axes come after the token axis."""
    if name.endswith("positions") and not trailing and value.dim() == 3 and value.shape[-1] == 1:
        return value[..., 0]  # (B, S, n) with n = 1
    if value.dim() == 1 + trailing:
        return value[None]
    if value.dim() == 2 + trailing:
        return value
    shape = "(S, n) or (B, S, n)" if trailing else "(S,) or (B, S)"
    raise ValueError(f"{name} must have shape {shape}, got {tuple(value.shape)}.")


@dataclass(frozen=True, eq=False)
class Where:
    """Where the tokens of one forward pass are. Checked once, when it is made.

    It says nothing of order: causal=True compares slots, the queries being the last S of the keys.
    Keys whose slots do not tell their order (shards) need a mask, `wn.positions.shard_mask`.

    The new tokens are the queries. Without `k_positions` they are the keys as well; with a cache,
    `wn.KVCache` adds the keys. After construction every tensor has a batch axis: `positions`
    (B or 1, S[, n]), `k_positions` (B or 1, T[, n]), `segments` (B or 1, S), `k_segments` and
    `key_mask` (B or 1, T), `lengths` (B or 1, S or 1).

    Args:
        positions: (S,), (B, S), or with axes (S, n), (B, S, n). With num_axes=1 (B, S, 1) is
            (B, S), and (S, 1) is S sequences of one token but for an encoding that reads grids.
            None: attention fills in the default (counted from 0, or from `key_mask`, and anew in
            every segment).
        k_positions: the same for the keys, where they are not the queries' own tokens.
        segments: document of each new token; tokens of different documents never see each other.
        k_segments: document of each key, where keys are not the queries' own tokens.
        key_mask: True (or 1) where a key is a real token, False at a pad.
        lengths: length that each sequence will reach: int, (B,), or (B, S) a token when packed.
            Only encodings whose table depends on length read it.
        num_axes: coordinates a position has. More than 1 means a last axis of that size.

    Raises:
        TypeError: bool, half-precision or complex positions, segments that are not integers.
        ValueError: shapes that do not fit each other, infinite positions, positions and lengths
            beyond 2^53.
    """

    positions: Any = None  # a tensor, or None until attention fills it in
    k_positions: Tensor | None = None
    _: dataclasses.KW_ONLY
    segments: Tensor | None = None
    k_segments: Tensor | None = None
    key_mask: Tensor | None = None
    lengths: Any = None  # a tensor once checked
    num_axes: int = 1
    cached: int = 0
    """The first `cached` keys have been through door 3 before. Set by `wn.KVCache`."""
    slots: Tensor | None = None
    """(T,) the slot in which each key was fed, where a cache has forgotten some between."""
    cache_state: int | None = None
    """What had happened to the cache when the keys were added."""
    built: tuple[Any, Any] | None = None
    """The very tensors (positions, k_positions) that the library built regular."""
    counted: tuple[int, Tensor] | None = None
    """The number that `lengths` was given as and the very tensor made of it."""

    def __repr__(self) -> str:
        """What was given: types and shapes of tensors, and `lengths` as the number it was."""
        parts = []
        for name, value in self.tensors().items():
            if self.counted is not None and self.counted[1] is value:
                parts.append(f"{name}={self.counted[0]}")
            else:
                dtype = str(value.dtype).removeprefix("torch.")
                parts.append(f"{name}={dtype} {tuple(value.shape)}")
        if self.num_axes > 1:
            parts.append(f"num_axes={self.num_axes}")
        return f"Where({', '.join(parts)})"

    def __post_init__(self) -> None:
        self._set("num_axes", require_int("num_axes", self.num_axes, 1))
        trailing = int(self.num_axes > 1)
        for name in ("positions", "k_positions"):
            value = getattr(self, name)
            if value is not None:
                value = checked_positions(name, value, self.num_axes)
                self._set(name, _batched(name, value, trailing))
        for name in ("segments", "k_segments"):
            if getattr(self, name) is not None:
                self._set(name, _batched(name, _integers(name, getattr(self, name)), 0))
        if self.key_mask is not None:
            self._set("key_mask", _batched("key_mask", as_mask(self.key_mask), 0))
        if self.lengths is not None:
            self._set_lengths()
        self._check_shapes()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _set_lengths(self) -> None:
        lengths, counted = self.lengths, self.counted
        if counted is not None and counted[1] is lengths:
            lengths = counted[0]  # a number again: the positions may have come since
        if as_int(lengths) is not None:
            number = require_int("lengths", lengths, 0, LARGEST_POSITION)
            device = None if self.positions is None else self.positions.device
            made = torch.full((1, 1), number, device=device)
            self._set("lengths", made)
            self._set("counted", (number, made))
            return
        lengths = _integers("lengths", lengths)
        if lengths.dim() > 2:
            raise ValueError(f"lengths must be an int, (B,) or (B, S), got {tuple(lengths.shape)}.")
        if lengths.dim() < 2:
            lengths = lengths.reshape(-1, 1)
        require(lengths >= 0, "lengths must not be negative.", lengths)
        require(lengths <= LARGEST_POSITION, "lengths must be at most 2^53.", lengths)
        self._set("lengths", lengths)

    def _check_shapes(self) -> None:
        if self.k_positions is not None and self.positions is None:
            raise ValueError("k_positions need positions beside them: give both.")
        batches = {}
        for name, value in self.tensors().items():
            if value.shape[0] != 1:
                batches[name] = value.shape[0]
        if len(set(batches.values())) > 1:
            raise ValueError(f"Batch sizes must agree or be 1, got {batches}.")
        self._same_length("segments", self.segments, "positions", self.positions)
        self._same_length("k_segments", self.k_segments, "the keys", self.keys)
        self._same_length("key_mask", self.key_mask, "the keys", self.keys)
        if self.k_segments is not None and self.segments is None:
            raise ValueError("k_segments need segments beside them: give both.")
        if self.segments is not None and self.k_positions is not None and self.k_segments is None:
            same = self.k_positions.shape[1] == self.segments.shape[1]
            if not same:
                raise ValueError("segments with k_positions need k_segments: give both.")

    @staticmethod
    def _same_length(name: str, value: Tensor | None, other: str, against: Tensor | None) -> None:
        if value is not None and against is not None and value.shape[1] != against.shape[1]:
            raise ValueError(
                f"{name} must be as long as {other}: needed {against.shape[1]} tokens, "
                f"got {value.shape[1]}."
            )

    def tensors(self) -> dict[str, Tensor]:
        """What was given, by its name."""
        given = {name: getattr(self, name) for name in TENSORS}
        return {name: value for name, value in given.items() if value is not None}

    def require_device(self, device: torch.device) -> None:
        """Raise unless everything lies on `device`; the message names all that does not."""
        wrong = {n: t.device for n, t in self.tensors().items() if t.device != device}
        if self.positions is None and self.counted is not None and self.counted[1] is self.lengths:
            wrong.pop("lengths", None)  # a number: it goes where the positions will be
        if wrong:
            found = ", ".join(dict.fromkeys(str(d) for d in wrong.values()))
            raise ValueError(
                f"{', '.join(wrong)} must be on {device}, got {found}. Use where.to()."
            )

    @property
    def regular(self) -> bool:
        """Offsets of positions are offsets of slots.

        Known only where the library built the positions and nobody replaced them: finding out by
        looking would be a host sync.
        """
        built = self.built
        if built is None:
            return False
        return built[0] is self.positions and built[1] is self.k_positions

    def as_regular(self) -> "Where":
        """The same, known to be regular: for whoever built these positions."""
        return replace(self, built=(self.positions, self.k_positions))

    @property
    def keys(self) -> Any:
        """Positions of all keys, (B or 1, T[, n])."""
        return self.positions if self.k_positions is None else self.k_positions

    @property
    def new_keys(self) -> Any:
        """Positions of the keys that have not been through door 3 yet."""
        return self.positions if self.k_positions is None else self.k_positions[:, self.cached :]

    @property
    def key_segments(self) -> Tensor | None:
        """Document of every key, (B or 1, T)."""
        return self.segments if self.k_segments is None else self.k_segments

    @property
    def num_queries(self) -> int:
        """S."""
        return self.positions.shape[1]

    @property
    def num_keys(self) -> int:
        """T."""
        return self.keys.shape[1]

    def new_pads(self) -> Tensor | None:
        """True at new tokens that are pads, (B or 1, S); None when no token is masked."""
        if self.key_mask is None:
            return None
        return ~self.key_mask[:, self.key_mask.shape[1] - self.num_queries :]

    def shifted(self, offset: float) -> "Where":
        """The same tokens, all moved by `offset`. Tokens without a place stay without."""
        if offset:
            require_number("the size of a shift", abs(offset), 0.0)
        if isinstance(offset, int) and abs(offset) > LARGEST_POSITION:
            raise ValueError(f"A shift must lie within 2^53 of 0, got {offset}.")
        positions, k_positions = (
            None if p is None else moved_by(p, offset) for p in (self.positions, self.k_positions)
        )
        moved = replace(self, positions=positions, k_positions=k_positions)
        return moved.as_regular() if self.regular else moved

    def of_rows(self, rows: slice, keys: int | None = None) -> "Where":
        """Some of the queries, against the first `keys` keys (all).

        Slots are no longer those of the positions.
        """
        segments, lengths, first = self.segments, self.lengths, slice(keys)
        k_segments, key_mask, slots = self.key_segments, self.key_mask, self.slots
        if lengths is not None and lengths.shape[1] > 1:
            lengths = lengths[:, rows]
        return replace(
            self,
            positions=self.positions[:, rows],
            k_positions=self.keys[:, first],
            segments=None if segments is None else segments[:, rows],
            k_segments=None if k_segments is None else k_segments[:, first],
            key_mask=None if key_mask is None else key_mask[:, first],
            lengths=lengths,
            slots=None if slots is None else slots[first],
        )

    def of_batch(self, batch: int) -> "Where":
        """Positions that are the same for all sequences, once for every sequence."""
        changed = {
            name: value.expand(batch, *value.shape[1:])
            for name, value in (("positions", self.positions), ("k_positions", self.k_positions))
            if value is not None and value.shape[0] != batch
        }
        if not changed:
            return self
        repeated = replace(self, **changed)
        return repeated.as_regular() if self.regular else repeated

    def of_tokens(self, num_queries: int, num_keys: int) -> "Where":
        """Positions (S, 1) of S tokens as (1, S), for whoever knows how many tokens there are.

        Alone they are those of S sequences of one token.
        """
        changed = {}
        for name, tokens in (("positions", num_queries), ("k_positions", num_keys)):
            value = getattr(self, name)
            if value is not None and value.dim() == 2 and value.shape == (tokens, 1):
                changed[name] = value.mT
        return replace(self, **changed) if changed else self

    def to(self, device: torch.device | str) -> "Where":
        """The same on another device."""
        return replace(self, **{n: t.to(device) for n, t in self.tensors().items()})


def _integers(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor of integers, got {type(value).__name__}.")
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise TypeError(f"{name} must hold integers, got {value.dtype}.")
    whole = value.long()
    if value.dtype == torch.uint64:
        require(whole >= 0, f"{name} must hold numbers below 2^63, those of int64.")
    return whole


def as_mask(mask: object, name: str = "key_mask") -> Tensor:
    """A padding mask as bool. Hugging Face gives 1 and 0 as int64; float masks are refused."""
    if not isinstance(mask, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(mask).__name__}.")
    if mask.is_floating_point() or mask.is_complex():
        raise TypeError(
            f"{name} must hold bool or 1 and 0 (1 = real token), got {mask.dtype}. "
            "An additive mask becomes one by `mask == 0`."
        )
    if mask.dtype != torch.bool:
        require((mask == 0) | (mask == 1), f"{name} must hold only 1 (real token) and 0 (pad).")
    return mask.bool()


def check_batches(q_positions: Tensor, k_positions: Tensor) -> None:
    """Raise unless two position tensors lie on one device and their leading axes broadcast."""
    require_device("k_positions", k_positions, q_positions.device)
    leading = tuple(q_positions.shape[:-1]), tuple(k_positions.shape[:-1])
    pairs = zip(reversed(leading[0]), reversed(leading[1]), strict=False)
    if any(a != b and 1 not in (a, b) for a, b in pairs):
        raise ValueError(
            f"Batches of positions must agree or be 1, got {leading[0]} and {leading[1]}."
        )


def offsets(q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
    """(k - q, placed), both (..., S, T). The offset is 0 where either token has no place."""
    check_batches(q_positions, k_positions)
    q, q_absent = filled(q_positions)
    k, k_absent = filled(k_positions)
    if q.is_floating_point() or k.is_floating_point():
        q, k = q.double(), k.double()  # a difference has more digits than float32 holds
    placed = ~(q_absent[..., :, None] | k_absent[..., None, :])
    return (k[..., None, :] - q[..., :, None]) * placed, placed


def farthest_offsets(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """Offsets between which all of those of (B, S) and (B, T) lie, back and ahead: (B, 2).

    0 stands for what does not exist: an offset ahead (or back), a token with a place.
    """
    check_batches(q_positions, k_positions)
    q, k = q_positions, k_positions
    if q.is_floating_point() or k.is_floating_point():
        q, k = q.double(), k.double()
    (q, q_absent), (k, k_absent) = filled(q), filled(k)
    first, last = LARGEST_POSITION, -LARGEST_POSITION  # nobody is farther
    back = k.masked_fill(k_absent, first).amin(-1) - q.masked_fill(q_absent, last).amax(-1)
    ahead = k.masked_fill(k_absent, last).amax(-1) - q.masked_fill(q_absent, first).amin(-1)
    return torch.stack((back.clamp(max=0), ahead.clamp(min=0)), -1)
