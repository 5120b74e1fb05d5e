"""JOINT. The device that an engine of this process runs on, and how much of its memory is free."""

import math
import os
from pathlib import Path

import jax

from jaxinfer.config.geometry import Device


def find_device() -> Device:
    """The device that an engine of this process runs on, and its free memory."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return Device(platform="cpu", free_bytes=free_host_bytes())
    stats = device.memory_stats() or {}
    return Device(
        platform="gpu", free_bytes=stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0)
    )


def free_host_bytes() -> int:
    """Available memory of the host, or of the control group that this process may use."""
    return int(min(_available_bytes(), group_bytes()))


def group_bytes(group: Path = Path("/sys/fs/cgroup")) -> float:
    """What is left of a control group's limit; cached files that it may drop count as free."""
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return math.inf if limit == "max" else int(limit) - used + int(counts["inactive_file"])
    except (OSError, ValueError, KeyError):
        return math.inf  # no limit that can be read


def _available_bytes() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux: half of what is installed is a safe guess
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
