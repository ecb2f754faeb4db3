"""Turning pairs of channels by position: what all encodings of door 3 that rotate have in common.

A leaf gives the angle of every pair, or its cos and sin, at any position; this file puts them on
queries and keys, in any layout, forward and back.

Angles are formed in float64 or better, and rounded once to float32: cos and sin are within 2^-24 of
exact for integer positions below 2^24. Inputs are turned in float32 (float64 inputs in float64, by
tables of that type) and rounded once.

Axes: B batch, H heads, S tokens, D head_dim, R rotary_dim, P = R/2 pairs. Units: positions in
tokens (any real number), frequencies in radians per token.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from whereness.checks import (
    FLOATING_TYPES,
    require_bool,
    require_choice,
    require_floating,
    require_int,
    require_writable,
    told,
)
from whereness.encoding import At, Features, PositionalEncoding
from whereness.kernels.reference import turned_part
from whereness.kernels.rotary import rotate, rotate_
from whereness.layouts import AXES, LAYOUTS, Axes, Layout, as_given, heads_first
from whereness.rotary.lengths import lengths_of
from whereness.rotary.pairing import PAIRINGS, Pairing
from whereness.where import Where, filled

Side = Literal["leading", "trailing"]


class Turn(NamedTuple):
    """cos and sin of every token's angles, (B or 1, S, H or 1, P), float32; any factor on both.

    Beside them what they were made of, so that float64 tensors get float64 tables.
    """

    cos: Tensor
    sin: Tensor
    positions: Tensor
    lengths: Tensor | None
    of_keys: bool


class Table(NamedTuple):
    """cos and sin of every token's angles, (B or 1, S, H or 1, P); any factor on both."""

    cos: Tensor
    sin: Tensor


class Turns(NamedTuple):
    """Turns of the queries and of the keys that have not been cached."""

    queries: Turn
    keys: Turn


