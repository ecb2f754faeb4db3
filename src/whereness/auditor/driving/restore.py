"""Put a model back exactly as it was, whatever a probe or the model itself did to it.

What comes back: parameters, buffers and submodules (the very objects, with their storages),
the values of buffers and of tensors held as attributes, attributes (also those of objects that
modules hold: configs, caches), hooks, training flags, gradients, random states and torch's global
switches. A parameter's values are not copied, for that would double the memory of a large model: a
probe that writes into one uses `written`. Blind to what lies outside of the model: globals of its
code, caches of functions, attributes of classes.
"""

import contextlib
import copy
import random
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch
from torch import Tensor, nn

COPIED = 2**28
"""Bytes of parameters that are kept twice for a moment, in case that a model writes into them."""
CONTAINERS = (dict, list, set)  # and their subclasses, such as the OrderedDict of hooks
FOREIGN = frozenset({"torch", "numpy", *sys.stdlib_module_names})
"""Packages whose objects have a state of their own (locks, generators, handles of hooks), which is
not for us to write."""


@contextlib.contextmanager
def restored(model: nn.Module) -> Generator[nn.Module]:
    """Give `model` back as it was at the start, also when the body raises."""
    saved, switches = _Saved(model), _switches()
    for parameter in _all(model):
        parameter.grad = None  # of a training step; a cast would write into that very tensor
    try:
        yield model
    finally:
        try:
            saved.put_back()
        finally:
            for put_back, state in switches:
                put_back(state)


@contextlib.contextmanager
def in_float64(model: nn.Module) -> Generator[nn.Module]:
    """`model` in float64, and then with the very tensors that it had.

    Experts run one by one: their fused products exist for fewer types.

    Raises:
        Exception: what the model's own `double()` raises, quantised ones do; nothing changed then.
    """
    with restored(model):
        for config in {id(c): c for c in _configs(model)}.values():
            if getattr(config, "_experts_implementation", None) is not None:
                config._experts_implementation = "eager"  # noqa: SLF001 (its public setter copies)
        model.double()
        yield model


