"""actionlint for tests: a linter of GitHub workflows, built from its pinned Go module."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools.controlplane import build_binaries
from tools.controlplane.build import Module

MODULE = Module(Path(__file__).parent, "-s -w", {"actionlint": "github.com/rhysd/actionlint/cmd/actionlint"})


def lint(root: Path) -> str:
    """Return what actionlint reports of the workflows below a repository's root, "" if nothing.

    The first call builds it, and raises what `build_binaries` does. shellcheck and pyflakes are left out, which other
    machines may not have.
    """
    (program,) = build_binaries(MODULE.packages, (MODULE,)).values()
    command: list[str | Path] = [program, "-oneline", "-no-color", "-shellcheck=", "-pyflakes="]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr
