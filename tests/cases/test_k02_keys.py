"""K02: what a config says of RoPE reaches every layer, once, whatever the keys are called."""

import ast
import dataclasses
import math
import re
import warnings
from pathlib import Path

import pytest
import torch

import whereness as wn
from cases.support import case, differ, equal
from interop.toy import LLAMA3, YARN, close, config, llama3, plain, quiet, scaled, yarn

INTEROP = Path(wn.__file__).parent / "interop"


class Config:
    """A config object whose class fills in a base at the top, as old classes do."""

    def __init__(self, rope_theta: float = 10_000.0, **keys: object) -> None:
        self.keys = {**keys, "rope_theta": rope_theta}

    def to_dict(self) -> dict[str, object]:
        return dict(self.keys)


@case("P015")
def test_an_explicit_nested_base_beats_the_default_of_a_class():
    keys = config(rope_theta=None, rope_parameters={"rope_theta": 500_000.0})
    found = wn.from_config(Config(**keys))
    close(found.frequencies, plain(500_000.0, 16))
    assert wn.from_config(Config(**config())).base == 10_000.0


@case("P015")
@pytest.mark.parametrize("as_object", [False, True])
def test_two_explicit_bases_that_differ_are_refused(as_object):
    keys = config(rope_theta=20_000.0, rope_parameters={"rope_theta": 500_000.0})
    with pytest.raises(ValueError, match=r"rope_parameters.rope_theta = 500,000 and rope_theta ="):
        wn.from_config(Config(**keys) if as_object else keys)
    same = config(rope_theta=500_000.0, rope_parameters={"rope_theta": 500_000.0})
    assert wn.from_config(same).base == 500_000.0


@case("P015", "P016")
def test_a_dict_has_no_defaults_so_a_second_base_is_explicit():
    with pytest.raises(ValueError, match="the base twice"):
        wn.from_config(config(rope_parameters={"rope_theta": 500_000.0}))


NEOX = {"model_type": "gpt_neox", "rope_theta": None, "rotary_pct": 1.0}
MEGATRON = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_layers": 2,
    "position_embedding_type": "rope",
}
SPELLINGS = {
    "rope_theta": config(rope_theta=77_000.0),
    "rotary_emb_base": config(**NEOX, rotary_emb_base=77_000.0),
    "rotary_base": {**MEGATRON, "rotary_base": 77_000.0},
    "rope_parameters": config(rope_theta=None, rope_parameters={"rope_theta": 77_000.0}),
    "nested": config(
        model_type="olmo3",
        rope_theta=None,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 77_000.0},
            "full_attention": {"rope_type": "default", "rope_theta": 77_000.0},
        },
    ),
    "gguf": {
        "general.architecture": "qwen2",
        "qwen2.embedding_length": 64,
        "qwen2.attention.head_count": 4,
        "qwen2.rope.freq_base": 77_000.0,
    },
}


@case("P016")
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_one_base_under_every_spelling(spelling):
    close(quiet(SPELLINGS[spelling]).frequencies, plain(77_000.0, 16))


@case("P016")
def test_a_missing_base_is_the_familys_own_or_an_error():
    absent = config(rope_theta=None)
    with pytest.raises(ValueError, match="a base"):
        wn.from_config({**absent, "model_type": "nobody_knows"})
    with pytest.warns(wn.ConfigWarning, match="rope_theta is missing: 2,000,000 is taken"):
        found = wn.from_config({**absent, "model_type": "smollm3"}, layer=0)
    assert found.base == 2_000_000.0


@case("P016", "P037")
@pytest.mark.parametrize(
    "read", [{}, {"rope_theta": None, "rope_parameters": {"rope_theta": 10_000.0}}]
)
def test_a_base_under_a_name_that_the_family_does_not_read_is_refused(read):
    with pytest.raises(ValueError, match="rotary_base = 500,000 is not read"):
        wn.from_config(config(**read, rotary_base=500_000.0))


@case("P017")
def test_a_default_base_stands_in_one_place():
    """The tables of families hold them; a translation holds its own library's. No reader does."""
    tables = {"dialects.py", "gguf_architectures.py", "gguf_keys.py"}
    for path in sorted(INTEROP.glob("*.py")):
        if path.name in tables or path.name.startswith("families"):
            continue
        numbers = [
            node.value
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, (int, float))
        ]
        bases = {n for n in numbers if n >= 1000 and not isinstance(n, bool)}
        assert not bases & {10_000, 500_000, 1_000_000}, path.name


