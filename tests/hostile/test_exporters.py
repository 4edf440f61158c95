"""Exporters that lie: whole rollouts on a real ledger, looked at by the real activities, without Temporal.

Six clusters have their health from one exporter, two from another. The first one lies, in every way of the table; of
the other's two clusters one loses hardware in truth. No quota of the six may move without a person, and the honest
breach must be answered as if nobody had lied. Quotas are read by plain SQL.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from temporalio.exceptions import ApplicationError

from activities.adapters.ledger.facade import Ledger
from activities.ports.clusters import DoubtPort
from activities.rollout.cluster_calls import ClusterActivities
from activities.rollout.effects import QuotaActivities
from activities.watch.fingerprint import facts_of, fingerprint
from models.cluster.readings import Doubt
from models.cluster.windows import Declared, Window, WindowKind
from models.errors import Refusal
from models.lifecycle.holds import HoldKind
from models.lifecycle.workflow_actions import Wait
from models.rollout import effect_reducers, look_reducers, mailing, plan_reducers, request_builders, time_reducers
from models.rollout.commands import CommandRequest, obey, refusal
from models.rollout.decide import decide
from models.rollout.messages import LaunchRequest, OpenRequest
from models.rollout.stages import Command, Stage
from models.rollout.state import Rollout
from models.rollout.status import status_of
from models.rollout.workflow_actions import Action, Aim, Draft, Look, Perform
from models.temporal_names import TellAnswer
from tests.hostile import Rubbish, table, threw
from tests.integration.ledger.world import ForeignTool, import_fleet
from tests.servers import new_ledger
from tests.typed import lines_in, typed

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
LIED_ABOUT, HONEST = [f"a{n}" for n in range(6)], ["b0", "b1"]
PROMISED = 84
"""Of the 100 GPUs of each cluster."""
BEGINS, ENDS = 2, 18
"""Minutes. breach_after is 10: the last cluster that falls one after the other would be cut in the last of them."""


class Said(NamedTuple):
    """A sample that an exporter writes. `late`: how many minutes before now it is dated."""

    healthy: Any
    total: Any = 100
    source: str = "dcgm"
    late: float = 0


class Site:
    """A ledger with a monitored rollout of each cluster, and a clock."""

    def __init__(self, path: Path) -> None:
        self.now = T0
        file = path / "ledger.db"
        url = f"sqlite:///{file}" if file.exists() else new_ledger(file)
        ledger = self.ledger = Ledger(url, now=lambda: self.now)
        self.sql = ForeignTool(url)
        self.clusters = ClusterActivities(ledger.ports)
        self.effects = QuotaActivities(ledger.ports)
        self.rollouts: dict[str, Rollout] = {}
        self.marks: dict[str, str] = {}

    def launched(self) -> None:
        """Every cluster has its rollout, monitored."""
        names = [*LIED_ABOUT, *HONEST]
        quotas = [{"team": "t", "gpus": 50}, {"team": "u", "gpus": PROMISED - 50}]
        islands = [{"name": "main", "total_gpus": 100, "healthy_gpus": 100}]
        document = {
            "policy": {"notice": "0s", "soak_buffered": "0s", "soak_enforced": "0s"},
            "clusters": [{"name": name, "islands": islands, "quotas": quotas} for name in names],
        }
        import_fleet(self.ledger, document, now=T0 - timedelta(hours=2))
        for name in names:
            self.say(name, Said(100, source="dcgm" if name in LIED_ABOUT else "nvml"))
            self.launch(name)

    def close(self) -> None:
        self.sql.close()
        self.ledger.close()

    # --- a rollout as the workflow drives it ------------------------------------------------------

    def launch(self, name: str) -> None:
        launch = LaunchRequest(cluster=name, rollout=f"{name}/1", owner="tpm")
        opening = self.clusters.open_rollout(OpenRequest(launch=launch, at=self.now))
        self.rollouts[name] = plan_reducers.open_rollout(launch, opening, self.now)
        self.run(name)
        plan = self.rollouts[name].plan
        assert plan is not None
        self.command(name, Command.APPROVE, plan_hash=plan.hash)
        assert self.rollouts[name].stage is Stage.MONITORED

    def command(self, name: str, command: Command, **more: str) -> None:
        request = CommandRequest(actor="tpm", **more)
        assert refusal(self.rollouts[name], command, request) is None
        self.rollouts[name] = obey(self.rollouts[name], command, request, self.now)[0]
        self.run(name)

    def run(self, name: str) -> None:
        for _ in range(80):
            self.rollouts[name] = self.posted(time_reducers.advance(self.rollouts[name], self.now))
            action = decide(self.rollouts[name], self.now)
            if isinstance(action, Wait) and (action.until is None or action.until > self.now):
                return
            self.rollouts[name] = self.done(self.rollouts[name], action)
        raise AssertionError(f"it spins in {self.rollouts[name].stage}")

    def posted(self, rollout: Rollout) -> Rollout:
        if mailing.may_mail(rollout, self.now):
            batch = request_builders.tell(rollout, self.now).notices
            rollout = mailing.apply_delivery(
                rollout, batch, TellAnswer(delivered={n.key: () for n in batch}, failed={}, refused={}), T0
            )
        if not rollout.post.outbox and rollout.post.noted is rollout.stage:
            return rollout
        record = request_builders.record(rollout, self.now)
        self.ledger.registry.record(record)
        return mailing.mark_archived(rollout, record)

    def done(self, rollout: Rollout, action: Action) -> Rollout:
        match action:
            case Look():
                seen = self.clusters.observe(request_builders.look_at(rollout, action, self.now))
                return look_reducers.apply_look(rollout, seen, self.now, rollout.fence)
            case Draft():
                return plan_reducers.take_draft(
                    rollout, self.clusters.draft_plan(request_builders.draft(rollout, action, self.now)), self.now
                )
            case Aim():
                try:
                    target = self.clusters.aim_rollback(request_builders.aim(rollout, self.now))
                except ApplicationError as error:
                    return plan_reducers.fail_aim(rollout, str(error.type), error.message, self.now)
                return plan_reducers.start_breach_rollback(rollout, target, self.now)
            case Perform():
                begun, change = effect_reducers.begin_effect(rollout, action.kind)
                receipt = self.effects.apply_effect(request_builders.effect(begun, change, self.now))
                return effect_reducers.apply_receipt(begun, change, receipt, self.now)
        return rollout

    # --- time, samples, and what is so ------------------------------------------------------------

    def say(self, name: str, said: Said) -> None:
        at = (self.now - timedelta(minutes=said.late)).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
        row = (name, at, said.total, said.healthy, said.source)
        self.sql.run(
            "INSERT OR REPLACE INTO health_samples (cluster, island, at, total_gpus, healthy_gpus, source)"
            " VALUES (?, 'main', ?, ?, ?, ?)",
            *row,
        )

    def minute(self) -> None:
        """One passes: the watch tells those whose mark has changed, and every rollout does what is due."""
        samples, doubted = self.ledger.health.read(list(self.rollouts)), self.ledger.doubts.doubted_clusters()
        for name, rollout in self.rollouts.items():
            facts = facts_of("", rollout.stage.is_guarded, samples.get(name), (), self.now, doubted.get(name, ""))
            mark = fingerprint(self.ledger.quotas.read(name), facts, self.marks.get(name, ""))
            if mark != self.marks.get(name):
                self.marks[name], self.rollouts[name] = mark, rollout.but(look_asked=True)
            self.run(name)
        self.now += timedelta(minutes=1)

    def promised(self, names: list[str]) -> list[int]:
        rows = dict(self.sql.rows("SELECT cluster, sum(gpus) FROM quotas GROUP BY cluster"))
        return [rows[name] for name in names]

    def holds(self, kind: HoldKind) -> list[str]:
        stand = {name: status_of(r, self.now).holds for name, r in self.rollouts.items()}
        return [name for name, holds in stand.items() if any(h.kind is kind for h in holds)]

    def lines(self, name: str) -> list[str]:
        """Return the command lines that the status prints; the command line takes each as printed."""
        status = status_of(self.rollouts[name], self.now)
        lines = lines_in([status.needs, *status.lifts.values()])
        for line in lines:
            typed(line, "tpm")
        return lines


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Rollout]]:
    """A ledger and its rollouts, to begin each test with."""
    path = tmp_path_factory.mktemp("launched")
    made = Site(path)
    made.launched()
    made.close()
    return path / "ledger.db", made.rollouts


@pytest.fixture
def site(tmp_path: Path, launched: tuple[Path, dict[str, Rollout]]) -> Iterator[Site]:
    ledger, rollouts = launched
    shutil.copy(ledger, tmp_path / "ledger.db")
    made = Site(tmp_path)
    made.rollouts = dict(rollouts)
    made.sql.run("PRAGMA synchronous = OFF")
    yield made
    made.close()


Lie = Callable[[int, int], Said | None]
"""By minute since it began and the cluster's number: what the exporter says; None: nothing."""


