"""HOST. A plan for a GPU as tables for people, or as JSON."""

import json
from collections.abc import Iterator

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from jaxinfer.jobs.plan_records import RESERVED_BYTES, DraftPlan, TargetPlan

_BAR = 44  # characters of the memory bar
_PARTS = (
    ("weights", "blue"),
    ("KV cache", "cyan"),
    ("loop state", "magenta"),
    ("temporaries", "yellow"),
    ("driver", "bright_black"),
)


def print_plan(plan: TargetPlan, *, as_json: bool, console: Console) -> None:
    """The plan on `console`: one JSON object, or tables that fit on a screen."""
    if as_json:
        console.file.write(json.dumps(plan.as_json(), ensure_ascii=False) + "\n")
        return
    console.print(_head(plan))
    console.print(_decode_table(plan))
    if plan.programs:
        console.print(_program_table(plan))
    if plan.kernels:
        console.print(_kernel_table(plan))
    for note in _notes(plan):
        console.print(note, style="dim", soft_wrap=True)


def _head(plan: TargetPlan) -> Panel:
    grid = Table.grid(padding=(0, 2))
    for name, (size, style) in _memory(plan).items():
        grid.add_row(Text(f"■ {name}", style), f"{_gib(size):>11}", f"{size:,} bytes")
    fits = plan.spare_bytes >= 0
    verdict = Text("fits, " if fits else "does not fit, ", "bold green" if fits else "bold red")
    verdict.append(f"{_gib(abs(plan.spare_bytes))} {'spare' if fits else 'missing'}")
    settings = plan.settings
    said = (
        f"{settings['num_slots']} slots of {settings['max_model_len']:,} tokens · "
        f"{plan.cached_tokens:,} tokens in pages of {settings['page_tokens']} · "
        f"weights {plan.weights}, KV {settings['kv_dtype']} · "
        f"attention {settings['attention_kernel']}"
    )
    title = f"{plan.model} on {plan.description} ({_gib(plan.memory_bytes)})"
    parts = (verdict, _bar(plan), grid, Text(said, "dim"))
    return Panel(Group(*parts), title=title, title_align="left", expand=False)


def _memory(plan: TargetPlan) -> dict[str, tuple[int, str]]:
    sizes = (
        plan.weights_bytes,
        plan.cache_bytes,
        plan.state_bytes,
        plan.temporary_bytes or 0,
        RESERVED_BYTES,
    )
    parts = {name: (size, style) for (name, style), size in zip(_PARTS, sizes, strict=True)}
    if plan.temporary_bytes is None:
        del parts["temporaries"]
    return parts


def _bar(plan: TargetPlan) -> Text:
    """One character a share of the GPU's memory (or of what is needed, if that is more)."""
    whole = max(plan.memory_bytes, plan.needed_bytes + RESERVED_BYTES)
    bar, done, drawn = Text(), 0, 0
    for size, style in _memory(plan).values():
        done += size
        upto = round(_BAR * done / whole)
        bar.append("█" * (upto - drawn), style)
        drawn = upto
    return bar.append("░" * (_BAR - drawn), "bright_black")


def _decode_table(plan: TargetPlan) -> Table:
    table = _table("A decode step at the memory's bandwidth", "rows", "context", "must move")
    for name in ("moves", "ratio", "floor", "most tokens/s"):
        table.add_column(name, justify="right")
    for load in plan.decode:
        moved = load.moved_bytes
        table.add_row(
            str(load.num_rows),
            f"{load.context_tokens:,}",
            _gib(load.needed_bytes),
            "–" if moved is None else _gib(moved),
            "–" if moved is None else f"{moved / load.needed_bytes:.2f}",
            f"{load.floor_s * 1e3:.2f} ms",
            f"{load.tokens_per_s:,.0f}",
        )
    return table


def _program_table(plan: TargetPlan) -> Table:
    title = f"{len(plan.programs)} programs, {plan.compile_seconds:.0f} s to compile"
    table = _table(title, "program", "compile", "temporaries")
    for name in ("in place", "kernels", "in graphs", "a layer"):
        table.add_column(name, justify="right")
    for one in plan.programs:
        table.add_row(
            one.name,
            f"{one.compile_seconds:.1f} s",
            _mib(one.temporary_bytes),
            _gib(one.aliased_bytes) if one.aliased_bytes else "–",
            str(one.kernels),
            f"{one.recorded_kernels / one.kernels:.0%}" if one.kernels else "–",
            str(one.kernels_a_layer or "–"),
        )
    return table


def _kernel_table(plan: TargetPlan) -> Table:
    table = _table("Kernels of jaxinfer", "kernel", "registers", "spilled bytes")
    table.add_column("shared memory", justify="right")
    for one in plan.kernels:
        spills = Text(str(one.spill_bytes), "red" if one.spill_bytes else "")
        table.add_row(one.name, str(one.registers), spills, f"{one.shared_bytes / 1024:.1f} KiB")
    return table


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _notes(plan: TargetPlan) -> Iterator[str]:
    bandwidth = plan.bandwidth_bytes_per_s / 1e12
    yield (
        f"must move: weights, live keys and values, logits, once; floor: that at {bandwidth:.2f} "
        "TB/s as specified (a copy reaches about nine tenths)."
    )
    for op, reason in plan.fallbacks.items():
        yield f"No kernel for {op}: {reason}. XLA's form is compiled."
    if plan.drafts is not None:
        yield _said_of_drafts(plan.drafts)
    if not plan.programs:
        yield "Nothing was compiled: temporaries and programs are not known."
        return
    yield (
        "moves: counted from the compiled decode step; pages count by the tokens in use. In place: "
        "updated where they are. Kernels: of a greedy step, branches for sampling left out; in "
        "graphs: of them, launched in CUDA graphs."
    )


def _said_of_drafts(drafts: DraftPlan) -> str:
    moved = ", ".join(
        f"{name} {_gib(size)}"
        for name, size in (
            ("decode", drafts.decode_bytes),
            ("a draft", drafts.draft_bytes),
            ("verify", drafts.verify_bytes),
        )
    )
    least = drafts.break_even_acceptance
    verdict = "never pay" if least is None else f"pay where {least:.0%} of them stand"
    return f"Drafts, {drafts.num_drafts} at once, {verdict}: by bytes moved ({moved})."


def _gib(count: float) -> str:
    return f"{count / 2**30:,.2f} GiB"


def _mib(count: float) -> str:
    return f"{count / 2**20:,.1f} MiB"
