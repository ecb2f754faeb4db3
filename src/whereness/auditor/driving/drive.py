"""Feeds any model, and gives what it puts out for every token.

What its forward pass takes is found out by the names of its arguments, and by trying.

Axes: B batch, S new tokens, T tokens with those in the cache, E features.
"""

import contextlib
import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from whereness.auditor.driving.arguments import Arguments, Takes, arguments_of
from whereness.auditor.driving.companions import (
    attempts,
    for_rows,
    new_cache,
    segmented,
    sequence_first,
    whole,
)
from whereness.auditor.driving.outputs import held_cache, main_output, tensors
from whereness.auditor.driving.restore import restored

TRIED = (2, 6)
"""Rows and tokens of the first run: unlike the sizes of most models, so axes can be told apart."""
MEMORY = 9
"""Tokens that an encoder-decoder's encoder reads unless `Driver.memory_length` says otherwise."""
MAX_TOKENS = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "max_sequence_length",
    "max_target_positions",
    "seq_length",
    "max_seq_length",
)


class Refused(Exception):  # noqa: N818 (the model refused: no error of ours)
    """The model raised; the message says what and in which words."""


@dataclass(frozen=True)
class Cache:
    """What a model keeps between calls, how many tokens that is, and what its encoder said."""

    held: Any
    length: int
    memory: Any = None

    def copied(self) -> "Cache":
        """One that can be continued without changing this one."""
        return replace(self, held=copy.deepcopy(self.held))


@dataclass(frozen=True)
class Ran:
    """A model's logits or last hidden states (B, S, ...), and its cache if it was asked for."""

    output: Tensor
    cache: Cache | None = None


