"""Comments on servers that answer as the forges document: create, find, edit, pages, limits, errors."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import httpx
import pytest

from avactl.change.review.publish import connect, publish
from avactl.forges.comments import ReadOnlyError
from avactl.forges.forge import PipelineRun
from avactl.forges.rest import ForgeError
from tests.review.forges import TOKEN, Answer, FakeForge, FakeGitea, FakeGitHub, FakeGitLab, Fault, serving

MARK = "<!-- avactl comment: . -->"
BODY = f"{MARK}\n### 1 intent changed\n"


@pytest.fixture(params=["github", "gitlab", "gitea", "forgejo"])
def forge(request: pytest.FixtureRequest) -> Iterator[FakeForge]:
    fakes = {"github": FakeGitHub(), "gitlab": FakeGitLab(me="project_42_bot")}
    fake = fakes.get(request.param) or FakeGitea(me=f"{request.param}-actions")
    fake.name = request.param
    with serving(fake) as found:
        yield found


def name(forge: FakeForge) -> str:
    """Who the token belongs to."""
    return forge.me or "github-actions[bot]"


class Waits:
    """Waits that were asked for, in seconds."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def write(forge: FakeForge, body: str = BODY, *, quiet: bool = False, token: str = TOKEN, fork: bool = False) -> Waits:
    waits = Waits()
    project = "42" if forge.name == "gitlab" else "acme/platform"
    run = PipelineRun(forge.name, forge.url, project, 7, token=token, fork=fork)
    publish(connect(run, waits), MARK, body, quiet=quiet, sleep=waits)
    return waits


def answer(status: int, body: object = None, **headers: str) -> Fault:
    given: Answer = (status, {k.replace("_", "-"): v for k, v in headers.items()}, body or {"message": "no"})
    return lambda forge, method, target: given


def test_a_server_s_text_with_a_token_is_masked(forge: FakeForge) -> None:
    secret = "ghp_" + "a1" * 18
    forge.faults = [answer(403, {"message": f"bad credentials: token={TOKEN}x {secret}, from https://u:p@w@proxy/"})]
    with pytest.raises(ForgeError) as caught:
        write(forge)
    for planted in (secret, "p@w", f"{TOKEN}x"):
        assert planted not in f"{caught.value} {caught.value.hint}"


def test_create_then_find_and_edit(forge: FakeForge) -> None:
    write(forge)
    assert forge.bodies() == [BODY]
    write(forge, BODY + "more\n")
    assert forge.bodies() == [BODY + "more\n"]
    assert [line.split()[0] for line in forge.log if "user" not in line and "graphql" not in line] == [
        "GET",
        "POST",
        "GET",
        "PUT" if forge.name == "gitlab" else "PATCH",
    ]


def test_the_same_again_writes_nothing(forge: FakeForge) -> None:
    forge.add(BODY.replace("\n", "\r\n").rstrip(), name(forge))
    write(forge)
    assert not [line for line in forge.log if not line.startswith("GET") and "graphql" not in line]


def test_no_changes_write_only_over_what_is_there(forge: FakeForge) -> None:
    write(forge, quiet=True)
    assert forge.bodies() == []
    forge.add(BODY, name(forge))
    write(forge, f"{MARK}\nno changes\n", quiet=True)
    assert forge.bodies() == [f"{MARK}\nno changes\n"]


def test_a_comment_on_a_later_page_is_found(forge: FakeForge) -> None:
    forge.page = 2
    for number in range(5):
        forge.add(f"looks good {number}", "ada")
    forge.add(f"{MARK}\nold", name(forge))
    write(forge)
    assert forge.bodies()[-1] == BODY
    assert len(forge.comments) == 6
    pages = 1 if isinstance(forge, FakeGitea) else 3
    assert sum(line.startswith("GET") and "user" not in line for line in forge.log) == pages


