"""The GPUs that programs can be compiled for without one."""

import pytest

from jaxinfer.config.targets import gpu_target, target_config, target_names
from jaxinfer.errors import ConfigError


def test_every_target_has_the_numbers_that_planning_needs() -> None:
    assert set(target_names()) == {"h200", "h100", "b200", "a100"}
    for name in target_names():
        target = gpu_target(name)
        assert 100 <= target.num_cores <= 200
        assert 2**36 < target.memory_bytes < 2**38
        assert 10**12 < target.bandwidth_bytes_per_s < 10**13
        assert 160 * 1024 < target.shared_memory_bytes <= 227 * 1024


def test_an_h200_is_an_h100_with_more_memory() -> None:
    big, small = gpu_target("H200"), gpu_target("h100")
    assert big.compute_capability == small.compute_capability == (9, 0)
    assert big.memory_bytes > small.memory_bytes
    assert big.bandwidth_bytes_per_s > small.bandwidth_bytes_per_s


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ConfigError, match=r"h20.*h200, h100, b200, a100.*mean 'h200'"):
        gpu_target("h20")


def test_the_description_is_a_text_proto_with_balanced_braces() -> None:
    text = target_config(gpu_target("h200"))
    assert text.count("{") == text.count("}") == 4
    assert "memory_bandwidth: 4800000000000" in text
    assert "cuda_compute_capability { major: 9 minor: 0 }" in text
