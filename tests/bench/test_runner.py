"""The gate, the turns and the numbers, with clocks of the tests' own."""

import json
import math

import pytest
import torch

from whereness.bench import runner
from whereness.bench.contest import OURS, AbsentError, Bar, Contestant, Row, Scale, Verdict
from whereness.bench.gate import compare
from whereness.bench.runner import interleaved, measured, quartiles, run_row


class Clock:
    """Time passes only while a contestant runs."""

    def __init__(self):
        self.now, self.log = 0.0, []

    def __call__(self):
        return self.now

    def contestant(self, name, *seconds, passed=True):
        """Takes the given seconds in turn, the last for ever."""
        left = list(seconds)

        def run():
            self.log.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return Contestant(name, run, lambda: Verdict(passed))


def row(contestants, *bars, **options):
    return Row("a/b", "what", bars, lambda _: contestants, **options)


def test_contestants_take_turns_and_each_begins_a_round():
    clock = Clock()
    three = [clock.contestant(name, 1.0) for name in "abc"]
    interleaved(three, 4, clock)
    rounds = clock.log[6:]  # one run to warm up and one to see how long it takes, each
    assert "".join(rounds) == "abc" + "bca" + "cab" + "abc"


def test_samples_are_times_of_one_run_however_many_make_a_sample():
    clock = Clock()
    quick, slow = clock.contestant("quick", 1e-3), clock.contestant("slow", 1.0)
    samples = interleaved([quick, slow], 2, clock)
    assert samples["quick"] == pytest.approx([1e-3, 1e-3])
    assert samples["slow"] == pytest.approx([1.0, 1.0])
    assert clock.log.count("quick") == 2 + 2 * 5  # 5 ms a sample
    assert clock.log.count("slow") == 2 + 2


@pytest.mark.parametrize(("seconds", "rounds"), [(10.0, 7), (0.15, 20), (0.01, 31)])
def test_rounds_fill_the_budget_within_bounds(seconds, rounds):
    clock = Clock()
    samples = interleaved([clock.contestant("x", seconds)], None, clock)
    assert len(samples["x"]) == rounds


def test_what_gives_its_own_sample_is_not_timed():
    kept = Contestant("x", lambda: 1 / 0, lambda: Verdict(True), sample=lambda: 7.0)
    assert interleaved([kept], 2, Clock()) == {"x": [7.0, 7.0]}


def test_numbers_are_of_medians_and_quartiles_of_rounds():
    samples = {OURS: [1.0, 9.0, 2.0, 4.0, 3.0], "b": [2.0, 9.0, 8.0, 4.0, 12.0]}
    assert measured(Bar("ratio", 1.0, "b"), samples).value == 3 / 8
    assert measured(Bar("speedup", 1.0, "b"), samples).value == 8 / 3
    assert measured(Bar("over", 1.0, "b"), samples).value == -5.0
    assert measured(Bar("time", 1.0), samples).value == 3.0
    by_round = [0.5, 1.0, 0.25, 1.0, 0.25]  # sorted: 0.25 0.25 0.5 1 1
    assert quartiles(by_round) == (0.25, 1.0)
    assert measured(Bar("ratio", 1.0, "b"), samples).quartiles == (0.25, 1.0)
    assert quartiles([5.0]) == (5.0, 5.0)
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]) == (2.5, 5.5)


@pytest.mark.parametrize(
    ("measure", "value", "reached"),
    [
        *[("ratio", 1.5, True), ("ratio", 1.6, False)],
        *[("speedup", 1.5, True), ("speedup", 1.4, False), ("speedup", 1.6, True)],
        *[("memory", 2.0, False), ("time", 1.0, True), ("memory", math.inf, False)],
    ],
)
def test_a_bar_is_a_least_speedup_or_a_most_of_all_else(measure, value, reached):
    assert Bar(measure, 1.5).reached(value) is reached
    assert Bar(measure).reached(value) is None


def test_nothing_is_timed_behind_a_red_gate():
    clock = Clock()
    both = [clock.contestant(OURS, 1.0), clock.contestant("b", 1.0, passed=False)]
    found = run_row(row(both, Bar("ratio", 1.0, "b")), Scale(), 1, clock=clock)
    assert found.status == "red gate"
    assert not clock.log
    assert not found.reached and not found.samples


def test_what_is_missing_is_told():
    def make(_):
        raise AbsentError("timm is not installed")

    found = run_row(Row("a/b", "what", (Bar("ratio"),), make), Scale(), 1)
    assert (found.status, found.reason) == ("not run", "timm is not installed")


def test_a_row_runs_with_its_threads_and_leaves_those_of_others():
    before, seen = torch.get_num_threads(), []

    def make(_):
        return [
            Contestant(OURS, lambda: seen.append(torch.get_num_threads()), lambda: Verdict(True))
        ]

    for threads, given in ((None, before + 1), (before + 2, 1)):
        result = run_row(Row("a/b", "w", (Bar("time"),), make, 1, threads), Scale(), given, 1)
        assert set(seen) == {result.threads} == {threads or given}
        assert torch.get_num_threads() == before
        seen.clear()


def test_a_quick_run_has_small_sizes_and_few_rounds():
    assert Scale(quick=True).of(100, 1) == 1
    assert Scale().of(100, 1) == 100
    clock = Clock()
    found = run_row(row([clock.contestant(OURS, 1.0)], Bar("time")), Scale(True), 1, clock=clock)
    assert len(found.samples[OURS]) == runner.QUICK


def test_a_result_is_json_without_infinity():
    kept = Contestant(OURS, lambda: None, lambda: Verdict(True, 0.5, 1.0), lambda: math.inf, "said")
    found = run_row(row([kept], Bar("memory", 5.0)), Scale(), 3, 2)
    line = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert line["contestants"][OURS]["samples"] == [None, None]
    assert line["bars"][0]["passed"] is False
    assert line["gates"][OURS]["error"] == 0.5
    assert (line["name"], line["threads"], line["notes"]) == ("a/b", 3, [f"{OURS}: said"])


@pytest.mark.parametrize(
    ("found", "passed"),
    [
        *[([1.0, 2.0], True), ([1.0, 2.0 + 2**-10], True), ([1.0, 2.2], False)],
        *[([1.0, math.nan], False), ([math.inf, 2.0], False), ([1.0], False)],
    ],
)
def test_the_gate_lets_through_what_is_within_its_tolerance(found, passed):
    wanted = torch.tensor([1.0, 2.0], dtype=torch.float64)
    verdict = compare(lambda: torch.tensor(found), lambda: wanted, 2.0**-9)()
    assert verdict.passed is passed


def test_the_gate_looks_at_every_output_with_its_own_tolerance():
    zero, one = torch.zeros(2), torch.ones(2)
    for found, passed in (((zero, one), True), ((one, one), False), ((zero, zero), False)):
        assert compare(lambda f=found: f, lambda: (zero, one), [0.1, 0.1])().passed is passed
    assert compare(lambda: (one, one), lambda: (zero, one), [2.0, 0.1])().passed
    assert not compare(lambda: (one, zero), lambda: (zero, one), [2.0, 0.1])().passed
