"""K08 to K11: caches, pads, packs and shards."""

import torch

from .planting import attentions, in_model, of, override, reroute


def forward_of(model, change):
    """Lets a model of transformers see other arguments: `change(keywords, tokens, past)`."""

    def forward(before, self, *args, **kwargs):
        if args:
            kwargs["input_ids"], args = args[0], args[1:]
        cache = kwargs.get("past_key_values", kwargs.get("cache"))
        past = 0 if cache is None else int(cache.get_seq_length())
        tokens = kwargs.get("input_ids")
        tokens = kwargs["inputs_embeds"] if tokens is None else tokens
        change(kwargs, tokens.shape[1], past)
        return before(*args, **kwargs)

    override(model, "forward", forward)


def bloom_slopes(model, change):
    """Gives Bloom other slopes: `change(right, heads, device)`."""
    inner = model.transformer
    right = of(inner, "_get_alibi_slopes")

    def slopes(*where):
        return change(right, *where)

    def build(before, self, attention_mask, num_heads, dtype):
        at = (attention_mask.cumsum(-1) - 1) * attention_mask
        made = slopes(num_heads, at.device)[:, None] * at[:, None, :]
        return made.view(-1, 1, at.shape[-1]).to(dtype)

    override(inner, "build_alibi_tensor", build)
    reroute(inner, _get_alibi_slopes=slopes)


def renumber(model, numbered):
    """Lets an own host number tokens that came without ids by `numbered(right, past)`."""

    def number(before, self, input_ids, mask, past):
        return numbered(before(input_ids, mask, past), past)

    override(model, "number", number)


# ---- K08 --------------------------------------------------------------------------------------


@in_model("F070", "K08", "llama")
def decode_restarts_at_zero(model):
    """With a cache the new tokens are numbered from 0 again."""

    def change(kwargs, tokens, past):
        if past and kwargs.get("position_ids") is None:
            kwargs["position_ids"] = torch.arange(tokens)[None]

    forward_of(model, change)


@in_model("F071", "K08", "own rotary")
def decode_one_too_far(model):
    """Every decoded token is one position too far."""
    renumber(model, lambda right, past: right + (past > 0))


@in_model("F072", "K08", "own learned")
def offset_counted_twice(model):
    """The loop and the model both add the offset: chunk two starts at twice its start."""
    renumber(model, lambda right, past: right + past)


@in_model("F073", "K08", "mistral")
def window_of_one_position(model):
    """All tokens of a chunk that follows a cache get the position of the first."""

    def change(kwargs, tokens, past):
        if past and kwargs.get("position_ids") is None:
            kwargs["position_ids"] = torch.full((1, tokens), past)

    forward_of(model, change)


@in_model("F074", "K08", "own buckets")
def no_bias_with_a_cache(model):
    """A decode step takes a path without the bias."""

    def biased(before, self, scores, queries, keys):
        return scores if keys.shape[1] > queries.shape[1] else before(scores, queries, keys)

    for layer in attentions(model):
        override(layer, "biased", biased)


@in_model("F075", "K08", "own rotary")
def first_layer_moves_the_count(model):
    """The first layer updates the shared count; in a step the others read one too many."""

    def forward(before, self, x, positions, visible, cache, earlier):
        return before(x, positions + (cache is not None), visible, cache, earlier)

    override(attentions(model)[1], "forward", forward)


