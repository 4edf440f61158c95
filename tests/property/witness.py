"""A pure world that keeps its own account of what docs/design.md says must always hold.

What should be true is computed from the world's own values, health, clock and people, never from the
rollout's word. `check` is called after every step (tests/property/test_machine.py) and in every state
(tests/property/explore.py); what concerns a write is checked as it lands. By the numbers of "What must
always hold": 1, 2 (of each plan made), 4, 5, 6, 7 (each fence once), 8 and 10; and it always wakes again.
3 is arithmetic (test_invariants.py), 9 is Temporal's (tests/e2e/test_continue_as_new.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from activities.notices.rendering import render
from models.cluster.island import Island
from models.cluster.quota import QuotaTree
from models.cluster.readings import LimitMode, QuotaReading
from models.cluster.snapshot import Snapshot
from models.lifecycle.holds import HoldKind
from models.lifecycle.workflow_actions import Wait
from models.notices import Notice, NoticeKind
from models.planning.backing import back
from models.planning.grants import moved_values, raises
from models.planning.plan import Plan
from models.rollout.commands import refusal
from models.rollout.decide import FRESH, decide
from models.rollout.effect_table import INVERSE
from models.rollout.effects import Change, EffectKind, Receipt
from models.rollout.gates import drift_of
from models.rollout.messages import Drafted, DraftRequest, EffectRequest
from models.rollout.stages import Command, Stage
from models.rollout.state import UndoCause
from models.rollout.status import waiting_sentence
from models.rollout.workflow_actions import Action
from tests.typed import lines_in, typed
from tests.unit.pure_world import Flight, Refused, World

_HOUR = timedelta(hours=1)
_NOTHING = timedelta(0)
_OF_WHAT_STANDS = (NoticeKind.BUFFERED, NoticeKind.ENFORCED, NoticeKind.MONITORED, NoticeKind.ROLLED_BACK)


class Observed(World):
    """The world, keeping its own account of shortages, approvals and of what an undo must restore."""

    def __init__(self, *args: Any, **policy: Any) -> None:
        self.short_since: dict[str, datetime] = {}
        self.short_total: dict[str, timedelta] = {}
        """Time spent short since the quota was last good for `clear_after`."""
        self.good_since: dict[str, datetime] = {}
        self.ever_blind = False
        self.expected: dict[str, int] | None = None
        """What an undo must leave, by team; None while nothing of ours stands."""
        self.before_change: dict[str, int] = {}
        """What was expected of a team before others last changed it away from ours."""
        self.touched: set[str] = set()
        self.unseen: set[str] = set()
        """Teams that others changed since the rollout last read them."""
        self.agreed: Plan | None = None
        """What a person approved last."""
        self.made: Plan | None = None
        """The plan that was made last."""
        self.looked_at: datetime | None = None
        self.looked_on: tuple[Island, ...] | None = None
        """Islands of the last answered look; None: it saw no believable, fresh health."""
        self.last_fence = 0
        self.rewriting = False
        """The write under way puts our values over those of others, knowingly."""
        self.permit = False
        """A person has lifted the blast radius, and nothing was written since."""
        self.permitted = False
        self.begun_in = Stage.PLANNED
        """So it was when the write under way began."""
        self.moved: list[tuple[datetime, int]] = []
        super().__init__(*args, every_state=False, **policy)
        self.first_modes = {t: q.mode for t, q in self.quotas.items()}

    # --- shortages --------------------------------------------------------------------------------

    @property
    def blind(self) -> bool:
        unseen = self.sampled_at is not None or not self.has_sample or not self.watch_runs or self.looks_fail
        return unseen or self.r.sight.unknown

    def passing(self, until: datetime) -> None:
        self.account()
        for team in self.short_since:
            self.short_total[team] = self.short_total.get(team, _NOTHING) + until - self.now

    def account(self) -> None:
        """Note which promises are short now, and since when that could have been known."""
        if self.blind or not self.r.stage.is_guarded:
            self.ever_blind = self.ever_blind or self.blind
            self.short_since = {}
            return
        short = self.standing_shortage()
        self.short_since = {t: self.short_since.get(t, self.now) for t in short}
        really = self.standing_shortage(declared=False)  # what a window explains is no recovery either
        for team in [*self.short_total]:
            if team not in really:
                self.good_since.setdefault(team, self.now)
            elif self.now - self.good_since.pop(team, self.now) >= self.policy.clear_after:
                del self.short_total[team]

    def standing_shortage(self, *, declared: bool = True) -> dict[str, int]:
        if not self.shadow:
            return self.backing(declared=declared).shortage
        real = self.quotas
        self.quotas = {t: q.model_copy(update={"gpus": self.r.written.get(t, q.gpus)}) for t, q in real.items()}
        try:
            return self.backing(declared=declared).shortage
        finally:
            self.quotas = real

    @property
    def longest_short(self) -> timedelta:
        return max(self.short_total.values(), default=_NOTHING)

    # --- what people and others do ------------------------------------------------------------------

    def say(self, command: Command, actor: str = "tpm", run: bool = True, **fields: str) -> str:
        proposal = self.r.proposal
        plan = self.r.plan if proposal is None else proposal.plan
        radius = {h.id for h in self.r.holds if h.kind is HoldKind.BLAST_RADIUS}
        kept = self.agreed, self.permit
        if command is Command.APPROVE:
            self.agreed = plan
        self.permit = self.permit or (command is Command.RESOLVE and fields.get("hold") in radius)
        try:
            return super().say(command, actor, run, **fields)
        except Refused:
            self.agreed, self.permit = kept
            raise

    def foreign(self, team: str, gpus: int | None, by: str = "", **more: Any) -> None:
        was = self.quotas.get(team)
        ours = was is not None and was.gpus == self.r.written.get(team)
        # The account first: the rollout answers within the call.
        kept = self.expected, dict(self.before_change), set(self.touched), set(self.unseen)
        if gpus != self.r.written.get(team):
            self.unseen.add(team)
        if self.expected is not None and (None if was is None else was.gpus) != gpus:
            expected = dict(self.expected)
            if ours and team in expected:
                self.before_change[team] = expected[team]
            if gpus is None:
                expected.pop(team, None)
                self.before_change.pop(team, None)
            elif gpus == self.r.written.get(team) and team in self.before_change:
                expected[team] = self.before_change.pop(team)
            else:
                expected[team] = gpus
            self.expected = expected
            self.touched.add(team)
        modes = dict(self.first_modes)
        if was is not None and more.get("mode", was.mode) is not was.mode:
            if self.expected is None:  # nothing of ours is written: the baseline follows
                self.first_modes[team] = more["mode"]
            else:
                self.touched.add(team)
        try:
            super().foreign(team, gpus, by, **more)
        except Refused:
            self.expected, self.before_change, self.touched, self.unseen = kept
            self.first_modes = modes
            raise

    # --- what the rollout does ------------------------------------------------------------------------

    def begin(self, action: Action) -> Flight:
        flight = super().begin(action)
        if flight.change is not None:
            assert flight.change.fence.counter > self.last_fence, "a fence is used twice"
            self.last_fence = flight.change.fence.counter
            self.permitted, self.begun_in = self.permit, self.stage
            self.rewriting = flight.change.kind is EffectKind.SET_SOFT and self.r.stay.restoring
        return flight

    def answer(self, flight: Flight, error: str = "", *, landed: bool = True) -> None:
        if flight.name == "look":
            self.looked_at, self.looked_on = self.now, None
            if flight.seen is not None and not error:
                self._has_read(flight.seen.reading)
                sample = flight.seen.health
                if sample is not None and self.now - sample.at < self.policy.stale_after:
                    self.looked_on = sample.islands
        elif flight.draft is not None and not error:
            self._has_read(flight.draft.reading)
        super().answer(flight, error, landed=landed)
        if flight.name == "look" and self.r.sight.unknown:
            self.looked_on = None

    def _has_read(self, reading: QuotaReading) -> None:
        self.unseen = {t for t in self.unseen if reading.values.get(t) != self.values.get(t)}

    def draft(self, request: DraftRequest) -> Drafted | None:
        drafted = super().draft(request)
        if drafted is not None:
            self.made = drafted.plan
            _conserves(drafted.baseline, drafted.plan)
        return drafted

    def apply(self, request: EffectRequest) -> Receipt:
        change = request.change
        before, theirs = self.values, set(self.unseen)
        followed, flex, by_people = self.follows, self.flex, self.merged
        receipt = super().apply(request)
        moved = {t for t, gpus in self.values.items() if before.get(t) != gpus}
        assert not moved & theirs, f"{moved & theirs} were overwritten unseen"
        if change.kind is EffectKind.FOLLOW and followed:
            assert change.flex_gpus is not None
            grown = None if flex is None else change.flex_gpus - flex
            assert grown is None or grown < 0 or grown > self.band, "flex flaps"
        elif change.kind in INVERSE:
            self._may_go_on(change, by_people=by_people and change.kind in (EffectKind.SET_SOFT, EffectKind.HARDEN))
        if change.kind is EffectKind.SET_SOFT and not self.rewriting:
            self._was_agreed(change)
        in_place = self.r.is_realigning and not self.r.is_proposing
        if moved and (in_place or (change.kind not in INVERSE and self._order_is(UndoCause.BREACH))):
            assert self.ever_blind or self.longest_short >= self.policy.breach_after, "a write on a blip"
        self._stays_in_the_radius(change, before, request.limit_gpus)
        if change.kind is EffectKind.GRANT:
            self._is_granted(change)
        if change.kind is EffectKind.SET_SOFT and self.expected is None:
            self.expected, self.before_change, self.touched = before, {}, set()
        for write in change.writes if self.rewriting else ():
            if self.expected is not None and write.team in self.before_change:
                self.expected[write.team] = self.before_change.pop(write.team)
        return receipt

    def _is_granted(self, change: Change) -> None:
        """Under the generation, at rest; more only where health backs it beside all that an undo would bring back."""
        order = self.r.grant_order
        assert order is not None
        # An order to roll back that comes while it is under way does not call it back.
        assert (self.begun_in, change.expected_generation) == (Stage.MONITORED, self.generation)
        before = self.values if self.expected is None else {**self.values, **self.expected}
        if not order.ends:
            assert self.looked_on is not None, "granted on unknown health"
            # What others hold is taken as given: the rollout's own baseline is what must be backed.
            baseline = {q.team: q.gpus for q in self.r.baseline.quotas}
            raised = raises(self.r.baseline.tree, baseline, order.team, order.gpus)
            after = {**baseline, **moved_values(baseline, raised)}
            assert back(self._with(after, self.looked_on)).is_backed, "granted what health does not back"
        else:
            raised = order.raised
        if self.expected is not None:
            self.expected |= moved_values(before, raised, ends=order.ends)

    def _order_is(self, why: UndoCause) -> bool:
        return self.r.undo is not None and self.r.undo.why is why

    def _may_go_on(self, change: Change, *, by_people: bool) -> None:
        """Forward effects: under the generation they were made for, on the health just looked at."""
        assert change.expected_generation == self.generation
        if self.rewriting or by_people:
            return  # writing ours again promises nothing new; and what people have merged is in force already
        assert self.looked_at is not None
        assert self.now - self.looked_at <= FRESH or self.in_flight_for > _NOTHING, "on an old look"
        assert self.looked_on is not None, f"{change.kind} on unknown health"
        values = {w.team: w.gpus for w in change.writes} or self.values
        if change.kind is EffectKind.RESERVE and self.made is not None:
            values = self.made.values
        assert back(self._with(values, self.looked_on)).is_backed, f"{change.kind} of what health does not back"

    in_flight_for = _NOTHING
    """How long the present call took to land."""

    def _with(self, values: dict[str, int], islands: tuple[Island, ...]) -> Snapshot:
        quotas = tuple(q.model_copy(update={"gpus": values.get(t, q.gpus)}).as_quota() for t, q in self.quotas.items())
        names = {i.name for i in islands}
        gone = {n for q in quotas for n in q.islands or ()} - names
        return Snapshot(
            cluster="c1",
            islands=(*islands, *(Island(name=n, total_gpus=0, healthy_gpus=0) for n in sorted(gone))),
            quotas=quotas,
        )

    def _was_agreed(self, change: Change) -> None:
        """A plan: the last one made, from this generation, and inside what a person said yes to."""
        made, agreed = self.made, self.agreed
        assert made is not None
        assert agreed is not None, "written without approval"
        assert {w.team: w.gpus for w in change.writes} == {q.team: q.after_gpus for q in made.quotas}
        assert made.generation == self.generation
        if made.hash != agreed.hash:
            allowed = {q.team: q.before_gpus - q.after_gpus for q in agreed.quotas}
            assert all(q.before_gpus - q.after_gpus <= allowed.get(q.team, 0) for q in made.quotas), "outside"
            assert made.deepest_tier.depth <= agreed.deepest_tier.depth

    def _stays_in_the_radius(self, change: Change, before: dict[str, int], limit: int | None) -> None:
        leaves = {w.team for w in change.writes if w.leaf}
        gpus = sum(abs(self.values[t] - before[t]) for t in leaves & before.keys() & self.values.keys())
        if change.kind in INVERSE and gpus:
            if limit is None:
                assert self.permitted, "nobody lifted the blast radius"
                self.permit = False
            else:
                self.moved = [(at, n) for at, n in self.moved if self.now - at < _HOUR] + [(self.now, gpus)]
                assert sum(n for _, n in self.moved) <= self.policy.max_moved_gpus

    def passed(self, path: Any) -> None:
        self.permit = False  # "for what is next written" means in this stage

    # --- what always holds ----------------------------------------------------------------------------

    def check(self, *, under_way: bool = False) -> None:
        """Everything that must hold now. `under_way`: an action has begun and not answered."""
        self.people_can_see_it()
        self.what_stands_is_owed()
        if not under_way:
            self.it_always_wakes_again()
            self.no_promise_outlives_breach_after_without_its_hardware()
            self.no_blip_rolls_back()
            self.an_undo_restores_the_baseline_but_for_what_others_changed()
            self.what_was_freed_is_kept()
            self.flex_promises_no_gpu_that_is_not_there()

    def people_can_see_it(self) -> None:
        status = self.status
        assert status.stage is self.stage
        waiting_sentence(self.r, self.now)
        self.is_taken_as_printed([status.needs, *status.lifts.values()], self.r.owner)
        if self.stage is Stage.STUCK or (self.stage is Stage.ROLLED_BACK and self._order_is(UndoCause.UNDO)):
            assert status.needs

    def reads(self, batch: Sequence[Notice]) -> None:
        for notice in batch:
            self.is_taken_as_printed(render(notice), notice.audience)
            if notice.kind in _OF_WHAT_STANDS and not (self.shadow or self.unseen or self.r.foreign):
                self.tells_what_is_so(notice)

    def tells_what_is_so(self, notice: Notice) -> None:
        """Check the quota's value in the notice, and what hardware backs of it by the last look."""
        team = notice.audience
        assert notice.after_gpus == self.values.get(team), notice
        if notice.backing_gpus is not None and self.looked_on == self.snapshot().islands:
            assert notice.backing_gpus == self.backing().of[team], notice

    def is_taken_as_printed(self, texts: Iterable[str], actor: str) -> None:
        """Check that each command in a notice or status is accepted as printed."""
        for line in lines_in(texts):
            sent = typed(line, actor)
            if sent is not None:
                cluster, command, request = sent
                assert cluster == self.r.cluster, line
                assert refusal(self.r, command, request) is None, (line, refusal(self.r, command, request))

    def it_always_wakes_again(self) -> None:
        action = decide(self.r, self.now)
        if not self.stage.has_ended and self.stage is not Stage.STUCK:
            assert isinstance(action, Wait)
            assert action.until is not None
            assert self.now < action.until <= self.now + self.policy.resting_poll

    def no_promise_outlives_breach_after_without_its_hardware(self) -> None:
        self.account()
        late = {t for t, since in self.short_since.items() if self.now - since >= self.policy.breach_after}
        promises = self.promises
        assert not late & promises.keys(), (late, promises)
        if not self.blind and self.short_since.keys() <= late and promises:
            tree = QuotaTree(q.as_quota() for q in self.quotas.values())
            values = {t: 0 if t in tree.leaves and t not in promises else v for t, v in self.values.items()}
            declared = self.backing(declared=True)
            assert tree.assigned_gpus(values) <= declared.healthy_gpus

    def no_blip_rolls_back(self) -> None:
        if self._order_is(UndoCause.BREACH) and self.r.stage is Stage.ROLLING_BACK and not self.ever_blind:
            assert self.longest_short >= self.policy.breach_after

    def what_stands_is_owed(self) -> None:
        rollout = self.r
        for several in (
            rollout.standing,
            rollout.owed,
            rollout.stay.done,
            [h.id for h in rollout.holds],
            rollout.foreign,
            rollout.announced.acks,
        ):
            assert len(set(several)) == len(several), several
        if self.shadow:
            assert self.effects == []
            return
        if rollout.superseded or rollout.stage.has_ended:
            return
        assert self.limit is None or EffectKind.RESERVE in rollout.standing
        assert not self.follows or EffectKind.FOLLOW in rollout.standing
        if rollout.stage is Stage.ROLLING_BACK:
            assert set(rollout.owed) <= set(rollout.standing)
        if EffectKind.HARDEN in rollout.standing and rollout.stage.promises and not drift_of(rollout):
            assert {q.mode for t, q in self.quotas.items() if t in rollout.written and t not in self.touched} <= {
                LimitMode.HARD
            }

    def an_undo_restores_the_baseline_but_for_what_others_changed(self) -> None:
        rollout = self.r
        if (
            self.expected is None
            or rollout.superseded
            or rollout.values_stand
            or rollout.stage in (Stage.CLOSED, Stage.STUCK)
        ):
            return
        if rollout.stage in (Stage.ROLLED_BACK, Stage.ABORTED, Stage.PLANNED):
            assert self.values == self.expected
            modes = {t: q.mode for t, q in self.quotas.items() if t in self.first_modes and t not in self.touched}
            assert modes == {t: self.first_modes[t] for t in modes}
            self.expected, self.touched = None, set()
            # What others changed was left alone, with the soft limit that it had by then: the next baseline.
            self.first_modes = {t: q.mode for t, q in self.quotas.items()}

    def what_was_freed_is_kept(self) -> None:
        """While a rollout is open: the quota system itself refuses that others take what was freed."""
        if self.r.stage.is_guarded and not self.shadow and not self.superseded:
            assert self.limit is not None

    def flex_promises_no_gpu_that_is_not_there(self) -> None:
        """Check, where the rollout can know: the published surplus is healthy, and no quota counts on it."""
        rollout = self.r
        if (
            rollout.stage is not Stage.MONITORED
            or self.shadow
            or self.superseded
            or self.blind
            or rollout.flex.failed_at
            or rollout.look_failed
        ):
            return
        assert self.follows
        assert self.flex is not None
        assert self.flex <= self.backing().surplus_gpus


def _conserves(baseline: Snapshot, plan: Plan) -> None:
    """A cut = phantom removed + what flex gains, to the GPU."""
    before, after = back(baseline), back(baseline.with_values({q.team: q.after_gpus for q in plan.quotas}))
    cut = before.assigned_gpus - after.assigned_gpus
    assert plan.cut_gpus == cut
    assert plan.phantom_gpus == before.phantom_gpus - after.phantom_gpus
    assert plan.to_flex_gpus == after.surplus_gpus - before.surplus_gpus
