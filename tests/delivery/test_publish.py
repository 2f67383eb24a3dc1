"""Publication of versions: directories and an S3 service, killed at any point."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

import orjson
import pytest

from avactl.contracts.delivery import VersionLineage
from avactl.contracts.document import load
from avactl.daemons.delivery import publish
from avactl.datasets.errors import ArgumentError, DatasetError
from avactl.datasets.stores.opening import open_store
from avactl.datasets.stores.remote import RemoteStore
from avactl.datasets.stores.store import CHUNK, FoundObject, Store
from tests.cli.running import Run
from tests.datasets.conftest import avactl, bucket, environment, fill, put, s3  # noqa: F401 - fixtures

MODEL = {
    "config.pbtxt": b"name: 'ranker'",
    **{f"1/weights-{number:03}.bin": random.Random(number).randbytes(200_000) for number in range(24)},
}
LINEAGE = {"commit": "4f53", "datasets": {"clicks": "week-47"}, "metrics": {"auc": 0.81}, "parent": "3"}


def tree(directory: Path) -> dict[str, bytes]:
    """The files of a directory, without those that are being written."""
    files = (path for path in directory.rglob("*") if path.is_file() and not path.name.endswith(".partial"))
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def model(version: Path) -> dict[str, bytes]:
    return {name: content for name, content in tree(version).items() if name not in publish.OWN}


def staged(source: Path, target: Path, output: str = "", marker: str = "") -> publish.Staged:
    return publish.stage_version(open_store(str(source)), open_store(str(target)), output, marker)


def published(directory: Path, version: int, files: dict[str, bytes]) -> Path:
    """A version of other files than those before."""
    fill(directory / f"run-{version}", files)
    target = directory / "out" / str(version)
    staged(directory / f"run-{version}", target)
    publish.seal_version(open_store(str(target)), VersionLineage(run=version))
    return target


def test_a_version_with_checksums_and_lineage(tmp_path: Path, avactl: Run) -> None:  # noqa: F811
    fill(tmp_path / "ckpt", {f"export/{name}": content for name, content in MODEL.items()} | {"step-1.ckpt": b"x"})
    done = avactl("delivery", "stage", "--from", "ckpt", "--model", "export", "--to", "out/4")
    assert (done.returncode, done.stdout) == (0, "out/4: 25 files, 4.8 MB\n"), done.stderr
    version = tmp_path / "out" / "4"
    assert model(version) == MODEL
    assert not (version / "lineage.json").exists()
    entries = [orjson.loads(line) for line in (version / "manifest.jsonl").read_bytes().splitlines()]
    base = f"file://{version}/"
    assert {each["url"].removeprefix(base): each["sha256"] for each in entries} == {
        name: hashlib.sha256(content).hexdigest() for name, content in MODEL.items()
    }
    assert (
        "25 objects agree, content of 25 too" in avactl("dataset", "verify", "out/4/manifest.jsonl", "--content").stdout
    )
    done = avactl("delivery", "seal", "--to", "out/4", AVACTL_LINEAGE=json.dumps(LINEAGE))
    assert done.returncode == 0, done.stderr
    lineage = json.loads((version / "lineage.json").read_text())
    manifest = hashlib.sha256((version / "manifest.jsonl").read_bytes()).hexdigest()
    assert lineage == {
        **LINEAGE,
        "version": 4,
        "files": 25,
        "bytes": 4_800_014,
        "manifestSha256": manifest,
        "source": f"file://{tmp_path}/ckpt/export",
    }


def test_again_is_the_same(tmp_path: Path) -> None:
    fill(tmp_path / "ckpt", MODEL)
    target = tmp_path / "out" / "7"
    first = staged(tmp_path / "ckpt", target)
    publish.seal_version(open_store(str(target)), load(VersionLineage, json.dumps(LINEAGE)))
    before = tree(target)
    assert staged(tmp_path / "ckpt", target) == first
    publish.seal_version(open_store(str(target)), load(VersionLineage, json.dumps(LINEAGE)))
    assert tree(target) == before


def test_another_content_or_lineage_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "ckpt", MODEL)
    fill(tmp_path / "out" / "7", {"config.pbtxt": b"name: 'other!'"})
    with pytest.raises(DatasetError, match=r"config\.pbtxt is not of this model"):
        staged(tmp_path / "ckpt", tmp_path / "out" / "7")
    assert (tmp_path / "out" / "7" / "config.pbtxt").read_bytes() == b"name: 'other!'"
    fill(tmp_path / "out" / "8", {"left-over.bin": b"x"})
    with pytest.raises(DatasetError, match=r"left-over\.bin is not of this model"):
        staged(tmp_path / "ckpt", tmp_path / "out" / "8")
    target = published(tmp_path, 9, MODEL)
    with pytest.raises(DatasetError, match="published with another lineage"):
        publish.seal_version(open_store(str(target)), VersionLineage(run=10))


def test_a_version_is_sealed_only_as_staged(tmp_path: Path) -> None:
    fill(tmp_path / "ckpt", MODEL)
    target = tmp_path / "out" / "7"
    with pytest.raises(DatasetError, match=r"has no manifest\.jsonl"):
        publish.seal_version(open_store(str(target)), load(VersionLineage, json.dumps(LINEAGE)))
    staged(tmp_path / "ckpt", target)
    (target / "1" / "weights-003.bin").write_bytes(b"short")
    with pytest.raises(DatasetError, match=r"weights-003\.bin is not as staged"):
        publish.seal_version(open_store(str(target)), load(VersionLineage, json.dumps(LINEAGE)))
    (target / "1" / "weights-003.bin").write_bytes(MODEL["1/weights-003.bin"])
    (target / "more.bin").write_bytes(b"x")
    with pytest.raises(DatasetError, match=r"more\.bin is not of this model"):
        publish.seal_version(open_store(str(target)), load(VersionLineage, json.dumps(LINEAGE)))
    assert not (target / "lineage.json").exists()


@pytest.mark.parametrize(
    ("output", "marker", "chosen"),
    [
        ("export/*", "_SUCCESS", "export/120"),
        ("export/*", "", None),
        ("export/1*0", "_SUCCESS", "export/120"),
        ("export/2*", "_SUCCESS", None),
        ("step-*.ckpt", "", "step-000000000030.ckpt"),
        ("export/90", "", "export/90"),
        ("export/1000", "_SUCCESS", None),
        ("nothing", "", None),
        ("nothing/*", "_SUCCESS", None),
    ],
)
def test_the_newest_complete_output(tmp_path: Path, output: str, marker: str, chosen: str | None) -> None:
    files = {f"export/{number}/model.bin": b"m%d" % number for number in (90, 120, 1000)}
    fill(
        tmp_path,
        files
        | {
            "export/90/_SUCCESS": b"",
            "export/120/_SUCCESS": b"",
            "step-000000000030.ckpt": b"30",
            "step-000000000009.ckpt": b"9",
        },
    )
    store = open_store(str(tmp_path))
    if chosen is None:
        with pytest.raises(DatasetError):
            publish.choose(store, output, marker)
    else:
        assert publish.choose(store, output, marker) == chosen


def test_a_single_file_is_a_model(tmp_path: Path) -> None:
    fill(tmp_path / "ckpt", {"step-000000000030.ckpt": b"30", "step-000000000009.ckpt": b"9"})
    assert staged(tmp_path / "ckpt", tmp_path / "out" / "1", "step-*.ckpt").files == 1
    assert model(tmp_path / "out" / "1") == {"step-000000000030.ckpt": b"30"}


def test_a_run_that_goes_on_copies_what_it_began(tmp_path: Path) -> None:
    """The newest export is another one after a kill: half of each would be a model that nobody trained."""
    export = {f"export/{n}/{name}": content + b"%d" % n for n in (1, 2) for name, content in MODEL.items()}
    fill(tmp_path / "ckpt", {name: content for name, content in export.items() if name.startswith("export/1/")})
    fill(tmp_path / "ckpt", {"export/1/_SUCCESS": b""})
    target = tmp_path / "out" / "5"
    target.mkdir(parents=True)
    (target / "origin.json").write_bytes(orjson.dumps({"from": "", "output": "export/1"}))
    (target / "config.pbtxt").write_bytes(export["export/1/config.pbtxt"])
    fill(tmp_path / "ckpt", {name: content for name, content in export.items() if name.startswith("export/2/")})
    fill(tmp_path / "ckpt", {"export/2/_SUCCESS": b""})
    assert staged(tmp_path / "ckpt", target, "export/*", "_SUCCESS").source == "export/1"
    assert model(target)["config.pbtxt"] == export["export/1/config.pbtxt"]
    assert model(target)["1/weights-007.bin"] == export["export/1/1/weights-007.bin"]


def test_nothing_newer_is_no_version(tmp_path: Path, avactl: Run) -> None:  # noqa: F811
    fill(tmp_path / "ckpt", {"export/1/model.bin": b"1", "export/1/_SUCCESS": b""})
    command = ("delivery", "stage", "--from", "ckpt", "--model", "export/*", "--marker", "_SUCCESS", "--to")
    assert avactl(*command, "out/1", "--result", "result").returncode == 0
    # Not published yet: a validation that failed for another reason is tried again.
    assert avactl(*command, "out/2", "--result", "result").stdout == "out/2: 2 files, 1 B\n"
    assert (tmp_path / "result").read_text() == "copied export/1"
    publish.seal_version(open_store(str(tmp_path / "out" / "1")), VersionLineage())
    done = avactl(*command, "out/3", "--result", "result")
    assert (done.returncode, "is version 1 already" in done.stdout) == (0, True), done.stderr
    assert (tmp_path / "result").read_text() == "unchanged"
    assert not (tmp_path / "out" / "3").exists()
    fill(tmp_path / "ckpt", {"export/2/model.bin": b"2", "export/2/_SUCCESS": b""})
    assert avactl(*command, "out/3", "--result", "result").stdout == "out/3: 2 files, 1 B\n"


def test_an_output_that_was_rejected(tmp_path: Path, avactl: Run) -> None:  # noqa: F811
    command = ("delivery", "stage", "--from", "ckpt", "--model", "export/*", "--marker", "_SUCCESS", "--to")
    fill(tmp_path / "ckpt", {"export/1/model.bin": b"1"})
    assert "no directory with `_SUCCESS`" in avactl(*command, "out/1").stderr
    done = avactl(*command, "out/1", "--rejected", "", "--result", "result")
    assert (done.returncode, (tmp_path / "result").read_text()) == (0, "none"), done.stderr
    fill(tmp_path / "ckpt", {"export/1/_SUCCESS": b""})
    done = avactl(*command, "out/1", "--rejected", "export/1", "--result", "result")
    assert (done.returncode, (tmp_path / "result").read_text()) == (0, "rejected"), done.stderr
    assert not (tmp_path / "out").exists()
    fill(tmp_path / "ckpt", {"export/2/model.bin": b"2", "export/2/_SUCCESS": b""})
    assert avactl(*command, "out/1", "--rejected", "export/1", "--result", "result").returncode == 0
    assert (tmp_path / "result").read_text() == "copied export/2"


def test_thousands_of_exports(s3: str, bucket: str, put: Callable[[Mapping[str, bytes]], RemoteStore]) -> None:  # noqa: F811
    """A job without end need not remove any: requests do not grow with their files."""
    numbers = range(1, 1201)
    put({f"training/export/{number}/part-{part}": b"x" for number in numbers for part in range(3)})
    put({f"training/export/{number}/_SUCCESS": b"" for number in numbers if number <= 1198})
    put({f"published/{number}/lineage.json": b"{}" for number in (2, 9, 10)} | {"published/11/_SUCCESS": b""})
    source, versions = (Counting(open_store(f"{bucket}/{name}", s3)) for name in ("training", "published"))
    assert publish.choose(source, "export/*", "_SUCCESS") == "export/1198"
    assert source.asked == ["directories export", *(f"find export/{each}/_SUCCESS" for each in (1200, 1199, 1198))]
    put({"published/10/origin.json": orjson.dumps({"from": "s3://data/training", "output": "export/1198"})})
    target = open_store(f"{bucket}/published/12", s3)
    with pytest.raises(publish.UnchangedError, match="is version 10 already"):
        publish.stage_version(source, target, "export/*", "_SUCCESS", versions)
    assert [each.partition(" ")[0] for each in versions.asked] == ["directories", "find", "find", "find", "read"]


class Counting:
    """A store that notes what it is asked."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        given = getattr(self._store, name)
        if not callable(given):
            return given

        def call(*arguments: Any) -> Any:
            self.asked.append(f"{name} {arguments[0] if arguments else ''}")
            return given(*arguments)

        return call


