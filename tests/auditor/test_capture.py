"""Every way to attend is seen, and seen alike; models come out as they went in."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from auditor.small import ATTENDS, HEADS, WIDTH, Model, Ways, speeds, turned
from auditor.subjects_of import bad, compared, config_of, kinds, read_out, subject_of
from whereness.auditor.reading.capture import observe
from whereness.auditor.reading.injecting import told_inputs
from whereness.auditor.reading.marks import MARK
from whereness.auditor.reading.stack import Stack
from whereness.auditor.reading.views import Observed
from whereness.auditor.reading.watch import Watch


def seen(model: nn.Module) -> Observed:
    return observe(subject_of(model))


@pytest.mark.parametrize("attend", ATTENDS)
@pytest.mark.parametrize("projections", ["three", "fused", "grouped"])
def test_every_way_to_multiply_is_seen(attend, projections):
    observed = seen(Model(Ways(attend, projections=projections)))
    assert [view.where for view in observed] == ["blocks.0", "blocks.1"]
    for view in observed:
        assert (view.heads, view.head_dim, view.classified) == (HEADS, 8, "relative")
        assert (view.pairing, view.rotary_dim) == ("half", 8)
        assert view.speeds == pytest.approx(speeds().tolist(), rel=3e-6)


@pytest.mark.parametrize("attend", ATTENDS)
def test_what_is_added_to_scores_is_read_exactly(attend):
    observed = seen(Model(Ways(attend, turn=None, slope=2.0)))
    for view in observed:
        assert view.classified == "relative"
        assert view.bias is not None
        wanted = -(2.0 ** -torch.arange(4.0))[:, None] * torch.arange(30.0).flip(0)
        row = view.bias.values[:, 29, :30].double()
        torch.testing.assert_close(row - row[:, -1:], wanted.double(), rtol=1e-9, atol=1e-9)


def test_masks_are_no_bias():
    for view in seen(Model(Ways(turn=None))):
        assert not view.biased
        assert view.classified == "none"


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("start", [0, 4])
def test_pairs_width_and_side_are_read(pairing, start):
    turn = partial(turned, rates=speeds(width=4), pairing=pairing, start=start)
    (view, _) = seen(Model(Ways(turn=turn)))
    assert view.pairing == pairing
    apart = 2 if pairing == "half" else 1
    first = (start, start + 1) if pairing == "half" else (start, start + 2)
    assert sorted(view.best[0].pairs()) == [(u, u + apart) for u in first]


def test_channels_are_those_of_the_weights():
    def shuffled(x: Tensor, positions: Tensor) -> Tensor:
        """Code that takes neighbours apart before it turns halves, as DeepSeek's does."""
        return turned(torch.cat([x[..., ::2], x[..., 1::2]], -1), positions)

    (view, _) = seen(Model(Ways(turn=shuffled)))
    assert view.best[0].basis.found.all()
    assert view.pairing == "interleaved"


def test_norms_before_the_rotation_are_seen_through():
    (view, _) = seen(Model(Ways(normed=True)))
    assert view.best[0].basis.found.all() and view.best[1].basis.found.all()
    torch.testing.assert_close(view.best[0].basis.ratio, torch.ones(4, 8, dtype=torch.float64))


def test_amplitude_is_read_at_position_0():
    turn = partial(turned, amplitude=1.13)
    (view, _) = seen(Model(Ways(turn=turn)))
    for side in view.best:
        torch.testing.assert_close(side.basis.ratio, torch.full((4, 8), 1.13).double())


def test_sequence_first_layouts():
    observed = seen(Model(Ways(sequence_first=True)))
    assert [view.classified for view in observed] == ["relative", "relative"]


