"""Forgejo with Forgejo Actions: Gitea's API and workflows, and variables of its own beside those of both others.

Sources: forgejo.org/docs "Forgejo Actions", "API Usage"; the runner's `act/runner/run_context.go` for the variables.
"""

from __future__ import annotations

from avactl.forges import gitea
from avactl.forges.forge import Environ, Forge, PipelineOptions, PipelineRun, actions_run

_TOKENS = ("FORGEJO_TOKEN",)


def _api(env: Environ, host: str) -> str:
    given = env.get("FORGEJO_API_URL") or (env.get("GITHUB_API_URL") if env.get("FORGEJO_ACTIONS") else "")
    return (given or (f"https://{host}/api/v1" if host else "")).rstrip("/")


def _run(env: Environ) -> PipelineRun:
    """Return the run. Its URL has the number in the repository, and nothing shows its summary."""
    run = actions_run(env, FORGE.name, _api(env, ""), _TOKENS, "GITHUB_RUN_NUMBER", "#artifacts")
    return run._replace(summary=None)


def _pipelines(options: PipelineOptions) -> dict[str, str]:
    """Return Gitea's workflows, for the label that Forgejo's runners have by default."""
    from avactl.forges.gitea.pipelines import WorkflowDialect, pipelines

    return pipelines(options, WorkflowDialect(".forgejo", _TOKENS[0], "docker"))


FORGE: Forge = gitea.FORGE._replace(
    name="forgejo",
    title="Forgejo",
    marker="FORGEJO_ACTIONS",
    hosts=("forgejo", "codeberg"),
    api=_api,
    api_default="`https://HOST/api/v1` of Forgejo",
    tokens=_TOKENS,
    token_hint="`env: {FORGEJO_TOKEN: ${{ secrets.FORGEJO_TOKEN }}}` passes the job's own token",  # noqa: S106
    run=_run,
    pipeline_paths=(".forgejo/",),
    pipelines=_pipelines,
    push_rights="a token with the scope `write:repository`",
)
