"""`wn.Attention`: a multi-head attention layer that opens doors 1 (every layer) to 5.

Axes: B batch, S new tokens, T keys, E model dim, H query heads, G key/value heads, D head_dim.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from whereness.attend.cache import KVCache
from whereness.attend.core import attend, check_choice
from whereness.attend.functional import check_built_for, check_options, check_order
from whereness.attend.locate import Extent, locate
from whereness.attend.masks import checked_mask, checked_window
from whereness.attend.request import Options
from whereness.checks import require_bool, require_floating, require_int
from whereness.encoding import At, PositionalEncoding, as_encoding
from whereness.where import Where


class Attention(nn.Module):
    """Multi-head attention with any encoding but one that joins tokens at the model's input.

    A layer owns its encoding, so its parameters train and move with the layer. A model whose
    layers share an encoding owns it itself and passes `owns_encoding=False`: the layers then hold
    a reference that is not registered, and a state_dict has every key once.

    Args:
        dim: E, width of the tokens.
        encoding: an encoding, a list of them in order of application, or None.
        num_kv_heads: G, fewer key/value heads (grouped-query); None: as many as query heads.
        head_dim: D; None: dim / num_heads.
        causal: a query sees its own slot and those before. Slots, never positions: keys in another
            order (shards) need a layer that is not causal, and `mask`.
        window: a key is visible if 0 <= q_slot - k_slot < window (|.| when not causal).
        dropout: probability on the weights, in training mode.
        bias: give the four projections a bias.

    Raises:
        ValueError: sizes that do not divide, an encoding of site "tokens" or of other head sizes,
            an encoding for causal attention only in a layer that is not causal.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        encoding: PositionalEncoding | Sequence[PositionalEncoding] | None = None,
        num_kv_heads: int | None = None,
        causal: bool = False,
        *,
        head_dim: int | None = None,
        window: int | None = None,
        dropout: float = 0.0,
        bias: bool = False,
        implementation: str = "auto",
        owns_encoding: bool = True,
    ) -> None:
        super().__init__()
        dim, num_heads = require_int("dim", dim, 1), require_int("num_heads", num_heads, 1)
        self.num_heads = num_heads
        self.num_kv_heads = (
            num_heads if num_kv_heads is None else require_int("num_kv_heads", num_kv_heads, 1)
        )
        if num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads must be a multiple of num_kv_heads, got {num_heads} and {num_kv_heads}."
            )
        if head_dim is None and dim % num_heads:
            raise ValueError(
                f"dim must be a multiple of num_heads, got {dim} and {num_heads}; or give head_dim."
            )
        self.head_dim = (
            dim // num_heads if head_dim is None else require_int("head_dim", head_dim, 1)
        )
        require_bool("causal", causal)
        check_options(Options(dropout=dropout, implementation=implementation))
        self.dim, self.causal, self.window = dim, causal, checked_window(window)
        self.dropout, self.implementation = dropout, implementation

        encoding = as_encoding(encoding)
        if encoding.site == "tokens":
            raise ValueError(
                f"{type(encoding).__name__} with site='tokens' belongs to the model (wn.Transformer"
                " opens that door). For a layer use site='every_layer' or 'queries_keys'."
            )
        check_built_for(encoding, num_heads, self.head_dim)
        check_order(encoding, causal, 1, 1)
        if owns_encoding:
            self.own_encoding = encoding
        else:
            # Inside a tuple nn.Module does not see it: not registered here, its owner moves it.
            self._shared_encoding = (encoding,)

        joined = encoding.width(dim)
        v_dim = joined if encoding.site == "every_layer" else dim
        self.q_proj = nn.Linear(joined, num_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(joined, self.num_kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(v_dim, self.num_kv_heads * self.head_dim, bias=bias)
        self.out_proj = nn.Linear(num_heads * self.head_dim, dim, bias=bias)

    @property
    def encoding(self) -> PositionalEncoding:
        """The layer's encoding, whoever owns it."""
        shared = self.__dict__.get("_shared_encoding")
        return self.own_encoding if shared is None else shared[0]

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        where: Where | At | Tensor | None = None,
        cache: KVCache | None = None,
        key_mask: Tensor | None = None,
        mask: Tensor | None = None,
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """x (B, S, E) attends to itself, to a cache before it, or to `context` (B, T, E).

        Args:
            where: positions of the new tokens, a `wn.Where`, or what `encoding.prepare` gave.
            cache: keys and values of earlier tokens; the new ones are appended.
            key_mask: (B, T), 1 at real tokens; T counts the cached tokens as well.
            mask: bool, True = may attend, (S, T) or broadcastable (B, H, S, T).

        Raises:
            TypeError, ValueError: as `wn.attention`; a context with a cache or in a causal layer;
                a context for an encoding that reads the order of tokens.
        """
        self._check_inputs(x, context, cache)
        encoding = self.encoding
        batch, queries, _ = x.shape
        past = 0 if cache is None else len(cache)
        keys = past + queries if context is None else context.shape[1]
        checked_mask(mask, batch, self.num_heads, queries, keys, x.device)
        extent = Extent(
            batch, queries, keys, self.causal, cross=context is not None, device=x.device
        )
        options = Options(
            causal=self.causal,
            window=self.window,
            mask=mask,
            dropout=self.dropout if self.training else 0.0,
            return_weights=return_weights,
            implementation=self.implementation,
        )
        check_choice(options, encoding)  # refused before the cache changes
        self._check_cache(cache, batch)
        at = locate(encoding, where, extent, key_mask, cache)

        x_q, x_k, x_v = encoding.inputs(x, x if context is None else context, at)
        q, k, v = self._split(x_q, x_k, x_v)
        features: dict[str, Tensor] = {}
        if context is None:
            features = encoding.features(x, at, cache.features if cache else None)
        turned, content, features = self._through_cache(q, k, v, features, at, cache)
        out, weights = attend(turned, content, encoding, at, options, features, self.project)
        out = self.out_proj(out.transpose(1, 2).flatten(2))
        return out if weights is None else (out, weights)

    def project(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (R, E) through this layer's W_q and W_k: (H, R, D) each, key groups repeated."""
        q = self.q_proj(rows).unflatten(-1, (self.num_heads, self.head_dim)).transpose(0, 1)
        k = self.k_proj(rows).unflatten(-1, (self.num_kv_heads, self.head_dim)).transpose(0, 1)
        return q, k.repeat_interleave(self.num_heads // self.num_kv_heads, 0)

    def _split(self, x_q: Tensor, x_k: Tensor, x_v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, tokens, width) -> (B, heads, tokens, D), through the projections."""
        shapes = ((self.q_proj, x_q, self.num_heads), (self.k_proj, x_k, self.num_kv_heads))
        q, k = (p(x).unflatten(-1, (n, self.head_dim)).transpose(1, 2) for p, x, n in shapes)
        v = self.v_proj(x_v).unflatten(-1, (self.num_kv_heads, self.head_dim)).transpose(1, 2)
        return q, k, v

    def _through_cache(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        features: dict[str, Tensor],
        at: At,
        cache: KVCache | None,
    ) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor], dict[str, Tensor]]:
        """Doors 3 and 5 (values) and the cache, in the order that the encoding allows.

        Gives ((q, k, v) after the doors, (q, k) of content, features), keys of all slots.
        """
        encoding = self.encoding
        if cache is not None and not encoding.cacheable:
            k, v, features = cache.append(k, v, features, at.where, encoding)
        turned_q, turned_k = encoding.queries_keys(q, k, at, features)
        v = encoding.values(v, at)
        if cache is not None and encoding.cacheable:
            turned_k, v, features = cache.append(turned_k, v, features, at.where, encoding)
            k = turned_k  # an encoding that reads content and uses door 3 is not cacheable
        return (turned_q, turned_k, v), (q, k), features

    @staticmethod
    def _check_cache(cache: KVCache | None, batch: int) -> None:
        if cache is not None and len(cache) and cache.k.shape[0] != batch:
            raise ValueError(f"The cache has batch size {cache.k.shape[0]}, x has {batch}.")

    def _check_inputs(self, x: Tensor, context: Tensor | None, cache: KVCache | None) -> None:
        given = [("x", x)] if context is None else [("x", x), ("context", context)]
        for name, t in given:
            require_floating(name, t)
            if t.dim() != 3 or t.shape[-1] != self.dim:
                raise ValueError(f"{name} must be (B, tokens, {self.dim}), got {tuple(t.shape)}.")
            if t.shape[0] != x.shape[0]:
                raise ValueError(f"context has batch size {t.shape[0]}, x has {x.shape[0]}.")
        if context is None:
            return
        if cache is not None:
            raise ValueError("A cache holds this layer's own tokens: not with a context.")
        if self.causal:
            raise ValueError("Cross-attention has no common order: the layer must not be causal.")
        if any(m.reads == "order" for m in self.encoding.members()):
            raise ValueError(
                f"{type(self.encoding).__name__} reads the order of tokens, which a query and a "
                "context do not share."
            )
