"""Models with experts: every layout of their tensors, quantized experts, and what is refused."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer.checkpoint.checkpoint import find_sources, open_checkpoint
from jaxinfer.checkpoint.load import packed_forms
from jaxinfer.errors import CheckpointError, UnsupportedError
from tests.support.family_fixtures import read_fixture
from tests.support.quant_folders import (
    awq_layer,
    ct_layer,
    decoded,
    fp8,
    gptq_layer,
    random_layer,
)
from tests.support.tiny_experts import (
    MATRICES,
    TINY_MIXTRAL_CONFIG,
    expert_name,
    fused,
    mixtral_weights,
    write_mixtral,
    write_mixtral_gguf,
)
from tests.support.tiny_models import Weights, write_hf_folder
from tests.support.tolerances import LOGITS

IDS = [(7 * i * i + 3) % 320 for i in range(44)]
GROUP = 32
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False, "desc_act": True}
CT_WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"}
CT_GROUP = {"targets": ["Linear"], "weights": {**CT_WEIGHTS, "group_size": GROUP}}
FORMATS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"},
    "compressed-tensors": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": CT_GROUP},
        "ignore": ["lm_head", "re:.*gate$"],
    },
    "fp8": {"quant_method": "fp8", "weight_block_size": [32, 48]},
}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, forward_logits: Any) -> np.ndarray:
    """Logits of TINY as a Mixtral; the fixtures of tests/data show that they are right."""
    return forward_logits(write_mixtral(tmp_path_factory.mktemp("mixtral")), IDS)


def test_experts_in_one_tensor(tmp_path: Path, forward_logits: Any, expected: np.ndarray) -> None:
    """gate above up, as newer releases of transformers keep them."""
    weights = fused(mixtral_weights(TINY_MIXTRAL_CONFIG), TINY_MIXTRAL_CONFIG)
    folder = write_hf_folder(tmp_path / "m", TINY_MIXTRAL_CONFIG, weights)
    np.testing.assert_array_equal(forward_logits(folder, IDS), expected)


@pytest.mark.parametrize("stacked", [False, True])
def test_gguf_files_of_both_ages(
    stacked: bool, tmp_path: Path, forward_logits: Any, expected: np.ndarray
) -> None:
    path = write_mixtral_gguf(tmp_path / "m.gguf", stacked=stacked)
    np.testing.assert_array_equal(forward_logits(path, IDS), expected)


def gptq_experts(*, act_order: bool) -> tuple[dict[str, Weights], dict[str, Weights]]:
    """Tensors of all experts' matrices, each with groups in an order of its own; and decoded."""
    packed, plain = {}, {}
    for layer in range(2):
        for expert in range(4):
            for number, matrix in enumerate(MATRICES):
                name, seed = expert_name(layer, expert, matrix), 100 * layer + 10 * expert + number
                shape = (64, 96) if matrix == "w2" else (96, 64)
                codes, zeros, scales = random_layer(shape, GROUP, 4, seed=seed)
                if expert == 1:
                    zeros[:] = 8  # one of them needs no zero points
                groups = np.arange(shape[1]) // GROUP
                if act_order:
                    groups = np.random.default_rng(seed).permutation(groups)
                tensors = gptq_layer(name, codes, zeros, scales, bits=4, groups=groups.tolist())
                packed[name] = tensors
                plain[name] = {f"{name}.weight": decoded(codes, zeros, scales, groups.tolist())}
    return packed, plain


@pytest.mark.parametrize("act_order", [False, True])
def test_gptq_experts(act_order: bool, tmp_path: Path, forward_logits: Any) -> None:
    """Packed and decoded experts are those of the decoded checkpoint."""
    packed, plain = gptq_experts(act_order=act_order)
    wanted = forward_logits(write_mixtral(tmp_path / "plain", replace=plain), IDS)
    folder = write_mixtral(tmp_path / "gptq", replace=packed, quantization_config=GPTQ)
    np.testing.assert_array_equal(forward_logits(folder, IDS), wanted)
    kept = forward_logits(folder, IDS, keep_packed=True)
    np.testing.assert_allclose(kept, wanted, rtol=0, atol=LOGITS["float32"])


