"""Watching attention happen: which tensors meet in a score product, in any PyTorch model.

A `TorchFunctionMode` sees every call of torch. It marks what comes from the model's input
("content"); a matrix product of two such tensors whose result reaches a softmax, directly or by
way of scales, biases, caps and masks, is attention. Marks are Python attributes of tensors.
Nothing is asked of the names of classes.

Blind to torch.jit.script, hand-written softmax, scores by multiply-and-sum, custom kernels and
linear attention; `reading.crosscheck` counts what went by unseen.

Axes: B batch, H heads, S queries, T keys, D channels.
"""

import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from whereness.attend.core import plainly
from whereness.auditor.reading.marks import (
    CONTENT,
    MARK,
    NOTHING,
    WEIGHTS,
    Marks,
    marks_of,
    origin,
    tensors_in,
)
from whereness.auditor.reading.products import REVERSED, Product, fused_logits, met, operands_of
from whereness.auditor.reading.stack import Stack
from whereness.kernels.rotary import using

PRODUCTS = frozenset({"matmul", "__matmul__", "bmm", "baddbmm", "baddbmm_", "einsum"})
SUMS = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__", "cat", "concat"})
SOFTMAXES = frozenset({"softmax", "_safe_softmax"})
PROJECTIONS = frozenset({"linear", "addmm", "layer_norm", "rms_norm", "conv1d"})
WRITERS = frozenset({"__setitem__", "copy_"})
SHAPED = frozenset({"expand_as", "view_as", "reshape_as", "type_as", "to"})
"""Their other arguments lend a shape or a type."""
BLANKS = ("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "new_")


@dataclass(frozen=True)
class Event:
    """One softmax over scores.

    logits: (..., S, T) as they went in, masks and biases added; None where they were not formed.
    others: further products with content that were added to them (relative terms with content).
    """

    module: str
    product: Product
    logits: Tensor
    others: int
    causal: bool = False

    @property
    def crosses(self) -> bool:
        """Queries and keys come from different inputs."""
        queries, keys = self.product.sources
        return bool({m for m in queries if m <= -2} - keys)


@dataclass(frozen=True)
class Sum:
    """Something that does not depend on content was added to what does (or put beside it)."""

    module: str
    content: Tensor
    added: Tensor
    joined: bool


@dataclass
class Watch:
    """What to do with what is seen. `products` are kept by number until their module is left."""

    stack: Stack
    on_event: Callable[[Event], None]
    on_sum: Callable[[Sum], None] | None = None
    silence_queries: bool = False
    """Every score product sees queries of zeros, so that logits are what is added to them."""
    products: dict[int, Product] = field(default_factory=dict)
    homes: dict[int, str] = field(default_factory=dict)
    attended: set[str] = field(default_factory=set)
    """Modules that had an event: what they give out is content and no more scores."""
    count: int = 0
    seen: int = 0
    """Events told so far."""
    marked: list[weakref.ref[Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stack.left = self._left

    def mark(self, value: Any, marks: Marks, *, whole: bool = False) -> None:
        """Say where the tensors in `value` come from.

        Bools never carry marks on, whole numbers only where they are made of `whole` ones: views of
        token ids do, the places of the largest scores do not.
        """
        for tensor in tensors_in(value):
            real = tensor.is_floating_point() or tensor.is_complex()
            if real or (whole and tensor.dtype != torch.bool):
                setattr(tensor, MARK, marks)
                self.marked.append(weakref.ref(tensor))

    def _forget(self) -> None:
        """Take the marks off what outlives the run: caches and buffers that a model writes into."""
        for each in self.marked:
            tensor = each()
            if tensor is not None:
                tensor.__dict__.pop(MARK, None)
        self.marked.clear()

    def _left(self, path: str, out: Any) -> None:
        for number in [n for n, home in self.homes.items() if home == path]:
            self.products.pop(number, None)
            del self.homes[number]
        if path in self.attended:
            for tensor in tensors_in(out):
                if marks_of(tensor):
                    self.mark(tensor, origin(marks_of(tensor)))

    @contextmanager
    def watching(self) -> Generator["Watch"]:
        """Watch all calls of torch in the block.

        Fused encoder layers are told to be open, and our own kernels to be plain torch.
        """
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with self.stack.following(), using("reference"), plainly(), _Mode(self):
                yield self
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
            self.products.clear()
            self._forget()


class _Mode(TorchFunctionMode):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func is F.multi_head_attention_forward:
            return self._opened(func, args, kwargs)
        if func is F.scaled_dot_product_attention or name == "scaled_dot_product_attention":
            return self._fused(func, args, kwargs)
        if name.startswith(BLANKS):
            return func(*args, **kwargs)
        given = list(tensors_in(args[:1] if name in SHAPED else (args, kwargs)))
        marks = NOTHING.union(*(marks_of(t) for t in given)) if given else NOTHING
        if not marks:
            return func(*args, **kwargs)
        if name in PRODUCTS or name == REVERSED:
            return self._product(func, name, args, kwargs)
        if name in SOFTMAXES:
            return self._softmax(func, args, kwargs, marks)
        out = func(*args, **kwargs)
        if name in WRITERS:
            self._written(args[0], marks)
        else:
            ids = all(not t.is_floating_point() for t in given if marks_of(t))
            self.watch.mark(out, marks, whole=ids)
        if name in SUMS and self.watch.on_sum is not None:
            self._sum(given, name in ("cat", "concat"))
        if name in PROJECTIONS:
            self.watch.stack.note(out)
        return out

    def _written(self, tensor: Tensor, marks: Marks) -> None:
        """A tensor was written into, and with a view what it is a view of."""
        self.watch.mark(tensor, marks_of(tensor) | marks)
        base = tensor._base  # noqa: SLF001 (there is no public name)
        if base is not None:
            self.watch.mark(base, marks_of(base) | marks)

    def _opened(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run the body of a function that torch hands over whole, and see what it calls."""
        functional: Any = F
        real = functional.has_torch_function
        functional.has_torch_function = _never
        try:
            with self:
                return func(*args, **kwargs)
        finally:
            functional.has_torch_function = real

    def _product(self, func: Any, name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
        operands = operands_of(name, args, kwargs)
        if operands is None:
            out = func(*args, **kwargs)
            self.watch.mark(out, NOTHING.union(*(marks_of(t) for t in tensors_in((args, kwargs)))))
            return out
        a, b = operands
        one, two = marks_of(a), marks_of(b)
        both = one | two
        if WEIGHTS in both:  # weights times values: a new content
            out = func(*args, **kwargs)
            self.watch.mark(out, origin(both))
            return out
        if not (CONTENT in one and CONTENT in two):
            out = func(*args, **kwargs)
            self._mark_half(out, both)
            return out
        product = met(name, args, a, b, (one, two))
        if product is not None and self.watch.silence_queries:
            args, kwargs = _with(args, kwargs, a, torch.zeros_like(a))
        out = func(*args, **kwargs)
        carried = NOTHING.union(*(marks_of(t) for t in tensors_in((args, kwargs))))
        if product is None:
            self.watch.mark(out, carried)
            return out
        self.watch.count += 1
        self.watch.products[self.watch.count] = product
        self.watch.homes[self.watch.count] = self.watch.stack.owner()
        extra = NOTHING
        if name.startswith("baddbmm"):  # what the product is added to may hold products
            extra = frozenset(m for m in marks_of(args[0]) if m > 0)
        self.watch.mark(out, origin(both) | {self.watch.count} | extra)
        return out

    def _mark_half(self, out: Any, both: Marks) -> None:
        """A product of content with something else: a projection, or a relative term."""
        if not any(m > 0 for m in both):
            self.watch.count += 1
            both = both | {self.watch.count}
        self.watch.mark(out, both)
        self.watch.stack.note(out)

    def _softmax(self, func: Any, args: tuple, kwargs: dict[str, Any], marks: Marks) -> Any:
        out = func(*args, **kwargs)
        found = [m for m in marks if m in self.watch.products]
        logits = next(tensors_in((args, kwargs)))
        if found:
            first = min(found)
            product = self.watch.products[first]
            fits = logits.dim() >= 2 and logits.shape[-2] == product.q.shape[-2]
            if fits and logits.shape[-1] >= product.k.shape[-2]:
                others = len([m for m in marks if m > 0]) - 1
                shape = logits[..., : product.k.shape[-2]]
                self._tell(Event(self.watch.stack.owner(), product, shape, others))
                for number in found:
                    del self.watch.products[number]
                self.watch.mark(out, origin(marks) | {WEIGHTS})
                return out
        self.watch.mark(out, marks)
        return out

    def _fused(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = dict(zip(names, args, strict=False)) | kwargs
        q, k, added = given["query"], given["key"], given.get("attn_mask")
        if CONTENT in marks_of(q) and CONTENT in marks_of(k):
            sources = (marks_of(q), marks_of(k))
            product = Product(q, k, sources)
            silent = self.watch.silence_queries
            logits = fused_logits(given, silent)
            others = 0 if added is None else len([m for m in marks_of(added) if m > 0])
            event = Event(
                self.watch.stack.owner(), product, logits, others, bool(given.get("is_causal"))
            )
            self._tell(event)
        self.watch.mark(
            out, origin(NOTHING.union(*(marks_of(t) for t in tensors_in((args, kwargs)))))
        )
        return out

    def _tell(self, event: Event) -> None:
        self.watch.attended.add(event.module)
        self.watch.seen += 1
        self.watch.on_event(event)

    def _sum(self, given: list[Tensor], joined: bool) -> None:
        if len(given) != 2 or self.watch.on_sum is None:
            return
        content = [t for t in given if CONTENT in marks_of(t)]
        added = [t for t in given if not marks_of(t) and t.is_floating_point()]
        if len(content) == 1 and len(added) == 1 and added[0].dim() >= 2:
            module = self.watch.stack.innermost()
            self.watch.on_sum(Sum(module, content[0], added[0], joined))


def _never(tensors: Any) -> bool:
    """No tensor has a function of its own: run the body."""
    return False


def _with(args: tuple, kwargs: dict[str, Any], old: Tensor, new: Tensor) -> tuple[tuple, dict]:
    swapped = tuple(
        new
        if each is old
        else [new if e is old else e for e in each]
        if isinstance(each, list)
        else each
        for each in args
    )
    return swapped, {name: new if each is old else each for name, each in kwargs.items()}
