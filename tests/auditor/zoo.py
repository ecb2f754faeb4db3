"""Tiny random models of many transformers architectures, built offline from their config classes.

`build(name)` gives the model in eval mode and its config: a few layers of width 64 with every kind
of layer that the family has, drawn from a fixed seed. What a family must be told beyond the common
rules stands in one table, architectures.py.
"""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from auditor.architectures import (
    ARCHITECTURES,
    GROUPED,
    HEADS,
    LIVELY,
    MOST_PARAMETERS,
    SEED,
    SIZES,
    TABLE,
    VOCABULARY,
)


def names() -> list[str]:
    """Every architecture that can be built."""
    return list(ARCHITECTURES)


def config_of(name: str, told: dict[str, Any] | None = None) -> Any:
    """The shrunk config object of an architecture; `told` are more keys of its class."""
    from transformers import CONFIG_MAPPING

    entry = ARCHITECTURES[name]
    made = CONFIG_MAPPING[entry.model_type]
    config = made(**shrunk(made().to_dict(), {**entry.keys, **(told or {})}))
    part = getattr(config, "vision_config", None)
    return part if entry.takes == "patches" and part is not None else config


def build(name: str, told: dict[str, Any] | None = None) -> tuple[nn.Module, Any]:
    """A tiny model in eval mode and float32, the same at every call, and its config."""
    config = config_of(name, told)
    with torch.device("meta"):
        parameters = sum(weight.numel() for weight in _made(name, config).parameters())
    if parameters > MOST_PARAMETERS:
        raise ValueError(
            f"{name} has {parameters} parameters; at most {MOST_PARAMETERS} are built."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = _made(name, config)
        _enliven(model)
    return model.float().eval(), config


def inputs(name: str, batch: int, tokens: int) -> dict[str, Tensor]:
    """Arguments of a plain forward pass, where `tokens` is as near as the architecture allows."""
    config, draws = config_of(name), torch.Generator().manual_seed(SEED)
    text = torch.randint(3, VOCABULARY - 16, (batch, tokens), generator=draws)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draws)

    match ARCHITECTURES[name].takes:
        case "tokens":
            return {"input_ids": text}
        case "both":
            return {"input_ids": text, "decoder_input_ids": text.flip(1)}
        case "pixels":
            size = config.image_size
            return {"pixel_values": normal(batch, config.num_channels, size, size)}
        case "patches":  # two rows of an even number of patches; merging takes 2 x 2 of them
            columns = max(2, tokens // 4 * 2)
            sizes = torch.tensor([[1, 2, columns]] * batch)
            channels = getattr(config, "in_channels", 3)
            size = channels * config.temporal_patch_size * config.patch_size**2
            return {"hidden_states": normal(batch * 2 * columns, size), "grid_thw": sizes}
        case "samples":  # every token is a stride of 320 samples, after a window of 400
            return {"input_values": normal(batch, 400 + 320 * (tokens - 1))}
        case "frames":
            return {"input_features": normal(batch, tokens, config.feature_projection_input_dim)}
        case other:
            raise ValueError(f"Unknown kind of input: {other}.")


def with_inputs(name: str, model: nn.Module) -> Any:
    """What to audit: a model, with its inputs where nobody can guess them."""
    if name not in ARCHITECTURES or ARCHITECTURES[name].takes != "patches":
        return model
    return model, lambda batch, tokens: inputs(name, batch, tokens)


def shrunk(defaults: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    """What to tell a config class with these defaults, so that its model is tiny."""
    small: dict[str, Any] = {}
    for key, value in defaults.items():
        if key == "head_dim" and "qk_rope_head_dim" in defaults:
            continue  # latent attention derives it
        if key.endswith("_config") and isinstance(value, dict) and "hidden_size" in value:
            small[key] = shrunk(value, told.get(key, {}))
        elif key in GROUPED and isinstance(value, int):
            small[key] = HEADS if value == defaults.get("num_attention_heads") else HEADS // 2
        elif key.endswith("_token_id") and isinstance(value, int | list):
            small[key] = _token(value, len(small))
        elif key == "max_position_embeddings" and not defaults.get("rope_parameters"):
            small[key] = TABLE
        elif key == "layer_types" and value:
            kinds = list(dict.fromkeys(value))
            small[key] = kinds * 2
        elif key in SIZES and isinstance(value, int | float) and not isinstance(value, bool):
            small[key] = SIZES[key]
    small |= {key: value for key, value in told.items() if not isinstance(small.get(key), dict)}
    if "layer_types" in small:
        small["num_hidden_layers"] = len(small["layer_types"])
    return small


def _token(value: int | list[int], place: int) -> int | list[int]:
    """A special token within the vocabulary, out of the way of ordinary ones."""
    if isinstance(value, list):
        return [_token(each, place) for each in value]
    return value if value < 3 else VOCABULARY - 1 - place % 16


def _made(name: str, config: Any) -> nn.Module:
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about generation, and about what is being shrunk
        match ARCHITECTURES[name].model:
            case "causal":
                return transformers.AutoModelForCausalLM.from_config(config)
            case "base":
                return transformers.AutoModel.from_config(config)
            case made:
                return _class(name, made)._from_config(config)


def _class(name: str, made: str) -> Any:
    from importlib import import_module

    kind = ARCHITECTURES[name].model_type
    return getattr(import_module(f"transformers.models.{kind}.modeling_{kind}"), made)


def _enliven(model: nn.Module) -> None:
    """Draws tables that begin as zeros: a relative bias of zeros cannot be seen."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1 and not weight.any():
                weight.normal_(std=LIVELY)
