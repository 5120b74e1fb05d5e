"""HOST. Command-line options of sampling and of the engine, made from one table each.

Knows names, types and help texts. Defaults and rules stay with `SamplingParams` and the engine:
an option that is not given is not passed on.
"""

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import typer

from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.errors import ConfigError

# name → (type, help); the names are SamplingParams' fields, with dashes on the command line.
SAMPLING_OPTIONS: Mapping[str, tuple[Any, str]] = MappingProxyType(
    {
        "n": (int, "Completions a prompt."),
        "temperature": (float, "0 is greedy; up to 2."),
        "top_p": (float, "Keep the likeliest tokens that sum to this; in (0, 1]."),
        "top_k": (int, "Keep that many likeliest tokens; 0 is off."),
        "min_p": (float, "Keep tokens at least this likely, relative to the likeliest."),
        "presence_penalty": (float, "Taken off tokens generated before; -2 to 2."),
        "frequency_penalty": (float, "Taken off as often as they were generated; -2 to 2."),
        "repetition_penalty": (float, "Divides tokens of prompt and output; 1 is off."),
        "seed": (int, "Seed of the request; the one used is reported by --json."),
        "stop": (list[str], "A string that ends the text (may be repeated)."),
        "stop_token_ids": (list[int], "A token id that ends the text (may be repeated)."),
        "include_stop_str_in_output": (bool, "Leave the stop string in the text."),
        "ignore_eos": (bool, "Go on after an end-of-sequence token."),
        "max_tokens": (int, "Tokens to generate at most."),
        "min_tokens": (int, "Nothing ends the text before so many tokens."),
        "logprobs": (int, "Report that many best log-probabilities (with --json)."),
        "prompt_logprobs": (int, "Likewise for every token of the prompt."),
        "logit_bias": (list[str], "ID=NUMBER, added to a token's logit (may be repeated)."),
        "allowed_token_ids": (list[int], "Draw only such token ids (may be repeated)."),
        "bad_words": (list[str], "A string that must not come (may be repeated)."),
        "detokenize": (bool, "Make text of the tokens."),
        "skip_special_tokens": (bool, "Leave special tokens out of the text."),
    }
)
# What a conversation printed as text can honour: one answer, made of text alone.
CHAT_OPTIONS: Mapping[str, tuple[Any, str]] = MappingProxyType(
    {
        name: row
        for name, row in SAMPLING_OPTIONS.items()
        if name not in ("n", "logprobs", "prompt_logprobs", "detokenize")
    }
)
# For lines of a batch job that do not set them; --seed is the job's, from which lines get theirs.
LINE_OPTIONS: Mapping[str, tuple[Any, str]] = MappingProxyType(
    {name: row for name, row in SAMPLING_OPTIONS.items() if name != "seed"}
)
# Arguments of `run_batch`.
JOB_OPTIONS: Mapping[str, tuple[Any, str]] = MappingProxyType(
    {
        "seed": (int, "Lines without a seed get theirs from it and their id; 0."),
        "served_model_name": (list[str], "A name that lines call the model by (may be repeated)."),
        "include": (
            list[str],
            "In results: token_ids, seed, fingerprint, metrics (may be repeated).",
        ),
        "ordered": (bool, "Sort the finished output by the input."),
        "shard": (str, "i/n: every n-th line from the i-th, counted from 0."),
        "force": (bool, "Drop results whose line, model or parameters changed, and run them."),
        "retry_errors": (bool, "Run lines again that failed."),
        "max_line_bytes": (int, "A longer line is an error line; 4 MiB."),
        "progress": (str, "bar, json (lines on standard output) or none."),
        "metrics_port": (int, "Serve metrics for Prometheus there."),
    }
)
# On a Ray cluster: arguments of `ray_batch`, and whether there is to be one.
RAY_OPTIONS: Mapping[str, tuple[Any, str]] = MappingProxyType(
    {
        "ray": (bool, "Run on the Ray cluster at hand, or on this machine; --output is a folder."),
        "num_engines": (int, "Engines, one an actor; 1."),
        "gpus_per_engine": (float, "GPUs of each, a part of one too; 0."),
        "cpus_per_engine": (float, "CPU cores of each; 1."),
        "part_lines": (int, "Lines that an engine is handed at once; 512."),
    }
)
# Fields of `quantize.Recipe` with an option of a plain form.
RECIPE_OPTIONS: Mapping[str, tuple[Any, str]] = MappingProxyType(
    {
        "bits": (int, "Of a code: 4 or 8."),
        "group_size": (str, "Columns under one scale: a number, -1 for a row, or auto."),
        "act_order": (bool, "gptq: take columns by falling importance (the default)."),
        "damping": (float, "gptq: share of the Hessian's mean diagonal added to it; 0.01."),
        "smoothing": (float, "smoothquant: the exponent; 0.5."),
        "calibration_tokens": (int, "Tokens of the text that are used; 32768."),
        "sequence_length": (int, "Tokens of each piece of it; 512."),
        "dtype": (str, "Of what stays float: auto, bfloat16, float16 or float32."),
        "format": (str, "Of the result: compressed-tensors or native."),
    }
)
# Where a text is judged: arguments of `evaluate_model`.
JUDGING_OPTIONS: Mapping[str, tuple[Any, str]] = MappingProxyType(
    {
        "contexts": (str, "Lengths before which tokens are judged; 256,1024."),
        "judged": (int, "Tokens before each length, in each passage; 128."),
        "num_passages": (int, "Passages of the text, at most; 4."),
        "greedy_tokens": (int, "Tokens of the greedy runs up to each length; 32, 0 for none."),
        "scratch": (str, "A folder with room for logits, while it runs."),
    }
)
# Of the ranking of layers, which `protect` may use.
RANKING_OPTIONS: Mapping[str, tuple[Any, str]] = MappingProxyType(
    {
        "sensitivity": (bool, "Rank layers by what rounding costs; without OUT that is all."),
        "sensitivity_by": (str, "What is rounded at a time: layer (the default) or matrix."),
        "sensitivity_text": (str, "A text file to rank on, other than the calibration text."),
        "sensitivity_file": (str, "Keeps the ranking; the same command goes on there."),
        "sensitivity_plot": (str, "Draw the ranking into this file."),
    }
)
# All fields of EngineConfig but the seed: --seed is the request's.
ENGINE_OPTIONS: Mapping[str, tuple[Any, str]] = MappingProxyType(
    {
        "dtype": (str, "Numbers of the weights: auto, bfloat16 or float32."),
        "quantization": (str, "Round the linear layers at load: int8, int4 or fp8."),
        "weights": (str, "Quantized weights: auto, packed or dequantized."),
        "activations": (str, "Inputs of packed layers: float, or checkpoint to round them."),
        "kv_cache_dtype": (
            str,
            "Numbers of the KV cache: auto, bfloat16, float32, int8, fp8, int8_key_only.",
        ),
        "max_model_len": (int, "Tokens a request may hold, prompt and output."),
        "max_num_seqs": (int, "Slots: requests that run together."),
        "block_size": (int, "Tokens in a page of the KV cache; a power of two."),
        "num_gpu_blocks_override": (int, "Pages of the KV cache, for each cache group."),
        "gpu_memory_utilization": (float, "Share of the free device memory to plan with."),
        "prefill_chunk_tokens": (int, "Tokens in a row of a prefill step; a power of two."),
        "max_num_batched_tokens": (int, "Tokens in the largest prefill step."),
        "enable_prefix_caching": (bool, "Prompts that begin alike share pages."),
        "enable_chunked_prefill": (bool, "Decode between the steps of a long prompt."),
        "max_prefill_steps": (int, "Prefill steps between two decode steps."),
        "long_prefill_token_threshold": (int, "Most tokens of one prompt in a prefill step."),
        "async_scheduling": (bool, "Launch the next step before the last one is read."),
        "num_decode_steps": (int, "Decode steps that are read together; 1 to 64."),
        "admission": (str, "When a request starts: reserve (its worst case) or optimistic."),
        "preemption": (str, "Where pages run out: recompute or swap."),
        "scheduling_policy": (str, "Who is served first: fcfs or priority."),
        "max_num_waiting": (int, "Requests that may wait; one more is refused."),
        "latency_max_num_seqs": (int, "Most others beside a latency-sensitive request."),
        "logprobs_mode": (str, "Log-probabilities: raw or processed."),
        "max_logprobs": (int, "The most that a request may ask for."),
        "use_generation_config": (bool, "Sampling defaults from generation_config.json."),
        "speculative_config": (
            dict,
            """How tokens are drafted, as JSON: '{"method": "ngram"}', '{"model": "PATH"}'.""",
        ),
        "kernels": (
            str,
            "The ops' implementation: auto, reference, mosaic, triton or simulated; or OP=NAME,… "
            "by op, such as paged_attention=reference,rms_norm=xla.",
        ),
        "strict": (bool, "A failing request ends the command."),
        "compilation_cache_dir": (str, "Where compiled programs are kept; auto by default."),
        "trace": (str, "A file that gets a timeline of the host loop."),
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
                given = {name: _read(name, values.pop(name), *row) for name, row in rows.items()}
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
    annotation = str | None if kind is dict else kind | None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation
    )


def _read(name: str, value: Any, kind: Any, _: str) -> Any:
    """A value as it was given; a mapping was given as JSON."""
    if kind is not dict or value is None:
        return value
    try:
        read = json.loads(value)
    except ValueError as error:
        read = error
    if not isinstance(read, dict):
        raise ConfigError(
            f"--{name.replace('_', '-')} {value}: must be a JSON object ({read}); "
            'such as \'{"key": "value"}\''
        )
    return read


def make_sampling_params(given: Mapping[str, Any], **defaults: Any) -> SamplingParams:
    """The parameters of one request from the options that were set.

    Args:
        given: options that were set, by field name; they win over `defaults`.

    Raises:
        ConfigError: a value outside its rule.
    """
    return SamplingParams(**{**defaults, **sampling_fields(given)})


def sampling_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were set as fields of `SamplingParams`; raises as `make_sampling_params`."""
    forms = {"logit_bias": _as_biases(given["logit_bias"])} if "logit_bias" in given else {}
    return {**given, **forms}


def _as_biases(entries: Sequence[str]) -> dict[str, float]:
    """Example: ["5=-1", "7=2.5"] is {"5": -1.0, "7": 2.5}; SamplingParams checks the ids."""
    biases: dict[str, float] = {}
    for entry in entries:
        token, _, number = entry.partition("=")
        try:
            bias = float(number)
        except ValueError:
            bias = math.nan
        if math.isnan(bias) or token in biases:
            raise ConfigError(
                f"--logit-bias {entry}: must be ID=NUMBER, each id once; such as --logit-bias 50=-1"
            )
        biases[token] = bias
    return biases
