"""Sound models of every class: the probes look, find nothing, and put everything back."""

import pytest
import torch
from torch import nn

import whereness as wn
from auditor.probes import PROBES, bad, looked, own
from auditor.test_restore import state
from whereness.auditor.checks import CHECKS

IDS = {check.module: check.id for check in CHECKS if check.module in PROBES}
HOSTS = (
    "own rotary",
    "own interleaved",
    "own alibi",
    "own buckets",
    "own learned",
    "own sinusoidal",
    "own window",
    "own nope",
)
FEW = ("own rotary", "own learned")
MANY = [pytest.param(n, marks=() if n in FEW else pytest.mark.more) for n in HOSTS]


def test_every_probe_is_in_the_list_of_checks():
    assert set(IDS) == set(PROBES)
    order = [check.module for check in CHECKS if check.module in PROBES]
    assert tuple(order) == PROBES  # state first: large ids hide what it looks for


@pytest.mark.parametrize("host", MANY)
def test_a_sound_host_is_looked_at_and_nothing_is_found(host):
    model = own(host)
    before = state(model)
    report = looked(model, *PROBES)
    assert not bad(report)
    compared = {each.check for each in report.compared}
    told = compared | {each.check for each in report.not_checked}
    assert told == set(IDS.values())
    assert compared >= {IDS[n] for n in ("state", "cache", "masks", "pads", "packs", "paths")}
    assert state(model) == before


ENCODINGS = {
    "rope": lambda: wn.RoPE(8),
    "alibi": lambda: wn.ALiBi(4),
    "t5": lambda: wn.T5(4, 8, 16),
    "sinusoidal": lambda: wn.Sinusoidal(32),
    "nope": wn.NoPE,
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "rope" else pytest.mark.more) for n in ENCODINGS]
)
def test_the_librarys_own_decoder_is_sound(name):
    torch.manual_seed(0)
    model = wn.Transformer(50, 32, 2, 4, ENCODINGS[name](), num_kv_heads=4).eval()
    report = looked(model, *PROBES)
    assert not report.of("error")
    said = {each.what for each in report.compared}
    assert said >= {"state", "cache", "keys seen", "pads left", "steps after pads", "shards"}
    assert said >= {"packing by documents", "packing by a mask"}


@pytest.mark.parametrize("batch_first", [False, True])
def test_torchs_own_encoder_is_sound(batch_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 48, 0.1, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    report = looked(model, *PROBES)
    assert not bad(report)
    said = {each.what for each in report.compared}
    assert said >= {"state", "pads left", "pads right", "packing by a mask", "paths"}


class Raises(nn.Module):
    """A sound model until its n-th forward pass."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.inner, self.calls = own("own rotary"), calls
        self.count = [0]

    def forward(
        self,
        input_ids,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        use_cache=False,
    ):
        COUNT[0] += 1
        self.seen = COUNT[0]
        if COUNT[0] > self.calls:
            raise RuntimeError("no more")
        return self.inner(input_ids, attention_mask, position_ids, past_key_values, use_cache)


COUNT = [0]


@pytest.mark.parametrize("calls", [1, 2, 5, 11, 23])
def test_a_model_that_raises_in_the_middle_is_put_back(calls):
    model = Raises(calls)
    COUNT[0] = 0
    before = state(model)
    report = looked(model, *PROBES)
    assert COUNT[0] > calls
    assert state(model) == before
    assert any("no more" in each.why for each in report.not_checked)


def test_a_model_that_cannot_be_fed_is_not_checked_by_any_probe():
    class Closed(nn.Module):
        def forward(self, thing):
            raise ValueError(thing is None)

    report = looked(Closed(), *PROBES)
    assert not report.findings
    assert not report.compared
    assert {each.check for each in report.not_checked} == set(IDS.values())


ARCHITECTURES = (
    "llama",
    "gpt2",
    "bloom",
    "t5",
    "bert",
    "gpt_neox",
    "opt",
    "gemma2",
    "qwen2",
    "mistral",
    "phi",
    "falcon",
    "mpt",
    "roberta",
    "mixtral",
    "phi3",
    "gptj",
    "olmo2",
    "xlm-roberta",
    "bart",
    "vit",
)


@pytest.mark.more
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_models_of_transformers_raise_no_false_alarm(name):
    from auditor import zoo

    if name not in zoo.ARCHITECTURES:
        pytest.fail(f"{name} is no more in the zoo")
    model = zoo.build(name)[0]
    before = state(model)
    report = looked(model, *PROBES)
    assert not report.of("error")
    assert state(model) == before
    if "past_key_values" in model.forward.__code__.co_varnames and name not in ("bert", "roberta"):
        assert report.compared
