"""Builds the control plane's binaries from their pinned Go modules, once, into a cache shared by all runs."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from avactl.base.directories import cache_directory
from tools.controlplane import process, progress

HERE = Path(__file__).parent
KUBERNETES_VERSIONS = {
    "1.37": ("v1.37.2", HERE / "kubernetes"),
    "1.36": ("v1.36.3", HERE / "previous" / "kubernetes"),
}
"""The version of each minor version, and the folder of its go.mod; the first one is the default."""
KUBERNETES_MINOR = os.environ.get("KUBERNETES") or next(iter(KUBERNETES_VERSIONS))
"""The minor version that is built and run: that of the environment variable, or the default."""
if KUBERNETES_MINOR not in KUBERNETES_VERSIONS:
    raise ValueError(f"KUBERNETES={KUBERNETES_MINOR}: known are {', '.join(KUBERNETES_VERSIONS)}")
KUBERNETES_VERSION, KUBERNETES_FOLDER = KUBERNETES_VERSIONS[KUBERNETES_MINOR]
TEST_SUFFIX = ".test"
OUTPUT_LINES = 40  # of a failed build, in the exception


class UnavailableError(Exception):
    """This machine can neither build a control plane nor has one; the message is one line."""


class BuildError(Exception):
    """A build went wrong; the message ends with the last lines of its output."""


class EmbeddedFiles(NamedTuple):
    """Files of a dependency that a main package embeds, though `go:embed` reads only its own module's."""

    module: str
    """Path of the dependency in go.mod."""
    folder: str
    names: tuple[str, ...]


class Module(NamedTuple):
    """A folder with the go.mod that pins binaries, their linker flags, the package of each, and build tags.

    A binary whose name ends with `.test` is the test program of its package.
    """

    folder: Path
    ldflags: str
    packages: Mapping[str, str]
    tags: str = ""
    embeds: EmbeddedFiles | None = None

    @property
    def name(self) -> str:
        """Name of the module, for messages."""
        return self.folder.name


def kubernetes_flags(version: str = KUBERNETES_VERSION) -> str:
    """Return the linker flags of Kubernetes' own programs."""
    # Set by the release scripts of Kubernetes. Without them the binaries call themselves v0.0.0, and clients that
    # decide by the server's version take it for an ancient one.
    values = {"gitVersion": version, "gitMajor": "1", "gitMinor": version.split(".")[1]}
    return "-s -w " + " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items())


_NAMES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet", "kube-proxy")
MODULES = (
    Module(HERE / "etcd", "-s -w", {"etcd": "go.etcd.io/etcd/server/v3"}),
    Module(KUBERNETES_FOLDER, kubernetes_flags(), {name: f"k8s.io/kubernetes/cmd/{name}" for name in _NAMES}),
    Module(HERE / "kwok", "-s -w", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}),
    Module(HERE / "coredns", "-s -w", {"coredns": "."}),
)
NODE_BINARIES = ("kubelet", "kube-proxy", "coredns")
"""Binaries of a real node, which the control plane does not need."""
BINARIES = tuple(name for module in MODULES for name in module.packages if name not in NODE_BINARIES)


def cache_dir() -> Path:
    """Return the folder of avactl's caches."""
    return Path(cache_directory())


def is_required() -> bool:
    """Return True if a missing control plane is a failure: in CI (`CI` is set), where skipped tests go unnoticed."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def build_binaries(binaries: Iterable[str] = BINARIES, modules: Sequence[Module] = MODULES) -> dict[str, Path]:
    """Return the path of each named binary, building those that are neither in KUBEBUILDER_ASSETS nor cached.

    A cold build of all takes about 15 CPU-minutes. Any number of processes may call this at once: one builds, the
    others wait. Raises UnavailableError without Go, BuildError if a build goes wrong, KeyError for an unknown name.
    """
    wanted = list(binaries)
    known = [name for module in modules for name in module.packages]
    if unknown := set(wanted) - set(known):
        raise KeyError(f"no such binary: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    found = _assets(wanted)
    for module in modules:
        names = [name for name in module.packages if name in wanted and name not in found]
        if names:
            found |= _build_module(module, names)
    return {name: found[name] for name in wanted}


def find_module_folder(name: str, path: str, pinned_in: Path | None = None) -> Path:
    """Return the folder in Go's module cache of a module that one of MODULES pins; fetched if it is not there.

    `pinned_in`: folder of another go.mod that pins it. Raises UnavailableError without Go, and BuildError if the module
    cannot be fetched.
    """
    module = next(module for module in MODULES if module.name == name)
    go, environment = _go(module)
    listed = subprocess.run(
        [go, "mod", "download", "-json", path],
        cwd=pinned_in or module.folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        raise BuildError(f"go mod download of {path}: {listed.stderr.strip() or listed.stdout.strip()}")
    return Path(json.loads(listed.stdout)["Dir"])


def _assets(names: Iterable[str]) -> dict[str, Path]:
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if not folder:
        return {}
    paths = {name: Path(folder).absolute() / name for name in names}
    return {name: path for name, path in paths.items() if os.access(path, os.X_OK)}


def _build_module(module: Module, names: list[str]) -> dict[str, Path]:
    go, environment = _go(module)
    folder = cache_dir() / "controlplane" / _key(module, go, environment)
    paths = {name: folder / name for name in names}
    for name, path in paths.items():

        def make(aside: Path, name: str = name) -> None:
            subcommand = ("test", "-c", "-vet=off") if name.endswith(TEST_SUFFIX) else ("build",)
            flags = ["-ldflags", module.ldflags, "-o", str(aside)]
            if module.tags:
                flags += ["-tags", module.tags]
            with progress.step(f"building {name} ({module.name})", f"built {name}"):
                if module.embeds:
                    flags.append(_write_overlay(module, module.embeds, go, environment, aside))
                command = [go, *subcommand, *flags, module.packages[name]]
                run_builder(f"go build of {name}", command, aside.with_name("log"), environment, module.folder)

        make_once(path, f"waiting for another build of {module.name}", make)
    return paths


def _write_overlay(module: Module, embeds: EmbeddedFiles, go: str, environment: Mapping[str, str], aside: Path) -> str:
    """Return the flag that lays the dependency's files beside the go.mod, without a copy among the sources."""
    command = [go, "mod", "download", embeds.module]
    run_builder(f"go mod download of {embeds.module}", command, aside.with_name("log"), environment, module.folder)
    command = [go, "list", "-m", "-f", "{{.Dir}}", embeds.module]
    listed = subprocess.run(
        command, cwd=module.folder, env=dict(environment), capture_output=True, check=True, text=True
    )
    source = Path(listed.stdout.strip(), embeds.folder)
    overlay = aside.with_name("overlay.json")
    replace = {str(module.folder / name): str(source / name) for name in embeds.names}
    overlay.write_text(json.dumps({"Replace": replace}))
    return f"-overlay={overlay}"


