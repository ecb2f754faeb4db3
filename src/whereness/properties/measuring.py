"""`wn.measure`: all properties of one encoding, measured through its doors in float64."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from whereness.checks import require_int
from whereness.encoding import PositionalEncoding, as_encoding
from whereness.properties import consistency, rotations
from whereness.properties.axes import extends_to, grid_measures
from whereness.properties.cost import cost
from whereness.properties.doors import exact_copy, sizes, through
from whereness.properties.generalisation import (
    beyond,
    defined_beyond,
    free_parameters,
    length_dependence,
)
from whereness.properties.lines import content_for, decay, of_codes, of_scores, probe
from whereness.properties.precision import precision
from whereness.properties.probes import (
    along,
    axes_of,
    contents,
    is_defined,
    usable_length,
    where_of,
)
from whereness.properties.result import Properties
from whereness.properties.traits import Traits, measured_traits

FEWEST = 4
"""Positions on an axis below which nothing can be said."""


def measure(
    encoding: PositionalEncoding | Sequence[PositionalEncoding] | None,
    *,
    num_positions: int = 128,
    seed: int = 0,
) -> Properties:
    """Measure every property of an encoding, which is left as it is.

    Learned encodings are measured as they are given: those that have just been made show what a
    model starts from, and `untrained` or a note says so. Encodings for causal attention only are
    probed causally. Time and memory grow with num_positions squared.

    Args:
        encoding: an encoding, a list of them in order of application, or None.
        num_positions: positions to measure on, also the length that counts as trained. An
            encoding that has fewer is measured on those; the result says how many.
        seed: of the random tokens; the global random state is not touched.

    Raises:
        ValueError: fewer than 4 positions, sizes that no layer can hold.

    >>> import whereness as wn
    >>> found = measure(wn.Sinusoidal(64))
    >>> round(found.uniqueness, 5), found.relative, found.monotonicity < 1
    (0.2792, False, True)
    """
    require_int("num_positions", num_positions, FEWEST)
    require_int("seed", seed, 0)
    encoding = copy.deepcopy(as_encoding(encoding)).cpu()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        return _measured(encoding, num_positions, seed)


def _measured(encoding: PositionalEncoding, num_positions: int, seed: int) -> Properties:
    exact = exact_copy(encoding)
    axes = range(axes_of(exact))
    lengths = [usable_length(exact, num_positions, axis) for axis in axes]
    if min(lengths) < FEWEST:
        raise ValueError(
            f"measure needs at least {FEWEST} positions on every axis, {type(encoding).__name__} "
            f"has {lengths}. Build a larger one."
        )
    length = min(lengths)
    found = measured_traits(encoding, seed)
    content = content_for(exact, length, found)
    tokens = contents(content, sizes(exact).dim)
    lines = [probe(exact, length, axis, tokens) for axis in axes]
    flat = all(line.flat for line in lines)
    at_constant = found.learned and _at_constant(encoding)
    past, spent = beyond(exact, length, tokens), cost(encoding, length)
    return Properties(
        encoding="+".join(type(m).__name__ for m in encoding.members()),
        num_positions=length,
        code_of=lines[0].code_of,
        content=content,
        flat=flat,
        untrained=flat and at_constant,
        notes=_notes(found, lengths, num_positions, at_constant, exact.causal_only),
        **of_codes(lines),
        same_word=consistency.same_word(exact),
        length_dependence=length_dependence(exact, length),
        defined_beyond=defined_beyond(exact, length),
        unseen_codes=past.unseen_codes,
        entropy_slope=past.entropy_slope,
        learned=found.learned,
        deterministic=_deterministic(exact, length, tokens),
        free_parameters=free_parameters(exact, length),
        num_axes=encoding.num_axes,
        extends_to=extends_to(encoding),
        grid=grid_measures(exact, content),
        **of_scores(lines, exact.causal_only),
        relative=found.relative,
        decay=decay(exact, length, tokens),
        **rotations.of_rotations(exact, length),
        fractional=_takes_fractions(exact),
        # One that says it is relative must be so in every dtype: rough angles are no excuse.
        precision=precision(encoding, found.relative or encoding.relative),
        padding=consistency.padding(exact),
        packing=consistency.packing(exact),
        decoding=consistency.decoding(exact),
        permutation_sensitivity=consistency.permutation_sensitivity(exact),
        unbounded=found.unbounded,
        content_aware=found.content_aware,
        cacheable=found.cacheable,
        fused=spent.fused,
        parameters=spent.parameters,
        table_bytes=spent.table_bytes,
        table_growth=spent.table_growth,
    )


def _takes_fractions(encoding: PositionalEncoding) -> bool | None:
    """Positions between the integers are defined; None for encodings without positions."""
    if encoding.reads != "positions":
        return None
    try:
        return is_defined(encoding, along(encoding, torch.tensor([0.0, 0.5, 1.25]).double()))
    except (TypeError, IndexError, RuntimeError):  # as an index, for one, they cannot serve
        return False


def _deterministic(encoding: PositionalEncoding, length: int, tokens: Tensor) -> bool:
    """Two copies give the same bits."""
    where = where_of(encoding, along(encoding, torch.arange(min(length, 16))))
    x = tokens[:1, None].expand(-1, where.num_queries, -1)
    outs = [through(copy.deepcopy(encoding), x, where).out for _ in range(2)]
    return torch.equal(*outs)


def _at_constant(encoding: PositionalEncoding) -> bool:
    """The parameters are what `reset_parameters` gives every time: nothing was trained."""
    fresh = copy.deepcopy(encoding)
    fresh.reset_parameters()
    first = [p.clone() for p in fresh.parameters()]
    fresh.reset_parameters()
    return all(
        torch.equal(a, b) and torch.equal(a, c)
        for a, b, c in zip(encoding.parameters(), first, fresh.parameters(), strict=True)
    )


def _notes(
    found: Traits, lengths: list[int], wanted: int, at_constant: bool, causal_only: bool
) -> tuple[str, ...]:
    notes = []
    if min(lengths) < wanted:
        notes.append(f"measured on {min(lengths)} of {wanted} positions: it has no more")
    if at_constant:
        notes.append("untrained: its parameters are still the constant that they start at")
    elif found.learned:
        notes.append("learned: measured with the parameters as they are, random if just made")
    if causal_only:
        notes.append("for causal attention only: measured causally")
    if found.reads == "order":
        notes.append("reads the order of tokens, not their positions")
    return tuple(notes)
