"""Weekly reports of made-up fleets, a few clusters or hundreds."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from models.cluster.windows import Entry, Window, WindowKind
from models.reports.milestones import Milestone, MilestoneNote, Milestones, Planned
from models.reports.tallies import Point
from models.reports.weekly import (
    AtRisk,
    BeforeAndAfter,
    Blocked,
    ClusterCut,
    Live,
    Mean,
    MonitoredStep,
    Move,
    NextStep,
    Past,
    Week,
    week,
)

UNTIL = datetime(2026, 11, 27, 16, tzinfo=UTC)
DAY = timedelta(days=1)


def point(at: datetime, clusters: int, phantom: int, lacking: int | None = None) -> Point:
    return Point(
        at=at,
        clusters=clusters,
        known=clusters,
        total_gpus=400 * clusters,
        healthy_gpus=350 * clusters,
        promised_gpus=340 * clusters + phantom,
        phantom_gpus=phantom,
        flex_gpus=20 * clusters,
        asking=clusters if lacking is not None else 0,
        pending_gpus=None if lacking is None else lacking + 5,
        lacking_gpus=lacking,
    )


def mean(lacking: float | None, phantom: float | None) -> Mean:
    return Mean(tallies=9, since=UNTIL - DAY, until=UNTIL, lacking_gpus=lacking, phantom_gpus=phantom)


def planned(name: str, measure: str, target: int, due: date, started_from: int | None, began: datetime) -> Planned:
    milestone = Milestone(name=name, measure=measure, target=target, due=due)
    return Planned(milestone=milestone, began=began, started_from=started_from)


def a_plan(clusters: int, until: datetime = UNTIL) -> Milestones:
    began = until - 14 * DAY
    return Milestones(
        planned=(
            planned("pilot", "monitored_clusters", 2, date(2026, 11, 25), 0, began),
            planned("all clusters", "monitored_clusters", clusters, date(2026, 12, 18), 0, began),
            planned("first wave", "rolled_out_waves", 1, date(2026, 12, 4), 0, began),
            planned("little phantom", "phantom_gpus", clusters, date(2026, 12, 18), 40 * clusters, began),
            planned("users trained", "users trained", 40, date(2026, 12, 11), 0, began),
        ),
        notes=(
            MilestoneNote(milestone="users trained", at=until - 6 * DAY, number=4, actor="ana", reason="first class"),
            MilestoneNote(milestone="users trained", at=until - DAY, number=9, actor="ana", reason="second | class"),
        ),
    )


def a_past(clusters: int) -> Past:
    """A third of the clusters is monitored, half of them since this week."""
    names = [f"h100-pod-{n:03d}" for n in range(clusters)]
    there = names[: max(2, clusters // 3)]
    new = there[len(there) // 2 :]
    moves = tuple(
        Move(
            cluster=name,
            rollout=f"{name}/1",
            at=UNTIL - (n % 6 + 1) * DAY,
            before="enforced",
            after="monitored",
            actor="backstop",
            text="enforced -> monitored: all conditions of the gate were met",
        )
        for n, name in enumerate(new)
    )
    back = Move(
        cluster=names[-1],
        rollout=f"{names[-1]}/1",
        at=UNTIL - 2 * DAY,
        before="rolling_back",
        after="rolled_back",
        actor="guard",
        text="rolling_back -> rolled_back: 12 GPUs of research lacked hardware",
    )
    return Past(
        since=UNTIL - 7 * DAY,
        until=UNTIL,
        clusters=clusters,
        names=tuple(names),
        cuts=(ClusterCut(cluster=names[0], cut_gpus=39, phantom_gpus=26, to_flex_gpus=13, back_gpus=4),),
        moves=tuple(sorted((*moves, back), key=lambda m: m.at)),
        monitored=tuple(there),
        monitored_before=len(there) - len(new),
        steps=(
            MonitoredStep(at=UNTIL - 8 * DAY, clusters=len(there) - len(new)),
            MonitoredStep(at=UNTIL - DAY, clusters=len(there)),
        ),
        outcomes=tuple(
            BeforeAndAfter(
                cluster=name,
                wrote_at=UNTIL - 9 * DAY,
                monitored_at=UNTIL - 3 * DAY if name in there else None,
                before=mean(26.0 - n % 7 if n % 5 else None, 26.0 + n % 9),
                after=mean(n % 3 / 2 if n % 5 else None, n % 2 / 4) if name in there else None,
            )
            for n, name in enumerate(names[: len(there) + 2])
        ),
        points=tuple(
            point(UNTIL - n * DAY, clusters, (10 + n) * clusters, (4 + n // 2) * clusters) for n in range(30, -1, -1)
        ),
        week_ago=point(UNTIL - 7 * DAY, clusters, 17 * clusters, 7 * clusters),
        began=UNTIL - 30 * DAY,
        milestones=a_plan(clusters),
    )


def a_live(clusters: int) -> Live:
    names = [f"h100-pod-{n:03d}" for n in range(clusters)]
    under_way = names[max(2, clusters // 3) :] or names[:1]
    window = Window(
        kind=WindowKind.MAINTENANCE, starts=UNTIL + 9 * DAY, ends=UNTIL + 10 * DAY, reason="new firmware", gpus=64
    )
    return Live(
        next=tuple(
            NextStep(
                cluster=name,
                stage="planned",
                at=UNTIL + n * DAY / 3 if n % 4 else None,
                waits_for="the notice period is over",
                owner="tpm",
            )
            for n, name in enumerate(under_way)
        ),
        at_risk=(
            AtRisk(
                cluster=names[0],
                stage="monitored",
                lacking_gpus=6,
                teams=("research", "evals"),
                team_count=2,
                breach_at=UNTIL,
            ),
        ),
        blocked=tuple(
            Blocked(
                cluster=name,
                stage="buffered",
                kind="objection" if n % 2 else "decision",
                by="research" if n % 2 else "tpm",
                since=UNTIL - n * DAY,
                reason="a paper is due <soon>" if n % 2 else f"approve the plan: backstop approve {name} --plan ab12",
                needs="",
            )
            for n, name in enumerate(under_way[: 1 + clusters // 10])
        ),
        windows=(Entry(id=1, cluster=names[1], window=window, source="", declared_by=""),),
        silent=(),
    )


def a_week(clusters: int = 3) -> Week:
    return week(a_past(clusters), a_live(clusters))
