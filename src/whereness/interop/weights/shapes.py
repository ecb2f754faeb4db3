"""How the heads of each layer lie, as `from_config` would build them: specs alone, no encoding."""

from collections.abc import Iterable
from dataclasses import dataclass

from whereness.interop.config.parts import Part
from whereness.interop.config.reader import REFUSED, layers_of
from whereness.interop.config.specs import Layer, Spec
from whereness.rotary.base import Side


@dataclass(frozen=True)
class Shape:
    """The channels of a head, and those of them that turn."""

    head_dim: int
    rotary_dim: int
    side: Side = "leading"


Shapes = tuple[Shape | None, ...]
"""One a layer, None where nothing turns; a single one is every layer's."""


def shapes_of(part: Part) -> Shapes:
    """What turns in the layers of a part.

    Raises:
        ValueError: `from_config` refuses the config, or has no rotation of one axis for a layer.
    """
    try:
        each = layers_of(part).each
    except TypeError as error:  # what a file holds is a value
        raise ValueError(str(error)) from None
    found = {layer: _shape(layer) for layer in dict.fromkeys(each)}
    if not any(found.values()):
        raise ValueError("no layer of this model turns: nothing to convert.")
    shapes = tuple(found[layer] for layer in each)
    return shapes if len(set(shapes)) > 1 else shapes[:1]


def _shape(layer: Layer) -> Shape | None:
    for made in layer:
        if made.kind == REFUSED:
            raise ValueError(str(made.get("why")))
        if made.get("pairing") is None:
            continue
        if not _is_one_turn(made):
            raise ValueError(f"{made.kind} has several turns in a head, which are not converted.")
        width = made.get("head_dim")
        return Shape(width, made.get("rotary_dim") or width, made.get("rotary_side") or "leading")
    return None


def _is_one_turn(made: Spec) -> bool:
    """Whether all pairs of a head lie in one piece, whatever positions turn them."""
    return made.kind in ("RoPE", "LeRoPE", "MultimodalRoPE") or made.get("num_axes") == 1


def by_shape(shapes: Shapes) -> Iterable[tuple[Shape | None, frozenset[int] | None]]:
    """Every shape with the layers that have it; None is all of them."""
    if len(shapes) == 1:
        return [(shapes[0], None)]
    found: dict[Shape | None, list[int]] = {}
    for i, shape in enumerate(shapes):
        found.setdefault(shape, []).append(i)
    return [(shape, frozenset(where)) for shape, where in found.items()]
