"""How faults are written down and planted.

A fault is a function that takes a fresh host and breaks it; its docstring says what is wrong. It is
registered by `in_model`, `in_config` or `in_weights` with its id, its kind and its host.
"""

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from types import FunctionType
from typing import Any, Literal

import torch
from torch import nn

from auditor import zoo
from auditor.faults import own

Where = Literal["config", "weights", "model"]

FAULTS: dict[str, "Fault"] = {}
"""The catalogue, by id."""

YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 512,
}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 8,
    "long_factor": [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0],
    "original_max_position_embeddings": 512,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
LATENT = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}
GLOBAL = {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
LOCAL = {"rope_type": "default", "rope_theta": 1e4}

TOLD: dict[str, tuple[str, dict[str, Any]]] = {
    "llama with base 500000": (
        "llama",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    ),
    "llama with YaRN": ("llama", {"rope_parameters": YARN, "max_position_embeddings": 2048}),
    "llama with YaRN of amplitude 1": (
        "llama",
        {"rope_parameters": {**YARN, "attention_factor": 1.0}, "max_position_embeddings": 2048},
    ),
    "llama with dynamic NTK": (
        "llama",
        {"rope_parameters": DYNAMIC, "max_position_embeddings": 64},
    ),
    "qwen2 with YaRN": ("qwen2", {"rope_parameters": YARN, "max_position_embeddings": 2048}),
    "mistral with linear scaling": (
        "mistral",
        {
            "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
            "max_position_embeddings": 2048,
        },
    ),
    "gemma3_text with linear scaling": (
        "gemma3_text",
        {"rope_parameters": {"full_attention": GLOBAL, "sliding_attention": LOCAL}},
    ),
    "phi3 with LongRoPE": (
        "phi3",
        {
            "rope_parameters": {**LONG, "partial_rotary_factor": 1.0},
            "max_position_embeddings": 2048,
            "original_max_position_embeddings": 512,
        },
    ),
    "deepseek_v3 with YaRN": (
        "deepseek_v3",
        {"rope_parameters": LATENT, "max_position_embeddings": 2048},
    ),
    "gpt_neo of a window": ("gpt_neo", {"window_size": 4}),
}
"""Hosts of the zoo that are told more keys."""


@dataclass(frozen=True)
class Fault:
    """One planted fault. blind: planted by someone who had not seen the checks; missed: why no
    check names its kind, empty if one does."""

    id: str
    kind: str
    where: Where
    host: str
    blind: bool
    what: str
    plant: Callable[..., Any]
    missed: str = ""

    def sound(self, folder: Path) -> Any:
        """The host as it should be: a config, a folder of weights or a model."""
        if self.where == "config":
            return config_host(self.host)
        model = model_host(self.host)
        if self.where == "model":
            return zoo.with_inputs(self.host, model)
        model.save_pretrained(folder)
        return folder

    def broken(self, folder: Path) -> Any:
        """The same with the fault in it."""
        target = self.sound(folder)
        self.plant(target[0] if isinstance(target, tuple) else target)
        return target


def _registered(where: Where, id_: str, kind: str, host: str, blind: bool, missed: str) -> Callable:
    def add(plant: Callable) -> Callable:
        if id_ in FAULTS:
            raise ValueError(f"{id_} is planted twice.")
        what = " ".join(inspect.getdoc(plant).split())
        FAULTS[id_] = Fault(id_, kind, where, host, blind, what, plant, missed)
        return plant

    return add


def in_model(id_: str, kind: str, host: str, *, blind: bool = True, missed: str = "") -> Callable:
    """Registers `plant(model)`, which breaks the model."""
    return _registered("model", id_, kind, host, blind, missed)


def in_config(id_: str, kind: str, host: str, *, blind: bool = True, missed: str = "") -> Callable:
    """Registers `plant(config)` of a dict."""
    return _registered("config", id_, kind, host, blind, missed)


def in_weights(id_: str, kind: str, host: str, *, blind: bool = True, missed: str = "") -> Callable:
    """Registers `plant(folder)` of a folder with config.json and model.safetensors."""
    return _registered("weights", id_, kind, host, blind, missed)


def model_host(name: str) -> nn.Module:
    """A fresh model: "own ...", an architecture of the zoo, or one that is told more keys."""
    if name in own.OWN:
        return own.own(name)
    if name == "llama as trained":
        return as_trained()
    return zoo.build(*TOLD.get(name, (name,)))[0]


def as_trained() -> nn.Module:
    """A llama whose heads attend by distance: the two rows of a pair of queries and those of keys
    span one plane, which a random model's do not."""
    model = zoo.build("llama", {"num_key_value_heads": 4, "head_dim": 32})[0]
    draws = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for layer in model.model.layers:
            q, k = layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight
            for first in (head * 32 + pair for head in range(4) for pair in range(16)):
                plane = torch.randn(2, q.shape[1], generator=draws) * (1 + first % 3) / 8
                for weight in (q, k):
                    angle = torch.rand(1, generator=draws) * 6
                    u = angle.cos() * plane[0] - angle.sin() * plane[1]
                    v = angle.sin() * plane[0] + angle.cos() * plane[1]
                    noise = torch.randn(2, q.shape[1], generator=draws) * 0.02
                    weight[[first, first + 16]] = torch.stack([u, v]) + noise
    return model


def config_host(name: str) -> dict[str, Any]:
    """A fresh config.json as a dict."""
    if name in CONFIGS:
        return json.loads(json.dumps(CONFIGS[name]))
    return json.loads(model_host(name).config.to_json_string(use_diff=False))


CONFIGS: dict[str, dict[str, Any]] = {
    "a file like Llama 3.1's": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "a file like Qwen2.5's with YaRN": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
        "rope_theta": 1000000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32768,
        },
    },
    "a file like Phi-2's": {
        "architectures": ["PhiForCausalLM"],
        "model_type": "phi",
        "vocab_size": 51200,
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.4,
    },
    "a file like Qwen2-VL's": {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "vocab_size": 151936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "vision_config": {
            "model_type": "qwen2_vl",
            "depth": 32,
            "embed_dim": 1280,
            "hidden_size": 1536,
            "num_heads": 16,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
    },
}
"""Config files as they are published, without what says nothing of positions."""


