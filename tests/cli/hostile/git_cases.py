"""Repositories that attack through git: its settings, references, objects and attributes."""

from __future__ import annotations

import subprocess

from tests.cli.hostile.case import GIT, Hostile, Site
from tests.diff.sides import HEAD, job

SETTINGS = """[core]
	fsmonitor = touch RAN #
	sshCommand = touch RAN #
	pager = touch RAN #
	editor = touch RAN #
	hooksPath = specs/hooks
	attributesFile = specs/attributes
[alias]
	rev-parse = !touch RAN
	ls-tree = !touch RAN
	cat-file = !touch RAN
	status = !touch RAN
[diff]
	external = touch RAN #
[diff "evil"]
	textconv = touch RAN #
	command = touch RAN #
[filter "evil"]
	clean = touch RAN #
	smudge = touch RAN #
	process = touch RAN #
	required = true
[merge "evil"]
	driver = touch RAN #
[credential]
	helper = !touch RAN
[gpg]
	program = touch RAN #
[log]
	showSignature = true
[url "ext::touch% RAN%20"]
	insteadOf = https://
[protocol "ext"]
	allow = always
[submodule]
	recurse = true
[status]
	submoduleSummary = true
"""
HOOK = "#!/bin/sh\ntouch RAN\n"
HOOKS = {
    f"hooks/{name}": HOOK
    for name in ("pre-commit", "commit-msg", "post-commit", "reference-transaction", "post-index-change", "pre-push")
}
ATTRIBUTES = "* filter=evil diff=evil merge=evil text eol=crlf ident\n"
REVISIONS = ("revisions", "comment of revisions")


def submodule(site: Site, path: str, settings: str) -> None:
    """Add a submodule, and a directory in its place that git takes for its checkout."""
    site.add({"/.gitmodules": f'[submodule "x"]\n\tpath = {path}\n{settings}'})
    site.git("update-index", "--add", "--cacheinfo", f"160000,{site.git('rev-parse', 'HEAD')},{path}")


