"""K05 to K07: tables that remember, that casts change, that do not live as long as they should."""

import torch

from auditor.faults.formulas import speeds
from auditor.faults.planting import attentions, in_model, override, rotary
from auditor.faults.spectrum import set_speeds

# ---- K05 --------------------------------------------------------------------------------------


def grown(length, dtype, after=24):
    """Speeds of a base that grows with the length, as dynamic NTK has it."""
    base = 1e4 * max(1.0, 2 * float(length.max()) / after - 1) ** (16 / 14)
    return torch.tensor(speeds(base, 16), dtype=dtype)


@in_model("F040", "K05", "own rotary")
def table_never_shrinks_back(model):
    """Once a long sequence was seen, short ones use its table."""

    def made(before, self, length, dtype):
        self.longest = max(getattr(self, "longest", 0), int(length.max()))
        return before(length, dtype) * (0.5 if self.longest > 40 else 1.0)

    for layer in attentions(model):
        override(layer, "speeds", made)


@in_model("F041", "K05", "llama with dynamic NTK")
def grown_table_is_kept(model):
    """Dynamic NTK grows its table for a long prompt and never makes it small again."""

    def forward(before, self, x, position_ids):
        kept = self.inv_freq.clone()
        answer = before(x, position_ids)
        if (self.inv_freq > kept).any():  # it was reset: take the grown one again
            self.inv_freq = kept
            freqs = position_ids[..., None].float() * kept
            both = torch.cat([freqs, freqs], -1)
            return both.cos().to(x.dtype), both.sin().to(x.dtype)
        return answer

    override(rotary(model), "forward", forward)


@in_model("F042", "K05", "own rotary")
def old_keys_under_the_old_table(model):
    """Keys are turned when they come, by the table of that length, and new queries by another."""

    def rotate(before, self, x, positions, length):
        if positions.shape[1] == 1:  # one new query: the table of now
            return turned(self, x, positions, grown(length, x.dtype))
        fed = torch.arange(1, positions.shape[1] + 1)
        tables = torch.stack([grown(n, x.dtype) for n in fed])
        return turned(self, x, positions, tables if self.decoding else tables[-1])

    def turned(self, x, positions, made):
        angles = positions[:, None, :, None].to(x.dtype) * made
        u, v = self.pairs(x)
        cos, sin = angles.cos(), angles.sin()
        return self.joined(u * cos - v * sin, u * sin + v * cos).to(x.dtype)

    def forward(before, self, x, positions, visible, cache, earlier):
        self.decoding = cache is not None
        return before(x, positions, visible, cache, earlier)

    for layer in attentions(model):
        override(layer, "rotate", rotate)
        override(layer, "forward", forward)


@in_model("F043", "K05", "own rotary")
def scaled_by_the_longest_of_the_batch(model):
    """Every row's speeds depend on the longest row of the batch."""

    def made(before, self, length, dtype):
        longest = float(length.max())
        return before(length, dtype) * (0.8 if longest > 8 else 1.0)

    for layer in attentions(model):
        override(layer, "speeds", made)


@in_model("F044", "K05", "qwen2")
def factors_by_the_length_of_the_call(model):
    """Short or long factors are chosen by the ids of each call: chunks mix two tables."""

    def forward(before, self, x, position_ids):
        slow = 0.25 if int(position_ids.max()) >= 10 else 1.0
        freqs = position_ids[..., None].to(self.inv_freq.dtype) * self.inv_freq * slow
        both = torch.cat([freqs, freqs], -1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)

    override(rotary(model), "forward", forward)


# ---- K06 --------------------------------------------------------------------------------------


@in_model("F050", "K06", "llama")
def frequencies_in_bfloat16(model):
    """Frequencies were rounded to bfloat16 before the multiplication."""
    set_speeds(model, lambda old: old.bfloat16().float())


@in_model("F051", "K06", "own rotary")
def positions_in_bfloat16(model):
    """Positions are made in bfloat16: 257 and 256 are the same."""

    def angles(before, self, positions, length, dtype):
        return before(positions.bfloat16(), length, dtype)

    for layer in attentions(model):
        override(layer, "angles", angles)


