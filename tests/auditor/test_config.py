"""CHK11, static: what the config reader tells, and rules of its own, as findings of their kinds."""

import ast
import json
import math
import warnings
from pathlib import Path

import pytest
import torch

import whereness
from auditor.toys import config_file, gguf_file, kinds
from interop.test_gguf import metadata, scaling
from interop.toy import SMALL, YARN, config, scaled
from processes import python
from whereness.auditor.checks.config import WORDS, numbers
from whereness.auditor.configs import reach
from whereness.auditor.findings import KINDS
from whereness.auditor.run import audit
from whereness.interop.config.explain import tell
from whereness.interop.config.quarrels import QUARRELS, quarrels
from whereness.interop.config.specs import spec
from whereness.properties.rotations import first_negative_offset

INTEROP = Path(whereness.__file__).parent / "interop"


def found(keys, *severities, **options):
    """(kind, where, measured) of the findings of these severities, errors and warnings if none."""
    wanted = severities or ("error", "warning")
    report = audit(keys, checks=["config"], **options)
    return [(f.kind, f.where, f.measured) for f in report.findings if f.severity in wanted]


# What the reader tells


def kinds_in_the_reader():
    """The kinds that stand in calls of the reader, by reading its source."""
    spoken = {q.kind for q in QUARRELS}
    for path in INTEROP.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                spoken |= {node.value} & KINDS.keys()
    return spoken


def test_every_kind_that_the_reader_knows_has_its_words():
    spoken = kinds_in_the_reader()
    assert {"K01", "K02", "K03", "K04", "K05", "K14", "K22", "K23"} <= spoken
    assert spoken <= WORDS.keys() <= KINDS.keys()
    for expected, cause, remedy in WORDS.values():
        assert expected and cause and remedy


