"""`from_config` against every rotary class of Hugging Face transformers.

Counting rule: M is the number of classes named *RotaryEmbedding in a models.*.modeling_* file of
transformers 5.24.0, whose constructor's first parameter is annotated with a config class that can
be built without arguments, that can then be built of it, and that hold a buffer named *inv_freq.
N of them have their frequencies to a relative 1e-6 and their attention scaling to 1e-6, for every
layer type that has its own. The oracle is the live class, its forward pass and its file's own
function that turns queries and keys.
"""

import functools
import math
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import whereness as wn
from peers import rotary_turning
from peers.rotary_classes import (
    SWITCHES,
    WITHIN,
    Subject,
    built,
    is_config,
    keys_of,
    layers_of,
    modules,
    spectra,
    subjects,
)
from peers.rotary_scalings import LENGTH_DEPENDENT, reach, scaled, scalings
from whereness.interop.config import reader as configs
from whereness.interop.config.files import read

pytestmark = [pytest.mark.more, pytest.mark.untyped, pytest.mark.timeout(300)]

BY_HEAD = "every head turns by its own number: q and k alike, so attention sees no position"
SECTIONS = "the default sections do not add up to the pairs: transformers' forward pass raises too"
MISSES: dict[str, str] = {
    "Glm4vMoeTextRotaryEmbedding": SECTIONS,
    "Glm4vTextRotaryEmbedding": SECTIONS,
    "GlmImageTextRotaryEmbedding": SECTIONS,
    "HunYuanVLRotaryEmbedding": "the two channels of a pair turn by different axes: no rotation",
    "MusicFlamingoRotaryEmbedding": "angles are products of an index and a time stamp",
    "NeuCodecRotaryEmbedding": BY_HEAD,
    "Qwen2_5OmniDiTRotaryEmbedding": "the first head alone turns",
    "Qwen3OmniMoeTalkerRotaryEmbedding": "the default head_dim is odd, 73",
    "Qwen3OmniMoeThinkerTextRotaryEmbedding": "the default head_dim is odd, 73",
    "Xcodec2RotaryEmbedding": BY_HEAD,
}
"""Classes that are refused, or read as without position, and why."""

FLOOR = 0.95


