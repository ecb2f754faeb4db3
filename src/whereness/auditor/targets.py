"""What a target names: a folder or file of a model, code that makes one, a live module, a config.

    a folder, config.json, params.json   the config, and the weights beside it
    .safetensors, its index, .gguf       the weights, and the config beside or within them
    package.module:callable              imported and called, because it was named
    an nn.Module, (module, inputs)       its own `.config` is what is expected of it
    a dict, a config object              a config

Files come from anywhere: only these formats are opened, none of them runs code, every size is
bounded before it is read, and what cannot be read is one ValueError or OSError of one line.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from whereness.auditor.aside import called
from whereness.auditor.findings import Finding, Report
from whereness.auditor.subject import Subject
from whereness.interop.config.files import NAMES, read
from whereness.interop.config.keys import shown
from whereness.interop.config.reader import layer_number
from whereness.interop.strict_json import TwiceError
from whereness.interop.weights.source import CONFIG, PICKLED

if TYPE_CHECKING:
    from torch import nn

    from whereness.auditor.files.weights import Weights

    Inputs = Mapping[str, Any] | Callable[[int, int], Mapping[str, Any]] | None

NAMED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
"""package.module:callable"""
INDEX_END = ".index.json"
WEIGHTS = (".safetensors", ".gguf", INDEX_END)
PICKLE_MAGIC = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""How files of torch.save begin: a zip archive, or a bare pickle."""
LARGEST_TEXT = 2**26
"""Bytes. Losses are measured on some thousand tokens."""
LONGEST_NAME = 200
LONGEST_PATH = 4096


def resolve(
    target: object,
    *,
    config: object = None,
    inputs: "Inputs" = None,
    text: "str | os.PathLike[str] | bytes | None" = None,
    layers: Iterable[int] | None = None,
) -> Subject:
    """What `target` names, ready for the checks.

    Args:
        config: expected instead of the target's own: what `whereness.from_config` takes.
        inputs: keyword arguments of a forward pass beside the tokens, or a callable that makes
            them, (batch, tokens) -> dict.
        text: a file, or its bytes.
        layers: the only ones to look at.

    Raises:
        ValueError, TypeError, OSError: in one line, why the target is not usable.
    """
    subject = Subject(
        _name(target),
        Report(target=_name(target)),
        text=_text(text),
        layers=None if layers is None else frozenset(layer_number(layer) for layer in layers),
    )
    if config is not None:  # before the target: nothing of it is read, or run, in vain
        _expect(subject, config)
    if isinstance(target, (str, os.PathLike)):
        _of_path(subject, target)
    elif _is_model(target) or isinstance(target, tuple):
        _of_model(subject, target)
    else:
        _expect(subject, target)
    if inputs is not None:
        subject.inputs = inputs
    subject.report.what = _what(subject)
    return subject


def _name(target: object) -> str:
    if isinstance(target, (str, os.PathLike)):
        name = os.fsdecode(target)
        name = name if name.isprintable() else repr(name)[1:-1]
        return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..."
    first = target[0] if isinstance(target, tuple) and target else target
    return f"a {type(first).__name__}"


def _what(subject: Subject) -> str:
    """What the target turned out to be, in a few words."""
    found = []
    if subject.model is not None:
        found.append(f"live {type(subject.model).__name__}")
    if subject.weights is not None and subject.weights.format != "live":
        found.append(f"{subject.weights.format} weights")
    if subject.source is not None:
        types = {part.model_type for part in subject.parts.values() if part.model_type}
        found.append(f"config of {', '.join(sorted(types)) or 'an unnamed model'}")
    return ", ".join(found)


# Configs


def _expect(subject: Subject, config: object) -> None:
    """Take this config for what is expected, unless one is there already."""
    if subject.source is not None or "config" in subject.missing:
        return
    try:
        subject.source = read(config)
    except TwiceError as error:
        subject.missing["config"] = "the config cannot be read"
        subject.found(
            Finding(
                check="CHK11",
                kind="K22",
                severity="error",
                expected="every key of the config once",
                measured=str(error),
                cause="The file was merged or edited by hand; readers take the first or the last.",
                remedy="Keep the one that the weights were trained with.",
            )
        )


def _beside(subject: Subject, folder: Path) -> None:
    """Expect the config of a folder, if it has one."""
    found = next((folder / name for name in NAMES if (folder / name).is_file()), None)
    if found is not None:
        subject.folder = folder
        _expect(subject, found)
    elif subject.source is None:
        subject.missing.setdefault("config", f"there is no {CONFIG} beside the weights")


# Files


def _of_path(subject: Subject, target: "str | os.PathLike[str]") -> None:
    name = os.fsdecode(target)
    if "\0" in name:
        raise ValueError(f"{shown(name)} is no path.")
    if len(name) > LONGEST_PATH:
        raise ValueError(f"{_name(name)} is too long for a path.")
    path = Path(name)
    if isinstance(target, str) and NAMED.fullmatch(name) and not os.path.lexists(path):
        _of_model(subject, called(name))
        return
    path.stat()  # tells why it cannot be read: missing, links in a circle
    if path.is_dir():
        _of_folder(subject, path)
        return
    if not path.is_file():
        raise ValueError(f"{path}: is no file; a pipe or a device could be read for ever.")
    with path.open("rb") as file:
        magic = file.read(4)
    if path.suffix in PICKLED or magic.startswith(PICKLE_MAGIC):
        raise ValueError(
            f"{path}: pickled weights are refused, they run code: save as safetensors."
        )
    if magic == b"GGUF":
        subject.weights = _opened(path)
        _expect(subject, path)
    elif path.name.endswith(WEIGHTS):
        subject.weights = _opened(path)
        _beside(subject, path.parent)
    else:
        subject.folder = path.parent
        subject.missing["weights"] = f"{path.name} is a config; name its folder for the weights"
        _expect(subject, path)