def submodule_checkout(site: Site) -> None:
    """Submodules are checked out with settings of their own, which `git status` of the whole reads."""
    inner = site.specs / "inner"
    subprocess.run(["git", "init", "-q", "-b", "main", str(inner)], check=True)
    (inner / "x.txt").write_text("x")
    for arguments in (["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]):
        subprocess.run(["git", *arguments], cwd=inner, check=True)
    (inner / ".git/config").write_text(site.filled(SETTINGS))


def included(site: Site) -> None:
    """As monorepos do: the clone's settings include a file that the branch supplies."""
    site.git("config", "include.path", "../specs/shared.gitconfig")


def make_executable(site: Site) -> None:
    for name in HOOKS:
        (site.specs / name).chmod(0o755)


def elsewhere(site: Site) -> None:
    """A `.git` file in the specs, as of an archive that was unpacked."""
    subprocess.run(["git", "clone", "-q", "--bare", str(site.root), str(site.specs / "store")], check=True)
    (site.specs / "store/config").write_text("[core]\n\tbare = false\n\tworktree = OUTSIDE\n" + SETTINGS)
    site.add({"store/config": (site.specs / "store/config").read_text(), ".git": "gitdir: store\n"})


def replaced(site: Site) -> None:
    """Replace the base commit by one without specs, so that the diff shows nothing that was taken away."""
    empty = site.git("hash-object", "-t", "tree", "-w", "/dev/null")
    site.git("update-ref", f"refs/replace/{site.git('rev-parse', 'main')}", site.git("commit-tree", "-m", "x", empty))


def option_branches(site: Site) -> None:
    for name in ("--output=x", "--upload-pack=x", "-x", "--help"):
        site.git("update-ref", f"refs/heads/{name}", "HEAD")


def odd_branches(site: Site) -> None:
    """Names that no git writes, and names that it does."""
    for name in ("<img/src=x>`@everyone`", "main\u202e", "$(touch RAN)", "`touch RAN`", ";touch${IFS}RAN"):
        path = site.root / ".git/refs/heads" / name.replace("RAN", "x")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(site.git("rev-parse", "HEAD") + "\n")


def message(site: Site) -> None:
    """A commit with a message and an author that steer terminals and pipelines."""
    evil = "\x1b[2J::error::x\n::set-output name=x::y\n##[error]x\n##vso[task.complete]\n<img src=x> @everyone"
    site.git("-c", f"user.name={evil[:14]}", "commit", "-q", "--amend", "--reset-author", "-m", evil)


def store(site: Site, kind: str, data: bytes) -> str:
    """Write an object that git itself would not."""
    command = ["git", "hash-object", "-w", "-t", kind, "--literally", "--stdin"]
    done = subprocess.run(command, input=data, cwd=site.root, check=True, capture_output=True)
    return done.stdout.decode().strip()


def bomb(site: Site) -> None:
    """Ten directories in each of ten directories, and so on: ten million files in nine objects."""
    mode, name = b"100644", store(site, "blob", b"x")
    for _ in range(7):
        data = b"".join(mode + b" %b%d\0" % (b"d" * 200, n) + bytes.fromhex(name) for n in range(10))
        mode, name = b"40000", store(site, "tree", data)
    top = store(site, "tree", b"40000 specs\0" + bytes.fromhex(name))
    site.git("update-ref", "refs/heads/topic", site.git("commit-tree", "-p", "main", "-m", "bomb", top))


def tree(*names: bytes) -> Hostile:
    """A commit with a tree that no checkout can have."""

    def after(site: Site) -> None:
        blobs = ((name, store(site, "blob", b"%d" % number)) for number, name in enumerate(names))
        inner = store(site, "tree", b"".join(b"100644 %b\0%b" % (name, bytes.fromhex(blob)) for name, blob in blobs))
        top = store(site, "tree", b"40000 specs\0" + bytes.fromhex(inner))
        site.git("update-ref", "refs/heads/topic", site.git("commit-tree", "-p", "main", "-m", "tree", top))

    return Hostile(f"a tree with {names}", told="malformed tree", code=3, after=after, commands=REVISIONS)


CASES = [
    *(
        Hostile(
            f"bare repository, remote {remote.partition(':')[0]}",
            code=0,
            commands=GIT,
            after=lambda site, remote=remote: site.plant_bare_repository(site.filled(remote)),  # type: ignore[misc]
        )
        for remote in ("ssh://git@example.com/x.git", "ext::touch RAN", "git://example.com/x.git", "-uRAN")
    ),
    Hostile("programs in the clone's settings", code=0, after=lambda site: site.use_drivers(), commands=GIT),
    Hostile(
        "a partial clone",
        {"jobs.yaml": HEAD + job(retries=9)},
        code=3,
        told="is in a partial clone",
        commands=("diff", "revisions"),
        after=lambda site: site.become_partial(site.filled("ext::touch RAN")),
    ),
    Hostile(
        "settings that the branch supplies",
        {"shared.gitconfig": SETTINGS, "attributes": ATTRIBUTES, "/.gitattributes": ATTRIBUTES},
        code=0,
        after=included,
        commands=("validate", "diff", "revisions", "plan"),
    ),
    Hostile(
        "hooks that the branch supplies",
        HOOKS,
        code=0,
        build=make_executable,
        commands=GIT,
        after=lambda site: site.git("config", "core.hooksPath", "specs/hooks"),
    ),
    Hostile("attributes", {".gitattributes": ATTRIBUTES, "/.gitattributes": ATTRIBUTES}, code=0, commands=GIT),
    Hostile(
        "large file storage",
        {
            "/.lfsconfig": "[lfs]\n\turl = ext::touch RAN\n[core]\n\tsshCommand = touch RAN\n",
            ".gitattributes": "*.yaml filter=lfs diff=lfs merge=lfs -text\n",
            "x.yaml": f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12\n",
        },
        told="not-a-spec",
    ),
    Hostile(
        "a submodule over ext",
        code=0,
        commands=GIT,
        build=lambda site: submodule(site, "specs/inner", "\turl = ext::touch% RAN\n\tupdate = !touch RAN\n"),
    ),
    Hostile(
        "a submodule with an option as its address",
        code=0,
        commands=GIT,
        build=lambda site: submodule(
            site, "specs/inner", "\turl = --upload-pack=touch RAN\n\tfetchRecurseSubmodules = true\n"
        ),
    ),
    Hostile("a submodule with settings of its own", code=0, build=submodule_checkout, commands=GIT),
    Hostile("a .git file", code=0, after=elsewhere, commands=("diff",)),
    Hostile(
        "a replaced base",
        {"jobs.yaml": HEAD + job(retries=9)},
        told="retries 7 → 9",
        code=0,
        after=replaced,
        commands=("diff", "comment of revisions"),
    ),
    Hostile("branches named like options", code=0, after=option_branches, commands=GIT),
    Hostile(
        "options in place of revisions",
        told="unknown revision",
        code=3,
        after=option_branches,
        commands=("option as revision",),
    ),
    Hostile(
        "branches with odd names", told="unknown revision", code=3, after=odd_branches, commands=("option as revision",)
    ),
    Hostile("the message of a commit", {"jobs.yaml": HEAD + job(retries=9)}, code=0, after=message, commands=GIT),
    Hostile("a tree that is a bomb", told="git wrote more than", code=3, after=bomb, commands=("revisions",)),
    tree(b".."),
    tree(b"../../outside/new"),
    tree(b".git"),
    tree(b"a.yaml", b"a.yaml"),
]
