"""Public cases of the kinds that the probes see: each is planted in a small model and found.

What is planted is the case's root cause; it has to be found by a check that names its kind.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from auditor.faults.catalogue import FAULTS
from auditor.probes import PROBES, attentions, bad, looked, numbered, override, own
from cases.support import AUDITED, CASES, case

pytestmark = [pytest.mark.more, pytest.mark.untyped]

NOTES = ("P098", "P136")
"""Cases in which a note is what is due: every model of a large library does it."""

FOUND_AS = {"P129": "K08"}
"""Shards that number themselves from 0 in a model that so numbers its chunks behind a cache, too:
the check of caches tells it, and that of shards leaves it to that one."""


def planted(fault: str) -> Callable[[], nn.Module]:
    """A fault of the catalogue, in a fresh host."""
    return lambda: FAULTS[fault].broken(Path())


def rotary(rule: Callable) -> Callable[[], nn.Module]:
    """A rotary host that numbers tokens by `rule`."""
    return lambda: numbered(own("own rotary"), rule)


def changed(host: str, name: str, replacement: Callable, *, layers: bool = True) -> Callable:
    """A host with another method in each attention, or in the model."""

    def make() -> nn.Module:
        model = own(host)
        for module in attentions(model) if layers else [model]:
            override(module, name, replacement)
        return model

    return make


def cast_of_the_table(before, self, x, positions, length):
    """The result has the table's type."""
    cos, sin = self.table(positions, length, torch.float32)
    u, v = self.pairs(x)
    return self.joined(u * cos - v * sin, u * sin + v * cos)


class Config:
    """A config as Hugging Face's classes have them."""

    def __init__(self, **keys):
        vars(self).update(keys)

    def to_dict(self):
        return dict(vars(self))


