"""Encodings with one planted fault each: for every law some that break it.

Each is a fault that people made, in the smallest form.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import whereness as wn
from laws import DIM, GROUPS, HEAD_DIM, HEADS, Subject
from whereness import PositionalEncoding, Where
from whereness.combined import Combined
from whereness.encoding import At, Features
from whereness.relative.bias import Strip
from whereness.rotary.base import Turn
from whereness.rotary.pairing import split
from zoo import CoPE, DeBERTa, FoX, PoPE


def by_slot(where: Where) -> Where:
    """Numbers tokens by their place in the tensor, whatever the ids say."""
    queries, keys = where.num_queries, where.num_keys
    return Where(torch.arange(queries), torch.arange(keys), cached=where.cached)


class SlotRoPE(wn.RoPE):
    """Ignores the ids it is given."""

    def tables(self, where: Where) -> Any:
        return super().tables(by_slot(where))


class SlotSinusoidal(wn.Sinusoidal):
    def tables(self, where: Where) -> Any:
        return super().tables(by_slot(where))


class RoundedRoPE(wn.RoPE):
    """Positions in bfloat16: relative near 0, not beyond 256."""

    def angles(self, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        return super().angles(positions.bfloat16().double())


class MixedPairingRoPE(wn.RoPE):
    """Splits by halves what it joins interleaved."""

    def queries_keys(self, q: Tensor, k: Tensor, at: At, features: Features) -> Any:
        turns = at.data
        return self._mixed(q, turns.queries), self._mixed(k, turns.keys)

    def _mixed(self, x: Tensor, turned: Turn) -> Tensor:
        u, v = split(x, "half")
        cos, sin = (t.transpose(1, 2).repeat_interleave(2, -1) for t in self.exactly(turned))
        u2, v2 = split(x, "interleaved")
        swapped = torch.stack([-v2, u2], -1).flatten(-2)
        return torch.cat([u, v], -1) * cos + swapped.roll(1, -1) * sin


class QueryOnlyRoPE(wn.RoPE):
    """Turns queries twice as fast as keys: no longer relative."""

    def queries_keys(self, q: Tensor, k: Tensor, at: At, features: Features) -> Any:
        return super().queries_keys(q, k, at, features)[0], k


class CastableRoPE(wn.RoPE):
    """Keeps its frequencies in a float buffer, as most libraries do."""

    def __init__(self, head_dim: int, persistent: bool = False) -> None:
        super().__init__(head_dim)
        self.register_buffer("inv_freq", self.frequencies.clone(), persistent=persistent)

    def angles(self, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        return positions[..., None].double() * self.inv_freq.double()


class RememberingRoPE(wn.RoPE):
    """Caches its table by length alone."""

    def __init__(self, head_dim: int) -> None:
        super().__init__(head_dim)
        self.tables_by_length: dict[int, Any] = {}

    def tables(self, where: Where) -> Any:
        return self.tables_by_length.setdefault(where.num_queries, super().tables(where))


class LeakyFoX(FoX):
    """Gates of the next token: the future leaks."""

    def features(self, x: Tensor, at: At, past: Features | None) -> dict[str, Tensor]:
        return super().features(x.roll(-1, 1), at, past)


class PadBlindFoX(FoX):
    """Counts pads among the tokens that forget."""

    def features(self, x: Tensor, at: At, past: Features | None) -> dict[str, Tensor]:
        return {"log_f": F.logsigmoid(self.gate(x))}


class BatchMixingFoX(FoX):
    def features(self, x: Tensor, at: At, past: Features | None) -> dict[str, Tensor]:
        weights = torch.arange(1.0, len(x) + 1, dtype=x.dtype)[:, None, None]
        mixed = (x * weights).sum(0, keepdim=True).expand_as(x)
        return super().features(x + mixed, at, past)


class HeadMixing(PositionalEncoding):
    """Every head sees the mean of all: the heads axis was taken for another."""

    def queries_keys(self, q: Tensor, k: Tensor, at: At, features: Features) -> Any:
        return q + q.mean(1, keepdim=True), k


class GroupCounting(PositionalEncoding):
    """Changes keys by the number of their group."""

    def queries_keys(self, q: Tensor, k: Tensor, at: At, features: Features) -> Any:
        return q, k * torch.arange(1.0, k.shape[1] + 1, dtype=k.dtype)[:, None, None]


class UnusedParameter(wn.ALiBi):
    def __init__(self) -> None:
        super().__init__(HEADS)
        self.table = nn.Parameter(torch.zeros(3))


class InfiniteGradient(wn.LearnedRelative):
    """log of a distance that may be 0, chosen by where: the gradient is NaN."""

    def by_offset(self, offset: Tensor) -> Tensor:
        slope = self.table[:, 0].sum()
        far = torch.log(offset.abs() * slope.abs())
        return torch.where(offset == 0, 0.0, far).expand(HEADS, *offset.shape)


class LengthScaledGradient(wn.LearnedRelative):
    """Right values; gradients grow with the length of the row."""

    def tables(self, where: Where) -> Any:
        bias = self.bias(where.positions, where.keys)
        return bias + (bias - bias.detach()) * where.num_keys

    def bias_at(self, at: At) -> Tensor:
        return at.data


class DoubledGradient(wn.LearnedRelative):
    def by_offset(self, offset: Tensor) -> Tensor:
        bias = super().by_offset(offset)
        return 2 * bias - bias.detach()


class ClassTable(wn.LearnedRelative):
    """State on the class: the last instance made serves all."""

    latest: ClassVar[Any] = None

    def __init__(self) -> None:
        super().__init__(HEADS, 4)
        type(self).latest = self

    def by_offset(self, offset: Tensor) -> Tensor:
        clipped = offset.clamp(-4, 4) + 4
        return type(self).latest.table[clipped].movedim(-1, 0)


class SharedCopy(wn.LearnedRelative):
    """A copy that is not one."""

    def __deepcopy__(self, memo: dict) -> "SharedCopy":
        return self


class NoReset(wn.LearnedRelative):
    def __init__(self) -> None:
        super().__init__(HEADS, 4)

    def reset_parameters(self) -> None:
        if not hasattr(self, "made"):
            super().reset_parameters()
        self.made = True


class SaysAdditive(wn.Shaw):
    """Claims that fused attention serves it: its scores are then left out."""

    additive = True


class UnflippedStrip(wn.ALiBi):
    """Unfolds its strip the wrong way round."""

    def bias_at(self, at: At) -> Tensor:
        if isinstance(at.data, Strip):
            return at.data.values.unfold(-1, at.data.num_keys, 1)
        return at.data


class OtherWhenCompiled(wn.ALiBi):
    def by_offset(self, offset: Tensor) -> Tensor:
        bias = super().by_offset(offset)
        return 2 * bias if torch.compiler.is_compiling() else bias


class RowAtNowhere(wn.Sinusoidal):
    """Gives tokens without a place the row of position 0."""

    def _placed_rows(self, positions: Tensor) -> Tensor:
        return self.rows(positions.masked_fill(positions == wn.NOWHERE, 0))


class TurnAtNowhere(wn.RoPE):
    def _turn(self, positions: Tensor, lengths: Tensor | None, of_keys: bool) -> Turn:
        placed = positions.masked_fill(positions == wn.NOWHERE, 3)
        return super()._turn(placed, lengths, of_keys)


class IntoValues(wn.Sinusoidal):
    """Says queries and keys only, and joins the values too."""

    def inputs(self, x: Tensor, context: Tensor, at: At) -> Any:
        x_q, x_k, _ = super().inputs(x, context, at)
        return x_q, x_k, x_k


class UncountedDoor(wn.ALiBi):
    doors = (3, 4)


def said(cls: type, *arguments: Any, **wrong: Any) -> Any:
    """A maker of `cls` with declared traits replaced by wrong ones."""

    def make() -> Any:
        encoding = cls(*arguments)
        for name, value in wrong.items():
            setattr(encoding, name, value)
        return encoding

    return make


def combined(**wrong: Any) -> Any:
    def make() -> Any:
        both = Combined([wn.RoPE(HEAD_DIM), DeBERTa(DIM, 4)])
        for name, value in wrong.items():
            setattr(both, name, value)
        return both

    return make


def sinusoidal(site: str = "queries_keys", **wrong: Any) -> Any:
    return said(lambda: wn.Sinusoidal(DIM, site=site), **wrong)


slot_rope = Subject("slot rope", lambda: SlotRoPE(HEAD_DIM))
slot_sinusoidal = Subject("slot sinusoidal", lambda: SlotSinusoidal(DIM, site="every_layer"))
castable = Subject("castable rope", lambda: CastableRoPE(HEAD_DIM))

PLANTED: dict[str, list[Subject]] = {
    "declared_traits_are_the_measured_ones": [
        Subject("rope says absolute", said(wn.RoPE, HEAD_DIM, relative=False)),
        Subject("sinusoidal says relative", sinusoidal(relative=True)),
        Subject("rounded rope says relative", lambda: RoundedRoPE(HEAD_DIM)),
        Subject(
            "table says unbounded", said(wn.LearnedAbsolute, DIM, 40, unbounded=True), reach=40
        ),
        Subject("rope says bounded", said(wn.RoPE, HEAD_DIM, unbounded=False)),
        Subject("alibi says content", said(wn.ALiBi, HEADS, content_aware=True)),
        Subject("shaw says no content", said(wn.Shaw, HEAD_DIM, 3, content_aware=False)),
        Subject("rope says norms change", said(wn.RoPE, HEAD_DIM, norm_preserving=False)),
        Subject("pope says norms stay", said(PoPE, HEAD_DIM, GROUPS, norm_preserving=True)),
        Subject("cope says positions", said(CoPE, HEAD_DIM, 5, reads="positions")),
        Subject("alibi says order", said(wn.ALiBi, HEADS, reads="order")),
        Subject("alibi says nothing", said(wn.ALiBi, HEADS, reads="nothing")),
        Subject("t5 says both sides", said(wn.T5, HEADS, causal_only=False)),
        Subject("alibi says causal only", said(wn.ALiBi, HEADS, causal_only=True)),
        Subject("rope says not cacheable", said(wn.RoPE, HEAD_DIM, cacheable=False)),
        Subject("[rope, deberta] says cacheable", combined(cacheable=True)),
        Subject("joins the values", lambda: IntoValues(DIM, site="queries_keys")),
        Subject("counts a door it lacks", lambda: UncountedDoor(HEADS)),
    ],
    "relative_ones_do_not_see_a_shift": [
        Subject("rounded", lambda: RoundedRoPE(HEAD_DIM)),
        Subject("query only", lambda: QueryOnlyRoPE(HEAD_DIM)),
    ],
    "turning_keeps_norms_and_angles_between_pairs": [
        Subject("mixed pairing", lambda: MixedPairingRoPE(HEAD_DIM)),
        Subject("pope", lambda: PoPE(HEAD_DIM, GROUPS)),
    ],
    "decoding_in_chunks_equals_the_full_pass": [
        slot_rope,
        Subject("[rope, deberta] cached as if apart", combined(cacheable=True)),
    ],
    "default_positions_go_on_in_the_cache": [slot_rope],
    "pads_change_nothing": [slot_sinusoidal],
    "rows_of_uneven_length_do_not_disturb_each_other": [slot_sinusoidal],
    "pads_inside_the_cache_change_nothing": [Subject("pad-blind", lambda: PadBlindFoX(DIM, HEADS))],
    "packing_equals_separate_runs": [
        slot_sinusoidal,
        Subject("gradient by length", lambda: LengthScaledGradient(HEADS, 4)),
    ],
    "every_parameter_gets_a_finite_gradient": [
        Subject("unused", UnusedParameter),
        Subject("infinite", lambda: InfiniteGradient(HEADS, 4)),
    ],
    "the_future_does_not_leak": [Subject("leaky", lambda: LeakyFoX(DIM, HEADS))],
    "encoders_see_both_sides_and_no_pads": [slot_sinusoidal],
    "cross_attention_honours_both_streams": [
        slot_rope,
        Subject("query only", lambda: QueryOnlyRoPE(HEAD_DIM)),
    ],
    "batch_rows_are_independent": [Subject("batch mean", lambda: BatchMixingFoX(DIM, HEADS))],
    "heads_are_independent": [Subject("head mean", HeadMixing)],
    "warped_positions_change_the_output": [slot_rope],
    "a_cast_and_back_changes_no_constant": [castable],
    "no_buffer_and_no_derived_key": [
        castable,
        Subject("persistent", lambda: CastableRoPE(HEAD_DIM, persistent=True)),
    ],
    "meta_then_empty_then_load_is_the_same": [castable],
    "copies_are_equal_and_independent": [Subject("shared copy", lambda: SharedCopy(HEADS, 4))],
    "reset_parameters_starts_anew": [Subject("no reset", NoReset)],
    "calls_leave_no_trace": [Subject("remembers", lambda: RememberingRoPE(HEAD_DIM))],
    "two_instances_do_not_share": [Subject("class table", ClassTable)],
    "every_implementation_gives_the_same_numbers": [
        Subject("says additive", lambda: SaysAdditive(HEAD_DIM, 3, values=False))
    ],
    "built_positions_equal_given_ones": [Subject("unflipped", lambda: UnflippedStrip(HEADS))],
    "compiled_equals_eager": [Subject("other when compiled", lambda: OtherWhenCompiled(HEADS))],
    "gradients_are_those_of_finite_differences": [
        Subject("doubled gradient", lambda: DoubledGradient(HEADS, 4))
    ],
    "a_token_without_a_place_passes_doors_1_to_3": [
        Subject("row at nowhere", lambda: RowAtNowhere(DIM)),
        Subject("turn at nowhere", lambda: TurnAtNowhere(HEAD_DIM)),
    ],
    "grouped_heads_equal_repeated_ones": [Subject("counts groups", GroupCounting)],
}
