"""Kernels are decided for the model and for what drafts for it, before anything is compiled."""

from dataclasses import fields
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.config.engine_config import EngineConfig
from jaxinfer.config.expert_config import ExpertConfig
from jaxinfer.config.geometry import Device, DraftNeeds, Geometry
from jaxinfer.config.kernel_choice import OPS
from jaxinfer.config.model_config import ModelConfig
from jaxinfer.engine.build import decide_geometry, float_room
from jaxinfer.engine.kernels import kernel_fallbacks, kernels_of_weights
from jaxinfer.errors import ConfigError
from jaxinfer.layers.weights import QuantWeight, Weight
from pallas_kernels.dispatch import HOPPER, Platform
from tests.support.records import model_config

GPU = Device(platform="gpu", free_bytes=1 << 34)
CPU = Device(platform="cpu", free_bytes=1 << 34)


def place_of(kernels: Any) -> tuple[Device, Platform]:
    """Where such kernels run: a simulation is for a CPU."""
    return (CPU, Platform(kind="cpu")) if "simulated" in str(kernels) else (GPU, HOPPER)


def sized(hidden: int, head: int) -> ModelConfig:
    return model_config(hidden_size=hidden, head_dim=head)


def decided(draft: ModelConfig | None, kernels: Any = "auto") -> Geometry:
    ask = EngineConfig(kernels=kernels)
    needs = DraftNeeds(model=draft)
    return decide_geometry(ask, sized(256, 64), GPU, platform=HOPPER, drafts=needs)


def test_what_the_draft_model_cannot_take_neither_takes() -> None:
    alone = decided(None)
    assert alone.attention_kernel == "mosaic"
    assert decided(sized(256, 128)).attention_kernel == "mosaic"
    assert decided(sized(256, 80)).attention_kernel == "reference"
    assert decided(sized(256, 64)).norm_kernel == alone.norm_kernel


def test_a_named_kernel_that_the_draft_model_cannot_take_is_refused() -> None:
    with pytest.raises(ConfigError, match="kernels='mosaic'.*80"):
        decided(sized(256, 80), "mosaic")


def test_a_norm_that_only_one_of_them_takes_is_left_to_xla() -> None:
    """Rows of the draft model have 192 values; the kernel takes multiples of 128."""
    alone, both = decided(None), decided(sized(192, 64))
    assert alone.residual_kernel == "mosaic"
    assert both.residual_kernel == both.norm_kernel == "xla"


def fallbacks(model: ModelConfig, params: Any = None, **options: Any) -> dict[str, str]:
    draft, (device, platform) = options.pop("draft", None), place_of(options.get("kernels"))
    ask = EngineConfig(**options)
    needs = DraftNeeds(model=draft)
    planned = decide_geometry(ask, model, device, platform=platform, drafts=needs)
    return kernel_fallbacks(planned, params, ask, (model, draft), platform)


FITS: dict[str, Any] = {"hidden_size": 256, "head_dim": 64, "num_heads": 4, "num_kv_heads": 2}


def test_what_does_without_a_kernel_is_said_of_the_draft_model_too() -> None:
    model = model_config(**FITS)
    assert fallbacks(model) == {}
    found = fallbacks(model, draft=model_config(**{**FITS, "head_dim": 80}))
    assert "heads have 80 values" in found["attention"]
    assert "heads have 80 values" in found["rotation and write of keys"]


@pytest.mark.parametrize("kernels", ["auto", "mosaic", "simulated"])
def test_what_falls_back_though_it_is_asked_for_is_said(kernels: str) -> None:
    """Writes and products that XLA does as well."""
    one_head = model_config(**{**FITS, "num_kv_heads": 1, "num_heads": 7})
    found = fallbacks(one_head, kernels=kernels)
    assert list(found) == ["rotation and write of keys"]
    found = fallbacks(model_config(**FITS), kernels=kernels, kv_cache_dtype="int8")
    assert found == {"rotation and write of keys": "pages hold int8; it writes bfloat16"}
    params = [Weight(value=jax.ShapeDtypeStruct((100, 256), jnp.bfloat16))] * 3  # type: ignore
    found = fallbacks(model_config(**FITS), params, kernels=kernels)
    assert found["plain matrices"].startswith("3 bfloat16: the matrix is 100 by 256")
    assert fallbacks(one_head, params, kernels="reference") == {}


