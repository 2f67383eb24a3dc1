"""`python -m tools.architecture`: draw the packages of avactl and what they import, for docs/architecture.md."""

from __future__ import annotations

import configparser
import functools
from pathlib import Path

import grimp

from avactl.base.svg import Svg

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "architecture.svg"
_MARGIN, _CELL, _TOP = 24.0, 38.0, 76.0
_NAME_WIDTH = 90.0
"""Width of a package's name, which is left of its square."""
_INK, _MUTED, _LINE, _SQUARE, _DOT = "#1f2933", "#52606d", "#c3ccd8", "#2563eb", "#1d4ed8"


def packages() -> list[str]:
    """Return the packages of `avactl`, from top to bottom, as `.importlinter` orders them."""
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter", encoding="utf-8")
    layers = contracts["importlinter:contract:layers"]["layers"].replace("|", "\n").split()
    return [layer.removeprefix("avactl.") for layer in layers]


@functools.cache
def import_graph() -> dict[str, set[str]]:
    """Return the modules that each module of `avactl` imports: also in functions, also under TYPE_CHECKING."""
    graph = grimp.build_graph("avactl", exclude_type_checking_imports=False, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def imports() -> set[tuple[str, str]]:
    """Return pairs of packages of which one imports the other."""
    names = set(packages())
    pairs = {
        (importer.split(".")[1], imported.split(".")[1])
        for importer, modules in import_graph().items()
        for imported in modules
        if "avactl" not in (importer, imported)
    }
    return {(one, other) for one, other in pairs if one != other and {one, other} <= names}


def picture() -> str:
    """Return the SVG: packages on the diagonal, and a dot where the one on its left imports the one below."""
    names, found, svg = packages(), imports(), Svg()
    at = {name: _CELL * (number + 0.5) for number, name in enumerate(names)}
    left = _MARGIN + _NAME_WIDTH
    svg.text(_MARGIN, 36, "Packages of avactl", size=18, bold=True, fill=_INK)
    key = "A dot: the package on its left imports the one below. None is left of the diagonal: imports point one way."
    svg.text(_MARGIN, 58, key, size=12, fill=_MUTED)
    for name in names:
        x, y = left + at[name], _TOP + at[name]
        svg.rect(
            x, y - 0.75, max([at[other] - at[name] for one, other in found if one == name], default=0), 1.5, fill=_LINE
        )
        length = max([at[name] - at[one] for one, other in found if other == name], default=0)
        svg.rect(x - 0.75, y - length, 1.5, length, fill=_LINE)
    for one, other in sorted(found):
        x, y = left + at[other], _TOP + at[one]
        svg.rect(x - 5, y - 5, 10, 10, fill=_DOT, radius=5, title=f"{one} imports {other}")
    for name in names:
        x, y = left + at[name], _TOP + at[name]
        svg.rect(x - 9, y - 9, 18, 18, fill=_SQUARE, radius=4)
        svg.text(x - 16, y + 4.5, name, size=13, fill=_INK, bold=True, anchor="end", mono=True)
    size = _CELL * len(names)
    return svg.document(left + size + _MARGIN, _TOP + size + _MARGIN, "Packages of avactl and their imports")


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
