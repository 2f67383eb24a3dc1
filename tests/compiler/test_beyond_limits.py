"""Specs whose documents no daemon would read are refused when they are compiled, not in the cluster."""

from __future__ import annotations

from tests.kinds.compiling import unchecked
from tests.kinds.test_cache_daemon import CLIPS, CLUSTER, READ


def test_what_no_daemon_would_read_is_not_compiled() -> None:
    versions = ", ".join(f'{{name: v{number}, url: "s3://imagenet/clips/v{number}"}}' for number in range(1001))
    many = CLIPS.partition("  versions:")[0] + f"  versions: [{versions}]\n"
    result = unchecked(CLUSTER + READ + many)
    (problem,) = [each for each in result.diagnostics if each.severity == "error"]
    assert problem.code == "beyond-limits"
    assert "`versions` has more than 1000 entries" in problem.message
    assert problem.span == result.program.get("Dataset", "clips", "video").span("metadata", "name")
    assert result.manifests == ()