@case("P017")
def test_one_model_has_one_base_by_every_path(tmp_path):
    import json

    keys = config(rope_theta=123_456.0)
    (tmp_path / "config.json").write_text(json.dumps(keys))
    sources = (keys, Config(**keys), tmp_path, tmp_path / "config.json", str(tmp_path))
    assert {wn.from_config(source).base for source in sources} == {123_456.0}


@case("P018")
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_llama_3s_block_is_applied(name, key):
    keys = {n: v for n, v in LLAMA3.items() if n != "rope_type"} | {key: "llama3"}
    found = wn.from_config(config(**{name: keys})).frequencies
    close(found, llama3(10_000.0, 16, 8.0, 1.0, 4.0, 64))
    ratio = found / torch.tensor(plain(10_000.0, 16), dtype=torch.float64)
    expected = torch.tensor([1, 0.7728, 0.1304, *[0.125] * 5], dtype=torch.float64)
    torch.testing.assert_close(ratio, expected, rtol=0, atol=5e-5)


@case("P020")
def test_a_scaling_of_global_layers_reaches_them_alone():
    keys = config(
        model_type="gemma3_text",
        head_dim=16,
        rope_theta=None,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    )
    near, far = (wn.from_config(keys, layer=i).frequencies for i in (0, 1))
    close(near, plain(1e4, 16))
    close(far, [w / 8 for w in plain(1e6, 16)])
    # The same in the keys of older files.
    old = config(
        model_type="gemma3_text",
        head_dim=16,
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        sliding_window_pattern=2,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )
    equal(wn.from_config(old, layer=0).frequencies, near)
    equal(wn.from_config(old, layer=1).frequencies, far)


LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 32,
    "factor": 2.0,
}


@case("P022")
@pytest.mark.parametrize(
    ("rope", "key", "value"),
    [
        ({"rope_type": "linear", "factor": 2.0}, "factor", 4.0),
        ({"rope_type": "dynamic", "factor": 2.0}, "factor", 4.0),
        (YARN, "factor", 8.0),
        ({**YARN, "truncate": False}, "beta_fast", 2.0),
        (YARN, "beta_slow", 2.0),
        (YARN, "truncate", False),
        (YARN, "attention_factor", 1.5),
        (YARN, "original_max_position_embeddings", 16),
        (LLAMA3, "factor", 4.0),
        (LLAMA3, "low_freq_factor", 2.0),
        (LLAMA3, "high_freq_factor", 8.0),
        (LONG, "factor", 4.0),
        (LONG, "long_factor", [3.0] * 8),
        (LONG, "attention_factor", 1.1),
    ],
)
def test_every_key_of_a_scaling_changes_what_is_turned(rope, key, value):
    before, after = (quiet(scaled(**{**rope, **more})) for more in ({}, {key: value}))
    where = wn.Where(torch.arange(60, 64), lengths=200)
    tables = [made.exactly(made.prepare(where).data.queries) for made in (before, after)]
    differ(tables[0].cos, tables[1].cos)


@case("P022")
def test_what_was_read_cannot_be_changed_afterwards():
    found = quiet(scaled(**YARN))
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.scaling.factor = 8.0


@case("P023")
def test_yarn_does_not_depend_on_the_length_of_the_table():
    short, long = (
        quiet({**scaled(**YARN), "max_position_embeddings": length}) for length in (64, 256)
    )
    equal(short.frequencies, long.frequencies, 0.0)
    close(short.frequencies, yarn(10_000.0, 16, 4.0, 32))


@case("P024")
def test_an_explicit_factor_wins_over_the_ratio_of_lengths_and_is_told():
    with pytest.warns(wn.ConfigWarning, match=r"factor = 4 is not .* 64 / 32 = 2"):
        found = wn.from_config(scaled(**YARN))
    assert found.scaling.factor == 4.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wn.from_config({**scaled(**YARN), "max_position_embeddings": 128})


