"""Position ids of text, images, video and sound against Hugging Face transformers' get_rope_index.

Its methods run on a stand-in that has the sizes of a config and no weights. They give (3, B, S), 0
at pads; ours are (B, S, 3), nowhere at pads.
"""

import random
import types

import pytest
import torch

from whereness import NOWHERE
from whereness.positions import Audio, Film, Image, Text, Video, from_token_types, multimodal

pytestmark = pytest.mark.more

MERGE = 2


def stand_in(model: type, **sizes: object) -> types.SimpleNamespace:
    vision = types.SimpleNamespace(spatial_merge_size=MERGE, **sizes)
    made = types.SimpleNamespace(config=types.SimpleNamespace(vision_config=vision))
    made.get_vision_position_ids = types.MethodType(model.get_vision_position_ids, made)
    return made


def drawn_rows(seed: int, seconds: float | None) -> list[list]:
    """Rows that begin with text; text stands between images, as the peer needs."""
    draw = random.Random(seed)
    rows = []
    for _ in range(3):
        row: list = [Text(draw.randint(1, 4))]
        for _ in range(draw.randint(0, 3)):
            height, width = draw.randint(1, 3), draw.randint(1, 4)
            frames = draw.randint(1, 6)
            row.append(draw.choice([Image(height, width), Video(frames, height, width, seconds)]))
            row.append(Text(draw.randint(1, 4)))
        rows.append(row)
    rows.append([Text(2), Image(2, 3), Text(1), Video(4, 1, 1, seconds), Text(3)])
    return rows


def processed(rows: list[list]) -> dict[str, torch.Tensor]:
    """What a processor would hand over: types, grids of patches, a mask of left pads."""
    codes, images, videos = [], [], []
    for row in rows:
        code: list[int] = []
        for s in row:
            if isinstance(s, Image):
                code += [1] * (s.height * s.width)
                images.append([1, s.height * MERGE, s.width * MERGE])
            elif isinstance(s, Video):
                code += [2] * (s.frames * s.height * s.width)
                videos.append([s.frames, s.height * MERGE, s.width * MERGE])
            else:
                code += [0] * s.tokens
        codes.append(code)
    longest = max(map(len, codes))
    return {
        "token_types": torch.tensor([[0] * (longest - len(c)) + c for c in codes]),
        "attention_mask": torch.tensor([[0] * (longest - len(c)) + [1] * len(c) for c in codes]),
        "image_grids": torch.tensor(images, dtype=torch.int64).reshape(-1, 3),
        "video_grids": torch.tensor(videos, dtype=torch.int64).reshape(-1, 3),
    }


def theirs(model: type, made: types.SimpleNamespace, given: dict, **options: object) -> tuple:
    ids, delta = model.get_rope_index(
        made,
        given["token_types"],
        given["token_types"],
        given["image_grids"],
        given["video_grids"],
        attention_mask=given["attention_mask"],
        **options,
    )
    real = given["attention_mask"].bool()
    ids = ids.permute(1, 2, 0).masked_fill(~real[..., None], NOWHERE)
    return ids, delta[:, 0]


def agree(ours, ids: torch.Tensor, delta: torch.Tensor) -> None:
    assert ours.positions.equal(ids)
    assert ours.delta.equal(delta)


@pytest.mark.parametrize("seed", range(6))
def test_qwen2_vl(seed):
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel

    rows = drawn_rows(seed, None)
    given = processed(rows)
    ids, delta = theirs(Qwen2VLModel, stand_in(Qwen2VLModel), given)
    agree(from_token_types(**given, merge=MERGE, after="side"), ids, delta)
    agree(multimodal(rows, after="side", padding_side="left"), ids, delta)


@pytest.mark.parametrize("seconds", [0.5, 1.0, 1.5, 0.0625])
@pytest.mark.parametrize("seed", range(4))
def test_qwen2_5_vl(seed, seconds):
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel

    rows = drawn_rows(seed, seconds)
    given = processed(rows)
    intervals = torch.full((len(given["video_grids"]),), seconds)
    ids, delta = theirs(
        Qwen2_5_VLModel,
        stand_in(Qwen2_5_VLModel, tokens_per_second=2),
        given,
        second_per_grid_ts=intervals.tolist(),
    )
    options = {"ticks_per_second": 2, "times": "floor", "after": "side"}
    agree(
        from_token_types(**given, seconds_per_frame=intervals, merge=MERGE, **options), ids, delta
    )
    agree(multimodal(rows, padding_side="left", **options), ids, delta)