def lies(what: str, value: Lie) -> Rubbish:
    return Rubbish(what, value)


FALLS = [
    lies("19 % less, said once", lambda m, n: Said(81) if m == 0 else None),
    lies("19 % less, again and again", lambda m, n: Said(81)),
    lies("zeros", lambda m, n: Said(0)),
    lies("three zeros", lambda m, n: Said(0) if m < 3 else None),
    lies("halves", lambda m, n: Said(50)),
    lies("19 % less each time", lambda m, n: Said(int(100 * 0.81 ** (m + 1)))),
    lies("four GPUs less each minute", lambda m, n: Said(96 - 4 * m)),
    lies("one cluster after the other", lambda m, n: Said(75 if m >= n else 100)),
    lies("a new label, and less", lambda m, n: Said(70, source="dcgm-2")),
    lies("a label for each cluster, and less", lambda m, n: Said(70, source=f"pod-{n}")),
    lies("no label, and less", lambda m, n: Said(70, source="")),
    lies("nodes deleted", lambda m, n: Said(50, total=50)),
]
OTHERS = [
    lies("zeros and truth in turns", lambda m, n: Said(100 * (m % 2))),
    lies("twice as many", lambda m, n: Said(200, total=200)),
    lies("1000 of 1000", lambda m, n: Said(1000, total=1000)),
    lies("an hour old zeros", lambda m, n: Said(0, late=60)),
    lies("zeros of tomorrow", lambda m, n: Said(0, late=-24 * 60)),
    lies("more healthy than there are", lambda m, n: Said(101)),
    lies("negative", lambda m, n: Said(-1)),
    lies("NaN", lambda m, n: Said(float("nan"))),
    lies("infinity", lambda m, n: Said(float("inf"))),
    lies("text", lambda m, n: Said("many")),
    lies("nothing at all", lambda m, n: None),
]


