"""HOST. The text of a compiled program: its instructions, and the bytes that each of them moves.

Knows the grammar of optimized HLO and what reads or writes only a part of an operand (slices,
gathers, updates in place). Knows no model: who asks says which operands are pages.
"""

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

_ELEMENT_BITS = {"pred": 8, "bf16": 16, "token": 0, "opaque": 0}
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_NAME = re.compile(r"%([\w.\-]+)")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_CALLED = re.compile(r"\b(?:calls|to_apply|true_computation|false_computation|body)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_ALIAS = re.compile(r"\{(\d*)\}: \((\d+)")
_LAYER = re.compile(r'op_name="[^"]*/layer_(\d+)/')

# What only renames memory, or stands for it.
_FREE = frozenset(
    "parameter constant bitcast tuple get-tuple-element after-all iota partition-id replica-id "
    "opt-barrier".split()
)
_READS_A_PART = frozenset(("slice", "dynamic-slice", "gather"))
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}  # opcode → operand that holds what is written
_KERNELS = frozenset(("fusion", "custom-call"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """Type and lengths of one array in the text."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return -(-math.prod(self.dims) * _element_bits(self.dtype) // 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One line of a computation. called: computations that it runs; a conditional's are branches.
    layer: of the model, by the names that its source carried; None outside of the layers.
    in_place: of a custom call, results that overwrite a part of an operand, by their numbers."""

    name: str
    arrays: tuple[Array, ...]
    opcode: str
    operands: tuple[str, ...]
    called: tuple[str, ...]
    target: str
    layer: int | None
    is_root: bool
    in_place: tuple[tuple[int, int], ...] = ()

    @property
    def num_bytes(self) -> int:
        return sum(array.num_bytes for array in self.arrays)


Computation = Mapping[str, Instruction]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A compiled program: its computations, and the name of the one that is run."""

    computations: Mapping[str, Computation]
    entry: str

    @property
    def num_launches(self) -> int:
        """Of the program's straight line: what conditions and loops run is left out."""
        lines = self.computations[self.entry].values()
        return sum(1 for one in lines if one.opcode in _KERNELS)

    def kernels_of_layer(self, layer: int) -> int:
        """Launches that belong to one layer of the model."""
        lines = self.computations[self.entry].values()
        return sum(1 for one in lines if one.opcode in _KERNELS and one.layer == layer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes that a run reads and writes, and each operand that is pages, with its layer.

    Branches of a condition count by the cheapest one, loops by one round.
    """

    num_bytes: int = 0
    page_reads: tuple[tuple[int, Array], ...] = ()

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            num_bytes=self.num_bytes + other.num_bytes,
            page_reads=self.page_reads + other.page_reads,
        )


def parse_program(text: str) -> Program:
    """The program of `executable.as_text()`."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = "", {}
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            current = computations.setdefault(head[2], {})
            entry = head[2] if head[1] else entry
        elif _INSTRUCTION.match(line):
            found = _instruction(line)
            current[found.name] = found
    return Program(computations=computations, entry=entry)


def count_traffic(program: Program, is_pages: Callable[[Array], bool]) -> Traffic:
    """What one run moves.

    Args:
        is_pages: arrays that a custom call reads in parts, by a table: they count in `page_reads`.
    """
    return _Counter(program, is_pages).of_computation(program.entry)


class _Counter:
    def __init__(self, program: Program, is_pages: Callable[[Array], bool]) -> None:
        self.program, self.is_pages = program, is_pages
        self.of_computation = functools.cache(self._of_computation)

    def _of_computation(self, name: str) -> Traffic:
        lines = self.program.computations[name]
        return sum((self._of_line(one, lines) for one in lines.values()), Traffic())

    def _of_line(self, line: Instruction, lines: Computation) -> Traffic:
        if line.opcode in _FREE or line.opcode.endswith("-done"):
            return Traffic()
        if line.opcode == "conditional":
            return min(map(self.of_computation, line.called), key=lambda one: one.num_bytes)
        if line.opcode in ("call", "while") or line.opcode.endswith("-start") and line.called:
            return sum(map(self.of_computation, line.called), Traffic())
        if line.opcode == "fusion":
            return Traffic(num_bytes=self._of_fusion(line))
        return self._of_plain(line, lines)

    def _of_fusion(self, line: Instruction) -> int:
        inner = self.program.computations[line.called[0]]
        parameters = [one for one in inner.values() if one.opcode == "parameter"]
        read = sum(_read_bytes(one, inner) for one in parameters)
        roots = [one for one in inner.values() if one.is_root]
        return read + sum(_written_bytes(one, inner) for one in roots)

    def _of_plain(self, line: Instruction, lines: Computation) -> Traffic:
        if line.opcode in _READS_A_PART:
            return Traffic(num_bytes=2 * line.num_bytes)
        if line.opcode in _UPDATES:
            return Traffic(num_bytes=2 * _update(line, lines).num_bytes)
        kept_results, kept_operands = dict(line.in_place), dict(line.in_place).values()
        written = [one for i, one in enumerate(line.arrays) if i not in kept_results]
        if line.target.startswith("__cublas"):  # the others are its workspace
            written = written[:1]
        moved, pages = sum(one.num_bytes for one in written), []
        for number, operand in enumerate(line.operands):
            if number in kept_operands:  # the part that is overwritten is small
                continue
            arrays = lines[operand].arrays
            if line.opcode == "custom-call" and len(arrays) == 1 and self.is_pages(arrays[0]):
                pages.append((line.layer or 0, arrays[0]))
            else:
                moved += lines[operand].num_bytes
        return Traffic(num_bytes=moved, page_reads=tuple(pages))


def _read_bytes(parameter: Instruction, lines: Computation) -> int:
    """Of an operand of a fusion, what is read: all of it, or the parts that are cut out."""
    read = 0
    for user in _users(parameter, lines):
        is_first = user.operands[0] in _names_of(parameter, lines)
        if is_first and user.opcode in _READS_A_PART:
            read += user.num_bytes
        elif not (is_first and user.opcode in _UPDATES):
            return parameter.num_bytes
    return min(read, parameter.num_bytes)


def _written_bytes(root: Instruction, lines: Computation) -> int:
    """Of a fusion's result, what is written: all of it, or the part that is updated in place."""
    if root.opcode == "tuple":
        return sum(_written_bytes(lines[name], lines) for name in root.operands)
    if root.opcode == "bitcast":
        return _written_bytes(lines[root.operands[0]], lines)
    return _update(root, lines).num_bytes if root.opcode in _UPDATES else root.num_bytes


def _update(line: Instruction, lines: Computation) -> Instruction:
    return lines[line.operands[_UPDATES[line.opcode]]]


def _names_of(line: Instruction, lines: Computation) -> set[str]:
    """The line's name and those of its bitcasts."""
    names = {line.name}
    for one in lines.values():  # in order: operands come first
        if one.opcode == "bitcast" and one.operands[0] in names:
            names.add(one.name)
    return names


def _users(line: Instruction, lines: Computation) -> Iterator[Instruction]:
    names = _names_of(line, lines)
    return (
        one
        for one in lines.values()
        if one.opcode != "bitcast" and names.intersection(one.operands)
    )


def _instruction(line: str) -> Instruction:
    head = _INSTRUCTION.match(line)
    assert head
    rest = line[head.end() :]
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    opening = rest.index("(")
    closing = _closing(rest, opening)
    attributes = rest[closing + 1 :]
    called = _CALLED.findall(attributes)
    for branches in _BRANCHES.findall(attributes):
        called += _NAME.findall(branches)
    target = re.search(r'custom_call_target="([^"]*)"', attributes)
    layer = _LAYER.search(attributes)
    return Instruction(
        name=head[2],
        arrays=tuple(_arrays(shape)),
        opcode=rest[:opening],
        operands=tuple(_NAME.findall(rest[opening : closing + 1])),
        called=tuple(called),
        target=target[1] if target else "",
        layer=int(layer[1]) if layer else None,
        is_root=bool(head[1]),
        in_place=tuple(_aliases(attributes)),
    )


def _aliases(attributes: str) -> Iterator[tuple[int, int]]:
    """Example: output_to_operand_aliasing={{1}: (5, {}), {2}: (6, {})} → (1, 5), (2, 6)."""
    if found := attributes.partition("output_to_operand_aliasing=")[2]:
        listed = found[: _closing_brace(found)]
        yield from ((int(result or 0), int(operand)) for result, operand in _ALIAS.findall(listed))


def _closing_brace(text: str) -> int:
    depth = 0
    for place, letter in enumerate(text):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if not depth:
            return place
    raise ValueError(f"no closing brace in {text[:80]!r}")


def _arrays(shape: str) -> Iterator[Array]:
    for dtype, dims in _ARRAY.findall(shape):
        yield Array(dtype=dtype, dims=tuple(int(one) for one in dims.split(",") if one))


def _closing(text: str, opening: int) -> int:
    """The place of the parenthesis that closes the one at `opening`."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, opening):
        depth += 1 if match[0] == "(" else -1
        if not depth:
            return match.start()
    raise ValueError(f"no closing parenthesis in {text[:80]!r}")


def _element_bits(dtype: str) -> int:
    """Example: bf16 16, s4 4, f8e4m3fn 8, pred 8."""
    if dtype in _ELEMENT_BITS:
        return _ELEMENT_BITS[dtype]
    digits = re.match(r"[a-z]+(\d+)", dtype)
    return int(digits[1]) if digits else 0