def test_somebody_else_may_write_the_marker(forge: FakeForge) -> None:
    forge.add(f"{MARK}\nmine, ha", "mallory")
    forge.add(f"> {MARK}\nI quote it", name(forge))
    write(forge)
    assert forge.bodies() == [f"{MARK}\nmine, ha", f"> {MARK}\nI quote it", BODY]


def test_another_repository_of_specs_has_its_own(forge: FakeForge) -> None:
    forge.add("<!-- avactl comment: edge -->\nother", name(forge))
    write(forge)
    assert len(forge.comments) == 2


def test_a_person_s_token_on_github() -> None:
    with serving(FakeGitHub(me="ada")) as forge:
        forge.add(f"{MARK}\nof the bot", "github-actions[bot]")
        forge.add(f"{MARK}\nof ada", "ada")
        write(forge)
        assert forge.bodies() == [f"{MARK}\nof the bot", BODY]


@pytest.mark.parametrize("app", ["github-actions[bot]", "avactl-acme[bot]"])
def test_another_bot_may_write_the_marker_on_github(app: str) -> None:
    with serving(FakeGitHub(app=app)) as forge:
        forge.add(f"{MARK}\nquoted from the pull request", "dependabot[bot]")
        forge.add(f"{MARK}\nold", app)
        write(forge)
        assert forge.bodies() == [f"{MARK}\nquoted from the pull request", BODY]


def test_a_link_to_the_forge_s_own_name_is_followed_where_it_is_reached() -> None:
    """A server behind a proxy, or in a cluster, links to the name that it knows."""
    with serving(FakeGitHub(page=2)) as forge:
        for number in range(5):
            forge.add(f"looks good {number}", "ada")
        forge.add(f"{MARK}\nold", name(forge))
        forge.public = "https://git.example.invalid"
        write(forge)
        assert forge.bodies()[-1] == BODY
        assert len(forge.comments) == 6


def test_without_its_user_s_name_gitea_s_token_writes_nothing() -> None:
    """Nothing would tell whose comment has the marker, and each run would add one."""
    with serving(FakeGitea(me="ada", scopes=False)) as forge:
        forge.name = "gitea"
        forge.add(f"{MARK}\nold", "ada")
        with pytest.raises(ForgeError, match="403") as caught:
            write(forge)
        assert "read:user" in caught.value.hint
        assert len(forge.comments) == 1


def test_entries_that_are_no_comments(forge: FakeForge) -> None:
    for odd in ({"id": "x"}, {"user": "ada", "author": "ada"}, {"user": None, "author": None}, {"body": ["x"]}):
        forge.add(f"{MARK}\nold", name(forge)).update(odd)
    for comment in forge.comments:
        comment["body"] = comment["body"] if isinstance(comment["body"], list) else "no marker"
    write(forge)
    assert forge.bodies()[-1] == BODY


