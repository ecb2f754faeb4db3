"""Every encoding with settings of its own, and combinations: what the laws are run on."""

from torch import Tensor

import whereness as wn
from laws import DIM, GROUPS, HEAD_DIM, HEADS, LENGTH, Subject, registered
from zoo import CoPE, DeBERTa, FoX, PaTH, PoPE

_SITES = ("tokens", "every_layer", "queries_keys")
_REACH = 40  # of the tables below


def _absolute() -> list[Subject]:
    makers = {
        "integer": lambda **o: wn.Integer(o.pop("dim", DIM), 100, **o),
        "binary": lambda **o: wn.Binary(o.pop("dim", DIM), 20, **o),
        "sinusoidal": lambda **o: wn.Sinusoidal(o.pop("dim", DIM), **o),
        "learned": lambda **o: wn.LearnedAbsolute(o.pop("dim", DIM), _REACH, **o),
    }
    reach = {"binary": 2**20, "learned": _REACH}
    settings = {f"-{site}": {"site": site} for site in _SITES}
    settings["-tokens-concat"] = {"dim": 24, "join": "concat"}
    return [
        *(
            Subject(name + ending, lambda m=make, o=options: m(**o), reach=reach.get(name, 10**9))
            for name, make in makers.items()
            for ending, options in settings.items()
        ),
        Subject(
            "sinusoidal-queries_keys-concat",
            lambda: wn.Sinusoidal(8, site="queries_keys", join="concat"),
        ),
        Subject(
            "sinusoidal-every_layer-concat",
            lambda: wn.Sinusoidal(8, site="every_layer", join="concat"),
        ),
        Subject("integer-raw", lambda: wn.Integer(DIM)),
        Subject("binary-gray", lambda: wn.Binary(DIM, 20, gray=True), reach=2**20),
        Subject("sinusoidal-sin_cos", lambda: wn.Sinusoidal(DIM, 100.0, "sin_cos", "dim-2")),
        Subject("sinusoidal-cos_sin", lambda: wn.Sinusoidal(DIM, 500.0, "cos_sin")),
        Subject("learned-grid", lambda: wn.LearnedAbsolute(DIM, (30, 30)), axes=2, reach=24),
        Subject("learned-prefix", lambda: wn.LearnedAbsolute(DIM, _REACH, 0, 2), reach=_REACH),
    ]


def _relative() -> list[Subject]:
    found = [
        Subject(
            f"relative-{operation}-{on}",
            lambda op=operation, on=on: wn.LearnedRelative(HEADS, 4, op, on),
        )
        for operation in ("add", "multiply")
        for on in ("logits", "weights")
    ]
    return [
        *found,
        Subject("relative-far", lambda: wn.LearnedRelative(HEADS, 60, beyond="raise"), reach=10**9),
        Subject("relative-per-layer", lambda: lambda: wn.LearnedRelative(HEADS, 4)),
        Subject("shaw-near", lambda: wn.Shaw(HEAD_DIM, 3)),
        Subject("shaw-keys", lambda: wn.Shaw(HEAD_DIM, 5, values=False)),
        Subject("t5-small-scaled", lambda: wn.T5(HEADS, 6, 7, scaled=True)),
        Subject("kerple-power", lambda: wn.KERPLE(HEADS, "power"), between=(0.1, 1.9)),
        Subject("sandwich-other", lambda: wn.Sandwich(HEADS, 6, "multiply", 0, False)),
        Subject("t5-bidirectional", lambda: wn.T5(HEADS, 8, 9, bidirectional=True)),
    ]


