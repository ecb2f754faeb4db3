"""A small summary as `whereness compare` makes it, and the encodings that it is of."""

import torch

import whereness as wn

LENGTHS = (16, 32, 64)
LOSSES = {
    "rope": (1.71, 1.83, 2.26),
    "learned": (2.14, 2.18, 2.21),
    "alibi": (1.86, 1.85, 1.84),
    "nope": (2.11, 2.16, 2.22),
}
TRAINING = {
    "steps": 5,
    "batch": 2,
    "width": 16,
    "depth": 1,
    "heads": 2,
    "device": "cpu",
    "learning_rate": 0.003,
    "warm_up": 0.05,
    "betas": [0.9, 0.98],
    "weight_decay": 0.01,
    "clip": 1.0,
}


def encodings(names=tuple(LOSSES)):
    torch.manual_seed(0)
    return {name: wn.create(name, dim=16, num_heads=2, length=64) for name in names}


def summary(names=tuple(LOSSES), lengths=LENGTHS):
    """Losses are LOSSES; `learned` was not trained beyond the first length."""
    means = {name: dict(zip(map(str, lengths), LOSSES[name], strict=False)) for name in names}
    entries = {name: _entry(name, made, means) for name, made in encodings(names).items()}
    best = {str(n): min(means, key=lambda name: means[name][str(n)]) for n in lengths}
    return {
        "version": 1,
        "text": {"source": "my text.txt", "bytes": 12_345, "sha256": "ab" * 32, "repeated": 0.0876},
        "settings": {
            "encodings": list(names),
            "seeds": 2,
            "train_length": 16,
            "lengths": list(lengths),
            "evaluated_bytes": 2**18,
            **TRAINING,
            "order_task": {**TRAINING, "steps": 7, "pairs": 11},
            "constructors": {name: f"wn.Made({name!r})" for name in names},
        },
        "made_with": {
            "whereness": "0.1.0",
            "python": "3.11.7",
            "torch": "2.13.0",
            "platform": "some platform",
            "processors": 2,
            "jobs": 1,
            "command": "whereness compare --text 'my text.txt' --seeds 2",
        },
        "encodings": entries,
        "recommendation": {
            "use": ["alibi"],
            "headline": "Use alibi.",
            "because": ["At 64 bytes its loss is 1.84."],
            "lengths": {n: {"best": name, "ties": []} for n, name in best.items()},
            "not_tested": ["Texts longer than 64 bytes."],
            "to_know": ["Nothing else."],
            "would_change": ["Texts of 16 bytes only."],
        },
    }


def _entry(name, encoding, means):
    loss = {n: _interval(mean, 0.04) for n, mean in means[name].items()}
    quarter = {n: _interval(mean - 0.1, 0.06) for n, mean in means[name].items()}
    above = {}
    for n, mean in means[name].items():
        best = min(means, key=lambda other: means[other][n])
        width = 0.0 if best == name else 0.03
        above[n] = {"best": best, **_interval(mean - means[best][n], width)}
    model = {
        "train_length": 16,
        "seeds": 2,
        "loss": loss,
        "loss_last_quarter": quarter,
        "above_best": above,
    }
    accuracy = 0.5 if name == "nope" else 1.0
    return {
        "doors": list(encoding.doors),
        "properties": wn.measure(encoding, num_positions=16).as_dict(),
        "order_task": {
            "accuracy": accuracy,
            "by_seed": {"0": accuracy, "1": accuracy},
            "seeds": 2,
            "solved": accuracy >= 0.95,
        },
        "language_model": model | ({"untrained_beyond": 16} if name == "learned" else {}),
        "cost": {
            "train_tokens_per_second": 9876.0 if name == "nope" else 4938.0,
            "relative_speed": 1.0 if name == "nope" else 0.5,
            "parameters": sum(p.numel() for p in encoding.parameters()),
            "step_memory_bytes": 5_000_000,
            "extra_memory_bytes": 0 if name == "nope" else 3 * 2**20,
        },
    }


def _interval(mean, half):
    low, high = mean - half, mean + half
    return {"mean": mean, "se": half / 2, "low": low, "high": high, "by_seed": {"0": mean}}
