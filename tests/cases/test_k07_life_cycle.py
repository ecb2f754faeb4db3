"""K07: meta devices, files, copies and modes give the same table; derived keys are not required."""

import copy
import io
import pickle  # noqa: TID251 (that modules survive it is what a case asks for)

import pytest
import torch
from torch import nn

import whereness as wn
from cases.support import (
    ALL,
    HEAD_DIM,
    HEADS,
    LEARNED,
    MAKERS,
    REACH,
    bitwise,
    case,
    differ,
    equal,
    model,
    scribbled,
    tokens,
)
from processes import python

POISONS = (float("nan"), 1e30, 6.9e-18)


def poisoned(module: nn.Module, value: float) -> nn.Module:
    """What uninitialised memory may hold, in every parameter and buffer."""
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.fill_(value if tensor.is_floating_point() else -(2**40))
    return module


@case("P075")
@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("name", ALL)
def test_meta_then_empty_then_load_equals_a_normal_build(name, poison):
    normal, ids = model(name), tokens(9)
    with torch.device("meta"):
        sharded = model(name)
    assert all(p.is_meta for p in sharded.parameters())
    sharded = poisoned(sharded.to_empty(device="cpu"), poison)
    sharded.load_state_dict(normal.state_dict())
    bitwise(sharded(ids), normal(ids))


@case("P075")
@pytest.mark.parametrize("name", ALL)
def test_weights_assigned_to_a_meta_model_are_all_it_needs(name):
    normal, ids = model(name), tokens(9)
    with torch.device("meta"):
        sharded = model(name)
    sharded.load_state_dict(normal.state_dict(), assign=True)
    bitwise(sharded(ids), normal(ids))


@case("P075")
def test_a_table_from_a_meta_device_starts_at_frequency_one():
    with torch.device("meta"):
        rope, sinusoidal, alibi = wn.RoPE(HEAD_DIM), wn.Sinusoidal(8), wn.ALiBi(8)
    for made in (rope, sinusoidal):
        made.to_empty(device="cpu")
        assert made.frequencies.device.type == "cpu"
        bitwise(made.frequencies, 10_000.0 ** -(torch.arange(4, dtype=torch.float64) / 4))
    assert alibi.slopes.tolist() == [2.0**-n for n in range(1, 9)]


@case("P076")
@pytest.mark.parametrize("name", LEARNED)
def test_reset_parameters_repairs_every_parameter(name):
    with torch.device("meta"):
        encoding = MAKERS[name]()
    encoding = poisoned(encoding.to_empty(device="cpu"), float("nan"))
    torch.manual_seed(3)
    encoding.reset_parameters()
    torch.manual_seed(3)
    fresh = MAKERS[name]()
    torch.manual_seed(3)
    fresh.reset_parameters()
    for ours, theirs in zip(encoding.parameters(), fresh.parameters(), strict=True):
        bitwise(ours, theirs)


@case("P076")
def test_a_combination_repairs_its_members():
    both = wn.Combined([wn.T5(HEADS), wn.LearnedRelative(HEADS, 5)])
    poisoned(both, float("nan")).reset_parameters()
    assert all(p.isfinite().all() for p in both.parameters())


