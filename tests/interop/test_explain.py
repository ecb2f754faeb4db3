"""explain and `whereness explain`: what is said of layers, in words and numbers."""

import json
import math
import re

import pytest

import whereness as wn
from interop.toy import SMALL, YARN, config, llama3, plain, scaled, yarn
from processes import ROOT, python
from whereness import cli
from whereness.interop.config.explain import as_data, tell
from whereness.interop.config.facts import facts

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "max_position_embeddings": 131_072,
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
SAID = """\
llama: 32 layers, 131,072 positions

every layer
  RoPE
    width         all 128 channels of a head turn, in 64 pairs
    pairing       half: channel i with i + 64
    base          500,000
    scaling       Llama3: factor 8, low_freq_factor 1, high_freq_factor 4,
                  original_length 8,192
                  pairs 0-28 kept, 29-34 between, 35-63 slowed 8 times
    wavelengths   6.283 to 20,473,564 tokens
    no full turn  32 of 64 pairs within 8,192 tokens (training), 25 within 131,072
    amplitude     1

Where libraries differ
  - llama3: """


def rows(text):
    """Label -> text of the rows, those of several lines joined."""
    joined = re.sub(r"\n {18}", " ", text)
    return dict(re.findall(r"^ {4}(\S[\w ]*?) {2,}(.*)$", joined, re.MULTILINE))


def test_llama_3_1_as_it_is_printed():
    assert wn.explain(LLAMA).startswith(SAID)


def test_the_numbers_of_llama_3_1_are_those_of_an_independent_formula():
    frequencies = llama3(500_000.0, 128, 8.0, 1.0, 4.0, 8192)
    wavelengths = [2 * math.pi / w for w in frequencies]
    said = rows(wn.explain(LLAMA))
    assert said["wavelengths"] == f"{wavelengths[0]:.4g} to {wavelengths[-1]:,.0f} tokens"
    slow = [sum(wave > reach for wave in wavelengths) for reach in (8192, 131_072)]
    assert said["no full turn"].startswith(f"{slow[0]} of 64 pairs within 8,192")
    assert said["no full turn"].endswith(f", {slow[1]} within 131,072")


def test_yarn():
    said = rows(wn.explain(scaled(**YARN)))
    amplitude = 0.1 * math.log(4) + 1
    assert said["amplitude"] == (f"{amplitude:.6g} on cos and sin: logits times {amplitude**2:.6g}")
    slowest = 2 * math.pi / yarn(10_000.0, 16, 4.0, 32)[-1]
    assert said["wavelengths"] == f"6.283 to {slowest:,.0f} tokens"


def test_yarn_reaches_beyond_the_positions_of_the_config():
    text = wn.explain(scaled(**YARN | {"original_max_position_embeddings": 64}))
    assert text.startswith("llama: 2 layers, 64 positions, 256 with YaRN\n")
    slow = [
        sum(2 * math.pi / w > reach for w in yarn(10_000.0, 16, 4.0, 64)) for reach in (64, 256)
    ]
    wanted = f"{slow[0]} of 8 pairs within 64 tokens (training), {slow[1]} within 256"
    assert rows(text)["no full turn"] == wanted


def test_longrope_is_told_by_length():
    factors = {"short_factor": [1.0 + k / 10 for k in range(8)], "long_factor": [4.0] * 8}
    keys = scaled(rope_type="longrope", original_max_position_embeddings=32, factor=2.0, **factors)
    text = wn.explain(keys)
    amplitude = math.sqrt(1 + math.log(2) / math.log(32))
    assert "    up to 32      frequencies divided by 1 to 1.7\n" in text
    assert "    beyond        frequencies divided by 4\n" in text
    assert f"amplitude {amplitude:.6g} on cos and sin" in text
    slowest = [2 * math.pi * 10_000 ** (14 / 16) * most for most in (1.7, 4.0)]
    for wave in slowest:
        assert f" to {wave:,.0f} tokens\n" in text
    assert "factor 1 to" not in text


SCOUT = {
    "model_type": "llama4_text",
    "num_hidden_layers": 48,
    "no_rope_layer_interval": 4,
    "attention_chunk_size": 4096,
    "attn_temperature_tuning": True,
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 12,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 6,
}