def told(site: Site, lie: Lie) -> dict[int, tuple[list[int], list[int]]]:
    """The lie is told, and one honest cluster loses 20 GPUs; what was promised, by minute."""
    found = {}
    for minute in range(ENDS):
        for number, name in enumerate(LIED_ABOUT):
            said = Said(100) if minute < BEGINS else lie(minute - BEGINS, number)
            if said is not None:
                try:
                    site.say(name, said)
                except sqlite3.Error:
                    continue  # the ledger refuses it: nothing was said
        site.say("b0", Said(100 if minute < BEGINS else 80, source="nvml"))
        site.say("b1", Said(100, source="nvml"))
        site.minute()
        found[minute] = site.promised(LIED_ABOUT), site.promised(HONEST)
    return found


@table([*FALLS, *OTHERS])
def test_a_lie_moves_no_quota_and_an_honest_breach_beside_it_is_answered(rubbish: Rubbish, site: Site) -> None:
    promised = told(site, rubbish.value)
    for minute, (lied_about, honest) in promised.items():
        assert lied_about == [PROMISED] * 6, minute
        assert honest == [80 if minute >= BEGINS + 10 else PROMISED, PROMISED], minute
    installed = {status_of(site.rollouts[name], site.now).total_gpus for name in LIED_ABOUT}
    assert installed == {100}, "T moves by import alone"
    if rubbish in FALLS:
        assert set(LIED_ABOUT) <= set(site.holds(HoldKind.UNKNOWN_HEALTH))
        (doubt, *_) = site.ledger.doubts.sources_in_doubt()
        assert set(doubt.clusters) == set(LIED_ABOUT)
        for name in LIED_ABOUT:
            assert f'backstop confirm --source {doubt.source} --reason "..."' in site.lines(name)
    threw("an exporter")


