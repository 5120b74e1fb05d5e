"""HOST. What a line of a batch job asks for: OpenAI's form or the plain one, every field checked.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": …}}
    {"custom_id": "a", "prompt": "Once upon"}      or "prompt_token_ids", or "messages"

Knows names and types of fields. Values of sampling are checked by `SamplingParams`, prompts by the
engine, conversations by the chat template.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Literal

from jaxinfer.config.option_names import Planned, accepted_options
from jaxinfer.config.request_options import RequestOptions
from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.errors import ConfigError, JaxInferError
from jaxinfer.jobs.batch_input import InputLine

LineKind = Literal["chat", "completion"]
LineErrorCode = Literal["invalid_line", "invalid_request", "request_failed"]

URLS: Mapping[str, LineKind] = MappingProxyType(
    {"/v1/chat/completions": "chat", "/v1/completions": "completion"}
)
_ENVELOPE = ("custom_id", "method", "url", "body")
MAX_ID_CHARACTERS = 1024
_MAX_MESSAGE = 600
# The id where a line that is cut or broken begins with it; a key in its midst could be anybody's.
_LEADING_ID = re.compile(rb'\s*\{\s*"custom_id"\s*:\s*("(?:[^"\\]|\\.)*")')

_SAMPLING = frozenset(
    field.name for field in fields(SamplingParams) if field.init and field.name != "logprobs"
)
_CHAT = (
    *("messages", "tools", "chat_template", "add_generation_prompt", "continue_final_message"),
    *("chat_template_kwargs", "max_completion_tokens", "top_logprobs"),
)
_PROMPTS = ("prompt", "prompt_token_ids")
# Say who asks or where it is filed; nothing of the answer depends on them.
_LABELS = ("user", "metadata", "safety_identifier", "prompt_cache_key")
_KNOWN: Mapping[LineKind, frozenset[str]] = MappingProxyType(
    {
        "chat": _SAMPLING | {"model", "logprobs", "priority", *_CHAT, *_LABELS},
        "completion": _SAMPLING | {"model", "logprobs", "priority", *_PROMPTS, *_LABELS},
    }
)
_PLANNED = {
    "stream": Planned("streaming, which a file cannot show", (None, False)),
    "stream_options": Planned("streaming, which a file cannot show"),
    "best_of": Planned("best_of", (None, 1)),
    "use_beam_search": Planned("beam search", (None, False)),
    "echo": Planned("echo of the prompt", (None, False)),
    "suffix": Planned("insertion before a suffix", (None, "")),
    "store": Planned("storing on a server", (None, False)),
    "service_tier": Planned("a service tier", (None, "auto", "default")),
    "modalities": Planned("other modalities than text", (None, ["text"])),
    "audio": Planned("audio"),
    "response_format": Planned("structured output", (None, {"type": "text"})),
    "structured_outputs": Planned("structured output"),
    "guided_json": Planned("structured output"),
    "guided_regex": Planned("structured output"),
    "guided_choice": Planned("structured output"),
    "tool_choice": Planned("forcing or forbidding tool calls", (None, "auto")),
    "parallel_tool_calls": Planned("parsing of tool calls", (None, True)),
    "functions": Planned("the old form of tools"),
    "function_call": Planned("the old form of tools"),
    "reasoning_effort": Planned("reasoning effort"),
}


class LineError(JaxInferError):
    """One line's fault; the other lines go on."""

    def __init__(self, code: LineErrorCode, message: str) -> None:
        cut = message if len(message) <= _MAX_MESSAGE else message[:_MAX_MESSAGE] + " …"
        super().__init__(cut)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRequest:
    """A line whose fields have their types.

    prompt: text or token ids; None for a conversation, which is `messages` and `chat_options`
    (arguments of `ChatPrompts`). sampling: fields of `SamplingParams` that the line sets.
    """

    custom_id: str
    kind: LineKind
    prompt: str | list[Any] | None
    messages: list[Any]
    chat_options: Mapping[str, Any]
    sampling: Mapping[str, Any]
    options: RequestOptions

    @property
    def sort_key(self) -> str:
        """Requests that begin alike are neighbours in the order of this."""
        if isinstance(self.prompt, str):
            return self.prompt[:2048]
        if self.prompt is not None:
            return ",".join(str(token) for token in self.prompt[:512])
        contents = (str(one.get("content")) for one in self.messages)
        return "\n".join(contents)[:2048]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedLine:
    """A line's JSON object, or the error in its place; the id is None where none can be read."""

    custom_id: str | None
    value: Mapping[str, Any] | None
    error: LineError | None = None


def decode_line(line: InputLine, *, single_file: bool) -> DecodedLine:
    """Reads a line's JSON and its custom_id.

    Plain lines without an id get one from their place: "line-17", or "part.jsonl-line-17" in a
    folder, whatever else is or comes to be in it.

    Raises:
        ConfigError: a batch line whose custom_id is missing or no text; the job cannot begin.
    """
    try:
        value = _json_object(line)
    except LineError as error:
        return DecodedLine(custom_id=_leading_id(line.data), value=None, error=error)
    custom_id = value.get("custom_id")
    if custom_id is None and not _is_envelope(value):
        place = f"line-{line.number}"
        custom_id = place if single_file else f"{line.file}-{place}"
    if not _is_id(custom_id):
        raise ConfigError(
            f"{line.file}:{line.number}: custom_id={custom_id!r:.100} must be a text of 1 to "
            f"{MAX_ID_CHARACTERS} characters, each line its own; give the line one"
        )
    return DecodedLine(custom_id=custom_id, value=value)


def read_request(decoded: DecodedLine, models: Sequence[str] | None) -> LineRequest:
    """The request of a line.

    Args:
        models: names that a line may call the model by; None is any.

    Raises:
        LineError: the line's JSON or a field is wrong; the message names it.
    """
    if decoded.error is not None:
        raise decoded.error
    assert decoded.value is not None and decoded.custom_id is not None
    try:
        kind, body = _body(decoded.value)
        if models is not None:
            _check_model(body.get("model"), models)
        accepted = accepted_options(body, _KNOWN[kind], _PLANNED)
        given = {name: value for name, value in accepted.items() if value is not None}
        return LineRequest(
            custom_id=decoded.custom_id,
            kind=kind,
            prompt=_prompt(body) if kind == "completion" else None,
            messages=_messages(body) if kind == "chat" else [],
            chat_options=_chat_options(given) if kind == "chat" else {},
            sampling=_sampling(given, kind),
            options=RequestOptions(priority=given.get("priority", 0)),
        )
    except LineError:
        raise
    except JaxInferError as error:
        raise LineError("invalid_request", str(error)) from error


def sampling_params(
    request: LineRequest, base: Mapping[str, Any], job: Mapping[str, Any], seed: int
) -> SamplingParams:
    """What a line draws with: its own fields, then the job's, then the defaults.

    Args:
        base: all fields, of the model's defaults. job: fields that the job sets for every line.
        seed: the job's, from which a line without one gets its own.

    Raises:
        LineError: a value outside its rule.
    """
    drawn = {"seed": line_seed(seed, request.custom_id)}
    open_ended = {"max_tokens": None} if request.kind == "chat" else {}
    try:
        return SamplingParams(**{**base, **open_ended, **drawn, **job, **request.sampling})
    except JaxInferError as error:
        raise LineError("invalid_request", str(error)) from error


def line_seed(seed: int, custom_id: str) -> int:
    """A seed in [0, 2**63) that depends on nothing but the job's seed and the line's id."""
    digest = hashlib.sha256(f"{seed}\0{custom_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


# --- JSON and ids -----------------------------------------------------------------------------


def _json_object(line: InputLine) -> dict[str, Any]:
    if line.is_cut:
        raise LineError(
            "invalid_line",
            f"the line has {line.size:,} bytes, more than max_line_bytes allows; shorten it, or "
            "raise max_line_bytes",
        )
    try:
        value = _DECODER.decode(line.data.decode("utf-8"))
        if b"\\u" in line.data:
            _refuse_surrogates(value)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise LineError(
            "invalid_line",
            f"the line is no JSON ({type(error).__name__}: {error}); write one JSON object a "
            "line, in UTF-8",
        ) from None
    if not isinstance(value, dict):
        raise LineError(
            "invalid_line",
            f"the line is a JSON {type(value).__name__}, not an object; write "
            '{"custom_id": …, "prompt": …}',
        )
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _refuse_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a \\u escape is half of a surrogate pair") from None


def _leading_id(data: bytes) -> str | None:
    found = _LEADING_ID.match(data)
    if found is None:
        return None
    try:
        custom_id = json.loads(found[1])
        custom_id.encode()
    except ValueError:
        return None
    return custom_id if _is_id(custom_id) else None


def _is_id(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_ID_CHARACTERS


def _is_envelope(value: Mapping[str, Any]) -> bool:
    return any(name in value for name in ("method", "url", "body"))


# --- fields -----------------------------------------------------------------------------------


def _body(value: Mapping[str, Any]) -> tuple[LineKind, Mapping[str, Any]]:
    """What the body asks for and its fields, of either form."""
    if not _is_envelope(value):
        body = {name: one for name, one in value.items() if name != "custom_id"}
        return ("chat" if "messages" in body else "completion"), body
    accepted_options(value, _ENVELOPE, {})
    method, url, body = value.get("method"), value.get("url"), value.get("body")
    if method != "POST":
        raise ConfigError(f'method={method!r} must be "POST"')
    if not isinstance(url, str) or url not in URLS:
        raise ConfigError(f"url={url!r} must be one of {', '.join(map(repr, URLS))}")
    if not isinstance(body, dict):
        raise ConfigError(f"body={body!r:.80} must be an object, such as {{'messages': […]}}")
    return URLS[url], body


def _check_model(model: Any, models: Sequence[str]) -> None:
    if model is not None and model not in models:
        raise ConfigError(
            f"model={model!r} is not the one that runs ({', '.join(map(repr, models))}); leave "
            "it out, or name it to the job with served_model_name"
        )


def _prompt(body: Mapping[str, Any]) -> str | list[Any]:
    given = [name for name in _PROMPTS if name in body]
    if len(given) != 1:
        raise ConfigError(
            f"prompt: {'both prompt and prompt_token_ids are' if given else 'nothing is'} given; "
            "a line needs one of prompt, prompt_token_ids and messages"
        )
    (name,) = given
    prompt = body[name]
    if isinstance(prompt, str) and name == "prompt":
        return prompt
    if not isinstance(prompt, list):
        raise ConfigError(
            f"{name}={prompt!r:.80} is a {type(prompt).__name__}; it must be "
            f"{'a text or ' if name == 'prompt' else ''}a list of token ids"
        )
    if prompt and all(isinstance(one, str | list) for one in prompt):
        raise ConfigError(
            f"{name} is a list of {len(prompt)} prompts; a line has one, write a line for each"
        )
    return prompt


def _messages(body: Mapping[str, Any]) -> list[Any]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ConfigError(
            f"messages={messages!r:.80} must be a list of at least one message, such as "
            "[{'role': 'user', 'content': 'Hi'}]"
        )
    for place, message in enumerate(messages):
        if not isinstance(message, dict):
            raise ConfigError(
                f"messages[{place}]={message!r:.80} must be an object with role and content"
            )
    return messages


def _chat_options(given: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, argument, kind in (
        ("chat_template", "template", str),
        ("add_generation_prompt", "add_generation_prompt", bool),
        ("continue_final_message", "continue_final_message", bool),
        ("tools", "tools", list),
        ("chat_template_kwargs", "variables", dict),
    ):
        if name in given:
            if not isinstance(given[name], kind):
                raise ConfigError(f"{name}={given[name]!r:.80} must be a JSON {kind.__name__}")
            options[argument] = given[name]
    if options.get("continue_final_message") and options.get("add_generation_prompt"):
        raise ConfigError(
            "continue_final_message and add_generation_prompt contradict each other; set one"
        )
    if options.get("continue_final_message"):
        options["add_generation_prompt"] = False
    return options


def _sampling(given: Mapping[str, Any], kind: LineKind) -> dict[str, Any]:
    """Fields of `SamplingParams`, their values as they stand."""
    sampling = {name: given[name] for name in given if name in _SAMPLING}
    if "max_completion_tokens" in given:
        if "max_tokens" in given:
            raise ConfigError("max_tokens and max_completion_tokens are both given; leave one out")
        sampling["max_tokens"] = given["max_completion_tokens"]
    if kind == "completion":
        return sampling | ({"logprobs": given["logprobs"]} if "logprobs" in given else {})
    wanted, best = given.get("logprobs", False), given.get("top_logprobs")
    if not isinstance(wanted, bool):
        raise ConfigError(
            f"logprobs={wanted!r} must be true or false; how many is top_logprobs' to say"
        )
    if best is not None and not wanted:
        raise ConfigError(f"top_logprobs={best!r} needs logprobs true")
    return sampling | ({"logprobs": best or 0} if wanted else {})