def test_chunks_are_told_of_layers_that_have_them():
    text = wn.explain(SCOUT)
    first, second = text.split("\nlayers 3, 7, ..., 47 (12 of 48)\n")
    assert "\nevery layer but 3, 7, ..., 47 (36 of 48)\n" in first
    assert "\n    sees          its chunk of 4,096 tokens\n" in first
    assert "sees" not in second


def test_windows_are_told_of_layers_that_have_them():
    said = rows(wn.explain(GPT_OSS))["sees"]
    assert said == "the last 128 tokens in layers 0, 2, ..., 10; all before it in the others"
    assert "sees" not in rows(wn.explain(GPT_OSS, layer=1))
    assert rows(wn.explain(GPT_OSS, layer=2))["sees"] == "the last 128 tokens"


@pytest.mark.parametrize(
    "keys",
    [
        config(sliding_window=16),  # the family does not say which layers
        {**GPT_OSS, "sliding_window": None},
        {**GPT_OSS, "use_bidirectional_attention": True},
        {"model_type": "t5gemma2_text", "sliding_window": 16},  # sees ahead as well
    ],
)
def test_nothing_is_told_of_windows_that_are_not_known(keys):
    assert "sees" not in wn.explain(keys)


@pytest.mark.parametrize("side", ["leading", "trailing"])
def test_partial_width(side):
    said = rows(wn.explain(wn.RoPE(64, rotary_dim=16, rotary_side=side, pairing="interleaved")))
    which = {"leading": "first", "trailing": "last"}[side]
    assert said["width"] == (f"the {which} 16 of 64 channels turn, in 8 pairs; 48 have no position")
    assert said["pairing"] == "interleaved: channel 2i with 2i + 1"


def test_a_scaling_within_another_is_told_at_its_own_lengths():
    within = wn.scaling.DynamicNTK(4.0, 64)
    text = wn.explain(wn.RoPE(16, scaling=wn.scaling.Resonance(within)))
    assert "Resonance: scaling DynamicNTK (factor 4, original_length 64)" in text
    assert "up to 64  " in text
    assert "at 256        frequencies divided by 0.9549 to 13\n" in text  # s n/L - (s - 1)


def test_numbers_by_length_are_those_of_one_length():
    numbers = facts(wn.RoPE(16, scaling=wn.scaling.DynamicNTK(4.0, 64))).numbers
    assert numbers["longest_wavelength"] == 2 * math.pi / min(numbers["frequencies"])
    assert numbers["frequencies"] == pytest.approx(plain(10_000.0, 16), rel=1e-14)


def test_layers_are_grouped():
    keys = config(model_type="smollm3", num_hidden_layers=8)
    text = wn.explain(keys)
    assert "\nlayers 0-2, 4-6 (6 of 8)\n  RoPE\n" in text
    assert "\nlayers 3, 7 (2 of 8)\n  NoPE\n" in text
    assert "ports have read the schedule and not applied it" in text
    assert "NoPE" not in wn.explain(keys, layer=0)
    only = wn.explain(keys, layer=3)
    assert "  RoPE\n" not in only
    with pytest.raises(ValueError, match=r"layer must be in 0 \.\. 7, got 8"):
        wn.explain(keys, layer=8)


PARTS = {
    "model_type": "llava",
    "text_config": SMALL,
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 64,
        "image_size": 56,
        "patch_size": 14,
    },
}


def test_all_parts_are_told_or_one():
    text = wn.explain(PARTS)
    assert text.index("text_config (llama): 2 layers") < text.index("vision_config (siglip_vis")
    assert "4 x 4 positions" in text
    assert "vision_config" not in wn.explain(PARTS, part="text_config")


def test_a_part_that_cannot_be_told_does_not_hide_the_others():
    keys = {**PARTS, "vision_config": {"model_type": "nobody_knows"}}
    text = wn.explain(keys)
    assert "text_config (llama)" in text
    assert "'nobody_knows' is not a known family" in text
    with pytest.raises(ValueError, match="'nobody_knows' is not a known family"):
        wn.explain(keys, part="vision_config")


def test_a_quarrel_about_two_parts_is_told_once():
    keys = {"model_type": "bart", "d_model": 64, "max_position_embeddings": 16}
    text = wn.explain(keys)
    assert text.count("LearnedAbsolute") == 2
    assert text.count("The table's first rows belong to no position") == 1