class Driver:
    """Runs `model` on tokens, positions and masks of our choice.

    Args:
        model: any module; run in the mode that it is in, with gradients where they are on.
        inputs: arguments that the model needs beside the tokens (or an example of all of them), or
            a callable that makes them, (batch, tokens) -> dict. A token argument among them is
            replaced by our own tokens.
        config: the model's config, if it is not at `model.config`.

    Raises:
        Refused: no way to feed the model was found; with the reason of the likeliest.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: "Mapping[str, Any] | Callable[[int, int], Mapping[str, Any]] | None" = None,
        config: Any = None,
    ) -> None:
        self.model, self.inputs = model, inputs
        self.config = getattr(model, "config", None) if config is None else config
        if isinstance(self.config, Mapping):
            self.config = SimpleNamespace(**{str(k): v for k, v in self.config.items()})
        text = getattr(self.config, "get_text_config", None)
        self.text_config = text() if callable(text) else self.config
        self.names: Arguments = arguments_of(model)
        self.takes: Takes = "tokens"
        self.argument, self.dim = "", self._width()
        self.vocab: int | None = None
        self.rows_first, self.per_token = True, True
        self.packed = False
        """Its patches are rows of no batch, and only the user's other arguments say of what."""
        self.extra: dict[str, Any] = {}
        self.memory_length = MEMORY
        self._memory_argument: str | None = None
        self._find_input()

    # What it is -------------------------------------------------------------------------------

    @cached_property
    def caches(self) -> bool:
        """Whether earlier tokens can be kept in a cache: it was tried."""
        if self.names.cache is None or self.takes == "pixels":
            return False
        with restored(self.model), torch.no_grad():
            self.model.eval()
            try:
                ran = self(self.sample(1, 3), keep_cache=True)
                self(self.sample(1, 1), cache=ran.cache)
            except Refused:
                return False
        return True

    @property
    def positions(self) -> str | None:
        """Name of the argument for positions, None where there is none."""
        return None if self.decodes else self.names.positions

    @property
    def mask(self) -> str | None:
        """Name of the argument that marks real tokens or pads, None where there is none."""
        return self.names.decoder_mask if self.decodes else self.names.mask

    @property
    def decodes(self) -> bool:
        """The tokens go to a decoder with an encoder before it, which reads fixed ones."""
        return self._memory_argument is not None

    @cached_property
    def encoder(self) -> "Driver | None":
        """The encoder of an encoder-decoder, to be fed by itself."""
        get = getattr(self.model, "get_encoder", None)
        if not self.decodes or not callable(get):
            return None
        try:
            found = get()
            same = found is self.model or not isinstance(found, nn.Module)
            return None if same else Driver(found, config=self.config)
        except (Refused, TypeError, AttributeError, NotImplementedError):
            return None

    @property
    def max_tokens(self) -> int | None:
        """How many tokens the config allows, None where it does not say."""
        return whole(self.text_config, MAX_TOKENS)

    @property
    def pad_token(self) -> int:
        """The id that stands at pads."""
        pad = getattr(self.text_config, "pad_token_id", None)
        known = isinstance(pad, int) and 0 <= pad < (self.vocab or 1)
        return pad if known else 0

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        kinds = [p.dtype for p in self.model.parameters() if p.is_floating_point()]
        return kinds[0] if kinds else torch.get_default_dtype()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        first = next(self.model.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    def sample(self, batch: int, length: int, seed: int = 0) -> Tensor:
        """Random input: ids (B, S) that are no special tokens, features (B, S, E), or pixels."""
        generator = torch.Generator().manual_seed(seed)
        if self.takes == "pixels":
            one = self.extra[self.argument]
            rows = one.shape[0] if self.packed else batch
            return torch.randn(rows, *one.shape[1:], generator=generator).to(one)
        if self.takes == "features":
            made = torch.randn(batch, length, self.dim or 1, generator=generator)
            return made.to(self.device, self.dtype)
        special = self._special
        usable = [i for i in range(min(self.vocab or 2, 50_000)) if i not in special] or [0]
        picks = torch.randint(len(usable), (batch, length), generator=generator)
        return torch.tensor(usable)[picks].to(self.device)

    # Running it -------------------------------------------------------------------------------

    def __call__(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        cache: Cache | None = None,
        keep_cache: bool = False,
    ) -> Ran:
        """Run the model on new tokens.

        Args:
            tokens: ids (B, S), features (B, S, E), or whatever `sample` gave.
            positions: (B, S), of the new tokens.
            mask: 1 at real tokens, (B, T) with those in the cache; or bool (B, 1, S, T), True =
                may attend.
            segments: numbers of the documents of a packed row, (B, S).
            cache: of an earlier run with `keep_cache`. The model may write into it: give
                `cache.copied()` to use it again.

        Raises:
            Refused: the model raised, or has no such argument.
        """
        batch, length = tokens.shape[0], tokens.shape[1]
        past = 0 if cache is None else cache.length
        given = self._base(batch, length)
        given[self.argument] = tokens if self.rows_first else tokens.transpose(0, 1)
        memory = self._add_memory(given, batch, None if cache is None else cache.memory)
        if positions is not None:
            given[self._needed("positions", self.positions)] = positions
        if segments is not None:
            name = self._needed("the documents of a packed row", self.names.segments)
            given[name] = segmented(positions, segments) if name == "where" else segments
        given.update(self._masks(mask, batch, length, past))
        if cache is not None or keep_cache:
            self._add_cache(given, cache)
        elif self.names.use_cache is not None:
            given[self.names.use_cache] = False
        result = self._run(given, batch, length)
        if not keep_cache:
            return Ran(result.output)
        held = held_cache(result.raw, given.get(self.names.cache or ""))
        if held is None:
            raise Refused("The model gave no cache back.")
        return Ran(result.output, Cache(held, past + length, memory))

    @cached_property
    def first(self) -> int | None:
        """The id that makes explicit positions number as the model itself does; None: no id does.

        Measured, not read from a config: RoBERTa begins after its pad id, OPT adds 2 inside.
        """
        if self.positions is None:
            return None
        ids = self.sample(1, TRIED[1])
        ones = torch.ones(1, TRIED[1], dtype=torch.long, device=self.device)
        with restored(self.model), torch.no_grad():
            self.model.eval()
            natural = self(ids, mask=self.ones(ones)).output
            for start in dict.fromkeys((0, self.pad_token + 1, 1, 2)):
                where = torch.arange(TRIED[1], device=self.device)[None] + start
                with contextlib.suppress(Refused):
                    found = self(ids, positions=where, mask=self.ones(ones)).output
                    if torch.allclose(found, natural, rtol=1e-4, atol=1e-5, equal_nan=True):
                        return start
        return None

    def ones(self, mask: Tensor) -> Tensor | None:
        """`mask` if the model takes one: explicit ids without a mask look like packing to some."""
        return None if self.mask is None else mask

    @cached_property
    def masks_are_bool(self) -> bool:
        """Whether a mask (B, 1, S, T) has True where a query may attend, and is not added.

        Both are tried: a mask that forbids nothing must change nothing.
        """
        batch, length = TRIED
        ids = self.sample(batch, length)
        seen = torch.ones(batch, 1, length, length, dtype=torch.bool, device=self.device)
        with restored(self.model), torch.no_grad():
            self.model.eval()
            plain = self(ids, mask=self.ones(seen[:, 0, 0].long())).output
            for kind in (False, True):
                self.__dict__["masks_are_bool"] = kind
                for one in (seen.tril(), seen):
                    with contextlib.suppress(Refused):
                        found = self(ids, mask=one).output
                        if torch.allclose(found, plain, rtol=1e-4, atol=1e-6, equal_nan=True):
                            return kind
        return False

    # Finding out ------------------------------------------------------------------------------

    def _find_input(self) -> None:
        """Try the ways in which the model may be fed; the first that works stays."""
        reason = None
        with restored(self.model), torch.no_grad():
            self.model.eval()
            example = self._example()
            for attempt in attempts(self.model, self.config, self.names, example, self.dim):
                (self.argument, self.takes, self.extra, self.dim, self._memory_argument) = attempt
                given = self.takes == "pixels" and self.argument in example
                for self.packed in (False, True) if given else (False,):
                    try:
                        self._try()
                    except Refused as error:
                        reason = reason or str(error)
                    else:
                        self._find_mask()
                        return
        raise Refused(f"No way to feed the model was found: {reason or 'it takes none'}")

    def _try(self) -> None:
        """One run, which tells the vocabulary, the order of the axes and what comes out."""
        self.vocab = 1  # id 0 is in every vocabulary
        tables: list[int] = []

        def look(module: nn.Module, args: tuple[Any, ...], _: Any) -> None:
            if not isinstance(module, nn.Embedding) or not args:
                return
            if isinstance(args[0], Tensor) and args[0].numel() == TRIED[0] * TRIED[1]:
                tables.append(module.num_embeddings)

        self.rows_first = not sequence_first(self.model)
        handle = nn.modules.module.register_module_forward_hook(look)
        try:
            self(self.sample(*TRIED))
        finally:
            handle.remove()
        if self.takes == "tokens":
            self.vocab = whole(self.text_config, ("vocab_size", "n_vocab")) or (
                tables[0] if tables else None
            )

    def _find_mask(self) -> None:
        """What a mask with a doubtful name means: one of real tokens alone changes nothing."""
        name = self.names.either
        if self.takes == "pixels" or self.names.mask is not None or name is None or self.decodes:
            return
        tokens = self.sample(*TRIED)
        plain = self(tokens).output
        for pads in (False, True):
            self.names = replace(self.names, mask=name, pads=pads)
            real = torch.ones(TRIED, dtype=torch.bool, device=self.device)
            part = real.clone()
            part[:, -1] = False
            with contextlib.suppress(Refused):
                same = self(tokens, mask=real).output
                other = self(tokens, mask=part).output
                if torch.equal(same, plain) and not torch.equal(other[:, :-1], plain[:, :-1]):
                    return
                causal = torch.equal(same, plain) and not torch.equal(other, plain)
                if causal:
                    return
        self.names = replace(self.names, mask=None)

    @cached_property
    def _special(self) -> set[int]:
        """Ids that mean something to the model: pads, images, separators."""
        found = set()
        for config in (self.config, self.text_config):
            for key, value in (vars(config) if hasattr(config, "__dict__") else {}).items():
                if key.endswith(("token_id", "token_index")):
                    values = value if isinstance(value, list) else [value]
                    found.update(v for v in values if isinstance(v, int))
        return found

    def _width(self) -> int | None:
        names = ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "num_features")
        return whole(self.text_config, names) or whole(self.model, names)

    # Making arguments -------------------------------------------------------------------------

    def _example(self) -> dict[str, Any]:
        if self.inputs is None:
            return {}
        return dict(self.inputs(*TRIED) if callable(self.inputs) else self.inputs)

    def _base(self, batch: int, length: int) -> dict[str, Any]:
        """Arguments that the user gave and that the model needs beside its tokens."""
        if self.packed:
            return {**self._example(), **self.extra}
        if callable(self.inputs):
            given = dict(self.inputs(batch, length))
        else:
            given = {n: for_rows(v, batch) for n, v in (self.inputs or {}).items()}
        given.update({n: for_rows(v, batch) for n, v in self.extra.items()})
        return given

    def _add_memory(self, given: dict[str, Any], batch: int, memory: Any) -> Any:
        """What the encoder reads, or what it said."""
        name = self._memory_argument
        if name is None:
            return None
        if memory is not None:
            given[name if self.names.memory is None else self.names.memory] = memory
            if self.names.memory is not None:
                given.pop(name, None)
            return memory
        if name not in given:
            given[name] = self.sample(1, self.memory_length, seed=3).repeat(
                batch, *([1] * (1 if self.takes == "tokens" else 2))
            )
        return given[name] if self.names.memory is None else None

    def _masks(
        self, mask: Tensor | None, batch: int, length: int, past: int
    ) -> dict[str, Tensor | None]:
        if self.takes == "pixels":
            return {}
        if mask is None and self.mask == "attention_mask" and not self.decodes:
            mask = torch.ones(batch, past + length, dtype=torch.long, device=self.device)
        if mask is None:
            return {}
        if mask.dim() == 4:
            return self._full_mask(mask)
        name = self._needed("mask", self.mask)
        if self.names.pads:
            return {name: mask == 0}
        is_bool = name in ("mask", "attn_mask")
        return {name: mask.bool() if is_bool else mask.long()}

    def _full_mask(self, mask: Tensor) -> dict[str, Tensor | None]:
        """(B, 1, S, T), True = may attend, as the model wants it."""
        if "where" in self.names.plain:  # this library's own
            return {"mask": mask}
        if self.names.pads and "mask" in self.names.plain:  # torch's: True = may not, (B H, S, T)
            heads = next(
                (m.num_heads for m in self.model.modules() if isinstance(m, nn.MultiheadAttention)),
                1,
            )
            return {"mask": ~mask[:, 0].repeat_interleave(heads, 0)}
        name = self._needed("mask", self.mask)
        if self.masks_are_bool:
            return {name: mask}
        least = torch.finfo(self.dtype).min
        none = torch.zeros(mask.shape, dtype=self.dtype, device=mask.device)
        return {name: none.masked_fill(~mask, least)}

    def _add_cache(self, given: dict[str, Any], cache: Cache | None) -> None:
        name = self._needed("cache", self.names.cache)
        if self.names.use_cache is not None:
            given[self.names.use_cache] = True
        if cache is not None:
            given[name] = cache.held
        elif self.names.use_cache is None:
            made = new_cache(self.model)
            if made is not None:
                given[name] = made

    def _needed(self, what: str, name: str | None) -> str:
        if name is None:
            raise Refused(f"The model has no argument for {what}.")
        return name

    def _run(self, given: dict[str, Any], batch: int, length: int) -> "_Result":
        """Call the model and find what it says of each token."""
        inner: list[Tensor] = []
        per_token = self.takes != "pixels"

        def keep(_module: nn.Module, _args: Any, output: Any) -> None:
            found = main_output(output, batch, length, rows_first=self.rows_first)
            if found is not None:
                inner.append(found)

        handles = []
        if not self.per_token:
            handles = [m.register_forward_hook(keep) for m in self.model.modules()]
        try:
            raw = self.model(**given)
        except (Exception, SystemExit) as error:  # whatever a model may raise
            said = " ".join(str(error).split())[:300]
            raise Refused(f"{type(error).__name__}: {said}") from error
        finally:
            for handle in handles:
                handle.remove()
        if not per_token:
            found = next(tensors(raw), None)
        else:
            found = main_output(raw, batch, length, rows_first=self.rows_first)
            if found is None and self.per_token:
                self.per_token = False  # a classifier: look inside, where each token still shows
                return self._run(given, batch, length)
            found = inner[-1] if found is None and inner else found
        if found is None:
            raise Refused("The model puts out nothing that has a row for every token.")
        return _Result(found, raw)


@dataclass(frozen=True)
class _Result:
    output: Tensor
    raw: Any
