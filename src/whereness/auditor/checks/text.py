"""CHK12 with text: the loss under both pairings, and under the config's scaling and without.

The model is run from its file (`files.decoder`), with the encodings that the config gives and with
others, on the same tokens. A difference counts where it is both `CLEAR` standard
errors of the paired differences and `LEAST` nats a token: tokens of a text are not independent, and
five of their standard errors are far more than chance would need.

    pairing    the other one must be worse; layers whose rows did not tell are tried one by one
    scaling    without it, or with more of the text in view, the loss must not fall or rise
"""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from whereness.auditor.checks.pairing import UNDECIDED
from whereness.auditor.files.couplings import OTHER
from whereness.auditor.findings import Finding
from whereness.auditor.subject import Subject
from whereness.interop.config.reader import Layers
from whereness.interop.config.specs import Layer
from whereness.rotary.pairing import Pairing

if TYPE_CHECKING:
    from torch import Tensor

    from whereness.auditor.files.decoder import Decoder, Run

CHECK = "CHK12"
LONG, PAIRED, SHORT = 768, 256, 64
"""Tokens of a text that are read at once, of them those for pairings, and of a short window."""
WARM = 16
"""Tokens of a short window that are not judged: they have next to nothing before them."""
CLEAR, LEAST = 5.0, 0.05
SENSELESS = 0.9
"""Of the loss of guessing any token: a model above it says nothing of the text."""
MOST_WORK = 2**41
"""Multiplications: some minutes of one core. Larger models get fewer tokens."""
MOST_TRIED = 4


@dataclass(frozen=True)
class Difference:
    """Mean loss of two runs over the same tokens; z above 0: the second is worse."""

    first: float
    second: float
    z: float

    @property
    def is_clear(self) -> bool:
        """Whether it is more than chance, and enough to matter."""
        return abs(self.z) >= CLEAR and abs(self.second - self.first) >= LEAST


def run(subject: Subject) -> None:
    """Compare losses on the text."""
    if subject.text is None:
        return
    if subject.weights is None:
        why = "losses are compared on weights in a file; a live model runs as its own code wants"
        subject.not_checked(CHECK, why)
        return
    if len(subject.expected) != 1:
        subject.not_checked(CHECK, "only a model of one part can be run from its file")
        return
    (layers,) = subject.expected.values()
    try:
        _compare(subject, layers)
    except (ValueError, OSError) as error:
        subject.not_checked(CHECK, str(error))


