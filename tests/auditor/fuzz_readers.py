"""Fuzz the readers of targets: `python tests/auditor/fuzz_readers.py [options of libFuzzer]`.

Needs atheris. The first byte of an input chooses the reader, the rest is the file. An audit may
refuse it in one line or report; anything else that is raised is a crash.
"""

import json
import struct
import sys
import tempfile
import warnings
from pathlib import Path

NAMES = ("config.json", "model.safetensors", "model.gguf", "params.json")
CHECKS = ("config", "casts", "life", "bounds", "channels")
"""Those that a file alone can serve."""


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def seeds() -> list[bytes]:
    """An input of each kind that is read to its end."""
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "rope_theta": 1e4}
    rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}
    header = {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    plain = json.dumps(header).encode()
    keys = text("general.architecture") + struct.pack("<I", 8) + text("qwen2")
    keys += text("qwen2.block_count") + struct.pack("<II", 4, 2)
    tensor = text("a") + struct.pack("<IQQIQ", 2, 2, 2, 0, 0)
    return [
        b"\0" + json.dumps({**config, "rope_scaling": rope}).encode(),
        b"\1" + len(plain).to_bytes(8, "little") + plain + b"\0" * 4,
        b"\2GGUF" + struct.pack("<IQQ", 3, 1, 2) + keys + tensor + b"\0" * 64,
        b"\3" + json.dumps({"dim": 64, "n_heads": 4, "n_layers": 2}).encode(),
    ]


def one(data: bytes) -> None:
    """Audit one input."""
    from whereness.auditor.run import audit

    if not data:
        return
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")  # a fault of ours is told by a warning
        path = Path(folder, NAMES[data[0] % len(NAMES)])
        path.write_bytes(data[1:])
        try:
            audit(path, checks=CHECKS).to_dict()
        except (ValueError, TypeError, OSError) as error:
            said = str(error)
            if len(said.splitlines()) != 1:
                raise AssertionError(said) from error


def main() -> None:
    import atheris

    with atheris.instrument_imports(include=["whereness.interop", "whereness.auditor"]):
        pass
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(seeds()):
            Path(corpus, str(number)).write_bytes(seed)
        atheris.Setup([*sys.argv, corpus], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
