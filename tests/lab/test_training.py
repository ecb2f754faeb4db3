import math
import time

import pytest
import torch
from torch import nn

from whereness.encoding import PositionalEncoding
from whereness.lab import training
from whereness.lab.checkpoint import Checkpoint
from whereness.lab.language import draw, loss_of
from whereness.lab.model import build, positional, stream
from whereness.lab.settings import Recipe
from whereness.lab.training import DivergedError, learning_rate, train
from whereness.transformer import Transformer

TEXT = torch.randint(256, (500,), generator=torch.Generator().manual_seed(0))


def ignore(step, loss):
    """Hear nothing of a training."""


def train_on(text, model, recipe, seed=0, notify=ignore, checkpoint=None):
    def step_loss(generator):
        return loss_of(model, *draw(text, recipe, generator))

    batches = stream(seed, "batches")
    return train(model, recipe, batches, step_loss, notify, checkpoint or Checkpoint())


def trained(run, notify=ignore):
    model = build(run)
    return model, train_on(TEXT, model, run.recipe, run.seed, notify)


def test_batches_are_sequences_of_the_text_and_reach_both_its_ends(recipe):
    text, generator = torch.arange(20), torch.Generator().manual_seed(0)
    batches = [draw(text, recipe(batch=5), generator) for _ in range(40)]
    ids, targets = (torch.cat(part) for part in zip(*batches, strict=True))
    assert ids.shape == (200, 8)
    assert torch.equal(ids - ids[:, :1], torch.arange(8).expand(200, 8))
    assert torch.equal(targets, ids + 1)
    assert (int(ids.min()), int(targets.max())) == (0, 19)


def test_all_encodings_of_a_seed_get_the_same_batches(make_run, seen_in_training):
    seen = {}
    for name, seed in (("nope", 0), ("shaw", 0), ("learned", 0), ("nope", 1)):
        trained(make_run(name, seed))
        seen[name, seed] = torch.stack(seen_in_training)
        seen_in_training.clear()
    assert seen["nope", 0].shape == (6, 2, 8)
    assert torch.equal(seen["nope", 0], seen["shaw", 0])
    assert torch.equal(seen["nope", 0], seen["learned", 0])
    assert not torch.equal(seen["nope", 0], seen["nope", 1])