class Lowered(nn.Module):
    """A rotary model whose positions are floats of the default type."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embedding, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)
        speeds = torch.tensor([1.0, 0.1, 0.01, 0.001], dtype=torch.float32)
        angles = torch.arange(400.0)[:, None].float() * speeds
        self.register_buffer("cos", angles.cos(), persistent=False)

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        turned = x[..., :4] * self.cos[: x.shape[1]]
        return self.head(torch.cat([turned, x[..., 4:]], -1))


def with_saved_ids():
    """An arange among what is saved."""
    model = own("own learned")
    model.register_buffer("position_ids", torch.arange(256)[None])
    return model


def with_saved_speeds():
    """Frequencies among what is saved."""
    model = own("own rotary")
    for layer in attentions(model):
        layer.register_buffer("inv_freq", torch.tensor(layer.rules.speeds))
    return model


def image_delta_lost(ids, n, past):
    """Three tokens of an image share a place; steps after it count tokens."""
    if past:
        return ids
    return torch.where(ids > 4, ids - 2, ids.clamp(max=3))


def keys_rounded_again(before, self, x, positions, visible, cache, earlier):
    """Each call turns stored keys again, in bfloat16."""
    if cache is not None:
        cache = (cache[0].bfloat16().to(x.dtype), cache[1])
    return before(x, positions, visible, cache, earlier)


def short_masks_taken(before, self, mask, queries, past):
    if mask is not None and mask.dim() == 2 and mask.shape[1] == queries and past:
        mask = torch.cat([torch.zeros_like(mask[:, :1]).expand(-1, past), mask], 1)
    return before(mask, queries, past)


def ring_drops_too_much(before, self, mask, queries, past):
    """A chunk after the ring has wrapped sees the newest keys alone."""
    seen = before(mask, queries, past)
    if past > self.rules.window and queries > 1:
        newest = torch.arange(past + queries) >= past - 2
        seen = seen & newest
    return seen


def upper_layers_one_ahead():
    """The count of cached tokens is raised by layer 0, and read again by those above."""
    model = own("own rotary")

    def forward(before, self, x, positions, visible, cache, earlier):
        return before(x, positions + (cache is not None), visible, cache, earlier)

    for layer in attentions(model)[1:]:
        override(layer, "forward", forward)
    return model


def slot_numbering(host):
    model = own(host)
    model.rules = replace(model.rules, numbering="slot")
    return model


def pads_attended(before, self, mask, queries, past):
    return before(mask if mask is not None and mask.dim() == 4 else None, queries, past)


def negative_after_pads(before, self, input_ids, mask, past):
    """Left-padded prompts end at -1; steps go on from the length."""
    ids = before(input_ids, mask, past)
    pads = mask is not None and mask.dim() == 2 and not mask.all()
    return ids - input_ids.shape[1] if pads and not past else ids


def pads_in_the_middle(before, self, input_ids, mask, past):
    """Ids of tokens between pads count the pads before them."""
    if mask is not None and mask.dim() == 2 and not mask.all():
        return torch.arange(past, past + input_ids.shape[1])[None]
    return before(input_ids, mask, past)


def gap_means_packing(before, self, input_ids, *args, **kwargs):
    ids = kwargs.get("position_ids")
    if ids is not None and not (ids == 0).any(1).all():
        raise ValueError("no document begins")
    return before(input_ids, *args, **kwargs)


def gradient_lost_at_a_boundary(before, self, input_ids, positions):
    x = before(input_ids, positions)
    packed = (positions[:, 1:] <= positions[:, :-1]).any()
    return x.detach() if packed else x


def contiguous_alone(before, self, input_ids, *args, **kwargs):
    ids = kwargs.get("position_ids")
    if ids is not None and not (ids.diff() == 1).all():
        raise ValueError("ALiBi takes whole sequences alone")
    return before(input_ids, *args, **kwargs)


def grown_but_once(before, self, positions, length, dtype):
    if int(positions.max()) >= 512:
        raise AssertionError("seq_len > cos.shape[0]")
    return before(positions, length, dtype)


def unturned_beyond(before, self, positions, length, dtype):
    cos, sin = before(positions, length, dtype)
    beyond = (positions >= 2048)[:, None, :, None]
    return cos.masked_fill(beyond, 1.0), sin.masked_fill(beyond, 0.0)


def one_row_refused(before, self, input_ids, *args, **kwargs):
    ids = kwargs.get("position_ids")
    if ids is not None and ids.shape != input_ids.shape:
        raise ValueError("position_ids must be (batch, sequence)")
    return before(input_ids, *args, **kwargs)


def recomputed(positions_kept, raises=False):
    """A host with activation checkpointing, whose blocks are called again without their ids."""

    def make():
        model = own("own rotary")
        model.recomputes = False

        def enable():
            model.recomputes = True

        def forward(before, self, x, *where):
            if not model.recomputes:
                return before(x, *where)
            if raises:
                raise ValueError("a checkpointed argument is a tuple of tables")
            positions, *others = where
            plain = torch.arange(x.shape[1])[None].expand(x.shape[:2])
            used = positions if positions_kept else plain
            return checkpoint(before, x, used, *others, use_reentrant=False)

        model.gradient_checkpointing_enable = enable
        for layer in model.layers:
            override(layer, "forward", forward)
        return model

    return make


def prompt_added_again():
    """6, then 12, 13, ...: the prompt's size is added again after the first step."""
    model, first = own("own rotary"), []

    def rule(ids, n, past):
        if not past:
            first[:] = [n]
            return ids
        return ids + first[0] if past > first[0] else ids

    return numbered(model, rule)


