"""What `jaxinfer info` says about a checkpoint, and that it loads none of its weights."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jaxinfer.jobs.cli import app
from jaxinfer.jobs.info import describe_model, format_value

DATA = Path(__file__).parents[1] / "data"
LLAMA = DATA / "float" / "llama"
Q4_GGUF = next((DATA / "quant" / "gguf_llama_q4_0").glob("*.gguf"))


def test_facts_of_a_folder() -> None:
    info = describe_model(str(LLAMA))
    config = json.loads((LLAMA / "config.json").read_text())
    assert info.model["architecture"] == "llama"
    assert info.model["layers"] == config["num_hidden_layers"]
    assert info.model["vocabulary"] == config["vocab_size"]
    assert info.checkpoint["format"] == "Hugging Face folder" and info.obstacle is None
    assert info.checkpoint["quantization"].startswith("none")
    assert info.checkpoint["file_bytes"] == (LLAMA / "model.safetensors").stat().st_size


def test_kv_bytes_a_token_count_keys_and_values_of_every_layer() -> None:
    info = describe_model(str(LLAMA), dtype="float32")
    model = info.model
    per_layer = 2 * model["kv_heads"] * model["head_size"] * 4
    assert info.plan["kv_bytes_a_token"] == model["layers"] * per_layer


def test_engine_options_change_the_plan() -> None:
    plan = describe_model(str(LLAMA), max_num_seqs=3, max_model_len=64, block_size=16).plan
    assert (plan["slots"], plan["max_model_len"], plan["page_tokens"]) == (3, 64, 16)


def test_what_does_not_fit_is_said_and_the_facts_stay() -> None:
    info = describe_model(str(LLAMA), gpu_memory_utilization=1e-12)
    assert info.obstacle is not None and "gpu_memory_utilization" in info.obstacle
    assert info.model["architecture"] == "llama" and "slots" not in info.plan


def test_tensors_of_another_model_are_an_obstacle(tmp_path: Path) -> None:
    shutil.copytree(LLAMA, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    config["intermediate_size"] *= 2
    path.write_text(json.dumps(config))
    info = describe_model(str(tmp_path / "model"))
    assert info.obstacle is not None and "mlp" in info.obstacle and "shape" in info.obstacle
    assert info.model["architecture"] == "llama" and "slots" not in info.plan


def test_json_of_a_quantized_file(runner: CliRunner) -> None:
    done = runner.invoke(app, ["info", str(Q4_GGUF), "--json"])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["checkpoint"]["format"] == "GGUF"
    assert "Q4_0" in facts["checkpoint"]["quantization"]
    assert facts["would_run"]["weight_dtype"] == "bfloat16"
    assert facts["would_run"]["attention"] == "row_groups"


def test_the_form_of_weights_and_why() -> None:
    """Bytes are those of the form that would run."""
    decoded = describe_model(str(Q4_GGUF)).plan
    assert decoded["weights"].startswith("dequantized: a CPU is fastest")
    packed = describe_model(str(Q4_GGUF), weights="packed").plan
    assert packed["weights"] == "packed: weights='packed' was asked for"
    assert packed["packed_matrices"] == 13
    assert packed["weight_bytes"] < 0.75 * decoded["weight_bytes"]
    plain = describe_model(str(LLAMA), weights="packed").plan
    assert plain["weights"] == "dequantized: there is nothing that could stay packed"
    rounded = describe_model(
        str(LLAMA), weights="packed", quantization={"method": "int4", "float_ends": 0}
    ).plan
    assert rounded["packed_matrices"] == 14


def test_what_drafts_is_in_the_bytes() -> None:
    """A draft model has weights and pages of its own; a model's first layers have neither."""
    plain = describe_model(str(LLAMA)).plan
    twin = describe_model(str(LLAMA), speculative_config={"model": str(LLAMA)}).plan
    assert twin["weight_bytes"] == 2 * plain["weight_bytes"]
    assert twin["kv_bytes_a_token"] == 2 * plain["kv_bytes_a_token"]
    shared = describe_model(str(LLAMA), speculative_config={"method": "self", "num_layers": 1}).plan
    assert shared["weight_bytes"] == plain["weight_bytes"]
    assert shared["kv_bytes_a_token"] == plain["kv_bytes_a_token"]


def test_tables(runner: CliRunner) -> None:
    done = runner.invoke(app, ["info", str(Q4_GGUF)])
    assert done.exit_code == 0, done.output
    for text in ("Q4_0", "would run", "kv bytes a token", "page tokens"):
        assert text in done.stdout


def test_a_missing_path_is_one_message(runner: CliRunner) -> None:
    done = runner.invoke(app, ["info", "no-such-model"])
    assert done.exit_code == 1
    assert "'no-such-model' was not found" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("file_bytes", 98362432, "98,362,432 (93.8 MiB)"),
        ("kv_bytes_a_token", 512, "512 (512 B)"),
        ("weight_bytes", 5 * 2**30, "5,368,709,120 (5 GiB)"),
        ("layers", 30, "30"),
        ("tied_embeddings", True, "yes"),
    ],
)
def test_values_for_people(name: str, value: object, shown: str) -> None:
    assert format_value(name, value) == shown
