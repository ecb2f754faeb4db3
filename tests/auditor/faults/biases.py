"""K17 to K19, K23 and K24: biases, masks, maps of layers and sinusoids."""

import math
from dataclasses import replace

import torch

from auditor.faults.formulas import alibi_slopes, speeds
from auditor.faults.planting import attentions, in_model, named, of, override, reroute


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


# ---- K17 --------------------------------------------------------------------------------------


def steep(model, slopes):
    """Gives an own ALiBi host other slopes."""
    for layer in attentions(model):
        override(layer, "slopes", lambda before, self: torch.tensor(slopes))


@in_model("F160", "K17", "own alibi of 6")
def one_series_for_six_heads(model):
    """Slopes are one geometric series, though 6 is no power of two."""
    steep(model, [2 ** (-8 * (head + 1) / 6) for head in range(6)])


@in_model("F161", "K17", "own alibi")
def far_tokens_are_favoured(model):
    """The bias rises with distance: q - k where k - q is meant."""
    for layer in attentions(model):
        override(layer, "falling", lambda before, self, behind: -before(behind))


@in_model("F162", "K17", "bloom")
def slopes_start_at_one(model):
    """The first exponent is 0: every slope is one step too steep."""

    bloom_slopes(model, lambda right, heads, *where: right(heads, *where) / alibi_slopes(heads)[0])


@in_model("F163", "K17", "mpt")
def largest_exponent_ignored(model):
    """alibi_bias_max of the file is ignored, 16 is taken."""

    def build(before, self, num_heads, sequence_length, alibi_bias_max=8, device=None):
        return before(num_heads, sequence_length, 16, device)

    override(model.transformer, "build_mpt_alibi_tensor", build)


@in_model("F164", "K17", "own alibi")
def diagonal_at_the_first_key(model):
    """With more keys than queries the bias is not moved: it counts from the first key."""

    def biased(before, self, scores, queries, keys):
        return before(scores, queries - queries[:, :1] + keys[:, :1], keys)

    def falling(before, self, behind):
        return -self.slopes()[:, None, None] * behind.abs()

    for layer in attentions(model):
        override(layer, "biased", biased)
        override(layer, "falling", falling)


@in_model("F165", "K17", "falcon_alibi")
def one_slope_for_all_heads(model):
    """Every head takes the first slope."""

    def build(attention_mask, num_heads, dtype):
        at = (attention_mask.cumsum(-1) - 1) * attention_mask
        made = alibi_slopes(num_heads)[0] * at[:, None, None].expand(-1, num_heads, -1, -1)
        return made.reshape(-1, 1, at.shape[-1]).to(dtype)

    reroute(model.transformer, build_alibi_tensor=build)


# ---- K18 --------------------------------------------------------------------------------------


@in_model("F170", "K18", "own buckets")
def buckets_with_another_logarithm(model):
    """Far buckets widen by a logarithm of the wrong base."""

    def buckets(before, self, behind):
        behind = behind.clamp(min=0)
        far = 16 + ((behind.clamp(min=1) / 16).log2() / math.log(128 / 16) * 16).long()
        return torch.where(behind < 16, behind, far.clamp(max=31))

    for layer in attentions(model):
        override(layer, "buckets", buckets)


def bucketed(model, part, **changed):
    """Lets the layers of a part of T5 map distances to buckets otherwise."""
    for module in getattr(model, part).modules():
        if hasattr(module, "relative_attention_bias"):
            right = type(module)._relative_position_bucket

            def bucket(before, self, relative_position, right=right, **keywords):
                return right(relative_position, **{**keywords, **changed})

            override(module, "_relative_position_bucket", bucket)


@in_model("F171", "K18", "t5")
def encoder_looks_one_way(model):
    """The encoder's buckets do not tell later tokens apart: the decoder's map is used."""
    bucketed(model, "encoder", bidirectional=False)


@in_model("F172", "K18", "t5")
def other_longest_distance(model):
    """Buckets end at 20 where the file says 128."""
    bucketed(model, "decoder", max_distance=20)


@in_model("F173", "K18", "swin")
def rows_and_columns_of_a_window_exchanged(model):
    """The index of the window's bias table is transposed."""
    for module in named(model, "RelativePositionBias"):
        height, width = module.window_size
        index = module.relative_position_index
        grid = index.view(height, width, height, width).permute(1, 0, 3, 2)
        module.relative_position_index = grid.reshape(-1).clone()


CONTENT = (
    "The scores of position are products with the queries, and learned: no formula says what they "
    "are at a distance; a model made anew shows only that the output differs."
)


@in_model(
    "F174",
    "K18",
    "beit",
    missed="BEiT makes its index in every pass and no config reader says what its bias is, so no "
    "row of the table is expected anywhere; a model made anew shows only that the output differs.",
)
def index_one_row_too_far(model):
    """Every index of the bias table points one row too far."""

    def index(before, self, window_size):
        made = before(window_size)
        return (made + 1) % int(made.max() + 1)

    for module in named(model, "RelativePositionBias"):
        override(module, "generate_relative_position_index", index)


@in_model("F175", "K18", "own buckets")
def one_layer_without_its_bias(model):
    """The second layer does not add its bias."""
    override(attentions(model)[1], "biased", lambda before, self, scores, *where: scores)


