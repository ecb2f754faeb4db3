"""K01 to K04: pairing, speeds, width and amplitude of rotations."""

import math

import torch

from auditor.faults.formulas import speeds, yarn_speeds
from auditor.faults.planting import attentions, in_model, of, override, reroute, rotary


def turn_by(model, made, layers=None):
    """Lets layers of an own host turn by other speeds."""
    for index, layer in enumerate(attentions(model)):
        if layers is None or index in layers:
            override(
                layer,
                "speeds",
                lambda before, self, length, dtype: torch.tensor(made, dtype=dtype),
            )


def set_speeds(model, change):
    """Changes the frequencies that a rotary module of transformers holds."""
    module = rotary(model)
    for name in ("inv_freq", "original_inv_freq"):
        setattr(module, name, change(getattr(module, name)))


# ---- K01 --------------------------------------------------------------------------------------


@in_model("F001", "K01", "own interleaved")
def paired_by_halves(model):
    """Channels i and i + d/2 are paired, though the family pairs neighbours."""
    for layer in attentions(model):
        override(layer, "pairs", lambda before, self, x: x.chunk(2, -1))
        override(layer, "joined", lambda before, self, u, v: torch.cat([u, v], -1))


@in_model("F002", "K01", "own rotary")
def queries_by_halves_keys_by_neighbours(model):
    """Queries pair channels i and i + d/2, keys pair neighbours."""

    def forward(before, self, *where):
        self.turns = 0
        return before(*where)

    def pairs(before, self, x):
        self.turns += 1
        return (x[..., ::2], x[..., 1::2]) if self.turns == 2 else before(x)

    def joined(before, self, u, v):
        return torch.stack([u, v], -1).flatten(-2) if self.turns == 2 else before(u, v)

    for layer in attentions(model):
        override(layer, "forward", forward)
        override(layer, "pairs", pairs)
        override(layer, "joined", joined)


@in_model("F003", "K01", "own rotary")
def table_by_halves_rotation_of_neighbours(model):
    """The table is laid out for halves (f0..fn, f0..fn), the rotate step turns neighbours."""

    def rotate(before, self, x, positions, length):
        cos, sin = (torch.cat([t, t], -1) for t in self.table(positions, length, x.dtype))
        swapped = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        return (x * cos + swapped * sin).to(x.dtype)

    for layer in attentions(model):
        override(layer, "rotate", rotate)


@in_model("F004", "K01", "cohere")
def table_of_neighbours_rotation_by_halves(model):
    """The table repeats each angle for neighbours, the rotate step works by halves as Llama's."""

    def rotate_half(x):
        u, v = x.chunk(2, -1)
        return torch.cat([-v, u], -1)

    for layer in attentions(model):
        apply = of(layer, "apply_rotary_pos_emb")

        def broken(q, k, cos, sin, unsqueeze_dim=1, apply=apply):
            cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
            return tuple((x * cos + rotate_half(x) * sin).to(x.dtype) for x in (q, k))

        reroute(layer, apply_rotary_pos_emb=broken)


@in_model("F005", "K01", "llama")
def neighbours_in_llama(model):
    """The converted file is run by a kernel that pairs neighbours."""

    def broken(q, k, cos, sin, unsqueeze_dim=1):
        half = cos.shape[-1] // 2
        cos, sin = (t[..., :half].unsqueeze(unsqueeze_dim) for t in (cos, sin))

        def turned(x):
            u, v = x[..., ::2], x[..., 1::2]
            return torch.stack([u * cos - v * sin, u * sin + v * cos], -1).flatten(-2)

        return turned(q), turned(k)

    for layer in attentions(model):
        reroute(layer, apply_rotary_pos_emb=broken)


