"""Packing of files into shards, read back by the libraries of the formats."""

from __future__ import annotations

import hashlib
import io
import os
import random
import struct
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
import webdataset
from PIL import Image
from tfrecord.reader import tfrecord_loader

from avactl.datasets.pack.formats import tar_header
from avactl.datasets.pack.model import SplitAt
from avactl.datasets.pack.planner import name_length
from avactl.datasets.stores.remote import RemoteStore
from tests.cli.running import Run
from tests.datasets.conftest import fill, lines, manifest
from tests.datasets.readers import caffe, crc32c, recordio, tfrecords

Put = Callable[[Mapping[str, bytes]], RemoteStore]
MAGIC = struct.pack("<I", 0xCED7230A)
SUFFIX = {"webdataset": "tar", "tfrecord": "tfrecord", "recordio": "rec", "lmdb": "mdb"}
UNLABELLED = ("--class", "")


def samples(count: int = 40) -> dict[str, bytes]:
    """Files of samples: an image, a class, sometimes a mask; sizes around the blocks of tar."""
    rng = random.Random(5)
    files = {}
    for number in range(count):
        name = f"train/{number % 3}/{number:03}"
        files[f"{name}.jpg"] = rng.randbytes(rng.choice((0, 1, 511, 512, 513, 3000)))
        files[f"{name}.cls"] = str(number % 3).encode()
        if number % 5 == 0:
            files[f"{name}.seg.png"] = rng.randbytes(100)
    return files


