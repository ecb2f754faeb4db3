import re

import pytest
from hypothesis import given

from summaries import entry, failure, made_up, summary
from whereness.lab.recommendation import recommend
from whereness.registry import encodings

ALL = ("use", "headline", "because", "to_know", "lengths", "not_tested", "would_change")


def flat(value):
    return {8: value, 16: value, 64: value}


def words(found):
    return [
        found["headline"],
        *found["because"],
        *found["to_know"],
        *found["not_tested"],
        *found["would_change"],
    ]


def starts(found, part, beginning):
    return [line for line in found[part] if line.startswith(beginning)]


def test_a_clear_winner_with_all_its_words():
    found = recommend(
        summary(
            {
                "nope": entry(flat([2.0, 2.1]), accuracy=0.5, speed=1000.0),
                "shaw": entry(
                    flat([1.50, 1.52]),
                    speed=560.0,
                    parameters=2112,
                    extra=12_345_678,
                    fused=False,
                    content_aware=True,
                ),
                "alibi": entry(flat([1.64, 1.70]), speed=970.0),
                "rope": entry({8: [1.55, 1.53], 16: [1.8, 1.8], 64: [2.2, 2.3]}, speed=960.0),
            },
            seeds=2,
        )
    )
    assert tuple(found) == ALL
    assert found["use"] == ["shaw"]
    assert found["headline"] == "Use shaw."
    assert found["because"] == [
        (
            "At 8 bytes shaw has the lowest loss, 1.510 nats a byte; "
            "the next, rope, is 0.030 above (95 % interval 0.020 to 0.040, by seed 0.010 to 0.050)."
        ),
        (
            "At 16 bytes shaw has the lowest loss, 1.510 nats a byte; the next, alibi, is 0.160 "
            "above (95 % interval 0.150 to 0.170, by seed 0.140 to 0.180)."
        ),
        (
            "At 64 bytes shaw has the lowest loss, 1.510 nats a byte; the next, alibi, is 0.160 "
            "above (95 % interval 0.150 to 0.170, by seed 0.140 to 0.180)."
        ),
        "shaw costs speed: it trained at 0.56 times the speed of nope.",
        (
            "A training step with shaw keeps 12.3 MB more than one without encoding, 2.2 times as "
            "much."
        ),
        "What shaw adds depends on the tokens, not on positions alone.",
        (
            "Fused attention cannot serve shaw: the attention weights must be formed, so memory "
            "grows with the square of the length."
        ),
        (
            "The best that fused attention can serve at 8 bytes is rope: 0.030 above (95 % "
            "interval 0.020 to 0.040, by seed 0.010 to 0.050)."
        ),
        (
            "The best that fused attention can serve at 16 and 64 bytes is alibi: 0.160 above (95 "
            "% interval 0.150 to 0.170, by seed 0.140 to 0.180) and 0.160 above (95 % interval "
            "0.150 to 0.170, by seed 0.140 to 0.180)."
        ),
    ]
    assert found["to_know"] == [
        (
            "At 64 bytes, 8 times the training length, nope, shaw and alibi are at most 0.05 above "
            "their own loss at 8."
        ),
        "The order task was not solved by nope (accuracy 0.50).",
    ]
    assert found["lengths"] == {n: {"best": "shaw", "ties": []} for n in ("8", "16", "64")}
    assert found["not_tested"] == [
        "Other models: this one has width 64, 2 layers and 4 heads.",
        "Other texts: this one is mine.txt, 100,000 bytes.",
        (
            "Other training: it was 500 steps of 16 sequences of 8 bytes, with the learning rate "
            "0.003 for every encoding."
        ),
        "Texts longer than 64 bytes.",
        "Scalings of rotary encodings for longer texts, such as NTK or YaRN.",
        "Further training at the longer lengths.",
        "Decoding token by token: its speed and its memory.",
        "Encodings that are not among the 4 of this comparison.",
    ]
    assert found["would_change"] == [
        "Longer training than 500 steps, above all for what has parameters (shaw).",
        (
            "Texts that are never longer than 8 bytes: the second choice is rope, 0.030 above (95 "
            "% interval 0.020 to 0.040, by seed 0.010 to 0.050), and not alibi."
        ),
        (
            "Speed, if it counts most: alibi trained at 1.73 times the speed of shaw, its loss "
            "being 0.160 above the best."
        ),
    ]


