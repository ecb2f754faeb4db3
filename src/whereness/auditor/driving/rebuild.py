"""Make a model anew from its config, with the weights that it has.

What its class makes of the config is what the live model should be; and a config with one setting
changed shows whether that setting does anything.
"""

import contextlib
import copy
from typing import Any

import torch
from torch import nn

DERIVED = ("inv_freq", "cos_cached", "sin_cached", "freqs_cis", "rope.freqs", "position_ids")
"""Names of tables that some models save, though they follow from the config."""
MOST_WEIGHTS = 60_000_000
"""Weights of the largest model that is made a second time."""


class NotRebuilt(Exception):  # noqa: N818 (an answer, no error)
    """Why the model cannot be made anew."""


def rebuilt(model: nn.Module, config: Any = None) -> nn.Module:
    """A model of the same class from `config` (default: the model's own), with `model`'s weights.

    In the types of `model`, in eval mode. Weights that do not fit are left as they were made.

    Raises:
        NotRebuilt: no config, too large, or a class that is not made from a config alone.
    """
    config = getattr(model, "config", None) if config is None else config
    if config is None or not hasattr(type(config), "to_dict"):
        raise NotRebuilt("the model has no config to be made from")
    if sum(p.numel() for p in model.parameters()) > MOST_WEIGHTS:
        raise NotRebuilt("the model is too large to be made a second time")
    with torch.random.fork_rng(devices=[]):
        try:
            made = type(model)(copy.deepcopy(config))
        except Exception as error:  # whatever a constructor may raise
            said = " ".join(str(error).split())[:200]
            raise NotRebuilt(f"made from its config, the model raised {said}") from error
    like = next((p for p in model.parameters() if p.is_floating_point()), None)
    state = model.state_dict()
    own = made.state_dict()
    fitting = {
        k: v
        for k, v in state.items()
        if k in own and own[k].shape == v.shape and not k.endswith(DERIVED)
    }
    with torch.no_grad():
        made.load_state_dict(fitting, strict=False)
    if like is not None and like.dtype == torch.float64:
        made.double()
    with contextlib.suppress(RuntimeError):
        made.to(device=None if like is None else like.device)
    return made.eval()


def derived(model: nn.Module) -> dict[str, torch.Tensor]:
    """Buffers that no checkpoint carries: what the model made from its config."""
    kept = set(model.state_dict())
    return {name: b for name, b in model.named_buffers() if name not in kept}
