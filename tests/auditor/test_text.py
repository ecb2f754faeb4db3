"""CHK12 with text: the decoder against other code, the tokenizers, and what losses decide."""

import json
import math
import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from auditor.files import CONFIG, GGUF, D, E, G, H, folder, gguf_file, subject
from whereness.auditor.checks import text
from whereness.auditor.checks.pairing import UNDECIDED
from whereness.auditor.files import decoder as decoders
from whereness.auditor.files.decoder import LLAMA_CPP, Run, decoder_of
from whereness.auditor.files.tokens import first_token, ids_of
from whereness.auditor.files.weights import Weights, open_weights
from whereness.auditor.findings import Report
from whereness.auditor.subject import Subject
from whereness.interop.config import files as configs
from whereness.interop.config.parts import parts_of
from whereness.interop.config.reader import layers_of

VOCABULARY, HIDDEN = 300, 96


def tensors(names=decoders.HUGGING_FACE, layers=2, tied=False):
    """A random Llama."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

    shapes = {
        "q": (H * D, E),
        "k": (G * D, E),
        "v": (G * D, E),
        "o": (E, H * D),
        "gate": (HIDDEN, E),
        "up": (HIDDEN, E),
        "down": (E, HIDDEN),
    }
    found = {names["embed"]: random(VOCABULARY, E) * 8, names["norm"]: 1 + random(E)}
    if not tied:
        found[names["out"]] = random(VOCABULARY, E) * 3
    for i in range(layers):
        for part, shape in shapes.items():
            found[f"{names[part].format(i)}.weight"] = random(*shape) * 2
        for part in ("attention_norm", "mlp_norm"):
            found[names[part].format(i)] = 1 + random(E)
    return found


def plain_losses(weights, tokens, pairing, names=decoders.HUGGING_FACE, windows=(99, 99)):
    """The same model head by head, with complex numbers for pairs."""

    def norm(x, weight):
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight

    def get(part, i=None):
        name = names[part] if i is None else names[part].format(i)
        return weights[name if name in weights else f"{name}.weight"].double()

    def turned(x):
        u, v = (x[:, 0::2], x[:, 1::2]) if pairing == "interleaved" else x.chunk(2, 1)
        speed = torch.tensor([10_000 ** (-2 * k / D) for k in range(D // 2)], dtype=torch.float64)
        at = torch.arange(len(x))[:, None] * speed
        return torch.complex(u, v) * torch.polar(torch.ones_like(at), at)

    x = get("embed")[tokens]
    for i, window in enumerate(windows):
        y = norm(x, get("attention_norm", i))
        q, k, v = (y @ get(part, i).T for part in "qkv")
        for part, x_ in (("q_norm", q), ("k_norm", k)):
            name = names[part].format(i)
            if name in weights:
                for h in range(0, x_.shape[1], D):
                    x_[:, h : h + D] = norm(x_[:, h : h + D], weights[name].double())
        out = []
        for h in range(H):
            g = h // (H // G)
            one, other = turned(q[:, h * D : h * D + D]), turned(k[:, g * D : g * D + D])
            scores = (one @ other.conj().T).real / D**0.5
            back = torch.arange(len(x))[:, None] - torch.arange(len(x))
            scores = scores.masked_fill((back < 0) | (back >= window), -torch.inf)
            out.append(scores.softmax(-1) @ v[:, g * D : g * D + D])
        x = x + torch.cat(out, 1) @ get("o", i).T
        y = norm(x, get("mlp_norm", i))
        x = x + (F.silu(y @ get("gate", i).T) * (y @ get("up", i).T)) @ get("down", i).T
    head = names["out"] if names["out"] in weights else names["embed"]
    logits = norm(x, get("norm")) @ weights[head].double().T
    return F.cross_entropy(logits[:-1], tokens[1:], reduction="none")


def opened(path):
    source = configs.read(path)
    return decoder_of(layers_of(parts_of(source)[""]), open_weights(path))


def layers_at(path):
    return layers_of(parts_of(configs.read(path))[""])


@pytest.mark.parametrize("tied", [False, True])
def test_the_decoder_is_a_llama(tmp_path, monkeypatch, tied):
    weights = tensors(tied=tied)
    path = folder(tmp_path / "m", weights, CONFIG)
    monkeypatch.setattr("whereness.auditor.files.weights.STEP", 7 * 4 * E)  # blocks of 7 tokens
    layers = layers_at(path)
    other = [text._other(each) for each in layers.each]
    tokens = torch.randint(VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(1))
    own, changed = opened(path).losses([Run(tokens, layers.each), Run(tokens[:1], other)])
    for found, row, pairing in (
        (own[0], 0, "half"),
        (own[1], 1, "half"),
        (changed[0], 0, "interleaved"),
    ):
        expected = plain_losses(weights, tokens[row], pairing)
        torch.testing.assert_close(found.double(), expected, rtol=2e-5, atol=2e-5)


def test_norms_of_queries_and_keys_are_taken(tmp_path):
    weights = tensors()
    for i in range(2):
        for part in ("q_norm", "k_norm"):
            weights[f"model.layers.{i}.self_attn.{part}.weight"] = 1 + torch.rand(D)
    path = folder(tmp_path / "m", weights, {**CONFIG, "model_type": "qwen3"})
    tokens = torch.randint(VOCABULARY, (1, 9))
    (found,) = opened(path).losses([Run(tokens, layers_at(path).each)])
    expected = plain_losses(weights, tokens[0], "half")
    torch.testing.assert_close(found[0].double(), expected, rtol=2e-5, atol=2e-5)


def test_windows_are_kept(tmp_path):
    weights = tensors()
    types = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3}
    path = folder(tmp_path / "m", weights, {**CONFIG, "model_type": "qwen2", **types})
    tokens = torch.randint(VOCABULARY, (1, 9))
    (found,) = opened(path).losses([Run(tokens, layers_at(path).each)])
    expected = plain_losses(weights, tokens[0], "half", windows=(3, 99))
    torch.testing.assert_close(found[0].double(), expected, rtol=2e-5, atol=2e-5)


def test_the_decoder_runs_llama_cpps_files(tmp_path):
    weights = tensors(LLAMA_CPP)
    path = gguf_file(
        tmp_path / "m.gguf", weights, **{"llama.attention.layer_norm_rms_epsilon": 1e-6}
    )
    tokens = torch.randint(VOCABULARY, (1, 9))
    (found,) = opened(path).losses([Run(tokens, layers_at(path).each)])
    expected = plain_losses(weights, tokens[0], "interleaved", LLAMA_CPP)
    torch.testing.assert_close(found[0].double(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.more
@pytest.mark.parametrize("name", ["Llama", "Mistral", "Qwen2", "Qwen3", "SmolLM3"])
@pytest.mark.parametrize("scaling", [None, "llama3"])
def test_the_decoder_is_that_of_transformers(tmp_path, name, scaling):
    import transformers

    config = getattr(transformers, f"{name}Config")(
        vocab_size=VOCABULARY,
        hidden_size=E,
        intermediate_size=HIDDEN,
        num_hidden_layers=4,
        num_attention_heads=H,
        num_key_value_heads=G,
        **({"head_dim": D} if name in ("Llama", "Mistral", "Qwen3") else {}),
        max_position_embeddings=128,
        pad_token_id=0,
        sliding_window=None,
        rope_parameters={
            "rope_theta": 5000.0,
            "rope_type": scaling or "default",
            **(
                {
                    "factor": 4.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 32,
                }
                if scaling
                else {}
            ),
        },
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(tmp_path)
    tokens = torch.randint(VOCABULARY, (2, 64))
    with torch.no_grad():
        logits = model(tokens).logits
    expected = F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
    (found,) = opened(tmp_path).losses([Run(tokens, layers_at(tmp_path).each)])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("config", "missing", "says"),
    [
        ({**CONFIG, "model_type": "gemma"}, "", "'gemma' is not run here"),
        ({**CONFIG, "hidden_act": "gelu"}, "", "its hidden_act is 'gelu'"),
        ({**CONFIG, "num_hidden_layers": 3}, "", "no tensor 'model.layers.2"),
        (CONFIG, "model.layers.1.mlp.up_proj.weight", "no tensor 'model.layers.1.mlp.up_proj"),
        ({**CONFIG, "rms_norm_eps": "x"}, "", "epsilon of its norms must be a number, got 'x'"),
    ],
)
def test_other_models_are_refused(tmp_path, config, missing, says):
    weights = {name: t for name, t in tensors().items() if name != missing}
    with pytest.raises(ValueError, match=says):
        opened(folder(tmp_path / "m", weights, config))


def test_weights_that_do_not_fit_together_are_one_line(tmp_path):
    weights = tensors()
    weights["model.layers.1.mlp.up_proj.weight"] = torch.zeros(5, 3)
    path = folder(tmp_path / "m", weights, CONFIG)
    with pytest.raises(ValueError, match="do not fit together") as error:
        opened(path).losses([Run(torch.zeros(1, 4, dtype=torch.int64), layers_at(path).each)])
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="gives token 300, the weights have 300"):
        opened(path).losses([Run(torch.tensor([[1, 300]]), layers_at(path).each)])


# Tokens


def byte_tokens():
    """The 256 characters that byte-level BPE writes bytes with."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    found = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [found[b] for b in range(256)]


