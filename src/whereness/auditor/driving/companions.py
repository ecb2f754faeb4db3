"""The ways in which a model may be fed: tokens, features, images, and what stands beside them.

Axes: B = 1 row here (the driver repeats it), C channels.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from whereness.auditor.driving.arguments import Arguments, Takes

Extra = dict[str, Any]


def attempts(
    model: nn.Module, config: Any, names: Arguments, example: Mapping[str, Any], dim: int | None
) -> Iterator[tuple[str, Takes, Extra, int | None, str | None]]:
    """(argument, what it takes, companions, width, encoder's argument), likeliest first."""
    has_table = any(isinstance(m, nn.Embedding) for m in model.modules())
    sizes = feature_sizes(model, config)
    for name, value in example.items():
        if isinstance(value, Tensor):
            if not value.is_floating_point() and value.dim() == 2:
                yield name, "tokens", {}, dim, None
            elif value.is_floating_point() and value.dim() == 3:
                yield name, "features", {}, value.shape[-1], None
            elif value.is_floating_point():
                yield name, "pixels", {name: value}, dim, None
    if names.decoder is not None and names.first is not None:
        source = names.tokens or names.pixels or names.first
        for images in [{}] if source == names.tokens else pixels(model, config, source):
            takes: Takes = "tokens" if has_table else "features"
            yield names.decoder, takes, images, dim, source
    for extra in companions(model, config, names):
        if names.tokens is not None and has_table:
            yield names.tokens, "tokens", extra, dim, None
    for name in (names.features, names.tokens):
        if name is not None:
            for size in sizes:
                yield name, "features", {}, size, None
    name = names.pixels or names.first
    if name is not None:
        for extra in pixels(model, config, name):
            yield name, "pixels", extra, dim, None
    if names.first not in (None, names.tokens, names.features):
        yield str(names.first), "tokens", {}, dim, None
        for size in sizes:
            yield str(names.first), "features", {}, size, None


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
    channels = whole(vision, ("num_channels", "in_channels", "in_chans")) or 3
    for holder in (vision, getattr(model, "patch_embed", None), model):
        size = _pair(holder, ("image_size", "img_size", "input_size"))
        if size is not None:
            yield (channels, *size)
            frames = whole(vision, ("num_frames", "frames"))
            if frames:
                yield (frames, channels, *size)
                yield (channels, frames, *size)
    bins = whole(config, ("num_mel_bins", "input_feat_per_channel", "feature_size"))
    if bins:
        length = whole(config, ("max_source_positions", "max_length", "target_length")) or 64
        yield (bins, 2 * length)
        yield (length, bins)
        yield (2 * length, bins)
    if config is None or bins:
        yield (3, 32, 32)
    elif whole(config, ("num_feat_extract_layers", "conv_dim")) or hasattr(config, "conv_kernel"):
        yield (1600,)
    yield (3, 224, 224)


def feature_sizes(model: nn.Module, config: Any) -> list[int]:
    """Widths that the features of a token may have, likeliest first."""
    names = ("dim", "d_model", "embed_dim", "hidden_size", "n_embd", "width", "num_features")
    found = []
    for holder in (model, config):
        size = whole(holder, names)
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


def _pair(holder: Any, names: tuple[str, ...]) -> tuple[int, int] | None:
    """Height and width."""
    for name in names:
        value = getattr(holder, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value, value
        if isinstance(value, (tuple, list)) and len(value) >= 2:
            return int(value[-2]), int(value[-1])
    return None


def new_cache(model: nn.Module) -> Any:
    """An empty cache, where the model can make one; None: it makes its own from nothing."""
    for name in ("new_caches", "new_cache", "make_cache", "make_caches", "init_cache"):
        make = getattr(model, name, None)
        if callable(make):
            return make()
    if type(model).__module__.startswith("whereness."):
        from whereness.attend.cache import KVCache

        return KVCache()
    return None


def segmented(positions: Tensor | None, segments: Tensor) -> Any:
    """Positions and documents as this library's own layers take them."""
    from whereness.where import Where

    return Where(positions, segments=segments)


def for_rows(value: Any, batch: int) -> Any:
    """An example's argument for another number of rows."""
    if not isinstance(value, Tensor) or value.dim() == 0 or value.shape[0] in (0, batch):
        return value
    return value[torch.arange(batch, device=value.device) % value.shape[0]]


def sequence_first(model: nn.Module) -> bool:
    """Whether its attention takes (S, B, E), as torch's own modules do by default."""
    flags = [m.batch_first for m in model.modules() if isinstance(m, nn.MultiheadAttention)]
    own = type(model).__module__.startswith("torch.nn")
    return own and bool(flags) and not flags[0]


def whole(holder: Any, names: tuple[str, ...]) -> int | None:
    """The first of these attributes that is a positive int."""
    for name in names:
        value = getattr(holder, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