@case("P024")
def test_a_missing_factor_is_the_ratio_of_lengths_and_is_told():
    rope = {key: value for key, value in YARN.items() if key != "factor"}
    with pytest.warns(wn.ConfigWarning, match="64 / 32 = 2 is taken"):
        assert wn.from_config(scaled(**rope)).scaling.factor == 2.0


@case("P026")
def test_truncate_is_read():
    rounded, exact = (quiet(scaled(**YARN, truncate=t)).frequencies for t in (True, False))
    assert rounded[1].item() == pytest.approx(0.19764, abs=5e-6)
    assert exact[1].item() == pytest.approx(0.14849, abs=5e-6)
    others = torch.tensor([k for k in range(8) if k != 1])
    equal(rounded[others], exact[others])
    gpt_oss = config(
        model_type="gpt_oss",
        head_dim=64,
        rope_theta=None,
        max_position_embeddings=131_072,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 150_000.0,
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    )
    found = wn.from_config(gpt_oss)
    low, high = found.scaling.correction_range(wn.scaling.Spectrum(150_000.0, 64))
    assert (low, high) == pytest.approx((8.0928, 17.3980), abs=5e-5)
    close(found.frequencies, yarn(150_000.0, 64, 32.0, 4096, truncate=False))


@case("P029")
@pytest.mark.parametrize("betas", [(1.0, 32.0), (4.0, 4.5), (0.5, None), (None, 33.0)])
def test_swapped_betas_are_refused(betas):
    names = zip(("beta_fast", "beta_slow"), betas, strict=True)
    rope = {**YARN, **{name: beta for name, beta in names if beta is not None}}
    with pytest.raises(ValueError, match="beta_fast must not be below beta_slow"):
        wn.from_config(scaled(**rope))


def dynamic(length: int) -> wn.RoPE:
    keys = {**scaled(type="dynamic", factor=2.0), "max_position_embeddings": length}
    return wn.from_config(keys)


@case("P032", "P033")
@pytest.mark.parametrize("length", [1, 2, 31, 32])
def test_dynamic_is_plain_up_to_the_length_of_the_model(length):
    close(dynamic(32).frequencies_at(length), plain(10_000.0, 16))


@case("P032", "P033")
@pytest.mark.parametrize(("length", "base"), [(33, 10_717.4), (64, 35_097.9)])
def test_dynamic_grows_the_base_beyond_it(length, base):
    found = dynamic(32).frequencies_at(length)
    close(found, plain(base, 16), 1e-5)
    exact = 10_000.0 * (2 * length / 32 - 1) ** (16 / 14)
    close(found, plain(exact, 16))


@case("P035")
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_both_names_of_the_dict_turn_a_prompt_longer_than_window_and_training(name):
    window, original = 16, 32
    keys = config(model_type="gpt_oss", head_dim=16, sliding_window=window, **{name: YARN})
    found = quiet(keys)
    length = 2 * max(window, original)
    turned = found.exactly(found.prepare(torch.arange(length)).data.queries)
    amplitude = 0.1 * math.log(4.0) + 1
    for k, w in enumerate(yarn(10_000.0, 16, 4.0, 32)):
        cos = [amplitude * math.cos(p * w) for p in range(length)]
        equal(turned.cos[0, :, 0, k].double(), torch.tensor(cos, dtype=torch.float64))


@case("P037")
def test_the_base_of_the_file_is_used():
    keys = config(head_dim=8, rope_theta=1_000_000.0)
    close(wn.from_config(keys).frequencies, [1.0, 1e6**-0.25, 1e6**-0.5, 1e6**-0.75])
    assert wn.from_config(keys).frequencies.tolist() == pytest.approx(
        [1, 0.0316228, 0.001, 3.16228e-5], rel=1e-5
    )


@case("P018", "P022", "P035")
@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"low_freq_facter": 1.0}, "unknown key 'low_freq_facter'. Did you mean 'low_freq_factor'"),
        ({"rope_type": "lama3"}, "unknown rope_type 'lama3'. Did you mean 'llama3'"),
        ({"rope_type": "default"}, "factor 8.0 and no scaling that reads it"),
    ],
)
def test_a_block_that_would_do_nothing_is_refused(keys, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        wn.from_config(scaled(**{**LLAMA3, **keys}))
