"""Whatever a probe or a model does, the model is put back exactly."""

import pytest
import torch
from torch import nn

import whereness as wn
from whereness.auditor.driving.restore import in_float64, restored, written


class Odd(nn.Module):
    """A module with everything that a probe or a forward pass may change."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.linear.weight.requires_grad_(False)
        self.tied = self.linear
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.plain = torch.arange(3.0)
        self.seen = {"length": torch.zeros(1)}
        self.list = [1, 2]
        self.length = 3


def bits(tensor: torch.Tensor) -> bytes:
    """The values, NaN included."""
    return bytes(tensor.detach().contiguous().flatten().view(torch.uint8).tolist())


def state(model: nn.Module) -> dict:
    """All that must come back: objects by identity, values by bits."""
    found = {}
    for name, module in model.named_modules(remove_duplicate=False):
        found[name, "training"] = module.training
        found[name, "attributes"] = {k: id(v) for k, v in vars(module).items()}
        for key, value in vars(module).items():
            if isinstance(value, dict):
                found[name, key] = {k: id(v) for k, v in value.items()}
            elif isinstance(value, list):
                found[name, key] = list(value)
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [m.plain for m in model.modules() if hasattr(m, "plain")]
    found["values"] = [
        (t.data_ptr(), t.dtype, t.requires_grad, id(t.grad), bits(t)) for t in tensors
    ]
    found["random"] = torch.get_rng_state().tolist()
    found["type"] = torch.get_default_dtype()
    return found


def cast(model):
    model.bfloat16()


def double_and_break(model):
    model.double()
    raise RuntimeError("in the middle")


def retrain(model):
    model.train()
    model.requires_grad_()
    model.norm(torch.randn(5, 4)).sum().backward()


def poison(model):
    with torch.no_grad():
        model.table.fill_(torch.nan)
        model.plain.mul_(2)
        model.seen["length"].add_(1)
        model.norm.running_mean.add_(1)


def rebuild(model):
    model.table = torch.arange(9.0)
    model.plain = torch.arange(9.0)
    model.linear = nn.Linear(2, 2)
    model.linear.weight = nn.Parameter(torch.zeros(2, 2))


def forget(model):
    del model.table
    del model.plain
    del model.length
    model.new = 3
    model.list.append(4)
    model.seen.clear()
    model.seen["other"] = 1


def hook(model):
    model.register_forward_hook(lambda *_: None)
    model.linear.register_forward_pre_hook(lambda *_: None)
    model.forward = lambda x: x


def empty(model):
    model.to(device="meta")
    model.to_empty(device="cpu")


def switch(model):
    torch.manual_seed(99)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)


CHANGES = [cast, double_and_break, retrain, poison, rebuild, forget, hook, empty, switch]


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_every_change_is_undone(change):
    model = Odd().eval()
    before = state(model)
    try:
        with restored(model):
            change(model)
            assert state(model) != before
    except RuntimeError:
        assert change is double_and_break
    assert state(model) == before
    assert torch.is_grad_enabled()


def test_a_hook_that_is_removed_late_does_no_harm():
    model = Odd()
    with restored(model):
        handle = model.register_forward_hook(lambda *_: None)
    assert not model._forward_hooks
    handle.remove()
    handle = model.register_forward_hook(lambda *_: None)
    assert len(model._forward_hooks) == 1


def test_parameters_that_are_written_over_come_back():
    model = Odd()
    before = state(model)

    def break_off() -> None:
        with written(*model.parameters()):
            nn.init.ones_(model.linear.weight)
            raise KeyError

    with pytest.raises(KeyError):
        break_off()
    assert state(model) == before


@pytest.mark.parametrize("breaks", [False, True])
def test_a_model_in_float64_gets_its_own_tensors_back(breaks):
    torch.manual_seed(0)
    model = wn.Transformer(20, 16, 2, 2, [wn.Sinusoidal(16), wn.T5(2, 8, 16)]).eval()
    before, ids = state(model), torch.arange(5)[None]
    single = model(ids)
    try:
        with in_float64(model):
            assert model(ids).dtype == torch.float64
            torch.testing.assert_close(model(ids).float(), single)
            if breaks:
                raise KeyError
    except KeyError:
        assert breaks
    assert state(model) == before
    assert torch.equal(model(ids), single)


def test_a_model_that_refuses_float64_stays_as_it_was():
    class Refuses(nn.Linear):
        def _apply(self, *_, **__):
            raise ValueError("quantised")

    model = nn.Sequential(nn.Linear(2, 2), Refuses(2, 2))
    before = state(model)
    with pytest.raises(ValueError, match="quantised"), in_float64(model):
        raise AssertionError
    assert state(model) == before


class Settings:
    """A config object of the kind that models keep."""

    def __init__(self) -> None:
        self.attention = "eager"
        self.inner = {"base": 1}

    def to_dict(self) -> dict:
        return vars(self)


def test_a_models_config_comes_back():
    model = Odd()
    model.config = Settings()
    config = model.config
    with restored(model):
        model.config.attention = "sdpa"
        model.config.inner["base"] = 2
        model.config.more = 3
    assert model.config is config
    assert vars(config) == {"attention": "eager", "inner": {"base": 1}}


class Memory:
    """A cache of a model's own, no module and no config."""

    def __init__(self) -> None:
        self.rows = {"keys": [torch.zeros(2)]}
        self.length = 0


def test_what_lies_deep_inside_comes_back():
    model = Odd()
    model.memory = Memory()
    model.nested = {"global": {"base": [1, ({"deep": 1},)]}}
    model.memory.model = model.memory  # in a circle
    kept = model.memory
    with restored(model):
        model.memory.length = 5
        model.memory.rows["keys"][0].add_(1)
        model.memory.rows["keys"].append(torch.ones(2))
        model.nested["global"]["base"][1][0]["deep"] = 2
        model.table.note = 1
        model.linear.weight.note = 1
    assert model.memory is kept and kept.length == 0
    assert [row.tolist() for row in kept.rows["keys"]] == [[0.0, 0.0]]
    assert model.nested == {"global": {"base": [1, ({"deep": 1},)]}}
    assert not vars(model.table) and not vars(model.linear.weight)


def test_a_parameter_seen_another_way_comes_back():
    model = nn.Linear(4, 4)
    kept = model.weight.detach().clone()
    with restored(model):
        model.weight.data = model.weight.data.T
    assert torch.equal(model.weight, kept)
