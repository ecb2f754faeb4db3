"""Rotary on a GPU: ours, Liger-Kernel, flash-attn, plain torch eager and compiled, and a copy.

    python benchmarks/gpu_rotary.py [--repeats 30] [--lengths 1 2048 16384] > rotary.jsonl

Not run on a GPU so far: there was none when it was written.

q is (1, 32, S, 128) and k (1, 8, S, 128), views of (1, S, heads, 128) as projections leave them.
Three jobs: "new" tensors, "in_place", and "train", forward and backward. A contender that is not
installed, or that a job is not for, is listed as not run; one that fails, or whose numbers are
wrong, is listed so and not timed. Every round times each contender once, in a new order.

Prints JSON, one object a line: the machine, then a contender each. Times in microseconds a call;
"copy" moves the same bytes and does nothing else: the limit. Exits with 2 without a GPU, with 1 if
our own numbers are wrong.
"""

import argparse
import importlib.metadata
import json
import platform
import random
import statistics
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

import whereness as wn
from whereness.kernels.rotary import backend

Pair = tuple[Tensor, Tensor]
Contender = Callable[[Tensor, Tensor], Pair]

DEVICE = "cuda"
JOBS = ("new", "in_place", "train")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
HEADS, HEAD_DIM, BASE = (32, 8), 128, 10_000.0
FIRST = 1000  # the first position: at 0 nothing turns, and wrong would look right
PACKAGES = ("torch", "triton", "liger-kernel", "flash-attn")
CACHE_BYTES = 256 << 20  # more than any GPU's last cache: written between samples
DECODING = 50  # calls a sample where a call is shorter than a clock is exact
FAILURES = (AssertionError, RuntimeError, TypeError, ValueError)
"""What a peer may raise that does not fit this torch, this GPU or this type."""


class NotRun(Exception):  # noqa: N818 (no error: a reason)
    """Why a contender does not take part in a job."""


class Setting:
    """One size and type: inputs, tables as peers want them, and the exact result."""

    def __init__(self, length: int, dtype: torch.dtype) -> None:
        self.length, self.dtype = length, dtype
        self.rope = wn.RoPE(HEAD_DIM, BASE)
        positions = torch.arange(length, device=DEVICE) + FIRST
        self.at = self.rope.prepare(positions)
        steps = torch.arange(0, HEAD_DIM, 2, device=DEVICE, dtype=torch.float64) / HEAD_DIM
        angles = positions.double()[:, None] * BASE**-steps
        self.turns = torch.polar(torch.ones_like(angles), angles)
        self.cos, self.sin = self.turns.real.to(dtype), self.turns.imag.to(dtype)

    def inputs(self, seed: int = 0) -> Pair:
        """q and k, random, of the memory order (B, S, H, D)."""
        made = torch.Generator(DEVICE).manual_seed(seed)
        q, k = (
            torch.randn(1, self.length, h, HEAD_DIM, generator=made, device=DEVICE).to(self.dtype)
            for h in HEADS
        )
        return q.transpose(1, 2), k.transpose(1, 2)

    def exact(self, x: Tensor) -> Tensor:
        """x turned in float64, as complex numbers: pair i is channels i and i + D/2."""
        u, v = x.double().chunk(2, -1)
        turned = torch.complex(u, v) * self.turns
        return torch.cat([turned.real, turned.imag], -1)


def copy(setting: Setting, job: str) -> Contender:
    """Give what moves the bytes of a job once, or twice for "train"."""
    if job == "in_place":
        return lambda q, k: (q.mul_(1), k.mul_(1))
    return lambda q, k: (q * 1, k * 1)


def ours(setting: Setting, job: str) -> Contender:
    """Give the public interface, tables prepared once as layers share them."""
    rope, at = setting.rope, setting.at
    if job == "in_place":
        return lambda q, k: (rope.rotate_(q, at), rope.rotate_(k, at))
    return lambda q, k: rope(q, k, at)


