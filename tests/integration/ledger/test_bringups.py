"""The book of bring-ups on both databases: opened, noted, handed over, owed and granted, and out of the fleet again.

Eight nodes of 8 GPUs are ordered, the buffer is 15%, a node is spared: planned C = min(floor(0.85 * 64), 56) = 54.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from activities.adapters.ledger.facade import Ledger
from activities.bringup.handover import FleetBringups
from activities.requests.calls import RequestActivities
from activities.rollout.cluster_calls import ClusterActivities
from models.audit_chain import AuditEntry, AuditKind, Signature, broken_links
from models.bringup import reducers
from models.bringup.messages import (
    BringupRecord,
    BringupRow,
    BringupStart,
    HandedOver,
    HandOverRequest,
    WindDownRequest,
    WoundDown,
)
from models.bringup.stages import BringupStage
from models.bringup.status import row_of
from models.cluster.fleet_file import ClusterSpec
from models.cluster.import_outcome import Verb
from models.cluster.island import Island
from models.cluster.readings import HealthSample
from models.cluster.sources import SlurmSource
from models.errors import Conflict, Refusal, Unavailable
from models.planning.grants import Granted, GrantOrder, GrantOutcome
from models.planning.plan import make_plan
from models.requests.messages import AssessRequest, PrepareRequest
from models.requests.state import QuotaAsk
from models.rollout.commands import CommandRequest
from models.rollout.effects import EffectKind, Reserve
from models.rollout.messages import LaunchAnswer, LaunchRequest
from models.rollout.stages import Command, Stage
from tests.integration.ledger.world import (
    NOW,
    ForeignTool,
    baseline,
    effect,
    fleet,
    import_fleet,
    note_stage,
    opening,
    take,
    twice,
    values,
)
from tests.tried import examples
from tests.unit.bringup_world import entry, recipe

NEW = "h100-new"
A_AND_B = [{"team": "a", "gpus": 30}, {"team": "b", "gpus": 24}]
UNTIL = NOW + timedelta(days=90)


class Rollouts:
    """A fake of rollouts: it notes calls, and writes grants as an open rollout does, under its fence, by the ledger."""

    def __init__(self, ledger: Ledger, clusters: ClusterActivities) -> None:
        self.ledger, self.clusters = ledger, clusters
        self.said: list[Any] = []
        self.counter = 0
        self.answer = GrantOutcome.DONE

    def grant(self, cluster: str, order: GrantOrder) -> Granted:
        self.said.append((order.request, order.team, order.gpus))
        if self.answer is not GrantOutcome.DONE:
            return Granted(request=order.request, outcome=self.answer, said="not now")
        self.counter += 1
        before = self.ledger.quotas.read(cluster).values[order.team]
        change = effect(
            EffectKind.GRANT,
            self.counter,
            writes=values((order.team, before, before + order.gpus)),
            reserve=Reserve(freed_gpus=0, limit_gpus=1000),
        )
        self.ledger.quotas.apply(change.model_copy(update={"cluster": cluster}))
        return Granted(request=order.request, outcome=self.answer, said="done", raised={order.team: order.gpus})

    def launch(self, request: LaunchRequest) -> LaunchAnswer:
        self.said.append(request)
        snapshot, policy = self.clusters.present(request.cluster, NOW, request.policy)
        opened = opening(self.ledger, request.rollout, request.cluster)
        self.ledger.registry.open_rollout(opened, adopt=False)
        return LaunchAnswer(
            launched=True,
            rollout=request.rollout,
            cluster=request.cluster,
            stage=Stage.PLANNED,
            plan=make_plan(snapshot, policy),
        )

    def command(self, cluster: str, command: Command, request: CommandRequest) -> str:
        self.said.append((command, request.actor, request.plan_hash))
        opened = self.ledger.registry.open_rollout_of(cluster)
        if command is Command.CLOSE and opened is not None:
            note_stage(self.ledger, opened.rollout, "closed", True, True)
        return ""


class Slurm:
    """A Slurm cluster's description of itself."""

    def __init__(self, **limits: int) -> None:
        self.limits = limits
        self.uses = 0
        self.answers = True

    def quotas_at(self, cluster: str, source: Any) -> dict[str, int]:
        return self.limits

    def describe(self, cluster: str, source: Any) -> ClusterSpec:
        if not self.answers:
            raise Unavailable("squeue does not answer")
        quotas = [{"team": t, "gpus": g, "scheduled_gpus": self.uses} for t, g in self.limits.items()]
        islands = [island(8).model_dump()]
        return ClusterSpec.model_validate({"name": cluster, "islands": islands, "quotas": quotas, "slurm": source})


class Book:
    """The book with all its ports on the ledger; no Temporal."""

    def __init__(self, ledger: Ledger, schedulers: Any = None, **limits: int) -> None:
        self.ledger, self.now = ledger, NOW + timedelta(days=1)
        self.clusters = ClusterActivities(ledger.ports)
        self.rollouts = Rollouts(ledger, self.clusters)
        self.slurm = Slurm(**limits)
        self.book = FleetBringups(
            ledger.bringups,
            ledger.ports,
            schedulers or self.slurm,  # type: ignore[arg-type]
            self.clusters,
            self.rollouts,
            now=lambda: self.now,
        )

    def hand_over(
        self,
        came: Iterable[Island],
        granted: dict[str, int] | None = None,
        at: datetime = NOW,
        number: int = 1,
        **said: Any,
    ) -> HandedOver:
        request = HandOverRequest(
            entry=entry(**{"quotas": A_AND_B, "owed_until": UNTIL} | said),
            number=number,
            islands=tuple(came),
            granted=granted,
            actor="ada",
            at=at,
        )
        return self.book.hand_over(request) if granted is None else self.book.grant_owed(request)

    def requests(self) -> RequestActivities:
        client: Any = None
        return RequestActivities(client, self.ledger.ports, self.clusters, self.ledger.bringups.owed_gpus)


