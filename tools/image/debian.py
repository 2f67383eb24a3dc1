"""Root file systems from Debian packages, without root's own package database and without a registry of images."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

from tools.controlplane.build import BuildError, UnavailableError

# Dependencies that only maintainer scripts need, which do not run here, and Perl, which some of git's commands need.
UNUSED = re.compile(r"debconf|dpkg|init-system-helpers|install-info|perl.*|libperl.*|lib[a-z-]+-perl|tar|ucf").fullmatch

_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n",
    "etc/group": "root:x:0:\nuser:x:1000:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_MERGED = ("bin", "sbin", "lib", "lib64")


def closure(names: Sequence[str]) -> dict[str, str]:
    """Return the packages to unpack for these, with their dependencies: file name by package.

    apt chooses them, as for an empty system. A file name has the version. Raises UnavailableError without apt, and
    BuildError if it does not know a package.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise UnavailableError("images unavailable: they are built from Debian packages, and apt-get is not on PATH")
    with tempfile.TemporaryDirectory() as folder:
        status = Path(folder, "status")
        status.touch()
        options = [f"Dir::State::status={status}", "APT::Install-Recommends=false"]
        settings = [word for option in options for word in ("-o", option)]
        said = _run(["apt-get", *settings, "install", "--print-uris", "--yes", "--quiet", *names], Path(folder))
    files = re.findall(r"^'[^']+' (([^_ ]+)_\S+\.deb) ", said, re.MULTILINE)
    return {package: file for file, package in files if not UNUSED(package)}


def unpack(packages: Collection[str], root: Path) -> None:
    """Download the packages and unpack them to `root`, a new directory. No maintainer script runs.

    Users `root` and `user` (1000) exist, the certificates of ca-certificates are where OpenSSL looks for them, and
    commands that the packages lack are those of busybox.
    """
    folder = root.with_suffix(".packages")
    folder.mkdir()
    root.mkdir()
    for name in _MERGED:
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    _run(["apt-get", "download", "--quiet", *sorted(packages)], folder)
    for archive in sorted(folder.glob("*.deb")):
        # Some packages have a directory where a merged system has a symbolic link.
        script = 'dpkg-deb --fsys-tarfile "$0" | tar --extract --keep-directory-symlink --directory "$1"'
        _run(["sh", "-c", script, str(archive), str(root)], folder)
        archive.unlink()
    for name, text in _FILES.items():
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for name, mode in (("tmp", 0o1777), ("root", 0o700), ("proc", 0o755), ("sys", 0o755), ("dev", 0o755)):
        (root / name).mkdir(exist_ok=True)
        (root / name).chmod(mode)
    (root / "home/user").mkdir(parents=True, exist_ok=True)
    for name in ("doc", "info", "locale", "man", "lintian"):
        shutil.rmtree(root / "usr/share" / name, ignore_errors=True)
    if certificates := sorted((root / "usr/share/ca-certificates").rglob("*.crt")):
        bundle = root / "etc/ssl/certs/ca-certificates.crt"
        bundle.parent.mkdir(parents=True, exist_ok=True)
        bundle.write_text("".join(path.read_text() for path in certificates))
    for name in _run([str(root / "bin/busybox"), "--list"], root).split():
        if not any(os.path.lexists(root / "usr" / folder / name) for folder in ("bin", "sbin")):
            (root / "usr/bin" / name).symlink_to("/bin/busybox")


def _run(command: Sequence[str], folder: Path) -> str:
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise BuildError(f"{' '.join(command[:2])} ended with status {done.returncode}:\n{said}")
    return done.stdout