def _of_folder(subject: Subject, folder: Path) -> None:
    from whereness.auditor.files.weights import has_weights

    names = sorted(each.name for each in folder.iterdir())
    has_config = any((folder / name).is_file() for name in NAMES)
    only_gguf = not any(name.endswith((".safetensors", INDEX_END)) for name in names)
    if has_weights(folder) and not (has_config and only_gguf):
        subject.weights = _opened(folder)
    elif has_weights(folder):
        # A GGUF file has its own order of rows and its own metadata: another expectation.
        subject.missing["weights"] = "the folder's .gguf file is a target of its own: name it"
    else:
        pickled = [name for name in names if Path(name).suffix in PICKLED]
        why = f"pickled weights ({pickled[0]}) are refused, they run code" if pickled else ""
        if not has_config and not pickled:
            raise ValueError(
                f"{folder}: has no {' or '.join(NAMES)}, and no .safetensors or .gguf file."
            )
        if not has_config:
            raise ValueError(f"{folder}: {why}: save as safetensors.")
        subject.missing["weights"] = why or "the folder has no weights"
    if subject.weights is not None and subject.weights.format == "gguf":
        _expect(subject, subject.weights.path)
    else:
        _beside(subject, folder)


def _opened(path: Path) -> "Weights":
    from whereness.auditor.files.weights import open_weights

    return open_weights(path)


def _text(text: "str | os.PathLike[str] | bytes | None") -> bytes | None:
    if text is None or isinstance(text, bytes):
        return text
    path = Path(text)
    path.stat()
    if not path.is_file():
        raise ValueError(f"{path}: the text must be a file.")
    with path.open("rb") as file:
        found = file.read(LARGEST_TEXT + 1)
    if len(found) > LARGEST_TEXT:
        raise ValueError(f"{path}: the text must have at most {LARGEST_TEXT // 2**20} MiB.")
    return found


# Models


def _is_model(target: object) -> bool:
    """Whether it is an nn.Module; torch is not imported to find out that it is none."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(target, torch.nn.Module)


def _of_model(subject: Subject, target: object) -> None:
    """A module, or what the named code returned: a module, or (module, inputs)."""
    from whereness.auditor.files.weights import weights_of

    model, inputs = target, None
    if isinstance(target, tuple):
        if len(target) != 2:
            raise TypeError(
                f"{subject.name}: needed an nn.Module, or (module, inputs), got {len(target)} "
                "things."
            )
        model, inputs = target
    if not _is_model(model):
        raise TypeError(f"{subject.name}: needed an nn.Module, got a {type(model).__name__}.")
    if not (inputs is None or callable(inputs) or isinstance(inputs, Mapping)):
        raise TypeError(
            f"{subject.name}: inputs must be a dict of keyword arguments, or a callable that makes "
            f"one, got a {type(inputs).__name__}."
        )
    subject.model = _usable(subject, _unwrapped(cast("nn.Module", model)))
    subject.inputs = cast("Inputs", inputs)
    subject.weights = weights_of(subject.model)
    if subject.source is None:
        _expect_own(subject, subject.model)


def _unwrapped(model: "nn.Module") -> "nn.Module":
    """The module that runs, without what compiles it or spreads it over devices.

    Those change nothing that is computed, and hide what happens within.
    """
    from torch import nn

    while True:
        spread = isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel))
        inner = vars(model).get("_modules", {}).get("module" if spread else "_orig_mod")
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def _usable(subject: Subject, model: "nn.Module") -> "nn.Module":
    """`model`, if its weights have values that can be read and put back.

    Raises:
        ValueError: they have not.
    """
    from torch.nn.parameter import is_lazy

    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            why = "has no shape yet: run the model once before it is audited"
        elif tensor.is_meta:
            why = "is on the meta device and has no values: load the weights first"
        elif tensor.is_inference() and tensor.requires_grad:
            why = "was made in inference mode, and cannot be put back: make the model outside of it"
        else:
            continue
        raise ValueError(f"{subject.name}: {shown(name)} {why}.")
    return model


def _expect_own(subject: Subject, model: "nn.Module") -> None:
    """Take the model's own config for what is expected, if it has one that can be read."""
    try:
        own = getattr(model, "config", None)
    except Exception as error:  # noqa: BLE001 (a property of code that is not ours)
        subject.missing["config"] = f"the module's config raises {type(error).__name__}"
        return
    if own is None:
        subject.missing["config"] = "the module has no config; give one as config="
        return
    try:
        _expect(subject, own)
    except Exception as error:  # noqa: BLE001 (as to_dict() may be)
        said = " ".join(str(error).split())[:LONGEST_NAME]
        subject.missing["config"] = f"the module's config cannot be read: {said}"
