"""The output directory: whole, ours, and touched only where something changed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from hashlib import sha256
from pathlib import Path

import pytest

from avactl.apply.files import atomic_swap, output
from avactl.apply.files.output import OutputError, Seen, WrittenFiles
from avactl.spec.repository.tree import DirTree
from avactl.spec.repository.tree_files import RENDERED

Files = dict[str, str]
FIRST: Files = {
    "main/_platform/_cluster/namespace-a.yaml": "a\n",
    "main/vision/vision/job-x.yaml": "x: 1\n",
    "main/vision/vision/job-y.yaml": "y: 1\n",
    "main/ads/ads/job-z.yaml": "z: 1\n",
}


def write(directory: Path, files: Files, force: bool = False, seen: Seen | None = None) -> WrittenFiles:
    wanted = {path: sha256(text.encode()).hexdigest() for path, text in files.items()}

    def texts(paths: Collection[str]) -> Mapping[str, str]:
        return {path: files[path] for path in paths}

    return output.write(str(directory), wanted, texts, force=force, seen=seen)


def content(directory: Path) -> Files:
    """All files but the lists."""
    found = (path for path in directory.rglob("*") if path.is_file() and path.name != RENDERED)
    return {path.relative_to(directory).as_posix(): path.read_text() for path in found}


def inodes(directory: Path) -> dict[str, int]:
    return {path: (directory / path).stat().st_ino for path in content(directory)}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "out"


def test_writes_replaces_and_deletes(out: Path) -> None:
    assert write(out, FIRST).written == 4
    assert content(out) == FIRST
    before = inodes(out)
    second = {**FIRST, "main/vision/vision/job-x.yaml": "x: 2\n"}
    del second["main/ads/ads/job-z.yaml"]
    done = write(out, second)
    assert (done.written, done.kept, done.deleted) == (1, 2, 1)
    assert content(out) == second
    after = inodes(out)
    assert [path for path in after if after[path] != before[path]] == ["main/vision/vision/job-x.yaml"]
    assert not (out / "main" / "ads").exists()
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_lists_are_checksums(out: Path) -> None:
    write(out, FIRST)
    folder = out / "main" / "vision" / "vision"
    done = subprocess.run(["sha256sum", "--check", "--quiet", RENDERED], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_change_in_one_directory_leaves_the_others_alone(out: Path) -> None:
    write(out, FIRST)
    before = (out / "main" / "ads").stat().st_ino
    write(out, {**FIRST, "main/vision/vision/job-x.yaml": "x: 2\n"})
    assert (out / "main" / "ads").stat().st_ino == before


def make_older(folder: Path) -> None:
    """Let some time pass for the files: younger ones are read again."""
    for path in folder.rglob("*"):
        about = path.stat()
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns - 10**9))


def test_nothing_changed_is_nothing_done(out: Path) -> None:
    first = write(out, FIRST)
    make_older(out)
    before = out.stat().st_ino, inodes(out)
    done = write(out, FIRST, seen=write(out, FIRST, seen=first.seen).seen)
    assert (done.written, done.kept) == (0, 4)
    assert (out.stat().st_ino, inodes(out)) == before
    assert sum(len(stamps) for _, stamps in done.seen.values()) == 4


def test_files_seen_before_are_not_read(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(out, FIRST)
    make_older(out)
    seen = write(out, FIRST).seen
    read: list[str] = []
    real = output._read
    monkeypatch.setattr(output, "_read", lambda path: read.append(path) or real(path))  # type: ignore[func-returns-value]
    (out / "main/ads/ads/job-z.yaml").write_text("z: 1\n")
    write(out, FIRST, seen=seen)
    assert [Path(path).name for path in read if not path.endswith(RENDERED)] == ["job-z.yaml"]


def test_nothing_wanted(out: Path) -> None:
    write(out, {})
    assert content(out) == {}
    write(out, FIRST)
    write(out, {})
    assert content(out) == {}
    assert sorted(path.name for path in out.iterdir()) == [RENDERED]


def test_changed_by_hand(out: Path) -> None:
    seen = write(out, FIRST).seen
    (out / "main/vision/vision/job-x.yaml").write_text("x: 9\n")
    for known in (None, seen):
        with pytest.raises(OutputError, match=r"would be lost: changed by hand: main/vision/vision/job-x\.yaml$"):
            write(out, FIRST, seen=known)
    assert (out / "main/vision/vision/job-x.yaml").read_text() == "x: 9\n"
    write(out, FIRST, force=True)
    assert content(out) == FIRST


def test_deleted_by_hand_comes_back(out: Path) -> None:
    seen = write(out, FIRST).seen
    (out / "main/vision/vision/job-x.yaml").unlink()
    shutil.rmtree(out / "main" / "ads")
    assert write(out, FIRST, seen=seen).written == 2
    assert content(out) == FIRST


def test_added_by_hand(out: Path) -> None:
    write(out, FIRST)
    (out / "README.md").write_text("mine\n")
    (out / "main/vision/vision/link.yaml").symlink_to("/etc/passwd")
    with pytest.raises(OutputError, match=r"added by hand: README.md, main/vision/vision/link.yaml$"):
        write(out, FIRST)
    second = {**FIRST, "main/vision/vision/job-x.yaml": "x: 2\n", "main/ads/ads/job-z.yaml": "z: 2\n"}
    write(out, second, force=True)
    assert (out / "README.md").read_text() == "mine\n"
    assert (out / "main/vision/vision/link.yaml").readlink() == Path("/etc/passwd")
    (out / "main/vision/vision/link.yaml").unlink()
    assert content(out) == {**second, "README.md": "mine\n"}


def test_added_by_hand_where_a_file_shall_be(out: Path) -> None:
    path = "main/ads/ads/job-new.yaml"
    write(out, FIRST)
    (out / path).write_text("mine\n")
    with pytest.raises(OutputError, match="added by hand"):
        write(out, {**FIRST, path: "new: 1\n"})
    write(out, {**FIRST, path: "new: 1\n"}, force=True)
    assert content(out) == {**FIRST, path: "new: 1\n"}


def test_many_are_counted(out: Path) -> None:
    write(out, FIRST)
    for i in range(9):
        (out / f"{i}.txt").touch()
    with pytest.raises(OutputError, match=r"0\.txt, 1\.txt, 2\.txt, 3\.txt, 4\.txt and 4 more"):
        write(out, FIRST)


def test_marks_of_a_merge_in_a_list(out: Path) -> None:
    write(out, FIRST)
    listing = out / "main/vision/vision" / RENDERED
    lines = listing.read_text().splitlines()
    listing.write_text("\n".join([lines[0], "<<<<<<< ours", lines[1], "=======", lines[2], ">>>>>>> theirs", ""]))
    write(out, FIRST)
    assert listing.read_text().splitlines() == lines


def test_not_ours(tmp_path: Path) -> None:
    directory = tmp_path / "mine"
    directory.mkdir()
    (directory / "thesis.tex").write_text("…")
    for force in (False, True):
        with pytest.raises(OutputError, match=r"is not empty, and `avactl render` did not write it .*: thesis.tex$"):
            write(directory, FIRST, force)
    assert content(directory) == {"thesis.tex": "…"}


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda path: path.touch(), "is a file"),
        (lambda path: path.symlink_to(path.parent), "is a symbolic link"),
        (lambda path: path.symlink_to(path.parent / "nowhere"), "is a symbolic link"),
    ],
)
def test_not_a_directory(tmp_path: Path, prepare: Callable[[Path], None], message: str) -> None:
    prepare(tmp_path / "out")
    with pytest.raises(OutputError, match=message):
        write(tmp_path / "out", FIRST)


def test_a_file_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"was not written: .*: (Not a directory|File exists)"):
        write(tmp_path / "file" / "out", FIRST)


def test_places_that_cannot_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, message in (("/", "is the root directory"), ("/proc", "is a mount point")):
        with pytest.raises(OutputError, match=message):
            write(Path(place), FIRST)
    with pytest.raises(OutputError, match="was not written"):
        write(Path("/proc/out"), FIRST)
    write(tmp_path / "out", FIRST)
    monkeypatch.chdir(tmp_path / "out" / "main")
    with pytest.raises(OutputError, match="the current directory is in"):
        write(tmp_path / "out", FIRST)


def test_empty_directory_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out", FIRST)
    assert content(tmp_path / "out") == FIRST


def test_a_write_that_fails_changes_nothing(out: Path) -> None:
    write(out, FIRST)
    code = """
