"""Against Hugging Face transformers: the modules that its models are built of.

Axes: B batch, H heads, S tokens or queries, T keys, D head_dim, E model dim.
"""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import whereness as wn
from peers.support import angle_error, drawn, explained, pair_sizes, spread

pytestmark = pytest.mark.more

POSITIONS = [
    torch.arange(40)[None],
    torch.tensor([[0, 3, 3, 90, 7], [2000, 1, 0, 500, 4095]]),
]
each_positions = pytest.mark.parametrize("positions", POSITIONS, ids=["counted", "own"])


def turned_alike(ours, theirs, x, positions, pairing, base, width):
    """(B, H, S, D) of both, within what their float32 angles explain."""
    assert_close(ours[..., width:], theirs[..., width:], rtol=0, atol=0)
    for row, ids in enumerate(positions.numpy()):
        size = spread(pair_sizes(x[row], pairing, width), pairing)
        error = spread(angle_error(ids, base, width), pairing)
        explained(ours[row, ..., :width], theirs[row, ..., :width], error, size)


@each_positions
@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
def test_llama_turns_halves(positions, base):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        rope_parameters={"rope_type": "default", "rope_theta": base},
    )
    batch, length = positions.shape
    q, k = drawn(0, batch, 4, length, 64), drawn(1, batch, 2, length, 64)
    theirs = apply_rotary_pos_emb(q, k, *LlamaRotaryEmbedding(config)(q, positions))
    ours = wn.RoPE(64, base)(q, k, positions)
    for mine, other, x in zip(ours, theirs, (q, k), strict=True):
        turned_alike(mine, other, x, positions, "half", base, 64)
    other_pairing = wn.RoPE(64, base, "interleaved").rotate(q, positions)
    assert (other_pairing - theirs[0]).abs().max() > 0.5


@each_positions
def test_cohere_turns_neighbours(positions):
    from transformers import CohereConfig
    from transformers.models.cohere.modeling_cohere import (
        CohereRotaryEmbedding,
        apply_rotary_pos_emb,
    )

    config = CohereConfig(
        hidden_size=128,
        num_attention_heads=4,
        rope_parameters={"rope_type": "default", "rope_theta": 75_000.0},
    )
    batch, length = positions.shape
    q, k = drawn(0, batch, 4, length, 32), drawn(1, batch, 4, length, 32)
    theirs = apply_rotary_pos_emb(q, k, *CohereRotaryEmbedding(config)(q, positions))
    ours = wn.RoPE(32, 75_000.0, "interleaved")(q, k, positions)
    for mine, other, x in zip(ours, theirs, (q, k), strict=True):
        turned_alike(mine, other, x, positions, "interleaved", 75_000.0, 32)


@each_positions
def test_gpt_j_turns_the_first_neighbours(positions):
    from transformers.models.gptj.modeling_gptj import (
        apply_rotary_pos_emb,
        create_sinusoidal_positions,
    )

    batch, length = positions.shape
    x = drawn(0, batch, 4, length, 32)
    sin, cos = create_sinusoidal_positions(4096, 16)[positions].split(8, -1)
    tokens_first = x.transpose(1, 2)  # theirs is (B, S, H, D)
    turned = apply_rotary_pos_emb(tokens_first[..., :16], sin, cos)
    theirs = torch.cat([turned, tokens_first[..., 16:]], -1).transpose(1, 2)
    ours = wn.RoPE(32, pairing="interleaved", rotary_dim=16).rotate(x, positions)
    turned_alike(ours, theirs, x, positions, "interleaved", 10_000.0, 16)


@each_positions
def test_gpt_neox_turns_a_quarter_of_the_head(positions):
    from transformers import GPTNeoXConfig
    from transformers.models.gpt_neox.modeling_gpt_neox import (
        GPTNeoXRotaryEmbedding,
        apply_rotary_pos_emb,
    )

    config = GPTNeoXConfig(
        hidden_size=256,
        num_attention_heads=4,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.25,
        },
    )
    batch, length = positions.shape
    q, k = drawn(0, batch, 4, length, 64), drawn(1, batch, 4, length, 64)
    theirs = apply_rotary_pos_emb(q, k, *GPTNeoXRotaryEmbedding(config)(q, positions))
    ours = wn.RoPE(64, rotary_dim=16)(q, k, positions)
    for mine, other, x in zip(ours, theirs, (q, k), strict=True):
        turned_alike(mine, other, x, positions, "half", 10_000.0, 16)


