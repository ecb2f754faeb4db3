"""The runner: which checks run, in which order, and what is said of those that did not."""

import re
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import whereness as wn
from auditor.toys import outcome
from interop.toy import SMALL
from whereness.auditor import checks as checks_package
from whereness.auditor import run
from whereness.auditor.checks import CHECKS as TABLE
from whereness.auditor.checks import Check
from whereness.auditor.driving.drive import Refused
from whereness.auditor.findings import CHECKS
from whereness.auditor.run import audit, chosen


class Model(nn.Module):
    """Takes tokens; `fails` says from which call on it raises."""

    calls = 0  # of the class: attributes of the module are put back

    def __init__(self, fails: float = float("inf")):
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 20)
        self.norm = nn.BatchNorm1d(20)
        Model.calls, self.fails = 0, fails

    def forward(self, input_ids):
        Model.calls += 1
        if Model.calls > self.fails:
            raise IndexError("the model's own")
        found = self.head(self.table(input_ids))
        return self.norm(found.flatten(0, 1)).view_as(found)


@pytest.fixture
def checks(monkeypatch):
    """Register checks of functions: {name: (id, needs, function)}; returns the calls made."""

    def register(**named):
        table = []
        for name, (id_, needs, function) in named.items():
            module = types.ModuleType(f"whereness.auditor.checks.{name}")
            module.run = function  # type: ignore[missing-attribute]
            monkeypatch.setitem(sys.modules, module.__name__, module)
            table.append(Check(name, id_, needs))
        monkeypatch.setattr(run, "TABLE", tuple(table))

    return register


def not_checked(report, id_):
    return [each.why for each in report.not_checked if each.check == id_]


# Which checks


def test_every_check_is_accounted_for():
    report = audit(SMALL)
    spoken = {each.check for each in (*report.not_checked, *report.compared, *report.findings)}
    assert spoken == set(CHECKS)


@pytest.mark.parametrize("target", [SMALL, Model()], ids=["config", "model"])
def test_a_check_that_cannot_run_says_why(checks, target):
    checks(
        one=("CHK11", "config", lambda s: s.compared("CHK11", "keys")),
        two=("CHK9", "weights", lambda s: s.compared("CHK9", "buffers")),
        three=("CHK1", "model", lambda s: s.compared("CHK1", "spectrum")),
        four=("CHK12", "text", lambda s: s.compared("CHK12", "loss")),
    )
    report = audit(target)
    assert not_checked(report, "CHK12") == ["no text was given"]
    assert not_checked(report, "CHK2") == [run.NO_PROBE]
    model = target is not SMALL
    assert {c.check for c in report.compared} == ({"CHK1", "CHK9"} if model else {"CHK11"})
    assert not_checked(report, "CHK1") == ([] if model else ["the target is no live model"])
    assert not_checked(report, "CHK9") == ([] if model else ["there are no weights"])
    if model:
        assert not_checked(report, "CHK11") == ["the module has no config; give one as config="]


def test_half_of_a_check_may_be_left_out(checks):
    checks(
        static=("CHK8", "text", lambda s: None),
        dynamic=("CHK8", "model", lambda s: s.compared("CHK8", "casts")),
    )
    report = audit(Model())
    assert [each.what for each in report.compared] == ["casts"]
    assert not_checked(report, "CHK8") == ["no text was given"]


def test_only_the_checks_asked_for(checks):
    ran = []
    checks(
        one=("CHK11", "config", lambda s: ran.append(1)),
        two=("CHK1", "config", lambda s: ran.append(2)),
    )
    for names in (["spectrum"], ["CHK1"], ["Chk1", "SPECTRUM"]):
        ran.clear()
        report = audit(SMALL, checks=names)
        assert ran == [2]
        assert not_checked(report, "CHK11") == [run.UNASKED]


@pytest.mark.untyped
def test_names_of_checks():
    assert chosen(None) == set(CHECKS)
    with pytest.raises(ValueError, match="There is no check 'spectrm'. Did you mean 'spectrum'"):
        audit(SMALL, checks=["spectrm"])
    with pytest.raises(ValueError, match="There is no check 'CHK14'. Did you mean 'chk"):
        chosen(["CHK14"])
    with pytest.raises(TypeError, match="must be a list of names"):
        chosen("spectrum")
    with pytest.raises(ValueError, match="checks is empty"):
        chosen([])
    with pytest.raises(ValueError, match="There is no check '3'"):
        chosen([3])


def test_the_table_names_modules_that_run():
    assert {check.id for check in TABLE} <= set(CHECKS)
    assert len({check.module for check in TABLE}) == len(TABLE)


