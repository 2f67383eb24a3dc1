"""Time from specs to files on disk, cold beside cdk8s, and after a small change.

    python -m benchmarks.compile [--objects 10000] [--specs 2000] [--repeats 5] [--folder DIR]

Cold: a fresh process with an empty cache loads, checks and compiles a generated repository and writes one file per
object. The peer creates as many Deployments of about the same size from literals, without checks, and writes them
into one file, which is its faster way, or one file each. Both take turns; the fastest run of each counts.
Incremental: one spec of the repository is edited, and the command is run again. Times are of whole processes.
Saved: the same edit, compiled from the results of the last run and from nothing (`--no-cache`), in the repository of
the cold runs and in examples/ava. Both take turns.
"""

from __future__ import annotations

import argparse
import compileall
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rich.table import Table

import avactl
from avactl.base.directories import cache_directory
from benchmarks.measure import Bar, Run, bar, best, console, fastest, folder_for_files, run

AVACTL = [sys.executable, "-m", "avactl.cli.main"]
EXAMPLE = Path(avactl.__file__).parent.parent / "examples" / "ava"
PEER_SOURCE = Path(__file__).parent / "cdk8s"


def install_peer() -> Path | None:
    """Install cdk8s in avactl's cache with npm on first use; None without npm or registry."""
    folder = Path(cache_directory()) / "bench-cdk8s"
    if shutil.which("npm") is None:
        console.print("cdk8s is skipped: npm is not on PATH")
        return None
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "main.js"):
        shutil.copy(PEER_SOURCE / name, folder / name)
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefer-offline", "--loglevel=error"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        console.print(f"cdk8s is skipped: npm install failed: {done.stderr.strip()}")
        return None
    return folder


class Bench:
    """The measurements in one work folder."""

    def __init__(self, folder: Path, repeats: int) -> None:
        self.folder = folder
        self.repeats = repeats
        self.runs = 0
        self.bars: list[Bar] = []
        self.table = Table("what", "objects", "seconds", "peak memory", title="From specs to files on disk")

    def fresh(self) -> Path:
        """Return a new path. Deletion comes last: ext4 is slow to reuse inodes that were just freed."""
        self.runs += 1
        return self.folder / f"run-{self.runs}"

    def generate(self, option: str, size: int) -> Path:
        """Generate a repository in another process, to keep this one small."""
        repository = self.fresh()
        run([sys.executable, "-m", "benchmarks.generate", str(repository), option, str(size)])
        return repository

    def empty_cache(self, _: int = 0) -> Mapping[str, str]:
        return {"AVACTL_CACHE_DIR": str(self.fresh())}

    def render(self, repository: Path) -> Run:
        """Measure a cold run."""
        return run([*AVACTL, "render", str(repository), "-o", str(self.fresh())], self.empty_cache())

    def peer(self, folder: Path, objects: int, files: str) -> Run:
        return run(["node", str(folder / "main.js"), str(objects), str(self.fresh()), files])

    def row(self, what: str, objects: int | None, result: Run) -> None:
        memory = f"{result.memory / 1e6:.0f} MB" if objects else ""
        self.table.add_row(what, f"{objects:,}" if objects else "", f"{result.seconds:.3f}", memory)


