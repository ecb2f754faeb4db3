"""The base class of every positional encoding, and the five doors it may use.

    door 1  tokens()                position joins the tokens at the input      (by the model)
            inputs()                ... or what every layer reads               (by the layer)
    door 2  inputs()                ... or only what W_q and W_k read, never W_v
    door 3  queries_keys()          q and k are changed before their product
    door 4  scores(), weights()     logits, or weights after softmax, are changed
    door 5  values(), outputs()     values are changed, outputs changed back or completed

An attention layer opens the doors in this order and knows nothing else about encodings:

    inputs -> projections -> features -> queries_keys, values -> q.k.scale -> scores -> mask
    -> softmax -> weights -> mask -> dropout -> .v -> outputs -> output projection

Axes: B batch, H query heads, S queries, T keys, D head_dim, E model dim.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from whereness.checks import told
from whereness.where import Where, placed_advice

Site = Literal["tokens", "every_layer", "queries_keys"]
Features = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class At:
    """What `encoding.prepare(where)` gives: all that one forward pass needs, for every layer.

    Everything is made by `prepare`; nothing appears here later, so activation checkpointing may
    replay a layer.
    """

    encoding: "PositionalEncoding"
    where: Where
    data: Any = None

    def bias(self) -> Tensor | None:
        """The encoding's content-free bias (or factor) for these tokens, (B or 1, H, S, T)."""
        return self.encoding.bias_at(self)

    @property
    def bias_free(self) -> bool:
        """No member of the encoding has a content-free bias."""
        return not any(m.overrides("bias") for m in self.encoding.members())


@dataclass(frozen=True, eq=False)
class Call:
    """What doors 4 and 5 see of one attention call."""

    q: Tensor
    """(B, H, S, D) content: before door 3."""
    k: Tensor
    """(B, H, T, D) content: before door 3, groups repeated. From a cache of an encoding that uses
    door 3 it is what door 3 gave, unless the encoding says `reads_keys`."""
    at: At
    scale: float
    allowed: Any
    """Bool tensor (B or 1, H or 1, S, T), True where a query may see a key; None in fused attention
    that needs no mask, which opens neither scores() nor weights()."""
    features: Features
    project: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    """Rows (R, E) -> (q rows (H, R, D), k rows (H, R, D)) through the layer's own W_q and W_k."""
    rows: slice | None = None
    """Which tokens of `features` the queries are; None: the last S."""

    def query_features(self, name: str) -> Tensor:
        """A feature of the queries' own tokens, (B, S, ...)."""
        feature, queries = self.features[name], self.q.shape[2]
        if self.rows is not None:
            return feature[:, self.rows]
        return feature.narrow(1, feature.shape[1] - queries, queries)


