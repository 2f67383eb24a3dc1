"""Python spec files: what they may do, and how their problems are told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

from avactl.compiler import Compilation, compile_tree
from avactl.diagnostics import Diagnostic
from avactl.diagnostics.machine import render_json, render_sarif
from avactl.diagnostics.text import render_one, render_text
from avactl.forges.github.annotations import render_annotations
from avactl.kinds import Workspace
from avactl.program import registry
from avactl.spec.repository.git_tree import GitTree
from avactl.spec.repository.tree import DirTree, MemoryTree

IMPORTS = """\
from avactl.kinds import Cluster, Metadata, Team, Workspace
from avactl.kinds.workspace import WorkspaceSpec
PLATFORM = [Cluster(metadata=Metadata(name="main")), Team(metadata=Metadata(name="vision"))]
"""


def compiled(files: dict[str, str], timeout: str = "20s") -> Compilation:
    tree = {path: textwrap.dedent(text) for path, text in files.items()}
    return compile_tree(MemoryTree({"avactl.yaml": f"python: {{allow: true, timeout: {timeout}}}", **tree}))


def only(result: Compilation) -> Diagnostic:
    assert len(result.diagnostics) == 1, result.diagnostics
    return result.diagnostics[0]


def error_of(source: str, timeout: str = "20s") -> Diagnostic:
    return only(compiled({"specs.py": source}, timeout))


def test_functions_and_loops_make_specs() -> None:
    source = IMPORTS + textwrap.dedent("""
        def specs():
            yield from PLATFORM
            for user in ("ada", "lin"):
                spec = WorkspaceSpec(user=user, image="registry.example.com/lab:1", gpus=0, idle_timeout="1h")
                yield Workspace(metadata=Metadata(name=user, team="vision"), spec=spec)
    """)
    result = compiled({"specs.py": source})
    assert result.diagnostics == ()
    workspaces = [item.name for item in result.program.of("Workspace")]
    assert workspaces == ["ada", "lin"]
    assert {m.name for m in result.manifests if m.kind == "StatefulSet"} == {"ada", "lin"}


def test_every_kind_and_its_parts_are_imported() -> None:
    modules = {kind: registry._KINDS[kind].module for kind in registry.kind_names()}
    lines = [f"from avactl.kinds import {kind}\nfrom {module} import {kind}Spec\n" for kind, module in modules.items()]
    assert compiled({"specs.py": f"{''.join(lines)}{IMPORTS}specs = PLATFORM\n"}).diagnostics == ()


def test_helpers_are_imported_and_their_lines_are_told() -> None:
    helper = """\
    from avactl.kinds import Metadata, Workspace
    from avactl.kinds.workspace import WorkspaceSpec

    def workspace(user, **more):
        return Workspace(
            metadata=Metadata(name=user, team="vision"),
            spec=WorkspaceSpec(
                user=user,
                image="registry.example.com/lab:1",
                port=99999,
                **more,
            ),
        )
    """
    source = f"from lib.helper import workspace\n{IMPORTS}specs = [*PLATFORM, workspace('ada')]\n"
    result = compiled({"specs.py": source, "lib/helper.py": helper})
    problem = only(result)
    assert (problem.code, problem.span.file, problem.span.line) == ("invalid-value", "lib/helper.py", 10)


def test_every_problem_of_a_file_is_told_at_its_argument() -> None:
    source = IMPORTS + textwrap.dedent("""
        specs = [
            *PLATFORM,
            Workspace(metadata=Metadata(name="Ada", team="vision"), spec=WorkspaceSpec(user="ada", image="a/b:1")),
            Workspace(
                metadata={"name": "lin", "team": "vision"},
                spec=WorkspaceSpec(user="lin", imgae="a/b:1", gpus="two"),
            ),
        ]
    """)
    result = compiled({"specs.py": source})
    lines = source.split("\n")
    told = {(d.code, lines[d.span.line - 1][d.span.column - 1 : d.span.end_column - 1]) for d in result.diagnostics}
    assert told == {("invalid-value", '"Ada"'), ("unknown-key", "imgae"), ("wrong-type", '"two"')}


def test_values_keep_python_and_yaml_names() -> None:
    source = IMPORTS + textwrap.dedent("""
        specs = [
            *PLATFORM,
            Workspace(
                metadata=Metadata(name="a", team="vision"),
                spec={"user": "a", "image": "a/b:1", "idle_timeout": "3h", "env": {"some_key": "x"}},
            ),
        ]
        specs.append(specs[-1].model_copy(update={"metadata": Metadata(name="b", team="vision")}))
    """)
    result = compiled({"specs.py": source})
    assert result.diagnostics == ()
    first, second = result.program.of_kind(Workspace)
    assert first.spec.idle_timeout == "3h"
    assert first.spec.env == {"some_key": "x"}
    assert second.spec == first.spec


def test_wrong_parts_can_still_be_read_by_the_file() -> None:
    source = IMPORTS + textwrap.dedent("""
        wrong = WorkspaceSpec(user="a", port="http")
        assert wrong.port == "http" and wrong.home == "/home/user" and wrong.image is None
        specs = [*PLATFORM, Workspace(metadata=Metadata(name="a", team="vision"), spec=wrong)]
    """)
    assert [d.code for d in compiled({"specs.py": source}).diagnostics] == ["wrong-type"]


def test_an_exception_is_told_at_the_files_own_line() -> None:
    source = "from json import loads\n\ndef make():\n    return [loads('{')]\n\nspecs = make\n"
    problem = error_of(source)
    assert problem.code == "python-error"
    assert problem.span[:3] == ("specs.py", 4, 13)
    assert problem.message.startswith("json.decoder.JSONDecodeError: Expecting property name")
    assert "specs.py:4:13" in render_one(problem, lambda path: source)


def test_a_syntax_error_is_told_at_its_place() -> None:
    problem = error_of("specs = [\n    1,\n    )\n]\n")
    assert (problem.code, problem.span.line) == ("python-error", 3)


def test_specs_before_an_exception_still_answer_references() -> None:
    files = {
        "specs.py": IMPORTS + "def specs():\n    yield from PLATFORM\n    raise ValueError('no more')\n",
        "lab.yaml": "apiVersion: avactl.dev/v1\nkind: Workspace\nmetadata: {name: a, team: vision}\n"
        "spec: {user: a, image: a/b}\n",
    }
    assert only(compiled(files)).message == "ValueError: no more"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("specs = 3", "`specs` must be a list of specs or a function that returns one, got int"),
        ("specs = [{'kind': 'Team'}]", "entry 0 is a dict"),
        (f"{IMPORTS}specs = [Team(metadata=Metadata(name='a'), spec={{1}})]", "a set is not plain data"),
        ("spec = []", "a Python spec file must define `specs`"),
        ("import sys\nspecs = []\nsys.exit(1)", "SystemExit: 1"),
        ("import os\nspecs = []\nos._exit(0)", "ended its process"),
    ],
)
def test_a_file_that_gives_no_specs_says_why(source: str, message: str) -> None:
    problem = error_of(source)
    assert problem.code == "python-error"
    assert message in problem.message


def test_a_module_of_helpers_is_no_problem() -> None:
    files = {
        "helper.py": "def double(x):\n    return 2 * x\n",
        "specs.py": IMPORTS + "import helper\nspecs = PLATFORM\n",
    }
    assert compiled(files).diagnostics == ()


def test_a_file_called_like_a_module_of_python_breaks_nothing() -> None:
    files = {"json.py": f"{IMPORTS}specs = PLATFORM\n", "enum.py": "raise SystemExit\n", "pydantic.py": "1 / 0\n"}
    assert compiled(files).diagnostics == ()


def test_dataclasses_and_annotations_work_in_a_spec_file() -> None:
    source = f"""\
    from __future__ import annotations
    from collections import namedtuple
    from dataclasses import dataclass, replace
    {IMPORTS.replace(chr(10), chr(10) + "    ")}
    Size = namedtuple("Size", "cpu memory")

    @dataclass(frozen=True)
    class Lab:
        name: str
        size: Size = Size("2", "8Gi")

        def spec(self) -> Workspace:
            spec = WorkspaceSpec(user=self.name, image="a/b:1", cpu=self.size.cpu, memory=self.size.memory)
            return Workspace(metadata=Metadata(name=self.name, team="vision"), spec=spec)

    specs = [*PLATFORM, Lab("ada").spec(), replace(Lab("lin"), size=Size("4", "16Gi")).spec()]
    """
    result = compiled({"specs.py": source})
    assert result.diagnostics == ()
    assert [item.spec.cpu for item in result.program.of_kind(Workspace)] == ["2", "4"]


def test_python_files_need_permission() -> None:
    result = compile_tree(MemoryTree({"specs.py": "specs = []\n"}))
    assert only(result).code == "python-not-allowed"


def test_a_file_without_an_end_is_stopped() -> None:
    problem = error_of("specs = []\nwhile True:\n    pass\n", timeout="1s")
    assert problem.code == "python-timeout"
    assert "1 s" in problem.message


def test_the_environment_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVACTL_TEST_SECRET", "tell-nobody")
    source = "import os\nspecs = []\nraise ValueError(sorted(os.environ))\n"
    assert error_of(source).message == "ValueError: []"
    parent = f"specs = []\nprint(open('/proc/{os.getpid()}/environ').read())\n"
    assert "is not allowed" in error_of(parent).message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("open('/etc/passwd').read()", "reading `/etc/passwd` is not allowed"),
        ("open('../../../../../../etc/passwd').read()", "is not allowed"),
        ("__import__('os').listdir('/')", "listing directories outside of the repository is not allowed"),
        ("open('new.txt', 'w')", "writing files is not allowed"),
        ("__import__('os').remove('avactl.yaml')", "writing files"),
        ("__import__('pathlib').Path('d').mkdir()", "writing files"),
        ("__import__('socket').create_connection(('127.0.0.1', 9))", "the network"),
        ("__import__('urllib.request').request.urlopen('http://127.0.0.1:9')", "the network"),
        ("__import__('subprocess').run(['true'])", "is not allowed"),
        ("__import__('os').system('true')", "other programs"),
        ("__import__('os').execv('/bin/true', ['true'])", "other programs"),
        ("[__import__('os').fork() for _ in range(1000)]", "other processes"),
        ("__import__('os').kill(__import__('os').getppid(), 0)", "other processes"),
        ("__import__('threading').Thread(target=print).start()", "can't start new thread"),
        ("__import__('ctypes').CDLL(None)", "importing `ctypes` is not allowed"),
        ("__import__('_posixsubprocess')", "importing `_posixsubprocess` is not allowed"),
        ("__import__('gc').get_objects()", "the interpreter's memory"),
        ("len([0] * 10**10)", "MemoryError"),
    ],
)
def test_a_file_can_only_compute(line: str, message: str) -> None:
    problem = error_of(f"specs = []\n{line}\n")
    assert problem.code == "python-error"
    assert message in problem.message
    assert problem.span.line == 2


def test_the_repositorys_own_files_can_be_read() -> None:
    files = {
        "teams.csv": "vision\nspeech\n",
        "specs.py": """\
        from avactl.kinds import Cluster, Metadata, Team
        names = open("teams.csv").read().split()
        specs = [Cluster(metadata=Metadata(name="main")), *(Team(metadata=Metadata(name=name)) for name in names)]
        """,
    }
    result = compiled(files)
    assert result.diagnostics == ()
    assert [team.name for team in result.program.of("Team")] == ["speech", "vision"]


def test_what_a_file_prints_is_not_its_answer(capfd: pytest.CaptureFixture[str]) -> None:
    source = IMPORTS + "import sys\nprint('{\"documents\": 1}')\nprint('x', file=sys.stderr)\nspecs = PLATFORM\n"
    assert compiled({"specs.py": source}).diagnostics == ()
    assert capfd.readouterr() == ("", "")


def test_without_an_interpreter_or_a_place_for_files_there_is_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "/nowhere/python" in error_of("specs = []").message


def test_sets_of_text_have_one_order() -> None:
    source = "specs = []\nraise ValueError(list({'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'}))\n"
    assert error_of(source).message == error_of(source).message


def test_a_git_revision_is_evaluated_without_a_checkout(tmp_path: Path) -> None:
    def git(*args: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *args], check=True)

    git("init", "-q")
    (tmp_path / "avactl.yaml").write_text("python: {allow: true}\n")
    (tmp_path / "names.py").write_text("NAMES = ['then']\n")
    (tmp_path / "specs.py").write_text(
        "from avactl.kinds import Cluster, Metadata\nfrom names import NAMES\n"
        "specs = [Cluster(metadata=Metadata(name=n)) for n in NAMES]\n"
    )
    git("add", ".")
    git("commit", "-q", "-m", "one")
    (tmp_path / "names.py").write_text("NAMES = ['now']\n")
    result = compile_tree(GitTree(tmp_path, "HEAD"))
    assert [item.name for item in result.program.of("Cluster")] == ["then"]


def test_the_example_of_the_docs_says_what_the_docs_say() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "python-specs.md").read_text(encoding="utf-8")
    source = text.partition("```python\n")[2].partition("```")[0]
    told = text.rpartition("```\nerror[")[2].partition("```")[0]
    path = "teams/vision/workspaces.py"
    platform = """\
    apiVersion: avactl.dev/v1
    kind: Cluster
    metadata: {name: main}
    ---
    apiVersion: avactl.dev/v1
    kind: Team
    metadata: {name: vision}
    spec: {workspace: {image: "registry.example.com/lab:1"}}
    """
    assert compiled({path: source, "platform.yaml": platform}).diagnostics == ()
    wrong = source.replace('"30m"', '"30"')
    problem = only(compiled({path: wrong, "platform.yaml": platform}))
    assert render_one(problem, lambda path: wrong) == f"error[{told}".rstrip()


def test_halves_of_surrogate_pairs() -> None:
    source = """