def make_once(path: Path, waiting: str, make: Callable[[Path], None]) -> None:
    """Make a file or folder of the cache unless it exists: `make` writes it elsewhere, alone in a folder.

    It appears under its name whole or not at all, even if this process is killed. `waiting` is told while another
    process makes something in the same folder.
    """
    if path.exists():
        return
    with _exclusive(path.parent, waiting):
        if not path.exists():
            folder = Path(tempfile.mkdtemp(prefix=".build-", dir=path.parent))
            try:
                make(folder / path.name)
                (folder / path.name).replace(path)
            finally:
                shutil.rmtree(folder, ignore_errors=True)


def run_builder(
    what: str, command: Sequence[str | Path], log: Path, environment: Mapping[str, str], folder: Path
) -> None:
    """Run a build in a folder to its end. Raises BuildError with the last lines of its log."""
    builder = process.spawn(command, log, environment, cwd=folder)
    try:
        status = builder.wait()
    finally:
        process.terminate(builder, grace=2)
    if status != 0:
        raise BuildError(f"{what} ended with status {status}:\n{process.tail(log, OUTPUT_LINES)}")


def _go(module: Module) -> tuple[str, dict[str, str]]:
    """Return the Go command and environment for this module. Raises UnavailableError if Go is missing or too old."""
    go = shutil.which("go")
    if go is None:
        raise UnavailableError("control plane unavailable: neither KUBEBUILDER_ASSETS is set nor Go on PATH")
    # GOFLAGS is given even though flags on the command line would do: a user's own must not change what is built.
    own = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false", "GOWORK": "off"}
    environment = {**os.environ, **own}
    match = re.search(r"^go (\S+)$", (module.folder / "go.mod").read_text(), re.MULTILINE)
    needed = match.group(1) if match else "1.0"
    probe = subprocess.run(
        [go, "env", "GOVERSION"], cwd=module.folder, env=environment, capture_output=True, text=True, check=False
    )
    version = probe.stdout.strip()
    if probe.returncode != 0 or _version_key(version) < _version_key(needed):
        why = (probe.stderr.strip().splitlines() or [f"found {version}"])[-1]
        raise UnavailableError(f"control plane unavailable: Go {needed} or newer is needed: {why}")
    return go, environment


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _key(module: Module, go: str, environment: Mapping[str, str]) -> str:
    """Return the name of the cache folder, a digest of the build's inputs, so that a changed pin rebuilds."""
    targets = subprocess.run(
        [go, "env", "GOVERSION", "GOOS", "GOARCH", "GOAMD64", "GOEXPERIMENT"],
        cwd=module.folder,
        env=dict(environment),
        capture_output=True,
        check=True,
    ).stdout
    digest = hashlib.sha256()
    files = ["go.mod", "go.sum", *sorted(path.name for path in module.folder.glob("*.go"))]
    inputs = [*((module.folder / name).read_bytes() for name in files), targets]
    for part in (*inputs, environment["GOFLAGS"].encode(), module.ldflags.encode(), *_optional_inputs(module)):
        digest.update(hashlib.sha256(part).digest())
    return f"{module.name}-{digest.hexdigest()[:16]}"


def _optional_inputs(module: Module) -> list[bytes]:
    # Not empty parts: modules without tags or embedded files keep their names.
    return [str(part).encode() for part in (module.tags, module.embeds) if part]


@contextmanager
def _exclusive(folder: Path, waiting: str) -> Iterator[None]:
    """Make a folder of the cache, and hold its lock, which the kernel releases if this process dies."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with progress.step(waiting, "waited for it"):
                fcntl.flock(handle, fcntl.LOCK_EX)
        # Left by builders that were killed: the lock is ours, so none of them is alive.
        for stale in folder.glob(".build-*"):
            shutil.rmtree(stale, ignore_errors=True)
        yield
