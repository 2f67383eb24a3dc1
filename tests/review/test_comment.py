"""What holds of every comment: its size, its marker, and that text from specs stays text."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path

import pytest

from avactl.change.diff.model import Diff
from avactl.change.review.comment import Artifact, CommentSection, Review, compose, marker, whole
from avactl.change.review.comparison import Sides
from avactl.cli.changes.ci import plan_of
from avactl.forges import FORGES, forge_names
from avactl.forges.forge import Forge
from tests.diff.sides import HEAD
from tests.review.scenarios import BASE, CASES, case_sides, comment_of, sides_of


def jobs(count: int, image: str, *, each: bool = False) -> str:
    """Jobs that are alike, or each with an epoch count of its own."""
    texts = []
    for n in range(count):
        own = n if each else 0
        run = f"command: [python, t.py, '{own}'], workers: {{cpu: {1 + own % 7}, memory: 1Gi}}"
        spec = f"image: 'example.com/{image}', {run}"
        texts.append(f"{HEAD}kind: TrainingJob\nmetadata: {{name: job-{n:04}, team: speech}}\nspec: {{{spec}}}\n")
    return "---\n".join(texts)


MANY = pytest.param(3000, marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=[1700, MANY])
def count(request: pytest.FixtureRequest) -> int:
    """How many objects change: more than the longest comment has room for."""
    found: int = request.param
    return found


@pytest.fixture(scope="module")
def large(count: int) -> Sides:
    """So many objects, no two of which change alike."""
    base = {**BASE, "jobs.yaml": jobs(count, "train:1")}
    return sides_of(base, {**BASE, "jobs.yaml": jobs(count, "train:2", each=True)})


@pytest.mark.parametrize("forge", FORGES, ids=forge_names())
def test_thousands_of_objects_fit(large: Sides, count: int, forge: Forge) -> None:
    limit = forge.comment_limit
    artifact = Artifact("avactl-diff.txt", "https://example.com/run#artifacts")
    text = compose(large.review, ".", large.source, limit=limit, artifact=artifact)
    assert limit // 2 < len(text.encode()) <= limit
    assert f"### {count} intents changed · {count} objects changed" in text
    assert f"Restarted: {count} TrainingJobs" in text
    assert text.count("<details>") == text.count("</details>")
    assert text.count("```") % 2 == 0
    # A reviewer sees some, counts the rest, and knows where all are.
    assert text.index("more changes</summary>") < 12_000
    omitted = re.search(r"… (?:(\d+) more changes, )?\d+ (?:more )?objects.*; full diff: \[`avactl-diff.txt`\]", text)
    assert omitted
    assert text.count("**TrainingJob `") + int(omitted[1] or 0) == count


def test_rights_are_the_last_to_go(large: Sides, count: int) -> None:
    """Each job has a command and an image of its own: more rights than fit, which the first lines say."""
    text = compose(large.review, ".", large.source, limit=65_000)
    (found,) = re.findall(r"> \*\*(\d+) rights of (\d+) changes do not fit into this comment\.\*\*", text)
    assert text.index("[!WARNING]") < text.index("**TrainingJob") < 2_000
    summaries = text.count("pods restart from the beginning")  # they have the image
    shown = text.count("- `command[2] ") + text.count("- `image ") + summaries - text.count("- `image train:1 → :2` · ")
    assert int(found[0]) + shown == 2 * count - 1  # of image and command; one keeps its number


def test_six_hundred_specs_fit_with_all_rights() -> None:
    """A privilege of the last one is among the rights of 600; the first lines are those of a small change."""
    one, other = ({**BASE, "jobs.yaml": jobs(600, image, each=image != "train:1")} for image in ("train:1", "train:2"))
    pod = '{"hostPID": true, "containers": [{"name": "c", "image": "e"}]}'
    text = f'{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "z"}}, "spec": {pod}}}'
    spec = f"{{namespace: default, objects: [{text}]}}"
    other["zz.yaml"] = f"{HEAD}kind: KubernetesObjects\nmetadata: {{name: zz}}\nspec: {spec}\n"
    found = comment_of(sides_of(one, other))
    assert len(found.encode()) <= 65_000
    assert "host PIDs z (Pod default/z)" in found
    first = found.splitlines()[:12]
    assert first[1] == "### 600 intents changed, 1 new · 602 objects: 2 new, 600 changed"
    assert first[3] == "Restarted: 600 TrainingJobs"
    assert first[5].startswith("**TrainingJob `speech/job-") or first[5] == "> [!WARNING]"


def test_the_artifact_has_all(large: Sides, count: int) -> None:
    text = whole(large.review, large.source)
    overview, _, full = text.partition("Every change in full")
    assert overview.count("TrainingJob speech/job-") == full.count("TrainingJob speech/job-") == count


@pytest.mark.parametrize("count", [500, MANY])
def test_thousands_that_change_alike_are_one(count: int) -> None:
    sides = sides_of({**BASE, "jobs.yaml": jobs(count, "train:1")}, {**BASE, "jobs.yaml": jobs(count, "train:2")})
    text = comment_of(sides)
    assert len(text) < 2000
    assert f"**{count} TrainingJobs**" in text


def test_thousands_of_problems_fit() -> None:
    words = map("".join, product("abcdefghij", repeat=3))  # a thousand different ones, which are not printed as one
    broken = re.sub("memory", lambda _: f"memry{next(words)}", jobs(1000, "train:1"))
    text = comment_of(sides_of(BASE, {**BASE, "jobs.yaml": broken}))
    assert len(text.encode()) <= 65_000
    assert "❌ It does not compile: 1001 errors" in text
    assert re.search(r"\n… \d+ more lines; `avactl validate` shows all\n```\n", text)


def test_a_thousand_equal_problems_are_one() -> None:
    broken = jobs(1000, "train:1").replace("memory", "memry")
    text = comment_of(sides_of(BASE, {**BASE, "jobs.yaml": broken}))
    assert len(text.encode()) <= 2000
    assert "has no key `memry` (×1000)\n" in text
    assert "\n1001 errors\n```\n" in text


def test_every_comment_can_be_found_again() -> None:
    assert marker(".") == "<!-- avactl comment: . -->"
    assert marker("a--><b>") == "<!-- avactl comment: a-%2D%3E%3Cb%3E -->"
    assert len(CASES) > 20
    for case in CASES:
        assert comment_of(case_sides(case)).startswith(marker(".") + "\n")


def test_what_specs_say_is_not_markup() -> None:
    """Mentions, links, HTML, closing issues, quick actions of GitLab."""
    evil = "@everyone <img src=x> [a](http://b) closes #1"

    def job(*arguments: str) -> dict[str, str]:
        spec = f"{{image: 'example.com/x:1', command: [sh, -c, {', '.join(map(json.dumps, arguments))}]}}"
        text = f"{HEAD}kind: TrainingJob\nmetadata: {{name: evil, team: speech}}\nspec: {spec}\n"
        return {**BASE, "evil.yaml": text}

    text = comment_of(sides_of(job("a", "b"), job(evil, "\n/close\n", "```", "``x")))
    assert "everyone" in text
    assert "close" in text
    plain = re.sub(r"(?ms)^(`{3,})\w*\n.*?^\1$|(`+).*?\2", "", text)
    for word in ("everyone", "<img", "/close", "](http"):
        assert word not in plain


def test_a_credential_of_the_base_is_covered() -> None:
    text = comment_of(case_sides(next(case for case in CASES if case.name == "secrets")))
    assert "0123456789abcdef" not in text
    assert "WANDB_API_KEY" in text


def test_further_sections_have_their_room() -> None:
    sides = case_sides(next(case for case in CASES if case.name == "scale-a-job"))
    plan = CommentSection("Will it run?", "- `vision/resnet50` starts now\n")
    review = Review("1", "2", diff=sides.review.diff, sections=[plan, CommentSection("Empty", "")])
    text = compose(review, ".", sides.source, limit=65_000)
    assert "\n### Will it run?\n\n- `vision/resnet50` starts now\n" in text
    assert "Empty" not in text
    long = Review("1", "2", diff=sides.review.diff, sections=[CommentSection("Long", "- `x`\n" * 50_000)])
    assert len(compose(long, ".", sides.source, limit=65_000)) <= 65_000


def test_a_fold_that_is_cut_is_closed() -> None:
    long = CommentSection("Long", "<details><summary>all</summary>\n\n" + "- `x`\n" * 50_000 + "\n</details>\n")
    sides = case_sides(next(case for case in CASES if case.name == "scale-a-job"))
    text = compose(Review("1", "2", diff=sides.review.diff, sections=[long]), ".", sides.source, limit=65_000)
    assert text.count("<details>") == text.count("</details>") == 2


def test_the_plan_of_many_jobs_fits_with_its_note() -> None:
    one, other = ({**BASE, "jobs.yaml": jobs(400, image, each=True)} for image in ("train:1", "train:2"))
    found = sides_of(one, other, [plan_of(None)]).review
    text = compose(found, ".", lambda _: None, limit=65_000)
    assert "A check, not a reservation" in text
    assert text.count("<details>") == text.count("</details>")
    assert text.count("TrainingJobs` | ") == 3, "those that wait, and those that start in one pool or the other"


def test_nothing_to_tell_is_quiet() -> None:
    assert Review("1", "2", diff=Diff(())).quiet
    assert not case_sides(Path(next(case for case in CASES if case.name == "broken-spec"))).review.quiet
