"""JOINT. `jaxinfer plan`: shows how far the compiling is, then the plan."""

from typing import Any

from rich.console import Console
from tqdm import tqdm

from jaxinfer.jobs.plan_process import plan_apart
from jaxinfer.jobs.plan_report import print_plan


def plan_and_report(
    model: str,
    target: str,
    engine: dict[str, Any],
    *,
    compile_programs: bool,
    as_json: bool,
) -> bool:
    """Plans and prints; returns whether it fits."""
    hidden = as_json or not compile_programs
    with tqdm(desc="compiling", total=1, disable=hidden, leave=False) as bar:

        def report(done: int, total: int, name: str) -> None:
            bar.total, bar.n = total, done
            bar.set_postfix_str(name)

        plan = plan_apart(model, target, compile_programs=compile_programs, report=report, **engine)
    print_plan(plan, as_json=as_json, console=Console(highlight=False))
    return plan.spare_bytes >= 0
