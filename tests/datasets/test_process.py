"""Processing of a version into the next one: steps, hostile content, jobs that are killed."""

from __future__ import annotations

import hashlib
import io
import json
import random
import shutil
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import av
import numpy
import orjson
import pytest
from PIL import Image
from pydantic import TypeAdapter, ValidationError

from avactl.datasets.process.steps import InvalidObjectError, load_steps
from avactl.datasets.stores.opening import open_store
from avactl.datasets.stores.remote import RemoteStore
from avactl.spec.schema.processing import Steps
from tests.cli.running import Run
from tests.datasets.conftest import fill, lines, manifest
from tests.datasets.processing import ProcessingJob
from tests.datasets.test_pack import tree

Put = Callable[[Mapping[str, bytes]], RemoteStore]
STEPS = "[{resize: {width: 24, height: 16}}, {rotate: 90}, {flip: horizontal}, {convert: webp}]"


def encoded(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def noise(seed: int, width: int = 40, height: int = 30) -> Image.Image:
    return Image.frombytes("RGB", (width, height), random.Random(seed).randbytes(width * height * 3))


def files(count: int) -> dict[str, bytes]:
    kinds = ("cat", "dog", "eel")
    return {f"{kinds[seed % 3]}/{seed:04}.png": encoded(noise(seed)) for seed in range(count)}


def steps_of(*steps: Mapping[str, object]) -> Steps:
    found: Steps = TypeAdapter(Steps).validate_python(list(steps))
    return found


def made(name: str, content: bytes, *steps: Mapping[str, object]) -> dict[str, bytes]:
    return {each.name: each.content for each in load_steps(steps_of(*steps))(name, content, {})}


def image_of(name: str, content: bytes, *steps: Mapping[str, object]) -> Image.Image:
    ((_, data),) = made(name, content, *steps).items()
    return Image.open(io.BytesIO(data))


def pixels(image: Image.Image) -> list[Any]:
    return list(numpy.asarray(image).tolist())


def video(frames: int, rate: int = 10, format: str = "mp4", gap: int = 0) -> bytes:
    """A video whose frames become brighter; with `gap`, that many frames are missing after the tenth."""
    out = io.BytesIO()
    with av.open(out, "w", format=format) as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(frames):
            gray = numpy.full((48, 64, 3), min(number * 5, 255), numpy.uint8)
            frame = av.VideoFrame.from_ndarray(gray, format="rgb24")
            frame.pts = number + (gap if number >= 10 else 0)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return out.getvalue()


# -- steps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "size"),
    [
        ({"width": 20, "height": 20}, (20, 20)),
        ({"width": 20, "height": 20, "fit": "contain"}, (20, 15)),
        ({"width": 20, "height": 20, "fit": "stretch"}, (20, 20)),
        ({"width": 80, "height": 80}, (80, 80)),
        ({"width": 20}, (20, 15)),
        ({"height": 60}, (80, 60)),
        ({"shorter": 15}, (20, 15)),
    ],
)
def test_resize(step: dict[str, object], size: tuple[int, int]) -> None:
    assert image_of("a.png", encoded(noise(1)), {"resize": step}).size == size


def test_turns_and_crops_are_exact() -> None:
    image = noise(2, 4, 3)
    content = encoded(image)
    rows = pixels(image)
    clockwise = [[rows[2 - y][x] for y in range(3)] for x in range(4)]
    assert pixels(image_of("a.png", content, {"rotate": 90})) == clockwise
    assert pixels(image_of("a.png", content, {"rotate": 90}, {"rotate": 270})) == rows
    assert pixels(image_of("a.png", content, {"rotate": 180})) == [row[::-1] for row in rows[::-1]]
    assert pixels(image_of("a.png", content, {"flip": "horizontal"})) == [row[::-1] for row in rows]
    assert pixels(image_of("a.png", content, {"flip": "vertical"})) == rows[::-1]
    crop = {"crop": {"width": 2, "height": 1, "x": 1, "y": 2}}
    assert pixels(image_of("a.png", content, crop)) == [rows[2][1:3]]
    assert pixels(image_of("a.png", content, {"crop": {"width": 2, "height": 3}})) == [row[1:3] for row in rows]
    with pytest.raises(InvalidObjectError, match=r"a\.png: the crop of 4×3 at 1, 0 is outside of its 4×3"):
        made("a.png", content, {"crop": {"width": 4, "height": 3, "x": 1, "y": 0}})


