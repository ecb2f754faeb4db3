"""Against Hugging Face transformers: rotation of image patches, and of text among them.

Axes: B batch, H heads, S tokens, D head_dim; positions are (row, column) or (time, row, column).
"""

import importlib

import pytest
import torch
from torch.testing import assert_close

import whereness as wn
from peers.support import ROUNDING, drawn

pytestmark = pytest.mark.more

CELLS = wn.positions.grid(4, 6)
VIDEO = wn.positions.grid(3, 4, 6) + torch.tensor([7, 3, 5])


def module(name: str):
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, pairing: str) -> torch.Tensor:
    """x (B, H, S, D) by tables (S, R) as the models do it: the first R channels."""
    width = cos.shape[-1]
    part, rest = x[..., :width], x[..., width:]
    if pairing == "half":
        u, v = part.chunk(2, -1)
        aside = torch.cat([-v, u], -1)
    else:
        u, v = part.unflatten(-1, (-1, 2)).unbind(-1)
        aside = torch.stack([-v, u], -1).flatten(-2)
    return torch.cat([part * cos + aside * sin, rest], -1)


def same(rope, positions, x, theirs):
    """Equal but for the float32 of their angles, tables and products."""
    widest = float(rope.angles(positions).abs().max())
    size = float(x.abs().max()) * 2**0.5
    found = rope.rotate(x, positions)
    assert_close(found, theirs, rtol=0, atol=(6 * widest + 8) * ROUNDING * size)
    assert float((x - theirs).abs().max()) > 0.1


# Model, prefix of its classes, pairing, layout, axes in the order of their pairs.
VISION = [
    ("pixtral", "PixtralVision", "half", "shared_blocks", (0, 1)),
    ("qwen3_vl", "Qwen3VLVision", "half", "blocks", (0, 1)),
    ("glm4v", "Glm4vVision", "half", "blocks", (0, 1)),
    ("muse_glimmer", "MuseGlimmerVision", "half", "blocks", (0, 1)),
    ("kimi_k25", "Kimi_K25Vision", "half", "alternating", (1, 0)),
    ("step3p7", "Step3p7Vision", "half", "blocks", (1, 0)),
    ("inkling2", "Inkling2Vision", "interleaved", "blocks", (1, 0)),
    ("sam3", "Sam3ViT", "interleaved", "blocks", (0, 1)),
]


@pytest.mark.parametrize(("name", "prefix", "pairing", "layout", "order"), VISION)
def test_vision_towers(name, prefix, pairing, layout, order):
    own = module(name)
    config = getattr(own, f"{prefix}Config")()
    config.hidden_size, config.num_attention_heads, config.head_dim = 96, 2, 48
    embedding = getattr(own, f"{prefix}RotaryEmbedding")(config)
    x = drawn(0, 1, 2, 24, 48)
    cos, sin = embedding(x, CELLS)
    base = config.rope_parameters["rope_theta"]
    rope = wn.AxialRoPE(48, 2, base, pairing, layout, axis_order=order)
    same(rope, CELLS, x, turned(x, cos, sin, pairing))
    other = wn.AxialRoPE(48, 2, base, pairing, layout, axis_order=order[::-1])
    assert float((other.rotate(x, CELLS) - rope.rotate(x, CELLS)).abs().max()) > 0.1


def test_gemma4_has_a_half_split_for_every_axis():
    own = module("gemma4")
    config = own.Gemma4VisionConfig(hidden_size=96, num_attention_heads=2, head_dim=48)
    x = drawn(0, 1, 2, 24, 48)
    cos, sin = own.Gemma4VisionRotaryEmbedding(config)(x, CELLS[None])
    theirs = own.apply_multidimensional_rope(x.transpose(1, 2), cos, sin, CELLS[None])
    rope = wn.AxialRoPE(48, 2, config.rope_parameters["rope_theta"], layout="heads")
    same(rope, CELLS, x, theirs.transpose(1, 2))


def test_minimax_m3_turns_three_axes_of_a_part():
    own = module("minimax_m3_vl")
    config = own.MiniMaxM3VLVisionConfig(hidden_size=160, num_attention_heads=2)
    cos, sin = own.MiniMaxM3VLVisionRotaryEmbedding(config)(torch.zeros(1), VIDEO)
    x = drawn(0, 1, 2, len(VIDEO), 80)
    rope = wn.AxialRoPE(80, 3, rotary_dim=3 * 26)
    same(rope, VIDEO, x, turned(x, cos, sin, "half"))


def test_llama4_counts_from_one_and_columns_first():
    own = module("llama4")
    config = own.Llama4VisionConfig(
        hidden_size=64, num_attention_heads=2, image_size=56, patch_size=14
    )
    x = drawn(0, 1, 2, 17, 32)
    table = own.Llama4VisionRotaryEmbedding(config).freqs_ci
    q, _ = own.vision_apply_rotary_emb(x.transpose(1, 2), x.transpose(1, 2), table)
    rope = wn.AxialRoPE(32, 2, 10_000.0, "interleaved", axis_order=(1, 0), offset=1.0)
    cls_last = wn.positions.grid(4, 4, prefix=1).roll(-1, 0)
    found = rope.rotate(x, cls_last)
    assert_close(found, q.transpose(1, 2), rtol=0, atol=40 * ROUNDING * float(x.abs().max()))
    assert_close(found[:, :, -1], x[:, :, -1], rtol=0, atol=0)