def island(nodes: int, healthy: int | None = None, name: str = "main") -> Island:
    return Island(name=name, total_gpus=8 * nodes, healthy_gpus=8 * nodes if healthy is None else healthy)


def start(**said: Any) -> BringupStart:
    return BringupStart(entry=entry(**said), recipe=recipe(), actor="ada")


def opened(ledger: Ledger, **said: Any) -> int:
    answer = ledger.bringups.open_bringup(start(**{"quotas": A_AND_B, "owed_until": UNTIL} | said), NOW)
    assert not answer.refused
    return answer.number


def row(stage: BringupStage, number: int = 1, **more: Any) -> BringupRow:
    return BringupRow.model_validate(
        {
            "cluster": NEW,
            "number": number,
            "recipe": "bare-metal",
            "recipe_hash": "h",
            "owner": "tpm",
            "entered_by": "ada",
            "entered_at": NOW,
            "stage": stage,
            "stage_at": NOW,
            "nodes": 8,
            "gpus": 64,
            **more,
        }
    )


def noted(ledger: Ledger, stage: BringupStage, number: int = 1, *keys: str) -> None:
    entries = tuple(
        AuditEntry(key=key, cluster=NEW, at=NOW, kind=AuditKind.TRANSITION, actor="ada", text=key) for key in keys
    )
    record = BringupRecord(row=row(stage, number), entries=entries)
    twice(lambda: ledger.bringups.note_bringup(record))


@pytest.mark.parametrize("stage", [BringupStage.PLANNED, BringupStage.CANCELLED])
def test_how_long_one_waits_is_counted_when_the_board_is_read(
    empty_ledger: Ledger, ledger_url: str, stage: BringupStage
) -> None:
    """Nothing happens to the bring-up for a month, so nothing is written."""
    empty_ledger.bringups.open_bringup(start(), NOW)
    bringup = reducers.open_bringup(start(), 1, NOW)
    later = NOW + timedelta(hours=2)
    told = row_of(bringup, later)
    if stage is not BringupStage.PLANNED:
        told = told.but(stage=stage)
    empty_ledger.bringups.note_bringup(BringupRecord(row=told, entries=()))
    with Ledger(ledger_url, now=lambda: NOW + timedelta(days=30)) as read_later:
        (board,) = read_later.bringups.bringups(ended=True)
    whole = timedelta(days=30) if stage is BringupStage.PLANNED else timedelta(hours=2)
    assert (board.lasted, board.waited) == ({BringupStage.PLANNED: whole}, {"supply": whole})
    assert board.stage_at == NOW


def quotas_of(tool: ForeignTool) -> dict[str, int]:
    return dict(tool.rows("SELECT team, gpus FROM quotas WHERE cluster = ?", NEW))


def owed_of(tool: ForeignTool) -> dict[str, tuple[int, int]]:
    return {t: (w, g) for t, w, g in tool.rows("SELECT team, wanted_gpus, granted_gpus FROM owed ORDER BY team")}


def keys_of(tool: ForeignTool) -> list[str]:
    return [key for (key,) in tool.rows("SELECT key FROM audit WHERE cluster = ? ORDER BY seq", NEW)]


def grants_of(tool: ForeignTool) -> list[Any]:
    entries = (json.loads(e) for (e,) in tool.rows("SELECT entry FROM audit WHERE cluster = ? ORDER BY seq", NEW))
    return [entry for entry in entries if entry["data"].get("command") == "grant_owed"]


def lost(*_: Any) -> None:
    raise Unavailable("the worker died before it could write this")


# --- the book ---------------------------------------------------------------------------------------


def test_a_cluster_has_one_bring_up_at_once_and_its_numbers_count_on(ledger: Ledger, tool: ForeignTool) -> None:
    first = twice(lambda: ledger.bringups.open_bringup(start(), NOW))
    assert (first.number, first.refused) == (1, "")
    second = ledger.bringups.open_bringup(start(nodes=9), NOW)
    assert second.refused == ("bring-up 1 of h100-new is open (planned): `backstop bringup status h100-new` shows it")
    noted(ledger, BringupStage.CANCELLED)
    again = ledger.bringups.open_bringup(start(), NOW + timedelta(minutes=1))
    assert (again.number, again.refused) == (2, "")
    assert tool.rows("SELECT number, stage, ended_at IS NULL FROM bringups ORDER BY number") == [
        (1, "cancelled", False),
        (2, "planned", True),
    ]


@pytest.mark.parametrize("entered_again", [0, 5], ids=["entered-once", "entered-again-while-open"])
def test_an_attempt_to_open_it_that_comes_after_its_end_opens_none(
    ledger: Ledger, tool: ForeignTool, entered_again: int
) -> None:
    """Nobody would drive such a bring-up. `entered_again`: minutes later, once its workflow was lost."""
    calls = [NOW, NOW + timedelta(minutes=entered_again)]
    for at in (*calls, NOW):
        assert ledger.bringups.open_bringup(start(), at).number == 1
    noted(ledger, BringupStage.CANCELLED)
    for at in calls:
        late = twice(partial(ledger.bringups.open_bringup, start(), at))
        assert late.refused == (
            "bring-up 1 of h100-new was opened in the meantime, and has already ended: run `backstop bringup add` again"
        )
    assert tool.rows("SELECT number, stage FROM bringups") == [(1, "cancelled")]
    assert ledger.bringups.open_bringup(start(), NOW + timedelta(minutes=6)).number == 2