def test_watermark_changes_its_corner_only() -> None:
    image = Image.new("RGB", (200, 100), "gray")
    marked = image_of("a.png", encoded(image), {"watermark": {"text": "(c) Q", "size": 0.2, "opacity": 1}})
    changed = numpy.argwhere(numpy.asarray(marked) != numpy.asarray(image))
    assert len(changed) > 50
    assert changed[:, 0].min() > 50
    assert changed[:, 1].min() > 100


def test_convert() -> None:
    transparent = encoded(Image.new("RGBA", (4, 4), (255, 0, 0, 0)))
    assert [*made("d.x/a.PNG", transparent, {"convert": "jpg"})] == ["d.x/a.jpg"]
    assert pixels(image_of("a.png", transparent, {"convert": "jpg"}))[0][0] == [255, 255, 255]
    assert [*made("a.JPEG", encoded(noise(1), "JPEG"), {"convert": "jpg"})] == ["a.JPEG"]
    palette = encoded(noise(3).convert("P"))
    assert image_of("a.png", palette, {"convert": "jpg"}).mode == "RGB"
    cmyk = encoded(noise(3).convert("CMYK"), "JPEG")
    assert image_of("a.jpg", cmyk, {"convert": "png"}).mode == "RGB"


def test_other_files_stay_as_they_are() -> None:
    assert made("notes.txt", b"text", {"resize": {"width": 2}}, {"convert": "jpg"}) == {"notes.txt": b"text"}
    assert made("clip.mp4", b"not decoded", {"rotate": 90}) == {"clip.mp4": b"not decoded"}


def test_images_are_upright_and_lose_metadata() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    found = image_of("a.jpg", encoded(noise(1, 40, 20), "JPEG", exif=exif), {"resize": {"width": 10}})
    assert found.size == (10, 20)
    assert not found.getexif()


def bomb() -> bytes:
    """A PNG of 30,000 × 30,000 pixels in few bytes."""
    data = encoded(Image.new("L", (1, 1)))
    header = struct.pack(">II", 30_000, 30_000) + data[24:29]
    import zlib

    return data[:16] + header + struct.pack(">I", zlib.crc32(b"IHDR" + header)) + data[33:]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("empty.png", b"", "it has no PNG data"),
        ("text.jpg", b"hello", "it has no JPEG data"),
        ("script.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "it has no PNG data"),
        ("other.png", encoded(noise(1), "JPEG"), "it has no PNG data"),
        ("cut.png", encoded(noise(1))[:800], ""),
        ("cut.jpg", encoded(noise(1), "JPEG")[:400], "truncated"),
        ("bomb.png", bomb(), "decompression bomb"),
        ("deep.png", encoded(Image.fromarray(numpy.full((4, 4), 30_000, numpy.uint16))), "more than 8 bits"),
        (
            "moves.webp",
            encoded(noise(1), "WEBP", save_all=True, append_images=[noise(2)]),
            "it has 2 images",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_images(name: str, content: bytes, reason: str) -> None:
    with pytest.raises(InvalidObjectError) as error:
        made(name, content, {"rotate": 180})
    assert str(error.value).startswith(f"{name}: ")
    assert reason.lower() in str(error.value).lower()


def test_broken_metadata_do_not_matter() -> None:
    broken = encoded(noise(1), "JPEG", xmp=b'<x tiff:Orientation="6" \xa8\xff/>', exif=b"Exif\0\0II*\0\xff")
    assert image_of("a.jpg", broken, {"rotate": 180}).size == (40, 30)


def test_frames() -> None:
    clip = video(35)
    found = made("d/clip.mp4", clip, {"frames": {}}, {"resize": {"width": 8}})
    assert [*found] == [f"d/clip.mp4/{number:06}.jpg" for number in range(4)]
    brightness = [pixels(Image.open(io.BytesIO(content)))[0][0][0] for content in found.values()]
    assert brightness == pytest.approx([0, 50, 100, 150], abs=4)
    assert len(made("a.mp4", clip, {"frames": {"rate": 5, "format": "png"}})) == 18
    assert len(made("a.mp4", clip, {"frames": {"rate": 1000}})) == 35
    with pytest.raises(InvalidObjectError, match=r"a\.mp4: it has more than 3 frames to take"):
        made("a.mp4", clip, {"frames": {"max": 3}})
    paused = made("a.mkv", video(20, format="matroska", gap=30), {"frames": {}})
    assert len(paused) == 2  # at 0 and 4 s; a pause is not filled


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        video(20)[:500],
        random.Random(1).randbytes(5000),
    ],
    ids=["empty", "playlist", "list", "cut", "noise"],
)
@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi"])
def test_bad_videos(name: str, content: bytes) -> None:
    with pytest.raises(InvalidObjectError, match=f"{name}: it "):
        made(name, content, {"frames": {}})