def test_alibi_wins():
    found = recommend(summary({"rope": entry(flat(1.9)), "alibi": entry(flat(1.8))}))
    assert (found["use"], found["headline"]) == (["alibi"], "Use alibi.")
    assert "alibi costs little speed: it trained at 1.00 times the speed of rope." in words(found)
    assert not starts(found, "because", "Fused attention")
    assert not starts(found, "because", "The best that fused")
    assert not starts(found, "would_change", "More seeds")


def test_alibi_loses():
    found = recommend(summary({"rope": entry(flat(1.7)), "alibi": entry(flat(1.8))}))
    assert (found["use"], found["headline"]) == (["rope"], "Use rope.")
    assert found["because"][0] == (
        "At 8 bytes rope has the lowest loss, 1.700 nats a byte; the next, alibi, is 0.100 above "
        "(95 % interval 0.090 to 0.110)."
    )


def test_a_tie():
    found = recommend(
        summary(
            {
                "t5": entry(flat(1.799), half=0.02, parameters=128),
                "alibi": entry(flat(1.8), half=0.02),
                "rope": entry(flat(1.795), half=0.02, speed=900.0),
                "nope": entry(flat(2.5)),
            }
        )
    )
    assert found["use"] == ["alibi", "rope", "t5"]
    assert found["headline"] == (
        "Use alibi, rope or t5: each is the best or tied with it at every length."
    )
    assert found["because"][0] == (
        "Of these, prefer alibi: rope trains slower (900 against 1,000 tokens a second); t5 has "
        "more parameters (128 against 0)."
    )
    assert found["lengths"]["16"] == {"best": "rope", "ties": ["t5", "alibi"]}
    assert (
        "alibi cannot be told from it: 0.005 above (95 % interval -0.015 to 0.025); the interval "
        "includes 0."
    ) in found["because"]
    assert "The next, nope, is 0.705 above (95 % interval 0.695 to 0.715)." in found["because"]
    assert (
        "More seeds or more evaluated text: they may tell t5, alibi and rope apart."
        in found["would_change"]
    )


def test_of_many_ties_only_the_closest_are_told_with_numbers():
    made = {
        "t5": entry(flat(1.8)),
        "alibi": entry(flat(1.801)),
        "rope": entry(flat(1.802)),
        "shaw": entry(flat(1.803)),
    }
    found = recommend(summary(made))
    assert len(found["use"]) == 4
    assert [line.split()[0] for line in found["because"] if "cannot be told" in line] == [
        *("alibi", "rope") * 3
    ]
    assert found["because"].count("Nor can shaw.") == 3


def test_untrained_entries_weigh_more_than_parameters_and_parameters_more_than_speed():
    made = {
        "learned": entry(flat(1.8), parameters=1, speed=3000.0, untrained_beyond=8),
        "t5": entry(flat(1.8), parameters=500, speed=2000.0, half=0.01),
        "shaw": entry(flat(1.8), parameters=300, speed=10.0, half=0.01),
    }
    found = recommend(summary(made))
    assert found["use"] == ["shaw", "t5", "learned"]
    assert (
        "Of these, prefer shaw: t5 has more parameters (500 against 300); learned reads untrained "
        "entries at 64 bytes."
    ) in found["because"]