def test_packed_matrices_without_a_kernel_are_counted() -> None:
    record = QuantWeight(
        codes=jax.ShapeDtypeStruct((128, 256), jnp.float8_e4m3fn),  # type: ignore[arg-type]
        scales=jax.ShapeDtypeStruct((1, 128), jnp.float32),  # type: ignore[arg-type]
        bits=8,
        group=256,
        kernel="reference",
    )
    odd = record.replace(codes=jax.ShapeDtypeStruct((100, 256), jnp.int8))  # type: ignore
    params = {"layers": [Weight(value=record)] * 16, "head": Weight(value=odd)}
    reasons = fallbacks(model_config(**FITS), params)["packed matrices"].split(" | ")
    assert sorted(one.split(":")[0] for one in reasons) == ["1 int8", "16 fp8"]
    assert any("float8_e4m3fn" in one for one in reasons)


def test_fp8_may_be_decoded_into_half_of_a_gpu() -> None:
    device = Device(platform="gpu", free_bytes=1000)
    room = float_room(EngineConfig(gpu_memory_utilization=0.5), device, HOPPER)
    assert room is not None and room.max_bytes == 250
    asked: list[dict[str, Any]] = [
        {"kernels": "reference"},
        {"dtype": "float32"},
        {"num_gpu_blocks_override": 8},
    ]
    for options in asked:
        assert float_room(EngineConfig(**options), device, HOPPER) is None
    assert float_room(EngineConfig(), device, Platform(kind="cpu")) is None


def with_experts(mlp_size: int) -> ModelConfig:
    experts = ExpertConfig(
        num_experts=4, num_chosen=2, mlp_size=mlp_size, renormalizes=True, is_sparse=(True, True)
    )
    return model_config(architecture="mixtral", hidden_size=256, head_dim=64, experts=experts)


def of_experts(mlp_size: int, kernels: Any = "auto", platform: Platform = HOPPER) -> str:
    ask, device = EngineConfig(kernels=kernels), GPU if platform.kind == "gpu" else CPU
    return decide_geometry(ask, with_experts(mlp_size), device, platform=platform).expert_kernel


def test_experts_run_on_the_kernel_that_takes_them() -> None:
    assert of_experts(128) == "mosaic"
    assert of_experts(80) == "reference"
    with pytest.raises(ConfigError, match="kernels='mosaic'.*grouped_matmul.*80"):
        of_experts(80, "mosaic")
    on_cpu = Platform(kind="cpu")
    assert of_experts(128, platform=on_cpu) == "tiles"
    assert of_experts(128, "simulated", on_cpu) == "simulated"


def olmo2(**changes: Any) -> ModelConfig:
    return model_config(architecture="olmo2", hidden_size=256, qk_norm=True, **changes)


def test_norms_are_chosen_by_the_rows_that_are_normed() -> None:
    """OLMo 2 norms all heads of a token together: [H·D] and [K·D]."""
    ask = EngineConfig(kernels="mosaic")
    fits = olmo2(num_heads=4, num_kv_heads=2, head_dim=64)
    assert decide_geometry(ask, fits, GPU, platform=HOPPER).norm_kernel == "mosaic"
    narrow = olmo2(num_heads=4, num_kv_heads=1, head_dim=64)
    with pytest.raises(ConfigError, match="kernels='mosaic'.*rms_norm.*64"):
        decide_geometry(ask, narrow, GPU, platform=HOPPER)


def qwen3(**changes: Any) -> ModelConfig:
    """Heads of 64 are normed, each by itself; the norm's kernel takes multiples of 128."""
    return model_config(architecture="qwen3", qk_norm=True, **(FITS | changes))


@pytest.mark.parametrize("kernels", ["mosaic", "simulated", {"rms_norm": "mosaic"}])
def test_heads_that_are_normed_as_they_are_written_need_no_kernel_of_the_norm(kernels: Any) -> None:
    ask = EngineConfig(kernels=kernels)
    device, platform = place_of(kernels)
    found = decide_geometry(ask, qwen3(), device, platform=platform)
    assert found.norm_kernel == found.residual_kernel == ask.asked_of("rms_norm")
    assert found.write_kernel in ("mosaic", "simulated")


@pytest.mark.parametrize(
    "options",
    [
        {"kv_cache_dtype": "int8"},
        {"kernels": {"rotate_write": "reference", "rms_norm": "mosaic"}},
    ],
)
def test_heads_that_the_norm_is_called_with_must_fit_it(options: dict[str, Any]) -> None:
    """Nothing writes int8 pages at once, so that heads are normed apart."""
    ask = EngineConfig(**{"kernels": "mosaic", **options})
    with pytest.raises(ConfigError, match="rms_norm cannot use 'mosaic': rows have 64 values"):
        decide_geometry(ask, qwen3(), GPU, platform=HOPPER)
    # Layers that turn nothing are written by XLA, too.
    unturned = qwen3(layer_ropes=(0, None))
    with pytest.raises(ConfigError, match="rows have 64 values"):
        decide_geometry(EngineConfig(kernels="mosaic"), unturned, GPU, platform=HOPPER)