def test_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(
        tmp_path,
        {
            "mine_for_steps.py": b"""
def shout(data, line): return data.upper() + line["labels"]["x"].encode()
def split(data, line): return [(str(i), part) for i, part in enumerate(data.split())]
def up(data, line): return [("../x", b"")]
def none(data, line): return None
def fails(data, line): raise KeyError("k")
def ends(data, line): raise SystemExit(0)
number = 1
"""
        },
    )
    monkeypatch.chdir(tmp_path)
    process = load_steps(steps_of({"call": "mine_for_steps:shout"}, {"call": "mine_for_steps:split"}))
    result = {each.name: each.content for each in process("a.txt", b"a b", {"labels": {"x": " z"}})}
    assert result == {"a.txt/0": b"A", "a.txt/1": b"B", "a.txt/2": b"z"}
    for name, reason in (
        ("up", "contains `..`"),
        ("none", "returned NoneType"),
        ("fails", "raised KeyError: 'k'"),
        ("ends", "raised SystemExit: 0"),
    ):
        with pytest.raises(InvalidObjectError, match=f"a.txt: .*{reason}"):
            made("a.txt", b"", {"call": f"mine_for_steps:{name}"})


@pytest.mark.parametrize(
    "step",
    [
        {},
        {"rotate": 90, "flip": "vertical"},
        {"rotate": 45},
        {"resize": {}},
        {"resize": {"shorter": 5, "width": 5}},
        {"resize": {"width": 5, "fit": "cover"}},
        {"resize": {"width": 100_000}},
        {"watermark": {"text": "版权"}},
        {"frames": {"every": "1s", "rate": 2}},
        {"frames": {"every": "0s"}},
        {"call": "os.system"},
        {"blur": 3},
    ],
    ids=str,
)
def test_invalid_steps(step: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        steps_of(step)


# -- versions ------------------------------------------------------------------------------------------------------


def process(avactl: Run, *args: str) -> str:
    done = avactl("dataset", "process", *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_labels_and_origin_go_along(tmp_path: Path, avactl: Run) -> None:
    source = fill(tmp_path / "raw", files(9))
    assert avactl("dataset", "snapshot", "raw", "--labels", "class", "-o", "raw.jsonl").returncode == 0
    told = process(avactl, "raw.jsonl", "v2", "--steps", STEPS, "--jobs", "1")
    assert "v2: 9 objects → 9 objects" in told
    entries = lines(tmp_path / "v2.manifest" / "manifest.jsonl")
    assert hashlib.sha256((tmp_path / "v2.manifest" / "manifest.jsonl").read_bytes()).hexdigest() in told
    for entry in entries:
        path = Path(str(entry["url"]).removeprefix("file://"))
        old = source / path.relative_to(tmp_path / "v2").with_suffix(".png")
        assert entry["labels"] == {"class": path.parent.name}
        assert entry["size"] == path.stat().st_size
        assert entry["source"] == {"url": f"file://{old}", "sha256": hashlib.sha256(old.read_bytes()).hexdigest()}
    assert len(entries) == len(tree(tmp_path / "v2")) == 9
    done = avactl("dataset", "verify", "v2.manifest/manifest.jsonl", "--content")
    assert done.returncode == 0, done.stdout
    assert "complete since an earlier run" in process(avactl, "raw.jsonl", "v2", "--steps", STEPS)
    # The labels of a processed version go along again.
    process(avactl, "v2.manifest/manifest.jsonl", "v3", "--steps", "[{flip: vertical}]", "--jobs", "1")
    assert [each["labels"] for each in lines(tmp_path / "v3.manifest" / "manifest.jsonl")] == [
        each["labels"] for each in entries
    ]


def test_refusals(tmp_path: Path, avactl: Run) -> None:
    fill(tmp_path / "raw", {"a.png": encoded(noise(1)), "a.jpg": encoded(noise(1), "JPEG"), "b/c.png": b"no image"})
    fill(tmp_path / "full", {"x": b""})

    def refused(*args: str) -> str:
        done = avactl("dataset", "process", *args)
        assert done.returncode in (1, 2), done.stdout
        return done.stderr

    assert "both become a.png" in refused("raw", "out", "--steps", "[{convert: png}]")
    assert "overlap" in refused("raw", "raw/out", "--steps", "[{rotate: 90}]")
    assert "overlap" in refused("raw/b", "raw", "--steps", "[{rotate: 90}]")
    assert "full is not empty" in refused("raw", "full", "--steps", "[{rotate: 90}]")
    assert "b/c.png: is not a readable image" in refused("raw", "v2", "--steps", "[{rotate: 90}]", "--jobs", "1")
    assert "b/c.png: is not a readable image" in refused("raw", "v2", "--steps", "[{rotate: 90}]", "--jobs", "2")
    assert not (tmp_path / "v2.manifest" / "manifest.jsonl").exists()
    assert "other steps" in refused("raw", "v2", "--steps", "[{rotate: 180}]")
    assert "of a processing of" in refused("full", "v2", "--steps", "[{rotate: 90}]")
    fill(tmp_path / "v2", {"stray": b""})
    told = refused("raw", "v2", "--steps", "[{rotate: 90}]", "--skip-invalid", "1")
    assert "has stray, which this processing did not make" in told
    (tmp_path / "v2" / "stray").unlink()
    told = process(avactl, "raw", "v2", "--steps", "[{rotate: 90}]", "--skip-invalid", "1")
    assert "left out 1 invalid object: b/c.png: is not a readable image" in told
    assert sorted(tree(tmp_path / "v2")) == ["a.jpg", "a.png"]
    (skipped,) = lines(tmp_path / "v2.manifest" / "skipped.jsonl")
    assert skipped["skipped"] == "b/c.png"


def test_a_source_that_changes_is_an_error(tmp_path: Path, avactl: Run) -> None:
    fill(tmp_path / "raw", files(3))
    entries = [
        {"url": f"file://{path}", "size": path.stat().st_size, "sha256": "0" * 64}
        for path in sorted((tmp_path / "raw").rglob("*.png"))
    ]
    manifest(tmp_path / "raw.jsonl", *entries)
    done = avactl("dataset", "process", "raw.jsonl", "v2", "--steps", STEPS, "--jobs", "1")
    assert (done.returncode, "changed: its SHA-256 was 000" in done.stderr) == (1, True), done.stderr


def test_a_complete_version_of_a_source_that_has_changed(tmp_path: Path, avactl: Run) -> None:
    fill(tmp_path / "raw", files(3))
    args = ("raw", "v2", "--steps", STEPS, "--jobs", "1")
    process(avactl, *args)
    assert "complete since an earlier run" in process(avactl, *args)
    fill(tmp_path / "raw", {"new.png": encoded(noise(9))})
    done = avactl("dataset", "process", *args)
    assert done.returncode == 1
    assert "the source has changed since this version was begun: 4 objects now, 3 then" in done.stderr
    # What was interrupted is continued; it is told that more has come.
    (tmp_path / "v2.manifest" / "manifest.jsonl").unlink()
    assert "note: the source has changed since this version was begun: 4 objects" in process(avactl, *args)
    assert len(lines(tmp_path / "v2.manifest" / "manifest.jsonl")) == 3


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_what_is_continued_names_the_change_of_its_source(tmp_path: Path, avactl: Run, jobs: str) -> None:
    raw = fill(tmp_path / "raw", files(3) | {"bad.png": b"no image"})
    args = ("dataset", "process", "raw", "v2", "--steps", STEPS, "--jobs", jobs)
    assert avactl(*args).returncode == 1
    (raw / "dog" / "0001.png").unlink()
    (raw / "bad.png").write_bytes(encoded(noise(9)))
    done = avactl(*args)
    assert done.returncode == 1
    assert "the source has changed since this version was begun: 3 objects now, 4 then: " in done.stderr
    assert "process it into an empty directory" in done.stderr


def test_objects_that_no_step_changes_are_told(tmp_path: Path, avactl: Run) -> None:
    fill(tmp_path / "raw", {"a.gif": encoded(noise(1), "GIF"), "b.txt": b"text", "c.png": encoded(noise(2))})
    args = ("raw", "v2", "--steps", "[{rotate: 90}]", "--jobs", "1")
    for _ in range(2):
        assert "2 objects as in the source: no step changes them" in process(avactl, *args)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("[{rotate: 90}, {rotate: 45}]", "--steps:1: "),
        ("[]", "steps"),
        ("- resize: {width: 3}\n- call: blur\n", "steps.yaml:2: steps[1].call: `blur` is not `module:function`"),
        ("kind: ProcessingJob\nspec:\n  steps:\n  - turn: 90\n", "steps.yaml:4: `steps[0]` has no key `turn`"),
        ("rotate: 90\n", "is no list of steps"),
    ],
)
def test_steps_that_are_refused(tmp_path: Path, avactl: Run, steps: str, message: str) -> None:
    fill(tmp_path / "raw", files(1))
    (tmp_path / "steps.yaml").write_text(steps)
    done = avactl("dataset", "process", "raw", "v2", "--steps", steps if steps[0] == "[" else "steps.yaml")
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert "pydantic" not in done.stderr
    assert "Input should" not in done.stderr
    assert "match pattern" not in done.stderr


