"""K12 to K16: bounds, ids, numbering, grids and resizing."""

import torch
from torch.nn import functional as F

from auditor.faults.decoding import forward_of, renumber
from auditor.faults.planting import attentions, in_model, named, override, rotary


def looked_up(model, change):
    """Lets an own host's learned table see other positions."""
    override(
        model,
        "embedded",
        lambda before, self, input_ids, positions: before(input_ids, change(positions)),
    )


# ---- K12 --------------------------------------------------------------------------------------


@in_model("F110", "K12", "own learned")
def clamped_to_the_last_row(model):
    """Positions beyond the table take its last row."""
    looked_up(model, lambda positions: positions.clamp(max=255))


@in_model("F111", "K12", "own learned")
def wrapped_round(model):
    """Positions beyond the table start at its first row again."""
    looked_up(model, lambda positions: positions % 256)


@in_model("F112", "K12", "own rotary")
def rows_of_a_short_table(model):
    """The table has 128 rows and is read with a clamp; 2048 are advertised."""

    def table(before, self, positions, length, dtype):
        return before(positions.clamp(max=127), length, dtype)

    for layer in attentions(model):
        override(layer, "table", table)


@in_model("F113", "K12", "gpt2")
def table_shorter_than_advertised(model):
    """The learned table has 64 rows, n_positions says 256."""
    table = model.transformer.wpe
    table.weight = torch.nn.Parameter(table.weight[:64].detach().clone())
    table.num_embeddings = 64


@in_model("F114", "K12", "llama")
def wrapped_rotary_table(model):
    """A rotary table of 512 rows is read modulo its length."""
    override(
        rotary(model),
        "forward",
        lambda before, self, x, position_ids: before(x, position_ids % 512),
    )


# ---- K13 --------------------------------------------------------------------------------------


@in_model("F120", "K13", "llama")
def ids_are_ignored(model):
    """Given ids are dropped; the count is taken."""

    def change(kwargs, tokens, past):
        if kwargs.get("position_ids") is not None:
            kwargs["position_ids"] = torch.arange(past, past + tokens)[None]

    forward_of(model, change)


@in_model("F121", "K13", "own rotary")
def heads_are_taken_for_tokens(model):
    """The rotation runs along the axis of heads."""

    def rotate(before, self, x, positions, length):
        heads = torch.arange(x.shape[1])[None].expand(x.shape[0], -1)
        return before(x.transpose(1, 2), heads, length).transpose(1, 2)

    for layer in attentions(model):
        override(layer, "rotate", rotate)


@in_model("F122", "K13", "own learned")
def ids_of_the_first_row_for_all(model):
    """The ids of the first row of a batch are used for every row."""
    looked_up(model, lambda positions: positions[:1].expand_as(positions))


@in_model("F123", "K13", "own rotary")
def only_queries_follow_the_ids(model):
    """Queries are turned by the ids, keys by their slots."""

    def forward(before, self, x, positions, visible, cache, earlier):
        self.turns = 0
        return before(x, positions, visible, cache, earlier)

    def rotate(before, self, x, positions, length):
        self.turns += 1
        if self.turns == 2:
            positions = torch.arange(positions.shape[1])[None].expand_as(positions)
        return before(x, positions, length)

    for layer in attentions(model):
        override(layer, "forward", forward)
        override(layer, "rotate", rotate)


@in_model("F124", "K13", "gpt2")
def ids_of_gpt2_are_ignored(model):
    """The learned table is read by the count, whatever ids come."""

    def change(kwargs, tokens, past):
        kwargs["position_ids"] = torch.arange(past, past + tokens)[None]

    forward_of(model, change)


@in_model("F125", "K13", "qwen3")
def gaps_in_the_ids_are_closed(model):
    """Only the order of ids counts: gaps between them are closed."""

    def change(kwargs, tokens, past):
        ids = kwargs.get("position_ids")
        if ids is not None:
            kwargs["position_ids"] = ids[:, :1] + ids.argsort(1).argsort(1)

    forward_of(model, change)


# ---- K14 --------------------------------------------------------------------------------------


@in_model("F130", "K14", "own learned")
def numbered_from_one(model):
    """The first token takes row 1."""
    renumber(model, lambda right, past: right + 1)


@in_model("F131", "K14", "roberta")
def offset_of_roberta_dropped(model):
    """Numbering starts at 0 where the table was trained from pad + 1."""

    def forward(before, self, input_ids=None, *args, **kwargs):
        if input_ids is not None and kwargs.get("position_ids") is None:
            kwargs["position_ids"] = torch.arange(input_ids.shape[1])[None]
        return before(input_ids, *args, **kwargs)

    override(model.embeddings, "forward", forward)


@in_model("F132", "K14", "opt")
def offset_of_opt_dropped(model):
    """OPT's table is read without its offset of 2."""
    model.model.decoder.embed_positions.offset = 0


@in_model("F133", "K14", "gpt2")
def gpt2_from_one(model):
    """Tokens without ids are numbered from 1, with ids from what they say."""

    def change(kwargs, tokens, past):
        if kwargs.get("position_ids") is None:
            kwargs["position_ids"] = torch.arange(past, past + tokens)[None] + 1

    forward_of(model, change)