def layer_of(*, rounded: tuple[str, ...] = ()) -> dict[str, Any]:
    """Queries, keys and values of `qwen3`, as shapes; those that are rounded are int8."""
    rows = {"q": 256, "k": 128, "v": 128}
    plain = {n: Weight(value=shape(size, 256, dtype=jnp.bfloat16)) for n, size in rows.items()}
    packed = {name: Weight(value=int8_matrix(rows[name])) for name in rounded}
    norms = {name: shape(64, dtype=jnp.float32) for name in ("q_norm", "k_norm")}
    return plain | packed | norms


def shape(*lengths: int, dtype: Any) -> Any:
    return jax.ShapeDtypeStruct(lengths, dtype)


def int8_matrix(rows: int) -> QuantWeight:
    codes, scales = shape(rows, 256, dtype=jnp.int8), shape(1, rows, dtype=jnp.float32)
    return QuantWeight(codes=codes, scales=scales, bits=8, group=256, kernel="reference")


def test_heads_of_matrices_that_are_stored_differently_are_normed_apart() -> None:
    """Without one product of queries and keys there is nothing that norms as it writes."""
    ask = EngineConfig(kernels="mosaic")
    planned = decide_geometry(ask, qwen3(), GPU, platform=HOPPER)
    alike, mixed = {"layers": [layer_of()]}, {"layers": [layer_of(rounded=("q",))]}
    assert "qkv" in kernels_of_weights(alike, ask, planned, HOPPER)["layers"][0]
    for params in (mixed, alike | {"draft": mixed}):
        with pytest.raises(ConfigError, match="kernels='mosaic'.*rms_norm.*64 values"):
            kernels_of_weights(params, ask, planned, HOPPER)
    kernels_of_weights(mixed, EngineConfig(), planned, HOPPER)


def chosen(kernels: Any, platform: Platform = HOPPER) -> dict[str, str]:
    """What is decided otherwise than with "auto"."""
    device = GPU if platform.kind == "gpu" else CPU
    both = [
        vars_of(
            decide_geometry(EngineConfig(kernels=one), with_experts(128), device, platform=platform)
        )
        for one in ("auto", kernels)
    ]
    return {name: both[1][name] for name in both[0] if both[0][name] != both[1][name]}


def vars_of(geometry: Geometry) -> dict[str, str]:
    return {one.name: getattr(geometry, one.name) for one in fields(geometry)}


@pytest.mark.parametrize(
    ("op", "name", "changed"),
    [
        ("paged_attention", "reference", {"attention_kernel": "reference"}),
        ("rms_norm", "mosaic", {"norm_kernel": "mosaic"}),
        ("rms_norm", "xla", {"residual_kernel": "xla"}),
        ("rotate_write", "reference", {"write_kernel": "reference"}),
        ("grouped_matmul", "reference", {"expert_kernel": "reference"}),
        ("quant_matmul", "reference", {}),
    ],
)
def test_what_is_asked_of_one_op_changes_no_other(
    op: str, name: str, changed: dict[str, str]
) -> None:
    assert chosen({op: name}) == changed


def test_one_simulated_op_on_a_cpu_takes_bfloat16_and_leaves_the_others() -> None:
    on_cpu = Platform(kind="cpu")
    numbers = {"activation_dtype": "bfloat16", "kv_dtype": "bfloat16"}
    found = chosen({"rms_norm": "simulated"}, on_cpu)
    assert found == numbers | dict.fromkeys(("norm_kernel", "residual_kernel"), "simulated")
    assert chosen({"grouped_matmul": "simulated"}, on_cpu) == numbers | {
        "expert_kernel": "simulated"
    }


@pytest.mark.parametrize("kernels", ["simulated", "rms_norm=simulated"])
def test_a_simulation_is_for_a_cpu(kernels: str) -> None:
    with pytest.raises(ConfigError, match="'simulated' is 'mosaic' on a CPU.*for a gpu; use 'mo"):
        decide_geometry(EngineConfig(kernels=kernels), sized(256, 64), GPU, platform=HOPPER)


