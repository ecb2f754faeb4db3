"""Reports of audits, made by hand: one with findings of every severity, one clean, one hostile."""

from dataclasses import replace

from whereness.auditor.findings import Compared, Finding, LayerFacts, NotChecked, Report

BASE, OTHER = 500_000.0, 10_000.0
PAIRS = 32
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202eevil]]>"


def speeds(base, pairs=PAIRS, factor=1.0):
    return tuple(base ** (-2 * i / (2 * pairs)) / factor for i in range(pairs))


def rotary(index, **changed):
    facts = LayerFacts(
        where=f"model.layers.{index}.self_attn",
        index=index,
        classified="relative",
        expected="RoPE, base 500,000",
        pairing="half",
        rotary_dim=2 * PAIRS,
        speeds=speeds(BASE),
        expected_speeds=speeds(BASE),
        amplitudes=(1.0,) * PAIRS,
        expected_amplitude=1.0,
    )
    return replace(facts, **changed)


def alibi(index, heads=4, reach=24):
    slopes = [2.0 ** (-8 * (h + 1) / heads) for h in range(heads)]
    offsets = tuple(range(-reach, 1))
    curves = tuple(tuple(slope * n for n in offsets) for slope in slopes)
    return LayerFacts(
        where=f"transformer.h.{index}.attn",
        index=index,
        classified="relative",
        expected="ALiBi, 4 heads",
        bias="ALiBi slopes 1/4 .. 1/256",
        bias_offsets=offsets,
        bias_curves=curves,
        expected_bias_curves=curves,
    )


def wrong_base(layer):
    return Finding(
        check="CHK1",
        kind="K02",
        severity="error",
        layer=layer,
        where=f"model.layers.{layer}.self_attn",
        expected="base 500,000: the slowest pair turns 3.02e-06 rad/token",
        measured=f"base 10,000: the slowest pair turns {1.33e-4 + layer * 1e-6:.6g} rad/token",
        cause="the base of the file is not read: 10,000 is the default of the config class",
        remedy="set rope_theta from rope_parameters, or rebuild the tables after loading",
    )


def warning():
    return Finding(
        check="CHK8",
        kind="K06",
        severity="warning",
        where="model.rotary_emb.inv_freq",
        expected="frequencies that a cast of the model leaves alone",
        measured="after .to(bfloat16) the fastest pair is off by 0.2 %",
        cause="inv_freq is a buffer, so it is cast with the model",
        remedy="keep it in float32: cast parameters only, or rebuild it after the cast",
    )


def note():
    return Finding(
        check="CHK11",
        kind="K22",
        severity="note",
        where="rope_theta",
        expected="one spelling",
        measured="the base stands at the top and within rope_parameters, with one value",
        cause="written by two versions of a library",
        remedy="nothing needs to be done; drop the one at the top when convenient",
    )


def checked(num_layers):
    said = [
        Compared(check="CHK1", what="spectrum", layer=i, where=f"model.layers.{i}.self_attn")
        for i in range(num_layers)
    ]
    return [*said, Compared(check="CHK4", what="cache parity"), Compared(check="CHK5", what="pads")]


UNCHECKED = (
    NotChecked(check="CHK13", why="the model has no grid"),
    NotChecked(check="CHK16", why="the model has no grid"),
    NotChecked(check="CHK7", why="no sharding is known for this model"),
    NotChecked(check="CHK15", why="the layer has no bias", layer=0),
    NotChecked(check="CHK15", why="the layer has no bias", layer=1),
)


def faulty(num_layers=30):
    """Layers 2 and up have the wrong base; layer 0 has no position and 1 is right."""
    wrong = {"speeds": speeds(OTHER)}
    layers = [
        LayerFacts(
            where="model.layers.0.self_attn", index=0, classified="none", expected="no position"
        ),
        rotary(1),
        *(rotary(i, **wrong) for i in range(2, num_layers)),
    ]
    return Report(
        target="models/ported",
        what="Hugging Face folder: llama, 30 layers, config and 2 weight files",
        layers=layers,
        findings=[note(), warning(), *(wrong_base(i) for i in range(2, num_layers))],
        compared=checked(num_layers),
        not_checked=list(UNCHECKED),
    )


def clean():
    return Report(
        target="mosaic.gguf",
        what="GGUF file: mpt, 2 layers",
        layers=[alibi(0), alibi(1)],
        compared=[Compared(check="CHK15", what="slopes", layer=i) for i in range(2)],
        not_checked=[NotChecked(check="CHK4", why="there is no live model")],
    )


def silent():
    """Nothing could be compared."""
    return Report(
        target="unknown/",
        layers=[LayerFacts(where="encoder.attn")],
        not_checked=[NotChecked(check="CHK1", why="the config of no known family")],
    )


def hostile():
    """Every text from a target is an attack."""
    facts = rotary(0, where=HOSTILE, expected=HOSTILE, pairing=HOSTILE, bias=HOSTILE, part=HOSTILE)
    texts = dict.fromkeys(("where", "expected", "measured", "cause", "remedy", "part"), HOSTILE)
    return Report(
        target=HOSTILE,
        what=HOSTILE,
        layers=[replace(facts, measured=HOSTILE)],
        findings=[Finding(check="CHK1", kind="K02", severity="error", layer=0, **texts)],
        compared=[Compared(check=HOSTILE, what=HOSTILE, layer=0, where=HOSTILE)],
        not_checked=[NotChecked(check=HOSTILE, why=HOSTILE, layer=0, where=HOSTILE)],
    )