def test_trained_entries_are_not_held_against_an_encoding():
    made = {
        "learned": entry(flat(1.8), parameters=1, untrained_beyond=64),
        "t5": entry(flat(1.8), parameters=2),
    }
    found = recommend(summary(made))
    assert found["use"] == ["learned", "t5"]
    assert not any("trained:" in line for line in found["because"])


def test_nothing_sets_equal_encodings_apart():
    found = recommend(summary({"t5": entry(flat(1.8)), "alibi": entry(flat(1.8))}))
    assert found["use"] == ["t5", "alibi"]
    assert "Nothing else sets them apart: t5 comes first in the list." in found["because"]


def test_seeds_disagree():
    """Clear over windows, but in one seed alibi is as good as rope."""
    made = {
        "rope": entry(flat([1.7, 1.8, 1.8])),
        "alibi": entry(flat([1.9, 1.79, 1.9])),
        "t5": entry(flat([1.9, 1.81, 1.9])),
    }
    found = recommend(summary(made, seeds=3))
    assert found["use"] == ["rope", "alibi"]
    assert (
        "alibi cannot be told from it: 0.097 above (95 % interval 0.087 to 0.107, by seed -0.010 "
        "to 0.200); the seeds disagree."
    ) in found["because"]
    made["alibi"] = entry(flat([1.9, 1.7, 1.9]), half=0.2)
    assert any(
        line.endswith("; the interval includes 0 and the seeds disagree.")
        for line in recommend(summary(made, seeds=3))["because"]
    )


def test_a_zero_difference_in_a_seed_is_a_disagreement():
    made = {"rope": entry(flat([1.7, 1.8])), "alibi": entry(flat([1.9, 1.8]))}
    assert recommend(summary(made, seeds=2))["use"] == ["rope", "alibi"]


def test_one_seed_leaves_the_range_over_seeds_unknown():
    one = recommend(summary({"rope": entry(flat(1.7)), "alibi": entry(flat(1.8))}))
    assert "There is one seed, so the range over seeds is unknown." in one["because"]
    assert (
        "Another seed: the smallest clear lead is 0.100, over alibi at 8 bytes, and how far seeds "
        "differ is unknown."
    ) in one["would_change"]
    two = recommend(
        summary({"rope": entry(flat([1.7, 1.7])), "alibi": entry(flat([1.8, 1.9]))}, seeds=2)
    )
    assert not any("one seed" in line or "Another seed" in line for line in words(two))
    assert two["because"][0] == (
        "At 8 bytes rope has the lowest loss, 1.700 nats a byte; the next, alibi, is 0.150 above "
        "(95 % interval 0.140 to 0.160, by seed 0.100 to 0.200)."
    )


def test_one_for_short_texts_and_one_for_longer_ones():
    made = {
        "rope": entry({8: 1.7, 16: 1.9, 64: 2.4}),
        "alibi": entry({8: 1.8, 16: 1.81, 64: 1.8}),
    }
    found = recommend(summary(made))
    assert found["use"] == ["rope", "alibi"]
    assert found["headline"] == "Use rope for texts of up to 8 bytes and alibi for longer ones."
    assert found["because"][:2] == [
        "No encoding is the best or tied with it at every length.",
        "Between 8 and 16 bytes the loss of alibi falls below that of rope.",
    ]
    assert "Texts that are never longer than 8 bytes: rope will do." in found["would_change"]
    assert found["lengths"]["64"] == {"best": "alibi", "ties": []}


def test_the_shorter_texts_are_all_that_one_encoding_fits():
    """At 16 bytes rope is still the best; that alibi would be at 8 and 64 does not matter."""
    made = {
        "rope": entry({8: 1.7, 16: 1.78, 64: 2.4}),
        "alibi": entry({8: 1.8, 16: 1.8, 64: 1.8}),
    }
    found = recommend(summary(made))
    assert found["headline"] == "Use rope for texts of up to 16 bytes and alibi for longer ones."
    assert "Texts that are never longer than 16 bytes: rope will do." in found["would_change"]
    made["rope"] = entry({8: 1.7, 16: 1.85, 64: 1.7})
    found = recommend(summary(made))
    assert found["use"] == ["rope"]
    assert "and it is at most 0.050 above the best." in found["headline"]


