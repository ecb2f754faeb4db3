"""K10 and K11: packed documents, and sequences and heads that are split over ranks."""

import torch

from auditor.faults.biases import bloom_slopes
from auditor.faults.decoding import forward_of
from auditor.faults.planting import attentions, in_model, override

# ---- K10 --------------------------------------------------------------------------------------


@in_model("F090", "K10", "own rotary")
def documents_see_one_another(model):
    """A mask of documents is taken for an ordinary one: only causality is kept."""

    def visible(before, self, mask, queries, past):
        return before(None if mask is not None and mask.dim() == 4 else mask, queries, past)

    override(model, "visible", visible)


@in_model("F091", "K10", "own learned")
def reset_ids_have_no_effect(model):
    """Ids that start again for each document are replaced by the running count."""

    def embedded(before, self, input_ids, positions):
        if (positions[:, 1:] <= positions[:, :-1]).any():
            positions = torch.arange(positions.shape[1])[None] + positions[:, :1]
        return before(input_ids, positions)

    override(model, "embedded", embedded)


@in_model("F092", "K10", "llama")
def document_mask_lost(model):
    """A four-dimensional mask is dropped."""

    def change(kwargs, tokens, past):
        mask = kwargs.get("attention_mask")
        if mask is not None and mask.dim() == 4:
            kwargs["attention_mask"] = torch.ones(mask.shape[0], mask.shape[-1], dtype=torch.long)

    forward_of(model, change)


@in_model(
    "F093",
    "K10",
    "own learned",
)
def first_token_of_a_document_sees_the_last(model):
    """Boundaries are one token late: a document's first token still sees the one before."""

    def visible(before, self, mask, queries, past):
        seen = before(mask, queries, past)
        if mask is None or mask.dim() != 4:
            return seen
        return seen | ((self.behind(queries, past) == 1)[None, None])

    override(model, "visible", visible)


@in_model("F094", "K10", "gpt2")
def second_document_goes_on_counting(model):
    """Given ids are used for the first document; the others go on from there."""

    def change(kwargs, tokens, past):
        ids = kwargs.get("position_ids")
        if ids is not None and (ids[:, 1:] <= ids[:, :-1]).any():
            kwargs["position_ids"] = torch.arange(tokens)[None].expand_as(ids)

    forward_of(model, change)


# ---- K11 (one process stands for the ranks: pieces of a whole with their own ids) --------------


@in_model("F100", "K11", "own alibi")
def every_rank_takes_the_first_slopes(model):
    """Slopes come from the local head count: the second half of the heads repeats the first."""

    def slopes(before, self):
        made = before()
        return made[: len(made) // 2].repeat(2)

    for layer in attentions(model):
        override(layer, "slopes", slopes)


@in_model("F101", "K11", "own rotary")
def shards_are_taken_for_contiguous(model):
    """Ids of a shard are made from its first: a zigzag or striped split is numbered wrongly."""

    def forward(before, self, input_ids, *args, **kwargs):
        ids = kwargs.get("position_ids")
        if ids is not None:
            run = torch.arange(ids.shape[1])[None]
            kwargs["position_ids"] = ids[:, :1] + run
        return before(input_ids, *args, **kwargs)

    override(model, "forward", forward)


@in_model("F102", "K11", "bloom")
def local_slopes_of_bloom(model):
    """The same in transformers: slopes of half the heads, twice."""

    bloom_slopes(model, lambda right, heads, *where: right(heads // 2, *where).repeat(2))


@in_model(
    "F103",
    "K11",
    "own learned",
    missed="It is told as K08: chunks are numbered from 0 without ids as well, and what decoding "
    "gets wrong in the same way is left to the check of the cache.",
)
def shards_are_numbered_locally(model):
    """A rank numbers its piece from 0, whatever ids it is given."""

    def embedded(before, self, input_ids, positions):
        return before(input_ids, positions - positions[:, :1])

    override(model, "embedded", embedded)
