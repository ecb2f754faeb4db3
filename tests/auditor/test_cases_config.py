"""Public reports whose fault shows in the files: each is planted in a config and found by its kind.

What is right beside each fault must be without it: a finding that is always there finds nothing.
"""

from pathlib import Path
from typing import Any

import pytest

from auditor.toys import config_file, kinds
from cases.support import CASES, case
from interop.toy import LLAMA3, YARN, config, scaled
from whereness.auditor.run import audit

DEFAULT = {"rope_type": "default", "rope_theta": 10_000.0}
TYPES = ["sliding_attention", "full_attention"]
LONG = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}


def told(target: Any, kind: str) -> list[str]:
    """What the static checks say of this kind, errors and warnings alone."""
    found = audit(target, checks=["config"]).findings
    return [f.measured for f in found if f.kind == kind and f.severity != "note"]


def noted(target: Any, kind: str) -> list[str]:
    """The same with the notes: where nothing is wrong yet, and ports are known to go wrong."""
    return [f.measured for f in audit(target, checks=["config"]).findings if f.kind == kind]


def nested(**rope: Any) -> dict[str, Any]:
    """A model of two layer types, this rope dict for the global one."""
    both = {"sliding_attention": DEFAULT, "full_attention": {"rope_theta": 500_000.0, **rope}}
    return config(
        model_type="olmo3",
        rope_theta=None,
        layer_types=TYPES,
        sliding_window=32,
        rope_parameters=both,
    )


def longer(rope: dict[str, Any]) -> dict[str, Any]:
    """A context of four times the length of pre-training."""
    return config(max_position_embeddings=256, rope_scaling=rope)


Faults = list[tuple[str, Any, Any]]
PLANTED: Faults = [
    # the case, the config with its fault, the same config without
    ("P015", config(rope_parameters={"rope_theta": 500_000.0}), config()),
    ("P016", config(rope_theta=None, rotary_emb_base=500_000.0), config()),
    ("P016", config(model_type="mistral4", rope_theta=None), None),
    ("P017", config(model_type="mixtral", rope_theta=None), config(model_type="mixtral")),
    ("P018", scaled(**{**LLAMA3, "rope_type": None}), longer(LLAMA3)),
    ("P018", scaled(**LLAMA3), longer(LLAMA3)),
    ("P020", nested(rope_type="default", factor=8.0), nested(rope_type="linear", factor=8.0)),
    ("P022", scaled(rope_type="linear", factor=1.0), scaled(rope_type="linear", factor=2.0)),
    ("P023", scaled(rope_type="yarn", factor=4.0), scaled(**{**YARN, "factor": 2.0})),
    ("P024", scaled(**YARN), scaled(**{**YARN, "factor": 2.0})),
    (
        "P029",
        scaled(**{**YARN, "factor": 2.0}, beta_fast=1.0, beta_slow=32.0),
        scaled(**{**YARN, "factor": 2.0}, beta_fast=32.0, beta_slow=1.0),
    ),
    (
        "P035",
        config(rope_scaling={**YARN, "factor": 2.0}, rope_parameters={**DEFAULT, "factor": 8.0}),
        config(rope_scaling={**YARN, "factor": 2.0}),
    ),
    (
        "P038",
        config(
            model_type="qwen2_vl_text",
            rope_scaling={"rope_type": "default", "mrope_section": [4, 6, 6]},
        ),
        config(
            model_type="qwen2_vl_text",
            rope_scaling={"rope_type": "default", "mrope_section": [2, 3, 3]},
        ),
    ),
    (
        "P039",
        config(model_type="glm", head_dim=16),
        config(model_type="glm", head_dim=16, partial_rotary_factor=0.5),
    ),
    ("P042", config(rotary_dim=8), config(rotary_dim=16)),
    (
        "P042",
        config(model_type="glm", head_dim=16, partial_rotary_factor=0.5, rotary_pct=0.25),
        config(model_type="glm", head_dim=16, partial_rotary_factor=0.5),
    ),
    ("P044", config(hidden_size=60, num_attention_heads=4), config()),
    (
        "P044",
        config(model_type="gpt_neox", rotary_pct=0.75, head_dim=None, hidden_size=16),
        config(model_type="gpt_neox", rotary_pct=0.5, head_dim=None, hidden_size=16),
    ),
    (
        "P046",
        {"model_type": "gptj", "n_embd": 64, "n_head": 16, "rotary_dim": 32},
        {"model_type": "gptj", "n_embd": 64, "n_head": 16, "rotary_dim": 4},
    ),
    (
        "P048",
        scaled(**{**YARN, "factor": 2.0}, mscale=0.707),
        scaled(**{**YARN, "factor": 2.0}, mscale=1.0, mscale_all_dim=0.5),
    ),
    (
        "P049",
        scaled(**{**YARN, "factor": 2.0}, mscale=1.0, mscale_all_dim=1.0),
        scaled(**{**YARN, "factor": 2.0}, mscale=1.0, mscale_all_dim=0.0),
    ),
    (
        "P051",
        scaled(**{**YARN, "factor": 2.0}, attention_factor=2.5),
        scaled(**{**YARN, "factor": 2.0}, attention_factor=1.0),
    ),
    (
        "P051",
        scaled(**{**YARN, "factor": 2.0}, attention_factor=1.0, mscale=0.7),
        scaled(**{**YARN, "factor": 2.0}, attention_factor=1.0),
    ),
    ("P213", nested(**{**YARN, "original_max_position_embeddings": None}), nested(**YARN)),
    ("P213", nested(**{**YARN, "betafast": 32}), nested(**YARN)),
    (
        "P214",
        scaled(rope_type="linear", type="dynamic", factor=2.0),
        scaled(rope_type="linear", type="linear", factor=2.0),
    ),
    ("P214", scaled(rope_type="long_rope", **LONG), None),
    (
        "P218",
        config(no_rope_layer_interval=4),
        config(model_type="smollm3", no_rope_layers=[1, 0]),
    ),
    (
        "P218",
        config(model_type="smollm3", no_rope_layers=[1]),
        config(model_type="smollm3", no_rope_layers=[1, 0]),
    ),
    (
        "P218",
        config(model_type="smollm3", no_rope_layers=[1, 1], no_rope_layer_interval=2),
        config(model_type="smollm3", no_rope_layers=[1, 0], no_rope_layer_interval=2),
    ),
]


