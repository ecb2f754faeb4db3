"""Products of queries and keys in one form, whichever function of torch made them.

Axes: S queries, T keys, D channels; "..." what is in front of them.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whereness.auditor.reading.marks import Marks, tensors_in

REVERSED = "__rmatmul__"


@dataclass(frozen=True)
class Product:
    """q and k as they met: (..., S, D) and (..., T, D), leading axes as they stood."""

    q: Tensor
    k: Tensor
    sources: tuple[Marks, Marks]


def operands_of(name: str, args: tuple, kwargs: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """The two factors of a product, the queries' side first."""
    tensors = [t for t in tensors_in((args, kwargs)) if t.dim() >= 1]
    if name.startswith("baddbmm"):
        tensors = tensors[1:]
    if len(tensors) != 2:
        return None
    return (tensors[1], tensors[0]) if name == REVERSED else (tensors[0], tensors[1])


def met(
    name: str, args: tuple, a: Tensor, b: Tensor, sources: tuple[Marks, Marks]
) -> Product | None:
    """A product in the form (..., S, D) and (..., T, D); None where it has no such form."""
    if name != "einsum":
        if a.dim() < 2 or b.dim() < 2:
            return None
        return Product(a.detach(), b.detach().mT, sources)
    if not isinstance(args[0], str):
        return None
    return _summed(args[0], a.detach(), b.detach(), sources)


def _summed(equation: str, a: Tensor, b: Tensor, sources: tuple[Marks, Marks]) -> Product | None:
    """The same of an einsum: letters of both sides that stay are batch, one that goes is D."""
    equation = equation.replace(" ", "")
    if "->" not in equation or equation.count(",") != 1:
        return None
    inputs, out = equation.split("->")
    one, two = inputs.split(",")
    spread = [c for c in "ZYXWVU" if c not in equation]
    if "..." in equation:
        extra = max(a.dim() - len(one.replace("...", "")), b.dim() - len(two.replace("...", "")))
        letters = "".join(spread[:extra])
        mine = a.dim() - len(one.replace("...", "")), b.dim() - len(two.replace("...", ""))
        one = one.replace("...", letters[extra - mine[0] :])
        two = two.replace("...", letters[extra - mine[1] :])
        out = out.replace("...", letters)
    gone = [c for c in one if c in two and c not in out]
    batch = [c for c in out if c in one and c in two]
    queries = [c for c in out if c in one and c not in two]
    keys = [c for c in out if c in two and c not in one]
    if len(gone) != 1 or not queries or len(keys) != 1 or len(set(one)) != a.dim():
        return None
    # More than one letter of the queries' own: the last is the token, the others grouped heads.
    q = a.permute(*(one.index(c) for c in [*batch, *queries, *gone]))
    k = b.permute(*(two.index(c) for c in [*batch, *keys, *gone]))
    for _ in queries[:-1]:
        k = k.unsqueeze(-3)
    return Product(q, k, sources)


def fused_logits(given: dict[str, Any], silent: bool) -> Tensor:
    """What `scaled_dot_product_attention` gives its softmax."""
    q, k = given["query"].detach(), given["key"].detach()
    scale = given.get("scale")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if given.get("enable_gqa") and q.dim() >= 3 and q.shape[-3] != k.shape[-3]:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    logits = (torch.zeros_like(q) if silent else q) @ k.mT * scale
    mask = given.get("attn_mask")
    if mask is not None:
        mask = mask.detach()
        logits = (
            logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask
        )
    if given.get("is_causal"):
        seen = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).tril()
        logits = logits.masked_fill(~seen, -torch.inf)
    return logits
