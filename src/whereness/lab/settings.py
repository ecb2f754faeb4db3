"""What decides the result of a comparison: frozen values, and a hash that names them.

Nothing here imports torch, so wrong settings are told at once.
"""

import hashlib
import json
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from whereness.lab.text import Text
from whereness.registry import ENTRIES, unknown

DEFAULT_ENCODINGS = (
    "nope",
    "integer",
    "binary",
    "sinusoidal",
    "learned",
    "relative_add",
    "relative_multiply",
    "shaw",
    "t5",
    "alibi",
    "rope",
)

LENGTH = 11
"""Words of a sentence of the order task, with the question."""

SHORTEST = 4
"""The shortest window that has a last quarter."""

LARGEST = 2**31 - 1
MOST = {"seeds": 1000, "depth": 1000, "jobs": 1000}
"""The largest values of options; LARGEST for the others."""

SOLVED = 0.95
"""An accuracy in the order task that shows that word order is seen."""

BASELINE = "nope"
"""The encoding that the others' speed is told against."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """Model and training: what every task needs.

    Args:
        batch: sequences a training step.
        learning_rate: its peak, after the first `warm_up` part of the steps; then a cosine to 0.
        weight_decay: of all parameters but those of the encoding.
        clip: longest gradient.

    Raises:
        ValueError: a size below its minimum, or heads that do not divide the width.
    """

    steps: int = 500
    batch: int = 16
    width: int = 64
    depth: int = 2
    heads: int = 4
    device: str = "cpu"
    learning_rate: float = 3e-3
    warm_up: float = 0.05
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    clip: float = 1.0

    @property
    def tokens(self) -> int:
        """Tokens of the whole training: how much work a run is."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "width", "depth", "heads"):
            at_least(name, getattr(self, name), 1)
        if self.width % self.heads:
            raise ValueError(
                f"--width must be a multiple of --heads, got {self.width} and {self.heads}."
            )


@dataclass(frozen=True, kw_only=True)
class Recipe(Training):
    """The language model: trained at one length, evaluated at longer ones.

    Args:
        train_length: bytes in a training sequence.
        lengths: bytes in a window of evaluation; kept sorted, each once. None given: 1, 2, 4 and
            8 times the training length.
        evaluated_bytes: at most so much of the held-out text is evaluated.

    Raises:
        ValueError: as `Training`, or a length below the training length.
    """

    train_length: int = 64
    lengths: tuple[int, ...] = ()
    evaluated_bytes: int = 2**18

    def __post_init__(self) -> None:
        at_least("train-length", self.train_length, SHORTEST)
        super().__post_init__()
        lengths = self.lengths or tuple(n * self.train_length for n in (1, 2, 4, 8))
        at_least("lengths", max(lengths), 1)
        if min(lengths) < self.train_length:
            raise ValueError(
                f"--lengths must be at least the training length, {self.train_length}; got "
                f"{min(lengths)}."
            )
        object.__setattr__(self, "lengths", tuple(sorted(set(lengths))))

    @property
    def longest(self) -> int:
        """The longest evaluated length; tables are built for it."""
        return self.lengths[-1]

    @property
    def tokens(self) -> int:
        return self.steps * self.batch * self.train_length


@dataclass(frozen=True, kw_only=True)
class OrderRecipe(Training):
    """The order task: who acts on whom, in sentences where only word order tells.

    Args:
        batch: sentences of a training step, each with its mirror.
        pairs: test sentences, each with its mirror.
    """

    steps: int = 300
    batch: int = 32
    pairs: int = 500

    def __post_init__(self) -> None:
        at_least("order-steps", self.steps, 1)
        super().__post_init__()
        at_least("pairs", self.pairs, 1)

    @property
    def tokens(self) -> int:
        return self.steps * 2 * self.batch * LENGTH


@dataclass(frozen=True, kw_only=True)
class Run:
    """One model: an encoding and a seed. Everything that its result depends on.

    Args:
        recipe: tells the task, too.
        text: what a language model learns; the order task makes its own sentences.
    """

    encoding: str
    seed: int
    recipe: Recipe | OrderRecipe
    text: Text | None = None

    @property
    def task(self) -> str:
        """As results and summaries call it."""
        return "order_task" if isinstance(self.recipe, OrderRecipe) else "language_model"

    @property
    def name(self) -> str:
        """What to call it."""
        short = "order" if self.task == "order_task" else "text"
        return f"{self.encoding}, {short}, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Some encodings and seeds on one text, by one recipe a task.

    Raises:
        ValueError: an unknown encoding, or no seed.
    """

    text: Text
    recipe: Recipe
    order: OrderRecipe = field(default_factory=OrderRecipe)
    encodings: tuple[str, ...] = DEFAULT_ENCODINGS
    seeds: int = 2

    def __post_init__(self) -> None:
        at_least("seeds", self.seeds, 1)
        for name in self.encodings:
            if name not in ENTRIES:
                raise ValueError(unknown(name))
        object.__setattr__(self, "encodings", tuple(dict.fromkeys(self.encodings)))

    def runs(self) -> tuple[Run, ...]:
        """All runs; every encoding once before any gets its next seed."""
        return tuple(
            run
            for seed in range(self.seeds)
            for name in self.encodings
            for run in (
                Run(encoding=name, seed=seed, text=self.text, recipe=self.recipe),
                Run(encoding=name, seed=seed, recipe=self.order),
            )
        )


def at_least(flag: str, value: int, minimum: int) -> None:
    """Raise unless the option `--flag` has a value of at least `minimum`, and one that can be."""
    if value < minimum:
        raise ValueError(f"--{flag} must be at least {minimum}, got {value}.")
    most = MOST.get(flag, LARGEST)
    if value > most:
        raise ValueError(f"--{flag} must be at most {most:,}, got a larger number.")


def plain(settings: Any) -> Any:
    """Settings as JSON has them. What equality ignores is left out: where a text lies."""
    if is_dataclass(settings):
        return {f.name: plain(getattr(settings, f.name)) for f in fields(settings) if f.compare}
    return [plain(s) for s in settings] if isinstance(settings, tuple) else settings


def digest(settings: Run | Comparison) -> str:
    """The name of these settings: equal settings, and no others, have the same."""
    canonical = json.dumps(plain(settings), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]