@contextlib.contextmanager
def written(*tensors: Tensor) -> Generator[None]:
    """The tensors' values may be written over in the body: they come back."""
    copies = [t.detach().clone() for t in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, kept in zip(tensors, copies, strict=True):
                tensor.copy_(kept)


@contextlib.contextmanager
def unwritten(model: nn.Module) -> Generator[Callable[[], str | None]]:
    """Gives what tells the first parameter that was written into since; its values come back.

    Of a model whose parameters are too large to be kept twice, they do not come back.
    """
    parameters = {n: p for n, p in model.named_parameters() if not p.is_inference()}
    before = {name: each._version for name, each in parameters.items()}  # noqa: SLF001 (no public one)
    size = sum(each.numel() * each.element_size() for each in parameters.values())
    kept = {n: p.detach().clone() for n, p in parameters.items()} if size <= COPIED else {}

    def written_into() -> list[str]:
        return [n for n, p in parameters.items() if p._version != before[n]]  # noqa: SLF001

    try:
        yield lambda: next(iter(written_into()), None)
    finally:
        with torch.no_grad():
            for name in set(written_into()) & set(kept):
                parameters[name].copy_(kept[name])


class _Saved:
    """All of a model that can be put back."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = [(m, dict(vars(m))) for m in model.modules()]
        self.containers: dict[int, tuple[Any, Any]] = {}
        self.objects: dict[int, tuple[Any, dict[str, Any]]] = {}
        self.values: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self.notes: dict[int, tuple[Tensor, dict[str, Any]]] = {}
        self.parameters = {id(p): (p, p.data, p.requires_grad, p.grad) for p in _all(model)}
        waiting = [value for _, attributes in self.modules for value in attributes.values()]
        while waiting:  # no recursion: a target may nest as deep as it likes
            waiting.extend(self._save(waiting.pop()))

    def _save(self, value: Any) -> list[Any]:
        """Remember a value; what is inside it is given back. Modules are known already."""
        if isinstance(value, Tensor):
            self._save_tensor(value)
        elif isinstance(value, CONTAINERS):
            if id(value) not in self.containers:
                self.containers[id(value)] = (value, copy.copy(value))
                return list(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, tuple):
            return list(value)
        elif _has_state(value) and id(value) not in self.objects:
            self.objects[id(value)] = (value, dict(vars(value)))
            return list(vars(value).values())
        return []

    def _save_tensor(self, value: Tensor) -> None:
        if id(value) in self.notes:
            return
        self.notes[id(value)] = (value, dict(vars(value)))
        if not isinstance(value, nn.Parameter) and value.layout == torch.strided:
            self.values[id(value)] = (value, value.data, value.detach().clone())

    def put_back(self) -> None:
        """Undo everything."""
        for value, kept in self.containers.values():
            _refill(value, kept)
        for one, attributes in (*self.modules, *self.objects.values(), *self.notes.values()):
            if not _same_items(vars(one), attributes):
                vars(one).clear()
                vars(one).update(attributes)
        with torch.no_grad():
            for tensor, data, kept in self.values.values():
                _rewrite(tensor, data, kept)
            for parameter, data, needs_grad, grad in self.parameters.values():
                parameter.grad = None  # whatever it is now, it need not fit the type to come
                if not _same_place(parameter, data):
                    parameter.data = data
                if parameter.requires_grad != needs_grad:
                    parameter.requires_grad_(needs_grad)
                parameter.grad = grad


def _all(model: nn.Module) -> Iterator[nn.Parameter]:
    """Parameters, also those that a module holds as plain attributes inside."""
    for module in model.modules():
        for parameter in module._parameters.values():  # noqa: SLF001 (named_parameters may be overridden)
            if parameter is not None:
                yield parameter


def _refill(value: Any, kept: Any) -> None:
    """Give `value` the items of `kept`, leaving alone what has not changed."""
    if isinstance(value, list):
        value[:] = kept
    elif value.keys() != kept.keys() if isinstance(value, dict) else value != kept:
        value.clear()
        value.update(kept)
    elif isinstance(value, dict):
        for key, item in kept.items():
            if value[key] is not item:
                value[key] = item


def _rewrite(tensor: Tensor, data: Tensor, kept: Tensor) -> None:
    """Give `tensor` the storage of `data` and the values of `kept`."""
    if not _same_place(tensor, data):
        tensor.data = data
    if tensor.is_meta or _same(tensor, kept):
        return
    with torch.inference_mode(tensor.is_inference()):
        tensor.copy_(kept)


def _same(tensor: Tensor, kept: Tensor) -> bool:
    """Equal bit for bit, NaN included."""
    if tensor.dtype != kept.dtype or tensor.device != kept.device:
        return False
    if tensor.is_floating_point() or tensor.is_complex():
        return bool(((tensor == kept) | (tensor.isnan() & kept.isnan())).all())
    return torch.equal(tensor, kept)


def _same_place(tensor: Tensor, data: Tensor) -> bool:
    """Whether two tensors are the same view of the same storage."""
    if tensor.is_meta != data.is_meta or tensor.dtype != data.dtype or tensor.shape != data.shape:
        return False
    if tensor.layout != torch.strided or data.layout != torch.strided:
        return tensor.layout == data.layout
    return tensor.data_ptr() == data.data_ptr() and tensor.stride() == data.stride()


def _same_items(found: dict[str, Any], kept: dict[str, Any]) -> bool:
    """Whether two dicts hold the very same objects."""
    return found.keys() == kept.keys() and all(found[key] is kept[key] for key in kept)


def _has_state(value: Any) -> bool:
    """Whether it is an object of a model's own code, with attributes: a config, a cache."""
    if isinstance(value, (nn.Module, type)) or not isinstance(getattr(value, "__dict__", 0), dict):
        return False
    return type(value).__module__.partition(".")[0] not in FOREIGN


def _is_config(value: Any) -> bool:
    """Whether it is the config object of a model."""
    return hasattr(value, "__dict__") and hasattr(type(value), "to_dict")


def _configs(model: nn.Module) -> Iterator[Any]:
    for module in model.modules():
        yield from (value for value in vars(module).values() if _is_config(value))


def _switches() -> list[tuple[Any, Any]]:
    """(how to set it, its state) of every global that a probe or a model may change."""
    found: list[tuple[Any, Any]] = [
        (torch.set_rng_state, torch.get_rng_state()),
        (random.setstate, random.getstate()),
        (torch.set_default_dtype, torch.get_default_dtype()),
        (torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()),
        (torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled()),
        (torch._C._set_grad_enabled, torch.is_grad_enabled()),  # noqa: SLF001 (the public one is a context)
    ]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"]
        found.append((numpy.random.set_state, numpy.random.get_state()))
    return found
