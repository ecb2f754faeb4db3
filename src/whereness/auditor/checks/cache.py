"""CHK4: the same output in one shot, token by token, in chunks, resumed and rolled back.

Chunks and single steps are mixed: a decoder that is off by one in every step moves all tokens
alike, which a relative encoding cannot show. Every run starts with a prompt of another size.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from whereness.auditor.checks.masks import differing_sight, lost
from whereness.auditor.driving.drive import Driver, Refused
from whereness.auditor.driving.probing import Bench, change, decoded, probed, windows
from whereness.auditor.subject import Subject

CHECK = "CHK4"
FAR = 57
"""Tokens of a run for models that do not say where they change their table."""
FARTHEST = 512
"""Tokens of the longest run across a length at which the model changes its table."""
SUMMED = 10
"""How much more than elsewhere a recurrence may be off that sums its tokens in float32 even in a
float64 model: 1e-5 at 60 tokens."""
REMEDY = "Number new tokens from the cache's length, once per forward pass and for all layers."


def run(subject: Subject) -> None:
    """Look at the model's cache."""
    probed(subject, CHECK, _look)


def _look(bench: Bench) -> None:
    driver = bench.driver
    if driver.takes == "pixels" or not driver.caches:
        bench.not_checked("the model keeps no cache")
        return
    tokens = driver.sample(2, bench.length)
    whole = bench.run(tokens)
    found = dict(_plans(bench, tokens, whole))
    if not found:
        return
    tolerance = bench.tolerance
    if bench.exact and _sums_in_single(bench, tokens):
        tolerance *= SUMMED
    wrong = {name: gap for name, gap in found.items() if not gap <= tolerance}
    bench.compared("cache")
    if not wrong:
        _resumed(bench, tokens, whole)
        _across(bench)
        return
    rows = differing_sight(bench)
    if not rows or lost(bench, rows):  # otherwise it is a fault of the mask, and CHK16's
        _tell(bench, wrong, found, forgets=bool(rows))


def _sums_in_single(bench: Bench, tokens: Tensor) -> bool:
    """Whether a float64 model keeps a state in float32, as recurrent layers do."""
    try:
        with bench.alone() as driver:
            cache = driver(tokens[:, :2], keep_cache=True).cache
    except Refused:
        return False
    return cache is not None and any(t.dtype == torch.float32 for t in _held(cache.held))


def _held(value: Any, depth: int = 5) -> Iterator[Tensor]:
    """Every tensor of a cache, whatever it is made of."""
    if isinstance(value, Tensor):
        yield value
    elif depth and not isinstance(value, (str, bytes, type)):
        if isinstance(value, Mapping):
            parts = list(value.values())
        elif isinstance(value, (list, tuple)):
            parts = list(value)
        else:
            parts = list(getattr(value, "__dict__", {}).values())
        for part in parts:
            yield from _held(part, depth - 1)


