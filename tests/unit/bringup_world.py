"""A bring-up without Temporal: the pure core against runners and checks in memory, and a clock.

Nothing of the machine is faked. What is made up is the outside: what each run comes to, what each check says, and the
fleet. The driver does what workflows/bringup.py does; an action takes no time unless a scene says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

from models.base import parse_duration
from models.bringup import reducers, request_builders
from models.bringup import workflow_actions as do
from models.bringup.checks import CheckAnswer, CheckKind, CheckOrder, Colour
from models.bringup.commands import BringupOrder, obey, refusal
from models.bringup.decide import decide
from models.bringup.entry import BringupEntry
from models.bringup.first_quotas import first_plan, next_values
from models.bringup.messages import BringupStart, HandedOver, WoundDown
from models.bringup.recipe import ClusterRecipe
from models.bringup.runs import RunPhase, RunReport
from models.bringup.stages import BringupCommand, BringupStage
from models.bringup.state import Bringup, StepPhase
from models.bringup.status import status_of
from models.cluster.island import Island
from models.cluster.policy import Policy
from models.lifecycle.workflow_actions import Finish, Wait

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
PATIENCE = 2000

RECIPE: dict[str, Any] = {
    "name": "bare-metal",
    "supply": {"run": ["/opt/site/quota", "{subscription}"], "needs": {"gpus": 64}},
    "provision": [
        {"name": "bootstrap", "with": "buildkite", "pipeline": "up", "undo": {"pipeline": "down"}},
        {"name": "check-in", "touch": "merge the change for {cluster}"},
        {
            "name": "nodes",
            "with": "command",
            "run": ["/opt/site/scale", "{cluster}"],
            "repeatable": True,
            "after": ["bootstrap"],
            "undo": {"run": ["/opt/site/unscale"]},
        },
        {
            "name": "services",
            "with": "command",
            "run": ["/opt/site/apply", "{cluster}"],
            "after": ["nodes", "check-in"],
        },
    ],
    "validate": [
        {"name": "health", "healthy": 0.98},
        {"name": "drift", "command": ["/opt/site/plan"], "every": "15m"},
        {"name": "first-job", "command": ["/opt/site/job"], "once": True},
    ],
    "soak": "2h",
    "validate_within": "1d",
}
ENTRY: dict[str, Any] = {
    "cluster": "h100-new",
    "recipe": "bare-metal",
    "owner": "tpm",
    "nodes": 8,
    "values": {"subscription": "abc-1"},
}


def recipe(**changes: Any) -> ClusterRecipe:
    return ClusterRecipe.model_validate(RECIPE | changes)


def entry(**changes: Any) -> BringupEntry:
    return BringupEntry.model_validate(ENTRY | changes)


def report(phase: RunPhase = RunPhase.SUCCEEDED, said: str = "exit status 0", **more: Any) -> RunReport:
    return RunReport(phase=phase, said=said, **more)


def owed(entry: BringupEntry, granted: Mapping[str, int]) -> dict[str, int]:
    """Return what the leaves lack of the entry's values, as the ledger counts it, without those that lack nothing."""
    parents = {q.parent for q in entry.quotas}
    lack = {q.team: q.gpus - granted.get(q.team, 0) for q in entry.quotas if q.team not in parents}
    return {team: gpus for team, gpus in lack.items() if gpus > 0}


