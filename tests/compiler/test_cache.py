"""A compile with kept results tells the same as one without, whatever was edited in between."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avactl.apply.files.contents import object_text
from avactl.apply.files.paths import object_path
from avactl.compiler import compile_tree
from avactl.compiler.incremental import compile
from avactl.compiler.incremental.compile import CompileOutcome, compile_cached
from avactl.compiler.incremental.disk import ResultStore
from avactl.compiler.incremental.records import PlainDependencies
from avactl.compiler.incremental.tracing import Dependency, DerivedValue, FileContent, MemoisedValue, SpecsOfKind
from avactl.diagnostics.redaction import redact_diagnostic
from avactl.spec.repository.tree import DirTree
from tests.conftest import ROOT

AVA = ROOT / "examples" / "ava"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AVACTL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "compile"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return Path(shutil.copytree(AVA, tmp_path / "ava"))


def compiled(root: Path) -> CompileOutcome:
    return compile_cached(DirTree(root), object_path, object_text)


class Plain(NamedTuple):
    """What a compile tells without kept results."""

    diagnostics: object
    texts: dict[str, str]
    files: Mapping[str, object]
    specs: int


Content = tuple[tuple[str, bytes], ...]


def content_of(root: Path) -> Content:
    found = (path for path in sorted(root.rglob("*")) if path.is_file())
    return tuple((str(path.relative_to(root)), path.read_bytes()) for path in found)


_PLAIN: dict[Content, Plain] = {}
"""By content, the newest last: most edits are taken back, so two are enough."""


def plain(root: Path) -> Plain:
    """Compile without kept results; the same content is compiled once."""
    content = content_of(root)
    known = _PLAIN.pop(content, None)
    if known is None:
        found = compile_tree(DirTree(root))
        texts = {object_path(manifest): object_text(manifest) for manifest in found.manifests}
        files = compile_cached(DirTree(root), object_path, object_text, use_cache=False).files
        specs = sum(not item.doc.shipped for item in found.program.items)
        known = Plain(found.diagnostics, texts, files, specs)
        if len(_PLAIN) > 1:
            del _PLAIN[next(iter(_PLAIN))]
    _PLAIN[content] = known
    return known


def check(root: Path, files: bool = True) -> CompileOutcome:
    """Compile with and without kept results, and compare."""
    want = plain(root)
    kept = compile_cached(DirTree(root), object_path, object_text if files else None)
    assert kept.diagnostics == want.diagnostics
    if files:
        assert kept.files.keys() == want.texts.keys()
        assert kept.texts(list(want.texts)) == want.texts
        assert kept.files == want.files
    assert sum(kept.kinds.values()) == want.specs
    return kept


# -- edits ---------------------------------------------------------------------------------------------------------

Edit = Callable[[Path, random.Random], None]


def _spec(root: Path, randomly: random.Random) -> Path:
    return randomly.choice(sorted(root.rglob("*.yaml")))


def change_a_number(root: Path, randomly: random.Random) -> None:
    path = _spec(root, randomly)
    text = path.read_text()
    found = list(re.finditer(r"\b[0-9]+\b", text))
    if found:
        at = randomly.choice(found)
        value = str(max(0, int(at[0]) + randomly.choice([-1, 1, 1, 2, 100])))
        path.write_text(text[: at.start()] + value + text[at.end() :])


def change_a_word(root: Path, randomly: random.Random) -> None:
    """Another word of the same file: names, references, values of other fields."""
    path = _spec(root, randomly)
    text = path.read_text()
    found = list(re.finditer(r"(?<=[ :\[])[a-z][A-Za-z0-9-]+\b", text))
    if found:
        at, other = randomly.choice(found), randomly.choice(found)
        path.write_text(text[: at.start()] + other[0] + text[at.end() :])


def rename_a_spec(root: Path, randomly: random.Random) -> None:
    path = _spec(root, randomly)
    path.write_text(re.sub(r"\{name: ([a-z0-9-]+)", r"{name: \1-x", path.read_text(), count=1))


def add_a_comment(root: Path, randomly: random.Random) -> None:
    path = _spec(root, randomly)
    path.write_text(f"# {randomly.random()}\n{path.read_text()}")


def drop_a_document(root: Path, randomly: random.Random) -> None:
    path = _spec(root, randomly)
    parts = path.read_text().split("---\n")
    parts.pop(randomly.randrange(len(parts)))
    if parts:
        path.write_text("---\n".join(parts))
    else:
        path.unlink()


def move_a_document(root: Path, randomly: random.Random) -> None:
    one, other = _spec(root, randomly), _spec(root, randomly)
    parts = one.read_text().split("---\n")
    moved = parts.pop(randomly.randrange(len(parts)))
    one.write_text("---\n".join(parts))
    other.write_text(f"{other.read_text().rstrip()}\n---\n{moved}" if other.read_text().strip() else moved)


def copy_a_job(root: Path, randomly: random.Random) -> None:
    text = (AVA / "teams" / "vision" / "jobs.yaml").read_text().split("---\n")[randomly.randrange(3)]
    name = f"copy-{randomly.randrange(4)}"
    (root / "teams" / f"{name}.yaml").write_text(re.sub(r"name: [a-z0-9-]+", f"name: {name}", text, count=1))


def move_a_file(root: Path, randomly: random.Random) -> None:
    path = _spec(root, randomly)
    path.rename(path.with_name(f"moved-{path.name}"))


def change_a_listing(root: Path, randomly: random.Random) -> None:
    path = randomly.choice(sorted(root.rglob("*.jsonl")))
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[: randomly.randint(1, len(lines))]) + "\n")


def remove_a_listing(root: Path, randomly: random.Random) -> None:
    randomly.choice(sorted(root.rglob("*.jsonl"))).unlink()


def exclude_something(root: Path, randomly: random.Random) -> None:
    folder = randomly.choice(["teams/ads", "teams/students", "datasets", "cache", "nothing"])
    (root / "avactl.yaml").write_text(f"include: [clusters, pools, cache, datasets, teams]\nexclude: [{folder}]\n")


def break_a_file(root: Path, randomly: random.Random) -> None:
    path = _spec(root, randomly)
    path.write_bytes(path.read_bytes() + randomly.choice([b"}", b"\xff", b"\tx: 1\n", b"x: &a [*a]\n", b"\r\n"]))


def restore(root: Path, randomly: random.Random) -> None:
    """The repository as it was in the beginning."""
    shutil.rmtree(root)
    shutil.copytree(AVA, root)


def nothing(root: Path, randomly: random.Random) -> None:
    """Only look again."""


EDITS: list[Edit] = [
    change_a_number,
    change_a_word,
    rename_a_spec,
    add_a_comment,
    drop_a_document,
    move_a_document,
    copy_a_job,
    move_a_file,
    change_a_listing,
    remove_a_listing,
    exclude_something,
    break_a_file,
    restore,
    nothing,
]


SAME = (add_a_comment, restore, nothing)
"""Edits after which the same is compiled."""


@settings(max_examples=100 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 10, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(EDITS), st.integers(0, 2**32), st.booleans()), min_size=1, max_size=6))
def test_any_edits(edits: list[tuple[Edit, int, bool]]) -> None:
    base = Path(os.environ["AVACTL_CACHE_DIR"]).parent / "any"
    shutil.rmtree(base, ignore_errors=True)
    shutil.copytree(AVA, base)
    check(base)
    for edit, seed, files in edits:
        try:
            edit(base, random.Random(seed))
        except (IndexError, UnicodeDecodeError):  # nothing left to edit, or no text any more
            continue
        check(base, files)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: str(edit.__name__))
def test_each_edit(edit: Edit, repository: Path) -> None:
    randomly = random.Random(3)
    before = check(repository)
    changed = []
    for _ in range(4):
        edit(repository, randomly)
        after = check(repository)
        changed.append((after.files, after.diagnostics) != (before.files, before.diagnostics))
        restore(repository, randomly)
        assert check(repository).files == before.files
    assert any(changed) == (edit not in SAME), "the edit changes nothing"


DIRECTED = [
    # What others read of a spec: each edit changes what some other spec compiles to, or whether it is right.
    ("clusters/train.yaml", "scheduler: true", "scheduler: false"),
    ("clusters/train.yaml", "mode: pulumi", "mode: flux"),
    ("clusters/train.yaml", 'usernamePrefix: "oidc:"', 'usernamePrefix: "sso:"'),
    ("clusters/train.yaml", "cache: local-ssd", "cache: other"),
    ("pools/train.yaml", "count: 12", "count: 1"),
    ("pools/train.yaml", "count: 12", "count: 13"),
    ("pools/train.yaml", "machineType: dgx1-v100", "machineType: v100-pcie-8"),
    ("pools/train.yaml", "value: large-jobs", "value: others"),
    ("pools/train.yaml", "labels: {example.com/use: debug}", "allocation: dra"),
    ("cache/read.yaml", "mount: /datasets", "mount: /data"),
    ("cache/read.yaml", "cluster: train", "cluster: serve"),
    ("cache/read.yaml", "quota: 200Gi", "quota: 100Gi"),
    ("datasets/images.yaml", "{name: imagenet}", "{name: imagenet-1k}"),
    ("datasets/images.yaml", "name: v3", "name: v4"),
    ("datasets/images.yaml", "imagenet/v3", "imagenet/fixed"),
    ("datasets/images.yaml", "metadata: {name: mnist}", "metadata: {name: mnist, team: vision}"),
    ("datasets/video.yaml", "sharedWith: [vision]", "sharedWith: [ads]"),
    ("teams/vision/team.yaml", 'cpu: "4"', 'cpu: "5"'),
    ("teams/vision/team.yaml", "clusters: [train, serve]", "clusters: [serve]"),
    ("teams/vision/team.yaml", "name: models", "name: models-2"),
    ("teams/vision/team.yaml", "guaranteed: 40, borrow: 24", "guaranteed: 8, borrow: 0"),
    ("teams/students/team.yaml", "clusters: [train]", "clusters: [train, serve]"),
    ("teams/students/team.yaml", "podMaxMemory: 64Gi", "podMaxMemory: 4Gi"),
    ("teams/students/team.yaml", "memory: 4Gi", "memory: 40Gi"),
    ("teams/vision/jobs.yaml", "replicas: 4, gpus: 8", "replicas: 9, gpus: 8"),
    ("teams/vision/jobs.yaml", "name: imagenet, version: v3", "name: imagenet, version: v2"),
    ("teams/vision/jobs.yaml", "name: resnet50", "name: detector"),
    ("teams/vision/serving.yaml", "exposeTo: [video, ads]", "exposeTo: [video]"),
    ("teams/vision/serving.yaml", "min: 4, max: 24", "min: 40, max: 44"),
    ("teams/vision/workspaces.yaml", "gpus: 1\n", "gpus: 8\n"),
    ("teams/ads/team.yaml", "talksTo: [vision]", "talksTo: []"),
]


@pytest.mark.parametrize(("file", "old", "new"), DIRECTED)
def test_what_others_read(file: str, old: str, new: str, repository: Path) -> None:
    before = check(repository)
    path = repository / file
    text = path.read_text()
    path.write_text(text.replace(old, new, 1))
    assert path.read_text() != text
    after = check(repository)
    assert (after.files, after.diagnostics) != (before.files, before.diagnostics)
    path.write_text(text)
    assert check(repository).files == before.files


# -- work is proportional to the change --------------------------------------------------------------------------------


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is lowered and checked, by name."""
    done: list[str] = []
    for name in ("_objects_of", "_problems_of"):
        real = getattr(compile._CompileRun, name)

        def noted(self: compile._CompileRun, item: object, real: Callable[..., object] = real) -> object:
            done.append(str(item))
            return real(self, item)

        monkeypatch.setattr(compile._CompileRun, name, noted)
    return iter([done])