def test_a_long_answer_is_not_read_to_its_end(forge: FakeForge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("avactl.forges.rest.MAX_RESPONSE_BYTES", 1 << 20)
    forge.add("x" * (2 << 20), "ada")
    with pytest.raises(ForgeError, match="larger than 1 MiB"):
        write(forge)


@pytest.mark.parametrize(
    "origin", ["http://localhost.example.invalid:80", "http://{host}:{other}", "https://{host}:{port}"]
)
def test_the_token_goes_to_no_other_origin(forge: FakeForge, origin: str) -> None:
    """Nor to another port or scheme of the same host: another program may listen there."""
    own = httpx.URL(forge.url)
    with serving(FakeGitHub()) as other:
        where = origin.format(host=own.host, port=own.port, other=httpx.URL(other.url).port)
        forge.faults = [answer(302, Location=f"{where}/x")]
        with pytest.raises(ForgeError, match=f"redirects to another origin, {re.escape(where)}"):
            write(forge)
        assert other.log == []


def test_deleted_while_it_is_edited(forge: FakeForge) -> None:
    forge.add(f"{MARK}\nold", name(forge))

    def delete(forge: FakeForge, method: str, target: str) -> None:
        if method in ("PATCH", "PUT"):
            forge.comments.clear()

    forge.faults = [delete] * 5
    write(forge)
    assert forge.bodies() == [BODY]


@pytest.mark.parametrize("status", [500, 502, 503, 0])
def test_a_server_that_fails_is_asked_again(forge: FakeForge, status: int) -> None:
    forge.faults = [answer(status), answer(status)]
    waits = write(forge)
    assert forge.bodies() == [BODY]
    assert waits.seconds == [1, 2]


def test_a_server_that_goes_on_failing(forge: FakeForge) -> None:
    forge.faults = [answer(502)] * 9
    with pytest.raises(ForgeError, match=r"answered 502 \(5 times\)"):
        write(forge)
    assert len(forge.log) == 5


def test_one_comment_though_the_answer_was_lost(forge: FakeForge) -> None:
    def written_and_lost(forge: FakeForge, method: str, target: str) -> Answer | None:
        if method == "POST":
            forge.add(BODY, name(forge))
            return 504, {}, {}
        return None

    forge.faults = [written_and_lost] * 2
    write(forge)
    assert forge.bodies() == [BODY]


def test_not_written_and_tried_again(forge: FakeForge) -> None:
    forge.faults = [lambda forge, method, target: None, answer(500)]
    write(forge)
    assert forge.bodies() == [BODY]


def test_a_limit_that_says_how_long(forge: FakeForge) -> None:
    forge.faults = [answer(429, Retry_After="7")]
    assert write(forge).seconds[0] == 7
    assert forge.bodies() == [BODY]


def test_a_limit_that_says_until_when(forge: FakeForge) -> None:
    prefix = "RateLimit" if forge.name == "gitlab" else "X_RateLimit"
    until = str(int(time.time()) + 30)
    forge.faults = [answer(429, **{f"{prefix}_Remaining": "0", f"{prefix}_Reset": until})]
    assert 20 < write(forge).seconds[0] <= 31


def test_github_s_limits_that_come_as_403() -> None:
    with serving(FakeGitHub()) as forge:
        forge.faults = [answer(403, {"message": "You have exceeded a secondary rate limit."})]
        assert write(forge).seconds[0] == 60
        forge.faults = [answer(403, Retry_After="3")]
        assert write(forge, BODY + "x").seconds[0] == 3


def test_a_limit_that_is_too_long_to_wait(forge: FakeForge) -> None:
    forge.faults = [answer(429, Retry_After="3000")]
    with pytest.raises(ForgeError, match="rate limited for another 3000 s") as caught:
        write(forge)
    assert "later" in caught.value.hint


def test_a_wrong_token_is_told_and_not_shown(forge: FakeForge) -> None:
    with pytest.raises(ForgeError, match="answered 401") as caught:
        write(forge, token="wr0ng" * 8)
    assert "TOKEN" in caught.value.hint
    assert "wr0ng" not in str(caught.value) + caught.value.hint


def test_a_pull_request_that_is_not_there(forge: FakeForge) -> None:
    forge.faults = [answer(404)]
    with pytest.raises(ForgeError, match="answered 404") as caught:
        write(forge)
    assert "exist" in caught.value.hint


@pytest.mark.parametrize("fork", [True, False])
def test_a_token_that_may_only_read(forge: FakeForge, fork: bool) -> None:
    forge.readable_only = True
    with pytest.raises(ReadOnlyError) as caught:
        write(forge, fork=fork)
    if not fork:
        assert caught.value.hint


def test_an_address_that_is_not_the_api_s(forge: FakeForge) -> None:
    forge.faults = [answer(200, b"<html>Sign in</html>")]
    with pytest.raises(ForgeError, match="text/html, not JSON"):
        write(forge)


def test_nobody_there() -> None:
    run = PipelineRun("github", "http://127.0.0.1:9", "acme/platform", 7, token=TOKEN)
    with pytest.raises(ForgeError, match="unreachable"):
        publish(connect(run, lambda seconds: None), MARK, BODY)
