"""K21: a kernel turns what it was given, all of it and nothing else, whatever the sizes."""

from functools import partial
from itertools import product

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import whereness as wn
from cases.support import HEAD_DIM, bitwise, case, differ, equal, heads

WARPED = torch.tensor([[0, 2, 3, 7, 9], [4, 4, 1, 0, 8]])
LAYOUTS = ("bhsd", "bshd")


def by_complex_numbers(x, positions, rope):
    """RoPE in half pairing on (B, H, S, D), as a product of complex numbers in float64."""
    angles = positions.double()[..., None] * rope.frequencies
    u, v = x.double().chunk(2, -1)
    turned = torch.complex(u, v) * torch.polar(torch.ones_like(angles), angles).unsqueeze(-3)
    return torch.cat([turned.real, turned.imag], -1)


@case("P205")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_inputs_are_not_overwritten_contiguous_or_not(dtype, layout):
    rope = wn.RoPE(HEAD_DIM)
    whole = heads(5, 4, 2, dtype=dtype)
    views = (whole, whole.transpose(1, 2).contiguous().transpose(1, 2), whole[:, 1:3])
    for x in views:
        before = x.clone()
        given = x if layout == "bhsd" else x.transpose(1, 2)
        q, k = rope(given, given, WARPED, layout=layout)
        turned = rope.rotate(given, WARPED, layout=layout)
        bitwise(x, before)
        differ(turned.float(), given.float())
        bitwise(q, turned)
        bitwise(k, turned)


@case("P206")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_size_from_one_on_turns_on_every_axis(layout):
    rope = wn.RoPE(HEAD_DIM)
    for batch, of_q, of_k, length in product((1, 2, 3), repeat=4):
        positions = torch.arange(length) * 3 + 1
        xs = heads(length, of_q, batch), heads(length, of_k, batch, seed=3)
        given = xs if layout == "bhsd" else [x.transpose(1, 2) for x in xs]
        for x, y in zip(xs, rope(*given, positions, layout=layout), strict=True):
            found = y if layout == "bhsd" else y.transpose(1, 2)
            equal(found, by_complex_numbers(x, positions, rope))


@case("P209")
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_shard_of_a_sequence_turns_as_its_part_of_the_whole(ranks):
    """Shards of a ring: rank r holds chunk r and its mirror image."""
    rope, x = wn.RoPE(HEAD_DIM), heads(16, 2, 2)
    whole = rope.rotate(x, torch.arange(16))
    chunks = torch.arange(16).chunk(2 * ranks)
    for rank in range(ranks):
        slots = torch.cat([chunks[rank], chunks[-1 - rank]])
        bitwise(rope.rotate(x[:, :, slots], slots), whole[:, :, slots])


@case("P210")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_tokens_axis_is_named_and_never_guessed(layout):
    rope, x = wn.RoPE(HEAD_DIM), heads(5, 5, 5)
    positions = torch.tensor([0, 3, 1, 8, 2])
    given = x if layout == "bhsd" else x.transpose(1, 2)
    found = rope.rotate(given, positions, layout=layout)
    expected = by_complex_numbers(x, positions, rope)
    equal(found if layout == "bhsd" else found.transpose(1, 2), expected)
    differ(rope.rotate(x, positions, layout="bshd"), expected)


def checkpointed(block, x):
    """Outputs and gradients of block(x), plainly and with recomputation."""
    found = []
    for run in (block, lambda x: checkpoint(block, x, use_reentrant=False)):
        leaf = x.clone().requires_grad_()
        out = run(leaf)
        found.append((out, *torch.autograd.grad(out.square().sum() + out.sum(), leaf)))
    return found


@case("P205", "P211")
def test_recomputation_gives_the_same_with_ids_that_are_not_counted():
    rope = wn.RoPE(HEAD_DIM)
    at = rope.prepare(wn.Where(WARPED))
    for where in (WARPED, at):
        block = partial(lambda w, x: rope.rotate(x.sin(), w).cos(), where)
        plain, again = checkpointed(block, heads(5, 2, 2))
        for a, b in zip(plain, again, strict=True):
            bitwise(a, b)
    counted = rope.rotate(heads(5, 2, 2).sin()).cos()
    differ(plain[0].detach(), counted)


@case("P212")
def test_recomputation_of_a_block_with_two_tables():
    near, far = wn.RoPE(HEAD_DIM), wn.RoPE(HEAD_DIM, base=1e6)
    at_near, at_far = near.prepare(wn.Where(WARPED)), far.prepare(wn.Where(WARPED))

    def block(x):
        return far.rotate(near.rotate(x.sin(), at_near).cos(), at_far)

    plain, again = checkpointed(block, heads(5, 2, 2))
    for a, b in zip(plain, again, strict=True):
        bitwise(a, b)
