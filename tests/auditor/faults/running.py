"""K20, K21 and K25: what traces, runs on other paths, and costs."""

import torch

from auditor.faults.planting import attentions, in_model, of, override, reroute, rotary

# ---- K20 --------------------------------------------------------------------------------------


@in_model("F190", "K20", "own rotary")
def branch_on_the_length(model):
    """The table is chosen by a Python branch on a value: it cannot be exported."""

    def made(before, self, length, dtype):
        if length.max() > 100_000:
            return before(length, dtype) / 4
        return before(length, dtype)

    for layer in attentions(model):
        override(layer, "speeds", made)


@in_model("F191", "K20", "own interleaved")
def turned_by_complex_numbers(model):
    """The rotation is a complex product, which exporters and some devices lack."""

    def rotate(before, self, x, positions, length):
        cos, sin = self.table(positions, length, x.dtype)
        numbers = torch.view_as_complex(x.unflatten(-1, (-1, 2)).to(cos.dtype).contiguous())
        turned = torch.view_as_real(numbers * torch.complex(cos, sin))
        return turned.flatten(-2).to(x.dtype)

    for layer in attentions(model):
        override(layer, "rotate", rotate)


@in_model("F192", "K20", "own rotary")
def float64_in_every_pass(model):
    """Angles are made in float64, which some devices do not have."""

    def angles(before, self, positions, length, dtype):
        return before(positions, length, torch.float64).to(dtype)

    for layer in attentions(model):
        override(layer, "angles", angles)


@in_model("F193", "K20", "qwen2")
def buffer_replaced_in_a_pass(model):
    """A forward pass writes an attribute of the module: an exported graph cannot."""

    def forward(before, self, x, position_ids):
        longest = torch.max(position_ids) + 1
        if longest > getattr(self, "longest", 0):
            self.longest = longest.item()
        return before(x, position_ids)

    override(rotary(model), "forward", forward)


@in_model("F194", "K20", "own rotary")
def table_stays_on_its_device(model):
    """The table is made on the device where it was built, not where its input is."""

    def angles(before, self, positions, length, dtype):
        at = torch.arange(4096, dtype=dtype, device="cpu")
        table = at[:, None] * torch.tensor(self.rules.speeds, dtype=dtype, device="cpu")
        return table[positions.cpu()][:, None]

    for layer in attentions(model):
        override(layer, "angles", angles)


# ---- K21 --------------------------------------------------------------------------------------


@in_model("F200", "K21", "own rotary")
def ids_are_changed_in_place(model):
    """The ids that a caller gives are counted on in place."""

    def forward(before, self, input_ids, *args, **kwargs):
        answer = before(input_ids, *args, **kwargs)
        if kwargs.get("position_ids") is not None:
            kwargs["position_ids"] += 1
        return answer

    override(model, "forward", forward)


@in_model("F201", "K21", "llama")
def eager_path_without_rotation_of_keys(model):
    """The eager path of attention turns backwards; the fused one is right."""
    for layer in attentions(model):
        right = of(layer, "apply_rotary_pos_emb")

        def broken(q, k, cos, sin, unsqueeze_dim=1, right=right, config=layer.config):
            if config._attn_implementation == "eager":
                sin = -sin
            return right(q, k, cos, sin, unsqueeze_dim)

        reroute(layer, apply_rotary_pos_emb=broken)


class Turned(torch.autograd.Function):
    """A rotation whose backward turns forwards once more."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return Turned.turned(x, cos, sin)

    @staticmethod
    def backward(ctx, grad):
        return Turned.turned(grad, *ctx.saved_tensors), None, None

    @staticmethod
    def turned(x, cos, sin):
        u, v = x.chunk(2, -1)
        return torch.cat([u * cos - v * sin, u * sin + v * cos], -1)


@in_model("F202", "K21", "own rotary")
def backward_turns_forwards(model):
    """The gradient of the rotation is turned the same way as the input, not back."""

    def rotate(before, self, x, positions, length):
        return Turned.apply(x, *self.table(positions, length, x.dtype))

    for layer in attentions(model):
        override(layer, "rotate", rotate)


@in_model("F203", "K21", "own rotary")
def axis_guessed_from_the_shape(model):
    """The axis of tokens is guessed: with as many tokens as heads the other one is taken."""

    def rotate(before, self, x, positions, length):
        if x.shape[1] == x.shape[2]:
            return before(x.transpose(1, 2), positions, length).transpose(1, 2)
        return before(x, positions, length)

    for layer in attentions(model):
        override(layer, "rotate", rotate)


@in_model("F204", "K21", "own rotary")
def strides_are_not_looked_at(model):
    """The kernel reads its ids as if they were contiguous."""

    def forward(before, self, input_ids, *args, **kwargs):
        ids = kwargs.get("position_ids")
        if ids is not None and not ids.is_contiguous():
            kwargs["position_ids"] = ids.as_strided(ids.shape, (ids.shape[1], 1))
        return before(input_ids, *args, **kwargs)

    override(model, "forward", forward)


@in_model("F205", "K21", "mistral")
def another_path_in_training(model):
    """In training mode a fused path is taken that turns by half the angle."""

    def forward(before, self, x, position_ids):
        return before(x, position_ids / 2 if self.training else position_ids)

    override(rotary(model), "forward", forward)


# ---- K25 --------------------------------------------------------------------------------------


@in_model("F240", "K25", "own rotary")
def a_table_for_every_length(model):
    """A table is kept for each length that was ever seen."""

    def table(before, self, positions, length, dtype):
        kept = vars(self).setdefault("tables", {})
        key = (tuple(positions.flatten().tolist()), dtype)
        if key not in kept:
            kept[key] = before(positions, length, dtype)
        return kept[key]

    for layer in attentions(model):
        override(layer, "table", table)


@in_model("F241", "K25", "own alibi")
def a_square_bias_in_a_buffer(model):
    """The whole bias is kept as a buffer of heads x length x length, in every layer."""

    def falling(before, self, behind):
        if int(behind.max()) >= self.kept.shape[-1]:
            return before(behind)
        return self.kept[:, behind[:, 0].clamp(min=0), 0].transpose(0, 1)

    for layer in attentions(model):
        at = torch.arange(1024)
        made = -layer.slopes()[:, None, None] * (at[:, None] - at).clamp(min=0)
        layer.register_buffer("kept", made.float(), persistent=False)
        override(layer, "falling", falling)


@in_model("F242", "K25", "own rotary")
def waits_for_the_device(model):
    """Every layer asks the device for the longest position and waits for the answer."""

    def table(before, self, positions, length, dtype):
        self.longest = positions.max().item()
        return before(positions, length, dtype)

    for layer in attentions(model):
        override(layer, "table", table)


@in_model("F243", "K25", "own rotary")
def whole_table_in_every_pass(model):
    """Every layer makes the table of all advertised positions in each pass."""

    def table(before, self, positions, length, dtype):
        every = torch.arange(65536)[None]
        return tuple(t[:, :, positions[0]].expand(len(positions), -1, -1, -1)
                     if len(positions) == 1 else torch.stack([t[0, :, p] for p in positions])
                     for t in before(every, length, dtype))  # fmt: skip

    for layer in attentions(model):
        override(layer, "table", table)
