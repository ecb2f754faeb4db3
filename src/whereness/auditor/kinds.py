"""What each kind of fault is about, for someone who meets it for the first time."""

from typing import NamedTuple


class Teaching(NamedTuple):
    """A kind in three sentences."""

    invariant: str
    """What must hold."""
    breaks: str
    """How it comes to be broken."""
    shows: str
    """What one sees of it, and what one does not."""


TEACHING = {
    "K01": Teaching(
        "A rotary layer turns channels two by two, half a head apart or next to each other, and "
        "the weights of queries and keys were trained for one of the two.",
        "A port, a converter or a kernel takes the other pairing, or builds its table in one and "
        "turns in the other.",
        "The first token is right and the error grows with position, so short prompts look fine; "
        "the shapes always fit, and a shift of all positions finds nothing if the code is "
        "consistent.",
    ),
    "K02": Teaching(
        "Every pair of channels turns with one speed, a fixed number of radians a token, that "
        "follows from the base and the scaling in the config.",
        "A default replaces the base of the file, a scaling block is read under another key or "
        "only stored, or an engine has its own formula for the ramp between kept and slowed "
        "pairs.",
        "A wrong speed still gives a valid relative encoding: text stays fluent, short tests "
        "pass, and quality falls with length.",
    ),
    "K03": Teaching(
        "Only the stated number of channels of a head turns, and exponents, partners and lists "
        "of factors are counted on that width, not on the whole head.",
        "A partial width is dropped, taken from a family's default that the file does not "
        "repeat, or used for the table but not for the partner.",
        "Channels turn that were trained to carry content only; quality falls with length and "
        "nothing raises, unless the width comes out odd.",
    ),
    "K04": Teaching(
        "YaRN and LongRoPE do two things beside slowing pairs: they stretch cos and sin, and "
        "some change the scale of the softmax; these are two numbers, and one that is given "
        "wins.",
        "One of them is left out, applied twice, computed from the wrong key, or replaced "
        "although the config states it.",
        "Attention is a little too sharp or too flat at every position alike, and no comparison "
        "of positions with one another sees that.",
    ),
    "K05": Teaching(
        "All queries and keys of a sequence must be turned by the same table, and an output must "
        "depend on its input only, not on what ran before.",
        "Tables that depend on length are chosen by each call: cached keys keep the old one "
        "while new queries come with another, or a table that grew for a long prompt stays.",
        "The same prompt answers differently after a long one, or generation falls apart where "
        "it crosses the trained length.",
    ),
    "K06": Teaching(
        "Positions, frequencies, slopes and integer ids mean exact numbers; a model may be cast, "
        "its angles may not.",
        "Frequencies lie in a buffer that .to(bfloat16) rounds, positions are made in a half "
        "type, or a matrix product forms the angles with ten bits of mantissa.",
        "In float32 nothing shows; bfloat16 cannot tell position 256 from 257, so near tokens "
        "are fine and far ones melt together.",
    ),
    "K07": Teaching(
        "A table of positions is computed, so it must come out the same after any way of making "
        "the model: meta device, sharded start, save and load, deepcopy, pickle.",
        "It is a buffer that no checkpoint holds and that nothing refills after to_empty(), or "
        "one that an old checkpoint holds and that is loaded unseen.",
        "Uninitialised memory is NaN on a bad day and plausible small numbers on a good one; the "
        "loss starts near that of a random model.",
    ),
    "K08": Teaching(
        "A text gives the same output in one pass, token by token, in chunks, after an eviction "
        "or with a cache that was moved.",
        "New tokens are numbered by the wrong counter: from 0 again, one too far, by the size of "
        "a cache that has lost entries, or all alike within a chunk.",
        "Evaluation, which runs in one pass, is right, and generation drifts; the first new "
        "token is often right as well.",
    ),
    "K09": Teaching(
        "What a token gets must not depend on the pads beside it or on the other rows of its "
        "batch.",
        "Pads are attended, or tokens are numbered from the pads; or prefill numbers in one way "
        "and decoding in another.",
        "Rows that are shorter than the longest of their batch are worse; mere numbering from "
        "the pads harms learned tables only, for a relative layer sees distances.",
    ),
    "K10": Teaching(
        "Documents packed into one row give what each gives alone, forwards and backwards.",
        "The mask lets one document see another, or positions run on across the boundary, or "
        "boundaries are guessed from ids.",
        "The loss looks ordinary because the leak helps prediction; for relative layers the mask "
        "is all that matters, for absolute ones the numbering as well.",
    ),
    "K11": Teaching(
        "Split over devices, by sequence, by heads or by layers, and put together again, the "
        "result is that of one device.",
        "A shard numbers its tokens from 0, computes the slopes of its own heads as if they were "
        "the first, or takes rows of a table that was split in another order.",
        "The first rank is right and the others are not, so a test of rank 0 passes.",
    ),
    "K12": Teaching(
        "A position without a row in the table is refused or the table grows, and no length is "
        "advertised that the table does not have.",
        "A limit comes from another key than the table does, a factor is counted twice, or a "
        "kernel reads its rows unchecked.",
        "A device assert that ends the process is the better case; the worse one reads foreign "
        "memory or hands the input through unturned.",
    ),
    "K13": Teaching(
        "Position ids that are given are used, along the axis of tokens and no other.",
        "They are not passed on, replaced by a count, or applied along heads because two layouts "
        "have the same shape.",
        "Plain counting from 0 works, so only ids that are not evenly spaced show it: packing, "
        "trees and images are then without their order.",
    ),
    "K14": Teaching(
        "Absolute tables have a first row, a usable length, and integer ids that count them "
        "without a gap.",
        "Numbering starts behind the padding index, so some rows never serve; or the ids lie in "
        "a checkpoint, where merging and casting change them.",
        "The last few positions are refused, or words at some positions are ignored; for "
        "relative layers an even shift means nothing.",
    ),
    "K15": Teaching(
        "On a grid, axis order, the channels of each axis, units, time steps and the order in "
        "which patches are merged are parts of the encoding.",
        "Width comes first where height was meant, a time in seconds is cut to whole numbers, or "
        "a grid is flattened in the other direction.",
        "Square images look right and others do not; boxes are squeezed, or all frames of a "
        "video share one time.",
    ),
    "K16": Teaching(
        "A table resized for another grid has exactly the target's rows, leaves class and "
        "register rows alone, and does not change at the size that it has.",
        "The size is derived from a rounded factor, or the number of rows before the grid is "
        "guessed.",
        "Some image sizes fail by one row, or a class token is smeared into patches and features "
        "fade.",
    ),
    "K17": Teaching(
        "ALiBi takes from each logit a head's slope times the distance; the slopes follow a "
        "published recipe for any number of heads, and the nearest key loses nothing.",
        "Other head counts than powers of two get other slopes, the sign is turned, or the "
        "diagonal is not moved when there are more keys than queries.",
        "A turned sign favours the farthest token; wrong slopes only cost quality, more with "
        "length.",
    ),
    "K18": Teaching(
        "A learned bias belongs to a distance or a bucket of distances, and the map from offsets "
        "to rows is part of the trained weights, in both directions where a layer looks ahead.",
        "The rule for far buckets differs, a shift trick made for causal layers serves in "
        "others, or the bias is missing on the path with a cache.",
        "Output differs from the original a little everywhere; error rates may move by a tenth "
        "of a point, so nobody looks.",
    ),
    "K19": Teaching(
        "When there are fewer queries than keys, the queries are the last tokens, and causal and "
        "window masks count from the end.",
        "The mask is anchored at the first key, as some attention functions do by default.",
        "With a cache a new token sees the first key only; it looks like a fault of positions "
        "and is none.",
    ),
    "K20": Teaching(
        "Compiled, exported, or on a device without float64 or complex numbers, positions come "
        "out as in the plain model, for any length.",
        "Code branches on a length, replaces a buffer in its forward pass, or builds its table "
        "on another device.",
        "Export fails, or it succeeds with the length of the example frozen into it.",
    ),
    "K21": Teaching(
        "A fast path gives what the plain code gives, forwards and backwards, for all strides, "
        "sizes and flags, and leaves its inputs as they were.",
        "A kernel fixes a base, writes in place, guesses an axis from its size, or skips what it "
        "does not support.",
        "It depends on shapes: one key head, a view, or equal sizes of two axes are right or "
        "wrong while the usual test passes.",
    ),
    "K22": Teaching(
        "A config says each thing once: other spellings, contradictions, wrong types and unknown "
        "keys are settled when it is read, and loudly.",
        "Keys were renamed over versions, a default at the top hides a value within a block, or "
        "a value is a string where a number was meant.",
        "Two libraries read the same file as two models, and neither says a word.",
    ),
    "K23": Teaching(
        "Each layer is rotated as often as the config says, which is once or never.",
        "A list of layers without rotation is stored and not read, or code and engine both rotate.",
        "Rotated twice means twice the speed, which passes every test of shifts; a rotated layer "
        "that was trained without position makes long outputs repeat.",
    ),
    "K24": Teaching(
        "The frequencies of a sinusoidal code are a geometric series with one sine and one "
        "cosine each; exponent, order and unit of its input are conventions that must be named.",
        "A slip in the exponent makes every channel its own frequency or all of them alike, and "
        "code bases divide by half the width or by one less.",
        "Models trained with it still work, so it is found when weights move to other code.",
    ),
    "K25": Teaching(
        "Positions cost little: no square table of all pairs, no table for each length, no "
        "waiting for the device, no silent change to a slow path.",
        "A bias is stored for all pairs of tokens, a table is kept for each length that was "
        "seen, or a check reads a number back from the device.",
        "Numbers are right; memory grows with the square of the length, and a fast kernel that "
        "never runs looks like a slow model.",
    ),
}
"""By kind, in the order of `findings.KINDS`."""