@in_model("F006", "K01", "gptj")
def swapped_the_wrong_way(model):
    """The helper of neighbours makes (x1, -x0) of (x0, x1): every pair turns backwards."""

    def broken(tensor, sin, cos):
        sin, cos = (torch.repeat_interleave(t[:, :, None, :], 2, 3) for t in (sin, cos))
        swapped = torch.stack([tensor[..., 1::2], -tensor[..., ::2]], -1).flatten(-2)
        return tensor * cos + swapped * sin

    for module in model.modules():
        if type(module).__name__.endswith("Attention"):
            reroute(module, apply_rotary_pos_emb=broken)


# ---- K02 --------------------------------------------------------------------------------------


@in_model("F010", "K02", "own llama3")
def scaling_block_never_read(model):
    """The llama3 block is in the file, the frequencies are plain."""
    turn_by(model, speeds(1e4, 16))


@in_model("F011", "K02", "llama with base 500000")
def base_of_a_class_default(model):
    """The base is the class default of 10000; the file says 500000."""
    set_speeds(model, lambda old: torch.tensor(speeds(1e4, 16)))


@in_model("F012", "K02", "own yarn")
def betas_exchanged(model):
    """beta_fast and beta_slow are exchanged."""
    width, original = 16, 512
    low, high = (
        width * math.log(original / (beta * 2 * math.pi)) / (2 * math.log(1e4)) for beta in (1, 32)
    )
    low, high = max(math.floor(low), 0), min(math.ceil(high), width - 1)
    made = []
    for i, speed in enumerate(speeds(1e4, width)):
        slowed = min(max((i - low) / ((high - low) or 0.001), 0), 1)
        made.append(speed / 4 * slowed + speed * (1 - slowed))
    turn_by(model, made)


@in_model("F013", "K02", "gemma3_text with linear scaling")
def scaling_of_global_layers_dropped(model):
    """A factor of 8 that is declared for global layers only is never applied."""
    module = rotary_of_types(model)
    module.full_attention_inv_freq = module.full_attention_inv_freq * 8


@in_model("F014", "K02", "gemma3_text")
def local_layers_with_the_global_base(model):
    """Sliding layers turn by the base of the global ones."""
    module = rotary_of_types(model)
    module.sliding_attention_inv_freq = module.full_attention_inv_freq.clone()


@in_model("F015", "K02", "own yarn")
def original_length_is_the_table_length(model):
    """YaRN's correction range is computed from max_position_embeddings."""
    turn_by(model, yarn_speeds(1e4, 16, 4.0, 2048))


@in_model("F016", "K02", "llama with dynamic NTK")
def dynamic_scales_positions(model):
    """An unknown type falls through to a multiplier: each token at twice its position."""
    override(
        rotary(model), "forward", lambda before, self, x, position_ids: before(x, position_ids * 2)
    )


@in_model("F017", "K02", "mistral with linear scaling")
def linear_the_wrong_way(model):
    """Positions are multiplied by the factor, not divided."""
    set_speeds(model, lambda old: old * 16)


@in_model("F018", "K02", "gpt_oss")
def correction_range_rounded(model):
    """The correction range is rounded, though the file says truncate = false."""
    rope = model.config.rope_parameters
    made = yarn_speeds(
        rope["rope_theta"],
        16,
        rope["factor"],
        rope["original_max_position_embeddings"],
        rope["beta_fast"],
        rope["beta_slow"],
    )
    set_speeds(model, lambda old: torch.tensor(made))


@in_model("F019", "K02", "own linear")
def scaled_in_one_layer_only(model):
    """The last layer misses the scaling that the others have."""
    turn_by(model, speeds(1e4, 16), layers=[1])


def rotary_of_types(model):
    """The module that holds one table for every type of layer."""
    (found,) = [m for m in model.modules() if hasattr(m, "full_attention_inv_freq")]
    return found


# ---- K03 --------------------------------------------------------------------------------------


@in_model("F020", "K03", "own partial")
def exponent_by_the_head(model):
    """The exponent is 2i / head_dim where it should be 2i / rotary_dim."""
    turn_by(model, speeds(1e4, 16)[:4])