def test_the_lengths_between_which_curves_cross():
    made = {
        "rope": entry({8: 1.7, 16: 1.795, 64: 2.4}),
        "alibi": entry({8: 1.8, 16: 1.8, 64: 1.8}),
    }
    found = recommend(summary(made))
    assert "Between 16 and 64 bytes the loss of alibi falls below that of rope." in found["because"]


def test_no_encoding_fits_all_longer_texts():
    made = {
        "rope": entry({8: 1.6, 16: 1.9, 64: 2.4}),
        "alibi": entry({8: 1.8, 16: 1.7, 64: 1.9}),
        "t5": entry({8: 1.8, 16: 1.95, 64: 1.8}),
        "shaw": entry({8: 1.7, 16: 1.75, 64: 1.85}),  # never far, and never the best
    }
    found = recommend(summary(made))
    assert found["use"] == ["rope", "alibi"]
    assert (
        "Nor is any at all lengths above 8 bytes: alibi is at most 0.100 above the best there."
    ) in found["because"]


def test_a_compromise():
    """alibi is the best at 8 and 64 bytes, t5 at 16, where alibi is not far from it."""
    made = {
        "alibi": entry({8: 1.7, 16: 1.9, 64: 1.7}),
        "t5": entry({8: 1.9, 16: 1.8, 64: 2.0}),
    }
    found = recommend(summary(made))
    assert found["use"] == ["alibi"]
    assert found["headline"] == (
        "Use alibi: no encoding is best at every length, and it is at most 0.100 above the best."
    )


def test_only_one_encoding():
    found = recommend(summary({"alibi": entry({8: 1.8, 16: 1.9, 64: 2.0})}))
    assert found["use"] == ["alibi"]
    assert found["headline"] == "Only alibi has results: there is nothing to choose between."
    assert found["because"][0] == (
        "Its loss in nats a byte is 1.800 at 8 bytes, 1.900 at 16 bytes and 2.000 at 64 bytes."
    )
    assert (
        "At 64 bytes, 8 times the training length, every encoding is more than 0.05 above its own "
        "loss at 8."
    ) in found["to_know"]
    assert found["would_change"] == ["Results of other encodings."]


def test_one_encoding_failed_everywhere():
    made = {"alibi": entry(flat(1.8)), "t5": {"failed": [failure()]}, "rope": entry(flat(1.9))}
    found = recommend(summary(made))
    assert found["use"] == ["alibi"]
    assert found["not_tested"][-1] == (
        "No language model with t5 was completed: the training loss became nan at step 3."
    )
    assert "Encodings that are not among the 3 of this comparison." in found["not_tested"]


def test_none_completed():
    order = entry(flat(1.0))
    del order["language_model"], order["cost"], order["properties"]
    made = {"alibi": order, "t5": {"failed": [failure(), failure(1, reason="other")]}}
    found = recommend(summary(made))
    assert found["use"] == []
    assert found["headline"] == "No language model was completed, so nothing can be recommended."
    assert found["because"] == [
        "No language model with alibi was completed.",
        "No language model with t5 was completed: the training loss became nan at step 3.",
    ]
    assert found["lengths"] == {}
    assert found["would_change"] == ["A language model that is completed."]


def test_the_best_reads_untrained_entries():
    made = {
        "learned": entry(flat(1.7), parameters=64, untrained_beyond=16),
        "alibi": entry(flat(1.8)),
    }
    found = recommend(summary(made))
    assert found["use"] == ["learned"]
    assert len(starts(found, "because", "Beyond")) == 1
    assert (
        "Beyond 16 bytes learned reads entries that were never trained: do not trust its losses "
        "there."
    ) in found["because"]
    assert (
        "Training at 64 bytes: it would train what learned reads untrained there now."
    ) in found["would_change"]