def _named(planted: Faults) -> list[str]:
    """Ids of the tests: the case and a number of its own."""
    return [
        f"{id_}-{[p[0] for p in planted[:i]].count(id_)}" for i, (id_, *_) in enumerate(planted)
    ]


@pytest.mark.parametrize(("id_", "wrong", "right"), PLANTED, ids=_named(PLANTED))
def test_the_fault_of_a_report_is_found_by_its_kind(id_, wrong, right):
    @case(id_)
    def look():
        assert told(wrong, CASES[id_]["kind"])
        if right is not None:
            assert not told(right, CASES[id_]["kind"])

    look()


NOTED: Faults = [
    ("P026", scaled(**{**YARN, "factor": 2.0}, truncate=False), scaled(**YARN)),
    ("P051", scaled(**{**YARN, "factor": 2.0}, attention_factor=1.0), None),
    ("P174", {"model_type": "bloom", "n_head": 12, "hidden_size": 96}, None),
    ("P218", config(model_type="smollm3", no_rope_layers=[1, 0]), None),
]
"""Right configs of a kind that ports are known to read wrongly: told as a note."""


@pytest.mark.parametrize(("id_", "keys", "without"), NOTED, ids=_named(NOTED))
def test_where_ports_go_wrong_there_is_a_note(id_, keys, without):
    @case(id_)
    def look():
        kind = CASES[id_]["kind"]
        assert noted(keys, kind) and not told(keys, kind)
        if without is not None:
            assert not any("truncate" in said for said in noted(without, kind))

    look()


# Files beside the config


def folder(path: Path, keys: dict[str, Any], **beside: dict[str, Any]) -> Path:
    config_file(path, keys)
    for name, inner in beside.items():
        config_file(path, inner, f"{name}.json")
    return path


GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 448}


@case("P135")
@pytest.mark.parametrize("keys", [GPT2, config()], ids=["learned", "rotary"])
def test_an_admitted_length_beyond_the_positions(tmp_path, keys):
    rows = keys.get("n_positions", 64)
    admitted = folder(tmp_path / "a", keys, tokenizer_config={"model_max_length": rows + 1})
    fits = folder(tmp_path / "b", keys, tokenizer_config={"model_max_length": rows})
    endless = folder(tmp_path / "c", keys, tokenizer_config={"model_max_length": int(1e30)})
    assert f"model_max_length = {rows + 1}" in noted(admitted, "K12")[0]
    # A learned table has no row there; rotary positions go on.
    assert bool(told(admitted, "K12")) == (keys is GPT2)
    assert not noted(fits, "K12") and not noted(endless, "K12")


@case("P136")
@pytest.mark.parametrize("key", ["max_length", "max_new_tokens"])
def test_generation_beyond_the_positions(tmp_path, key):
    beyond = folder(tmp_path / "a", GPT2, generation_config={key: 460})
    (said,) = told(beyond, "K12")
    assert f"{key} = 460" in said
    assert not noted(folder(tmp_path / "b", GPT2, generation_config={key: 448}), "K12")


@case("P153")
@pytest.mark.parametrize(("pad", "usable"), [(1, 512), (3, 510)])
def test_usable_positions_are_fewer_than_rows(tmp_path, pad, usable):
    keys = config(
        model_type="roberta", rope_theta=None, max_position_embeddings=514, pad_token_id=pad
    )
    beyond = folder(tmp_path / "a", keys, tokenizer_config={"model_max_length": usable + 1})
    (found,) = (f for f in audit(beyond).findings if f.severity == "warning")
    assert found.kind == "K14"
    assert f"at most {usable} tokens, 514 rows less {pad + 1}" in found.expected
    fits = folder(tmp_path / "b", keys, tokenizer_config={"model_max_length": usable})
    assert not told(fits, "K14")


@case("P011")
def test_the_order_of_axes_and_the_pairing_are_two_words():
    """`mrope_interleaved` orders axes; a pairing that a config contradicts is a finding of K01."""
    keys = config(
        model_type="qwen3_vl_text",
        head_dim=16,
        rope_scaling={
            "rope_type": "default",
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
    )
    assert not kinds(audit(keys), "error", "warning") & {"K01", "K15"}
    marked = config(model_type="cohere", rope_interleaved=True, whereness_pairing="half")
    assert told({**keys, "rotary_interleaved": True}, "K01")
    assert told({**marked, "model_type": "llama"}, "K01")


@case("P217")
def test_the_bound_of_the_base_is_that_of_the_paper():
    """arXiv:2405.14591, table 2: bases and the contexts that they are the least for, 128 channels.

    Definitions differ by up to 2, and so do these.
    """
    for length, least in ((1024, 4.3e3), (2048, 1.6e4), (4096, 2.7e4), (8192, 8.4e4)):
        keys = config(head_dim=128, max_position_embeddings=length, rope_theta=least)
        assert not [said for said in noted(keys, "K02") if "base" in said]
        keys = config(head_dim=128, max_position_embeddings=8 * length, rope_theta=least)
        assert [said for said in noted(keys, "K02") if "ends at offset" in said]
