"""Attention and tensors to try it on, in numpy.

Axes: B batch, H query heads, G key/value heads, S queries, T keys, D head_dim.
"""

import numpy as np
import torch


def drawn(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def repeated(x: torch.Tensor, heads: int) -> np.ndarray:
    """(B, G, T, D) -> (B, H, T, D): every key/value head serves H / G query heads in a row."""
    return np.repeat(x.detach().numpy(), heads // x.shape[1], 1)


def softmax(logits: np.ndarray, allowed: np.ndarray | None = None) -> np.ndarray:
    """Over the last axis; keys that are not allowed get 0."""
    if allowed is not None:
        logits = np.where(allowed, logits, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def causal(queries: int, keys: int) -> np.ndarray:
    """True where a key is not after the query, the queries being the last of the keys."""
    return np.tril(np.ones((queries, keys), dtype=bool), keys - queries)


def offset(q_ids: torch.Tensor, k_ids: torch.Tensor) -> np.ndarray:
    """key - query, (..., S, T), of Python's unbounded integers."""
    q, k = (t.numpy().astype(object) for t in (q_ids, k_ids))
    return k[..., None, :] - q[..., :, None]
