"""The picture of the packages shows what they import, and every decision is on one page of the same form."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.test_layout import ROOT
from tools.architecture import PICTURE, imports, packages, picture


def test_the_picture_is_current(golden: Callable[[Path, str], None]) -> None:
    golden(PICTURE, picture())


def test_the_picture_has_every_package_and_imports_point_one_way() -> None:
    names = packages()
    assert sorted(names) == sorted(path.parent.name for path in (ROOT / "avactl").glob("*/__init__.py"))
    assert all(names.index(one) < names.index(other) for one, other in imports())


def test_decisions_have_one_form() -> None:
    decisions = sorted((ROOT / "docs" / "decisions").iterdir())
    assert len(decisions) >= 12
    for path in decisions:
        text = path.read_text(encoding="utf-8")
        headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert headings == ["Context", "Decision", "Alternatives", "Consequences"], path.name
        assert len(text.splitlines()) <= 60, path.name
        assert [name for name in re.findall(r"`(avactl/[^`]+)`", text) if not (ROOT / name).exists()] == [], path.name
