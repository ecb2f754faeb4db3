"""CHK7: a sequence split over ranks gathers to the whole, simulated in one process.

A model that takes ids and a mask is fed the ranks' tokens in their order, each with its own id: the
output of a token must be what it is in the whole. Contiguous ranks are also chunks of a cache with
explicit ids. Heads that repeat the slopes of the first ones tell of ranks that number their heads
alone.

Axes: S tokens, T keys.
"""

import torch
from torch import Tensor

from whereness.auditor.checks.masks import sight
from whereness.auditor.driving.classes import whole_class
from whereness.auditor.driving.drive import Refused
from whereness.auditor.driving.probing import Bench, change, decoded, probed, windows
from whereness.auditor.findings import Finding
from whereness.auditor.reading.capture import observe
from whereness.auditor.subject import Subject

CHECK = "CHK7"
LENGTH, RANKS = 8, 2


def run(subject: Subject) -> None:
    """Look at simulated shards."""
    probed(subject, CHECK, _look)


def _look(bench: Bench) -> None:
    driver = bench.driver
    _repeated_slopes(bench)
    if driver.takes == "pixels" or driver.first is None:
        bench.not_checked(
            "the model takes no positions: a rank's tokens cannot be told their place"
        )
        return
    tokens, ids = driver.sample(2, LENGTH), bench.natural(2, LENGTH)
    whole = bench.run(tokens)
    gaps = _permuted(bench, tokens, ids, whole)
    if driver.caches:
        with bench.alone():
            sizes = [LENGTH // RANKS] * RANKS
            mask = driver.ones(torch.ones_like(ids))
            got = decoded(driver, tokens, sizes, positions=ids, mask=mask)[0]
            # What is wrong without ids as well is CHK4's to tell.
            plain = decoded(driver, tokens, sizes, mask=mask)[0]
        if not bench.differ(got, whole) or bench.differ(got, plain):
            gaps["contiguous"] = change(got, whole)
    if not gaps:
        bench.not_checked("the model takes no mask (B, 1, S, T) and keeps no cache")
        return
    bench.compared("shards")
    wrong = {name: gap for name, gap in gaps.items() if not gap <= bench.tolerance}
    if wrong:
        bench.found(
            "K11",
            # Some architectures bias by slot and embed by id: that is theirs, if it is odd.
            "error" if "contiguous" in wrong or whole_class(bench) == "relative" else "warning",
            expected="each rank's tokens, with their own ids, give their part of the whole",
            measured="change of the output: " + ", ".join(f"{n} {g:.1e}" for n, g in wrong.items()),
            cause="Beside the ids that are given, slots or a local count number the tokens.",
            remedy="Number and bias by ids alone, and shard tables exactly as the tokens.",
        )


def _repeated_slopes(bench: Bench) -> None:
    """Heads whose bias is that of the first half: ranks that number their heads from 0."""
    for view in observe(bench.subject).layers:
        bias = None if view.bias is None or not view.biased else view.bias.values
        if bias is None or bias.dim() != 3 or bias.shape[0] < 2 or bias.shape[0] % 2:
            continue
        steps = bias[:, -1].diff(dim=-1)  # of the last query, which sees all keys
        if not bool(((steps - steps[:, :1]).abs() <= 1e-5 * steps.abs().max()).all()):
            continue  # no slopes: learned biases may repeat by chance, as zeros do
        first, second = bias.nan_to_num(0.0).chunk(2)
        bench.subject.compared(CHECK, "bias by head", view.index, view.where)
        spread = float((first - first[:1]).abs().max()) if len(first) > 1 else 1.0
        if torch.equal(first, second) and spread > 0 and float(first.abs().max()) > 0:
            bench.subject.found(
                Finding(
                    check=CHECK,
                    kind="K11",
                    severity="error",
                    expected="every head has its own slope",
                    measured=f"the last {len(second)} heads have the bias of the first",
                    cause="Slopes are made from a rank's number of heads, beginning at head 0.",
                    remedy="slopes(all heads)[offset : offset + local heads].",
                    layer=view.index,
                    where=view.where,
                )
            )


def orders(length: int, ranks: int) -> dict[str, list[int]]:
    """Slots of the whole in the order in which ranks hold them."""
    piece = length // (2 * ranks)
    zigzag = []
    for rank in range(ranks):
        for start in (rank * piece, length - (rank + 1) * piece):
            zigzag.extend(range(start, start + piece))
    striped = [i for rank in range(ranks) for i in range(rank, length, ranks)]
    return {"zigzag": zigzag, "striped": striped}


def _permuted(bench: Bench, tokens: Tensor, ids: Tensor, whole: Tensor) -> dict[str, float]:
    """How far the tokens in the ranks' order are from the whole.

    Nothing if no mask is taken, or layers read the order of slots (convolutions, recurrences).
    """
    driver = bench.driver
    if any(w < LENGTH for w in windows(driver)):
        bench.not_checked("zigzag and striped ranks: windows by slot are narrower than this probe")
        return {}
    causal = sight(bench).causal
    ones = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=driver.device)
    seen = ones.tril() if causal else ones
    found = {}
    try:
        if bench.differ(bench.run(tokens, positions=ids, mask=_full(seen, tokens)), whole):
            return {}
        if causal and not bench.differ(
            bench.run(tokens, positions=ids, mask=_full(ones, tokens)), whole
        ):
            bench.not_checked(
                "zigzag and striped ranks: a causal mask by slots stays on beside ours"
            )
            return {}
        if bench.mixes:
            bench.not_checked(
                "zigzag and striped ranks: layers read the order of slots by themselves"
            )
            return {}
        if causal and not bench.differ(
            bench.run(tokens, positions=ids, mask=_full(ones, tokens)), whole
        ):
            bench.not_checked("zigzag and striped ranks: no mask lets a token see a later slot")
            return {}
        for name, order in orders(LENGTH, RANKS).items():
            slots = torch.tensor(order, device=driver.device)
            mask = _full(seen[slots][:, slots], tokens)
            try:
                got = bench.run(tokens[:, slots], positions=ids[:, slots], mask=mask)
            except Refused as error:
                _refused(bench, name, str(error))
                return {}
            found[name] = change(got, whole[:, slots])
    except Refused as error:
        bench.not_checked(f"shards: the model raised {error}")
    return found


def _refused(bench: Bench, name: str, said: str) -> None:
    bench.found(
        "K11",
        "warning",
        expected="tokens in the order of ranks, with their ids and a mask, are taken",
        measured=f"{name}: the model raised {said[:160]}",
        cause="The layers can number a contiguous piece alone.",
        remedy="Make tables and biases from the ids of queries and of keys.",
    )


def _full(seen: Tensor, tokens: Tensor) -> Tensor:
    return seen[None, None].expand(tokens.shape[0], 1, -1, -1).contiguous()
