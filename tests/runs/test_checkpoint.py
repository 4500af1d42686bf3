"""A checkpoint is whole or it is not used; what is not ours in the folder stays."""

import shutil
from pathlib import Path

import pytest

from nf4tui.errors import InputError
from nf4tui.runs import checkpoint, durable


def fill(folder: Path) -> None:
    (folder / "a.bin").write_bytes(b"alpha" * 100)
    (folder / "state.json").write_text("{}")


def test_a_checkpoint_just_written_verifies(tmp_path: Path) -> None:
    path = checkpoint.write(tmp_path, 50, fill)
    assert path.name == "step-000050"
    checkpoint.check(path)
    assert sorted(file.name for file in path.iterdir()) == ["MANIFEST.json", "a.bin", "state.json"]


@pytest.mark.parametrize("name", ["a.bin", "state.json", "MANIFEST.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "append", "empty", "remove"])
def test_any_damage_to_any_file_is_found_and_the_file_named(tmp_path: Path, name: str, damage: str) -> None:
    path = checkpoint.write(tmp_path, 50, fill)
    data = (path / name).read_bytes()
    match damage:
        case "flip":
            (path / name).write_bytes(bytes([data[0] ^ 1]) + data[1:])
        case "cut":
            (path / name).write_bytes(data[:-2])
        case "append":
            (path / name).write_bytes(data + b"}")
        case "empty":
            (path / name).write_bytes(b"")
        case "remove":
            (path / name).unlink()
    with pytest.raises(InputError, match=name):
        checkpoint.check(path)


def test_a_file_that_the_manifest_does_not_know_is_named(tmp_path: Path) -> None:
    path = checkpoint.write(tmp_path, 50, fill)
    (path / "extra").write_text("")
    with pytest.raises(InputError, match="extra"):
        checkpoint.check(path)


def test_a_manifest_that_points_outside_is_refused(tmp_path: Path) -> None:
    path = checkpoint.write(tmp_path, 50, fill)
    manifest = path / checkpoint.MANIFEST
    manifest.write_text(manifest.read_text().replace("a.bin", "../../a.bin"))
    with pytest.raises(InputError, match="missing"):
        checkpoint.check(path)


def test_a_write_that_dies_leaves_no_checkpoint_and_its_remains_are_removed(tmp_path: Path) -> None:
    def die(folder: Path) -> None:
        fill(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoint.write(tmp_path, 50, die)
    assert checkpoint.steps(tmp_path) == []
    assert list(tmp_path.iterdir())
    durable.remove_temporaries(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_broken_checkpoint_is_replaced_by_a_new_one_of_its_step(tmp_path: Path) -> None:
    path = checkpoint.write(tmp_path, 50, fill)
    (path / "a.bin").write_bytes(b"")
    checkpoint.check(checkpoint.write(tmp_path, 50, fill))


def test_steps_are_listed_newest_first_and_other_names_are_left_out(tmp_path: Path) -> None:
    for step in (9, 1_000_000, 10):
        checkpoint.write(tmp_path, step, fill)
    (tmp_path / "step-1").mkdir()
    (tmp_path / "notes").mkdir()
    assert checkpoint.steps(tmp_path) == [1_000_000, 10, 9]
    assert checkpoint.steps(tmp_path / "nowhere") == []


def test_the_newest_are_kept_with_the_best_they_refer_to_and_nothing_foreign_goes(tmp_path: Path) -> None:
    for step in range(1, 9):
        checkpoint.write(tmp_path, step, fill)
    (tmp_path / "notes").write_text("mine")
    best = {"step-000008": 5, "step-000007": 2, "step-000001": 3}
    checkpoint.prune(tmp_path, keep=2, best_of=lambda path: best.get(path.name))
    assert checkpoint.steps(tmp_path) == [8, 7, 5, 2]
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_removal_that_dies_half_way_leaves_no_broken_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        checkpoint.write(tmp_path, step, fill)

    def die(path: Path) -> None:
        (path / "a.bin").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", die)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.prune(tmp_path, keep=1, best_of=lambda path: None)
    assert checkpoint.steps(tmp_path) == [2]
