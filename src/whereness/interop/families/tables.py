"""Families without rotation: learned tables, sinusoids, biases; and those that choose by a key."""

from dataclasses import replace
from typing import Any

from whereness.interop.families import Families, Family
from whereness.interop.families.forms import text


def table(width: str, dim: int, positions: str, num_positions: int, **facts: Any) -> Family:
    """A learned table, and the names of its two sizes."""
    return Family(
        kind="learned",
        defaults={width: dim, positions: num_positions, **facts.pop("also", {})},
        dim=(width,),
        num_positions=(positions,),
        **facts,
    )


def bert(dim: int = 768, positions: int = 512, **facts: Any) -> Family:
    """BERT's table of absolute positions."""
    return table("hidden_size", dim, "max_position_embeddings", positions, **facts)


def roberta(dim: int = 768, positions: int = 512, pad: int = 1) -> Family:
    """BERT's table, the first rows of which are padding's: position 0 is the row after them."""
    return bert(dim, positions, also={"pad_token_id": pad}, first_row_after="pad_token_id")


def both(family: Family) -> Family:
    """Encoder and decoder have a table of the same form each."""
    return replace(family, decoder=family)


def bart(d_model: int, positions: int = 1024, first_row: int = 2) -> Family:
    """Two rows before position 0, beyond those that the config counts."""
    return both(
        table("d_model", d_model, "max_position_embeddings", positions, first_row=first_row)
    )


def sinusoidal(d_model: int, exponent: str = "dim", **facts: Any) -> Family:
    """All sines, then all cosines."""
    return Family(
        kind="sinusoidal",
        defaults={"d_model": d_model},
        dim=("d_model",),
        options={"order": "sin_cos", "exponent": exponent},
        **facts,
    )


AFTER_PADDING = ("A sequence begins at position padding_idx + 1, which is 2 in released models.",)


def t5(d_model: int, num_heads: int, num_layers: int) -> Family:
    """T5: the first layer's table serves all layers of its stack."""
    encoder = Family(
        kind="t5",
        defaults={
            "d_model": d_model,
            "num_heads": num_heads,
            "num_layers": num_layers,
            "relative_attention_num_buckets": 32,
            "relative_attention_max_distance": 128,
        },
    )
    decoder = replace(
        encoder, bidirectional=False, num_layers=("num_decoder_layers", *encoder.num_layers)
    )
    return replace(encoder, decoder=decoder)


def patches(dim: int, patch: int, num_prefix: int, image: int = 224) -> Family:
    """A learned table of a grid of patches."""
    return Family(
        kind="learned",
        defaults={"hidden_size": dim, "image_size": image, "patch_size": patch},
        grid=("image_size//patch_size",),
        num_prefix=num_prefix,
    )


LEARNED: Families = {
    "albert": table("embedding_size", 128, "max_position_embeddings", 512),
    "bart": bart(1024),
    "bert": bert(),
    "biogpt": bert(1024, 1024, first_row=2),
    "blenderbot": bart(2560, 128, 0),
    "blenderbot-small": bart(512, 512, 0),
    "camembert": roberta(),
    "clip_text_model": bert(512, 77),
    "clip_vision_model": patches(768, 32, 1),
    "deit": patches(768, 16, 2),
    "distilbert": table("dim", 768, "max_position_embeddings", 512),
    "electra": table("embedding_size", 128, "max_position_embeddings", 512),
    "ernie": bert(),
    "gpt2": table("n_embd", 768, "n_positions", 1024),
    "gpt_bigcode": table("n_embd", 768, "n_positions", 1024),
    "gpt_neo": bert(2048, 2048, num_layers=("num_layers",)),
    "mbart": bart(1024),
    "mvp": bart(1024),
    "openai-gpt": table("n_embd", 768, "n_positions", 512),
    "opt": bert(768, 2048, first_row=2),
    "plbart": bart(768),
    "roberta": roberta(),
    "siglip_text_model": bert(768, 64),
    "siglip_vision_model": patches(768, 16, 0),
    "trocr": table("d_model", 1024, "max_position_embeddings", 512, first_row=2),
    "vit": patches(768, 16, 1),
    "xlm-roberta": roberta(),
}

COMPUTED: Families = {
    "m2m_100": both(sinusoidal(1024, "dim-2", notes=AFTER_PADDING)),
    "marian": both(sinusoidal(1024)),
    "pegasus": both(sinusoidal(1024)),
    "whisper": sinusoidal(384, "dim-2", decoder=table("d_model", 384, "max_target_positions", 448)),
    "xglm": sinusoidal(1024, "dim-2", notes=AFTER_PADDING),
}

BIASES: Families = {
    "bloom": Family(kind="alibi", defaults={"n_head": 8, "n_layer": 2}, num_heads=("n_head",)),
    "longt5": t5(512, 8, 6),
    "mpt": Family(
        kind="alibi",
        defaults={"n_heads": 16, "n_layers": 24, "d_model": 2048, "max_seq_len": 2048},
        num_heads=("n_heads",),
        bias_max=("attn_config.alibi_bias_max",),
        when=(
            (
                "attn_config.alibi",
                False,
                table("d_model", 2048, "max_seq_len", 2048),
            ),
        ),
    ),
    "mt5": t5(512, 6, 8),
    "switch_transformers": t5(768, 12, 12),
    "t5": t5(512, 8, 6),
    "umt5": replace(
        t5(512, 6, 8), notes=("Every layer has a table of its own, where T5's share one.",)
    ),
}

ESM_ROTARY = text(768, 12, 12, 1026)
FALCON = text(4544, 71, 32, 2048)

CHOSEN: Families = {
    "esm": replace(roberta(768, 1026), when=(("position_embedding_type", "rotary", ESM_ROTARY),)),
    "evolla_saprot": text(1280, 20, 33, 1026),
    "falcon": replace(
        FALCON,
        head_dim=("hidden_size//num_attention_heads",),
        when=(
            (
                "alibi",
                True,
                Family(
                    refused="adds ALiBi before the scores are divided by sqrt(head_dim), from "
                    "slopes in bfloat16: sqrt(head_dim) times weaker than ALiBi"
                ),
            ),
        ),
    ),
    "moonshine": Family(
        defaults={
            "hidden_size": 288,
            "decoder_num_attention_heads": 8,
            "decoder_num_hidden_layers": 6,
            "max_position_embeddings": 512,
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.9,
        },
        head_dim=("head_dim", "hidden_size//decoder_num_attention_heads"),
        fraction=("partial_rotary_factor",),
        pairing="interleaved",
        num_layers=("decoder_num_hidden_layers",),
    ),
    "zamba2": replace(
        text(2560, 32, 54, 4096),
        kind="none",
        when=(
            (
                "use_mem_rope",
                True,
                replace(
                    text(2560, 32, 54, 4096),
                    head_dim=(
                        "attention_head_dim",
                        "hidden_size//num_attention_heads+hidden_size//num_attention_heads",
                    ),
                    notes=("Only the shared attention of hybrid layers turns.",),
                ),
            ),
        ),
    ),
}
"""Families in which a key decides what there is."""

FAMILIES: Families = {**LEARNED, **COMPUTED, **BIASES, **CHOSEN}
