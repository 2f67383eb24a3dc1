"""The same specs give the same bytes: in any order of files, with any hash seed, locale, time zone and directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

# Directories list their files in another order on every file system.
_SHUFFLED = """
import contextlib, os, random, sys
real, seed = os.scandir, random.Random(int(sys.argv.pop(1)))
class Shuffled(list):
    def __enter__(self): return self
    def __exit__(self, *_): pass
def scandir(path="."):
    with real(path) as entries:
        found = list(entries)
    seed.shuffle(found)
    return Shuffled(found)
os.scandir = scandir
from avactl.cli.main import main
main()
"""

VARIANTS: dict[str, tuple[int, dict[str, str], list[str]]] = {
    "again": (1, {}, []),
    "other order, hash seed, locale and time zone": (
        2,
        {"PYTHONHASHSEED": "1", "LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8", "TZ": "Asia/Kathmandu"},
        [],
    ),
    "no locale, optimised": (
        3,
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONOPTIMIZE": "2"},
        [],
    ),
    "no cache": (4, {"PYTHONHASHSEED": "4294967295"}, ["--no-cache"]),
}
"""Seed of the order of files, environment and options. Any difference shows, and each compiles: its cache is empty."""


def _run(arguments: list[str], variant: str, where: Path, home: Path) -> bytes:
    seed, environment, more = VARIANTS[variant]
    command = [sys.executable, "-c", _SHUFFLED, str(seed), "render", *arguments, *more]
    environment = {**os.environ, "AVACTL_CACHE_DIR": str(home / "cache"), "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(command, cwd=where, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def _content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("example", ["ava", "modern"])
def test_same_bytes(example: str, tmp_path: Path) -> None:
    specs = ROOT / "examples" / example
    places = [
        (ROOT, f"examples/{example}"),
        (specs, "."),
        (tmp_path, str(specs)),
        (ROOT / "examples", example),
    ]
    files, streams = {}, {}
    for index, variant in enumerate(VARIANTS):
        where, path = places[index % len(places)]
        out = tmp_path / str(index)
        _run([path, "-o", str(out)], variant, where, tmp_path / f"home-{index}")
        files[variant] = _content(out)
        streams[variant] = _run([path, "-o", "-"], variant, where, tmp_path)
    assert len(files["again"]) > 50
    for variant in VARIANTS:
        assert files[variant] == files["again"], variant
        assert streams[variant] == streams["again"], variant


def test_text_of_any_script(tmp_path: Path) -> None:
    """Output is UTF-8, whatever the locale says."""
    heads = (
        "Cluster\nmetadata: {name: main}",
        "Team\nmetadata: {name: vision}",
        "TrainingJob\nmetadata: {name: net, team: vision}",
    )
    specs = "---\n".join(f"apiVersion: avactl.dev/v1\nkind: {head}\n" for head in heads)
    note = "spec: {image: net, args: [--note, 训练 ñ 😀]}\n"
    (tmp_path / "specs.yaml").write_text(specs + note, encoding="utf-8")
    variants = ("again", "no locale, optimised")
    streams = [_run([str(tmp_path), "-o", "-"], variant, tmp_path, tmp_path) for variant in variants]
    assert streams[0] == streams[1]
    assert "训练 ñ 😀".encode() in streams[0]
