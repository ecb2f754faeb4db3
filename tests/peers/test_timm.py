"""Against timm 1.0: axial, mixed, DINOv3 and multimodal rotation of image patches.

Axes: B batch, H heads, S patches, D head_dim; positions are (row, column).
"""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import whereness as wn
from peers.extracted import definitions
from peers.support import ROUNDING, drawn

pytestmark = pytest.mark.more

NAMES = (
    *("pixel_freq_bands", "freq_bands", "swap_shape_xy", "_build_bands", "_build_grid"),
    *("_rope_layout", "_coord_aug_config", "_apply_coord_augs", "_freq_buffer_dtype"),
    *("build_fourier_pos_embed", "rot", "rope_rotate_half", "apply_rot_embed"),
    *("apply_rot_embed_cat", "build_rotary_pos_embed", "_RotaryEmbeddingBase"),
    *("RotaryEmbeddingCat", "init_random_2d_freqs", "get_mixed_grid", "get_mixed_freqs"),
    *("RotaryEmbeddingMRope", "RotaryEmbeddingMixed", "RotaryEmbeddingDinoV3"),
)
GRIDS = [(2, 3), (14, 14), (5, 1)]


@cache
def timm() -> SimpleNamespace:
    from numbers import Real

    file = "layers/pos_embed_sincos.py"
    return SimpleNamespace(**definitions("timm", file, *NAMES, Real=Real))


def same(rope, positions, x, theirs):
    """Equal but for the float32 of their angles, tables and products."""
    found = rope.rotate(x, positions)
    widest = float(rope.angles(positions.nan_to_num()).abs().max()) if positions.numel() else 0.0
    size = float(x.abs().max()) * 2**0.5
    assert_close(found, theirs, rtol=0, atol=(6 * widest + 8) * ROUNDING * size)
    assert float((x - theirs).abs().max()) > 0.1


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("temperature", [100.0, 10_000.0])
@pytest.mark.parametrize("indexing", ["ij", "xy"])
def test_axial(grid, half, temperature, indexing):
    """ "xy" gives the columns the first pairs."""
    theirs = timm().RotaryEmbeddingCat(
        32, in_pixels=False, temperature=temperature, rotate_half=half, grid_indexing=indexing
    )
    x = drawn(0, 2, 3, grid[0] * grid[1], 32)
    expected = timm().apply_rot_embed_cat(x, theirs.get_embed(list(grid)), half=half)
    pairing = "half" if half else "interleaved"
    order = (0, 1) if indexing == "ij" else (1, 0)
    rope = wn.AxialRoPE(32, 2, temperature, pairing, axis_order=order)
    same(rope, wn.positions.grid(*grid), x, expected)


def test_axial_on_a_reference_grid_and_counted_from_one():
    """EVA-02: patches of a larger grid stand inside the grid of the training."""
    grid, reference = (14, 21), (7, 16)
    theirs = timm().RotaryEmbeddingCat(32, in_pixels=False, ref_feat_shape=list(reference))
    x = drawn(0, 1, 2, 14 * 21, 32)
    expected = timm().apply_rot_embed_cat(x, theirs.get_embed(list(grid)))
    scale = tuple(r / n for r, n in zip(reference, grid, strict=True))
    rope = wn.AxialRoPE(32, pairing="interleaved", scale=scale)
    same(rope, wn.positions.grid(*grid), x, expected)
    theirs = timm().RotaryEmbeddingCat(32, in_pixels=False, grid_offset=1.0)
    expected = timm().apply_rot_embed_cat(x, theirs.get_embed(list(grid)))
    rope = wn.AxialRoPE(32, pairing="interleaved", offset=1.0)
    same(rope, wn.positions.grid(*grid), x, expected)


@pytest.mark.parametrize("linear", [False, True])
def test_axial_of_pixels(linear):
    """Its own bands, and coordinates from -1 to 1."""
    grid, bands = (6, 9), timm().pixel_freq_bands(8, 224.0, linear_bands=linear).tolist()
    theirs = timm().RotaryEmbeddingCat(32, max_res=224, linear_bands=linear)
    x = drawn(0, 1, 2, 54, 32)
    expected = timm().apply_rot_embed_cat(x, theirs.get_embed(list(grid)))
    rope = wn.AxialRoPE(
        32, pairing="interleaved", frequencies=(bands, bands), scale=(2 / 5, 2 / 8), offset=-1.0
    )
    same(rope, wn.positions.grid(*grid), x, expected)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("indexing", ["ij", "xy"])
