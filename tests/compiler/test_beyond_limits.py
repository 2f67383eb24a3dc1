"""Specs whose documents no daemon would read are refused when they are compiled, not in the cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from avactl.apply.files.paths import object_path
from avactl.compiler import lower
from avactl.compiler.incremental.compile import compile_cached
from avactl.contracts.scheduling import PoolTaint
from avactl.spec.repository.tree import DirTree
from tests.kinds.compiling import complete, unchecked
from tests.kinds.test_cache_daemon import CLIPS, CLUSTER, READ


def test_what_no_daemon_would_read_is_not_compiled(tmp_path: Path) -> None:
    versions = ", ".join(f'{{name: v{number}, url: "s3://imagenet/clips/v{number}"}}' for number in range(1001))
    many = CLIPS.partition("  versions:")[0] + f"  versions: [{versions}]\n"
    result = unchecked(CLUSTER + READ + many)
    (problem,) = [each for each in result.diagnostics if each.severity == "error"]
    assert problem.code == "beyond-limits"
    assert "`versions` has more than 1000 entries" in problem.message
    assert problem.span == result.program.get("Dataset", "clips", "video").span("metadata", "name")
    assert result.manifests == ()
    (tmp_path / "specs.yaml").write_text(complete(CLUSTER + READ + many))
    for use_cache in (True, True, False):  # results are kept by the first, and must not be of a spec that is refused
        found = compile_cached(DirTree(tmp_path), object_path, use_cache=use_cache).diagnostics
        assert [each.code for each in found if each.severity == "error"] == ["beyond-limits"]


@pytest.mark.parametrize(
    ("taint", "code"),
    [
        ({"key": "k" * 318, "effect": "NoSchedule"}, "beyond-limits"),
        ({"key": 1, "effect": "NoSchedule"}, "internal-error"),
        ({"key": 1, "value": "v" * 318, "effect": "NoSchedule"}, "internal-error"),
        ({"effect": "NoSchedule"}, "internal-error"),
    ],
)
def test_only_lengths_and_ranges_are_limits(
    taint: dict[str, object], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anything else that a document must not have is a defect of its lowering."""
    monkeypatch.delenv("AVACTL_DEBUG", raising=False)
    monkeypatch.setattr(lower, "apply_patches", lambda *_: PoolTaint.model_validate(taint))
    codes = {each.code for each in unchecked(CLUSTER + READ + CLIPS).diagnostics if each.severity == "error"}
    assert codes == {code}


@pytest.mark.parametrize(
    ("prefix", "what"),
    [
        ("/a" * 31, "`path` has more than 32 levels"),
        ("/" + "a" * 256, "`path` has a level with more than 255 characters"),
    ],
)
def test_paths_have_limits(prefix: str, what: str) -> None:
    deep = CLIPS.replace("s3://imagenet/clips", f"s3://imagenet/clips{prefix}")
    found = [each for each in unchecked(CLUSTER + READ + deep).diagnostics if each.severity == "error"]
    assert [each.code for each in found] == ["beyond-limits"]
    assert what in found[0].message
