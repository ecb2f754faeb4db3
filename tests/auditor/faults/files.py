"""Faults in what is stored: config files (K02, K03, K12, K22, K23) and weights."""

import json

import torch
from safetensors.torch import load_file, save_file

from auditor.faults.planting import in_config, in_weights

LLAMA, QWEN, PHI, VISION = (
    "a file like Llama 3.1's",
    "a file like Qwen2.5's with YaRN",
    "a file like Phi-2's",
    "a file like Qwen2-VL's",
)


# ---- configs ------------------------------------------------------------------------------------


@in_config("F037", "K02", LLAMA)
def two_bases(config):
    """rope_theta is 500000 at the top and 10000 in rope_parameters."""
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    del config["rope_scaling"]


@in_config("F026", "K03", PHI)
def odd_width(config):
    """partial_rotary_factor makes the rotary width odd: 80 x 0.4125 = 33."""
    config["partial_rotary_factor"] = 0.4125


@in_config("F027", "K03", PHI)
def width_and_factor_disagree(config):
    """rotary_dim says 80, partial_rotary_factor of 0.4 makes 32."""
    config["rotary_dim"] = 80


@in_config("F028", "K03", VISION)
def sections_of_another_width(config):
    """mrope_section adds up to 72, half a head is 64."""
    config["rope_scaling"]["mrope_section"] = [24, 24, 24]


@in_config("F036", "K04", QWEN)
def amplitude_cancelled(config):
    """mscale and mscale_all_dim are equal and cancel: the amplitude of YaRN is switched off."""
    config["rope_scaling"] |= {"mscale": 1.0, "mscale_all_dim": 1.0}


@in_config("F210", "K22", QWEN)
def type_and_rope_type_disagree(config):
    """The block says type: linear and rope_type: yarn."""
    config["rope_scaling"]["type"] = "linear"


@in_config("F211", "K22", QWEN)
def unknown_type(config):
    """A scaling type that nobody knows."""
    config["rope_scaling"]["rope_type"] = "yarnn"


@in_config("F212", "K22", LLAMA)
def key_missing(config):
    """The llama3 block lacks low_freq_factor."""
    del config["rope_scaling"]["low_freq_factor"]


@in_config("F213", "K22", LLAMA)
def number_as_text(config):
    """factor is a string."""
    config["rope_scaling"]["factor"] = "8.0"


@in_config("F214", "K22", QWEN)
def key_misspelt(config):
    """beta_fast is written betafast, so the default holds."""
    config["rope_scaling"]["betafast"] = 64


@in_config("F215", "K02", QWEN)
def two_blocks_that_disagree(config):
    """rope_scaling has a factor of 4, rope_parameters one of 8."""
    config["rope_parameters"] = {
        "rope_type": "yarn",
        "rope_theta": 1000000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 32768,
    }


@in_config("F216", "K02", QWEN)
def fast_slower_than_slow(config):
    """beta_fast is smaller than beta_slow."""
    config["rope_scaling"] |= {"beta_fast": 1, "beta_slow": 32}


@in_config("F217", "K02", QWEN)
def factor_against_lengths(config):
    """factor is 4, max over original length is 8."""
    config["rope_scaling"]["original_max_position_embeddings"] = 16384


@in_config("F218", "K02", LLAMA)
def dead_key_of_another_family(config):
    """The base is given as rotary_emb_base, which the family never reads."""
    config["rotary_emb_base"] = config.pop("rope_theta")


@in_config("F225", "K23", "gemma3_text")
def fewer_types_than_layers(config):
    """layer_types has fewer entries than there are layers."""
    config["layer_types"] = config["layer_types"][:-1]


@in_config("F226", "K23", "smollm3")
def schedule_of_another_length(config):
    """no_rope_layers has more entries than there are layers."""
    config["no_rope_layers"] = [*config["no_rope_layers"], 1]


# ---- weights ------------------------------------------------------------------------------------


def rewritten(folder, change):
    """Changes the tensors of a folder in place."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file({name: t.contiguous() for name, t in tensors.items()}, path, {"format": "pt"})


def reconfigured(folder, **keys):
    """Changes keys of a folder's config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def as_neighbours(rows):
    """Rows of a projection in the order of a runner that pairs neighbours, 32 a head."""
    return rows.unflatten(0, (-1, 2, 16)).transpose(1, 2).reshape(rows.shape)


def converted(folder, layers):
    """Rewrites queries and keys of some layers for a runner that pairs neighbours."""

    def change(tensors):
        for layer in layers:
            for name in ("q_proj", "k_proj"):
                key = f"model.layers.{layer}.self_attn.{name}.weight"
                tensors[key] = as_neighbours(tensors[key])

    rewritten(folder, change)


@in_weights("F007", "K01", "llama as trained", blind=False)
def one_layer_converted(folder):
    """Queries and keys of one layer are in the order of a runner that pairs neighbours."""
    converted(folder, [1])


@in_weights("F008", "K01", "llama as trained", blind=False)
def every_layer_converted(folder):
    """Queries and keys of all layers are in neighbours' order; the family pairs halves."""
    converted(folder, [0, 1])


@in_weights("F065", "K07", "llama")
def frequencies_of_another_base(folder):
    """The file holds inv_freq of another base than its config's."""

    def change(tensors):
        made = 500000.0 ** (-torch.arange(0, 16, 2).float() / 16)
        for layer in range(2):
            tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = made.clone()

    rewritten(folder, change)


@in_weights("F057", "K06", "llama")
def frequencies_rounded_in_the_file(folder):
    """The file holds inv_freq in bfloat16."""

    def change(tensors):
        made = 10000.0 ** (-torch.arange(0, 16, 2).float() / 16)
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = made.bfloat16()

    rewritten(folder, change)


@in_weights("F115", "K12", "gpt2")
def file_with_fewer_rows(folder):
    """The learned table has half the rows that n_positions says."""

    def change(tensors):
        tensors["transformer.wpe.weight"] = tensors["transformer.wpe.weight"][:128].clone()

    rewritten(folder, change)


@in_weights("F116", "K14", "opt")
def file_without_the_offset_rows(folder):
    """OPT's table lacks the two rows of its offset."""

    def change(tensors):
        name = "model.decoder.embed_positions.weight"
        tensors[name] = tensors[name][2:].clone()

    rewritten(folder, change)


@in_weights("F135", "K14", "bert")
def merged_ids(folder):
    """position_ids were merged with another model's: 0, 0.583, 1.166, ..."""

    def change(tensors):
        tensors["embeddings.position_ids"] = (torch.arange(256)[None] * 0.583).half()

    rewritten(folder, change)


@in_weights("F136", "K14", "clip_text_model")
def one_id_is_wrong(folder):
    """position_ids of the file are counted from 1."""

    def change(tensors):
        (name,) = (name for name in tensors if name.endswith("position_embedding.weight"))
        ids = torch.arange(len(tensors[name]))[None] + 1
        tensors[name.replace("position_embedding.weight", "position_ids")] = ids

    rewritten(folder, change)


@in_weights("F066", "K07", "gpt_neox")
def frequencies_of_an_empty_buffer(folder):
    """The file holds inv_freq that was saved before anything filled it."""

    def change(tensors):
        tensors["gpt_neox.layers.0.attention.rotary_emb.inv_freq"] = torch.zeros(2)

    rewritten(folder, change)
