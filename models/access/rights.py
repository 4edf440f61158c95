"""The table of rights on one screen: for each command the roles, the place, and the second person that it takes.

Theory of operation. A key names a command, and each has one row: tests/unit/test_rights.py compares the keys with every
command, question and start that there is. A row's `case` gives other rights under a circumstance that makes the command
mean more or less (a close while quotas are at risk, a dry run). `decide` (models/access/decision.py) reads this table
and nothing else. Keys are text, so that this is below all of what it names.

For a bounded role `where` says what its bounds are compared with: a cluster's name, a team's (and its cluster's), or
nothing; a command that reaches the whole fleet takes a role without bounds. Source: docs/access.md, "The table of
rights".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from models.access.roles import Role


class Where(StrEnum):
    CLUSTER = "cluster"
    TEAM = "team"
    FLEET = "fleet"
    """All clusters: a role with bounds does not count."""
    ANY = "none"
    """No cluster: a role counts whatever its bounds are."""


class Second(StrEnum):
    """The second person that a command takes."""

    NONE = "none"
    NOT_LAUNCHER = "not who launched it"
    NOT_CHANGER = "not who launched it, nor who changed policy or quotas since the last approved plan"
    NOT_ASKER = "not who asked"
    NOT_ENTERER = "not who entered it"
    ADMIN = "countersigned by another admin"
    APPROVER = "countersigned by an approver"
    APPROVER_OR_BREAKER = "countersigned by an approver, except while the breaker is open"

    @property
    def needs_countersign(self) -> bool:
        """True: it waits for a second ticket; else its giver must be the second person."""
        return self in (Second.ADMIN, Second.APPROVER, Second.APPROVER_OR_BREAKER)


class Case(StrEnum):
    """A circumstance under which a command means something else."""

    AT_RISK = "while a quota is at risk, or it is stuck"
    ADOPT = "adopting what is lost"
    UNDO = "with undo"
    OWN_OBJECTION = "of an own objection"
    CONFIRM = "confirming health"
    POLICY = "with a change of policy"
    DRY_RUN = "as a dry run"


@dataclass(frozen=True)
class Right:
    """The right to a command. `to`: the deed, as it continues after "may not" and "another approver has to"."""

    to: str
    roles: tuple[Role, ...]
    where: Where
    second: Second = Second.NONE
    case: Mapping[Case, Right] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def with_cases(self) -> tuple[tuple[str, Right], ...]:
        """The row itself, under no name, and its rows in each circumstance."""
        return ("", self), *self.case.items()

    def rights_under(self, cases: frozenset[Case]) -> tuple[Right, ...]:
        """Return the rights that must all be allowed: the row, or in its place those of the circumstances."""
        meant = tuple(self.case[case] for case in Case if case in cases and case in self.case)
        return meant or (self,)


_V, _M, _O, _A, _X = Role.VIEWER, Role.MEMBER, Role.OPERATOR, Role.APPROVER, Role.ADMIN
_C, _T, _F, _ANY = Where.CLUSTER, Where.TEAM, Where.FLEET, Where.ANY
_S, _K = Second, Case


def _r(to: str, roles: tuple[Role, ...], where: Where, second: Second = _S.NONE, **case: Right) -> Right:
    return Right(to, roles, where, second, MappingProxyType({Case[name]: right for name, right in case.items()}))


# fmt: off
RIGHTS: dict[str, Right] = {
    #                              what                        who        where  second person
    "rollout.launch":           _r("launch a rollout",         (_O,),     _C,
                          ADOPT=_r("adopt a rollout",          (_A,),     _C,   _S.NOT_LAUNCHER)),
    "rollout.approve":          _r("approve",                  (_A,),     _C,   _S.NOT_CHANGER),
    "rollout.ack":              _r("acknowledge",              (_M,),     _T),
    "rollout.object":           _r("object",                   (_M,),     _T),
    "rollout.pause":            _r("pause",                    (_O,),     _C),
    "rollout.resume":           _r("resume",                   (_O,),     _C),
    "rollout.resolve":          _r("resolve the hold",         (_A,),     _C,   _S.NOT_LAUNCHER,
                  OWN_OBJECTION=_r("withdraw the objection",   (_M,),     _T),
                        CONFIRM=_r("confirm health",           (_O,),     _C)),
    "rollout.promote":          _r("promote",                  (_A,),     _C,   _S.NOT_LAUNCHER),
    "rollout.abort":            _r("abort",                    (_O,),     _C),
    "rollout.rollback":         _r("roll back",                (_O,),     _C),
    "rollout.retry":            _r("retry",                    (_O,),     _C),
    "rollout.close":            _r("close",                    (_O,),     _C,
                        AT_RISK=_r("close while it is at risk or stuck", (_A,), _C, _S.NOT_LAUNCHER)),

    "fleet.launch":             _r("launch a fleet rollout",   (_O,),     _F,
                          ADOPT=_r("adopt a fleet rollout",    (_A,),     _F,   _S.NOT_LAUNCHER)),
    "fleet.approve":            _r("approve",                  (_A,),     _F,   _S.NOT_CHANGER),
    "fleet.pause":              _r("pause",                    (_O,),     _F),
    "fleet.resume":             _r("resume",                   (_O,),     _F),
    "fleet.skip":               _r("skip clusters",            (_A,),     _F,   _S.NOT_LAUNCHER),
    "fleet.move":               _r("move clusters",            (_A,),     _F,   _S.NOT_LAUNCHER),
    "fleet.promote":            _r("promote",                  (_A,),     _F,   _S.NOT_LAUNCHER),
    "fleet.pace":               _r("change the pace",          (_A,),     _F,   _S.NOT_LAUNCHER),
    "fleet.abort":              _r("abort",                    (_O,),     _F,
                           UNDO=_r("abort with undo",          (_O,),     _F,   _S.APPROVER_OR_BREAKER)),

    "request.ask":              _r("ask for quota",            (_M,),     _T),
    "request.approve":          _r("approve",                  (_A,),     _C,   _S.NOT_ASKER),
    "request.decline":          _r("decline",                  (_A,),     _C,   _S.NOT_ASKER),
    "request.withdraw":         _r("withdraw the request",     (_M, _A),  _T),
    "request.extend":           _r("extend the grant",         (_A,),     _C,   _S.NOT_ASKER),

    "bringup.add":              _r("begin a bring-up",         (_O,),     _C,   _S.APPROVER),
    "bringup.hold":             _r("hold",                     (_O,),     _C),
    "bringup.release":          _r("end the hold",             (_O,),     _C),
    "bringup.check-in":         _r("check in",                 (_O,),     _C),
    "bringup.retry":            _r("retry a step",             (_O,),     _C),
    "bringup.stop":             _r("stop a step",              (_O,),     _C),
    "bringup.revalidate":       _r("run the checks again",     (_O,),     _C),
    "bringup.skip":             _r("skip a step or check",     (_A,),     _C,   _S.NOT_ENTERER),
    "bringup.cancel":           _r("cancel",                   (_A,),     _C),
    "bringup.retire":           _r("retire",                   (_A,),     _C,   _S.NOT_ENTERER),

    "builds.use":               _r("bring a build into service", (_X,),   _F),
    "desk.take_fleet":          _r("import the fleet",         (_X,),     _F,
                        DRY_RUN=_r("try an import",            (_X,),     _F),
                         POLICY=_r("change the policy",        (_X,),     _F,   _S.ADMIN)),
    "desk.stage_import":        _r("import the fleet",         (_X,),     _F),
    "desk.commit_import":       _r("import the fleet",         (_X,),     _F,   _S.ADMIN),
    "desk.remove_cluster":      _r("remove a cluster",         (_X,),     _F),
    "desk.rename_cluster":      _r("rename a cluster",         (_X,),     _F),
    "desk.describe_slurm":      _r("read a Slurm for an import", (_X,),   _F),
    "desk.detach":              _r("detach from Slurm, Git or Kueue", (_X,), _F),
    "desk.add_health":          _r("import health",            (_X,),     _F),
    "desk.add_jobs":            _r("import jobs",              (_X,),     _F),
    "desk.import_access":       _r("change roles",             (_X,),     _F,   _S.ADMIN,
                        DRY_RUN=_r("try an access file",       (_X,),     _F)),
    "desk.make_token":          _r("make a token",             (_X,),     _F),
    "desk.revoke_token":        _r("revoke a token",           (_X,),     _F),
    "desk.tokens":              _r("list tokens",              (_X,),     _F),
    "desk.token_of":            _r("look a token up",          (_X,),     _F),
    "desk.ended_sessions":      _r("end sessions of browsers", (_X,),     _F),
    "desk.seen_emergency":      _r("look at an emergency",     (_X,),     _F),
    "desk.unseen_emergencies":  _r("see who acted alone",      (_V, _X),  _F),
    "desk.aim":                 _r("look up who began it",     (_X,),     _F),
    "desk.declare":             _r("declare a hold",           (_O,),     _C),
    "desk.end_window":          _r("end a hold",               (_O,),     _C),
    "desk.end_hold":            _r("end a hold of several clusters", (_O,), _C),
    "desk.push_health":         _r("have health looked at",    (_O,),     _C),
    "desk.confirm_source":      _r("confirm a health source",  (_O,),     _F),
    "desk.plan_milestones":     _r("set milestones",           (_O,),     _F),
    "desk.note_milestone":      _r("note a milestone",         (_O,),     _F),
    "desk.give_up_bringup":     _r("give a bring-up up",       (_A,),     _C,   _S.NOT_ENTERER),
    "desk.archive":             _r("have a refusal archived",  tuple(Role), _ANY),
    "countersign.give":         _r("countersign",              (_A, _X),  _ANY),
    "desk.keep_waiting":        _r("have a command wait",      tuple(Role), _ANY),
    "desk.turn_waiting":        _r("countersign",              (_A, _X),  _ANY),
    "desk.withdraw_waiting":    _r("withdraw a command",       tuple(Role), _ANY),
    "desk.tell_emergency":      _r("act alone",                (_A,),     _ANY),
    **dict.fromkeys(("desk.waiting", "desk.waiting_one"),
                                _r("see commands that wait for a second person", (_V, _X), _ANY)),

    **dict.fromkeys(("desk.access", "desk.doctor", "read.doctor", "read.watch", "read.builds"),
                                _r("see how it is set up",     (_V, _X),  _ANY)),
    **dict.fromkeys(("read.unserved", "desk.pulse"),
                                _r("see whether a worker serves", tuple(Role), _ANY)),
    "desk.why":                 _r("ask why",                  (_V, _M),  _T),
    **dict.fromkeys(("desk.fleet_file", "desk.clusters", "desk.teams", "desk.team_sums", "desk.senseless"),
                                _r("read the fleet",           (_V, _X),  _F)),
    **dict.fromkeys(("desk.bringups", "desk.fleet_envelopes", "desk.fleet_kept", "desk.haircut_sums", "desk.milestones",
                     "desk.overview", "desk.request", "desk.snapshots", "desk.week", "read.ask_rollouts",
                     "read.fleet_plan", "read.fleet_status", "read.lost", "read.lost_fleet", "read.open_fleet",
                     "read.overview", "read.rollouts"),
                                _r("read about all clusters",  (_V,),     _F)),
    **dict.fromkeys(("desk.archived", "desk.calendar", "desk.facts", "desk.flex", "desk.flex_sums", "desk.health_hours",
                     "desk.requests", "desk.snapshot", "desk.tallies", "read.ahead", "read.audit",
                     "read.bringup_status", "read.could_act", "read.health_at", "read.open_requests", "read.status",
                     "read.who_could"),
                                _r("read",                     (_V,),     _C)),
}
# fmt: on

READS_DESK = frozenset({
    "access", "aim", "archived", "bringups", "calendar", "clusters", "describe_slurm", "doctor", "ended_sessions",
    "facts", "fleet_envelopes", "fleet_file", "fleet_kept", "flex", "flex_sums", "haircut_sums", "health_hours",
    "milestones", "overview", "pulse", "push_health", "request", "requests", "senseless", "snapshot", "snapshots",
    "tallies", "teams", "team_sums", "token_of", "tokens", "unseen_emergencies", "waiting", "waiting_one", "week",
    "why",
})  # fmt: skip
"""Questions to the ledger that change nothing that people entered. Workers check their tickets, but store none."""