def test_llama_in_bfloat16_is_rounded_more_often_than_ours():
    """Theirs rounds cos, sin, both products and the sum; ours the result alone."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    rotary = LlamaRotaryEmbedding(LlamaConfig(hidden_size=128, num_attention_heads=2))
    x, positions = drawn(0, 1, 2, 200, 64).bfloat16(), torch.arange(200)[None]
    theirs, _ = apply_rotary_pos_emb(x, x, *rotary(x, positions))
    exact = wn.RoPE(64).rotate(x.double(), positions)
    ours = wn.RoPE(64).rotate(x, positions)
    size = x.abs().max().item()
    assert (theirs.double() - exact).abs().max() <= 4 * 2.0**-8 * size
    assert (ours.double() - exact).norm() < 0.75 * (theirs.double() - exact).norm()


BUCKETS = [(32, 128), (64, 256), (320, 800), (8, 20), (20, 160), (12, 100)]


@pytest.mark.parametrize("sizes", BUCKETS, ids=str)
@pytest.mark.parametrize("both", [False, True])
def test_t5_buckets(sizes, both):
    from transformers.models.t5.modeling_t5 import T5Attention

    offsets = torch.arange(-2000, 2001)
    theirs = T5Attention._relative_position_bucket(offsets, both, *sizes)
    assert_close(wn.T5(1, *sizes, both).buckets(offsets), theirs, rtol=0, atol=0)


@pytest.mark.parametrize("decoder", [False, True])
@pytest.mark.parametrize("past", [0, 5])
def test_t5_bias(decoder, past):
    attention, ours = t5_attention(decoder)
    theirs = attention.compute_bias(3, 3 + past, past_seen_tokens=past)[0]
    found = ours.bias(torch.arange(past, past + 3), torch.arange(3 + past))
    assert_close(found, theirs, rtol=0, atol=0)


def t5_attention(decoder: bool):
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(
        d_model=32, d_kv=8, num_heads=4, is_decoder=decoder, dropout_rate=0.0, use_cache=False
    )
    config._attn_implementation = "eager"
    attention = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    ours = wn.T5(4, bidirectional=not decoder)
    with torch.no_grad():
        attention.relative_attention_bias.weight.normal_()
        ours.table.copy_(attention.relative_attention_bias.weight)
    return attention, ours


@pytest.mark.parametrize("decoder", [False, True])
def test_a_whole_t5_attention(decoder):
    """Unscaled products, and one table for all heads of a layer."""
    attention, encoding = t5_attention(decoder)
    layer = wn.Attention(32, 4, encoding, causal=decoder)
    names = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o"}
    with torch.no_grad():
        for ours, theirs in names.items():
            getattr(layer, ours).weight.copy_(getattr(attention, theirs).weight)
    x = drawn(0, 2, 150, 32)
    mask = None
    if decoder:
        mask = torch.full((150, 150), torch.finfo(torch.float32).min).triu(1)[None, None]
    theirs = attention(x, mask=mask)[0]
    assert_close(layer(x), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_heads", [1, 2, 6, 8, 12, 16, 20, 32, 71])
def test_bloom_adds_slope_times_key_position(num_heads):
    """Theirs is ours plus slope * query position: the same for all keys of a row, so the same
    attention. They count real tokens from 0, pads having 0."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    theirs = build_alibi_tensor(mask, num_heads, torch.float32).view(2, num_heads, 1, 5)
    positions = wn.positions.from_mask(mask)
    ours = wn.ALiBi(num_heads).bias(positions, positions)
    slopes = wn.ALiBi(num_heads).slopes.double().view(-1, 1, 1)
    for row, start in ((0, 0), (1, 2)):
        real = positions[row, start:].double()
        expected = theirs[row, :, :, start:].double() - slopes * real[:, None]
        found = ours[row, :, start:, start:].double()
        seen = torch.ones_like(found, dtype=torch.bool).tril()  # BLOOM is causal
        assert_close(found[seen], expected[seen], rtol=0, atol=4 * 16 * 2.0**-24)
    if num_heads == 8:
        assert (found - expected)[~seen].abs().max() > 0.1  # there ours is symmetric