class Run(NamedTuple):
    """Channels in which pairs are formed: where they begin, and their pairs in the tables."""

    start: int
    first: int
    pairs: int
    whole: bool = False
    """The tables have no other pairs."""

    def of(self, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """The tables of these pairs."""
        if self.whole:
            return cos, sin
        return cos.narrow(-1, self.first, self.pairs), sin.narrow(-1, self.first, self.pairs)


class Rotary(PositionalEncoding):
    """Base of the encodings of door 3 that turn pairs of channels: a leaf gives `angles`.

    A token without a place passes untouched.

    Args:
        head_dim: D, width of a query.
        rotary_dim: R, channels that turn; the rest pass untouched.
        rotary_side: "leading" turns the first R channels, "trailing" the last R.
    """

    relative = True
    per_head: bool = False
    """True: every head has angles of its own."""
    in_own_type: bool = False
    """True: tensors are turned in their own type, not in float32 at least."""
    head_dim: int  # type: ignore[bad-override-mutable-attribute]

    def __init__(
        self, head_dim: int, pairing: Pairing, rotary_dim: int | None, rotary_side: Side
    ) -> None:
        super().__init__()
        head_dim = require_int("head_dim", head_dim, 1)
        rotary_dim = head_dim if rotary_dim is None else require_int("rotary_dim", rotary_dim, 2)
        if rotary_dim % 2:
            raise ValueError(f"rotary_dim must be even, two channels a pair; got {rotary_dim}.")
        if rotary_dim > head_dim:
            raise ValueError(f"rotary_dim must fit head_dim={head_dim}, got {rotary_dim}.")
        require_choice("pairing", pairing, PAIRINGS)
        require_choice("rotary_side", rotary_side, ("leading", "trailing"))
        self.head_dim, self.rotary_dim = head_dim, rotary_dim
        self.pairing, self.rotary_side = pairing, rotary_side
        self._interleaved = pairing == "interleaved"
        start = 0 if rotary_side == "leading" else head_dim - rotary_dim
        self._runs: tuple[Run, ...] = (Run(start, 0, rotary_dim // 2, whole=True),)

    @property
    def frequencies(self) -> Tensor | tuple[Tensor, ...]:
        """Radians per unit of position, float64 on the CPU."""
        raise NotImplementedError

    def angles(
        self, positions: Shaped[Tensor, "..."], lengths: Tensor | None = None
    ) -> Float[Tensor, "... P"]:
        """Angle of every pair in radians, float64: positions (..., S[, n]) -> (..., S, P).

        (..., S, H, P) where every head has its own. `lengths` (..., S or 1) are those that the
        tokens' sequences will reach, for an encoding that needs them.
        """
        raise NotImplementedError

    def cos_sin(self, positions: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """cos and sin of the angles, (..., S, H or 1, P), float64, with any factor on them."""
        angles = self.angles(positions, lengths)
        angles = angles if self.per_head else angles.unsqueeze(-2)
        return angles.cos(), angles.sin()

    def rounded(self, positions: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """`cos_sin` in float32, made of better angles where a kernel can."""
        cos, sin = self.cos_sin(positions, lengths)
        return cos.float(), sin.float()

    def _asks(self, kind: type["Rotary"]) -> bool:
        """No subclass of `kind` has angles of its own, which `kind` would not ask for."""
        mine = type(self)
        return mine.angles is kind.angles and mine.cos_sin is kind.cos_sin

    def exactly(self, turned: Turn) -> Table:
        """The tables of a turn in float64."""
        placed, absent = filled(turned.positions, self.num_axes)
        return _still(*self.cos_sin(placed, turned.lengths), absent)

    def extra_repr(self) -> str:
        return told(self, type(self), ("rotary_dim",) if self.rotary_dim == self.head_dim else ())

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        where: Where | At | Tensor | None = None,
        *,
        layout: Layout = "bhsd",
    ) -> tuple[Tensor, Tensor]:
        """q and k, turned; the inputs are not changed. The heads of q and k may differ in number.

        Args:
            q: (B, H, S, D), or (B, S, H, D) with layout="bshd", or (S, H, D) with "thd".
            k: the same with T tokens.
            where: positions (S,) or (B, S); a `wn.Where`, with k_positions if those of the keys
                differ; or what `prepare` gave. Default: 0 .. S-1.

        Raises:
            TypeError: tensors that are not floating-point; half-precision positions.
            ValueError: another width than head_dim, positions that do not fit the tokens.
        """
        at = self._located(where, {"q": q, "k": k}, layout)
        return self._all_turned((q, k), at.data, layout)  # type: ignore[bad-return]

    def rotate(
        self,
        x: Tensor,
        where: Where | At | Tensor | None = None,
        *,
        inverse: bool = False,
        layout: Layout = "bhsd",
    ) -> Tensor:
        """x, turned by its positions as queries are, or back with `inverse`.

        Arguments as for a call. `inverse` undoes any factor on cos and sin as well.
        """
        require_bool("inverse", inverse)
        at = self._located(where, {"x": x}, layout)
        return self._turned(x, at.data.queries, layout, inverse)

    def rotate_keys(
        self,
        k: Tensor,
        where: Where | At | Tensor | None = None,
        *,
        inverse: bool = False,
        layout: Layout = "bhsd",
    ) -> Tensor:
        """`rotate` for keys: it differs where queries and keys are scaled differently (xPos)."""
        require_bool("inverse", inverse)
        at = self._located(where, {"k": k}, layout)
        return self._turned(k, at.data.keys, layout, inverse)

    def rotate_(
        self,
        x: Tensor,
        where: Where | At | Tensor | None = None,
        *,
        inverse: bool = False,
        layout: Layout = "bhsd",
    ) -> Tensor:
        """The same in place; gives x back.

        Raises:
            ValueError: also an x that cannot be written: a leaf that requires a gradient or a view
                of one outside of torch.no_grad(), what expand() made.
        """
        require_bool("inverse", inverse)
        at = self._located(where, {"x": x}, layout)
        require_writable("x", x)
        turned = at.data.queries
        cos, sin = self._tables_for(x, turned, inverse)
        if self._by_formula(cos):
            # The gradient of a learned angle needs what stood here.
            content = x.clone() if cos.requires_grad else x
            x.copy_(self._by_torch(content, cos, sin, layout, inverse))
            return x
        for run in self._runs:
            view, tables = heads_first(x, layout), run.of(cos, sin)
            rotate_([view], [tables], run.start, self._interleaved, inverse)
        return x

    def derived(self) -> dict[str, Tensor]:
        # Plain and axial RoPE had these buffers elsewhere, under one of two names.
        frequencies = self.frequencies
        if isinstance(frequencies, tuple):
            return {}
        return dict.fromkeys(("inv_freq", "freqs"), frequencies)

    def tables(self, where: Where) -> Turns:
        of_queries, of_keys = lengths_of(where) if self.needs_lengths else (None, None)
        queries = self._turn(where.positions, of_queries, False)
        if where.k_positions is None:
            return Turns(queries, queries)
        return Turns(queries, self._turn(where.new_keys, of_keys, True))

    def queries_keys(
        self, q: Tensor, k: Tensor, at: At, features: Features
    ) -> tuple[Tensor, Tensor]:
        return self._all_turned((q, k), at.data, "bhsd")  # type: ignore[bad-return]

    def _turn(self, positions: Tensor, lengths: Tensor | None, of_keys: bool) -> Turn:
        placed, absent = filled(positions, self.num_axes)
        cos, sin = _still(*self.rounded(placed, lengths), absent)
        return Turn(cos, sin, positions, lengths, of_keys)

    def _located(
        self, where: Where | At | Tensor | None, inputs: dict[str, Tensor], layout: Layout
    ) -> At:
        require_choice("layout", layout, LAYOUTS)
        axes = AXES[layout]
        at = where if isinstance(where, At) else self._prepared(where, inputs, axes)
        if at.encoding is not self:
            raise ValueError("These positions were prepared for another encoding.")
        for name, x in inputs.items():
            self._check_fit(name, x, at.data.keys if name == "k" else at.data.queries, axes)
        return at

    def _prepared(self, where: Where | Tensor | None, inputs: dict[str, Tensor], axes: Axes) -> At:
        """Positions that are no At yet, those of 0 .. S-1 where there are none."""
        lengths = [self._checked_shape(name, x, axes)[axes.tokens] for name, x in inputs.items()]
        if where is None:
            if self.num_axes > 1:
                raise ValueError(
                    f"{type(self).__name__} needs positions (S, {self.num_axes}): "
                    "wn.positions.grid() makes those of a grid."
                )
            if lengths[0] != lengths[-1]:  # a set of them would fix their sizes under compile
                raise ValueError(
                    f"{lengths[0]} queries and {lengths[1]} keys need positions: give "
                    "where=Where(positions, k_positions)."
                )
            where = torch.arange(lengths[0], device=next(iter(inputs.values())).device)
        if isinstance(where, Tensor):
            where = Where(where, num_axes=self.num_axes)
        if isinstance(where, Where) and self.takes_grid:
            where = where.of_tokens(lengths[0], lengths[-1])
        return self.prepare(where)

    def _checked_shape(self, name: str, x: Tensor, axes: Axes) -> torch.Size:
        if not isinstance(x, Tensor) or x.dtype not in FLOATING_TYPES:
            require_floating(name, x)
        shape = x.shape
        if len(shape) != axes.count:
            raise ValueError(
                f"Layout {axes.layout!r} has {axes.count} axes, got {tuple(shape)} for {name}."
            )
        if shape[-1] != self.head_dim:
            raise ValueError(
                f"{type(self).__name__} was built for head_dim={self.head_dim}, got "
                f"{tuple(shape)} for {name}."
            )
        return shape

    def _check_fit(self, name: str, x: Tensor, turned: Turn, axes: Axes) -> None:
        shape = self._checked_shape(name, x, axes)
        cos = turned.cos
        batch, tokens, heads, _ = cos.shape
        if tokens != shape[axes.tokens]:
            raise ValueError(
                f"Positions must match the tokens of {name}: needed {shape[axes.tokens]}, got "
                f"{tokens}."
            )
        if batch != 1 and (axes.count == 3 or batch != shape[0]):
            raise ValueError(
                f"Positions have batch size {batch}, got a tensor {tuple(shape)} for {name}."
            )
        if heads != 1 and shape[axes.heads] % heads:
            raise ValueError(
                f"{name} must have a multiple of the {heads} heads that turn differently, got "
                f"{tuple(shape)}."
            )
        if cos.device != x.device:
            raise ValueError(f"Positions must be on {x.device}, got {cos.device}.")

    def _turned(self, x: Tensor, turned: Turn, layout: Layout, inverse: bool) -> Tensor:
        return self._all_turned((x,), (turned,), layout, inverse)[0]

    def _all_turned(
        self, xs: Sequence[Tensor], turns: Sequence[Turn], layout: Layout, inverse: bool = False
    ) -> tuple[Tensor, ...]:
        # Queries and keys mostly share theirs. Decoding is in a hurry: no step here is for nothing.
        tables = [self._tables_for(xs[0], turns[0], inverse)]
        formula = self._by_formula(tables[0][0])
        if len(xs) == 2:
            if turns[1] is turns[0] and xs[1].dtype == xs[0].dtype:
                tables.append(tables[0])
            else:
                tables.append(self._tables_for(xs[1], turns[1], inverse))
                formula = formula or self._by_formula(tables[1][0])
        if formula:
            return tuple(
                self._by_torch(x, cos, sin, layout, inverse)
                for x, (cos, sin) in zip(xs, tables, strict=True)
            )
        views = xs if layout == "bhsd" else [heads_first(x, layout) for x in xs]
        for run in self._runs:
            parts = tables if run.whole else [run.of(cos, sin) for cos, sin in tables]
            views = rotate(views, parts, run.start, self._interleaved, inverse)
        return tuple(views) if layout == "bhsd" else tuple([as_given(x, layout) for x in views])

    def _tables_for(self, x: Tensor, turned: Turn, inverse: bool) -> tuple[Tensor, Tensor]:
        """cos and sin of the type that x is turned in; with `inverse` for a turn back."""
        cos, sin = turned.cos, turned.sin
        if self.in_own_type or x.dtype == torch.float64:
            if x.dtype == torch.float64:
                cos, sin = self.exactly(turned)
            cos, sin = cos.to(x.dtype), sin.to(x.dtype)
        if inverse and not self.norm_preserving:
            size = cos.square() + sin.square()
            cos, sin = cos / size, sin / size
        return cos, sin

    def _by_formula(self, cos: Tensor) -> bool:
        """Torch's own operations turn: tables that learn, and types that the kernels refuse."""
        return cos.requires_grad or (
            self.in_own_type and cos.dtype not in (torch.float32, torch.float64)
        )

    def _by_torch(
        self, x: Tensor, cos: Tensor, sin: Tensor, layout: Layout, inverse: bool
    ) -> Tensor:
        x = heads_first(x, layout)
        pieces, done = [], 0
        for run in self._runs:
            tables = run.of(cos, sin)
            turned = turned_part(x, *tables, run.start, self._interleaved, inverse)
            pieces += [x.narrow(-1, done, run.start - done), turned]
            done = run.start + 2 * run.pairs
        pieces.append(x.narrow(-1, done, self.head_dim - done))
        return as_given(torch.cat([p for p in pieces if p.shape[-1]], -1), layout)


def _still(cos: Tensor, sin: Tensor, absent: Tensor) -> Table:
    """The tables with tokens that have no place (..., S) turned by nothing."""
    absent = absent[..., None, None]
    return Table(cos.masked_fill(absent, 1.0), sin.masked_fill(absent, 0.0))