REFUSED = {
    "base": (config(rope_parameters={"rope_theta": 5.0}), "K02", ""),
    "share": (config(partial_rotary_factor=0.5), "K03", "partial_rotary_factor"),
    "amplitude": (
        scaled(**YARN, attention_factor=1.0, attn_factor=1.0),
        "K04",
        "rope_scaling",
    ),
    "type": (config(rope_theta="1e4"), "K22", "rope_theta"),
    "slip": (config(rope_thetta=1.0), "K22", "rope_thetta"),
    "rope_type": (scaled(rope_type="yarm", factor=2.0), "K22", "rope_scaling"),
    "unknown key": (scaled(**YARN, beta=1), "K22", "rope_scaling"),
    "flags": (config(model_type="smollm3", no_rope_layers=[1]), "K23", "no_rope_layers"),
    "types": (config(model_type="olmo3", layer_types=["full_attention"]), "K23", "layer_types"),
    "mark": (config(whereness_pairing="both"), "K01", "whereness_pairing"),
    "pads": (
        config(model_type="roberta", rope_theta=None, pad_token_id=63),
        "K14",
        "max_position_embeddings",
    ),
    "missing": (config(hidden_size=None, model_type="nosuch", head_dim=None), None, ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_reader_refuses(name):
    keys, kind, where = REFUSED[name]
    report = audit(keys, checks=["config"])
    errors = [(f.kind, f.where) for f in report.findings if f.severity == "error"]
    if kind is None:  # a family that nobody here knows need not be wrong
        assert errors == []
        assert any("not a known family" in each.why for each in report.not_checked)
        return
    assert errors == [(kind, where)]
    assert report.layers == [] and report.exit_status() == 1
    (finding,) = (f for f in report.findings if f.severity == "error")
    assert finding.measured and finding.cause.endswith(".") and finding.remedy.endswith(".")


def test_what_nobody_here_can_read_is_no_fault():
    for keys in (
        {"model_type": "nosuch", "alibi": True},
        scaled(use_fope=True, rope_type="default"),
    ):
        report = audit(keys, checks=["config"])
        assert not kinds(report)
        assert [each.check for each in report.not_checked][:1] == ["CHK11"]
        assert not report.compared


def test_notices_keep_their_kinds_and_say_which_part():
    inner = scaled(**YARN, mscale=1.0, mscale_all_dim=1.0)
    keys = {"model_type": "llava", "text_config": inner, "vision_config": {"model_type": "clip"}}
    report = audit(keys, checks=["config"])
    (cancelled,) = (f for f in report.findings if f.severity == "warning" and f.kind == "K04")
    assert cancelled.part == "text_config"
    assert cancelled.where == "text_config.rope_scaling"
    assert "cancel" in cancelled.measured


def test_quarrels_are_notes_of_the_encodings_that_have_them():
    """What a spec alone gives is what the built encodings give to `explain`."""
    mixed = config(model_type="smollm3", no_rope_layers=[1, 0], max_position_embeddings=2**18)
    for keys in (
        scaled(**YARN, attention_factor=1.0, truncate=False),
        scaled(**YARN, mscale=0.5, mscale_all_dim=1.0),
        scaled(rope_type="dynamic", factor=2.0),
        config(model_type="bloom", n_head=12, num_attention_heads=12),
        config(model_type="glm", head_dim=16, partial_rotary_factor=0.5),
        config(model_type="roberta", pad_token_id=1),
        config(model_type="t5", rope_theta=None),
        mixed,
    ):
        said = {text for part in tell(keys) for text in part.quarrels}
        assert said
        notes = {m for _, _, m in found(keys, "note")}
        assert said <= notes
    assert not quarrels([numbers(spec("RoPE", head_dim=8, base=1e4))], 64, nested=False)


def test_layers_are_listed_as_the_config_has_them():
    report = audit(config(model_type="smollm3", no_rope_layers=[1, 0]), checks=["config"])
    first, second = report.layers
    assert first.expected == "RoPE(head_dim=16, base=10000, pairing='half')"
    assert (second.expected, second.index, second.classified) == ("NoPE()", 1, "unknown")
    assert [each.what for each in report.compared] == ["config keys"]


def test_layers_of_a_live_model_are_for_others_to_list():
    model = torch.nn.Linear(2, 2)
    model.config = SMALL
    report = audit(model, checks=["config"])
    assert report.compared and not report.layers


# Rules


def test_sections_that_do_not_fit():
    def keys(*sections):
        rope = {"rope_type": "default", "mrope_section": sections}
        return config(model_type="qwen2_vl_text", rope_scaling=rope)

    assert found(keys(2, 3, 3)) == []
    ((kind, where, said),) = found(keys(2, 3, 4))
    assert (kind, where, said) == ("K03", "mrope_section", "mrope_section = [2, 3, 4] adds up to 9")
    assert [kind for kind, *_ in found(keys(2, 3, 2))] == ["K03"]
    assert [kind for kind, *_ in found(keys(8, 0, 0))] == ["K15"]
    whole = {"model_type": "llava", "text_config": keys(2, 3, 2)}
    assert [f.part for f in audit(whole).findings if f.kind == "K03"] == ["text_config"]
    assert [kind for kind, *_ in found(keys(8))] == ["K15"]


def test_sections_that_their_order_cannot_give():
    def keys(interleaved, *sections):
        rope = {"rope_type": "default", "mrope_section": sections}
        rope["mrope_interleaved"] = interleaved
        return config(model_type="qwen3_vl_text", head_dim=16, rope_scaling=rope)

    assert found(keys(True, 3, 3, 2)) == []
    ((kind, where, said),) = found(keys(True, 1, 6, 1))
    assert (kind, where) == ("K03", "mrope_section")
    assert "at most 3 of 8" in said
    assert [kind for kind, *_ in found(keys(True, 8, 0, 0))] == ["K15"]


def test_the_spectrum_of_a_config_alone_is_told():
    (first, *_) = audit(config(head_dim=16, rope_theta=5e5)).layers
    wanted = whereness.RoPE(16, 5e5).frequencies.tolist()
    assert first.expected_speeds == pytest.approx(wanted, rel=1e-14)
    scaled = config(head_dim=16, rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    assert audit(scaled).layers[0].expected_speeds is None


def test_lists_with_an_entry_too_many():
    keys = config(model_type="smollm3", no_rope_layers=[1, 0, 1])
    assert [each[:2] for each in found(keys)] == [("K23", "no_rope_layers")]
    keys = config(model_type="olmo3", sliding_window=8, layer_types=["full_attention"] * 5)
    ((kind, where, said),) = found(keys)
    assert (kind, where) == ("K23", "layer_types") and "the last 3 are not read" in said


def test_a_window_without_a_width():
    types = ["sliding_attention", "full_attention"]
    keys = config(model_type="qwen2", layer_types=types)
    assert found({**keys, "sliding_window": 8}) == []
    ((kind, where, _),) = found(keys)
    assert (kind, where) == ("K23", "sliding_window")
    # ModernBERT's window is called local_attention.
    assert not [kind for kind, *_ in found({"model_type": "modernbert"}) if kind == "K23"]


@pytest.mark.parametrize(
    ("original", "length", "kind", "warned"),
    [
        (64, 256, "llama3", False),
        (256, 256, "llama3", True),
        (512, 256, "llama3", True),
        (256, 256, "yarn", False),
        (512, 256, "yarn", True),
    ],
)
def test_a_scaling_that_starts_where_the_context_ends(original, length, kind, warned):
    more = {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if kind == "llama3" else {}
    rope = {
        "rope_type": kind,
        "factor": 4.0,
        "original_max_position_embeddings": original,
        **more,
    }
    said = found(config(max_position_embeddings=length, rope_scaling=rope))
    assert any("no further than pre-training" in text for _, _, text in said) == warned
    where = {where for _, where, text in said if "no further" in text}
    assert where <= {"rope_scaling.original_max_position_embeddings"}


def test_a_length_of_pre_training_that_was_derived():
    """It is told that it is missing, not that it is too long."""
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    said = found(config(rope_scaling=rope))
    assert [kind for kind, *_ in said] == ["K22", "K02"]
    assert all("is missing" in text for *_, text in said)


def test_an_amplitude_far_from_the_formula():
    own = 0.1 * math.log(2.0) + 1
    rope = {**YARN, "factor": 2.0}
    for factor in (1.0, own, 1.9):
        assert found(scaled(**rope, attention_factor=factor)) == []
    for factor in (2.5, 0.4):
        ((kind, _, said),) = found(scaled(**rope, attention_factor=factor))
        assert kind == "K04" and f"attention_factor = {factor:g}" in said


def test_a_share_that_only_code_knows():
    assert [each[:2] for each in found(config(model_type="glm", head_dim=16))] == [
        ("K03", "partial_rotary_factor")
    ]
    nested = {"rope_type": "default", "partial_rotary_factor": 0.5, "rope_theta": 1e4}
    for keys in ({"partial_rotary_factor": 0.5}, {"rope_parameters": nested, "rope_theta": None}):
        assert found(config(model_type="glm", head_dim=16, **keys)) == []


@pytest.mark.parametrize(
    ("buckets", "distance", "right"),
    [(32, 128, True), (31, 128, False), (32, 8, False), (2, 8, False)],
)
def test_buckets_of_t5(buckets, distance, right):
    keys = {
        "model_type": "t5",
        "relative_attention_num_buckets": buckets,
        "relative_attention_max_distance": distance,
    }
    errors = [each for each in found(keys, "error") if each[0] == "K18"]
    assert bool(errors) != right
    # The class itself judges in the same way.
    try:
        whereness.T5(4, buckets, distance, bidirectional=True)
        built = True
    except ValueError:
        built = False
    assert built == right


def test_patches_that_leave_a_border():
    keys = {"model_type": "clip_vision_model", "image_size": 224, "patch_size": 14}
    assert found(keys, "note") == []
    ((kind, where, said),) = found({**keys, "image_size": 230}, "note")
    assert (kind, where) == ("K15", "image_size") and "6 pixels" in said


def test_a_setting_beside_the_parts():
    inner = config(model_type="gemma3_text", sliding_window=8, rope_theta=1e6)
    keys = {"model_type": "gemma3", "text_config": inner}
    assert found(keys) == []
    lost = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert any(
        "beside the parts (text_config)" in said for *_, said in found({**keys, **lost}, "note")
    )
    llava = {"model_type": "llava", "text_config": config()}
    assert found(llava) == found({**llava, "rope_theta": 1e4}) == []
    ((kind, where, said),) = found({**llava, **lost})
    assert (kind, where) == ("K02", "rope_scaling") and "where no part reads it" in said


def test_a_key_on_positions_that_nothing_reads():
    ((kind, where, said),) = found(config(rope_tetha=5.0))
    assert (kind, where) == ("K22", "rope_tetha") and "by no family" in said
    assert found({**config(), "rope_tetha": None, "rope_on": False}) == []


def test_gguf_metadata_are_held_to_the_same(tmp_path):
    wrong = {**scaling("yarn", factor=4.0, original_context_length=128), "context_length": 64}
    for target in (gguf_file(tmp_path, **wrong), metadata(**wrong)):
        assert ("K02", "warning") in {(f.kind, f.severity) for f in audit(target).findings}
    odd = audit(gguf_file(tmp_path, **{"rope.dimension_count": 32}))
    assert kinds(odd, "error") == {"K03"}
    twice = {"rope.scaling.attn_factor": 2.0, "rope.scaling.yarn_attn_factor": 3.0}
    assert kinds(audit(gguf_file(tmp_path, **twice)), "error") == {"K22"}


def test_files_beside_the_config_that_are_broken_are_told(tmp_path):
    path = config_file(tmp_path)
    config_file(tmp_path, b"{", "tokenizer_config.json")
    report = audit(path, checks=["config"])
    assert not kinds(report, "error")
    assert any("tokenizer_config.json" in each.why for each in report.not_checked)
    for odd in (True, "512", None, [], -1, 1e400):
        text = json.dumps({"model_max_length": odd}).replace("Infinity", "1e999")
        config_file(tmp_path, text.encode(), "tokenizer_config.json")
        assert not kinds(audit(path, checks=["config"]), "error", "warning")


# The bound of the context by the base


@pytest.mark.parametrize(
    ("head_dim", "base", "first"),
    [(128, 4.3e3, 1077), (128, 1.6e4, 2724), (128, 1e4, 1707), (128, 500.0, 171), (16, 1e4, 91)],
)
def test_where_a_base_ends(head_dim, base, first):
    made = spec("RoPE", head_dim=head_dim, base=base)
    assert reach.first_below(made, 2 * first) == first
    assert reach.first_below(made, 2 * first - 2) is None
    frequencies = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    assert first_negative_offset(frequencies) == first


def test_channels_that_do_not_turn_add_to_every_offset():
    whole, partly = (spec("RoPE", head_dim=16, base=1e4, rotary_dim=r) for r in (16, 12))
    assert reach.first_below(whole, 2000) == 91
    frequencies = 1e4 ** (-torch.arange(0, 12, 2, dtype=torch.float64) / 12)
    still = torch.zeros(2, dtype=torch.float64)
    assert reach.first_below(partly, 20_000) == first_negative_offset(
        torch.cat([frequencies, still]), 10_000
    )
    assert reach.first_below(spec("RoPE", head_dim=16, base=1e4, rotary_dim=8), 10**6) is None


def test_a_base_is_held_against_the_length_that_it_serves():
    wide = config(head_dim=128, max_position_embeddings=2**17, rope_theta=1e4)

    def said(keys):
        findings = audit(keys, checks=["config"]).findings
        return [f.severity for f in findings if "ends at offset" in f.measured]

    assert said(wide) == ["warning"]  # 131,072 tokens on 1,707
    assert said({**wide, "max_position_embeddings": 8192}) == ["note"]
    assert said({**wide, "max_position_embeddings": 2048}) == []
    assert said({**wide, "rope_theta": 5e8}) == []
    # A window of the last tokens is all that a layer compares.
    assert said({**wide, "model_type": "mistral", "sliding_window": 2048}) == []
    # One that is not known is none.
    both = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 4096}
    typed = {**wide, "model_type": "qwen2", **both}
    assert said(typed) == ["note"] and said({**typed, "use_bidirectional_attention": True}) == []
    # A scaled model was trained at its original length.
    rope = {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 2048}
    assert said({**wide, "rope_scaling": rope}) == []


def test_what_was_not_looked_at_is_told():
    far = config(head_dim=128, max_position_embeddings=2**20, rope_theta=1e12)
    report = audit(far, checks=["config"])
    why = "the base was held against 32,768 tokens, not the 1,048,576 of the context"
    assert why in [each.why for each in report.not_checked]
    report = audit(scaled(rope_type="linear", factor=2.0), checks=["config"])
    assert any("a base was not held" in each.why for each in report.not_checked)


# At large


@pytest.mark.more
def test_a_config_alone_takes_less_than_a_second_after_import(tmp_path):
    keys = config(head_dim=128, max_position_embeddings=2**20, rope_theta=1e12)
    path = config_file(tmp_path, {**keys, "num_hidden_layers": 80})
    code = (
        "import time, sys, torch, whereness; start = time.process_time(); "
        "whereness.audit(sys.argv[1]); print(time.process_time() - start)"
    )
    assert float(python("-c", code, path).stdout) < 1.0


TRUE_FAULTS = {
    "esm": "no padding token, which its embeddings compare with",
    "glm46v": "sections add up to 32, where 64 pairs turn",
    "glm4v": "the same",
    "glm4v_moe": "the same, where 10 turn",
    "glm4v_moe_text": "the same, where 10 turn",
    "glm4v_text": "the same as glm46v",
    "glm_image": "the same as glm46v",
    "glm_image_text": "the same as glm46v",
    "glmga": "the same as glm46v, in its text part, which is glm4v_text's",
    "qwen3_omni_moe": "the heads of its text part have 73 channels",
    "qwen3_omni_moe_text": "the heads have 73 channels",
    "qwen3_omni_moe_thinker": "the heads of its text part have 73 channels",
}
"""model_type -> what is wrong with the defaults of its config class.

`test_models_of_these_defaults_raise` runs their text models. The others were tried once: glm46v,
glm4v, glm4v_moe, glm_image and qwen3_omni_moe_thinker raise where their text part does. glmga has
no model of its own, and qwen3_omni_moe as a whole is not even built: its defaults lack a key too.
"""

TEXT_MODELS = {
    "glm4v_text": ("Glm4vTextModel", "split_with_sizes"),
    "glm4v_moe_text": ("Glm4vMoeTextModel", "split_with_sizes"),
    "glm_image_text": ("GlmImageTextModel", "split_with_sizes"),
    "qwen3_omni_moe_text": ("Qwen3OmniMoeThinkerTextModel", "length 74"),
}
"""model_type -> its class, and what a forward pass of its defaults says."""


@pytest.mark.more
@pytest.mark.parametrize("model_type", TEXT_MODELS)
def test_models_of_these_defaults_raise(model_type):
    from importlib import import_module

    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[model_type]()
    module = import_module(type(config).__module__.replace("configuration", "modeling"))
    name, says = TEXT_MODELS[model_type]
    with torch.device("meta"), torch.no_grad():
        model = getattr(module, name)._from_config(config)
        with pytest.raises(RuntimeError, match=says):
            model(input_ids=torch.ones(1, 8, dtype=torch.long))


@pytest.mark.more
def test_a_model_without_a_padding_token_raises():
    from transformers import EsmConfig, EsmModel

    small = {"vocab_size": 33, "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32}
    ids = torch.ones(1, 4, dtype=torch.long)
    assert EsmConfig().pad_token_id is None
    EsmModel(EsmConfig(**small, num_attention_heads=4, pad_token_id=1))(ids)
    with pytest.raises(TypeError):
        EsmModel(EsmConfig(**small, num_attention_heads=4))(ids)


@pytest.mark.more
@pytest.mark.timeout(300)
def test_no_false_alarm_on_the_defaults_of_transformers(record_property):
    """Every config class of transformers that can be built without arguments."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

    errors, warned, count = {}, {}, 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for model_type in CONFIG_MAPPING_NAMES:
            try:
                made = CONFIG_MAPPING[model_type]()
            except Exception:  # noqa: BLE001 (whatever a default lacks)
                continue
            count += 1
            report = audit(json.loads(made.to_json_string(use_diff=False)), checks=["config"])
            if report.of("error"):
                errors[model_type] = report.of("error")[0].measured
            for each in report.of("warning"):
                warned.setdefault(f"{each.kind} {each.measured}", []).append(model_type)
    lines = [f"  {', '.join(who)}: {said}" for said, who in sorted(warned.items())]
    record_property("measured", "\n".join([f"{count} config classes, warnings:", *lines]))
    assert count > 800
    assert errors.keys() == TRUE_FAULTS.keys(), errors
    assert sum(map(len, warned.values())) < 0.05 * count


def test_released_settings_are_clean():
    """Settings of released models, each of which a rule could take for a fault."""
    llama31 = config(
        hidden_size=4096,
        num_attention_heads=32,
        max_position_embeddings=131_072,
        rope_theta=500_000.0,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    )
    qwen25 = config(
        model_type="qwen2",
        hidden_size=3584,
        num_attention_heads=28,
        max_position_embeddings=32_768,
        rope_theta=1_000_000.0,
        sliding_window=131_072,
        use_sliding_window=False,
        rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768},
    )
    llama2 = config(hidden_size=4096, num_attention_heads=32, max_position_embeddings=4096)
    lfm2 = config(head_dim=64, max_position_embeddings=128_000, rope_theta=1_000_000.0)
    for keys in (llama31, qwen25, llama2, lfm2, SMALL):
        assert found(keys) == []
