"""How binaries are found and built. A small Go program stands in for Kubernetes, so that a build takes a second."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools.controlplane import BuildError, UnavailableError, build_binaries
from tools.controlplane.build import EmbeddedFiles, Module
from tools.waiting import wait_until

ROOT = Path(__file__).parents[2]
GO = shutil.which("go")
pytestmark = pytest.mark.needs("go")

BUILD = """
import sys
from pathlib import Path
from tools.controlplane.build import Module, build_binaries
print(build_binaries(["hello"], [Module(Path(sys.argv[1]), "-s", {"hello": "."})])["hello"])
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    monkeypatch.setenv("AVACTL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    folder = tmp_path / "hello"
    folder.mkdir()
    (folder / "go.mod").write_text("module example.com/hello\n\ngo 1.20\n")
    (folder / "go.sum").write_text("")
    (folder / "main.go").write_text('package main\n\nfunc main() { print("hello") }\n')
    return Module(folder, "-s", {"hello": "."})


def wrap_go(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a `go` first on PATH that runs `script` before each build."""
    folder.mkdir()
    (folder / "go").write_text(f'#!/bin/sh\nif [ "$1" = build ]; then {script}; fi\nexec {GO} "$@"\n')
    (folder / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def start_builder(module: Module) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUILD, str(module.folder)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_builds_once(module: Module, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = build_binaries(["hello"], [module])["hello"]
    assert path.is_relative_to(tmp_path / "cache" / "controlplane")
    assert subprocess.run([path], capture_output=True, check=True).stderr == b"hello"
    assert "built hello in " in capfd.readouterr().err
    assert build_binaries(["hello"], [module]) == {"hello": path}
    assert capfd.readouterr().err == ""


def test_changed_pin_is_another_binary(module: Module) -> None:
    before = build_binaries(["hello"], [module])["hello"]
    (module.folder / "go.mod").write_text("module example.com/hello\n\ngo 1.21\n")
    assert build_binaries(["hello"], [module])["hello"] != before
    assert build_binaries(["hello"], [module._replace(ldflags="-w")])["hello"] != before


def test_embeds_files_of_a_dependency(module: Module) -> None:
    dependency = module.folder.with_name("dependency")
    (dependency / "data").mkdir(parents=True)
    (dependency / "go.mod").write_text("module example.com/dependency\n\ngo 1.20\n")
    (dependency / "data" / "text.json").write_text("from the dependency")
    with (module.folder / "go.mod").open("a") as pins:
        pins.write("\nrequire example.com/dependency v1.0.0\n\nreplace example.com/dependency => ../dependency\n")
    source = (
        'package main\n\nimport _ "embed"\n\n//go:embed text.json\nvar text string\n\nfunc main() { print(text) }\n'
    )
    (module.folder / "main.go").write_text(source)
    embeds = EmbeddedFiles("example.com/dependency", "data", ("text.json",))
    path = build_binaries(["hello"], [module._replace(embeds=embeds)])["hello"]
    assert subprocess.run([path], capture_output=True, check=True).stderr == b"from the dependency"
    assert sorted(file.name for file in module.folder.iterdir()) == ["go.mod", "go.sum", "main.go"]


def test_failed_build_shows_the_compiler(module: Module, tmp_path: Path) -> None:
    (module.folder / "main.go").write_text("package main\n\nfunc main() { undefinedName() }\n")
    with pytest.raises(BuildError, match=r"(?s)go build of hello ended with status 1.*undefined: undefinedName"):
        build_binaries(["hello"], [module])
    assert list((tmp_path / "cache").rglob("hello*/*")) == [*(tmp_path / "cache").rglob(".lock")]


def test_without_go_it_is_unavailable(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UnavailableError, match="neither KUBEBUILDER_ASSETS is set nor Go on PATH") as reason:
        build_binaries(["hello"], [module])
    assert "\n" not in str(reason.value)


def test_old_go_is_unavailable(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOTOOLCHAIN", "local")
    (module.folder / "go.mod").write_text("module example.com/hello\n\ngo 1.999.0\n")
    with pytest.raises(UnavailableError, match=r"Go 1\.999\.0 or newer is needed") as reason:
        build_binaries(["hello"], [module])
    assert "\n" not in str(reason.value)


def test_assets_come_first(module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    assert build_binaries(["hello"], [module])["hello"].parent != assets
    shutil.copy("/bin/true", assets / "hello")
    monkeypatch.setenv("PATH", "/nowhere")
    assert build_binaries(["hello"], [module]) == {"hello": assets / "hello"}


def test_unknown_binary(module: Module) -> None:
    with pytest.raises(KeyError, match="no such binary: kubelet; known: hello"):
        build_binaries(["kubelet"], [module])


def test_two_builders_build_once(module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrap_go(tmp_path / "bin", f"echo built >> {tmp_path}/count; sleep 1", monkeypatch)
    outputs = [builder.communicate() for builder in [start_builder(module), start_builder(module)]]
    assert outputs[0][0] == outputs[1][0] != ""
    assert (tmp_path / "count").read_text() == "built\n"
    assert sum("waiting for another build of hello" in progress for _, progress in outputs) == 1


def test_killed_builder_leaves_nothing_half_done(
    module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"
    with monkeypatch.context() as slow:
        # Half a binary, and then not a step further.
        wrap_go(tmp_path / "bin", f'touch "$5"; touch {started}; sleep 60', slow)
        builder = start_builder(module)
        wait_until(started.exists, failed=lambda: builder.poll() is not None)
        os.kill(builder.pid, signal.SIGKILL)
        builder.communicate()
    cache = tmp_path / "cache"
    assert [path.parent.name.startswith(".build-") for path in cache.rglob("hello")] == [True]
    path = build_binaries(["hello"], [module])["hello"]
    assert subprocess.run([path], capture_output=True, check=True).stderr == b"hello"
    assert [*cache.rglob(".build-*")] == []