PLANTS: dict[str, Callable[[], nn.Module]] = {
    "P055": planted("F042"),
    "P056": planted("F040"),
    "P058": planted("F044"),
    "P060": planted("F042"),
    "P062": planted("F051"),
    "P063": planted("F050"),
    "P065": planted("F054"),
    "P066": planted("F055"),
    "P067": planted("F053"),
    "P069": planted("F052"),
    "P072": planted("F055"),
    "P073": lambda: Lowered(Config(model_type="own", vocab_size=50)),
    "P074": changed("own rotary", "rotate", cast_of_the_table),
    "P075": planted("F060"),
    "P076": planted("F060"),
    "P080": with_saved_speeds,
    "P082": planted("F064"),
    "P083": planted("F061"),
    "P084": with_saved_ids,
    "P086": rotary(lambda ids, n, past: ids + past),
    "P087": rotary(lambda ids, n, past: torch.zeros_like(ids) if past else ids),
    "P089": prompt_added_again,
    "P090": rotary(lambda ids, n, past: torch.arange(n)[None] + min(past, 5) if past else ids),
    "P093": planted("F078"),
    "P095": rotary(image_delta_lost),
    "P097": changed("own rotary", "forward", keys_rounded_again),
    "P098": changed("own rotary", "visible", short_masks_taken, layers=False),
    "P100": rotary(lambda ids, n, past: ids[:, :1].expand_as(ids) if past else ids),
    "P101": rotary(lambda ids, n, past: ids * 0 if past and n == 1 else ids),
    "P103": changed("own window", "visible", ring_drops_too_much, layers=False),
    "P104": lambda: numbered(
        own("own window"), lambda ids, n, past: torch.arange(n)[None] + min(past, 7)
    ),
    "P106": upper_layers_one_ahead,
    "P108": lambda: slot_numbering("own learned"),
    "P109": planted("F081"),
    "P111": changed("own rotary", "visible", pads_attended, layers=False),
    "P113": lambda: numbered(
        own("own alibi"), lambda ids, n, past: torch.arange(past, past + n)[None] if past else ids
    ),
    "P115": changed("own rotary", "number", negative_after_pads, layers=False),
    "P117": lambda: slot_numbering("own learned"),
    "P119": changed("own learned", "number", pads_in_the_middle, layers=False),
    "P120": planted("F092"),
    "P122": planted("F091"),
    "P123": changed("own rotary", "forward", gap_means_packing, layers=False),
    "P127": changed("own rotary", "embedded", gradient_lost_at_a_boundary, layers=False),
    "P128": planted("F101"),
    "P129": planted("F103"),
    "P131": planted("F100"),
    "P134": changed("own alibi", "forward", contiguous_alone, layers=False),
    "P135": planted("F112"),
    "P136": lambda: own("own learned"),
    "P138": changed("own rotary", "table", grown_but_once),
    "P139": changed("own rotary", "table", unturned_beyond),
    "P142": planted("F113"),
    "P169": planted("F150"),
    "P171": planted("F151"),
    "P193": planted("F181"),
    "P195": planted("F193"),
    "P197": planted("F191"),
    "P198": planted("F192"),
    "P200": planted("F194"),
    "P203": changed("own rotary", "forward", one_row_refused, layers=False),
    "P205": planted("F200"),
    "P210": planted("F203"),
    "P211": recomputed(positions_kept=False),
    "P212": recomputed(positions_kept=True, raises=True),
    "P232": planted("F242"),
    "P235": planted("F241"),
}


@pytest.mark.parametrize("id_", PLANTS)
def test_the_fault_of_a_case_is_found_with_its_kind(id_):
    @case(id_)
    def found() -> None:
        kind = FOUND_AS.get(id_, (CASES | AUDITED)[id_]["kind"])
        report = looked(PLANTS[id_](), *PROBES)
        wanted = report.findings if id_ in NOTES else bad(report)
        assert kind in {each.kind for each in wanted}

    found()


def test_left_pads_of_a_relative_model_are_no_fault():
    """P117: users fear them; a uniform shift does nothing."""

    @case("P117")
    def silent() -> None:
        report = looked(slot_numbering("own rotary"), "pads")
        assert not bad(report)
        assert "pads left" in {each.what for each in report.compared}

    silent()


def test_recomputation_that_keeps_its_ids_is_silent():
    report = looked(recomputed(positions_kept=True)(), "backward")
    assert not bad(report)
    assert "recomputation" in {each.what for each in report.compared}
