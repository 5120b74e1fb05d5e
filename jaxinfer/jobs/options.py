"""HOST. Command-line options of sampling and of the engine, made from one table each.

Knows names, types and help texts. Defaults and rules stay with `SamplingParams` and the engine:
an option that is not given is not passed on.
"""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import typer

from jaxinfer.config.sampling_params import SamplingParams

# name → (type, help); the names are SamplingParams' fields, with dashes on the command line.
SAMPLING_OPTIONS: Mapping[str, tuple[Any, str]] = MappingProxyType(
    {
        "n": (int, "Completions a prompt."),
        "temperature": (float, "0 is greedy; up to 2."),
        "top_p": (float, "Keep the likeliest tokens that sum to this; in (0, 1]."),
        "top_k": (int, "Keep that many likeliest tokens; 0 is off."),
        "min_p": (float, "Keep tokens at least this likely, relative to the likeliest."),
        "seed": (int, "Seed of the request; the one used is reported by --json."),
        "stop": (list[str], "A string that ends the text (may be repeated)."),
        "stop_token_ids": (list[int], "A token id that ends the text (may be repeated)."),
        "include_stop_str_in_output": (bool, "Leave the stop string in the text."),
        "ignore_eos": (bool, "Go on after an end-of-sequence token."),
        "max_tokens": (int, "Tokens to generate at most."),
        "logprobs": (int, "Report that many best log-probabilities (with --json)."),
        "detokenize": (bool, "Make text of the tokens."),
        "skip_special_tokens": (bool, "Leave special tokens out of the text."),
    }
)
# What a conversation printed as text can honour: one answer, made of text alone.
CHAT_OPTIONS: Mapping[str, tuple[Any, str]] = MappingProxyType(
    {
        name: row
        for name, row in SAMPLING_OPTIONS.items()
        if name not in ("n", "logprobs", "detokenize")
    }
)
ENGINE_OPTIONS: Mapping[str, tuple[Any, str]] = MappingProxyType(
    {
        "dtype": (str, "Numbers of the weights: auto, bfloat16 or float32."),
        "kv_cache_dtype": (str, "Numbers of the KV cache: auto, bfloat16 or float32."),
        "max_model_len": (int, "Tokens a request may hold, prompt and output."),
        "max_num_seqs": (int, "Slots: requests that run together."),
        "block_size": (int, "Tokens in a page of the KV cache; a power of two."),
        "num_gpu_blocks_override": (int, "Pages of the KV cache, for each cache group."),
        "gpu_memory_utilization": (float, "Share of the free device memory to plan with."),
        "prefill_chunk_tokens": (int, "Tokens in a row of a prefill step; a power of two."),
        "max_num_batched_tokens": (int, "Tokens in the largest prefill step."),
        "kernels": (str, "Implementation of the ops: auto or reference."),
        "compilation_cache_dir": (str, "Where compiled programs are kept; auto by default."),
    }
)


def with_options(**tables: Mapping[str, tuple[Any, str]]) -> Callable[..., Any]:
    """Decorates a command: parameter `name` becomes the options of its table, given as one dict.

    `@with_options(sampling=SAMPLING_OPTIONS)` on `f(model, sampling)` gives a command with an
    option for every row; `sampling` then holds those that were set on the command line.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(command).parameters.values()
        kept = [parameter for parameter in own if parameter.name not in tables]
        added = [
            _parameter(name, *row, panel=f"{table.capitalize()} options")
            for table, rows in tables.items()
            for name, row in rows.items()
        ]

        def run(**values: Any) -> Any:
            for table, rows in tables.items():
                given = {name: values.pop(name) for name in rows}
                values[table] = {k: v for k, v in given.items() if v is not None and v != []}
            return command(**values)

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*kept, *added)]
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        run.__dict__["__signature__"] = inspect.Signature(parameters)
        return run

    return decorate


def _parameter(name: str, kind: Any, text: str, *, panel: str) -> inspect.Parameter:
    dashed = "--" + name.replace("_", "-")
    flag = f"{dashed}/--no-{dashed[2:]}" if kind is bool else dashed
    option = typer.Option(None, flag, help=text, show_default=False, rich_help_panel=panel)
    annotation = kind | None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation
    )


def make_sampling_params(given: Mapping[str, Any], **defaults: Any) -> SamplingParams:
    """The parameters of one request from the options that were set.

    Args:
        given: options that were set, by field name; they win over `defaults`.

    Raises:
        ConfigError: a value outside its rule.
    """
    return SamplingParams(**{**defaults, **given})
