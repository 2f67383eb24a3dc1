"""Pages of the dashboard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from urllib.parse import quote

from avactl.base.terminal import duration
from avactl.kube.timestamps import seconds_since
from avactl.scheduler.inspection.usage import Team
from avactl.workbench.jobs.dashboard.markup import Markup, element, joined
from avactl.workbench.jobs.dashboard.plots import plot, sparkline
from avactl.workbench.jobs.dashboard.source import Cluster
from avactl.workbench.jobs.members import Member
from avactl.workbench.jobs.progress import Data, Progress
from avactl.workbench.jobs.state import TrainingJob, unusual

_JOBS, _QUEUE, _PODS, _DOTS = 300, 20, 1000, 64
"""Most jobs of the table, entries of the queue, pods of a page, and dots of a row."""


def document(title: str, main: Markup) -> str:
    """Return a whole page."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("link", rel="stylesheet", href="/style.css"),
        element("script", src="/live.js", defer=""),
    )
    header = element("header", element("a", "avactl", href="/"), element("span", "training jobs"), element("output"))
    return f"<!doctype html>{element('html', head, element('body', header, main), lang='en')}"


def overview(jobs: list[TrainingJob], cluster: Cluster | None, notes: Iterable[str], now: datetime) -> Markup:
    """Return the page of all jobs."""
    return element(
        "main",
        *(element("p", note, cls="note") for note in notes),
        _counts(jobs, cluster),
        _queue(jobs, now),
        _table(jobs, now),
        _teams(cluster.teams) if cluster is not None else "",
        _section("GPUs by job", element("div", cluster.gpus, cls="map")) if cluster is not None else "",
    )


def _section(title: str, *children: object) -> Markup:
    return element("section", element("h2", title), *children)


def _counts(jobs: list[TrainingJob], cluster: Cluster | None) -> Markup:
    states = Counter(job.state for job in jobs)
    cards = [(states[state], state) for state in ("running", "starting", "queued", "failed", "succeeded")]
    made = [element("div", element("b", count), element("span", name), cls=f"card {name}") for count, name in cards]
    if cluster is not None:
        used, total = sum(pool.used for pool in cluster.pools), sum(pool.gpus for pool in cluster.pools)
        made.append(
            element("div", element("b", f"{used:g}"), element("span", f"of {total} GPUs in use"), cls="card gpus")
        )
    return element("div", *made, cls="cards")


def _queue(jobs: list[TrainingJob], now: datetime) -> Markup:
    queued = sorted((job for job in jobs if job.state == "queued"), key=lambda job: job.created)
    if not queued:
        return Markup("")
    rows = [
        element(
            "li",
            _link(job),
            element("span", f"{job.gpus:g} GPUs", cls="soft") if job.gpus else "",
            element("span", f"for {duration(seconds_since(job.created, now))}", cls="soft"),
            element("p", job.why),
        )
        for job in queued[:_QUEUE]
    ]
    if len(queued) > _QUEUE:
        rows.append(element("li", f"… and {len(queued) - _QUEUE} more"))
    return _section("Queue", element("ul", *rows, cls="queue"))


def _table(jobs: list[TrainingJob], now: datetime) -> Markup:
    if not jobs:
        return element("p", "There are no training jobs that you may see.", cls="note")
    names = ("job", "state", "workers", "progress", "loss", "records/s", "time left", "age")
    head = element("tr", *(element("th", name, scope="col") for name in names))
    rows = [_row(job, now) for job in jobs[:_JOBS]]
    more = f"… and {len(jobs) - _JOBS} more" if len(jobs) > _JOBS else ""
    table = element("table", element("thead", head), element("tbody", *rows))
    return _section("Jobs", element("div", table, cls="wide"), element("p", more, cls="soft") if more else "")


def _row(job: TrainingJob, now: datetime) -> Markup:
    progress = job.progress
    live = progress if job.state == "running" else None
    told = "; ".join(filter(None, ("" if job.state == "queued" else job.why, *unusual(job, now))))
    return element(
        "tr",
        element("td", _link(job), element("p", told, cls="why") if told else ""),
        element("td", _badge(job.state)),
        element("td", _workers(job)),
        element("td", _bar(progress) if progress is not None else ""),
        element("td", _loss(progress) if progress is not None else "", cls="loss"),
        element("td", live.rate if live is not None else "", cls="number"),
        element("td", _left(live), cls="number"),
        element("td", duration(seconds_since(job.created, now)), cls="number"),
    )


def _link(job: TrainingJob) -> Markup:
    return element("a", f"{job.namespace}/{job.name}", href=f"/job/{quote(job.namespace)}/{quote(job.name)}")


def _badge(state: str) -> Markup:
    return element("span", state, cls=f"badge {state}")


def _workers(job: TrainingJob) -> Markup:
    most = f"{job.least}–{job.most}" if job.least < job.most else str(job.most)
    if job.over:
        return element("span", most, cls="soft")
    dots = [_dot(pod, job.straggles(pod)) for pod in [pod for pod in job.members if pod.alive][:_DOTS]]
    return joined(element("span", f"{job.workers} of {most}"), element("span", *dots, cls="dots"))


def _dot(pod: Member, straggles: bool) -> Markup:
    about = f"{pod.label}: {pod.state.value}" + (f" on {pod.node}" if pod.node else "")
    about += (", straggles" if straggles else "") + (f" ({pod.why})" if pod.why else "")
    return element("i", cls=f"{pod.state.value}{' slow' if straggles else ''}", title=about)


