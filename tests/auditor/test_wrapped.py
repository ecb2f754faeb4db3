"""Models as people have them: wrapped, half trained, broken. Told as they are, never changed."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from auditor.small import Model, Ways
from auditor.toys import outcome
from whereness.auditor.findings import Report

pytestmark = pytest.mark.untyped  # the auditor's parts are typed in their own tests
CHECKS = ["state", "layers", "spectrum", "shift", "warp", "paths", "life"]


def model() -> Model:
    return Model(Ways())


class Handing(Model):
    """Derived, with a forward pass that names nothing."""

    def __init__(self) -> None:
        super().__init__(Ways())

    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


class Around(nn.Module):
    """As adapters wrap a model."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


class Dropping(Handing):
    """Dropout that does not ask whether it is training."""

    def forward(self, *args, **kwargs):
        return F.dropout(super().forward(*args, **kwargs), 0.5)


class Writing(Handing):
    """Changes its own weights whenever it is run."""

    def forward(self, *args, **kwargs):
        with torch.no_grad():
            self.embed.weight.mul_(1.01)
        return super().forward(*args, **kwargs)


class Bad(Handing):
    @property
    def config(self):
        raise RuntimeError("two\nlines")


WRAPPED = {
    "derived": Handing,
    "wrapped": lambda: Around(model()),
    "wrapped twice": lambda: Around(Around(model())),
    "data parallel": lambda: nn.DataParallel(model()),
    "compiled": lambda: torch.compile(model(), backend="eager"),
    "config raises": Bad,
}


@pytest.mark.parametrize("name", WRAPPED)
def test_what_wraps_a_model_hides_nothing(name):
    plain = outcome(model(), checks=CHECKS)
    report = outcome(WRAPPED[name](), checks=CHECKS)
    assert isinstance(plain, Report)
    assert isinstance(report, Report), report
    assert [each.speeds for each in report.layers] == [each.speeds for each in plain.layers]
    assert {said.what for said in report.compared} == {said.what for said in plain.compared}
    assert not report.of("error")


def test_gradients_of_a_training_step_are_no_obstacle_and_stay():
    trained = model()
    trained(torch.arange(4)[None]).square().sum().backward()
    kept = {
        name: (each.grad, each.grad.clone())
        for name, each in trained.named_parameters()
        if each.grad is not None
    }
    report = outcome(trained, checks=[*CHECKS, "casts"])
    assert isinstance(report, Report)
    assert not [said for said in report.not_checked if "fault of whereness" in said.why]
    assert {"CHK8", "CHK19"} <= {said.check for said in report.compared}
    for name, each in trained.named_parameters():
        if name in kept:
            assert each.grad is kept[name][0]
            assert torch.equal(each.grad, kept[name][1])


def test_a_model_that_writes_into_its_weights_is_told_and_put_back():
    writing = Writing()
    before = writing.embed.weight.detach().clone()
    report = outcome(writing)
    assert isinstance(report, Report)
    assert [(f.check, f.kind, f.where) for f in report.of("error")] == [
        ("CHK19", "K05", "embed.weight")
    ]
    assert not report.compared
    assert torch.equal(writing.embed.weight, before)


@pytest.mark.parametrize("share", ["one", "all"])
def test_nan_is_one_finding(share):
    broken = model()
    for weight in broken.parameters() if share == "all" else [broken.blocks[1].out.weight]:
        weight.data.fill_(float("nan"))
    report = outcome(broken)
    assert isinstance(report, Report)
    assert [(f.check, f.kind) for f in report.of("error")] == [("CHK9", "K07")]
    assert report.exit_status() == 1
    assert not [said for said in report.not_checked if "fault of whereness" in said.why]


def test_random_numbers_are_not_taken_for_faults_of_position():
    report = outcome(Dropping(), checks=CHECKS)
    assert isinstance(report, Report)
    assert not report.of("error")
    assert [f.kind for f in report.findings if "random" in f.measured] == ["K05"]
    assert [each.classified for each in report.layers] == ["relative"] * 2
    assert "CHK3" in {said.check for said in report.not_checked if "random" in said.why}


def test_layers_that_begin_at_zero_are_not_taken_for_deaf_ones():
    fresh = model()
    for block in fresh.blocks:
        nn.init.zeros_(block.out.weight)
        nn.init.zeros_(block.out.bias)
    report = outcome(fresh, checks=CHECKS)
    assert isinstance(report, Report)
    assert not report.of("error")
    assert any("zero throughout" in said.why for said in report.not_checked)


def test_a_vocabulary_of_one():
    small = model()
    small.embed = nn.Embedding(1, small.embed.embedding_dim)
    report = outcome(small, checks=CHECKS)
    assert isinstance(report, Report)
    assert not report.of("error")


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return nn.TransformerEncoderLayer(8, 2, batch_first=True)


def in_inference() -> nn.Module:
    with torch.inference_mode():
        return model()


UNUSABLE = {
    "meta": (on_meta, "meta device"),
    "inference": (in_inference, "inference mode"),
    "lazy": (lambda: nn.Sequential(nn.Embedding(5, 4), nn.LazyLinear(4)), "no shape yet"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_weights_without_values_are_one_line(name):
    make, says = UNUSABLE[name]
    line = outcome(make())
    assert isinstance(line, str)
    assert says in line
    assert "\n" not in line