def test_learned_frequencies_of_a_config():
    text = wn.explain({"model_type": "mistral_large4_text"}, layer=0)
    assert "LeRoPE" in text
    assert "a factor on each frequency" in text


def test_what_is_told_is_not_warned_about():
    text = wn.explain(config(model_type="newcomer"))  # a warning would be an error here
    assert "\nRead with care\n  - model_type 'newcomer' is not a known family" in text


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: wn.ALiBi(8), "0.5 to 0.003906 logits per token, 8 heads"),
        (lambda: wn.ALiBi(12), "attention-gym has other slopes"),
        (lambda: wn.T5(4, 32, 128), "from 128 tokens on, all keys share the last"),
        (lambda: wn.LearnedAbsolute(8, 10, first_row=2), "position 0 is row 2"),
        (lambda: wn.Sinusoidal(8), "8 channels, order interleaved, exponent over dim"),
        (lambda: wn.Shaw(8, 4), "a vector for each within 4 tokens, for keys and values"),
        (wn.NoPE, "none: no encoding tells these layers the order"),
        (lambda: wn.AxialRoPE(16), "every axis, 4 pairs"),
        (lambda: wn.Temperature(0.1, 8192.0), "1 at 0, 1.069 at 8,192"),
        (lambda: wn.LearnedRelative(4, 8), "doors"),
        (lambda: wn.LeRoPE(16), "a factor on each frequency"),
        (
            lambda: wn.RoPE(64, scaling=wn.scaling.Linear(4.0)),
            "every pair slowed 4 times",
        ),
        (
            lambda: wn.RoPE(64, scaling=wn.scaling.Proportional(0.25)),
            "24 of 32 pairs never turn",
        ),
        (lambda: wn.RoPE(64, scaling=wn.scaling.DynamicNTK(4.0, 2048)), "at 8,192"),
        (lambda: wn.XPos(16), "a pair's score falls to 0.2857 (first pair) .. 0.9107 (last)"),
        (lambda: wn.FoPE(16, num_frequencies=3), "cos and sin of the 3 that turn are mixed"),
        (lambda: wn.MixedRoPE(16, 4, num_kv_heads=2), "2; every pair of 2 key heads"),
        (lambda: wn.DroPE(2.0), "logits times 1.286"),
    ],
)
def test_encodings_themselves(made, says):
    assert says in " ".join(wn.explain(made()).split())


def test_several_encodings():
    text = wn.explain([wn.RoPE(64), wn.ALiBi(8)])
    assert text.index("RoPE") < text.index("ALiBi")


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (scaled(**YARN), "YaRN's amplitude"),
        (scaled(**YARN, attention_factor=1.5), "vLLM's YaRN dropped the key"),
        (scaled(**YARN, truncate=False), "truncate=false: KerasHub"),
        (scaled(rope_type="dynamic", factor=2.0), "dynamic: Hugging Face grows the base"),
        (scaled(rope_type="linear", factor=2.0), "linear: with layers of several types"),
        (config(rope_theta=None, rope_parameters={"rope_theta": 1e4}), "a nested base"),
        (config(max_position_embeddings=131_072), "angles in float32 are off"),
    ],
)
def test_known_quarrels_are_told(keys, says):
    assert says in " ".join(wn.explain(keys).split())


def test_a_plain_model_has_no_quarrel():
    assert "Where libraries differ" not in wn.explain(SMALL)


def test_lines_are_short():
    for keys in (LLAMA, PARTS, scaled(**YARN), config(model_type="newcomer")):
        assert max(map(len, wn.explain(keys).splitlines())) <= 92


# The command


