"""Whether a whole model numbers its tokens relatively or absolutely: what faults are graded by.

By the classes of its layers, where every layer was read. Else measured on outputs: relative if
moving all ids moves nothing but stretching them does.
"""

import torch

from whereness.auditor.driving.drive import Refused
from whereness.auditor.driving.probing import Bench
from whereness.auditor.findings import Class
from whereness.auditor.reading.capture import observe

LENGTH, SHIFT = 9, 7


def whole_class(bench: Bench) -> Class:
    """The class of the model's layers taken together, the strictest first: absolute, ...

    "unknown" where it takes no ids and no mask, or nothing could be measured.
    """
    shared = bench.subject.shared
    if "class" not in shared:
        try:
            found = _by_layers(bench) or _by_ids(bench) or _by_pads(bench)
            shared["class"] = found or "unknown"
        except Refused:
            shared["class"] = "unknown"
    return shared["class"]


def _by_layers(bench: Bench) -> Class | None:
    """The strictest class of any layer; None where one could not be read, or goes by content."""
    observed = observe(bench.subject)
    classes = {view.classified for view in observed.layers if not view.crosses}
    if observed.unseen or not classes or classes & {"unknown", "content-aware"}:
        return None
    known: tuple[Class, ...] = ("absolute", "relative", "none")
    return next(each for each in known if each in classes)


def _by_ids(bench: Bench) -> Class | None:
    driver = bench.driver
    if driver.takes == "pixels" or driver.positions is None:
        return None
    tokens, ids = driver.sample(2, LENGTH), bench.natural(2, LENGTH)
    mask = driver.ones(torch.ones_like(ids))
    plain = bench.run(tokens, positions=ids, mask=mask)
    if bench.differ(bench.run(tokens, positions=ids + SHIFT, mask=mask), plain):
        return "absolute"
    warped = ids + (torch.arange(LENGTH, device=ids.device) > LENGTH // 2) * 5
    return (
        "relative" if bench.differ(bench.run(tokens, positions=warped, mask=mask), plain) else None
    )


def _by_pads(bench: Bench) -> Class | None:
    """Without ids: moved by masked tokens in front of them, which is all that moves the rest."""
    driver = bench.driver
    if driver.takes == "pixels" or driver.mask is None or driver.positions is not None:
        return None
    tokens = driver.sample(2, LENGTH)
    front = driver.sample(2, 3, seed=1)
    mask = torch.ones(2, LENGTH + 3, dtype=torch.long, device=driver.device)
    plain = bench.run(tokens, mask=mask[:, 3:])
    mask[:, :3] = 0
    behind = bench.run(torch.cat([front, tokens], 1), mask=mask)[:, 3:]
    if not behind.isfinite().all():
        return None
    return "absolute" if bench.differ(behind, plain) else "relative"
