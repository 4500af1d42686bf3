"""verify --case: every recorded oracle is met, every tampered one is red, every broken one is refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from nf4tui.commands.verify import run
from nf4tui.errors import CannotRunError, InputError
from nf4tui.parity.case_check import check_case
from nf4tui.parity.compare import Comparison, rel_l2

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
CASES = sorted(path.name for path in GOLDEN.iterdir() if (path / "case.json").exists())
ALWAYS = {"nf4", "hidden", "logits", "loss", "grad", "grad_norm", "after_step", "loss_after_step"}


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """A copy of the tied case to tamper with."""
    return Path(shutil.copytree(GOLDEN / "tied", tmp_path / "case"))


def tamper(case: Path, name: str, change) -> None:
    path = case / "golden.safetensors"
    tensors = load_file(path)
    tensors[name] = change(tensors[name])
    save_file(tensors, path)


@pytest.mark.parametrize("name", CASES)
def test_the_cpu_engine_meets_every_recorded_oracle(name: str) -> None:
    groups = {group.name: group for group in check_case(GOLDEN / name)}
    assert {group for group in groups if "." not in group} == ALWAYS
    for base in ("bnb4", "bnb4-dq"):
        assert (f"{base}.logits" in groups) == (GOLDEN / name / base).is_dir()
    red = {group.name: (group.comparison, group.worst) for group in groups.values() if not group.ok}
    assert not red


def test_there_are_cases_of_every_kind() -> None:
    settings = [json.loads((GOLDEN / name / "base/config.json").read_text()) for name in CASES]
    assert {config["tie_word_embeddings"] for config in settings} == {True, False}
    groups = {config["num_attention_heads"] // config["num_key_value_heads"] for config in settings}
    assert groups >= {1, 2, 4, 7}
    assert any("rope_theta" in config for config in settings)
    assert any("rope_parameters" in config for config in settings)


@pytest.mark.parametrize(
    ("tensor", "group"),
    [
        ("nf4.model.layers.1.mlp.up_proj.packed", "nf4"),
        ("nf4.model.layers.0.self_attn.k_proj.absmax", "nf4"),
        ("hidden.1", "hidden"),
        ("hidden.2", "hidden"),
        ("logits", "logits"),
        ("loss", "loss"),
        ("grad.base_model.model.model.layers.1.mlp.down_proj.lora_A.default.weight", "grad"),
        ("grad_norm", "grad_norm"),
        ("after_step.base_model.model.model.layers.0.self_attn.q_proj.lora_B.default.weight", "after_step"),
        ("loss_after_step", "loss_after_step"),
    ],
)
def test_a_changed_tensor_turns_its_group_red(case: Path, tensor: str, group: str, capsys) -> None:
    def change(array):
        changed = array.copy()
        flat = changed.reshape(-1)
        if changed.dtype == np.uint8:
            flat[0] ^= 1
        else:
            flat[:] *= np.float32(1 + 3e-5)
        return changed

    tamper(case, tensor, change)
    assert run(case=str(case), model=None, device="cpu", as_json=True) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["ok"] is False
    assert result["groups"][group]["ok"] is False


def test_nan_in_the_oracle_is_red_and_stays_valid_json(case: Path, capsys) -> None:
    tamper(case, "logits", lambda array: np.full_like(array, np.nan))
    assert run(case=str(case), model=None, device="auto", as_json=True) == 1
    groups = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["groups"]
    assert groups["logits"] == groups["logits"] | {"rel_l2": None, "ok": False}


def test_rows_of_padding_are_not_compared(case: Path) -> None:
    mask = load_file(case / "golden.safetensors")["attention_mask"]
    assert (mask == 0).any()

    def poison(array):
        changed = array.copy()
        changed[mask == 0] = np.nan
        return changed

    for name in ("hidden.1", "hidden.2", "logits"):
        tamper(case, name, poison)
    assert all(group.ok for group in check_case(case))


@pytest.mark.parametrize(
    "missing", ["logits", "hidden.1", "grad_norm", "labels", "nf4.model.layers.0.mlp.up_proj.packed"]
)
def test_a_missing_tensor_is_refused_by_name(case: Path, missing: str) -> None:
    path = case / "golden.safetensors"
    tensors = load_file(path)
    del tensors[missing]
    save_file(tensors, path)
    with pytest.raises(InputError, match=missing.replace(".", r"\.")):
        check_case(case)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("attention_mask", lambda a: a[:, ::-1].copy(), "padding on the right"),
        ("attention_mask", lambda a: a * 2, "0 or 1"),
        ("labels", lambda a: np.full_like(a, -100), "supervise nothing"),
        ("labels", lambda a: a[:, :-1].copy(), "one shape"),
        ("input_ids", lambda a: a + 1000, "outside the vocabulary"),
        ("logits", lambda a: a[..., :-1].copy(), "imply"),
    ],
)
def test_a_malformed_batch_is_refused(case: Path, name: str, change, said: str) -> None:
    tamper(case, name, change)
    with pytest.raises(InputError, match=said):
        check_case(case)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"optimizer": {"lr": 1}}', '{"optimizer": 3}'])
def test_a_malformed_case_json_is_refused(case: Path, text: str) -> None:
    (case / "case.json").write_text(text)
    with pytest.raises(InputError, match=r"case\.json"):
        check_case(case)


def test_flags_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a directory"):
        run(case=str(tmp_path / "none"), model=None, device="cpu", as_json=False)
    with pytest.raises(InputError, match="one of them"):
        run(case=None, model=None, device="cpu", as_json=False)
    with pytest.raises(InputError, match="itself"):
        run(case=None, model="m", device="cpu", as_json=False)
    with pytest.raises(InputError, match="must be one of"):
        run(case="c", model=None, device="tpu", as_json=False)
    for device in ("cuda", "sim"):
        with pytest.raises(CannotRunError):
            run(case="c", model=None, device=device, as_json=False)
    with pytest.raises(CannotRunError):
        run(case=None, model="m", device="auto", as_json=False)


def test_nan_never_passes_a_comparison() -> None:
    assert Comparison(1e-6, 1e-5).ok
    assert not Comparison(float("nan"), 1e-5).ok
    assert np.isnan(rel_l2(np.array([np.nan, 1.0]), np.array([1.0, 1.0])))
    assert rel_l2(np.zeros(3), np.zeros(3)) == 0
    assert rel_l2(np.ones(3), np.zeros(3)) == float("inf")