def test_only_what_changed_is_done_again(repository: Path, work: Iterator[list[str]]) -> None:
    done = next(work)
    jobs = repository / "teams" / "vision" / "jobs.yaml"
    compiled(repository)
    assert len(done) > 50
    done.clear()
    compiled(repository)
    assert done == []
    parts = jobs.read_text().split("---\n")
    last = repository / "teams" / "vision" / "last.yaml"
    last.write_text(parts.pop())
    jobs.write_text("---\n".join(parts))
    compiled(repository)
    done.clear()
    last.write_text(last.read_text().replace("finetune.py", "other.py"))
    compiled(repository)
    assert set(done) == {"TrainingJob vision/places-finetune"}
    done.clear()
    # Mounting another dataset asks for its volume where the pods are.
    last.write_text(last.read_text().replace("{name: places365", "{name: mnist"))
    compiled(repository)
    assert {"TrainingJob vision/places-finetune", "Dataset mnist", "Dataset places365"} <= set(done)
    assert not any(name.startswith(("ServingDeployment", "Workspace", "Team")) for name in done)


def test_derived_values_are_compared_strictly() -> None:
    value = [("a", 1, {"x": [0.5], "y": True})]
    same = compile.same_data
    assert same(value, [("a", 1, {"x": [0.5], "y": True})])
    for other in (
        [["a", 1, {"x": [0.5], "y": True}]],
        [("a", 1.0, {"x": [0.5], "y": True})],
        [("a", 1, {"x": [0.5], "y": 1})],
        [("a", 1, {"y": True, "x": [0.5]})],
        [("a", 1, {"x": [0.5, 1], "y": True})],
    ):
        assert not same(value, other)


