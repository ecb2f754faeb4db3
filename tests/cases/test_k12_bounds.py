"""K12: what an encoding cannot hold is refused with both numbers; what it computes has no end."""

import copy
import math
from collections.abc import Callable

import mpmath
import pytest
import torch

import whereness as wn
from cases.support import (
    DIM,
    HEAD_DIM,
    HEADS,
    Recorder,
    bitwise,
    case,
    differ,
    equal,
    heads,
    model,
    tokens,
)

ROWS = 16

# What ends: how it is made with ROWS rows.
TABLES: dict[str, Callable[[], wn.PositionalEncoding]] = {
    "learned": lambda: wn.LearnedAbsolute(DIM, ROWS),
    "learned-every_layer": lambda: wn.LearnedAbsolute(DIM, ROWS, site="every_layer"),
    "learned-queries_keys": lambda: wn.LearnedAbsolute(DIM, ROWS, site="queries_keys"),
    "binary": lambda: wn.Binary(DIM, 4),
}


def paths(make: Callable[[], wn.PositionalEncoding]) -> dict[str, Callable[[list[int]], object]]:
    """Every way by which ids get to the encoding."""

    def in_steps(ids: list[int]) -> None:
        whole = model(make())
        caches = whole.new_caches()
        for t in ids:
            whole(tokens(1), where=torch.tensor([t]), caches=caches)

    def after_a_cache(ids: list[int]) -> None:
        whole = model(make())
        caches = whole.new_caches()
        whole(tokens(3), caches=caches)
        whole(tokens(len(ids)), where=torch.tensor(ids), caches=caches)

    def in_a_row(ids: list[int]) -> None:
        rows = torch.tensor([[0] * len(ids), ids])
        model(make())(tokens(len(ids), 2), where=rows)

    return {
        "rows": lambda ids: make()(torch.tensor(ids)),
        "int32": lambda ids: make()(torch.tensor(ids, dtype=torch.int32)),
        "prepare": lambda ids: make().prepare(wn.Where(torch.tensor(ids))),
        "model": lambda ids: model(make())(tokens(len(ids)), where=torch.tensor(ids)),
        "one row of a batch": in_a_row,
        "steps": in_steps,
        "after a cache": after_a_cache,
    }


PATHS = tuple(paths(TABLES["learned"]))


@case("P135", "P139")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", TABLES)
def test_the_last_row_serves_and_the_next_is_refused(name, path):
    use = paths(TABLES[name])[path]
    use([0, ROWS - 1])
    for bad in ([0, ROWS], [ROWS + 1000, 0], [-1, 0]):
        wrong = next(p for p in bad if p)
        held = rf"\b({ROWS}|{ROWS - 1})\b"
        with pytest.raises(ValueError, match=rf"(?s){held}.*got.*(?<!\d){wrong}(?!\d)"):
            use(bad)


@case("P135", "P139")
@pytest.mark.untyped
@pytest.mark.parametrize("name", TABLES)
def test_compiled_the_next_row_is_refused_too(name):
    """No value may be looked at there: the refusal is an assertion of torch's."""
    compiled = torch.compile(TABLES[name](), backend="eager", fullgraph=True)
    compiled(torch.tensor([0, ROWS - 1]))
    for bad in ([0, ROWS], [-1, 0]):
        with pytest.raises(RuntimeError, match="out of range"):
            compiled(torch.tensor(bad))


@case("P135", "P139")
def test_a_distance_beyond_a_table_is_refused_where_clipping_is_not_asked_for():
    made = wn.LearnedRelative(HEADS, ROWS, beyond="raise")
    ids = torch.arange(ROWS + 1)
    made.bias(ids, ids)
    far = torch.arange(ROWS + 2)
    with pytest.raises(ValueError, match=f"distance {ROWS}, got {ROWS + 1}"):
        made.bias(far, far)
    q = heads(ROWS + 2)
    with pytest.raises(ValueError, match=f"distance {ROWS}, got {ROWS + 1}"):
        wn.attention(q, q, q, made)
    whole = model(made)
    caches = whole.new_caches()
    whole(tokens(ROWS + 1), caches=caches)
    with pytest.raises(ValueError, match=f"distance {ROWS}, got {ROWS + 1}"):
        whole(tokens(1), caches=caches)
    assert len(caches[0]) == ROWS + 1


@case("P135")
@pytest.mark.parametrize("name", ["relative_add", "shaw", "t5"])
def test_encodings_that_name_what_is_far_clip_by_their_definition(name):
    """Not silence: the last bucket is defined to hold every greater distance."""
    whole, ids = model(name), tokens(60)
    assert whole(ids).isfinite().all()
    equal(whole(ids, where=torch.arange(60) + 10**6), whole(ids))


@case("P136")
@pytest.mark.parametrize("chunks", [[20], [8, 1, 11], [9, 11]], ids=str)
def test_a_prompt_and_its_answer_that_do_not_fit_are_refused_before_the_lookup(chunks):
    """A table of 448 rows, 440 tokens of prompt, 20 new ones: 12 too many."""
    recorder = Recorder()
    whole = model([wn.LearnedAbsolute(DIM, 448), recorder], depth=1)
    caches = whole.new_caches()
    whole(tokens(440), caches=caches)
    fed, *rest = 440, *chunks
    while fed + rest[0] <= 448:
        size = rest.pop(0)
        whole(tokens(size), caches=caches)
        fed += size
    last = fed + rest[0] - 1
    with pytest.raises(
        ValueError, match=rf"below 448, got \[?{fed}\]? \.\. \[?{last}\b.*\.resized"
    ):
        whole(tokens(rest[0]), caches=caches)
    # Nothing was fed by the call that failed.
    assert len(caches[0]) == caches[0].next_position.item() == fed


