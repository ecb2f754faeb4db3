"""Rows at small sizes: their oracles agree with us, and a wrong contestant is caught."""

import subprocess
import sys

import pytest
import torch

import whereness as wn
from whereness.bench import attention, lab, memory, rotary
from whereness.bench.contest import OURS, AbsentError, Scale
from whereness.bench.registry import chosen

QUICK = Scale(quick=True)

OF_OURS = [
    *("rotary/in-place", "rotary/new", "rotary/form", "tables", "attention/forward"),
    *("attention/training", "lab/rope", "lab/learned"),
]
OF_PEERS = [
    *("rotary/transformers", "rotary/training", "rotary/decode", "rotary/x-transformers"),
    *("rotary/rotary-embedding-torch", "rotary/torchtune", "rotary/timm"),
]


def gates(row):
    return {c.name: c.gate() for c in row.make(QUICK)}


@pytest.mark.untyped
@pytest.mark.parametrize("row", chosen(OF_OURS), ids=lambda row: row.name)
def test_every_gate_is_green(row):
    found = gates(row)
    assert next(iter(found)) == OURS
    assert found[OURS].passed, found
    assert all(verdict.passed is not False for verdict in found.values()), found
    assert {bar.against for bar in row.bars} - {None} <= set(found)


@pytest.mark.more
@pytest.mark.parametrize("row", chosen(OF_PEERS), ids=lambda row: row.name)
def test_every_gate_of_a_peer_is_green(row):
    found = gates(row)
    assert len(found) == 2
    assert all(verdict.passed for verdict in found.values()), found


WRONG = [
    ("rotary/in-place/float32", 1.0 + 2.0**-20),
    ("rotary/in-place/bfloat16", 1.0 + 2.0**-7),
    ("rotary/new/float16", 1.0 + 2.0**-9),
    ("rotary/form/ids", 1.0 + 2.0**-20),
    ("rotary/form/fused", 1.0 + 2.0**-20),
    ("tables/numpy", 1.0 + 2.0**-20),
]


@pytest.mark.parametrize(("name", "factor"), WRONG)
def test_a_slightly_wrong_turn_is_caught(monkeypatch, name, factor):
    for method in ("rotate", "rotate_", "forward"):
        right = getattr(wn.RoPE, method)

        def wrong(self, *tensors, right=right, **options):
            found = right(self, *tensors, **options)
            with torch.no_grad():
                return (
                    [t.mul_(factor) for t in found]
                    if isinstance(found, tuple)
                    else found.mul_(factor)
                )

        monkeypatch.setattr(wn.RoPE, method, wrong)
    (row,) = chosen((name,))
    assert gates(row)[OURS].passed is False


@pytest.mark.parametrize("name", ["attention/forward/alibi", "attention/training/t5"])
def test_a_bias_of_the_neighbouring_offset_is_caught(monkeypatch, name):
    encoding = type(attention.encoding(name.rpartition("/")[2]))
    right = encoding.by_offset
    monkeypatch.setattr(encoding, "by_offset", lambda self, offset: right(self, offset - 1))
    (row,) = chosen((name,))
    if name.endswith("alibi"):  # one slope more on every key of a row changes nothing
        monkeypatch.setattr(encoding, "by_offset", lambda self, offset: right(self, offset) * 1.01)
    found = gates(row)
    assert found[OURS].passed is False
    assert found[attention.SDPA].passed


def test_a_gradient_that_is_missing_is_caught(monkeypatch):
    right = torch.autograd.grad

    def wrong(outputs, inputs, *rest):
        found = list(right(outputs, inputs, *rest))
        if len(found) > 3:
            found[3] = torch.zeros_like(found[3])
        return found

    monkeypatch.setattr(torch.autograd, "grad", wrong)
    (row,) = chosen(("attention/training/learned_relative",))
    assert gates(row)[OURS].passed is False


def test_the_oracle_of_attention_agrees_with_autograd():
    inputs = attention.drawn(13, gradients=True)
    bias = attention.strip("t5", attention.encoding("t5").table, 13)
    q, k, v = (t.detach().double().requires_grad_() for t in inputs[:3])
    line = torch.arange(13)
    dense = bias[:, (line[:, None] - line).clamp(min=0)].detach().requires_grad_()
    logits = (q @ k.transpose(-1, -2) / 8 + dense).masked_fill(line[:, None] < line, -torch.inf)
    out = logits.softmax(-1) @ v
    grads = torch.autograd.grad(out, (q, k, v, dense), inputs.grad.double())
    torch.testing.assert_close(attention.exact_rows(inputs, bias, range(13)), out[0].detach())
    for head in (0, 7):
        found, sums = attention.exact_gradients(inputs, bias, head)
        for mine, theirs in zip(found, grads[:3], strict=True):
            torch.testing.assert_close(mine, theirs[0, head])
        by_hand = [grads[3][head].diagonal(-n).sum() for n in range(13)]
        torch.testing.assert_close(sums, torch.stack(by_hand))


def test_memory_is_measured_in_a_process_of_its_own():
    try:
        found = memory.measured("alibi", 512, 1)
    except AbsentError:
        assert sys.platform != "linux"
        return
    assert found["error"] <= found["tolerance"]
    assert 0 <= found["extra"] < 2**28


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_counts_what_a_call_needs_and_frees():
    code = (
        "import torch\n"
        "from whereness.bench import memory\n"
        "right = memory.wn.attention\n"
        "def hungry(q, *rest, **options):\n"
        "    if q.shape[2] > 64: torch.ones(50 * 2**20 // 4).sum()\n"
        "    return right(q, *rest, **options)\n"
        "memory.wn.attention = hungry\n"
        "print(memory.measure('alibi', 256, 1)['extra'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 45 * 2**20 < int(done.stdout) < 70 * 2**20


def test_lab_rows_train(monkeypatch):
    step = lab.trainee("x", "rope", QUICK).run
    assert step() > step() - 1.0 > 0


def test_an_absent_peer_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(AbsentError, match="transformers cannot be imported"):
        rotary.hf_tables(torch.arange(2), torch.float32)
