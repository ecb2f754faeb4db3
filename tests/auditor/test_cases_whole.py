"""Public reports whose fault is planted in a model of a family, or in a decoder of ours.

Without the fault, the same check must not name the kind. The kind is that of the case, but where
`FOUND_AS` says by which the auditor names it.
"""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from auditor import zoo
from auditor.faults.catalogue import FAULTS
from auditor.faults.planting import attentions, model_host, named, override, rotary
from auditor.faults.table import bad
from cases.support import CASES, case
from whereness.auditor.run import audit

pytestmark = [pytest.mark.more, pytest.mark.untyped, pytest.mark.timeout(300)]

Plant = Callable[[nn.Module], None]

FOUND_AS = {"P184": "K08"}
"""A bias that is lost where a cache is: the whole differs from its steps, whatever the encoding."""


def fallen_back(model):
    """A wrapper that drops the flag of the pairing turns neighbours."""
    for layer in attentions(model):
        override(layer, "pairs", lambda before, self, x: (x[..., ::2], x[..., 1::2]))
        override(layer, "joined", lambda before, self, u, v: torch.stack([u, v], -1).flatten(-2))


def grown_from_the_start(model):
    """A table of dynamic NTK that is made once, for the largest length."""
    table = rotary(model)
    width = 2 * len(table.inv_freq)
    longer = 4.0 ** (1 / (width - 2))
    for name in ("inv_freq", "original_inv_freq"):
        pairs = torch.arange(width // 2)
        setattr(table, name, getattr(table, name) * longer ** (-2.0 * pairs))
    override(table, "forward", fixed)


def fixed(before, self, x, position_ids):
    angles = position_ids[:, :, None].float() * self.inv_freq
    angles = torch.cat([angles, angles], -1)
    return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def no_bias_beside_a_cache(model):
    def forward(before, self, x, positions, visible, cache, earlier):
        self.cached = cache is not None
        return before(x, positions, visible, cache, earlier)

    def biased(before, self, scores, *where):
        return scores if self.cached else before(scores, *where)

    for layer in attentions(model):
        override(layer, "forward", forward)
        override(layer, "biased", biased)


def distances_without_their_sign(model):
    for module in model.encoder.modules():
        if hasattr(module, "relative_attention_bias"):
            right = type(module)._relative_position_bucket

            def bucket(before, self, relative_position, right=right, **keywords):
                return right(relative_position.abs(), **keywords)

            override(module, "_relative_position_bucket", bucket)


def half_a_pixel_outside_the_bracket(model):
    """(x + 1) / N - 0.5 where (x + 0.5) / N is meant: rows and columns are no longer centred."""
    (module,) = named(model, "RopePositionEmbedding")

    def forward(before, self, pixel_values):
        rows, columns = (size // self.config.patch_size for size in pixel_values.shape[-2:])
        at = [2 * ((torch.arange(n) + 1) / n - 0.5) - 1 for n in (rows, columns)]
        grid = torch.stack(torch.meshgrid(*at, indexing="ij"), -1).flatten(0, 1)
        angles = 2 * torch.pi * grid[:, :, None] * self.inv_freq
        angles = angles.flatten(1).tile(2)
        return angles.cos().to(pixel_values.dtype), angles.sin().to(pixel_values.dtype)

    override(module, "forward", forward)


def of_the_catalogue(fault: str) -> tuple[str, Plant]:
    return FAULTS[fault].host, FAULTS[fault].plant


PLANTS: dict[str, tuple[str, Plant, str]] = {
    "P008": ("own rotary", fallen_back, "channels"),
    "P032": (*of_the_catalogue("F016"), "spectrum"),
    "P033": ("llama with dynamic NTK", grown_from_the_start, "spectrum"),
    "P037": (*of_the_catalogue("F011"), "spectrum"),
    "P054": (*of_the_catalogue("F033"), "spectrum"),
    "P161": (*of_the_catalogue("F145"), "grids"),
    "P166": (*of_the_catalogue("F140"), "grids"),
    "P168": ("dinov3_vit", half_a_pixel_outside_the_bracket, "grids"),
    "P184": ("own buckets", no_bias_beside_a_cache, "cache"),
    "P192": ("t5", distances_without_their_sign, "bias"),
    "P229": (*of_the_catalogue("F234"), "spectrum"),
}
"""Case -> its host, what breaks it, and the check that finds it."""


def kinds(host: str, plant: Plant | None, check: str) -> set[str]:
    model = model_host(host)
    if plant is not None:
        plant(model)
    report = audit(zoo.with_inputs(host, model), checks=[check])
    return {found.kind for found in bad(report)}


@pytest.mark.parametrize("id_", PLANTS)
def test_the_fault_of_a_case_is_found_with_its_kind(id_):
    @case(id_)
    def found() -> None:
        host, plant, check = PLANTS[id_]
        kind = FOUND_AS.get(id_, CASES[id_]["kind"])
        assert kind not in kinds(host, None, check)
        assert kind in kinds(host, plant, check)

    found()
