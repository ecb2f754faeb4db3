"""Queries and keys turned by a model's own code, to be compared with ours.

Positions are (S, n) of ours: rows and columns of patches, or time, row and column. `OWN` says
where the code of a model numbers them otherwise.
"""

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from peers.rotary_classes import Subject

Pair = tuple[torch.Tensor, torch.Tensor]

OWN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "edgetam_video": lambda p: p.flip(-1),  # stack([wpos_ids, hpos_ids])
    "gemma4_vision": lambda p: p.flip(-1),  # (x, y)
    "inkling2_vision": lambda p: p + 1,
    "muse_glimmer_vision": lambda p: p.flip(-1) + 1,
    "muse_spark_vision": lambda p: p.flip(-1) + 1,
    "sam2_video": lambda p: p.flip(-1),
    "sam3_tracker_video": lambda p: p.flip(-1),
    "sam3_vit_model": lambda p: p.flip(-1),
}


def sees(subject: Subject) -> bool:
    """A tower for images: its class says so, and is none of a text model's that is part of one."""
    name = subject.cls.__name__
    return name.startswith(("MLCD", "Sam3ViT")) or ("Vision" in name and name not in READERS)


READERS = ("DeepseekOcr2VisionRotaryEmbedding", "Granite4VisionTextRotaryEmbedding")
"""Classes with "Vision" in their name and positions of one axis."""


def function_of(module: ModuleType, subject: Subject) -> Callable[..., Any]:
    """The function of the file by which the attention of this class turns q and k."""
    found = {
        name: each
        for name, each in vars(module).items()
        if inspect.isfunction(each) and name.startswith(("apply_rotary", "apply_multidim"))
    }
    wanted = ("_multidim", "_vision", "_2d_self", "_2d") if sees(subject) else ("_interleave",)
    if "Audio" in subject.cls.__name__:
        wanted = ()
    for part in wanted:
        for name, each in found.items():
            if part in name:
                return each
    plain = [name for name in found if not any(p in name for p in ("_vision", "_2d", "_multidim"))]
    return found[min(plain or found, key=len)]


def keeps_order(apply: Callable[..., Any]) -> bool:
    """False for the functions that give channels in another order than they get them."""
    return "interleave" not in apply.__name__


def tables(
    module: Any, subject: Subject, positions: torch.Tensor, label: str | None
) -> tuple[torch.Tensor, ...]:
    """What the class gives for these positions (S, n): cos and sin, or one complex table."""
    own = OWN.get(subject.model_type, lambda p: p)(positions)
    name = subject.cls.__name__
    x = torch.zeros(1, len(positions), 8)
    if name.startswith("Gemma4Vision"):
        given = own[None]
    elif sees(subject):
        given = own
    elif own.shape[1] == 1:
        given = own.T
    else:
        given = own.T[:, None]
    typed = {} if label is None else {"layer_type": label}
    made = module(x, given, **typed)
    return made if isinstance(made, tuple) else (made,)


def turned(
    apply: Callable[..., Any], subject: Subject, q: torch.Tensor, k: torch.Tensor, made: Any
) -> Pair:
    """q and k (1, H, S, D) after the model's own function."""
    name, cls = apply.__name__, subject.cls.__name__
    if name == "apply_rotary_emb":  # complex numbers
        if cls.startswith("Llama4"):
            q, k = apply(q.transpose(1, 2), k.transpose(1, 2), *made)
            return q.transpose(1, 2), k.transpose(1, 2)
        return apply(q, k, *made)
    if name == "apply_multidimensional_rope":
        ids = torch.zeros(1, q.shape[2], 2)
        q, k = (apply(x.transpose(1, 2), *made, ids).transpose(1, 2) for x in (q, k))
        return q, k
    if name.endswith("_vision"):
        q, k = apply(q[0].transpose(0, 1), k[0].transpose(0, 1), *made)
        return q.transpose(0, 1)[None], k.transpose(0, 1)[None]
    if "_2d" in name:
        return apply(q, k, *made)
    if cls.startswith("Pixtral"):
        return apply(q, k, *made, unsqueeze_dim=0)
    if "x" in inspect.signature(apply).parameters:
        return apply(q, *made), apply(k, *made)
    return apply(q, k, *made)


def module_of(subject: Subject) -> ModuleType:
    """The modeling file of a class."""
    return sys.modules[subject.cls.__module__]
