"""JOINT. The command line: parses, calls one function beside it, shows an error as one message.

Knows no model and imports no jax until a command needs it.
"""

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from jaxinfer.errors import JaxInferError
from jaxinfer.jobs import session
from jaxinfer.jobs.options import (
    CHAT_OPTIONS,
    ENGINE_OPTIONS,
    JOB_OPTIONS,
    JUDGING_OPTIONS,
    LINE_OPTIONS,
    RANKING_OPTIONS,
    RAY_OPTIONS,
    RECIPE_OPTIONS,
    SAMPLING_OPTIONS,
    make_sampling_params,
    sampling_fields,
    with_options,
)

CHAT_MAX_TOKENS = 512
# Slots where a command runs few requests: one number, so that they find each other's compiled
# programs in the cache (a single request runs in the narrowest decode program anyway).
FEW_SLOTS = 8
FAILURE_EXIT, ROW_ERRORS_EXIT = 1, 2
# Typer brings its own click in newer versions, and shows of its errors only this one.
UsageError: Any = typer.BadParameter.__base__

Model = Annotated[str, typer.Argument(help="Demo name, folder, .gguf file or hub id.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


class Commands(TyperGroup):
    """The group of commands: an error that jaxinfer raises on purpose ends as one message.

    A command line that is wrong ends with 1, as every failure does: 2 says that single requests
    failed and that the rest is there.
    """

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().make_context(*arguments, **options)
        except UsageError as error:
            error.exit_code = FAILURE_EXIT
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UsageError as error:
            error.exit_code = FAILURE_EXIT
            raise
        except JaxInferError as error:
            if ctx.params.get("traceback"):
                raise
            console = Console(stderr=True)
            console.print("error: ", style="bold red", end="")
            console.print(str(error), markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(FAILURE_EXIT) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run language models compiled by JAX/XLA.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from jaxinfer import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options_of_every_command(
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where an error was raised.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
@with_options(sampling=SAMPLING_OPTIONS, engine=ENGINE_OPTIONS)
def generate(
    model: Model,
    sampling: dict[str, Any],
    engine: dict[str, Any],
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt (may be repeated).")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="A file, one prompt a line.")] = None,
    as_json: AsJson = False,
) -> None:
    """Complete prompts. Exits with 2 where single requests ended with an error."""
    from jaxinfer.jobs.generate import gather_prompts, print_drafts, print_outputs

    prompts = gather_prompts(prompt or [], prompt_file)
    params = make_sampling_params(sampling)
    few = {"max_num_seqs": FEW_SLOTS} if len(prompts) <= FEW_SLOTS else {}
    with session.open_llm(model, **{**few, **engine}) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=len(prompts) > 1 and not as_json)
    num_errors = print_outputs(outputs, as_json=as_json, console=Console(highlight=False))
    print_drafts(outputs, Console(stderr=True, highlight=False))
    if num_errors:
        raise typer.Exit(ROW_ERRORS_EXIT)


@app.command()
@with_options(sampling=CHAT_OPTIONS, engine=ENGINE_OPTIONS)
def chat(
    model: Model,
    sampling: dict[str, Any],
    engine: dict[str, Any],
    message: Annotated[str | None, typer.Option(help="Answer this and end.")] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
) -> None:
    """Talk with a chat model; the answer is printed as it is generated."""
    from jaxinfer.jobs.chat import answer, converse, start_messages

    params = make_sampling_params(sampling, max_tokens=CHAT_MAX_TOKENS)
    console = Console(highlight=False)
    with session.open_llm(model, **{"max_num_seqs": FEW_SLOTS, **engine}) as llm:
        if message is not None:
            asked = [*start_messages(system), {"role": "user", "content": message}]
            answer(llm, asked, params, console)
        else:
            converse(llm, system, params, console, lambda: console.input("[bold]> [/bold]"))


@app.command()
@with_options(job=JOB_OPTIONS, ray=RAY_OPTIONS, sampling=LINE_OPTIONS, engine=ENGINE_OPTIONS)
def batch(
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT", help=".jsonl (.gz too) or .parquet file, a folder of them, or -."
        ),
    ],
    job: dict[str, Any],
    ray: dict[str, Any],
    sampling: dict[str, Any],
    engine: dict[str, Any],
    output: Annotated[Path, typer.Option("--output", "-o", help="File of results.")],
    model: Annotated[str, typer.Option(help="Demo name, folder, .gguf file or hub id.")],
) -> None:
    """Run a file of requests; started again, it goes on where it ended.

    Exits with 0 if every line is good, 2 if some failed, 1 if the job failed, 130 after Ctrl-C.
    """
    from jaxinfer.jobs.batch_command import run_and_report

    params = sampling_fields(sampling)
    code = run_and_report(source, output, model, ray=ray, params=params, engine=engine, **job)
    if code:
        raise typer.Exit(code)


@app.command()
@with_options(engine=ENGINE_OPTIONS)
def info(model: Model, engine: dict[str, Any], as_json: AsJson = False) -> None:
    """Show what a checkpoint holds and what would run, without loading its weights."""
    from jaxinfer.jobs.info import describe_model, print_info

    print_info(describe_model(model, **engine), as_json=as_json, console=Console(highlight=False))


@app.command()
@with_options(recipe=RECIPE_OPTIONS, ranking=RANKING_OPTIONS)
def quantize(
    model: Model,
    recipe: dict[str, Any],
    ranking: dict[str, Any],
    out: Annotated[Path | None, typer.Argument(help="Folder to make.")] = None,
    method: Annotated[str | None, typer.Option(help="rtn, gptq, awq or smoothquant.")] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="A text file; for all methods but rtn.")
    ] = None,
    symmetric: Annotated[
        bool | None,
        typer.Option("--symmetric/--asymmetric", help="Codes around zero.", show_default=False),
    ] = None,
    protect: Annotated[
        list[str] | None,
        typer.Option(
            "--protect",
            "--ignore",
            help="What stays float: a matrix or layer (may be repeated), or a number: as many of "
            "the most sensitive layers.",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a quantized checkpoint of a float model; started again, it goes on where it ended.

    With --sensitivity and without OUT it only ranks the layers.
    """
    from jaxinfer.jobs.quantize_command import quantize_and_report

    sign = {} if symmetric is None else {"symmetric": symmetric}
    quantize_and_report(
        model,
        out,
        method=method,
        recipe={**recipe, **sign},
        ranking=ranking,
        protect=protect or [],
        as_json=as_json,
        calibration=calibration,
        overwrite=overwrite,
    )


@app.command()
def convert(
    model: Model,
    out: Annotated[Path, typer.Argument(help="Folder to make.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint of any kind as a native one: what would run, and nothing is rounded."""
    from jaxinfer.jobs.quantize_command import convert_and_report

    convert_and_report(model, out, overwrite=overwrite, as_json=as_json)


@app.command()
@with_options(engine=ENGINE_OPTIONS)
def plan(
    model: Annotated[str, typer.Argument(help="config.json, its folder, .gguf file or demo name.")],
    engine: dict[str, Any],
    target: Annotated[str, typer.Option(help="The GPU: h200, h100, b200 or a100.")] = "h200",
    no_compile: Annotated[
        bool, typer.Option("--no-compile", help="Memory and the decode floor only.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Plan an engine for a GPU that is not here: memory, programs, kernels, the decode floor.

    Needs no weights, only config.json. Exits with 1 where it does not fit.
    """
    from jaxinfer.jobs.plan_command import plan_and_report

    compile_programs = not no_compile
    if not plan_and_report(
        model, target, engine, compile_programs=compile_programs, as_json=as_json
    ):
        raise typer.Exit(FAILURE_EXIT)


@app.command()
@with_options(engine=ENGINE_OPTIONS)
def bench(
    model: Model,
    engine: dict[str, Any],
    workload: Annotated[
        str, typer.Option(help="random, shared-prefix, mixed48, or a file of requests.")
    ] = "random",
    num_prompts: Annotated[
        int | None, typer.Option(help="Requests, of made-up workloads.", show_default="64")
    ] = None,
    input_len: Annotated[
        int | None, typer.Option(help="Mean tokens of a prompt there.", show_default="128")
    ] = None,
    output_len: Annotated[
        int | None, typer.Option(help="Mean tokens of an answer there.", show_default="64")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Requests at once.", show_default="all")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="The fastest counts.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Measure throughput and latency."""
    from jaxinfer.jobs.bench import print_bench, run_bench
    from jaxinfer.jobs.bench_workload import shape_of

    shape = shape_of(workload, num_prompts=num_prompts, input_len=input_len, output_len=output_len)
    with session.open_llm(model, **{**engine, "show_progress": not as_json}) as llm:
        result = run_bench(llm, workload, shape, concurrency=concurrency, rounds=rounds)
    print_bench({"model": model, **result}, as_json=as_json, console=Console(highlight=False))


@app.command("eval")
@with_options(judging=JUDGING_OPTIONS, engine=ENGINE_OPTIONS)
def evaluate(
    model: Model,
    judging: dict[str, Any],
    engine: dict[str, Any],
    against: Annotated[
        str | None, typer.Option(help="A model to be like; may be the same, which is then float.")
    ] = None,
    against_option: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE, an engine option of that one (may be repeated)."),
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="A text file.", show_default="chapters of Python's manual")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the figures into this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Judge a model on a text: perplexity, and its distance to another one (KL, best tokens).

    Engine options are the model's. The other one gets them too, but for quantization, weights,
    activations and kv_cache_dtype.
    """
    from jaxinfer.jobs.eval_command import evaluate_and_report

    evaluate_and_report(
        model,
        text=text,
        against_options=against_option or [],
        plot=plot,
        as_json=as_json,
        console=Console(highlight=False),
        against=against,
        engine=engine,
        **judging,
    )


@app.command()
@with_options(engine=ENGINE_OPTIONS)
def demo(
    engine: dict[str, Any],
    model: Annotated[str, typer.Option(help="A chat model.")] = "smollm2-135m",
) -> None:
    """Fetch the demo model and answer eight prompts through continuous batching."""
    from jaxinfer.jobs.demo import print_demo, run_demo

    console = Console(highlight=False)
    console.print(f"Loading {model} (fetched once, then cached)")
    with session.open_llm(model, **{"max_num_seqs": FEW_SLOTS, **engine}) as llm:
        run = run_demo(llm)
    print_demo(run, console)


def main() -> None:
    """Entry point of the `jaxinfer` console script."""
    # Without an NVIDIA device an installed CUDA plugin prints a traceback before jax takes the CPU.
    if not Path("/dev/nvidia0").exists():
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    app(prog_name="jaxinfer")


if __name__ == "__main__":
    main()
