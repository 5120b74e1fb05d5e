"""What quantization costs: bits, bytes, perplexity, KL and top-1 agreement by method and group.

`python bench/quantization.py --folder FOLDER` makes what is missing, a row at a time, and prints
the table; run again, it goes on where it was interrupted. `--model` and `--only NAME …` choose.

Makers see the calibration part of the default text, judges the held-out part in float32. The
demo models are dequantized 4-bit files themselves (SmolLM2 is Q4_1: rounding to nearest with groups
of 32 and a float offset would give it back exactly), so methods are judged at symmetric int4 with
groups of 128, 64 where a width asks for it.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jaxinfer.checkpoint.checkpoint import open_checkpoint
from jaxinfer.checkpoint.storage import decide_storage
from jaxinfer.engine.checkpoint_text import tokenizer_of
from jaxinfer.quantize.evaluate import Reference, judge_rows, keep_reference
from jaxinfer.quantize.forced_pass import open_judged
from jaxinfer.quantize.make import quantize_model
from jaxinfer.quantize.passages import Passages, cut_passages
from jaxinfer.quantize.quality import qualities
from jaxinfer.quantize.texts import calibration_text, held_out_text

sys.path.insert(0, str(Path(__file__).parent))
from variants import device_facts, markdown_table  # noqa: E402  (a script's neighbour)

MODELS = ("smollm2-135m", "gemma3-270m")
CONTEXT, JUDGED, NUM_PASSAGES = 512, 256, 8
# Of the text that makers see; rows stay under a few minutes on two cores.
CALIBRATION = {"calibration_tokens": 8192}
# float32 throughout, so that nothing but the codes is judged.
ENGINE: Mapping[str, Any] = {"dtype": "float32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """How a model is made. method: of `jaxinfer quantize`; None is the float model. options: of
    that method. engine: fields of `EngineConfig` with which it is judged."""

    name: str
    method: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)


FLOAT = "float"
W8A8 = {"weights": "packed", "activations": "checkpoint"}


def _int4(group: int | str) -> list[Row]:
    label = "128/64" if group == "auto" else str(group)
    return [
        Row(
            name=f"int4 {method}, groups of {label}",
            method=method,
            options={"bits": 4, "group_size": group},
        )
        for method in ("rtn", "gptq", "awq")
    ]


ROWS = [
    Row(name=FLOAT),
    Row(name="bfloat16", engine={"dtype": "bfloat16"}),
    Row(name="int8 rtn, a scale a row", method="rtn", options={"bits": 8, "group_size": -1}),
    Row(name="int8 smoothquant, inputs too", method="smoothquant", engine=W8A8),
    *_int4("auto"),
    *_int4(32),
]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    names = [row.name for row in ROWS]
    parser.add_argument("--folder", type=Path, required=True, help="holds models, logits, figures")
    parser.add_argument("--model", nargs="+", default=list(MODELS), help="demo names or folders")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help=f"rows with that in their name, of: {names}"
    )
    parser.add_argument("--table", action="store_true", help="only print what is there")
    parser.add_argument("--keep", action="store_true", help="keep the quantized models")
    return parser.parse_args(arguments)


class Bench:
    """The rows of one model, each a JSON file in `folder`."""

    def __init__(self, folder: Path, model: str) -> None:
        self.folder, self.model = folder / Path(model).name, model
        self.folder.mkdir(parents=True, exist_ok=True)

    def path(self, row: Row) -> Path:
        """The figures of a row."""
        return self.folder / f"{row.name.replace('/', '-').replace(',', '').replace(' ', '_')}.json"

    def run(self, row: Row) -> None:
        """Makes, judges and writes a row that is not there."""
        if self.path(row).is_file():
            return
        start = time.perf_counter()
        source = self.model if row.method is None else str(self.make(row))
        made_s = time.perf_counter() - start
        figures = self.judge(row, source) | {"made_seconds": round(made_s, 1)}
        figures["seconds"] = round(time.perf_counter() - start, 1)
        self.path(row).write_text(json.dumps(figures | device_facts()))
        print(json.dumps({"model": self.model, "row": row.name, **figures}), flush=True)

    def made(self, row: Row) -> Path:
        """The folder of the row's model."""
        return self.path(row).with_suffix("")

    def make(self, row: Row) -> Path:
        """The row's quantized model; what an interrupted run made of it is taken over."""
        assert row.method is not None
        text = self.folder / "calibration.txt"
        text.write_text(calibration_text(), encoding="utf-8")
        calibration = None if row.method == "rtn" else text
        out = self.made(row)
        if not out.is_dir():
            seen = {} if calibration is None else {"calibration": calibration, **CALIBRATION}
            quantize_model(self.model, out, method=row.method, **seen, **row.options)
        return out

    def judge(self, row: Row, source: str) -> dict[str, Any]:
        """Perplexity and distance to the float model, with bits and bytes."""
        engine = {**ENGINE, **row.engine}
        passages = self.passages()
        with open_judged(source, passages, engine) as llm:
            if row.name == FLOAT:
                reference = keep_reference(llm, passages, row.name, self.folder / "logits")
                np.save(self.folder / "nats.npy", reference.nats)
            rows = judge_rows(llm, passages, row.name, self.reference(passages, llm))
        overall = qualities(rows, passages, None)[1]
        assert overall.against is not None
        return {
            **stored(source),
            "num_tokens": overall.num_tokens,
            "perplexity": overall.perplexity,
            "float_perplexity": overall.against.perplexity,
            "kl_mean": overall.against.kl_mean,
            "kl_p99": overall.against.kl_p99,
            "top1_agreement": overall.against.top1_agreement,
        }

    def reference(self, passages: Passages, llm: Any) -> Reference:
        """What the float model gave."""
        logits = self.folder / "logits"
        if not logits.is_file():
            raise SystemExit(f"{logits} is not there: run with --only {FLOAT} first")
        shape = (passages.num_rows, llm.model_config.vocab_size)
        nats = np.load(self.folder / "nats.npy")
        return Reference(logits=np.memmap(logits, np.float32, "r", shape=shape), nats=nats)

    def passages(self) -> Passages:
        """The same for all rows: of the float model's tokenizer."""
        tokenizer = tokenizer_of(open_checkpoint(self.model))
        assert tokenizer is not None
        return cut_passages(
            tokenizer,
            held_out_text(),
            contexts=(CONTEXT,),
            judged=JUDGED,
            num_passages=NUM_PASSAGES,
        )