def cold(bench: Bench, objects: int) -> Path:
    """Bars compile-ratio, compile-growth, compile-memory. Return the large repository."""
    peer = install_peer()
    sizes = (objects // 10, objects)
    repositories = {size: bench.generate("--objects", size) for size in sizes}
    own: dict[int, list[Run]] = {size: [] for size in sizes}
    others: dict[str, list[Run]] = {"FILE_PER_CHART": [], "FILE_PER_RESOURCE": []}
    for _ in range(bench.repeats):
        for size, repository in repositories.items():
            own[size].append(bench.render(repository))
        for files, runs in others.items():
            if peer is not None:
                runs.append(bench.peer(peer, objects, files))
    for size in sizes:
        bench.row("avactl render, all checks, a file each", size, best(own[size]))
    for files, runs in others.items():
        if runs:
            words = "one file" if files == "FILE_PER_CHART" else "a file each"
            bench.row(f"cdk8s synth, no checks, {words}", objects, best(runs))
    small, large = (best(own[size]) for size in sizes)
    fastest_peer = min((best(runs).seconds for runs in others.values() if runs), default=None)
    bench.bars += [
        Bar("compile-ratio", large.seconds / fastest_peer if fastest_peer else None, 0.5),
        Bar("compile-growth", large.seconds / small.seconds, 11.0, digits=1),
        Bar("compile-memory", large.memory / 1e6, 400, " MB", 0),
    ]
    return repositories[objects]


class Editor:
    """Changes one job of a repository to a new value each time."""

    def __init__(self, repository: Path) -> None:
        self.file = min(
            path
            for path in repository.glob("teams/**/*.yaml")
            if re.search(r'(?s)--epochs, "\d.*replicas: \d', path.read_text())
        )
        self.count = 0

    def edit(self, _: int = 0) -> None:
        """Change arguments and resources, so that the team's quota is recomputed."""
        self.count += 1
        text = re.sub(r'--epochs, "\d+"', f'--epochs, "{1000 + self.count}"', self.file.read_text())
        self.file.write_text(re.sub(r"memory: \d+Gi", f"memory: {100 + self.count}Gi", text, count=1))


def incremental(bench: Bench, specs: int) -> None:
    """Bars validate-again, render-again, help-startup: seconds beyond those of `python -c pass`."""
    repository = bench.generate("--specs", specs)
    out, cache = bench.fresh(), str(bench.fresh())

    def environment(_: int) -> Mapping[str, str]:
        return {"AVACTL_CACHE_DIR": cache}

    editor = Editor(repository)
    repeats = 2 * bench.repeats
    nothing = fastest([sys.executable, "-c", "pass"], 2 * repeats)
    for command in (["validate", str(repository)], ["render", str(repository), "-o", str(out)]):
        run([*AVACTL, *command], environment(0))
        again = fastest([*AVACTL, *command], repeats, environment, editor.edit)
        unchanged = fastest([*AVACTL, *command], repeats, environment)
        bench.row(f"avactl {command[0]}, one spec changed", None, again)
        bench.row(f"avactl {command[0]}, nothing changed", None, unchanged)
        bench.bars.append(Bar(f"{command[0]}-again", again.seconds - nothing.seconds, 0.3, " s"))
    shown = fastest([*AVACTL, "--help"], repeats, environment)
    bench.row("avactl --help", None, shown)
    bench.row("python -c pass", None, nothing)
    bench.bars.append(Bar("help-startup", shown.seconds - nothing.seconds, 0.15, " s"))


def saved(bench: Bench, repositories: Mapping[str, Path]) -> None:
    """Bar incremental-ratio: the time of an incremental compile by that of a full one, in the first repository."""
    ratios = []
    for name, repository in repositories.items():
        cache = {"AVACTL_CACHE_DIR": str(bench.fresh())}
        command = [*AVACTL, "validate", str(repository)]
        run(command, cache)
        editor = Editor(repository)
        full, kept = [], []
        for _ in range(2 * bench.repeats):
            editor.edit()
            full.append(run([*command, "--no-cache"], cache))
            kept.append(run(command, cache))
        bench.row(f"avactl validate {name}, one spec changed, no cache", None, best(full))
        bench.row(f"avactl validate {name}, one spec changed, cache", None, best(kept))
        difference = best(full).seconds - best(kept).seconds
        print(f"incremental compile of {name} saves {difference:.3f} s of {best(full).seconds:.3f} s", flush=True)
        ratios.append(best(kept).seconds / best(full).seconds)
    bench.bars.append(Bar("incremental-ratio", ratios[0], 0.6))


def main() -> None:
    parser = argparse.ArgumentParser(description="From specs to files on disk, beside cdk8s.")
    parser.add_argument("--objects", type=int, default=10_000, help="objects of the cold runs")
    parser.add_argument("--specs", type=int, default=2_000, help="specs of the incremental runs")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each; the fastest counts")
    parser.add_argument("--folder", default=None, help="where to write; by default the place for temporary files")
    given = parser.parse_args()
    # As an installation does: bytecode of a checkout may be missing or old.
    compileall.compile_dir(Path(avactl.__file__).parent, quiet=2)
    with tempfile.TemporaryDirectory(prefix="avactl-bench-", dir=folder_for_files(given.folder)) as folder:
        bench = Bench(Path(folder), given.repeats)
        large = cold(bench, given.objects)
        incremental(bench, given.specs)
        small = Path(shutil.copytree(EXAMPLE, bench.fresh()))
        saved(bench, {f"{given.objects:,} objects": large, "examples/ava": small})
        console.print(bench.table)
        for each in bench.bars:
            bar(each)


if __name__ == "__main__":
    main()
