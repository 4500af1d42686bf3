"""NF4's scales in 8 bits: the codes, the table and the layout of bitsandbytes."""

import json
from pathlib import Path

import numpy as np
import pytest

from nf4tui.models.double_quantize import dynamic_map, nf4_specs, nf4_tensors, quantize_absmax
from nf4tui.models.safetensors_file import open_safetensors
from nf4tui.models.weights import Nf4Tensor
from nf4tui.reference.nf4 import nf4_quantize


@pytest.mark.parametrize(("case", "missed"), [("tied", 0), ("bnb", 2)])
def test_it_is_bitsandbytes(golden: Path, case: str, missed: int) -> None:
    """Against tensors that bitsandbytes made on the CPU, whose table of codes has steps of 3e-5: where it
    does not take the nearest value, ours must be nearer."""
    recorded = open_safetensors(golden / case / "bnb4-dq/model.safetensors")
    base = open_safetensors(golden / case / "base/model.safetensors")
    compared = different = 0
    for name in recorded.tensors:
        if not name.endswith(".nested_absmax"):
            continue
        weight = name.removesuffix(".nested_absmax")
        np.testing.assert_array_equal(recorded.read(f"{weight}.nested_quant_map"), dynamic_map())
        state = json.loads(recorded.read(f"{weight}.quant_state.bitsandbytes__nf4").tobytes())
        packed, absmax = nf4_quantize(base.read(weight))
        np.testing.assert_array_equal(packed, recorded.read(weight).reshape(-1))
        offset = np.float32(state["nested_offset"])
        codes, scales, _ = quantize_absmax(absmax, offset)
        np.testing.assert_array_equal(scales, recorded.read(name).reshape(-1))
        theirs = recorded.read(f"{weight}.absmax").reshape(-1)
        wanted = (absmax - offset) / np.repeat(scales, 256)[: absmax.size]
        differing = codes != theirs
        ours_off, theirs_off = (np.abs(dynamic_map()[c] - wanted)[differing] for c in (codes, theirs))
        assert (ours_off < theirs_off).all() and (theirs_off < 3.1e-5).all()
        compared += codes.size
        different += int(differing.sum())
    assert compared > 1500 and different == missed


def test_the_bytes_of_a_quantised_matrix_are_those_its_header_says() -> None:
    values = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
    tensor = Nf4Tensor(*nf4_quantize(values), (64, 96))
    for offset in (None, np.float32(1.1754944e-38), np.float32(0.1)):
        specs, arrays = nf4_specs("w", (64, 96)), nf4_tensors(tensor, offset)
        assert [spec.nbytes for spec in specs.values()] == [array.nbytes for array in arrays]
        json.loads(arrays[-1].tobytes())


def test_a_zero_matrix_quantises_to_zeros() -> None:
    tensor = Nf4Tensor(*nf4_quantize(np.zeros((64, 64), np.float32)), (64, 64))
    _, codes, scales, table, *_ = nf4_tensors(tensor)
    assert not (table[codes] * np.repeat(scales, 256)[: codes.size]).any()


def test_of_two_equally_near_codes_the_even_one_is_taken() -> None:
    """As recorded from bitsandbytes' CUDA kernel: a block whose largest value is 1, and all midpoints."""
    table = dynamic_map()
    middles = (table[:-1] + table[1:]) / np.float32(2)
    codes, scales, _ = quantize_absmax(np.concatenate([[np.float32(1)], middles]), np.float32(0))
    assert scales == [1.0] and codes[0] == 255
    np.testing.assert_array_equal(codes[1:], np.arange(255) + np.arange(255) % 2)


def test_every_code_is_the_nearest() -> None:
    absmax = np.random.default_rng(3).gamma(4.0, 0.01, 5000).astype(np.float32)
    codes, scales, offset = quantize_absmax(absmax)
    table = dynamic_map().astype(np.float64)
    wanted = (absmax.astype(np.float64) - offset) / np.repeat(scales, 256)[: absmax.size]
    best = np.abs(table[None] - wanted[:, None]).min(axis=1)
    np.testing.assert_allclose(np.abs(table[codes] - wanted), best, rtol=0, atol=1e-7)
