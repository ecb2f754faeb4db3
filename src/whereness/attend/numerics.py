"""What the implementations of attention share: the types they compute in, and repeated groups.

Axes: B batch, H query heads, G key/value heads, T keys, D head_dim.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, else float32: half types are computed in float32 and rounded once."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def exact_types(device: torch.device) -> AbstractContextManager:
    """A context without autocast, in which float32 means float32."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def repeat_groups(x: Float[Tensor, "B G T D"], num_heads: int) -> Float[Tensor, "B H T D"]:
    """(B, G, T, D) -> (B, H, T, D): each key/value head serves H/G query heads in a row."""
    groups = x.shape[1]
    return x if groups == num_heads else x.repeat_interleave(num_heads // groups, dim=1)
