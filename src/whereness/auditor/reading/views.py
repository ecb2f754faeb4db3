"""What was seen of each attention layer: the words of the capture."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from whereness.auditor.findings import Class
from whereness.auditor.reading.basis import Basis
from whereness.auditor.reading.readout import Turning
from whereness.auditor.reading.scores import Bias

TOEPLITZ = 1e-5
"""How uneven logits along a diagonal may be; clean relative layers stay below 5e-7."""


@dataclass(frozen=True)
class Side:
    """Queries or keys of a layer: what turns, and where their channels come from."""

    turning: Turning
    basis: Basis

    @property
    def width(self) -> int:
        """D, channels of a head."""
        return self.turning.partner.shape[-1]

    def pairs(self, head: int = 0) -> dict[tuple[int, int], float]:
        """(lower, higher) channel as the weights have them -> speed, of a head.

        The speed changes its sign where the weights have a pair the other way round.
        """
        order, found = self.basis.order[head].tolist(), {}
        for (u, v), speed in self.turning.pairs(head).items():
            a, b = order[u], order[v]
            found[min(a, b), max(a, b)] = speed if a < b else -speed
        return found

    def angles(self, head: int = 0) -> dict[tuple[int, int], Tensor]:
        """The same pairs -> angles (S,) in radians, as far as they can be told."""
        order, found = self.basis.order[head].tolist(), {}
        for u, v in self.turning.pairs(head):
            a, b = order[u], order[v]
            angle = self.turning.angles[head, u]
            found[min(a, b), max(a, b)] = angle if a < b else -angle
        return found


@dataclass(kw_only=True)
class LayerView:
    """One attention layer, as it was seen.

    near: at natural numbering. far: at ids up to 2^17 or as far as the model went, None where it
    takes no ids. bias: under queries of zeros.
    """

    where: str
    part: str | None = None
    index: int | None = None
    classified: Class = "unknown"
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    near: tuple[Side, Side] | None = None
    far: tuple[Side, Side] | None = None
    bias: Bias | None = None
    far_bias: Bias | None = None
    """The same at `far_bias_ids`, where the model takes ids."""
    far_bias_ids: tuple[int, ...] = ()
    uneven: float | None = None
    tabled: bool = False
    """Something that depends on the slot is added to its input."""
    content_aware: bool = False
    crosses: bool = False
    causal: bool = False
    scale: float | None = None
    """Factor on the product of queries and keys, where it is one."""
    broken: tuple[bool, bool] = (False, False)
    """Queries or keys are no numbers in the near and in the far run."""
    ids_ignored: bool = False
    """It turned by slots when it was given other positions."""
    odd: str = ""
    """Why it could not be read, if it could not."""

    @property
    def best(self) -> tuple[Side, Side] | None:
        """The read-out that reaches farthest."""
        return self.far or self.near

    @property
    def turns(self) -> bool:
        """Whether any channel of queries or keys turns."""
        return any(bool(side.turning.turns.any()) for side in self.best or ())

    @property
    def biased(self) -> bool:
        """Whether something that tells keys apart is added to the scores."""
        return self.bias is not None and self.bias.present

    @property
    def pairing(self) -> str | None:
        """How channels pair in the weights: "half", "interleaved", "mixed"; None if none turns."""
        return None if self.best is None else pairing_of(self.best[0].pairs())

    @property
    def rotary_dim(self) -> int:
        """Channels that turn, of head 0 of the queries."""
        return 0 if self.best is None else 2 * len(self.best[0].pairs())

    @property
    def speeds(self) -> tuple[float, ...]:
        """Radians a token of every pair of head 0, in the order of the channels."""
        return (
            () if self.best is None else tuple(s for _, s in sorted(self.best[0].pairs().items()))
        )


@dataclass(frozen=True)
class Table:
    """Something added to (or put beside) the input that depends on the slot and not on content."""

    where: str
    rows: Tensor
    joined: bool


@dataclass(kw_only=True)
class Observed:
    """All that was seen of a model."""

    layers: tuple[LayerView, ...] = ()
    tables: tuple[Table, ...] = ()
    ids: tuple[int, ...] = ()
    """Positions of the far run; none where the model takes no ids."""
    unseen: int = 0
    """Softmaxes and fused attentions that went by without being understood."""
    exact: bool = True
    """Whether it was read in float64."""
    why: tuple[str, ...] = field(default=())
    """What could not be done."""

    def __iter__(self) -> Iterator[LayerView]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)


def pairing_of(pairs: dict[tuple[int, int], float]) -> str | None:
    """What to call these pairs."""
    apart = {v - u for u, v in pairs}
    if not apart:
        return None
    if apart == {1}:
        return "interleaved"
    return "half" if len(apart) == 1 else "mixed"
