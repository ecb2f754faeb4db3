"""The unbroken hosts are right: by loops and by what must not change the output."""

import math

import pytest
import torch

from auditor.faults import formulas, hosts, own

pytestmark = pytest.mark.untyped  # the hosts are no code of the library

NAMES = list(own.OWN)
TOKENS = torch.randint(hosts.VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(0))


def run(model, *args, **kwargs):
    with torch.no_grad():
        return model(*args, **kwargs)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk", [1, 3, 5])
def test_a_host_decodes_as_it_prefills(name, chunk):
    model = own.own(name).double()
    cache, parts = None, []
    for tokens in TOKENS.split(chunk, 1):
        part, cache = run(model, tokens, past_key_values=cache, use_cache=True)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 1), run(model, TOKENS).logits)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_pads_change_nothing(name, side):
    model, pad = own.own(name).double(), torch.zeros(2, 3, dtype=torch.long)
    order = (pad, TOKENS) if side == "left" else (TOKENS, pad)
    mask = torch.cat([torch.ones_like(t) if t is TOKENS else t for t in order], 1)
    padded = run(model, torch.cat(order, 1), attention_mask=mask).logits
    torch.testing.assert_close(padded[mask.bool()], run(model, TOKENS).logits.flatten(0, 1))


@pytest.mark.parametrize("name", NAMES)
def test_packed_documents_equal_the_same_alone(name):
    model = own.own(name).double()
    ids = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]])
    document = torch.tensor([0] * 5 + [1] * 7)
    seen = (document[:, None] == document).tril()[None, None]
    packed = run(model, TOKENS[:1], attention_mask=seen, position_ids=ids).logits
    alone = [run(model, t).logits for t in TOKENS[:1].split([5, 7], 1)]
    torch.testing.assert_close(packed, torch.cat(alone, 1))


@pytest.mark.parametrize("name", NAMES)
def test_only_what_is_added_to_embeddings_feels_an_even_shift(name):
    model = own.own(name).double()
    at = torch.arange(12)[None]
    moved = run(model, TOKENS, position_ids=at + 7).logits - run(model, TOKENS).logits
    assert (moved.abs().max() > 1e-3) == (model.rules.added is not None)


def test_a_pair_turns_by_its_speed_and_the_rest_stays():
    layer = own.own("own partial").double().layers[0].self_attn
    x = torch.randn(1, 1, 1, 16, dtype=torch.float64)
    turned = layer.rotate(x, torch.tensor([[3]]), torch.tensor([4]))[0, 0, 0]
    for i in range(4):
        angle = 3 * 10000 ** (-i / 4)
        u, v = x[0, 0, 0, i].item(), x[0, 0, 0, i + 4].item()
        assert math.isclose(turned[i], u * math.cos(angle) - v * math.sin(angle), rel_tol=1e-9)
        assert math.isclose(turned[i + 4], u * math.sin(angle) + v * math.cos(angle), rel_tol=1e-9)
    assert torch.equal(turned[8:], x[0, 0, 0, 8:])


def test_published_numbers():
    assert formulas.alibi_slopes(6) == [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    scaled = formulas.llama3_speeds(1e4, 16, 8.0, 64, 1.0, 4.0)
    ratio = [a / b for a, b in zip(scaled, formulas.speeds(1e4, 16), strict=True)]
    assert ratio == pytest.approx([1, 0.7728, 0.1304, *[0.125] * 5], abs=1e-4)
    assert formulas.yarn_speeds(1e4, 16, 4.0, 32)[1] == pytest.approx(0.19764, abs=1e-5)
    layer = own.own("own buckets").blocks()[0].self_attn
    distances = torch.tensor([-3, 0, 15, 16, 17, 20, 127, 500])
    assert layer.buckets(distances).tolist() == [0, 0, 15, 16, 16, 17, 31, 31]
