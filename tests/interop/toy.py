"""Configs as models' repositories have them, and plain-Python oracles for their frequencies."""

import math
import warnings
from typing import Any

import torch

import whereness as wn

SMALL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "rope_theta": 10_000.0,
}
"""A Llama of 4 heads of 16 channels."""
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def config(**changes: Any) -> dict[str, Any]:
    """`SMALL` with these keys; None takes one out."""
    return {key: value for key, value in {**SMALL, **changes}.items() if value is not None}


def scaled(**rope: Any) -> dict[str, Any]:
    """`SMALL` with a `rope_scaling` of these keys."""
    return config(rope_scaling=rope)


def quiet(source: Any, **options: Any) -> Any:
    """`from_config` where warnings are not the matter of the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wn.ConfigWarning)
        return wn.from_config(source, **options)


def told(source: Any, **options: Any) -> str:
    """What `from_config` warns about, a line each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wn.from_config(source, **options)
    assert {each.category for each in caught} <= {wn.ConfigWarning}
    return "\n".join(str(each.message) for each in caught)


def plain(base: float, dim: int) -> list[float]:
    return [base ** (-2 * k / dim) for k in range(dim // 2)]


def yarn(
    base: float,
    dim: int,
    factor: float,
    length: int,
    fast: float = 32.0,
    slow: float = 1.0,
    truncate: bool = True,
) -> list[float]:
    """YaRN's frequencies, pair by pair."""

    def pair(turns: float) -> float:
        return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(fast), pair(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    found = []
    for k, w in enumerate(plain(base, dim)):
        ramp = min(max((k - low) / (high - low), 0.0), 1.0)
        found.append(w / factor * ramp + w * (1 - ramp))
    return found


def llama3(
    base: float, dim: int, factor: float, low: float, high: float, length: int
) -> list[float]:
    """Llama 3's frequencies, pair by pair."""
    found = []
    for w in plain(base, dim):
        turns = length * w / (2 * math.pi)
        if turns > high:
            found.append(w)
        elif turns < low:
            found.append(w / factor)
        else:
            share = (turns - low) / (high - low)
            found.append((1 - share) * w / factor + share * w)
    return found


def close(got: torch.Tensor, expected: list[float], tolerance: float = 1e-12) -> None:
    """Raise unless the frequencies agree, relatively."""
    torch.testing.assert_close(
        got, torch.tensor(expected, dtype=torch.float64), rtol=tolerance, atol=0
    )