def test_a_video_with_odd_tags(tmp_path: Path, avactl: Run) -> None:
    tagged = video(3).replace(b"Lavf", b"\xff\xfe\xfd\xfc")
    assert tagged != video(3)
    assert len(made("a.mp4", tagged, {"frames": {}})) == 1


def test_frames_of_an_invalid_video_are_removed(tmp_path: Path, avactl: Run) -> None:
    fill(tmp_path / "raw", {"long.mp4": video(60), "short.mp4": video(20)})
    args = ("raw", "v2", "--steps", "[{frames: {max: 3}}]", "--skip-invalid", "1", "--jobs", "1")
    assert "left out 1 invalid object" in process(avactl, *args)
    assert sorted(tree(tmp_path / "v2")) == ["short.mp4/000000.jpg", "short.mp4/000001.jpg"]


# -- jobs ----------------------------------------------------------------------------------------------------------


def stored(store: RemoteStore) -> dict[str, bytes]:
    return {each.key: store.read(each) for each in store.objects()}


def test_what_others_put_beside_a_target_is_not_believed(tmp_path: Path, avactl: Run) -> None:
    """They may write there, and read nothing of what the user may read."""
    for name, data in {"src/a.txt": b"a", "secret/key.pem": b"key", "home/rc": b"rc"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    (tmp_path / "steps.yaml").write_text("[{rotate: 90}]")
    words = ("dataset", "process", "src", "t", "--steps", "steps.yaml")
    assert avactl(*words).returncode == 0
    beside = tmp_path / "t.manifest"
    record = json.loads((beside / "process.json").read_bytes())
    (beside / "manifest.jsonl").unlink()
    for listed, change in (
        ({"key": "key.pem", "size": 3}, {"source": f"file://{tmp_path}/secret"}),
        ({"key": "../secret/key.pem", "size": 3}, {}),
        ({"key": "a.txt", "size": 1}, {"perTask": 0}),
    ):
        text = json.dumps(listed).encode() + b"\n"
        (beside / "source.jsonl").write_bytes(text)
        planted = {**record, "sha256": hashlib.sha256(text).hexdigest(), **change}
        (beside / "process.json").write_text(json.dumps(planted))
        done = avactl(*words)
        assert done.returncode == 1, done.stderr
        assert "internal error" not in done.stderr
        assert sorted(path.name for path in (tmp_path / "t").iterdir()) == ["a.txt"]
    shutil.rmtree(tmp_path / "t")
    shutil.rmtree(beside)
    beside.mkdir()
    (beside / "precious").write_bytes(b"mine")
    assert "is not empty" in avactl(*words).stderr
    (beside / "precious").unlink()
    (beside / ".source.jsonl.partial").symlink_to(tmp_path / "home" / "rc")
    assert "is a symbolic link" in avactl(*words).stderr
    assert (tmp_path / "home" / "rc").read_bytes() == b"rc"
    (beside / ".source.jsonl.partial").unlink()
    assert avactl(*words).returncode == 0
    assert avactl("dataset", "process", "t.manifest", "t", "--steps", "steps.yaml").returncode != 0


@pytest.mark.parametrize("kills", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_a_job_whose_processes_are_killed(tmp_path: Path, avactl: Run, s3: str, put: Put, kills: int) -> None:
    objects = files(600)
    put({f"raw/{key}": content for key, content in objects.items()})
    fill(tmp_path / "raw", objects)
    process(avactl, "raw", "whole", "--steps", STEPS)
    args = ("s3://data/raw", "s3://data/v2", "--steps", STEPS, "--endpoint", s3, "--jobs", "1")
    rng = random.Random(kills)
    with ProcessingJob(tmp_path, 3, args, {"AWS_EC2_METADATA_DISABLED": "true"}, seed=kills) as job:
        for _ in range(kills):
            time.sleep(rng.uniform(0.5, 2.5))
            job.kill_random()
        job.wait()
    store = open_store("s3://data/v2", s3)
    assert isinstance(store, RemoteStore)
    assert stored(store) == tree(tmp_path / "whole")
    beside = open_store("s3://data/v2.manifest", s3)
    assert isinstance(beside, RemoteStore)
    found = stored(beside)
    assert sorted(found) == ["manifest.jsonl", "process.json", "source.jsonl"]
    entries = [orjson.loads(line) for line in found["manifest.jsonl"].splitlines()]
    assert [entry["url"] for entry in entries] == [f"s3://data/v2/{key}" for key in sorted(tree(tmp_path / "whole"))]
    (tmp_path / "m.jsonl").write_bytes(found["manifest.jsonl"])
    done = avactl("dataset", "verify", "m.jsonl", "--content", "--endpoint", s3)
    assert done.returncode == 0, done.stdout