@pytest.fixture(autouse=True)
def quiet():
    """Peers warn of what their own defaults lack, and we of what libraries read differently."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def encodings(subject: Subject, config: Any, label: str | None) -> Iterator[Any]:
    """Ours, of every layer that reads this spectrum; those without position are left out."""
    keys, part = keys_of(subject, config)
    for layer in layers_of(config, label):
        found = wn.from_config(keys, layer=layer, part=part)
        first = found[0] if isinstance(found, tuple) else found
        if not isinstance(first, wn.NoPE):
            yield first


def one_axis(encoding: Any) -> torch.Tensor:
    """Our frequencies in the order in which a rotary class holds them: those of one axis where each
    has its own spectrum, which must then be the same for all."""
    found = encoding.frequencies
    if isinstance(encoding, wn.DINOv3RoPE):
        found = found / (2 * math.pi)  # which is in the coordinates there
    if getattr(encoding, "order", None) == "ernie":
        own = encoding.sections[2]
        return torch.cat([found[:-own][0::2], found[:-own][1::2], found[-own:]])
    if found.dim() == 1:
        return found
    if encoding.layout == "shared_blocks":
        return found.flatten()
    if encoding.layout == "shared_alternating":
        return found.T.flatten()
    assert all(torch.equal(axis, found[0]) for axis in found)
    return found[0]


def parted(subject: Subject, config: Any, module: Any) -> str:
    """How ours differs from a built class, in words; empty if it does not."""
    try:
        for each in spectra(module):
            ours = list(encodings(subject, config, each.label))
            if not ours:
                return "no layer has a position"
            for encoding in ours:
                sign = -1.0 if subject.model_type == "nanochat" else 1.0
                said = apart(sign * one_axis(encoding), encoding.amplitude, each)
                if said:
                    return said
    except (ValueError, TypeError) as error:
        return f"refused: {error}"
    return ""


def apart(frequencies: torch.Tensor, amplitude: float, peer: Any) -> str:
    if frequencies.shape != peer.frequencies.shape:
        return f"{len(frequencies)} frequencies, not {len(peer.frequencies)}"
    difference = (frequencies - peer.frequencies).abs() - 1e-6 * peer.frequencies.abs()
    if (difference > 0).any():
        return f"frequencies differ, {peer.label or ''} pair {int(difference.argmax())}"
    if abs(amplitude - peer.amplitude) > 1e-6:
        return f"amplitude {amplitude}, not {peer.amplitude}"
    return ""


def test_every_class_that_builds_with_defaults(record_property):
    found = {}
    for subject in subjects():
        module = built(subject) if subject.annotated else None
        if module is not None and spectra(module):
            found[subject.cls.__name__] = parted(subject, subject.config(), module)
    misses = {name: why for name, why in found.items() if why}
    lines = [f"  {name}: {MISSES.get(name, why)}" for name, why in sorted(misses.items())]
    said = f"{len(found) - len(misses)} of {len(found)} rotary classes of transformers"
    record_property("measured", "\n".join([said, *lines]))
    assert len(found) == 205
    assert misses.keys() == MISSES.keys(), misses
    assert len(found) - len(misses) >= FLOOR * len(found)


def test_every_config_that_models_build_a_class_of(record_property):
    """The same for the configs that are no annotation: parts of composite models above all."""
    found = {}
    for subject in subjects():
        module = None if subject.annotated else built(subject)
        if module is not None and spectra(module):
            found[subject.name] = parted(subject, subject.config(), module)
    misses = {name: why for name, why in found.items() if why}
    record_property("measured", f"{len(found) - len(misses)} of {len(found)} further configs")
    assert len(found) >= 25
    assert not misses


RELEASED: dict[str, dict[str, Any]] = {
    "CohereCompassTextConfig": {
        "layer_types": ["sliding_attention", "full_attention"],
        "num_hidden_layers": 2,
        "rope_parameters": {
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": 50_000.0,
                "mrope_section": [24, 20, 20],
            },
            "full_attention": None,
        },
    },
    "Glm4vMoeTextConfig": {"head_dim": 128, "rope_parameters": None},
    "Glm4vTextConfig": {"partial_rotary_factor": 0.5},
    "GlmImageTextConfig": {"partial_rotary_factor": 0.5},
    "Qwen3OmniMoeTextConfig": {"head_dim": 128},
}
"""Sizes like those of released models, where the defaults do not fit one another."""


@pytest.mark.parametrize("name", RELEASED)
def test_sizes_of_released_models(name):
    met = [s for s in subjects() if s.config_class.__name__ == name]
    assert met
    for subject in met:
        config = subject.config(**RELEASED[name])
        module = built(subject, config)
        assert spectra(module)
        assert not parted(subject, config, module)


@pytest.mark.parametrize("name", [n for n, why in MISSES.items() if why == SECTIONS])
def test_sections_that_do_not_add_up_fail_there_too(name):
    subject = next(s for s in subjects() if s.cls.__name__ == name)
    module, ids = built(subject), torch.zeros(3, 1, 4)
    with pytest.raises(RuntimeError, match="split"):
        module(torch.zeros(1, 4, 8), ids)
    with pytest.raises(ValueError, match="sections|rotary_dim"):
        wn.from_config(subject.config().to_dict(), layer=0)


# Pairing


ROWS = torch.tensor([[0, 0, 0], [1, 2, 5], [3, 1, 4], [7, 0, 9], [40, 33, 11]])
"""Positions of five tokens on up to three axes."""


def compared(subject: Subject, module: Any, encoding: Any, label: str | None) -> None:
    """Queries and keys turned by the model's own code and by ours: the same tensors, and the same
    scores where its code gives channels in another order."""
    head, turns = encoding.head_dim, encoding.rotary_dim
    q, k = torch.randn(2, 1, 2, len(ROWS), head)
    positions = ROWS[:, : encoding.num_axes]
    ours = encoding(q, k, positions[None] if encoding.num_axes > 1 else positions[:, 0])
    apply = rotary_turning.function_of(rotary_turning.module_of(subject), subject)
    made = rotary_turning.tables(module, subject, positions, label)
    width = 2 * made[0].shape[-1] if made[0].is_complex() else made[0].shape[-1]
    start = head - turns if encoding.rotary_side == "trailing" else 0
    try:
        theirs = rotary_turning.turned(apply, subject, q, k, made)
    except RuntimeError:  # the attention hands over the part that turns
        assert turns < head and width in (turns, turns // 2)
        q, k, *ours = (x[..., start : start + turns] for x in (q, k, *ours))
        theirs = rotary_turning.turned(apply, subject, q, k, made)
    if rotary_turning.keeps_order(apply):
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-4)
    mine, other = (a.double() @ b.double().mT for a, b in (ours, theirs))
    torch.testing.assert_close(mine, other, rtol=1e-5, atol=2e-5 * float(other.abs().max()))


SPECIAL = ("EfficientLoFTRRotaryEmbedding", "EomtDinov3RotaryEmbedding")
"""Classes that are called with an image instead of positions: tested below."""


def test_pairs_by_turning(record_property):
    types, refused = set(), set()
    for subject in subjects():
        module = built(subject)
        if module is None or not spectra(module) or subject.cls.__name__ in SPECIAL:
            continue
        config = subject.config()
        for each in spectra(module):
            try:
                ours = list(encodings(subject, config, each.label))
            except ValueError:
                ours = []
            for encoding in ours:
                compared(subject, module, encoding, each.label)
                types.add(subject.model_type)
            if not ours:
                refused.add(subject.cls.__name__)
    assert refused == MISSES.keys()
    said = f"{len(types) + len(SPECIAL)} model types turn queries and keys as their own code does"
    record_property("measured", said)
    assert len(types) >= 215


def test_the_other_pairing_is_another():
    """The comparison sees what it is for: with the wrong pairing it fails."""
    subject = next(s for s in subjects() if s.cls.__name__ == "CohereRotaryEmbedding")
    module = built(subject)
    compared(subject, module, wn.RoPE(128, 500_000.0, "interleaved"), None)
    with pytest.raises(AssertionError):
        compared(subject, module, wn.RoPE(128, 500_000.0, "half"), None)


def image_of(name: str) -> tuple[Subject, Any, Any]:
    subject = next(s for s in subjects() if s.cls.__name__ == name)
    return subject, built(subject), next(encodings(subject, subject.config(), None))


def test_dinov3_turns_an_image():
    subject, module, encoding = image_of("EomtDinov3RotaryEmbedding")
    module.eval()
    cos, sin = module(torch.zeros(1, 3, 48, 80))
    q, k = torch.randn(2, 1, 2, 15, encoding.head_dim)
    ours = encoding.eval()(q, k, encoding.coordinates(3, 5)[None])
    theirs = rotary_turning.module_of(subject).apply_rotary_pos_emb(q, k, cos, sin)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


def test_efficient_loftr_turns_features():
    subject, module, encoding = image_of("EfficientLoFTRRotaryEmbedding")
    cos, sin = module(torch.zeros(1, 256, 12, 20))  # every fourth row and column is left
    q, k = torch.randn(2, 1, 15, 1, encoding.head_dim)
    apply = rotary_turning.module_of(subject).apply_rotary_pos_emb
    theirs = apply(q, k, *(x.reshape(1, 15, -1) for x in (cos, sin)), unsqueeze_dim=2)
    ours = encoding(q, k, wn.positions.grid(3, 5)[None], layout="bshd")
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["GPTJRotaryEmbedding", "CodeGenRotaryEmbedding"])
def test_tables_of_sines(name):
    """Classes that hold sines and no `inv_freq`, so they are not counted."""
    subject = next(s for s in subjects() if s.cls.__name__ == name)
    module, encoding = built(subject), next(encodings(subject, subject.config(), None))
    sin, cos = module(torch.zeros(1), ROWS[None, :, 0])
    width = encoding.rotary_dim
    q = torch.randn(1, len(ROWS), 2, encoding.head_dim)
    theirs = rotary_turning.module_of(subject).apply_rotary_pos_emb(q[..., :width], sin, cos)
    ours = encoding.rotate(q, ROWS[:, 0], layout="bshd")
    torch.testing.assert_close(ours[..., :width], theirs, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(ours[..., width:], q[..., width:], rtol=0, atol=0)


def test_llama4_turns_an_image():
    subject = next(s for s in subjects() if s.cls.__name__ == "Llama4VisionRotaryEmbedding")
    config = subject.config(image_size=56, patch_size=14)
    table = subject.cls(config)(torch.zeros(1))  # 16 patches, then the class token
    encoding = next(encodings(subject, config, None))
    q, k = torch.randn(2, 1, 17, 2, encoding.head_dim)
    grid = wn.positions.grid(4, 4)
    ids = torch.cat([grid, torch.full_like(grid[:1], wn.NOWHERE)])
    turn = rotary_turning.module_of(subject).vision_apply_rotary_emb
    for mine, other in zip(
        encoding(q, k, ids[None], layout="bshd"), turn(q, k, freqs_ci=table), strict=True
    ):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


# Scalings

OTHERS = {*MISSES, "EfficientLoFTRRotaryEmbedding"}
"""Without scalings to compare; the last one counts no positions."""

NO_SCALING: dict[str, str] = {
    "neomme": "two axes",
    "nanochat": "turns by -position",
}
"""Model types whose scaled configs are refused, though transformers builds them."""

ROUNDED = 2.0**-19
"""Relative: the peer forms ramps and powers in float32, some thirty roundings one after another."""


def lengths_of(name: str, config: Any) -> list[int | None]:
    """Lengths on both sides of where a spectrum changes; [None] where it does not."""
    if name.startswith("dynamic"):
        whole = int(config.max_position_embeddings)
        return [1, whole, whole + 1, 2 * whole, 5 * whole + 3]
    if name.startswith("longrope"):
        return [1, reach(config), reach(config) + 1, 4 * reach(config)]
    return [None]


def skipped(subject: Subject, name: str) -> bool:
    """Scalings that a family's code does not have, or not in a form that its tables fit."""
    kind, type_ = name.split(",", maxsplit=1)[0], subject.model_type
    if type_ == "phimoe":  # its forward pass needs mscales and takes no other kind: docs/findings
        return kind in LENGTH_DEPENDENT
    if type_ in ("phi3", "phi4_multimodal"):  # the config class reads "yarn" as "longrope"
        return kind == "yarn"
    if type_.startswith("modernbert"):  # its config class has no place for a truncate: findings
        return name == "yarn, not truncated"
    if kind == "proportional":  # of the whole head: not what the attention hands over
        latent = hasattr(subject.config(), "qk_rope_head_dim")
        sectioned = "mrope_section" in (subject.config().rope_parameters or {})
        return latent or sectioned or "Qwen3_5" in subject.cls.__name__
    return False