class PositionalEncoding(nn.Module):
    """A positional encoding: any of the five doors, all of them shut by default.

    A subclass overrides the doors that it uses and sets the class attributes that are not the
    default. The laws in the project's tests measure each trait and refuse a wrong declaration.
    """

    site: Site | None = None
    """Where Π joins X: at the model's input, at every layer, or for queries and keys only."""
    num_axes: int = 1
    """Coordinates of a position."""
    takes_grid: bool = False
    """True: with one axis too, positions may be (S, 1), as those of more axes are (S, n)."""
    num_heads: int | None = None
    """Query heads it was built for; None: any number."""
    head_dim: int | None = None
    """Width of a query that it was built for; None: any."""
    dim: Any = None
    """Width (int) of the tokens or rows that it was built for; None: any."""
    cacheable: bool = True
    """False: door 3 changes for old keys when a token comes, so the cache keeps raw keys."""
    causal_only: bool = False
    """True: has no meaning for keys after the query."""
    reads: Literal["positions", "order", "nothing"] = "positions"
    reads_keys: bool = False
    """True: `scores` needs the content of keys, so a cache may not hold door 3's output for it."""
    needs_weights: bool = False
    """True: `outputs` needs the attention weights, which fused attention does not give."""
    needs_lengths: bool = False
    """True: tables depend on `Where.lengths`; with a cache they must be given."""
    draws_per_sequence: bool = False
    """True: `move` draws for every sequence of a batch, so it is told how many there are."""
    operation: Literal["add", "multiply"] = "add"
    on: Literal["logits", "weights"] = "logits"
    """How `bias` is applied."""

    relative: bool = False
    """Moving all positions by the same number changes nothing."""
    unbounded: bool = True
    """Defined and finite at any position."""
    norm_preserving: bool = True
    """Door 3 leaves the norms of q and k as they are."""
    content_aware: bool = False
    """What door 4 adds depends on the tokens and not on positions alone."""

    # Sizes and maps

    def logit_scale(self, head_dim: int) -> float:
        """Factor on 1/sqrt(head_dim); head_dim is the width before door 3."""
        return 1.0

    def width(self, dim: int) -> int:
        """Width of what tokens() and inputs() give for tokens of width `dim`."""
        return dim

    def move(self, where: Where, generator: torch.Generator | None = None) -> Where:
        """Training-time map of positions (random shifts and the like); identity in eval mode."""
        return where

    def reset_parameters(self) -> None:
        """Give every learned parameter its initial value again."""
        if self._parameters:
            raise NotImplementedError(
                f"{type(self).__name__} has parameters and no reset_parameters(): a model that "
                "starts without memory could not initialise it."
            )

    def derived(self) -> dict[str, Tensor]:
        """Tables that other libraries save and we compute, by the names they have in files.

        Such a key may be in a state_dict: it is compared with the right values and dropped.
        """
        return {}

    # Preparation, once per forward pass and shared by all layers

    @final
    def prepare(self, where: Where | Tensor) -> At:
        """Turn positions into what the doors need, once per forward pass, for all layers.

        Raises:
            ValueError: no positions, another number of axes than the encoding reads, or tensors on
                different devices.
        """
        if isinstance(where, Tensor):
            where = Where(where, num_axes=self.num_axes)
        if not isinstance(where, Where):
            raise TypeError(
                f"prepare needs a wn.Where or a tensor, got {type(where).__name__}."
                f"{placed_advice(where)}"
            )
        if where.positions is None:
            raise ValueError("prepare needs positions: Where(positions, ...).")
        if self.reads == "positions" and where.num_axes != self.num_axes:
            raise ValueError(
                f"{type(self).__name__} reads positions of {self.num_axes} axes, got "
                f"{where.num_axes}. Use Where(positions, num_axes={self.num_axes})."
            )
        where.require_device(where.positions.device)
        if not self.cacheable and where.cached:
            where = replace(where, cached=0)  # raw keys: door 3 turns all of them again
        return At(self, where, self.tables(where))

    def tables(self, where: Where) -> Any:
        """What the doors need of `where`. Pure: per token, of positions and new keys."""
        return None

    # The doors

    def tokens(self, x: Tensor, at: At) -> Tensor:
        """Door 1 at the input, (B, S, E) -> (B, S, width(E)); the model calls it."""
        return x

    def inputs(self, x: Tensor, context: Tensor, at: At) -> tuple[Tensor, Tensor, Tensor]:
        """Door 1 at every layer, and door 2: what W_q, W_k and W_v read."""
        return x, context, context

    def features(self, x: Tensor, at: At, past: Features | None) -> dict[str, Tensor]:
        """What later doors need of hidden states, {name: (B, S, ...)} of the new tokens; cached."""
        return {}

    def queries_keys(
        self, q: Tensor, k: Tensor, at: At, features: Features
    ) -> tuple[Tensor, Tensor]:
        """Door 3: q (B, H, S, D) and new keys (B, G, N, D) before their product."""
        return q, k

    def bias(self, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        """Door 4 without content: (..., H, S, T), finite everywhere; None when there is none."""
        return None

    def bias_at(self, at: At) -> Tensor | None:
        """`bias` of prepared positions; an encoding that keeps a short form unfolds it here."""
        return self.bias(at.where.positions, at.where.keys)

    def at_rows(self, at: At, rows: slice, keys: int | None = None) -> At:
        """What doors 4 and 5 need for some of the queries, against the first `keys` keys (all).

        Attention may open `scores`, `weights` and `outputs` for one block of queries after the
        other, so that no tensor of S x T is ever whole. A block is a call as any other. It sees
        only its own queries (`call.q`, `call.at.where`, the rows of `call.allowed`), all keys that
        these may see and `call.features` of those keys; `call.query_features` finds the queries'
        own. When causal the keys may end with the block's last query. So what `prepare` keeps
        should be small, O(S + T), and a door should form what has a number a pair from what it
        is called with: queries must not learn from one another.
        """
        return At(self, at.where.of_rows(rows, keys), self.data_of_rows(at, rows, keys))

    def data_of_rows(self, at: At, rows: slice, keys: int | None = None) -> Any:
        """`at.data` of some queries and keys, for doors 4 and 5.

        Attention opens them in blocks only for encodings that override this or need not.
        """
        return at.data

    def scores(self, logits: Tensor, call: Call) -> Tensor:
        """Door 4: logits (B, H, S, T), scaled and finite, not masked yet."""
        return self._apply_bias(logits, call) if self.on == "logits" else logits

    def weights(self, weights: Tensor, logits: Tensor, call: Call) -> Tensor:
        """Door 4 after softmax. Masked again afterwards, never renormalised."""
        return self._apply_bias(weights, call) if self.on == "weights" else weights

    def values(self, v: Tensor, at: At) -> Tensor:
        """Door 5: new values (B, G, N, D)."""
        return v

    def outputs(self, out: Tensor, weights: Tensor | None, call: Call) -> Tensor:
        """Door 5: attention's output (B, H, S, D); `weights` only if needs_weights."""
        return out

    def _apply_bias(self, x: Tensor, call: Call) -> Tensor:
        bias = call.at.bias()
        if bias is None:
            return x
        return x * bias if self.operation == "multiply" else x + bias

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        for name, right in self.derived().items():
            found = state_dict.pop(prefix + name, None)
            wrong = None if found is None else _first_difference(found, right)
            if wrong:
                error_msgs.append(f"{prefix}{name} is not what {type(self).__name__} has: {wrong}.")
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    # Traits that follow from the code

    @property
    def doors(self) -> tuple[int, ...]:
        """The doors that this encoding opens, from which methods it overrides and its site."""
        opened = {1} if self.site in ("tokens", "every_layer") else set()
        if self.site == "queries_keys":
            opened.add(2)
        if self.overrides("queries_keys"):
            opened.add(3)
        if self.overrides("bias", "scores", "weights"):
            opened.add(4)
        if self.overrides("values", "outputs"):
            opened.add(5)
        return tuple(sorted(opened))

    @property
    def learned(self) -> bool:
        """Has parameters."""
        return next(self.parameters(), None) is not None

    @property
    def additive(self) -> bool:
        """Door 4 is at most a bias added to logits, and door 5 needs no weights.

        Fused attention can serve such an encoding.
        """
        plain = not self.overrides("scores", "weights") and not self.needs_weights
        return plain and (self.operation, self.on) == ("add", "logits")

    @property
    def has_rows(self) -> bool:
        """`at_rows` is right for it: it says what a block sees, or doors 4 and 5 read no tables."""
        reads = self.overrides("bias", "bias_at", "scores", "weights", "outputs")
        return self.overrides("data_of_rows") or not (reads and self.overrides("tables"))

    def extra_repr(self) -> str:
        """What it was made with, as far as it differs from the defaults."""
        return told(self, type(self))

    def members(self) -> tuple["PositionalEncoding", ...]:
        """The encodings that this one is made of, in order of application; itself when single."""
        return (self,)

    def overrides(self, *names: str) -> bool:
        """Whether the class has one of these hooks of its own."""
        return any(getattr(type(self), n) is not getattr(PositionalEncoding, n) for n in names)


def _first_difference(found: Tensor, right: Tensor) -> str | None:
    """Where a saved table is not the right one; float32 may have rounded it, not a half type."""
    if found.numel() != right.numel():
        return f"it should have {right.numel()} entries, got {found.numel()}"
    found, right = found.flatten().double().cpu(), right.flatten().double().cpu()
    wrong = (~found.isclose(right, rtol=1e-5, atol=0.0)).nonzero()
    if not len(wrong):
        return None
    row = int(wrong[0])
    return f"row {row} should be {right[row]:g}, got {found[row]:g}"


class NoPE(PositionalEncoding):
    """No positional encoding: a causal mask alone tells order, a bidirectional model sees a set.

    Source: Haviv et al. 2022, arXiv:2203.16634; Kazemnejad et al. 2023, arXiv:2305.19466.
    """

    reads = "nothing"
    relative = True


def as_encoding(
    encoding: "PositionalEncoding | Sequence[PositionalEncoding] | None",
) -> PositionalEncoding:
    """None -> NoPE, a list or tuple -> their combination, an encoding -> itself."""
    from whereness.combined import Combined

    if encoding is None:
        return NoPE()
    if isinstance(encoding, (list, tuple)):
        return Combined(encoding)
    if not isinstance(encoding, PositionalEncoding):
        raise TypeError(
            "encoding must be a whereness encoding, a list of them, or None; got "
            f"{type(encoding).__name__}."
        )
    return encoding
