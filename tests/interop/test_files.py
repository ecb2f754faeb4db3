"""Sources of configs: files that are none, and hostile ones."""

import json
import os
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import whereness as wn
from interop.toy import SMALL, close, plain
from whereness.interop.config import files

BROKEN = {
    "empty": (b"", "not valid JSON"),
    "not UTF-8": (b'{"model_type": "\xff"}', "can't decode byte 0xff in position 16"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "can't decode byte"),
    "binary": (bytes(range(256)), "can't decode byte"),
    "no object": (b"[1, 2]", "needed a JSON object, got list"),
    "a number": (b"3", "needed a JSON object, got int"),
    "cut": (b'{"model_type": "llama"', "not valid JSON"),
    "NaN": (b'{"rope_theta": NaN}', "NaN is no JSON number"),
    "Infinity": (b'{"rope_theta": -Infinity}', "-Infinity is no JSON number"),
    "twice": (b'{"rope_theta": 1, "rope_theta": 2}', "the key 'rope_theta' stands there twice"),
    "twice within": (b'{"a": {"b": 1, "b": 1}}', "the key 'b' stands there twice"),
    "deep": (b'{"a":' * 200_000, "nested too deep"),
    "deep lists": (b'{"a":' + b"[" * 200_000, "nested too deep"),
    "many digits": (b'{"rope_theta": ' + b"9" * 10_000 + b"}", "Exceeds the limit"),
    "large": (b'{"a": "' + b"a" * files.LARGEST_JSON + b'"}', "larger than 16 MiB"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_is_no_config_is_one_line(tmp_path, name):
    data, says = BROKEN[name]
    path = tmp_path / "config.json"
    path.write_bytes(data)
    with pytest.raises(ValueError) as caught:
        wn.from_config(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_number_beyond_floats(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL).replace("10000.0", "1e999"))
    with pytest.raises(ValueError, match="rope_theta must be finite, got inf"):
        wn.from_config(tmp_path)


def test_paths(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    for path in (tmp_path, tmp_path / "config.json", str(tmp_path), os.fsencode(tmp_path)):
        if not isinstance(path, bytes):
            close(wn.from_config(path).frequencies, plain(10_000.0, 16))


def test_what_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"has no config.json or params.json\."):
        wn.from_config(tmp_path)
    with pytest.raises(FileNotFoundError):
        wn.from_config(tmp_path / "nothing.json")
    with pytest.raises(ValueError, match="is no path"):
        wn.from_config("a\0b")
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"and 2 \.gguf files: name one"):
        wn.from_config(tmp_path)


def test_a_pipe_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ValueError, match="is not a file"):
        wn.from_config(tmp_path / "config.json")


# Fuzz: whatever comes, an encoding or one line of ValueError or TypeError

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.integers(-3, 200),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["llama", "yarn", "full_attention", "linear", "dynamic", "longrope", "qwen2"]),
)
WORDS = (
    "model_type hidden_size num_attention_heads num_hidden_layers head_dim rope_theta "
    "rope_parameters rope_scaling rope_type type factor layer_types text_config vision_config "
    "full_attention sliding_attention partial_rotary_factor original_max_position_embeddings "
    "max_position_embeddings no_rope_layers mrope_section short_factor long_factor mscale "
    "general.architecture qwen2.rope.freq_base qwen2.embedding_length kv_channels dim n_heads "
    "n_layers qk_rope_head_dim position_embedding_type per_layer_config encoder decoder"
)
KEYS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(WORDS.split()),
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=6)),
    max_leaves=25,
)


def of_one_line(error):
    assert "\n" not in str(error)
    assert len(str(error)) < 2000


def survives(keys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wn.ConfigWarning)
        for layer in (None, 0):
            try:
                wn.from_config(keys, layer=layer)
            except (ValueError, TypeError) as error:
                of_one_line(error)
        try:
            wn.explain(keys)
        except (ValueError, TypeError) as error:
            of_one_line(error)


