"""Keys and values of earlier tokens, and where those tokens are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whereness.attend.shifting import (
    check_movable,
    check_order_kept,
    check_same_keys,
    check_turnable,
    checked_offset,
    moved_beyond,
    turned_again,
)
from whereness.checks import LARGEST_POSITION, require, require_device, require_int
from whereness.encoding import PositionalEncoding, as_encoding
from whereness.positions.rows import next_position
from whereness.where import NOWHERE, Where

if TYPE_CHECKING:
    from whereness.attend.locate import Extent


class KVCache:
    """One layer's keys and values of earlier tokens.

    A slot has a key, a value, features, a position, a segment and a real-or-pad flag, so a position
    is never guessed from the number of slots.

    Keys are as the encoding wants them: what door 3 gave, or raw when the encoding is not
    cacheable. `len(cache)` counts slots; `next_position` is where the next token stands, and
    eviction does not turn it back.
    """

    k: Tensor
    v: Tensor
    positions: Tensor

    def __init__(self) -> None:
        self.k = self.v = self.positions = None  # type: ignore[assignment] # while it is empty
        self.features: dict[str, Tensor] = {}
        self.segments: Tensor | None = None
        self.key_mask: Tensor | None = None
        self.lengths: Tensor | None = None
        self.next_position: Tensor | None = None
        """(B or 1,) position of the next token: the largest seen, on any axis, plus one."""
        self.encoding: PositionalEncoding | None = None
        """What door 3 turned the keys by, if a layer fed them."""
        self.regular = True
        self.next_slot = 0
        self.slots: Tensor | None = None
        """(T,) the slot in which each held token was fed; None while none is forgotten between."""
        self.state = 0
        """Changes with everything that is fed or forgotten; equal in caches that went through the
        same, as those of a model's layers do."""

    def __len__(self) -> int:
        return 0 if self.k is None else self.k.shape[2]

    def __repr__(self) -> str:
        if self.next_position is None:
            return "KVCache(empty)"
        parts = [f"{len(self)} slots", f"batch {self.k.shape[0]}"]
        parts.append(f"next_position={_shown(self.next_position)}")
        if self.num_axes > 1:
            parts.append(f"num_axes={self.num_axes}")
        if self.lengths is not None:
            parts.append(f"lengths={_shown(self.lengths.flatten())}")
        return f"KVCache({', '.join(parts)})"

    @property
    def length(self) -> int:
        """Slots that are held."""
        return len(self)

    @property
    def num_axes(self) -> int:
        """Coordinates of a cached position; 1 while it is empty."""
        return 1 if self.positions is None or self.positions.dim() == 2 else self.positions.shape[2]

    def continued(self, where: Where, extent: "Extent") -> Where:
        """`where` with positions that go on from the last ones: last + 1, row by row.

        On several axes that is one beyond the largest on any, and the same on all of them: what
        `wn.positions.continued` gives, and where text goes on after an image.

        Raises:
            ValueError: documents: whether a new token goes on with an old document or begins one
                anew is the caller's to say.
        """
        if where.segments is not None:
            raise ValueError("With segments a cache needs positions: give Where(positions, ...).")
        new = torch.arange(extent.num_queries, device=extent.device)
        start = self.next_position
        if start is None:
            start = torch.zeros(1, dtype=torch.int64, device=extent.device)
        if where.key_mask is None:
            where = self._on_all_axes(where, start[:, None] + new)
            return where.as_regular() if self.regular else where
        real = where.key_mask
        ids = start[:, None] + real.long().cumsum(-1) - 1
        nowhere = torch.nan if ids.is_floating_point() else NOWHERE
        return self._on_all_axes(where, ids.masked_fill(~real, nowhere))

    def _on_all_axes(self, where: Where, ids: Tensor) -> Where:
        """`where` with positions (B, S) that are those of every axis."""
        axes = self.num_axes
        if axes > 1:
            ids = ids[..., None].expand(*ids.shape, axes)
        return replace(where, positions=ids, num_axes=axes)

    def extend(self, where: Where) -> Where:
        """New tokens alone -> new tokens against all slots. The cache itself does not change.

        Raises:
            TypeError: real positions after integer ones, or the other way.
            ValueError: no positions, key positions (the cache knows them), segments or lengths that
                the cached tokens lack or that differ, another number of axes or of sequences.
        """
        if where.k_positions is not None or where.k_segments is not None:
            raise ValueError("The cache knows its keys: give only the new tokens' positions.")
        if where.positions is None:
            raise ValueError("A cache needs the positions of the new tokens.")
        past, regular = len(self), where.regular and self.regular
        if not past:
            return replace(where, cache_state=self.state)
        self._check_kind(where)
        self._same_lengths(where)
        key_mask = where.key_mask
        if key_mask is not None or self.key_mask is not None:
            key_mask = _join(_real(self.key_mask, past, where), _real(key_mask, None, where))
        segments = None if where.segments is None else _join(_given(self.segments), where.segments)
        where = replace(
            where,
            k_positions=_join(self.positions, where.positions),
            k_segments=segments,
            key_mask=key_mask,
            cached=past,
            slots=self._slots_with(where),
            cache_state=self.state,
        )
        return where.as_regular() if regular else where

    def append(
        self,
        k: Tensor,
        v: Tensor,
        features: Mapping[str, Tensor],
        where: Where,
        encoding: PositionalEncoding | None = None,
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Hold the new keys, values and features of an extended `where`; give all of them back.

        Args:
            encoding: the one of the layer: the cache then refuses to move keys by another.

        Raises:
            ValueError: `where` was extended before something else was fed or forgotten.
        """
        past, new = len(self), k.shape[2]
        if where.num_keys != past + new:
            raise ValueError(
                f"These positions were made for {where.num_keys - new} cached keys, the cache "
                f"holds {past}. Extend and prepare once a step."
            )
        if where.cache_state is not None and where.cache_state != self.state:
            raise ValueError(
                "These positions were prepared for an older state of the cache, or for another "
                "cache. Extend and prepare once a step."
            )
        self.k = k if past == 0 else torch.cat([self.k, k], 2)
        self.v = v if past == 0 else torch.cat([self.v, v], 2)
        self.features = {
            name: torch.cat([self.features[name], part], 1) if name in self.features else part
            for name, part in features.items()
        }
        if where.key_mask is not None:
            # A mask of this step may hide cached tokens from it: that is not kept.
            real = where.key_mask[:, past:]
            old = _real(self.key_mask, past, where)
            self.key_mask = _join(old, real) if past else real
        self.positions, self.segments = where.keys, where.key_segments
        self.lengths, self.slots, self.regular = where.lengths, where.slots, where.regular
        self.encoding = encoding
        self.next_slot += new
        self.next_position = next_position(
            where.positions, where.num_axes, self.next_position, where.new_pads()
        )
        self._changed(1, new)
        return self.k, self.v, self.features

    def check_mask(self, key_mask: Tensor) -> None:
        """Raise if a mask calls a cached pad real: it was cached as a token without a place."""
        if self.key_mask is not None and len(self):
            require(
                ~(key_mask & ~self.key_mask),
                "key_mask calls a cached pad a real token: it was cached as a pad.",
            )

    # Forgetting. Positions of the slots that stay do not change.

    def trim(self, length: int) -> None:
        """Keep the first `length` slots: roll back. The next position follows the last kept one.

        Raises:
            ValueError: fewer slots are held.
        """
        length = require_int("length", length, 0)
        if length > len(self):
            raise ValueError(f"The cache holds {len(self)} slots, it cannot keep {length}.")
        if length == len(self):
            return
        if length == 0:
            state = self.state
            self.__init__()  # type: ignore[misc]
            self.state = state
        else:
            self._select(lambda t, axis: t.narrow(axis, 0, length))
            self._follow_last()
        self._changed(2, length)

    def evict(self, slots: Tensor | Sequence[int]) -> None:
        """Forget these of the held slots, (n,). The clock goes on: `next_position` stays.

        Slots count what is held now, from 0. Windows still count from the slot in which a token was
        fed.

        Raises:
            ValueError: a slot that is not held.
        """
        slots = self._checked_slots(slots, 0)
        if not len(slots):
            return
        keep = torch.ones(len(self), dtype=torch.bool, device=slots.device)
        keep[slots] = False
        index = keep.nonzero()[:, 0]
        if self.slots is None:
            self.slots = torch.arange(len(self), device=slots.device)
            self.next_slot = len(self)
        self._select(lambda t, axis: t.index_select(axis, index))
        self.regular = False
        self._changed(3, *slots.tolist())

    def accept(self, start: int, slots: Tensor | Sequence[int]) -> None:
        """Of the held slots from `start` on keep these, (n,), as if only they had been fed.

        Slots count from the beginning of the cache, `start` included: node i of a tree that was fed
        at `start` lies in slot start + i. What remains of a speculative tree: a path whose tokens
        were found right. Unlike after an eviction, the clock and windows know nothing of the
        others.

        Raises:
            ValueError: slots that are not held, below `start`, or not in rising order.
        """
        start = require_int("start", start, 0, len(self))
        slots = self._checked_slots(slots, start)
        require(slots.diff() > 0, "slots must rise.")
        if not len(slots):
            self.trim(start)
            return
        index = torch.cat([torch.arange(start, device=slots.device), slots])
        fed = None if self.slots is None else self.slots[: len(index)]
        self._select(lambda t, axis: t.index_select(axis, index))
        self.slots = fed  # the path lies in the slots right after `start`
        self.regular = False
        self._follow_last()
        self._changed(6, start, *slots.tolist())

    def shift(
        self,
        encoding: PositionalEncoding | Sequence[PositionalEncoding],
        offset: float | Tensor,
        keep: int = 0,
    ) -> None:
        """Move cached tokens by `offset` positions, and the clock with them.

        After an eviction this closes the gap (attention sinks, context shift). Keys that door 3
        has changed are turned back and on again, in float64, and rounded once a call; raw keys and
        biases only need the new positions. Windows still count the slots that were fed.

        Args:
            encoding: the one that the layer of this cache uses, or the list of them.
            offset: a number, or one a row, (B,); negative moves back. It moves every axis.
            keep: the first `keep` held slots stay where they are.

        Raises:
            ValueError: an encoding that is not relative: what the cache holds of old tokens was
                computed where they stood, so they must be fed again; another encoding than the one
                that turned the keys; an empty cache; tokens that stood beyond all kept ones and
                would no longer.
            TypeError: a real offset for integer positions; cached keys of an encoding that cannot
                turn them back.
        """
        if not len(self):
            raise ValueError("An empty cache has nothing to shift.")
        encoding, keep = as_encoding(encoding), require_int("keep", keep, 0, len(self) - 1)
        check_movable(encoding)
        by = checked_offset(offset, self.positions, self.k.shape[0])
        moved = moved_beyond(self.positions, by, keep)
        old, new = self._where(self.positions), self._where(moved)
        if keep and self.segments is None:  # documents do not see each other
            check_order_kept(old, new, keep, self.key_mask)
        self._turn_keys(encoding, old, new)
        self.positions, self.next_position = moved, _given(self.next_position) + by
        self.regular = self.regular and not keep
        numbers = by.tolist() if isinstance(by, Tensor) else [by]
        self._changed(5, keep, *(part for n in numbers for part in n.as_integer_ratio()))

    def relengthen(
        self,
        encoding: PositionalEncoding | Sequence[PositionalEncoding],
        lengths: int | Tensor,
    ) -> None:
        """Turn cached keys to the table of other `lengths`: where a sequence outgrows its own.

        For encodings whose table depends on the length (dynamic NTK, LongRoPE). Keys are turned
        back and on again, in float64, and rounded once. New tokens, with the new lengths, then get
        what one pass at these lengths gives them: in a layer that reads the tokens themselves. In
        deeper ones the cached keys and values were computed from hidden states that the layers
        below formed under the old table, and no turn undoes that: for an exact answer feed the
        tokens again.

        Args:
            encoding: the one that the layer of this cache uses, or the list of them.
            lengths: what every sequence will reach from now on: int, or (B,).

        Raises:
            ValueError: an empty cache, or one that was fed without lengths or with one a token;
                lengths of another batch; another encoding than the one that turned the keys; one
                whose cached values depend on the length.
            TypeError: cached keys of an encoding that cannot turn them back.
        """
        if not len(self):
            raise ValueError("An empty cache takes any lengths: give them to Where.")
        if self.lengths is None or self.lengths.shape[1] != 1:
            raise ValueError("This cache was not fed with lengths, one a sequence: int or (B,).")
        encoding = as_encoding(encoding)
        check_turnable(encoding)
        if not isinstance(lengths, Tensor):
            lengths = require_int("lengths", lengths, 0, LARGEST_POSITION)
        else:
            require_device("lengths", lengths, self.k.device)
            if lengths.shape != self.k.shape[:1]:
                raise ValueError(
                    f"lengths must be an int or one a row, ({self.k.shape[0]},); got "
                    f"{tuple(lengths.shape)}."
                )
        new = replace(self._where(self.positions), lengths=lengths)
        self._turn_keys(encoding, self._where(self.positions), new)
        self.lengths = new.lengths
        self._changed(7, *new.lengths.flatten().tolist())

    def _where(self, positions: Tensor) -> Where:
        """Of the held tokens, at these positions."""
        return Where(positions, lengths=self.lengths, num_axes=self.num_axes)

    def _turn_keys(self, encoding: PositionalEncoding, old: Where, new: Where) -> None:
        check_same_keys(encoding, self.encoding, self.k, old, new)
        if encoding.cacheable:
            self.k = turned_again(encoding, self.k, old, new)

    def reorder(self, rows: Tensor) -> None:
        """Rearrange the batch, (B',) int64: beam search."""
        if not isinstance(rows, Tensor) or rows.dtype != torch.int64 or rows.dim() != 1:
            raise TypeError("rows must be an int64 tensor of shape (B',).")
        if not len(self):
            return
        batch = self.k.shape[0]
        require_device("rows", rows, self.k.device)
        require((rows >= 0) & (rows < batch), f"rows must lie in 0 .. {batch - 1}.")
        for name in ("k", "v", "positions", "segments", "key_mask", "lengths", "next_position"):
            value = getattr(self, name)
            if value is not None and value.shape[0] == batch:
                setattr(self, name, value.index_select(0, rows))
        self.features = {n: t.index_select(0, rows) for n, t in self.features.items()}
        self._changed(4, *rows.tolist())

    def _checked_slots(self, slots: Tensor | Sequence[int], first: int) -> Tensor:
        if isinstance(slots, (list, tuple, range)):
            numbers = [require_int("every slot", n, -LARGEST_POSITION) for n in slots]
            device = self.k.device if len(self) else None
            slots = torch.tensor(numbers, dtype=torch.int64, device=device)
        if not isinstance(slots, Tensor) or slots.dtype != torch.int64 or slots.dim() != 1:
            raise TypeError("slots must be a list of ints or an int64 tensor of shape (n,).")
        if len(self):
            require_device("slots", slots, self.k.device)
        last = len(self) - 1
        require((slots >= first) & (slots <= last), f"slots must lie in {first} .. {last}.", slots)
        return slots

    def _follow_last(self) -> None:
        """The next token comes right after the held ones, as if no others had been fed."""
        pads = None if self.key_mask is None else ~self.key_mask
        self.next_position = next_position(self.positions, self.num_axes, None, pads)
        self.next_slot = len(self) if self.slots is None else int(self.slots[-1]) + 1

    def _changed(self, what: int, *numbers: int) -> None:
        for n in (what, *numbers):
            self.state = (self.state * 1_000_003 + n + 1) % (2**61 - 1)

    def _slots_with(self, where: Where) -> Tensor | None:
        if self.slots is None:
            return None
        new = torch.arange(where.num_queries, device=self.slots.device)
        return torch.cat([self.slots, self.next_slot + new])

    def _select(self, choose: Callable[[Tensor, int], Tensor]) -> None:
        self.k, self.v = choose(self.k, 2), choose(self.v, 2)
        self.features = {n: choose(t, 1) for n, t in self.features.items()}
        for name in ("positions", "segments", "key_mask"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, choose(value, 1))
        if self.slots is not None:
            self.slots = choose(self.slots, 0)

    def _check_kind(self, where: Where) -> None:
        old, new = self.positions, where.positions
        if old.shape[2:] != new.shape[2:]:
            raise ValueError("The new tokens have another number of axes than the cached ones.")
        if new.is_floating_point() != old.is_floating_point():
            raise TypeError(
                f"Cached positions are {old.dtype}, new ones {new.dtype}: use one kind, since a "
                "token without a place is marked differently."
            )
        batch = self.k.shape[0]
        given = {"positions": new, "segments": where.segments, "key_mask": where.key_mask}
        for name, value in given.items():
            if value is not None and value.shape[0] not in (1, batch):
                raise ValueError(
                    f"The cache has batch size {batch}, the new {name} have {value.shape[0]}."
                )
        if (where.segments is None) != (self.segments is None):
            raise ValueError("Give segments for all tokens of a cache or for none.")

    def _same_lengths(self, where: Where) -> None:
        advice = "A change of lengths needs a new cache: old keys used another table."
        turn = "Cached keys used another table: cache.relengthen(encoding, lengths) turns them."
        if (where.lengths is None) != (self.lengths is None):
            raise ValueError(f"lengths were given for some tokens of a cache only. {advice}")
        if where.lengths is not None:
            if where.lengths.shape[1] != 1 or _given(self.lengths).shape[1] != 1:
                raise ValueError("With a cache, lengths are one a sequence: int or (B,).")
            require(where.lengths == self.lengths, f"lengths changed. {turn}")


def _shown(numbers: Tensor) -> str:
    """A few numbers as they are; their type and shape where there are many, or none in memory."""
    if type(numbers) is not Tensor or numbers.is_meta or len(numbers) > 8:
        return f"{str(numbers.dtype).removeprefix('torch.')} {tuple(numbers.shape)}"
    return str(numbers.tolist())


def _join(old: Tensor, new: Tensor) -> Tensor:
    """Concatenate along tokens; a batch of 1 is repeated."""
    batch = max(old.shape[0], new.shape[0])
    return torch.cat([t.expand(batch, *t.shape[1:]) for t in (old, new)], 1)


def _given(value: Tensor | None) -> Tensor:
    """What a check before has made sure of."""
    assert value is not None
    return value


def _real(key_mask: Tensor | None, length: int | None, where: Where) -> Tensor:
    if key_mask is not None:
        return key_mask
    length = where.num_queries if length is None else length
    return torch.ones(1, length, dtype=torch.bool, device=where.positions.device)