def test_the_database_itself_keeps_to_one_open_bring_up(ledger: Ledger, tool: ForeignTool) -> None:
    opened(ledger)
    columns = "cluster, number, opening, opened_at, stage, stage_at, board"
    other = columns.replace("number, opening", "2, 'x'")
    assert tool.refused(f"INSERT INTO bringups ({columns}) SELECT {other} FROM bringups")
    assert tool.refused("UPDATE bringups SET number = 0")
    assert tool.refused("UPDATE bringups SET board = 'none'")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            {"cluster": "beta"},
            "beta is already in the fleet: a bring-up is only for a new cluster",
        ),
        (
            {"quotas": [{"team": "a", "gpus": 55}]},
            "quotas sum to 55, 1 GPU above the 54 that h100-new may promise of the 64 ordered: lower them",
        ),
        # The entry's own policy lies over the fleet's: min(floor(0.5 * 64), 56) = 32.
        (
            {"quotas": [{"team": "a", "gpus": 33}], "policy": {"buffer": 0.5}},
            "quotas sum to 33, 1 GPU above the 32 that h100-new may promise of the 64 ordered: lower them",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    ledger: Ledger, tool: ForeignTool, said: dict[str, Any], sentence: str
) -> None:
    assert ledger.bringups.open_bringup(start(**said), NOW).refused == sentence
    assert tool.one("SELECT count(*) FROM bringups") == 0


def test_what_is_noted_is_on_the_board_and_in_the_chain_once(ledger: Ledger, tool: ForeignTool) -> None:
    opened(ledger)
    assert [(r.cluster, r.stage, r.recipe) for r in ledger.bringups.bringups(False)] == [
        (NEW, BringupStage.PLANNED, "bare-metal")
    ]
    noted(ledger, BringupStage.PROVISIONING, 1, "bringup/h100-new/1/000001", "bringup/h100-new/1/000002")
    assert keys_of(tool) == ["bringup/h100-new/1/000001", "bringup/h100-new/1/000002"]
    assert broken_links(ledger.registry.entries_after(NEW, 0, 99), ledger.registry.chain_head(NEW)) == []
    noted(ledger, BringupStage.CANCELLED)
    noted(ledger, BringupStage.PROVISIONING, 1, "late")
    assert (ledger.bringups.bringups(False), "late" in keys_of(tool)) == ((), True)
    assert [r.stage for r in ledger.bringups.bringups(True)] == [BringupStage.CANCELLED]


def test_a_late_note_does_not_put_the_board_back(ledger: Ledger, tool: ForeignTool) -> None:
    opened(ledger)

    def note(stage: BringupStage, minutes: int, waits_for: str) -> tuple[str, str]:
        told = row(stage, waits_for=waits_for, accounted_at=NOW + timedelta(minutes=minutes))
        twice(lambda: ledger.bringups.note_bringup(BringupRecord(row=told, entries=())))
        stage_now, board = tool.rows("SELECT stage, board FROM bringups")[0]
        return stage_now, json.loads(board)["waits_for"]

    assert note(BringupStage.PLANNED, 0, "the supply") == ("planned", "the supply")
    assert note(BringupStage.IN_PRODUCTION, 5, "") == ("in_production", "")
    assert note(BringupStage.PROVISIONING, 3, "nodes") == ("in_production", "")
    assert note(BringupStage.IN_PRODUCTION, 5, "more") == ("in_production", "more")


def test_a_call_of_an_earlier_bring_up_does_nothing_to_the_cluster_of_a_later_one(
    ledger: Ledger, tool: ForeignTool
) -> None:
    opened(ledger)
    book = Book(ledger)
    noted(ledger, BringupStage.CANCELLED)

    def bring_in() -> HandedOver:
        return book.hand_over([island(8)])  # of the first

    with pytest.raises(Conflict, match="bring-up 1 of h100-new has ended"):
        bring_in()
    assert tool.one("SELECT count(*) FROM clusters WHERE name = ?", NEW) == 0
    assert ledger.bringups.open_bringup(start(owed_until=UNTIL, quotas=A_AND_B), NOW + timedelta(days=9)).number == 2
    with pytest.raises(Conflict, match="bring-up 1 of h100-new has ended"):
        bring_in()
    came = book.hand_over([island(7)], number=2)
    stands, owed = {"a": 26, "b": 21}, {"a": (30, 26), "b": (24, 21)}
    assert (quotas_of(tool), owed_of(tool), came.granted) == (stands, owed, stands)
    dump = [tool.rows(f"SELECT * FROM {table} ORDER BY 1, 2") for table in ("quotas", "islands", "owed", "rollouts")]
    for islands in (7, 9):
        assert book.hand_over([island(islands)], {"a": 0, "b": 0}).said == "nothing is owed"
    book.book.record(BringupRecord(row=row(BringupStage.RETIRED), entries=()))
    assert wind(book).said == "it is out of the fleet"
    assert book.rollouts.said == []
    now = [tool.rows(f"SELECT * FROM {table} ORDER BY 1, 2") for table in ("quotas", "islands", "owed", "rollouts")]
    assert now == dump
    assert tool.rows("SELECT number, stage FROM bringups ORDER BY 1") == [(1, "retired"), (2, "planned")]
    assert wind(book, number=2).quota_gpus == 47


