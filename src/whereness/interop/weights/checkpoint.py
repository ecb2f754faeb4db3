"""A checkpoint from one pairing to the other, in a stream.

The pairing travels with the weights: every file says it in its metadata (`whereness.pairing`), and
the config says it in the key of its family (`rope_interleave`) or in `whereness_pairing`.
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from whereness.interop.config.keys import MARK
from whereness.interop.config.parts import Part
from whereness.interop.strict_json import shown
from whereness.interop.weights.moves import Move, Rule, move_of, order
from whereness.interop.weights.placing import appearing, check_target
from whereness.interop.weights.projections import (
    Given,
    is_known,
    key_of,
    part_of,
    rules_of,
    usual_of,
)
from whereness.interop.weights.safetensors_file import (
    Header,
    copy_bytes,
    read_exactly,
    write_header,
)
from whereness.interop.weights.source import CONFIG, Source, read_source
from whereness.rotary.pairing import PAIRINGS, Pairing

FILE_MARK = "whereness.pairing"
OTHER: dict[Pairing, Pairing] = {"half": "interleaved", "interleaved": "half"}


@dataclass(frozen=True)
class Plan:
    """What a conversion does: the tensors that move, by name, and the new config."""

    source: Source
    before: Pairing
    to: Pairing
    moves: dict[str, Move]
    config: dict[str, Any]

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(header.size for header in self.source.shards)


def convert_checkpoint(
    source: Path,
    target: Path,
    to: Pairing,
    before: Pairing | None = None,
    given: Given | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Plan:
    """Write the checkpoint `source`, in the pairing `to`, as `target`; what was done.

    Args:
        before: the pairing of `source`; None: as its files, its config or its family say.
        given: what the config does not say.
        progress: called with the bytes that are done and those of all.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: a damaged or unknown checkpoint; one that has the pairing already; a target that
            is there. Nothing has been written then.
    """
    found = read_source(source)
    _check_apart(found, target)
    plan = planned(found, to, before, given or Given())
    names = _names(found) if found.is_folder else None
    check_target(target, names, overwrite)
    with appearing(target, names, overwrite) as part:
        if found.is_folder:
            _write_folder(plan, part, progress)
        else:
            _write_shard(plan, found.shards[0], part, _counted(plan, progress))
    return plan


def planned(source: Source, to: Pairing, before: Pairing | None, given: Given) -> Plan:
    """What a conversion will do; nothing is written.

    Raises:
        ValueError: as `convert_checkpoint`.
    """
    if to not in PAIRINGS:
        raise ValueError(f"to must be one of {', '.join(PAIRINGS)}; got {to!r}.")
    present = _present(source, before)
    if present == to:
        raise ValueError(f"{source.path}: is {to} already; to convert it again would break it.")
    rules = rules_of(source.config, given)
    block = _scale_block(source.config)
    moves = {}
    for header in source.shards:
        for entry in header.entries:
            if move := move_of(entry, rules, block):
                moves[entry.name] = move
    _check_complete(source, moves, rules)
    return Plan(source, present, to, moves, _marked(source.config, to))


def _present(source: Source, said: Pairing | None) -> Pairing:
    """The pairing of the weights. All who speak of it must agree; the family's is a default."""
    path, part = source.path, part_of(source.config)
    keys, within = (part.reading.given, part.reading.prefix) if part else (source.config, "")
    claims = {"--from": said, f"{CONFIG}, {within}{MARK}": keys.get(MARK)}
    for header in source.shards:
        claims[f"{header.path.name}, metadata {FILE_MARK}"] = header.metadata.get(FILE_MARK)
    if len({FILE_MARK in header.metadata for header in source.shards}) > 1:
        raise ValueError(f"{path}: some of its files are marked as converted, others are not.")
    name = key_of(part)
    if name and (key := keys.get(name)) is not None:
        if not isinstance(key, bool):
            raise ValueError(f"{path}: {within}{name} must be true or false, got {shown(key)}.")
        claims[f"{CONFIG}, {within}{name}"] = "interleaved" if key else "half"
    spoken = {who: what for who, what in claims.items() if what is not None}
    for who, what in spoken.items():
        if what not in PAIRINGS:
            raise ValueError(
                f"{path}: {who} must be one of {', '.join(PAIRINGS)}; got {shown(what)}."
            )
    if len(set(spoken.values())) > 1:
        told = "; ".join(f"{who}: {what}" for who, what in spoken.items())
        raise ValueError(f"{path}: what is said of its pairing does not agree. {told}.")
    if spoken:
        return next(iter(spoken.values()))  # type: ignore[bad-return]
    if part and is_known(part):
        return usual_of(part)
    raise ValueError(f"{path}: nothing says which pairing it has: give --from half or interleaved.")


