"""Where a folder says how it is quantized, and who wins."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer.checkpoint.checkpoint import open_checkpoint
from jaxinfer.errors import CheckpointError, UnsupportedError
from tests.checkpoint.quant_formats.opened import V_SHAPE, V, layer_of, packed_layer, read
from tests.support.quant_folders import decoded, gptq_layer, random_layer, write_quantized_tiny
from tests.support.tiny_models import write_tiny

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}


def test_config_json_wins_over_the_file_beside_it(tmp_path: Path) -> None:
    """BB-35 (AutoGPTQ#640): group 32 beside group 128."""
    layer = random_layer(V_SHAPE, 32, 4)
    folder = write_quantized_tiny(tmp_path, GPTQ, {V: gptq_layer(V, *layer, bits=4)})
    (folder / "quantize_config.json").write_text('{"bits": 4, "group_size": 128}')
    np.testing.assert_array_equal(
        read(layer_of(folder, V)), decoded(*layer, [i // 32 for i in range(64)])
    )


def test_the_only_file_is_read(tmp_path: Path) -> None:
    """BB-35 (auto-round#168)."""
    layers = {V: gptq_layer(V, *random_layer(V_SHAPE, 32, 4), bits=4)}
    folder = write_quantized_tiny(tmp_path, None, layers)
    (folder / "quantize_config.json").write_text('{"bits": 4, "group_size": 32}')
    assert packed_layer(folder, V).form.group == 32
    assert open_checkpoint(folder, show_progress=False).quantization == "gptq 4-bit group 32"


@pytest.mark.parametrize("method", ["bitsandbytes", "exl2", "hqq", "mystery", None])
def test_other_methods_are_refused_by_name(tmp_path: Path, method: str | None) -> None:
    entry = {"quant_method": method, "bits": 4}
    with pytest.raises(UnsupportedError, match=f"quant_method={method!r} is not read; known: gptq"):
        open_checkpoint(write_tiny(tmp_path, quantization_config=entry), show_progress=False)


@pytest.mark.parametrize(
    "entry", ["gptq", [1], {"quant_method": "gptq"}, {"quant_method": "compressed-tensors"}]
)
def test_entries_that_say_nothing(tmp_path: Path, entry: Any) -> None:
    with pytest.raises(CheckpointError, match="config.json"):
        open_checkpoint(write_tiny(tmp_path, quantization_config=entry), show_progress=False)


@pytest.mark.parametrize("quantized", [True, False])
def test_missing_shards_are_refused_before_any_tensor_is_read(
    tmp_path: Path, quantized: bool
) -> None:
    """BB-02 (vllm#34859, sglang#32279): one rule for plain and quantized checkpoints."""
    layers = {V: gptq_layer(V, *random_layer(V_SHAPE, 32, 4), bits=4)} if quantized else {}
    folder = write_quantized_tiny(tmp_path, GPTQ if quantized else None, layers, num_shards=2)
    open_checkpoint(folder, show_progress=False)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="lacks 1 of the 2 .*model-00002-of-00002"):
        open_checkpoint(folder, show_progress=False)


def test_an_index_that_names_other_files(tmp_path: Path) -> None:
    """BB-02: four names in the index, two other files that hold everything."""
    layers = {V: gptq_layer(V, *random_layer(V_SHAPE, 32, 4), bits=4)}
    folder = write_quantized_tiny(tmp_path, GPTQ, layers, num_shards=2)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    names = [f"part-{number}.safetensors" for number in range(4)]
    for place, tensor in enumerate(index["weight_map"]):
        index["weight_map"][tensor] = names[place % 4]
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(folder, show_progress=False)
    assert all(name in str(error.value) for name in names)