@pytest.mark.parametrize("size", [(28, 42), (56, 56)])
def test_dinov3(size):
    own = module("dinov3_vit")
    config = own.DINOv3ViTConfig(hidden_size=64, num_attention_heads=2, patch_size=14)
    embedding = own.DINOv3ViTRopePositionEmbedding(config).eval()
    cos, sin = embedding(torch.zeros(1, 3, *size))
    grid = (size[0] // 14, size[1] // 14)
    rope = wn.DINOv3RoPE(32)
    x = drawn(0, 1, 2, len(cos), 32)
    same(rope, rope.coordinates(*grid), x, turned(x, cos, sin, "half"))


# Model, prefix, sections, order, pairing, share of the head that turns.
TEXT = [
    ("qwen2_vl", "Qwen2VL", "Qwen2VLText", (16, 24, 24), "chunked", "half", 1.0),
    ("qwen2_5_vl", "Qwen2_5_VL", "Qwen2_5_VLText", (16, 24, 24), "chunked", "half", 1.0),
    ("glm4v", "Glm4vText", "Glm4vText", (8, 12, 12), "chunked", "interleaved", 0.5),
    ("glm4v_moe", "Glm4vMoeText", "Glm4vMoeText", (8, 12, 12), "chunked", "half", 0.5),
    ("qwen3_vl", "Qwen3VLText", "Qwen3VLText", (24, 20, 20), "interleaved", "half", 1.0),
    ("qwen3_5", "Qwen3_5Text", "Qwen3_5Text", (6, 5, 5), "interleaved", "half", 0.25),
    *[("ernie4_5_vl_moe", *["Ernie4_5_VLMoeText"] * 2, (22, 22, 20), "ernie", "interleaved", 1.0)],
]


@pytest.mark.parametrize(
    ("name", "prefix", "config", "sections", "order", "pairing", "share"),
    TEXT,
    ids=str,
)
def test_text_towers(name, prefix, config, sections, order, pairing, share):
    own = module(name)
    parameters = {"rope_type": "default", "rope_theta": 5e5, "mrope_section": list(sections)}
    made = getattr(own, f"{config}Config")(
        hidden_size=256,
        num_attention_heads=2,
        head_dim=128,
        rope_parameters={**parameters, "partial_rotary_factor": share},
    )
    embedding = getattr(own, f"{prefix}RotaryEmbedding")(made)
    x = drawn(0, 1, 2, len(VIDEO), 128)
    cos, sin = embedding(x, VIDEO.T[:, None])
    rope = wn.MultimodalRoPE(128, sections, order, 5e5, pairing, int(128 * share))
    same(rope, VIDEO, x, turned(x, cos[0], sin[0], pairing))


def test_neomme_alternates_two_axes_of_one_spectrum():
    own = module("neomme")
    config = own.NeoMMEConfig()
    embedding = own.NeoMMERotaryEmbedding(config)
    x = drawn(0, 1, 2, 24, 64)
    for layer, width in (("full_attention", 16), ("sliding_attention", 64)):
        cos, sin = embedding(x, CELLS.T[:, None], layer_type=layer)
        base = config.rope_parameters[layer]["rope_theta"]
        for rope in (
            wn.AxialRoPE(64, 2, base, layout="shared_alternating", rotary_dim=width),
            wn.MultimodalRoPE(64, (width // 4,) * 2, "interleaved", base, rotary_dim=width),
        ):
            same(rope, CELLS, x, turned(x, cos[0], sin[0], "half"))


# What is called a rotation and is none: the channels of a pair get different angles.


def require_no_rotation(turn) -> None:
    """`turn` gives (1, 1, S, 128) vectors their places (S, 3)."""
    place = torch.tensor([7, 40, 25])
    matrix = turn(torch.eye(128)[None, None], place.expand(128, -1))[0, 0]
    stretched = torch.linalg.svdvals(matrix)
    assert float(stretched.max()) > 1.2 and float(stretched.min()) < 0.8
    q, k = (drawn(i, 1, 1, 1, 128).expand(-1, -1, len(VIDEO), -1) for i in (0, 1))
    at_one_place = (turn(q, VIDEO) * turn(k, VIDEO)).sum(-1)
    assert float(at_one_place.std()) > 0.1  # a rotation would leave q . k


def test_hunyuan_vl_does_not_rotate_images():
    """Sections count pairs and are laid over all channels, so c and c + D/2 read two axes. Text,
    with one number on all axes, is turned as by RoPE. vLLM lays them over the pairs: "chunked"."""
    own = module("hunyuan_vl")
    parameters = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [16, 24, 24]}
    config = own.HunYuanVLTextConfig(
        hidden_size=256, num_attention_heads=2, head_dim=128, rope_parameters=parameters
    )
    embedding = own.HunYuanVLRotaryEmbedding(config)

    def turn(x, ids):
        cos, sin = embedding(x, ids.T[:, None])
        return turned(x, cos[0], sin[0], "half")

    require_no_rotation(turn)
    text, x = torch.arange(9)[:, None].expand(-1, 3), drawn(0, 1, 2, 9, 128)
    same(wn.MultimodalRoPE(128, (16, 24, 24)), text, x, turn(x, text))


def test_v_jepa_2_does_not_rotate():
    """Tables for pairs (c, c + D/2), applied to the pairs (2c, 2c + 1)."""
    rotate = module("vjepa2").rotate_queries_or_keys

    def turn(x, ids):
        blocks = zip(x.split((44, 42, 42), -1), ids.T.float(), strict=True)
        return torch.cat([rotate(block, p[None, None]) for block, p in blocks], -1)

    require_no_rotation(turn)