from avactl.kinds import Metadata, Team
from avactl.kinds.team import TeamSpec

specs = [
    Team(metadata=Metadata(name="a", labels={"\\ud800": "x", "y": "\\udfff"})),
    Team(metadata=Metadata(name="b\\ud800", annotations={"\\udc80": "\\ud83d"})),
    Team(metadata=Metadata(name="c"), spec={"\\ud800": "x"}),
]
raise ValueError("\\ud800 in a message")
"""
    result = compiled({"x.py": source})
    assert result.diagnostics
    assert not [d for d in result.diagnostics if d.code == "internal-error"]
    for print_as in (lambda d: render_text(d, lambda _: source), render_json, render_sarif, render_annotations):
        print_as(result.diagnostics).encode()


def test_a_deep_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = b'{"a":' * 500 + b"1" + b"}" * 500
    answer = b'{"documents": [{"value": ' + deep + b', "places": []}], "error": null}'
    monkeypatch.setattr("avactl.spec.python_files.load._evaluate_file", lambda *_: answer)
    assert error_of("specs = []").message.endswith("its output is malformed")


def test_native_code_is_named_where_it_is_imported(tmp_path: Path) -> None:
    origin = next(Path(sysconfig.get_path("stdlib"), "lib-dynload").glob("_json*.so"))
    (tmp_path / "fast").mkdir()
    (tmp_path / "fast" / "__init__.py").write_text("try:\n    from fast import _json\nexcept ImportError:\n    pass\n")
    shutil.copy(origin, tmp_path / "fast")
    (tmp_path / "avactl.yaml").write_text("python: {allow: true}\n")
    (tmp_path / "specs.py").write_text("specs = []\nimport fast\n")
    problem = only(compile_tree(DirTree(tmp_path)))
    assert (problem.code, problem.span[:2]) == ("python-error", ("fast/__init__.py", 2))
    assert problem.message == "importing `fast` is not allowed in a spec file: it loads native code (`fast._json`)"