WORDS = {
    **GGUF,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": [*byte_tokens(), "th", "the", "Ġthe", "12"],
    "tokenizer.ggml.merges": ["t h", "th e", "Ġ the", "1 2"],
}


def test_byte_level_bpe_is_rebuilt(tmp_path):
    path = gguf_file(tmp_path / "m.gguf", {"a": torch.ones(1)}, **WORDS)
    weights = open_weights(path)
    assert weights.metadata.get("tokenizer.ggml.tokens") is not None  # short enough to be kept
    the, both = 257, ord("1")
    assert ids_of(b"the the 12", weights, None) == [the, 258, 32, both, both + 1]
    joined = gguf_file(
        tmp_path / "n.gguf", {"a": torch.ones(1)}, **{**WORDS, "tokenizer.ggml.pre": "gpt-2"}
    )
    assert ids_of(b"12", open_weights(joined), None) == [259]
    assert ids_of("é\xff".encode(), weights, None) == list("é\xff".encode())


def test_long_vocabularies_are_read_when_they_are_wanted(tmp_path):
    many = [*byte_tokens(), *(f"x{i}" for i in range(5000)), "ab"]
    keys = {**WORDS, "tokenizer.ggml.tokens": many, "tokenizer.ggml.merges": ["a b"]}
    weights = open_weights(gguf_file(tmp_path / "m.gguf", {"a": torch.ones(1)}, **keys))
    assert weights.metadata["tokenizer.ggml.tokens"] is None
    assert ids_of(b"ab", weights, None) == [many.index("ab")]