def eager(setting: Setting, job: str) -> Contender:
    """Give the formula of most models, with tables of the inputs' type."""
    if job == "in_place":
        raise NotRun("makes new tensors only")
    cos, sin = (torch.cat([t, t], -1) for t in (setting.cos, setting.sin))

    def turned(x: Tensor) -> Tensor:
        u, v = x.chunk(2, -1)
        return x * cos + torch.cat([-v, u], -1) * sin

    return lambda q, k: (turned(q), turned(k))


def compiled(setting: Setting, job: str) -> Contender:
    """Give the same through torch.compile."""
    torch.compiler.reset()  # each setting is compiled for its own sizes, as often as need be
    return torch.compile(eager(setting, job), fullgraph=True)


def liger(setting: Setting, job: str) -> Contender:
    """Give Liger-Kernel's, which writes into tensors of this memory order."""
    if job == "new":
        raise NotRun("works in place on tensors of this memory order")
    call = _peer("liger_kernel.transformers.rope").liger_rotary_pos_emb
    cos, sin = (torch.cat([t, t], -1)[None] for t in (setting.cos, setting.sin))
    return lambda q, k: call(q, k, cos, sin)


def flash_attn(setting: Setting, job: str) -> Contender:
    """Give flash-attn's, which wants (B, S, H, D) and tables of the inputs' type."""
    call = _peer("flash_attn.layers.rotary").apply_rotary_emb
    cos, sin = setting.cos.contiguous(), setting.sin.contiguous()

    def turned(x: Tensor) -> Tensor:
        return call(x.transpose(1, 2), cos, sin, inplace=job == "in_place").transpose(1, 2)

    return lambda q, k: (turned(q), turned(k))


CONTENDERS: dict[str, Callable[[Setting, str], Contender]] = {
    "copy": copy,
    "whereness": ours,
    "liger-kernel": liger,
    "flash-attn": flash_attn,
    "torch.compile": compiled,
    "eager": eager,
}