def _compare(subject: Subject, layers: Layers) -> None:
    import torch

    from whereness.auditor.files.decoder import decoder_of
    from whereness.auditor.files.tokens import first_token, ids_of

    assert subject.weights is not None
    assert subject.text is not None
    decoder = decoder_of(layers, subject.weights)
    length = min(LONG, layers.length or LONG, MOST_WORK // (4 * max(decoder.parameters, 1)))
    ids = ids_of(subject.text, subject.weights, subject.folder)
    start = first_token(subject.weights)
    ids = ids[:length] if start is None else [start, *ids[: length - 1]]
    if len(ids) < PAIRED:
        raise ValueError(
            f"losses need {PAIRED} tokens: the text has {len(ids)}, the model's size allows "
            f"{length}"
        )
    tokens = torch.tensor([ids[: len(ids) // SHORT * SHORT]])
    tried = _tried(subject, layers)
    runs = _runs(tokens, layers, tried)
    losses = dict(zip(runs, decoder.losses(list(runs.values())), strict=True))
    _usable(losses, decoder)
    if "other" in losses:
        own = losses["config"]
        whole = difference(own[:, : PAIRED - 1], losses["other"])
        _pairing(subject, layers, whole, None)
        if whole.is_clear and whole.z < 0:
            why = "in the wrong pairing far positions are wrong whatever base and scaling are"
            subject.not_checked("CHK1", why)
            return
        for i in tried:
            _pairing(subject, layers, difference(own, losses[f"other in layer {i}"]), i)
    _view(subject, losses, tokens.shape[1])
    if "plain" in losses:
        _reach(subject, layers, tokens.shape[1])
        for name, run in (("config", "plain"), ("short", "short plain")):
            _scaling(subject, difference(losses[name], losses[run]), name)


def _tried(subject: Subject, layers: Layers) -> list[int]:
    """Layers whose rows did not tell their pairing, and that turn."""
    found = [i for part, i in subject.shared.get(UNDECIDED, []) if part == layers.part.name]
    turning = [i for i in found if _other(layers.each[i]) != layers.each[i]]
    return [i for i in turning if subject.wants(i)][:MOST_TRIED]


def _runs(tokens: "Tensor", layers: Layers, tried: list[int]) -> "dict[str, Run]":
    """What is compared, by name. All see the same tokens, or the first of them."""
    from whereness.auditor.files.decoder import Run

    each = list(layers.each)
    short = tokens.reshape(-1, SHORT)
    found = {"config": Run(tokens, each), "short": Run(short, each)}
    other, plain = [_other(layer) for layer in each], [_plain(layer) for layer in each]
    if other != each:
        found["other"] = Run(tokens[:, :PAIRED], other)
        for i in tried:
            mixed = [*each[:i], other[i], *each[i + 1 :]]
            found[f"other in layer {i}"] = Run(tokens, mixed)
    if plain != each:
        found |= {"plain": Run(tokens, plain), "short plain": Run(short, plain)}
    return found


# Pairings


def _pairing(subject: Subject, layers: Layers, found: Difference, index: int | None) -> None:
    """Judge the loss in the other pairing against that in the config's."""
    if not found.is_clear:
        why = (
            f"on the text the loss is {found.first:.2f} nats in the config's pairing and "
            f"{found.second:.2f} in the other, too alike to tell"
        )
        subject.not_checked(CHECK, why, index)
        return
    subject.compared(CHECK, "loss in both pairings", index)
    if found.z < 0:
        declared = next(filter(None, (_declared(layer) for layer in layers.each)))
        subject.found(_pairing_finding(found, declared, index))


def _pairing_finding(found: Difference, declared: Pairing, index: int | None) -> Finding:
    other = OTHER[declared]
    return Finding(
        check=CHECK,
        kind="K01",
        severity="error",
        layer=index,
        expected=f"the lower loss in the {declared} pairing, which the config implies",
        measured=f"{found.first:.2f} nats a token in it, {found.second:.2f} in the {other} one"
        + ("" if index is None else ", all else equal"),
        cause="the rows of queries and keys were not moved when the weights were converted",
        remedy=f"Move the rows into the {declared} pairing: wn.convert_pairing.",
    )


def _declared(layer: Layer) -> Pairing | None:
    return next((made.get("pairing") for made in layer if made.get("pairing")), None)


def _other(layer: Layer) -> Layer:
    """The same in the other pairing."""
    return tuple(
        replace(
            made,
            options=tuple((n, OTHER[v] if n == "pairing" else v) for n, v in made.options),
        )
        for made in layer
    )


# Scalings


def _view(subject: Subject, losses: "dict[str, Tensor]", length: int) -> None:
    """More of the text in view must help: judge the same tokens with it and in short windows."""
    short = losses["short"]
    count = len(short)
    # The first token of the text has no loss; of every window, those behind its first one have.
    behind = losses["config"].new_zeros(count * SHORT)
    behind[1:] = losses["config"][0]
    long = behind.reshape(count, SHORT)[:, 1:]
    found = difference(short[count // 2 :, WARM:], long[count // 2 :, WARM:])
    if not found.is_clear:
        why = (
            f"{length} tokens in view give {found.second:.2f} nats, {SHORT} give "
            f"{found.first:.2f}: too alike to judge far positions by"
        )
        subject.not_checked("CHK1", why)
        return
    subject.compared("CHK1", f"loss with {SHORT} and {length} tokens in view")
    if found.z > 0:
        subject.found(
            Finding(
                check="CHK1",
                kind="K02",
                severity="error",
                expected="a lower loss with more of the text in view",
                measured=f"{found.second:.2f} nats with up to {length} tokens in view, "
                f"{found.first:.2f} with {SHORT}, the same tokens judged",
                cause="the base or the scaling of the config is not that of the training: near "
                "positions are nearly right, far ones are not",
                remedy="Take the config that the weights were trained with.",
            )
        )


def _scaling(subject: Subject, found: Difference, name: str) -> None:
    name = "short" if name == "short" else "long"
    what = f"loss with the config's scaling and without, {name} windows"
    if not found.is_clear:
        why = (
            f"{name} windows give {found.first:.2f} nats with the scaling and {found.second:.2f} "
            "without, too alike to tell"
        )
        subject.not_checked("CHK1", why)
        return
    subject.compared("CHK1", what)
    if found.z < 0:
        subject.found(
            Finding(
                check="CHK1",
                kind="K02",
                severity="warning",
                expected="a loss that the config's scaling does not raise",
                measured=f"{found.first:.2f} nats with it and {found.second:.2f} without, in "
                f"{name} windows",
                cause="the weights were trained without this scaling, or with another",
                remedy="Leave it out below the trained length, or take the one of the training.",
            )
        )


def _reach(subject: Subject, layers: Layers, length: int) -> None:
    """Say so if the windows end before the scaling has to stretch anything."""
    originals = [
        option
        for layer in layers.each
        for made in layer
        if (scaling := made.get("scaling")) is not None
        and (option := scaling.get("original_length"))
    ]
    if originals and length <= max(originals):
        why = f"windows of {length} tokens end before the trained length, {max(originals)}"
        subject.not_checked("CHK1", f"whether the scaling serves beyond it: {why}")


def _plain(layer: Layer) -> Layer:
    """The same without scaling."""
    return tuple(
        replace(made, options=tuple((n, v) for n, v in made.options if n != "scaling"))
        for made in layer
    )


# Numbers


def difference(first: "Tensor", second: "Tensor") -> Difference:
    """Compare the losses of the same tokens."""
    more = (second - first).double().flatten()
    error = more.std() / len(more) ** 0.5
    z = more.mean() / error if float(error) > 0 else more.mean().sign() * math.inf
    return Difference(
        float(first.mean()), float(second.mean()), float(z.nan_to_num(0.0, math.inf, -math.inf))
    )


def _usable(losses: "dict[str, Tensor]", decoder: "Decoder") -> None:
    """Raise a ValueError if neither pairing makes sense of the text."""
    found = [float(losses[name].mean()) for name in ("config", "other") if name in losses]
    if not all(math.isfinite(each) for each in found):
        raise ValueError("the loss is no number: the weights overflow, or hold NaN")
    guess = math.log(decoder.vocabulary)
    if min(found) > SENSELESS * guess:
        raise ValueError(
            f"the model makes no sense of the text under either pairing: {min(found):.2f} nats a "
            f"token, and any of {decoder.vocabulary} tokens by chance is {guess:.2f}"
        )
