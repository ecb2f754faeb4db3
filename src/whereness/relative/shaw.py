"""Shaw: a learned vector per offset, met by the query's content; and, as an option, in the values.

    logits[i, j] = q_i . (k_j + a_K[c(k - q)]) * scale
    out[i]       = sum_j weights[i, j] (v_j + a_V[c(k - q)])
    c(offset) = clip(offset, -K, K) + K,   K = max_distance

Source: Shaw, Uszkoreit & Vaswani 2018, arXiv:1803.02155, sections 3.1 to 3.3. The tables are
shared by heads, as there. The paper finds that the value table adds little.

Axes: R = 2K + 1 rows of the tables. Units: offsets in tokens.
"""

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from whereness.checks import require_bool, require_int
from whereness.encoding import At, Call, PositionalEncoding
from whereness.relative.bias import Strip
from whereness.where import Where, checked_positions, offsets


class Shaw(PositionalEncoding):
    """A learned vector per offset within max_distance. Integer positions only.

    The key term is q times all R rows, gathered by offset: no (S, T, D) tensor is made.

    Args:
        max_distance: K; farther offsets share the last row.
        values: also add a learned vector to what is read (door 5).
    """

    relative = True
    content_aware = True

    def __init__(self, head_dim: int, max_distance: int, values: bool = True) -> None:
        super().__init__()
        self.head_dim = head_dim = require_int("head_dim", head_dim, 1)
        self.max_distance = max_distance = require_int("max_distance", max_distance, 0)
        require_bool("values", values)
        self.needs_weights = values
        num_rows = 2 * max_distance + 1
        self.key_table = nn.Parameter(torch.empty(num_rows, head_dim))
        self.value_table = nn.Parameter(torch.empty(num_rows, head_dim)) if values else None
        self.reset_parameters()

    @property
    def doors(self) -> tuple[int, ...]:
        return (4,) if self.value_table is None else (4, 5)

    def reset_parameters(self) -> None:
        for table in self.parameters():
            nn.init.xavier_uniform_(table)

    def index(
        self, q_positions: Shaped[Tensor, "*#B S"], k_positions: Shaped[Tensor, "*#B T"]
    ) -> Int[Tensor, "*#B S T"]:
        """Row of the tables for every query and key: (..., S) and (..., T) -> (..., S, T)."""
        q = checked_positions("q_positions", q_positions)
        k = checked_positions("k_positions", k_positions)
        return self._clipped(offsets(q, k)[0])

    def tables(self, where: Where) -> Strip | None:
        if where.regular and where.num_queries:
            offset = torch.arange(
                1 - where.num_keys, where.num_queries, device=where.positions.device
            )
            return Strip(self._clipped(offset)[None], where.num_keys)
        self._clipped(where.positions[:, :0] - where.keys[:, :0])  # refuses real positions
        return None

    def data_of_rows(self, at: At, rows: slice, keys: int | None = None) -> Strip | None:
        return None if at.data is None else at.data.of_rows(rows, keys)

    def scores(self, logits: Float[Tensor, "B H S T"], call: Call) -> Float[Tensor, "B H S T"]:
        by_row = call.q.to(logits.dtype) @ _with_none(self.key_table, logits.dtype).T
        terms = by_row.gather(-1, self._index(call.at)[:, None].expand(logits.shape))
        return logits + terms * call.scale

    def outputs(
        self,
        out: Float[Tensor, "B H S D"],
        weights: Float[Tensor, "B H S T"] | None,
        call: Call,
    ) -> Float[Tensor, "B H S D"]:
        if self.value_table is None:
            return out
        assert weights is not None  # needs_weights
        # Weight that falls on each row, then one small product.
        table = _with_none(self.value_table, out.dtype)
        by_row = weights.new_zeros(*weights.shape[:-1], len(table))
        index = self._index(call.at)[:, None].expand(weights.shape)
        return out + by_row.scatter_add(-1, index, weights) @ table

    def _index(self, at: At) -> Int[Tensor, "B S T"]:
        """Row of the tables for every query and key; where one has no place, the row after them."""
        if at.data is not None:
            return at.data.dense()
        offset, placed = offsets(at.where.positions, at.where.keys)
        return self._clipped(offset).masked_fill(~placed, len(self.key_table))

    def _clipped(self, offset: Tensor) -> Tensor:
        if offset.is_floating_point():
            raise TypeError("Shaw needs integer positions, got real ones.")
        return offset.clamp(-self.max_distance, self.max_distance) + self.max_distance


def _with_none(table: Float[Tensor, "R D"], dtype: torch.dtype) -> Float[Tensor, "Q D"]:
    """A table with a row of zeros after its own."""
    return F.pad(table.to(dtype), (0, 0, 0, 1))
