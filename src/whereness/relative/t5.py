"""T5: a learned bias for each bucket of offsets, fine near the query and logarithmic far away.

    bias[h, i, j] = table[bucket(k_positions[j] - q_positions[i]), h]
    bucket(n) = n                                              for n < E
                min(N - 1, E + floor(ln(n / E) / ln(M / E) (N - E)))   beyond

n is the distance back, N the buckets of one direction, E = N / 2, M = max_distance. Causal: all
future keys share bucket 0. Bidirectional: N is half of num_buckets, keys after the query add N.

Source: Raffel et al. 2020, arXiv:1910.10683, section 2.1; the formula is that of the released
code. T5 does not divide logits by sqrt(head_dim): `scaled=False`.

Units: offsets in tokens, the table in logits.
"""

import decimal
import math

import torch
from jaxtyping import Float, Int, Integer, Shaped
from torch import Tensor, nn

from whereness.checks import LARGEST_POSITION, require_bool, require_device, require_int
from whereness.relative.bias import OffsetBias

INITIAL_SPREAD = 0.02
FAR = 2**62
FRACTION = 200
"""Binary digits after the point: 2^30 steps up to 2^53 leave an error below 2^-100."""


class T5(OffsetBias):
    """A learned bias a bucket of offsets and a head. Integer positions only.

    Args:
        num_buckets: rows of the table; even and at least 4 when bidirectional, at least 2 else.
        max_distance: distance from which all keys share the last bucket.
        bidirectional: keys after the query have buckets of their own. False is for causal
            attention only: a layer that is not causal refuses it.
        scaled: keep the factor 1/sqrt(head_dim) on q.k, which T5 itself leaves out.

    Raises:
        ValueError: buckets or a distance too small to hold one another.
        TypeError: real positions.
    """

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = False,
        *,
        scaled: bool = False,
    ) -> None:
        super().__init__(num_heads)
        require_bool("bidirectional", bidirectional)
        require_bool("scaled", scaled)
        num_buckets = require_int("num_buckets", num_buckets, 4 if bidirectional else 2)
        if bidirectional and num_buckets % 2:
            raise ValueError(
                f"num_buckets must be even when bidirectional, half of them for each side; got "
                f"{num_buckets}."
            )
        self.num_buckets = num_buckets
        self.bidirectional, self.scaled = bidirectional, scaled
        self.max_distance = require_int(
            "max_distance", max_distance, self._exact() + 1, LARGEST_POSITION
        )
        self.causal_only = not bidirectional
        self._borders = self._first_distances()
        self.table = nn.Parameter(torch.empty(num_buckets, self.num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=INITIAL_SPREAD)

    def logit_scale(self, head_dim: int) -> float:
        return 1.0 if self.scaled else math.sqrt(head_dim)

    def buckets(self, offset: Integer[Tensor, "*O"]) -> Int[Tensor, "*O"]:
        """Bucket number of each offset (key minus query), int64.

        Raises:
            TypeError: offsets that are not integers.
        """
        if not isinstance(offset, Tensor):
            raise TypeError(f"offset must be a tensor, got {type(offset).__name__}.")
        if offset.is_floating_point() or offset.is_complex() or offset.dtype == torch.bool:
            raise TypeError(f"T5 needs integer positions, got {offset.dtype}.")
        offset = offset.long().clamp(min=-FAR, max=FAR)  # abs() of the least integer would wrap
        distance = offset.abs() if self.bidirectional else (-offset).clamp(min=0)
        borders = torch.tensor(self._borders, dtype=torch.int64, device=offset.device)
        bucket = torch.searchsorted(borders, distance, right=True)
        return bucket + (offset > 0) * self._one_side() if self.bidirectional else bucket

    def _first_distances(self) -> tuple[int, ...]:
        """Smallest distance of buckets 1, 2, ...: whole numbers, where a logarithm can miss by one.

        Bucket E + j begins at the least n with (n / E)^(N - E) >= (M / E)^j.
        """
        exact = self._exact()
        steps = self._one_side() - exact
        found = list(range(1, exact + 1))
        # E (M / E)^(j / steps) lies between two fixed-point numbers: powers of whole numbers, which
        # are slow, are needed only where a whole number lies between them too.
        ratio = _root(self.max_distance, exact, steps)
        low = high = exact << FRACTION
        for j in range(1, steps):
            low, high = low * (ratio - 2) >> FRACTION, (high * (ratio + 2) >> FRACTION) + 1
            n = -(-low >> FRACTION)  # rounded up
            if n != -(-high >> FRACTION) and not self._reaches(n, j, steps):
                n += 1
            found.append(n)
        return tuple(found)

    def _reaches(self, n: int, j: int, steps: int) -> bool:
        """Whether n^steps >= M^j E^(steps - j), both without the root that they have in common."""
        common = math.gcd(j, steps)
        power = j // common
        all_powers = steps // common
        exact = self._exact()
        return n**all_powers >= self.max_distance**power * exact ** (all_powers - power)

    def by_offset(self, offset: Shaped[Tensor, "*O"]) -> Float[Tensor, "H *O"]:
        require_device("Positions", offset, self.table.device)
        return self.table[self.buckets(offset)].movedim(-1, 0)

    def _one_side(self) -> int:
        return self.num_buckets // 2 if self.bidirectional else self.num_buckets

    def _exact(self) -> int:
        return self._one_side() // 2


def _root(far: int, exact: int, steps: int) -> int:
    """(far / exact)^(1 / steps) in units of 2^-FRACTION, less than 2 from what it is."""
    with decimal.localcontext(decimal.Context(prec=80)):
        # Decimal's ln and exp are rounded correctly: some 80 digits here, and 200 bits have 60.
        logarithm = (decimal.Decimal(far) / exact).ln() / steps
        return int(logarithm.exp() * 2**FRACTION)
