"""HOST. Results as lines of a batch job's output, in OpenAI's form.

    {"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error": null}
    {"id", "custom_id", "response": null, "error": {"code", "message", "line"}}

Knows the records of `engine.outputs`; neither files nor engines.
"""

import json
import math
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any, Literal

from jaxinfer.engine.outputs import CompletionOutput, Logprob, RequestOutput
from jaxinfer.jobs.batch_request import LineError, LineRequest

Extra = Literal["token_ids", "seed", "fingerprint", "metrics"]
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
EXTRAS: tuple[Extra, ...] = ("token_ids", "seed", "fingerprint", "metrics")


class LineWriter:
    """Makes output lines for one job.

    Args:
        model: the name that bodies carry.
        fingerprint: of the engine.
        include: what choices and bodies carry beside OpenAI's fields.
        token_bytes: the bytes of a token id; None where there is no tokenizer.
    """

    def __init__(
        self, *, model: str, fingerprint: str, include: Collection[Extra], token_bytes: Any = None
    ) -> None:
        self._model = model
        self._fingerprint = fingerprint
        self._include = frozenset(include)
        self._token_bytes = token_bytes

    def result_line(
        self, output_id: str, request: LineRequest, output: RequestOutput, *, num_best: int
    ) -> bytes:
        """The line of a request that was served; num_best: of log-probabilities it asked for."""
        if request.kind == "chat":
            choices = [self._chat_choice(one, num_best) for one in output.outputs]
            body = self._body("chatcmpl-", "chat.completion", output_id, choices, output)
        else:
            choices = [self._completion_choice(one, num_best) for one in output.outputs]
            body = self._body("cmpl-", "text_completion", output_id, choices, output)
        if "fingerprint" in self._include:
            body["system_fingerprint"] = f"fp_{self._fingerprint}"
        if output.prompt_logprobs is not None:
            body["prompt_logprobs"] = [
                None if entry is None else _plain_logprobs(entry)
                for entry in output.prompt_logprobs
            ]
        response = {"status_code": 200, "request_id": output_id, "body": body}
        return _line(output_id, request.custom_id, response, None)

    def _chat_choice(self, one: CompletionOutput, num_best: int) -> dict[str, Any]:
        return {
            "index": one.index,
            "message": {"role": "assistant", "content": one.text, "refusal": None},
            "logprobs": self._chat_logprobs(one, num_best),
            **self._ending(one),
        }

    def _completion_choice(self, one: CompletionOutput, num_best: int) -> dict[str, Any]:
        return {
            "index": one.index,
            "text": one.text,
            "logprobs": _completion_logprobs(one, num_best),
            **self._ending(one),
        }

    def _body(
        self, prefix: str, kind: str, output_id: str, choices: list[Any], output: RequestOutput
    ) -> dict[str, Any]:
        prompt = len(output.prompt_token_ids)
        drawn = sum(len(one.token_ids) for one in output.outputs)
        body: dict[str, Any] = {
            "id": prefix + output_id.rpartition("_")[2],
            "object": kind,
            "created": int(time.time()),
            "model": self._model,
            "choices": choices,
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": drawn,
                "total_tokens": prompt + drawn,
                "prompt_tokens_details": {"cached_tokens": output.num_cached_tokens},
            },
        }
        if "token_ids" in self._include:
            body["prompt_token_ids"] = output.prompt_token_ids
        if "metrics" in self._include:
            body["metrics"] = asdict(output.metrics)
        return body

    def _ending(self, one: CompletionOutput) -> dict[str, Any]:
        ending: dict[str, Any] = {"finish_reason": one.finish_reason}
        if one.stop_reason is not None:
            ending["stop_reason"] = one.stop_reason
        if "token_ids" in self._include:
            ending["token_ids"] = one.token_ids
        if "seed" in self._include:
            ending["seed"] = one.seed
        return ending

    def _chat_logprobs(self, one: CompletionOutput, num_best: int) -> dict[str, Any] | None:
        if one.logprobs is None:
            return None
        content = []
        for token, entry in zip(one.token_ids, one.logprobs, strict=True):
            best = [self._token(*item) for item in list(entry.items())[:num_best]]
            content.append({**self._token(token, entry[token]), "top_logprobs": best})
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: Logprob) -> dict[str, Any]:
        data = self._token_bytes(token) if self._token_bytes else b""
        return {
            "token": logprob.decoded_token,
            "bytes": list(data),
            "logprob": _number(logprob.logprob),
        }


def error_line(output_id: str, custom_id: str | None, error: LineError, place: str) -> bytes:
    """The line of a request that failed. place: file and physical line number, for people."""
    fault = {"code": error.code, "message": str(error), "line": place}
    return _line(output_id, custom_id, None, fault)


def _line(
    output_id: str, custom_id: str | None, response: Mapping | None, error: Mapping | None
) -> bytes:
    value = {"id": output_id, "custom_id": custom_id, "response": response, "error": error}
    return _ENCODER.encode(value).encode()


def _completion_logprobs(one: CompletionOutput, num_best: int) -> dict[str, Any] | None:
    """OpenAI's columns; a token's offset counts characters of the text."""
    if one.logprobs is None:
        return None
    tokens, offsets, offset = [], [], 0
    for token, entry in zip(one.token_ids, one.logprobs, strict=True):
        tokens.append(entry[token].decoded_token)
        offsets.append(offset)
        offset += len(tokens[-1])
    return {
        "tokens": tokens,
        "token_logprobs": [
            _number(entry[token].logprob)
            for token, entry in zip(one.token_ids, one.logprobs, strict=True)
        ],
        "top_logprobs": [
            {each.decoded_token: _number(each.logprob) for each in list(entry.values())[:num_best]}
            for entry in one.logprobs
        ],
        "text_offset": offsets,
    }


def _plain_logprobs(entry: Mapping[int, Logprob]) -> dict[str, Any]:
    return {
        str(token): {
            "logprob": _number(one.logprob),
            "rank": one.rank,
            "decoded_token": one.decoded_token,
        }
        for token, one in entry.items()
    }


def _number(value: float) -> float | None:
    """JSON has no infinities."""
    return value if math.isfinite(value) else None
