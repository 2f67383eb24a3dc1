"""Draw the compiled result as SVG: teams with quotas and workloads, pools and cache tiers, by cluster.

On the left is a card per team: quota bars by GPU model (guaranteed, borrowed, requested), then its jobs, services and
workspaces. On the right is a card per pool with its GPUs and those requested of it by team, and a card per cache tier.
Lines connect workloads with the pools they may run in; dashed lines connect them with the tiers they read through. A
legend is at the end.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any, NamedTuple

from avactl.base.quantity import format_quantity, parse_quantity
from avactl.base.svg import Svg
from avactl.compiler.driver import Compilation
from avactl.program import dataset_access, registry
from avactl.program.capacity import capacity
from avactl.program.program import Item, Program, pool_size
from avactl.program.workload import Lifecycle, WorkloadRole
from avactl.spec.platform.cache_tier import CacheTierSpec
from avactl.spec.platform.cluster import ClusterSpec
from avactl.spec.platform.machine_type import MachineTypeSpec
from avactl.spec.platform.node_pool import NodePoolSpec
from avactl.spec.platform.quota import QuotaSpec
from avactl.spec.platform.team import TeamSpec

WIDTH = 1280
_LEFT, _LEFT_WIDTH = 32, 640
_RIGHT, _RIGHT_WIDTH = 848, 400
_ROW_HEIGHT = 24
_MAX_ROWS = 14
"""Maximum number of rows of one team; the rest is counted."""

_INK, _SOFT, _LINE, _CARD = "#1f2933", "#697586", "#d5dbe3", "#ffffff"
_TEAM_COLOURS = (
    "#2563eb",
    "#d97706",
    "#059669",
    "#9333ea",
    "#dc2626",
    "#0891b2",
    "#65a30d",
    "#be185d",
    "#4f46e5",
    "#a16207",
)


_Sums = partial(defaultdict[str, float], float)


class _Port(NamedTuple):
    """Start of a workload's lines."""

    item: Item
    y: float
    colour: str


def _gpu_text(gpus: dict[str, float]) -> str:
    return " + ".join(f"{count:g} {model}" for model, count in sorted(gpus.items()))


def _requested_gpus(item: Item, program: Program) -> dict[str, float]:
    return {model: float(count) for (_, model), count in capacity.gpu_demand(item, program).items()}


def draw(compilation: Compilation) -> str:
    """Return the SVG; equal specs give equal bytes."""
    program = compilation.program
    svg = Svg()
    teams = program.teams()
    colours = {team.name: _TEAM_COLOURS[i % len(_TEAM_COLOURS)] for i, team in enumerate(teams)}
    y = 24.0
    for cluster in program.clusters():
        y = _draw_cluster(svg, program, cluster, colours, y) + 28
    machines = sum(pool_size(pool) for pool in program.pools())
    counts = f"{len(compilation.program.items)} specs · {len(compilation.manifests)} objects · {machines} machines"
    _draw_legend(svg, y - 6)
    svg.text(_LEFT, y + 34, counts, size=12, fill=_SOFT)
    return svg.document(WIDTH, y + 54, f"avactl: {counts}")


def _draw_legend(svg: Svg, y: float) -> None:
    """Explain bars, marks and lines, in a row."""
    colour, x = _TEAM_COLOURS[0], float(_LEFT)

    def label(text: str, width: float) -> None:
        nonlocal x
        svg.text(x + width + 7, y + 11, text, size=12, fill=_SOFT)
        x += width + 7 + 6.4 * len(text) + 20

    svg.rect(x, y, 26, 12, fill=colour, radius=3, opacity=0.8)
    label("guaranteed; in pools: requested, by team", 26)
    svg.rect(x, y, 26, 12, fill=colour, radius=3, opacity=0.28)
    label("borrowable", 26)
    svg.rect(x + 2, y - 4, 3, 20, fill=_INK)
    label("requests of the team; in pools: GPUs", 7)
    svg.curve(x, y + 6, x + 30, y + 6, stroke=colour, width=3)
    label("may run in; wider: more GPUs", 30)
    svg.curve(x, y + 6, x + 30, y + 6, stroke=colour, width=1.2, dashed=True)
    label("reads through", 30)