def quantized_experts(method: str) -> tuple[dict[str, Weights], dict[str, Weights]]:
    """Tensors of all experts' matrices, a layer each; and decoded."""
    quantized, plain = {}, {}
    for number, (layer, expert, matrix) in enumerate(product(range(2), range(4), MATRICES)):
        name, shape = expert_name(layer, expert, matrix), (64, 96) if matrix == "w2" else (96, 64)
        tensors, values = quantized_layer(method, name, shape, number)
        quantized[name], plain[name] = tensors, {f"{name}.weight": values}
    return quantized, plain


def quantized_layer(
    method: str, name: str, shape: tuple[int, int], seed: int
) -> tuple[Weights, np.ndarray]:
    if method == "fp8":
        random, grid = np.random.default_rng(seed), (-(-shape[0] // 32), -(-shape[1] // 48))
        codes = fp8(random.normal(0, 40, shape).clip(-448, 448))
        scales = random.uniform(0.001, 0.01, grid).astype(np.float32)
        wide = scales.repeat(32, axis=0)[: shape[0]].repeat(48, axis=1)[:, : shape[1]]
        tensors = {f"{name}.weight": codes, f"{name}.weight_scale_inv": scales}
        return tensors, codes.astype(np.float32) * wide
    codes, zeros, scales = random_layer(shape, GROUP, 4, seed=seed)
    if method == "compressed-tensors" or seed == 1:  # some need no zero points
        zeros[:] = 8
    values = decoded(codes, zeros, scales, [column // GROUP for column in range(shape[1])])
    if method == "awq":
        return awq_layer(name, codes, zeros, scales), values
    return ct_layer(name, codes, scales), values


@pytest.mark.parametrize("method", FORMATS)
def test_experts_of_every_format(method: str, tmp_path: Path, forward_logits: Any) -> None:
    """Packed and decoded experts are those of the float model with the decoded weights."""
    quantized, plain = quantized_experts(method)
    wanted = forward_logits(write_mixtral(tmp_path / "plain", replace=plain), IDS)
    folder = write_mixtral(
        tmp_path / "quantized", replace=quantized, quantization_config=FORMATS[method]
    )
    np.testing.assert_array_equal(forward_logits(folder, IDS), wanted)
    kept = forward_logits(folder, IDS, keep_packed=True)
    np.testing.assert_allclose(kept, wanted, rtol=0, atol=LOGITS["float32"])
    forms = packed_forms(find_sources(open_checkpoint(folder, show_progress=False)))
    assert len(forms) == 6 and all(leaf.stack is not None for leaf in forms)


@pytest.mark.parametrize("method", FORMATS)
def test_a_missing_packed_expert_is_named(method: str, tmp_path: Path) -> None:
    quantized, _ = quantized_experts(method)
    name = expert_name(1, 2, "w3")
    lost = next(iter(quantized[name]))
    folder = write_mixtral(
        tmp_path, replace=quantized, drop=(lost,), quantization_config=FORMATS[method]
    )
    with pytest.raises(CheckpointError, match=re.escape(name)):
        open_and_match(folder)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"num_local_experts": 5}, CheckpointError, r"lacks 1 of the 5 experts .*experts\.4\.w2"),
        ({"num_local_experts": 3}, CheckpointError, r"gate\.weight.* has shape \[4, 64\]"),
        ({"num_experts_per_tok": 5}, CheckpointError, "num_experts_per_tok=5 is more than the 4"),
        ({"num_experts_per_tok": 0}, CheckpointError, "num_experts_per_tok=0"),
        ({"num_experts_per_tok": "2"}, CheckpointError, "num_experts_per_tok='2'"),
        ({"scoring_func": "sigmoid"}, UnsupportedError, "scoring_func='sigmoid'"),
        ({"n_group": 4}, UnsupportedError, "n_group=4"),
        ({"routed_scaling_factor": 2.5}, UnsupportedError, "routed_scaling_factor=2.5"),
        ({"n_shared_experts": 1}, UnsupportedError, "n_shared_experts=1"),
        ({"attention_bias": True}, UnsupportedError, "attention_bias=True"),
        ({"sliding_window": -1}, CheckpointError, "sliding_window=-1"),
    ],
)
def test_what_is_not_run_is_refused(
    changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    folder = write_mixtral(tmp_path / "m", **changes)
    with pytest.raises(error, match=message):
        open_and_match(folder)


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    name = f"{expert_name(1, 2, 'w3')}.weight"
    with pytest.raises(CheckpointError, match=r"lacks 1 of the 4 experts .*1.*experts\.2\.w3"):
        open_and_match(write_mixtral(tmp_path / "m", drop=(name,)))


def test_a_misshapen_expert_is_named(tmp_path: Path) -> None:
    name = expert_name(0, 3, "w2")
    bad = {name: {f"{name}.weight": np.zeros((64, 95), np.float32)}}
    with pytest.raises(CheckpointError, match=r"experts\.3\.w2.* has shape \[64, 95\]"):
        open_and_match(write_mixtral(tmp_path / "m", replace=bad))


def test_a_dense_llama_that_says_it_has_experts(tmp_path: Path) -> None:
    folder = write_hf_folder(
        tmp_path / "m",
        {**TINY_MIXTRAL_CONFIG, "model_type": "llama"},
        mixtral_weights(TINY_MIXTRAL_CONFIG),
    )
    with pytest.raises(UnsupportedError, match="num_local_experts=4"):
        open_and_match(folder)


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"llama.expert_count": 3}, CheckpointError, r"ffn_down_exps.* has shape \[4, 64, 96\]"),
        ({"llama.expert_used_count": 9}, CheckpointError, "=9 is more than the 4"),
        ({"llama.expert_gating_func": 2}, UnsupportedError, "expert_gating_func=2"),
        ({"llama.expert_shared_count": 1}, UnsupportedError, "expert_shared_count=1"),
        ({"llama.expert_count": 0}, CheckpointError, "ffn_gate"),
    ],
)
def test_gguf_metadata_that_is_not_run(
    metadata: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        open_and_match(write_mixtral_gguf(tmp_path / "m.gguf", metadata=metadata))


def test_other_architectures_with_experts_are_refused(tmp_path: Path) -> None:
    path = write_mixtral_gguf(tmp_path / "m.gguf", metadata={"general.architecture": "deepseek2"})
    with pytest.raises(UnsupportedError, match="'deepseek2'"):
        open_and_match(path)
    folder = write_mixtral(tmp_path / "m", model_type="deepseek_v3")
    with pytest.raises(UnsupportedError, match="'deepseek_v3'"):
        open_and_match(folder)


@pytest.mark.parametrize("name", ["mixtral_window", "qwen3_moe_listed", "qwen3_moe_stepped"])
def test_own_fixtures_in_both_generations(name: str, tmp_path: Path, forward_logits: Any) -> None:
    """Windows; dense layers that are listed or every second one; shares that do not add up to 1.

    The newer generation has the experts of a layer in one tensor, the older one a tensor each.
    """
    fixture = read_fixture(name)
    folders = [fixture.write(tmp_path / "newer")]
    weights = split_experts(fixture.weights, is_mixtral=fixture.config["model_type"] == "mixtral")
    folders += [write_hf_folder(tmp_path / "older", fixture.older, weights)]
    for prompt in (0, 1):
        ids = fixture.expected[f"ids{prompt}"].tolist()
        found = [forward_logits(folder, ids) for folder in folders]
        np.testing.assert_array_equal(found[0], found[1])
        error = np.abs(found[0] - fixture.expected[f"logits{prompt}"]).max()
        assert error < LOGITS["float32"]


def split_experts(weights: Weights, *, is_mixtral: bool) -> Weights:
    """One tensor a matrix of an expert, as older files have them."""
    result: Weights = {}
    for name, value in weights.items():
        stem, _, ending = name.rpartition(".")
        if not stem.endswith(".experts"):
            result[name] = value
            continue
        for expert, matrix in enumerate(value):
            parts = {"down_proj": matrix}
            if ending == "gate_up_proj":
                parts = dict(zip(("gate_proj", "up_proj"), np.split(matrix, 2), strict=True))
            for part, rows in parts.items():
                result[f"{stem}.{expert}.{part}.weight"] = np.ascontiguousarray(rows)
    return {mixtral_name(name): result[name] for name in result} if is_mixtral else result


def mixtral_name(name: str) -> str:
    """What older files call it."""
    theirs = {"mlp": "block_sparse_moe", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    return ".".join(theirs.get(part, part) for part in name.split("."))


def open_and_match(path: Path) -> None:
    find_sources(open_checkpoint(path, show_progress=False))