# ---- ways to break a module -----------------------------------------------------------------


def override(module: nn.Module, name: str, replacement: Callable) -> None:
    """Replaces a method of one module: `replacement(before, module, *arguments)`.

    `before` is the method as it was. The module's class changes, not its attributes, so that it can
    still be copied and pickled.
    """
    method = getattr(type(module), name)
    static = isinstance(inspect.getattr_static(type(module), name), staticmethod)

    @wraps(method)
    def replaced(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        before = method if static else partial(method, self)
        return replacement(before, self, *args, **kwargs)

    _become(module, **{name: replaced})


def reroute(module: nn.Module, **names: Any) -> None:
    """Lets the forward of one module see other functions under these names of its file."""
    forward = inspect.unwrap(type(module).forward)
    made = FunctionType(
        forward.__code__,
        {**forward.__globals__, **names},
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )
    made.__kwdefaults__ = forward.__kwdefaults__
    _become(module, forward=made)


def _become(module: nn.Module, **members: Any) -> None:
    before = type(module)
    name = f"Broken{before.__name__}{len(vars(sys.modules[__name__]))}"
    members |= {"__module__": __name__, "__qualname__": name}
    made = type(name, (before,), members)
    setattr(sys.modules[__name__], name, made)
    module.__class__ = made


def named(model: nn.Module, ending: str) -> Iterator[nn.Module]:
    """Modules whose class name ends so."""
    for module in model.modules():
        if type(module).__name__.endswith(ending):
            yield module


def attentions(model: nn.Module) -> list[nn.Module]:
    """The layers' attention, of a decoder with `self_attn` or of the own hosts."""
    return [module for name, module in model.named_modules() if name.endswith("self_attn")]


def rotary(model: nn.Module) -> nn.Module:
    """The one module that makes the tables."""
    (found,) = [module for module in model.modules() if hasattr(module, "inv_freq")]
    return found


def of(module: nn.Module, name: str) -> Any:
    """A name in the file where a module of transformers is written."""
    files = [each.__module__ for each in type(module).__mro__ if each.__module__ != __name__]
    return getattr(sys.modules[files[0]], name)