def _draw_cluster(svg: Svg, program: Program, cluster: Item[ClusterSpec], colours: dict[str, str], top: float) -> float:
    pools = program.pools(cluster.name)
    spec = cluster.spec
    gpus = _Sums()
    for pool in pools:
        machine = program.machine(pool)
        if machine.gpus is not None:
            gpus[machine.gpus.model] += pool_size(pool) * machine.gpus.count
    size = f"{sum(map(pool_size, pools))} machines · {_gpu_text(gpus) or 'no GPUs'}"
    about = f"Kubernetes {spec.kubernetes_version} · {size} · applied by {spec.reconcile.mode}"
    svg.text(_LEFT, top + 16, cluster.name, size=22, bold=True)
    svg.text(_LEFT + 14 + 12.5 * len(cluster.name), top + 16, about, size=13, fill=_SOFT)
    top += 36
    lines, shapes = Svg(), Svg()
    ports: list[_Port] = []
    left = top
    for team in program.teams(cluster.name):
        left = _draw_team(shapes, program, cluster, team, colours[team.name], gpus, left, ports) + 16
    right, targets = top, {}
    asked = _asked_by_pool(program, cluster)
    for pool in pools:
        targets[pool.key] = right + 28
        right = _draw_pool(shapes, program, pool, asked[pool.name], colours, right) + 14
    for tier in program.tiers(cluster.name):
        targets[tier.key] = right + 28
        right = _draw_tier(shapes, tier, right) + 14
    for port in ports:
        _draw_lines(lines, program, port, targets)
    svg.add(lines, shapes)
    return max(left, right)


def _asked_by_pool(program: Program, cluster: Item[ClusterSpec]) -> dict[str, dict[str, float]]:
    """GPUs requested at full size: by pool, then by team.

    Pods that may run in several pools count in each by its share of their GPUs.
    """
    found: dict[str, dict[str, float]] = defaultdict(_Sums)
    for item in _cluster_workloads(program, cluster):
        for role in capacity.running_roles(item):
            model = capacity.gpu_model(program, item.cluster, role.compute)
            if model is None:
                continue
            pools = program.candidate_pools(item.cluster, model, role.compute.pool, role.compute.tolerates)
            for pods, among in _pods_by_pools(item, role, pools):
                sizes = {pool.name: pool_size(pool) * program.machine(pool).gpu_count for pool in among}
                for name, size in sizes.items():
                    found[name][item.team or ""] += float(role.compute.gpus) * pods * size / sum(sizes.values())
    return found


def _pods_by_pools(
    item: Item, role: WorkloadRole, pools: list[Item[NodePoolSpec]]
) -> list[tuple[int, list[Item[NodePoolSpec]]]]:
    """Pods of a role with the pools that they may run in.

    Of an elastic job, the fewest workers stay off spot machines, and the others prefer them.
    """
    spot, firm = ([pool for pool in pools if pool.spec.is_spot is each] for each in (True, False))
    if registry.get_lifecycle(item.kind) is Lifecycle.JOB and role.least < role.most and spot and firm:
        return [(role.least, firm), (role.most - role.least, spot)]
    return [(role.most, pools)]


def _cluster_workloads(program: Program, cluster: Item[ClusterSpec]) -> list[Item]:
    """The specs that run pods on a cluster: jobs, services, sessions."""
    kinds = [kind for lifecycle in Lifecycle for kind in registry.workload_kinds(lifecycle)]
    return [item for kind in kinds for item in program.of(kind) if item.cluster == cluster.name]


def _draw_team(
    svg: Svg,
    program: Program,
    cluster: Item[ClusterSpec],
    team: Item[TeamSpec],
    colour: str,
    gpus: dict[str, float],
    top: float,
    ports: list[_Port],
) -> float:
    work = [item for item in _cluster_workloads(program, cluster) if item.team == team.name]
    quotas = [q for q in program.quotas() if q.team == team.name and q.cluster == cluster.name]
    bars = _quota_bars(program, quotas, work, gpus)
    rows = work[:_MAX_ROWS]
    height = 38 + 26 * len(bars) + _ROW_HEIGHT * len(rows) + (_ROW_HEIGHT if len(work) > len(rows) else 0) + 10
    svg.rect(_LEFT, top, _LEFT_WIDTH, height, fill=_CARD, stroke=_LINE, radius=8)
    svg.rect(_LEFT, top, 5, height, fill=colour, radius=2)
    svg.text(_LEFT + 18, top + 24, team.name, size=15, bold=True)
    members = team.spec.members
    people = ", ".join([*(f"group {g}" for g in members.groups), *members.users]) or "no members"
    svg.text(_LEFT + _LEFT_WIDTH - 16, top + 24, people[:60], size=11, fill=_SOFT, anchor="end")
    y = top + 38
    for bar in bars:
        _draw_quota_bar(svg, bar, colour, y)
        y += 26
    for item in rows:
        _draw_row(svg, program, item, colour, y)
        ports.append(_Port(item, y + _ROW_HEIGHT / 2, colour))
        y += _ROW_HEIGHT
    if len(work) > len(rows):
        svg.text(_LEFT + 18, y + 16, f"… and {len(work) - len(rows)} more", size=12, fill=_SOFT)
    return top + height