def test_mixed(grid, indexing):
    """Directions of all layers in one tensor there, (x, y) by default: ours have one a layer."""
    torch.manual_seed(0)
    theirs = timm().RotaryEmbeddingMixed(64, depth=2, num_heads=4, grid_indexing=indexing)
    x = drawn(0, 2, 4, grid[0] * grid[1], 16)
    positions = wn.positions.grid(*grid)
    positions = positions if indexing == "ij" else positions.flip(-1)
    embeds = theirs.get_embed(list(grid)).detach()
    for layer in range(2):
        rope = wn.MixedRoPE(16, 4, pairing="interleaved")
        rope.directions.data = theirs.freqs.detach()[:, layer]
        expected = timm().apply_rot_embed_cat(x, embeds[layer])
        found = rope.rotate(x, positions)
        size, widest = float(x.abs().max()) * 2**0.5, 2.0 * max(grid)
        assert_close(found, expected, rtol=0, atol=(6 * widest + 8) * ROUNDING * size)
        assert float((x - expected).abs().max()) > 0.1


def test_mixed_starts_alike():
    """The same lengths; every head's pairs in two groups at right angles."""
    theirs = timm().init_random_2d_freqs(16, 1, 300, 10.0)[:, 0]
    ours = wn.MixedRoPE(16, 300).directions.detach()
    for directions in (theirs, ours):
        lengths = directions.norm(dim=0)
        assert_close(lengths, theirs.norm(dim=0), rtol=1e-5, atol=0)
        first, second = directions[:, :, :4], directions[:, :, 4:]
        assert_close((first * second).sum(0), torch.zeros(300, 4), rtol=0, atol=1e-6)
        # The second is the first turned to the left.
        left = torch.stack([-first[1], first[0]])
        assert_close(second, left, rtol=0, atol=1e-6)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("normalise", ["separate", "max", "min"])
def test_dinov3(grid, half, normalise):
    theirs = timm().RotaryEmbeddingDinoV3(
        32, temperature=100.0, normalize_coords=normalise, rotate_half=half
    )
    x = drawn(0, 2, 3, grid[0] * grid[1], 32)
    expected = timm().apply_rot_embed_cat(x, theirs.get_embed(list(grid)), half=half)
    rope = wn.DINOv3RoPE(32, pairing="half" if half else "interleaved", normalise=normalise)
    same(rope, rope.coordinates(*grid), x, expected)
    assert_close(rope.periods[0].float(), theirs.periods, rtol=4 * ROUNDING, atol=0)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("options", [(0.2, 1.5, 2.0), (0.2, None, None), (None, 1.5, 2.0)], ids=str)
def test_dinov3_moves_patches_alike_in_training(seed, options):
    """The same draws in the same order, given the same numbers."""
    rope = wn.DINOv3RoPE(32, shift=options[0], jitter=options[1], rescale=options[2])
    cells = rope.coordinates(3, 4)
    torch.manual_seed(seed)
    expected = timm()._apply_coord_augs(cells, *options)
    where = rope.move(wn.Where(cells, num_axes=2), torch.Generator().manual_seed(seed))
    # Ours draws a number for each map, used or not.
    if None not in options:
        assert_close(where.positions[0], expected, rtol=1e-14, atol=1e-15)
    for axis in range(2):
        line = np.polyfit(cells[:, axis], where.positions[0, :, axis], 1)
        assert_close(np.polyval(line, cells[:, axis]), where.positions[0, :, axis].numpy())


@pytest.mark.parametrize(
    ("dim", "theirs", "ours"),
    [(72, (12, 12, 12), (12, 12, 12)), (72, (8, 12, 12), (12, 12, 12)),
     (64, (8, 12, 12), (11, 11, 10)), (128, (24, 20, 20), (24, 20, 20))],
)  # fmt: skip
def test_multimodal_of_images(dim, theirs, ours):
    """Sections that do not add up are clamped there (GenLIP's are); we need what they come to."""
    grid = (4, 6)
    peer = timm().RotaryEmbeddingMRope(dim, theirs)
    x = drawn(0, 1, 2, 24, dim)
    expected = timm().apply_rot_embed_cat(x, peer.get_embed(list(grid)), half=True)
    cells = wn.positions.grid(*grid)
    positions = torch.cat([torch.zeros_like(cells[:, :1]), cells], 1)
    rope = wn.MultimodalRoPE(dim, ours, "interleaved")
    same(rope, positions, x, expected)
    if sum(theirs) != dim // 2:
        with pytest.raises(ValueError, match="add up"):
            wn.MultimodalRoPE(dim, theirs, "interleaved")