def test_one_whose_workflow_is_gone_is_given_up_and_says_so(ledger: Ledger, tool: ForeignTool) -> None:
    opened(ledger)
    by = Signature("ada", NOW, "desk/1", "its Temporal was lost")
    assert twice(lambda: ledger.bringups.give_up(NEW, by)).stage is BringupStage.CANCELLED
    assert ledger.bringups.bringups(False) == ()
    text = json.loads(tool.one("SELECT entry FROM audit WHERE cluster = ?", NEW))["text"]
    assert text == "bring-up 1 is given up while planned: nothing that it made was torn down"
    assert not ledger.bringups.open_bringup(start(), NOW + timedelta(minutes=1)).refused
    with pytest.raises(Refusal, match="there was never a bring-up of beta"):
        ledger.bringups.give_up("beta", by)


@pytest.mark.parametrize("stage", [BringupStage.IN_PRODUCTION, BringupStage.RETIRING])
def test_a_late_call_of_one_that_was_given_up_does_nothing_though_none_followed(
    ledger: Ledger, tool: ForeignTool, stage: BringupStage
) -> None:
    opened(ledger)
    book = Book(ledger)
    book.hand_over([island(7)])
    noted(ledger, stage)
    given_up = Signature("ada", NOW + timedelta(hours=1), "desk/1", "its Temporal was lost")
    ledger.bringups.give_up(NEW, given_up)
    tables = ("quotas", "islands", "owed", "rollouts", "bringups", "clusters")
    dump = [tool.rows(f"SELECT * FROM {table} ORDER BY 1, 2") for table in tables]
    assert book.hand_over([island(9)], {"a": 0, "b": 0}).said == "nothing is owed"
    wind(book)
    book.book.record(BringupRecord(row=row(BringupStage.RETIRED), entries=()))
    assert [tool.rows(f"SELECT * FROM {table} ORDER BY 1, 2") for table in tables] == dump
    assert book.rollouts.said == []


# --- into the fleet ---------------------------------------------------------------------------------


def test_fewer_nodes_came_and_the_division_is_the_one_made_by_hand(ledger: Ledger, tool: ForeignTool) -> None:
    """T = 48: C = min(floor(40.8), 40) = 40 of 54, 14 to cut, all of it unscheduled: weights 30 and 24.

    The 14 largest of 30, 10, 6, 4.29, 3.33, 2.73, 2.31, 2.0 (8 of a) and 24, 8, 4.8, 3.43, 2.67, 2.18 (6 of b).
    """
    opened(ledger)
    book = Book(ledger)
    handed = twice(lambda: book.hand_over([island(6)]))
    assert (handed.granted, handed.owed) == ({"a": 22, "b": 18}, {"a": 8, "b": 6})
    assert quotas_of(tool) == {"a": 22, "b": 18}
    assert owed_of(tool) == {"a": (30, 22), "b": (24, 18)}
    assert tool.rows("SELECT name, total_gpus FROM islands WHERE cluster = ?", NEW) == [("main", 48)]
    assert tool.one("SELECT gpus_per_node FROM clusters WHERE name = ?", NEW) == 8
    assert tool.one("SELECT healthy_gpus FROM health_samples WHERE cluster = ?", NEW) == 48
    assert tool.one("SELECT actor FROM imports WHERE import_id = 'bringup/h100-new/1'") == "ada"
    (told,) = (json.loads(text) for (text,) in tool.rows("SELECT entry FROM audit WHERE cluster = ?", NEW))
    assert (told["key"], told["actor"], told["data"]["plan"]) == (
        "bringup/h100-new/1/handed-over",
        "ada",
        handed.plan_hash,
    )
    assert handed.said == (
        "1 island, 48 GPUs installed; first quotas of 40 GPUs, advisory; the cluster may promise 40 GPUs; "
        "14 GPUs of the entry are owed until 2026-05-30"
    )


@pytest.mark.parametrize(
    ("came", "quotas", "stands"),
    [
        # x has 2 of its 4 nodes. T = 48, C = 40, A = 54; on x at most 16 stand, so a gives 14 first: that makes 40.
        (
            (island(2, name="x"), island(4, name="y")),
            [{"team": "a", "gpus": 30, "islands": ["x"]}, A_AND_B[1]],
            (16, 24),
        ),
        # A floor that what came cannot carry gives way: one node of 8, C = min(6, 0) = 0.
        ((island(1, name="x"),), [A_AND_B[0] | {"minimum_gpus": 30}, A_AND_B[1]], (0, 0)),
        # A block of 24 finds its place in 4 nodes, and the rest is cut: T = 32, C = min(27, 24) = 24. All of the cut of
        # 30 would be a's 6 loose ones and b's 24.
        ((island(4, name="x"),), [A_AND_B[0] | {"protected_blocks": [24]}, A_AND_B[1]], (24, 0)),
        # One of 30 does not, once C = 24 is less: it is left out, and 30 and 24 give 30: 17 and 13 (30/33 < 24/25).
        ((island(4, name="x"),), [A_AND_B[0] | {"protected_blocks": [30]}, A_AND_B[1]], (13, 11)),
    ],
    ids=["short-island", "floor", "block-that-fits", "block-that-does-not"],
)
def test_what_came_limits_what_stands(
    ledger: Ledger, tool: ForeignTool, came: tuple[Island, ...], quotas: list[Any], stands: tuple[int, int]
) -> None:
    ordered = [{"name": "x", "nodes": 4}, {"name": "y", "nodes": 4}]
    Book(ledger).hand_over(came, quotas=quotas, islands=ordered)
    assert quotas_of(tool) == dict(zip("ab", stands, strict=True))


