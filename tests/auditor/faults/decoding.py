"""K08 and K09: caches and pads."""

import torch

from auditor.faults.planting import attentions, in_model, override


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