class BringupWorld:
    """One bring-up. `ends`: what each run comes to, by its name; without a word: it succeeds at once."""

    def __init__(self, made_by: ClusterRecipe | None = None, entered: BringupEntry | None = None) -> None:
        self.now = NOON
        start = BringupStart(entry=entered or entry(), recipe=made_by or recipe(), actor="ann")
        self.b = reducers.open_bringup(start, 1, self.now)
        self.ends: dict[str, RunReport | str] = {}
        self.says: dict[str, Colour] = {}
        self.islands: tuple[Island, ...] = start.entry.planned_islands
        self.policy = Policy(buffer=Fraction(0), spare_gpus=0)
        self.started: list[str] = []
        self.asked: list[str] = []
        self.stopped: list[str] = []
        self.endless: set[str] = set()
        self.path: list[BringupStage] = [self.b.stage]
        self.under_way: list[do.BringupAction] = []
        self.fleet: HandedOver | None = None
        self.left = WoundDown(quota_gpus=0, jobs=0, said="nothing is left")
        self.refuses = ""

    # --- the driver ----------------------------------------------------------------------------

    def run(self) -> datetime | None:
        """Run until nothing happens by itself before some time; return that time."""
        for _ in range(PATIENCE):
            self._set(reducers.advance(self.b, self.now))
            assert status_of(self.b, self.now).waits_for or self.b.stage.has_ended
            action = decide(self.b, self.now, self.under_way)
            match action:
                case Finish():
                    return None
                case Wait():
                    return action.until
            self.act(action)
        raise AssertionError(f"it spins in {self.b.stage}")

    def act(self, action: do.BringupAction) -> None:
        bringup, now = self.b, self.now
        match action:
            case do.LookForSupply():
                self._set(reducers.apply_supply(bringup, self.answer(request_builders.supply_order(bringup)), now))
                if self.b.supply is not None and self.b.supply.colour is not Colour.GREEN:
                    self.under_way.append(action)  # the call goes on asking
            case do.Start(run):
                self._set(reducers.note_start(bringup, run, now))
                self.started.append(self.b.key(run).text)
                self._ends(run)
            case do.Follow(run, _):
                self.under_way.append(action)
            case do.Stop(run, attempt):
                self.stopped.append(run)
                if run in self.endless:
                    self._set(reducers.note_failed_call(bringup, run, attempt, "nobody can end it", now, endless=True))
                else:
                    self._set(
                        reducers.apply_report(bringup, run, attempt, report(RunPhase.STOPPED, "was stopped"), now)
                    )
                    self._let_go(run)
            case do.AskChecks(names):
                self.asked += names
                self._set(reducers.note_asked(bringup, names, now))
                answers = {name: self.answer(request_builders.check_order(self.b, name)) for name in names}
                self._set(reducers.apply_answers(self.b, answers, now))
            case do.HandOver() | do.GrantOwed():
                self._hands_over(action)
            case do.WindDown():
                self._set(reducers.wind_down(bringup, self.left, now))

    def _ends(self, run: str) -> None:
        end = self.ends.get(run, report())
        attempt = self.b.runs[run].attempt
        if isinstance(end, RunReport):
            self._set(reducers.apply_report(self.b, run, attempt, end, self.now))
        elif end == "lost":
            self._set(reducers.note_lost_start(self.b, run, attempt, "no answer in time", self.now))
        else:
            self._set(reducers.note_refusal(self.b, run, attempt, end, self.now))

    def ended(self, run: str, phase: RunPhase = RunPhase.SUCCEEDED, said: str = "") -> None:
        """A run that is followed has come to this."""
        attempt = self.b.runs[run].attempt
        self._let_go(run)
        self._set(reducers.apply_report(self.b, run, attempt, report(phase, said or phase.value), self.now))
        self.run()

    def untraced(self, run: str) -> None:
        self._let_go(run)
        self._set(reducers.note_untraced(self.b, run, self.b.runs[run].attempt, self.now))
        self.run()

    def _let_go(self, run: str) -> None:
        self.under_way = [a for a in self.under_way if not (isinstance(a, do.Follow) and a.run == run)]

    def _hands_over(self, action: do.BringupAction) -> None:
        request = request_builders.hand_over_request(self.b, self.now)
        if self.refuses:
            self._set(reducers.note_fault(self.b, self.refuses, self.now))
            return
        if request.granted is None:
            plan = first_plan(request.entry, request.islands, self.policy)
            values = {q.team: plan.values[q.team] for q in request.entry.quotas}
        else:
            values = next_values(request.entry, request.islands, request.granted, self.policy)
        answer = HandedOver(granted=values, owed=owed(request.entry, values), said="written")
        self.fleet = answer
        took_in = reducers.hand_over if isinstance(action, do.HandOver) else reducers.apply_owed
        self._set(took_in(self.b, answer, self.now))

    def answer(self, order: CheckOrder) -> CheckAnswer:
        colour = self.says.get(order.name, Colour.GREEN)
        islands = self.islands if order.kind is CheckKind.CAPACITY else ()
        return CheckAnswer(colour=colour, said=f"{order.name} is {colour}", at=self.now, islands=islands)

    def _set(self, bringup: Bringup) -> None:
        if bringup.stage is not self.b.stage:
            self.path.append(bringup.stage)
        self.b = bringup

    # --- people and time ----------------------------------------------------------------------

    def say(self, command: str, **fields: Any) -> str:
        """A command that is obeyed."""
        order = BringupOrder(actor="ann", **{"reason": "because", **fields})
        why = refusal(self.b, BringupCommand(command), order, self.now, self.under_way)
        assert why is None, why
        bringup, said = obey(self.b, BringupCommand(command), order, self.now)
        self._set(bringup)
        assert status_of(self.b, self.now).waits_for or self.b.stage.has_ended  # as the book is told, before all else
        self.run()
        return said

    def refused(self, command: str, **fields: Any) -> str:
        order = BringupOrder(actor="ann", **{"reason": "because", **fields})
        why = refusal(self.b, BringupCommand(command), order, self.now, self.under_way)
        assert why is not None
        return why

    def wait(self, length: str | timedelta, each: Callable[[], object] | None = None) -> None:
        end = self.now + parse_duration(length)
        for _ in range(PATIENCE):
            until = self.run()
            if each is not None:
                each()
            if until is None or until >= end:
                break
            self.now = max(until, self.now)
        else:
            raise AssertionError("time does not pass")
        self.now = end
        self.run()

    def supply_comes(self) -> None:
        self.says.pop("supply", None)
        self.under_way = [a for a in self.under_way if not isinstance(a, do.LookForSupply)]
        self.run()

    @property
    def stage(self) -> BringupStage:
        return self.b.stage

    def phases(self) -> Mapping[str, StepPhase]:
        return {name: run.phase for name, run in self.b.runs.items()}

    def told(self) -> list[str]:
        return [notice.detail for notice in self.b.mail]
