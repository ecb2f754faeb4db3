"""Checkpoints to audit: files written byte by byte, and weights as a trained rotary layer has them.

Axes: H query heads, G key heads, D channels of a head, R of them that turn, E width.
"""

import json
import math
import struct
from pathlib import Path

import torch
from safetensors.torch import save_file

from whereness.auditor.files.weights import open_weights
from whereness.auditor.findings import Report
from whereness.auditor.subject import Subject
from whereness.interop.config import files as configs

H, G, D, E = 4, 2, 32, 64
CONFIG = {
    "model_type": "llama",
    "hidden_size": E,
    "num_attention_heads": H,
    "num_key_value_heads": G,
    "head_dim": D,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "rope_theta": 10_000.0,
}


def channels(pairing, width):
    """(first, second) channel of every pair, spelled out."""
    if pairing == "half":
        return [(i, i + width // 2) for i in range(width // 2)]
    return [(2 * i, 2 * i + 1) for i in range(width // 2)]


def coupled(pairing, heads=H, groups=G, width=D, rotary=None, start=0, noise=0.7, seed=0):
    """Rows of queries and keys that training has turned to one another, pair by pair.

    The pair of a query, as a complex number, is that of its key times a phase of its own, and
    noise: what attention to some offset needs. The other channels are random.
    """
    rotary = width if rotary is None else rotary
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(heads, width, E, generator=generator)
    k = torch.randn(groups, width, E, generator=generator)
    for h in range(heads):
        key = k[h // (heads // groups)]
        for u, v in channels(pairing, rotary):
            phase = 2 * math.pi * torch.rand(1, generator=generator).item()
            c, s = math.cos(phase), math.sin(phase)
            a, b = key[start + u].clone(), key[start + v].clone()
            q[h, start + u] = c * a + s * b + noise * q[h, start + u]
            q[h, start + v] = c * b - s * a + noise * q[h, start + v]
    return q.flatten(0, 1), k.flatten(0, 1)


def llama(pairings=("half", "half"), **options):
    """Tensors of a Llama whose layers have these pairings."""
    found = {}
    for i, pairing in enumerate(pairings):
        q, k = coupled(pairing, seed=i, **options)
        found[f"model.layers.{i}.self_attn.q_proj.weight"] = q
        found[f"model.layers.{i}.self_attn.k_proj.weight"] = k
    return found


def folder(path, tensors, config=None):
    """A Hugging Face folder."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    save_file({name: t.contiguous() for name, t in tensors.items()}, path / "model.safetensors")
    return path


def subject(path, config=None):
    """A checkpoint with its config."""
    source = configs.read(path if config is None else config)
    return Subject("it", Report(target="it"), source=source, weights=open_weights(path))


def audited(check, path, config=None):
    """The report of one check."""
    seen = subject(path, config)
    check.run(seen)
    return seen.report


def one(report, severity="error"):
    """The only finding of this severity."""
    (found,) = report.of(severity)
    return found


# GGUF


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key, value):
    if isinstance(value, bool):
        return text(key) + struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return text(key) + struct.pack("<II", 4, value)
    if isinstance(value, float):
        return text(key) + struct.pack("<If", 6, value)
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    return text(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))


def gguf(keys, tensors, alignment=32):
    """A file of these metadata and tensors: {name: (type, shape, bytes)} or a float32 tensor."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    head += b"".join(entry(key, value) for key, value in keys.items())
    data = b""
    for name, given in tensors.items():
        plain = isinstance(given, torch.Tensor)
        kind, shape, raw = (
            (0, tuple(given.shape), given.float().numpy().tobytes()) if plain else given
        )
        data += b"\0" * (-len(data) % alignment)
        sizes = tuple(reversed(shape))
        head += text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, len(data))
        data += raw
    return head + b"\0" * (-len(head) % alignment) + data


GGUF = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 64,
    "llama.embedding_length": E,
    "llama.attention.head_count": H,
    "llama.attention.head_count_kv": G,
    "llama.attention.key_length": D,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": D,
    "llama.rope.freq_base": 10_000.0,
}


def gguf_file(path: Path, tensors, **changes) -> Path:
    path.write_bytes(gguf({**GGUF, **changes}, tensors))
    return path
