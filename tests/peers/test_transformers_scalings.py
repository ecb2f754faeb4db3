"""compat="huggingface": the bits of Hugging Face's models, scaling by scaling.

Axes: B batch, H heads, S tokens, D head_dim, P pairs.
"""

import random

import pytest
import torch
from torch.testing import assert_close

import whereness as wn
from peers.support import drawn
from rotary.scaled import exact

pytestmark = pytest.mark.more

S = wn.scaling
SHORT, LONG = ([1 + s * random.Random(n).random() for n in range(32)] for s in (1, 20))


def yarn(length: int = 64, factor: float = 4.0, **options: object) -> tuple[dict, S.Scaling]:
    theirs = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length}
    return {**theirs, **options}, S.YaRN(factor, length, school="huggingface", **options)


SCALINGS: dict[str, tuple[dict, S.Scaling | None]] = {
    "default": ({"rope_type": "default"}, None),
    "linear": ({"rope_type": "linear", "factor": 2.7}, S.Linear(2.7)),
    "dynamic": ({"rope_type": "dynamic", "factor": 3.7}, S.DynamicNTK(3.7, 64)),
    "yarn": yarn(),
    "yarn-wide": yarn(4096, 32.0),
    "yarn-untruncated": yarn(4096, 32.0, truncate=False, beta_fast=20.0, beta_slow=2.0),
    "yarn-mscales": yarn(4096, 40.0, mscale=0.707, mscale_all_dim=1.0),
    "yarn-one-mscale": yarn(4096, 40.0, mscale=0.707),
    "yarn-attention": yarn(4096, 40.0, attention_factor=1.25),
    "yarn-off": yarn(4096, 40.0, attention_factor=1.0),
    "longrope": (
        {
            "rope_type": "longrope",
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "short_factor": SHORT,
            "long_factor": LONG,
        },
        S.LongRoPE(SHORT, LONG, 64, factor=8.0),
    ),
    "llama3": (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 2048,
        },
        S.Llama3(8.0, 1.0, 4.0, 2048),
    ),
    "proportional": (
        {"rope_type": "proportional", "partial_rotary_factor": 0.25},
        S.Proportional(0.25),
    ),
    "proportional-divided": (
        {"rope_type": "proportional", "partial_rotary_factor": 0.3, "factor": 1.7},
        S.Proportional(0.3, 1.7),
    ),
}


