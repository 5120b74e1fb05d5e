"""The table of memory plans: not stale, and still what a plan says."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.jobs.plan import plan_target
from jaxinfer.jobs.plan_process import plan_apart
from tests.repository.test_bench import load_script
from tests.support.aot import needs_aot

BENCH = load_script("memory_plans")
RECORDS: dict[str, dict[str, Any]] = {one["name"]: one for one in BENCH.read_records()}
# What needs no compiler: it changes when how memory is planned does.
BY_ARITHMETIC = (
    *("weights_bytes", "read_weights_bytes", "cache_bytes", "cached_tokens", "state_bytes"),
    "weights",
)
CHOICES = ("num_slots", "max_model_len", "page_tokens", "attention_kernel", "expert_kernel")


def test_the_page_is_not_stale() -> None:
    assert Path(BENCH.PAGE).read_text(encoding="utf-8") == BENCH.render(list(RECORDS.values()))


def test_every_record_fits() -> None:
    for name, record in RECORDS.items():
        assert (record["plan"]["model"], record["options"]) == BENCH.CASES[name]
        assert record["plan"]["fits"], name
        assert not any(one["spill_bytes"] for one in record["plan"]["kernels"]), name


@pytest.mark.parametrize("name", RECORDS)
def test_records_are_what_arithmetic_gives(name: str) -> None:
    model, options = BENCH.CASES[name]
    settings = {**BENCH.SETTINGS, **options}
    plan = plan_target(BENCH.CONFIGS / model, BENCH.TARGET, compile_programs=False, **settings)
    found, recorded = json.loads(json.dumps(plan.as_json())), RECORDS[name]["plan"]
    for key in BY_ARITHMETIC:
        assert found[key] == recorded[key], key
    for key in CHOICES:
        assert found["settings"][key] == recorded["settings"][key], key
    for load, before in zip(found["decode"], recorded["decode"], strict=True):
        assert load["needed_bytes"] == before["needed_bytes"]


def test_heads_that_no_kernel_takes_run_on_the_reference() -> None:
    plan = RECORDS["Phi-3-mini"]["plan"]
    assert plan["settings"]["attention_kernel"] == "reference"
    assert "heads have 96 values" in plan["fallbacks"]["attention"]


def test_only_what_has_no_record_is_planned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(BENCH, "RECORDS", tmp_path)
    assert BENCH.wanted([]) == list(BENCH.CASES)
    BENCH.record_of("Qwen3-32B int4").write_text("{}")
    assert BENCH.wanted([]) == [name for name in BENCH.CASES if name != "Qwen3-32B int4"]
    assert BENCH.wanted(["Qwen3-32B int4"]) == ["Qwen3-32B int4"]
    with pytest.raises(SystemExit, match="no such case: GPT-5"):
        BENCH.wanted(["GPT-5"])


@needs_aot
@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDS)
def test_every_model_compiles(name: str) -> None:
    """And needs no more than its record says."""
    (model, options), recorded = BENCH.CASES[name], RECORDS[name]
    settings = {**BENCH.SETTINGS, **options}
    plan = plan_apart(str(BENCH.CONFIGS / model), BENCH.TARGET, **settings)
    assert plan.spare_bytes >= 0 and plan.temporary_bytes is not None
    assert not any(one.spill_bytes for one in plan.kernels)
    assert plan.temporary_bytes <= 1.1 * recorded["plan"]["temporary_bytes"]
    assert all(
        one.aliased_bytes >= plan.cache_bytes for one in plan.programs if "decode" in one.name
    )
