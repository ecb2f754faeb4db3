"""Position temperature: a factor on queries that grows with the position, from a config's keys."""

import math
from collections.abc import Mapping
from typing import Any

from whereness.interop.config.keys import Reading, boolean, integer, number
from whereness.interop.config.specs import Layer, spec
from whereness.interop.families import Family


def temperature_of(
    reading: Reading, family: Family, *, positioned: bool, rope: Mapping[str, Any] | None = None
) -> Layer:
    """The temperature of a layer, beside its encoding; empty where it has none."""
    on = family.temperature_on
    if not family.temperature or (on == "nope" and positioned) or (on == "rope" and not positioned):
        return ()
    return {"llama4": _llama4, "ministral3": _ministral3, "inkling": _inkling, "logn": _logn}[
        family.temperature
    ](reading, rope or {})


def _llama4(reading: Reading, _rope: Mapping[str, Any]) -> Layer:
    tuned = reading.get("attn_temperature_tuning")
    # Llama 4's own files hold 4 here: Hugging Face asks only whether it is true.
    if not tuned or (isinstance(tuned, bool) and not tuned):
        return ()
    if not isinstance(tuned, bool):
        integer(reading.name("attn_temperature_tuning"), tuned, 0)
    return (
        spec(
            "Temperature",
            scale=_real(reading, "attn_scale"),
            floor=_whole(reading, "floor_scale"),
            school="llama4",
        ),
    )


def _ministral3(reading: Reading, rope: Mapping[str, Any]) -> Layer:
    beta = rope.get("llama_4_scaling_beta")
    if beta is None:
        return ()
    original = rope.get("original_max_position_embeddings")
    if original is None:
        original = reading.needed("the temperature's length", ("max_position_embeddings",))
    return (
        spec(
            "Temperature",
            scale=number(reading.name("llama_4_scaling_beta"), beta),
            floor=float(integer(reading.name("original_max_position_embeddings"), original)),
            school="ministral3",
        ),
    )


def _inkling(reading: Reading, _rope: Mapping[str, Any]) -> Layer:
    return (
        spec(
            "Temperature",
            scale=_real(reading, "log_scaling_alpha"),
            floor=_whole(reading, "log_scaling_n_floor"),
            school="inkling",
        ),
    )


def _logn(reading: Reading, _rope: Mapping[str, Any]) -> Layer:
    """Qwen's: log(position + 1) in base seq_length beyond it, which is Inkling's formula."""
    if not boolean(reading.name("use_logn_attn"), reading.get("use_logn_attn")):
        return ()
    length = _whole(reading, "seq_length")
    return (spec("Temperature", scale=1 / math.log(length), floor=length, school="inkling"),)


def _whole(reading: Reading, key: str) -> float:
    return float(reading.needed("the temperature's length", (key,)))


def _real(reading: Reading, key: str) -> float:
    value = reading.get(key)
    if value is None:
        raise ValueError(f"{reading.name(key)} is missing: the temperature needs it.")
    return number(reading.name(key), value)
