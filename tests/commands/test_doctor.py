"""nf4tui doctor: a line a fact; exit 0 when training on the CPU works, whatever else is missing."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nf4tui import doctor, gpu
from nf4tui.commands.doctor import run as run_doctor
from nf4tui.errors import CannotRunError

Run = Callable[..., Any]


def test_it_names_what_it_found_and_ends_with_0(run: Run) -> None:
    found = run("doctor")
    assert (found.returncode, found.stderr) == (0, "")
    levels = {line[6:19].rstrip(): line[:4].rstrip() for line in found.stdout.splitlines()}
    assert levels["cpu training"] == levels["packages"] == levels["python"] == "ok"
    assert set(levels.values()) <= {"ok", "warn"}
    assert {"processor", "memory", "terminal", "gpu", "hub cache", "default model"} <= set(levels)


def test_json_is_the_same_lines(run: Run) -> None:
    lines = [json.loads(line) for line in run("doctor", "--json").stdout.splitlines()]
    assert {line["event"] for line in lines} == {"doctor"}
    assert {line["check"]: line["level"] for line in lines}["cpu training"] == "ok"


def test_a_package_that_cannot_be_imported_is_named_and_ends_with_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(CannotRunError, match="packages"):
        run_doctor()
    assert "fail  packages       safetensors cannot be imported" in capsys.readouterr().out


def test_a_numba_that_fails_on_import_is_named_and_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba" / "__init__.py").write_text("import numpy\nnumpy.row_stack_of_2_5\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(gpu, "_driver_is_there", lambda: True)
    for name in [name for name in sys.modules if name.partition(".")[0] == "numba"]:
        monkeypatch.delitem(sys.modules, name)
    found = {check.name: check for check in doctor.checks()}["gpu"]
    assert found.level == "warn" and "row_stack_of_2_5" in found.text


def test_a_check_that_breaks_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise OSError("no sensor")

    monkeypatch.setattr(doctor, "_CHECKS", (("a", broken), ("b", lambda: (doctor.OK, "fine"))))
    assert [(check.level, check.text) for check in doctor.checks()] == [
        ("fail", "OSError: no sensor"),
        ("ok", "fine"),
    ]


def test_an_engine_that_computes_nonsense_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from nf4tui.reference.engine import ReferenceEngine

    real = ReferenceEngine.step
    monkeypatch.setattr(ReferenceEngine, "step", lambda *arguments: replace(real(*arguments), nonfinite=1))
    assert {check.name: check.level for check in doctor.checks()}["cpu training"] == "fail"