def _peer(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise NotRun(f"cannot be imported: {error}") from error


def worst(setting: Setting, job: str, contender: Contender) -> float:
    """Largest error over the size of the pair, in units of the type's last place.

    For "train" that of the gradients as well: they are what arrives, turned back.
    """
    q, k = setting.inputs()
    exact = [setting.exact(x) for x in (q, k)]
    given = [x.clone() for x in (q, k)]
    if job == "train":
        given = [x.detach().requires_grad_() for x in given]
    outs = contender(given[0], given[1])
    found = list(zip(outs, exact, strict=True))
    if job == "train":
        # Sent the exact result, a turn back gives the inputs.
        sent = [x.to(setting.dtype) for x in exact]
        found += zip(torch.autograd.grad(outs, given, sent), (q.double(), k.double()), strict=True)
    return max(_units(out, right, setting.dtype) for out, right in found)


def _units(out: Tensor, right: Tensor, dtype: torch.dtype) -> float:
    u, v = right.chunk(2, -1)
    size = torch.cat([torch.hypot(u, v)] * 2, -1)
    return ((out.double() - right).abs() / size).max().item() / torch.finfo(dtype).eps


def allowed(name: str, dtype: torch.dtype, job: str) -> float:
    """Units of the last place.

    Ours rounds a result once after float32; where that is the type itself, tables, products and
    sum add up to 1.71. Peers round tables and products to the type. What "train" sends back was
    rounded before.
    """
    ours = 2.0 if dtype == torch.float32 else 1.0
    return (ours if name == "whereness" else 4.0) + (job == "train")


def sampler(setting: Setting, job: str, contender: Contender) -> Callable[[], float]:
    """Give what times one sample: microseconds a call."""
    q, k = setting.inputs(1)
    if job == "train":
        q, k = (x.detach().requires_grad_() for x in (q, k))
    sent = setting.inputs(2)
    calls = DECODING if setting.length == 1 else 1
    cache = torch.empty(CACHE_BYTES, dtype=torch.uint8, device=DEVICE)

    def call() -> None:
        if job == "train":
            torch.autograd.grad(contender(q, k), (q, k), sent)
        else:
            contender(q, k)

    def sample() -> float:
        cache.zero_()
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        for _ in range(calls):
            call()
        after.record()
        torch.cuda.synchronize()
        return 1000 * before.elapsed_time(after) / calls

    return sample


def run(setting: Setting, job: str, repeats: int) -> list[dict[str, Any]]:
    """The records of all contenders in one job: checked, then timed in interleaved rounds."""
    records = {name: _entered(name, setting, job) for name in CONTENDERS}
    samplers = {n: r.pop("contender") for n, r in records.items() if "contender" in r}
    samplers = {n: sampler(setting, job, contender) for n, contender in samplers.items()}
    times: dict[str, list[float]] = {name: [] for name in samplers}
    for sample in samplers.values():
        for _ in range(3):
            sample()
    order = list(samplers)
    for _ in range(repeats):
        random.shuffle(order)
        for name in order:
            times[name].append(samplers[name]())
    for name, of_name in times.items():
        quarters = statistics.quantiles(of_name, n=4, method="inclusive")
        records[name] |= {
            "median_us": round(statistics.median(of_name), 2),
            "quartiles_us": [round(quarters[0], 2), round(quarters[2], 2)],
            "range_us": [round(min(of_name), 2), round(max(of_name), 2)],
            "over_copy": round(statistics.median(of_name) / statistics.median(times["copy"]), 3),
        }
    return list(records.values())


def _entered(name: str, setting: Setting, job: str) -> dict[str, Any]:
    """The record of a contender, with the contender itself if it is to be timed."""
    dtype = str(setting.dtype).removeprefix("torch.")
    record = {"name": name, "job": job, "dtype": dtype, "length": setting.length}
    try:
        contender = CONTENDERS[name](setting, job)
        units = None if name == "copy" else worst(setting, job, contender)
    except NotRun as reason:
        return record | {"status": "not run", "reason": str(reason)}
    except FAILURES as error:
        if name == "whereness":
            raise
        return record | {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    if units is not None and not units <= allowed(name, setting.dtype, job):  # also NaN
        return record | {"status": "wrong", "error_units": units}
    return record | {"status": "run", "error_units": units, "contender": contender}


def machine(repeats: int) -> dict[str, Any]:
    """What the times depend on."""
    versions: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "gpu": torch.cuda.get_device_name(),
        "cuda": torch.version.cuda,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "whereness": wn.__version__,
        "whereness_backend": backend(torch.device(DEVICE)),
        "repeats": repeats,
        **versions,
    }


def main() -> int:
    """Print the machine and all records; 0, or 1 if ours is wrong, or 2 without a GPU."""
    parser = argparse.ArgumentParser(description="Rotary kernels on a GPU, as JSON lines.")
    parser.add_argument("--repeats", type=int, default=30, help="samples of each (default: 30)")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 2048, 16_384], help="S")
    arguments = parser.parse_args()
    if arguments.repeats < 2 or min(arguments.lengths) < 1:
        parser.error("needs --repeats of 2 or more and --lengths of 1 or more")
    if not torch.cuda.is_available():
        print("Needs a GPU that torch can use; found none, so nothing was run.", file=sys.stderr)
        return 2
    print(json.dumps(machine(arguments.repeats)), flush=True)
    wrong = False
    for length in arguments.lengths:
        for dtype in DTYPES:
            setting = Setting(length, dtype)
            for job in JOBS:
                for record in run(setting, job, arguments.repeats):
                    print(json.dumps(record), flush=True)
                    name, status = record["name"], record["status"]
                    wrong |= name == "whereness" and status == "wrong"
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
