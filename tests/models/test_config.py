"""config.json is taken as transformers 4 and 5 write it; whatever would be another model is refused by field."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nf4tui.errors import InputError
from nf4tui.models.qwen2 import Qwen2Config, read_config
from nf4tui.small_files import read_json_object

Refused = Callable[..., str]
Edit = Callable[..., None]

# Qwen2.5-0.5B-Instruct's, as transformers 4 wrote it.
TRANSFORMERS_4 = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 896,
    "initializer_range": 0.02,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.1",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
TRANSFORMERS_5 = {name: value for name, value in TRANSFORMERS_4.items() if name != "rope_theta"} | {
    "dtype": "bfloat16",
    "layer_types": ["full_attention"] * 24,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    "sliding_window": None,
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(TRANSFORMERS_4))
    return tmp_path


@pytest.mark.parametrize("raw", [TRANSFORMERS_4, TRANSFORMERS_5], ids=["4", "5"])
def test_both_generations_of_transformers_are_read_alike(directory: Path, raw: dict[str, Any]) -> None:
    (directory / "config.json").write_text(json.dumps(raw))
    config = read_config(directory)
    assert config == Qwen2Config(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=32768,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
    )
    assert config.head_dim == 64 and config.projection_shape("k_proj") == (128, 896)


def test_what_transformers_defaults_to_is_taken_where_a_field_is_left_out(
    directory: Path, edit: Edit, absent: object
) -> None:
    optional = ("tie_word_embeddings", "rope_theta", "rms_norm_eps", "max_position_embeddings", "hidden_act")
    edit(directory / "config.json", **dict.fromkeys(optional, absent), num_key_value_heads=None)
    config = read_config(directory)
    assert not config.tie_word_embeddings
    assert config.rope_theta == 10000.0 and config.rms_norm_eps == 1e-6
    assert config.num_key_value_heads == 14


@pytest.mark.parametrize(
    "field",
    [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
    ],
)
def test_a_missing_or_mistyped_size_is_refused_by_name(
    directory: Path, edit: Edit, absent: object, refused: Refused, field: str
) -> None:
    path = directory / "config.json"
    edit(path, **{field: absent})
    refused(read_config, directory, says=(str(path), field, "missing"))
    for value in (True, "2", -2, 0, 2.0, 2**31, 10**400, [2]):
        edit(path, **{field: value})
        refused(read_config, directory, says=(str(path), f"{field} is ", "positive whole number"))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "architectures is ['LlamaForCausalLM']"),
        ({"architectures": "Qwen2ForCausalLM"}, "architectures is 'Qwen2ForCausalLM'"),
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"model_type": "qwen2_moe"}, "model_type is 'qwen2_moe'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu': only silu"),
        ({"use_sliding_window": True}, "use_sliding_window is True"),
        ({"use_sliding_window": "false"}, "use_sliding_window is 'false'"),
        ({"layer_types": ["sliding_attention"]}, "layer_types is ['sliding_attention']"),
        ({"layer_types": 7}, "layer_types is 7"),
        ({"layer_types": "full_attention"}, "layer_types is 'full_attention'"),
        ({"attention_dropout": 0.1}, "attention_dropout is 0.1"),
        ({"num_key_value_heads": 4}, "num_key_value_heads is 4: must divide num_attention_heads (14)"),
        ({"num_key_value_heads": 28}, "num_key_value_heads is 28: must divide"),
        ({"hidden_size": 900}, "hidden_size is 900: must be an even multiple of num_attention_heads (14)"),
        ({"hidden_size": 14}, "hidden_size is 14: must be an even multiple"),
        ({"head_dim": 128}, "head_dim is 128: contradicts hidden_size / num_attention_heads = 64"),
        ({"head_dim": "64"}, "head_dim is '64'"),
        ({"num_hidden_layers": 2**30}, "num_hidden_layers is 1073741824: at most"),
        ({"tie_word_embeddings": "true"}, "tie_word_embeddings is 'true'"),
        ({"tie_word_embeddings": None}, "tie_word_embeddings is None"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0: must be a positive number"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps is '1e-6'"),
        ({"rope_theta": -1.0}, "rope_theta is -1.0"),
        ({"rope_theta": True}, "rope_theta is True"),
        ({"rope_theta": 10**400}, "rope_theta is 1000"),
        ({"rope_theta": float("nan")}, "rope_theta is nan"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling is {'rope_type': 'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "scaled RoPE is not supported"),
        ({"rope_scaling": {"factor": 2.0}}, "scaled RoPE is not supported"),
        ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn': must be an object"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "rope_parameters"),
        ({"rope_parameters": {"rope_theta": "1e6"}}, "rope_parameters.rope_theta is '1e6'"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
            "rope_theta = 1e+06 and rope_parameters.rope_theta = 10000 contradict each other",
        ),
    ],
)
def test_a_field_that_means_another_model_is_refused_with_its_value(
    directory: Path, edit: Edit, refused: Refused, fields: dict[str, Any], says: str
) -> None:
    edit(directory / "config.json", **fields)
    refused(read_config, directory, says=(str(directory / "config.json"), says))


def test_fields_that_agree_are_accepted(directory: Path, edit: Edit) -> None:
    edit(
        directory / "config.json",
        head_dim=64,
        rope_scaling=None,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000},
        quantization_config=None,
    )
    assert read_config(directory).rope_theta == 1e6


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe{\x00", "is not text in UTF-8"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"hidden_size": 896, "hidden_size": 64}', "'hidden_size' occurs twice"),
    ],
    ids=["empty", "torn", "UTF-16", "nested", "digits", "array", "twice"],
)
def test_a_file_that_is_not_a_json_object_is_refused(
    directory: Path, refused: Refused, data: bytes, says: str
) -> None:
    (directory / "config.json").write_bytes(data)
    refused(read_config, directory, says=(str(directory / "config.json"), says))


def test_what_is_not_a_file_is_refused(tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "config.json"
    refused(read_config, tmp_path / "absent", says=("absent: not a model directory",))
    refused(read_config, tmp_path, says=("no config.json",))
    os.mkfifo(path)
    refused(read_config, tmp_path, says=(str(path), "not a regular file"))
    path.unlink()
    path.mkdir()
    refused(read_config, tmp_path, says=(str(path), "not a regular file"))
    path.rmdir()
    with path.open("wb") as file:  # sparse: takes no room
        file.truncate(2**33)
    refused(read_json_object, path, says=(str(path), "larger than"))


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fields=st.dictionaries(
        st.sampled_from(sorted({*TRANSFORMERS_4, *TRANSFORMERS_5, "rope_scaling", "head_dim"})),
        _VALUES | st.fixed_dictionaries({"rope_type": _VALUES, "rope_theta": _VALUES}),
        max_size=3,
    )
)
def test_any_values_are_read_or_refused(directory: Path, fields: dict[str, Any]) -> None:
    (directory / "config.json").write_text(json.dumps(TRANSFORMERS_5 | fields))
    try:
        config = read_config(directory)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert config.num_attention_heads % config.num_key_value_heads == 0