def packed(avactl: Run, *args: str) -> str:
    done = run(avactl, *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(avactl: Run, *args: str) -> subprocess.CompletedProcess[str]:
    """Pack; records of one file without a class, unless the arguments name labels."""
    bare = {"recordio", "lmdb"} & {*args} and not {"--class", "--labels"} & {*args}
    return avactl("dataset", "pack", *args, *(UNLABELLED if bare else ()))


def tree(directory: Path) -> dict[str, bytes]:
    """All files of a pack but its state, which has the times of the source."""
    found = {path.relative_to(directory).as_posix(): path for path in directory.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if not name.startswith(".pack/")}


def shard_files(directory: Path) -> list[Path]:
    """Files of the shards of a pack."""
    return sorted(path for path in (directory / "shards").rglob("*") if path.is_file())


def records(directory: Path) -> dict[str, bytes]:
    """Files of a pack by key, read from the shards by the places in `records/`."""
    found = {}
    for path in sorted((directory / "records").iterdir()):
        for record in lines(path):
            shard = directory / "shards" / str(record["shard"])
            if shard.name == "data.mdb":
                content, label = caffe(shard.parent)[f"{record['id']:010}".encode()]
                assert label == record["label"]
            else:
                parts = record.get("parts", [[record["offset"], record["length"]]])
                assert isinstance(parts, list)
                content = MAGIC.join(shard.read_bytes()[start : start + length] for start, length in parts)
            assert len(content) == record["length"]
            assert f"{google_crc32c.value(content):08x}" == record["crc32c"]
            if len(content) < 5000:
                assert google_crc32c.value(content) == crc32c(content)
            found[str(record["key"])] = content
    return found


# -- formats -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", SUFFIX)
def test_every_file_is_in_a_shard(tmp_path: Path, avactl: Run, format: str) -> None:
    files = samples()
    fill(tmp_path / "data", files)
    told = packed(avactl, "data", "out", "--format", format, "--shard-size", "20k")
    out = tmp_path / "out"
    assert records(out) == files
    shards = sorted(path.relative_to(out / "shards").as_posix() for path in shard_files(out))
    assert len(shards) > 4
    entries = lines(out / "manifest.jsonl")
    assert [entry["url"] for entry in entries] == [f"file://{out}/shards/{name}" for name in shards]
    for entry in entries:
        content = (out / "shards" / str(entry["url"]).rpartition("/shards/")[2]).read_bytes()
        assert (entry["size"], entry["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
        assert len(content) <= 20_000 + (10_240 if format != "lmdb" else 4 * 4096 + 20 * 4096)
    digest = hashlib.sha256((out / "manifest.jsonl").read_bytes()).hexdigest()
    one_file = format in ("recordio", "lmdb")
    assert sum(int(str(entry.get("records", 0))) for entry in entries) == (len(files) if one_file else 40)
    assert told.endswith(f"manifest: out/manifest.jsonl, sha256 {digest}\n")
    assert avactl("dataset", "verify", "out/manifest.jsonl", "--content").returncode == 0


def test_webdataset_reads_the_samples(tmp_path: Path, avactl: Run) -> None:
    files = samples()
    fill(tmp_path / "data", files)
    packed(avactl, "data", "out", "--format", "webdataset", "--shard-size", "20k")
    shards = sorted(str(path) for path in (tmp_path / "out" / "shards").iterdir())
    found: dict[str, bytes] = {}
    for sample in webdataset.WebDataset(shards, shardshuffle=False):
        assert {"jpg", "cls"} <= set(sample)
        found |= {f"{sample['__key__']}.{name}": value for name, value in sample.items() if name[0] != "_"}
    assert found == files


def test_tfrecord_reads_the_examples(tmp_path: Path, avactl: Run) -> None:
    files = samples() | {"train/none": b"no extension"}
    fill(tmp_path / "data", files)
    packed(avactl, "data", "out", "--format", "tfrecord", "--shard-size", "20k")
    found: dict[str, bytes] = {}
    for path in sorted((tmp_path / "out" / "shards").glob("*.tfrecord")):
        places = [(offset, len(record) + 16) for offset, record in tfrecords(path.read_bytes())]
        index = path.with_suffix(".idx")
        assert [tuple(map(int, line.split())) for line in index.read_text().splitlines()] == places
        for example in tfrecord_loader(str(path), str(index)):
            key = bytes(example.pop("__key__")).decode()
            for name, value in example.items():
                found[key if name == "data" else f"{key}.{name}"] = bytes(value)
    assert found == files


def test_recordio_has_image_headers(tmp_path: Path, avactl: Run) -> None:
    rng = random.Random(7)
    files = {f"{name}/{number:02}.jpg": rng.randbytes(number * 13) for name in ("cat", "dog") for number in range(20)}
    # The magic number in the content: aligned or not, at the beginning, at the end, twice.
    files |= {f"magic/{number}": b"x" * number + MAGIC * 2 + b"y" * (number % 5) + MAGIC for number in range(9)}
    fill(tmp_path / "data", files)
    packed(avactl, "data", "out", "--format", "recordio", "--shard-size", "8k", "--labels", "class")
    assert records(tmp_path / "out") == files
    found: dict[int, tuple[float, bytes]] = {}
    for path in sorted((tmp_path / "out" / "shards").glob("*.rec")):
        index = dict(line.split("\t") for line in path.with_suffix(".idx").read_text().splitlines())
        for offset, record in recordio(path.read_bytes()):
            flag, label, number, more = struct.unpack_from("<IfQQ", record)
            assert (flag, more, index[str(number)]) == (0, 0, str(offset))
            found[number] = (label, record[24:])
    expected = {
        n: (float(("cat", "dog", "magic").index(key.split("/")[0])), files[key]) for n, key in enumerate(sorted(files))
    }
    assert found == expected


def test_headers_are_those_of_tarfile() -> None:
    rng = random.Random(1)
    for name in ("a", "x" * 100, "x" * 101, "dir/" * 40 + "a", "猫/ü.jpg", "a b%.jpg", *map(str, range(300))):
        info = tarfile.TarInfo(name)
        info.size = rng.choice((0, 7, 8**11 - 1, 8**11, rng.randrange(10**9)))
        assert tar_header(name, info.size) == info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def test_names_are_split_as_webdataset_does() -> None:
    base_plus_ext = webdataset.tariterators.base_plus_ext
    for name in ("a.jpg", "a/b.c/d.seg.png", "a.b/c", "a/.hidden", "a.b/c.", "x/猫.jpg", "a..b"):
        length = name_length(name, SplitAt.first)
        assert name_length(name, None) == length
        stem, extension = name[:length], name[length + 1 :]
        theirs = base_plus_ext(name)
        if extension:
            assert (stem, extension) == theirs
        else:
            assert stem == name or theirs[1] == ""


def test_a_sample_stays_together(tmp_path: Path, avactl: Run) -> None:
    files = {"a.cls": b"1", "a.d/x.jpg": b"2", "a.d/x.txt": b"3", "a.jpg": b"4", "a-b.jpg": b"5", "a/x.jpg": b"6"}
    fill(tmp_path / "data", files)
    packed(avactl, "data", "out", "--format", "webdataset")
    with tarfile.open(tmp_path / "out" / "shards" / "shard-000000.tar") as tar:
        names = tar.getnames()
    assert names == ["a-b.jpg", "a.d/x.jpg", "a.d/x.txt", "a.cls", "a.jpg", "a/x.jpg"]


def test_large_files_are_streamed(tmp_path: Path, avactl: Run) -> None:
    files = {"a.bin": random.Random(2).randbytes(20_000_000), "b.bin": b"x"}
    fill(tmp_path / "data", files)
    for format in SUFFIX:
        packed(avactl, "data", format, "--format", format)
        assert records(tmp_path / format) == files


# -- determinism, resuming -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", SUFFIX)
def test_the_same_files_give_the_same_bytes(tmp_path: Path, avactl: Run, format: str) -> None:
    files = samples()
    options = ("--format", format, "--shard-size", "20k", "--url", "s3://b/v1")
    for turn, names in enumerate((sorted(files), sorted(files, reverse=True))):
        fill(tmp_path / f"data{turn}", {name: files[name] for name in names})
        packed(avactl, f"data{turn}", f"out{turn}", *options, "--jobs", str(turn + 1))
    assert tree(tmp_path / "out0") == tree(tmp_path / "out1")
    assert "s3://b/v1/shards/shard-000000" in (tmp_path / "out0" / "manifest.jsonl").read_text()


def test_a_complete_pack_is_not_written_again(tmp_path: Path, avactl: Run) -> None:
    data = fill(tmp_path / "data", samples())
    args = ("data", "out", "--format", "webdataset", "--shard-size", "20k")
    packed(avactl, *args)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()}
    shards = len(list((tmp_path / "out" / "shards").iterdir()))
    assert f"{shards} shards, {shards} kept from an earlier run" in packed(avactl, *args)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    (data / "train/0/000.jpg").write_bytes(b"new")
    done = run(avactl, *args)
    assert (done.returncode, "is complete, but its source has changed" in done.stderr) == (1, True)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_an_incomplete_pack_is_continued(tmp_path: Path, avactl: Run) -> None:
    data, out = fill(tmp_path / "data", samples()), tmp_path / "out"
    args = ("data", "out", "--format", "tfrecord", "--shard-size", "20k")
    packed(avactl, *args)
    whole = tree(out)
    (out / "manifest.jsonl").unlink()
    shard = out / "shards" / "shard-000001.tfrecord"
    shard.write_bytes(shard.read_bytes()[:-7])
    (out / "records" / "shard-000002.jsonl").unlink()
    (out / ".pack" / "shard-000003.json").unlink()
    (out / "shards" / ".shard-000003.tfrecord.partial").write_bytes(b"x")
    kept = len(list((out / ".pack").glob("shard-*"))) - 2
    assert f", {kept} kept from an earlier run" in packed(avactl, *args)
    assert tree(out) == whole
    (out / "manifest.jsonl").unlink()
    (data / "train/0/000.jpg").write_bytes(b"changed between the runs")
    packed(avactl, *args)
    assert records(out)["train/0/000.jpg"] == b"changed between the runs"
    (out / "manifest.jsonl").unlink()
    for path in (data / "train" / "2").iterdir():
        path.unlink()
    done = avactl("dataset", "pack", *args)
    assert (done.returncode, "the source had more files in an earlier run" in done.stderr) == (1, True)


def test_other_options_do_not_continue_a_pack(tmp_path: Path, avactl: Run) -> None:
    fill(tmp_path / "data", samples(3))
    packed(avactl, "data", "out", "--format", "tfrecord")
    for option, told in (
        (("--format", "recordio"), "holds a pack with format 'tfrecord', not 'recordio'"),
        (("--format", "tfrecord", "--shard-size", "1Mi"), "holds a pack with shard_size"),
    ):
        done = run(avactl, "data", "out", *option)
        assert (done.returncode, told in done.stderr) == (2, True), done.stderr


# -- stores --------------------------------------------------------------------------------------------------------


def test_from_a_store_into_a_store(tmp_path: Path, s3: str, put: Put, avactl: Run) -> None:
    files = {f"猫 {name}": content for name, content in samples(300).items()}
    store = put({f"v1/{name}": content for name, content in files.items()})
    options = ("--format", "webdataset", "--shard-size", "200k", "--endpoint", s3)
    packed(avactl, "s3://data/v1", "s3://data/packed", *options)
    assert ", 6 kept" not in packed(avactl, "s3://data/v1", "near", *options)
    far = {}
    for found in store.objects("packed"):
        far[found.key.removeprefix("packed/")] = store.read(found)
    near = tree(tmp_path / "near")
    assert {name for name in far if not name.startswith(".pack/")} == set(near)
    assert {name: far[name] for name in near if name != "manifest.jsonl"} == {
        name: content for name, content in near.items() if name != "manifest.jsonl"
    }
    assert records(tmp_path / "near") == files
    (tmp_path / "far.jsonl").write_bytes(far["manifest.jsonl"])
    done = avactl("dataset", "verify", "far.jsonl", "--content", "--endpoint", s3)
    assert (done.returncode, done.stdout.endswith("ok\n")) == (0, True), done.stdout
    name = "packed/shards/shard-000002.tar"
    store.write(name, far[name.removeprefix("packed/")][:-512])
    done = avactl("dataset", "verify", "far.jsonl", "--store", "--endpoint", s3)
    assert (done.returncode, "shard-000002.tar has" in done.stdout) == (1, True)
    done = avactl("dataset", "pack", "s3://data/v1", "s3://data/packed", *options)
    assert (done.returncode, "a shard is missing or has another size (shard-000002)" in done.stderr) == (1, True)


def test_a_manifest_as_source_checks_content(tmp_path: Path, avactl: Run) -> None:
    files = samples(6)
    data = fill(tmp_path / "data", files)
    avactl("dataset", "snapshot", "data", "--checksum", "-o", "m.jsonl", "--match", "*.jpg")
    manifest(tmp_path / "m.jsonl", *reversed(lines(tmp_path / "m.jsonl")))
    packed(avactl, "m.jsonl", "out", "--format", "recordio")
    images = {key.removeprefix("train/"): content for key, content in files.items() if key.endswith(".jpg")}
    assert records(tmp_path / "out") == images
    name = next(name for name in sorted(images) if images[name])
    content = images[name]
    (data / "train" / name).write_bytes(bytes([content[0] ^ 1]) + content[1:])
    done = run(avactl, "m.jsonl", "again", "--format", "recordio")
    assert (done.returncode, f"{name} has other content than the manifest says" in done.stderr) == (1, True)
    manifest(tmp_path / "m.jsonl", {"url": f"file://{data}/train/{name}"})
    done = run(avactl, "m.jsonl", "again", "--format", "recordio")
    assert (done.returncode, "1 lines have no `size`" in done.stderr) == (1, True)


# -- bad input -----------------------------------------------------------------------------------------------------


def test_files_that_a_format_cannot_hold(tmp_path: Path, avactl: Run) -> None:
    data = fill(tmp_path / "data", {"a.jpg": b"1", "README": b"2"})

    def refused(format: str) -> str:
        done = run(avactl, "data", "out", "--format", format)
        assert done.returncode == 1, done.stderr
        return done.stderr

    told = refused("webdataset")
    assert "README has no extension, so WebDataset ignores it" in told
    assert "--exclude 'README'" in told
    (data / "README").unlink()
    (data / "a.JPG").touch()
    assert "a.JPG and a.jpg are one field of the sample a" in refused("webdataset")
    (data / "a.JPG").unlink()
    with (data / "big.bin").open("wb") as file:
        file.truncate(2**29)
    assert "big.bin has 536,870,912 bytes; a record of recordio has at most 512 MiB" in refused("recordio")
    with (data / "big.bin").open("wb") as file:
        file.truncate(2**31)
    assert "a record of tfrecord has at most 2 GiB" in refused("tfrecord")


def test_targets_that_are_refused(tmp_path: Path, s3: str, bucket: str, avactl: Run) -> None:
    fill(tmp_path / "data", {"a.jpg": b"1"})
    fill(tmp_path / "full", {"other": b"1"})
    (tmp_path / "alias").symlink_to("data")

    def refused(code: int, source: str, target: str, *options: str) -> str:
        done = run(avactl, source, target, "--format", "recordio", *options)
        assert done.returncode == code, done.stderr
        return done.stderr

    for target in ("data", "data/packed", "alias/packed"):
        assert "is inside the source" in refused(2, "data", target)
    assert "is inside the source" in refused(2, "s3://data/v1", "s3://data/v1/packed", "--endpoint", s3)
    assert "full is not empty" in refused(2, "data", "full")
    assert "no such bucket" in refused(3, "data", "s3://nothing/x", "--endpoint", s3)
    assert "there are no files to pack" in refused(1, "data", "out", "--match", "*.png")
    assert "is not the size of a shard" in refused(2, "data", "out", "--shard-size", "1")
    assert "is not a size" in refused(2, "data", "out", "--resize", "256x")
    assert "out/file" in refused(3, "data", str(tmp_path / "full" / "other" / "file")).replace("full/other", "out")


def test_a_file_that_changes_while_it_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from avactl.datasets.errors import ChangedError
    from avactl.datasets.stores.opening import open_store

    data = fill(tmp_path / "data", {"a": b"aaa", "b": b"bbb", "c": b"ccc", "d": b"x" * 9_000_000})
    store = open_store(str(data))
    listed = {found.key: found for found in store.objects()}
    (data / "a").write_bytes(b"aaaa")
    (data / "b").unlink()
    (data / "c").write_bytes(b"CCC")
    (data / "d").write_bytes(b"x" * 8_999_999)
    for key, told in (("a", "3 bytes when listed, 4 when read"), ("b", "disappeared"), ("c", "changed after it was")):
        with pytest.raises(ChangedError, match=told):
            store.read(listed[key])
    with pytest.raises(ChangedError, match="9,000,000 bytes when listed, 8,999,999 when read"):
        list(store.stream(listed["d"]))


def test_an_object_that_changes_while_it_is_packed(put: Put) -> None:
    from avactl.datasets.errors import ChangedError

    store = put({"a": b"aaa", "b": b"bbb"})
    listed = {found.key: found for found in store.objects()}
    store.write("a", b"AAA")
    with pytest.raises(ChangedError, match="s3://data/a changed after it was listed"):
        store.read(listed["a"])
    with pytest.raises(ChangedError, match="disappeared"):
        store.read(listed["b"]._replace(key="c"))
    with pytest.raises(ChangedError, match="4 bytes when listed, 3 when read"):
        store.read(listed["b"]._replace(size=4))


# -- images --------------------------------------------------------------------------------------------------------


def image(width: int, height: int, format: str, mode: str = "RGB", **options: object) -> bytes:
    out = io.BytesIO()
    Image.linear_gradient("L").resize((width, height)).convert(mode).save(out, format, **options)
    return out.getvalue()


def test_images_are_resized(tmp_path: Path, avactl: Run) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    files = {
        "a.jpg": image(600, 300, "JPEG"),
        "b.JPEG": image(600, 300, "JPEG", exif=exif),
        "c.png": image(300, 500, "PNG", "RGBA"),
        "d.png": image(300, 500, "PNG", "P"),
        "e.jpg": image(300, 300, "JPEG", "CMYK"),
        "small.jpg": image(20, 30, "JPEG"),
        "f.tiff": image(300, 300, "TIFF", "L"),
        "g.webp": image(300, 400, "WEBP"),
        "text.txt": b"not an image",
    }
    fill(tmp_path / "data", files)
    for size, expected in (
        ("100", ["200x100", "100x200", "100x167", "100x167", "100x100", "20x30", "100x100", "100x133"]),
        ("64x48", ["64x48", "64x48", "64x48", "64x48", "64x48", "20x30", "64x48", "64x48"]),
    ):
        packed(avactl, "data", size, "--format", "recordio", "--resize", size)
        found = records(tmp_path / size)
        assert found.pop("text.txt") == b"not an image"
        sizes = {}
        for name, content in found.items():
            with Image.open(io.BytesIO(content)) as opened:
                opened.load()
                assert opened.format == Image.open(io.BytesIO(files[name])).format
                assert not opened.getexif().get(0x0112)
                sizes[name] = f"{opened.width}x{opened.height}"
        assert [sizes[name] for name in files if name in sizes] == expected


def test_images_that_would_lose_what_they_show(tmp_path: Path, avactl: Run) -> None:
    """Sixteen bits became all white, and of an animation one picture was left."""
    several: dict[str, Any] = {"save_all": True, "append_images": [Image.new("RGB", (300, 300), "red")]}
    files = {"deep.png": image(300, 300, "PNG", "I;16"), "wide.tiff": image(300, 300, "TIFF", "I")}
    files["moves.webp"] = image(300, 300, "WEBP", **several)
    for name, content in files.items():
        fill(tmp_path / name, {name: content})
        done = run(avactl, name, f"{name}-out", "--format", "recordio", "--resize", "64")
        assert (done.returncode, f"{name}: it has " in done.stderr) == (1, True), done.stderr


def test_unreadable_images(tmp_path: Path, avactl: Run) -> None:
    whole = image(300, 300, "JPEG")
    bomb = image(1, 1, "PNG")
    bomb = bomb[:16] + struct.pack(">II", 50_000, 50_000) + bomb[24:]
    good = {"ok.jpg": whole, "ok.cls": b"1"}
    png = image(300, 300, "PNG")
    for name, content in {"cut": whole[:2000], "text": b"text", "bomb": bomb, "empty": b"", "png": png}.items():
        fill(tmp_path / name, {**good, f"{name}.jpg": content, f"{name}.cls": b"2"})
        args = (name, f"{name}-out", "--format", "webdataset", "--resize", "64")
        done = avactl("dataset", "pack", *args)
        assert done.returncode == 1, done.stderr
        assert f"{name}.jpg is not a readable image: " in done.stderr
        assert "0x" not in done.stderr
        assert "--skip-unreadable" in done.stderr
        told = packed(avactl, name, f"{name}-skipped", *args[2:], "--skip-unreadable")
        assert f"left out 1 unreadable image: {name}.jpg" in told
        assert set(records(tmp_path / f"{name}-skipped")) == set(good)


def test_bombs_are_refused_before_they_are_decoded(tmp_path: Path, avactl: Run) -> None:
    """Compressed to kilobytes, they would take gigabytes."""
    for format, name in (("PNG", "bomb.png"), ("TIFF", "bomb.tif"), ("JPEG", "bomb.jpg")):
        bomb = io.BytesIO()
        Image.new("1" if format != "JPEG" else "L", (12_000, 8_000)).save(
            bomb, format, **({"compression": "group4"} if format == "TIFF" else {})
        )
        fill(tmp_path / format, {name: bomb.getvalue(), "bomb.cls": b"1"})
        done = avactl("dataset", "pack", format, f"{format}-out", "--format", "webdataset", "--resize", "64")
        assert done.returncode == 1
        assert f"{name} is not a readable image: " in done.stderr
        assert "decompression bomb" in done.stderr


def test_no_program_decodes_an_image(tmp_path: Path, avactl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    started = tmp_path / "started"
    for name in ("gs", "gswin64c", "ffmpeg", "djpeg", "identify"):
        (programs / name).write_text(f"#!/bin/sh\necho {name} >> {started}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 600 600\n%%EndComments\n(id) system\n%%EOF\n"
    files = {f"{number}.{extension}": eps for number, extension in enumerate(("jpg", "png", "tiff", "webp", "bmp"))}
    fill(tmp_path / "data", files)
    told = packed(avactl, "data", "out", "--format", "recordio", "--resize", "64", "--skip-unreadable")
    assert "left out 5 unreadable images" in told
    assert not started.exists()
