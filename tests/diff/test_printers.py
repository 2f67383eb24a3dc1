"""Text, markdown and JSON: what stands where, what is cut, and what a spec cannot do to its reader."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avactl.change.diff import Diff, compare
from avactl.change.diff.json_output import render_json
from avactl.change.diff.markdown import code_span, escape_prose, render_markdown
from avactl.change.diff.text import render_text
from tests.diff.sides import body, broken, changes, compiled, job, with_bodies, workspace

ONE = {"replicas": 1, "gpus": 1, "cpu": 1, "memory": "1Gi"}


def fleet(count: int, image: str, **more: Any) -> list[str]:
    return [job(f"job-{n:03}", image=image, strategy="single", workers={"cpu": 1}, **more) for n in range(count)]


@pytest.fixture(scope="module")
def bumped() -> Diff:
    return changes(fleet(40, "example.com/train:1"), fleet(40, "example.com/train:2"))


def objects_of(count: int, size: int, value: str = "x") -> Diff:
    """A change of many objects that are all different."""
    base = compiled(workspace())

    def side(mark: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        return [(body("ConfigMap", f"c{n}", data={f"k{n}": f"{mark}{n}{value}" * size}), {}) for n in range(count)]

    return compare(with_bodies(base, *side("old")), with_bodies(base, *side("new")))


def test_equal_changes_are_told_once(bumped: Diff) -> None:
    text = render_text(bumped)
    assert text.startswith("40 TrainingJobs")
    assert text.count("train:1 → :2") == 2  # the intents, and their Jobs
    assert "vision/job-000, vision/job-001" in text
    assert "40 Jobs *-worker" in text
    assert len(text.splitlines()) < 30
    assert len(json.loads(render_json(bumped))["intents"]) == 40


def test_without_objects(bumped: Diff) -> None:
    assert "*-worker" not in render_text(bumped, objects=False)
    assert "<details>" not in render_markdown(bumped, objects=False)
    assert "objects" not in json.loads(render_json(bumped, objects=False))["intents"][0]


def test_nothing_changed() -> None:
    diff = changes([job()], [job()])
    assert render_text(diff) == "no changes\n"
    assert "No changes" in render_markdown(diff)
    assert json.loads(render_json(diff))["intents"] == []


def test_colours_only_where_asked_for(bumped: Diff) -> None:
    assert "\x1b" not in render_text(bumped)
    assert "\x1b[" in render_text(bumped, colour=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", render_text(bumped, colour=True)) == render_text(bumped)


def test_data_loss_is_red_first_and_a_block_in_markdown() -> None:
    diff = changes([job(), workspace(storage="50Gi")], [job(retries=5), workspace(storage="20Gi")])
    assert render_text(diff, colour=True).startswith("\x1b[1;31mWorkspace vision/w")
    assert "DATA LOSS: PersistentVolumeClaim vision/w-home, storage 50Gi → 20Gi" in render_text(diff)
    markdown = render_markdown(diff)
    assert markdown.index("> [!CAUTION]") < markdown.index("**Workspace `vision/w`**") < markdown.index("TrainingJob")


def test_feasibility_says_what_it_is() -> None:
    diff = changes([], [job()])
    for text in (render_text(diff), render_markdown(diff)):
        assert "a check, not a reservation" in text
    assert "reservation" not in render_text(changes([], [workspace()]))


def test_a_base_with_errors_is_told() -> None:
    diff = compare(broken(job(strategy="x")), compiled(job()))
    assert render_text(diff).startswith("the base does not compile (1 error)")
    assert "> [!WARNING]" in render_markdown(diff)
    assert json.loads(render_json(diff))["baseProblems"][0]["code"] == "invalid-value"


@pytest.mark.parametrize(("count", "size"), [(3000, 1), (40, 4000), (1, 100_000), (500, 100)])
def test_markdown_stays_below_the_limit_of_github(count: int, size: int) -> None:
    for value in ("x", "→", "`", "\n", "a\n"):
        text = render_markdown(objects_of(count, size, value))
        assert len(text.encode()) < 65_536
        fences = re.findall(r"^`{3,}", text, re.MULTILINE)
        assert len(fences) % 2 == 0
        assert text.count("<details>") == text.count("</details>")


def test_markdown_says_how_much_it_leaves_out() -> None:
    text = render_markdown(objects_of(3000, 1))
    (shown,) = re.findall(r"… (\d+) more objects; `avactl diff --full` shows all", text)
    assert text.count("\n~ ConfigMap") + int(shown) == 3000


def test_many_intents_are_cut_with_a_count() -> None:
    old = [job(f"job-{n:03}", strategy="single", workers={"cpu": 1}, args=["x" * 300]) for n in range(400)]
    new = [job(f"job-{n:03}", strategy="single", workers={"cpu": 1}, args=["y" * 300, str(n)]) for n in range(400)]
    text = render_markdown(changes(old, new), limit=20_000)
    assert len(text.encode()) <= 20_000
    (left,) = re.findall(r"… (\d+) more changes, \d+ objects; `avactl diff --full` shows all", text)
    assert text.count("**TrainingJob `") + int(left) == 400
    # Each has two: the changed argument, and the new one.
    assert text.startswith("<!-- avactl diff -->")
    (rights, of) = re.findall(r"> \*\*(\d+) rights of (\d+) changes do not fit into this comment", text)[0]
    assert text.index("do not fit") < text.index("**TrainingJob")
    assert text.count("- `args[") + int(rights) == 800
    assert int(of) >= int(left)


NASTY = "<script>alert(1)</script> @octo-org/team #12 `code` ``` ~~~ | a | **b** [x](http://evil.example.com) :tada:"


def outside_code(markdown: str) -> str:
    """What GitHub would read as markup: without fenced blocks and code spans."""
    kept, fence = [], ""
    for line in markdown.splitlines():
        opening = re.match(r"`{3,}", line)
        if fence:
            fence = "" if line == fence else fence
        elif opening:
            fence = opening[0]
        else:
            kept.append(line)
    return re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", "\n".join(kept))


@pytest.mark.parametrize(
    "nasty", [NASTY, "```\n</details>\n@all\n```", "`" * 7 + "@all", "</code></summary><img src=x>"]
)
def test_values_cannot_break_out_of_markdown(nasty: str) -> None:
    old = [job(env={"A": "1"}), workspace()]
    new = [job(env={"A": nasty}, args=[nasty]), workspace(env={"B": nasty})]
    base = compiled(*new)
    diff = compare(compiled(*old), base)
    odd = compare(
        with_bodies(base, (body("PersistentVolumeClaim", spec={"storageClassName": "a"}), {})),
        with_bodies(base, (body("PersistentVolumeClaim", spec={"storageClassName": nasty}), {})),
    )
    for markdown in (render_markdown(diff), render_markdown(odd)):
        left = outside_code(markdown)
        for sign in ("<script", "@", "#12", "http", ":tada:", "<img", "**b**", "![i]"):
            assert sign not in left.replace("###", ""), left
        assert left.count("<details>") == left.count("</details>")


@given(st.text(max_size=60))
@settings(max_examples=300)
def test_a_code_span_holds_any_text(text: str) -> None:
    span = code_span(text)
    fence = re.match(r"`+", span)
    assert fence is not None
    inside = span[len(fence[0]) : -len(fence[0])]
    assert fence[0] not in re.findall("`+", inside)
    assert "\n" not in span


@given(st.text(alphabet="aG1-_*<>@#.:/()H` [", max_size=20))
def test_prose_is_a_code_span_wherever_it_could_be_markup(text: str) -> None:
    if not escape_prose(text).startswith("`"):
        assert not re.search(r"[*_<>@#\[\]`]|://|www\.|^\s*([-+]|\d+[.)])\s|GH-\d", text)


@pytest.mark.parametrize("text", ["no changes", "2 pods restart", "G-1 (a: b) c/d", "3 pods, 2 of 4 GPUs"])
def test_prose_without_markup_stays_as_it_is(text: str) -> None:
    assert escape_prose(text) == text


def test_values_cannot_steer_a_terminal() -> None:
    diff = changes([job(env={"A": "1"})], [job(env={"A": "\x1b[2J\x1b]0;owned\x07\r\u202e"})])
    for text in (render_text(diff), render_markdown(diff)):
        assert "owned" in text
        assert all(ch.isprintable() or ch == "\n" for ch in text)


def test_a_planted_credential_is_nowhere() -> None:
    secret = "ghp_" + "a1B2" * 9
    base = broken(job(env={"GITHUB_TOKEN": secret}), workspace(env={"X": "1"}))
    assert any(d.code == "credential-literal" for d in base.diagnostics)
    diff = compare(base, compiled(job(), workspace()))
    assert not diff.empty
    for text in (render_text(diff), render_markdown(diff), render_json(diff), render_text(diff, colour=True)):
        assert secret not in text
        assert secret[4:20] not in text


def test_json_keeps_every_value_whole() -> None:
    long = "x" * 5000
    data = json.loads(render_json(changes([job(env={"A": "1"})], [job(env={"A": long})])))
    (intent,) = data["intents"]
    assert {"path": "spec.env.A", "change": "changed", "old": "1", "new": long} in intent["spec"]
    assert data["counts"] == {"intents": {"changed": 1}, "objects": {"changed": 1}}
    assert (intent["kind"], intent["team"], intent["name"], intent["change"]) == (
        "TrainingJob",
        "vision",
        "j",
        "changed",
    )
    assert (intent["file"], intent["line"]) == ("specs.yaml", 2)
    (worker,) = intent["objects"]
    assert (worker["kind"], worker["namespace"], worker["disruption"]) == ("Job", "vision", "replace")


def test_long_values_are_cut_where_they_do_not_differ() -> None:
    old, new = "a" * 200 + "1" + "b" * 200, "a" * 200 + "2" + "b" * 200
    text = render_text(changes([job(env={"A": old})], [job(env={"A": new})]))
    assert "1b" in text
    assert "2b" in text
    assert max(map(len, text.splitlines())) < 200


def test_a_long_name_is_apart_from_its_change() -> None:
    name = "a" * 41
    text = render_text(changes([job(name, retries=3)], [job(name, retries=5)]))
    assert f"  ~ Job vision/{name}-worker backoffLimitPerIndex 3 → 5   (new run)\n" in text
