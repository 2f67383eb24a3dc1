"""The programs of other packages that tests need, by the table `programs.txt`, which `.ci/install` reads, too."""

from __future__ import annotations

import shutil
from pathlib import Path

from tools.controlplane import UnavailableError

TABLE = Path(__file__).with_suffix(".txt")
NO_PACKAGE = "-"


def read_packages() -> dict[tuple[str, ...], str]:
    """Return Debian's package of each program, by its name and the names of programs that stand in for it."""
    lines = (line for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return {tuple(names.split("|")): package for names, package in map(str.split, lines)}


def find_program(program: str) -> str | None:
    """Return the path of a program of the table, or of one that stands in for it."""
    names, _ = _find_row(program)
    return next(filter(None, map(shutil.which, names)), None)


def require_programs(*programs: str, purpose: str = "") -> None:
    """Raise UnavailableError, with Debian's packages, unless all these programs of the table are on PATH."""
    missing = [program for program in programs if find_program(program) is None]
    if missing:
        packages = dict.fromkeys(package for _, package in map(_find_row, missing) if package != NO_PACKAGE)
        remedy = f": run `apt-get install {' '.join(packages)}`" if packages else ""
        raise UnavailableError(f"{purpose and f'{purpose} unavailable: '}no {', '.join(missing)} on PATH{remedy}")


def _find_row(program: str) -> tuple[tuple[str, ...], str]:
    (row,) = (row for row in read_packages().items() if program in row[0])
    return row