class Patches(wn.DINOv3RoPE):
    """DINOv3's of patches that are numbered: it reads real coordinates, the laws give integers."""

    def angles(self, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        return super().angles(positions.double() / 7, lengths)


def _rotary() -> list[Subject]:
    return [
        Subject("rope-interleaved", lambda: wn.RoPE(HEAD_DIM, 100.0, "interleaved")),
        Subject("rope-leading", lambda: wn.RoPE(HEAD_DIM, 500.0, rotary_dim=4)),
        Subject(
            "rope-trailing",
            lambda: wn.RoPE(HEAD_DIM, 20.0, "interleaved", 6, "trailing"),
        ),
        *(Subject(f"axial-{n}", lambda n=n: wn.AxialRoPE(HEAD_DIM, n), axes=n) for n in (1, 2, 4)),
        Subject(
            "axial-3-uneven",
            lambda: wn.AxialRoPE(HEAD_DIM, 3, 100.0, axis_dims=(4, 2, 2)),
            axes=3,
        ),
        Subject(
            "axial-2-heads",
            lambda: wn.AxialRoPE(HEAD_DIM, 2, 100.0, "half", "heads"),
            axes=2,
        ),
        Subject(
            "axial-2-alternating",
            lambda: wn.AxialRoPE(
                HEAD_DIM, 2, (50.0, 9.0), "interleaved", "alternating", None, (1, 0), (0.5, 3.0)
            ),
            axes=2,
        ),
        Subject(
            "axial-2-shared_blocks",
            lambda: wn.AxialRoPE(HEAD_DIM, 2, 100.0, layout="shared_blocks", rotary_dim=4),
            axes=2,
        ),
        Subject(
            "axial-4-shared_alternating",
            lambda: wn.AxialRoPE(HEAD_DIM, 4, 100.0, layout="shared_alternating"),
            axes=4,
        ),
        Subject("dinov3", lambda: Patches(HEAD_DIM), axes=2),
        Subject(
            "mixed-1",
            lambda: wn.MixedRoPE(HEAD_DIM, HEADS, 1, num_kv_heads=1),
            any_groups=False,
        ),
        Subject(
            "mixed-4-interleaved",
            lambda: lambda: wn.MixedRoPE(HEAD_DIM, HEADS, 4, 5.0, "interleaved", GROUPS),
            axes=4,
            any_groups=False,
        ),
        *(
            Subject(f"multimodal-{o}", lambda o=o, s=s: wn.MultimodalRoPE(HEAD_DIM, s, o), axes=3)
            for o, s in (("chunked", (1, 2, 1)), ("interleaved", (2, 1, 1)), ("ernie", (1, 1, 2)))
        ),
        Subject(
            "multimodal-2-trailing",
            lambda: wn.MultimodalRoPE(
                HEAD_DIM, (2, 1), "interleaved", 50.0, "interleaved", 6, "trailing"
            ),
            axes=2,
        ),
    ]


_LENGTHS = 20  # longer than original_length below: the far side of every threshold


def _scaled() -> list[Subject]:
    scaling = wn.scaling
    pairs = HEAD_DIM // 2
    makers = {
        "ntk-mixed": lambda: scaling.NTK(4.0, "mixed", 0.625),
        "yarn": lambda: scaling.YaRN(4.0, 8),
        "yarn-deepseek": lambda: scaling.YaRN(
            4.0, 8, school="deepseek", mscale=1.0, mscale_all_dim=0.5
        ),
        "llama3": lambda: scaling.Llama3(8.0, 1.0, 4.0, 64),
        "proportional": lambda: scaling.Proportional(0.5),
        "resonance": lambda: scaling.Resonance(scaling.Linear(1.5)),
    }
    by_length = {
        "linear-several": lambda: scaling.Linear((1.0, 2.0, 4.0), 8),
        "dynamic": lambda: scaling.DynamicNTK(2.0, 8),
        "longrope": lambda: scaling.LongRoPE(
            [1.0] * pairs, [1.0, 2.0, 3.0, 4.0], 8, short_mscale=1.0, long_mscale=1.3
        ),
    }
    return [
        *(
            Subject(f"rope-{name}", lambda m=make: wn.RoPE(HEAD_DIM, scaling=m()))
            for name, make in makers.items()
        ),
        *(
            Subject(
                f"rope-{name}",
                lambda m=make: wn.RoPE(HEAD_DIM, 100.0, scaling=m()),
                lengths=_LENGTHS,
            )
            for name, make in by_length.items()
        ),
        Subject("xpos-interleaved", lambda: wn.XPos(HEAD_DIM, pairing="interleaved"), reach=30_000),
        Subject("lerope-yarn", lambda: wn.LeRoPE(HEAD_DIM, 100.0, scaling=scaling.YaRN(2.0, 30))),
        Subject(
            "fope-groups",
            lambda: wn.FoPE(HEAD_DIM, 100.0, num_frequencies=3, num_kv_heads=GROUPS),
            any_groups=False,
        ),
        Subject("temperature", lambda: wn.Temperature(0.3, 3.0), of_queries=True),
        Subject(
            "[rope, temperature]",
            lambda: [wn.RoPE(HEAD_DIM), wn.Temperature(0.3, 4.0, "ministral3")],
        ),
        Subject("drope", lambda: wn.DroPE(4.0)),
    ]


def _zoo() -> list[Subject]:
    return [
        Subject("deberta", lambda: DeBERTa(DIM, 4)),
        Subject("deberta-buckets-paper", lambda: DeBERTa(DIM, 20, 8, "paper")),
        Subject("cope", lambda: CoPE(HEAD_DIM, 5)),
        Subject("cope-undivided", lambda: CoPE(HEAD_DIM, 9, "undivided")),
        Subject("fox", lambda: FoX(DIM, HEADS)),
        Subject("path", lambda: lambda: PaTH(DIM, HEADS, HEAD_DIM)),
        Subject("pope", lambda: PoPE(HEAD_DIM, GROUPS), any_groups=False),
    ]


def _combinations() -> list[Subject]:
    relative = wn.LearnedRelative
    return [
        Subject("[alibi, rope]", lambda: [wn.ALiBi(HEADS), wn.RoPE(HEAD_DIM)]),
        Subject("[t5, rope]", lambda: [wn.T5(HEADS), wn.RoPE(HEAD_DIM)]),
        Subject("[sinusoidal, alibi]", lambda: [wn.Sinusoidal(DIM), wn.ALiBi(HEADS)]),
        Subject("[multiply, alibi]", lambda: [relative(HEADS, 3, "multiply"), wn.ALiBi(HEADS)]),
        Subject("[alibi, multiply]", lambda: [wn.ALiBi(HEADS), relative(HEADS, 3, "multiply")]),
        Subject("[rope, shaw]", lambda: [wn.RoPE(HEAD_DIM), wn.Shaw(HEAD_DIM, 3)]),
        Subject("[rope, cope]", lambda: [wn.RoPE(HEAD_DIM), CoPE(HEAD_DIM, 5)]),
        Subject("[path, fox]", lambda: [PaTH(DIM, HEADS, HEAD_DIM), FoX(DIM, HEADS)]),
        Subject("[rope, deberta]", lambda: [wn.RoPE(HEAD_DIM), DeBERTa(DIM, 4)]),
        Subject(
            "[queries_keys, relative, rope]",
            lambda: [
                wn.Sinusoidal(DIM, site="queries_keys"),
                relative(HEADS, 4),
                wn.RoPE(HEAD_DIM),
            ],
        ),
    ]


SUBJECTS = [
    *(registered(name) for name in wn.encodings()),
    *_absolute(),
    *_relative(),
    *_rotary(),
    *_scaled(),
    *_zoo(),
    *_combinations(),
]
BY_NAME = {s.name: s for s in SUBJECTS}
assert len(BY_NAME) == len(SUBJECTS)
assert LENGTH < _REACH
