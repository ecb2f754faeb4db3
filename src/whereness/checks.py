"""Checks at the public border: one style of message, one rule for values that live on a device."""

import inspect
import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

INTEGER_TYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
REAL_TYPES = (torch.float32, torch.float64)
FLOATING_TYPES = (*REAL_TYPES, torch.float16, torch.bfloat16)

LARGEST_SIZE = 2**31 - 1
LARGEST_POSITION = 2**53
"""The farthest integer up to which float64 holds every one."""


def require(ok: Tensor, message: str | Callable[[], str], values: Tensor | None = None) -> None:
    """Raise ValueError(message) unless every entry of the bool tensor `ok` is true.

    Values on the CPU are looked at. On an accelerator and under compile a look would be a host
    sync or a graph break, so there the check is an asynchronous assert. Meta tensors pass.

    Args:
        values: of the shape of `ok`; the message then ends with the first that is wrong.
    """
    if ok.device.type == "meta":
        return
    text = message if isinstance(message, str) else None
    if torch.compiler.is_compiling() or ok.device.type != "cpu":
        torch._assert_async(  # noqa: SLF001 (torch has no public name for it)
            ok.all(), text or "whereness: a value is out of range"
        )
    elif not bool(ok.all()):
        text = text if text is not None else message()  # type: ignore[operator]
        if values is not None:
            text = f"{text.removesuffix('.')}; got {values[~ok][0].item()}."
        raise ValueError(text)


def constants(values: Sequence[float], device: torch.device) -> Tensor:
    """Python floats as a float64 tensor, whatever lowers the type of tensors that are made.

    A sharded initialisation does so, and leaves tensors of integers alone: there the floats go
    through their bits.
    """
    made = torch.tensor(values, dtype=torch.float64, device=device)
    if made.dtype == torch.float64:
        return made
    count = len(values)
    bits = struct.unpack(f"={count}q", struct.pack(f"={count}d", *values))
    return torch.tensor(bits, dtype=torch.int64, device=device).view(torch.float64)


def require_int(name: str, value: object, minimum: int, maximum: int = LARGEST_SIZE) -> int:
    """`value` as an int, if it is one (NumPy's are, bool is not) from `minimum` to `maximum`.

    A tensor is not: to read it would be a host sync.
    """
    number = as_int(value)
    if number is None:
        raise TypeError(f"{name} must be an int, got {type(value).__name__} ({value!r}).")
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {number}.")
    if number > maximum:
        raise ValueError(f"{name} must be at most {maximum}, got {number}.")
    return number


def as_int(value: object) -> int | None:
    """An integer of any kind as an int; None for what is none, bool and tensors among it."""
    if type(value) is int:
        return value  # as it is: under compile it may be symbolic
    if isinstance(value, (bool, Tensor)) or not hasattr(value, "__index__"):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:  # an array of more than one number has the method as well
        return None


def require_number(name: str, value: object, above: float) -> None:
    """Raise unless `value` is a finite real number above `above`."""
    if not above < _finite(name, value) < float("inf"):
        raise ValueError(f"{name} must be a finite number above {above:g}, got {value!r}.")


def require_at_least(name: str, value: object, minimum: float) -> None:
    """Raise unless `value` is a finite real number not below `minimum`."""
    if not minimum <= _finite(name, value) < float("inf"):
        raise ValueError(f"{name} must be a finite number from {minimum:g}, got {value!r}.")


def _finite(name: str, value: object) -> float:
    """`value` as a float; inf for what no float holds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__} ({value!r}).")
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def require_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise unless `value` is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(repr(c) for c in choices)
        raise ValueError(f"{name} must be one of {listed}; got {value!r}.")


def require_bool(name: str, value: object) -> None:
    """Raise unless `value` is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}.")


def require_floating(name: str, value: object) -> None:
    """Raise unless `value` is a floating-point tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}.")
    if value.dtype not in FLOATING_TYPES:
        raise TypeError(
            f"{name} must hold floating-point numbers, got {value.dtype}: float64, float32, "
            "bfloat16 and float16 are served."
        )


def require_device(name: str, value: Tensor, device: torch.device) -> None:
    """Raise unless `value` lies on `device`."""
    if value.device != device:
        raise ValueError(f"{name} must be on {device}, got {value.device}. Use .to().")


def require_writable(name: str, value: Tensor) -> None:
    """Raise where torch would not write into `value`, or would write one entry into another.

    Under compile torch checks by itself.
    """
    if torch.compiler.is_compiling():
        return
    advice = "Use the call that is not in place, or a clone()."
    if _entries_share_memory(value):
        raise ValueError(
            f"{name} must have memory for every entry to be written in place, got shape "
            f"{tuple(value.shape)} with strides {value.stride()}, as of expand(). {advice}"
        )
    if value.is_inference() and not torch.is_inference_mode_enabled():
        raise ValueError(
            f"{name} was made in inference mode and can be written only there, got a call outside. "
            f"{advice}"
        )
    if not torch.is_grad_enabled() or not value.requires_grad:
        return
    base = value._base  # noqa: SLF001 (torch has no public names for what its autograd knows)
    if value.is_leaf or (base is not None and base.is_leaf):
        raise ValueError(
            f"{name} must not be a leaf that requires a gradient, or a view of one, to be written "
            f"in place. {advice} Or use torch.no_grad()."
        )
    autograd: Any = torch._C._autograd  # type: ignore[missing-attribute] # noqa: SLF001
    made_by = autograd.CreationMeta.DEFAULT if base is None else autograd._get_creation_meta(value)  # noqa: SLF001
    if made_by != autograd.CreationMeta.DEFAULT:
        raise ValueError(
            f"{name} must not be one of several views, as unbind() and split() make them, to be "
            f"written in place with a gradient; got a view of kind {made_by.name}. {advice}"
        )


def _entries_share_memory(value: Tensor) -> bool:
    if value.is_contiguous():
        return False
    axes = sorted(
        (stride, size) for stride, size in zip(value.stride(), value.shape, strict=True) if size > 1
    )
    if not value.numel() or not axes:
        return False
    if axes[0][0] == 0:
        return True
    reach, nested = 0, True
    for stride, size in axes:
        nested &= stride > reach
        reach += stride * (size - 1)
    if nested:  # each axis steps over all that the ones inside it reach
        return False
    places = torch.zeros(1, dtype=torch.int64, device="cpu")
    for stride, size in axes:
        places = (places[:, None] + torch.arange(size, device="cpu") * stride).flatten()
    return len(places.unique()) < len(places)


def told(value: object, kind: Callable, without: Sequence[str] = ()) -> str:
    """The arguments of `kind` that `value` holds and that are not the defaults: "head_dim=64"."""
    shown = []
    for name, parameter in inspect.signature(kind).parameters.items():
        held = getattr(value, name, None)
        if held is None or isinstance(held, Tensor) or name in without:
            continue
        each = held if isinstance(held, tuple) and held else (held,)
        # By their texts: two values may not compare.
        if any(repr(one) != repr(parameter.default) for one in each):
            shown.append(f"{name}={held!r}")
    return ", ".join(shown)
