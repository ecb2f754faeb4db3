"""Families of vision, audio and multimodal models."""

from whereness.interop.families import Families

FAMILIES: Families = {}