@pytest.mark.parametrize("op", [op for op, names in OPS.items() if "mosaic" in names])
def test_a_kernel_of_another_device_is_refused_of_every_op(op: str) -> None:
    """Those that fall back where all ops are asked for, too; whether or not the model has any."""
    ampere = Platform(kind="gpu", compute_capability=(8, 0))
    for platform, device, said in ((Platform(kind="cpu"), CPU, "a cpu"), (ampere, GPU, "has 8.0")):
        with pytest.raises(ConfigError, match=f"kernels='{op}=mosaic': {op} cannot use.*{said}"):
            ask = EngineConfig(kernels=f"{op}=mosaic")
            decide_geometry(ask, sized(256, 64), device, platform=platform)


def test_writes_that_are_asked_for_by_name_do_not_fall_back() -> None:
    asked: list[Any] = [{"rotate_write": "mosaic"}, {"rotate_write": "simulated"}]
    for kernels in asked:
        _, platform = place_of(kernels)
        assert written_by(EngineConfig(kernels=kernels), platform) == kernels["rotate_write"]
        with pytest.raises(ConfigError, match="rotate_write cannot use .*pages hold int8"):
            written_by(EngineConfig(kernels=kernels, kv_cache_dtype="int8"), platform)


def test_matrices_have_the_kernel_that_is_asked_of_their_product() -> None:
    asked = EngineConfig(kernels="plain_matmul_parts=reference")
    planned = decide_geometry(asked, qwen3(), GPU, platform=HOPPER)
    params = {"layers": [{"up": Weight(value=int8_matrix(256)), "down": layer_of()["q"]}]}
    (layer,) = kernels_of_weights(params, asked, planned, HOPPER)["layers"]
    assert layer["up"].value.kernel == "mosaic" and layer["down"] == params["layers"][0]["down"]
    other = EngineConfig(kernels="quant_matmul=reference")
    (layer,) = kernels_of_weights(params, other, planned, HOPPER)["layers"]
    assert layer["up"].value.kernel == "reference" and layer["down"].value.kernel == "mosaic"


def test_what_was_not_wanted_is_not_missed() -> None:
    """An op that is left to XLA by name is not said to have no kernel; the others are."""
    params = [Weight(value=shape(100, 256, dtype=jnp.bfloat16))]
    model = model_config(**{**FITS, "head_dim": 80})
    assert set(fallbacks(model, params)) == {
        "attention",
        "rotation and write of keys",
        "plain matrices",
    }
    asked: Any = {"paged_attention": "reference", "plain_matmul_parts": "reference"}
    assert set(fallbacks(model, params, kernels=asked)) == {"rotation and write of keys"}
    asked = {"plain_matmul_parts": "simulated"}
    assert set(fallbacks(model, params, kernels=asked)) == {"plain matrices"}


def test_room_for_floats_is_a_matter_of_packed_matrices() -> None:
    device = Device(platform="gpu", free_bytes=1000)
    asked: list[tuple[Any, bool]] = [
        ({"paged_attention": "reference"}, True),
        ({"quant_matmul": "mosaic"}, False),
    ]
    for kernels, has_room in asked:
        room = float_room(EngineConfig(kernels=kernels), device, HOPPER)
        assert (room is not None) == has_room


def written_by(ask: EngineConfig, platform: Platform = HOPPER, **changes: Any) -> str:
    sizes: dict[str, Any] = {"hidden_size": 256, "head_dim": 64, "num_heads": 4, "num_kv_heads": 2}
    device = GPU if platform.kind == "gpu" else CPU
    model = model_config(**(sizes | changes))
    return decide_geometry(ask, model, device, platform=platform).write_kernel


def test_new_keys_are_rotated_and_written_by_the_kernel_that_takes_them() -> None:
    ask = EngineConfig()
    assert written_by(ask) == written_by(ask, qk_norm=True, architecture="qwen3") == "mosaic"
    assert written_by(ask, architecture="olmo2", qk_norm=True) == "reference"  # norms all heads
    assert written_by(ask, num_kv_heads=1) == "reference"
    assert written_by(EngineConfig(kv_cache_dtype="int8")) == "reference"
    assert written_by(EngineConfig(kernels="reference")) == "reference"
    assert written_by(ask, Platform(kind="cpu")) == "reference"


def test_a_norm_with_the_addition_before_it_is_one_kernel_on_hopper() -> None:
    ampere = Platform(kind="gpu", compute_capability=(8, 0))
    found = [
        decide_geometry(EngineConfig(), sized(256, 64), GPU, platform=one).residual_kernel
        for one in (HOPPER, ampere)
    ]
    assert found == ["mosaic", "xla"]
    on_cpu = decide_geometry(EngineConfig(), sized(256, 64), CPU, platform=Platform(kind="cpu"))
    assert on_cpu.residual_kernel == "reference"
