"""Against diffusers 0.42: the splits and orders of its image and video models.

Axes: B batch, H heads, S tokens, D head_dim; positions are (frame, row, column).
"""

from functools import cache
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

import whereness as wn
from peers.extracted import definitions
from peers.support import ROUNDING, drawn

pytestmark = pytest.mark.more

GRID = (3, 4, 6)
CELLS = wn.positions.grid(*GRID)


@cache
def shared() -> SimpleNamespace:
    names = ("get_1d_rotary_pos_embed", "get_3d_rotary_pos_embed", "apply_rotary_emb")
    names += ("get_2d_rotary_pos_embed", "get_2d_rotary_pos_embed_from_grid")
    names += ("get_2d_rotary_pos_embed_lumina", "get_3d_rotary_pos_embed_allegro")
    names += ("apply_rotary_emb_allegro",)
    return SimpleNamespace(**definitions("diffusers", "models/embeddings.py", *names))


def model(file: str, *names: str, **given):
    path = f"models/transformers/transformer_{file}.py"
    given = {"get_1d_rotary_pos_embed": shared().get_1d_rotary_pos_embed, **given}
    found = definitions("diffusers", path, *names, **given)
    return found[names[0]] if len(names) == 1 else SimpleNamespace(**found)


def same(rope, positions, x, theirs, exact=False):
    """Equal but for the float32 of their angles (`exact`: float64), tables and products."""
    found = rope.rotate(x, positions)
    widest = 0.0 if exact else float(rope.angles(positions).abs().max())
    size = float(x.abs().max()) * 2**0.5
    assert_close(found, theirs, rtol=0, atol=(6 * widest + 8) * ROUNDING * size)
    assert float((x - theirs).abs().max()) > 0.1


def latents(patch=(1, 1, 1)) -> torch.Tensor:
    return torch.zeros(1, 1, *(n * p for n, p in zip(GRID, patch, strict=True)))


def interleaved(x, cos, sin):
    return shared().apply_rotary_emb(x, (cos, sin))


def halves(x, cos, sin):
    return shared().apply_rotary_emb(x, (cos, sin), use_real_unbind_dim=-2)


def complex_numbers(x, table):
    """x (B, H, S, D), table (S, D/2)."""
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * table
    return torch.view_as_real(turned).flatten(-2)


