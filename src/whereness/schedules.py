"""Which encoding each layer of a model gets."""

from collections.abc import Callable, Iterator, Sequence

from whereness.checks import as_int, require_int
from whereness.encoding import PositionalEncoding, as_encoding

Source = (
    PositionalEncoding
    | Sequence[PositionalEncoding]
    | None
    | Callable[[], PositionalEncoding | Sequence[PositionalEncoding]]
)


class Schedule:
    """The encoding of every layer: `schedule[i]`, or `schedule.layers(depth)` for all of them.

    The same object for two layers means shared parameters.
    """

    def __init__(self, choose: Callable[[int], Source], depth: int | None = None) -> None:
        self._choose, self._depth = choose, depth
        self._made: dict[int, PositionalEncoding] = {}
        # With its source, which thereby lives on: the id of one that is gone may come again.
        self._singles: dict[int, tuple[Source, PositionalEncoding]] = {}

    def __getitem__(self, layer: int) -> PositionalEncoding:
        number = as_int(layer)
        if number is None:
            raise TypeError(f"A schedule takes a layer number, got {type(layer).__name__}.")
        layer = number
        if layer < 0 or (self._depth is not None and layer >= self._depth):
            raise IndexError(f"Layer {layer} is outside the schedule of {self._depth} layers.")
        if layer not in self._made:
            self._made[layer] = self._make(self._choose(layer))
        return self._made[layer]

    def _make(self, source: Source) -> PositionalEncoding:
        if callable(source) and not isinstance(source, PositionalEncoding):
            return as_encoding(source())  # a factory: parameters of this layer's own
        if id(source) not in self._singles:
            self._singles[id(source)] = (source, as_encoding(source))
        return self._singles[id(source)][1]

    def __len__(self) -> int:
        if self._depth is None:
            raise TypeError("This schedule has no depth of its own: use schedule.layers(depth).")
        return self._depth

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[PositionalEncoding]:
        return iter([self[i] for i in range(len(self))])

    def layers(self, depth: int) -> list[PositionalEncoding]:
        """The encodings of layers 0 .. depth - 1."""
        depth = require_int("depth", depth, 0)
        if self._depth is not None and depth != self._depth:
            raise ValueError(f"The schedule lists {self._depth} layers, the model has {depth}.")
        return [self[i] for i in range(depth)]


def every(n: int, encoding: Source, otherwise: Source) -> Schedule:
    """`encoding` in layers n-1, 2n-1, ... (every n-th, counted from 1), `otherwise` in the rest.

    An encoding is shared by its layers. A function without arguments is called once a layer, for
    parameters of their own.

    >>> import whereness as wn
    >>> layers = every(4, wn.NoPE(), otherwise=wn.RoPE(64)).layers(4)
    >>> [type(e).__name__ for e in layers]
    ['RoPE', 'RoPE', 'RoPE', 'NoPE']
    """
    n = require_int("n", n, 1)
    return Schedule(lambda layer: encoding if (layer + 1) % n == 0 else otherwise)


def listed(sources: Sequence[Source]) -> Schedule:
    """One source a layer, in order."""
    sources = list(sources)
    return Schedule(lambda layer: sources[layer], len(sources))


def shared(source: Source) -> Schedule:
    """The same source for every layer: one object, or one a layer when it is a function."""
    return Schedule(lambda _: source)
