"""Every invalid fixture gives exactly the diagnostics that stand beside it.

A case is `AREA/NAME__invalid.yaml` (or a directory `AREA/NAME__invalid/`), compiled together with the files of
`base/`; a first line `# base: none` leaves those out. `# environment: NAME` in avactl.yaml chooses the environment.
`NAME__invalid.txt` holds the rendered diagnostics.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from avactl.compiler import compile_tree
from avactl.diagnostics.text import render_text
from avactl.spec.repository.tree import MemoryTree

HERE = Path(__file__).parent / "golden" / "invalid"
CASES = sorted(path for path in HERE.glob("*/*__invalid*") if path.suffix != ".txt")
BASE = {f"base/{path.name}": path.read_bytes() for path in sorted((HERE / "base").iterdir())}
DELIVERY = b"""
spec:
  daemons: {delivery: true}
  delivery: {repository: "https://github.com/example/specs", secret: avactl-delivery}
"""
"""Settings of the Cluster of `base/` that every pipeline and promotion needs."""


def case_files(case: Path) -> dict[str, bytes]:
    """The files of one case, by their path in the repository."""
    if case.is_dir():
        files = {str(p.relative_to(case)): p.read_bytes() for p in sorted(case.rglob("*")) if p.is_file()}
    else:
        files = {case.name.replace("__invalid", ""): case.read_bytes()}
    bare = any(data.startswith(b"# base: none") for data in files.values())
    base = dict(BASE)
    if case.parent.name in ("pipeline", "promotion"):
        own = (
            DELIVERY.replace(b"{delivery", b"{serving: true, delivery") if case.parent.name == "promotion" else DELIVERY
        )
        base["base/platform.yaml"] = base["base/platform.yaml"].replace(b"\nspec:\n", own, 1)
    return files if bare else {**base, **files}


def tree_of(files: dict[str, bytes]) -> MemoryTree:
    """The tree of a case, in the environment that its avactl.yaml names."""
    found = re.search(rb"^# environment: (\S+)$", files.get("avactl.yaml", b""), re.MULTILINE)
    return MemoryTree(files, environment=found[1].decode() if found else "")


def render(files: dict[str, bytes]) -> str:
    result = compile_tree(tree_of(files))

    def source(path: str) -> str | None:
        return files[path].decode("utf-8", "replace") if path in files else None

    assert not result.manifests or result.ok
    return render_text(result.diagnostics, source)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}/{case.name}")
def test_invalid(case: Path, golden: Callable[[Path, str], None]) -> None:
    text = render(case_files(case))
    assert "error[" in text or "warning[" in text
    golden(case.with_suffix(".txt"), text)


def test_base_is_valid() -> None:
    assert render(BASE) == "no problems\n"


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 80


def test_every_output_has_a_case() -> None:
    """An output whose case is gone would be compared with nothing."""
    assert sorted(HERE.glob("*/*__invalid.txt")) == sorted(case.with_suffix(".txt") for case in CASES)
