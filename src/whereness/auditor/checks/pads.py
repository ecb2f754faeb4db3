"""CHK5: a real token's output depends neither on pads nor on the other rows of its batch.

Names what it saw: pads that are attended (a fault of the mask), tokens that pads in front of them
renumber (which matters for absolute positions alone), or prompts and steps that count by two rules.

Axes: B batch, S tokens.
"""

import contextlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whereness.auditor.driving.classes import whole_class
from whereness.auditor.driving.drive import Refused
from whereness.auditor.driving.probing import Bench, change, decoded, probed
from whereness.auditor.subject import Subject

CHECK = "CHK5"
LENGTH, PADS = 9, 3
BY_MASK = "Number the real tokens: cumsum(mask) - 1, pads at any legal row."


def run(subject: Subject) -> None:
    """Look at what pads do."""
    probed(subject, CHECK, _look)


def _look(bench: Bench) -> None:
    driver = bench.driver
    encoder = driver.encoder
    if encoder is not None:
        _sides(replace(bench, driver=encoder), "encoder")
    _sides(bench, "decoder" if encoder is not None else "")


@dataclass
class Padded:
    """A row with pads, the mask, and where its real tokens are."""

    tokens: Tensor
    mask: Tensor
    real: slice


def padded(bench: Bench, tokens: Tensor, left: int, right: int, seed: int | None = None) -> Padded:
    """`tokens` between pads; with a seed, other tokens stand at the pads."""
    driver, batch = bench.driver, tokens.shape[0]

    def fill(count: int, seed: int | None) -> Tensor:
        some = driver.sample(batch, count, seed=0 if seed is None else seed)
        keep = seed is not None or driver.takes != "tokens"
        return some if keep else torch.full_like(some, driver.pad_token)

    parts = [fill(left, seed), tokens, fill(right, None if seed is None else seed + 1)]
    length = tokens.shape[1]
    mask = torch.zeros(batch, left + length + right, dtype=torch.long, device=tokens.device)
    mask[:, left : left + length] = 1
    return Padded(torch.cat(parts, 1), mask, slice(left, left + length))


def _sides(bench: Bench, where: str) -> None:
    driver = bench.driver
    if driver.takes == "pixels":
        bench.not_checked("images and sounds have no pads that could be set", where=where)
        return
    if driver.mask is None:
        bench.not_checked("the model takes no mask of pads", where=where)
        return
    tokens = driver.sample(2, LENGTH)
    alone = bench.run(tokens, mask=torch.ones(2, LENGTH, dtype=torch.long, device=driver.device))
    sound = True
    for side, (left, right) in {"right": (0, PADS), "left": (PADS, 0), "both": (2, 2)}.items():
        try:
            sound = _side(bench, side, left, right, tokens, alone, where)
        except Refused as error:
            bench.not_checked(f"pads {side}: the model raised {error}", where=where)
        if not sound:
            return  # one finding says it
    _mates(bench, where)
    _steps(bench, where)


def _side(
    bench: Bench, side: str, left: int, right: int, tokens: Tensor, alone: Tensor, where: str
) -> bool:
    """Judge one way of padding; whether the mask at least is right."""
    row = padded(bench, tokens, left, right)
    got = bench.run(row.tokens, mask=row.mask)[:, row.real]
    if not got.isfinite().all():
        return _not_finite(bench, side, left, right, tokens, where)
    other = padded(bench, tokens, left, right, seed=11)
    junk = bench.run(other.tokens, mask=other.mask)[:, row.real]
    bench.compared(f"pads {side}", where=where)
    # What skips pad ids when it counts (RoBERTa, M2M) is right with pads and moved by others.
    if bench.differ(junk, got) and bench.differ(got, alone):
        _attended(bench, side, change(junk, got), where)
        return False
    explicit = _with_ids(bench, row)
    if explicit is not None and bench.differ(explicit, alone):
        _renumbered(bench, side, change(explicit, alone), where)
    elif bench.differ(got, alone) and side != "both":
        _by_slot(bench, side, change(got, alone), explicit is not None, where)
    return True


