"""Cached keys moved to another position, or to another rotary encoding.

    k' = R_new(p') R_old(p)^-1 k

formed in float64 and rounded once. Where a sequence outgrows the length that its table was made for
(dynamic NTK, LongRoPE), or a cache drops its first tokens and the rest moves up, this gives the key
that would have been cached.

Axes: B batch, G key heads, T keys, D head_dim.
"""

from torch import Tensor

from whereness.checks import require_floating
from whereness.rotary.base import Layout, Rotary
from whereness.where import Where


def rerotate(
    k: Tensor,
    old: Rotary,
    new: Rotary,
    positions: Tensor | Where,
    new_positions: Tensor | Where | None = None,
    *,
    layout: Layout = "bhsd",
) -> Tensor:
    """Keys as `new` would have turned them, from keys that `old` has turned.

    Args:
        k: (B, G, T, D), what door 3 of `old` gave; or as `layout` says.
        positions: (T,) or (B, T), where k was turned; a `wn.Where` if lengths matter.
        new_positions: where the tokens are now; None: where they were. Give
            Where(positions, lengths=...) to change the length alone.

    Raises:
        TypeError: encodings that are not rotary, tensors that are not floating-point.
        ValueError: encodings of other channels or pairs: the weights of k would have to change.
    """
    for name, encoding in (("old", old), ("new", new)):
        if not isinstance(encoding, Rotary):
            raise TypeError(f"{name} must be a rotary encoding, got {type(encoding).__name__}.")
    if (old.head_dim, old.pairing) != (new.head_dim, new.pairing):
        raise ValueError(
            "old and new must have the same head_dim and pairing, got "
            f"{old.head_dim}, {old.pairing!r} and {new.head_dim}, {new.pairing!r}: convert the "
            "weights instead (wn.convert_pairing)."
        )
    require_floating("k", k)
    if not isinstance(positions, (Tensor, Where)):
        raise TypeError(
            "positions must say where k was turned, a tensor or a wn.Where; got "
            f"{type(positions).__name__}."
        )
    content = old.rotate_keys(k.double(), positions, inverse=True, layout=layout)
    moved = positions if new_positions is None else new_positions
    return new.rotate_keys(content, moved, layout=layout).to(k.dtype)
