"""The steps in words and small tables. Every number comes from the step that is told.

The text is plain ASCII and a table is at most 74 columns wide, so any terminal can show it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from whereness.story.codes import BinaryCodes, IntegerCodes, NormalisedCodes, ShiftMatrix
from whereness.story.offsets import MovedFragment, RecoveredOffset
from whereness.story.order import PermutedAttention, Raccoon, TwoDogs
from whereness.story.parts import ZERO, Numbers
from whereness.story.turning import AddedOrTurned, GridScores, MoreAxes, RotatedScores


class Grid(NamedTuple):
    """A small table: the first column to the left, the others to the right."""

    header: tuple[str, ...]
    rows: Sequence[Sequence[str]]


class Told(NamedTuple):
    """What was tried, the tables, what they say, and what follows."""

    tried: str
    grids: tuple[Grid, ...]
    says: str
    then: str


def shown(value: float, digits: int = 3) -> str:
    """A number, short; what is 0 but for rounding is shown as 0."""
    if abs(value) < ZERO:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def row(values: Iterable[float] | Tensor, digits: int = 3) -> str:
    """Numbers of a vector in one cell, room left for a sign."""
    return " ".join(f"{float(value): .{digits}f}" for value in values)


def _permuted_attention(n: PermutedAttention) -> Told:
    rows = [
        (f"{name}, row {i + 1}", row(before[i], 1), row(after[i], 1))
        for name, before, after in (
            ("weights", n.two.weights, n.swapped.weights),
            ("outputs", n.two.outputs, n.swapped.outputs),
        )
        for i in range(2)
    ]
    order = " ".join(str(i) for i in n.permutation)
    return Told(
        "Two tokens go through attention, then the same two in the other order. Nothing tells "
        "attention where they are.",
        (Grid(("", "as given", "swapped"), rows),),
        "The swap went straight through: rows and columns of the weights changed places, and so "
        f"did the outputs. So it is with {len(n.permutation)} random tokens in the order {order}: "
        "weights and outputs follow the order and change in nothing else.",
        "Attention sees a set. So there must be sentences that it cannot tell apart.",
    )


def _raccoon(n: Raccoon) -> Told:
    rows = [
        (word, row(first[:3]), row(second[:3]))
        for word, first, second in zip(n.words, *n.outputs, strict=True)
    ]
    return Told(
        f'"{n.sentences[0]}" and "{n.sentences[1]}": the same words, drawn at random, through '
        "the same random W_q, W_k and W_v.",
        (Grid(("first 3 channels", "in the first", "in the second"), rows),),
        "Every word comes out the same in both, and so does the mean that a classifier would "
        "read. Who ate whom is lost. A causal mask alone does tell them apart (by "
        f"{shown(n.causal_gap)}), because what a word may see then depends on its place; a model "
        "that reads both ways has no such help. From here on there is no mask.",
        "One word at two places in one sentence is the sharpest case.",
    )


def _two_dogs(n: TwoDogs) -> Told:
    rows = [(name, row(out[0, :3]), row(out[1, :3])) for name, out in n.outputs.items()]
    first, second = n.places
    return Told(
        f'"{n.sentence}": the two dogs stand at {first} and {second} (at {first + 1} and '
        f"{second + 1} where a begin token is counted).",
        (Grid(("first 3 channels", "first dog", "second dog"), rows),),
        "Without an encoding the two dogs are one. Any encoding tells them apart; measured is the "
        "largest difference of the two outputs.",
        "So something must join. The simplest that could work: count.",
    )


def _integer_codes(n: IntegerCodes) -> Told:
    columns = (column.tolist() for column in (n.ratio, n.kept, n.alike))
    rows = [
        (f"{p:,}", shown(r, 4), f"{k:.3f}", f"{a:.6f}")
        for p, r, k, a in zip(n.positions, *columns, strict=True)
    ]
    header = ("position", "code / word", "cos(dog, dog + code)", "cos(dog + code, chased + code)")
    return Told(
        "Add the position itself to every channel of the word.",
        (Grid(header, rows),),
        f"Every position has a code of its own. But at position {n.positions[-1]:,} the code is "
        f"{shown(n.ratio[-1].item())} times as long as the word: two words that had little in "
        "common now point the same way. The number swamps the word.",
        "Keep it small: divide by the length of the text.",
    )


def _normalised_codes(n: NormalisedCodes) -> Told:
    rows = [
        (f"{length:,}", shown(code.item()), shown(step.item()))
        for length, code, step in zip(n.lengths, n.codes, n.steps, strict=True)
    ]
    return Told(
        "Add position / length, so that no entry exceeds 1.",
        (Grid(("length", f"code of position {n.position}", "step to the next"), rows),),
        "Nothing is swamped. But the same position has another code in every text: the code says "
        "which share of the text lies behind a token, not where the token is. And the longer the "
        "text, the less its neighbours differ.",
        "A code must be small and the same in every text. Digits are: write the position in bits.",
    )


def _binary_codes(n: BinaryCodes) -> Told:
    rows = [
        (str(p), "  ".join(str(int(bit)) for bit in n.codes[p]), str(int(n.flips[p - 1])))
        for p in (1, 2, 3, 4, 6, 7, 8, 15, 16)
    ]
    plain, gray = n.residual.values()
    cycles = ", ".join(str(cycle) for cycle in n.repeats)
    return Told(
        "Add the bits of the position, least significant first.",
        (Grid(("position", "first 5 bits", "bits that flip on the way here"), rows),),
        f"Unique, small, the same in every text. The bits have cycles of {cycles} tokens (bit b "
        "stays for 2^b and is back after 2^(b+1)). But the way jumps: one step flips 1 bit or "
        f"{int(n.flips[:16].max())}. No linear map leads from the code of p to that of p + 3: the "
        f"best one is off by {plain:.0%} of their spread, and with Gray's code, which flips one "
        f"bit a step, by {gray:.0%}. And bits run out: the library refuses a position past them.",
        "Keep cycles from fast to slow, and make them smooth.",
    )


def _shift_matrix(n: ShiftMatrix) -> Told:
    blocks = [slice(2 * i, 2 * i + 2) for i in range(2)]
    rows = [
        (f"pair {i}, row {j + 1}", row(here[j], 6), row(there[j], 6))
        for i, b in enumerate(blocks)
        for here, there in ((n.matrix[b, b], n.matrix_elsewhere[b, b]),)
        for j in range(2)
    ]
    spans = (f"{s} .. {s + n.num_positions - 1}" for s in (0, n.start))
    return Told(
        "Replace each bit by a sine and a cosine, add those, and ask again for a linear map M from "
        f"the code of p to that of p + {n.shift}, by least squares.",
        (Grid((f"M for {n.shift} tokens", *(f"fitted to {span}" for span in spans)), rows),),
        "It exists, and it came out as one rotation a pair, the same at every position, though "
        f"nothing told the fit so (entries of M^T M - I: {shown(n.not_a_rotation)}). Codes do not "
        "run out at 2 pi 10,000 = 63,000 tokens either. There the slowest wave begins anew (with "
        f"64 channels at {n.longest_wave:,.0f}), but not all waves at once: up to {n.span:,} "
        f"tokens apart, no two codes are nearer than neighbours are ({shown(n.nearest)}). What "
        "fails: a code says where a token is, and language asks how far apart two are. The plain "
        f"difference of codes {n.shift} tokens apart is another one at every position.",
        "The rotation is the same everywhere. So read the offset from that.",
    )


def _recovered_offset(n: RecoveredOffset) -> Told:
    places = [
        (f"{a} and {b}", str(b - a), str(k)) for (a, b), k in zip(n.pairs, n.recovered, strict=True)
    ]
    words = [(shown(s), f"{f:.1%}") for s, f in zip(n.sizes, n.found, strict=True)]
    right = int((n.answers == 3).sum())
    return Told(
        "Take two codes and look for the rotation that leads from one to the other. Then do it "
        "with words, to which the codes are added.",
        (
            Grid(("codes of", "offset", "recovered"), places),
            Grid(("size of the words' entries", "offsets recovered, of 500 pairs"), words),
        ),
        "Two absolute codes hold their offset exactly, wherever they stand. But attention gets "
        "sums of word and code. One pair of words of size 1, always 3 apart, gives answers from "
        f"{int(n.answers.min())} to {int(n.answers.max())} as the text moves, {right} of "
        f"{len(n.answers)} right. A model can learn to keep word and code apart; nothing makes it.",
        "Attention does not look for rotations, it takes dot products. What do those say?",
    )


def _moved_fragment(n: MovedFragment) -> Told:
    names = list(n.weights)
    columns = [n.positions, n.offsets, *n.weights.values()]
    rows = [(word, *(_both(column[:, i]) for column in columns)) for i, word in enumerate(n.words)]
    terms = [(name, shown(change)) for name, change in n.terms.items()]
    return Told(
        f'"{" ".join(n.words)}" at the start of a text / {n.starts[1]:,} tokens into one. How '
        'much "ate" attends to each of the words:',
        (
            Grid(("", "position", 'from "ate"', *names), rows),
            Grid(("part of (word + code) . (word + code)", "largest change"), terms),
        ),
        "With one number an offset, added to the score, nothing changes: the offsets are the "
        "same. With codes added to the words the weights change, though the words and their "
        "order did not. The score of two sums has four parts. Two mix a word with a place; the "
        "last would know the offset alone, but W_q and W_k end that too.",
        "A number beside the score is one way out (LearnedRelative, T5, ALiBi), the same for all "
        "words. Can a word carry its place itself, without a sum?",
    )


def _both(values: Tensor) -> str:
    """What it is at the first start and at the second."""
    form = ".3f" if values.is_floating_point() else ""
    return " / ".join(f"{value:{form}}" for value in values.tolist())


def _added_or_turned(n: AddedOrTurned) -> Told:
    rows = [
        (f"{p:,}", f"{a:.4f}", f"{t:.4f}")
        for p, a, t in zip(n.positions, n.added, n.turned, strict=True)
    ]
    return Told(
        "A dot product is length times length times the cosine of the angle. Let the place act "
        "on the angle alone: turn each pair of channels by p times its frequency.",
        (Grid(("position", "|word + code| / |word|", "|turned word| / |word|"), rows),),
        "A sum changes the length of the word, by another factor at every place; a turn leaves "
        f"it. The turn is the M of step 7 again, transposed (difference {shown(n.transpose_gap)}): "
        "in (sin, cos) order M turns clockwise, and the usual formula for queries and keys turns "
        "the other way.",
        "Turn queries and keys, and look at their scores.",
    )


def _rotated_scores(n: RotatedScores) -> Told:
    rows = [
        (f"q at {start:,}", *(f"{score:.6f}" for score in scores))
        for start, scores in zip(n.starts, n.scores.tolist(), strict=True)
    ]
    sizes = _times(n.grid.sizes)
    rows.append(("q = k = (1, ..., 1)", *(f"{score:.3f}" for score in n.flat.tolist())))
    return Told(
        "A query turned by its place, a key turned by its own, both drawn at random.",
        (Grid(("offset", *(f"{offset:,}" for offset in n.offsets)), rows),),
        "This is RoPE. Given the words, the score depends on the offset and on nothing else; the "
        f"text of step 9 keeps its weights wherever it starts (change {shown(n.fragment_change)}). "
        "Turned the other way, an offset gets the score of its opposite; exchange the two channels "
        f"of every pair as well and it has its own again (difference {shown(n.swap_gap)}). So the "
        "article may print its matrix one way and its formula the other: a model can learn the "
        "same either way. But a checkpoint works with one only. What fails: number the "
        f"cells of an {sizes} image row by row, and {len(n.grid.steps)} displacements "
        f"share {n.grid.told_apart} scores. One to the right is offset 1, and so is one row down "
        "and seven to the left.",
        "An image has two coordinates, a video three. Give each its own pairs.",
    )


def _more_axes(n: MoreAxes) -> Told:
    grids = [_grid_row("plane", n.plane), _grid_row("space", n.space)]
    directions = [(str(d), f"{s:.3f}") for d, s in zip(n.directions, n.by_direction, strict=True)]
    return Told(
        "Some pairs turn by the row, others by the column, others by the depth. No pair mixes two "
        "coordinates: a row + b column is the same for many cells, as it was with the numbers.",
        (
            Grid(("cells", "displacements", "told apart", "change with the start"), grids),
            Grid(("displacement, all of length 5", "score of q = k = (1, ..., 1)"), directions),
        ),
        "Every displacement has a score of its own, wherever it starts. What fails: straight and "
        "slanted ways of one length are not treated alike. Whether that matters, and whether a "
        "trained model goes on in texts longer than any it saw, no derivation tells.",
        "Here derivation ends and trying begins: whereness measure, whereness compare.",
    )


def _grid_row(name: str, g: GridScores) -> tuple[str, ...]:
    return (f"{name}, {_times(g.sizes)}", str(len(g.steps)), str(g.told_apart), shown(g.spread))


def _times(sizes: tuple[int, ...]) -> str:
    return " x ".join(str(size) for size in sizes)


_TELLERS: dict[type[Numbers], Callable[[Any], Told]] = {
    PermutedAttention: _permuted_attention,
    Raccoon: _raccoon,
    TwoDogs: _two_dogs,
    IntegerCodes: _integer_codes,
    NormalisedCodes: _normalised_codes,
    BinaryCodes: _binary_codes,
    ShiftMatrix: _shift_matrix,
    RecoveredOffset: _recovered_offset,
    MovedFragment: _moved_fragment,
    AddedOrTurned: _added_or_turned,
    RotatedScores: _rotated_scores,
    MoreAxes: _more_axes,
}


def told(numbers: Numbers) -> Told:
    """A step's numbers in words and tables."""
    return _TELLERS[type(numbers)](numbers)