class Forgetful(wn.PositionalEncoding):
    """Has a parameter and nothing that initialises it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(3))


@case("P076")
def test_a_missing_initialiser_fails_loudly():
    with pytest.raises(NotImplementedError, match="Forgetful"):
        Forgetful().reset_parameters()


DERIVED = ("inv_freq", "freqs", "position_ids", "slopes", "pe", "relative_position_index")


@case("P080", "P084", "P152")
@pytest.mark.parametrize("name", ALL)
def test_a_file_holds_what_was_learned_and_nothing_derived(name):
    whole = model(name)
    state = whole.state_dict()
    assert set(state) == set(dict(whole.named_parameters()))
    assert all(t.is_floating_point() for t in state.values())
    assert not [key for key in state if key.rpartition(".")[2] in DERIVED]


class Old(nn.Module):
    """A model whose attention once kept tables in its files."""

    def __init__(self) -> None:
        super().__init__()
        self.rotary_emb = wn.RoPE(HEAD_DIM)
        self.embeddings = wn.LearnedAbsolute(4, REACH)


def old_state(**derived: torch.Tensor) -> dict[str, torch.Tensor]:
    homes = {"position_ids": "embeddings"}
    state = scribbled(Old()).state_dict()
    return {**state, **{f"{homes.get(n, 'rotary_emb')}.{n}": t for n, t in derived.items()}}


INV_FREQ = wn.RoPE(HEAD_DIM).frequencies


@case("P080")
def test_a_file_without_derived_keys_loads_strictly():
    fresh, state = Old(), old_state()
    fresh.load_state_dict(state, strict=True)
    bitwise(fresh.embeddings.table, state["embeddings.table"])


@case("P080")
@pytest.mark.parametrize("name", ["inv_freq", "freqs"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_file_with_the_right_frequencies_loads_strictly(name, dtype):
    fresh, state = Old(), old_state(**{name: INV_FREQ.to(dtype)})
    fresh.load_state_dict(state, strict=True)
    bitwise(fresh.embeddings.table, state["embeddings.table"])
    assert f"rotary_emb.{name}" not in fresh.state_dict()


@case("P080")
@pytest.mark.parametrize("wrong", [INV_FREQ / 8, INV_FREQ[:-1], INV_FREQ * float("nan")])
def test_wrong_frequencies_in_a_file_do_not_pass_in_silence(wrong):
    """Warnings are errors in these tests, so either will do."""
    with pytest.raises((ValueError, RuntimeError, UserWarning), match="inv_freq"):
        Old().load_state_dict(old_state(inv_freq=wrong), strict=True)


@case("P084")
@pytest.mark.parametrize("shape", [(REACH,), (1, REACH)])
def test_a_file_with_counted_position_ids_loads_strictly(shape):
    ids = torch.arange(REACH).reshape(shape)
    fresh, state = Old(), old_state(position_ids=ids)
    fresh.load_state_dict(state, strict=True)
    bitwise(fresh.embeddings.table, state["embeddings.table"])
    assert "embeddings.position_ids" not in fresh.state_dict()


@case("P084", "P152")
def test_position_ids_that_do_not_count_are_an_error_that_names_the_first_wrong_row():
    ids = torch.arange(REACH)
    ids[[7, 9]] = ids[[9, 7]]
    with pytest.raises((ValueError, RuntimeError), match=r"position_ids.*\b7\b"):
        Old().load_state_dict(old_state(position_ids=ids), strict=True)


@case("P082")
@pytest.mark.parametrize("name", ALL)
def test_inference_mode_leaves_nothing_that_training_trips_over(name):
    whole, ids = model(name), tokens(8, batch=2)
    with torch.inference_mode():
        seen = whole(ids)
        whole(ids[:, :3], caches=whole.new_caches())
    whole.train()
    loss = nn.functional.cross_entropy(whole(ids).transpose(1, 2), ids)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in whole.parameters())
    equal(whole.eval()(ids), seen.clone())


@case("P083")
@pytest.mark.parametrize("name", ALL)
def test_pickle_deepcopy_and_torch_save_keep_the_output(name):
    whole, ids = model(name), tokens(8)
    file = io.BytesIO()
    torch.save(whole, file)
    file.seek(0)
    copies = {
        "pickle": pickle.loads(pickle.dumps(whole)),
        "deepcopy": copy.deepcopy(whole),
        "torch.save": torch.load(file, weights_only=False),
    }
    expected = whole(ids)
    for how, twin in copies.items():
        bitwise(twin(ids), expected)
        shared = twin.blocks[0].attention.encoding
        assert shared is twin.encodings[0], how
        assert shared is not whole.encodings[0], how
    # A copy is its own: what happens to it does not reach the original.
    poisoned(copies["deepcopy"], 0.0)
    bitwise(whole(ids), expected)


@case("P083")
def test_what_goes_with_a_model_survives_as_well():
    whole, ids = model("t5"), tokens(8)
    caches = whole.new_caches()
    with torch.no_grad():
        whole(ids[:, :5], caches=caches)
        expected = whole(ids)[:, 5:]
    for twins in (pickle.loads(pickle.dumps(caches)), copy.deepcopy(caches)):
        equal(whole(ids[:, 5:], caches=twins), expected)
    where = wn.Where(torch.arange(4), key_mask=torch.tensor([0, 1, 1, 1]), lengths=4)
    for twin in (pickle.loads(pickle.dumps(where)), copy.deepcopy(where)):
        bitwise(twin.positions, where.positions)
        bitwise(twin.key_mask, where.key_mask)
    at = whole.encodings[0].prepare(torch.arange(4))
    bitwise(pickle.loads(pickle.dumps(at)).bias(), at.bias())
    schedule = copy.deepcopy(wn.schedules.every(2, wn.NoPE(), wn.RoPE(HEAD_DIM)))
    assert [type(e) for e in schedule.layers(2)] == [wn.RoPE, wn.NoPE]


@case("P083")
@pytest.mark.untyped
def test_another_process_can_unpickle_a_model(tmp_path):
    """What `spawn` does: a fresh interpreter that knows the library alone."""
    ids, wholes = tokens(8), [model(name) for name in ("rope", "learned", "t5")]
    path = tmp_path / "models.pickle"
    path.write_bytes(pickle.dumps((ids, wholes, [whole(ids) for whole in wholes])))
    code = (
        "import pickle, sys, torch; torch.set_num_threads(1)\n"
        "ids, wholes, expected = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(all(torch.equal(w(ids), e) for w, e in zip(wholes, expected)))"
    )
    done = python("-W", "ignore", "-c", code, path)
    assert done.stdout == "True\n", done.stderr


@case("P084")
@pytest.mark.parametrize("name", ["learned", "rope"])
def test_weights_alone_load_strictly_in_both_directions(name):
    old, new, ids = model(name), scribbled(model(name), seed=9), tokens(8)
    differ(old(ids), new(ids))
    new.load_state_dict(old.state_dict(), strict=True)
    bitwise(new(ids), old(ids))