class Growing:
    """A store whose export gets another file while it is copied."""

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key, self._once = store, key, Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, found: FoundObject) -> bytes:
        if self._once.acquire(blocking=False):
            self._store.write(self._key, b"more")
        return self._store.read(found)


@pytest.mark.parametrize("key", ["export/1/part-2", "export/1/model.bin"])
def test_an_output_that_changes_while_it_is_copied(tmp_path: Path, key: str) -> None:
    fill(tmp_path / "ckpt", {"export/1/a": b"a", "export/1/model.bin": b"1", "export/1/_SUCCESS": b""})
    target = tmp_path / "out" / "1"
    source: Any = Growing(open_store(str(tmp_path / "ckpt")), key)
    with pytest.raises(DatasetError, match="changed"):
        publish.stage_version(source, open_store(str(target)), "export/*", "_SUCCESS")
    with pytest.raises(DatasetError, match=r"has no manifest\.jsonl"):
        publish.seal_version(open_store(str(target)), load(VersionLineage, json.dumps(LINEAGE)))
    if key.endswith("part-2"):  # it is whole now
        assert staged(tmp_path / "ckpt", target, "export/*", "_SUCCESS").files == 4


def test_places_that_cannot_be(tmp_path: Path) -> None:
    fill(tmp_path / "ckpt", MODEL)
    with pytest.raises(ArgumentError, match="is not the directory of a version"):
        staged(tmp_path / "ckpt", tmp_path / "out" / "latest")
    with pytest.raises(ArgumentError, match="overlap"):
        staged(tmp_path / "ckpt", tmp_path / "ckpt" / "7")
    fill(tmp_path / "taken", {"lineage.json": b"{}"})
    with pytest.raises(DatasetError, match=r"has a file `lineage\.json`"):
        staged(tmp_path / "taken", tmp_path / "out" / "7")
    assert not (tmp_path / "out" / "7" / "lineage.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"from": 1, "output": "x"}', "x" * 10_000])
def test_a_damaged_origin(tmp_path: Path, text: str) -> None:
    fill(tmp_path / "ckpt", {"export/1/model.bin": b"1"})
    fill(tmp_path / "out" / "1", {"origin.json": text.encode()})
    with pytest.raises(DatasetError, match=r"origin\.json is damaged"):
        staged(tmp_path / "ckpt", tmp_path / "out" / "1", "export/1")


def test_kept_versions(tmp_path: Path) -> None:
    for version in (1, 2, 3, 5, 6, 8):
        published(tmp_path, version, {"model.bin": b"%d" % version, "a/b.bin": b""})
    out = tmp_path / "out"
    fill(tmp_path / "run-4", MODEL)
    staged(tmp_path / "run-4", out / "4")  # failed its validation
    staged(tmp_path / "run-4", out / "9")  # of a later run
    fill(out / "notes", {"x.txt": b"x"})
    assert publish.prune_versions(str(out), 8, 2, frozenset({2})) == [1, 3, 4, 5]
    assert sorted(path.name for path in out.iterdir()) == ["2", "6", "8", "9", "notes"]
    assert publish.prune_versions(str(out), 8, 2, frozenset({2})) == []


KILLED = """
import os, signal, sys
from avactl.datasets.stores.opening import open_store
from avactl.daemons.delivery import publish

source, target, left = sys.argv[1], sys.argv[2], int(sys.argv[3])

def hook(event, arguments):
    global left
    if event in ("open", "os.rename") and str(arguments[0]).startswith(target):
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hook)
publish.stage_version(open_store(source), open_store(target))
publish.seal_version(open_store(target), {})
"""


@pytest.mark.parametrize("rounds", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_kill_at_any_point(tmp_path: Path, rounds: int) -> None:
    """Each round ends before another file is opened or gets its name; the result is that of one run."""
    fill(tmp_path / "ckpt", MODEL)
    staged(tmp_path / "ckpt", tmp_path / "whole" / "3")
    publish.seal_version(open_store(str(tmp_path / "whole" / "3")), load(VersionLineage, json.dumps(LINEAGE)))
    target, rng, killed = tmp_path / "out" / "3", random.Random(rounds), 0
    for _ in range(rounds):
        command = [sys.executable, "-c", KILLED, str(tmp_path / "ckpt"), str(target), str(rng.randint(1, 12))]
        killed += subprocess.run(command, check=False).returncode == -signal.SIGKILL
        if (target / "lineage.json").exists():
            break
        found = model(target)
        assert all(MODEL[name] == content for name, content in found.items()), "what is seen is whole"
    assert killed >= 3
    if (target / "lineage.json").exists():
        assert model(target) == MODEL
        return
    staged(tmp_path / "ckpt", target)
    publish.seal_version(open_store(str(target)), load(VersionLineage, json.dumps(LINEAGE)))
    assert model(target) == MODEL
    manifests = [(tmp_path / where / "3" / "manifest.jsonl").read_bytes() for where in ("whole", "out")]
    assert manifests[0].replace(b"/whole/", b"/out/") == manifests[1]


def test_an_object_store(s3: str, bucket: str) -> None:  # noqa: F811
    source = open_store(f"{bucket}/training/7", s3)
    files = {**MODEL, "1/large.bin": random.Random(1).randbytes(CHUNK * 5 // 2)}
    for name, content in files.items():
        source.write(f"export/{name}", content)
    for version in (1, 2):
        target = open_store(f"{bucket}/published/{version}", s3)
        assert publish.stage_version(source, target, "export").files == len(files)
        publish.seal_version(target, load(VersionLineage, json.dumps(LINEAGE)))
        publish.seal_version(target, load(VersionLineage, json.dumps(LINEAGE)))
    assert {each.key for each in target.objects()} == {*files, *publish.OWN}
    copied = target.find("1/large.bin")
    assert copied is not None
    assert target.read(copied) == files["1/large.bin"]
    assert publish.prune_versions(f"{bucket}/published", 2, 1, frozenset(), s3) == [1]
    assert {each.key.partition("/")[0] for each in open_store(f"{bucket}/published", s3).objects()} == {"2"}


@pytest.mark.parametrize(
    ("lineage", "keep", "message"),
    [
        ("[]", "", "AVACTL_LINEAGE: it is not an object"),
        ('{"parent": 3}', "", "`parent` is not a string"),
        ("{", "", "AVACTL_LINEAGE"),
        ("{}", "3,x", "--keep-versions"),
    ],
)
def test_bad_input(tmp_path: Path, avactl: Run, lineage: str, keep: str, message: str) -> None:  # noqa: F811
    done = avactl("delivery", "seal", "--to", "out/1", "--keep-versions", keep, AVACTL_LINEAGE=lineage)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
