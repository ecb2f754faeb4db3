"""Sound models of every convention raise nothing; each planted fault is named by its kind."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from auditor import zoo
from auditor.faults.own import OWN, own
from auditor.small import HEAD_DIM, Model, Ways, speeds, turned
from auditor.subjects_of import bad, compared, config_of, kinds, read_out


def made(turn: Callable | None = turned, **ways: Any) -> Model:
    return Model(Ways(turn=turn, **ways))


@pytest.mark.parametrize("name", OWN)
def test_sound_hosts_raise_nothing(name):
    model = own(name)
    subject = read_out(model, model.config)
    assert [(f.check, f.kind, f.measured) for f in bad(subject)] == []
    read = {"spectrum", "bias", "table"} & compared(subject)
    assert read and "classification" in compared(subject)


SOUND: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "half": (made, config_of()),
    "interleaved": (
        lambda: made(partial(turned, pairing="interleaved")),
        config_of(model_type="cohere"),
    ),
    "leading part": (
        lambda: made(partial(turned, rates=speeds(width=4))),
        config_of(model_type="stablelm", partial_rotary_factor=0.5),
    ),
    "trailing part": (
        lambda: made(partial(turned, rates=speeds(width=4), start=4, pairing="interleaved")),
        config_of(model_type="deepseek_v2", qk_nope_head_dim=4, qk_rope_head_dim=4),
    ),
    "grouped": (lambda: made(projections="grouped"), config_of(num_key_value_heads=2)),
    "fused": (lambda: made(projections="fused"), config_of()),
    "normed": (lambda: made(normed=True), config_of(model_type="qwen3")),
    "no ids": (lambda: made(takes_ids=False), config_of()),
    "both ways": (lambda: made(causal=False), config_of()),
    "base of a million": (
        lambda: made(partial(turned, rates=speeds(1e6))),
        config_of(rope_theta=1e6),
    ),
    "linear": (
        lambda: made(partial(turned, rates=speeds() / 4)),
        config_of(rope_scaling={"rope_type": "linear", "factor": 4.0}),
    ),
    "amplitude": (
        lambda: made(partial(turned, amplitude=1.25)),
        config_of(
            rope_scaling={
                "rope_type": "longrope",
                "short_factor": [1.0] * 4,
                "long_factor": [1.0] * 4,
                "original_max_position_embeddings": 512,
                "attention_factor": 1.25,
            },
            model_type="phi3",
            original_max_position_embeddings=512,
        ),
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_models_raise_nothing(name):
    make, config = SOUND[name]
    subject = read_out(make(), config)
    assert [(f.check, f.kind, f.measured) for f in bad(subject) if f.check != "CHK3"] == []
    assert {"spectrum", "width", "classification"} <= compared(subject)


def test_a_sound_model_in_bfloat16_raises_nothing():
    """Its weights are rounded; its tables are not."""
    subject = read_out(made().bfloat16(), config_of())
    assert bad(subject) == []


def bf16_positions(x: Tensor, positions: Tensor) -> Tensor:
    return turned(x, positions.bfloat16())


def int16_positions(x: Tensor, positions: Tensor) -> Tensor:
    return turned(x, positions.to(torch.int16))


def mixed_layout(x: Tensor, positions: Tensor) -> Tensor:
    """The table is made for halves, and neighbours are turned."""
    angles = (positions[:, None, :, None].double() * torch.cat([speeds(), speeds()])).to(x.dtype)
    other = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return x * angles.cos() + other * angles.sin()


def one_head(x: Tensor, positions: Tensor) -> Tensor:
    return torch.cat([turned(x[:, :1], positions), x[:, 1:]], 1)


def added(x: Tensor, positions: Tensor) -> Tensor:
    return x + positions[:, None, :, None].to(x.dtype).sin()


def growing(x: Tensor, positions: Tensor) -> Tensor:
    return turned(x, positions) * (1 + 0.01 * positions[:, None, :, None].clamp(max=60)).to(x.dtype)


FAULTS: dict[str, tuple[str, Callable[[], nn.Module], dict[str, Any]]] = {
    "wrong base": ("K02", lambda: made(partial(turned, rates=speeds(5e5))), config_of()),
    "base off in the last digit": (
        "K02",
        lambda: made(partial(turned, rates=speeds(10_001.0))),
        config_of(),
    ),
    "scaling ignored": (
        "K02",
        made,
        config_of(rope_scaling={"rope_type": "linear", "factor": 2.0}),
    ),
    "scaled twice": (
        "K02",
        lambda: made(partial(turned, rates=speeds() / 16)),
        config_of(rope_scaling={"rope_type": "linear", "factor": 4.0}),
    ),
    "turned twice": (
        "K23",
        lambda: made(lambda x, p: turned(turned(x, p), p)),
        config_of(),
    ),
    "turned backwards": ("K01", lambda: made(lambda x, p: turned(x, -p)), config_of()),
    "other pairing": (
        "K01",
        lambda: made(partial(turned, pairing="interleaved")),
        config_of(),
    ),
    "mixed layout": ("K01", lambda: made(mixed_layout), config_of()),
    "half of the width": (
        "K03",
        lambda: made(partial(turned, rates=speeds(width=4))),
        config_of(),
    ),
    "whole width": (
        "K03",
        made,
        config_of(model_type="stablelm", partial_rotary_factor=0.5),
    ),
    "exponents of the head": (
        "K03",
        lambda: made(partial(turned, rates=speeds(width=8)[:2])),
        config_of(model_type="stablelm", partial_rotary_factor=0.5),
    ),
    "trailing for leading": (
        "K03",
        lambda: made(partial(turned, rates=speeds(width=4), start=4)),
        config_of(model_type="stablelm", partial_rotary_factor=0.5),
    ),
    "one head only": ("K03", lambda: made(one_head), config_of()),
    "amplitude of 1.13": ("K04", lambda: made(partial(turned, amplitude=1.13)), config_of()),
    "amplitude left out": (
        "K04",
        made,
        SOUND["amplitude"][1],
    ),
    "growing": ("K04", lambda: made(growing), config_of()),
    "frequencies in bfloat16": (
        "K06",
        lambda: made(partial(turned, rates=speeds().bfloat16().double())),
        config_of(),
    ),
    "frequencies in float16": (
        "K06",
        lambda: made(partial(turned, rates=speeds().half().double())),
        config_of(),
    ),
    "positions in bfloat16": ("K06", lambda: made(bf16_positions), config_of()),
    "positions in int16": ("K06", lambda: made(int16_positions), config_of()),
    "only queries": ("K23", lambda: made(turn_keys=lambda x, p: x), config_of()),
    "never turned": ("K23", lambda: made(None), config_of()),
    "turned where it should not": (
        "K23",
        made,
        config_of(model_type="smollm3", no_rope_layers=[1, 0]),
    ),
    "keys one ahead": ("K13", lambda: made(turn_keys=lambda x, p: turned(x, p**2)), config_of()),
    "ids ignored": ("K13", lambda: made(takes_ids=False), config_of()),
    "ids of the first row": (
        "K13",
        lambda: made(lambda x, p: turned(x, p[:1].expand(p.shape))),
        config_of(),
    ),
    "something added to queries": ("K14", lambda: made(added), config_of()),
    "a bias nobody asked for": ("K18", lambda: made(slope=1.0), config_of()),
    "slopes of another recipe": (
        "K17",
        lambda: made(None, slope=1.0),
        {"model_type": "bloom", "n_head": 4, "n_layer": 2, "hidden_size": 32},
    ),
    "no bias": (
        "K17",
        lambda: made(None),
        {"model_type": "bloom", "n_head": 4, "n_layer": 2, "hidden_size": 32},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_named(name):
    """By their kind; nothing is named twice, though every layer has the fault."""
    kind, make, config = FAULTS[name]
    subject = read_out(make(), config)
    found = bad(subject)
    assert kind in kinds(subject), [(f.check, f.kind, f.measured, f.cause) for f in found]
    by_layer = [(f.check, f.kind, f.layer, f.where, f.cause) for f in found]
    assert len(by_layer) == len(set(by_layer))


def test_only_the_broken_layer_is_named():
    model = made()
    model.blocks[1].ways = Ways(turn=partial(turned, rates=speeds(5e5)))
    found = bad(read_out(model, config_of()))
    assert [(f.kind, f.layer) for f in found] == [("K02", 1)]
    assert "500000" in found[0].cause


def test_a_layer_with_the_spectrum_of_another_type_is_told():
    config = config_of(
        model_type="gemma3_text",
        layer_types=["full_attention", "sliding_attention"],
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        sliding_window=64,
    )
    model = made(partial(turned, rates=speeds(1e6)))
    found = [f for f in bad(read_out(model, config)) if f.check == "CHK1"]
    assert [(f.kind, f.layer) for f in found] == [("K02", 1)]
    assert "layers of another type" in found[0].cause


@pytest.mark.parametrize("heads", [4, 6])
def test_slopes_of_other_head_counts_are_compared(heads):
    name = "own alibi" if heads == 4 else "own alibi of 6"
    model = own(name)
    slopes = [2 ** (-8 * (h + 1) / heads) for h in range(heads)]  # one series whatever the number
    for block in model.layers:
        block.self_attn.slopes = lambda: torch.tensor(slopes)
    assert ("K17" in kinds(read_out(model, model.config))) == (heads == 6)


def test_reports_say_what_was_measured():
    subject = read_out(made(partial(turned, rates=speeds(5e5))), config_of())
    (first, _) = subject.report.layers
    assert (first.where, first.index, first.classified) == ("blocks.0", 0, "relative")
    assert (first.pairing, first.rotary_dim) == ("half", HEAD_DIM)
    assert first.speeds == pytest.approx(speeds(5e5).tolist(), rel=1e-6)
    assert first.expected_speeds == pytest.approx(speeds().tolist(), rel=1e-9)
    assert first.amplitudes == pytest.approx([1.0] * 4)
    assert first.expected_amplitude == pytest.approx(1.0)
    assert first.expected == "RoPE(head_dim=8, base=10000, pairing='half')"


def test_without_a_config_nothing_is_expected():
    subject = read_out(made(partial(turned, rates=speeds(5e5))))
    assert bad(subject) == []
    assert "spectrum" not in compared(subject)
    assert any("no config" in each.why for each in subject.report.not_checked)


@pytest.mark.parametrize("broken", ["mixed layout"])
def test_what_is_no_rotation_is_told_without_a_config(broken):
    _, make, _ = FAULTS[broken]
    assert kinds(read_out(make())) == {"K01"}


def test_xpos_is_seen_to_grow():
    import whereness as wn

    encoding = wn.XPos(HEAD_DIM)

    class XPos(Model):
        def __init__(self) -> None:
            super().__init__(Ways())
            for block in self.blocks:
                block.projected = self.decayed(block.projected)
                block.ways = Ways(turn=None)

        def decayed(self, before):
            def projected(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
                q, k, v = before(x)
                return *encoding(q, k), v

            return projected

    from auditor.subjects_of import subject_of
    from whereness.auditor.reading.capture import observe

    for view in observe(subject_of(XPos())):
        q, k = view.near
        zeta = encoding.zeta[0].item()
        at = view.near[0].turning.positions[-1]
        assert float(q.turning.growth[0, 0, -1]) == pytest.approx(zeta ** (at / 512), rel=1e-5)
        assert float(k.turning.growth[0, 0, -1]) == pytest.approx(zeta ** (-at / 512), rel=1e-5)
        assert view.classified == "relative"


# Models of transformers ---------------------------------------------------------------------------

MODELS = [
    "llama",
    "gpt_neox",
    "gptj",
    "phi",
    "gemma2",
    "gemma3_text",
    "qwen2",
    "mistral",
    "falcon",
    "mpt",
    "bloom",
    "t5",
    "bert",
    "roberta",
    "gpt2",
    "opt",
    "deepseek_v2",
    "deepseek_v3",
    "cohere",
    "olmo2",
    "gpt_oss",
    "llama4_text",
    "modernbert",
    "esm",
    "smollm3",
    "starcoder2",
    "mixtral",
    "whisper",
    "phi3",
    "codegen",
]


@pytest.mark.more
@pytest.mark.parametrize("name", MODELS)
def test_transformers_models_raise_nothing(name):
    model, config = zoo.build(name)
    subject = read_out(model, config.to_dict())
    assert [(f.check, f.kind, f.measured) for f in bad(subject)] == []
    assert {"spectrum", "bias", "table"} & compared(subject)
    assert all(view.classified != "unknown" for view in subject.shared["observed"])


@pytest.mark.more
@pytest.mark.parametrize("name", MODELS)
def test_transformers_models_raise_nothing_in_float32(name, monkeypatch):
    def refused(model):
        from whereness.auditor.driving.drive import Refused

        raise Refused("float32 only")

    monkeypatch.setattr("whereness.auditor.reading.capture.in_float64", refused)
    model, config = zoo.build(name)
    subject = read_out(model, config.to_dict())
    assert not subject.shared["observed"].exact
    assert [(f.check, f.kind, f.measured) for f in bad(subject)] == []