def test_what_a_person_confirms_counts_and_past_three_breaches_an_hour_a_person_is_called(site: Site) -> None:
    """One honest breach was answered in the same hour: two more of the fleet may be, then each takes a person."""
    told(site, lambda m, n: Said(60))
    confirmed = site.ledger.doubts.confirm("dcgm", "oncall")
    assert confirmed.clusters == tuple(LIED_ABOUT)
    assert site.ledger.doubts.confirm("dcgm", "oncall").clusters == confirmed.clusters, "the same call, tried again"
    with pytest.raises(Refusal, match=r"^source 'dcgm' is not in doubt; sources in doubt: none$"):
        site.ledger.doubts.confirm("dcgm", "somebody else")
    for _ in range(12):
        for name in LIED_ABOUT:
            site.say(name, Said(60))
        site.minute()
    cut = [name for name, gpus in zip(LIED_ABOUT, site.promised(LIED_ABOUT), strict=True) if gpus == 60]
    held = [name for name in LIED_ABOUT if name not in cut]
    assert (len(cut), site.promised(held)) == (2, [PROMISED] * 4)
    assert site.holds(HoldKind.BLAST_RADIUS) == held
    assert f'backstop resolve {held[0]} --hold rollback --reason "..."' in site.lines(held[0])
    site.command(held[0], Command.RESOLVE, hold="rollback", reason="the hall is dark")
    assert site.promised(held) == [60, PROMISED, PROMISED, PROMISED]


def test_a_source_that_is_mended_is_believed_by_itself_and_judged_anew(site: Site) -> None:
    told(site, lambda m, n: Said(0))
    for name in LIED_ABOUT:
        site.say(name, Said(98))
    site.minute()
    assert site.ledger.doubts.sources_in_doubt() == ()
    assert site.holds(HoldKind.UNKNOWN_HEALTH) == []
    for name in LIED_ABOUT[:2]:
        site.say(name, Said(83))
    for _ in range(11):
        site.minute()
    assert site.promised(LIED_ABOUT) == [83, 83, PROMISED, PROMISED, PROMISED, PROMISED]


def test_what_declared_windows_take_is_no_fall(site: Site) -> None:
    window = Window(kind=WindowKind.MAINTENANCE, starts=T0, ends=T0 + timedelta(hours=8), reason="new switches")
    site.ledger.fleet.declare(
        [Declared(source="hold 1", windows=tuple((name, window) for name in LIED_ABOUT))], "oncall", T0
    )
    told(site, lambda m, n: Said(60))
    assert site.ledger.doubts.sources_in_doubt() == ()


def test_a_lie_that_ends_between_reading_and_judging_is_not_believed(tmp_path: Path) -> None:
    """The source is judged by what it says by then, and that is true again: so is what is told."""
    site = Site(tmp_path)
    try:
        site.launched()
        site.now += timedelta(minutes=1)
        for name in LIED_ABOUT:
            site.say(name, Said(0))
        doubts = site.clusters.ports.doubts

        class Delayed:
            def doubt(self, *asked: Any) -> Doubt | None:
                for name in LIED_ABOUT:
                    site.say(name, Said(100))
                return doubts.doubt(*asked)

        site.now += timedelta(minutes=1)
        site.clusters.ports = replace(site.clusters.ports, doubts=cast("DoubtPort", Delayed()))
        seen = site.clusters.observe(request_builders.look_at(site.rollouts["a0"], Look("told to", None), site.now))
        assert seen.doubt is None
        assert seen.health is not None
        assert seen.health.healthy_gpus == 100
    finally:
        site.close()