@in_model("F021", "K03", "own partial")
def every_channel_turns(model):
    """The whole head is turned, though half is declared."""
    for layer in attentions(model):

        def rotate(before, self, x, positions, length):
            angles = positions[:, None, :, None] * torch.tensor(speeds(1e4, 16), dtype=x.dtype)
            u, v = x.chunk(2, -1)
            cos, sin = angles.cos(), angles.sin()
            return torch.cat([u * cos - v * sin, u * sin + v * cos], -1).to(x.dtype)

        override(layer, "rotate", rotate)


@in_model("F022", "K03", "own partial")
def partner_across_the_head(model):
    """Channel i is paired with i + head_dim/2 where it should be i + rotary_dim/2."""

    def rotate(before, self, x, positions, length):
        cos, sin = self.table(positions, length, x.dtype)
        u, rest, v, last = x.split([4, 4, 4, 4], -1)
        return torch.cat([u * cos - v * sin, rest, u * sin + v * cos, last], -1).to(x.dtype)

    for layer in attentions(model):
        override(layer, "rotate", rotate)


@in_model("F023", "K03", "glm")
def second_half_turns(model):
    """The last channels of a head are turned, not the first."""

    def forward(before, q, k, cos, sin, unsqueeze_dim=1):
        turned = before(q.flip(-1), k.flip(-1), cos, sin, unsqueeze_dim)
        return tuple(x.flip(-1) for x in turned)

    for layer in attentions(model):
        apply = of(layer, "apply_rotary_pos_emb")
        reroute(
            layer,
            apply_rotary_pos_emb=lambda *a, apply=apply, **k: forward(apply, *a, **k),
        )


@in_model("F024", "K03", "stablelm")
def width_of_the_whole_head_in_the_exponent(model):
    """A partial width of transformers with exponents by head_dim."""
    set_speeds(model, lambda old: torch.tensor(speeds(1e4, 16)[: len(old)]))


@in_model("F025", "K03", "phi")
def half_the_width(model):
    """Only half of the declared channels have a speed; the others stand still."""
    set_speeds(model, lambda old: torch.cat([old[: len(old) // 2], 0 * old[len(old) // 2 :]]))


# ---- K04 --------------------------------------------------------------------------------------


@in_model("F030", "K04", "own yarn")
def amplitude_dropped(model):
    """YaRN's amplitude of 0.1 ln(factor) + 1 is left out."""
    for layer in attentions(model):
        override(
            layer,
            "table",
            lambda before, self, *a: tuple(t / self.rules.amplitude for t in before(*a)),
        )


@in_model("F031", "K04", "qwen2 with YaRN")
def amplitude_squared(model):
    """The amplitude is applied twice."""
    rotary(model).attention_scaling **= 2


@in_model("F032", "K04", "llama with YaRN of amplitude 1")
def explicit_amplitude_ignored(model):
    """attention_factor = 1.0 is taken for not given, the amplitude is computed."""
    rotary(model).attention_scaling = 0.1 * math.log(4.0) + 1


@in_model("F033", "K04", "phi3 with LongRoPE")
def amplitude_of_longrope_dropped(model):
    """A rewrite from width and base loses sqrt(1 + ln(s) / ln(L0))."""
    rotary(model).attention_scaling = 1.0


@in_model("F034", "K04", "deepseek_v3 with YaRN")
def softmax_scale_without_mscale(model):
    """The scale of the scores lacks mscale squared."""
    for layer in attentions(model):
        layer.scaling = layer.qk_head_dim**-0.5


@in_model("F035", "K04", "own rotary")
def amplitude_out_of_nowhere(model):
    """cos and sin are 1.13 times too large; nothing in the file says so."""
    for layer in attentions(model):
        override(layer, "table", lambda before, self, *a: tuple(1.13 * t for t in before(*a)))
