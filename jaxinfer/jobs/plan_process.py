"""JOINT. A plan made in a process of its own: the compiler's environment is nobody else's.

The parent writes one JSON object to the child's standard input and reads JSON lines: progress, then
the plan or an error. Knows how the two talk, not what a plan is.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxinfer import errors
from jaxinfer.errors import JaxInferError
from jaxinfer.jobs.plan import Report, plan_target
from jaxinfer.jobs.plan_records import TargetPlan, plan_from_json

_CHILD = "from jaxinfer.jobs.plan_process import serve; serve()"
_ERRORS = tuple(
    one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, JaxInferError)
)


def plan_apart(
    model: str,
    target: str,
    *,
    compile_programs: bool = True,
    report: Report = lambda done, total, name: None,
    **engine_options: Any,
) -> TargetPlan:
    """What `plan_target` gives, made in a child process.

    Raises:
        JaxInferError: as `plan_target`; also where the child ends without a plan.
    """
    asked = {
        "model": model,
        "target": target,
        "compile_programs": compile_programs,
        "options": engine_options,
    }
    for event in _events(asked):
        if "done" in event:
            report(event["done"], event["total"], event["name"])
        elif "error" in event:
            raise next(one for one in _ERRORS if one.__name__ == event["error"])(event["text"])
        else:
            return plan_from_json(event["plan"])
    raise AssertionError("the child said neither plan nor error")


def serve() -> None:
    """The child: one request from standard input, JSON lines to standard output."""
    asked = json.load(sys.stdin)
    talk = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is not for the parent

    def say(event: dict[str, Any]) -> None:
        talk.write(json.dumps(event) + "\n")
        talk.flush()

    try:
        plan = plan_target(
            asked["model"],
            asked["target"],
            compile_programs=asked["compile_programs"],
            report=lambda done, total, name: say({"done": done, "total": total, "name": name}),
            **asked["options"],
        )
    except JaxInferError as error:
        say({"error": type(error).__name__, "text": str(error)})
    else:
        say({"plan": plan.as_json()})


def _events(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(_path())}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env=environment,
            text=True,
        )
        try:
            yield from _conversation(child, asked)
        finally:
            child.kill()
            child.wait()
        said.seek(0)
        last = said.read().strip().splitlines()[-20:]
        raise JaxInferError(
            f"the process that plans for target {asked['target']!r} ended with exit code "
            f"{child.returncode} and no plan; it said:\n" + "\n".join(last)
        )


def _conversation(
    child: "subprocess.Popen[str]", asked: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    assert child.stdin and child.stdout
    with child.stdin as ask, child.stdout as answers:
        json.dump(asked, ask)
        ask.close()
        for line in answers:
            yield json.loads(line)


def _path() -> list[str]:
    """This package first, so that the child runs the same code."""
    here = str(Path(__file__).parents[2])
    return [here, *filter(None, [os.environ.get("PYTHONPATH")])]