def test_the_first_token():
    def weights(*said):
        names = ("tokenizer.ggml.add_bos_token", "tokenizer.ggml.bos_token_id")
        return Weights(Path(), "gguf", {}, dict(zip(names, said, strict=True)))

    assert first_token(weights(True, 7)) == 7
    for said in ((False, 7), (None, 7), (True, "x"), (True, True), (True, -1)):
        assert first_token(weights(*said)) is None


def tokenizer_json():
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.BPE({t: i for i, t in enumerate(byte_tokens())}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made.to_str()


def test_a_tokenizer_beside_the_config(tmp_path):
    path = folder(tmp_path / "m", {"a": torch.ones(1)})
    (path / "tokenizer.json").write_text(tokenizer_json())
    assert ids_of(b"abc", open_weights(path), path) == [97, 98, 99]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (None, "there is no tokenizer.json"),
        (b"{", "its tokenizer cannot be used"),
        (b"\xff\xfe", "its tokenizer cannot be used"),
        (b'{"model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}}', "cannot be used"),
        (b"[" * 100_000, "its tokenizer cannot be used"),
    ],
)
def test_tokenizers_that_cannot_be_read(tmp_path, data, says):
    path = folder(tmp_path / "m", {"a": torch.ones(1)})
    if data is not None:
        (path / "tokenizer.json").write_bytes(data)
    with pytest.raises(ValueError, match=says) as error:
        ids_of(b"abc", open_weights(path), path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"tokenizer.ggml.model": "llama"}, "its tokenizer is 'llama'"),
        ({"tokenizer.ggml.model": "gpt2"}, "its vocabulary is missing"),
        (
            {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": "x"},
            "its vocabulary is missing",
        ),
    ],
)
def test_vocabularies_of_gguf_that_cannot_be_read(tmp_path, keys, says):
    path = gguf_file(tmp_path / "m.gguf", {"a": torch.ones(1)}, **keys)
    with pytest.raises(ValueError, match=says):
        ids_of(b"abc", open_weights(path), None)


