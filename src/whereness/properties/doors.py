"""A layer with taps at its doors: what an encoding does there, and nothing that it declares.

The layer has identity projections, so q = k = v = token. A `Tap` before and one after the encoding
in a combination keep what passes; thus any encoding can be measured, whichever doors it uses.

Axes: B batch, H heads, N tokens, D head_dim, E model dim.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from whereness.attend.layer import Attention
from whereness.combined import Combined
from whereness.encoding import At, Call, Features, PositionalEncoding
from whereness.where import Where

FREE_WIDTH = 16
"""head_dim where the encoding leaves it open."""


@dataclass(frozen=True)
class Sizes:
    """Of the layer that an encoding is probed in."""

    dim: int
    num_heads: int
    head_dim: int


def sizes(encoding: PositionalEncoding) -> Sizes:
    """The sizes that the encoding was built for; one head where it does not say.

    Raises:
        ValueError: members that no layer can hold together.
    """
    given = (getattr(member, "dim", None) for member in encoding.members())
    widths = [width for width in given if isinstance(width, int)]
    heads: int | None = encoding.num_heads
    head_dim: int | None = encoding.head_dim
    if not widths:
        heads, head_dim = heads or 1, head_dim or FREE_WIDTH
        return Sizes(heads * head_dim, heads, head_dim)
    dim = widths[0]
    if heads is None:
        heads = dim // head_dim if head_dim else 1
    head_dim = head_dim or dim // heads
    if heads * head_dim != dim:
        raise ValueError(
            f"measure needs heads that fill the width: the encoding was built for dim={dim}, "
            f"{heads} heads and head_dim={head_dim}."
        )
    return Sizes(dim, heads, head_dim)


def exact_copy(
    encoding: PositionalEncoding, dtype: torch.dtype = torch.float64
) -> PositionalEncoding:
    """A copy on the CPU in `dtype`, in eval mode and without gradients; the original is left."""
    return copy.deepcopy(encoding).to("cpu", dtype).eval().requires_grad_(False)


class Tap(PositionalEncoding):
    """Keeps a copy of what passes each door and changes nothing."""

    reads = "nothing"
    relative = True

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, Tensor] = {}

    @property
    def doors(self) -> tuple[int, ...]:
        return ()

    def queries_keys(
        self, q: Tensor, k: Tensor, at: At, features: Features
    ) -> tuple[Tensor, Tensor]:
        self.kept["q"], self.kept["k"] = q.clone(), k.clone()
        return q, k

    def scores(self, logits: Tensor, call: Call) -> Tensor:
        self.kept["logits"], self.kept["allowed"] = logits.clone(), call.allowed
        return logits

    def weights(self, weights: Tensor, logits: Tensor, call: Call) -> Tensor:
        self.kept["weights"] = weights.clone()
        return weights

    def values(self, v: Tensor, at: At) -> Tensor:
        self.kept["v"] = v.clone()
        return v

    def outputs(self, out: Tensor, weights: Tensor | None, call: Call) -> Tensor:
        self.kept["out"] = out.clone()
        return out


@dataclass(frozen=True, eq=False)
class Passage:
    """What one layer's doors were given (`before`) and what they made of it (`after`).

    Keys: q, k, v (B, H, N, D); logits and weights (B, H, N, N); out (B, H, N, D).
    """

    before: dict[str, Tensor]
    after: dict[str, Tensor]
    out: Tensor
    """(B, N, E), of the layer."""

    @property
    def allowed(self) -> Tensor:
        """Where a query may see a key, as large as the logits."""
        return self.after["allowed"].expand(self.after["logits"].shape)


def through(
    encoding: PositionalEncoding,
    x: Tensor,
    where: Where,
    *,
    causal: bool | None = None,
    scaled: bool = False,
) -> Passage:
    """Send tokens x (B, N, E) through all doors of a layer with identity projections.

    Args:
        causal: None: only for an encoding that has no meaning otherwise.
        scaled: keep the factor on q.k that the encoding asks for; else it is 1.
    """
    s = sizes(encoding)
    causal = encoding.causal_only if causal is None else causal
    before, after = Tap(), Tap()
    rest = [m for m in encoding.members() if m.site != "tokens"]
    layer = Attention(
        s.dim,
        s.num_heads,
        Combined([before, *rest, after]),
        causal=causal,
        head_dim=s.head_dim,
        owns_encoding=False,
    )
    layer.to(x.dtype).requires_grad_(False)
    factor = 1.0 if scaled else s.head_dim**0.5 / encoding.logit_scale(s.head_dim)
    for projection in (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj):
        set_identity(projection, factor if projection is layer.q_proj else 1.0)
    out = layer(with_tokens(encoding, x, where), where=where)
    return Passage(before.kept, after.kept, out)


def set_identity(projection: torch.nn.Linear, factor: float = 1.0) -> None:
    """Let a projection give its input back; of a concatenation, the sum of both parts."""
    rows, columns = projection.weight.shape
    eye = torch.eye(rows, dtype=projection.weight.dtype) * factor
    projection.weight.copy_(eye.repeat(1, -(-columns // rows))[:, :columns])


def with_tokens(encoding: PositionalEncoding, x: Tensor, where: Where) -> Tensor:
    """Door 1 at the input, as a model opens it; what was concatenated is added."""
    for member in encoding.members():
        if member.site == "tokens":
            joined = member.tokens(x, member.prepare(where))
            x = folded(joined, x.shape[-1])
    return x


def folded(x: Tensor, dim: int) -> Tensor:
    """(..., dim) or a concatenation (..., 2 dim) -> (..., dim)."""
    return x if x.shape[-1] == dim else x[..., :dim] + x[..., dim:]
