"""JOINT. `jaxinfer chat`: a conversation in the terminal, printed as it is generated.

Does not know chat templates or tokens: it keeps the messages and prints deltas.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console

from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.errors import RequestError

if TYPE_CHECKING:
    from jaxinfer.llm import LLM

Message = dict[str, str]
ReadLine = Callable[[], str]

HELP = "/clear starts anew, /exit or Ctrl-D ends."


def answer(llm: "LLM", messages: list[Message], params: SamplingParams, console: Console) -> str:
    """Streams the answer to `messages` to the console.

    Returns:
        The whole text of the answer.

    Raises:
        RequestError: the conversation cannot be served (it may have become too long).
    """
    parts = []
    for delta in llm.chat_stream(messages, params):
        if delta.error is not None:
            raise RequestError(delta.error)
        parts.append(delta.text)
        console.print(delta.text, end="", markup=False, highlight=False, soft_wrap=True)
    console.print()
    return "".join(parts)


def converse(
    llm: "LLM", system: str | None, params: SamplingParams, console: Console, read_line: ReadLine
) -> None:
    """Asks for messages and answers them until the input ends.

    Args:
        read_line: returns the next message; EOFError ends the conversation.
    """
    opening = start_messages(system)
    messages = list(opening)
    console.print(HELP, style="dim", highlight=False)
    while True:
        try:
            line = read_line().strip()
        except EOFError:
            console.print()
            return
        if line in ("/exit", "/quit"):
            return
        if line == "/clear":
            messages = list(opening)
        elif line:
            messages = _one_turn(llm, messages, line, params, console)


def _one_turn(
    llm: "LLM", messages: list[Message], line: str, params: SamplingParams, console: Console
) -> list[Message]:
    """The conversation after one more message; unchanged where that message cannot be served."""
    asked = [*messages, {"role": "user", "content": line}]
    try:
        text = answer(llm, asked, params, console)
    except RequestError as error:
        console.print(f"{error}\n/clear starts anew.", style="red", markup=False, highlight=False)
        return messages
    return [*asked, {"role": "assistant", "content": text}]


def start_messages(system: str | None) -> list[Message]:
    return [{"role": "system", "content": system}] if system else []