def at_length(subject: Subject, config: Any, label: str | None, length: int | None) -> Any:
    """The spectrum that the class holds after a forward pass of this length."""
    module = built(subject, config)
    assert module is not None, subject.name
    if length is not None:
        typed = {} if label is None else {"layer_type": label}
        module(torch.zeros(1, 1, 8), torch.tensor([[length - 1]]), **typed)
    return next(each for each in spectra(module) if each.label == label)


def unequal(subject: Subject, config: Any, name: str, label: str | None) -> tuple[int, list[str]]:
    """How many spectra were compared, and which differ."""
    count, said = 0, []
    for encoding in encodings(subject, config, label):
        for length in lengths_of(name, config):
            peer = at_length(subject, config, label, length)
            ours = encoding.frequencies if length is None else encoding.frequencies_at(length)
            count += 1
            if ours.shape != peer.frequencies.shape:
                said.append(f"{subject.name} {name}: {len(ours)}, not {len(peer.frequencies)}")
                continue
            error = ((ours - peer.frequencies).abs() - ROUNDED * peer.frequencies.abs()).max()
            if error > 0 or abs(encoding.amplitude - peer.amplitude) > 1e-6:
                said.append(f"{subject.name} {name} {label} at {length}")
    return count, said


def test_every_scaling_of_every_class(record_property):
    count, said, refused = 0, [], {}
    for subject in subjects():
        module = built(subject)
        if module is None or not takes_scalings(subject) or subject.cls.__name__ in OTHERS:
            continue
        plain = spectra(module)
        for name in scalings(subject.config(), 0):
            if skipped(subject, name):
                continue
            config = scaled(subject, plain, name)
            for each in plain:
                try:
                    compared_now, differing = unequal(subject, config, name, each.label)
                except ValueError as error:
                    refused[subject.model_type] = str(error)
                else:
                    count, said = count + compared_now, said + differing
    record_property("measured", f"{count - len(said)} of {count} scaled spectra of transformers")
    assert not said
    odd = {"glm4_moe"}  # 21 of 42 channels turn by default: an odd width has no scaling
    assert refused.keys() == NO_SCALING.keys() | odd, refused
    assert count > 2500


