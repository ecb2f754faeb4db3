"""Speculative trees: every path from a root to a leaf is decoded as if it were alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import whereness as wn
from whereness import NOWHERE, positions
from whereness.positions import tree, tree_mask


@st.composite
def trees(draw) -> list[int]:
    """Parents of 1 to 9 nodes, each an earlier node or -1."""
    return [draw(st.integers(-1, i - 1)) for i in range(draw(st.integers(1, 9)))]


def path(parents: list[int], node: int) -> list[int]:
    """From the root to the node."""
    above = [] if parents[node] == -1 else path(parents, parents[node])
    return [*above, node]


@given(st.lists(trees(), min_size=1, max_size=3), st.integers(0, 9), st.integers(0, 2))
@settings(max_examples=80)
def test_positions_and_masks_are_those_of_paths(rows, prefix, spare):
    longest = max(map(len, rows)) + spare
    ids, masks, filled = [], [], []
    for parents in rows:
        paths = [path(parents, node) for node in range(len(parents))]
        none = longest - len(parents)
        ids.append([prefix + len(p) - 1 for p in paths] + [NOWHERE] * none)
        masks.append(
            [[1] * prefix + [int(n in p) for n in range(longest)] for p in paths]
            + [[0] * (prefix + longest)] * none
        )
        filled.append(parents + [NOWHERE] * none)
    parents = torch.tensor(filled)
    assert tree(parents, prefix).tolist() == ids
    found = tree_mask(parents, prefix)
    assert (found.dtype, found.int()[:, 0].tolist()) == (torch.bool, masks)
    for row in range(len(rows)):
        assert tree(parents[row], prefix).tolist() == ids[row]
        assert tree_mask(parents[row], prefix).int().tolist() == masks[row]


def test_a_chain_is_as_deep_as_it_is_long():
    for length in (1, 2, 3, 4, 7, 8, 9, 100):
        chain = torch.arange(length) - 1
        assert tree(chain, 5).tolist() == list(range(5, 5 + length))
        assert tree_mask(chain).equal(torch.ones(length, length).tril().bool())


def test_rows_may_have_prefixes_of_their_own():
    parents = torch.tensor([[-1, 0, 0], [-1, -1, 1]])
    assert tree(parents, torch.tensor([7, 2])).tolist() == [[7, 8, 8], [2, 2, 3]]


def test_parents_may_be_a_list():
    parents = [-1, 0, NOWHERE, 0, 3]
    for call in (tree, tree_mask):
        assert call(parents, 4).equal(call(torch.tensor(parents), 4))
    assert tree([]).shape == (0,)


def test_no_nodes():
    assert tree(torch.zeros(0).long()).tolist() == []
    assert tree_mask(torch.zeros(0).long(), 3).shape == (0, 3)


PARENTS = [-1, 0, 0, 2, -1, 4, 1]
LEAVES = [3, 5, 6]
ENCODINGS = {
    "nope": wn.NoPE,
    "rope": lambda: wn.RoPE(8),
    "alibi": lambda: wn.ALiBi(2),
    "t5": lambda: wn.T5(2, 8, 16),
    "shaw": lambda: wn.Shaw(8, 3),
    "relative_multiply": lambda: wn.LearnedRelative(2, 5, "multiply"),
    "learned": lambda: wn.LearnedAbsolute(16, 12, site="every_layer"),
    "both": lambda: [wn.RoPE(8), wn.ALiBi(2)],
}


@pytest.mark.parametrize("cached", [False, True], ids=["one pass", "after a cache"])
@pytest.mark.parametrize("name", ENCODINGS)
def test_attention_over_a_tree_equals_every_path_run_alone(name, cached):
    torch.manual_seed(0)
    layer = wn.Attention(16, 2, ENCODINGS[name](), causal=True).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    prefix, nodes = torch.randn(1, 3, 16).double(), torch.randn(1, len(PARENTS), 16).double()
    parents = torch.tensor(PARENTS)
    ids, mask = tree(parents, 3), tree_mask(parents, 3)
    if cached:
        cache = wn.KVCache()
        layer(prefix, cache=cache)
        found = layer(nodes, where=ids, mask=mask, cache=cache)
    else:
        before = torch.ones(3, 10, dtype=torch.bool)
        found = layer(
            torch.cat([prefix, nodes], 1),
            where=torch.cat([torch.arange(3), ids]),
            mask=torch.cat([before, mask]),
        )[:, 3:]
    for leaf in LEAVES:
        nodes_of_path = path(PARENTS, leaf)
        alone = layer(torch.cat([prefix, nodes[:, nodes_of_path]], 1))[:, 3:]
        torch.testing.assert_close(found[:, nodes_of_path], alone, rtol=1e-10, atol=1e-10)
    if name != "nope":  # by slots alone the tree is another text
        cache = wn.KVCache()
        layer(prefix, cache=cache)
        by_slots = layer(nodes, where=torch.arange(3, 10), mask=mask, cache=cache)
        assert (by_slots - found).abs().max() > 1e-3


def test_trees_of_a_batch():
    torch.manual_seed(0)
    layer = wn.Attention(16, 2, wn.RoPE(8), causal=True).double()
    parents = torch.tensor([[-1, 0, 0, 1], [-1, 0, 1, NOWHERE]])
    x = torch.randn(2, 6, 16).double()
    cache = wn.KVCache()
    layer(x[:, :2], cache=cache)
    found = layer(
        x[:, 2:],
        where=wn.Where(tree(parents, cache.next_position.expand(2))),
        mask=tree_mask(parents, 2),
        cache=cache,
    )
    for row, nodes in ((0, [0, 1, 3]), (0, [0, 2]), (1, [0, 1, 2])):
        slots = [0, 1, *(2 + n for n in nodes)]
        alone = layer(x[row : row + 1, slots])[:, 2:]
        torch.testing.assert_close(found[row : row + 1, nodes], alone)


@pytest.mark.untyped
def test_what_is_no_tree():
    for bad, error, message in (
        ([-1, 0.0], TypeError, "every parent must be an int, got float"),
        ([-1, True], TypeError, "every parent must be an int, got bool"),
        ([[-1, 0]], TypeError, "every parent must be an int, got list"),
        ([-1, 2], ValueError, "earlier node; got 2"),
        ("-1", TypeError, "a list of ints or a tensor of them, got str"),
        (torch.tensor([-1.0]), TypeError, "torch.float32"),
        (torch.tensor([True]), TypeError, "torch.bool"),
        (torch.tensor(-1), ValueError, r"\(N,\) or \(B, N\)"),
        (torch.tensor([0]), ValueError, "earlier node; got 0"),
        (torch.tensor([-1, 2, 0]), ValueError, "earlier node; got 2"),
        (torch.tensor([-2]), ValueError, "got -2"),
        (torch.tensor([NOWHERE, 0]), ValueError, "parent is NOWHERE"),
    ):
        for make in (tree, tree_mask):
            with pytest.raises(error, match=message):
                make(bad)
    parents = torch.tensor([[-1, 0]])
    for make, prefix, error, message in (
        (tree, -1, ValueError, "prefix must be at least 0"),
        (tree, 1.0, TypeError, "prefix must be an int"),
        (tree, torch.tensor([1.0]), TypeError, "prefix must hold integers"),
        (tree, torch.tensor([1, 2]), ValueError, "one a row"),
        (tree, torch.tensor([-1]), ValueError, "must not be negative"),
        (tree_mask, -1, ValueError, "prefix must be at least 0"),
    ):
        with pytest.raises(error, match=message):
            make(parents, prefix)
    assert positions.tree is tree