def test_what_explains_the_losses_of_others():
    made = {
        "alibi": entry(flat(1.5)),
        "nope": entry(flat(2.0)),
        "integer": entry(flat(2.0004)),
        "binary": entry({8: 2.0, 16: 2.0, 64: 2.001}),
        "learned": entry(flat(1.9), untrained_beyond=8, accuracy=0.94),
        "t5": entry(flat(1.9), untrained_beyond=8, failed=[failure(1)]),
    }
    found = recommend(summary(made))
    assert "integer has the same losses as nope, the model without encoding." in found["to_know"]
    assert "Beyond 8 bytes learned and t5 read entries that were never trained." in found["to_know"]
    assert "The order task was not solved by learned (accuracy 0.94)." in found["to_know"]
    assert found["not_tested"][-1] == (
        "Some seeds of the language model with t5 failed: the training loss became nan at step 3."
    )


def test_what_speaks_against_the_recommended_one():
    made = {
        "alibi": entry(flat(1.5), accuracy=0.725, failed=[failure(2, "order_task", "it broke")]),
        "nope": entry(flat(2.0)),
    }
    found = recommend(summary(made))
    assert "alibi did not solve the order task: its accuracy is 0.72." in found["because"]
    assert "alibi failed in seed 2 of the order task: it broke." in found["because"]
    del made["alibi"]["order_task"]
    assert "The order task was not completed with alibi." in recommend(summary(made))["because"]


def test_the_model_without_encoding_may_win():
    found = recommend(summary({"alibi": entry(flat(1.8)), "nope": entry(flat(1.5))}))
    assert found["headline"] == "Use nope."
    assert "nope is the model without encoding." in found["because"]
    assert not any("times the speed" in line for line in words(found))


@pytest.mark.parametrize(("extra", "told"), [(900_000, False), (1_100_000, True)])
def test_memory_is_told_where_it_matters(extra, told):
    found = recommend(summary({"alibi": entry(flat(1.5), extra=extra), "nope": entry(flat(2.0))}))
    line = (
        "A training step with alibi keeps 1.1 MB more than one without encoding, 1.1 times as much."
    )
    assert starts(found, "because", "A training step") == ([line] if told else [])


@pytest.mark.parametrize(("speed", "told"), [(89, "costs speed"), (91, "costs little speed")])
def test_speed_is_a_cost_where_it_matters(speed, told):
    made = {"alibi": entry(flat(1.5), speed=float(speed)), "rope": entry(flat(2.0), speed=100.0)}
    line = f"alibi {told}: it trained at 0.{speed} times the speed of rope."
    assert line in recommend(summary(made))["because"]


@pytest.mark.parametrize(("speed", "told"), [(1240.0, False), (1260.0, True)])
def test_a_faster_alternative(speed, told):
    made = {
        "alibi": entry(flat(1.5)),
        "t5": entry(flat(1.9), speed=5000.0),
        "rope": entry({8: 1.6, 16: 1.7, 64: 1.8}, speed=speed),
    }
    lines = starts(recommend(summary(made)), "would_change", "Speed")
    name, times = ("rope", "1.26") if told else ("t5", "5.00")
    losses = "0.100 to 0.300" if told else "0.400"
    assert lines == [
        (
            f"Speed, if it counts most: {name} trained at {times} times the speed of alibi, its "
            f"loss being {losses} above the best."
        )
    ]


def test_several_for_short_texts():
    made = {
        "alibi": entry({8: 1.8, 16: 1.8, 64: 1.8}),
        "rope": entry({8: 1.801, 16: 1.9, 64: 1.9}),
        "t5": entry({8: 1.81, 16: 1.9, 64: 1.9}, half=0.02),
        "shaw": entry({8: 1.85, 16: 1.9, 64: 1.9}),
    }
    found = recommend(summary(made))
    assert found["use"] == ["alibi"]
    assert (
        "Texts that are never longer than 8 bytes: rope and t5 cannot be told from the best there."
        in found["would_change"]
    )
    assert "Nor can t5." in found["because"]


