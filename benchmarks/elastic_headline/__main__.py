"""Two elastic jobs against two gangs, and an elastic job beside a service: ElasticDL's published figures, run again.

24 CPUs; each of two jobs wants 13. A job is 5168 CPU seconds, so that a gang of 13 takes the published 397.5 s.
avactl's scheduler decides, against a real API server, who gets CPUs; each pod is a process with the job's real master
or a real worker, and only the computing is a sleep: a published second is `--second` real ones. The service's pods, of
a higher priority, are as many as a sine says. Published: 795 s for gangs, 580 s for elastic jobs, the second of which
waits almost not at all; over 90% of the CPUs busy beside a service.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from benchmarks.clusters import bar
from benchmarks.elastic_headline.picture import Panel, picture
from benchmarks.elastic_headline.scenario import Run, day, two_jobs, wave
from benchmarks.elastic_headline.specs import Job
from benchmarks.elastic_headline.timeline import SERVICE, Busy, busy, repeated, share

NODES, CPUS = 4, 6
SLOTS = NODES * CPUS
WANTED = 13
GANG, ELASTIC = 795.0, 580.0
"""Published makespans, in seconds."""
RECORDS = round(WANTED * GANG / 2)
RECORDS_PER_TASK = 5
LATER = 10.0
"""The second job is submitted so much later, in published seconds."""
LEAST, MOST = 3, 17
"""Pods of the service at night and at noon."""


def main() -> None:
    """Measure, and print the bars."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.elastic_headline", description=__doc__)
    parser.add_argument("--second", type=float, default=0.3, help="real seconds of a published one (default: 0.3)")
    parser.add_argument("--day", type=float, default=500, help="published seconds of the service's day (default: 500)")
    parser.add_argument("--svg", type=Path, help="write a picture")
    options = parser.parse_args()
    second = options.second
    panels = []
    runs: dict[str, Run] = {}
    for name, least in (("gang", WANTED), ("elastic", 1)):
        first, other = (Job(job, least, WANTED, RECORDS, RECORDS_PER_TASK, second) for job in ("first", "second"))
        run = runs[name] = asyncio.run(two_jobs(NODES, CPUS, first, other, LATER * second))
        panels.append(_compared(name, run, second))
    span, wait = {}, {}
    print("\npublished seconds      gang  elastic   published gang  elastic")
    for name, run in runs.items():
        span[name] = (max(run.ended.values()) - run.submitted["first"]) / second
        wait[name] = (run.first_task("second") - run.submitted["second"]) / second
    print(f"makespan           {span['gang']:8.0f} {span['elastic']:8.0f}         {GANG:8.0f} {ELASTIC:8.0f}")
    print(f"wait of the second {wait['gang']:8.0f} {wait['elastic']:8.0f}")
    again = {name: _repeated(run) for name, run in runs.items()}
    print(f"records again      {again['gang']:8} {again['elastic']:8}")
    job = Job("train", 1, SLOTS, round(2 * SLOTS * options.day), RECORDS_PER_TASK, second)
    run, began = asyncio.run(day(NODES, CPUS, job, wave(LEAST, MOST), options.day * second))
    ended = began + options.day * second
    used = busy(run.tasks, run.lives)
    serving = share([each for each in used if each.owner == SERVICE], SLOTS, began, ended)
    whole = share(used, SLOTS, began, ended)
    lost = sum(1 for task in run.tasks if not task.done and task.ended < ended - 1)
    note = f"{whole:.1%} of the slots busy, {serving:.1%} by the service"
    print(f"\nbeside a service of {LEAST} to {MOST} pods: {note}; {lost} tasks cut off\n")
    panels.append(
        Panel(
            "Elastic job beside a service",
            note,
            _scaled(used, began, second),
            {SERVICE: "service", "train": "job"},
            options.day,
            None,
            options.day / 5,
        )
    )
    if options.svg is not None:
        longest = max(panel.seconds for panel in panels[:2])
        panels[:2] = [panel._replace(seconds=longest) for panel in panels[:2]]
        options.svg.write_text(picture(panels, SLOTS))
    bar("elastic-makespan", span["elastic"] / span["gang"], ELASTIC / GANG, at_least=False)
    bar("elastic-wait", wait["elastic"] / wait["gang"], 0.05, at_least=False)
    bar("elastic-busy", whole, 0.90, at_least=True)


def _compared(name: str, run: Run, second: float) -> Panel:
    began = run.submitted["first"]
    ended = (max(run.ended.values()) - began) / second
    wait = (run.first_task("second") - run.submitted["second"]) / second
    note = f"done after {ended:.0f} s; the second job waited {wait:.0f} s"
    title = {"gang": "Two gangs of 13", "elastic": "Two elastic jobs of 1 to 13"}[name]
    owners = {"first": "first job", "second": "second job"}
    return Panel(title, note, _scaled(busy(run.tasks, run.lives), began, second), owners, ended * 1.02, ended, 100)


def _scaled(found: list[Busy], began: float, second: float) -> list[Busy]:
    return [Busy(each.owner, (each.began - began) / second, (each.ended - began) / second) for each in found]


def _repeated(run: Run) -> int:
    return sum(repeated([task for task in run.tasks if task.job == job], RECORDS) for job in run.submitted)


if __name__ == "__main__":
    main()