class _QuotaBar(NamedTuple):
    model: str
    guaranteed: float
    borrow: float
    asked: float
    capacity: float


def _quota_bars(
    program: Program, quotas: list[Item[QuotaSpec]], work: list[Item], gpus: dict[str, float]
) -> list[_QuotaBar]:
    guaranteed, borrow, asked = _Sums(), _Sums(), _Sums()
    for quota in quotas:
        for entry in quota.spec.gpus:
            guaranteed[entry.gpu] += entry.guaranteed
            borrow[entry.gpu] += entry.borrow
        for shape in quota.spec.shapes:
            guaranteed[shape.gpu] += shape.machines * shape.gpus
    for item in work:
        for model, count in _requested_gpus(item, program).items():
            asked[model] += count
    bars = [_QuotaBar(model, guaranteed[model], borrow[model], asked[model], gpus[model]) for model in sorted(gpus)]
    return [bar for bar in bars if bar.guaranteed + bar.borrow + bar.asked > 0]


def _draw_quota_bar(svg: Svg, bar: _QuotaBar, colour: str, y: float) -> None:
    """Guaranteed solid, borrowed light, and a mark where what is asked for ends."""
    x, width = _LEFT + 84, 330
    scale = width / max(bar.guaranteed + bar.borrow, bar.asked, 1)
    svg.text(_LEFT + 18, y + 15, bar.model, size=12, bold=True)
    promised = f"{bar.guaranteed:g} guaranteed, {bar.borrow:g} borrowable"
    title = f"{bar.asked:g} requested; {promised}; {bar.capacity:g} in the cluster"
    svg.rect(x, y + 5, width, 12, fill="#eef1f5", radius=3, title=title)
    svg.rect(x, y + 5, bar.guaranteed * scale, 12, fill=colour, radius=3, opacity=0.8, title=title)
    lent = x + bar.guaranteed * scale
    svg.rect(lent, y + 5, bar.borrow * scale, 12, fill=colour, radius=3, opacity=0.28, title=title)
    svg.rect(x + bar.asked * scale - 1.5, y + 1, 3, 20, fill=_INK, title=title)
    over = " · over" if bar.asked > bar.guaranteed + bar.borrow else ""
    text = f"requests {bar.asked:g} of {bar.guaranteed:g} + {bar.borrow:g}{over}"
    svg.text(x + width + 14, y + 15, text, size=11, fill="#b42318" if over else _SOFT)


def _draw_row(svg: Svg, program: Program, item: Item, colour: str, y: float) -> None:
    workload = registry.get_kind(item.kind).workload
    badge, summary = (workload.badge, workload.summary(item)) if workload is not None else ("", "")
    svg.rect(_LEFT + 18, y + 4, 40, 16, fill=colour, radius=8, opacity=0.14)
    svg.text(_LEFT + 38, y + 15.5, badge, size=10, fill=colour, anchor="middle", bold=True)
    svg.text(_LEFT + 68, y + 16, item.name, size=12.5)
    svg.text(_LEFT + 250, y + 16, summary, size=11.5, fill=_SOFT)
    gpus = _requested_gpus(item, program)
    svg.text(
        _LEFT + _LEFT_WIDTH - 16,
        y + 16,
        _gpu_text(gpus) if gpus else "no GPU",
        size=12,
        mono=True,
        anchor="end",
        fill=_INK if gpus else _SOFT,
    )


def _draw_pool(
    svg: Svg,
    program: Program,
    pool: Item[NodePoolSpec],
    asked: dict[str, float],
    colours: dict[str, str],
    top: float,
) -> float:
    machine, size = program.machine(pool), pool_size(pool)
    if machine.gpus is None:
        return _draw_cpu_pool(svg, pool, machine, top)
    total = size * machine.gpus.count
    svg.rect(_RIGHT, top, _RIGHT_WIDTH, 88, fill=_CARD, stroke=_LINE, radius=8)
    svg.text(_RIGHT + 16, top + 24, pool.name, size=15, bold=True)
    svg.text(_RIGHT + _RIGHT_WIDTH - 16, top + 24, f"{total} {machine.gpus.model}", size=13, mono=True, anchor="end")
    gpu_text = f"{machine.gpus.count} × {machine.gpus.model} {format_quantity(parse_quantity(machine.gpus.memory))}"
    about = f"{size} × {pool.spec.machine_type} · {gpu_text} · {pool.spec.allocation}"
    svg.text(_RIGHT + 16, top + 43, about, size=11.5, fill=_SOFT)
    width, x, y = _RIGHT_WIDTH - 32, _RIGHT + 16.0, top + 56
    wanted = sum(asked.values())
    scale = width / max(total, wanted, 1)
    svg.rect(x, y, width, 12, fill="#eef1f5", radius=3)
    at = x
    for team in sorted(asked):
        length = asked[team] * scale
        title = f"{team}: {asked[team]:.4g} {machine.gpus.model}"
        svg.rect(at, y, length, 12, fill=colours.get(team, _SOFT), opacity=0.8, title=title)
        at += length
    svg.rect(x + total * scale - 1.5, y - 4, 3, 20, fill=_INK, title=f"{total} GPUs in the pool")
    percent = 100 * wanted / total if total else 0
    text = f"requested at full size: {wanted:.4g} of {total} ({percent:.0f}%)"
    svg.text(_RIGHT + 16, top + 82, text, size=10.5, fill=_SOFT)
    return top + 88


