"""An encoding as data: which class, with which arguments. No torch until it is built."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whereness.encoding import PositionalEncoding


@dataclass(frozen=True)
class Spec:
    """A call of a public class: `Spec("RoPE", (("head_dim", 64),))` is `wn.RoPE(head_dim=64)`.

    Equal specs are equal encodings, so layers can be grouped by them.
    """

    kind: str
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        told = ", ".join(f"{name}={_told(value)}" for name, value in self.options)
        return f"{self.kind}({told})"

    def get(self, name: str) -> Any:
        """An argument; None where it is left to its default."""
        return dict(self.options).get(name)


def spec(kind: str, **options: Any) -> Spec:
    """The spec of a call; arguments that are None are left to their defaults."""
    given = {name: value for name, value in options.items() if value is not None}
    return Spec(kind, tuple(given.items()))


NOPE = Spec("NoPE")
Layer = tuple[Spec, ...]
"""What one layer has: one encoding, or several in order of application."""


def build(made: Spec) -> Any:
    """The object that a spec calls for."""
    import whereness as wn

    home = wn
    *modules, name = made.kind.split(".")
    for module in modules:
        home = getattr(home, module)
    options = {n: build(v) if isinstance(v, Spec) else v for n, v in made.options}
    return getattr(home, name)(**options)


def build_layer(layer: Layer) -> "PositionalEncoding | tuple[PositionalEncoding, ...]":
    """The encoding of a layer, a tuple where there are several."""
    built = tuple(build(each) for each in layer)
    return built[0] if len(built) == 1 else built


def told(layer: Layer) -> str:
    """A layer in one line."""
    return " + ".join(map(str, layer))


def _told(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, tuple) and len(value) > 8:
        return f"({len(value)} numbers)"
    return str(value) if isinstance(value, Spec) else repr(value)
