"""Small checkpoints on disk, written by hand and by the safetensors library."""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

import whereness as wn

H, G, D, E, LAYERS = 4, 2, 8, 12, 2

LLAMA = {
    "model_type": "llama",
    "num_attention_heads": H,
    "num_key_value_heads": G,
    "head_dim": D,
    "hidden_size": E,
    "rope_theta": 10000.0,
}
QUERIES = "model.layers.{}.self_attn.q_proj"
KEYS = "model.layers.{}.self_attn.k_proj"


def drawn(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def llama(dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    tensors = {"model.embed_tokens.weight": drawn(0, 30, E, dtype=dtype)}
    for layer in range(LAYERS):
        for name, rows in (("q_proj", H * D), ("k_proj", G * D), ("v_proj", G * D)):
            module = f"model.layers.{layer}.self_attn.{name}"
            tensors[f"{module}.weight"] = drawn(rows + layer, rows, E, dtype=dtype)
            tensors[f"{module}.bias"] = drawn(rows + layer + 9, rows, dtype=dtype)
    return tensors


def save(path: Path, tensors: dict[str, torch.Tensor], **metadata: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, metadata or None)
    return path


def save_folder(folder: Path, tensors=None, config=LLAMA, shards: int = 1) -> Path:
    """A folder as transformers saves it, with a tokenizer beside."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = llama() if tensors is None else tensors
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.json").write_text('{"a": 1}', encoding="utf-8")
    if shards == 1:
        save(folder / "model.safetensors", tensors, format="pt")
        return folder
    where = {}
    names = list(tensors)
    for s in range(shards):
        file = f"model-{s + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[s::shards]}
        save(folder / file, part, format="pt")
        where |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


def load(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file, or of all files of a folder."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    found = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            found |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    return found


def metadata(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as opened:
        return opened.metadata() or {}


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def file_of(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with this header, an object or its text, right or wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def expected(tensors: dict, to: str, **options) -> dict:
    """Every tensor by the public functions; which ones move is written down here once more."""
    heads = {"q_proj": H, "k_proj": G}
    found = {}
    for name, tensor in tensors.items():
        count = next((n for part, n in heads.items() if f".{part}." in name), None)
        found[name] = (
            tensor if count is None else wn.convert_pairing(tensor, count, D, to, **options)
        )
    return found


def same(found: dict, wanted: dict) -> None:
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert raw(found[name]) == raw(tensor), name


def config_of(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))
