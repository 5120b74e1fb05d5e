"""A plan for a GPU that is not here, from config.json alone."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from jaxinfer.config.engine_config import engine_config
from jaxinfer.config.geometry import Geometry
from jaxinfer.config.targets import gpu_target
from jaxinfer.errors import CapacityError, ConfigError, JaxInferError, UnsupportedError
from jaxinfer.jobs import plan_process
from jaxinfer.jobs.cli import app
from jaxinfer.jobs.plan import count_kernels, decide_engine, plan_target
from jaxinfer.jobs.plan_process import plan_apart
from jaxinfer.jobs.plan_records import TargetPlan, plan_from_json
from jaxinfer.jobs.plan_report import print_plan
from jaxinfer.runner import target as target_module
from tests.support.aot import needs_aot

CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
}
SMALL: dict[str, Any] = {"max_num_seqs": 8, "max_model_len": 2048}


def write_config(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(CONFIG | changes), encoding="utf-8")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_config(tmp_path)


def uncompiled(folder: Path, **options: Any) -> TargetPlan:
    return plan_target(folder, "h200", compile_programs=False, **{**SMALL, **options})


def shown(plan: TargetPlan) -> str:
    console = Console(width=100, record=True, file=open("/dev/null", "w", encoding="utf-8"))
    with console.file:
        print_plan(plan, as_json=False, console=console)
    return console.export_text()


def geometry_for(folder: Path, target: str, **options: Any) -> Geometry:
    return decide_engine(folder, engine_config(**options), gpu_target(target)).geometry


def test_kernels_are_chosen_for_the_target_and_not_for_this_machine(folder: Path) -> None:
    found = geometry_for(folder, "h200")
    assert (found.attention_kernel, found.norm_kernel) == ("mosaic", "xla")
    assert geometry_for(folder, "a100").attention_kernel == "reference"
    wide = geometry_for(folder, "h200", dtype="float32")
    assert wide.attention_kernel == "reference"
    with pytest.raises(ConfigError, match="kernels='mosaic'.*Hopper.*has 8.0"):
        geometry_for(folder, "a100", kernels="mosaic")
    asked = geometry_for(folder, "h200", kernels="paged_attention=reference")
    assert (asked.attention_kernel, asked.write_kernel) == ("reference", "mosaic")


def test_what_does_without_a_kernel_says_why(tmp_path: Path) -> None:
    assert not uncompiled(write_config(tmp_path)).fallbacks
    sizes = {"hidden_size": 96, "head_dim": 96, "num_attention_heads": 1, "num_key_value_heads": 1}
    experts = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    plan = uncompiled(write_config(tmp_path, **sizes, **experts))
    others = {"rotation and write of keys", "plain matrices"}
    assert set(plan.fallbacks) == {"attention", "experts"} | others
    assert plan.fallbacks["attention"] == "heads have 96 values; it takes 64, 128, 256"
    text = " ".join(shown(plan).split())
    assert "No kernel for experts: matrices are [512, 96]" in text


def test_fp8_without_a_kernel_is_planned_as_floats_where_they_fit(tmp_path: Path) -> None:
    folder, ask = write_config(tmp_path), {"quantization": {"method": "fp8", "float_ends": 0}}
    assert uncompiled(folder, **ask).weights == "bfloat16"
    plan = uncompiled(folder, **ask, weights="packed")
    assert "matrices packed" in plan.weights
    assert "8 fp8: codes are float8_e4m3fn" in plan.fallbacks["packed matrices"]
    text = " ".join(shown(plan).split())
    assert "No kernel for packed matrices: 8 fp8: codes are" in text


def test_experts_are_rounded_without_their_weights(tmp_path: Path) -> None:
    """Each of a layer's stacks is one packed record of all its experts."""
    experts = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    folder = write_config(tmp_path, **experts)
    ask = {"method": "int4", "float_ends": 0}
    engine = decide_engine(folder, engine_config(quantization=ask, **SMALL), gpu_target("h200"))
    gate = engine.params["layers"][0]["experts"]["gate"]
    assert gate.value.codes.shape == (4, 512, 256 // 2)
    floats = decide_engine(folder, engine_config(**SMALL), gpu_target("h200"))
    assert floats.params["layers"][0]["experts"]["gate"].value.shape == (4, 512, 256)


def test_what_cannot_be_is_refused_before_compiling(folder: Path) -> None:
    with pytest.raises(ConfigError, match="target='h20' must be one of"):
        plan_target(folder, "h20")
    with pytest.raises(CapacityError):
        uncompiled(folder, gpu_memory_utilization=1e-6)


def test_a_missing_compiler_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_module, "missing_compiler", lambda: "it is not installed")
    with pytest.raises(UnsupportedError, match=r"'h200': it is not.*pip install 'jaxinfer\[aot\]'"):
        plan_target(folder, "h200")
    assert not uncompiled(folder).programs  # arithmetic needs no compiler