# What losses decide


class Losses:
    """Stands in for a decoder: a loss for every run, by what its layers have."""

    vocabulary, parameters = 1000, 10**6

    def __init__(self, loss):
        self.loss = loss

    def losses(self, runs):
        """Every token of the text is as hard as it is, whatever window it is in."""
        hard = 3 * torch.randn(2048, generator=torch.Generator().manual_seed(0))
        hard = (hard - hard.mean()).clamp(-2, 2)
        found = []
        for run in runs:
            place = torch.arange(run.tokens.numel()).reshape(run.tokens.shape)[:, 1:]
            found.append(self.loss(run) + hard[place])
        return found


TALL = {**CONFIG, "max_position_embeddings": 1024}


def audited(tmp_path, monkeypatch, loss, config=TALL, undecided=(), length=1000):
    seen = subject(folder(tmp_path / "m", {"a": torch.ones(1)}, config))
    seen.text = b"x" * length
    seen.shared[UNDECIDED] = list(undecided)
    monkeypatch.setattr("whereness.auditor.files.decoder.decoder_of", lambda *_: Losses(loss))
    monkeypatch.setattr("whereness.auditor.files.tokens.ids_of", lambda text, *_: list(text))
    text.run(seen)
    return seen.report


def pairings(run):
    return {text._declared(each) for each in run.layers}


def by_view(long, short):
    return lambda run: short if run.tokens.shape[1] == text.SHORT else long


def test_a_model_that_speaks_in_its_pairing_is_sound(tmp_path, monkeypatch):
    def loss(run):
        return 6.0 if pairings(run) == {"interleaved"} else by_view(2.5, 3.0)(run)

    report = audited(tmp_path, monkeypatch, loss)
    assert not report.findings and not report.not_checked
    assert [c.what for c in report.compared] == [
        "loss in both pairings",
        "loss with 64 and 768 tokens in view",
    ]


def test_the_pairing_that_speaks_is_the_weights(tmp_path, monkeypatch):
    def loss(run):
        return 2.5 if pairings(run) == {"interleaved"} else by_view(6.0, 6.1)(run)

    (found,) = audited(tmp_path, monkeypatch, loss).of("error")
    assert (found.check, found.kind, found.layer) == ("CHK12", "K01", None)
    said = re.fullmatch(
        r"(6\.\d\d) nats a token in it, (2\.\d\d) in the interleaved one", found.measured
    )
    assert float(said[1]) - float(said[2]) == pytest.approx(3.5, abs=0.011)


