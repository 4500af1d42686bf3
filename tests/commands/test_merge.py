"""`nf4tui merge`: what it prints, what it writes, and what it refuses before it writes anything."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nf4tui.commands import merge
from nf4tui.errors import InputError
from nf4tui.lora import LoraConfig
from nf4tui.models.adapter import tensor_shapes, write_adapter
from nf4tui.models.load import fingerprint, load_model
from nf4tui.models.qwen2 import read_config


@pytest.fixture(scope="session")
def adapter(tmp_path_factory: pytest.TempPathFactory, sample_model: Path) -> Path:
    """An adapter of the sample model that names its base."""
    folder = tmp_path_factory.mktemp("adapter")
    config, lora = read_config(sample_model), LoraConfig(rank=4, alpha=8.0)
    random = np.random.default_rng(0)
    tensors = {
        name: (0.05 * random.standard_normal(shape)).astype(np.float32)
        for name, shape in tensor_shapes(config, lora).items()
    }
    base = fingerprint(load_model(sample_model))
    write_adapter(folder, config, lora, tensors, base_model="sample", base_sha256=base)
    return folder


@pytest.fixture
def merged(
    sample_model: Path, adapter: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., dict[str, Any]]:
    """Merges in this process; gives the event."""

    def call(out: Path, **arguments: Any) -> dict[str, Any]:
        arguments = {"model": str(sample_model), "adapter": str(adapter), "as_json": True, **arguments}
        assert merge.run(out=str(out), **arguments) == 0
        event: dict[str, Any] = json.loads(capsys.readouterr().out)
        return event

    return call


def test_the_default_is_nearest_to_the_trained_model(
    tmp_path: Path, merged: Callable[..., dict[str, Any]]
) -> None:
    models = merged(tmp_path / "out")["models"]
    trained, written, other = (
        models[name] for name in ("trained", "written, into dequantised", "bfloat16, into original")
    )
    assert trained["logits_rel_l2"] == 0
    assert 1e-4 < written["logits_rel_l2"] < 1e-2 < other["logits_rel_l2"] < 0.5
    assert abs(written["loss"] - trained["loss"]) < abs(other["loss"] - trained["loss"])
    again = merged(tmp_path / "original", into="original")["models"]
    assert again["written, into original"] == other
    assert again["bfloat16, into dequantised"] == written


def test_quantised_is_measured_beside_both_others(
    tmp_path: Path, merged: Callable[..., dict[str, Any]], sample_model: Path
) -> None:
    data = sample_model.parent / "heldout.jsonl"
    models = merged(tmp_path / "out", quantise=True, data=str(data))["models"]
    assert list(models) == [
        "trained",
        "written, into dequantised",
        "bfloat16, into dequantised",
        "bfloat16, into original",
    ]
    assert (
        models["written, into dequantised"]["logits_rel_l2"]
        > models["bfloat16, into dequantised"]["logits_rel_l2"]
    )


def test_a_merged_directory_is_a_model_with_its_tokenizer_and_ends(
    tmp_path: Path, sample_model: Path, adapter: Path, run: Callable[..., Any]
) -> None:
    base = tmp_path / "base"
    shutil.copytree(sample_model, base)
    fields = json.loads((base / "tokenizer_config.json").read_text())
    end, chat_end = 1531, 1533
    (base / "tokenizer_config.json").write_text(
        json.dumps(
            {name: value for name, value in fields.items() if name != "chat_template"}
            | {"eos_token": "<|endoftext|>"}
        )
    )
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": end, "temperature": 0.7}))
    done = run("merge", "--model", base, "--adapter", adapter, "--out", "out dir")
    assert (done.returncode, done.stderr) == (0, "")
    assert "trained" in done.stdout and "logits relL2" in done.stdout
    out = tmp_path / "out dir"
    generation = json.loads((out / "generation_config.json").read_text())
    assert generation == {"eos_token_id": [chat_end, end], "temperature": 0.7}
    assert (out / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    assert "<|im_start|>" in (out / "chat_template.jinja").read_text()
    answer = run("generate", "--model", out, "--prompt", "Hi", "--max-tokens", "3")
    assert answer.returncode == 0 and answer.stdout


def refusal(sample_model: Path, adapter: Path, out: Any, **arguments: Any) -> str:
    given = {"model": str(sample_model), "adapter": str(adapter), "out": str(out), **arguments}
    with pytest.raises(InputError) as caught:
        merge.run(**given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"adapter": None}, "--adapter"),
        ({"out": None}, "--out"),
        ({"into": "both"}, "--into both: must be one of dequantised, original"),
        ({"data": "gone.jsonl"}, "gone.jsonl: no such file"),
        ({"adapter": "gone"}, "gone: no adapter_config.json"),
        ({"adapter": "~nobody-here/adapter"}, "~nobody-here/adapter: "),
        ({"model": "gone/model/x"}, "gone/model/x"),
    ],
)
def test_bad_arguments_are_refused(
    tmp_path: Path, sample_model: Path, adapter: Path, arguments: dict[str, Any], says: str
) -> None:
    given = {"model": str(sample_model), "adapter": str(adapter), "out": str(tmp_path / "out"), **arguments}
    with pytest.raises(InputError, match=re.escape(says)):
        merge.run(**given)
    assert list(tmp_path.iterdir()) == []


def test_another_base_is_refused(tmp_path: Path, sample_model: Path, adapter: Path) -> None:
    """The same shapes, one value changed: only the hash can tell."""
    model = tmp_path / "model"
    shutil.copytree(sample_model, model)
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    message = refusal(model, adapter, tmp_path / "out")
    assert "was trained on another base, 'sample' with hash" in message
    assert not (tmp_path / "out").exists()