def test_memory_and_the_floor_by_hand(folder: Path) -> None:
    plan = uncompiled(folder)
    matrices = 2 * (256 * 128 * (4 + 2 + 2 + 4) + 3 * 256 * 512)
    norms = (2 * 2 + 1) * 256 * 4
    assert plan.weights_bytes == (matrices + 2 * 1024 * 256) * 2 + norms
    assert plan.read_weights_bytes == plan.weights_bytes - 1024 * 256 * 2
    pages = 8 * 2048 // 128 + 1
    assert plan.cache_bytes == pages * 128 * 2 * 2 * 2 * 128 * 2
    assert [one.context_tokens for one in plan.decode] == [128, 512, 2048]
    last = plan.decode[-1]
    live = 8 * 2048 * 2 * 2 * 2 * 128 * 2
    assert last.needed_bytes == plan.read_weights_bytes + live + 8 * 1024 * 4
    assert last.floor_s == last.needed_bytes / 4.8e12
    assert last.tokens_per_s == 8 / last.floor_s and last.moved_bytes is None
    assert plan.spare_bytes > 2**36 and plan.temporary_bytes is None


def test_a_pool_that_holds_fewer_requests_than_slots(folder: Path) -> None:
    plan = uncompiled(folder, num_gpu_blocks_override=32)
    assert [one.num_rows for one in plan.decode] == [8, 8, 2]


def test_rounded_weights_take_fewer_bytes_without_any_file(folder: Path) -> None:
    rounded = uncompiled(folder, quantization={"method": "int4", "float_ends": 0})
    assert rounded.weights_bytes < 0.6 * uncompiled(folder).weights_bytes
    assert rounded.weights == "14 matrices packed"


def test_config_json_itself_may_be_named(folder: Path) -> None:
    by_file = plan_target(folder / "config.json", "h200", compile_programs=False, **SMALL)
    assert by_file.weights_bytes == uncompiled(folder).weights_bytes


def test_a_quantized_config_without_its_files_is_refused(tmp_path: Path) -> None:
    write_config(tmp_path, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(UnsupportedError, match="has quantization_config.*put its weights beside"):
        uncompiled(tmp_path)


def test_windows_cap_what_is_live(tmp_path: Path) -> None:
    gemma = {"model_type": "gemma3_text", "sliding_window": 64, "num_hidden_layers": 6}
    plan = uncompiled(write_config(tmp_path, **gemma))
    token = 8 * 2 * 2 * 128 * 2  # of one layer, all rows
    short, long = plan.decode[0], plan.decode[-1]
    assert long.needed_bytes - short.needed_bytes == (2048 - 128) * token


def test_the_plan_survives_the_way_between_processes(folder: Path) -> None:
    plan = uncompiled(folder)
    again = plan_from_json(json.loads(json.dumps(plan.as_json())))
    assert json.dumps(again.as_json()) == json.dumps(plan.as_json())
    assert again.decode == plan.decode and again.spare_bytes == plan.spare_bytes


def test_tables_say_whether_it_fits(folder: Path) -> None:
    plan = uncompiled(folder)
    text = shown(plan)
    assert "fits, " in text and "spare" in text and "Nothing was compiled" in text
    assert len(text.splitlines()) < 25
    full = dataclasses.replace(plan, cache_bytes=plan.memory_bytes)
    assert full.as_json()["fits"] is False
    assert "does not fit, " in shown(full) and "missing" in shown(full)


def test_launches_are_counted_without_branches() -> None:
    thunks = """000: kCommandBuffer [source | next=3]
    001: kCustomKernel [source] a
    002: kCustomCall [source] b
095: kConditional [prev=0]
  false_branch:
    000: kCommandBuffer [source]
        003: kCustomKernel c
  true_branch:
    004: kCopy
005: kCustomKernel [prev=095] d
"""
    assert count_kernels(thunks) == (3, 2)
    assert count_kernels("") == (0, 0)


def test_the_command_plans_in_a_process_of_its_own(folder: Path) -> None:
    """Without compiling; one start of a child is what it costs."""
    options = ["--no-compile", "--json", "--max-num-seqs", "8", "--max-model-len", "2048"]
    options += ["--kernels", "paged_attention=reference"]
    done = CliRunner().invoke(app, ["plan", str(folder), *options])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    planned = uncompiled(folder, kernels={"paged_attention": "reference"})
    assert found == json.loads(json.dumps(planned.as_json()))
    assert found["settings"]["attention_kernel"] == "reference"


def test_errors_of_the_child_are_errors_of_the_command(folder: Path) -> None:
    with pytest.raises(ConfigError, match="target='h20' must be one of"):
        plan_apart(str(folder), "h20")


def test_a_child_that_dies_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_process, "_CHILD", "import sys; sys.exit('no luck')")
    with pytest.raises(JaxInferError, match="exit code 1 and no plan; it said:\nno luck"):
        plan_apart(str(folder), "h200")


