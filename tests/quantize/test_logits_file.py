"""Logits that wait in a file: what comes back, and a disk without room."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from jaxinfer.errors import CapacityError
from jaxinfer.quantize.logits_file import LogitsFile


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    store = LogitsFile(tmp_path / "logits", num_rows=5, vocab_size=7)
    store.write([rows[:2], rows[2:2], rows[2:]])
    np.testing.assert_array_equal(store.rows(), rows)
    with pytest.raises(AssertionError, match="2 rows were written of 5"):
        store.write([rows[:2]])


def test_no_room_is_said_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=139))
    with pytest.raises(CapacityError, match="take 140 bytes in .*: 139 are free"):
        LogitsFile(tmp_path / "logits", num_rows=5, vocab_size=7)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_disk_that_fills_up_meanwhile_is_an_error_and_not_a_crash() -> None:
    store = LogitsFile(Path("/dev/full"), num_rows=2**14, vocab_size=1)
    with pytest.raises(CapacityError, match="No space left"):
        store.write([np.zeros((2**14, 1), np.float32)])
