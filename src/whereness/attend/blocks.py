"""The reference's steps for one block of queries after the other: attention of any length.

Scores that look at content (Shaw, a factor on logits, gates) have no fused kernel, and the plain
steps keep a number for every pair and head, several times. Here a block of queries is answered,
and forgotten but for its output: the backward pass answers it again. When causal, a block meets
only the keys up to its last query, which halves the work.

Axes: B batch, H query heads, S queries, T keys.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from whereness.attend import reference
from whereness.attend.request import Options, Request
from whereness.encoding import PositionalEncoding

NUM_LOGITS = 2**21
"""A block has as many rows as make about this number of logits: 8 MiB in float32 ..."""
NUM_ROWS = 64
"""... but at least so many, below which copies of the keys would outgrow its logits."""


def refusal(options: Options, encoding: PositionalEncoding) -> str | None:
    """Why it can never serve such calls; None: it can."""
    if options.return_weights:
        return "keeps no weights to return: use 'reference'."
    whole = [type(m).__name__ for m in encoding.members() if not m.has_rows]
    if whole:
        return f"needs {whole[0]}.data_of_rows(), which keeps tables: use 'reference' or 'auto'."
    return None


def declines(request: Request) -> str | None:
    """Why it cannot serve this very call, or None."""
    if torch.compiler.is_compiling():
        # The number of blocks would become part of the graph: one compilation for each length.
        return "does not compile: use 'reference' or 'auto'."
    if not _may_recompute():
        return (
            "recomputes in the backward pass by hooks on saved tensors, which are forbidden here "
            "(torch.func forbids them): use 'reference' or 'auto'."
        )
    return None


def serve(request: Request) -> tuple[Tensor, Tensor | None]:
    """Output (B, H, S, V)."""
    logits_of_a_row = request.q.shape[0] * request.q.shape[1] * request.num_keys
    size = max(NUM_LOGITS // max(logits_of_a_row, 1), NUM_ROWS)
    if request.num_queries <= size:
        return reference.serve(request)
    # Split, not sliced block by block: the gradient of a slice is as long as the whole.
    queries = zip(request.q.split(size, 2), request.content[0].split(size, 2), strict=True)
    outs = [
        checkpoint(
            _block,
            q,
            content,
            request,
            i * size,
            use_reentrant=False,
            preserve_rng_state=request.options.dropout > 0,
        )
        for i, (q, content) in enumerate(queries)
    ]
    return torch.cat(outs, dim=2), None


def _block(q: Tensor, content: Tensor, request: Request, first: int) -> Tensor:
    """Output (B, H, R, V) of the R queries from number `first` on."""
    stop = first + q.shape[2]
    rows, keys = slice(first, stop), request.num_keys
    if request.options.causal:
        keys += stop - request.num_queries
    part = request.of_rows(rows, keys)
    part = replace(part, q=q, content=(content, part.content[1]))
    return reference.answered(part, request.allowed(rows, keys))[0]


def _may_recompute() -> bool:
    try:
        with saved_tensors_hooks(_same, _same):
            return True
    except RuntimeError:
        return False


def _same(tensor: Tensor) -> Tensor:
    return tensor
