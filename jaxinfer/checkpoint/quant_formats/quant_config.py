"""HOST. Finds what a Hugging Face folder says about its quantization, and picks the reader.

`config.json` wins over a `quantize_config.json` (GPTQ) or `quant_config.json` (AWQ) beside it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxinfer.checkpoint.config_reader import ConfigReader
from jaxinfer.checkpoint.json_file import read_json
from jaxinfer.checkpoint.quant_formats.awq import AwqFormat
from jaxinfer.checkpoint.quant_formats.compressed_tensors import CompressedTensorsFormat
from jaxinfer.checkpoint.quant_formats.fp8 import FineGrainedFp8Format
from jaxinfer.checkpoint.quant_formats.gptq import GptqFormat
from jaxinfer.checkpoint.quant_formats.mxfp4 import Mxfp4Format
from jaxinfer.checkpoint.quant_formats.quant_format import QuantFormat
from jaxinfer.checkpoint.tensor_file import TensorSource
from jaxinfer.errors import CheckpointError, UnsupportedError

_KEYS = ("quantization_config", "compression_config")
_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
_READERS: dict[str, Callable[[ConfigReader, TensorSource], QuantFormat]] = {
    "gptq": GptqFormat,
    "awq": AwqFormat,
    "compressed-tensors": CompressedTensorsFormat,
    "fp8": FineGrainedFp8Format,
    "mxfp4": Mxfp4Format,
}


def read_quant_format(
    folder: Path, config: Mapping[str, Any], tensors: TensorSource
) -> QuantFormat | None:
    """The reader of the folder's quantized matrices; None where nothing is quantized.

    Args:
        config: config.json as it is.
        tensors: of the folder.

    Raises:
        UnsupportedError: a method, version or packing that is not read.
        CheckpointError: values that make no sense, or needed tensors that are missing.
    """
    entry = _entry(folder, config)
    if entry is None:
        return None
    method = entry.get("quant_method")
    if method not in _READERS:
        raise UnsupportedError(
            f"{entry.place}: quantization quant_method={method!r} is not read; known: "
            f"{', '.join(_READERS)}; use one of these, an unquantized checkpoint or a GGUF file"
        )
    try:
        return _READERS[method](entry, tensors)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(
            f"{entry.place} holds a value of a wrong kind: {error}; mend it"
        ) from error


def _entry(folder: Path, config: Mapping[str, Any]) -> ConfigReader | None:
    for key in _KEYS:
        if entry := config.get(key):
            place = f"{folder / 'config.json'}: {key}"
            if not isinstance(entry, dict):
                raise CheckpointError(f"{place}={entry!r} must be an object; mend it")
            return ConfigReader(entry, place)
    for file, method in _FILES.items():
        if (folder / file).is_file():
            return ConfigReader({"quant_method": method} | read_json(folder / file), file)
    return None
