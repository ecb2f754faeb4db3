import pytest
import torch

from whereness.lab.model import build, positional
from whereness.lab.reach import untrained_beyond

TEXT = torch.randint(256, (500,), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["learned", "relative_add", "relative_multiply", "shaw", "t5"])
def test_tables_longer_than_the_training_texts_are_found_out(result_of, name):
    assert result_of(name)["untrained_beyond"] == 8


def test_rows_shared_by_far_offsets_are_trained(result_of):
    # Shaw has rows up to offset 16.
    assert result_of("shaw", train_length=20, lengths=(20, 40))["untrained_beyond"] is None


@pytest.mark.parametrize("name", ["nope", "integer", "binary", "sinusoidal", "alibi", "rope"])
def test_encodings_without_parameters_have_none_untrained(result_of, name):
    assert result_of(name)["untrained_beyond"] is None


def test_the_training_length_need_not_be_evaluated(result_of):
    assert result_of("learned", lengths=(16,))["untrained_beyond"] == 8


@pytest.mark.parametrize(("rows", "wanted"), [(8, 8), (15, 8), (16, 16), (31, 16), (32, None)])
def test_the_longest_length_whose_entries_were_all_trained(make_run, rows, wanted):
    run = make_run("learned", lengths=(8, 16, 32))
    model = build(run)
    (table,) = positional(model)
    reached = torch.arange(32)[:, None].expand_as(table) < rows
    assert untrained_beyond(model, TEXT, run.recipe, [reached]) == wanted
