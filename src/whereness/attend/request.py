"""One attention call, as every implementation gets it.

Axes: B batch, H query heads, G key/value heads, S queries, T keys, D head_dim.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from whereness.attend.masks import is_plain, may_attend
from whereness.attend.numerics import repeat_groups
from whereness.encoding import At, Call, Features, PositionalEncoding


@dataclass(frozen=True)
class Options:
    """What a caller may choose about one attention call."""

    causal: bool = False
    window: int | None = None
    mask: Tensor | None = None
    scale: float | None = None
    dropout: float = 0.0
    return_weights: bool = False
    implementation: str = "auto"


@dataclass(frozen=True, eq=False)
class Request:
    """Queries, keys and values after doors 3 and 5, and what doors 4 and 5 will ask for."""

    q: Tensor
    """(B, H, S, D)"""
    k: Tensor
    """(B, G, T, D)"""
    v: Tensor
    """(B, G, T, V)"""
    content: tuple[Tensor, Tensor]
    """q (B, H, S, D) and k (B, G, T, D) before door 3."""
    encoding: PositionalEncoding
    at: At
    options: Options
    scale: float
    features: Features
    project: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    rows: slice | None = None
    """Which tokens of `features` the queries are; None: the last S."""

    @property
    def num_queries(self) -> int:
        """S."""
        return self.q.shape[2]

    @property
    def num_keys(self) -> int:
        """T."""
        return self.k.shape[2]

    @property
    def plain(self) -> bool:
        """Nothing but causality hides a key."""
        return is_plain(self.at.where, self.options.window, self.options.mask)

    @property
    def sees_all(self) -> bool:
        """No key is hidden from any query."""
        return self.plain and (not self.options.causal or self.num_queries == 1)

    def allowed(self, rows: slice | None = None, keys: int | None = None) -> Tensor:
        """Which of the first `keys` keys the queries of `rows` may see: (B or 1, H or 1, S, T)."""
        options = self.options
        return may_attend(
            self.at.where,
            self.num_queries,
            self.num_keys,
            causal=options.causal,
            window=options.window,
            mask=options.mask,
            device=self.q.device,
            rows=rows,
            keys=keys,
        )

    def call(self, allowed: Tensor | None) -> Call:
        """What doors 4 and 5 see. `allowed` is None where no mask is needed."""
        q, k = self.content
        k = repeat_groups(k, self.q.shape[1])
        return Call(q, k, self.at, self.scale, allowed, self.features, self.project, self.rows)

    def of_rows(self, rows: slice, keys: int | None = None) -> "Request":
        """The same for some of the queries, against the first `keys` keys (all).

        `allowed` of what this gives would anchor its queries at the end of the keys: ask the whole
        request for that of the rows.
        """
        start, stop, _ = rows.indices(self.num_queries)
        before = self.num_keys - self.num_queries
        return replace(
            self,
            q=self.q[:, :, rows],
            k=self.k[:, :, :keys],
            v=self.v[:, :, :keys],
            content=(self.content[0][:, :, rows], self.content[1][:, :, :keys]),
            at=self.encoding.at_rows(self.at, rows, keys),
            features={name: feature[:, :keys] for name, feature in self.features.items()},
            rows=slice(before + start, before + stop),
        )