def _not_finite(bench: Bench, side: str, left: int, right: int, tokens: Tensor, where: str) -> bool:
    """NaN at real tokens: only in float64 it is the floor of a mask, and no fault."""
    if bench.exact:
        with bench.single() as single:
            ones = torch.ones_like(tokens[..., 0] if tokens.dim() == 3 else tokens).long()
            tokens = tokens if single.driver.takes == "tokens" else tokens.float()
            return _side(single, side, left, right, tokens, single.run(tokens, mask=ones), where)
    bench.found(
        "K09",
        "error",
        expected="finite outputs at real tokens",
        measured=f"NaN or infinity with pads {side}",
        cause="A mask's floor is infinite, or too low for the type, and a whole row is masked.",
        remedy="Use a finite floor, and give rows that see nothing zeros.",
        where=where,
    )
    return False


def _with_ids(bench: Bench, row: Padded) -> Tensor | None:
    """Output of the real tokens with ids counted from the mask; None if the model takes none."""
    first = bench.driver.first
    if first is None:
        return None
    ids = (row.mask.cumsum(1) - 1).clamp_min(0) + first
    try:
        return bench.run(row.tokens, positions=ids, mask=row.mask)[:, row.real]
    except Refused:
        return None


def _attended(bench: Bench, side: str, gap: float, where: str) -> None:
    if bench.mixes is not False:
        _mixed_in(bench, side, gap, where)
        return
    bench.found(
        "K09",
        "error",
        expected="what stands at a masked pad moves no real token",
        measured=f"pads {side}: other tokens at the pads change the output by {gap:.1e}",
        cause="The mask is not applied: pads are attended.",
        remedy="Mask the pads as keys in every layer, in the prompt and in every step.",
        where=where,
    )


def _mixed_in(bench: Bench, side: str, gap: float, where: str) -> None:
    """Pads reach real tokens, and it need not be by attention."""
    sure = bench.mixes is True
    bench.found(
        "K09",
        "warning",
        expected="what stands at a masked pad moves no real token",
        measured=f"pads {side}: other tokens at the pads change the output by {gap:.1e}",
        cause="A convolution, a pooling or a recurrence reads the pads, which no mask of attention"
        " ends."
        if sure
        else "Pads are attended, or read by something that is no attention.",
        remedy="Set pads to zero before whatever reads neighbours, and mask them as keys.",
        where=where,
    )


def _renumbered(bench: Bench, side: str, gap: float, where: str) -> None:
    bench.found(
        "K09",
        "error" if bench.mixes is False else "warning",
        expected="with ids counted from the mask, the output of the tokens without pads",
        measured=f"pads {side}, ids given: the output changes by {gap:.1e}",
        cause="Ids are ignored or combined with the slot when a mask is given.",
        remedy="Use the ids as they are given, for queries and for keys.",
        where=where,
    )


def _by_slot(bench: Bench, side: str, gap: float, ids_help: bool, where: str) -> None:
    """Pads are not attended, yet they move the real tokens: they are counted."""
    absolute = whole_class(bench) == "absolute"
    if side == "right" or not absolute:
        bench.found(
            "K09",
            "error" if bench.mixes is False else "warning",
            expected="pads that are not attended change nothing",
            measured=f"pads {side}: the output changes by {gap:.1e}, whatever stands at the pads",
            cause="Queries and keys are numbered by two rules (slot and mask), or the whole length"
            " with its pads sets the table.",
            remedy=BY_MASK,
            where=where,
        )
        return
    bench.found(
        "K09",
        "warning",
        expected="the output of the tokens without pads",
        measured=f"pads {side}: the output changes by {gap:.1e}, though pads are not attended",
        cause="Tokens are numbered by slot, pads included, and positions are absolute here.",
        remedy=f"{BY_MASK} Pass those ids" + (" (they help here)." if ids_help else "."),
        where=where,
    )


def _mates(bench: Bench, where: str) -> None:
    """Rows of several lengths, other rows beside them, a row of pads alone."""
    driver = bench.driver
    lengths = (LENGTH, LENGTH - 2, LENGTH - 5)
    tokens = driver.sample(3, LENGTH, seed=2)
    mask = torch.zeros(3, LENGTH, dtype=torch.long, device=driver.device)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
    try:
        together = bench.run(tokens, mask=mask)
        for row, length in enumerate(lengths):
            one = slice(row, row + 1)
            alone = bench.run(tokens[one, :length], mask=mask[one, :length])
            if bench.differ(together[one, :length], alone):
                _moved_by_mates(bench, change(together[one, :length], alone), where)
                return
        tokens[0] = driver.sample(1, LENGTH, seed=7)[0]
        with contextlib.suppress(Refused):  # some refuse a row of pads alone
            mask[2] = 0
            again = bench.run(tokens, mask=mask)
            if again[1, : lengths[1]].isfinite().all() and bench.differ(
                again[1, : lengths[1]], together[1, : lengths[1]]
            ):
                _moved_by_mates(
                    bench, change(again[1, : lengths[1]], together[1, : lengths[1]]), where
                )
                return
    except Refused as error:
        bench.not_checked(f"rows of several lengths: the model raised {error}", where=where)
        return
    bench.compared("batch mates", where=where)