def _scale_block(config: dict[str, Any]) -> int | None:
    quantised = config.get("quantization_config")
    block = quantised.get("weight_block_size") if isinstance(quantised, dict) else None
    if isinstance(block, list) and block and type(block[0]) is int and block[0] > 0:
        return block[0]
    return None


def _check_complete(source: Source, moves: dict[str, Move], rules: list[Rule]) -> None:
    """Queries without keys, or a projection without any tensor, mean that names were not known."""
    if not moves:
        patterns = ", ".join(rule.pattern for rule in rules)
        raise ValueError(f"{source.path}: no tensor of a module {patterns}: nothing to convert.")
    layers: dict[str, set[str]] = {"queries": set(), "keys": set()}
    for name, move in moves.items():
        module, rest = move.rule.named(name) or ("", "")
        if move.rule.role in layers and "lora_" not in rest:
            layers[move.rule.role].add(module.rpartition(".")[0])
    for layer in sorted(layers["queries"] ^ layers["keys"]):
        has, lacks = ("queries", "keys") if layer in layers["queries"] else ("keys", "queries")
        raise ValueError(
            f"{source.path}: {shown(layer)} has {has} and no {lacks}: both must be converted. Give "
            "--queries and --keys."
        )


def _marked(config: dict[str, Any], to: Pairing) -> dict[str, Any]:
    """The config with the pairing in it. One that its family has anyway needs no mark."""
    part = part_of(config)
    path = part.name.split(".") if part and part.name else []
    return _marked_at(config, path, part, to)


def _marked_at(
    config: dict[str, Any], path: list[str], part: Part | None, to: Pairing
) -> dict[str, Any]:
    if path:
        name, *rest = path
        return {**config, name: _marked_at(config[name], rest, part, to)}
    if key := key_of(part):
        return {**config, key: to == "interleaved"}
    if part and is_known(part) and usual_of(part) == to:
        return {key: value for key, value in config.items() if key != MARK}
    return {**config, MARK: to}


def _check_apart(source: Source, target: Path) -> None:
    old, new = source.path.resolve(), target.resolve()
    if old == new or (source.is_folder and (new.is_relative_to(old) or old.is_relative_to(new))):
        raise ValueError(f"{target}: must be apart from the source, {source.path}.")
    if not source.is_folder and target.suffix != ".safetensors":
        raise ValueError(f"{target}: needed a name that ends in .safetensors, as the source's.")


def _names(source: Source) -> list[str]:
    names = [header.path.name for header in source.shards] + [str(name) for name in source.others]
    return [*names, CONFIG] if source.config else names


def _write_folder(plan: Plan, folder: Path, progress: Callable[[int, int], None] | None) -> None:
    folder.mkdir()
    count = _counted(plan, progress)
    for header in plan.source.shards:
        _write_shard(plan, header, folder / header.path.name, count)
    for name in plan.source.others:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(plan.source.path / name, folder / name)
    if plan.source.config:
        text = json.dumps(plan.config, indent=2, ensure_ascii=False) + "\n"
        (folder / CONFIG).write_text(text, encoding="utf-8")


def _counted(plan: Plan, progress: Callable[[int, int], None] | None) -> Callable[[int], None]:
    """A function to call with the bytes of every tensor that is written."""
    done = 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        if progress:
            progress(done, plan.size)

    return count


def _write_shard(plan: Plan, header: Header, path: Path, count: Callable[[int], None]) -> None:
    with header.path.open("rb") as source, path.open("xb") as target:
        write_header(target, header, {**header.metadata, FILE_MARK: plan.to})
        source.seek(header.start)
        for entry in header.entries:
            move = plan.moves.get(entry.name)
            if move is None:
                copy_bytes(source, target, entry.size, header.path)
            else:
                _write_moved(move, plan.to, source, target, header.path)
            count(entry.size)
        target.flush()
        os.fsync(target.fileno())


def _write_moved(move: Move, to: Pairing, source: IO[bytes], target: IO[bytes], path: Path) -> None:
    """One tensor, a head at a time."""
    rows, size = order(move.rule, to), move.row_size
    for turns in move.turning:
        if not turns:
            copy_bytes(source, target, len(rows) * size, path)
            continue
        head = memoryview(read_exactly(source, len(rows) * size, path))
        target.write(b"".join([head[row * size : (row + 1) * size] for row in rows]))
