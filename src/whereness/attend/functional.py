"""`wn.attention`: attention over ready queries, keys and values, with any encoding.

Axes: B batch, H query heads, G key/value heads, S queries, T keys, D head_dim.
"""

import math
from collections.abc import Sequence
from typing import Literal, overload

from torch import Tensor

from whereness.attend.core import IMPLEMENTATIONS, OF_DOOR_3, attend
from whereness.attend.locate import Extent, locate
from whereness.attend.masks import checked_mask, checked_window
from whereness.attend.request import Options
from whereness.checks import require_bool, require_choice, require_floating
from whereness.encoding import At, Features, PositionalEncoding, as_encoding
from whereness.layouts import LAYOUTS, Layout, as_given, heads_first
from whereness.where import Where

# With the weights a pair comes back; type checkers are told when.


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: PositionalEncoding | Sequence[PositionalEncoding] | None = None,
    *,
    where: Where | At | Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    key_mask: Tensor | None = None,
    mask: Tensor | None = None,
    scale: float | None = None,
    features: Features | None = None,
    dropout: float = 0.0,
    layout: Layout = "bhsd",
    return_weights: Literal[False] = False,
    implementation: str = "auto",
) -> Tensor: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: PositionalEncoding | Sequence[PositionalEncoding] | None = None,
    *,
    where: Where | At | Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    key_mask: Tensor | None = None,
    mask: Tensor | None = None,
    scale: float | None = None,
    features: Features | None = None,
    dropout: float = 0.0,
    layout: Layout = "bhsd",
    return_weights: Literal[True],
    implementation: str = "auto",
) -> tuple[Tensor, Tensor]: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: PositionalEncoding | Sequence[PositionalEncoding] | None = None,
    *,
    where: Where | At | Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    key_mask: Tensor | None = None,
    mask: Tensor | None = None,
    scale: float | None = None,
    features: Features | None = None,
    dropout: float = 0.0,
    layout: Layout = "bhsd",
    return_weights: bool,
    implementation: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]: ...


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: PositionalEncoding | Sequence[PositionalEncoding] | None = None,
    *,
    where: Where | At | Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    key_mask: Tensor | None = None,
    mask: Tensor | None = None,
    scale: float | None = None,
    features: Features | None = None,
    dropout: float = 0.0,
    layout: Layout = "bhsd",
    return_weights: bool = False,
    implementation: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of q (B, H, S, D) to k and v (B, G, T, D), with positions from `encoding`.

    A query that may see no key gets an output of 0. Half types are computed in float32.

    Args:
        encoding: doors 3 to 5 of an encoding, of a list of them in order of application, or None.
        where: positions (S,) or (B, S), a `wn.Where`, or what `encoding.prepare` gave. Default:
            counted from 0; the last S of T when causal; from `key_mask` when that is given.
        causal: a query sees its own slot and those before; the queries are the last S of T slots.
            Slots, never positions: for shards, whose slots are in no order, leave it False and give
            mask=wn.positions.shard_mask(q_positions, k_positions).
        window: a key is visible if 0 <= q_slot - k_slot < window (|.| when not causal).
        key_mask: (B, T), True or 1 at real tokens.
        mask: bool, True = may attend, (S, T) or broadcastable (B, H, S, T).
        scale: factor on q.k; replaces 1/sqrt(D) and the encoding's own factor.
        features: {name: (B, T, ...)} for encodings that read hidden states.
        dropout: probability, applied to the weights whenever it is above 0.
        layout: "bhsd", "bshd", or packed "thd" (tokens, heads, D), whose documents are told by
            Where(segments=...).
        return_weights: also give the weights (B, H, S, T), before dropout.
        implementation: "auto"; "reference", the plain steps; "blocks", the same for one block of
            queries after the other, without a tensor of all pairs; "sdpa", for additive biases;
            "flex", the same through FlexAttention; "toeplitz", for biases of offsets on the CPU in
            memory of O(S). One that cannot serve the call raises.

    Raises:
        TypeError: tensors that are not floating-point, of different dtypes, or a float mask.
        ValueError: shapes that do not fit, S > T when causal, an encoding that joins tokens
            (a `site`), an encoding of other head sizes, positions that are missing or do not fit.
    """
    require_choice("layout", layout, LAYOUTS)
    q, k, v = (_to_heads_first(n, t, layout) for n, t in (("q", q), ("k", k), ("v", v)))
    check_heads(q, k, v)
    encoding = as_encoding(encoding)
    if encoding.site is not None:
        raise ValueError(
            f"{type(encoding).__name__} joins tokens (site={encoding.site!r}): that is the model's "
            "or wn.Attention's part. wn.attention opens doors 3 to 5."
        )
    check_built_for(encoding, q.shape[1], q.shape[-1])
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    check_order(encoding, causal, queries, keys)
    checked_mask(mask, batch, heads, queries, keys, q.device)
    window = checked_window(window)
    options = Options(causal, window, mask, scale, dropout, return_weights, implementation)
    check_options(options)
    extent = Extent(batch, queries, keys, causal, cross=False, device=q.device)
    at = locate(encoding, where, extent, key_mask)

    features = {} if features is None else features
    turned_q, turned_k = encoding.queries_keys(q, k, at, features)
    turned = (turned_q, turned_k, encoding.values(v, at))
    out, weights = attend(turned, (q, k), encoding, at, options, features)
    out = as_given(out, layout)
    return out if weights is None else (out, weights)


def check_heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise unless q, k, v are one kind of (B, heads, tokens, D) and share what they must."""
    for name, t in (("q", q), ("k", k), ("v", v)):
        require_floating(name, t)
        if t.dim() != 4:
            raise ValueError(
                f"{name} must have 4 axes (B, heads, tokens, D), got {tuple(t.shape)}."
            )
        if t.dtype != q.dtype:
            raise TypeError(f"q, k and v must share a dtype, got {q.dtype} and {t.dtype}.")
        if t.device != q.device:
            raise ValueError(f"q, k and v must share a device, got {q.device} and {t.device}.")
        if t.shape[0] != q.shape[0]:
            raise ValueError(f"Batch sizes must agree, got q {q.shape[0]} and {name} {t.shape[0]}.")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q and k must share D, got {q.shape[-1]} and {k.shape[-1]}.")
    if k.shape[1:3] != v.shape[1:3]:
        raise ValueError(
            f"k and v must share heads and tokens, got {tuple(k.shape)} and {tuple(v.shape)}."
        )
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"Query heads must be a multiple of key heads, got {q.shape[1]} and {k.shape[1]}."
        )
    if q.shape[-1] == 0 or k.shape[2] == 0:
        raise ValueError(f"Attention needs keys and a width, got k {tuple(k.shape)}.")


