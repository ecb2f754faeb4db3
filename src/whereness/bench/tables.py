"""The row of tables: cos and sin of many positions, beside NumPy's float64.

NumPy gets ready angles; ours makes them from positions.
"""

import torch

import whereness as wn
from whereness.bench.contest import OURS, Bar, Contestant, Row, Scale, Verdict
from whereness.bench.gate import compare
from whereness.bench.peers import peer
from whereness.bench.rotary import angles_at

PAIRS = 64
NUMPY = "numpy float64 sin + cos"


def make(scale: Scale) -> list[Contestant]:
    """Ours and NumPy's."""
    np = peer("numpy")
    positions = torch.arange(scale.of(131_072, 1024))
    rope = wn.RoPE(2 * PAIRS)
    angles = angles_at(positions, 2 * PAIRS)
    ready = angles.numpy()

    def output() -> torch.Tensor:
        # A pair (1, 0) becomes (cos, sin).
        ones = torch.zeros(1, 1, len(positions), 2 * PAIRS)
        ones[..., :PAIRS] = 1.0
        return rope.rotate(ones, rope.prepare(positions))

    def expected() -> torch.Tensor:
        return torch.cat([angles.cos(), angles.sin()], -1)[None, None]

    tolerance = 2.0**-24 + 131_072 * 2.0**-52  # of the oracle's own angles
    return [
        Contestant(OURS, lambda: rope.prepare(positions), compare(output, expected, tolerance)),
        Contestant(
            NUMPY,
            lambda: (np.sin(ready), np.cos(ready)),
            lambda: Verdict(None, note="it is the oracle"),
        ),
    ]


ROWS = (Row("tables/numpy", "tables, 131,072 positions × 64", (Bar("ratio", 0.5, NUMPY),), make),)