import resource, sys
from pathlib import Path
from tests.emit.test_output import FIRST, write
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
write(Path(sys.argv[1]), {**FIRST, "main/vision/vision/job-y.yaml": "y" * 50_000})
"""
    done = subprocess.run([sys.executable, "-c", code, str(out)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1
    assert "was not written" in done.stderr
    assert "File too large" in done.stderr
    assert content(out) == FIRST
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_without_links_and_exchange(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_hard_link", lambda source, target: False)
    monkeypatch.setattr(atomic_swap, "exchange_names", lambda one, other: False)
    write(out, FIRST)
    second = {**FIRST, "main/vision/vision/job-x.yaml": "x: 2\n"}
    write(out, second)
    assert content(out) == second
    (out / "main/ads/ads/mine.txt").write_text("mine")
    write(out, {**FIRST, "main/ads/ads/job-z.yaml": "z: 2\n"}, force=True)
    assert content(out) == {**FIRST, "main/ads/ads/job-z.yaml": "z: 2\n", "main/ads/ads/mine.txt": "mine"}
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_killed_between_the_renames(out: Path) -> None:
    write(out, FIRST)
    out.rename(out.parent / ".out.avactl-old")
    shutil.copytree(out.parent / ".out.avactl-old", out.parent / ".out.avactl-new")
    write(out, FIRST)
    assert content(out) == FIRST
    assert [path.name for path in out.parent.iterdir()] == ["out"]


ROOT = Path(__file__).resolve().parents[2]
# Two versions that differ everywhere, or in one directory only.
VERSIONS: list[Files] = [
    {f"main/team-{i % 5}/ns/job-{i}.yaml": f"{word} {i}\n" for i in range(60)} for word in ("one", "two")
]
VERSIONS.append({**VERSIONS[1], **{f"main/team-3/ns/job-{i}.yaml": "three\n" for i in range(3, 60, 5)}})
_LOOP = """
import sys
from pathlib import Path
from unittest import mock
from avactl.apply.files import atomic_swap
from tests.emit.test_output import VERSIONS, write
if sys.argv[2] == "rename":
    mock.patch.object(atomic_swap, "exchange_names", return_value=False).start()
