"""bitsandbytes' own 4-bit checkpoints load bit for bit; whatever is not NF4 in blocks of 64 is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nf4tui.lora import PROJECTIONS
from nf4tui.models.load import load_model
from nf4tui.models.qwen2 import module_name
from nf4tui.models.safetensors_file import open_safetensors
from nf4tui.reference.nf4 import nf4_dequantize

Refused = Callable[..., str]
Edit = Callable[..., None]
Tensors = dict[str, tuple[str, list[int], bytes]]
Rewrite = Callable[[Path, Callable[[Tensors], None]], None]
Q = "model.layers.0.self_attn.q_proj.weight"
STATE = f"{Q}.quant_state.bitsandbytes__nf4"


@pytest.fixture
def plain(tmp_path: Path, golden: Path) -> Path:
    return Path(shutil.copytree(golden / "tied" / "bnb4", tmp_path / "bnb4"))


@pytest.fixture
def nested(tmp_path: Path, golden: Path) -> Path:
    return Path(shutil.copytree(golden / "tied" / "bnb4-dq", tmp_path / "bnb4-dq"))


def weights_of(directory: Path) -> Path:
    return directory / "model.safetensors"


def with_state(**fields: Any) -> Callable[[Tensors], None]:
    """Changes fields of the quant state of Q; None removes one."""

    def change(tensors: Tensors) -> None:
        state = json.loads(tensors[STATE][2]) | fields
        data = json.dumps({name: value for name, value in state.items() if value is not None}).encode()
        tensors[STATE] = ("U8", [len(data)], data)

    return change


def with_tensor(suffix: str, dtype: str, shape: list[int], data: bytes) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({Q + suffix: (dtype, shape, data)})


@pytest.mark.parametrize("case", ["tied", "bnb"])
def test_packed_codes_and_scales_are_those_that_bitsandbytes_recorded(golden: Path, case: str) -> None:
    recorded = open_safetensors(golden / case / "golden.safetensors")
    plain, nested = load_model(golden / case / "bnb4"), load_model(golden / case / "bnb4-dq")
    for number in range(plain.config.num_hidden_layers):
        for name in PROJECTIONS:
            key = f"nf4.{module_name(number, name)}"
            for weights in (plain, nested):
                found = weights.layers[number].projections[name]
                assert np.array_equal(found.packed, recorded.read(f"{key}.packed").reshape(-1))
            absmax = recorded.read(f"{key}.absmax").reshape(-1)
            assert np.array_equal(plain.layers[number].projections[name].absmax, absmax)
            # Double quantisation moves a scale by at most half a step of its 8-bit code.
            moved = nested.layers[number].projections[name].absmax - absmax
            assert 0 < np.abs(moved).max() < 0.02 * absmax.max()


def test_double_quantised_scales_are_rebuilt_as_bitsandbytes_does(golden: Path) -> None:
    directory = golden / "tied" / "bnb4-dq"
    file = open_safetensors(weights_of(directory))
    state = json.loads(file.read(STATE).tobytes())
    assert state["nested_blocksize"] == 256
    codes, table = file.read(f"{Q}.absmax"), file.read(f"{Q}.nested_quant_map")
    scales, offset = file.read(f"{Q}.nested_absmax"), np.float32(state["nested_offset"])
    expected = [table[code] * scales[place // 256] + offset for place, code in enumerate(codes)]
    found = load_model(directory).layers[0].projections["q_proj"]
    assert found.absmax.dtype == np.float32 and np.array_equal(found.absmax, np.array(expected))
    assert np.isfinite(nf4_dequantize(found.packed, found.absmax, found.shape)).all()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"quant_method": "gptq", "bits": 4}, "'gptq' without load_in_4bit is not supported"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "without load_in_4bit"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bnb_4bit_quant_type is 'fp4'"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}, "only 'nf4' is supported"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": ["nf4"]}, "only 'nf4' is supported"),
        ("nf4", "quantization_config is 'nf4': must be an object"),
        ([], "quantization_config is []: must be an object"),
    ],
)
def test_another_quantisation_in_config_json_is_refused(
    plain: Path, refused: Refused, edit: Edit, config: object, says: str
) -> None:
    edit(plain / "config.json", quantization_config=config)
    refused(load_model, plain, says=(str(plain / "config.json"), says))


@pytest.mark.parametrize(
    ("change", "suffix", "says"),
    [
        (with_state(quant_type="fp4"), STATE[len(Q) :], "quant_type is 'fp4'; only nf4"),
        (with_state(quant_type=None), STATE[len(Q) :], "quant_type is None"),
        (with_state(blocksize=128), STATE[len(Q) :], "blocksize is 128; only 64"),
        (with_state(blocksize=None), STATE[len(Q) :], "blocksize is None"),
        (with_state(shape=[32, 128]), STATE[len(Q) :], "shape is [32, 128]; config.json implies [64, 64]"),
        (with_state(shape=64), STATE[len(Q) :], "shape is 64"),
        (with_state(shape=None), STATE[len(Q) :], "shape is None"),
        (with_tensor(STATE[len(Q) :], "U8", [2], b"{]"), STATE[len(Q) :], "is not JSON"),
        (with_tensor(STATE[len(Q) :], "U8", [2], b"[]"), STATE[len(Q) :], "is not a JSON object"),
        (with_tensor(STATE[len(Q) :], "F32", [2], bytes(8)), STATE[len(Q) :], "is float32; the bytes"),
        (with_tensor(".quant_map", "F32", [16], bytes(64)), ".quant_map", "is not the NF4 code table"),
        (with_tensor(".quant_map", "F32", [15], bytes(60)), ".quant_map", "is not the NF4 code table"),
        (with_tensor(".quant_map", "U8", [64], bytes(64)), ".quant_map", "is not the NF4 code table"),
        (with_tensor("", "U8", [2047, 1], bytes(2047)), "", "uint8 [2047, 1]; uint8 of 2048 bytes is needed"),
        (with_tensor("", "I8", [2048, 1], bytes(2048)), "", "int8 [2048, 1]; uint8 of 2048 bytes is needed"),
        (with_tensor(".absmax", "F32", [63], bytes(252)), ".absmax", "63 values; 64 are needed"),
        (with_tensor(".absmax", "F16", [64], bytes(128)), ".absmax", "is float16; float32 is needed"),
        (
            with_tensor(".absmax", "F32", [64], np.full(64, [np.nan], "f4").tobytes()),
            ".absmax",
            "64 non-finite values",
        ),
        (
            with_tensor(".absmax", "F32", [64], np.array([np.inf] + [1] * 63, "f4").tobytes()),
            ".absmax",
            "1 non-finite values",
        ),
    ],
)
def test_a_matrix_that_contradicts_nf4_is_refused_by_tensor(
    plain: Path, refused: Refused, rewrite: Rewrite, change: Callable[[Tensors], None], suffix: str, says: str
) -> None:
    rewrite(weights_of(plain), change)
    refused(load_model, plain, says=(str(weights_of(plain)), f"tensor '{Q}{suffix}': ", says))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (with_state(nested_blocksize=0), "nested_blocksize is 0"),
        (with_state(nested_blocksize="256"), "nested_blocksize is '256'"),
        (with_state(nested_blocksize=True), "nested_blocksize is True"),
        (with_state(nested_blocksize=16), "nested_absmax': must hold 4 float32 values"),
        (with_state(nested_blocksize=None), "absmax': is uint8; float32 is needed without double"),
        (with_state(nested_offset=None), "nested_offset is None; a finite number is needed"),
        (with_state(nested_offset=float("nan")), "nested_offset is nan"),
        (with_state(nested_offset=True), "nested_offset is True"),
        (with_state(nested_offset=1e39), "nested_offset is 1e+39"),
        (with_state(nested_offset=10**400), "nested_offset is 1000"),
        (with_tensor(".absmax", "F32", [64], bytes(256)), "absmax': is float32; uint8 is needed with double"),
        (with_tensor(".nested_quant_map", "F32", [255], bytes(1020)), "must hold 256 float32 values"),
        (with_tensor(".nested_absmax", "F16", [1], bytes(2)), "must hold 1 float32 values"),
        (
            with_tensor(".nested_absmax", "F32", [1], np.array([np.nan], "f4").tobytes()),
            "absmax': 64 non-finite values",
        ),
        (
            lambda tensors: tensors.pop(f"{Q}.nested_quant_map") and None,
            f"missing tensors: {Q}.nested_quant_map",
        ),
        (
            lambda tensors: tensors.pop(f"{Q}.nested_absmax") and None,
            f"does not imply: {Q}.nested_quant_map",
        ),
        (
            lambda tensors: [tensors.pop(f"{Q}.nested_{part}") for part in ("absmax", "quant_map")] and None,
            "nested_absmax': is missing, although quant_state.bitsandbytes__nf4 says nested_blocksize",
        ),
    ],
)
def test_double_quantisation_that_lacks_or_contradicts_a_part_is_refused(
    nested: Path, refused: Refused, rewrite: Rewrite, change: Callable[[Tensors], None], says: str
) -> None:
    rewrite(weights_of(nested), change)
    refused(load_model, nested, says=(str(weights_of(nested)), says))


def test_a_stated_block_far_longer_than_the_matrix_costs_no_memory(nested: Path, rewrite: Rewrite) -> None:
    before = load_model(nested).layers[0].projections["q_proj"].absmax
    rewrite(weights_of(nested), with_state(nested_blocksize=2**60))
    assert np.array_equal(load_model(nested).layers[0].projections["q_proj"].absmax, before)


def test_fp4_skipped_and_incomplete_projections_are_refused_by_name(
    plain: Path, refused: Refused, rewrite: Rewrite
) -> None:
    whole = weights_of(plain).read_bytes()
    rewrite(
        weights_of(plain), lambda tensors: tensors.update({STATE.replace("nf4", "fp4"): tensors.pop(STATE)})
    )
    refused(load_model, plain, says=(f"quantised to FP4, not NF4: {Q}",))
    weights_of(plain).write_bytes(whole)
    rewrite(weights_of(plain), lambda tensors: tensors.pop(f"{Q}.absmax") and None)
    refused(load_model, plain, says=(f"missing tensors: {Q}.absmax",))
    weights_of(plain).write_bytes(whole)

    def skip(tensors: Tensors) -> None:
        for suffix in (".absmax", ".quant_map", STATE[len(Q) :]):
            del tensors[Q + suffix]
        tensors[Q] = ("BF16", [64, 64], bytes(8192))

    rewrite(weights_of(plain), skip)
    refused(load_model, plain, says=("4-bit checkpoint with unquantised projections is not supported", Q))


def test_a_4_bit_file_under_a_config_that_does_not_say_so_is_refused(
    plain: Path, refused: Refused, edit: Edit, absent: object
) -> None:
    edit(plain / "config.json", quantization_config=absent)
    refused(load_model, plain, says=("tensors that config.json does not imply", ".weight.absmax"))
