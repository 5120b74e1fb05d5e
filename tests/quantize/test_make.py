"""What makers write, decoded from the format's description, is what jaxinfer runs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxinfer.checkpoint.checkpoint import open_checkpoint
from jaxinfer.engine.checkpoint_text import tokenizer_of
from jaxinfer.errors import CheckpointError, ConfigError, UnsupportedError
from jaxinfer.quantize import quantize_model
from jaxinfer.text.tokenizer import tokenizer_from_folder
from tests.quantize.conftest import CALIBRATED
from tests.quantize.decoded_folder import decoded_weights, read_all, write_decoded
from tests.support.byte_tokenizer import save_byte_tokenizer
from tests.support.family_fixtures import read_fixture
from tests.support.tiny_models import TINY_GEMMA3_CONFIG, write_tiny_gguf
from tests.support.tolerances import LOGITS

IDS = list(b"Rivers carry salt into the sea.")
RECIPES: dict[str, dict[str, Any]] = {
    "rtn": {},
    "rtn-8": {"bits": 8},
    "rtn-asymmetric": {"symmetric": False, "group_size": 16},
    "gptq": {"group_size": 16},
    "gptq-asymmetric": {"symmetric": False, "act_order": False},
    "awq": {},
    "smoothquant": {},
}


def make(model: Path, out: Path, text: Path, name: str, **more: Any) -> Any:
    method = name.partition("-")[0]
    calibrated = {} if method == "rtn" else {"calibration": text, **CALIBRATED}
    options = {**RECIPES[name], **calibrated, **more}
    return quantize_model(model, out, method=method, show_progress=False, **options)


@pytest.mark.parametrize("name", RECIPES)
def test_what_is_written_is_what_runs(
    name: str, tiny: Any, text: Path, tmp_path: Path, forward_logits: Callable[..., np.ndarray]
) -> None:
    model = tiny()
    made = make(model, tmp_path / "out", text, name)
    assert made.num_matrices == 14 and made.floats == ()
    assert made.bytes == sum(value.nbytes for value in read_all(made.path).values())
    decoded = write_decoded(made.path, tmp_path / "decoded")
    expected, plain = forward_logits(decoded, IDS), forward_logits(model, IDS)
    np.testing.assert_array_equal(forward_logits(made.path, IDS), expected)
    packed = forward_logits(made.path, IDS, keep_packed=True)
    np.testing.assert_allclose(packed, expected, rtol=0, atol=LOGITS["float32"])
    off = np.abs(expected - plain).mean() / np.abs(plain).mean()
    assert 0 < off < (0.05 if "8" in name or name == "smoothquant" else 0.5), off


@pytest.mark.parametrize("name", ["gptq", "rtn-asymmetric", "smoothquant"])
def test_the_native_form_holds_the_same(
    name: str, tiny: Any, text: Path, tmp_path: Path, forward_logits: Callable[..., np.ndarray]
) -> None:
    model = tiny()
    made = make(model, tmp_path / "out", text, name)
    native = make(model, tmp_path / "native", text, name, format="native")
    assert open_checkpoint(native.path).kind == "native" and native.num_matrices == 14
    for keep_packed in (False, True):
        np.testing.assert_array_equal(
            forward_logits(native.path, IDS, keep_packed=keep_packed),
            forward_logits(made.path, IDS, keep_packed=keep_packed),
        )
    found = {path.name for path in native.path.iterdir()}
    texts = {"tokenizer.json", "tokenizer_config.json"}
    assert found == {"config.json", "native.json", "params", *texts}
    assert tokenizer_from_folder(native.path) is not None


@pytest.mark.parametrize("method", ["rtn", "gptq", "awq"])
@pytest.mark.parametrize("name", ["gemma2_bias", "gemma3", "olmo2", "phi3", "qwen3", "smollm3"])
def test_dense_families(
    name: str,
    method: str,
    low_text: Path,
    tmp_path: Path,
    forward_logits: Callable[..., np.ndarray],
) -> None:
    """Norms stored less one, norms behind sublayers, fused matrices, biases."""
    fixture = read_fixture(name)
    model = fixture.write(tmp_path / "model")
    save_byte_tokenizer(model)
    ids = fixture.expected["ids0"].tolist()
    made = make(model, tmp_path / "out", low_text, method)
    expected = forward_logits(write_decoded(made.path, tmp_path / "decoded"), ids)
    np.testing.assert_allclose(forward_logits(made.path, ids), expected, atol=1e-6)
    plain = fixture.expected["logits0"]
    assert np.abs(expected - plain).mean() < 0.5 * np.abs(plain).mean()
    assert open_checkpoint(made.path).config == open_checkpoint(model).config


def test_widths_that_differ_have_groups_of_their_own(tiny: Any, tmp_path: Path) -> None:
    made = quantize_model(
        tiny(intermediate_size=192), tmp_path / "out", method="rtn", show_progress=False
    )
    said = json.loads((made.path / "config.json").read_text())["quantization_config"]
    sizes = {
        tuple(group["targets"]): group["weights"]["group_size"]
        for group in said["config_groups"].values()
    }
    assert sizes == {("Linear",): None, (r"re:.*\.mlp\.down_proj$",): 64}
    assert decoded_weights(made.path, said)


def test_what_is_protected_stays_as_it_is(tiny: Any, tmp_path: Path) -> None:
    model = tiny()
    names = ["model.layers.0.self_attn.q_proj", r"re:.*\.1\.mlp", "lm_head"]
    options: dict[str, Any] = {"method": "rtn", "show_progress": False, "protect": names}
    made = quantize_model(model, tmp_path / "out", **options)
    attention = [f"model.layers.0.self_attn.{x}_proj" for x in "qkv"]
    mlp = [f"model.layers.1.mlp.{x}_proj" for x in ("gate", "up", "down")]
    assert list(made.floats) == attention + mlp and made.num_matrices == 8
    before, after = read_all(model), read_all(made.path)
    for name in (*attention, *mlp, "lm_head", "model.embed_tokens"):
        np.testing.assert_array_equal(before[f"{name}.weight"], after[f"{name}.weight"])
    assert open_checkpoint(made.path).quantization.startswith("compressed-tensors")


def test_a_gguf_file_becomes_a_folder_with_everything(
    text: Path, tmp_path: Path, forward_logits: Callable[..., np.ndarray]
) -> None:
    tokens = [chr(0x100 + n) for n in range(320)]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256))]
        + tokens[259:],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 61,
        "tokenizer.ggml.scores": [0.0] * 320,
        "tokenizer.chat_template": "{{ messages[0].content }}",
    }
    model = write_tiny_gguf(
        tmp_path / "m.gguf", base=TINY_GEMMA3_CONFIG, metadata=metadata, types={"ffn": "Q8_0"}
    )
    made = make(model, tmp_path / "out", text, "awq", dtype="float32")
    assert open_checkpoint(made.path).config == open_checkpoint(model).config
    expected = forward_logits(write_decoded(made.path, tmp_path / "decoded"), IDS)
    np.testing.assert_allclose(forward_logits(made.path, IDS), expected, atol=1e-6)
    plain = forward_logits(model, IDS)
    assert np.abs(expected - plain).mean() < 0.5 * np.abs(plain).mean()
    tokenizer, its = tokenizer_from_folder(made.path), tokenizer_of(open_checkpoint(model))
    assert tokenizer is not None and its is not None
    assert tokenizer.encode("sea") == its.encode("sea")
    assert tokenizer.chat_templates == {"default": "{{ messages[0].content }}"}
    generation = json.loads((made.path / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 2, "eos_token_id": [1]}


def test_texts_are_copied_and_code_is_not(tiny: Any, tmp_path: Path) -> None:
    model = tiny(num_shards=2)
    (model / "modeling_own.py").write_text("raise SystemExit")
    (model / "generation_config.json").write_text('{"temperature": 0.6}')
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    made = quantize_model(model, tmp_path / "out", method="rtn", show_progress=False)
    found = sorted(str(path.relative_to(made.path)) for path in made.path.rglob("*"))
    assert found == [
        "additional_chat_templates",
        "additional_chat_templates/tool_use.jinja",
        "config.json",
        "generation_config.json",
        *(f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)),
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_dtypes_of_what_stays_float(tiny: Any, tmp_path: Path) -> None:
    model = tiny()
    options: dict[str, Any] = {"method": "rtn", "show_progress": False}
    made = quantize_model(model, tmp_path / "out", dtype="bfloat16", **options)
    stored = read_all(made.path)
    for name in ("model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight_scale"):
        assert stored[name].dtype == ml_dtypes.bfloat16
    assert stored["model.norm.weight"].dtype == np.float32
    assert json.loads((made.path / "config.json").read_text())["torch_dtype"] == "bfloat16"


@pytest.mark.parametrize(
    "change, said",
    [
        ({"method": "gptq"}, "needs calibration"),
        ({"method": "rtn", "calibration": "text.txt"}, "means nothing to method='rtn'"),
        ({"method": "rtn", "group_size": 128}, r"does not divide the widths 64 .*, 96 "),
        ({"method": "rtn", "protect": ["model.layers.7"]}, "names no matrix.*nearest"),
        ({"method": "rtn", "protect": ["re:("]}, "is not a pattern"),
        ({"method": "rtn", "protect": ["model.layers"]}, "keeps every matrix"),
        ({"method": "awq", "calibration": "no.txt", "sequence_length": 64}, "cannot be read"),
        ({"method": "awq", "calibration": None}, "needs calibration"),
    ],
)
def test_what_cannot_be_is_refused(
    change: dict[str, Any], said: str, tiny: Any, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        quantize_model(tiny(), tmp_path / "out", **change)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny"]


def test_a_text_that_is_too_short(tiny: Any, text: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"method": "gptq", "calibration": text}
    with pytest.raises(ConfigError, match=r"has 6,\d+ tokens.*lower calibration_tokens=32768"):
        quantize_model(tiny(), tmp_path / "out", sequence_length=128, **options)
    with pytest.raises(ConfigError, match="over the 256 positions"):
        quantize_model(tiny("other"), tmp_path / "out", **options)


def test_a_text_that_the_model_has_no_tokens_for(tiny: Any, text: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"method": "awq", "calibration": text, **CALIBRATED}
    with pytest.raises(ConfigError, match=r"token id 1\d\d.*vocabulary has 80"):
        quantize_model(tiny(vocab_size=80), tmp_path / "out", **options)


def test_models_that_are_not_quantized(tiny: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"method": "rtn", "show_progress": False}
    made = quantize_model(tiny(), tmp_path / "out", **options)
    with pytest.raises(ConfigError, match="quantized already"):
        quantize_model(made.path, tmp_path / "again", **options)
    with pytest.raises(ConfigError, match="out exists"):
        quantize_model(tiny(), tmp_path / "out", **options)
    with pytest.raises(ConfigError, match="holds the model itself"):
        quantize_model(tmp_path / "tiny", tmp_path, overwrite=True, **options)
    experts = read_fixture("mixtral_window").write(tmp_path / "experts")
    with pytest.raises(UnsupportedError, match="'mixtral' has experts"):
        quantize_model(experts, tmp_path / "mixtral", **options)


def test_a_weight_that_is_not_a_number(tiny: Any, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    model = tiny(add={name: np.full((96, 64), np.nan, np.float32)})
    with pytest.raises(CheckpointError, match=f"'{name}'.*holds NaN"):
        quantize_model(model, tmp_path / "out", method="rtn", show_progress=False)
    assert not (tmp_path / "out").exists()