print(flush=True)
for version in range(10**9):
    write(Path(sys.argv[1]), VERSIONS[version % 3])
"""


@pytest.mark.parametrize("way", ["exchange", "rename"])
def test_killed_at_any_time_it_is_whole(out: Path, way: str) -> None:
    write(out, VERSIONS[0])
    randomly = random.Random(7)
    seen = set()
    for _ in range(12):
        child = subprocess.Popen([sys.executable, "-c", _LOOP, str(out), way], stdout=subprocess.PIPE, cwd=ROOT)
        assert child.stdout is not None
        assert child.stdout.readline() == b"\n", "the writer has not begun"
        time.sleep(randomly.uniform(0, 0.08))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        if way == "rename" and not out.exists():
            write(out, VERSIONS[0])  # finds the old version, and goes on from there
        assert content(out) in VERSIONS
        seen.add(VERSIONS.index(content(out)))
        # The lists agree with the files, so nothing looks as if it were changed by hand.
        write(out, VERSIONS[randomly.randrange(3)])
        assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert len(seen) > 1


def test_two_at_once(out: Path) -> None:
    command = [sys.executable, "-c", _LOOP.replace("10**9", "30"), str(out), "exchange"]
    children = [subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT) for _ in range(2)]
    assert [child.wait() for child in children] == [0, 0]
    assert content(out) == VERSIONS[29 % 3]
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_rendered_directories_are_not_specs(out: Path) -> None:
    write(out, FIRST)
    (out.parent / "spec.yaml").touch()
    assert DirTree(out.parent).paths() == ["spec.yaml"]


def test_interrupted_leaves_nothing_behind(out: Path) -> None:
    write(out, FIRST)

    def texts(paths: Collection[str]) -> Mapping[str, str]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        output.write(str(out), {"main/new.yaml": "0" * 64}, texts)
    assert content(out) == FIRST
    assert [path.name for path in out.parent.iterdir()] == ["out"]
