"""Manifests of millions of lines, and packing of small files beside `tar`.

    python -m benchmarks.datasets [verify] [pack] [--lines 5000000] [--files 100000] [--folder DIR]

`verify`: `avactl dataset verify` on a sorted and on a shuffled manifest; memory is the peak of the process. `pack`:
`avactl dataset pack --format webdataset` and GNU tar in turn on the same files of 8 to 56 KiB, as of photos with 256
pixels, cached before; the rate of the fastest run of each. Both end when the kernel has the data; neither waits for a
disk.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.clusters import bar as at_least_bar
from benchmarks.measure import Bar, Run, bar, best, folder_for_files, run

AVACTL = (sys.executable, "-m", "avactl.cli.main", "dataset")
REPEATS = 3
PRIME = 7_368_787


def write_manifest(path: Path, lines: int, shuffled: bool) -> None:
    """Write a manifest with sizes, ETags and labels, as `snapshot` does."""
    with path.open("w", buffering=1 << 20) as file:
        for line in range(lines):
            number = line * PRIME % lines if shuffled else line
            name = f"train/n{number // 1300:08}/n{number // 1300:08}_{number:09}.JPEG"
            labels = f'{{"split":"train","class":"n{number // 1300:08}"}}'
            file.write(
                f'{{"url":"s3://imagenet/v3/{name}","size":{90_000 + number % 40_000},'
                f'"etag":"{number * 0x9E3779B97F4A7C15 % 2**128:032x}","labels":{labels}}}\n'
            )


def verify(folder: Path, lines: int) -> None:
    """Measure the verification of both manifests."""
    print(f"\n{lines:,} lines")
    print(f"{'':10}{'MB':>8}{'s':>8}{'lines/s':>12}{'peak, MB':>10}")
    peaks = []
    for name in ("sorted", "shuffled"):
        path = folder / f"{name}.jsonl"
        write_manifest(path, lines, name == "shuffled")
        done = run([*AVACTL, "verify", str(path)], {"TMPDIR": str(folder)})
        size = path.stat().st_size / 1e6
        print(f"{name:10}{size:8.0f}{done.seconds:8.1f}{lines / done.seconds:12,.0f}{done.memory / 1e6:10.0f}")
        peaks.append(done.memory / 1e6)
        path.unlink()
    bar(Bar("manifest-memory", max(peaks), 200.0, " MB", 0))


def write_files(folder: Path, files: int) -> int:
    """Write files in directories of 1,000; return their bytes."""
    rng, size = random.Random(1), 0
    for number in range(files):
        if number % 1000 == 0:
            directory = folder / f"n{number // 1000:08}"
            directory.mkdir(parents=True)
        content = rng.randbytes(rng.randrange(8 << 10, 56 << 10))
        (directory / f"{number:06}.jpg").write_bytes(content)
        size += len(content)
    return size


def pack(folder: Path, files: int) -> None:
    """Measure packing and tar in turn."""
    size = write_files(folder / "data", files)
    runs: dict[str, list[Run]] = {"tar": [], "avactl": []}
    for _ in range(REPEATS):
        target = folder / "data.tar"
        runs["tar"].append(run(["tar", "--sort=name", "-cf", str(target), "-C", str(folder), "data"]))
        target.unlink()
        options = ("--format", "webdataset", "--shard-size", "128Mi")
        runs["avactl"].append(run([*AVACTL, "pack", str(folder / "data"), str(folder / "out"), *options]))
        shutil.rmtree(folder / "out")
    print(f"\n{files:,} files, {size / 1e6:,.0f} MB, {len(os.sched_getaffinity(0))} cores")
    print(f"{'':10}{'s':>8}{'files/s':>10}{'MB/s':>8}")
    rates = {}
    for name, done in runs.items():
        seconds = best(done).seconds
        rates[name] = files / seconds
        print(f"{name:10}{seconds:8.2f}{rates[name]:10,.0f}{size / seconds / 1e6:8.0f}")
    at_least_bar("pack-rate", rates["avactl"] / rates["tar"], 0.8, at_least=True)


def main() -> None:
    """Measure both, or what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="*", choices=["verify", "pack", []], help="default: both")
    parser.add_argument("--lines", type=int, default=5_000_000)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--folder", help="where files are written")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=folder_for_files(options.folder), prefix="avactl-datasets-") as name:
        if not options.what or "verify" in options.what:
            verify(Path(name), options.lines)
        if not options.what or "pack" in options.what:
            pack(Path(name), options.files)


if __name__ == "__main__":
    main()