class Torch(nn.Module):
    """torch's own encoder, with a sinusoid or without."""

    def __init__(self, rows_first: bool, table: bool) -> None:
        super().__init__()
        self.table = table
        self.embed = nn.Embedding(50, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, batch_first=rows_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.eval()

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        if self.table:
            at = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * speeds(width=WIDTH).to(x.dtype)
            x = x + torch.cat([at.sin(), at.cos()], -1)
        if not self.encoder.layers[0].self_attn.batch_first:
            return self.encoder(x.transpose(0, 1)).transpose(0, 1)
        return self.encoder(x)


@pytest.mark.parametrize("rows_first", [True, False], ids=["rows first", "sequence first"])
@pytest.mark.parametrize("table", [True, False], ids=["sinusoid", "none"])
def test_torch_encoders_are_opened(rows_first, table):
    torch.manual_seed(0)
    fast = torch.backends.mha.get_fastpath_enabled()
    observed = seen(Torch(rows_first, table))
    assert len(observed) == 2
    for view in observed:
        assert view.classified == ("absolute" if table else "none")
        assert view.heads == HEADS
    assert torch.backends.mha.get_fastpath_enabled() is fast
    assert len(observed.tables) == table


def test_a_table_at_the_input_is_caught_row_by_row():
    model = Torch(True, True)
    (table,) = seen(model).tables
    at = torch.arange(len(table.rows)).double()[:, None] * speeds(width=WIDTH)
    torch.testing.assert_close(table.rows, torch.cat([at.sin(), at.cos()], -1), rtol=0, atol=1e-9)


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.q = nn.Embedding(50, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.eval()

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        scores = (self.q(x)[:, :, None] * x[:, None]).sum(-1)  # no product that can be told
        return x + scores.softmax(-1) @ x


def test_attention_that_cannot_be_seen_is_not_passed_over():
    subject = read_out(Scripted())
    assert subject.shared["observed"].unseen == 1
    said = [each.why for each in subject.report.not_checked]
    assert any("could not be read as attention" in why or "no attention" in why for why in said)


class Content(Model):
    """Adds what a query makes of learned rows for its offsets, as Shaw's does."""

    def __init__(self) -> None:
        super().__init__(Ways(turn=None))
        self.rows = nn.Parameter(torch.randn(7, 8))
        for block in self.blocks:
            block.forward = self.attended(block)

    def attended(self, block: nn.Module):
        def forward(x: Tensor, positions: Tensor) -> Tensor:
            q, k, v = block.projected(x)
            offsets = (positions[0][None] - positions[0][:, None]).clamp(-3, 3) + 3
            scores = q @ k.mT + torch.einsum("bhid,ijd->bhij", q, self.rows[offsets])
            return block.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

        return forward


def test_content_aware_layers_are_told():
    assert [view.classified for view in seen(Content())] == ["content-aware", "content-aware"]


def test_the_model_comes_back_as_it_was():
    model = Model(Ways())
    before = {name: (id(p), p.data_ptr(), p.clone()) for name, p in model.named_parameters()}
    hooks = [len(m._forward_pre_hooks) for m in model.modules()]
    observe(subject_of(model))
    for name, parameter in model.named_parameters():
        assert (id(parameter), parameter.data_ptr()) == before[name][:2]
        assert torch.equal(parameter, before[name][2])
    assert [len(m._forward_pre_hooks) for m in model.modules()] == hooks


def test_a_model_that_refuses_is_not_checked():
    class Raises(Model):
        def forward(self, input_ids: Tensor) -> Tensor:
            raise RuntimeError("not today")

    subject = read_out(Raises(Ways()))
    assert not bad(subject) and not compared(subject)
    assert any("not today" in each.why for each in subject.report.not_checked)


def test_float32_is_read_where_float64_is_refused():
    class Single(Model):
        def forward(self, input_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
            if self.embed.weight.dtype != torch.float32:
                raise TypeError("float32 only")
            return super().forward(input_ids, None, position_ids)

    subject = read_out(Single(Ways()), config_of())
    assert not subject.shared["observed"].exact
    assert kinds(subject) == set()
    assert {"spectrum", "width", "classification"} <= compared(subject)


def test_what_a_model_writes_into_carries_no_marks_on():
    class Keeps(Model):
        def __init__(self, *given, **more):
            super().__init__(*given, **more)
            self.register_buffer("last", torch.zeros(200, 200), persistent=False)

        def forward(self, *given, **more):
            out = super().forward(*given, **more)
            rows, width = min(200, out.shape[1]), min(200, out.shape[-1])
            self.last[:rows, :width] = out[0, :rows, :width]
            return out

    model = Keeps(Ways())
    ready = Watch(Stack(model), lambda _: None)
    with ready.watching(), told_inputs(model), torch.no_grad():
        model(torch.arange(5)[None])
        assert MARK in vars(model.last)  # or the test says nothing
    assert not vars(model.last)
    observe(subject_of(model))
    assert not vars(model.last)
