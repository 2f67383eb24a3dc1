"""Credentials planted where specs, patches and manifests can hold them: no command prints them."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import indent

from tests.cli.running import Run, avactl  # noqa: F401 - a fixture
from tests.diff.repository import Repository
from tests.jobs.lab import PLATFORM, job

SECRET = "hunter2Planted"
_JOB = {
    "variable": f"env: {{DB_PASSWORD: {SECRET}}}",
    "user information": f"env: {{URL: 'https://u:p@{SECRET}@host/x'}}",
    "query": f"env: {{URL: 'https://host/x?a=1&token={SECRET}'}}",
    "signature": f"env: {{URL: 'https://host/c?sv=1&sig={SECRET}%3D'}}",
    "option": f"args: ['--db-password', {SECRET}]",
    "header": f"args: [curl, -H, 'Authorization: Bearer {SECRET}']",
    "key header": f"args: [curl, -H, 'X-Api-Key: {SECRET}']",
    "script": f"args: [sh, -c, 'export DB_PASSWORD={SECRET}; run --password={SECRET} --db-password {SECRET}']",
    "webhook": f"env: {{SLACK_WEBHOOK: 'https://hooks.example.com/T0/{SECRET}'}}",
    "unknown key": f"dbPassword: {SECRET}",
    "code": f"code: {{git: {{url: 'https://u:{SECRET}@host/x.git', ref: v1}}}}",
    "query of code": f"code: {{git: {{url: 'https://host/x.git?private_token={SECRET}', ref: v1}}}}",
    "store": f"checkpoint: {{path: 's3://k:{SECRET}@b/x'}}",
    "presigned": f"checkpoint: {{path: 'https://b/x?X-Amz-Signature={SECRET}'}}",
}
_KUBECONFIG = f"users:\n- name: a\n  user:\n    token: {SECRET}\n    client-key-data: {SECRET}{SECRET}\n"
_CONFIG = {
    "kubeconfig": _KUBECONFIG,
    ".netrc": f"machine host login u password {SECRET}",
    "app.conf": f"password={SECRET}\n",
    "odbc": f"Server=host;Uid=u;Pwd={SECRET};",
    "docker": f'{{"auths": {{"r": {{"password": "{SECRET}"}}}}}}',
}


def _manifests(**data: str) -> str:
    texts = "".join(f"\n        {key}: |\n{indent(text, 10 * ' ')}" for key, text in data.items())
    return (
        "kind: KubernetesObjects\nmetadata: {name: planted, team: vision}\nspec:\n  objects:\n"
        f"    - apiVersion: v1\n      kind: ConfigMap\n      metadata: {{name: planted}}\n      data:{texts}\n"
    )


SPECS = {
    **{name: job("planted", text) for name, text in _JOB.items()},
    "annotation": job("planted").replace("team: vision", f"team: vision, annotations: {{example.com/token: {SECRET}}}"),
    "patch": f"{job('planted')}\npatches: [{{target: {{kind: Job}}, merge: {{metadata: {{annotations: "
    f"{{example.com/token: {SECRET}}}}}}}}}]\n",
    **{f"ConfigMap {name}": _manifests(**{name: text}) for name, text in _CONFIG.items()},
    "broken YAML": f"{job('planted')}\nenv: {{DB_PASSWORD: {SECRET}\n  x: [",
}
COMMANDS = (
    ("validate", "."),
    ("validate", ".", "--format", "json"),
    ("diff", ".", "--base", "main", "--full"),
    ("diff", ".", "--base", "main", "--format", "json"),
    ("plan", ".", "--base", "main"),
    ("ci", "comment", ".", "--base", "main", "--dry-run", "--artifact", "artifact.txt"),
    ("graph", ".", "-o", "graph.svg"),
)


def _spec(text: str) -> str:
    parts = [part.strip() for part in text.split("\n---\n") if part.strip()]
    return "---\n".join(f"apiVersion: avactl.dev/v1\n{part.removeprefix('---').strip()}\n" for part in parts)


def _print_all(avactl: Run, root: Path) -> str:  # noqa: F811
    """Return what all commands print and write for people."""
    printed = ""
    for command in COMMANDS:
        done = avactl(*command, cwd=root)
        assert done.returncode in (0, 1), done.stderr
        printed += done.stdout + done.stderr
        for name in ("artifact.txt", "graph.svg"):
            path = root / name
            printed += path.read_text() if path.exists() else ""
            path.unlink(missing_ok=True)
    return printed


def test_no_command_prints_them(avactl: Run, tmp_path: Path) -> None:  # noqa: F811
    repository = Repository(tmp_path / "repository")
    repository.commit({"avactl.yaml": "include: [.]\n", "platform.yaml": _spec(PLATFORM)})
    planted = {
        f"planted-{number}.yaml": _spec(
            text.replace(SECRET, f"{SECRET}{number}x").replace("name: planted", f"name: planted-{number}")
        )
        for number, text in enumerate(SPECS.values())
    }
    repository.write(planted)
    printed = _print_all(avactl, repository.root)
    told = json.loads(avactl("validate", ".", "--format", "json", cwd=repository.root).stdout)
    refused = {entry["file"] for entry in told if entry["severity"] == "error"}
    for file in refused:
        (repository.root / file).unlink()
    # What no rule refuses is compiled, and shown as a change.
    assert set(planted) - refused
    assert avactl("validate", ".", cwd=repository.root).returncode == 0
    printed += _print_all(avactl, repository.root)
    assert "planted-0" in printed
    assert [name for number, name in enumerate(SPECS) if f"{SECRET}{number}x" in printed] == []