def check_order(encoding: PositionalEncoding, causal: bool, queries: int, keys: int) -> None:
    """Raise where causality and the encoding, or the sizes, contradict each other."""
    require_bool("causal", causal)
    if causal and queries > keys:
        raise ValueError(
            f"Causal attention takes the queries as the last of the keys: {queries} queries need "
            f"at least as many keys, got {keys}."
        )
    if encoding.causal_only and not causal:
        raise ValueError(
            f"{type(encoding).__name__} has no meaning for keys after the query: use causal=True"
            ", or its bidirectional form."
        )


def check_built_for(encoding: PositionalEncoding, heads: int, head_dim: int) -> None:
    """Raise if the encoding was built for other head sizes."""
    for name, needed, found in (
        ("num_heads", encoding.num_heads, heads),
        ("head_dim", encoding.head_dim, head_dim),
    ):
        if needed is not None and needed != found:
            raise ValueError(
                f"{type(encoding).__name__} was built for {name}={needed}, attention has {found}."
            )


def check_options(options: Options) -> None:
    """Raise on a dropout, scale or implementation that makes no sense."""
    real = isinstance(options.dropout, (int, float)) and not isinstance(options.dropout, bool)
    if not real or not 0 <= options.dropout < 1:
        raise ValueError(f"dropout must be in [0, 1), got {options.dropout!r}.")
    if options.scale is not None:
        if isinstance(options.scale, bool) or not isinstance(options.scale, (int, float)):
            raise TypeError(f"scale must be a number or None, got {type(options.scale).__name__}.")
        if not math.isfinite(options.scale):
            raise ValueError(f"scale must be finite, got {options.scale}.")
    require_bool("return_weights", options.return_weights)
    if options.implementation in OF_DOOR_3:
        raise ValueError(
            f"implementation={options.implementation!r} names a kernel that turns queries and "
            "keys, which rotary encodings choose by themselves, and none of attention: use one of "
            f"{', '.join(IMPLEMENTATIONS)}."
        )
    require_choice("implementation", options.implementation, IMPLEMENTATIONS)


def _to_heads_first(name: str, x: Tensor, layout: Layout) -> Tensor:
    require_floating(name, x)
    axes = 3 if layout == "thd" else 4
    if x.dim() != axes:
        raise ValueError(
            f"{name} in layout {layout!r} must have {axes} axes, got {tuple(x.shape)}."
        )
    return heads_first(x, layout)
