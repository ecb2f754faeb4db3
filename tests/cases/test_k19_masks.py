"""K19: causal and window masks are anchored at the end of the keys."""

import pytest
import torch

import whereness as wn
from cases.support import DIM, GROUPS, HEAD_DIM, HEADS, case, encoding, equal

CAUSAL = [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
WINDOW_3 = [[0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]
BOTH_SIDES_2 = [[0, 0, 1, 1, 1], [0, 0, 0, 1, 1]]


def visible(queries: int, keys: int, implementation: str, name: str = "nope", **options):
    """Which key each query reads, found through the values: (S, T) of 0 and 1."""
    q, k = (torch.zeros(1, HEADS, n, HEAD_DIM, dtype=torch.float64) for n in (queries, keys))
    v = torch.eye(keys, dtype=torch.float64).expand(1, HEADS, -1, -1)
    made = encoding(name)
    out = wn.attention(q, k, v, made, implementation=implementation, **options)
    seen = out[0] > 0
    assert (seen == seen[:1]).all()
    return seen[0].long().tolist()


@case("P193")
@pytest.mark.parametrize("name", ["nope", "rope", "alibi", "t5"])
@pytest.mark.parametrize("implementation", ["auto", "reference", "sdpa"])
def test_two_queries_are_the_last_of_five_keys(implementation, name):
    assert visible(2, 5, implementation, name, causal=True) == CAUSAL
    assert visible(2, 5, implementation, name, causal=True, window=3) == WINDOW_3
    assert visible(1, 5, implementation, name, causal=True) == [[1] * 5]


@case("P193")
@pytest.mark.parametrize("implementation", ["auto", "reference", "sdpa"])
def test_a_window_on_both_sides_is_anchored_there_as_well(implementation):
    where = wn.Where(torch.tensor([3, 4]), torch.arange(5))
    assert visible(2, 5, implementation, where=where, window=2) == BOTH_SIDES_2


@case("P193")
@pytest.mark.parametrize("implementation", ["auto", "reference", "sdpa"])
def test_more_queries_than_keys_have_no_anchor(implementation):
    with pytest.raises(ValueError, match="5 queries need at least as many keys, got 2"):
        visible(5, 2, implementation, causal=True)


@case("P193")
@pytest.mark.parametrize("implementation", ["auto", "reference", "sdpa"])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("name", ["nope", "rope", "alibi"])
def test_a_query_after_a_cache_sees_all_that_the_full_pass_shows_it(name, window, implementation):
    layer = wn.Attention(
        DIM, HEADS, encoding(name), GROUPS, True, window=window, implementation=implementation
    ).double()
    x, cache = torch.randn(1, 6, DIM, dtype=torch.float64), wn.KVCache()
    found = torch.cat([layer(y, cache=cache) for y in x.split([4, 1, 1], 1)], 1)
    equal(found, layer(x))
