"""What a model may need beside its tokens, and instead of them: images, sounds, their sizes.

Axes: B = 1 row here (the driver repeats it), C channels.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from whereness.auditor.arguments import Arguments

Extra = dict[str, Any]


def companions(model: nn.Module, config: Any, names: Arguments) -> Iterator[Extra]:
    """What may have to stand beside tokens: nothing, or an image as well."""
    yield {}
    if names.pixels is not None:
        yield from pixels(model, config, names.pixels)


def pixels(model: nn.Module, config: Any, name: str) -> Iterator[Extra]:
    """Images, films and sounds that the model may take as `name`, likeliest first."""
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    for shape in dict.fromkeys(_shapes(model, config)):
        generator = torch.Generator().manual_seed(5)
        made: Tensor = torch.randn(1, *shape, generator=generator)
        yield {name: made.to(like.device, like.dtype)}


def _shapes(model: nn.Module, config: Any) -> Iterator[tuple[int, ...]]:
    """Shapes of one image, film or sound."""
    vision = next(
        (c for c in (getattr(config, n, None) for n in ("vision_config", "vision_model")) if c),
        config,
    )
    channels = _number(vision, ("num_channels", "in_channels", "in_chans")) or 3
    for holder in (vision, getattr(model, "patch_embed", None), model):
        size = _pair(holder, ("image_size", "img_size", "input_size"))
        if size is not None:
            yield (channels, *size)
            frames = _number(vision, ("num_frames", "frames"))
            if frames:
                yield (frames, channels, *size)
                yield (channels, frames, *size)
    bins = _number(config, ("num_mel_bins", "input_feat_per_channel", "feature_size"))
    if bins:
        length = _number(config, ("max_source_positions", "max_length", "target_length")) or 64
        yield (bins, 2 * length)
        yield (length, bins)
        yield (2 * length, bins)
    if config is None or bins:
        yield (3, 32, 32)
    elif _number(config, ("num_feat_extract_layers", "conv_dim")) or hasattr(config, "conv_kernel"):
        yield (1600,)
    yield (3, 224, 224)


def feature_sizes(model: nn.Module, config: Any) -> list[int]:
    """Widths that the features of a token may have, likeliest first."""
    names = ("dim", "d_model", "embed_dim", "hidden_size", "n_embd", "width", "num_features")
    found = []
    for holder in (model, config):
        size = _number(holder, names)
        if size is not None:
            found.append(size)
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            found.append(module.embed_dim)
        elif isinstance(module, nn.Linear):
            found.append(module.in_features)
        elif isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1:
            found.append(module.normalized_shape[0])
    return list(dict.fromkeys(found))[:4]


def _number(holder: Any, names: tuple[str, ...]) -> int | None:
    for name in names:
        value = getattr(holder, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _pair(holder: Any, names: tuple[str, ...]) -> tuple[int, int] | None:
    """Height and width."""
    for name in names:
        value = getattr(holder, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value, value
        if isinstance(value, (tuple, list)) and len(value) >= 2:
            return int(value[-2]), int(value[-1])
    return None
