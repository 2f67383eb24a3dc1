"""The documentation site: built in strict mode, complete, and without anything from other servers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from avactl.cli.app import COMMANDS
from avactl.diagnostics.codes import CODES
from avactl.program import registry
from avactl.program.explain.introspect import fields_by_key, models_at
from avactl.scheduler.metrics import REGISTRY
from tools.site import reference
from tools.site.links import relocate
from tools.site.metrics import declared_metrics

ROOT = Path(__file__).resolve().parent.parent
FOREIGN = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=[\"']?(?:https?:)?//[^\s>]*|url\(.?https?:"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it."""
    path = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return path


def ids(page: Path) -> set[str]:
    return set(re.findall(r'<h[1-6] id="([^"]+)"', page.read_text(encoding="utf-8")))


def test_pages_load_nothing_from_other_servers(site: Path) -> None:
    files = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(files) > 50
    found = {str(file): match[0] for file in files if (match := FOREIGN.search(file.read_text(encoding="utf-8")))}
    assert found == {}


def test_the_reference_has_every_kind_code_and_command(site: Path) -> None:
    reference = site / "reference"
    for name in registry.kind_names():
        model = registry.get_model(name)
        text = (reference / "kinds" / name.lower() / "index.html").read_text(encoding="utf-8")
        fields = {key for spec in models_at(model, ("spec",)) for key in fields_by_key(spec)}
        assert {key for key in fields if f"<code>{key}</code>" not in text} == set(), name
    assert {"spec", "spec.workers", "spec.pod.affinity"} <= ids(reference / "kinds" / "trainingjob" / "index.html")
    assert set(CODES) <= ids(reference / "diagnostics" / "index.html")
    assert {f"avactl-{name}" for name in COMMANDS} <= ids(reference / "commands" / "index.html")
    assert "avactl-cache-status" in ids(reference / "commands" / "index.html")


def test_metrics_are_read_from_the_source_as_they_are_exported() -> None:
    declared = {metric.name: metric for metric in declared_metrics()}
    exported = re.findall(r"^# TYPE (\S+) (\w+)$", generate_latest(REGISTRY).decode(), re.M)
    ours = {name: metric.type for name, metric in declared.items() if name.startswith("avactl_scheduler_")}
    assert ours == {name: kind for name, kind in exported if not name.endswith("_created")}
    assert declared["avactl_scheduler_team_gpus"].labels == ("team", "model")
    assert declared["avactl_cache_warm_ratio"].labels == ("namespace", "dataset", "version")
    assert declared["avactl_master_tasks"].labels == ("dataset", "state")
    assert declared["avactl_master_workers_lost_total"].labels == ()


def test_a_package_of_commands_without_a_title_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(reference._TITLES, "jobs")
    with pytest.raises(LookupError, match="without a title: jobs"):
        reference.reference_pages("https://git.example/a")


@pytest.mark.parametrize(
    ("link", "source", "page", "expected"),
    [
        ("diff.md#live", "docs/plan.md", "plan.md", "diff.md#live"),
        ("docs/diff.md", "CONTRIBUTING.md", "project/contributing.md", "../diff.md"),
        ("../README.md#install", "docs/jobs.md", "jobs.md", "index.md#install"),
        ("../avactl/diagnostics/texts/crlf.md", "docs/ci.md", "ci.md", "reference/diagnostics.md#crlf"),
        ("avactl/diagnostics/texts", "README.md", "index.md", "reference/diagnostics.md"),
        ("../examples/ava", "docs/ci.md", "ci.md", "https://git.example/a/tree/main/examples/ava"),
        ("../LICENSE", "docs/ci.md", "ci.md", "https://git.example/a/blob/main/LICENSE"),
        ("nowhere.md", "docs/ci.md", "ci.md", "nowhere.md"),
        ("https://example.com/", "docs/ci.md", "ci.md", "https://example.com/"),
        ("#jobs", "docs/ci.md", "ci.md", "#jobs"),
    ],
)
def test_links_of_the_repository_lead_to_pages(link: str, source: str, page: str, expected: str) -> None:
    assert relocate(f"[a]({link})", source, page, "https://git.example/a") == f"[a]({expected})"
