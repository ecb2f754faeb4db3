"""Positional encodings for transformers: use them, choose one, check and see them.

Every public name is loaded when it is first used: `import whereness` itself imports neither torch
nor anything else that is heavy, so tools and the command line start at once.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import maps as maps
    from . import positions as positions
    from . import schedules as schedules
    from . import story as story
    from .absolute.binary import Binary as Binary
    from .absolute.integer import Integer as Integer
    from .absolute.learned import LearnedAbsolute as LearnedAbsolute
    from .absolute.sinusoidal import Sinusoidal as Sinusoidal
    from .attend.cache import KVCache as KVCache
    from .attend.flex import score_mod as score_mod
    from .attend.functional import attention as attention
    from .attend.layer import Attention as Attention
    from .auditor.run import audit as audit
    from .combined import Combined as Combined
    from .encoding import At as At
    from .encoding import Call as Call
    from .encoding import NoPE as NoPE
    from .encoding import PositionalEncoding as PositionalEncoding
    from .interop.config.explain import explain as explain
    from .interop.config.keys import ConfigWarning as ConfigWarning
    from .interop.config.reader import from_config as from_config
    from .interop.weights.pairing import convert_fused_qkv as convert_fused_qkv
    from .interop.weights.pairing import convert_pairing as convert_pairing
    from .properties import Properties as Properties
    from .properties import measure as measure
    from .registry import create as create
    from .registry import encodings as encodings
    from .relative.alibi import ALiBi as ALiBi
    from .relative.kerple import KERPLE as KERPLE
    from .relative.learned import LearnedRelative as LearnedRelative
    from .relative.sandwich import Sandwich as Sandwich
    from .relative.shaw import Shaw as Shaw
    from .relative.t5 import T5 as T5
    from .rotary import scaling as scaling
    from .rotary.axial import AxialRoPE as AxialRoPE
    from .rotary.dinov3 import DINOv3RoPE as DINOv3RoPE
    from .rotary.fope import FoPE as FoPE
    from .rotary.learned import LeRoPE as LeRoPE
    from .rotary.mixed import MixedRoPE as MixedRoPE
    from .rotary.multimodal import MultimodalRoPE as MultimodalRoPE
    from .rotary.rerotate import rerotate as rerotate
    from .rotary.rope import RoPE as RoPE
    from .rotary.temperature import DroPE as DroPE
    from .rotary.temperature import Temperature as Temperature
    from .rotary.xpos import XPos as XPos
    from .transformer import Transformer as Transformer
    from .where import NOWHERE as NOWHERE
    from .where import Where as Where

__version__ = "0.1.0"

# A public module and the package that it lies in.
_MODULES = {"maps": "", "positions": "", "scaling": "rotary", "schedules": "", "story": ""}

_HOMES = {
    "ALiBi": "relative.alibi",
    "At": "encoding",
    "Attention": "attend.layer",
    "AxialRoPE": "rotary.axial",
    "Binary": "absolute.binary",
    "Call": "encoding",
    "Combined": "combined",
    "ConfigWarning": "interop.config.keys",
    "DINOv3RoPE": "rotary.dinov3",
    "DroPE": "rotary.temperature",
    "FoPE": "rotary.fope",
    "Integer": "absolute.integer",
    "KERPLE": "relative.kerple",
    "KVCache": "attend.cache",
    "LeRoPE": "rotary.learned",
    "LearnedAbsolute": "absolute.learned",
    "LearnedRelative": "relative.learned",
    "MixedRoPE": "rotary.mixed",
    "MultimodalRoPE": "rotary.multimodal",
    "NOWHERE": "where",
    "NoPE": "encoding",
    "PositionalEncoding": "encoding",
    "Properties": "properties",
    "RoPE": "rotary.rope",
    "Sandwich": "relative.sandwich",
    "Shaw": "relative.shaw",
    "Sinusoidal": "absolute.sinusoidal",
    "T5": "relative.t5",
    "Temperature": "rotary.temperature",
    "Transformer": "transformer",
    "Where": "where",
    "XPos": "rotary.xpos",
    "attention": "attend.functional",
    "audit": "auditor.run",
    "convert_fused_qkv": "interop.weights.pairing",
    "convert_pairing": "interop.weights.pairing",
    "create": "registry",
    "encodings": "registry",
    "explain": "interop.config.explain",
    "from_config": "interop.config.reader",
    "measure": "properties",
    "rerotate": "rotary.rerotate",
    "score_mod": "attend.flex",
}

# pyrefly: ignore [unresolvable-dunder-all]
__all__ = ["__version__", *_MODULES, *_HOMES]  # noqa: PLE0604 (names from the tables)


def _load(module: str) -> ModuleType:
    try:
        return import_module(f"{__name__}.{module}")
    except AttributeError as error:
        # Left as it is, Python would take it for "there is no such name" and drop the reason.
        raise ImportError(f"{__name__}.{module} cannot be imported: {error}") from error


if not TYPE_CHECKING:  # a type checker that saw it would take every name for a public one

    def __getattr__(name: str) -> object:
        """Load a public name on its first use. A submodule that is broken shows its own error."""
        if name in _MODULES:
            return _load(f"{_MODULES[name]}.{name}".strip("."))
        if name in _HOMES:
            value = getattr(_load(_HOMES[name]), name)
            globals()[name] = value
            return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
