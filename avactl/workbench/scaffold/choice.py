"""Choices of `avactl init`, and the files that depend on them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from avactl.base.installation import InstallationOrigin, installed_from, requirement_text
from avactl.forges import FORGES, find_forge, forge_names
from avactl.forges.forge import Forge, PipelineOptions
from avactl.workbench.scaffold.environments import in_environments

ENGINES = {
    "pulumi": "`avactl up` in CI",
    "flux": "Flux follows rendered files",
    "argocd": "Argo CD follows rendered files",
    "builtin": "`avactl reconcile` follows the specs",
    "none": "you apply rendered files",
}
"""Engines and what applies the objects."""
BOTH, NONE = "both", "none"
FORGE_CHOICES = (*forge_names(), BOTH, NONE)
"""Values of `--forge`; `both` stands for the forges whose pipelines are written by default."""
_IS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?").fullmatch
_PULUMI_ONLY = frozenset(
    (
        "charset-normalizer",
        "debugpy",
        "dill",
        "googleapis-common-protos",
        "opentelemetry-api",
        "opentelemetry-exporter-otlp-common",
        "opentelemetry-exporter-otlp-proto-common",
        "opentelemetry-exporter-otlp-proto-grpc",
        "opentelemetry-instrumentation",
        "opentelemetry-instrumentation-grpc",
        "opentelemetry-proto",
        "opentelemetry-sdk",
        "opentelemetry-semantic-conventions",
        "packaging",
        "parver",
        "pulumi",
        "pulumi-kubernetes",
        "requests",
        "semver",
        "urllib3",
        "wrapt",
    )
)
"""Packages of the lock that only the extra `pulumi` needs."""
_PLACEHOLDER_URL = "https://REPLACE.example.com/"
_NEXT_STEPS = {
    "pulumi": "CI applies the affected stacks once `PULUMI_BACKEND_URL`, the Pulumi state backend, is set. `stacks/` "
    "contains the\nPulumi program.",
    "flux": "CI commits the rendered objects to the branch `rendered`, which Flux follows: set `spec.reconcile."
    "repository` of the\nclusters, and bootstrap Flux once.",
    "argocd": "CI commits the rendered objects to the branch `rendered`, which Argo CD follows: set `spec.reconcile."
    "repository` of\nthe clusters, and bootstrap it once.",
    "builtin": "`avactl reconcile --watch` follows the branch `main`; with `spec.reconcile.repository` and "
    "`images.avactl` of the\ncluster it runs in the cluster.",
    "none": "Apply them with `avactl render -o out && kubectl apply --server-side -R -f out/CLUSTER`.",
}


class ChoiceError(ValueError):
    """A choice that does not exist."""


@dataclass(frozen=True, slots=True)
class ScaffoldChoice:
    """Choices that decide which files are written. Raises ChoiceError if a value is invalid."""

    engine: str = "pulumi"
    forge: str = BOTH
    clusters: tuple[str, ...] = ("lab",)
    environments: tuple[str, ...] = ()
    """Environments, each with all clusters; empty for a repository without them."""
    source: InstallationOrigin = field(default_factory=InstallationOrigin)
    """Where pipelines get avactl; empty for a URL to fill in."""

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ChoiceError(f"--engine {self.engine} must be one of {', '.join(ENGINES)}")
        if self.forge not in FORGE_CHOICES:
            raise ChoiceError(f"--forge {self.forge} must be one of {', '.join(FORGE_CHOICES)}")
        for forge in self.forges():
            if forge.no_pipelines:
                raise ChoiceError(f"{forge.no_pipelines}; `--forge none` writes the other files")
        for name in self.clusters:
            if not _IS_NAME(name):
                raise ChoiceError(f"`{name}` is not a cluster name: use lowercase letters, digits and `-`")
        if not self.clusters or len(set(self.clusters)) < len(self.clusters):
            raise ChoiceError("--clusters must be different names, separated by commas")

        for name in self.environments:
            if not _IS_NAME(name):
                raise ChoiceError(f"`{name}` is not the name of an environment: use lowercase letters, digits and `-`")
        if len(set(self.environments)) < len(self.environments):
            raise ChoiceError("--environments must be different names, separated by commas")

    def forges(self) -> list[Forge]:
        """Return the forges whose pipelines are written."""
        if self.forge == BOTH:
            return [forge for forge in FORGES if forge.by_default]
        return [] if self.forge == NONE else [find_forge(self.forge)]


def source_of(url: str) -> InstallationOrigin:
    """Return the source that pipelines install from: `--from`, else that of the running avactl if they can reach it.

    A local wheel gives its hash, and a URL to fill in. Raises ChoiceError, for a URL without a hash or commit too.
    """
    given = url or installed_from().url
    if not given:
        return InstallationOrigin()
    if given.startswith(("git+https://", "git+ssh://")):
        if url and not re.search(r"@[0-9a-f]{40}$", given):
            raise ChoiceError(f"--from {given} must end with @ and a commit (40 hexadecimal digits)")
        return InstallationOrigin(given)
    if given.startswith("https://"):
        address, _, digest = given.partition("#sha256=")
        digest = digest or ("" if url else installed_from().sha256)
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise ChoiceError(f"--from {address} must end with #sha256= and the hash of the file")
        return InstallationOrigin(address, digest)
    path = Path(url2pathname(urlsplit(given).path)) if given.startswith("file://") else Path(given)
    if path.suffix != ".whl" or not path.is_file():
        if url:
            raise ChoiceError(f"--from {url} must be a wheel, https://…#sha256=HASH or git+https://…@COMMIT")
        return InstallationOrigin()
    return InstallationOrigin(_PLACEHOLDER_URL + path.name, hashlib.sha256(path.read_bytes()).hexdigest())


def requirement_line(choice: ScaffoldChoice, version: str) -> str:
    """Return avactl's line of requirements.txt: a file by hash or a commit, never a name alone.

    Without a source it names a URL that does not exist, and pip fails.
    """
    extras = ("ci", "cluster", "pulumi") if choice.engine == "pulumi" else ("ci", "cluster")
    source = choice.source
    if not source.url:
        source = InstallationOrigin(f"{_PLACEHOLDER_URL}avactl-{version}-py3-none-any.whl", "0" * 64)
    line = requirement_text(extras, source)
    return f"{line} \\\n    --hash=sha256:{source.sha256}" if source.sha256 else line


def adapt_template(files: dict[str, bytes], choice: ScaffoldChoice, pulumi: str) -> dict[str, bytes]:
    """Return the files of the template that a choice needs, adapted to it, and the pipelines of its forges.

    `pulumi`: version of the Pulumi engine.
    """
    chosen = {
        path: data.decode()
        for path, data in files.items()
        if choice.engine == "pulumi" or path not in ("stacks/__main__.py", "stacks/Pulumi.yaml")
    }
    cluster = chosen.pop("clusters/lab.yaml")
    for name in choice.clusters:
        chosen[f"clusters/{name}.yaml"] = _adapt_cluster(cluster, name, choice)
    if len(choice.clusters) > 1 and not choice.environments:
        for path in ("teams/vision/hello.yaml", "teams/vision/team.yaml"):
            chosen[path] = _select_cluster(chosen[path], choice.clusters[0])
    chosen["README.md"] = chosen["README.md"].replace("APPLIED", _NEXT_STEPS[choice.engine])
    if choice.environments:
        chosen = in_environments(chosen, choice.environments)
    options = PipelineOptions(
        choice.engine == "pulumi", choice.engine in ("flux", "argocd"), choice.environments, pulumi
    )
    for forge in choice.forges():
        chosen |= forge.write_pipelines(options)
    if choice.engine != "pulumi":
        chosen["stacks/requirements.lock"] = _without_pulumi(chosen["stacks/requirements.lock"])
        chosen = {path.removeprefix("stacks/"): _at_root(text) for path, text in chosen.items()}
    return {path: text.encode() for path, text in chosen.items()}


def _adapt_cluster(text: str, name: str, choice: ScaffoldChoice) -> str:
    several = len(choice.clusters) > 1
    text = text.replace("{name: lab}", f"{{name: {name}}}").replace("cluster: lab", f"cluster: {name}")
    if several:
        text = text.replace("{name: a10}", f"{{name: {name}-a10}}")
    mode = {"none": "files"}.get(choice.engine, choice.engine)
    if mode == "pulumi":
        return text
    follow = "" if mode == "files" else "   # with `repository`, avactl compiles what lets the engine follow it"
    version = '  kubernetesVersion: "1.36"\n'
    return text.replace(version, f"{version}  reconcile: {{mode: {mode}}}{follow}\n")


def _select_cluster(text: str, cluster: str) -> str:
    return text.replace("spec:\n  image:", f"spec:\n  cluster: {cluster}\n  image:").replace(
        "metadata: {name: gpus, team: vision}\nspec:\n",
        f"metadata: {{name: gpus, team: vision}}\nspec:\n  cluster: {cluster}\n",
    )


def _without_pulumi(lock: str) -> str:
    blocks = re.split(r"\n(?=\S)", lock.strip())
    return "\n".join(block for block in blocks if block.partition("==")[0] not in _PULUMI_ONLY) + "\n"


def _at_root(text: str) -> str:
    return text.replace("stacks/requirements.", "requirements.").replace(" Changing it affects all stacks.", "")
