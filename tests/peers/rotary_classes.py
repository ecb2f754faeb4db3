"""Every rotary class of Hugging Face transformers, each with a config that its models build it of.

The config of a class is what its constructor's first parameter is annotated with, built with its
defaults; beside it every config of the models of the same module that build the class.
"""

import ast
import functools
import importlib
import inspect
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

ENDING = "RotaryEmbedding"

SWITCHES: dict[str, dict[str, Any]] = {
    "deepseek_v4": {
        "layer_types": ["sliding_attention", "compressed_sparse_attention"],
        "num_hidden_layers": 2,
    },
    "esm": {"position_embedding_type": "rotary"},
    "granitemoehybrid": {
        "position_embedding_type": "rope",
        "layer_types": ["full_attention"],
        "num_hidden_layers": 1,
    },
    "zamba2": {"use_mem_rope": True},
}
"""model_type -> keys without which its models never build the class, or a layer that reads it."""

WITHIN: dict[str, tuple[str, str]] = {
    "EvollaConfig": ("EvollaConfig", "text_config"),
    "Qwen3OmniMoeCode2WavConfig": ("Qwen3OmniMoeConfig", "code2wav_config"),
    "SaProtConfig": ("EvollaConfig", "protein_encoder_config"),
}
"""Configs that do not say what they are: a composite one that does, and their place in it."""

LAYER_OF = {"main": "sliding_attention", "compress": "compressed_sparse_attention"}
"""The layer type that reads a spectrum of another name (DeepSeek-V4)."""


@dataclass(frozen=True)
class Subject:
    """A rotary class and a config that it is built of."""

    cls: type
    config_class: type
    annotated: bool
    """The config is the constructor's annotation; else that of a model that builds the class."""

    @property
    def model_type(self) -> str:
        """Of the config; its class where it has none."""
        return self.config_class.model_type or self.config_class.__name__

    @property
    def name(self) -> str:
        """For reports."""
        return f"{self.cls.__name__}({self.config_class.__name__})"

    def config(self, **overrides: Any) -> Any:
        """A config of defaults, but for the key that lets the model have the class."""
        return self.config_class(**SWITCHES.get(self.model_type, {}) | overrides)


@dataclass
class Spectrum:
    """What a rotary class holds for one layer type; None where all layers have the same."""

    label: str | None
    frequencies: torch.Tensor
    amplitude: float


@dataclass
class Module:
    """A modeling file: its classes and what they are built of."""

    name: str
    tree: ast.Module = field(repr=False)

    @functools.cached_property
    def loaded(self) -> Any:
        """The module, imported."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(self.name)

    def rotary(self) -> list[str]:
        """Names of the rotary classes."""
        return [
            node.name
            for node in self.tree.body
            if isinstance(node, ast.ClassDef) and node.name.endswith(ENDING)
        ]

    def built_of(self, name: str) -> list[type]:
        """Configs of the classes here that build `name` of their own config."""
        found = []
        for owner in self.tree.body:
            if not isinstance(owner, ast.ClassDef):
                continue
            for call in ast.walk(owner):
                if not isinstance(call, ast.Call) or getattr(call.func, "id", None) != name:
                    continue
                given = [*call.args, *(word.value for word in call.keywords)]
                if given and ast.unparse(given[0]) in ("config", "self.config"):
                    found.append(annotation(getattr(self.loaded, owner.name), "config"))
        return [each for each in found if is_config(each)]


def annotation(cls: type, parameter: str | None = None) -> Any:
    """What a parameter of the constructor is annotated with; the first one by default."""
    parameters = dict(inspect.signature(cls.__init__).parameters)
    parameters.pop("self")
    if parameter is None:
        parameter = next(iter(parameters), None)
    return parameters[parameter].annotation if parameter in parameters else None


def is_config(found: Any) -> bool:
    """A class of configs that says more than the base of all."""
    from transformers import PreTrainedConfig

    return (
        inspect.isclass(found)
        and issubclass(found, PreTrainedConfig)
        and (found is not PreTrainedConfig)
    )


@functools.cache
def modules() -> list[Module]:
    """The modeling files that hold a rotary class."""
    import transformers

    root = Path(transformers.__file__).parent / "models"
    found = []
    for path in sorted(root.glob("*/modeling_*.py")):
        source = path.read_text(encoding="utf-8")
        if re.search(rf"^class \w+{ENDING}\b", source, re.MULTILINE):
            name = f"transformers.models.{path.parent.name}.{path.stem}"
            found.append(Module(name, ast.parse(source)))
    return found


@functools.cache
def subjects() -> list[Subject]:
    """Every class with every config of it."""
    found = []
    for module in modules():
        for name in module.rotary():
            cls = getattr(module.loaded, name)
            own = annotation(cls)
            configs = dict.fromkeys(([own] if is_config(own) else []) + module.built_of(name))
            found += [Subject(cls, each, each is own) for each in configs]
    return found


def built(subject: Subject, config: Any = None) -> Any:
    """The class, built; None where it or its config cannot be."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return subject.cls(subject.config() if config is None else config)
        except Exception:  # noqa: BLE001 (whatever a default lacks)
            return None


def spectra(module: Any) -> list[Spectrum]:
    """The `inv_freq` of a rotary class, one for each layer type that has its own."""
    found = []
    for name, buffer in module.named_buffers():
        if not name.endswith("inv_freq") or "original" in name:
            continue
        label = name.removesuffix("inv_freq").removesuffix("_")
        scaling = f"{label}_attention_scaling" if label else "attention_scaling"
        found.append(Spectrum(label or None, buffer.double(), float(getattr(module, scaling))))
    return found


def keys_of(subject: Subject, config: Any) -> tuple[dict[str, Any], str]:
    """What `from_config` is given: the keys, and the part that they are."""
    if subject.config_class.__name__ not in WITHIN:
        return config.to_dict(), ""
    import transformers

    whole, part = WITHIN[subject.config_class.__name__]
    if whole == subject.config_class.__name__:
        return config.to_dict(), part
    keys = getattr(transformers, whole)().to_dict()
    inner = keys
    *path, last = part.split(".")
    for step in path:
        inner = inner[step]
    inner[last] = config.to_dict()
    return keys, part


def layers_of(config: Any, label: str | None) -> list[int | None]:
    """A layer of each kind that reads this spectrum; [None] where the config counts no layers."""
    types = getattr(config, "layer_types", None)
    if not isinstance(types, list):
        return [None]
    types = config.to_dict().get("layer_types", types)
    if label is None:
        return [types.index(each) for each in dict.fromkeys(types)]
    wanted = LAYER_OF.get(label, label)
    return [types.index(wanted)]