@pytest.mark.parametrize("name", ["qwen3_vl", "glm4v"])
@pytest.mark.parametrize("seed", range(4))
def test_every_frame_as_an_image_of_its_own(seed, name):
    """Timestamps stand between the frames, as text."""
    if name == "qwen3_vl":
        from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel as Model
    else:
        from transformers.models.glm4v.modeling_glm4v import Glm4vModel as Model

    rows, per_frame = drawn_rows(seed, None), []
    for row in rows:
        split: list = []
        for s in row:
            if isinstance(s, Video):
                frame = [Video(1, s.height, s.width), Text(1)]
                split += frame * s.frames
            else:
                split.append(s)
        per_frame.append(split)
    given = processed(per_frame)
    whole = [
        [s.frames, s.height * MERGE, s.width * MERGE]
        for row in rows
        for s in row
        if isinstance(s, Video)
    ]
    as_given = {**given, "video_grids": torch.tensor(whole, dtype=torch.int64).reshape(-1, 3)}
    ids, delta = theirs(Model, stand_in(Model), as_given)
    # Frames have no time of their own, so that both ways of going on are one.
    for after in ("farthest", "side"):
        agree(from_token_types(**given, merge=MERGE, after=after), ids, delta)
        agree(multimodal(per_frame, after=after, padding_side="left"), ids, delta)


@pytest.mark.parametrize("seed", range(4))
def test_ernie_merges_frames_too(seed):
    from transformers.models.ernie4_5_vl_moe.modeling_ernie4_5_vl_moe import Ernie4_5_VLMoeModel

    rows = drawn_rows(seed, None)
    given = processed(rows)
    patches = given["video_grids"] * torch.tensor([2, 1, 1])
    made = stand_in(Ernie4_5_VLMoeModel, temporal_merge_size=2)
    ids, delta = theirs(Ernie4_5_VLMoeModel, made, {**given, "video_grids": patches})
    agree(from_token_types(**given, merge=MERGE, after="side"), ids, delta)
    agree(multimodal(rows, after="side", padding_side="left"), ids, delta)


# Qwen2.5-Omni and Qwen3-Omni tell segments by special tokens

TEXT, IMAGE, VIDEO, AUDIO, SEE, HEAR, SEEN, HEARD = range(8)


def omni() -> tuple[type, types.SimpleNamespace]:
    from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as module

    model = module.Qwen2_5OmniPreTrainedModelForConditionalGeneration
    config = types.SimpleNamespace(
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        audio_token_id=AUDIO,
        vision_start_token_id=SEE,
        audio_start_token_id=HEAR,
        position_id_per_seconds=25,
        seconds_per_chunk=2,
    )
    made = types.SimpleNamespace(config=config, spatial_merge_size=MERGE)
    for name in ("get_llm_pos_ids_for_vision", "get_chunked_index"):
        setattr(made, name, types.MethodType(getattr(model, name), made))
    return model, made


def mel_frames(tokens: int) -> int:
    """Frames before two halvings that leave so many tokens."""
    return 4 * tokens