@in_model(
    "F176",
    "K18",
    "wav2vec2-conformer",
    missed=CONTENT,
)
def shift_of_a_causal_model(model):
    """Relative scores are shifted by the trick for causal models; later keys get other rows."""

    def broken(module, query, key, relative):
        made = module.linear_pos(relative).view(1, -1, key.shape[1], module.head_size)
        made = made.permute(0, 2, 3, 1)[..., : key.shape[2]]  # S of the 2 S - 1 distances
        scores = (query + module.pos_bias_v[None, :, None, :]) @ made
        batch, heads, tokens, width = scores.shape
        scores = torch.nn.functional.pad(scores, (1, 0)).view(batch, heads, width + 1, tokens)
        scores = scores[..., 1:, :].view(batch, heads, tokens, width) * module.scaling
        return query + module.pos_bias_u[None, :, None, :], scores

    for module in named(model, "SelfAttention"):
        reroute(module, _apply_relative_position_encoding=broken)


@in_model(
    "F177",
    "K18",
    "deberta-v2",
    missed=CONTENT,
)
def distances_with_the_other_sign(model):
    """Key minus query is taken where query minus key is meant."""

    def negated(before, self, *args, **kwargs):
        return -before(*args, **kwargs)

    override(model.encoder, "get_rel_pos", negated)


# ---- K19 --------------------------------------------------------------------------------------


def seen_behind(model, change):
    """Lets an own host see other slots: `change(behind, queries, past)`."""
    override(
        model,
        "behind",
        lambda before, self, queries, past: change(before(queries, past), queries, past),
    )


@in_model("F180", "K19", "own window")
def window_counted_from_the_first_key(model):
    """With a cache the window is anchored at the first key, not at the last."""

    def visible(before, self, mask, queries, past):
        if mask is not None and mask.dim() == 4:
            return before(mask, queries, past)
        causal = replace(self.rules, window=None), self.rules
        self.rules = causal[0]
        every = before(mask, queries, past)
        self.rules = causal[1]
        first = torch.arange(queries)[:, None] - torch.arange(past + queries) < self.rules.window
        return every & first

    override(model, "visible", visible)


@in_model("F181", "K19", "own rotary")
def causal_mask_at_the_top_left(model):
    """A causal mask of more keys than queries starts at the first key."""
    seen_behind(model, lambda behind, queries, past: behind - past)


@in_model("F182", "K19", "own window")
def window_one_too_wide(model):
    """A window of 8 sees 9 keys."""
    model.rules = replace(model.rules, window=model.rules.window + 1)


@in_model("F183", "K19", "gpt_neo of a window")
def local_layers_see_all(model):
    """The window of the local layers is ignored."""
    for module in named(model, "SelfAttention"):
        module.bias = torch.ones_like(module.bias).tril()


# ---- K23 --------------------------------------------------------------------------------------


@in_model("F220", "K23", "own nope")
def layer_without_positions_is_turned(model):
    """The layer that should have no positions is rotated like the others."""
    attentions(model)[3].scheme = "rotary"


@in_model("F221", "K23", "smollm3")
def schedule_never_applied(model):
    """no_rope_layers is parsed and never read."""
    for layer in attentions(model):
        layer.use_rope = 1


@in_model("F222", "K23", "own rotary")
def turned_twice(model):
    """The second layer rotates in its code and again in its kernel."""
    override(
        attentions(model)[1],
        "rotate",
        lambda before, self, x, *where: before(before(x, *where), *where),
    )


@in_model("F223", "K23", "llama")
def one_layer_is_not_turned(model):
    """The first layer's queries and keys are not rotated."""
    reroute(attentions(model)[0], apply_rotary_pos_emb=lambda q, k, *a, **b: (q, k))


@in_model("F224", "K23", "llama4_text")
def schedule_one_layer_late(model):
    """The layer without positions is found by index, not by index + 1: it is another one."""
    for layer, turned in zip(attentions(model), (0, 1, 1, 1), strict=True):
        layer.use_rope = turned


# ---- K24 --------------------------------------------------------------------------------------


def waves(model, made):
    """Gives the own sinusoidal host other speeds."""
    override(model, "sinusoid_speeds", lambda before, self: made)


@in_model("F230", "K24", "own sinusoidal")
def operators_in_the_wrong_order(model):
    """-log(1e4) / d // 2 is -1 for every pair: frequencies are all but the same."""
    width = model.rules.width
    waves(model, [math.exp(i * 2 * (-math.log(1e4) / width // 2)) for i in range(width // 2)])


@in_model("F231", "K24", "own sinusoidal")
def every_column_its_own_frequency(model):
    """The exponent runs over columns, not pairs: sine and cosine of a pair differ."""

    def sinusoids(before, self, positions, dtype):
        width = self.rules.width
        made = torch.tensor([1e4 ** (-2 * i / width) for i in range(width)], dtype=dtype)
        angles = positions[..., None].to(dtype) * made
        return torch.cat([angles[..., ::2].sin(), angles[..., 1::2].cos()], -1)

    override(model, "sinusoids", sinusoids)


@in_model("F232", "K24", "own sinusoidal")
def divided_by_half_minus_one(model):
    """The exponent is divided by d/2 - 1, as another code base has it."""
    half = model.rules.width // 2
    waves(model, [1e4 ** (-i / (half - 1)) for i in range(half)])


@in_model("F233", "K24", "ctrl")
def base_of_a_thousand(model):
    """The base is 1000."""
    width = model.transformer.pos_encoding.shape[1]
    at = torch.arange(len(model.transformer.pos_encoding))[:, None]
    angles = at * torch.tensor(speeds(1e3, width))
    model.transformer.pos_encoding = torch.cat([angles.sin(), angles.cos()], -1)


@in_model("F234", "K24", "xglm")
def sines_and_cosines_exchanged(model):
    """The table begins with cosines, the weights were trained with sines first."""
    table = model.model.embed_positions
    table.weights = table.weights.roll(table.weights.shape[1] // 2, 1)
