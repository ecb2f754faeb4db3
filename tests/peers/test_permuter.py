"""Against transformers' PermuteForRope: equal where it is right; where it is not, the scores tell.

Axes: H query heads, G key heads, D head_dim, R rotary_dim, S tokens, E model dim.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import whereness as wn

pytestmark = [pytest.mark.more, pytest.mark.untyped]

H, D, E, S = 4, 16, 6, 7
PLACES = torch.tensor([0, 1, 2, 5, 9, 40, 300])


def permuted(rows: torch.Tensor, inverse: bool = False) -> torch.Tensor:
    from transformers.core_model_loading import PermuteForRope

    config = SimpleNamespace(num_attention_heads=H)
    return PermuteForRope(inverse=inverse)._permute_for_rope(rows, config)


def drawn(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(sum(shape)).standard_normal(shape))


def scores(wq, wk, pairing: str, G: int = H, R: int = D, norm=None) -> torch.Tensor:
    """(H, S, S) of tokens x; q and k are normed per head first, if there is a norm."""
    x = drawn(S, E)
    q, k = ((x @ w.T).unflatten(-1, (-1, D)).transpose(0, 1)[None] for w in (wq, wk))
    if norm is not None:
        q, k = (torch.nn.functional.rms_norm(t, (D,), norm) for t in (q, k))
    q, k = wn.RoPE(D, 100.0, pairing, rotary_dim=R)(q, k, PLACES)
    return (q @ k.repeat_interleave(H // G, 1).transpose(-1, -2))[0]


def off(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("shape", [(H * D, E), (H * D,)])
def test_equal_where_every_head_is_a_query_head_that_turns_wholly(shape):
    rows = drawn(*shape)
    half = wn.convert_pairing(rows, H, D)
    assert torch.equal(permuted(rows), half)
    assert torch.equal(permuted(half, inverse=True), rows)


@pytest.mark.parametrize(("G", "R"), [(2, D), (1, D), (H, 8), (2, 8)])
def test_wrong_for_grouped_keys_and_for_a_part_of_a_head(G, R):
    wq, wk = drawn(H * D, E), drawn(G * D, E)
    before = scores(wq, wk, "interleaved", G, R)
    ours = [wn.convert_pairing(w, n, D, rotary_dim=R) for w, n in ((wq, H), (wk, G))]
    assert off(scores(*ours, "half", G, R), before) < 1e-12
    assert off(scores(permuted(wq), permuted(wk), "half", G, R), before) > 0.1


def test_wrong_for_a_fused_projection():
    G = 2
    fused = drawn((H + 2 * G) * D, E)

    def split(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return rows.split([H * D, G * D, G * D])

    (wq, wk, wv), (ours_q, ours_k, ours_v) = (
        split(fused),
        split(wn.convert_fused_qkv(fused, H, D, G)),
    )
    before = scores(wq, wk, "interleaved", G)
    assert off(scores(ours_q, ours_k, "half", G), before) < 1e-12
    assert torch.equal(ours_v, wv)
    q, k, v = split(permuted(fused))
    assert off(scores(q, k, "half", G), before) > 0.1
    assert not torch.equal(v, wv)


def test_wrong_for_the_norm_of_a_head():
    wq, wk, norm = drawn(H * D, E), drawn(H * D, E), drawn(D)
    before = scores(wq, wk, "interleaved", norm=norm)
    new = [wn.convert_pairing(w, H, D) for w in (wq, wk)]
    assert off(scores(*new, "half", norm=wn.convert_pairing(norm, 1, D)), before) < 1e-12
    assert off(scores(*new, "half", norm=permuted(norm)), before) > 0.1
    assert off(scores(*new, "half", norm=norm), before) > 0.1