@in_model("F052", "K06", "own alibi")
def distances_in_bfloat16(model):
    """ALiBi multiplies in bfloat16: far distances collapse."""

    def falling(before, self, behind):
        return (-self.slopes().bfloat16()[:, None, None] * behind.bfloat16()).float()

    for layer in attentions(model):
        override(layer, "falling", falling)


@in_model("F053", "K06", "own rotary")
def frequencies_follow_the_module(model):
    """Frequencies are a float buffer, and angles are made in its type: half() rounds both."""

    def angles(before, self, positions, length, dtype):
        return (positions.to(self.inv_freq.dtype)[:, None, :, None] * self.inv_freq).to(dtype)

    for layer in attentions(model):
        made = torch.tensor(layer.rules.speeds)
        layer.register_buffer("inv_freq", made, persistent=False)
        override(layer, "angles", angles)


@in_model("F054", "K06", "own rotary")
def angles_by_a_matrix_product(model):
    """Angles come from einsum, which autocast rounds to half."""

    def angles(before, self, positions, length, dtype):
        made = torch.einsum("bs,p->bsp", positions.to(dtype), self.speeds(length, dtype))
        return made[:, None].to(dtype)

    for layer in attentions(model):
        override(layer, "angles", angles)


@in_model("F055", "K06", "qwen2")
def angles_in_float16(model):
    """The angle itself is computed in float16."""

    def forward(before, self, x, position_ids):
        freqs = (position_ids[..., None].half() * self.inv_freq.half()).float()
        both = torch.cat([freqs, freqs], -1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)

    override(rotary(model), "forward", forward)


@in_model("F056", "K06", "bloom")
def bias_of_bloom_in_bfloat16(model):
    """The whole ALiBi bias is rounded to bfloat16, whatever the model computes in."""

    def forward(before, self, hidden_states, alibi, *args, **kwargs):
        return before(hidden_states, alibi.bfloat16().to(alibi.dtype), *args, **kwargs)

    for block in model.transformer.h:
        override(block, "forward", forward)


# ---- K07 --------------------------------------------------------------------------------------


@in_model("F060", "K07", "own rotary")
def buffer_that_nothing_refills(model):
    """Frequencies live in a buffer that no checkpoint has and no method makes again."""

    def made(before, self, length, dtype):
        return self.inv_freq.to(dtype)

    for layer in attentions(model):
        kept = torch.tensor(layer.rules.speeds)
        layer.register_buffer("inv_freq", kept, persistent=False)
        override(layer, "speeds", made)


@in_model("F061", "K07", "own rotary")
def local_function_on_the_module(model):
    """A lambda is kept on the module: it cannot be pickled."""
    for layer in attentions(model):
        layer.make_speeds = lambda kept=layer.rules.speeds: kept


@in_model("F062", "K07", "own llama3")
def copies_lose_the_scaling(model):
    """A copy of the module, or one that was pickled, turns by plain speeds."""

    def getstate(self):
        return {**vars(self), "scaled": False}

    def made(before, self, length, dtype):
        kept = before(length, dtype)
        return (
            kept if vars(self).get("scaled", True) else torch.tensor(speeds(1e4, 16), dtype=dtype)
        )

    for layer in attentions(model):
        override(layer, "speeds", made)
        type(layer).__getstate__ = getstate


@in_model("F063", "K07", "own rotary")
def table_enters_the_state_when_first_used(model):
    """The first forward pass registers a persistent table: a saved state no longer loads."""

    def table(before, self, positions, length, dtype):
        answer = before(positions, length, dtype)
        if "cos_cached" not in self._buffers:
            self.register_buffer("cos_cached", answer[0].detach().clone())
        return answer

    for layer in attentions(model):
        override(layer, "table", table)


@in_model("F064", "K07", "gpt_neox")
def table_of_inference_mode(model):
    """The table is built once, under inference_mode, and fails in the next training step."""

    def forward(before, self, x, position_ids):
        key = (tuple(position_ids.flatten().tolist()), x.dtype)
        kept = vars(self).setdefault("tables", {})
        if key not in kept:
            kept[key] = before(x, position_ids)
        return kept[key]

    override(rotary(model), "forward", forward)
