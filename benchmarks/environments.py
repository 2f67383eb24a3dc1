"""Time of `validate`, `diff` and `plan` on a repository with environments, beside the same specs without.

    python -m benchmarks.environments [--specs 2000] [--repeats 5]

Both have the same generated specs. In one of them every job extends a template, every spec gets defaults of
the platform and its team, every fourth job has an overlay, and every tenth a patch;
the plain one has the same patches.
The commands run cold (`--no-cache`), and after the edit of one job, in turns; the fastest run of each counts.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path

from rich.table import Table

from benchmarks.generate import repository, specs_of
from benchmarks.measure import Bar, Run, bar, best, console, run

AVACTL = [sys.executable, "-m", "avactl.cli.main"]
_MOST = 1.2

CONFIG = """\
environments:
  prod: {overlays: [overlays/prod]}
  staging: {overlays: [overlays/staging]}
"""
DEFAULTS = "apiVersion: avactl.dev/v1\nkind: Defaults\n"
TEMPLATE = """\
apiVersion: avactl.dev/v1
kind: TrainingJob
template: true
metadata: {name: base, labels: {template: base}}
spec: {env: {NCCL_DEBUG: WARN}, ttl: 3d}
"""
PATCH = "patches: [{target: {kind: Job}, merge: {metadata: {labels: {patched: 'yes'}}}}]\n"
JOB = re.compile(r"^kind: TrainingJob\nmetadata: \{name: ([a-z0-9-]+), team: ([a-z0-9-]+)\}$", re.MULTILINE)


def plain(teams: int) -> dict[str, str]:
    """Return the files of a repository without environments; every tenth job has a patch."""
    files = dict(repository(teams))
    number = count()
    for path, text in files.items():
        if len(JOB.findall(text)) == 1 and text.count("apiVersion:") == 1 and next(number) % 10 == 0:
            files[path] = text.rstrip("\n") + "\n" + PATCH
    return files


def layered(files: dict[str, str]) -> dict[str, str]:
    """Return the same specs in two environments, with defaults, a template and overlays."""
    found = {"defaults.yaml": DEFAULTS + "spec: {TrainingJob: {metadata: {labels: {platform: all}}}}\n"}
    overlays: list[str] = []
    teams: set[str] = set()
    number = count()
    for path, text in files.items():
        for match in JOB.finditer(text):
            name, team = match.groups()
            teams.add(team)
            if next(number) % 4 == 0:
                head = f"apiVersion: avactl.dev/v1\nkind: TrainingJob\nmetadata: {{name: {name}, team: {team}}}\n"
                overlays.append(head + "spec: {ttl: 5d}\n")
        found[path] = JOB.sub(lambda match: match[0].replace("\n", "\nextends: base\n", 1), text)
    for team in teams:
        kinds = "{TrainingJob: {metadata: {labels: {cost-center: own}}, spec: {ttl: 4d}}}"
        found[f"teams/{team}/defaults.yaml"] = f"{DEFAULTS}metadata: {{team: {team}}}\nspec: {kinds}\n"
    found["templates.yaml"] = TEMPLATE
    for environment in ("prod", "staging"):
        found[f"overlays/{environment}/jobs.yaml"] = "---\n".join(overlays)
    found["avactl.yaml"] = files["avactl.yaml"].replace("teams]", "teams, defaults.yaml, templates.yaml]") + CONFIG
    return found


def write(root: Path, files: dict[str, str]) -> Path:
    """Write a git repository; return one job's file."""
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "base"]):
        subprocess.run([*git, *command], check=True)
    return next(root / path for path, text in files.items() if "kind: TrainingJob" in text and "/jobs/" in path)


def edit(file: Path, number: int) -> None:
    """Change one job to a value that it did not have."""
    text = re.sub(r"^# edit .*\n", "", file.read_text(), flags=re.MULTILINE)
    changed = re.sub(r"cpu: \d+", f"cpu: {4 + number % 4}", text, count=1)
    file.write_text(f"# edit {number}\n{changed}")


def main() -> None:
    parser = argparse.ArgumentParser(description="A repository with environments beside one without.")
    parser.add_argument("--specs", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    teams = 1
    while specs_of(teams) < given.specs:
        teams += 1
    with tempfile.TemporaryDirectory(prefix="avactl-bench-") as folder:
        sides = {"plain": Path(folder, "plain"), "environments": Path(folder, "environments")}
        before = plain(teams)
        jobs = {"plain": write(sides["plain"], before), "environments": write(sides["environments"], layered(before))}
        commands = {
            "validate, cold": ["validate", "--no-cache"],
            "validate, one job edited": ["validate"],
            "diff": ["diff"],
            "plan": ["plan"],
        }
        runs: dict[tuple[str, str], list[Run]] = {}
        for number in range(given.repeats + 1):
            for what, words in commands.items():
                for side, root in sides.items():
                    edit(jobs[side], number)
                    named = ["--environment", "prod"] if side == "environments" else []
                    environment = {"AVACTL_CACHE_DIR": str(Path(folder, "cache"))}
                    done = run([*AVACTL, words[0], str(root), *words[1:], *named], environment)
                    if number:  # the first run fills the cache
                        runs.setdefault((what, side), []).append(done)
        title = f"{specs_of(teams):,} specs, one environment of two beside none"
        table = Table("command", "plain", "environments", title=title)
        for what in commands:
            table.add_row(what, *(f"{best(runs[what, side]).seconds:.3f} s" for side in sides))
        console.print(table)
        for what in commands:
            one, other = (best(runs[what, side]).seconds for side in ("environments", "plain"))
            bar(Bar(f"environments-{what.replace(', ', '-').replace(' ', '-')}", one / other, _MOST))


if __name__ == "__main__":
    main()