def omni_ids(row: list, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
    """Theirs, for one row whose segments are told by marks."""
    ids: list[int] = []
    images, videos, audios, seconds = [], [], [], []
    for s in row:
        if isinstance(s, Text):
            ids += [TEXT] * s.tokens
        elif isinstance(s, Image):
            ids += [SEE, *[IMAGE] * (s.height * s.width), SEEN]
            images.append([1, s.height * MERGE, s.width * MERGE])
        elif isinstance(s, Audio):
            ids += [HEAR, *[AUDIO] * s.tokens, HEARD]
            audios.append(mel_frames(s.tokens))
        else:
            video = s.video if isinstance(s, Film) else s
            videos.append([video.frames, video.height * MERGE, video.width * MERGE])
            seconds.append(video.seconds_per_frame)
            picture = [VIDEO] * (video.frames * video.height * video.width)
            if isinstance(s, Film):
                audios.append(mel_frames(s.audio.tokens))
                ids += [SEE, HEAR, *picture, *[AUDIO] * s.audio.tokens, HEARD, SEEN]
            else:
                ids += [SEE, *picture, SEEN]
    model, made = omni()
    found, delta = model.get_rope_index(
        made,
        torch.tensor([ids]),
        torch.tensor(images, dtype=torch.int64).reshape(-1, 3),
        torch.tensor(videos, dtype=torch.int64).reshape(-1, 3),
        attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
        audio_seqlens=torch.tensor(audios),
        second_per_grids=torch.tensor(seconds),
        **options,
    )
    return found.permute(1, 2, 0), delta[:, 0]


def marked(row: list) -> list:
    """With the marks as text around each segment; two at one position around a film."""
    found: list = []
    for s in row:
        step = 0 if isinstance(s, Film) else 1
        around = Text(2 if isinstance(s, Film) else 1, step)
        found += [s] if isinstance(s, Text) else [around, s, around]
    return found


OMNI = {"ticks_per_second": 25, "times": "floor"}


@pytest.mark.parametrize("seconds", [0.5, 1.0, 2.0])
def test_qwen2_5_omni(seconds):
    row = [
        Text(3),
        Image(2, 3),
        Text(1),
        Video(3, 2, 2, seconds),
        Audio(7),
        Text(2),
        Video(2, 1, 3, seconds),
        Image(1, 1),
        Text(2),
    ]
    agree(multimodal(marked(row), **OMNI), *omni_ids(row))


@pytest.mark.parametrize("seconds", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("extra", [0, 30], ids=["together", "the sound is longer"])
def test_a_film_of_qwen2_5_omni(seconds, extra):
    video = Video(5, 2, 2, seconds)
    sound = Audio(int(5 * seconds * 25) + extra)
    row = [Text(3), Film(video, sound), Text(4)]
    agree(multimodal(marked(row), **OMNI), *omni_ids(row, use_audio_in_video=True))


# Where they differ


def test_after_a_long_video_theirs_goes_back_in_time():
    """The paper and the docstring say: text goes on one beyond the largest position."""
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel

    given = processed([[Text(1), Video(5, 2, 2), Text(2)]])
    ids, _ = theirs(Qwen2VLModel, stand_in(Qwen2VLModel), given)
    assert ids[0, -3:].tolist() == [[5, 2, 2], [3, 3, 3], [4, 4, 4]]
    ours = from_token_types(**given, merge=MERGE).positions
    assert ours[0, -3:].tolist() == [[5, 2, 2], [6, 6, 6], [7, 7, 7]]


def test_after_a_film_theirs_looks_at_the_last_chunk_alone():
    """A wide picture and a short sound: the sound's last chunk lies before the picture's edge."""
    row = [Film(Video(1, 1, 9, 1.0), Audio(3)), Text(1)]
    found, _ = omni_ids(row, use_audio_in_video=True)
    assert found[0, 2:-3].amax() == 9
    assert found[0, -1].tolist() == [5, 5, 5]
    ours = multimodal(marked(row), **OMNI).positions
    assert ours[0, :-3].equal(found[0, :-3])
    assert ours[0, -1].tolist() == [11, 11, 11]


def test_a_frame_that_skips_a_chunk_is_cut_by_theirs():
    """Frames 4 s apart, chunks of 2 s: the second frame's first token leaves the others behind."""
    row = [Film(Video(2, 1, 3, 4.0), Audio(120))]
    found, _ = omni_ids(row, use_audio_in_video=True)
    ours = multimodal(marked(row), **OMNI).positions

    def second_frame(ids: torch.Tensor) -> list[int]:
        return [
            slot for slot, (time, row, _) in enumerate(ids[0].tolist()) if (time, row) == (101, 1)
        ]

    assert second_frame(ours) == [105, 106, 107]
    first, second, third = second_frame(found)
    assert (second - first, third - second) != (1, 1)


def test_times_in_float32_fall_below_their_tick():
    """25 frames a second, two a grid: 2 ticks a grid. The fifth grid is at 10, theirs says 9."""
    row = [Video(6, 1, 1, 0.08)]
    found, _ = omni_ids(row)
    assert found[0, 1:-1, 0].tolist() == [1, 3, 5, 7, 9, 10]
    ours = multimodal(marked(row), **OMNI).positions
    assert ours[0, 1:-1, 0].tolist() == [1, 3, 5, 7, 9, 11]