def _bar(progress: Progress) -> Markup:
    part, (epoch, epochs) = progress.fraction, progress.epoch
    words = [] if part is None else [f"{100 * part:.0f}%"]
    if progress.steps is not None:
        words.append(f"step {progress.steps.step:,}")
    if epoch:
        words.append(f"epoch {epoch}" + (f" of {epochs}" if epochs else ""))
    bar = "" if part is None else element("progress", value=f"{part:.4f}", max="1")
    return joined(bar, element("span", " · ".join(words), cls="soft")) if words else Markup("")


def _loss(progress: Progress) -> Markup:
    if progress.loss is None:
        return Markup("")
    title = f"{progress.metric}: {progress.loss:.4g}"
    return joined(sparkline(progress.curve, title), element("span", f"{progress.loss:.4g}"))


def _left(progress: Progress | None) -> str:
    return "" if progress is None or progress.remaining is None else duration(progress.remaining)


def _teams(teams: list[Team]) -> Markup:
    shown = [team for team in teams if team.guaranteed is not None]
    if not shown:
        return Markup("")
    names = ("team", "GPU", "used", "", "guaranteed", "borrowed", "waiting")
    rows = []
    for team in shown:
        most = (team.guaranteed or 0) + (team.borrow or 0)
        meter = element("progress", value=f"{team.used:g}", max=f"{max(most, team.used, 1):g}")
        numbers = f"{team.guaranteed:g}", f"{team.borrowed:g}", f"{team.waiting:g}" if team.waiting else ""
        rows.append(
            element(
                "tr",
                element("td", team.name),
                element("td", team.model or "any"),
                element("td", f"{team.used:g}", cls="number"),
                element("td", meter),
                *(element("td", number, cls="number") for number in numbers),
            )
        )
    head = element("tr", *(element("th", name, scope="col") for name in names))
    return _section("Quotas", element("div", element("table", head, *rows), cls="wide"))


def job_page(job: TrainingJob, now: datetime) -> Markup:
    """Return the page of one job."""
    progress = job.progress
    facts = [
        ("team", job.team),
        (
            "workers",
            f"{job.workers} of {job.least}–{job.most}" if job.least < job.most else f"{job.workers} of {job.most}",
        ),
        ("GPUs", f"{job.gpus:g}" if job.gpus else ""),
        ("age", duration(seconds_since(job.created, now))),
        ("failures", str(job.failures) if job.failures else ""),
    ]
    if progress is not None:
        facts += [
            ("records/s" if progress.speed is not None else "speed", "" if job.over else progress.rate),
            ("time left", _left(progress) if job.state == "running" else ""),
            (progress.metric or "loss", "" if progress.loss is None else f"{progress.loss:.4g}"),
        ]
    told = "; ".join(filter(None, (job.why, *unusual(job, now))))
    shown = [element("div", element("dt", name), element("dd", value)) for name, value in facts if value]
    parts: list[object] = [
        element("h1", f"{job.namespace}/{job.name} ", _badge(job.state)),
        element("p", told, cls="why") if told else "",
        element("dl", *shown, cls="facts"),
    ]
    if progress is not None:
        parts.append(_section("Data", _data(progress.datasets)) if progress.datasets else "")
        curve = plot(progress.curve, progress.metric)
        parts.append(_section(progress.metric or "loss", curve) if curve else "")
    parts.append(_section("Pods", _pods(job, now)))
    parts.append(element("p", "Logs: ", element("code", f"avactl logs {job.namespace}/{job.name} -f"), cls="soft"))
    return element("main", *parts)


def _data(datasets: list[Data]) -> Markup:
    names = ("dataset", "tasks of this epoch", "", "epoch", "records", "metrics")
    rows = []
    for data in datasets:
        finished = bool(data.epochs) and data.epoch >= data.epochs
        done = data.tasks if finished else data.done
        metrics = " · ".join(f"{name} {value:.4g}" for name, value in data.metrics.items())
        rows.append(
            element(
                "tr",
                element("td", data.name, element("p", f"after {data.after}", cls="soft") if data.after else ""),
                element("td", element("progress", value=str(done), max=str(max(1, data.tasks)))),
                element("td", f"{done:,} of {data.tasks:,}", cls="number"),
                element("td", f"{min(data.epoch + 1, data.epochs)} of {data.epochs}", cls="number"),
                element("td", f"{data.records:,}", cls="number"),
                element("td", metrics),
            )
        )
    head = element("tr", *(element("th", name, scope="col") for name in names))
    return element("div", element("table", head, *rows), cls="wide")


def _pods(job: TrainingJob, now: datetime) -> Markup:
    if not job.members:
        return element("p", "no pods", cls="soft")
    head = element("tr", *(element("th", name, scope="col") for name in ("pod", "state", "node", "restarts", "age")))
    rows = []
    for pod in job.members[:_PODS]:
        told = [pod.why] if pod.why else []
        if job.straggles(pod):
            told.append("straggles: less than half of the median speed")
        rows.append(
            element(
                "tr",
                element("td", pod.label, element("p", "; ".join(told), cls="why") if told else ""),
                element("td", _badge(pod.state.value)),
                element("td", pod.node),
                element("td", str(pod.restarts or ""), cls="number"),
                element("td", duration(seconds_since(pod.created, now)), cls="number"),
            )
        )
    return element("div", element("table", head, *rows), cls="wide")


def problem(title: str, text: str) -> Markup:
    """Return a page that says what is wrong."""
    return element("main", element("h1", title), element("p", text))