def test_a_file_may_not_bring_in_what_is_being_made_and_what_was_made_leaves_by_its_bring_up(ledger: Ledger) -> None:
    opened(ledger)
    document = fleet()
    document["clusters"][1]["name"] = NEW
    (line,) = take(ledger, document).of(Verb.REFUSED)
    assert line.why == "its bring-up is open and will bring it into the fleet: `backstop bringup status h100-new`"
    Book(ledger).hand_over([island(8)])
    with pytest.raises(Refusal, match="its bring-up is open: `backstop bringup retire h100-new` takes the cluster out"):
        ledger.fleet.remove_cluster(NEW, Signature("tpm", NOW, "desk/1"), dry_run=False)


def test_one_that_somebody_else_brought_in_is_not_taken_over(ledger: Ledger) -> None:
    document = fleet()
    document["clusters"][1]["name"] = NEW
    import_fleet(ledger, document, "other")
    with pytest.raises(Refusal, match="is in the fleet already, but its bring-up did not bring it there"):
        Book(ledger).hand_over([island(8)])


def test_slurms_limits_are_what_stands_and_what_the_entry_wants_above_is_granted(
    ledger: Ledger, tool: ForeignTool
) -> None:
    opened(ledger)
    slurm: dict[str, Any] = {"slurm": {}}
    with pytest.raises(Refusal, match="Slurm has no account for b in h100-new: create the accounts"):
        Book(ledger, a=10).hand_over([island(8)], **slurm)
    with pytest.raises(
        Refusal,
        match="sum to 55 GPUs, but the cluster may promise at most 54 GPUs, "
        "each with a healthy GPU behind it: lower the limits",
    ):
        Book(ledger, a=31, b=24).hand_over([island(8)], **slurm)
    assert quotas_of(tool) == {}
    book = Book(ledger, a=10, b=24, other=4)
    handed = book.hand_over([island(8)], **slurm)
    # A = 38 stands, of 54: the 16 that are left are a's, who wants 20 more.
    assert (handed.granted, handed.owed) == ({"a": 26, "b": 24}, {"a": 4})
    assert quotas_of(tool) == {"a": 26, "b": 24, "other": 4}
    assert book.hand_over([island(8)], **slurm).granted == handed.granted
    assert quotas_of(tool) == {"a": 26, "b": 24, "other": 4}


GIT = {"repository": "/srv/quotas.git", "path": "h100.yaml", "pointer": "/teams/{team}/gpus"}


def test_a_cluster_of_kubernetes_and_git_comes_in_with_both_sources_and_git_has_the_quotas(
    ledger: Ledger, tool: ForeignTool
) -> None:
    sources: dict[str, Any] = {"git": GIT, "kubernetes": {"connection": "east", "use": "kueue"}}
    opened(ledger, quotas=[], owed_until=None, **sources)
    handed = twice(lambda: Book(ledger).hand_over([island(8)], quotas=[], owed_until=None, **sources))
    assert (handed.granted, handed.owed, quotas_of(tool)) == ({}, {}, {})
    row = tool.rows("SELECT source, health_source FROM clusters WHERE name = ?", NEW)[0]
    git, kubernetes = (json.loads(str(text)) for text in row)
    assert git == GIT
    assert (kubernetes["connection"], kubernetes["use"]) == ("east", "kueue")