def test_dependencies_become_plain_data() -> None:
    own = ("Team", "", "a")
    several: list[Dependency] = [own, DerivedValue("m:f", own), FileContent("a"), SpecsOfKind("a"), MemoisedValue("a")]
    dependencies = frozenset(several)
    assert len(dependencies) == 5
    plain = PlainDependencies()
    found = plain(dependencies)
    assert found == dependencies
    assert {type(each) for each in found} == {tuple}
    assert plain(frozenset(several)) is found


# -- the store -----------------------------------------------------------------------------------------------------


def test_kept_results_are_private_and_checked(repository: Path, store: Path, work: Iterator[list[str]]) -> None:
    done = next(work)
    compiled(repository)
    (file,) = store.iterdir()
    assert store.stat().st_mode & 0o777 == 0o700
    good = file.read_bytes()
    for bad in (b"", good[:-1], good[:1000] + b"x" + good[1001:], b"x" + good, os.urandom(5000)):
        file.write_bytes(bad)
        done.clear()
        check(repository)
        assert done, "not made again"
    store.chmod(0o777)
    done.clear()
    compiled(repository)
    assert done, "read from a folder that others may write"


def test_no_place_to_keep(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("/proc/nothing", str(repository / "avactl.yaml")):
        monkeypatch.setenv("AVACTL_CACHE_DIR", place)
        check(repository)


def test_another_version_keeps_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    ResultStore("compile", "x").save([{"a": 1}])
    assert ResultStore("compile", "x").load() == [{"a": 1}]
    assert ResultStore("compile", "y").load() == []
    monkeypatch.setattr("avactl.compiler.incremental.disk._version", lambda: "another")
    assert ResultStore("compile", "x").load() == []


def _big() -> dict[str, str]:
    return {str(i): "x" * 50 for i in range(1000)}


def test_what_changed_is_appended(store: Path) -> None:
    first = ResultStore("compile", "x")
    first.save([_big(), {"a": 1}])
    (file,) = store.iterdir()
    size = file.stat().st_size
    for i in range(60):
        one = ResultStore("compile", "x")
        tables = [dict(table) for table in one.load()]
        tables[0]["5"] = f"new {i}"
        del tables[0][str(i + 10)]
        tables[0][f"more {i}"] = "y"
        one.save(tables)
        assert ResultStore("compile", "x").load() == tables
        assert file.stat().st_size < 1.3 * size


def test_damage_ends_at_an_earlier_state(store: Path) -> None:
    states: list[list[dict[str, str]]] = [[]]
    for i in range(4):
        one = ResultStore("compile", "x")
        tables = [dict(table) for table in one.load() or [_big()]]
        tables[0]["state"] = str(i)
        one.save(tables)
        states.append(tables)
    (file,) = store.iterdir()
    good = file.read_bytes()
    for cut in range(len(good), len(good) - 400, -7):
        file.write_bytes(good[:cut])
        assert ResultStore("compile", "x").load() in states
        file.write_bytes(good[: cut - 1] + bytes([good[cut - 1] ^ 1]) + good[cut:])
        assert ResultStore("compile", "x").load() in states


def test_two_that_began_with_the_same_state(store: Path) -> None:
    ResultStore("compile", "x").save([_big()])
    one, other = ResultStore("compile", "x"), ResultStore("compile", "x")
    mine, theirs = [dict(one.load()[0])], [dict(other.load()[0])]
    mine[0]["a"], theirs[0]["b"] = "mine", "theirs"
    one.save(mine)
    block = other._block([({"b": "theirs"}, [])], other._chain)
    (file,) = store.iterdir()
    with file.open("ab") as end:  # as if it had looked at the size before the other one wrote
        end.write(block)
    assert ResultStore("compile", "x").load() == mine
    other.save(theirs)
    assert ResultStore("compile", "x").load() == theirs


def test_old_files_go(store: Path) -> None:
    for i in range(70):
        ResultStore("compile", str(i)).save([{"i": i}])
    assert len(list(store.iterdir())) <= 64
    assert ResultStore("compile", "69").load() == [{"i": 69}]


def test_errors_are_not_kept(repository: Path, store: Path) -> None:
    """What is wrong may be a credential; and it is told from the files as they are."""
    key = "AKIA" + "IOSFODNN7EXAMPLE"
    check(repository)
    before = {file: file.read_bytes() for file in store.iterdir()}
    assert before
    path = repository / "teams" / "vision" / "jobs.yaml"
    path.write_text(path.read_text().replace("priority: high", f"env: {{KEY: {key}}}"))
    result = check(repository)
    assert not result.ok
    assert key not in repr([redact_diagnostic(d) for d in result.diagnostics])
    assert {file: file.read_bytes() for file in store.iterdir()} == before


def test_same_size_and_time_is_not_taken_for_the_same(repository: Path) -> None:
    """A change within the tick of the clock in which the file was read."""
    path = repository / "clusters" / "train.yaml"
    for objective in ("spread", "pack", "spread"):
        path.write_text(re.sub("objective: [a-z]+", f"objective: {objective}", path.read_text()))
        check(repository)


_LOOP = """
import sys
from pathlib import Path
from tests.compiler.test_cache import compiled
path = Path(sys.argv[1]) / "teams" / "vision" / "jobs.yaml"
text = path.read_text()
print(flush=True)
for i in range(int(sys.argv[2])):
    # Aside, then swapped: the other process must not read half of it.
    aside = path.parent / f".mine-{sys.argv[3]}"
    aside.write_text(
        text.split("---\\n")[0].replace("resnet50", f"mine-{sys.argv[3]}").replace("15m", f"{i + 1}m"))
    aside.replace(path.parent / f"mine-{sys.argv[3]}.yaml")
    assert compiled(Path(sys.argv[1])).files
"""


def test_killed_and_at_once(repository: Path) -> None:
    command = [sys.executable, "-c", _LOOP, str(repository)]
    randomly = random.Random(5)
    for _ in range(6):
        child = subprocess.Popen([*command, "1000", "a"], stdout=subprocess.PIPE, cwd=ROOT)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(randomly.uniform(0, 0.3))
        child.send_signal(signal.SIGKILL)
        child.communicate()
        check(repository)
    both = [subprocess.Popen([*command, "8", name], stdout=subprocess.DEVNULL, cwd=ROOT) for name in "bc"]
    assert [child.wait() for child in both] == [0, 0]
    check(repository)
