"""The `avactl` command as a typer app. Each command is a module of one of the packages, imported on use."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from avactl.cli.common import EXIT_CODES, hinted
from avactl.diagnostics.suggest import closest

COMMANDS = {
    "validate": "Check specs and report every problem with its location and remedy.",
    "render": "Write the compiled Kubernetes objects, one file each.",
    "diff": "Show what a change between two revisions does.",
    "ci": "Summarize a change in a pull request comment, from a CI pipeline.",
    "graph": "Draw teams, quotas, pools and workloads (SVG).",
    "explain": "Explain a kind, a field or a diagnostic: meaning, type, unit, default.",
    "set": "Change values of a spec in place; comments and order are preserved.",
    "schema": "Print or write the JSON Schemas of the kinds, for editors.",
    "topo": "Import a MachineType from `nvidia-smi topo -m`, or check a machine against its type.",
    "secrets": "List the Secrets that the specs need, with their keys.",
    "init": "Create a new spec repository that compiles.",
    "import": "Import manifests, a cluster or Slurm scripts as specs.",
    "preview": "Show the changes that `up` would make.",
    "up": "Apply a stack with the Pulumi engine.",
    "stacks": "List the Pulumi stacks, or those that a change affects.",
    "reconcile": "Reconcile a cluster with git: apply, wait, prune, revert drift.",
    "plan": "Predict whether a change will run, and what it costs.",
    "local": "Run a job as processes on this machine.",
    "dataset": "Snapshot, verify, compare, list and pack the data of datasets.",
    "doctor": "Check a cluster against the specs: what is missing, and the remedy.",
    "snapshot": "Capture the state of a cluster for `plan`: read-only, no secrets.",
    "why": "Explain why a pod or job is pending.",
    "run": "Run a job from a spec file: commit it on a branch, or start it at once.",
    "jobs": "Show training jobs with their progress.",
    "logs": "Print the logs of a training job, all pods together.",
    "wait": "Wait until a training job has ended.",
    "dashboard": "Show training jobs as a web page on this machine.",
    "top": "Show live teams, pools and jobs of a cluster.",
    "pool": "Draw a pool and the jobs on its GPUs (SVG).",
    "defrag": "Find the fewest pod moves that let a job start.",
    "scheduler": "Run the scheduler in the cluster.",
    "cache": "Run the cache daemon, or show what cache tiers hold.",
    "serving": "Run the daemon of rollouts, or show the rollouts of services.",
    "delivery": "Run the daemon of pipelines, show pipelines, and publish models.",
    "models": "List versions of models, their lineage, and where they are served.",
    "promote": "Serve a version of a model: commit it to the specs.",
    "rollback": "Serve the version of a model from before: commit it to the specs.",
    "elastic": "Run the master of an elastic job.",
}
"""Commands and their one-line help in `avactl --help`.

The function is `NAME` (`set_` for `set`) of the module `NAME` in one of the `PACKAGES`; a `typer.Typer` has its
own commands.
"""
PACKAGES = {
    "specs": ("validate", "render", "graph", "explain", "set", "schema", "secrets", "init", "import"),
    "changes": ("diff", "ci", "preview", "up", "stacks", "plan"),
    "dataset": ("dataset",),
    "local": ("local",),
    "models": ("models", "promote", "rollback"),
    "jobs": ("run", "jobs", "logs", "wait", "dashboard"),
    "cluster": (
        "topo",
        "reconcile",
        "doctor",
        "snapshot",
        "why",
        "top",
        "pool",
        "defrag",
        "scheduler",
        "cache",
        "serving",
        "delivery",
        "elastic",
    ),
}
"""Commands by the package of `avactl.cli` that holds them."""


class _Lazy(TyperGroup):
    """A group that imports commands on use: help and completion need only the table.

    Contexts and commands are Any, because some versions of typer bundle click.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name], short_help=COMMANDS[cmd_name])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name in COMMANDS:
            return name, _load(name), args[1:]
        near = closest(name, COMMANDS)
        if near is not None and not name.startswith("-"):
            ctx.fail(f"Unknown command `{name}`. Did you mean `{near}`?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with hinted():
            return super().invoke(ctx)


def _load(name: str) -> Any:
    package = next(package for package, names in PACKAGES.items() if name in names)
    module = importlib.import_module(f"avactl.cli.{package}.{'import_' if name == 'import' else name}")
    function = getattr(module, f"{name}_" if name in ("set", "import") else name)
    if isinstance(function, typer.Typer):
        single = function
        single.info.context_settings = _CONTEXT
    else:
        single = typer.Typer(add_completion=False, context_settings=_CONTEXT, rich_markup_mode=None)
        single.command(name)(function)
    command = typer.main.get_command(single)
    command.name = name
    return command


_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

app = typer.Typer(
    cls=_Lazy,
    help="Compile specs of deep-learning clusters to Kubernetes objects, and show what a change does.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=_CONTEXT,
)


def _version(value: bool) -> None:
    if value:
        from avactl import __version__

        print(f"avactl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass
