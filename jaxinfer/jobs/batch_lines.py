"""JOINT. Lines of a batch job to requests, and results to output lines.

Knows one job's parameters and its output file; neither the ledger nor the order of things.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.engine.chat_prompt import ChatPrompts
from jaxinfer.errors import JaxInferError, RequestError
from jaxinfer.jobs.batch_input import InputLine
from jaxinfer.jobs.batch_ledger import line_digest, output_id
from jaxinfer.jobs.batch_loop import Ready
from jaxinfer.jobs.batch_output import LineWriter, error_line
from jaxinfer.jobs.batch_request import (
    LineError,
    LineRequest,
    decode_line,
    read_request,
    sampling_params,
)
from jaxinfer.jobs.batch_settings import BatchSettings
from jaxinfer.jobs.batch_statistics import Statistics

if TYPE_CHECKING:
    from jaxinfer.engine.outputs import RequestOutput
    from jaxinfer.llm import LLM

_log = logging.getLogger("jaxinfer")

SHORTER_INPUT = (
    "the input is shorter now than when the job began: lines that are to be run are gone; leave it "
    "as it is until the job has ended, then start the same command again"
)

AddLine = Callable[[int, bytes, bool], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tag:
    """What the output line of a request needs."""

    line: InputLine
    digest: str
    request: LineRequest


class LineRunner:
    """Makes requests of lines and lines of results.

    Args:
        llm: whose defaults and chat template are used.
        ask: the job. job: its fingerprint. engine: the engine's.
        single_file: whether the input is one file; see `decode_line`.
        strict: the first line that fails ends the job.
        add_line: takes (position, output line, whether it is an error).
    """

    def __init__(
        self,
        llm: "LLM",
        ask: BatchSettings,
        *,
        job: str,
        engine: str,
        single_file: bool,
        strict: bool,
        add_line: AddLine,
    ) -> None:
        self.statistics = Statistics()
        self.num_done = 0
        self.num_failed = 0
        self._ask = ask
        self._job = job
        self._single_file = single_file
        self._strict = strict
        self._add_line = add_line
        self._base = _fields_of(llm.get_default_sampling_params())
        self._prompts = PromptMaker(llm)
        tokenizer = llm.get_tokenizer()
        self._writer = LineWriter(
            model=ask.model,
            fingerprint=engine,
            include=ask.include,  # type: ignore[arg-type]
            token_bytes=tokenizer.token_bytes if tokenizer else None,
        )

    def requests(self, lines: Iterator[tuple[InputLine, str]]) -> Iterator[Ready]:
        """A request for every line; a line whose fields are wrong becomes an error line instead.

        Args:
            lines: with the digest that the ledger has of each.

        Raises:
            JaxInferError: a line that is not what the ledger was made of.
        """
        for line, digest in lines:
            decoded = decode_line(line, single_file=self._single_file)
            if line_digest(line, decoded.custom_id) != digest:
                raise JaxInferError(
                    f"{line.file}:{line.number} changed while the job was running; leave the "
                    "input as it is until the job has ended, then start the same command again"
                )
            try:
                request = read_request(decoded, self._ask.model_names)
                params = sampling_params(request, self._base, self._ask.params, self._ask.seed)
            except LineError as error:
                self._add_error(line, digest, decoded.custom_id, error)
                continue
            yield Ready(
                prompt=lambda request=request: self._prompts.prompt(request),
                params=params,
                options=request.options,
                key=request.sort_key,
                num_bytes=line.size,
                tag=_Tag(line=line, digest=digest, request=request),
            )

    def take_result(self, ready: Ready, output: "RequestOutput") -> None:
        """Writes the line of a request that has ended.

        Raises:
            RequestError: it failed and the job is strict.
        """
        tag: _Tag = ready.tag
        error = failure(output)
        if error is not None:
            self._add_error(tag.line, tag.digest, tag.request.custom_id, error)
            return
        self.statistics.observe(output)
        line = self._writer.result_line(
            output_id(self._job, tag.digest),
            tag.request,
            output,
            num_best=ready.params.logprobs or 0,
        )
        self.num_done += 1
        self._add_line(tag.line.position, line, False)

    def _add_error(
        self, line: InputLine, digest: str, custom_id: str | None, error: LineError
    ) -> None:
        place = f"{line.file}:{line.number}"
        self.num_failed += 1
        written = error_line(output_id(self._job, digest), custom_id, error, place)
        self._add_line(line.position, written, True)
        if self._strict:
            raise RequestError(f"{place}: {error}")


class PromptMaker:
    """Conversations to prompts; a template with the same options is compiled once."""

    def __init__(self, llm: "LLM") -> None:
        self._tokenizer = llm.get_tokenizer()
        self._last: tuple[Mapping[str, Any], ChatPrompts] | None = None

    def prompt(self, request: LineRequest) -> Any:
        """What the engine takes as a prompt: text, ids, or the error of a conversation."""
        if request.prompt is not None:
            return request.prompt
        try:
            return {"prompt_token_ids": self._template(request).token_ids(request.messages)}
        except RequestError as error:
            return error
        except Exception as error:  # a template of strangers may raise anything
            _log.debug("messages of %r", request.custom_id, exc_info=True)
            return RequestError(
                f"messages cannot be rendered by the chat template ({type(error).__name__}: "
                f"{error}); check their roles and contents"
            )

    def _template(self, request: LineRequest) -> ChatPrompts:
        if self._last is None or self._last[0] != request.chat_options:
            prompts = ChatPrompts(self._tokenizer, **request.chat_options)
            self._last = (request.chat_options, prompts)
        return self._last[1]


def _fields_of(params: SamplingParams) -> dict[str, Any]:
    return {one.name: getattr(params, one.name) for one in fields(params) if one.init}


def failure(output: "RequestOutput") -> LineError | None:
    """The error of a request that did not come to its end."""
    if output.error is not None:
        return LineError("request_failed", output.error)
    reasons = {one.finish_reason for one in output.outputs}
    if reasons & {"abort", "error", None}:
        ended = ", ".join(sorted(map(str, reasons)))
        return LineError("request_failed", f"the request ended with {ended}; run the line again")
    return None
