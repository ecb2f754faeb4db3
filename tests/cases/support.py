"""Cases by id, and the small models that they are tried on.

Axes: B batch, S tokens, E = 32 model dim, H = 4 query heads, G = 2 key/value heads, D = 8.
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import whereness as wn


def _cases(name: str) -> dict[str, dict[str, Any]]:
    path = Path(__file__).parents[1] / "data" / name
    return {case["id"]: case for case in json.loads(path.read_text(encoding="utf-8"))}


CASES = _cases("cases.json")
AUDITED = _cases("cases_audit.json")
"""Cases of kinds that are a matter of whole models, so of the auditor alone."""

DIM, HEADS, GROUPS, HEAD_DIM, VOCAB, REACH = 32, 4, 2, 8, 50, 40
EXACT = 1e-10  # float64: sums of some hundred products


def case(*ids: str) -> Callable[[Callable], Callable]:
    """The public reports that a test is about. When it fails, they are shown with the failure."""
    about = [(CASES | AUDITED)[i] for i in ids]  # an unknown id fails here

    def mark(test: Callable) -> Callable:
        @functools.wraps(test)
        def told(*args: Any, **kwargs: Any) -> None:
            try:
                test(*args, **kwargs)
            except Exception as error:
                for c in about:
                    error.add_note(f"{c['id']}: {c['symptom']} {c['sources'][0]['url']}")
                raise

        return told

    return mark


# Every encoding with a setting that fits the small models, on one axis.
MAKERS: dict[str, Callable[[], wn.PositionalEncoding]] = {
    "nope": wn.NoPE,
    # Concatenated: the same number added to every channel would be taken off by a layer norm.
    "integer": lambda: wn.Integer(4, 10, join="concat"),
    "binary": lambda: wn.Binary(DIM, 8),
    "sinusoidal": lambda: wn.Sinusoidal(DIM),
    "sinusoidal-queries_keys": lambda: wn.Sinusoidal(DIM, site="queries_keys"),
    "sinusoidal-every_layer": lambda: wn.Sinusoidal(8, site="every_layer", join="concat"),
    "learned": lambda: wn.LearnedAbsolute(DIM, REACH),
    "learned-queries_keys": lambda: wn.LearnedAbsolute(DIM, REACH, site="queries_keys"),
    "relative_add": lambda: wn.LearnedRelative(HEADS, 5),
    "relative_multiply": lambda: wn.LearnedRelative(HEADS, 5, "multiply", "weights"),
    "shaw": lambda: wn.Shaw(HEAD_DIM, 3),
    "t5": lambda: wn.T5(HEADS, 8, 16),
    "alibi": lambda: wn.ALiBi(HEADS),
    "kerple": lambda: wn.KERPLE(HEADS),
    "sandwich": lambda: wn.Sandwich(HEADS, 8),
    "rope": lambda: wn.RoPE(HEAD_DIM),
    "rope-partial": lambda: wn.RoPE(HEAD_DIM, 100.0, "interleaved", 4, "trailing"),
    "axial_rope": lambda: wn.AxialRoPE(HEAD_DIM, num_axes=1),
}
ALL = tuple(MAKERS)
POSITIONAL = tuple(name for name in ALL if name != "nope")
LEARNED = tuple(name for name, make in MAKERS.items() if list(make().parameters()))
ABSOLUTE = tuple(
    n for n in ALL if n.split("-")[0] in ("integer", "binary", "sinusoidal", "learned")
)
RELATIVE = tuple(n for n in POSITIONAL if n not in ABSOLUTE)


def scribbled(module: nn.Module, seed: int = 0) -> nn.Module:
    """`module` with every parameter at random, so that none is at a special value."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.5 * noise.to(parameter.dtype))
    return module


def encoding(name: str) -> wn.PositionalEncoding:
    """The encoding `name`, in float64 and with random parameters."""
    return scribbled(MAKERS[name]()).double()


def model(name: str | Any = "rope", **options: Any) -> wn.Transformer:
    """A decoder of two layers in float64, the same but for its encoding."""
    made = MAKERS[name]() if isinstance(name, str) else name
    options = {"depth": 2, "num_kv_heads": GROUPS, **options}
    torch.manual_seed(0)
    whole = wn.Transformer(VOCAB, DIM, num_heads=HEADS, encoding=made, **options)
    return scribbled(whole.double()).eval()


def tokens(length: int, batch: int = 1, seed: int = 1) -> Tensor:
    """Token ids (B, S)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB, (batch, length), generator=generator)


def heads(length: int, count: int = HEADS, batch: int = 1, seed: int = 2, **to: Any) -> Tensor:
    """Random queries, keys or values (B, heads, S, D), float64 unless `to` says otherwise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, count, length, HEAD_DIM, generator=generator, dtype=torch.float64)
    return x.to(**to) if to else x


def equal(a: Tensor, b: Tensor, tolerance: float = EXACT) -> None:
    """Raise unless a and b agree to `tolerance`, absolute and relative."""
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def bitwise(a: Tensor, b: Tensor) -> None:
    """Raise unless a and b are the same numbers of the same type."""
    torch.testing.assert_close(a, b, rtol=0, atol=0)


def differ(a: Tensor, b: Tensor, by: float = 1e-3) -> None:
    """Raise unless a and b are clearly apart: the test before it could have failed."""
    assert a.shape == b.shape
    assert (a - b).abs().max() > by


class Recorder(wn.RoPE):
    """RoPE that keeps the positions of every preparation."""

    def __init__(self, head_dim: int = HEAD_DIM) -> None:
        super().__init__(head_dim)
        self.seen: list[list[list[int]]] = []

    def tables(self, where: wn.Where):
        self.seen.append(where.positions.tolist())
        return super().tables(where)


def decoded(whole: wn.Transformer, ids: Tensor, chunks: list[int], **options: Any) -> Tensor:
    """Logits of `ids` fed through caches in chunks of these sizes."""
    caches, found, start = whole.new_caches(), [], 0
    for size in chunks:
        end = start + size
        given = {n: t[:, start:end] if n == "where" else t[:, :end] for n, t in options.items()}
        found.append(whole(ids[:, start:end], caches=caches, **given))
        start = end
    assert start == ids.shape[1]
    return torch.cat(found, 1)
