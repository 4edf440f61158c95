"""A rollout without Temporal: the pure state machine against an in-memory cluster and a clock.

Nothing of the machine is faked: `decide`, the reducers, the planner and the backing are the product's own,
and so is the text by which the watch notices a change. What is made up is the outside: a quota system with
generation, fences, modes and a reservation, a health source, a calendar, and people. The driver does what
workflows/cluster_rollout.py does, one action at a time, and no action takes time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Annotated, Any, cast

from pydantic import TypeAdapter

from activities.rollout.observation import islands_for, observe_from
from activities.watch.fingerprint import Judged, facts_of, fingerprint
from models.base import parse_duration
from models.cluster.derived_buffer import Derived, step_promise
from models.cluster.island import Island
from models.cluster.jobs import Job
from models.cluster.latest_readings import Evidence
from models.cluster.policy import Policy
from models.cluster.quota import Quota, QuotaTree
from models.cluster.readings import (
    Excess,
    ForeignChange,
    HealthSample,
    LimitMode,
    Observation,
    Present,
    QuotaReading,
    TeamUsage,
)
from models.cluster.snapshot import Snapshot
from models.cluster.team_work import TeamWork
from models.cluster.windows import Window, WindowKind, without_absences
from models.errors import BackstopError, BlastRadius, Conflict, Drift, Refusal
from models.lifecycle.workflow_actions import Finish, Wait
from models.notices import Notice, NoticeKind
from models.planning.backing import Backing, back
from models.planning.breach_target import BreachTarget, breach_target
from models.planning.busy_work import work_short
from models.planning.grants import Granted, GrantOrder
from models.planning.plan import Plan, make_plan
from models.rollout import (
    effect_reducers,
    granting,
    look_reducers,
    mailing,
    plan_reducers,
    proposals,
    request_builders,
    time_reducers,
)
from models.rollout.commands import CommandRequest, obey, refusal
from models.rollout.decide import decide
from models.rollout.effects import Change, EffectKind, Receipt, ValueConflict
from models.rollout.messages import Drafted, DraftRequest, EffectRequest, HealthChanged, LaunchRequest, Opening
from models.rollout.owner_news import news_for_owner, rollback_for_owner, tell_owner
from models.rollout.risk_notices import warn_teams
from models.rollout.stages import TRANSITIONS, Command, Stage
from models.rollout.state import Rollout
from models.rollout.status import needs_of, status_of, waiting_sentence
from models.rollout.status_models import RolloutStatus
from models.rollout.undo_lines import undo_line
from models.rollout.workflow_actions import Action, Aim, Draft, Look, Perform
from models.temporal_names import TellAnswer

T0 = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)
CLUSTER = "c1"
PATIENCE = 60
"""Actions without time passing, after which the machine is said to spin."""


class Refused(Exception):
    """A command was refused; the text is the reason."""


def quota(team: str, gpus: int, busy: int | None = None, **more: Any) -> Quota:
    """A quota, all of it busy unless said otherwise."""
    return Quota(team=team, gpus=gpus, scheduled_gpus=gpus if busy is None else busy, idle_gpus=0, **more)


def parent(team: str, gpus: int, **more: Any) -> Quota:
    return Quota(team=team, gpus=gpus, **more)


TWO = (quota("a", 200), quota("b", 161, busy=100))
"""The issue's own case: T = H = 361."""


FIELDS: dict[str, TypeAdapter[Any]] = {
    name: TypeAdapter(cast("Any", Annotated[field.annotation, field])) for name, field in Rollout.model_fields.items()
}
"""What reads and writes each field of a state by itself."""


@dataclass(frozen=True)
class Flight:
    """An action under way: what it read before it answers, or what it is about to write."""

    name: str
    """An effect's kind, look, draft or aim."""
    fence: int
    """The rollout's counter when it began."""
    seen: Observation | None = None
    draft: Drafted | None = None
    proposed: bool = False
    """The draft is a proposal."""
    target: BreachTarget | None = None
    exempt: bool = False
    """The aim is: a person lifted the blast radius."""
    effect: EffectRequest | None = None

    @property
    def change(self) -> Change | None:
        return None if self.effect is None else self.effect.change


