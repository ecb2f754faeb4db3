"""Measures of what changes with the length of the text, and past the length that was trained.

The length that was trained is N; "past" is N .. 4N, and 10 N for being defined at all. What a
trained model makes of it is for `whereness compare` to measure.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from whereness.absolute.integer import Integer
from whereness.encoding import PositionalEncoding
from whereness.properties.codes import difference, unseen
from whereness.properties.doors import exact_copy, sizes, through
from whereness.properties.probes import (
    along,
    axes_of,
    contents,
    identical_scores,
    is_defined,
    joined_rows,
    offset_codes,
    position_codes,
    seen_by,
    where_of,
)
from whereness.properties.scores import entropy_slope

TIMES = 4
FARTHEST = 10
LONGEST = 128
"""Trained length at most, for the pass over 4 N tokens."""
FEW_CONTENTS = 4


def defined_beyond(encoding: PositionalEncoding, trained: int) -> bool:
    """A forward pass at 10 times the trained length works and is finite, on every axis."""
    last = torch.tensor([0, trained, FARTHEST * trained - 1])
    return all(is_defined(encoding, along(encoding, last, a)) for a in range(axes_of(encoding)))


def length_dependence(encoding: PositionalEncoding, length: int) -> float:
    """Largest difference of the codes of the same positions in a short and in a long text.

    The texts have length / 2 and `length` tokens. Where there are no codes of positions, scores of
    identical tokens are compared.

    An encoding that was built for one length of text, `wn.Integer(dim, length)`, is also compared
    with the one for the double length. 0: a position means the same in every text.
    """
    half = length // 2
    texts = [where_of(encoding, along(encoding, torch.arange(n))) for n in (half, length)]
    short, long = (position_codes(encoding, where) for where in texts)
    if short is None or long is None:
        ones = contents("ones", sizes(encoding).dim)
        short, long = (identical_scores(encoding, where, ones)[0] for where in texts)
        seen = seen_by(encoding, half)
        return float((short - long[:, :half, :half])[:, seen].abs().max())
    longer = lengthened(encoding)
    twin = None if longer is None else position_codes(longer, texts[1])
    return max(difference(short, long), difference(long, long if twin is None else twin))


def free_parameters(encoding: PositionalEncoding, length: int) -> int:
    """Numbers that a text of `length` tokens trains and one of length / 2 does not.

    They belong to far positions or distances alone: no process leads to them from near ones. Told
    by gradients that are not 0, for Gaussian tokens.
    """
    copy = exact_copy(encoding).requires_grad_()
    if not list(copy.parameters()):
        return 0
    trained = [_trained(copy, n) for n in (length // 2, length)]
    return sum(int((full & ~half).sum()) for half, full in zip(*trained, strict=True))


def _trained(encoding: PositionalEncoding, length: int) -> list[Tensor]:
    """For every parameter, where it has a gradient in a text of `length` tokens."""
    s = sizes(encoding)
    x = torch.randn(1, length, s.dim, dtype=torch.float64) * s.head_dim**-0.5
    parameters = list(encoding.parameters())
    with torch.enable_grad():
        where = where_of(encoding, along(encoding, torch.arange(length)))
        passage = through(encoding, x, where)
        parts = [passage.out, passage.after["logits"][passage.allowed]]
        total = torch.stack([(part * torch.randn_like(part)).sum() for part in parts]).sum()
        gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    return [
        torch.zeros_like(p, dtype=torch.bool) if g is None else g != 0
        for p, g in zip(parameters, gradients, strict=True)
    ]


def lengthened(encoding: PositionalEncoding) -> PositionalEncoding | None:
    """The same for a text of twice the length; None for encodings that are built for any."""
    if isinstance(encoding, Integer) and encoding.length is not None:
        return Integer(encoding.dim, 2 * encoding.length, site=encoding.site, join=encoding.join)
    return None


@dataclass(frozen=True)
class Beyond:
    """What a pass over 4 times the trained length shows; None where it is not defined."""

    unseen_codes: float | None
    entropy_slope: float | None


def beyond(encoding: PositionalEncoding, trained: int, tokens: Tensor) -> Beyond:
    """How much past the trained length is unlike all that came before it.

    unseen_codes: share of the entries of codes at positions N .. 4N - 1 outside the range that
        their channel had before. For codes of offsets only values above the range count: a far key
        that scores lower than all others fades out, which harms nobody.
    entropy_slope: see `scores.entropy_slope`, from N to 4N, for identical tokens (the first of
        `tokens`) at the scale that attention uses.
    """
    trained = min(trained, LONGEST)
    length = TIMES * trained
    positions = along(encoding, torch.arange(length))
    if not is_defined(encoding, positions[[0, -1]]):
        return Beyond(None, None)
    where = where_of(encoding, positions)
    x = tokens[:FEW_CONTENTS, None].expand(-1, length, -1)
    passage = through(encoding, x, where, causal=True, scaled=True)
    turned = not torch.equal(passage.before["q"], passage.after["q"])
    if any(m.site is not None for m in encoding.members()):
        new = unseen(joined_rows(encoding, where), trained, only_above=False)
    elif turned:
        new = unseen(passage.after["q"].transpose(1, 2)[0].flatten(1), trained, only_above=False)
    else:
        new = unseen(offset_codes(passage.after["logits"]), trained, only_above=True)
    return Beyond(new, entropy_slope(passage.after["weights"][0], (trained, length)))