@case("P138")
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("first", [8, 33])
def test_a_rotation_grows_inside_the_call_on_the_device_of_the_call(device, first):
    rope = wn.RoPE(HEAD_DIM)
    for length in (first, 9, 17, 33, 8):
        x = heads(length).to(device)
        q, k = rope(x, x)
        assert q.device == x.device
        assert rope.rotate_(x.clone()).device == x.device
        if device == "cpu":
            bitwise(q, wn.RoPE(HEAD_DIM)(x, x)[0])
            bitwise(k, q)
    assert not list(rope.buffers())  # there is no table that could be too short or left behind


@case("P138")
@pytest.mark.parametrize("name", ["rope", "axial_rope", "alibi", "t5", "sinusoidal", "integer"])
def test_longer_texts_need_no_preparation(name):
    whole = model(name)
    fresh = copy.deepcopy(whole)
    whole(tokens(8))
    for length in (9, 17, 33):
        longer = whole(tokens(length))
        bitwise(longer, copy.deepcopy(fresh)(tokens(length)))
        equal(longer[:, :8], whole(tokens(length)[:, :8]))


@case("P139")
@pytest.mark.parametrize("ids", [[0, ROWS], [-1, 0], [2**40, -(2**40)]], ids=str)
def test_no_id_of_a_rotation_is_passed_through_unturned(ids):
    rope, x = wn.RoPE(HEAD_DIM), heads(2)
    for out in (
        rope.rotate(x, torch.tensor(ids)),
        rope.rotate_(x.clone(), torch.tensor(ids)),
        rope(x, x, torch.tensor(ids))[0],
        rope(x, x, torch.tensor(ids))[1],
    ):
        for t, position in enumerate(ids):
            if position:
                differ(out[:, :, t], x[:, :, t])
            else:
                bitwise(out[:, :, t], x[:, :, t])
    back = rope.rotate(rope.rotate(x, torch.tensor(ids)), -torch.tensor(ids))
    equal(back, x)


@case("P139")
def test_ids_that_no_angle_can_tell_apart_are_refused():
    rope, x = wn.RoPE(HEAD_DIM), heads(1)
    rope.rotate(x, torch.tensor([2**53]))
    for bad in (2**53 + 1, -(2**53) - 1):
        with pytest.raises(ValueError, match=rf"2\^53.*got {bad}"):
            rope.rotate(x, torch.tensor([bad]))


FACTOR, TRAINED = 2.0, 16
SCHEMES = {
    "plain": lambda: None,
    "linear": lambda: wn.scaling.Linear(FACTOR),
    "ntk": lambda: wn.scaling.NTK(FACTOR),
    "ntk-kexue": lambda: wn.scaling.NTK(FACTOR, "kexue"),
    "dynamic": lambda: wn.scaling.DynamicNTK(FACTOR, TRAINED),
    "by_parts": lambda: wn.scaling.NTKByParts(FACTOR, TRAINED),
    "yarn": lambda: wn.scaling.YaRN(FACTOR, TRAINED),
    "llama3": lambda: wn.scaling.Llama3(FACTOR, 1.0, 4.0, TRAINED),
    "longrope": lambda: wn.scaling.LongRoPE([1.0] * 4, [2.0] * 4, TRAINED, factor=FACTOR),
    "proportional": lambda: wn.scaling.Proportional(0.5),
}


def admitted(name: str, length: int) -> tuple[wn.RoPE, wn.Where]:
    """The rotation of a scheme, and ids of a text of this length."""
    rope = wn.RoPE(HEAD_DIM, scaling=SCHEMES[name]())
    return rope, wn.Where(torch.arange(length), lengths=length)


@case("P142")
@pytest.mark.parametrize("length", [TRAINED, int(FACTOR) * TRAINED, 10 * TRAINED])
@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_serves_the_length_that_it_admits(name, length):
    rope, where = admitted(name, length)
    x = heads(length)
    found = rope.rotate(x, where)
    frequencies = rope.frequencies_at(length).tolist()
    assert len(frequencies) == HEAD_DIM // 2
    half = HEAD_DIM // 2
    for position in (0, TRAINED - 1, length - 1):
        for pair, frequency in enumerate(frequencies):
            angle = mpmath.mpf(position) * mpmath.mpf(frequency)
            cos, sin = float(mpmath.cos(angle)), float(mpmath.sin(angle))
            a, b = (x[0, :, position, c] for c in (pair, pair + half))
            size = rope.amplitude_at(length)
            equal(found[0, :, position, pair], size * (a * cos - b * sin))
            equal(found[0, :, position, pair + half], size * (a * sin + b * cos))


@case("P142")
@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_decodes_past_the_unscaled_length(name):
    """Step by step across 16, 32 and beyond: no step is refused, and all equal the full pass."""
    rope = wn.RoPE(HEAD_DIM, scaling=SCHEMES[name]())
    whole, ids, length = model(rope, depth=1), tokens(40), 40
    expected = whole(ids, where=wn.Where(torch.arange(length), lengths=length))
    caches, found = whole.new_caches(), []
    for t in range(length):
        where = wn.Where(torch.tensor([t]), lengths=length)
        found.append(whole(ids[:, t : t + 1], where=where, caches=caches))
    equal(torch.cat(found, 1), expected)


@case("P142")
def test_the_schemes_differ_past_the_unscaled_length():
    length = 2 * TRAINED
    tables = {name: admitted(name, length)[0].frequencies_at(length) for name in SCHEMES}
    plain = tables.pop("plain")
    assert all(not math.isclose(float((t - plain).abs().max()), 0) for t in tables.values())
