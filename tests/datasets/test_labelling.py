"""Objects become tasks of Label Studio, and what people say of them labels of the next version."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.cli.running import Run
from tests.datasets.conftest import lines, manifest
from tests.datasets.studio import TOKEN, FakeStudio
from tools.controlplane.process import free_port
from tools.waiting import wait_until

OBJECTS = 620
SETUP = """<View><Image name="image" value="$image"/>
<Choices name="class" toName="image"><Choice value="cat"/><Choice value="dog"/></Choices></View>"""


@pytest.fixture
def studio(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeStudio]:
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", TOKEN)
    with FakeStudio() as found:
        monkeypatch.setenv("LABEL_STUDIO_URL", found.url)
        yield found


def objects(path: Path, count: int) -> Path:
    entries = [
        {"url": f"s3://data/raw/{number:04}.jpg", "size": 1, "labels": {"night": True}} for number in range(count)
    ]
    return manifest(path, *entries)


def run(avactl: Run, *args: str, code: int = 0) -> str:
    done = avactl("dataset", *args)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert TOKEN not in done.stdout + done.stderr
    return done.stdout + done.stderr


def test_each_object_becomes_one_task(tmp_path: Path, avactl: Run, studio: FakeStudio) -> None:
    objects(tmp_path / "v1.jsonl", OBJECTS)
    studio.fails_after = 1
    assert "500" in run(avactl, "label-tasks", "v1.jsonl", "--project", "1", code=3)
    studio.fails_after = None
    assert "370 new tasks, 250 before" in run(avactl, "label-tasks", "v1.jsonl", "--project", "1")
    assert "0 new tasks, 620 before" in run(avactl, "label-tasks", "v1.jsonl", "--project", "1")
    assert [task["data"]["image"] for task in studio.tasks] == [each["url"] for each in lines(tmp_path / "v1.jsonl")]
    assert studio.tasks[0]["data"]["labels"] == {"night": True}


def test_agreement(tmp_path: Path, avactl: Run, studio: FakeStudio) -> None:
    objects(tmp_path / "v1.jsonl", 7)
    run(avactl, "label-tasks", "v1.jsonl", "--project", "1")
    for person, choice in enumerate(("cat", "cat", "dog")):
        studio.annotate(0, person, choice)
    studio.annotate(1, 1, "cat")
    studio.annotate(2, 1, "cat")
    studio.annotate(2, 2, "dog")  # a tie
    studio.annotate(3, 1, "cat", skipped=True)
    studio.annotate(4, 1, "dog", at="2026-01-02")
    studio.annotate(4, 1, "cat", at="2026-01-01")  # the person has corrected it
    studio.annotate(5, 1, "dog", "cat")
    studio.annotate(5, 2, "cat", "dog")
    told = run(avactl, "label-results", "--project", "1", "-o", "r.jsonl")
    assert [each["labels"] for each in lines(tmp_path / "r.jsonl")] == [
        {"class": "cat", "class_agreement": 0.6667},
        {"class": "cat"},
        {"class": "dog"},
        {"class": ["cat", "dog"], "class_agreement": 1.0},
    ]
    assert "4 objects of 7, 9 annotations" in told
    assert "agreement on class: 0.40 of 5 pairs" in told
    assert "left out 1 label" in told
    run(avactl, "label-results", "--project", "1", "-o", "s.jsonl", "--agreement", "0.7", "--people", "2")
    assert [each["url"] for each in lines(tmp_path / "s.jsonl")] == ["s3://data/raw/0005.jpg"]
    run(avactl, "label", "v1.jsonl", "r.jsonl", "-o", "v2.jsonl")
    assert lines(tmp_path / "v2.jsonl")[0]["labels"] == {"night": True, "class": "cat", "class_agreement": 0.6667}


def choice(name: str, *chosen: object) -> dict[str, object]:
    return {"from_name": name, "to_name": "image", "type": "choices", "value": {"choices": [*chosen]}}


def deep(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "result",
    [
        [choice("url", "s3://data/raw/0001.jpg"), choice("class", "dog")],
        [choice("path", "0001.jpg"), choice("class", "dog")],
        [choice("size", "1")],
        [choice("class_agreement", 1.0)],
        ["class"],
        {"class": "dog"},
        "dog",
        [{"from_name": "class", "type": "rating", "value": {"rating": 2**70}}],
        [choice("class", deep(60))],
        [choice("class", "dog"), {"from_name": "class", "type": "rectanglelabels", "value": {"x": 1}}],
        [{"from_name": ["class"], "type": "choices", "value": {"choices": ["dog"]}}],
    ],
)
def test_a_person_labels_only_what_was_given(tmp_path: Path, avactl: Run, studio: FakeStudio, result: object) -> None:
    objects(tmp_path / "v1.jsonl", 2)
    run(avactl, "label-tasks", "v1.jsonl", "--project", "1")
    studio.annotate(0, 1, "cat")
    studio.send(0, 2, result)
    told = run(avactl, "label-results", "--project", "1", "-o", "r.jsonl")
    assert "left out 1 annotation with" in told
    assert lines(tmp_path / "r.jsonl") == [{"url": "s3://data/raw/0000.jpg", "labels": {"class": "cat"}}]


@pytest.mark.parametrize("controls", [["class", "url"], ["size"], ["class", "class_agreement"]])
def test_controls_that_are_no_labels(tmp_path: Path, avactl: Run, studio: FakeStudio, controls: list[str]) -> None:
    studio.controls = controls
    assert "rename" in run(avactl, "label-results", "--project", "1", "-o", "r.jsonl", code=1)
    assert not (tmp_path / "r.jsonl").exists()


def test_refusals(tmp_path: Path, avactl: Run, studio: FakeStudio, monkeypatch: pytest.MonkeyPatch) -> None:
    objects(tmp_path / "v1.jsonl", 2)
    assert "404" in run(avactl, "label-results", "--project", "9", "-o", "r.jsonl", code=3)
    assert not (tmp_path / "r.jsonl").exists()
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", "a.b.c")
    assert "2 new tasks" in run(avactl, "label-tasks", "v1.jsonl", "--project", "1")
    for token in ("wrong", "x.y.z"):
        monkeypatch.setenv("LABEL_STUDIO_API_KEY", token)
        assert "refuses the token (401)" in run(avactl, "label-tasks", "v1.jsonl", "--project", "1", code=3)
    monkeypatch.delenv("LABEL_STUDIO_API_KEY")
    assert "LABEL_STUDIO_API_KEY is not set" in run(avactl, "label-tasks", "v1.jsonl", "--project", "1", code=2)
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", TOKEN)
    dead = f"http://127.0.0.1:{free_port()}"
    assert "check `--studio`" in run(avactl, "label-results", "--project", "1", "-o", "r", "--studio", dead, code=3)


# -- the real tool -------------------------------------------------------------------------------------------------


@contextmanager
def real_studio(folder: Path) -> Iterator[str]:
    """Start Label Studio with one user, and yield its URL."""
    from tools.frameworks.build import build_label_studio

    program = build_label_studio() / "label-studio"
    port = free_port()
    settings = {
        "LABEL_STUDIO_BASE_DATA_DIR": str(folder),
        "LABEL_STUDIO_USERNAME": "lin@example.com",
        "LABEL_STUDIO_PASSWORD": "planted-Password-1",
        "LABEL_STUDIO_USER_TOKEN": TOKEN,
        "LABEL_STUDIO_ENABLE_LEGACY_API_TOKEN": "true",
        "COLLECT_ANALYTICS": "false",
        "LATEST_VERSION_CHECK": "false",
    }
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | settings
    command = [str(program), "start", "--no-browser", "--port", str(port), "--internal-host", "127.0.0.1"]
    url = f"http://127.0.0.1:{port}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)
    try:

        def serves() -> bool:
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            try:
                return httpx.get(f"{url}/health").is_success
            except httpx.HTTPError:
                return False

        wait_until(serves, poll=0.5, details=lambda: (folder / "log").read_text()[-2000:])
        yield url
    finally:
        process.kill()
        process.wait()


@pytest.mark.frameworks
def test_the_loop_with_the_real_tool(tmp_path: Path, avactl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects, tasks, annotations by the API, and the next version with their labels."""
    objects(tmp_path / "v1.jsonl", 300)
    (tmp_path / "studio").mkdir()
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", TOKEN)
    with real_studio(tmp_path / "studio") as url:
        monkeypatch.setenv("LABEL_STUDIO_URL", url)
        with httpx.Client(base_url=url, headers={"Authorization": f"Token {TOKEN}"}, timeout=60) as client:
            body = {"title": "street photos", "label_config": SETUP}
            project = client.post("/api/projects/", json=body).raise_for_status().json()["id"]
            assert "300 new tasks" in run(avactl, "label-tasks", "v1.jsonl", "--project", str(project))
            assert "0 new tasks, 300 before" in run(avactl, "label-tasks", "v1.jsonl", "--project", str(project))
            query = {"project": project, "page": 1, "page_size": 100, "fields": "all"}
            tasks = client.get("/api/tasks/", params=query).raise_for_status().json()["tasks"]
            said = {}
            for number, task in enumerate(tasks[:20]):
                choice = ("cat", "dog")[number % 2]
                result = {"from_name": "class", "to_name": "image", "type": "choices", "value": {"choices": [choice]}}
                annotation = {"result": [result], "was_cancelled": number == 7}
                client.post(f"/api/tasks/{task['id']}/annotations/", json=annotation).raise_for_status()
                if number != 7:
                    said[task["data"]["image"]] = choice
        told = run(avactl, "label-results", "--project", str(project), "-o", "r.jsonl")
    assert "19 objects of 300, 19 annotations" in told
    run(avactl, "label", "v1.jsonl", "r.jsonl", "-o", "v2.jsonl")
    found = {str(each["url"]): each["labels"] for each in lines(tmp_path / "v2.jsonl")}
    assert found == {url: {"night": True, **({"class": said[url]} if url in said else {})} for url in found}
    assert len(found) == 300