def llama(parameters: dict, base: float, width: int = 64):
    """Their rotary module of heads of `width`, for 64 tokens where nothing else is said."""
    import transformers
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    transformers.logging.set_verbosity_error()  # it warns of sizes that are small
    return LlamaRotaryEmbedding(
        transformers.LlamaConfig(
            hidden_size=256,
            num_attention_heads=4,
            head_dim=width,
            max_position_embeddings=64,
            rope_parameters={"rope_theta": base, **parameters},
        )
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("length", [64, 65, 3000], ids="{} tokens".format)
@pytest.mark.parametrize("base", [10_000.0, 123_457.0])
@pytest.mark.parametrize("name", SCALINGS)
def test_every_bit_is_theirs(name, base, length, dtype):
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    parameters, scaling = SCALINGS[name]
    theirs = llama(parameters, base)
    q, k = drawn(0, 2, 4, length, 64).to(dtype), drawn(1, 2, 2, length, 64).to(dtype)
    positions = torch.arange(length)[None]
    expected = apply_rotary_pos_emb(q, k, *theirs(q, positions))
    ours = wn.RoPE(64, base, scaling=scaling, compat="huggingface")
    for where in (None, positions, wn.Where(positions, lengths=length)):
        for found, other in zip(ours(q, k, where), expected, strict=True):
            assert found.dtype == dtype
            assert_close(found, other, rtol=0, atol=0)
    frequencies = ours.frequencies_at(length)
    assert frequencies.dtype == torch.float64
    assert_close(frequencies, theirs.inv_freq.double(), rtol=0, atol=0)
    assert ours.amplitude == theirs.attention_scaling
    if length == 3000:  # what compat costs
        exact_turn = wn.RoPE(64, base, scaling=scaling).rotate(q.double())
        assert (ours.rotate(q.float()) - exact_turn).abs().max() > 1e-5


@pytest.mark.parametrize("name", [name for name in SCALINGS if name != "longrope"])
def test_every_frequency_is_theirs_where_the_width_is_no_power_of_two(name):
    parameters, scaling = SCALINGS[name]
    for width in (80, 96, 6):
        theirs = llama(parameters, 123_457.0, width)
        ours = wn.RoPE(width, 123_457.0, scaling=scaling, compat="huggingface").frequencies
        assert_close(ours, theirs.inv_freq.double(), rtol=0, atol=0)


@pytest.mark.parametrize("name", SCALINGS)
def test_without_compat_it_is_theirs_without_their_rounding(name):
    """The formula is the same: frequencies agree to float32."""
    parameters, scaling = SCALINGS[name]
    theirs = llama(parameters, 10_000.0)
    theirs(drawn(0, 1, 1, 200, 64), torch.arange(200)[None])
    ours = wn.RoPE(64, scaling=scaling).frequencies_at(200)
    assert_close(ours, theirs.inv_freq.double(), rtol=2.0**-20, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_glm_turns_the_first_half_of_neighbours(dtype):
    from transformers import GlmConfig
    from transformers.models.glm.modeling_glm import GlmRotaryEmbedding, apply_rotary_pos_emb

    config = GlmConfig(
        hidden_size=256,
        num_attention_heads=4,
        head_dim=64,
        rope_parameters={
            "rope_type": "linear",
            "factor": 3.0,
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.5,
        },
    )
    q, k = drawn(0, 2, 4, 500, 64).to(dtype), drawn(1, 2, 2, 500, 64).to(dtype)
    expected = apply_rotary_pos_emb(q, k, *GlmRotaryEmbedding(config)(q, torch.arange(500)[None]))
    ours = wn.RoPE(64, 10_000.0, "interleaved", 32, scaling=S.Linear(3.0), compat="huggingface")
    for found, other in zip(ours(q, k), expected, strict=True):
        assert_close(found, other, rtol=0, atol=0)


def test_cohere_turns_neighbours():
    """In float32: in a half type Cohere turns in float32 and rounds once, unlike Llama."""
    from transformers import CohereConfig
    from transformers.models.cohere.modeling_cohere import (
        CohereRotaryEmbedding,
        apply_rotary_pos_emb,
    )

    config = CohereConfig(
        hidden_size=256,
        num_attention_heads=4,
        rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 75_000.0},
    )
    q, k = drawn(0, 2, 4, 500, 64), drawn(1, 2, 2, 500, 64)
    positions = torch.arange(500)[None]
    expected = apply_rotary_pos_emb(q, k, *CohereRotaryEmbedding(config)(q, positions))
    ours = wn.RoPE(64, 75_000.0, "interleaved", scaling=S.Linear(3.0), compat="huggingface")
    for found, other in zip(ours(q, k), expected, strict=True):
        assert_close(found, other, rtol=0, atol=0)


def test_their_ramp_turns_round_where_every_pair_is_fast():
    """YaRN keeps pairs that turn often within the training length. Where its ramp would begin
    behind the last pair, theirs divides all of them instead."""
    parameters, scaling = yarn(32768)
    plain = wn.RoPE(64, 10.0).frequencies
    assert 32768 * plain[-1] / 6.2832 > 500  # even the slowest: the ramp begins at 32
    theirs = llama(parameters, 10.0).inv_freq.double()
    assert_close(theirs, plain / 4, rtol=1e-6, atol=0)
    ours = wn.RoPE(64, 10.0, scaling=scaling).frequencies
    assert_close(ours, plain, rtol=1e-15, atol=0)
    judge = torch.tensor([float(w) for w in exact(scaling, 10.0, 64)], dtype=torch.float64)
    assert_close(ours, judge, rtol=1e-14, atol=0)
