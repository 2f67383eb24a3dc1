"""Pages of the dashboard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from urllib.parse import quote

from avactl.base.terminal import duration_text
from avactl.contracts.elastic import DatasetProgress
from avactl.kube.timestamps import seconds_since
from avactl.scheduler.inspection.usage import TeamLine
from avactl.workbench.jobs.dashboard.markup import Markup, join_elements, make_element
from avactl.workbench.jobs.dashboard.plots import draw_plot, draw_sparkline
from avactl.workbench.jobs.dashboard.source import ClusterSource
from avactl.workbench.jobs.members import JobMember
from avactl.workbench.jobs.progress import JobProgress
from avactl.workbench.jobs.state import TrainingJobState, unusual_conditions

_JOBS, _QUEUE, _PODS, _DOTS = 300, 20, 1000, 64
"""Most jobs of the table, entries of the queue, pods of a page, and dots of a row."""


def page_document(title: str, main: Markup) -> str:
    """Return a whole page."""
    head = make_element(
        "head",
        make_element("meta", charset="utf-8"),
        make_element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        make_element("title", title),
        make_element("link", rel="stylesheet", href="/style.css"),
        make_element("script", src="/live.js", defer=""),
    )
    header = make_element(
        "header", make_element("a", "avactl", href="/"), make_element("span", "training jobs"), make_element("output")
    )
    return f"<!doctype html>{make_element('html', head, make_element('body', header, main), lang='en')}"


def overview_page(
    jobs: list[TrainingJobState], cluster: ClusterSource | None, notes: Iterable[str], now: datetime
) -> Markup:
    """Return the page of all jobs."""
    return make_element(
        "main",
        *(make_element("p", note, cls="note") for note in notes),
        _counts_table(jobs, cluster),
        _queue_table(jobs, now),
        _jobs_table(jobs, now),
        _teams_table(cluster.teams) if cluster is not None else "",
        _make_section("GPUs by job", make_element("div", cluster.gpus, cls="map")) if cluster is not None else "",
    )


def _make_section(title: str, *children: object) -> Markup:
    return make_element("section", make_element("h2", title), *children)


def _counts_table(jobs: list[TrainingJobState], cluster: ClusterSource | None) -> Markup:
    states = Counter(job.state for job in jobs)
    cards = [(states[state], state) for state in ("running", "starting", "queued", "failed", "succeeded")]
    made = [
        make_element("div", make_element("b", count), make_element("span", name), cls=f"card {name}")
        for count, name in cards
    ]
    if cluster is not None:
        used, total = sum(pool.used for pool in cluster.pools), sum(pool.gpus for pool in cluster.pools)
        made.append(
            make_element(
                "div", make_element("b", f"{used:g}"), make_element("span", f"of {total} GPUs in use"), cls="card gpus"
            )
        )
    return make_element("div", *made, cls="cards")


def _queue_table(jobs: list[TrainingJobState], now: datetime) -> Markup:
    queued = sorted((job for job in jobs if job.state == "queued"), key=lambda job: job.created)
    if not queued:
        return Markup("")
    rows = [
        make_element(
            "li",
            _job_link(job),
            make_element("span", f"{job.gpus:g} GPUs", cls="soft") if job.gpus else "",
            make_element("span", f"for {duration_text(seconds_since(job.created, now))}", cls="soft"),
            make_element("p", job.why),
        )
        for job in queued[:_QUEUE]
    ]
    if len(queued) > _QUEUE:
        rows.append(make_element("li", f"… and {len(queued) - _QUEUE} more"))
    return _make_section("Queue", make_element("ul", *rows, cls="queue"))


def _jobs_table(jobs: list[TrainingJobState], now: datetime) -> Markup:
    if not jobs:
        return make_element("p", "There are no training jobs that you may see.", cls="note")
    names = ("job", "state", "workers", "progress", "loss", "records/s", "time left", "age")
    head = make_element("tr", *(make_element("th", name, scope="col") for name in names))
    rows = [_job_row(job, now) for job in jobs[:_JOBS]]
    more = f"… and {len(jobs) - _JOBS} more" if len(jobs) > _JOBS else ""
    table = make_element("table", make_element("thead", head), make_element("tbody", *rows))
    return _make_section(
        "Jobs", make_element("div", table, cls="wide"), make_element("p", more, cls="soft") if more else ""
    )


def _job_row(job: TrainingJobState, now: datetime) -> Markup:
    progress = job.progress
    live = progress if job.state == "running" else None
    told = "; ".join(filter(None, ("" if job.state == "queued" else job.why, *unusual_conditions(job, now))))
    return make_element(
        "tr",
        make_element("td", _job_link(job), make_element("p", told, cls="why") if told else ""),
        make_element("td", _state_badge(job.state)),
        make_element("td", _worker_dots(job)),
        make_element("td", _progress_bar(progress) if progress is not None else ""),
        make_element("td", _loss_text(progress) if progress is not None else "", cls="loss"),
        make_element("td", live.rate if live is not None else "", cls="number"),
        make_element("td", _time_left(live), cls="number"),
        make_element("td", duration_text(seconds_since(job.created, now)), cls="number"),
    )


def _job_link(job: TrainingJobState) -> Markup:
    return make_element("a", f"{job.namespace}/{job.name}", href=f"/job/{quote(job.namespace)}/{quote(job.name)}")


def _state_badge(state: str) -> Markup:
    return make_element("span", state, cls=f"badge {state}")


def _worker_dots(job: TrainingJobState) -> Markup:
    most = f"{job.least}–{job.most}" if job.least < job.most else str(job.most)
    if job.over:
        return make_element("span", most, cls="soft")
    dots = [_pod_dot(pod, job.straggles(pod)) for pod in [pod for pod in job.members if pod.alive][:_DOTS]]
    return join_elements(make_element("span", f"{job.workers} of {most}"), make_element("span", *dots, cls="dots"))


def _pod_dot(pod: JobMember, straggles: bool) -> Markup:
    about = f"{pod.label}: {pod.state.value}" + (f" on {pod.node}" if pod.node else "")
    about += (", straggles" if straggles else "") + (f" ({pod.why})" if pod.why else "")
    return make_element("i", cls=f"{pod.state.value}{' slow' if straggles else ''}", title=about)


def _progress_bar(progress: JobProgress) -> Markup:
    part, (epoch, epochs) = progress.fraction, progress.epoch
    words = [] if part is None else [f"{100 * part:.0f}%"]
    if progress.steps is not None:
        words.append(f"step {progress.steps.step:,}")
    if epoch:
        words.append(f"epoch {epoch}" + (f" of {epochs}" if epochs else ""))
    bar = "" if part is None else make_element("progress", value=f"{part:.4f}", max="1")
    return join_elements(bar, make_element("span", " · ".join(words), cls="soft")) if words else Markup("")


def _loss_text(progress: JobProgress) -> Markup:
    if progress.loss is None:
        return Markup("")
    title = f"{progress.master.metric}: {progress.loss:.4g}"
    return join_elements(draw_sparkline(progress.master.curve, title), make_element("span", f"{progress.loss:.4g}"))


def _time_left(progress: JobProgress | None) -> str:
    return "" if progress is None or progress.remaining is None else duration_text(progress.remaining)


def _teams_table(teams: list[TeamLine]) -> Markup:
    shown = [team for team in teams if team.guaranteed is not None]
    if not shown:
        return Markup("")
    names = ("team", "GPU", "used", "", "guaranteed", "borrowed", "waiting")
    rows = []
    for team in shown:
        most = (team.guaranteed or 0) + (team.borrow or 0)
        meter = make_element("progress", value=f"{team.used:g}", max=f"{max(most, team.used, 1):g}")
        numbers = f"{team.guaranteed:g}", f"{team.borrowed:g}", f"{team.waiting:g}" if team.waiting else ""
        rows.append(
            make_element(
                "tr",
                make_element("td", team.name),
                make_element("td", team.model or "any"),
                make_element("td", f"{team.used:g}", cls="number"),
                make_element("td", meter),
                *(make_element("td", number, cls="number") for number in numbers),
            )
        )
    head = make_element("tr", *(make_element("th", name, scope="col") for name in names))
    return _make_section("Quotas", make_element("div", make_element("table", head, *rows), cls="wide"))


def job_page(job: TrainingJobState, now: datetime) -> Markup:
    """Return the page of one job."""
    progress = job.progress
    facts = [
        ("team", job.team),
        (
            "workers",
            f"{job.workers} of {job.least}–{job.most}" if job.least < job.most else f"{job.workers} of {job.most}",
        ),
        ("GPUs", f"{job.gpus:g}" if job.gpus else ""),
        ("age", duration_text(seconds_since(job.created, now))),
        ("failures", str(job.failures) if job.failures else ""),
    ]
    if progress is not None:
        facts += [
            ("records/s" if progress.master.speed is not None else "speed", "" if job.over else progress.rate),
            ("time left", _time_left(progress) if job.state == "running" else ""),
            (progress.master.metric or "loss", "" if progress.loss is None else f"{progress.loss:.4g}"),
        ]
    told = "; ".join(filter(None, (job.why, *unusual_conditions(job, now))))
    shown = [make_element("div", make_element("dt", name), make_element("dd", value)) for name, value in facts if value]
    parts: list[object] = [
        make_element("h1", f"{job.namespace}/{job.name} ", _state_badge(job.state)),
        make_element("p", told, cls="why") if told else "",
        make_element("dl", *shown, cls="facts"),
    ]
    if progress is not None:
        master = progress.master
        parts.append(_make_section("Data", _datasets_table(master.datasets)) if master.datasets else "")
        curve = draw_plot(master.curve, master.metric)
        parts.append(_make_section(master.metric or "loss", curve) if curve else "")
    parts.append(_make_section("Pods", _pods_table(job, now)))
    parts.append(
        make_element("p", "Logs: ", make_element("code", f"avactl logs {job.namespace}/{job.name} -f"), cls="soft")
    )
    return make_element("main", *parts)


def _datasets_table(datasets: Iterable[DatasetProgress]) -> Markup:
    names = ("dataset", "tasks of this epoch", "", "epoch", "records", "metrics")
    rows = []
    for data in datasets:
        finished = bool(data.epochs) and data.epoch >= data.epochs
        done = data.tasks if finished else data.done
        metrics = " · ".join(f"{name} {value:.4g}" for name, value in data.metrics.items())
        rows.append(
            make_element(
                "tr",
                make_element(
                    "td", data.name, make_element("p", f"after {data.after}", cls="soft") if data.after else ""
                ),
                make_element("td", make_element("progress", value=str(done), max=str(max(1, data.tasks)))),
                make_element("td", f"{done:,} of {data.tasks:,}", cls="number"),
                make_element("td", f"{min(data.epoch + 1, data.epochs)} of {data.epochs}", cls="number"),
                make_element("td", f"{data.records:,}", cls="number"),
                make_element("td", metrics),
            )
        )
    head = make_element("tr", *(make_element("th", name, scope="col") for name in names))
    return make_element("div", make_element("table", head, *rows), cls="wide")


def _pods_table(job: TrainingJobState, now: datetime) -> Markup:
    if not job.members:
        return make_element("p", "no pods", cls="soft")
    head = make_element(
        "tr", *(make_element("th", name, scope="col") for name in ("pod", "state", "node", "restarts", "age"))
    )
    rows = []
    for pod in job.members[:_PODS]:
        told = [pod.why] if pod.why else []
        if job.straggles(pod):
            told.append("straggles: less than half of the median speed")
        rows.append(
            make_element(
                "tr",
                make_element("td", pod.label, make_element("p", "; ".join(told), cls="why") if told else ""),
                make_element("td", _state_badge(pod.state.value)),
                make_element("td", pod.node),
                make_element("td", str(pod.restarts or ""), cls="number"),
                make_element("td", duration_text(seconds_since(pod.created, now)), cls="number"),
            )
        )
    return make_element("div", make_element("table", head, *rows), cls="wide")


def problem_page(title: str, text: str) -> Markup:
    """Return a page that says what is wrong."""
    return make_element("main", make_element("h1", title), make_element("p", text))
