"""Where libraries are known to read the same keys in different ways.

One line a quarrel: which specs it is about, and what is said. Each was seen in the named project's
code or is a public report there; versions move on, so names are given to look them up.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from whereness.interop.config.keys import Notice

LONG = 131_072
Numbers = Mapping[str, Any]
"""The numbers of `Facts`."""


@dataclass(frozen=True)
class Quarrel:
    """A disagreement, the encodings that it concerns, by their numbers, and the invariant."""

    about: Callable[[Numbers], bool]
    says: str
    kind: str = "K02"


def scaled(name: str, **options: Any) -> Callable[[Numbers], bool]:
    """About this scaling with these options; `...` stands for any but None."""

    def about(made: Numbers) -> bool:
        scaling = made.get("scaling", {})
        if scaling.get("name") != name:
            return False
        wanted = options.items()
        given = ((scaling.get(k), v) for k, v in wanted)
        return all(found == v or (v is ... and found is not None) for found, v in given)

    return about


def named(name: str) -> Callable[[Numbers], bool]:
    """About encodings of this class."""
    return lambda made: made["encoding"] == name


def partial(made: Numbers) -> bool:
    """About a rotation of some channels."""
    return made.get("rotary_dim") != made.get("head_dim") and "rotary_dim" in made


QUARRELS = (
    Quarrel(
        scaled("YaRN"),
        "YaRN's amplitude: on cos and sin in Hugging Face, vLLM and Megatron, so that logits get "
        "its square; in the softmax scale in DeepSeek and torchtitan. Both at once is its 4th "
        "power.",
        "K04",
    ),
    Quarrel(
        scaled("YaRN"),
        "YaRN is static in Hugging Face and vLLM: short texts are scaled as well (vLLM #18728).",
    ),
    Quarrel(
        scaled("YaRN", attention_factor=...),
        "attention_factor: vLLM's YaRN dropped the key (#46280, #48351) and had 0.1 ln s + 1.",
        "K04",
    ),
    Quarrel(
        scaled("YaRN", mscale=...),
        "mscale and mscale_all_dim: the softmax part is often left out (Megatron #1429, mlx-lm "
        "#1507, llama.cpp #17945).",
        "K04",
    ),
    Quarrel(
        scaled("YaRN", truncate=False),
        "truncate=false: KerasHub has it by default; llama.cpp and older vLLM round always "
        "(#27722).",
    ),
    Quarrel(
        scaled("DynamicNTK"),
        "dynamic: Hugging Face grows the base with the longest text so far, and cached keys "
        "keep the older one (#25104); vLLM has one table for the largest length; KerasHub divides "
        "every frequency. Here each sequence has its own base.",
        "K05",
    ),
    Quarrel(
        scaled("LongRoPE"),
        "longrope: Hugging Face picks the factors for a whole batch by its longest row, vLLM by "
        "max_model_len; here each sequence has its own.",
        "K05",
    ),
    Quarrel(
        scaled("Llama3"),
        "llama3: GGUF files hold it as the tensor rope_freqs.weight, in no key; loaders that know "
        "'type' alone, or no scaling, lose it without a word (unsloth #6197).",
    ),
    Quarrel(
        scaled("Linear"),
        "linear: with layers of several types it reaches the global ones alone; ports have left it "
        "out there (mlx-vlm #1709).",
    ),
    Quarrel(
        scaled("NTK"),
        "ntk: vLLM scales each frequency (kexue.fm/9706), others the base (bloc97); HunYuan's "
        "alpha is the latter. The last pair agrees, the first ones do not.",
    ),
    Quarrel(
        scaled("Proportional"),
        "proportional: the pairs that turn are spread over the whole head, (i, i + D/2). Read as a "
        "contiguous partial width, other channels turn, with other frequencies.",
        "K03",
    ),
    Quarrel(
        partial,
        "Partial width: Megatron's YaRN ignores rotary_percent, and Hugging Face's weight permuter "
        "knows of no partial width.",
        "K03",
    ),
    Quarrel(
        named("MultimodalRoPE"),
        "Multimodal sections: Megatron has the chunked order alone; splits by mrope_section * 2 "
        "work for half pairing alone.",
        "K15",
    ),
    Quarrel(
        lambda made: named("ALiBi")(made) and made["num_heads"].bit_count() > 1,
        "ALiBi for a number of heads that is no power of two: attention-gym has other slopes, "
        "up to 6 times too steep and 45 times too flat at 12 heads. BLOOM's are rounded to the "
        "model's dtype in Hugging Face.",
        "K17",
    ),
    Quarrel(
        lambda made: named("LearnedAbsolute")(made) and made["first_row"] > 0,
        "The table's first rows belong to no position: read from row 0, every token is off by "
        "them.",
        "K14",
    ),
    Quarrel(
        named("T5"),
        "T5: other code divides q.k by sqrt(D), or multiplies the bias by it (x-transformers).",
        "K18",
    ),
)

MIXED = Notice(
    "Layers without rotation among others: ports have read the schedule and not applied it "
    "(executorch #22043, rknn-llm #501).",
    "K23",
    "note",
)
LENGTHY = Notice(
    "Far positions: angles in float32 are off by 0.009 at 131,072 and 0.075 at 1,000,000; "
    "frequencies rounded to bfloat16 lose every far position.",
    "K06",
    "note",
)
NESTED = Notice(
    "rope_parameters: code written for rope_theta at the top does not see a nested base, and runs "
    "with its default (vLLM #42624, DeepSpeed #8345).",
    "K02",
    "note",
)


def quarrels(encodings: Iterable[Numbers], length: int | None, *, nested: bool) -> list[Notice]:
    """What is known to be read differently, of these encodings in one model.

    Args:
        length: what the model was made for.
        nested: the base stands in a rope dict.
    """
    all_ = list(encodings)
    met = (q for q in QUARRELS if any(q.about(made) for made in all_))
    found = [Notice(q.says, q.kind, "note") for q in met]
    turning = any("rotary_dim" in made for made in all_)
    if turning and any(made["encoding"] == "NoPE" for made in all_):
        found.append(MIXED)
    if turning and nested:
        found.append(NESTED)
    if turning and (length or 0) >= LONG:
        found.append(LENGTHY)
    return found
