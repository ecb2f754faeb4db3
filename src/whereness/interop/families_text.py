"""Families of text models."""

from whereness.interop.families import LLAMA, Families

FAMILIES: Families = {
    "llama": LLAMA,
}
