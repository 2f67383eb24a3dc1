"""Repositories with Python specs and policies that reach for the machine, and with modules of known names."""

from __future__ import annotations

from tests.cli.hostile.case import GIT, Hostile, Site
from tests.diff.sides import HEAD, job

POLICY = "from avactl.policy import policy, problem\n\n@policy('evil')\ndef evil(spec):\n"


def spec(name: str, text: str, told: str = "python-error", code: int = 1) -> Hostile:
    return Hostile(f"Python: {name}", {"evil.py": f"specs = []\n{text}\n", **_briefly(told)}, told, code)


def _briefly(told: str) -> dict[str, str | bytes]:
    """Settings of a file that never ends: the others have time also on a busy machine."""
    return {"avactl.yaml": "python: {allow: true, timeout: 1s}\n"} if "timeout" in told else {}


def policy(name: str, text: str, told: str = "policy-error", file: str = "policies/evil.py") -> Hostile:
    return Hostile(f"policy: {name}", {file: text, **_briefly(told)}, told)


def schema(name: str, text: str, told: str = "policy-error") -> Hostile:
    return policy(name, f"policy: evil\nschema: {text}\n", told, "policies/evil.yaml")


def executables(site: Site) -> None:
    """Programs with the names of those that avactl starts, where a search of the current directory finds them."""
    for name in ("git", "python", "python3", "sh", "nvidia-smi", "pulumi"):
        site.add({f"/{name}": "#!/bin/sh\ntouch RAN\n", f"{name}": "#!/bin/sh\ntouch RAN\n"})
        (site.root / name).chmod(0o755)
        (site.specs / name).chmod(0o755)


MODULES = {
    f"{place}{name}.py": "from pathlib import Path\nPath('RAN').touch()\n"
    for place in ("/", "")
    for name in (
        "sitecustomize",
        "usercustomize",
        "yaml",
        "orjson",
        "json",
        "os",
        "avactl",
        "pydantic",
        "typer",
        "httpx",
        "regex",
        "conftest",
        "setup",
        "__main__",
    )
}

CASES = [
    spec("a token of the environment", "import os\nraise ValueError(sorted(os.environ.items()))", "ValueError: []"),
    spec("environment of the parent", "import os\nraise ValueError(open(f'/proc/{os.getppid()}/environ').read())"),
    spec("a file outside", "raise ValueError(open('OUTSIDE/secret').read())"),
    spec("a file outside, by a relative path", "raise ValueError(open('../../../../../../OUTSIDE/secret').read())"),
    spec("the repository's settings", "raise ValueError(open('.git/config').read())"),
    spec("a file written outside", "open('OUTSIDE/new', 'w')"),
    spec("a file written here", "open('RAN', 'w'); open('new', 'w')"),
    spec("a program", "import subprocess\nsubprocess.run(['touch', 'RAN'])"),
    spec("a shell", "import os\nos.system('touch RAN')"),
    spec("a replaced process", "import os\nos.execv('/bin/touch', ['touch', 'RAN'])"),
    spec("a socket", "import socket\nsocket.create_connection(('127.0.0.1', 80))"),
    spec("forks", "import os\nwhile True: os.fork()"),
    spec("threads", "import threading\nwhile True: threading.Thread(target=lambda: None).start()"),
    spec("no end", "while True: pass", "python-timeout"),
    spec("memory", "x = []\nwhile True: x.append(bytes(2**28))"),
    spec("an end", "import os\nos._exit(0)"),
    spec("native code", "import ctypes\nctypes.CDLL(None).system(b'touch RAN')"),
    spec("a message for pipelines", "raise ValueError('\\n::error::x\\n##[error]x\\x1b[2J ##vso[task.complete]')"),
    spec("output", "import sys\nprint('::error::x')\nsys.stderr.write('\\x1b[2J')\nraise ValueError", "python-error"),
    spec("an answer without an end", "def specs():\n    while True: yield {'kind': 'x' * 10**6}", "python-"),
    spec("a regular expression", "import re\nre.match('(a+)+$', 'a' * 99 + 'b')", "python-timeout"),
    Hostile("Python: modules of known names", MODULES, "", 0, commands=GIT),
    Hostile("Python: programs of known names", code=0, build=executables, commands=GIT),
    policy("a token", POLICY + "    import os\n    return [str(sorted(os.environ.items()))]", "error[policy/evil]: []"),
    policy("a file outside", POLICY + "    return [open('OUTSIDE/secret').read()]"),
    policy("a program", POLICY + "    import os\n    os.system('touch RAN')"),
    policy("no end", POLICY + "    while True: pass", "policy-timeout"),
    policy(
        "text for pipelines",
        POLICY + "    return ['\\n::error::x\\x1b[2J', problem('##[error]', help='##vso[x]')]",
        "policy/evil",
    ),
    schema("a reference to a file", "{$ref: 'file://OUTSIDE/secret.yaml'}"),
    schema("a reference to a server", "{$ref: 'http://127.0.0.1:9/x'}"),
    schema("a reference to itself", "{$ref: '#'}"),
    Hostile(
        "policy: a pattern that backtracks",
        {
            "policies/evil.yaml": "policy: evil\nschema: {properties: {metadata: "
            "{properties: {name: {pattern: '^([a-z]+)+!$'}}}}}\n",
            "evil.yaml": HEAD + job("a" * 50),
            **_briefly("timeout"),
        },
        "policy-timeout",
    ),
]