@needs_aot
@pytest.mark.slow
def test_every_program_is_compiled_for_the_target(folder: Path) -> None:
    steps = []
    plan = plan_target(
        folder,
        "h200",
        report=lambda done, total, name: steps.append((done, total)),
        max_num_batched_tokens=128,
        quantization={"method": "int4", "float_ends": 0},
        **SMALL,
    )
    assert steps == [(done, len(plan.programs)) for done in range(len(plan.programs) + 1)]
    names = {one.name.split()[0] for one in plan.programs}
    assert {"decode_step", "prefill_step", "head_step", "seat_step", "copy_step"} <= names
    for one in plan.programs:
        if one.name.startswith(("decode", "prefill")):
            assert one.aliased_bytes == plan.cache_bytes + plan.state_bytes
            assert 0 < one.kernels_a_layer <= 10 and 0 <= one.recorded_kernels <= one.kernels
            assert one.page_reads == {"0": 2 * 2 * 128 * 2, "1": 2 * 2 * 128 * 2}
    assert {one.name for one in plan.kernels} == {
        "add_rms_norm_kernel",
        "decode_attention",
        "merge_splits",
        "prefill_attention",
        "quant_matmul",
        "rotate_write",
    }
    assert not [one for one in plan.kernels if one.spill_bytes]
    last = plan.decode[-1]
    assert last.moved_bytes is not None and last.needed_bytes < last.moved_bytes
    text = shown(plan)
    assert "quant_matmul" in text and "decode_step W=8" in text


def test_what_drafts_is_planned_too(folder: Path, tmp_path: Path) -> None:
    """Weights and pages of a draft model; what the model shares with itself counts once."""
    small = tmp_path / "small"
    small.mkdir()
    write_config(small, hidden_size=128, num_hidden_layers=1)
    plain = uncompiled(folder)
    ngram, own, rounded, other = (
        uncompiled(folder, speculative_config={"num_speculative_tokens": 4, **one})
        for one in (
            {"method": "ngram"},
            {"method": "self", "num_layers": 1},
            {"method": "self", "quantization": {"method": "int4", "float_ends": 0}},
            {"model": str(small)},
        )
    )
    assert plain.drafts is None
    assert own.weights_bytes == ngram.weights_bytes == plain.weights_bytes
    assert plain.weights_bytes < rounded.weights_bytes < 1.4 * plain.weights_bytes
    assert plain.weights_bytes < other.weights_bytes
    per_page = [one.cache_bytes / one.settings["num_pages"][0] for one in (plain, own, other)]
    assert per_page[0] == per_page[1] == pytest.approx(per_page[2] / 1.5)
    for one, least, most in ((ngram, 0.0, 0.0), (own, 0.5, 0.99), (other, 0.01, 0.9)):
        assert one.drafts is not None and one.drafts.break_even_acceptance is not None
        assert least <= one.drafts.break_even_acceptance <= most, one.drafts
        assert plan_from_json(json.loads(json.dumps(one.as_json()))).drafts == one.drafts
        assert "Drafts, 4 at once, pay where" in shown(one)


@needs_aot
@pytest.mark.slow
def test_draft_and_verify_steps_are_compiled_for_the_target(folder: Path) -> None:
    speculative = {"method": "self", "num_layers": 1, "num_speculative_tokens": 3}
    plan = plan_apart(str(folder), "h200", **SMALL, speculative_config=speculative)
    names = {one.name.partition(" ")[0] for one in plan.programs}
    assert {"decode_step", "draft_step", "verify_step"} <= names
    assert plan.drafts is not None and 0 < plan.drafts.draft_bytes < plan.drafts.verify_bytes