def takes_scalings(subject: Subject) -> bool:
    """Whether the class has the scalings that all share."""
    return "ROPE_INIT_FUNCTIONS" in subject.cls.__init__.__code__.co_names


@pytest.mark.parametrize("model_type", ["hunyuan_v1_dense", "hunyuan_v1_moe"])
def test_hunyuan_grows_its_base(model_type):
    """Its "dynamic" with an alpha is static, and reads no length."""
    subject = next(s for s in subjects() if s.model_type == model_type)
    rope = {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0, "rope_theta": 10_000.0}
    config = subject.config(head_dim=128, rope_parameters=rope)
    assert not parted(subject, config, built(subject, config))


# Keys that a file leaves out


def test_a_file_that_says_its_model_type_alone(record_property):
    """Released files leave out what their config class fills in: so does `from_config`."""
    count, said = 0, []
    for subject in subjects():
        name = subject.config_class.__name__
        if name in WITHIN or name == "DoryConfig" or built(subject) is None:
            continue  # Dory's files count every layer twice, its class does not
        config = subject.config()
        bare = {"model_type": subject.model_type, **SWITCHES.get(subject.model_type, {})}
        for each in spectra(built(subject)):
            for layer in layers_of(config, each.label):
                whole, alone = (
                    told(keys, "", layer) for keys in (keys_of(subject, config)[0], bare)
                )
                count += 1
                if whole != alone:
                    said.append(f"{subject.name} layer {layer}: {alone}, not {whole}")
    record_property("measured", f"{count - len(said)} of {count} layers from a model_type alone")
    assert not said


