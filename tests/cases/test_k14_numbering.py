"""K14: the start offset, the usable length and integer ids are derived and stated."""

import pytest
import torch

import whereness as wn
from cases.support import (
    ABSOLUTE,
    ALL,
    RELATIVE,
    Recorder,
    bitwise,
    case,
    differ,
    encoding,
    equal,
    model,
    scribbled,
    tokens,
)

PLACES = 77


def merged(state: dict[str, torch.Tensor], factor: float) -> dict[str, torch.Tensor]:
    """What merging models does to every tensor of a file: weigh, halve, and read again."""
    halves = {key: (t.float() * factor).half() for key, t in state.items()}
    return {key: halves[key].to(t.dtype) for key, t in state.items()}


@case("P152")
def test_the_fault_itself_loses_most_places():
    ids = torch.arange(PLACES)
    spoiled = merged({"ids": ids}, 0.583)["ids"]
    assert len(set(ids.tolist()) - set(spoiled.tolist())) > 30


@case("P152")
@pytest.mark.parametrize("name", ALL)
def test_ids_are_no_part_of_a_file_and_cannot_be_merged(name):
    whole, ids = model(name), tokens(9)
    state = whole.state_dict()
    assert not [key for key, t in state.items() if not t.is_floating_point()]
    where = wn.Where(torch.arange(9))
    whole.load_state_dict(merged(state, 0.583), strict=True)
    # Weights are what the merge made of them; places are what they were.
    bitwise(whole(ids), whole(ids, where=where))


@case("P152")
def test_a_merged_table_still_has_every_place():
    table = scribbled(wn.LearnedAbsolute(4, PLACES))
    before = table(torch.arange(PLACES)).clone()
    table.load_state_dict(merged(table.state_dict(), 0.583))
    rows = table(torch.arange(PLACES))
    assert len(rows.unique(dim=0)) == PLACES
    equal(rows, (before * 0.583).half().float(), 1e-6)


@case("P152")
def test_merged_ids_in_a_file_never_pass_in_silence():
    table = wn.LearnedAbsolute(4, PLACES)
    ids = (torch.arange(PLACES) * 0.583).half()
    for spoiled in (ids, ids.long(), torch.arange(PLACES) * -0.417):
        with pytest.raises((ValueError, RuntimeError, TypeError), match="position_ids"):
            table.load_state_dict({**table.state_dict(), "position_ids": spoiled}, strict=True)


@case("P153")
@pytest.mark.parametrize(("pad", "usable"), [(1, 8), (3, 6)])
def test_a_table_of_ten_rows_says_how_many_tokens_it_holds(pad, usable):
    """Numbering starts at pad + 1: the rows before it are no tokens' own."""
    table = scribbled(wn.LearnedAbsolute(4, usable, first_row=pad + 1))
    assert table.table.shape == (10, 4)
    assert table.num_positions == usable
    rows = table(torch.arange(usable))
    bitwise(rows, table.table[pad + 1 :].detach())
    with pytest.raises(ValueError, match=f"positions below {usable}, got .*{usable}"):
        table(torch.tensor([usable]))
    with pytest.raises(ValueError, match=r"got \[-1\]"):
        table(torch.tensor([-1]))


@case("P153")
def test_a_model_refuses_the_first_token_too_many():
    whole = model(wn.LearnedAbsolute(32, 8, first_row=2))
    whole(tokens(8))
    with pytest.raises(ValueError, match="positions below 8"):
        whole(tokens(9))


@case("P155")
@pytest.mark.parametrize("name", ALL)
def test_numbering_starts_at_0(name):
    whole, ids = model(name), tokens(6)
    equal(whole(ids), whole(ids, where=torch.arange(6)))
    equal(whole(ids), whole(ids, where=torch.arange(6, dtype=torch.int32)))


@case("P155")
def test_the_default_ids_are_0_based_integers():
    recorder = Recorder()
    model(recorder)(tokens(4))
    assert recorder.seen == [[[0, 1, 2, 3]]]
    assert wn.positions.from_mask(torch.ones(1, 3, dtype=torch.bool)).tolist() == [[0, 1, 2]]
    assert wn.positions.packed([2]).tolist() == [0, 1]
    assert wn.positions.grid(1, 2).tolist() == [[0, 0], [0, 1]]
    assert wn.positions.packed([2]).dtype == torch.int64


@case("P155")
@pytest.mark.parametrize("shift", [1, 7])
@pytest.mark.parametrize("name", [*RELATIVE, *ABSOLUTE])
def test_a_uniform_shift_matters_only_where_it_should(name, shift):
    whole, ids = model(name), tokens(6)
    found = whole(ids, where=torch.arange(6) + shift)
    if name in RELATIVE:
        equal(found, whole(ids))
    else:
        differ(found, whole(ids))


@case("P155")
@pytest.mark.parametrize("name", ALL)
def test_what_the_encoding_says_of_itself_is_true(name):
    assert encoding(name).relative == (name in RELATIVE or name == "nope")