def test_the_rate_rises_and_then_falls_as_a_cosine():
    recipe = Recipe(steps=100, learning_rate=2.0, warm_up=0.1)
    rates = [learning_rate(step, recipe) for step in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[4] == pytest.approx(1.0 * (1 + math.cos(0.04 * math.pi)) / 2)
    assert rates[50] == pytest.approx(1.0)
    assert rates[75] == pytest.approx(1 - math.sqrt(0.5))
    assert rates.index(max(rates)) == 9
    assert 0 < rates[99] < 0.001


@pytest.mark.parametrize("change", [{"steps": 1}, {"warm_up": 0.0}])
def test_a_warm_up_of_less_than_a_step_is_none(change):
    assert learning_rate(0, Recipe(**change)) == Recipe.learning_rate


def test_every_step_is_told_and_the_loss_falls(make_run):
    told = []
    run = make_run(steps=60, learning_rate=0.03)
    train_on(TEXT % 4, build(run), run.recipe, notify=lambda *heard: told.append(heard))
    assert [step for step, _ in told] == list(range(1, 61))
    assert told[-1][1] < told[0][1] - 1


def test_rows_out_of_reach_keep_their_values_and_are_told(make_run):
    run = make_run("learned", weight_decay=0.5, steps=20)
    (before,), (model, told) = positional(build(run)), trained(run)
    (after,), (reached,) = positional(model), told.reached
    assert torch.equal(before[8:], after[8:])
    assert bool((before[:8] != after[:8]).all())
    assert reached[:8].all()
    assert not reached[8:].any()


def test_what_is_not_the_encoding_decays(make_run):
    # No byte above 9 occurs: without decay those rows of the embedding would stay.
    run = make_run("learned", weight_decay=0.5, steps=20)
    model = build(run)
    before = model.embedding.weight.detach().clone()
    train_on(TEXT % 10, model, run.recipe)
    assert bool((model.embedding.weight[10:].abs() < before[10:].abs()).all())


def test_gradients_are_clipped(make_run):
    model, _ = trained(make_run(clip=1e-3))
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
    assert norm == pytest.approx(1e-3, rel=1e-2)


def test_a_loss_that_is_not_finite_ends_training(make_run):
    with pytest.raises(DivergedError, match=r"training loss became nan at step [2-6]"):
        trained(make_run(learning_rate=1e30))


@pytest.mark.parametrize(
    ("steps", "ticks", "wanted"), [(3, [1, 101, 103, 104.5, 200], 32 / 97.5), (1, [1, 5], 4)]
)
def test_speed_leaves_out_the_first_step(make_run, monkeypatch, steps, ticks, wanted):
    clock = iter(ticks)  # before and after each step that counts; a step has 16 bytes
    monkeypatch.setattr(training, "clock_of", lambda device: lambda: next(clock))
    _, told = trained(make_run(steps=steps))
    assert told.tokens_per_second == pytest.approx(wanted)


def test_waiting_counts_where_the_device_works_alone():
    times = {device: training.clock_of(device) for device in ("cpu", "cuda:1")}
    before = {device: clock() for device, clock in times.items()}
    time.sleep(0.2)
    assert times["cpu"]() - before["cpu"] < 0.1
    assert times["cuda:1"]() - before["cuda:1"] >= 0.2


def test_training_is_adamw_written_out(make_run):
    run = make_run("learned", weight_decay=0.1, clip=0.5, betas=(0.7, 0.9))
    recipe = run.recipe
    ours, _ = trained(run)
    model = build(run)
    named = dict(model.named_parameters())
    first = {n: torch.zeros_like(p) for n, p in named.items()}
    second = {n: torch.zeros_like(p) for n, p in named.items()}
    generator = torch.Generator().manual_seed(stream(run.seed, "batches"))
    for step in range(recipe.steps):
        ids, targets = draw(TEXT, recipe, generator)
        logs = model(ids).log_softmax(-1).gather(-1, targets[..., None])
        gradients = torch.autograd.grad(-logs.mean(), list(named.values()))
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        rate = learning_rate(step, recipe)
        with torch.no_grad():
            for (name, p), g in zip(named.items(), gradients, strict=True):
                clipped = g * min(1.0, 0.5 / norm)
                first[name] += (clipped - first[name]) * 0.3
                second[name] += (clipped.square() - second[name]) * 0.1
                mean = first[name] / (1 - 0.7 ** (step + 1))
                square = second[name] / (1 - 0.9 ** (step + 1))
                p.mul_(1 - rate * (0.0 if name.startswith("inputs.") else 0.1))
                p.sub_(rate * mean / (square.sqrt() + 1e-8))
    for name, p in ours.named_parameters():
        torch.testing.assert_close(p, named[name], rtol=1e-4, atol=1e-6, msg=name)


class FirstStepOnly(PositionalEncoding):
    """Reads one row in its first call and another in all later ones."""

    site = "tokens"

    def __init__(self):
        super().__init__()
        self.table, self.calls = nn.Parameter(torch.zeros(3, 8)), 0

    def tokens(self, x, at):
        self.calls += 1
        return x + self.table[min(self.calls, 2) - 1]


def test_an_entry_counts_as_reached_if_any_step_did(recipe):
    model = Transformer(256, 8, 1, 2, FirstStepOnly())
    (reached,) = train_on(TEXT, model, recipe()).reached
    assert reached.all(-1).tolist() == [True, True, False]


class StoppedError(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("name", ["nope", "learned", "shaw"])
@pytest.mark.parametrize("at", [1, 2, 3, 5, 6])
def test_a_training_that_was_stopped_goes_on_to_the_same_bits(make_run, tmp_path, name, at):
    run = make_run(name)
    whole, told = trained(run)
    checkpoint = Checkpoint(tmp_path / "kept.safetensors", every=2)

    def stop(step, loss):
        if step == at:
            raise StoppedError

    first, steps = build(run), []
    with pytest.raises(StoppedError):
        train_on(TEXT, first, run.recipe, run.seed, stop, checkpoint)
    second = build(run)
    again = train_on(
        TEXT, second, run.recipe, run.seed, lambda step, loss: steps.append(step), checkpoint
    )
    assert steps == list(range(at // 2 * 2 + 1, 7))
    for (key, one), two in zip(
        whole.state_dict().items(), second.state_dict().values(), strict=True
    ):
        assert torch.equal(one, two), key
    assert all(torch.equal(a, b) for a, b in zip(told.reached, again.reached, strict=True))
    assert again.tokens_per_second > 0


def test_random_numbers_drawn_meanwhile_change_nothing(make_run, tmp_path):
    # All that a step depends on is in the checkpoint: nothing global.
    run = make_run("learned")
    whole, _ = trained(run)
    torch.rand(5)
    other, _ = trained(run)
    assert all(map(torch.equal, whole.parameters(), other.parameters()))


@pytest.mark.parametrize("change", [{"width": 16}, {"depth": 1}])
def test_a_checkpoint_of_another_training_is_removed_and_told(make_run, tmp_path, change):
    checkpoint = Checkpoint(tmp_path / "kept.safetensors", every=2)
    other = make_run(**change)
    train_on(TEXT, build(other), other.recipe, checkpoint=checkpoint)
    run = make_run()
    with pytest.raises(ValueError, match="checkpoint does not fit and was removed"):
        train_on(TEXT, build(run), run.recipe, checkpoint=checkpoint)
    assert checkpoint.load() is None
