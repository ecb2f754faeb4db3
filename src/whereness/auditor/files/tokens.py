"""Text as the token ids of a model, by the tokenizer in its GGUF file or beside its config.

Byte-level BPE is rebuilt from GGUF's vocabulary and merges. How a text is cut into words before
differs between models; here it is done as in GPT-2, with digits apart where the model has that: a
few tokens may be others than in training, the same ones under every hypothesis that is compared.
"""

from pathlib import Path
from typing import Any

from whereness.auditor.files.weights import Weights, open_weights
from whereness.interop.strict_json import shown

VOCABULARY, MERGES = "tokenizer.ggml.tokens", "tokenizer.ggml.merges"
KEPT = frozenset((VOCABULARY, MERGES))
DIGITS_APART = ("smollm", "deepseek-llm", "command-r", "refact")
LARGEST_TOKENIZER = 2**26
MOST_CHARACTERS = 2**17
"""Of the text: what is beyond is not read."""


def ids_of(text: bytes, weights: Weights, folder: Path | None) -> list[int]:
    """Token ids of the beginning of a text.

    Raises:
        ValueError: no tokenizer that can be read, or one that the text is too much for.
        OSError: a file cannot be read.
    """
    words = text.decode("utf-8", "replace")[:MOST_CHARACTERS]
    made = _of_gguf(weights) if weights.format == "gguf" else _of_file(folder)
    return _guarded(lambda: made.encode(words, add_special_tokens=False).ids)


def first_token(weights: Weights) -> int | None:
    """The token that the model wants before a text, None without one, or where it is not known."""
    wanted = weights.metadata.get("tokenizer.ggml.add_bos_token", False)
    found = weights.metadata.get("tokenizer.ggml.bos_token_id")
    return found if wanted is True and type(found) is int and found >= 0 else None


def _of_gguf(weights: Weights) -> Any:
    kind = weights.metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ValueError(f"its tokenizer is {shown(kind)}: only byte-level BPE is rebuilt here")
    metadata = open_weights(weights.path, KEPT).metadata
    vocabulary, merges = metadata.get(VOCABULARY), metadata.get(MERGES)
    if not isinstance(vocabulary, list) or not isinstance(merges, list):
        raise ValueError(  # noqa: TRY004 (what a file holds is a value)
            "its vocabulary is missing or too long"
        )
    if not all(isinstance(each, str) for each in (*vocabulary, *merges)):
        raise ValueError("its vocabulary must be strings")
    apart = metadata.get("tokenizer.ggml.pre") in DIGITS_APART
    return _guarded(lambda: _byte_level(vocabulary, merges, apart))


def _byte_level(vocabulary: list[str], merges: list[str], digits_apart: bool) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    ids = {token: i for i, token in enumerate(vocabulary)}
    pairs = [(left, right) for left, _, right in (each.partition(" ") for each in merges)]
    known = [p for p in pairs if p[0] in ids and p[1] in ids and p[0] + p[1] in ids]
    made = Tokenizer(models.BPE(ids, known))
    digits = [pre_tokenizers.Digits(individual_digits=True)] if digits_apart else []
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([*digits, words])
    return made


def _of_file(folder: Path | None) -> Any:
    path = None if folder is None else folder / "tokenizer.json"
    if path is None or not path.is_file():
        raise ValueError("there is no tokenizer.json beside the config")
    with path.open("rb") as file:
        data = file.read(LARGEST_TOKENIZER + 1)
    if len(data) > LARGEST_TOKENIZER:
        raise ValueError(f"tokenizer.json is larger than {LARGEST_TOKENIZER // 2**20} MiB")

    def make() -> Any:
        from tokenizers import Tokenizer

        made = Tokenizer.from_str(data.decode("utf-8"))
        made.no_truncation()
        made.no_padding()
        return made

    return _guarded(make)


def _guarded(call: Any) -> Any:
    """What `call` returns; what the package raises, a panic of its Rust code too, as one line.

    Raises:
        ValueError: as said; the package is not installed.
    """
    try:
        return call()
    except ImportError:
        raise ValueError(
            "the package tokenizers is missing: pip install 'whereness[audit]'"
        ) from None
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 (a panic is no Exception)
        told = " ".join(str(error).split())[:200]
        raise ValueError(f"its tokenizer cannot be used: {told}") from None
