"""JOINT. Runs the tasks of one call to their end, whole or as a stream, and cleans up after it.

Whatever is raised on the way, and wherever (also Ctrl-C), an idle engine is left behind. Knows
tasks; what they are made of, `intake.py` knows.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tqdm import tqdm

from jaxinfer.engine.engine import Engine
from jaxinfer.engine.outputs import RequestOutput, ScoreOutput, StreamDelta
from jaxinfer.engine.task import Task
from jaxinfer.errors import JaxInferError, RequestError

_Output = TypeVar("_Output", RequestOutput, ScoreOutput, StreamDelta)


class TaskLoop:
    """The loop around an engine. is_closed: for good."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.is_closed = False

    @property
    def is_strict(self) -> bool:
        """True where a failing request raises."""
        return self.engine.ask.strict

    def run(self, tasks: list[Task], use_tqdm: bool) -> None:
        """Until every task is finished."""
        refused = sum(task.error is not None for task in tasks)
        left = {task.request_id: len(task.completions) for task in tasks}
        with (
            self.undone_on_error(),
            tqdm(total=len(tasks), initial=refused, desc="prompts", disable=not use_tqdm) as bar,
        ):
            self._raise_refusals(tasks)
            while self.engine.has_work:
                for delta in self.engine.step():
                    self.strictly(delta)
                    left[delta.request_id] -= int(delta.finish_reason is not None)
                    bar.update(int(left[delta.request_id] == 0 and delta.finish_reason is not None))

    def _raise_refusals(self, tasks: list[Task]) -> None:
        for task in tasks:
            if task.error is not None and self.is_strict:
                raise RequestError(task.error)

    def stream(self, tasks: list[Task]) -> Generator[StreamDelta, None, None]:
        """What each step adds; leaving early aborts the tasks, and no others."""
        try:
            yield from self._stream(tasks)
        except GeneratorExit:
            self._leave(tasks)
            raise

    def _stream(self, tasks: list[Task]) -> Generator[StreamDelta, None, None]:
        with self.undone_on_error():
            self._raise_refusals(tasks)
            yield from (_refusal(task) for task in tasks if task.error is not None)
            while self.engine.has_work:
                self.check_open()
                deltas = self.engine.step()
                if all(task.is_finished for task in tasks):
                    self._drain()  # whoever leaves after the last delta leaves nothing in flight
                for delta in deltas:
                    yield self.strictly(delta)

    def _leave(self, tasks: list[Task]) -> None:
        """Ends a stream that nobody reads on; what the prefix cache holds stays."""
        if self.is_closed or all(task.is_finished for task in tasks):
            return
        with self.undone_on_error():
            for task in tasks:
                self.engine.abort(task)
            self._drain()

    def _drain(self) -> None:
        while self.engine.has_work:
            self.engine.step()

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Leaves an idle engine behind, whatever is raised inside and wherever (also Ctrl-C)."""
        try:
            yield
        except GeneratorExit:
            raise  # a stream that was left: `_leave` ends its tasks and no others
        except BaseException:
            if not self.is_closed:
                self.engine.reset()
            raise

    def strictly(self, output: _Output) -> _Output:
        """The output; with `is_strict` one that failed raises."""
        if output.error is not None and self.is_strict:
            raise RequestError(output.error)
        return output

    def check_open(self) -> None:
        """Raises once the engine is closed."""
        if self.is_closed:
            raise JaxInferError("the LLM is closed; make a new one")


def _refusal(task: Task) -> StreamDelta:
    return StreamDelta(
        request_id=task.request_id,
        index=0,
        text="",
        token_ids=[],
        finish_reason="error",
        error=task.error,
    )