def _moved_by_mates(bench: Bench, gap: float, where: str) -> None:
    # Numbers of other rows shift a row, which moves absolute positions alone; a relative layer
    # moves if other rows choose its table.
    relative = whole_class(bench) == "relative"
    bench.found(
        "K05" if relative else "K09",
        "error" if bench.mixes is False else "warning",
        expected="a row's output does not depend on the other rows of its batch",
        measured=f"the output of a row changes by {gap:.1e} with other rows beside it",
        cause="Positions, lengths or a mask of one row are used for all of them.",
        remedy="Keep positions and lengths by row: (B, S), never (S,) of the longest.",
        where=where,
    )


def _steps(bench: Bench, where: str) -> None:
    """A prompt with pads in front and steps after it count by one rule."""
    driver = bench.driver
    if not driver.caches:
        return
    tokens = driver.sample(2, LENGTH, seed=6)
    row = padded(bench, tokens, PADS, 0)
    sizes = [PADS + LENGTH - 4, 1, 1, 2]
    plain_sizes = [LENGTH - 4, 1, 1, 2]
    try:
        whole = bench.run(row.tokens, mask=row.mask)[:, row.real]
        if not whole.isfinite().all():
            return
        ones = torch.ones(2, LENGTH, dtype=torch.long, device=driver.device)
        unpadded = bench.run(tokens, mask=ones)
        with bench.alone():
            plain = decoded(driver, tokens, plain_sizes, mask=ones)[0]
        if bench.differ(plain, unpadded):
            return  # the cache is wrong without pads as well: CHK4
        with bench.alone():
            got = decoded(driver, row.tokens, sizes, mask=row.mask)[0][:, row.real]
        other = padded(bench, tokens, PADS, 0, seed=11)
        with bench.alone():
            junk = decoded(driver, other.tokens, sizes, mask=row.mask)[0][:, row.real]
        by_ids = bench.differ(bench.run(other.tokens, mask=row.mask)[:, row.real], whole)
    except Refused as error:
        bench.not_checked(f"steps after pads: the model raised {error}", where=where)
        return
    bench.compared("steps after pads", where=where)
    if bench.differ(got, junk) and bench.differ(got, unpadded) and not by_ids:
        _attended(bench, "left, in a step after the prompt,", change(got, junk), where)
    elif bench.differ(got, whole):
        bench.found(
            "K09",
            "error",
            expected="a step after a padded prompt gives the output of one run with the same mask",
            measured=f"the output changes by {change(got, whole):.1e}; without pads it does not",
            cause="Mixed rule: the prompt is numbered from the mask and steps from the cache, or"
            " the reverse.",
            remedy="One rule for both: after the prompt go on from the count of real tokens.",
            where=where,
        )
    _short_mask(bench, tokens, where)


def _short_mask(bench: Bench, tokens: Tensor, where: str) -> None:
    """A mask that covers the new tokens alone is refused, or read as "and all before"."""
    driver = bench.driver
    try:
        with bench.alone():
            prompt = driver(tokens[:, :-2], keep_cache=True)
            short = torch.ones(2, 2, dtype=torch.long, device=driver.device)
            got = driver(tokens[:, -2:], mask=short, cache=prompt.cache).output
            ones = torch.ones(2, LENGTH, dtype=torch.long, device=driver.device)
            right = driver(tokens, mask=ones).output[:, -2:]
    except Refused:
        bench.compared("short masks", where=where)
        return
    if bench.differ(got, right):
        bench.found(
            "K08",
            "note",
            expected="a mask shorter than cache and new tokens is refused",
            measured=f"it is taken, and changes the output by {change(got, right):.1e}",
            cause="The length of the mask is not checked against the cache.",
            remedy="Pass a mask of past and new tokens; better, refuse any other length.",
            where=where,
        )