def within(levels):
    keys = dict(SMALL)
    for _ in range(levels):
        keys = {"text_config": keys}
    return keys


LOOP = {"model_type": "nobody_knows"}
LOOP["text_config"] = LOOP
LONG = "x" * 10**6


@pytest.mark.parametrize(
    "keys",
    [
        within(20_000),
        LOOP,
        {LONG: 1, f"{LONG}_config": SMALL, "\n_config": {**SMALL, "rope_theta": -1}},
        {**SMALL, "model_type": LONG},
        {**SMALL, "rope_scaling": {LONG: 1}},
        {**SMALL, "rope_scaling": {"rope_type": LONG}},
        {**SMALL, "rope_scaling": {"rope_type": LONG, "type": "linear"}},
        {**SMALL, **{f"rope_{i}": i for i in range(10_000)}},
        {**SMALL, "num_hidden_layers": 2**16, "layer_types": ["full_attention"] * 2**17},
        {**SMALL, "num_hidden_layers": 2**16},
        {**SMALL, 3: 4},
        {"model_type": "llava", "text_config": {**SMALL, 3: 4}},
        {"general.architecture": LONG},
    ],
)
@pytest.mark.timeout(20)
def test_sizes_that_no_model_has(keys):
    survives(keys)


@given(st.dictionaries(KEYS, JSON, max_size=10))
@settings(max_examples=100, deadline=None)
def test_any_json_is_an_encoding_or_an_error_of_one_line(keys):
    survives(keys)


REAL = {
    "llama3": {
        **SMALL,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "gemma3": {
        **SMALL,
        "model_type": "gemma3_text",
        "head_dim": 16,
        "sliding_window_pattern": 2,
        "rope_local_base_freq": 1e4,
    },
    "gemma3n": {
        **SMALL,
        "model_type": "gemma3_text",
        "head_dim": 16,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_theta": None,
        "rope_parameters": {
            "full_attention": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "smollm3": {**SMALL, "model_type": "smollm3", "no_rope_layers": [1, 0]},
    "qwen2_vl": {
        "model_type": "qwen2_vl",
        **{key: value for key, value in SMALL.items() if key != "model_type"},
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
        "vision_config": {"model_type": "qwen2_vl", "embed_dim": 64, "num_heads": 4},
    },
    "t5": {"model_type": "t5", "num_heads": 4, "num_layers": 2, "d_model": 64, "d_kv": 16},
    "megatron": {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_layers": 2,
        "position_embedding_type": "yarn",
        "rotary_scaling_factor": 4.0,
        "no_rope_freq": [0, 1],
    },
    "gguf": {
        "general.architecture": "gemma3",
        "gemma3.embedding_length": 64,
        "gemma3.attention.head_count": 4,
        "gemma3.block_count": 2,
        "gemma3.rope.scaling.type": "yarn",
        "gemma3.rope.scaling.factor": 4.0,
        "gemma3.rope.scaling.original_context_length": 32,
    },
}


def places(keys, path=()):
    """Every place in a config, as the keys that lead there."""
    for key, value in keys.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from places(value, (*path, key))


def change(name, data):
    """One key of a real config renamed, or its value replaced."""
    keys = json.loads(json.dumps(REAL[name]))
    *path, last = data.draw(st.sampled_from(list(places(keys))))
    inner = keys
    for key in path:
        inner = inner[key]
    if data.draw(st.booleans()):
        inner[last] = data.draw(JSON)
    else:
        inner[data.draw(KEYS)] = inner.pop(last)
    survives(keys)


@pytest.mark.parametrize("name", REAL)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_a_real_config_with_a_change(name, data):
    change(name, data)


@pytest.mark.more
@pytest.mark.parametrize("name", REAL)
@given(data=st.data())
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_real_config_with_many_changes(name, data):
    change(name, data)
