"""Scalings: how the spectrum of a rotary encoding changes for texts longer than it was trained on.

Each is a frozen value with one pure function, frequencies -> frequencies, and says beside it what
it does to the size of queries and keys (`amplitude`) and of logits (`logit_scale`).

    Linear          every frequency divided
    NTK             the base raised, so that the highest frequency stays
    DynamicNTK      the same by the length of each sequence
    NTKByParts      high frequencies kept, low ones divided, a ramp between
    YaRN            the same, and the logits made larger
    Llama3          the same as NTKByParts by wavelength, as in Llama 3.1
    LongRoPE        a divisor for every pair, one set for short and one for long sequences
    Proportional    a share of the pairs turns, the rest stands still (p-RoPE)
    HoPE            pairs that never complete a turn stand still
    Resonance       wavelengths rounded to whole tokens, on top of any of these
"""

from whereness.rotary.scaling.by_parts import Llama3, NTKByParts, YaRN
from whereness.rotary.scaling.cut import HoPE, Proportional
from whereness.rotary.scaling.interpolation import NTK, DynamicNTK, Linear
from whereness.rotary.scaling.longrope import LongRoPE
from whereness.rotary.scaling.resonance import Resonance
from whereness.rotary.scaling.spectrum import Scaling, Spectrum

__all__ = [
    "NTK",
    "DynamicNTK",
    "HoPE",
    "Linear",
    "Llama3",
    "LongRoPE",
    "NTKByParts",
    "Proportional",
    "Resonance",
    "Scaling",
    "Spectrum",
    "YaRN",
]