@pytest.mark.parametrize(("num_bytes", "windows"), [(19_210, 0), (19_209, 29), (1_290, 2)])
def test_few_windows_are_told(num_bytes, windows):
    """A tenth is held out, whole windows of 64 bytes fit, and a target follows the last byte."""
    found = recommend(
        summary({"alibi": entry(flat(1.5)), "rope": entry(flat(2.0))}, num_bytes=num_bytes)
    )
    lines = starts(found, "would_change", "More evaluated text:")
    expected = (
        f"More evaluated text: from {windows} windows of 64 bytes the intervals come out too "
        "narrow."
    )
    assert lines == ([expected] if windows else [])


@pytest.mark.parametrize(("evaluated", "windows"), [(1919, 29), (1000, 15), (127, 2), (1920, 0)])
def test_few_windows_are_evaluated_of_a_long_text(evaluated, windows):
    """As many as are asked for, but at least two; if they are 30 or more, nothing is told."""
    made = {"alibi": entry(flat(1.5)), "rope": entry(flat(2.0))}
    found = recommend(summary(made, num_bytes=1_000_000, evaluated_bytes=evaluated))
    expected = (
        f"More evaluated text: from {windows} windows of 64 bytes the intervals come out too "
        "narrow."
    )
    assert starts(found, "would_change", "More evaluated") == ([expected] if windows else [])


@pytest.mark.parametrize(
    ("num_bytes", "evaluated", "used"),
    [
        (1_000_000, 1000, "960 of its 100,000"),
        (1_000_000, 1, "128 of its 100,000"),
        (1_000_000, 2**18, None),
        (10_250, 1000, "960 of its 1,025"),  # one more window of 64 would fit
        (10_240, 1000, None),
    ],
)
def test_what_is_not_evaluated_is_told(num_bytes, evaluated, used):
    made = summary({"alibi": entry(flat(1.5))}, num_bytes=num_bytes, evaluated_bytes=evaluated)
    expected = f"The rest of the held-out text: losses are of the first {used} bytes."
    found = starts(recommend(made), "not_tested", "The rest of the held-out")
    assert found == ([expected] if used else [])


@pytest.mark.parametrize(
    ("repeated", "told"), [(0.0, None), (0.0099, None), (0.01, "1.0"), (0.0876, "8.8")]
)
def test_a_text_that_repeats_itself_is_told(repeated, told):
    made = {"alibi": entry(flat(1.5)), "rope": entry(flat(2.0))}
    lines = [line for line in recommend(summary(made, repeated=repeated))["to_know"] if "%" in line]
    expected = (
        f"{told} % of the held-out windows of 8 bytes stand word for word in the training part: "
        "long training would reward remembering them."
    )
    assert lines == ([expected] if told else [])


def test_a_text_without_a_window_is_left_to_others():
    found = recommend(summary({"alibi": entry(flat(1.5)), "rope": entry(flat(2.0))}, num_bytes=100))
    assert not starts(found, "would_change", "More evaluated text:")


def test_one_length():
    made = {"alibi": entry({8: 1.5}), "rope": entry({8: 1.6})}
    found = recommend(summary(made, lengths=(8,)))
    assert found["use"] == ["alibi"]
    assert not any("never longer" in line or "training length" in line for line in words(found))


def test_lower_in_the_seeds_that_both_completed():
    made = {"alibi": entry(flat([1.5, 1.5])), "rope": entry(flat(1.6))}
    found = summary(made)
    for above in found["encodings"]["rope"]["language_model"]["above_best"].values():
        above.update(mean=-0.1, low=-0.11, high=-0.09, by_seed={"0": -0.1})
    assert (
        "rope cannot be told from it: 0.100 below (95 % interval -0.110 to -0.090); it is below in "
        "the seeds that both completed."
    ) in recommend(found)["because"]


