"""What of a checkpoint moves: for every tensor of a query or key projection, which of its rows.

A tensor is named after its module: `layers.0.self_attn.q_proj` has `.weight`, `.bias`, scales, zero
points, adapters. What the name and shape do not explain is refused, never left behind.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch

from whereness.interop.strict_json import shown
from whereness.interop.weights.pairing import move_rows
from whereness.interop.weights.safetensors_file import BITS, Entry
from whereness.rotary.base import Side
from whereness.rotary.pairing import Pairing

Role = Literal["queries", "keys", "fused", "norm", "still"]
"""still: what would be one of the others, of layers in which nothing turns."""

# After the name of the module. An adapter of PEFT has a name in its weight's.
BY_ROW = re.compile(
    r"(base_layer\.)?(weight|bias|weight_packed|weight_scale(_inv)?|weight_zero_point|scales?|zeros?)"
    r"|norms\.\d+\.(weight|bias)|lora_B\.(\w+\.)?weight|lora_magnitude_vector(\.\w+)*"
)
BY_BLOCK = re.compile(r"(base_layer\.)?(weight_scale(_inv)?|scales?)")
BY_COLUMN = re.compile(r"lora_A\.(\w+\.)?weight|weight_g_idx|g_idx|weight_shape")


@dataclass(frozen=True)
class Rule:
    """Modules whose names fit `pattern` (* stands for anything), and the heads of their rows.

    turning: of every head whether it turns. Empty for a norm, which has one head or all of them.
    layers: the numbers of the layers that it is for; None is all of them.
    """

    pattern: str
    role: Role
    turning: tuple[bool, ...]
    head_dim: int
    rotary_dim: int
    side: Side
    layers: frozenset[int] | None = None

    @property
    def rows(self) -> int:
        """Rows of a weight."""
        return len(self.turning) * self.head_dim

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        glob = ".*".join(map(re.escape, self.pattern.split("*")))
        return re.compile(rf"({glob})(?:\.(.+))?", re.DOTALL)

    def named(self, name: str) -> tuple[str, str] | None:
        """Module and rest of the name of a tensor, None if it is another's.

        A tensor that has the name of the module itself is its weight.
        """
        found = self._expression.fullmatch(name)
        return (found[1], found[2] or "weight") if found else None

    def has(self, module: str) -> bool:
        """Whether it is for the layer of this module, the first number in its name."""
        if self.layers is None:
            return True
        number = re.search(r"(?:^|\.)(\d{1,8})(?:\.|$)", module)
        return number is not None and int(number[1]) in self.layers


@dataclass(frozen=True)
class Move:
    """A tensor as heads of `head_dim` rows of `row_size` bytes; those that turn are reordered."""

    rule: Rule
    turning: tuple[bool, ...]
    row_size: int


def move_of(entry: Entry, rules: list[Rule], block: int | None = None) -> Move | None:
    """How a tensor moves, None if it stays as it is.

    Args:
        block: rows that share a scale, where the config says so.

    Raises:
        ValueError: it belongs to queries or keys, and it cannot be told how its rows lie.
    """
    beyond = False
    for rule in rules:
        if named := rule.named(entry.name):
            if rule.has(named[0]):
                return None if rule.role == "still" else _move(entry, rule, named[1], block)
            beyond = True
    if beyond:
        raise ValueError(
            f"{shown(entry.name)} is of no layer that the config counts, and layers differ in how "
            "their heads lie: it cannot be told how its rows do."
        )
    return None


def _move(entry: Entry, rule: Rule, rest: str, block: int | None) -> Move | None:
    if entry.size * 8 <= BITS[entry.dtype] or BY_COLUMN.fullmatch(rest):
        return None  # a number for the whole tensor, or what lies along the other axis
    told = f"{shown(entry.name)}, {entry.dtype} {shown(entry.shape)},"
    if not BY_ROW.fullmatch(rest):
        raise ValueError(
            f"{told} belongs to a projection of {rule.role} and is of no kind that is known here. "
            "Rows that are packed together (GPTQ, AWQ, bitsandbytes) cannot be moved: convert "
            "before quantising."
        )
    if rule.role == "norm":
        return _move_norm(entry, rule, told)
    if entry.shape[0] == rule.rows and entry.size % rule.rows == 0:
        return Move(rule, rule.turning, entry.size // rule.rows)
    if BY_BLOCK.fullmatch(rest) and _stays_in_its_block(entry.shape[0], rule, block):
        return None
    raise ValueError(
        f"{told} must have {len(rule.turning)} heads of {rule.head_dim} rows, {rule.rows}, on its "
        "first axis. If the numbers of heads are right, its rows are shared or packed, and cannot "
        "be moved."
    )


def _move_norm(entry: Entry, rule: Rule, told: str) -> Move:
    """One weight for all heads (D,), or one for each (H * D,) or (H, D)."""
    heads, rest = divmod(entry.shape[-1], rule.head_dim)
    if len(entry.shape) == 2 and heads == 1:
        heads = entry.shape[0]
    elif len(entry.shape) != 1:
        rest = 1
    if rest or not heads:
        raise ValueError(f"{told} must have the {rule.head_dim} channels of a head, or of several.")
    return Move(rule, (True,) * heads, entry.size // (heads * rule.head_dim))


def _stays_in_its_block(blocks: int, rule: Rule, block: int | None) -> bool:
    """Whether every row that moves keeps the scale that it shares with its neighbours."""
    if block is None:
        block = rule.rows // blocks if rule.rows % blocks == 0 else None
    if block is None or -(-rule.rows // block) != blocks:
        return False
    places = torch.arange(rule.rows)
    return all(
        torch.equal(moved // block, places // block)
        for to in ("half", "interleaved")
        for moved in [_moved(places, rule, to)]
    )


def _moved(places: torch.Tensor, rule: Rule, to: Pairing) -> torch.Tensor:
    turning = list(rule.turning)
    return move_rows(places, turning, rule.head_dim, to, rule.rotary_dim, rule.side, 0)


def order(rule: Rule, to: Pairing) -> list[int]:
    """For every row of a head that turns, the row that comes to its place."""
    rows = torch.arange(rule.head_dim)
    return move_rows(rows, [True], rule.head_dim, to, rule.rotary_dim, rule.side, 0).tolist()
