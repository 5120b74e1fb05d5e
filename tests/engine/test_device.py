"""`engine/device.py`."""

import math
from pathlib import Path

import pytest

from jaxinfer.engine.device import find_device, free_host_bytes, group_bytes


def write_group(folder: Path, limit: str, used: int, stat: str) -> Path:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(stat)
    return folder


def test_cached_files_of_the_group_count_as_free(tmp_path: Path) -> None:
    stat = "anon 300\nfile 500\ninactive_file 400\nactive_file 100\n"
    assert group_bytes(write_group(tmp_path, "1000", 800, stat)) == 600


@pytest.mark.parametrize("limit", ["max", "lots"])
def test_a_group_without_a_limit(tmp_path: Path, limit: str) -> None:
    assert group_bytes(write_group(tmp_path, limit, 800, "inactive_file 400\n")) == math.inf


def test_no_group_at_all(tmp_path: Path) -> None:
    assert group_bytes(tmp_path) == math.inf


def test_memory_of_this_machine() -> None:
    device = find_device()
    assert device.platform in ("cpu", "gpu")
    assert 2**20 < free_host_bytes() < 2**50