def test_one_for_longer_texts_that_serves_short_ones_too_is_enough():
    """At 8 bytes rope has fewer parameters than t5 and is tied with it; t5 is good at 8 and 64."""
    made = {
        "rope": entry({8: 1.7, 16: 1.9, 64: 2.1}, half=0.02),
        "t5": entry({8: 1.701, 16: 1.75, 64: 1.7}, parameters=128, half=0.02),
        "alibi": entry({8: 1.9, 16: 1.7, 64: 2.0}),
    }
    found = recommend(summary(made))
    assert found["use"] == ["t5"]
    assert "and it is at most 0.050 above the best." in found["headline"]
    assert (
        "Texts that are never longer than 8 bytes: rope cannot be told from the best there."
        in found["would_change"]
    )


def test_for_longer_texts_the_preferred_of_those_that_fit():
    made = {
        "rope": entry({8: 1.6, 16: 1.9, 64: 2.1}),
        "t5": entry({8: 1.9, 16: 1.7, 64: 1.7}, parameters=128),
        "alibi": entry({8: 1.9, 16: 1.701, 64: 1.701}),
    }
    found = recommend(summary(made))
    assert found["use"] == ["rope", "alibi"]
    assert not starts(found, "because", "Nor is any")


def test_if_all_read_untrained_entries_other_reasons_count():
    made = {
        "learned": entry(flat(1.8), parameters=9, untrained_beyond=8),
        "t5": entry(flat(1.8), parameters=5, untrained_beyond=8),
    }
    assert (
        "Of these, prefer t5: learned has more parameters (9 against 5)."
        in recommend(summary(made))["because"]
    )


def test_each_limit_of_training_is_told():
    made = {
        "alibi": entry(flat(1.5)),
        "learned": entry(flat(1.9), untrained_beyond=8),
        "t5": entry(flat(1.9), untrained_beyond=16),
    }
    assert starts(recommend(summary(made)), "to_know", "Beyond") == [
        "Beyond 8 bytes learned reads entries that were never trained.",
        "Beyond 16 bytes t5 reads entries that were never trained.",
    ]


def test_a_failed_order_task_is_no_failed_language_model():
    made = {"alibi": entry(flat(1.5)), "t5": entry(flat(1.9), failed=[failure(0, "order_task")])}
    found = recommend(summary(made))
    assert not any("failed" in line or "was completed" in line for line in words(found))


def test_seeds_of_which_one_encoding_completed_more():
    made = {"alibi": entry(flat(1.5)), "t5": entry(flat([1.9, 1.9]))}
    found = recommend(summary(made, seeds=2))
    assert not any("one seed" in line for line in words(found))


def test_one_of_each():
    made = summary({"alibi": entry(flat(1.5)), "t5": entry(flat(1.9))}, depth=1, steps=1)
    assert "Longer training than 1 step." in recommend(made)["would_change"]
    assert "width 64, 1 layer and 4 heads." in recommend(made)["not_tested"][0]


def test_there_is_no_negative_zero():
    made = {"alibi": entry(flat(1.5)), "t5": entry(flat(1.5002), half=0.0006)}
    assert (
        "t5 cannot be told from it: 0.000 above (95 % interval 0.000 to 0.001); the interval "
        "includes 0."
    ) in recommend(summary(made))["because"]


def test_multiples_are_of_the_training_length():
    losses = {16: 1.5, 40: 1.5}
    found = recommend(
        summary({"alibi": entry(losses), "t5": entry({16: 1.9, 40: 1.9})}, lengths=(16, 40))
    )
    (line,) = starts(found, "to_know", "At 40 bytes, ")
    assert line.startswith(
        "At 40 bytes, 5 times the training length, alibi and t5 are at most 0.05"
    )


