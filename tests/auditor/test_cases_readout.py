"""Public reports whose fault a read-out of the live layers names: the case planted in a model."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from auditor import zoo
from auditor.faults.hosts import Decoder
from auditor.faults.own import OWN, own
from auditor.small import Model, Ways, speeds, turned
from auditor.subjects_of import bad, config_of, kinds, read_out, subject_of
from cases.support import case
from whereness.auditor.reading.capture import observe
from whereness.auditor.subject import Subject

pytestmark = pytest.mark.untyped  # the checks are typed in test_checks_readout

PARTIAL = config_of(model_type="stablelm", partial_rotary_factor=0.5)


def found_in(turn: Any, config: dict[str, Any], **ways: Any) -> set[str]:
    return kinds(read_out(Model(Ways(turn=turn, **ways)), config))


def yarn_rates(fast: float, slow: float, *, whole: bool = True) -> Tensor:
    """YaRN by 4 from 512 of the 4 pairs of 8 channels, base 1e4."""
    low, high = (
        8 * math.log(512 / (turns * 2 * math.pi)) / (2 * math.log(1e4)) for turns in (fast, slow)
    )
    if whole:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 7)
    ramp = ((torch.arange(4.0).double() - low) / max(high - low, 1e-3)).clamp(0, 1)
    return speeds() / 4 * ramp + speeds() * (1 - ramp)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


def mixed(x: Tensor, positions: Tensor) -> Tensor:
    """A table for halves, neighbours turned."""
    angles = (positions[:, None, :, None].double() * speeds().repeat(2)).to(x.dtype)
    other = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return x * angles.cos() + other * angles.sin()


def first_head(x: Tensor, positions: Tensor) -> Tensor:
    return torch.cat([mixed(x[:, :1], positions), x[:, 1:]], 1)


@case("P001")
def test_table_and_rotation_of_two_layouts():
    assert "K01" in found_in(mixed, config_of())
    assert "K01" in found_in(first_head, config_of())


@case("P004")
@pytest.mark.parametrize("projections", ["three", "fused", "grouped"])
def test_the_pairing_is_followed_through_any_projection(projections):
    turn = partial(turned, pairing="interleaved")
    keys = {"num_key_value_heads": 2} if projections == "grouped" else {}
    assert found_in(turn, config_of(**keys), projections=projections) == {"K01"}
    sound = config_of(model_type="cohere", **keys)
    assert found_in(turn, sound, projections=projections) == set()


@case("P009", "P040")
@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_pairing_and_width_are_told_together(pairing, width):
    turn = partial(turned, pairing=pairing, rates=speeds(width=width))
    (first, _) = observe(subject_of(Model(Ways(turn=turn))))
    assert (first.pairing, first.rotary_dim) == (pairing, width)
    wrong = partial(turned, pairing=pairing, rates=speeds(width=8)[: width // 2])
    if width == 4 and pairing == "half":
        assert found_in(wrong, PARTIAL) == {"K03"}  # exponents of the whole head


@case("P012")
def test_halves_with_permuted_weights_are_no_fault():
    assert found_in(turned, config_of()) == set()


@case("P014")
def test_a_helper_that_turns_the_other_way():
    assert found_in(lambda x, p: turned(x, -p), config_of()) == {"K01"}


@case("P015", "P016")
def test_a_default_base_in_place_of_the_configs():
    found = bad(read_out(Model(Ways()), config_of(rope_theta=5e5)))
    assert {f.kind for f in found} == {"K02"}
    assert "base is 10000" in found[0].cause


@case("P018")
def test_a_scaling_that_is_never_read():
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    }
    found = bad(read_out(Model(Ways()), config_of(rope_scaling=scaling)))
    assert {f.kind for f in found} == {"K02"}
    assert "no effect" in found[0].cause


@case("P020")
def test_a_scaling_of_some_layers_that_none_has():
    config = config_of(
        model_type="gemma3_text",
        layer_types=["full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        sliding_window=200,
    )
    found = [f for f in bad(read_out(Model(Ways()), config)) if f.check == "CHK1"]
    assert [(f.kind, f.layer) for f in found] == [("K02", 0)]


@case("P024")
def test_a_factor_made_of_two_lengths():
    turn = partial(turned, rates=yarn_rates(32, 1), amplitude=0.1 * math.log(4) + 1)
    assert found_in(turn, config_of(rope_scaling=YARN)) == set()
    assert found_in(turn, config_of(rope_scaling={**YARN, "factor": 2.0})) >= {"K02"}


@case("P026")
def test_a_ramp_that_is_rounded_where_the_config_says_not_to():
    scaling = {**YARN, "truncate": False, "attention_factor": 1.0}
    exact = partial(turned, rates=yarn_rates(32, 1, whole=False))
    rounded = partial(turned, rates=yarn_rates(32, 1))
    assert found_in(exact, config_of(rope_scaling=scaling)) == set()
    assert found_in(rounded, config_of(rope_scaling=scaling)) == {"K02"}


@case("P029")
def test_fast_and_slow_exchanged():
    scaling = {**YARN, "attention_factor": 1.0}
    turn = partial(turned, rates=yarn_rates(1, 32))
    assert found_in(turn, config_of(rope_scaling=scaling)) == {"K02"}


@case("P038")
def test_a_partial_width_that_is_never_read():
    assert found_in(turned, PARTIAL) == {"K03"}


@case("P048")
@pytest.mark.more
def test_the_scale_of_scores_lacks_its_factor():
    rope = {**YARN, "rope_theta": 1e4, "mscale": 1.0, "mscale_all_dim": 1.0}
    told = {"rope_parameters": rope, "max_position_embeddings": 2048}
    model, config = zoo.build("deepseek_v3", {**vars_of("deepseek_v3"), **told})
    assert kinds(read_out(model, config.to_dict())) == set()
    for layer in model.model.layers:
        layer.self_attn.scaling = layer.self_attn.qk_head_dim**-0.5
    assert kinds(read_out(model, config.to_dict())) == {"K04"}


def vars_of(name: str) -> dict[str, Any]:
    return dict(zoo.ARCHITECTURES[name].keys or {})


@case("P062", "P063")
def test_frequencies_that_were_rounded_to_bfloat16():
    turn = partial(turned, rates=speeds().bfloat16().double())
    found = bad(read_out(Model(Ways(turn=turn)), config_of()))
    assert {f.kind for f in found} == {"K06"}
    assert "bfloat16" in found[0].cause


@case("P069")
def test_slopes_that_were_rounded_to_bfloat16():
    config, rules = OWN["own alibi of 6"]  # up to 8 heads have powers of two, which all types hold
    rules = replace(rules, heads=12, key_heads=12, width=192)
    model = Decoder({**config, "hidden_size": 192, "n_head": 12}, rules)
    assert kinds(read_out(model, model.config)) == set()
    for block in model.layers:
        before = block.self_attn.slopes
        block.self_attn.slopes = lambda before=before: before().bfloat16().float()
    assert kinds(read_out(model, model.config)) == {"K06"}


@case("P144")
def test_ids_that_are_not_handed_down():
    assert found_in(turned, config_of(), takes_ids=False) == {"K13"}


@case("P146")
def test_a_rotation_along_the_heads():
    def along_heads(x: Tensor, positions: Tensor) -> Tensor:
        heads = torch.arange(x.shape[1])[None].expand(len(x), -1)
        return turned(x.transpose(1, 2), heads).transpose(1, 2)

    assert found_in(along_heads, config_of()) == {"K13"}


@case("P150")
def test_keys_turned_by_other_positions_than_the_queries():
    assert found_in(turned, config_of(), turn_keys=lambda x, p: x) >= {"K23"}
    assert found_in(turned, config_of(), turn_keys=lambda x, p: turned(x, p.flip(1))) & {
        "K02",
        "K13",
        "K06",
        "K01",
    }


@case("P152")
@pytest.mark.more
def test_an_id_table_that_was_averaged():
    model, config = zoo.build("bert")
    ids = dict(model.named_buffers())["embeddings.position_ids"]
    ids[0, 5] = 4
    found = bad(read_out(model, config.to_dict()))
    assert {f.kind for f in found} == {"K14"}
    assert "position 5 reads row 4" in found[0].measured


@case("P155")
def test_a_first_position_of_one_matters_for_tables_alone():
    assert found_in(lambda x, p: turned(x, p + 1), config_of()) == set()
    model = own("own learned")
    before = model.wpe.forward
    model.wpe.forward = lambda positions: before(positions + 1)
    assert "K14" in kinds(read_out(model, model.config))


@case("P156", "P157", "P159")
@pytest.mark.more
def test_axes_and_cells_of_grids():
    model, config = zoo.build("qwen2_vl_text")
    before = model.rotary_emb.forward
    model.rotary_emb.forward = lambda x, ids: before(x, ids[[0, 2, 1]])
    assert kinds(read_out(model, config.to_dict())) == {"K15"}


@case("P163")
@pytest.mark.more
def test_ids_of_one_axis_for_all():
    model, config = zoo.build("qwen2_vl_text")
    before = model.rotary_emb.forward
    model.rotary_emb.forward = lambda x, ids: before(x, ids[:1].expand(ids.shape))
    assert kinds(read_out(model, config.to_dict())) == {"K15"}


def alibi_found(change: Any, name: str = "own alibi") -> set[str]:
    model = own(name)
    for block in model.layers:
        change(block.self_attn)
    return kinds(read_out(model, model.config))


@case("P174")
def test_one_geometric_series_for_six_heads():
    def series(layer: Any) -> None:
        layer.slopes = lambda: torch.tensor([2 ** (-8 * (h + 1) / 6) for h in range(6)])

    assert alibi_found(series, "own alibi of 6") == {"K17"}


@case("P176")
def test_a_bias_that_grows_with_distance():
    def grows(layer: Any) -> None:
        before = layer.falling
        layer.falling = lambda behind: -before(behind)

    assert alibi_found(grows) == {"K17"}


@case("P177", "P189")
def test_a_bias_of_keys_alone_is_the_same_under_a_causal_mask():
    def keys_alone(layer: Any) -> None:
        before = layer.falling

        def falling(behind: Tensor) -> Tensor:
            return before(behind - behind[..., :1])  # less a number a row

        layer.falling = falling

    assert alibi_found(keys_alone) == set()


@case("P180")
def test_a_bias_that_counts_from_the_first_key():
    def unmoved(layer: Any) -> None:
        before = layer.falling

        def falling(behind: Tensor) -> Tensor:
            queries, keys = behind.shape[-2:]
            slots = torch.arange(queries)[:, None] - torch.arange(keys)
            return before(slots.abs().expand(behind.shape))

        layer.falling = falling

    assert "K17" in alibi_found(unmoved)


def buckets_found(change: Any) -> set[str]:
    return {found.kind for found in bad(buckets_read(change))}


def buckets_read(change: Any) -> Subject:
    model = own("own buckets")
    for layer in model.modules():
        if hasattr(layer, "relative_attention_bias"):
            before = layer.buckets
            layer.buckets = lambda behind, before=before: change(behind, before)
    return read_out(model, model.config)


@case("P182")
def test_buckets_by_another_logarithm():
    def other(behind: Tensor, before: Any) -> Tensor:
        behind = behind.clamp(min=0)
        far = 16 + (behind.clamp(min=1) / 16).log2() / math.log(128 / 16) * 16
        return torch.where(behind < 16, behind, far.long().clamp(max=31))

    found = bad(buckets_read(other))
    assert {f.kind for f in found} == {"K18"}
    assert all("their bias" in f.measured for f in found)  # told without the table


@case("P185", "P188")
def test_rows_that_are_shifted_wrongly():
    def shifted(behind: Tensor, before: Any) -> Tensor:
        return before((behind + torch.arange(behind.shape[-2])[:, None] % 3).clamp(min=0))

    assert buckets_found(shifted) == {"K18"}


def test_offsets_of_the_other_sign():
    assert buckets_found(lambda behind, before: before(127 - behind)) == {"K18"}


@case("P218")
def test_a_layer_map_that_is_never_read():
    config = config_of(model_type="smollm3", no_rope_layers=[1, 0])
    found = bad(read_out(Model(Ways()), config))
    assert [(f.kind, f.layer) for f in found if f.check == "CHK20"] == [("K23", 1)]


@case("P221")
def test_a_layer_that_turns_twice():
    found = bad(read_out(Model(Ways(turn=lambda x, p: turned(turned(x, p), p))), config_of()))
    assert {f.kind for f in found} == {"K23"}
    assert "2 times" in found[0].cause


class Sinusoid(Model):
    """Rows by a formula of the test's choosing, added to the embeddings."""

    def __init__(self, rates: Tensor) -> None:
        super().__init__(Ways(turn=None))
        self.rates = rates
        self.embed.register_forward_hook(self.added)

    def added(self, module: Any, args: Any, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[1]).double()[:, None] * self.rates
        return x + torch.cat([at.sin(), at.cos()], -1).to(x.dtype)


MARIAN = {"model_type": "marian", "d_model": 32, "encoder_layers": 2, "decoder_layers": 2}


def sinusoid_found(rates: Tensor) -> list[Any]:
    from whereness.auditor.checks import tables

    subject = subject_of(Sinusoid(rates), MARIAN)
    for view in observe(subject):
        view.part = "decoder"
    tables.run(subject)
    return bad(subject)


@case("P223", "P225", "P228")
def test_sinusoids_of_other_formulas():
    assert sinusoid_found(speeds(width=32)) == []
    column = torch.tensor([1e4 ** (-2 * (2 * i) / 32) for i in range(16)])
    floored = torch.tensor([math.exp(2 * i * (-math.log(1e4) / 32 // 2)) for i in range(16)])
    other = torch.tensor([1e4 ** (-i / 15) for i in range(16)])
    for rates in (column, floored, other):
        assert [f.kind for f in sinusoid_found(rates.double())] == ["K24"]
    assert "dim-2" in sinusoid_found(other.double())[0].measured
