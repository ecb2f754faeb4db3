"""A small Transformer, decoder or encoder, for tests, the lab and as an example of a model.

It does what a model owes its encodings: it opens door 1, owns each encoding once, and per forward
pass moves and prepares positions once for every distinct encoding, shared by its layers.

Axes: B batch, S new tokens, E model dim.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whereness.attend.cache import KVCache
from whereness.attend.layer import Attention
from whereness.attend.locate import Extent, extended, moved, resolve
from whereness.attend.shifting import check_movable, check_turnable
from whereness.checks import require_int
from whereness.encoding import At, NoPE, PositionalEncoding, as_encoding
from whereness.schedules import Schedule, shared
from whereness.where import Where

Encoding = (
    PositionalEncoding
    | Sequence[PositionalEncoding]
    | Schedule
    | Callable[[], PositionalEncoding]
    | None
)


class Block(nn.Module):
    """Pre-norm attention and feed-forward, each added to the stream."""

    def __init__(self, attention: Attention, dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = attention
        self.feed_forward_norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)
        self.dropout = dropout

    def forward(self, x: Tensor, at: At, cache: KVCache | None, mask: Tensor | None) -> Tensor:
        y = self.attention(self.attention_norm(x), where=at, cache=cache, mask=mask)
        x = x + self._dropped(y)
        return x + self._dropped(self.down(F.gelu(self.up(self.feed_forward_norm(x)))))

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


class Transformer(nn.Module):
    """Token ids to logits, with any encoding. causal=True: a decoder, False: an encoder.

    Args:
        vocab_size: number of token ids.
        dim: E; depth: layers; num_heads: query heads.
        encoding: an encoding shared by all layers; a list of them in order of application; a
            function that makes one a layer; or a schedule (`wn.schedules`). A member with
            site="tokens" joins the tokens at the input.
        num_outputs: width of the logits; None: vocab_size.
        hidden: width of the feed-forward part; None: 4 dim.

    Raises:
        ValueError: an encoding of site "tokens" in only some layers; as `wn.Attention`.
    """

    blocks: Sequence[Block]

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        depth: int,
        num_heads: int,
        encoding: Encoding = None,
        *,
        causal: bool = True,
        num_kv_heads: int | None = None,
        num_outputs: int | None = None,
        hidden: int | None = None,
        window: int | None = None,
        dropout: float = 0.0,
        implementation: str = "auto",
    ) -> None:
        super().__init__()
        vocab_size = require_int("vocab_size", vocab_size, 1)
        depth = require_int("depth", depth, 0)
        self.dim = dim = require_int("dim", dim, 1)
        hidden = 4 * dim if hidden is None else require_int("hidden", hidden, 1)
        num_outputs = (
            vocab_size if num_outputs is None else require_int("num_outputs", num_outputs, 1)
        )
        self.causal = causal
        # Made first: a model of the same seed has the same other weights with any encoding made
        # before it.
        self.inputs, layers = _split_site(encoding, depth)
        distinct = {id(e): e for e in layers}
        members = {id(m): m for e in distinct.values() for m in e.members()}
        # Owned here once, member by member: two lists may share one. The tuple is not registered.
        self.members = nn.ModuleList(members.values())
        self.encodings = tuple(distinct.values())

        self.embedding = nn.Embedding(vocab_size, dim)
        joined = self.inputs.width(dim)
        self.narrow = nn.Linear(joined, dim, bias=False) if joined != dim else nn.Identity()
        self.blocks = nn.ModuleList(  # type: ignore[assignment]
            Block(
                Attention(
                    dim,
                    num_heads,
                    layer_encoding,
                    num_kv_heads,
                    causal,
                    window=window,
                    dropout=dropout,
                    implementation=implementation,
                    owns_encoding=False,
                ),
                dim,
                hidden,
                dropout,
            )
            for layer_encoding in layers
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_outputs, bias=False)

    def new_caches(self) -> list[KVCache]:
        """An empty cache for every layer."""
        return [KVCache() for _ in self.blocks]

    def shift(self, caches: Sequence[KVCache], offset: float | Tensor, keep: int = 0) -> None:
        """Move the tokens of all layers' caches. Arguments as for `KVCache.shift`.

        Raises:
            ValueError, TypeError: as `KVCache.shift`; an encoding that joins the tokens at the
                input. No cache has changed then.
        """
        self._check_caches(caches)
        for encoding in (self.inputs, *self.encodings):
            check_movable(encoding)
        for cache, block in zip(caches, self.blocks, strict=True):
            cache.shift(block.attention.encoding, offset, keep)

    def relengthen(self, caches: Sequence[KVCache], lengths: int | Tensor) -> None:
        """Turn all layers' cached keys to the tables of other `lengths`, as `KVCache.relengthen`.

        Exact for a model of one layer: deeper ones cached what the old table made of the tokens.

        Raises:
            ValueError, TypeError: as `KVCache.relengthen`. No cache has changed then.
        """
        self._check_caches(caches)
        for encoding in (self.inputs, *self.encodings):
            check_turnable(encoding)
        for cache, block in zip(caches, self.blocks, strict=True):
            cache.relengthen(block.attention.encoding, lengths)

    def forward(
        self,
        ids: Tensor,
        *,
        where: Where | Tensor | None = None,
        caches: Sequence[KVCache] | None = None,
        key_mask: Tensor | None = None,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """ids (B, S) -> logits (B, S, num_outputs). Arguments as for `wn.Attention`.

        Args:
            caches: one a layer, from `new_caches()`; `ids` are then the new tokens.
            generator: for encodings that move positions at random in training mode.
        """
        return self.head(
            self.states(
                ids, where=where, caches=caches, key_mask=key_mask, mask=mask, generator=generator
            )
        )

    def states(
        self,
        ids: Tensor,
        *,
        where: Where | Tensor | None = None,
        caches: Sequence[KVCache] | None = None,
        key_mask: Tensor | None = None,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Hidden states after the last norm, (B, S, E)."""
        if ids.dim() != 2:
            raise ValueError(f"ids must be (B, S), got {tuple(ids.shape)}.")
        if caches is not None:
            self._check_caches(caches)
        if isinstance(where, At):
            raise TypeError(
                "where must be a tensor or a wn.Where: a model prepares for all its encodings."
            )
        first = caches[0] if caches else None
        where = self._located(ids, where, first, key_mask, generator)
        prepared = {id(e): e.prepare(where) for e in self.encodings}
        x = self.inputs.tokens(self.embedding(ids), self.inputs.prepare(where))
        x = self.narrow(x)
        for i, block in enumerate(self.blocks):
            at = prepared[id(block.attention.encoding)]
            x = block(x, at, None if caches is None else caches[i], mask)
        return self.norm(x)

    def _check_caches(self, caches: Sequence[KVCache]) -> None:
        if len(caches) != len(self.blocks):
            raise ValueError(f"Needed {len(self.blocks)} caches, one a layer; got {len(caches)}.")
        if any(c.state != caches[0].state for c in caches):
            raise ValueError(
                "The layers' caches differ: feed, trim, evict, shift and reorder them all alike."
            )

    def _located(
        self,
        ids: Tensor,
        where: Where | Tensor | None,
        cache: KVCache | None,
        key_mask: Tensor | None,
        generator: torch.Generator | None,
    ) -> Where:
        batch, queries = ids.shape
        past = 0 if cache is None else len(cache)
        extent = Extent(batch, queries, past + queries, self.causal, False, ids.device)
        everyone = [self.inputs, *self.encodings]
        readers = [e for e in everyone if e.reads == "positions"]
        where = resolve(readers[0] if readers else NoPE(), where, extent, key_mask, cache)
        members = list({id(m): m for e in everyone for m in e.members()}.values())
        where = moved(members, where, extent, cache, generator)
        return where if cache is None else extended(everyone, where, cache, key_mask)


def _split_site(
    encoding: Encoding, depth: int
) -> tuple[PositionalEncoding, list[PositionalEncoding]]:
    """(what joins tokens at the input, the encoding of every layer)."""
    if isinstance(encoding, Schedule):
        schedule = encoding
    elif callable(encoding) and not isinstance(encoding, PositionalEncoding):
        schedule = shared(encoding)
    else:
        members = as_encoding(encoding).members()
        joins = [m for m in members if m.site == "tokens"]
        rest = [m for m in members if m.site != "tokens"]
        inputs = joins[0] if joins else NoPE()
        layer = encoding if isinstance(encoding, PositionalEncoding) and not joins else rest
        return inputs, shared(layer or NoPE()).layers(depth)
    layers = schedule.layers(depth)
    if any(e.site == "tokens" for e in layers):
        raise ValueError(
            "An encoding with site='tokens' joins the input once and cannot differ by layer: give "
            "it as encoding=[it, ...], or use site='every_layer'."
        )
    return NoPE(), layers