def test_the_smallest_lead_is_of_what_is_recommended_over_what_is_clearly_above():
    made = {
        "rope": entry({8: 1.7, 16: 1.99, 64: 2.4}),
        "alibi": entry({8: 1.8, 16: 1.8, 64: 1.8}, half=0.02),
        "t5": entry({8: 1.705, 16: 1.82, 64: 1.84}),
        "shaw": entry({8: 1.9, 16: 1.79, 64: 1.9}, half=0.001),
    }
    found = recommend(summary(made))
    assert found["use"] == ["rope", "alibi"]
    assert found["lengths"]["16"] == {"best": "shaw", "ties": ["alibi"]}
    assert found["lengths"]["8"] == {"best": "rope", "ties": ["t5"]}
    (line,) = starts(found, "would_change", "Another seed")
    assert "the smallest clear lead is 0.040, over t5 at 64 bytes" in line


def test_the_second_choice_is_told_only_if_it_depends_on_the_length():
    made = {"alibi": entry(flat(1.5)), "t5": entry(flat(1.7)), "rope": entry(flat(1.8))}
    assert not starts(recommend(summary(made)), "would_change", "Texts that")


def test_speed_is_compared_with_the_slowest_that_is_recommended():
    made = {
        "alibi": entry(flat(1.5)),
        "rope": entry(flat(1.5), speed=500.0),
        "t5": entry(flat(1.9), speed=700.0),
    }
    (line,) = starts(recommend(summary(made)), "would_change", "Speed")
    assert "t5 trained at 1.40 times the speed of rope, its loss being 0.400 above" in line


def fits(made, name, length):
    """Retold: the lowest of all, or not clearly above it."""
    above = made["encodings"][name]["language_model"]["above_best"][str(length)]
    lead = min([above["low"], *above["by_seed"].values()])
    return above["best"] == name or lead <= 0


@given(made_up())
def test_what_is_recommended_is_never_clearly_beaten_at_all_lengths(made):
    found = recommend(made)
    done = [n for n, e in made["encodings"].items() if "language_model" in e]
    lengths = made["settings"]["lengths"]
    assert bool(found["use"]) == bool(done)
    assert len(set(found["use"])) == len(found["use"])
    for name in found["use"]:
        assert any(fits(made, name, n) for n in lengths)
    everywhere = {name for name in done if all(fits(made, name, n) for n in lengths)}
    if everywhere:
        assert set(found["use"]) == everywhere
    elif done:
        assert len(found["use"]) <= 2
        assert fits(made, found["use"][0], lengths[0])
    for n, row in found["lengths"].items():
        assert {row["best"], *row["ties"]} == {name for name in done if fits(made, name, n)}
        assert row["best"] not in row["ties"]


@given(made_up())
def test_words_name_only_what_was_compared(made):
    found = recommend(made)
    compared = set(made["encodings"])
    for line in words(found):
        named = set(re.findall(r"\w+", line)) & set(encodings())
        assert named <= compared, line
        assert line.endswith(".") and ".." not in line and "None" not in line and "  " not in line
    for name in found["use"]:
        assert name in found["headline"]
    assert recommend(made) == found


@given(made_up())
def test_every_loss_in_the_words_is_one_of_the_summary(made):
    known = set()
    for one in made["encodings"].values():
        model = one.get("language_model", {"loss": {}, "above_best": {}})
        rows = (*model["loss"].values(), *model["above_best"].values())
        for row in rows:
            values = (row["mean"], row["low"], row["high"], *row["by_seed"].values())
            known |= {f"{abs(value):.3f}" for value in values}
    settings = made["settings"]
    found = recommend(made)
    for line in (found["headline"], *found["because"], *found["would_change"]):
        for number in re.findall(r"\d+\.\d{3}", line):
            assert number in known or number == f"{settings['learning_rate']:g}", line