FILES = {"buffers": ("derived", "indices"), "rows": ("sinusoids",)}
"""Modules of `auditor.files` that say which check a finding is of."""


def test_the_table_names_every_check_that_a_module_speaks_for():
    home = Path(checks_package.__file__).parent
    for check in TABLE:
        files = [home.parent / "files" / f"{name}.py" for name in FILES.get(check.module, ())]
        spoken = set()
        for file in (home / f"{check.module}.py", *files):
            spoken |= set(re.findall(r'"(CHK\d+)"', file.read_text(encoding="utf-8")))
        assert spoken <= set(check.ids), check.module


def test_checks_run_in_the_order_of_the_table(checks):
    ran, told = [], []
    checks(
        b=("CHK3", "config", lambda s: ran.append("b")),
        a=("CHK1", "config", lambda s: ran.append("a")),
        c=("CHK2", "model", lambda s: ran.append("c")),
    )
    audit(SMALL, progress=lambda *step: told.append((*step, list(ran))))
    assert told == [(0, 2, "warp", []), (1, 2, "spectrum", ["b"]), (2, 2, "", ["b", "a"])]


def test_only_the_layers_asked_for():
    assert [each.index for each in audit(SMALL).layers] == [0, 1]
    assert [each.index for each in audit(SMALL, layers=[1]).layers] == [1]


def test_layers_that_are_not_there_are_no_clean_ones():
    last = len(audit(SMALL).layers) - 1
    with pytest.raises(ValueError, match=rf"no layer {last + 1}; the last one is {last}\."):
        audit(SMALL, layers=[last, last + 1])


# What goes wrong


def test_what_the_target_raises_ends_a_check_alone(checks):
    checks(
        one=("CHK2", "model", lambda s: s.model(torch.zeros(2, 3, dtype=torch.long))),
        two=("CHK3", "model", lambda s: s.compared("CHK3", "order")),
    )
    audit(Model())
    report = audit(Model(fails=Model.calls - 1))
    assert not_checked(report, "CHK2") == ["the target raised IndexError: the model's own"]
    assert [each.check for each in report.compared] == ["CHK3"]


def test_what_a_library_raises_within_the_target_is_the_targets(checks):
    def bad_shape(subject):
        subject.model.table.weight.data = torch.zeros(20, 7)
        subject.model(torch.zeros(2, 3, dtype=torch.long))

    checks(one=("CHK2", "model", bad_shape))
    report = audit(Model())
    assert not_checked(report, "CHK2")[0].startswith("the target raised RuntimeError: mat1")


def test_a_refusal_is_the_targets(checks):
    def refuse(_):
        raise Refused("no way")

    checks(one=("CHK2", "config", refuse))
    assert not_checked(audit(SMALL), "CHK2") == ["the target raised Refused: no way"]


def ours(_):
    """A fault of a check: raised from a file of the package itself."""
    wn.RoPE(7)


def test_a_fault_of_ours_is_told_as_one(checks, monkeypatch):
    checks(
        one=("CHK2", "config", ours),
        two=("CHK3", "config", lambda s: s.compared("CHK3", "order")),
    )
    with pytest.warns(RuntimeWarning, match="The check 'shift' failed: a fault of whereness"):
        report = audit(SMALL)
    (why,) = not_checked(report, "CHK2")
    assert why.startswith("a fault of whereness, ValueError:") and "base.py:" in why
    assert [each.check for each in report.compared] == ["CHK3"]
    monkeypatch.setenv("WHERENESS_TRACEBACK", "1")
    with pytest.raises(ValueError, match="7"):
        audit(SMALL)


def test_an_interrupt_ends_it(checks):
    def stop(_):
        raise KeyboardInterrupt

    checks(one=("CHK2", "config", stop))
    with pytest.raises(KeyboardInterrupt):
        audit(SMALL)


def test_a_model_that_cannot_run_is_no_target(checks):
    checks(one=("CHK2", "model", lambda s: None))
    with pytest.raises(ValueError, match=r"a Model: a plain forward pass fails .*the model's own$"):
        audit(Model(fails=0))
    checks(one=("CHK2", "config", lambda s: None))
    audit(Model(fails=0))  # nothing was to run it


def test_a_forward_pass_leaves_no_trace(checks):
    checks(one=("CHK2", "model", lambda s: None))
    model = Model().train()
    before = {name: (id(t), t.clone()) for name, t in model.state_dict(keep_vars=True).items()}
    random = torch.get_rng_state()
    audit(model)
    assert model.training and torch.equal(torch.get_rng_state(), random)
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert id(tensor) == before[name][0] and torch.equal(tensor, before[name][1]), name


def test_the_public_name():
    assert wn.audit is audit
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not isinstance(outcome(SMALL), str)