def told(keys: dict[str, Any], part: str = "", layer: int | None = None) -> str:
    """The encodings of one layer or of all, as text, or why there are none."""
    parts_found = configs.parts_of(read(keys))
    if part not in parts_found:
        return f"no such part, of {list(parts_found)}"
    try:
        layers = configs.layers_of(parts_found[part])
        each = layers.groups() if layer is None else [configs.one_layer(layers, layer)]
        return "; ".join(" + ".join(map(str, found)) for found in each)
    except ValueError as error:
        return f"refused: {str(error).removeprefix(f'{part}: ')}"


# Parts


@functools.cache
def composites() -> list[tuple[type, str]]:
    """(config of a whole model, key path): where configs of rotary classes are parts."""
    rotary = {each.config_class for each in subjects() if built(each) is not None}
    found = []
    for module in modules():
        for whole in vars(module.loaded).values():
            if not is_config(whole) or not whole.sub_configs:
                continue
            try:
                config = whole()
            except Exception:  # noqa: BLE001 (whatever a default lacks)
                continue
            found += [(whole, path) for path, cls in parts(config) if cls in rotary]
    return list(dict.fromkeys(found))


def parts(config: Any, path: str = "") -> Iterator[tuple[str, type]]:
    """Key path and class of every config within a config."""
    for name in config.sub_configs:
        inner = getattr(config, name, None)
        if is_config(type(inner)):
            yield path + name, type(inner)
            yield from parts(inner, f"{path}{name}.")


def test_parts_of_composite_models(record_property):
    """A part is read within its model as it is read alone."""
    said = []
    for whole, path in composites():
        keys = whole().to_dict()
        inner: Any = keys
        for step in path.split("."):
            inner = inner[step]
        if not inner.get("model_type"):  # Evolla's and Qwen3-Omni's, above
            continue
        ours, alone = (told(each, part) for each, part in ((keys, path), (inner, "")))
        # A refusal names its keys by their path.
        if ours.replace(f"{path}.", "") != alone:
            said.append(f"{whole.__name__} {path}: {ours}, not {alone}")
    record_property("measured", f"{len(composites()) - len(said)} of {len(composites())} parts")
    assert not said
    assert len(composites()) > 90