def test_a_part_that_cannot_be_told_is_told_plainly(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**PARTS, "vision_config": {"model_type": "nobody_knows"}}))
    assert cli.main(["explain", str(path), "--layer", "1"]) == 0
    assert "vision_config (nobody_knows): cannot be told\n" in capsys.readouterr().out
    assert cli.main(["explain", str(path), "--layer", "9"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("whereness: text_config: layer must be in 0 .. 1, got 9. vision_config: ")


def test_layers_that_are_all_refused_are_an_error():
    with pytest.raises(ValueError, match="full_attention: queries are scaled"):
        wn.explain({"model_type": "beam"}, layer=5)
    assert "queries are scaled" in wn.explain({"model_type": "beam"})


@pytest.mark.parametrize(("columns", "widest"), [("60", 60), ("200", 92), ("5", 40)])
def test_the_command_is_as_wide_as_the_terminal(folder, capsys, monkeypatch, columns, widest):
    monkeypatch.setenv("COLUMNS", columns)
    assert cli.main(["explain", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert widest - 12 < max(map(len, lines)) <= widest


def test_a_list_of_numbers_is_one_line_of_json(folder, capsys):
    assert cli.main(["explain", str(folder), "--json", "-"]) == 0
    text = capsys.readouterr().out
    assert text.count("\n") < 60
    (line,) = (line for line in text.splitlines() if '"layers": [' in line)
    assert line.strip() == f'"layers": {list(range(32))},'


def test_the_keys_of_the_json_stand_in_the_docs():
    page = (ROOT / "docs" / "configs.md").read_text(encoding="utf-8")
    keys = set()
    longrope = scaled(
        rope_type="longrope",
        original_max_position_embeddings=32,
        short_factor=[1.0] * 8,
        long_factor=[2.0] * 8,
    )
    for source in (LLAMA, SCOUT, GPT_OSS, PARTS, longrope):
        (part, *_) = as_data(tell(source))["parts"]
        keys |= {*part, *(key for group in part["groups"] for key in group)}
        made = [each for group in part["groups"] for each in group["encodings"]]
        keys |= {key for each in made if each["encoding"] == "RoPE" for key in each}
    assert sorted(key for key in keys if f"`{key}`" not in page) == []


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def test_the_command_prints_what_explain_says(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # as wide as explain's own lines, and wider
    assert cli.main(["explain", str(folder)]) == 0
    assert capsys.readouterr().out == wn.explain(LLAMA) + "\n"


def test_the_command_writes_numbers(folder, capsys, tmp_path):
    target = tmp_path / "out.json"
    assert cli.main(["explain", str(folder), "--json", str(target)]) == 0
    capsys.readouterr()
    assert cli.main(["explain", str(folder), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(target.read_text())
    (part,) = json.loads(target.read_text())["parts"]
    (group,) = part["groups"]
    (numbers,) = group["encodings"]
    assert group["layers"] == list(range(32))
    assert numbers["encoding"] == "RoPE"
    assert numbers["scaling"]["factor"] == 8.0
    expected = llama3(500_000.0, 128, 8.0, 1.0, 4.0, 8192)
    assert numbers["frequencies"] == pytest.approx(expected, rel=1e-12)
    assert numbers["pairs_without_a_turn"] == {"8192": 32, "131072": 25}


def test_the_commands_layer_and_part(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PARTS))
    assert cli.main(["explain", str(path), "--part", "text_config", "--layer", "1"]) == 0
    assert "vision_config" not in capsys.readouterr().out
    assert cli.main(["explain", str(path), "--layer", "9", "--part", "text_config"]) == 2
    assert capsys.readouterr().err == "whereness: layer must be in 0 .. 1, got 9.\n"


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"\xff\xfe", b'{"a": NaN}', b'{"a": 1, "a": 2}', b'{"a":' * 100_000, b"{}",
     b'{"model_type": 3}', b'{"model_type": "llama", "rope_theta": "big"}'],
)  # fmt: skip
def test_hostile_files_are_one_line_and_status_2(tmp_path, capsys, data):
    path = tmp_path / "config.json"
    path.write_bytes(data)
    assert cli.main(["explain", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("whereness: ")
    assert err.count("\n") == 1


@pytest.mark.more
def test_the_command_takes_less_than_a_second_after_import(folder):
    code = (
        "import time, sys, torch, whereness; from whereness.cli import main; "
        "start = time.process_time(); main(['explain', sys.argv[1]]); "
        "print(time.process_time() - start, file=sys.stderr)"
    )
    done = python("-c", code, folder)
    assert float(done.stderr) < 1.0


def test_help_of_all_commands_needs_no_reader():
    code = (
        "import sys; from whereness.cli import main; main(['--help']); "
        "print(any('interop' in name for name in sys.modules), file=sys.stderr)"
    )
    done = python("-c", code)
    assert "explain" in done.stdout
    assert done.stderr == "False\n"