def _draw_cpu_pool(svg: Svg, pool: Item[NodePoolSpec], machine: MachineTypeSpec, top: float) -> float:
    size = pool_size(pool)
    svg.rect(_RIGHT, top, _RIGHT_WIDTH, 56, fill=_CARD, stroke=_LINE, radius=8)
    svg.text(_RIGHT + 16, top + 24, pool.name, size=15, bold=True)
    cores = f"{float(size * parse_quantity(machine.cpu)):g} cores"
    svg.text(_RIGHT + _RIGHT_WIDTH - 16, top + 24, cores, size=13, mono=True, anchor="end")
    about = f"{size} × {pool.spec.machine_type} · {machine.cpu} CPU cores · {machine.memory} memory"
    svg.text(_RIGHT + 16, top + 43, about, size=11.5, fill=_SOFT)
    return top + 56


def _draw_tier(svg: Svg, tier: Item[CacheTierSpec], top: float) -> float:
    spec = tier.spec
    height = 72 + 16 * len(spec.under_stores)
    svg.rect(_RIGHT, top, _RIGHT_WIDTH, height, fill="#f0f9ff", stroke="#bae0f5", radius=8)
    svg.text(_RIGHT + 16, top + 24, tier.name, size=15, bold=True)
    svg.text(_RIGHT + _RIGHT_WIDTH - 16, top + 24, f"{spec.role} tier", size=12, anchor="end", fill=_SOFT)
    x = _RIGHT + 16.0
    for level in spec.workers.tiers:
        fill = {"MEM": "#0369a1", "SSD": "#38bdf8", "HDD": "#94a3b8"}[level.medium]
        label = f"{level.medium} {level.quota}"
        svg.rect(x, top + 34, 11 + 7.8 * len(label), 20, fill=fill, radius=4)
        svg.text(x + 6, top + 48, label, size=11, fill="#ffffff", bold=True)
        x += 20 + 7.8 * len(label)
    where = f"on each machine of {', '.join(spec.workers.pools) or 'the cluster'}"
    if spec.workers.replicas:
        where = f"× {spec.workers.replicas} workers"
    svg.text(x, top + 48, where, size=11, fill=_SOFT)
    y = top + 72
    for store in spec.under_stores:
        svg.text(_RIGHT + 16, y, f"{store.mount} ← {store.url}", size=11, mono=True, fill=_SOFT)
        y += 16
    return top + height


def _draw_lines(svg: Svg, program: Program, port: _Port, targets: dict[Any, float]) -> None:
    start = _LEFT + _LEFT_WIDTH
    item = port.item
    seen: set[Any] = set()
    for role in capacity.running_roles(item):
        if not role.compute.gpus and role.compute.pool is None:
            continue
        model = capacity.gpu_model(program, item.cluster, role.compute)
        for pool in program.candidate_pools(item.cluster, model, role.compute.pool, role.compute.tolerates):
            if pool.key in targets and pool.key not in seen:
                seen.add(pool.key)
                gpus = sum(_requested_gpus(item, program).values())
                width = min(6.0, 1.0 + gpus / 16)
                title = f"{item} may run in pool {pool.name}"
                svg.curve(start, port.y, _RIGHT, targets[pool.key], stroke=port.colour, width=width, title=title)
    for mount in dataset_access.dataset_mounts(item):
        dataset = dataset_access.find(program, item.team, mount.name)
        tier = program.find_tier(dataset.spec.tier) if dataset is not None and dataset.spec.tier else None
        if tier is not None and tier.key in targets and tier.key not in seen:
            seen.add(tier.key)
            title = f"{item} reads {mount.name} through {tier.name}"
            svg.curve(start, port.y, _RIGHT, targets[tier.key], stroke=port.colour, width=1.2, dashed=True, title=title)
