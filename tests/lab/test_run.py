import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load

from whereness.lab import text
from whereness.lab.checkpoint import Checkpoint
from whereness.lab.model import build, unpacked
from whereness.lab.run import failed, run_one
from whereness.lab.settings import digest


def ignore(done, loss):
    """Hear nothing of a run."""


def test_a_result_is_a_plain_dict(make_run, text_file):
    run = make_run("t5", seed=2)
    result = run_one(run, ignore)
    speed = result.pop("tokens_per_second")
    properties = result.pop("properties")
    losses, last_quarter = result.pop("losses"), result.pop("last_quarter")
    weights, memory = result.pop("weights"), result.pop("step_memory")
    assert memory > result.pop("nope_step_memory") > 0
    assert load(weights).keys() == {"table"}
    assert result == {
        "run": digest(run),
        "task": "language_model",
        "encoding": "t5",
        "seed": 2,
        "status": "done",
        "doors": [4],
        "parameters": 64,
        "untrained_beyond": 8,
    }
    assert speed > 0
    assert (properties["encoding"], properties["num_positions"]) == ("T5", 8)
    assert not properties["untrained"]
    stretch = (text_file.stat().st_size // 10 - 1) // 16 * 16
    assert losses != last_quarter
    for found in (losses, last_quarter):
        assert {s: len(f) for s, f in found.items()} == {"8": stretch // 8, "16": stretch // 16}
        assert all(
            type(x) is float and 0 < x < 2 * math.log(256) for f in found.values() for x in f
        )


def test_a_result_of_the_order_task(make_order_run):
    run = make_order_run("t5", seed=2)
    result = run_one(run, ignore)
    assert 0 <= result.pop("accuracy") <= 1
    assert result == {
        "run": digest(run),
        "task": "order_task",
        "encoding": "t5",
        "seed": 2,
        "status": "done",
        "doors": [4],
        "parameters": 64,
        "pairs": 5,
    }


def test_the_weights_are_those_after_training(make_run):
    run = make_run("learned", steps=6)
    result = run_one(run, ignore)
    after = unpacked(run, result["weights"])
    before = build(run).inputs
    assert after.table.shape == before.table.shape == (16, 8)
    assert bool((after.table != before.table)[:8].all())
    assert torch.equal(after.table[8:], before.table[8:])


def test_a_run_goes_on_from_its_checkpoint(make_run, make_order_run, tmp_path):
    steps = []
    for run in (make_run("shaw"), make_order_run("shaw")):
        whole = run_one(run, ignore)
        checkpoint = Checkpoint(tmp_path / f"{run.task}.safetensors", every=2)
        again = []
        for _ in range(2):  # the second one has nothing left to train
            steps.clear()
            again.append(run_one(run, lambda done, loss: steps.append(done), checkpoint))
        assert len(steps) == (3 if run.task == "language_model" else 1)
        for result in (whole, *again):
            result.pop("tokens_per_second", None)
        assert again == [whole, whole]


def test_progress_rises_to_the_end(make_run):
    told = []
    run_one(make_run(), lambda done, loss: told.append((done, loss)))
    parts = [done for done, _ in told]
    assert len(told) == 6 + 2 + 1
    assert parts == sorted(parts)
    assert 0 < parts[0] < parts[-1] == 1.0
    assert all(0 < loss < 2 * math.log(256) for _, loss in told)


def test_seeds_train_on_batches_of_their_own(make_run, seen_in_training):
    for seed in (0, 1):
        run_one(make_run(seed=seed), ignore)
    first, second = seen_in_training[:6], seen_in_training[6:]
    assert len(second) == 6
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_held_out_part_is_never_seen_in_training(make_run, tmp_path, seen_in_training):
    (tmp_path / "two").write_bytes(b"a" * 900 + b"z" * 100)
    found, _ = text.find([tmp_path / "two"])
    run = replace(make_run(steps=50, learning_rate=0.03), text=found)
    result = run_one(run, ignore)
    assert {int(i) for i in torch.cat(seen_in_training).unique()} == {ord("a")}
    # Nor as a target: whoever had learned of z would expect some.
    assert min(result["losses"]["8"]) > math.log(256)


@pytest.mark.parametrize("name", ["nope", "relative_multiply", "shaw"])
def test_the_same_settings_give_the_same_bits(result_of, name):
    first, second, other = (result_of(name, seed) for seed in (5, 5, 6))
    assert first["losses"] == second["losses"]
    assert first["last_quarter"] == second["last_quarter"]
    assert first["losses"] != other["losses"]


def test_a_run_that_diverges_in_training_is_reported(result_of):
    result = result_of(learning_rate=1e30)
    assert (result["status"], result["encoding"], result["seed"]) == ("failed", "nope", 0)
    assert "training loss became nan" in result["reason"]
    assert "losses" not in result


def test_a_run_that_diverges_in_its_last_step_is_reported(result_of):
    result = result_of(learning_rate=1e30, steps=1)
    assert (result["status"], result["reason"]) == ("failed", "the loss at length 8 is not finite")


def test_a_model_learns_its_text(result_of):
    result = result_of("rope", steps=60, batch=8, learning_rate=0.03)
    losses = result["losses"]["8"]
    assert sum(losses) / len(losses) < 2.0


def test_a_reason_is_one_short_line(make_run):
    long = failed(make_run(), "cannot\n  allocate " + "x" * 1000)["reason"]
    assert long.startswith("cannot allocate xxx")
    assert len(long) == 400
    torch_s = "RuntimeError: too large\nException raised from computeStorage at /pytorch/c10: frame"
    assert failed(make_run(), torch_s)["reason"] == "RuntimeError: too large"
    assert failed(make_run(), "caf\udce9")["reason"] == "caf\N{REPLACEMENT CHARACTER}"
