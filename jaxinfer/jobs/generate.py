"""JOINT. `jaxinfer generate`: completions of prompts, as text or as JSON lines.

Does not know how tokens are made, nor how options are spelled.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from jaxinfer.errors import ConfigError

if TYPE_CHECKING:
    from jaxinfer.engine.outputs import RequestOutput


def gather_prompts(prompts: Sequence[str], prompt_file: Path | None) -> list[str]:
    """The prompts to answer: those given, then the file's lines (blank ones left out).

    Raises:
        ConfigError: no prompt at all, or a file that is not UTF-8 text.
    """
    gathered = list(prompts)
    if prompt_file is not None:
        try:
            lines = prompt_file.read_bytes().decode("utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"--prompt-file {prompt_file}: cannot be read as UTF-8 text ({error}); "
                "give a text file with one prompt a line"
            ) from error
        gathered += [line.rstrip("\r") for line in lines if line.strip()]
    if not gathered:
        raise ConfigError(
            "no prompt was given; pass --prompt TEXT (may be repeated) or --prompt-file FILE "
            "with one prompt a line"
        )
    return gathered


def output_record(output: "RequestOutput") -> dict[str, Any]:
    """One `RequestOutput` as a JSON object; numbers that JSON lacks become null."""
    return _plain(output)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def print_outputs(outputs: "Iterable[RequestOutput]", *, as_json: bool, console: Console) -> int:
    """Prints the outputs in order.

    Returns:
        How many requests ended with an error.
    """
    outputs = list(outputs)
    for number, output in enumerate(outputs, 1):
        if as_json:
            console.file.write(json.dumps(output_record(output), ensure_ascii=False) + "\n")
        else:
            _print_text(output, number, len(outputs), console)
    return sum(output.error is not None for output in outputs)


def print_drafts(outputs: "Iterable[RequestOutput]", console: Console) -> None:
    """A line about what was drafted for them; none where nothing was."""
    metrics = [output.metrics for output in outputs]
    drafts = sum(one.num_drafts for one in metrics)
    drafted = sum(one.num_draft_tokens for one in metrics)
    accepted = sum(one.num_accepted_draft_tokens for one in metrics)
    if drafts:
        console.print(
            f"drafts: {accepted} of {drafted} tokens stood, {1 + accepted / drafts:.2f} tokens a "
            "step that verified",
            style="dim",
        )


def _print_text(output: "RequestOutput", number: int, total: int, console: Console) -> None:
    if total > 1:
        console.print(Rule(f"prompt {number} of {total}", align="left", style="dim"))
    if output.error is not None:
        console.print(Text(f"error: {output.error}", style="red"))
        return
    for completion in output.outputs:
        if len(output.outputs) > 1:
            console.print(Text(f"[{completion.index}] ", style="dim"), end="")
        prompt = output.prompt or ""
        console.print(Text(prompt, style="dim") + Text(completion.text), soft_wrap=True)
