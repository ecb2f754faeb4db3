"""The numbers in the blocks of a quantised GGUF tensor.

A quantised row is cut into blocks of 32 or 256 numbers, each with scales of its own:

    q d            Q4_0, Q5_0 (less half the range), Q8_0
    q d + m        Q4_1, Q5_1
    q d s          Q3_K, Q6_K     s: an integer for every 16 numbers
    q d s - D m    Q2_K, Q4_K, Q5_K     s and m: for every 16 or 32 numbers

d, m and D are float16. Bits of one number may lie apart; the functions below say where.

Source: the format's structures in the ggml repository, ggml-common.h. Written here and not taken
from the package `gguf`: its reader maps a file whole and trusts its counts, and it brings more
than the auditor needs. The tests hold the two against each other.

Axes: N blocks; then bytes or numbers of one.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from whereness.interop.gguf.types import TYPES

SIZES = {kind.name: kind.size for kind in TYPES.values()}


def _halves(blocks: Tensor, at: int) -> Tensor:
    """The float16 at byte `at` of every block, (N, 1)."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(data: Tensor) -> Tensor:
    """All low halves of the bytes, then all high ones."""
    return torch.cat((data & 15, data >> 4), -1)


def _bits(data: Tensor, width: int) -> Tensor:
    """Bytes (..., n) as fields of `width` bits, the lowest of all first: (..., 8 / width, n)."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8)
    return (data[..., None, :] >> shifts[:, None]) & (2**width - 1)


def _fifth(data: Tensor) -> Tensor:
    """Bit i of four bytes, for number i of 32: 0 or 16."""
    each = _bits(data, 1).transpose(-1, -2)  # byte, bit
    return each.reshape(len(data), 32) << 4


def _q4_0(b: Tensor) -> Tensor:
    return (_nibbles(b[:, 2:]).float() - 8) * _halves(b, 0)


def _q4_1(b: Tensor) -> Tensor:
    return _nibbles(b[:, 4:]).float() * _halves(b, 0) + _halves(b, 2)


def _q5_0(b: Tensor) -> Tensor:
    return ((_nibbles(b[:, 6:]) | _fifth(b[:, 2:6])).float() - 16) * _halves(b, 0)


def _q5_1(b: Tensor) -> Tensor:
    number = _nibbles(b[:, 8:]) | _fifth(b[:, 4:8])
    return number.float() * _halves(b, 0) + _halves(b, 2)


def _q8_0(b: Tensor) -> Tensor:
    return b[:, 2:].contiguous().view(torch.int8).float() * _halves(b, 0)


def _q2_k(b: Tensor) -> Tensor:
    """Bytes 0-15 scales (low half) and minima (high), 16-79 numbers, then d and D."""
    scales, data = b[:, :16], b[:, 16:80]
    numbers = _bits(data.reshape(-1, 2, 32), 2).reshape(-1, 16, 16).float()
    slope = (_halves(b, 80) * (scales & 15).float())[..., None]
    least = (_halves(b, 82) * (scales >> 4).float())[..., None]
    return (numbers * slope - least).reshape(-1, 256)


def _q3_k(b: Tensor) -> Tensor:
    """Bytes 0-31 third bits, 32-95 two bits, 96-107 sixteen scales of six bits, then d."""
    low = _bits(b[:, 32:96].reshape(-1, 2, 32), 2).reshape(-1, 256)
    high = _bits(b[:, :32], 1).reshape(-1, 256)
    numbers = (low | (high << 2)).float() - 4
    packed = b[:, 96:108]
    top = _bits(packed[:, 8:], 2).reshape(-1, 16)
    scales = (_nibbles(packed[:, :8]) | (top << 4)).float() - 32
    slope = (_halves(b, 108) * scales)[..., None]
    return (numbers.reshape(-1, 16, 16) * slope).reshape(-1, 256)


def _scales_and_minima(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Eight of each, six bits, in twelve bytes: of the last four the top bits lie with the first.

    Bytes 0-3 hold scales 0-3 (six bits) and the top of scales 4-7, bytes 4-7 the same of minima,
    bytes 8-11 the low halves of scales and minima 4-7.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat((first & 63, (third & 15) | (first >> 6 << 4)), -1)
    minima = torch.cat((second & 63, (third >> 4) | (second >> 6 << 4)), -1)
    return scales.float(), minima.float()


def _affine(b: Tensor, numbers: Tensor) -> Tensor:
    """q d s - D m, for eight times 32 numbers."""
    scales, minima = _scales_and_minima(b[:, 4:16])
    slope, least = _halves(b, 0) * scales, _halves(b, 2) * minima
    return (numbers.reshape(-1, 8, 32).float() * slope[..., None] - least[..., None]).flatten(1)


def _q4_k(b: Tensor) -> Tensor:
    return _affine(b, _bits(b[:, 16:].reshape(-1, 4, 32), 4))


def _q5_k(b: Tensor) -> Tensor:
    low = _bits(b[:, 48:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    return _affine(b, low | (_bits(b[:, 16:48], 1) << 4))


def _q6_k(b: Tensor) -> Tensor:
    """Bytes 0-127 low halves, 128-191 two bits above them, 192-207 scales, then d."""
    low = _bits(b[:, :128].reshape(-1, 2, 64), 4).reshape(-1, 256)
    high = _bits(b[:, 128:192].reshape(-1, 2, 32), 2).reshape(-1, 256)
    numbers = (low | (high << 4)).float() - 32
    slope = _halves(b, 208) * b[:, 192:208].contiguous().view(torch.int8).float()
    return (numbers.reshape(-1, 16, 16) * slope[..., None]).reshape(-1, 256)


QUANTISED: dict[str, Callable[[Tensor], Tensor]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}


def dequantised(data: Tensor, name: str) -> Tensor:
    """The numbers in the bytes of whole blocks, in float32 on one axis. name: of the type."""
    return QUANTISED[name](data.reshape(-1, SIZES[name])).flatten()
