"""Repositories whose names and values are meant for terminals, pipelines, and readers of a pull request."""

from __future__ import annotations

import json
import os

from tests.cli.hostile.case import FILES, TEXT, Hostile
from tests.diff.sides import HEAD, job, workspace

MARKDOWN = ("validate", "markdown", "comment of revisions", "comment")
ESCAPES = "a\x1b[2J\x1b]0;owned\x07\x1b]8;;http://evil.example\x07\x9b31mb"
LINES = "a\n::error file=x::b\n##[error]c\n##vso[task.setvariable variable=x]y\nsection_start:1:x\r\x1b[0K"
MARKUP = (
    "@everyone closes #1 GH-2 <img src='https://evil.example/x.png'> ![x](https://evil.example/x.png) "
    "[click](javascript:alert(1)) <!-- hidden --> <details open><summary>x</summary> https://evil.example "
    "</details></summary></sub> <script>alert(1)</script> :tada: **bold** $\\unicode{x}$"
)
FENCES = "a\n```\n````\n~~~\n</code></pre>\n/close\n/label ~x\n- [x] done\n# Approved\n| a |\n|---|\n> [!NOTE]\nb"


def quoted(**fields: object) -> str:
    """A job with values that YAML holds in quotes."""
    spec = {
        "image": "example.com/train:1",
        "command": ["python", "train.py"],
        "strategy": "allReduce",
        "workers": {"replicas": 2, "gpus": 8, "cpu": 8, "memory": "64Gi"},
        **fields,
    }
    return f"{HEAD}kind: TrainingJob\nmetadata: {{name: evil, team: vision}}\nspec: {json.dumps(spec)}\n"


def name(name: str, value: str, told: str = "invalid-value") -> Hostile:
    text = f"{HEAD}kind: TrainingJob\nmetadata: {{name: {json.dumps(value)}, team: vision}}\nspec: {{}}\n"
    return Hostile(f"name: {name}", {"evil.yaml": text}, told, commands=FILES)


def file(name: str, path: str, told: str = "retries") -> Hostile:
    return Hostile(f"file: {name}", {path: HEAD + job(retries=-1)}, told, commands=FILES)


def value(name: str, told: str = "evil", code: int = 0, **fields: object) -> Hostile:
    return Hostile(f"value: {name}", {"evil.yaml": quoted(**fields)}, told, code, commands=TEXT)


CASES = [
    name("escapes", ESCAPES),
    name("lines", LINES),
    name("markup", MARKUP),
    name("fences", FENCES),
    name("a path", "../../../outside/new"),
    name("an absolute path", "/etc/cron.d/x"),
    name("dots", ".."),
    name("an option", "--output=x"),
    name("a shell", "$(touch RAN)`touch RAN`;touch RAN"),
    name("5,000 characters", "a" * 5000),
    name("none", ""),
    file("escapes", "\x1b[2J\x1b]0;x\x07/x.yaml", "unsafe-path"),
    file("lines", "a\n::error::b\n##[error]c\n/x.yaml", "unsafe-path"),
    file("markup", "<img src=x>@everyone `` ``` [a](b) <!--/x.yaml", "unsafe-path"),
    file("commands", "##vso[task.complete]/::error::x.yaml"),
    file("backwards", "\u202e\u2066lmay.yaml", "unsafe-path"),
    file("an option", "--output=x.yaml"),
    value("escapes", command=["python", ESCAPES], env={"A": ESCAPES}),
    value("lines", command=["sh", "-c", LINES], env={"A": LINES}),
    value("markup", command=["sh", "-c", MARKUP], env={"A": MARKUP}),
    value("fences", command=["sh", "-c", FENCES], env={"A": FENCES}),
    value("the end of a hidden comment", command=["sh", "-c", "--> @everyone <!--"], env={"A": "-->"}),
    value("image", "invalid-value", 1, image=f"example.com/{LINES}"),
    value("a name of a variable", "invalid-value", 1, env={LINES: "x", ESCAPES: MARKUP}),
    Hostile(
        "value: a user",
        {"evil.yaml": HEAD + workspace("evil").replace("evil@example.com", "<b>@x`\\x1b[2J")},
        "evil",
        0,
        commands=TEXT,
    ),
    Hostile("value: an unknown key", {"evil.yaml": HEAD + f"kind: Team\n{json.dumps(MARKUP + LINES)}: 1\n"}, "unknown"),
    Hostile(
        "value: an unknown kind",
        {"evil.yaml": f"{HEAD}kind: {json.dumps(FENCES + ESCAPES)}\n"},
        "unknown-kind",
        commands=MARKDOWN,
    ),
    Hostile(
        "settings with text for pipelines",
        {"avactl.yaml": f"include: [{json.dumps(LINES + ESCAPES)}]\n"},
        "include",
        commands=("validate", "report", "json", "comment of revisions"),
    ),
    Hostile(
        "output for programs",
        {"evil.yaml": quoted(command=["sh", "-c", LINES], env={"A": LINES, "B": ESCAPES})},
        "evil",
        0,
        commands=("json", "plan as json", "print"),
    ),
    Hostile(
        "file: bytes that are not UTF-8",
        {os.fsdecode(b"\xff\xfe.yaml"): quoted(command=["x"], retries=-1)},
        "retries",
        commands=("json", "report", "markdown", "comment of revisions"),
    ),
    Hostile(
        "file: bytes that are not UTF-8, in a valid spec",
        {os.fsdecode(b"\xff.yaml"): quoted(command=["x"])},
        "evil",
        0,
        commands=("json", "plan as json", "markdown", "comment of revisions", "print", "render"),
    ),
]