def plans(length: int) -> dict[str, list[int]]:
    """Sizes of the chunks, by what they are."""
    half = max(1, length // 2)
    rest = length - half

    def cut(size: int) -> list[int]:
        return [size] * (length // size) + ([length % size] if length % size else [])

    found = {
        "a prompt and single steps": [half] + [1] * rest,
        "single steps": [1] * length,
        "chunks of 3": cut(3),
        "chunks of 4": cut(4),
        "one chunk": [length],
    }
    if rest > 4:
        found["a prompt, a step, chunks and steps"] = [half - 1, 1, 3, 1, *[1] * (rest - 5), 1]
    return found


def _plans(bench: Bench, tokens: Tensor, whole: Tensor) -> Iterator[tuple[str, float]]:
    """How far each way of feeding the tokens is from all of them at once."""
    why = ""
    for name, sizes in plans(tokens.shape[1]).items():
        try:
            with bench.alone() as driver:
                got, _ = decoded(driver, tokens, sizes)
        except Refused as error:
            why = str(error)
            bench.not_checked(f"{name}: the model raised {error}")
            continue
        yield name, change(got, whole)
    if bench.driver.first is not None and not why:
        ids = bench.natural(*tokens.shape[:2])
        with contextlib.suppress(Refused), bench.alone() as driver:
            sizes = plans(tokens.shape[1])["a prompt and single steps"]
            yield "explicit ids", change(decoded(driver, tokens, sizes, positions=ids)[0], whole)


def _tell(bench: Bench, wrong: dict[str, float], found: dict[str, float], *, forgets: bool) -> None:
    """One finding, with the cause that fits what went wrong and what did not."""
    right = [name for name in found if name not in wrong]
    steps, prompt = "single steps" in wrong, "a prompt and single steps" in wrong
    if forgets:
        cause = "The cache drops keys that its window still shows, once it has wrapped."
    elif set(wrong) == {"explicit ids"}:
        cause = "Ids given by the caller and the cache's length are added up, or the ids of a step"
        cause += " are not used."
    elif prompt and not steps:
        cause = "Single steps are numbered by another rule than the prompt before them."
    elif not prompt and not steps:
        cause = "Inside a chunk after the prompt, positions do not advance by one a token."
    else:
        cause = "Tokens after the first call get positions that do not go on where it ended."
    gaps = ", ".join(f"{name} {gap:.1e}" for name, gap in wrong.items())
    kind = "K08"
    by_count = "explicit ids" in right  # a count is all that explicit ids replace
    if not by_count and _only_when_long(bench):
        kind, cause = (
            "K05",
            "Short runs agree: from some length on, the parts of a run use two tables.",
        )
    bench.found(
        kind,
        "error",
        expected=f"the output of one run without a cache, to {bench.tolerance:.0e}",
        measured=f"change of the output: {gaps}"
        + (f"; right: {', '.join(right)}" if right else ""),
        cause=cause,
        remedy=REMEDY,
    )


def _only_when_long(bench: Bench) -> bool:
    """Whether a run of a few tokens agrees, though none is beyond a window."""
    if any(w <= bench.length for w in windows(bench.driver)):
        return False
    tokens = bench.driver.sample(2, 6)
    try:
        whole = bench.run(tokens)
        for sizes in ([3, 1, 2], [2, 1, 1, 1, 1], [3, 3]):
            with bench.alone() as driver:
                if bench.differ(decoded(driver, tokens, sizes)[0], whole):
                    return False
    except Refused:
        return False
    return True


def _resumed(bench: Bench, tokens: Tensor, whole: Tensor) -> None:
    """Go on twice from one cache, and after tokens were taken back."""
    half = max(1, tokens.shape[1] // 2)
    other = bench.driver.sample(2, 2, seed=8)
    try:
        with bench.alone() as driver:
            _, cache = (
                decoded(driver, tokens, [half])[0],
                decoded(driver, tokens[:, :half], [half])[1],
            )
            driver(other, cache=cache.copied(), keep_cache=True)
            copied = driver(tokens[:, half:], cache=cache.copied(), keep_cache=True).output
    except (Refused, TypeError, RuntimeError) as error:
        bench.not_checked(f"resuming: {error}")
        return
    if bench.differ(copied, whole[:, half:]):
        bench.found(
            "K08",
            "error",
            expected="a copied cache goes on as the one it was copied from",
            measured=f"change of the output {change(copied, whole[:, half:]):.1e}",
            cause="What a later call needs lies outside the cache: a counter in the model.",
            remedy="Keep the number of tokens in the cache itself.",
        )
    _rolled_back(bench, tokens, whole, half)


def _rolled_back(bench: Bench, tokens: Tensor, whole: Tensor, half: int) -> None:
    """Take wrong tokens back (speculative decoding) and go on."""
    wrong = bench.driver.sample(2, 2, seed=9)
    with bench.alone() as driver:
        try:
            _, cache = decoded(driver, torch.cat([tokens[:, :half], wrong], 1), [half, 2])
            if not _trimmed(cache.held, half):
                return
            shorter = type(cache)(cache.held, half, cache.memory)
            got = driver(tokens[:, half:], cache=shorter, keep_cache=True).output
        except (Refused, ValueError, TypeError, RuntimeError):
            return  # many caches cannot go back, and say so
    if bench.differ(got, whole[:, half:]):
        bench.found(
            "K08",
            "error",
            expected="after a rollback, the output of the tokens that are left",
            measured=f"change of the output {change(got, whole[:, half:]):.1e}",
            cause="The cache forgets tokens but not how many there were, or drops others.",
            remedy="Take the count back with the keys; refuse to go back past those held.",
        )


def _trimmed(held: object, length: int) -> bool:
    """Cut a cache, if it can be cut."""
    for name in ("crop", "trim"):
        caches = held if isinstance(held, (list, tuple)) else [held]
        if caches and all(callable(getattr(c, name, None)) for c in caches):
            for cache in caches:
                getattr(cache, name)(length)
            return True
    return False


def _across(bench: Bench) -> None:
    """Decode past the lengths at which the model changes its table."""
    most = bench.driver.max_tokens
    usual = [] if bench.slow or (most is not None and most <= FAR + 5) else [FAR]
    for limit in sorted({*thresholds(bench.driver), *usual}):
        if limit + 3 > FARTHEST:
            bench.not_checked(f"the table changes at {limit} tokens, too far for this probe")
            continue
        length = limit + 3
        try:
            tokens = bench.driver.sample(1, length)
            whole = bench.run(tokens)
            gaps = {}
            cuts = {
                "steps": [limit - 1, 1, 1, 1, 1],
                "chunks": [limit // 2, limit - limit // 2, 3],
                "steps early on": [limit // 8, 1, 1, limit - limit // 8 - 2, 3],
            }
            for name, sizes in cuts.items():
                with bench.alone() as driver:
                    gaps[name] = change(decoded(driver, tokens, sizes)[0], whole)
        except Refused:
            continue  # a table that ends: bounds are CHK10's
        bench.compared("cache across a length")
        if any(not gap <= SUMMED * bench.tolerance for gap in gaps.values()):
            said = ", ".join(f"{name} {gap:.1e}" for name, gap in gaps.items())
            bench.found(
                "K05",
                "error",
                expected=f"the output of one run across {limit} tokens, whatever the route",
                measured=f"change of the output: {said}",
                cause="Cached keys were turned by the table of a shorter length than new queries.",
                remedy="Choose the table by the final length, or turn the cached keys again.",
                where=f"length {limit}",
            )


def thresholds(driver: Driver) -> list[int]:
    """Lengths at which tables change: of the config's scaling, or named so by a module."""
    config = driver.text_config
    blocks = [getattr(config, n, None) for n in ("rope_parameters", "rope_scaling")]
    found: list[object] = []
    for block in [b for b in blocks if isinstance(b, dict)]:
        for inner in [block, *(v for v in block.values() if isinstance(v, dict))]:
            if inner.get("rope_type", inner.get("type")) in ("dynamic", "longrope", "su"):
                found.append(inner.get("original_max_position_embeddings"))
                found.append(getattr(config, "original_max_position_embeddings", None))
                found.append(getattr(config, "max_position_embeddings", None))
    if not hasattr(type(config), "to_dict"):
        words = ("orig", "trained", "limit", "threshold", "native", "max_pos", "max_seq")
        for module in driver.model.modules():
            scaling = getattr(module, "scaling", None)
            found.append(getattr(scaling, "original_length", None))
            named = ((n, v) for n, v in vars(module).items() if any(w in n.lower() for w in words))
            found.extend(v for _, v in named)
    return sorted({v for v in found if isinstance(v, int) and not isinstance(v, bool) and v > 3})