def stored(source: str) -> dict[str, Any]:
    """Bits of an element of the matrices that are quantized, and bytes of all parameters, as they
    are kept packed (floats as bfloat16)."""
    checkpoint = open_checkpoint(source)
    if checkpoint.kind == "gguf":  # it stands for the float model here
        return {"bits": 16.0, "bytes": 2 * checkpoint.num_parameters}
    share = decide_storage(checkpoint, weights="packed", quantization=None, platform="gpu").share
    floats = checkpoint.num_parameters - share.num_elements
    bits = 8 * share.num_bytes / share.num_elements if share.num_elements else 16.0
    return {"bits": round(bits, 3), "bytes": 2 * floats + share.num_bytes}


def table(folder: Path, models: Sequence[str]) -> str:
    """The rows that are there, as Markdown."""
    lines = []
    for model in models:
        bench = Bench(folder, model)
        for row in ROWS:
            if bench.path(row).is_file():
                lines.append((model, *cells(row, json.loads(bench.path(row).read_text()))))
    heads = ("model", "weights", "bits", "MB", "perplexity", "KL mean", "KL p99", "same best token")
    return markdown_table(heads, lines)


def cells(row: Row, figures: Mapping[str, Any]) -> tuple[str, ...]:
    """Example: int4 rtn …, 4.13, 95.2, 21.345 (+3.1 %), 4.1e-02, 5.0e-01, 88.1 %."""
    lost = figures["perplexity"] / figures["float_perplexity"] - 1
    shown = f"{figures['perplexity']:.3f}" + ("" if row.name == FLOAT else f" ({lost:+.2%})")
    return (
        row.name,
        f"{figures['bits']:.2f}",
        f"{figures['bytes'] / 1e6:.1f}",
        shown,
        *(("–",) * 3 if row.name == FLOAT else distances(figures)),
    )


def distances(figures: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        f"{figures['kl_mean']:.2e}",
        f"{figures['kl_p99']:.2e}",
        f"{figures['top1_agreement']:.2%}",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    wanted = [
        row for row in ROWS if not options.only or any(name in row.name for name in options.only)
    ]
    for model in options.model if not options.table else ():
        bench = Bench(options.folder, model)
        for row in wanted:
            bench.run(row)
            if not options.keep:
                shutil.rmtree(bench.made(row), ignore_errors=True)
    print(table(options.folder, options.model))


if __name__ == "__main__":
    main()
