"""Labels of packs: from a manifest or from directories, into every format, and back through the worker library."""

from __future__ import annotations

import io
import json
import random
import struct
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import avactl_worker
import numpy as np
import pytest
import webdataset
from avactl_worker import ManifestError, RecordError
from PIL import Image
from tfrecord.reader import tfrecord_loader

from tests.cli.running import Run
from tests.datasets.conftest import fill, lines, manifest
from tests.datasets.readers import caffe, recordio
from tools.elastic import ElasticJob
from tools.frameworks.build import build_digits

FORMATS = ("webdataset", "tfrecord", "recordio", "lmdb")
ONE_FILE = ("recordio", "lmdb")


def packed(avactl: Run, *args: str) -> str:
    done = avactl("dataset", "pack", *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(avactl: Run, code: int, *args: str) -> str:
    done = avactl("dataset", "pack", *args)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stderr


def numbers(format: str, out: Path) -> dict[str, int]:
    """Numbers of the classes of a pack's records by their contents, as the libraries of the format read them."""
    found: dict[str, int] = {}
    shards = out / "shards"
    if format == "webdataset":
        paths = sorted(map(str, shards.glob("*.tar")))
        return {each["jpg"].decode(): int(each["cls"]) for each in webdataset.WebDataset(paths, shardshuffle=False)}
    if format == "tfrecord":
        for path in shards.glob("*.tfrecord"):
            for example in tfrecord_loader(str(path), str(path.with_suffix(".idx"))):
                found[bytes(example["jpg"]).decode()] = int(example["label"][0])
    elif format == "recordio":
        for path in shards.glob("*.rec"):
            for _, record in recordio(path.read_bytes()):
                found[record[24:].decode()] = int(struct.unpack_from("<If", record)[1])
    else:
        for path in shards.glob("*/data.mdb"):
            found |= {content.decode(): label for content, label in caffe(path.parent).values()}
    return found


def animals(root: Path) -> dict[str, int]:
    """Files by split and class, and the number of each class by content. `val` has a class that comes earlier."""
    classes = {"train": ("cat", "dog"), "val": ("ant", "cat", "dog")}
    files = {f"{s}/{c}/{n}.jpg": f"{s} {c} {n}".encode() for s, names in classes.items() for c in names for n in "123"}
    fill(root, files)
    return {text.decode(): ("ant", "cat", "dog").index(text.decode().split()[1]) for text in files.values()}


@pytest.mark.parametrize("format", FORMATS)
def test_a_class_has_one_number_in_every_directory(tmp_path: Path, avactl: Run, format: str) -> None:
    expected = animals(tmp_path / "data")
    packed(avactl, "data", "out", "-f", format, "--labels", "split/class")
    assert numbers(format, tmp_path / "out") == expected
    assert json.loads((tmp_path / "out/shards/classes.json").read_text()) == {"ant": 0, "cat": 1, "dog": 2}
    # A shard has one split, and the manifest tells which.
    shards = [entry for entry in lines(tmp_path / "out/manifest.jsonl") if "records" in entry]
    assert [(each["records"], each["labels"]) for each in shards] == [(6, {"split": "train"}), (9, {"split": "val"})]
    assert avactl("dataset", "verify", "out/manifest.jsonl", "--content").returncode == 0
    # A manifest with the same labels gives the same pack.
    assert avactl("dataset", "snapshot", "data", "--labels", "split/class", "-o", "m.jsonl").returncode == 0
    packed(avactl, "m.jsonl", "again", "-f", format)
    assert numbers(format, tmp_path / "again") == expected


@pytest.mark.parametrize("format", FORMATS)
def test_the_same_labels_give_the_same_bytes(tmp_path: Path, avactl: Run, format: str) -> None:
    animals(tmp_path / "data")
    for out in ("a", "b"):
        packed(avactl, "data", out, "-f", format, "--labels", "split/class", "--url", "s3://b/v1", "--jobs", "1")
    for path in (tmp_path / "a" / "shards").rglob("*"):
        other = tmp_path / "b" / path.relative_to(tmp_path / "a")
        assert path.is_dir() or path.read_bytes() == other.read_bytes()


def test_labels_of_any_kind(tmp_path: Path, avactl: Run) -> None:
    """Numbers stay, in the order of numbers; other values are their JSON texts; labels of a sample's files join."""
    fill(tmp_path / "data", {f"{name}.{end}": name.encode() for name in "abc" for end in ("jpg", "txt")})
    labels: dict[str, dict[str, object]] = {
        "a.jpg": {"digit": 10, "fold": 1},
        "a.txt": {"lang": ["de", "猫"]},
        "b.jpg": {"digit": 2, "fold": 1},
        "c.jpg": {"digit": "7", "fold": 2},
    }
    folder = tmp_path / "data"
    entries: list[dict[str, object]] = [
        {"url": f"file://{folder}/{name}.{end}", "size": 1, "labels": labels.get(f"{name}.{end}", {})}
        for name in "abc"
        for end in ("jpg", "txt")
    ]
    manifest(tmp_path / "m.jsonl", *entries)
    for format in ("webdataset", "tfrecord"):
        packed(avactl, "m.jsonl", format, "-f", format, "--class", "digit", "--by", "fold")
        found = {each["__key__"]: each for each in avactl_worker.records(tmp_path / format / "manifest.jsonl")}
        assert {key: each["label"] for key, each in found.items()} == {"a": 10, "b": 2, "c": 7}
        text = (lambda value: value) if format == "webdataset" else (lambda v: v if isinstance(v, str) else _json(v))
        assert found["a"]["labels"] == {"digit": text(10), "fold": text(1), "lang": text(["de", "猫"])}
        assert (found["a"]["jpg"], found["a"]["txt"]) == (b"a", b"a")
        second = avactl_worker.records(tmp_path / format / "manifest.jsonl", {"fold": 2})
        assert [each["__key__"] for each in second] == ["c"]
        assert json.loads((tmp_path / format / "shards/classes.json").read_text()) == {"2": 2, "7": 7, "10": 10}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def test_an_earlier_pack_numbers_the_classes(tmp_path: Path, avactl: Run) -> None:
    fill(tmp_path / "v1", {"cat/1.jpg": b"x", "dog/1.jpg": b"y"})
    fill(tmp_path / "v2", {"ant/1.jpg": b"z", "dog/1.jpg": b"y"})
    packed(avactl, "v1", "one", "-f", "lmdb", "--labels", "class")
    args = ("v2", "two", "-f", "lmdb", "--labels", "class", "--classes", "classes.json")
    (tmp_path / "classes.json").write_bytes((tmp_path / "one/shards/classes.json").read_bytes())
    told = refused(avactl, 1, *args)
    assert "the class ant has no number in the file of `--classes`" in told
    (tmp_path / "classes.json").write_text('{"cat": 0, "dog": 1, "ant": 2}')
    packed(avactl, args[0], "three", *args[2:])
    assert numbers("lmdb", tmp_path / "three") == {"z": 2, "y": 1}
    for text, why in (
        ("{", "is not JSON"),
        ("[]", "does not give each class a number"),
        ('{"a": 1.0}', "does not give each class a number"),
        ('{"a": -1}', "does not give each class a number"),
        ('{"a": 1, "b": 1}', "gives one number to two classes"),
        ('{"a": 4294967296}', "has a number above 2,147,483,647, which lmdb cannot store"),
    ):
        (tmp_path / "classes.json").write_text(text)
        assert why in avactl("dataset", "pack", args[0], "four", *args[2:]).stderr


def test_labels_that_are_refused(tmp_path: Path, avactl: Run) -> None:
    animals(tmp_path / "data")
    avactl("dataset", "snapshot", "data", "--labels", "split/kind", "-o", "m.jsonl")
    for args, why in (
        (("data", "-f", "recordio"), "a record of recordio has the number of a class, and the files have no label"),
        (("m.jsonl", "-f", "lmdb"), "a record of lmdb has the number of a class, and the files have no label `class`"),
        (("m.jsonl", "-f", "lmdb", "--labels", "a/class"), "the manifest has labels of its own"),
        (("data", "-f", "tfrecord", "--class", "kind"), "no file has the label `kind`"),
        (("m.jsonl", "-f", "tfrecord", "--by", "fold"), "labels of the files: `kind` or `split`; none: `--by ''`"),
        (("data", "-f", "tfrecord", "--labels", "split/class/more"), "no file has a directory for the label `more`"),
        (("data", "-f", "recordio", "--class", "", "--split-at", "last-dot"), "a record of this format is one file"),
    ):
        assert why in refused(avactl, 2, args[0], "out", *args[1:])
    fill(tmp_path / "bare", {"a/1.jpg": b"x", "2.jpg": b"y"})
    assert "2.jpg has no label `class`" in refused(avactl, 1, "bare", "out", "-f", "recordio", "--labels", "class")
    packed(avactl, "bare", "tar", "-f", "webdataset", "--labels", "class")
    found = {each["__key__"]: each["label"] for each in avactl_worker.records(tmp_path / "tar/manifest.jsonl")}
    assert found == {"a/1": 0, "2": None}
    fill(tmp_path / "large", {"99999999/1.jpg": b"x"})
    told = refused(avactl, 1, "large", "out", "-f", "recordio", "--labels", "class")
    assert "the class 99999999 has a number above 16,777,216, which recordio cannot store" in told
    fill(tmp_path / "taken", {"a/1.jpg": b"x", "a/1.label": b"7"})
    told = refused(avactl, 1, "taken", "out", "-f", "tfrecord", "--labels", "class")
    assert "a/1.label takes the field `label`, which labels have" in told
    fill(tmp_path / "two", {"1.jpg": b"x", "1.txt": b"7"})
    one = {"url": f"file://{tmp_path}/two/1.jpg", "size": 1, "labels": {"class": "a"}}
    two = {"url": f"file://{tmp_path}/two/1.txt", "size": 1, "labels": {"class": "b"}}
    manifest(tmp_path / "m2.jsonl", one, two)
    told = refused(avactl, 1, "m2.jsonl", "out", "-f", "webdataset")
    assert "files of the sample 1 have the label `class` a and b" in told


# -- names with several dots -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["webdataset", "tfrecord"])
def test_names_with_dots_are_not_merged(tmp_path: Path, avactl: Run, format: str) -> None:
    fill(tmp_path / "data", {f"cat/2024.01.0{n}_a.{end}": b"%d" % n for n in (2, 3) for end in ("jpg", "json")})
    told = refused(avactl, 1, "data", "out", "-f", format)
    assert "cat/2024.01.02_a.jpg has several dots: is it `01.02_a.jpg` of the sample `2024`, or `jpg` of" in told
    assert "`--split-at first-dot`: a sample `2024`; `--split-at last-dot`: a sample `2024.01.02_a`" in told
    packed(avactl, "data", "last", "-f", format, "--split-at", "last-dot")
    found = {
        each["__key__"]: (each["jpg"], each["json"]) for each in avactl_worker.records(tmp_path / "last/manifest.jsonl")
    }
    assert found == {"cat/2024.01.02_a": (b"2", b"2"), "cat/2024.01.03_a": (b"3", b"3")}
    if format == "webdataset":
        # Its readers end a name at the first dot.
        (shard,) = (tmp_path / "last" / "shards").iterdir()
        keys = [each["__key__"] for each in webdataset.WebDataset(str(shard), shardshuffle=False)]
        assert keys == ["cat/2024%2E01%2E02_a", "cat/2024%2E01%2E03_a"]
    assert "4 files, 1 sample" in packed(avactl, "data", "first", "-f", format, "--split-at", "first-dot")


@pytest.mark.parametrize(
    ("names", "clear"),
    [
        (("1.jpg", "1.seg.png"), True),
        (("1.left.jpg", "1.right.jpg", "1.json"), True),
        (("1.left.jpg", "1.right.jpg"), False),  # or two samples, `1.left` and `1.right`
        (("img.v2.jpg",), True),
        (("img.v2.jpg", "img.v2.json"), False),
        (("v1.jpg", "v1.2.jpg"), False),
        (("a.tar.gz",), True),
        (("a.b.c/1.jpg",), True),
        (("3.14.jpg",), False),
    ],
)
def test_which_dots_are_clear(tmp_path: Path, avactl: Run, names: tuple[str, ...], clear: bool) -> None:
    fill(tmp_path / "data", dict.fromkeys(names, b"x"))
    done = avactl("dataset", "pack", "data", "out", "-f", "webdataset")
    assert (done.returncode == 0, "has several dots" in done.stderr) == (clear, not clear), done.stderr


# -- the worker library ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_any_range_of_records(tmp_path: Path, avactl: Run, format: str) -> None:
    rng = random.Random(3)
    magic = struct.pack("<I", 0xCED7230A)
    files = {f"c{n % 3}/{n:03}.jpg": rng.randbytes(rng.choice((0, 3, 512, 5000))) + magic * (n % 2) for n in range(57)}
    if format not in ONE_FILE:
        files |= {f"c{n % 3}/{n:03}.seg.png": b"mask" for n in range(0, 57, 4)}
    fill(tmp_path / "data", files)
    packed(avactl, "data", "out", "-f", format, "--labels", "class", "--shard-size", "60k")
    images = [content for name, content in sorted(files.items()) if name.endswith(".jpg")]
    entries = [entry for entry in lines(tmp_path / "out/manifest.jsonl") if "records" in entry]
    assert len(entries) > 1
    whole = []
    for entry in entries:
        path = Path(str(entry["url"]).removeprefix("file://"))
        found = list(avactl_worker.read_records(path))
        assert len(found) == entry["records"]
        whole += found
        for _ in range(8):
            start = rng.randrange(len(found))
            end = rng.randrange(start, len(found) + 2)
            assert list(avactl_worker.read_records(path, start, end)) == found[start:end]
    assert [each["data" if format in ONE_FILE else "jpg"] for each in whole] == images
    assert [each["label"] for each in whole] == [int(name[1]) for name in sorted(files) if name.endswith(".jpg")]
    if format not in ONE_FILE:
        assert [each["__key__"] for each in whole] == [name[:-4] for name in sorted(files) if name.endswith(".jpg")]
        assert {each["labels"]["class"] for each in whole} == {"c0", "c1", "c2"}
        assert [each["__key__"] for each in whole if "seg.png" in each] == [n[:-8] for n in sorted(files) if "seg" in n]


def test_damaged_shards(tmp_path: Path, avactl: Run) -> None:
    animals(tmp_path / "data")
    for format, suffix in (("webdataset", "tar"), ("tfrecord", "tfrecord"), ("recordio", "rec")):
        packed(avactl, "data", format, "-f", format, "--labels", "split/class")
        shard = tmp_path / format / "shards" / f"shard-000001.{suffix}"
        whole = shard.read_bytes()
        shard.write_bytes(whole[: len(whole) // 2 + 7])
        with pytest.raises(RecordError, match="shard-000001"):
            list(avactl_worker.read_records(shard))
    (tmp_path / "recordio/shards/shard-000001.idx").unlink()
    with pytest.raises(RecordError, match="does not tell where record 3 is"):
        list(avactl_worker.read_records(shard, 3))
    with pytest.raises(RecordError, match="its name has no end of a format"):
        list(avactl_worker.read_records(tmp_path / "recordio/manifest.jsonl"))


def test_a_pod_finds_the_mount(tmp_path: Path, avactl: Run) -> None:
    """A manifest is beside the dataset's mount, with the URL that is mounted there."""
    animals(tmp_path / "data")
    packed(avactl, "data", "out", "-f", "tfrecord", "--labels", "split/class", "--url", "s3://b/v1")
    (tmp_path / "out/shards").rename(tmp_path / "mount")
    beside = tmp_path / "mount.manifest"
    beside.mkdir()
    listed = beside / "manifest.jsonl"
    listed.write_bytes((tmp_path / "out/manifest.jsonl").read_bytes())
    with pytest.raises(ManifestError, match="give `at`, the directory where s3://b/v1/shards is mounted"):
        list(avactl_worker.records(listed))
    assert len(list(avactl_worker.records(listed, at=tmp_path / "mount"))) == 15
    (beside / "dataset.json").write_text('{"prefix": "s3://b/v1/shards"}')
    assert len(list(avactl_worker.records(listed))) == 15
    assert [each["label"] for each in avactl_worker.records(listed, {"split": "train"})] == [1, 1, 1, 2, 2, 2]
    with pytest.raises(ManifestError, match="lists no objects with split=test"):
        list(avactl_worker.records(listed, {"split": "test"}))


@pytest.mark.parametrize("format", FORMATS)
def test_training_on_a_pack_is_training_on_the_files(tmp_path: Path, avactl: Run, format: str) -> None:
    """Handwritten digits as images: `train` fits, `val` scores, as if the files were read directly."""
    digits = np.load(build_digits(Path(__file__).with_name("scripts") / "digits.py")[1] / "digits.npz")
    files = {}
    for index, (pixels, digit) in enumerate(zip(digits["images"], digits["target"], strict=True)):
        out = io.BytesIO()
        Image.fromarray((pixels * 15).astype(np.uint8)).save(out, "PNG")
        files[f"{'val' if index % 5 == 0 else 'train'}/{digit}/{index:04}.png"] = out.getvalue()
    fill(tmp_path / "data", files)
    packed(avactl, "data", "out", "-f", format, "--labels", "split/class", "--shard-size", "300k")

    def decode(content: bytes) -> list[int]:
        return list(np.asarray(Image.open(io.BytesIO(content))).ravel())

    direct: dict[str, tuple[list[Any], list[int]]] = {"train": ([], []), "val": ([], [])}
    for name, content in sorted(files.items()):
        split, digit, _ = name.split("/")
        direct[split][0].append(decode(content))
        direct[split][1].append(int(digit))
    through: dict[str, tuple[list[Any], list[int]]] = {"train": ([], []), "val": ([], [])}
    with (
        ElasticJob(tmp_path, workers=0, records=1, records_per_task=1) as job,
        avactl_worker.connect(job.address) as master,
    ):
        for split, (inputs, targets) in through.items():
            listed = tmp_path / "out" / "manifest.jsonl"
            data = master.dataset(split, manifest=listed, labels={"split": split}, records_per_task=100)
            for batch in data.batches(32):
                inputs += [decode(each.get("png") or each["data"]) for each in batch]
                targets += [each["label"] for each in batch]
    scores = [accuracy(parts) for parts in (direct, through)]
    assert scores[0] == scores[1] > 0.9


def accuracy(parts: dict[str, tuple[list[Any], list[int]]]) -> float:
    """Fit a linear classifier by least squares to `train`, and return its accuracy on `val`."""
    (inputs, targets), (others, expected) = (
        (np.array(a) / 255, np.array(b)) for a, b in (parts["train"], parts["val"])
    )
    weights, *_ = np.linalg.lstsq(np.c_[inputs, np.ones(len(inputs))], np.eye(10)[targets], rcond=1e-6)
    return float(np.mean((np.c_[others, np.ones(len(others))] @ weights).argmax(axis=1) == expected))


# -- what looks right and is not ---------------------------------------------------------------------------------------


def test_a_part_of_a_pack_is_a_manifest_of_a_pack(tmp_path: Path, avactl: Run) -> None:
    animals(tmp_path / "data")
    packed(avactl, "data", "out", "-f", "tfrecord", "--labels", "split/class")
    done = avactl("dataset", "ls", "out/manifest.jsonl", "--label", "split=val", "--format", "jsonl")
    assert done.returncode == 0
    part = tmp_path / "part.jsonl"
    part.write_text(done.stdout)
    assert [Path(str(each["url"])).name for each in lines(part)] == ["shard-000001.idx", "shard-000001.tfrecord"]
    assert len(list(avactl_worker.records(part))) == 9
    assert len(list(avactl_worker.records(part, {"split": "val"}))) == 9


def test_names_that_look_escaped(tmp_path: Path, avactl: Run) -> None:
    files = {
        "x.y.bin": b"1",
        "x%2Ey.bin": b"2",
        "x%252Ey.bin": b"3",
        "x%25.bin": b"4",
        ".h%.y.bin": b"5",
        "%.bin": b"6",
    }
    fill(tmp_path / "data", {f"a/{name}": content for name, content in files.items()})
    for format in ("webdataset", "tfrecord"):
        packed(avactl, "data", format, "-f", format, "--split-at", "last-dot")
        found = {each["__key__"]: each["bin"] for each in avactl_worker.records(tmp_path / format / "manifest.jsonl")}
        assert found == {f"a/{name[:-4]}": content for name, content in files.items()}
    shards = sorted(map(str, (tmp_path / "webdataset/shards").iterdir()))
    assert sum(1 for _ in webdataset.WebDataset(shards, shardshuffle=False)) == len(files)


@pytest.mark.parametrize("classes", [("-1", "0", "1"), ("01", "02", "10"), ("1", "1.0"), ("0", "1e3")])
def test_numbers_that_no_record_can_have(tmp_path: Path, avactl: Run, classes: tuple[str, ...]) -> None:
    fill(tmp_path / "data", {f"{name}/1.jpg": name.encode() for name in classes})
    told = refused(avactl, 1, "data", "out", "-f", "lmdb", "--labels", "class")
    assert "the classes are numbers, and " in told
    numbered = {name: index for index, name in enumerate(classes)}
    (tmp_path / "classes.json").write_text(json.dumps(numbered))
    packed(avactl, "data", "out", "-f", "lmdb", "--labels", "class", "--classes", "classes.json")
    assert numbers("lmdb", tmp_path / "out") == numbered


def test_labels_that_are_alike(tmp_path: Path, avactl: Run) -> None:
    """A class that is null is none; numbers and their texts are one value, 1 and true are two."""
    fill(tmp_path / "data", {f"{n}.jpg": b"x" for n in range(5)})
    labels = [{"class": "b", "split": 1}, {"class": None, "split": "1"}, {"split": True}, {"split": None}, {}]
    entries: list[dict[str, object]] = [
        {"url": f"file://{tmp_path}/data/{n}.jpg", "size": 1, "labels": each} for n, each in enumerate(labels)
    ]
    manifest(tmp_path / "m.jsonl", *entries)
    packed(avactl, "m.jsonl", "out", "-f", "webdataset")
    assert json.loads((tmp_path / "out/shards/classes.json").read_text()) == {"b": 0}
    shards = [entry for entry in lines(tmp_path / "out/manifest.jsonl") if "records" in entry]
    assert [(each["records"], each.get("labels")) for each in shards] == [
        (2, None),
        (2, {"split": 1}),
        (1, {"split": True}),
    ]
    assert len(list(avactl_worker.records(tmp_path / "out/manifest.jsonl", {"split": "1"}))) == 2


def test_what_is_not_resized_and_what_is_no_image_is_said(tmp_path: Path, avactl: Run) -> None:
    image = io.BytesIO()
    Image.new("RGB", (64, 48)).save(image, "PNG")
    fill(tmp_path / "data", {"a/1.png": image.getvalue(), "a/2.gif": image.getvalue(), "a/2.json": b"{}"})
    told = packed(avactl, "data", "out", "-f", "recordio", "--labels", "class", "--resize", "16")
    assert "resized 1 of 3 files" in told
    assert "records of files with several extensions: png 1, gif 1, json 1 (`--match" in told


def test_where_a_pack_is_mounted(tmp_path: Path, avactl: Run) -> None:
    animals(tmp_path / "data")
    packed(avactl, "data", "out", "-f", "tfrecord", "--labels", "split/class", "--url", "s3://b/v1")
    listed = tmp_path / "out/manifest.jsonl"
    with pytest.raises(ManifestError, match="`at` is the directory where s3://b/v1/shards/ is mounted"):
        list(avactl_worker.records(listed, at=tmp_path / "out"))
    assert len(list(avactl_worker.records(listed, at=tmp_path / "out/shards"))) == 15


def _varints(count: int) -> bytes:
    return b"\x0a" + b"\xff" * count + b"\x01"


@pytest.mark.parametrize("content", [_varints(100_000), b"\x0a\xff\x01x", b"\x0a\x03\x0a\x01\x0a", b"\x0a\x02\x0a\x00"])
def test_hostile_examples(tmp_path: Path, content: bytes) -> None:
    shard = tmp_path / "a.tfrecord"
    shard.write_bytes(struct.pack("<Q", len(content)) + bytes(4) + content + bytes(4))
    with suppress(RecordError):
        list(avactl_worker.read_records(shard))
    for length in (2**63, 2**40):
        shard.write_bytes(struct.pack("<Q", length) + bytes(100))
        with pytest.raises(RecordError):
            list(avactl_worker.read_records(shard))


def test_hostile_tars(tmp_path: Path) -> None:
    for name, change in {"sparse": (tarfile.GNUTYPE_SPARSE, "a.bin"), "label": (tarfile.REGTYPE, "a.label")}.items():
        info = tarfile.TarInfo(change[1])
        info.type, info.size = change[0], 0
        raw = bytearray(info.tobuf(tarfile.GNU_FORMAT))
        if name == "sparse":
            raw[483:495] = b"%011o\0" % 2**31  # its real size
            raw[148:156] = b" " * 8
            raw[148:156] = b"%06o\0 " % sum(raw)
        shard = tmp_path / f"{name}.tar"
        shard.write_bytes(bytes(raw) + bytes(10_240))
        with pytest.raises(RecordError):
            list(avactl_worker.read_records(shard))


@pytest.mark.parametrize("lines_", [["a.tar"], ["/a/x.tar", "b/y.tar"], ["s3://b/p//etc/x.tar"], ["s3://b/p/../x.tar"]])
def test_urls_that_lead_nowhere(tmp_path: Path, lines_: list[str]) -> None:
    """They end, and reach nothing outside of the mount."""
    first = [{"url": "s3://b/p/d/0.tar", "records": 1}] if lines_[0].startswith("s3") else []
    manifest(tmp_path / "m.jsonl", *first, *({"url": url, "records": 1} for url in lines_))
    (tmp_path / "data").mkdir()
    with pytest.raises(ManifestError):
        list(avactl_worker.records(tmp_path / "m.jsonl", at=tmp_path / "data"))