@in_model("F134", "K14", "bert")
def ids_saved_as_floats(model):
    """The id table was averaged with another model's, halved, and cut to integers on load."""
    table = model.embeddings.position_ids
    model.embeddings.position_ids = (table * 0.583).half().long()


# ---- K15 --------------------------------------------------------------------------------------


@in_model("F140", "K15", "dinov3_vit")
def meshgrid_the_other_way(model):
    """The grid is made in the order xy, tokens are flattened row by row."""
    (module,) = list(named(model, "RopePositionEmbedding"))

    def forward(before, self, pixel_values):
        height, width = (size // self.config.patch_size for size in pixel_values.shape[-2:])
        return tuple(
            t.unflatten(0, (height, width)).transpose(0, 1).flatten(0, 1)
            for t in before(pixel_values)
        )

    override(module, "forward", forward)


@in_model("F141", "K15", "qwen2_vl_text")
def height_and_width_sections_swapped(model):
    """The width ids turn the height's channels, and the other way round."""
    override(
        rotary(model),
        "forward",
        lambda before, self, x, position_ids: before(
            x, position_ids[[0, 2, 1]] if position_ids.shape[0] == 3 else position_ids
        ),
    )


@in_model("F142", "K15", "qwen2_vl_vision")
def columns_before_rows(model):
    """The vision tower gets (column, row) where (row, column) is meant."""
    override(
        rotary(model),
        "forward",
        lambda before, self, x, position_ids: before(x, position_ids.flip(-1)),
    )


@in_model("F143", "K15", "pixtral")
def rows_for_columns_in_pixtral(model):
    """Row and column ids are exchanged."""
    override(
        rotary(model),
        "forward",
        lambda before, self, x, position_ids: before(x, position_ids.flip(-1)),
    )


@in_model("F144", "K15", "qwen3_vl_text")
def chunked_where_striped_is_meant(model):
    """Axes take channels in blocks (T.. H.. W..), the family deals them out one by one."""

    def recomposed(before, self, freq):
        parts = freq.split(self.mrope_section, dim=-1)
        made = torch.cat([part[axis] for axis, part in enumerate(parts)], -1)
        return torch.cat([made, made], -1)

    override(rotary(model), "recomposition_frequencies", recomposed)


@in_model("F145", "K15", "qwen2_5_vl_text")
def time_axis_zeroed(model):
    """The time ids are set to 0: frames of a video cannot be told apart."""

    def forward(before, self, x, position_ids):
        if position_ids.shape[0] == 3:
            position_ids = torch.cat([0 * position_ids[:1], position_ids[1:]])
        return before(x, position_ids)

    override(rotary(model), "forward", forward)


# ---- K16 --------------------------------------------------------------------------------------


def resized(table, height, width, size):
    """A square table with one row before it, resized as asked."""
    first, rest = table[:, :1], table[:, 1:]
    side = round(rest.shape[1] ** 0.5)
    grid = rest.reshape(1, side, side, -1).permute(0, 3, 1, 2)
    made = F.interpolate(grid, mode="bicubic", align_corners=False, **size(side, height, width))
    return torch.cat([first, made.permute(0, 2, 3, 1).flatten(1, 2)], 1)


def interpolating(model, size, change=lambda table: table):
    """Lets a vision model resize its table in another way."""

    def interpolate(before, self, embeddings, height, width):
        patch = self.config.patch_size
        table = change(self.position_embeddings)
        if height == width == self.config.image_size:
            return table
        return resized(table, height // patch, width // patch, size)

    override(model.embeddings, "interpolate_pos_encoding", interpolate)


@in_model("F150", "K16", "dinov2")
def resized_by_a_factor(model):
    """The scale is computed with 0.1 added, the size follows from it: the values are others."""

    def size(side, height, width):
        return {"scale_factor": ((height + 0.1) / side, (width + 0.1) / side)}

    interpolating(model, size)


@in_model("F151", "K16", "dinov2")
def prefix_row_resized_too(model):
    """The row of the class token is taken for a patch when the table is resized."""

    def interpolate(before, self, embeddings, height, width):
        made = before(embeddings, height, width)
        if height == width == self.config.image_size:
            return made
        return torch.cat([made[:, 1:2], made[:, 1:]], 1)

    override(model.embeddings, "interpolate_pos_encoding", interpolate)


@in_model("F152", "K16", "dinov2")
def height_and_width_exchanged(model):
    """The table is resized to (width, height)."""
    interpolating(model, lambda side, height, width: {"size": (width, height)})


@in_model("F153", "K16", "dinov2")
def not_the_identity_at_its_own_size(model):
    """At its own size the table goes through an interpolation that blurs it."""

    def interpolate(before, self, embeddings, height, width):
        patch = self.config.patch_size
        small = resized(
            self.position_embeddings,
            height // patch,
            width // patch,
            lambda side, height, width: {"size": (side + 3, side + 3)},
        )
        return resized(
            small,
            height // patch,
            width // patch,
            lambda side, height, width: {"size": (height, width)},
        )

    override(model.embeddings, "interpolate_pos_encoding", interpolate)