def test_a_cluster_whose_quotas_kueue_has_comes_in_with_it(ledger: Ledger, tool: ForeignTool) -> None:
    opened(ledger, quotas=[], owed_until=None, kueue={"connection": "east"})
    handed = twice(
        lambda: Book(ledger).hand_over([island(8)], quotas=[], owed_until=None, kueue={"connection": "east"})
    )
    assert (handed.granted, handed.owed, quotas_of(tool)) == ({}, {}, {})
    ((text,),) = tool.rows("SELECT source FROM clusters WHERE name = ?", NEW)
    assert json.loads(str(text)) == {"connection": "east", "resource": "nvidia.com/gpu"}


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"git": GIT, "quotas": A_AND_B}, "must be left out: Backstop reads them from git"),
        ({"git": GIT, "slurm": {}}, "cannot be given together with slurm: only one source can hold the quotas"),
        ({"kueue": {}, "git": GIT}, "cannot be given together with git: only one source can hold the quotas"),
        ({"kueue": {}, "quotas": A_AND_B}, "must be left out: Backstop reads them from kueue"),
        (
            {"kubernetes": {}, "prometheus": {}},
            "cannot be given together with prometheus: only one source can report the health",
        ),
        ({"kubernetes": {}, "slurm": {}}, "cannot be given together with slurm: only one source can report the health"),
    ],
)
def test_an_entry_has_one_source_of_each(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        entry(**more)


# --- what is owed -----------------------------------------------------------------------------------


def test_when_the_rest_comes_what_is_owed_is_granted_once_with_a_receipt(ledger: Ledger, tool: ForeignTool) -> None:
    """T = 56: C = min(47, 48) = 47; from 54 are cut 7 (4 of a, 3 of b): 26 and 21. T = 64: 30 and 24."""
    opened(ledger)
    book = Book(ledger)
    first = book.hand_over([island(6)])
    some = book.hand_over([island(7)], first.granted)
    assert (some.granted, some.owed) == ({"a": 26, "b": 21}, {"a": 4, "b": 3})
    # Its answer was lost: whoever asks again still says what was granted before.
    assert book.hand_over([island(7)], first.granted).granted == some.granted
    assert quotas_of(tool) == {"a": 26, "b": 21}
    assert book.hand_over([island(8)], some.granted).owed == {}
    assert quotas_of(tool) == {"a": 30, "b": 24}
    assert tool.one("SELECT total_gpus FROM islands WHERE cluster = ?", NEW) == 64
    fences = tool.rows("SELECT rollout, counter FROM grant_receipts ORDER BY counter")
    assert fences == [("bringup/h100-new/1", 1), ("bringup/h100-new/1", 2)]
    assert keys_of(tool)[1:] == ["bringup/h100-new/1/owed/1", "bringup/h100-new/1/owed/2"]
    assert book.hand_over([island(20)], {"a": 30, "b": 24}).granted == {"a": 30, "b": 24}, "never above the entry's"


def test_a_grant_that_landed_and_was_not_noted_is_not_made_twice(ledger: Ledger, tool: ForeignTool) -> None:
    opened(ledger)
    book = Book(ledger)
    first = book.hand_over([island(6)])
    book.hand_over([island(7)], first.granted)
    tool.run("UPDATE bringups SET orders = 0")  # as if the worker had died between the two
    tool.run("UPDATE owed SET granted_gpus = 22 WHERE team = 'a'")
    tool.run("UPDATE owed SET granted_gpus = 18 WHERE team = 'b'")
    book.hand_over([island(7)], first.granted)
    assert quotas_of(tool) == {"a": 26, "b": 21}
    assert owed_of(tool) == {"a": (30, 26), "b": (24, 21)}


def test_an_attempt_that_another_overtook_does_not_say_that_quotas_take_all(
    ledger: Ledger, tool: ForeignTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt has read what is owed, and before it looks at the quotas the second grants all of it."""
    opened(ledger)
    book = Book(ledger)
    first = book.hand_over([island(6)])
    present = book.clusters.present

    def overtaken(*read: Any) -> Any:
        monkeypatch.setattr(book.clusters, "present", present)
        assert book.hand_over([island(8)], first.granted).said == "a 8 GPUs more, b 6 GPUs more"
        return present(*read)

    monkeypatch.setattr(book.clusters, "present", overtaken)
    with pytest.raises(Unavailable, match="another attempt has just written first quotas of h100-new"):
        book.hand_over([island(8)], first.granted)
    assert book.hand_over([island(8)], first.granted).said == "all that was owed is granted"
    assert quotas_of(tool) == {"a": 30, "b": 24}
    (note,) = grants_of(tool)
    assert note["text"] == "owed, and granted now by itself: a 8 GPUs more, b 6 GPUs more"


def test_a_grant_that_a_later_call_records_reads_as_the_grants_own_call_writes_it(
    ledger: Ledger, tool: ForeignTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker dies between the grant and its record: the next call writes the entry as that worker would have."""
    opened(ledger)
    book = Book(ledger)
    first = book.hand_over([island(6)])
    with monkeypatch.context() as dying:
        dying.setattr(ledger.bringups, "note_granted", lost)
        with pytest.raises(Unavailable):
            book.hand_over([island(7)], first.granted)
    assert owed_of(tool) == {"a": (30, 22), "b": (24, 18)}, "nothing was recorded"
    book.hand_over([island(7)], first.granted)
    (note,) = grants_of(tool)
    assert note["text"] == "owed, and granted now by itself: a 4 GPUs more, b 3 GPUs more"
    assert len(note["data"]["plan"]) == 16, "the hash of the plan that it was granted by"


def test_while_a_rollout_is_on_its_way_it_waits_and_a_monitored_one_writes_it(
    ledger: Ledger, tool: ForeignTool
) -> None:
    opened(ledger)
    book = Book(ledger)
    first = book.hand_over([island(6)])
    ledger.registry.open_rollout(opening(ledger, "r-1", NEW), adopt=False)
    note_stage(ledger, "r-1", "buffered", False, False)
    with pytest.raises(
        Unavailable,
        match="h100-new is buffered: the rest of the quotas is written once the rollout is monitored or over",
    ):
        book.hand_over([island(7)], first.granted)
    assert quotas_of(tool) == {"a": 22, "b": 18}
    note_stage(ledger, "r-1", "monitored", False, False)
    book.rollouts.answer = GrantOutcome.LATER
    with pytest.raises(Unavailable, match="not now"):
        book.hand_over([island(7)], first.granted)
    book.rollouts.answer, book.rollouts.said = GrantOutcome.DONE, []
    some = book.hand_over([island(7)], first.granted)
    assert [(team, gpus) for _, team, gpus in book.rollouts.said] == [("a", 4), ("b", 3)]
    assert (quotas_of(tool), some.owed) == ({"a": 26, "b": 21}, {"a": 4, "b": 3})
    assert tool.one("SELECT orders FROM bringups") == 2


def test_what_is_owed_waits_for_a_ledger_that_has_not_seen_yet_what_its_check_saw(ledger: Ledger) -> None:
    """Of 64 GPUs 48 are healthy: C = 40. Two nodes register; the check sees it before the ledger's own source does."""
    opened(ledger)
    book = Book(ledger)
    first = book.hand_over([island(8, healthy=48)])
    assert first.granted == {"a": 22, "b": 18}
    behind = "the capacity check of h100-new found 64 healthy GPUs, but the ledger has only 48 so far"
    for book.now in (NOW, NOW + timedelta(seconds=119)):
        with pytest.raises(Unavailable, match=behind):
            book.hand_over([island(8)], first.granted)
    book.now = NOW + timedelta(minutes=2)
    assert book.hand_over([island(8)], first.granted).owed == first.owed
    book.now = NOW
    seen = HealthSample(cluster=NEW, at=NOW + timedelta(minutes=1), islands=(island(8),))
    ledger.fleet.add_health([seen], "exporter")
    assert book.hand_over([island(8)], first.granted).owed == {}


def test_what_is_owed_goes_before_a_request_that_came_later(ledger: Ledger) -> None:
    opened(ledger)
    book = Book(ledger)
    said: dict[str, Any] = {"policy": {"owners": ["boss"]}}
    first = book.hand_over([island(6)], **said)
    book.ledger.bringups.add_islands(NEW, [island(8)], "ada", NOW)  # C = 54, 40 stand: 14 free, and all of them owed
    ask = QuotaAsk(request="q-1", team="b", cluster=NEW, gpus=4, actor="bo")
    told = book.requests().assess(AssessRequest(ask=ask, at=NOW))
    assert not told.fits
    assert told.why == (
        "h100-new may promise 54 GPUs, and 54 are spoken for; 14 GPUs are kept for the rest of the cluster's "
        "first quotas"
    )
    order = GrantOrder(request="q-1", team="b", gpus=4, actor="boss")
    prepared = book.requests().prepare(PrepareRequest(order=order, cluster=NEW, fence=1, at=NOW))
    assert (prepared.outcome, prepared.change) == (GrantOutcome.NO, None)
    ledger.registry.open_rollout(opening(ledger, "r-1", NEW), adopt=False)
    note_stage(ledger, "r-1", "monitored", False, False)
    assert not book.requests().prepare(PrepareRequest(order=order, cluster=NEW, fence=1, at=NOW)).through
    assert book.hand_over([island(8)], first.granted, **said).owed == {}
    assert ledger.bringups.owed_gpus(NEW, NOW) == {}
    assert ledger.bringups.owed_gpus(NEW, UNTIL) == {}, "after its date nothing is owed"


ORDERED: dict[str, Any] = {"islands": [{"name": "x", "nodes": 6}, {"name": "y", "nodes": 6}], "nodes": 12}


@given(
    wanted=st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 30)),
    came=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 8)), min_size=1, max_size=4),
    floor=st.integers(0, 20),
    taken=st.integers(0, 12),
)
@settings(
    max_examples=examples(80),
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@pytest.mark.fuzzed
def test_the_sum_is_never_above_what_may_be_promised(
    sqlite_ledger_url: str, wanted: tuple[int, int, int], came: list[tuple[int, int, int]], floor: int, taken: int
) -> None:
    """Values change in any order, hardware fails, and others get grants in between: by plain SQL, and C by hand."""
    tool = ForeignTool(sqlite_ledger_url)
    for table in ("owed", "quotas", "health_samples", "islands", "grant_receipts", "imports", "bringups"):
        tool.run(f"DELETE FROM {table}")
    tool.run("DELETE FROM clusters")
    limits = dict(zip("abc", wanted, strict=True))
    more: dict[str, dict[str, Any]] = {
        "a": {"islands": ["x"]},
        "b": {"minimum_gpus": min(floor, limits["b"])},
        "c": {"islands": ["x", "y"]},
    }
    said = ORDERED | {"quotas": [{"team": t, "gpus": gpus, **more[t]} for t, gpus in limits.items()]}
    with Ledger(sqlite_ledger_url, now=lambda: NOW + timedelta(minutes=10)) as ledger:
        if ledger.bringups.open_bringup(start(**said, owed_until=UNTIL), NOW).refused:
            return
        book, granted, installed, others = Book(ledger), None, {"x": 0, "y": 0}, 0
        for x, y, sick in came:
            ailing = min(sick, 8 * x)
            before = sum(quotas_of(tool).values())
            granted = book.hand_over([island(x, 8 * x - ailing, "x"), island(y, name="y")], granted, **said).granted
            installed = {"x": max(installed["x"], 8 * x), "y": max(installed["y"], 8 * y)}
            ceiling = max(0, min(sum(installed.values()) * 85 // 100, 8 * (x + y) - ailing - 8))
            stands = quotas_of(tool)
            assert sum(stands.values()) <= max(ceiling, before), "more only under C"
            assert all(stands[t] - (others if t == "b" else 0) <= gpus for t, gpus in limits.items())
            if sum(stands.values()) + taken <= ceiling:  # somebody else is given more, by hand
                others += taken
                tool.run("UPDATE quotas SET gpus = gpus + ? WHERE team = 'b'", taken)
    tool.close()


# --- out of the fleet -------------------------------------------------------------------------------


def wind(book: Book, slurm: SlurmSource | None = None, number: int = 1) -> WoundDown:
    words = {"owner": "tpm", "actor": "eve", "reason": "its lease ends"}
    return book.book.wind_down(WindDownRequest(cluster=NEW, at=NOW, slurm=slurm, number=number, **words))


def test_a_job_that_the_ledger_has_not_heard_of_yet_keeps_it_in(ledger: Ledger, tool: ForeignTool) -> None:
    """The ledger learns of Slurm's jobs a look later; to unmake the cluster would end them."""
    opened(ledger)
    book, source = Book(ledger, a=0), SlurmSource(connection="main", root="research")
    book.hand_over([island(8)], quotas=[{"team": "a", "gpus": 0}])
    for table in ("jobs", "usage_samples"):
        assert tool.rows(f"SELECT * FROM {table} WHERE cluster = ?", NEW) == []
    book.slurm.uses = 8
    told = wind(book, source)
    assert (told.text, told.is_empty) == ("0 GPUs of quota remain, jobs of 1 team run", False)
    book.slurm.answers = False
    with pytest.raises(Unavailable, match="squeue does not answer"):
        wind(book, source)
    assert tool.one("SELECT count(*) FROM clusters WHERE name = ?", NEW) == 1
    book.slurm.answers, book.slurm.uses = True, 0
    assert wind(book, source).said == "it is out of the fleet"


def test_a_retired_clusters_quotas_go_to_nothing_by_a_rollout_and_it_leaves_the_fleet(
    ledger: Ledger, tool: ForeignTool
) -> None:
    opened(ledger)
    book = Book(ledger)
    book.hand_over([island(8)], quotas=[A_AND_B[0] | {"minimum_gpus": 8}, A_AND_B[1]])
    told = wind(book)
    assert (told.quota_gpus, told.jobs) == (54, 0)
    launch, approved = book.rollouts.said
    assert (launch.policy["spare_gpus"], launch.owner, launch.actor) == (64, "tpm", "eve")
    assert approved[:2] == (Command.APPROVE, "eve")
    assert tool.rows("SELECT DISTINCT minimum FROM quotas WHERE cluster = ?", NEW) == [(0,)]
    snapshot, policy = book.clusters.present(NEW, NOW, launch.policy)
    plan = make_plan(snapshot, policy)
    assert (plan.values, plan.ceiling_gpus, plan.backed, plan.short_by_gpus) == ({"a": 0, "b": 0}, 0, True, 0)
    note_stage(ledger, launch.rollout, "enforced", False, False)
    tool.run("UPDATE quotas SET gpus = 0 WHERE cluster = ?", NEW)
    told = wind(book)
    assert told.quota_gpus == 54, "until it is monitored its rollout could bring them back"
    assert told.text == "0 GPUs of quota remain, 54 GPUs could still come back, 0 jobs run"
    tool.run("UPDATE quotas SET gpus = 1 WHERE cluster = ? AND team = 'a'", NEW)
    assert wind(book).text == "1 GPU of quota remains, 53 GPUs could still come back, 0 jobs run"
    tool.run("UPDATE quotas SET gpus = 0 WHERE cluster = ?", NEW)
    note_stage(ledger, launch.rollout, "monitored", False, False)
    with pytest.raises(Unavailable, match="is being closed"):
        wind(book)
    assert twice(lambda: wind(book)) == WoundDown(quota_gpus=0, jobs=0, said="it is out of the fleet")
    assert tool.one("SELECT count(*) FROM clusters WHERE name = ?", NEW) == 0
    assert owed_of(tool) == {}
    assert keys_of(tool)[-1] == "bringup/h100-new/1/leaves"


def test_a_job_that_runs_keeps_it_in(ledger: Ledger, tool: ForeignTool) -> None:
    opened(ledger)
    book = Book(ledger)
    book.hand_over([island(8)], quotas=[{"team": "a", "gpus": 0}])
    tool.run(
        "INSERT INTO jobs (cluster, job, started, team, gpus, idle_gpus, runs_on, preempted) "
        "VALUES (?, 'j-1', '2026-03-01T11:00:00Z', 'a', 8, 0, 'flex', FALSE)",
        NEW,
    )
    assert (wind(book).quota_gpus, wind(book).jobs) == (0, 1)
    tool.run("UPDATE jobs SET ended = '2026-03-01T12:00:00Z'")
    assert wind(book).said == "it is out of the fleet"


def test_a_rollout_under_way_is_a_persons_to_end_and_one_that_is_done_is_closed(ledger: Ledger) -> None:
    opened(ledger)
    book = Book(ledger)
    book.hand_over([island(8)])
    ledger.registry.open_rollout(opening(ledger, "r-1", NEW), adopt=False)
    assert wind(book).said == (
        "rollout r-1 of tpm is planned, and the retirement waits for that rollout: "
        "Backstop closes it once it is monitored; "
        "`backstop abort h100-new` ends it now"
    )
    note_stage(ledger, "r-1", "monitored", False, False)
    with pytest.raises(Unavailable, match="rollout r-1 is being closed"):
        wind(book)
    assert wind(book).said == "Backstop has launched a rollout that sets all quotas to 0"
    assert baseline(ledger, NEW).tree.assigned_gpus() == 54


def test_a_deadline_that_overtook_the_rollout_takes_it_out_at_the_end(ledger: Ledger, tool: ForeignTool) -> None:
    opened(ledger)
    book = Book(ledger)
    book.hand_over([island(8)])
    book.book.record(BringupRecord(row=row(BringupStage.RETIRED), entries=()))
    assert tool.one("SELECT count(*) FROM clusters WHERE name = ?", NEW) == 0
    assert ledger.bringups.bringups(False) == ()
