"""A repository with a branch by somebody who wants to run programs on the machine of its reviewer."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.diff.repository import Repository
from tests.diff.sides import HEAD, PLATFORM, job


class HostileRepository(Repository):
    """Specs in `specs/`; the checked out branch `topic` changes one job, and `main` is what it is compared with.

    Each program that runs although it must not leaves a file in the directory `canaries`, with its own name.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.canaries = root.parent / "canaries"
        self.canaries.mkdir()
        self.specs = root / "specs"
        self.commit({"specs/avactl.yaml": "{}\n", "specs/platform.yaml": PLATFORM, "specs/jobs.yaml": HEAD + job()})
        self.git("switch", "-q", "-c", "topic")
        self.commit({"specs/jobs.yaml": HEAD + job(retries=7)})

    @property
    def ran(self) -> list[str]:
        """Names of the programs that ran."""
        return sorted(path.name for path in self.canaries.iterdir())

    def program(self, name: str) -> str:
        """A shell command that leaves a canary; arguments that git adds do no harm."""
        return f"touch '{self.canaries / name}' #"

    def plant_bare_repository(self, remote: str) -> None:
        """Commit a directory `specs` that git takes for a bare repository, with a configuration of its own.

        Its HEAD is an object that only `remote` has: whoever reads it connects to the remote.
        """
        program = self.program
        settings = f"""[core]
	repositoryformatversion = 1
	bare = false
	worktree = ..
	fsmonitor = "{program("fsmonitor")}"
	sshCommand = "{program("ssh")}"
	gitProxy = "{program("proxy")}"
	pager = "{program("pager")}"
	alternateRefsCommand = "{program("alternates")}"
	hooksPath = hooks
[extensions]
	partialClone = origin
[remote "origin"]
	url = "{remote}"
	promisor = true
	uploadpack = "{program("uploadpack")}"
[protocol]
	allow = always
[protocol "ext"]
	allow = always
[credential]
	helper = "!{program("credential")}"
[gpg]
	program = "{program("gpg")}"
[diff]
	external = "{program("external")}"
[filter "evil"]
	clean = "{program("clean")}"
	required = true
"""
        hook = f"#!/bin/sh\n{program('hook')}\n"
        files = {
            "specs/HEAD": "1" * 40 + "\n",
            "specs/config": settings,
            "specs/objects/info/empty": "",
            "specs/refs/heads/empty": "",
            "specs/hooks/reference-transaction": hook,
            "specs/.gitattributes": "* filter=evil diff=evil\n",
        }
        self.commit(files)

    def use_drivers(self) -> None:
        """Name programs in the user's own settings, and let the branch's attributes choose them for every file."""
        self.commit(
            {"specs/.gitattributes": "* filter=evil diff=evil\n", ".gitattributes": "* filter=evil diff=evil\n"}
        )
        hooks = self.root.parent / "hooks"
        hooks.mkdir()
        for name in ("reference-transaction", "post-index-change", "pre-push", "post-checkout", "pre-auto-gc"):
            (hooks / name).write_text(f"#!/bin/sh\n{self.program(f'hook-{name}')}\n")
            (hooks / name).chmod(0o755)
        for key, value in (
            ("core.hooksPath", str(hooks)),
            ("core.fsmonitor", self.program("fsmonitor")),
            ("core.pager", self.program("pager")),
            ("diff.external", self.program("external")),
            ("diff.evil.textconv", self.program("textconv")),
            ("diff.evil.command", self.program("command")),
            ("filter.evil.clean", self.program("clean")),
            ("filter.evil.smudge", self.program("smudge")),
            ("filter.evil.process", self.program("process")),
            ("filter.evil.required", "true"),
            ("gpg.program", self.program("gpg")),
            ("log.showSignature", "true"),
        ):
            self.git("config", key, value)
        # As a checkout does that has just been made: git cannot tell by the index whether contents changed.
        for path in self.specs.rglob("*"):
            if path.is_file():
                path.touch()

    def become_partial(self, remote: str) -> None:
        """Become a partial clone, which lacks a file of `main`; `remote` is where git would fetch it."""
        whole = self.root.rename(self.root.with_name("whole"))
        for key in ("uploadpack.allowFilter", "uploadpack.allowAnySHA1InWant"):
            subprocess.run(["git", "-C", str(whole), "config", key, "true"], check=True)
        clone = ["git", "clone", "-q", "--filter=blob:none", "--branch=topic", whole.as_uri(), str(self.root)]
        subprocess.run(clone, check=True)
        self.git("branch", "main", "origin/main")
        for key, value in (
            ("remote.origin.url", remote),
            ("protocol.allow", "always"),
            ("protocol.ext.allow", "always"),
            ("core.sshCommand", self.program("ssh")),
            ("core.gitProxy", self.program("proxy")),
            ("remote.origin.uploadpack", self.program("uploadpack")),
        ):
            self.git("config", key, value)