def test_single_layers_whose_rows_did_not_tell_are_tried(tmp_path, monkeypatch):
    def loss(run):
        each = [text._declared(layer) for layer in run.layers]
        if each == ["interleaved", "interleaved"]:
            return 6.0
        return {"half": 3.0, "interleaved": 2.5}[each[0]] - 0.1 * (run.tokens.shape[1] > 64)

    report = audited(tmp_path, monkeypatch, loss, undecided=[("", 0), ("text_config", 1)])
    (found,) = report.of("error")
    assert (found.kind, found.layer) == ("K01", 0)
    assert len([c for c in report.compared if c.what == "loss in both pairings"]) == 2


def test_losses_too_alike_decide_nothing(tmp_path, monkeypatch):
    report = audited(tmp_path, monkeypatch, lambda run: 2.5)
    assert not report.findings and not report.compared
    assert [each.check for each in report.not_checked] == ["CHK12", "CHK1"]


def test_a_longer_view_that_harms_is_named(tmp_path, monkeypatch):
    def loss(run):
        return 6.0 if pairings(run) == {"interleaved"} else by_view(4.0, 3.0)(run)

    (found,) = audited(tmp_path, monkeypatch, loss).of("error")
    assert (found.check, found.kind) == ("CHK1", "K02")
    assert re.search(r"4\.\d\d nats with up to 768", found.measured)
    assert re.search(r"3\.\d\d with 64", found.measured)


@pytest.mark.parametrize("harms", [True, False])
def test_a_scaling_that_harms_is_named(tmp_path, monkeypatch, harms):
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    config = {**CONFIG, "max_position_embeddings": 8192, "rope_scaling": rope}

    def loss(run):
        if pairings(run) == {"interleaved"}:
            return 6.0
        scaled = any(made.get("scaling") for layer in run.layers for made in layer)
        return by_view(2.5, 3.0)(run) + 0.5 * (scaled == harms)

    report = audited(tmp_path, monkeypatch, loss, config)
    assert len(report.of("warning")) == 2 * harms
    assert all((f.check, f.kind) == ("CHK1", "K02") for f in report.findings)
    assert len(report.compared) == 4
    assert "end before the trained length, 2048" in report.not_checked[0].why


@pytest.mark.parametrize(
    ("loss", "says"),
    [(6.9, "makes no sense of the text"), (math.nan, "the loss is no number")],
)
def test_a_model_that_says_nothing_of_the_text(tmp_path, monkeypatch, loss, says):
    report = audited(tmp_path, monkeypatch, lambda run: loss)
    assert not report.findings and not report.compared
    assert says in report.not_checked[0].why


def test_a_text_that_is_too_short(tmp_path, monkeypatch):
    report = audited(tmp_path, monkeypatch, lambda run: 2.5, length=100)
    assert "the text has 100" in report.not_checked[0].why


def test_without_weights_in_a_file_losses_are_not_compared():
    seen = Subject("it", Report(target="it"), model=torch.nn.Linear(1, 1), text=b"x")
    text.run(seen)
    assert "weights in a file" in seen.report.not_checked[0].why
    seen = Subject("it", Report(target="it"))
    text.run(seen)
    assert not seen.report.not_checked  # nobody asked


def test_the_difference_of_losses():
    found = text.difference(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.5, 2.4, 3.6]))
    assert (found.first, found.second) == (2.0, 2.5)
    # mean 0.5, standard deviation 0.1, of three
    assert found.z == pytest.approx(0.5 / (0.1 / math.sqrt(3)), rel=1e-5)
    assert text.difference(torch.ones(5), torch.ones(5)).z == 0.0
    assert text.difference(torch.ones(5), torch.zeros(5)).z == -math.inf


def test_json_of_a_tokenizer_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("whereness.auditor.files.tokens.LARGEST_TOKENIZER", 2**10)
    path = folder(tmp_path / "m", {"a": torch.ones(1)})
    (path / "tokenizer.json").write_text(json.dumps({"x": "y" * 2000}))
    with pytest.raises(ValueError, match="larger than"):
        ids_of(b"abc", open_weights(path), path)