@pytest.mark.parametrize("num_heads", [1, 2, 6, 8, 12, 16, 20, 32, 71])
def test_mpt_has_the_last_row(num_heads):
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    theirs = build_mpt_alibi_tensor(num_heads, 9)
    line = torch.arange(9)
    ours = wn.ALiBi(num_heads).bias(line[-1:], line)
    assert_close(ours, theirs, rtol=2.0**-22, atol=0)


def test_bert_adds_its_table_at_the_input():
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertEmbeddings

    config = BertConfig(vocab_size=30, hidden_size=16, max_position_embeddings=20)
    theirs = BertEmbeddings(config).eval()
    ours = wn.LearnedAbsolute(16, 20)
    with torch.no_grad():
        ours.table.copy_(theirs.position_embeddings.weight)
    ids = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 1]])
    for positions in (torch.arange(4)[None], torch.tensor([[5, 19, 0, 2]])):
        words = theirs.word_embeddings(ids) + theirs.token_type_embeddings.weight[0]
        found = theirs.LayerNorm(ours.tokens(words, ours.prepare(positions)))
        expected = theirs(ids, position_ids=positions.expand(2, 4))
        assert_close(found, expected, rtol=0, atol=0)


def test_roberta_counts_from_the_row_after_that_of_pads():
    from transformers import RobertaConfig
    from transformers.models.roberta.modeling_roberta import RobertaEmbeddings

    config = RobertaConfig(
        vocab_size=30, hidden_size=16, max_position_embeddings=22, pad_token_id=1
    )
    theirs = RobertaEmbeddings(config).eval()
    ours = wn.LearnedAbsolute(16, 20, first_row=2)
    assert ours.table.shape == theirs.position_embeddings.weight.shape
    with torch.no_grad():
        theirs.position_embeddings.weight[1] = 0  # what training leaves it at
        ours.table.copy_(theirs.position_embeddings.weight)
    ids = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 2, 1, 1]])
    positions = wn.positions.from_mask(ids != 1)
    words = theirs.word_embeddings(ids) + theirs.token_type_embeddings.weight[0]
    found = theirs.LayerNorm(ours.tokens(words, ours.prepare(positions)))
    assert_close(found, theirs(ids), rtol=0, atol=0)


@pytest.mark.parametrize("length", [50, 1000])
def test_sinusoids_of_marian_and_xlm(length):
    """Both are computed in numpy's float64 and rounded once, as ours are: equal to the last digit
    but for the rounding of 10000^x."""
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
    from transformers.models.xlm.modeling_xlm import create_sinusoidal_embeddings

    line = torch.arange(length)
    marian = MarianSinusoidalPositionalEmbedding(length, 32).create_weight()
    assert_close(wn.Sinusoidal(32, order="sin_cos")(line), marian, rtol=0, atol=2.0**-24)
    xlm = create_sinusoidal_embeddings(length, 32, torch.empty(length, 32))
    assert_close(wn.Sinusoidal(32)(line), xlm, rtol=0, atol=2.0**-24)


@pytest.mark.parametrize("length", [50, 1000])
def test_sinusoids_of_m2m100_and_musicgen(length):
    """tensor2tensor's exponent, in float32; M2M-100 numbers tokens from padding_idx + 1."""
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
    from transformers.models.musicgen.modeling_musicgen import MusicgenSinusoidalPositionalEmbedding

    line = torch.arange(length)
    ids = line.numpy()
    # Their angle: an exponential, of a product that was rounded, and a product in float32.
    frequencies = 10_000.0 ** (-np.arange(16) / 15)
    error = ids[:, None] * frequencies * (3 + np.log(10_000.0)) * 2.0**-24
    error = np.concatenate([error, error], -1)
    m2m = M2M100SinusoidalPositionalEmbedding.get_embedding(length, 32)
    explained(wn.Sinusoidal(32, order="sin_cos", exponent="dim-2")(line), m2m, error, 1.0)
    music = MusicgenSinusoidalPositionalEmbedding.get_embedding(length, 32)
    explained(wn.Sinusoidal(32, order="cos_sin", exponent="dim-2")(line), music, error, 1.0)
    tokens = torch.tensor([[5, 6, 1]])  # 1 pads: its row is zeros, as that of no place is
    theirs = M2M100SinusoidalPositionalEmbedding(10, 32, padding_idx=1)(tokens)
    made = wn.Sinusoidal(32, order="sin_cos", exponent="dim-2")
    ours = made(torch.tensor([[2, 3, wn.NOWHERE]]))
    explained(ours[0], theirs[0], error[[2, 3, 3]], 1.0)