@in_model("F076", "K08", "gpt2")
def numbered_by_the_slots_of_the_cache(model):
    """The cache allocates ahead, and its size is taken for the number of tokens."""

    def change(kwargs, tokens, past):
        if past and kwargs.get("position_ids") is None:
            size = -(-past // 4) * 4
            kwargs["position_ids"] = torch.arange(size, size + tokens)[None]

    forward_of(model, change)


@in_model("F077", "K08", "own rotary")
def keys_turned_again(model):
    """Cached keys are turned at every step: the old ones many times."""

    def forward(before, self, x, positions, visible, cache, earlier):
        mixed, (keys, values) = before(x, positions, visible, cache, earlier)
        at = torch.cat([earlier, positions], 1)
        return mixed, (self.rotate(keys, at, at.max(1).values + 1), values)

    for layer in attentions(model):
        override(layer, "forward", forward)


@in_model("F078", "K08", "own rotary")
def table_kept_by_length_only(model):
    """A table is kept for each length, whatever the offset was."""

    def table(before, self, positions, length, dtype):
        kept = vars(self).setdefault("tables", {})
        key = (positions.shape, dtype)
        if key not in kept:
            kept[key] = before(positions, length, dtype)
        return kept[key]

    for layer in attentions(model):
        override(layer, "table", table)


# ---- K09 --------------------------------------------------------------------------------------


@in_model("F080", "K09", "own learned")
def numbered_from_the_pad(model):
    """Tokens are numbered by their slot: a left-padded prompt starts at the wrong row."""

    def number(before, self, input_ids, mask, past):
        return before(input_ids, None, past)

    override(model, "number", number)


@in_model("F081", "K09", "opt")
def ids_from_the_mask_removed(model):
    """OPT counts its mask; here ids made from the slots are passed on always."""

    def change(kwargs, tokens, past):
        if kwargs.get("position_ids") is None:
            kwargs["position_ids"] = torch.arange(past, past + tokens)[None]

    forward_of(model, change)


@in_model("F082", "K09", "own rotary")
def pads_are_attended(model):
    """The padding mask is dropped."""

    def visible(before, self, mask, queries, past):
        return before(mask if mask is not None and mask.dim() == 4 else None, queries, past)

    override(model, "visible", visible)


@in_model("F083", "K09", "own alibi")
def pads_are_attended_in_decoding(model):
    """The padding mask is applied in the prefill only."""

    def visible(before, self, mask, queries, past):
        return before(None if past else mask, queries, past)

    override(model, "visible", visible)


@in_model("F084", "K09", "bert")
def one_layer_sees_the_pads(model):
    """The second layer does not get the padding mask."""
    layer = model.encoder.layer[1]

    def forward(before, self, hidden_states, attention_mask=None, *args, **kwargs):
        return before(hidden_states, None, *args, **kwargs)

    override(layer, "forward", forward)


@in_model("F085", "K09", "own rotary")
def two_rules_of_numbering(model):
    """The prefill counts the mask, decoding counts the cache."""

    def number(before, self, input_ids, mask, past):
        return before(input_ids, None if past else mask, past)

    override(model, "number", number)


@in_model("F086", "K09", "qwen2")
def padding_mask_lost(model):
    """The mask of pads does not reach the model."""

    def change(kwargs, tokens, past):
        mask = kwargs.get("attention_mask")
        if mask is not None and mask.dim() == 2:
            kwargs["attention_mask"] = torch.ones_like(mask)

    forward_of(model, change)


@in_model("F087", "K09", "own buckets")
def a_floor_that_is_too_high(model):
    """Pads are masked by -1 where it should be the lowest number: they leak."""

    def biased(before, self, scores, queries, keys):
        padded = self.padded
        scores = before(scores, queries, keys)
        return scores if padded is None else scores - (~padded).to(scores.dtype)

    def forward(before, self, x, positions, visible, cache, earlier):
        causal, self.padded = visible
        return before(x, positions, causal, cache, earlier)

    def visible(before, self, mask, queries, past):
        if mask is None or mask.dim() == 4:
            return before(mask, queries, past), None
        return before(None, queries, past), mask[:, None, None, :].bool()

    override(model, "visible", visible)
    for layer in attentions(model):
        override(layer, "biased", biased)
        override(layer, "forward", forward)


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


@in_model("F093", "K10", "own learned")
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


@in_model("F103", "K11", "own learned")
def shards_are_numbered_locally(model):
    """A rank numbers its piece from 0, whatever ids it is given."""

    def embedded(before, self, input_ids, positions):
        return before(input_ids, positions - positions[:, :1])

    override(model, "embedded", embedded)