class World:
    def __init__(
        self,
        quotas: Sequence[Quota] = TWO,
        islands: Mapping[str, tuple[int, int]] | None = None,
        *,
        shadow: bool = False,
        every_state: bool = True,
        before: Callable[[World], None] | None = None,
        **policy: Any,
    ) -> None:
        self.now = T0
        self.policy = Policy.model_validate({"max_moved_gpus": 100_000, **policy})
        self.quotas: dict[str, Present] = {
            q.team: Present(
                team=q.team,
                gpus=q.gpus,
                islands=q.islands,
                protected_blocks=q.protected_blocks,
                minimum_gpus=q.minimum_gpus,
                parent=q.parent,
            )
            for q in quotas
        }
        self.usage = {q.team: (q.scheduled_gpus, q.idle_gpus) for q in quotas}
        self.generation = 7
        self.limit: int | None = None
        self.counts_modes = True
        self.jobs: list[Job] = []
        self.changes: dict[str, ForeignChange] = {}
        """Who last changed a quota, where they gave their name."""
        self.follows = False
        self.flex: int | None = None
        """What a scheduler reads of the flex pool: the surplus."""
        self.band = 0
        self.flexes: list[int] = []
        """Each surplus that was published after the first, in order; such a call is not among `effects`."""
        self.last_counter = 0
        self.effects: list[EffectKind] = []
        """What landed in the quota system, in order."""
        self.moves: list[tuple[datetime, int]] = []
        self.carried: dict[str, Any] = {}
        self.superseded = False
        self.unmerged = self.merged = False
        """An effect waits for people to merge it; they have, and it was not delivered again."""
        self.breaching_elsewhere = 0
        where = {"main": (361, 361)} if islands is None else islands
        self.islands = {name: Island(name=name, total_gpus=t, healthy_gpus=h) for name, (t, h) in where.items()}
        self.history: list[tuple[datetime, str, int]] = [(T0, name, h) for name, (_, h) in where.items()]
        """Healthy GPUs by island from then on, in the order of time."""
        self.asked: Derived | None = None
        """The buffer that a year of health asks for, where the policy goes by it."""
        self.sampled_at: datetime | None = None
        """The time of the last sample of a source that has fallen silent; None: it reports all the while."""
        self.ahead_to: datetime | None = None
        self.beyond: Excess | None = None
        """Where the ledger has samples that are dated ahead: up to when."""
        self.has_sample = True
        self.windows: tuple[Window, ...] = ()
        self.watch_runs = True
        self.mail_works = True
        self.looks_fail = False
        self.failures: dict[EffectKind, list[tuple[str, bool]]] = {}
        self.hooks: dict[str, list[Callable[[], object]]] = {}
        self.mark = ""
        self.judged: Judged | None = None
        self.edge: HealthChanged | None = None
        self.looking = False
        self.look_wanted = False
        """The watch has signalled: counts at the next decision, whatever is under way."""
        self.cuts: list[dict[str, int]] = []
        """What each write took away, as reports have it."""
        self.undo_line = ""
        """What whoever said the last command was told of how to undo it."""
        self.actions: list[Action] = []
        self.plans: list[Plan] = []
        self.told: list[tuple[NoticeKind, str]] = []
        self.sent: list[Notice] = []
        self.story: list[str] = []
        self.shadow = shadow
        self.every_state = every_state
        """Each state is carried through JSON, as continue-as-new would; False where speed counts more."""
        self._state: Rollout | None = None
        if before is not None:
            before(self)
        self.launch()

    # --- what people and the world do -----------------------------------------------------------

    def launch(self) -> None:
        launch = LaunchRequest(cluster=CLUSTER, rollout="c1/1", owner="tpm", reason="test", shadow=self.shadow)
        opening = Opening(
            baseline=self.snapshot(),
            policy=self.policy,
            reading=self.reading(),
            health=self.sample(),
            modes={q.team: q.mode for q in self.quotas.values()},
        )
        self.r = plan_reducers.open_rollout(launch, opening, self.now).but(rests=True, asks=True)
        self.run()

    def start(self) -> World:
        """Launch and approve."""
        self.approve()
        return self

    def approve(self) -> None:
        plan = self.r.plan if self.r.proposal is None else self.r.proposal.plan
        assert plan is not None
        self.say(Command.APPROVE, plan_hash=plan.hash)

    def say(self, command: Command, actor: str = "tpm", run: bool = True, **fields: str) -> str:
        """A person commands; the rollout has done what follows at once."""
        request = CommandRequest(actor=actor, **{"reason": "because", **fields})
        why = refusal(self.r, command, request)
        if why is not None:
            raise Refused(why)
        before = self.r
        self.r, said = obey(before, command, request, self.now)
        self.undo_line = undo_line(before, self.r, command, request)
        if run:
            self.run()
        return said

    def grant(self, team: str, gpus: int, request: str = "r-1", ends: Mapping[str, int] | None = None) -> Granted:
        """A request's order comes in, and waits as long as the workflow lets it; `ends`: what it had raised."""
        order = GrantOrder(request=request, team=team, gpus=gpus, raised=dict(ends or {}), actor="capacity")
        self.r = granting.take_order(self.r, order)
        self.run()
        self.r = granting.put_off(self.r, order, granting.why_not_yet(self.r, order, self.now))
        answer = granting.answer_to(self.r, order)
        assert answer is not None, "it is answered"
        self.run()  # the workflow's loop goes on: an order that was put off leaves a look to be made
        return answer

    def healthy(self, main: int | None = None, **islands: int) -> None:
        """The source reports these healthy GPUs by island; the watch sees it at once."""
        self.healthy_unnoticed(main, **islands)
        self.noticed()

    def healthy_unnoticed(self, main: int | None = None, **islands: int) -> None:
        """The same while the rollout is busy."""
        named = islands if main is None else {"main": main, **islands}
        for name, gpus in named.items():
            before = self.islands[name]
            self.islands[name] = before.model_copy(update={"healthy_gpus": gpus})
            if self.sampled_at is None:
                self.history.append((self.now, name, gpus))

    def silent(self) -> None:
        """The source reports no more."""
        self.sampled_at = self.now

    def speaks(self) -> None:
        self.sampled_at = None
        self.noticed()

    def foreign(self, team: str, gpus: int | None, by: str = "", **more: Any) -> None:
        """Somebody else sets, adds or (None) deletes a quota, if the reservation allows it."""
        quotas = dict(self.quotas)
        if gpus is None:
            del quotas[team]
        else:
            was = quotas.get(team, Present(team=team, gpus=0))
            quotas[team] = was.model_copy(update={"gpus": gpus, **more})
            raised = gpus > was.gpus
            leaves = QuotaTree(q.as_quota() for q in quotas.values()).leaves
            if self.limit is not None and raised and sum(quotas[t].gpus for t in leaves) > self.limit:
                raise Refused(f"reserved: the quotas may sum to {self.limit}")
            if self.limit is not None and raised and team not in leaves:
                raise Refused("reserved: a quota with children may not be raised")
        if quotas != self.quotas:
            self.quotas = quotas
            self.generation += 1
            self.changes.pop(team, None)
            if by:
                self.changes[team] = ForeignChange(team=team, by=by, at=self.now, generation=self.generation)
            self.noticed()

    def window(self, kind: WindowKind, length: str, gpus: int | None = None, **more: Any) -> None:
        """A window is declared that begins now."""
        ends = self.now + parse_duration(length)
        self.windows += (Window(kind=kind, starts=self.now, ends=ends, reason=f"a {kind}", gpus=gpus, **more),)
        self.noticed()

    def fail(self, kind: EffectKind, error: str = "Unavailable", *, landed: bool = False) -> None:
        """The next call of this kind fails for good; `landed`: only its answer is lost."""
        self.failures.setdefault(kind, []).append((error, landed))

    def meanwhile(self, what: str, do: Callable[[], object]) -> None:
        """While the next action of this name is under way (an effect's kind, look, draft or aim), this happens."""
        self.hooks.setdefault(what, []).append(do)

    def noticed(self) -> None:
        """The watch compares, signals an edge, and the rollout does what follows."""
        self.watch()
        self.run()

    def watch(self) -> None:
        if not self.watch_runs or self._state is None:
            return
        guarded = self.r.stage.is_guarded and not self.shadow
        facts = facts_of("", guarded, self.sample(), self.windows, self.now)
        mark = fingerprint(self.reading(), facts, self.mark)
        before, is_new = self.judged if self.mark else None, mark != self.mark
        signalled = facts.islands if before is None or is_new else before.signalled
        self.judged = judged = Judged(facts, mark, generation=self.generation, signalled=signalled)
        self.mark = mark
        if is_new and (before is None or not judged.is_own_doing(before)):
            self.edge = HealthChanged(cluster=self.r.cluster, at=self.now, why=judged.why[:200])
            self.look_wanted |= self.looking or not look_reducers.knows_already(self.r, self.edge)

    # --- time -----------------------------------------------------------------------------------

    def wait(self, length: str | timedelta) -> None:
        """Time passes; the rollout wakes when its own timers say so, and at no other time."""
        ends = self.now + parse_duration(length)
        while True:
            until = self.run()
            edges = [t for w in self.windows for t in (w.starts, w.ends)]
            due = min((t for t in (until, *edges) if t is not None and t > self.now), default=ends)
            self.passing(min(due, ends))
            self.now = min(due, ends)
            self.watch()
            if self.now == ends:
                self.run()
                return

    def until(self, stage: Stage, within: str = "30d") -> timedelta:
        """Time passes until the rollout is in this stage; answers how much. Fails when it takes too long."""
        began = self.now
        while self.run() is not None and self.r.stage is not stage:
            until = self.run()
            assert until is not None, f"waits for ever in {self.r.stage}"
            assert until <= began + parse_duration(within), f"still {self.r.stage}: {self.waits_for}"
            self.now = max(self.now, until)
            self.watch()
        assert self.r.stage is stage, f"{self.r.stage}, not {stage}: {waiting_sentence(self.r, self.now)}"
        return self.now - began

    def passing(self, until: datetime) -> None:
        """Called before time passes, in which nothing else happens."""

    def run(self) -> datetime | None:
        """The rollout has done all that it does now; answers until when it waits."""
        for _ in range(PATIENCE):
            self.hears()
            self.r = time_reducers.advance(self.r, self.now)
            self.r = tell_owner(self.r, (*news_for_owner(self.r, self.now), *rollback_for_owner(self.r)))
            if self.post():
                continue
            action = decide(self.r, self.now)
            assert decide(self.r, self.now) == action
            if isinstance(action, Finish):
                return None
            if isinstance(action, Wait):
                if action.until is not None and action.until <= self.now:
                    continue
                return action.until
            self.actions.append(action)
            self.act(action)
        raise AssertionError(f"it spins: {self.actions[-6:]} in {self.r.stage}")

    def hears(self) -> None:
        if self.look_wanted:
            self.look_wanted = False
            knows = self.edge is not None and look_reducers.knows_already(self.r, self.edge)
            self.r = self.r.but(look_asked=self.r.look_asked or not knows)

    def act(self, action: Action) -> None:
        flight = self.begin(action)
        for do in self.hooks.pop(flight.name, []):
            do()
        self.answer(flight)

    def post(self) -> bool:
        """The side loops: notices are delivered and entries archived, in no time. True when some were."""
        told = len(self.told)
        if self.mail_works and mailing.may_mail(self.r, self.now):
            batch = request_builders.tell(self.r, self.now).notices
            self.reads(batch)
            self.sent += batch
            self.told += [(notice.kind, notice.audience) for notice in batch]
            answer = TellAnswer(delivered={n.key: () for n in batch}, failed={}, refused={})
            self.r = mailing.apply_delivery(self.r, batch, answer, self.now)
        self.story += [entry.text for entry in self.r.post.outbox]
        self.cuts += [entry.data["cut"] for entry in self.r.post.outbox if "cut" in entry.data]
        if self.r.post.outbox:
            self.r = mailing.mark_archived(self.r, request_builders.record(self.r, self.now))
        assert self.r.post.noted is self.r.stage, "a stage without an entry: its record, come late, could not be told"
        return len(self.told) > told

    def reads(self, batch: Sequence[Notice]) -> None:
        """Read the notices: a hook for subclasses."""

    # --- actions, as the workflow does them -------------------------------------------------------

    def begin(self, action: Action) -> Flight:
        """The action is under way: what it reads is read, what it writes is not yet written."""
        rollout = self.r
        self.looking = isinstance(action, Look)
        match action:
            case Look():
                return Flight("look", rollout.fence, seen=None if self.looks_fail else self.observe(action))
            case Draft():
                request = request_builders.draft(rollout, action, self.now)
                return Flight("draft", rollout.fence, draft=self.draft(request), proposed=bool(action.islands))
            case Aim():
                aim = request_builders.aim(rollout, self.now)
                target = breach_target(aim.baseline, aim.current, aim.islands, aim.theirs)
                return Flight("aim", rollout.fence, target=target, exempt=aim.exempt)
            case Perform():
                self.r, change = effect_reducers.begin_effect(rollout, action.kind)
                return Flight(
                    action.kind.value, rollout.fence, effect=request_builders.effect(self.r, change, self.now)
                )
        raise AssertionError(f"{action} is not under way")

    def answer(self, flight: Flight, error: str = "", *, landed: bool = True) -> None:
        """The action is done. An effect may fail: with this error, whether it `landed` or not."""
        self.looking = False
        if flight.effect is not None:
            self._perform(flight.effect, error, landed)
        elif flight.name == "look" and (error or flight.seen is None):
            self.r = look_reducers.fail_look(self.r, "no answer", self.now)
        elif flight.name == "look" and flight.seen is not None:
            self.r = warn_teams(look_reducers.apply_look(self.r, flight.seen, self.now, flight.fence), self.now)
        elif flight.name == "draft" and (error or flight.draft is None):
            failed = proposals.drop_proposal if flight.proposed else plan_reducers.fail_draft
            self.r = failed(self.r, "no health sample", self.now)
        elif flight.proposed and flight.draft is not None:
            self.r = proposals.take_proposal(self.r, flight.draft.plan, self.now)
        elif flight.name == "draft" and flight.draft is not None:
            self.r = plan_reducers.take_draft(self.r, flight.draft, self.now)
        elif flight.target is not None:
            many = self.breaching_elsewhere + 1 > self.r.policy.max_breaching_clusters and not flight.exempt
            if many or error:
                error = "BlastRadius" if many else error
                self.r = plan_reducers.fail_aim(self.r, error, "too many clusters breach at once", self.now)
            else:
                self.r = plan_reducers.start_breach_rollback(self.r, flight.target, self.now)

    def observe(self, look: Look) -> Observation:
        request = request_builders.look_at(self.r, look, self.now)
        since = self.now - (request.flex_after or timedelta(0))
        usual = {} if request.long_run is None else self.usual(request.long_run)
        usage = {
            team: TeamUsage(team=team, scheduled_gpus=scheduled, idle_gpus=idle or 0)
            for team, (scheduled, idle) in self.usage.items()
            if scheduled is not None
        }
        known = Evidence(self.reading(), self.sample(), usage, self.now, windows=self.windows)
        seen = observe_from(known, request, self.least(since), usual)
        if seen.shortage and self.jobs:
            seen = seen.model_copy(update={"work": work_short(self.work(), seen.shortage)})
        if request.derive is not None:
            seen = seen.model_copy(update={"derived": self.asked})
        changes = (c for c in self.changes.values() if c.generation > self.r.generation)
        return seen.model_copy(update={"changes": tuple(changes)})

    def work(self) -> tuple[TeamWork, ...]:
        """Return the work as activities.rollout.team_work has it."""
        scheduled = {team: gpus for team, (gpus, _) in self.usage.items() if gpus is not None}
        return Evidence(
            self.reading(),
            None,
            {t: TeamUsage(team=t, scheduled_gpus=gpus) for t, gpus in scheduled.items()},
            self.now,
            self.jobs,
            classes=self.policy.classes,
        ).work

    def usual(self, window: timedelta) -> dict[str, int]:
        """Answer as HealthPort.usual_healthy does, for a source that reports 28 times in a window."""
        times = [self.now - window + n * window / 28 for n in range(29)]
        if self.history[0][0] > times[0]:
            return {}
        found: dict[str, list[int]] = {}
        for time in times:
            for name, healthy in {name: healthy for at, name, healthy in self.history if at <= time}.items():
                found.setdefault(name, []).append(healthy)
        return {name: sorted(samples)[(len(samples) - 1) // 2] for name, samples in found.items()}

    def least(self, since: datetime) -> dict[str, int]:
        """Answer as HealthPort.least_healthy does."""
        stood = {name: healthy for at, name, healthy in self.history if at <= since}
        for at, name, healthy in self.history:
            if at > since:
                stood[name] = min(healthy, stood.get(name, healthy))
        return stood

    def draft(self, request: DraftRequest) -> Drafted | None:
        """Draft as ClusterActivities.draft_plan does; None: no plan can be made."""
        reading, sample = self.reading(), self.sample()
        if request.baseline is not None:
            quotas = request.baseline.quotas
            present = request.baseline.islands if sample is None else islands_for(quotas, sample)
            moved = {"generation": reading.generation, "health_at": None if sample is None else sample.at}
            baseline = request.baseline.model_copy(update={"islands": request.islands or present, **moved})
        elif sample is None:
            return None
        else:
            baseline = self.snapshot()
            baseline = baseline if request.islands is None else baseline.with_islands(request.islands)
        if self.asked is not None:
            baseline = baseline.model_copy(
                update={"derived": step_promise(self.asked, request.promised, of=request.promised_of)}
            )
        plan = make_plan(baseline.model_copy(update={"work": self.work()}), request.policy)
        self.plans.append(plan)
        return Drafted(baseline=baseline, reading=reading, plan=plan)

    def _perform(self, request: EffectRequest, error: str, landed: bool) -> None:
        change = request.change
        queue = self.failures.get(change.kind, [])
        if queue and not error:
            error, landed = queue.pop(0)
        try:
            receipt = self._call(request) if landed else None
        except BackstopError as refused:
            until = refused.until if isinstance(refused, BlastRadius) else None
            self.r = effect_reducers.fail_effect(
                self.r, change, type(refused).__name__, refused.message, self.now, until
            )
            return
        if error or receipt is None:
            self.r = effect_reducers.fail_effect(self.r, change, error, f"{change.kind} did not answer", self.now)
        else:
            self.r = effect_reducers.apply_receipt(self.r, change, receipt, self.now)

    def _call(self, request: EffectRequest) -> Receipt:
        return self.rehearsed(request.change) if request.shadow else self.apply(request)

    # --- the quota system -------------------------------------------------------------------------

    def apply(self, request: EffectRequest) -> Receipt:
        change = request.change
        if self.superseded or change.fence.counter <= self.last_counter:
            raise Conflict("somebody newer owns the cluster")
        if change.expected_generation not in (None, self.generation):
            raise Drift(f"generation {self.generation}, not {change.expected_generation}")
        if change.moved_gpus and request.limit_gpus is not None:
            self._book(change.moved_gpus, request.limit_gpus, timedelta(hours=1))
            if request.limit_day_gpus is not None:
                self._book(change.moved_gpus, request.limit_day_gpus, timedelta(days=1))
            self.moves.append((self.now, change.moved_gpus))
        self.last_counter = change.fence.counter
        if change.kind not in (EffectKind.FOLLOW, EffectKind.UNFOLLOW, EffectKind.RESERVE) and not change.refits:
            self.unmerged = self.merged = False
        if change.kind is EffectKind.FOLLOW and self.follows and change.flex_gpus is not None:
            self.flexes.append(change.flex_gpus)
        else:
            self.effects.append(change.kind)
        before = {w.team: self.quotas[w.team].gpus for w in change.writes if w.team in self.quotas}
        conflicts = []
        for write in change.writes:
            present = self.quotas.get(write.team)
            if present is None or present.gpus not in (write.expected_gpus, write.gpus):
                found = None if present is None else present.gpus
                conflicts.append(ValueConflict(team=write.team, expected_gpus=write.expected_gpus, found_gpus=found))
                continue
            changed = {"gpus": write.gpus, "mode": write.mode or present.mode}
            self.quotas[write.team] = present.model_copy(update=changed)
        mode = {EffectKind.HARDEN: LimitMode.HARD, EffectKind.SOFTEN: LimitMode.SOFT}.get(change.kind)
        if mode is not None:
            self.quotas = {t: q.model_copy(update={"mode": mode}) for t, q in self.quotas.items()}
        if change.kind in (EffectKind.RESERVE, EffectKind.RELEASE, EffectKind.CLOSE, EffectKind.GRANT):
            self.limit = None if change.reserve is None else change.reserve.limit_gpus
        if change.kind in (EffectKind.FOLLOW, EffectKind.UNFOLLOW, EffectKind.CLOSE):
            self.follows = change.kind is EffectKind.FOLLOW
            self.flex, self.band = change.flex_gpus, change.flex_band_gpus
        return Receipt(
            cluster=CLUSTER,
            kind=change.kind,
            fence=change.fence,
            at=self.now,
            generation=self.generation,
            before=before,
            after={team: self.quotas[team].gpus for team in before},
            conflicts=tuple(conflicts),
        )

    def _book(self, gpus: int, limit: int, span: timedelta) -> None:
        """Book moves as the ledger's blast radius does: room comes when enough of the oldest moves are forgotten."""
        recent = [(at, moved) for at, moved in self.moves if self.now - at < span]
        total = sum(moved for _, moved in recent) + gpus
        if total <= limit:
            return
        free_at = None
        for at, moved in recent if gpus <= limit else ():
            total -= moved
            if total <= limit:
                free_at = at + span
                break
        raise BlastRadius(f"{gpus} GPUs more than {limit} within {span}", free_at)

    def rehearsed(self, change: Change) -> Receipt:
        return Receipt(
            cluster=CLUSTER,
            kind=change.kind,
            fence=change.fence,
            at=self.now,
            generation=self.generation,
            before={w.team: w.expected_gpus for w in change.writes},
            after={w.team: w.gpus for w in change.writes},
            shadow=True,
        )

    def reading(self) -> QuotaReading:
        quotas = tuple(self.quotas[team] for team in sorted(self.quotas))
        return QuotaReading(
            cluster=CLUSTER,
            generation=self.generation,
            quotas=quotas,
            follows_health=self.follows,
            flex_gpus=self.flex,
            flex_band_gpus=self.band,
            counts_modes=self.counts_modes,
            unmerged="backstop/c/r-1" if self.unmerged else "",
            merged=self.merged,
        )

    def sample(self) -> HealthSample | None:
        if not self.has_sample:
            return None
        at, islands = self.sampled_at or self.now, tuple(self.islands.values())
        return HealthSample(cluster=CLUSTER, at=at, islands=islands, ahead_to=self.ahead_to, beyond=self.beyond)

    def snapshot(self) -> Snapshot:
        parents = {q.parent for q in self.quotas.values()}
        quotas = tuple(
            self.quotas[t].as_quota(*((None, None) if t in parents else self.usage.get(t, (None, None))))
            for t in sorted(self.quotas)
        )
        sample = self.sample()
        if sample is None:
            raise Refusal("no health sample")
        return Snapshot(
            cluster=CLUSTER,
            islands=islands_for(quotas, sample),
            quotas=quotas,
            generation=self.generation,
            health_at=sample.at,
        )

    # --- what can be seen -------------------------------------------------------------------------

    @property
    def r(self) -> Rollout:
        assert self._state is not None
        return self._state

    @r.setter
    def r(self, state: Rollout) -> None:
        """Every state that the rollout is ever in passes here, and must be a sound one."""
        before = self._state
        if before is not None and before.stage is not state.stage:
            path = [before.stage, *self._passed(before, state)]
            assert all(step in TRANSITIONS for step in pairwise(path)), path
            assert path[-1] is state.stage
            self.passed(path)
        self._state = state
        if self.every_state and state is not before:
            self.carried_over()

    def passed(self, path: Sequence[Stage]) -> None:
        """Called with the stages that the rollout has just been in, one after the other."""

    def carried_over(self) -> None:
        """Continue-as-new carries the state through JSON, whatever it is.

        The whole of it at each change of stage; between them what has changed, as the rest was carried before.
        """
        whole = self.carried.get("stay") is not self.r.stay and self.carried.get("stage") is not self.r.stage
        if whole:
            text = self.r.model_dump_json()
            assert Rollout.model_validate_json(text).model_dump_json() == text
        for name, value in self.r:
            if value is not self.carried.get(name) and not whole:
                part = FIELDS[name].dump_json(value)
                assert FIELDS[name].dump_json(FIELDS[name].validate_json(part)) == part, name
            self.carried[name] = value

    @staticmethod
    def _passed(before: Rollout, after: Rollout) -> list[Stage]:
        new = [e for e in after.post.outbox if e.key not in {old.key for old in before.post.outbox}]
        return [Stage(e.data["after"]) for e in new if e.kind == "transition"]

    @property
    def stage(self) -> Stage:
        return self.r.stage

    def is_in(self, stage: Stage) -> bool:
        """A question of the moment: a checker must not conclude that it stays so."""
        return self.r.stage is stage

    @property
    def values(self) -> dict[str, int]:
        return {t: q.gpus for t, q in sorted(self.quotas.items())}

    @property
    def modes(self) -> set[LimitMode]:
        return {q.mode for q in self.quotas.values()}

    @property
    def status(self) -> RolloutStatus:
        return status_of(self.r, self.now)

    @property
    def needs(self) -> str:
        return needs_of(self.r, self.now)

    @property
    def waits_for(self) -> set[str]:
        return {c.name for c in self.status.waiting_for}

    @property
    def holds(self) -> set[str]:
        return {h.id for h in self.status.holds}

    @property
    def promises(self) -> dict[str, int]:
        return {t.team: t.quota_gpus for t in self.status.teams if t.promise and t.leaf}

    def told_of(self, kind: NoticeKind) -> list[str]:
        return [audience for told, audience in self.told if told is kind]

    def looks(self) -> int:
        return sum(isinstance(a, Look) for a in self.actions)

    def backing(self, *, declared: bool = False) -> Backing:
        """Return the backing of the present values; `declared`: declared absences counted as healthy."""
        snapshot = self.snapshot()
        if declared:
            snapshot = snapshot.with_islands(without_absences(snapshot.islands, self.windows, self.now))
        return back(snapshot)
