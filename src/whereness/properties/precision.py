"""How much scores change in half precision, near position 0 and far from it.

Source: Wang et al. 2024, When Precision Meets Position, arXiv:2411.13476: angles that are formed in
bfloat16 break the relative property of RoPE. Errors are in logits.
"""

import math

import torch

from whereness.encoding import PositionalEncoding
from whereness.properties.doors import Passage, exact_copy, sizes, through
from whereness.properties.probes import along, usable_length, where_of

SHIFTS = (0, 1_000, 30_000, 1_000_000)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NUM_TOKENS = 16
NUM_TEXTS = 8


def precision(encoding: PositionalEncoding, relative: bool) -> dict[str, dict[int, float | None]]:
    """Largest change of a score when all positions move by each of SHIFTS, {dtype: {shift: it}}.

    The encoding is cast as a model would cast it, the tokens are Gaussian and exact in every
    dtype, scores are scaled as in attention. They are compared with the float64 scores of the
    encoding as it was given: those without a shift for a `relative` encoding, for which a shift
    must change nothing, else those of the same shift. None: the encoding does not take the shift.
    """
    exact = exact_copy(encoding)
    length = usable_length(exact, NUM_TOKENS)
    x = torch.randn(NUM_TEXTS, length, sizes(exact).dim, dtype=torch.float64)
    # Eighths up to 4 are exact in every dtype: what remains is the encoding's own error.
    x = (x * 8).round().clamp(-32, 32) / 8
    references = {shift: _scores(exact, x, 0 if relative else shift) for shift in SHIFTS}
    found: dict[str, dict[int, float | None]] = {}
    for name, dtype in DTYPES.items():
        cast = exact_copy(encoding, dtype)
        found[name] = {}
        for shift in SHIFTS:
            scores, reference = _scores(cast, x.to(dtype), shift), references[shift]
            found[name][shift] = None
            if scores is not None and reference is not None:
                error = float((scores - reference).abs().max())
                found[name][shift] = math.inf if math.isnan(error) else error
    return found


def _scores(encoding: PositionalEncoding, x: torch.Tensor, shift: int) -> torch.Tensor | None:
    """The visible logits in float64; None where the encoding does not take the positions."""
    positions = along(encoding, torch.arange(x.shape[1]) + shift)
    try:
        passage: Passage = through(encoding, x, where_of(encoding, positions), scaled=True)
    except ValueError:
        return None
    return passage.after["logits"][passage.allowed].double()
