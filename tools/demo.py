"""`make demo`: the main job on examples/ava, as a user would do it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.rule import Rule

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "out"
AVACTL = [sys.executable, "-m", "avactl.cli.main"]

console = Console()


def run(command: str, directory: Path, *, ok: int = 0) -> None:
    """Print a command and its output; exit if the exit code is unexpected."""
    console.print(f"\n[bold cyan]$[/] [bold]{escape(command)}[/]", highlight=False, soft_wrap=True)
    sys.stdout.flush()
    # In a pipeline too, what is compiled is what the demo has just written, and not yet committed.
    environment = {**os.environ, "AVACTL_SOURCE": "work-tree"}
    done = subprocess.run([*AVACTL, *shlex.split(command)[1:]], cwd=directory, env=environment, check=False)
    if done.returncode != ok:
        console.print(f"[bold red]demo: exit code {done.returncode}[/]")
        sys.exit(1)


def heading(text: str) -> None:
    console.print()
    console.print(Rule(f"[bold]{text}", align="left"))


def main() -> None:
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="avactl-demo-") as scratch:
        repository = Path(scratch) / "ava"
        shutil.copytree(ROOT / "examples" / "ava", repository)
        identity = ["-c", "user.name=demo", "-c", "user.email=demo@example.com", "-c", "commit.gpgsign=false"]
        for args in (["init", "-q", "-b", "main"], ["add", "."], [*identity, "commit", "-q", "-m", "examples/ava"]):
            subprocess.run(["git", *args], cwd=repository, check=True)

        heading("A platform of a hundred GPU machines, as spec files in git")
        run("avactl validate", repository)
        run(f"avactl render -o {shlex.quote(os.fspath(OUT / 'ava'))}", repository)
        run(f"avactl graph -o {shlex.quote(os.fspath(OUT / 'ava.svg'))}", repository)

        heading("A change and its consequences")
        run("avactl set teams/vision/jobs.yaml --name resnet50 spec.workers.replicas=8", repository)
        run("avactl set teams/vision/serving.yaml spec.replicas.min=6 spec.replicas.max=30", repository)
        run("avactl set teams/vision/team.yaml --name Team/vision spec.workspace.storage=20Gi", repository)
        run("avactl diff", repository)
        run("avactl plan", repository)

        heading("A mistake and its diagnostic")
        run("avactl set --force teams/video/jobs.yaml --name captioning spec.workers.gpu=V1000", repository)
        run("avactl validate", repository, ok=1)

    heading("Results")
    console.print(f"  manifests  {OUT / 'ava'}", highlight=False, soft_wrap=True)
    console.print(f"  picture    {OUT / 'ava.svg'}", highlight=False, soft_wrap=True)
    console.print("  next       avactl init my-platform; avactl explain; README.md", highlight=False)


if __name__ == "__main__":
    main()
