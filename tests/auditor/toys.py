"""Targets on disk and code to be named, small and made by hand."""

import json
from pathlib import Path
from typing import Any

from interop.support import drawn, save
from interop.test_gguf import file_of, metadata
from interop.toy import SMALL
from whereness.auditor.findings import Report
from whereness.auditor.run import audit

UNUSABLE = (ValueError, TypeError, OSError)
"""What ends a command with exit status 2 and one line."""


def config_file(folder: Path, keys: object = SMALL, name: str = "config.json") -> Path:
    """A config in a folder; text or bytes are written as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    data = keys if isinstance(keys, bytes) else json.dumps(keys).encode()
    path.write_bytes(data)
    return path


def weights_file(folder: Path, name: str = "model.safetensors") -> Path:
    """A few tensors."""
    return save(folder / name, {"model.layers.0.self_attn.q_proj.weight": drawn(0, 64, 64)})


def gguf_file(folder: Path, name: str = "model.gguf", **keys: Any) -> Path:
    """The metadata of a small model, and no tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(file_of(metadata(**keys)))
    return path


def outcome(target: object, **options: Any) -> Report | str:
    """The report, or the line that ends a command with exit status 2."""
    try:
        return audit(target, **options)
    except UNUSABLE as error:
        return f"{type(error).__name__}: {error}"


def kinds(report: Report, *severities: str) -> set[str]:
    """The kinds found, of these severities or of any."""
    return {f.kind for f in report.findings if not severities or f.severity in severities}


CODE = '''
import os
import sys

from torch import nn


class Named(nn.Module):
    """A model of one attention-free layer."""

    def __init__(self, **config):
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 20)
        if config:
            self.config = config

    def forward(self, input_ids):
        return self.head(self.table(input_ids))


class Raising(Named):
    def forward(self, input_ids):
        raise RuntimeError("two\\nlines")


class Printing(Named):
    def forward(self, input_ids):
        print("from Python")
        os.write(1, b"from below\\n")
        return super().forward(input_ids)


class Forking(Named):
    def forward(self, input_ids):
        os.fork()
        return super().forward(input_ids)


class Working(Named):
    """Has a forked process do its work, and waits for it."""

    def forward(self, input_ids):
        here, there = os.pipe()
        worker = os.fork()
        if worker == 0:
            self.head(self.table(input_ids))
            os.write(there, b"done")
            os._exit(0)
        os.close(there)
        assert os.read(here, 4) == b"done"
        os.close(here)
        os.waitpid(worker, 0)
        return super().forward(input_ids)


class Leaving(Named):
    def forward(self, input_ids):
        sys.exit(3)


def plain():
    print("made")
    return Named()


def pair():
    return Named(), {"attention_mask": None}


def nothing():
    return None


def three():
    return Named(), {}, 1


def raising():
    raise KeyError("lost\\nkey")


def leaving():
    sys.exit(4)


def forked():
    os.fork()
    return Named()


instance = Named()
number = 3
'''


def code_file(folder: Path, name: str = "named_code") -> str:
    """A module to be imported from this folder; its name."""
    (folder / f"{name}.py").write_text(CODE, encoding="utf-8")
    return name
