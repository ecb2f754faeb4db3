"""What content-free biases share: a function of positions, evaluated in the form needed.

    logits[h, i, j]  <-  logits[h, i, j] + bias[h, i, j],   offset = k_position - q_position

A bias that depends on the offset alone is a Toeplitz matrix where positions are regular: S + T - 1
numbers a head instead of S T. `prepare` keeps that strip and unfolds it when a dense block is
asked for.

Axes: H heads, S queries, T keys. Biases are in logits, offsets in tokens.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional as F

from whereness.checks import require, require_int
from whereness.encoding import At, PositionalEncoding
from whereness.spans import Alignment, Span, aligned
from whereness.where import Where, checked_positions, farthest_offsets, is_nowhere, offsets


@dataclass(frozen=True, eq=False)
class Strip:
    """Values of a Toeplitz matrix, (H, S + T - 1): those of the last query come first.

    Query i and key j, of those that may see each other, have the value S - 1 - i + j.
    """

    values: Tensor
    num_keys: int
    spans: tuple[Span, ...] | None = None
    """What sees what, causality and windows apart; None: only key_mask and segments tell."""
    placed: tuple[Tensor, Tensor] | None = None
    """Which queries (B or 1, S) and keys (B or 1, T) have a place; None: all."""
    nowhere: float = 0.0
    """Value where either has none."""

    def dense(self) -> Shaped[Tensor, "*B H S T"]:
        """(H, S, T) or (B or 1, H, S, T). The last row is the strip's first window."""
        if torch.compiler.is_compiling():
            matrix = self._skewed()
        else:
            matrix = self.values.unfold(-1, self.num_keys, 1).flip(-2)
        if self.placed is None:
            return matrix
        queries, keys = self.placed
        both = queries[:, None, :, None] & keys[:, None, None, :]
        return torch.where(both, matrix, self.nowhere)

    def _skewed(self) -> Shaped[Tensor, "H S T"]:
        """The same without unfold, in a graph of which the length would become a constant.

        Copies of the strip one under the other, each with one number more than a row has, so that
        every row begins one later in its copy than the row before.
        """
        heads, width = self.values.shape
        queries = width - self.num_keys + 1
        copies = F.pad(self.values, (0, 1))[:, None].expand(heads, queries, width + 1)
        rows = copies.reshape(heads, -1)[:, : queries * width].reshape(heads, queries, width)
        return rows[..., queries - 1 :]

    def of_rows(self, rows: slice, keys: int | None) -> "Strip":
        """Some of the rows, and the first `keys` columns (all): a part of the strip."""
        start, stop, _ = rows.indices(self.values.shape[-1] - self.num_keys + 1)
        keys = self.num_keys if keys is None else keys
        last = self.values.shape[-1] - self.num_keys + 1 - stop
        values = self.values.narrow(-1, last, stop - start + keys - 1)
        placed = self.placed and (self.placed[0][:, start:stop], self.placed[1][:, :keys])
        return Strip(values, keys, None, placed, self.nowhere)


class OffsetBias(PositionalEncoding):
    """Base of the content-free encodings of door 4 that look at the offset alone.

    A leaf gives `by_offset`, and `at_nowhere` if it has own values for tokens without a place.
    """

    relative = True
    num_heads: int  # type: ignore[bad-override-mutable-attribute]

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = require_int("num_heads", num_heads, 1)

    def by_offset(self, offset: Shaped[Tensor, "*O"]) -> Float[Tensor, "H *O"]:
        """Value at each offset (key minus query, integer or real): (...) -> (H, ...)."""
        raise NotImplementedError

    @property
    def at_nowhere(self) -> float:
        """Value where the query or the key has no place: changes nothing."""
        return 1.0 if self.operation == "multiply" else 0.0

    def bias(
        self, q_positions: Shaped[Tensor, "*#B S"], k_positions: Shaped[Tensor, "*#B T"]
    ) -> Float[Tensor, "*#B H S T"]:
        """Bias of every query and key: (..., S) and (..., T) -> (..., H, S, T).

        float32, or float64 where parameters are. Real positions are allowed unless the encoding
        says otherwise.

        Raises:
            TypeError: half-precision, bool or complex positions.
        """
        return self._by_positions(q_positions, k_positions)

    def tables(self, where: Where) -> Tensor | Strip | None:
        known = where.num_queries and (where.regular or self.additive)
        found = aligned(where) if known else None
        if found is None:
            if self.additive:  # fused attention wants it whole, and all layers share it
                return self._by_positions(where.positions, where.keys)
            if where.num_queries:  # a block at a time, later: refused now if it will be
                self._rounded(self.by_offset(farthest_offsets(where.positions, where.keys)))
            return None
        values = self._along(found, where.num_queries, where.num_keys, where.positions.device)
        placed = None
        if not found.all_placed:
            placed = (~is_nowhere(where.positions), ~is_nowhere(where.keys))
        return Strip(values, where.num_keys, found.spans, placed, self.at_nowhere)

    def _along(self, found: Alignment, queries: int, keys: int, device: torch.device) -> Tensor:
        """Values of the strip (H, S + T - 1). Offsets between documents are never asked for."""
        first, last = 1 - queries, keys - 1  # of slots: j - i
        low, high = (first, last) if found.reach is None else found.reach
        # From shapes, not from values: no look at the device.
        offset = torch.arange(low, high + 1, device=device) + found.shift
        values = self._rounded(self.by_offset(offset))
        if found.reach is None:
            return values
        return F.pad(values, (low - first, last - high))

    def data_of_rows(self, at: At, rows: slice, keys: int | None = None) -> Tensor | Strip | None:
        if isinstance(at.data, Strip):
            return at.data.of_rows(rows, keys)
        return None if at.data is None else at.data[..., rows, slice(keys)]

    def bias_at(self, at: At) -> Tensor:
        if at.data is None:
            return self._by_positions(at.where.positions, at.where.keys)
        if not isinstance(at.data, Strip):
            return at.data
        dense = at.data.dense()
        return dense if dense.dim() == 4 else dense[None]

    def _by_positions(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        q = checked_positions("q_positions", q_positions)
        k = checked_positions("k_positions", k_positions)
        offset, placed = offsets(q, k)
        real = offset.is_floating_point()
        values = self._rounded(self.by_offset(offset), real).movedim(0, -3)
        return torch.where(placed[..., None, :, :], values, self.at_nowhere)

    def _rounded(self, values: Tensor, real: bool = False) -> Tensor:
        wide = any(p.dtype == torch.float64 for p in self.parameters())
        if wide or values.dtype == torch.float32:
            return values
        rounded = values.float()
        if real:
            require(rounded.isfinite(), "Two positions are too far apart for a bias of float32.")
        return rounded
