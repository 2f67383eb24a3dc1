"""Specs whose documents no daemon would read are refused when they are compiled, not in the cluster."""

from __future__ import annotations

from pathlib import Path

from avactl.apply.files.paths import object_path
from avactl.compiler.incremental.compile import compile_cached
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