@pytest.mark.parametrize("dim", [128, 64, 40])
def test_wan(dim):
    """h = w = 2 (D // 6), the rest is time."""
    spatial = 2 * (dim // 6)
    peer = model("wan", "WanRotaryPosEmbed")(dim, (1, 2, 2), 1024)
    cos, sin = (t[0, :, 0] for t in peer(latents((1, 2, 2))))
    x = drawn(0, 1, 2, len(CELLS), dim)
    dims = (dim - 2 * spatial, spatial, spatial)
    rope = wn.AxialRoPE(dim, 3, pairing="interleaved", axis_dims=dims)
    same(rope, CELLS, x, interleaved(x, cos, sin), exact=True)


@pytest.mark.parametrize("fps", [None, 30, 12])
def test_cosmos(fps):
    """NTK by axis, and seconds of a video at 24 frames each."""
    dim, factors = 128, (2.0, 1.0, 1.5)
    peer = model("cosmos", "CosmosRotaryPosEmbed")(dim, rope_scale=factors)
    x = drawn(0, 1, 2, len(CELLS), dim)
    dims = (44, 42, 42)
    bases = tuple(10_000.0 * f ** (d / (d - 2)) for f, d in zip(factors, dims, strict=True))
    scale = (1.0 if fps is None else 24 / fps, 1.0, 1.0)
    rope = wn.AxialRoPE(dim, 3, bases, axis_dims=dims, scale=scale)
    same(rope, CELLS, x, halves(x, *peer(latents((1, 2, 2)), fps=fps)))


def test_hunyuan_video():
    dims = (16, 56, 56)
    peer = model("hunyuan_video", "HunyuanVideoRotaryPosEmbed")(1, 1, list(dims), 256.0)
    x = drawn(0, 1, 2, len(CELLS), 128)
    rope = wn.AxialRoPE(128, 3, 256.0, "interleaved", axis_dims=dims)
    same(rope, CELLS, x, interleaved(x, *peer(latents())))


@pytest.mark.parametrize("crops", [((0, 0), (4, 6)), ((2, 5), (9, 17))])
def test_cogvideox(crops):
    """D/4 for time, 3D/8 each for rows and columns, which stand inside a crop of a larger grid."""
    start, stop = crops
    tables = shared().get_3d_rotary_pos_embed(64, crops, GRID[1:], GRID[0])
    x = drawn(0, 1, 2, len(CELLS), 64)
    columns = [torch.arange(3).double()]
    for axis, count in enumerate(GRID[1:]):
        last = stop[axis] * (count - 1) / count
        columns.append(torch.linspace(start[axis], last, count, dtype=torch.float64))
    positions = torch.cartesian_prod(*columns)
    rope = wn.AxialRoPE(64, 3, pairing="interleaved", axis_dims=(16, 24, 24))
    same(rope, positions, x, interleaved(x, *tables))


@pytest.mark.parametrize(("name", "file"), [("FluxPosEmbed", "flux"), ("Flux2PosEmbed", "flux2")])
def test_flux(name, file):
    dims = (16, 56, 56) if file == "flux" else (32, 32, 32, 32)
    ids = torch.randint(0, 50, (20, len(dims)), generator=torch.Generator().manual_seed(0))
    x = drawn(0, 1, 2, 20, sum(dims))
    rope = wn.AxialRoPE(sum(dims), len(dims), pairing="interleaved", axis_dims=dims)
    theirs = interleaved(x, *model(file, name)(10_000, list(dims))(ids))
    same(rope, ids, x, theirs, exact=True)


@pytest.mark.parametrize("centred", [False, True])
def test_qwen_image(centred):
    """Rows and columns counted from the centre, half of them negative."""
    dims = (16, 56, 56)
    peer = model("qwenimage", "QwenEmbedRope")(10_000, list(dims), scale_rope=centred)
    table, text = peer((*GRID,), device=torch.device("cpu"), max_txt_seq_len=5)
    x = drawn(0, 1, 2, len(CELLS), 128)
    rope = wn.AxialRoPE(128, 3, pairing="interleaved", axis_dims=dims)
    centre = torch.tensor([0, 2, 3]) if centred else torch.zeros(3, dtype=torch.int64)
    same(rope, CELLS - centre, x, complex_numbers(x, table))
    words = (torch.arange(5) + (3 if centred else 6))[:, None].expand(-1, 3)
    same(rope, words, x[:, :, :5], complex_numbers(x[:, :, :5], text))


@pytest.mark.parametrize(("linear", "ntk"), [(1.0, 1.0), (2.0, 1.0), (1.0, 4.0)])
def test_lumina(linear, ntk):
    """Rows and columns take turns, pair by pair. Its ntk_factor multiplies the base as it is."""
    table = shared().get_2d_rotary_pos_embed_lumina(32, 4, 6, linear, ntk)
    x = drawn(0, 1, 2, 24, 32)
    rope = wn.AxialRoPE(32, 2, 10_000.0 * ntk, "interleaved", "alternating", scale=1 / linear)
    same(rope, wn.positions.grid(4, 6), x, complex_numbers(x, table.flatten(0, 1)))


def test_hunyuan_dit():
    """It calls its first block rows; it holds the columns."""
    tables = shared().get_2d_rotary_pos_embed(32, ((0, 0), (4, 6)), (4, 6))
    x = drawn(0, 1, 2, 24, 32)
    rope = wn.AxialRoPE(32, pairing="interleaved", axis_order=(1, 0))
    same(rope, wn.positions.grid(4, 6), x, interleaved(x, *tables))


@pytest.mark.parametrize("name", ["CogView4RotaryPosEmbed", "GlmImageRotaryPosEmbed"])
def test_cogview4_and_glm_image(name):
    if name.startswith("Cog"):
        peer = model("cogview4", name)(32, 1, (4, 6))
    else:
        peer = model("glm_image", name)(32, 1)
    x = drawn(0, 1, 2, 24, 32)
    theirs = halves(x, *peer(torch.zeros(1, 1, 4, 6)))
    same(wn.AxialRoPE(32), wn.positions.grid(4, 6), x, theirs)


def test_allegro():
    """A half-split inside the block of every axis."""
    *tables, t, h, w = shared().get_3d_rotary_pos_embed_allegro(
        48, ((0, 0), (4, 6)), GRID[1:], GRID[0], (2.0, 1.5, 1.0)
    )
    x = drawn(0, 1, 2, len(CELLS), 48)
    ids = [c[None] for c in CELLS.T.contiguous()]
    theirs = shared().apply_rotary_emb_allegro(x, tables, ids)
    rope = wn.AxialRoPE(48, 3, layout="heads", scale=(1 / 2.0, 1 / 1.5, 1.0))
    same(rope, CELLS, x, theirs)
    assert (len(t), len(h), len(w)) == GRID


@pytest.mark.parametrize("dim", [96, 64])
def test_ltx_video(dim):
    """A spectrum that ends at the base, axes in turn, the first channels left alone; over the whole
    width of the model, so heads have different frequencies."""
    peer = model("ltx", "LTXVideoRotaryPosEmbed", "apply_rotary_emb")
    scale = (0.32, 32.0, 32.0)
    embed = peer.LTXVideoRotaryPosEmbed(dim, base_num_frames=20, base_height=2048, base_width=2048)
    cos, sin = embed(torch.zeros(1), *GRID, rope_interpolation_scale=scale)
    x = drawn(0, 1, 1, len(CELLS), dim)
    theirs = peer.apply_rotary_emb(x[:, 0], (cos, sin))[:, None]
    count = dim // 6
    bands = [10_000.0 ** (k / (count - 1)) * torch.pi / 2 for k in range(count)]
    rope = wn.AxialRoPE(
        dim,
        3,
        layout="alternating",
        pairing="interleaved",
        frequencies=(bands,) * 3,
        scale=tuple(2 * s / n for s, n in zip(scale, (20, 2048, 2048), strict=True)),
        offset=-1.0,
        rotary_dim=6 * count,
        rotary_side="trailing",
    )
    same(rope, CELLS, x, theirs)


@pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning")
def test_mochi():
    """Learned directions of three axes; real coordinates about the centre."""
    peer = model("mochi", "MochiRoPE")(192, 192)
    torch.manual_seed(0)
    rope = wn.MixedRoPE(24, 4, 3, pairing="interleaved")
    cos, sin = peer(rope.directions.detach(), *GRID, dtype=torch.float32)
    positions = peer._get_positions(*GRID, dtype=torch.float32).double()
    x = drawn(0, 1, 4, len(CELLS), 24)
    tables = [t.transpose(0, 1)[None] for t in (cos, sin)]
    u, v = x.unflatten(-1, (-1, 2)).unbind(-1)
    theirs = torch.stack([u * tables[0] - v * tables[1], u * tables[1] + v * tables[0]], -1)
    theirs = theirs.flatten(-2)
    found = rope.rotate(x, positions)
    widest, size = float(positions.abs().max()) * 2, float(x.abs().max()) * 2**0.5
    assert_close(found, theirs, rtol=0, atol=(6 * widest + 8) * ROUNDING * size)
    assert float((x - theirs).abs().max()) > 0.1


def test_minimax_h3():
    """Three equal axes in the first channels of a wider head."""
    peer = model("minimax_h3", "MiniMaxH3RotaryPosEmbed", "_apply_rotary_emb")
    cos, sin = peer.MiniMaxH3RotaryPosEmbed(16)(CELLS)
    x = drawn(0, 1, 2, len(CELLS), 128)
    theirs = peer._apply_rotary_emb(x.transpose(1, 2), cos, sin).transpose(1, 2)
    same(wn.AxialRoPE(128, 3, rotary_dim=96), CELLS, x, theirs)


@pytest.mark.parametrize(
    ("file", "name"), [("ideogram4", "Ideogram4MRoPE"), ("cosmos3", "Cosmos3VLTextRotaryEmbedding")]
)
def test_interleaved_multimodal(file, name):
    sections = (24, 20, 20)
    peer = model(file, name)(128, 5_000_000, sections)
    if file == "ideogram4":
        cos, sin = peer(CELLS[None])
    else:
        cos, sin = peer(CELLS.T[:, None], torch.device("cpu"), torch.float32)
    x = drawn(0, 1, 2, len(CELLS), 128)
    rope = wn.MultimodalRoPE(128, sections, "interleaved", 5e6)
    same(rope, CELLS, x, halves(x, cos[0], sin[0]))


def test_ernie_image_does_not_rotate():
    """Its tables repeat every angle for two neighbours, and its halves are pairs: the two channels
    of a pair get different angles, which changes lengths and makes scores depend on positions.
    No rotary encoding is equal to it."""
    peer = model("ernie_image", "ErnieImageEmbedND3", rope=model("ernie_image", "rope"))
    angles = peer(32, 10_000, (8, 12, 12))(CELLS[None].float())[0, :, 0]
    q, k = drawn(0, 1, 1, 1, 32), drawn(1, 1, 1, 1, 32)
    q, k = (t.expand(-1, -1, len(CELLS), -1) for t in (q, k))
    turned = [halves(t, angles.cos(), angles.sin()) for t in (q, k)]
    norms = turned[0].norm(dim=-1) / q.norm(dim=-1)
    assert float((norms - 1).abs().max()) > 0.1
    same_offset = (turned[0] * turned[1]).sum(-1)  # a query and a key at the same place
    assert float(same_offset.std()) > 0.1
