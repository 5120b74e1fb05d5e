"""The fixtures of tests/data/families: a config, shapes and expected logits; weights from a seed.

A fixture is `<name>.json` (config.json of both generations, tensor shapes) and `<name>.npz` (two
prompts and their float32 logits in transformers). Weights come from NumPy's legacy generator, whose
numbers never change, so a fixture takes kilobytes. Knows no jaxinfer.
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.support.tiny_models import write_hf_folder

FOLDER = Path(__file__).parents[1] / "data/families"


class Fixture(NamedTuple):
    """config, older: config.json of transformers v5 and v4. longest: tokens of the longer prompt.

    expected: ids0, ids1, logits0, logits1.
    """

    name: str
    config: dict[str, Any]
    older: dict[str, Any]
    shapes: dict[str, list[int]]
    expected: Mapping[str, np.ndarray]

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """As they are stored."""
        return seeded_weights(self.shapes, self.config["model_type"])

    def write(self, folder: Path) -> Path:
        """A Hugging Face folder of the newer generation."""
        return write_hf_folder(folder, self.config, self.weights)


def fixture_names() -> list[str]:
    """All fixtures."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def read_fixture(name: str) -> Fixture:
    """One fixture."""
    described = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    expected = np.load(FOLDER / f"{name}.npz")
    return Fixture(name, described["v5"], described["v4"], described["shapes"], expected)


def seeded_weights(shapes: Mapping[str, list[int]], model_type: str) -> dict[str, np.ndarray]:
    """Float32 weights that depend on a tensor's name alone; norms scatter around the identity.

    Those of names in "_blocks" and "_scales" are bytes: 4-bit floats, two a byte, and the exponents
    of their scales plus 127.
    """
    stores_less_one = model_type.startswith("gemma")
    weights = {}
    for name, shape in shapes.items():
        random = np.random.RandomState(zlib.crc32(name.encode()))
        if name.endswith(("_blocks", "_scales")):
            limits = (0, 256) if name.endswith("_blocks") else (122, 126)
            weights[name] = random.randint(*limits, shape).astype(np.uint8)
            continue
        center = 1.0 if name.endswith("norm.weight") and not stores_less_one else 0.0
        values = center + 0.2 * random.standard_normal(shape)
        weights[name] = values.astype(np.float32)
    return weights
