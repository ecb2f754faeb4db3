"""Which fault of padding, packing and caches matters for which encoding.

The oracle is a table made in float64 by hand, one causal layer for each class: what cannot be seen
must not be reported, what can must be, by the check of its kind.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from auditor.probes import attentions, bad, looked, numbered, override, own

pytestmark = pytest.mark.untyped  # the probes are typed in test_probes_sound

CHECKS = ("state", "cache", "masks", "pads", "packs", "shards")
HOSTS = {"rope": "own rotary", "alibi": "own alibi", "t5": "own buckets", "learned": "own learned"}
ALL = ("rope", "alibi", "t5", "learned")


def left_pads_by_slot(model):
    model.rules = replace(model.rules, numbering="slot")


def pads_attended(model):
    def visible(before, self, mask, queries, past):
        return before(mask if mask is not None and mask.dim() == 4 else None, queries, past)

    override(model, "visible", visible)


def decode_by_cache_prompt_by_mask(model):
    numbered(model, lambda ids, n, past: torch.arange(past, past + n)[None] if past else ids)


def decode_off_by_one(model):
    numbered(model, lambda ids, n, past: ids + 1 if past else ids)


def decode_restarts(model):
    numbered(model, lambda ids, n, past: torch.arange(n)[None] if past else ids)


def shifted_evenly(model):
    numbered(model, lambda ids, n, past: ids + 3)


def ids_not_reset(model):
    def forward(before, self, input_ids, *args, **kwargs):
        ids, mask = kwargs.get("position_ids"), kwargs.get("attention_mask")
        if ids is not None and mask is not None and mask.dim() == 4 and past_of(kwargs) == 0:
            in_order = (ids[:, 1:] < ids[:, :-1]).sum() == 1  # two documents, not a rank's tokens
            if in_order:
                kwargs["position_ids"] = torch.arange(ids.shape[1])[None].expand_as(ids)
        return before(input_ids, *args, **kwargs)

    override(model, "forward", forward)


def past_of(kwargs):
    cache = kwargs.get("past_key_values")
    return 0 if cache is None else cache.get_seq_length()


def document_mask_missing(model):
    def visible(before, self, mask, queries, past):
        return before(None if mask is not None and mask.dim() == 4 else mask, queries, past)

    override(model, "visible", visible)


def shards_numbered_locally(model):
    def forward(before, self, input_ids, *args, **kwargs):
        ids = kwargs.get("position_ids")
        if ids is not None:
            kwargs["position_ids"] = ids - ids[:, :1]
        return before(input_ids, *args, **kwargs)

    override(model, "forward", forward)


def old_keys_under_the_old_table(model):
    """Keys keep the table of the length at which they came, queries have that of now."""

    def rotate(before, self, x, positions, length):
        if x.shape[1] == self.rules.heads:  # queries
            return before(x, positions * grown(length), length)
        when = positions + 1 if self.continued else length[:, None].expand_as(positions)
        return before(x, positions * grown(when), length)

    def grown(length):
        return 1.0 + 0.1 * (length > 24).float().view(-1, 1) if length.dim() == 1 else (
            1.0 + 0.1 * (length > 24).float()
        )  # fmt: skip

    def forward(before, self, x, positions, visible, cache, earlier):
        self.continued = cache is not None
        return before(x, positions, visible, cache, earlier)

    for layer in attentions(model):
        override(layer, "rotate", rotate)
        override(layer, "forward", forward)


def slopes_of_the_first_rank(model):
    def slopes(before, self):
        return before()[: self.rules.heads // 2].repeat(2)

    for layer in attentions(model):
        override(layer, "slopes", slopes)


# fault -> (kind, encodings that it damages)
TABLE: dict[Callable, tuple[str, tuple[str, ...]]] = {
    left_pads_by_slot: ("K09", ("learned",)),
    pads_attended: ("K09", ALL),
    decode_by_cache_prompt_by_mask: ("K09", ALL),
    decode_off_by_one: ("K08", ALL),
    decode_restarts: ("K08", ALL),
    shifted_evenly: ("K14", ()),  # for a learned table it is a matter of CHK2
    ids_not_reset: ("K10", ("learned",)),
    document_mask_missing: ("K10", ALL),
    shards_numbered_locally: ("K11", ALL),
}
FOR_ONE = {
    (old_keys_under_the_old_table, "rope"): "K05",
    (slopes_of_the_first_rank, "alibi"): "K11",
}
ROWS = [(f, e, k if e in hurt else None) for f, (k, hurt) in TABLE.items() for e in ALL]
ROWS += [(f, e, k) for (f, e), k in FOR_ONE.items()]
OFTEN = ("rope", "learned")
"""A relative and an absolute encoding; the others are slow to try in every run of the tests."""


def rare(encoding: str) -> tuple:
    return () if encoding in OFTEN else (pytest.mark.more,)


ENCODINGS = [pytest.param(e, marks=rare(e)) for e in ALL]
PLANTED = [
    pytest.param(f, e, k, id=f"{f.__name__}-{e}", marks=() if (f, e) in FOR_ONE else rare(e))
    for f, e, k in ROWS
]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_sound_model_has_nothing_to_report_and_was_looked_at(encoding):
    report = looked(own(HOSTS[encoding]), *CHECKS)
    assert not bad(report)
    said = {each.what for each in report.compared}
    assert said >= {"state", "cache", "keys seen", "pads left", "pads right", "batch mates"}
    assert said >= {"steps after pads", "packing by a mask", "gradients of packed rows", "shards"}


@pytest.mark.parametrize(("fault", "encoding", "kind"), PLANTED)
def test_a_fault_is_reported_where_it_matters_and_only_there(fault, encoding, kind):
    model = own(HOSTS[encoding])
    fault(model)
    found = {each.kind for each in bad(looked(model, *CHECKS))}
    if kind is None:
        assert not found
    else:
        assert kind in found


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_three_faults_of_left_pads_are_told_apart(encoding):
    """Numbered by slot, attended, numbered by two rules: each has its own cause."""
    causes = []
    for fault in (left_pads_by_slot, pads_attended, decode_by_cache_prompt_by_mask):
        model = own(HOSTS[encoding])
        fault(model)
        found = [f for f in bad(looked(model, "pads")) if f.kind == "K09"]
        causes.append(found[0].cause if found else "harmless")
    slot, attended, mixed = causes
    assert slot.startswith("Tokens are numbered by slot" if encoding == "learned" else "harmless")
    assert "pads are attended" in attended
    assert mixed.startswith("Mixed rule")
