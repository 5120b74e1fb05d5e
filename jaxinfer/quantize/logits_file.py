"""HOST. Logits of one model in a file, so that another can be compared with them after it is gone.

A whole vocabulary a row is more than memory should hold. Knows no models.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from jaxinfer.errors import CapacityError


class LogitsFile:
    """Rows of float32, written once in order, then read by memory map.

    Args:
        path: the file. num_rows, vocab_size: its size is known before.

    Raises:
        CapacityError: there is no room for it.
    """

    def __init__(self, path: Path, *, num_rows: int, vocab_size: int) -> None:
        self.path, self._shape = path, (num_rows, vocab_size)
        needed, free = 4 * num_rows * vocab_size, shutil.disk_usage(path.parent).free
        if needed > free:
            raise self._no_room(f"{free:,} are free")

    def write(self, blocks: Iterable[np.ndarray]) -> None:
        """Writes all rows, [rows, V] f32 a block.

        Raises:
            CapacityError: the disk is full.
        """
        num_rows = 0
        # Not through the map: a full disk is then an error and not the end of the process.
        try:
            with self.path.open("wb") as file:
                for block in blocks:
                    file.write(np.ascontiguousarray(block, np.float32).data)
                    num_rows += len(block)
        except OSError as error:
            raise self._no_room(str(error)) from error
        assert num_rows == self._shape[0], f"{num_rows} rows were written of {self._shape[0]}"

    def rows(self) -> np.ndarray:
        """[rows, V] f32, mapped."""
        return np.memmap(self.path, np.float32, "r", shape=self._shape)

    def _no_room(self, reason: str) -> CapacityError:
        rows, columns = self._shape
        return CapacityError(
            f"logits of {rows:,} judged tokens over a vocabulary of {columns:,} take "
            f"{4 * rows * columns:,} bytes in {self.path.parent}: {reason}; judge fewer tokens, or "
            "name another folder (scratch)"
        )
