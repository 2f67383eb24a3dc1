"""`avactl plan` as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import Run
from tests.diff.repository import Repository
from tests.plan.test_plan import compile_, job, platform, service, snapshot


def documents(*parts: str) -> str:
    """Specs with the apiVersion that the other tests leave out."""
    text = "".join(parts).strip()
    return "---\n".join(f"apiVersion: avactl.dev/v1\n{part.strip()}\n" for part in text.split("---\n") if part.strip())


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Three of four machines are in use; the work tree wants three more, and another image for who has them."""
    found = Repository(tmp_path / "specs")
    found.commit({"platform.yaml": documents(platform(), job("old", 3))})
    found.write({"platform.yaml": documents(platform(), job("old", 3), job("new", 2), job("one", 1))})
    return found


def test_text_markdown_and_json_say_the_same(repository: Repository, avactl: Run) -> None:
    done = avactl("plan", cwd=repository.root)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "cluster main · 1 waits for capacity, 1 starts"
    assert lines[3].split("  ")[0] == "TrainingJob vision/new"
    assert "waits for capacity" in lines[3]
    assert "a check, not a reservation" in done.stdout
    markdown = avactl("plan", "-f", "markdown", cwd=repository.root).stdout
    assert markdown.startswith("### Will it run?\n")
    assert "| ⏳ | `TrainingJob vision/new` | waits for capacity | 0 of 2 |" in markdown
    assert "A check, not a reservation" in markdown
    data = json.loads(avactl("plan", "-f", "json", cwd=repository.root).stdout)
    assert (data["version"], data["fine"]) == (1, False)
    assert {each["name"]: each["verdict"] for each in data["clusters"][0]["specs"]} == {
        "new": "waits for capacity",
        "one": "starts",
    }
    assert data["clusters"][0]["specs"][0]["file"] == "platform.yaml"


def test_exit_codes(repository: Repository, avactl: Run) -> None:
    assert avactl("plan", "--exit-code", cwd=repository.root).returncode == 4
    repository.write({"platform.yaml": documents(platform(), job("old", 3), job("one", 1))})
    assert avactl("plan", "--exit-code", cwd=repository.root).returncode == 0
    repository.write({"platform.yaml": documents(platform(), job("old", 3), job("one", 9))})
    broken = avactl("plan", cwd=repository.root)
    assert (broken.returncode, broken.stdout) == (1, "")
    assert "error[gang-never-fits]" in broken.stderr


def test_a_snapshot_takes_the_place_of_what_is_declared(repository: Repository, avactl: Run, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_bytes(snapshot(compile_(platform())))
    done = avactl("plan", "--snapshot", str(state), cwd=repository.root)
    assert "cluster main · 2 start" in done.stdout
    assert "based on the snapshot of 2026-01-02T00:00:00Z: 4 machines, 0 pods" in done.stdout


def test_sides_from_processes_of_their_own_say_the_same(repository: Repository, avactl: Run, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_bytes(snapshot(compile_(platform())))
    at_once = avactl("plan", "--snapshot", str(state), "-f", "json", cwd=repository.root)
    in_turn = avactl("plan", "--snapshot", str(state), "-f", "json", "--cluster", "main", cwd=repository.root)
    assert json.loads(at_once.stdout)["clusters"][0]["specs"][0]["line"] > 1
    assert at_once.stdout == in_turn.stdout
    repository.write({"platform.yaml": documents(platform(), job("old", 3), job("one", 9))})
    broken = avactl("plan", "--snapshot", str(state), cwd=repository.root)
    assert (broken.returncode, broken.stdout) == (1, "")
    assert broken.stderr.count("error[gang-never-fits]") == 1


def test_wrong_input_gets_one_line(repository: Repository, avactl: Run, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    for arguments, code, words in (
        (["--base", "nowhere"], 3, "nowhere"),
        (["--cluster", "mian"], 2, "did you mean `main`?"),
        (["--snapshot", "missing.json"], 2, "missing.json: no such file or directory"),
        (["--snapshot", str(state)], 2, "the file is empty"),
        (["--format", "yaml"], 2, "'yaml' is not one of"),
    ):
        state.write_bytes(b"")
        done = avactl("plan", *arguments, cwd=repository.root)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    state.write_bytes(snapshot(compile_(platform())).replace(b'"cluster":"main"', b'"cluster":"other"'))
    done = avactl("plan", "--snapshot", str(state), cwd=repository.root)
    assert (done.returncode, done.stdout) == (2, "")
    assert "of cluster other, which the specs do not declare" in done.stderr


def test_a_base_with_errors_counts_as_nothing(tmp_path: Path, avactl: Run) -> None:
    found = Repository(tmp_path / "specs")
    found.commit({"platform.yaml": documents(platform(), job("old", 99))})
    found.write({"platform.yaml": documents(platform(), job("old", 1), service(1))})
    done = avactl("plan", cwd=found.root)
    assert done.returncode == 0
    assert "the base does not compile: all specs count as new" in done.stderr
    assert "3 start" in done.stdout


def test_a_pool_is_drawn_from_the_specs(tmp_path: Path, avactl: Run) -> None:
    ava = Path(__file__).resolve().parents[2] / "examples" / "ava"
    shown = avactl("pool", "v100", "--specs", str(ava), "--cluster", "train", "-o", "v100.svg")
    assert shown.returncode == 0, shown.stderr
    picture = (tmp_path / "v100.svg").read_text()
    assert "vision/resnet50" in picture
    assert "12 machines · " in picture
    assert "k80" not in picture
    several = avactl("pool", "--specs", str(ava))
    assert several.returncode == 2
    assert "--cluster: `serve` or `train`" in several.stderr
    assert avactl("pool", "v99", "--specs", str(ava), "--cluster", "train").returncode == 2
