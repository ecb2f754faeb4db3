"""How much a training step keeps in memory until its backward pass."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def kept_for_backward(model: torch.nn.Module, loss: Callable[[], Tensor]) -> int:
    """Bytes of all tensors that computing `loss()` keeps; parameters do not count.

    Counted, not observed from outside: the same on every machine that takes the same way through
    attention.
    """
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    storages: dict[int, Any] = {}  # held, so that no address comes twice

    def keep(tensor: Tensor) -> None:
        # The graph gets nothing: with the tensors it would hold itself, for good.
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda nothing: nothing):
        loss()
    return sum(storage.nbytes() for storage in storages.values())
