"""Against torchtune: both pairings, Llama 3's scaling, the tiles of its vision encoder.

Only its files of encodings are imported: the package itself needs torchao.

Axes: B batch, S tokens, H heads, D head_dim; its tensors are (B, S, H, D).
"""

import numpy as np
import pytest
import torch

import whereness as wn
from peers.support import (
    angle_error,
    drawn,
    explained,
    file_of_package,
    pair_sizes,
    spread,
)

pytestmark = pytest.mark.more

FILES = {
    "RotaryPositionalEmbeddings": ("modules/position_embeddings.py", "interleaved"),
    "Phi3RotaryPositionalEmbeddings": ("models/phi3/_position_embeddings.py", "half"),
    "Qwen2RotaryPositionalEmbeddings": ("models/qwen2/_positional_embeddings.py", "half"),
}


def theirs(name: str, *arguments: object, **options: object) -> torch.nn.Module:
    return getattr(file_of_package("torchtune", FILES[name][0]), name)(*arguments, **options)


def agree(found, expected, x, ids: np.ndarray, base: float, pairing: str) -> None:
    """ids (S,) or (B, S); the tensors (B, S, H, D)."""
    width = x.shape[-1]
    error = spread(angle_error(ids.reshape(-1), base, width), pairing)
    error = error.reshape(*ids.shape, 1, width)
    explained(found, expected, error, spread(pair_sizes(x, pairing, width), pairing))


@pytest.mark.parametrize("base", [10_000, 500_000])
@pytest.mark.parametrize("name", FILES)
def test_one_axis(name, base):
    rope = wn.RoPE(64, float(base), FILES[name][1])
    peer, x = theirs(name, 64, max_seq_len=2048, base=base), drawn(0, 2, 1500, 3, 64)
    agree(rope.rotate(x, layout="bshd"), peer(x), x, np.arange(1500), base, rope.pairing)


@pytest.mark.parametrize("name", FILES)
def test_positions_of_packed_and_of_decoded_tokens(name):
    rope, peer = wn.RoPE(16, pairing=FILES[name][1]), theirs(name, 16, base=10_000)
    for ids in ([[0, 1, 2, 0, 1], [0, 1, 0, 1, 2]], [[2000], [4095]]):
        positions = torch.tensor(ids)
        x = drawn(0, *positions.shape, 3, 16)
        found = rope.rotate(x, positions, layout="bshd")
        agree(found, peer(x, input_pos=positions), x, positions.numpy(), 10_000, rope.pairing)


@pytest.mark.parametrize("original", [8192, 4096])
@pytest.mark.parametrize("factor", [8, 32])
def test_the_scaling_of_llama_3(factor, original):
    module = file_of_package("torchtune", "models/llama3_1/_position_embeddings.py")
    base, length = 500_000, 3000
    peer = module.Llama3ScaledRoPE(128, length, base, scale_factor=factor, old_context_len=original)
    scaling = wn.scaling.Llama3(float(factor), 1.0, 4.0, original)
    rope = wn.RoPE(128, float(base), "interleaved", scaling=scaling)
    # Their frequencies are float32, scaled one by one in float32.
    np.testing.assert_allclose(peer.theta.double(), rope.frequencies, rtol=8 * 2.0**-24)
    x = drawn(0, 1, length, 2, 128)
    found = rope.rotate(x, layout="bshd")
    angles = np.arange(length)[:, None, None] * rope.frequencies.numpy()
    error = spread(10 * angles * 2.0**-24, "interleaved")
    explained(found, peer(x), error, spread(pair_sizes(x, "interleaved", 128), "interleaved"))


@pytest.mark.parametrize("last", [True, False])
def test_tiles_of_an_image_with_a_token_that_does_not_turn(last):
    """x first, then y, both counted from 1; the class token of every tile stays."""
    module = file_of_package("torchtune", "modules/position_embeddings.py")
    grid, tiles, dim = 3, 2, 8
    peer = module.VisionRotaryPositionalEmbeddings(
        patch_size=10, tile_size=10 * grid, max_num_tiles=tiles, dim=dim, append_cls_token=last
    )
    x = drawn(0, 2, tiles * (grid * grid + 1), 3, 2 * dim)
    patches = wn.positions.grid(grid, grid).flip(-1) + 1
    nowhere = torch.full((1, 2), wn.NOWHERE)
    tile = torch.cat([patches, nowhere] if last else [nowhere, patches])
    rope = wn.AxialRoPE(2 * dim, pairing="interleaved")
    found = rope.rotate(x, tile.repeat(tiles, 1), layout="bshd")
    torch.testing.assert_close(found, peer(x), rtol=0, atol=4 * 16 * 2.0**-24)
