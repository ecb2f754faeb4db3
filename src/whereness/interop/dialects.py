"""Configs that are not Hugging Face's, translated to its keys.

Each translation gives the keys and the `Family` that reads them: what is a default in the other
code stands there as one.
"""

from typing import Any

from whereness.interop.families import Family
from whereness.interop.files import Source


def translated(source: Source) -> tuple[dict[str, Any], Family | None]:
    """(keys, their family); the family is None where the keys are Hugging Face's already."""
    return source.keys, None
