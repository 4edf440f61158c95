"""Every view on a terminal of 80 columns, with names of 40 characters: nothing that people read or paste is broken.

The judge knows the names and the text of a pipe, and nothing of how a table is fitted: a word on the screen that has
much of a name must be that name, or begin and end as exactly one of all names does.
"""

from __future__ import annotations

import importlib
import io
import pkgutil
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType

import views
from cli.main import run
from cli.output import show
from cli.selection import Selection
from cli.send_command import print_outcomes
from client.answer_models import Check
from client.inputs.documents import read_fleet, read_flex_demand, read_flex_story
from models.access.access_file import AccessFile
from models.access.access_versions import AccessOutcome, AccessProposal, AccessStands, AccessVersion, HowImported
from models.access.second_persons import Waiting
from models.access.tokens import TokenLine
from models.bringup.messages import BringupRow
from models.bringup.runs import RunPhase
from models.bringup.stages import BringupStage
from models.bringup.status import BringupStatus, row_of, status_of
from models.buffers.backtest import explain_buffer, policies, promises, record
from models.buffers.health_generator import Recipe, simulate_health
from models.cluster.derived_buffer import TERMS
from models.cluster.fleet_file import Fleet
from models.cluster.import_outcome import Departure, FleetOutcome, Line, Verb
from models.cluster.snapshot import snapshot_of
from models.cluster.windows import Entry, Window, WindowKind
from models.errors import Refusal, Unavailable
from models.fleet.archived_state import KeptFleet
from models.fleet.messages import FleetLaunch, FleetPlan
from models.fleet.state import Pace, Wave
from models.flex.division import division
from models.flex.simulation import tell_story
from models.planning.fleet_haircut import USUAL
from models.planning.fleet_haircut import haircut as compared
from models.planning.plan import make_plan
from models.planning.window_forecast import forecast_windows
from models.reports.milestones import standings
from models.reports.why import WhyAnswers
from models.rollout.command_previews import Ahead, TeamBack
from models.rollout.command_rows import ROLLOUT_ROWS
from models.rollout.messages import CommandAnswer
from models.rollout.stages import Command, Stage, command_line
from models.rollout.status_models import Condition, UndoStatus
from tests.tried import examples
from tests.unit.bringup_world import BringupWorld
from tests.unit.bringup_world import entry as bringup_entry
from tests.unit.bringup_world import recipe as a_recipe
from tests.unit.bringup_world import report as run_report
from tests.unit.cli_fakes import NOON, FakeBackstop, answering, status
from tests.unit.test_cli_fleet_rollout import fleet as fleet_state
from tests.unit.test_cli_fleet_rollout import prospects, status_at
from tests.unit.test_cli_overview import one
from tests.unit.test_cli_request import asked, granted
from tests.unit.test_flex_now import seen
from tests.unit.test_why import asked as why_asked
from tests.unit.test_why import flex_of
from tests.unit.weeks import a_plan, point
from views import access as access_view
from views import (
    backtest,
    buffer,
    burndown,
    calendar,
    consequence,
    fleet,
    fleet_diff,
    fleet_rollout,
    flex,
    haircut,
    milestones,
    overview,
)
from views import bringup as bringup_view
from views import countersign as countersign_view
from views import (
    fleet_rollout_tree as fleet_tree,
)
from views import plan as plan_view
from views import recipe as recipe_view
from views import request as request_view
from views import status as status_view
from views import why as why_view
from views.cluster_answer import ClusterAnswer
from views.fleet_rollout_tree import FleetSeen
from views.row_models import FlexOffered, RightLine
from views.words import row, table

ROOT = Path(__file__).parents[2]
A_STEP = {"name": "check-in"}
WIDTH = 80
LENGTH = 40
HOUR = timedelta(hours=1)
Naming = Callable[[str, int], str]


def tail(kind: str, n: int) -> str:
    """They differ at their ends, as most names do."""
    return f"{kind}-that-is-in-a-rather-far-region-of-the-world"[: LENGTH - 4] + f"-{n:03d}"


def head(kind: str, n: int) -> str:
    return f"{n:03d}-{kind}-that-is-in-a-rather-far-region-of-the-world"[:LENGTH]


def middle(kind: str, n: int) -> str:
    """They differ where they would be shortened: these must stay whole."""
    return f"{kind}{'x' * (18 - len(kind))}{n:03d}{'y' * 40}"[:LENGTH]


def wide(kind: str, n: int) -> str:
    """Characters that take two cells each."""
    body = LENGTH - len(kind) - 4
    return f"{kind}{'集' * (body // 2)}{'x' * (body % 2)}-{n:03d}"


REFUSED = "a rollback is running and cannot be stopped; wait until it is done"
NAMINGS: list[Naming] = [tail, head, middle, wide]


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(parts: Sequence[RenderableType], to: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", to)
        patched.setenv("COLUMNS", str(WIDTH))
        patched.setenv("TERM", "xterm")
        show(*parts)
    return re.sub(r"\x1b\[[0-9;]*m", "", to.getvalue())


def judge(screen: str, pipe: str, names: set[str]) -> list[str]:
    """Return what is broken on the screen, a sentence each."""
    faults = []
    wanted = set(re.findall(r"backstop [a-z]+(?: [a-z]+)*(?: (?:'[^']+'|[^\s'`,;()]*[^\s'`,;().:]))+", pipe))
    commands = {c for c in wanted if any(name in c for name in names)}
    faults += [f"broken command: {c}" for c in commands if not any(c in text for text in screen.splitlines())]
    for text in screen.splitlines():
        if cell_len(text) > WIDTH and not text.strip().startswith("backstop "):
            label = text.split("  ", 1)[-1].strip()
            if not label.startswith("backstop "):
                faults.append(f"{cell_len(text)} cells: {text}")
        faults += [f"broken name: {word} in {text}" for word in re.findall(r"[\w…-]+", text) if _broken(word, names)]
    return faults


def _broken(word: str, names: set[str]) -> bool:
    """Return whether the word has much of a name, and is neither a name nor the short form of exactly one."""
    if any(name in word for name in names):
        return False
    if "…" in word:
        begins, ends = word.split("…", 1)
        of = [n for n in names if n.startswith(begins) and n.endswith(ends)]
        return len(of) != 1 or not (begins and ends)
    return any(piece in name for name in names for piece in _pieces(word))


def _pieces(word: str) -> list[str]:
    return [word[n : n + 12] for n in range(len(word) - 11)]


def renamed(text: str, name: Naming) -> Any:
    """A model's JSON with the example's names of clusters, teams and islands replaced."""
    known = sorted({*re.findall(r'"(?:name|team|parent|cluster|job)": ?"([^"]+)"', text)})
    for n, old in enumerate(known):
        text = text.replace(f'"{old}"', f'"{name("unit", n)}"')
    return text


def renamed_fleet(name: Naming) -> Fleet:
    document = read_fleet(str(ROOT / "examples" / "fleet.yaml")).model_dump_json(by_alias=True, exclude_unset=True)
    return Fleet.model_validate_json(renamed(document, name))


def plans(name: Naming) -> list[Any]:
    known = renamed_fleet(name)
    return [make_plan(snapshot_of(c), known.policy_of(c)) for c in known.clusters]


def full_status(name: Naming) -> Any:
    cluster, teams = name("cluster", 1), [name("team", n) for n in range(3)]
    base = status()
    return status(
        Stage.STUCK,
        cluster=cluster,
        rollout=f"{cluster}/1",
        owner=name("owner", 1),
        needs=f"paused by oncall: {command_line('resume', cluster)}",
        breach_of=(teams[0],),
        lifts={"paused": f"{command_line('resume', cluster)} --reason '...'"},
        holds=(base.holds[0].model_copy(update={"actor": name("owner", 2)}),),
        at_risk=(base.at_risk[0].model_copy(update={"team": teams[0]}),),
        waiting_for=(Condition(name="acks", met=False, text=f"the acknowledgement of {teams[1]}", until=NOON),),
        undoing=UndoStatus(
            why="breach",
            reason=f"{teams[0]} had 300 healthy GPUs behind 306 for 10m",
            actor="backstop",
            left=("restore",),
            stuck_on=(f"restore: {teams[1]} does not answer",),
        ),
        teams=tuple(base.teams[0].model_copy(update={"team": team, "quota_gpus": 1234567}) for team in teams),
    )


def fleet_status(name: Naming) -> Any:
    made = status_at(fleet_state(12))
    members = tuple(
        m.model_copy(
            update={
                "cluster": name("cluster", n),
                "needs": f"paused by oncall: {command_line('resume', name('cluster', n))}" if n % 3 == 0 else "",
                "stage": "rolling_back" if n % 2 else "",
            }
        )
        for n, m in enumerate(made.members)
    )
    skip = f"or backstop fleet skip {shlex.quote(name('cluster', 3))} --reason ..."
    return made.model_copy(
        update={"members": members, "owner": name("owner", 1), "needs": f"look at it: backstop status --needs ({skip})"}
    )


def offers(name: Naming) -> list[Any]:
    quotas, used = {name("team", n): 10 for n in range(3)}, {name("team", 1): (20, 0), name("team", 2): (15, 2)}
    return [
        seen(quotas, used, (400, 300, 300), (400, 200, 200)).model_copy(update={"cluster": name("cluster", n)})
        for n in range(3)
    ]


RECORD = [FlexOffered(at=NOON + n * HOUR, flex_gpus=n, healthy_gpus=300) for n in range(50)]


def entries(name: Naming) -> list[Entry]:
    known = renamed_fleet(name)
    windows = [w for c in known.clusters for w in c.windows]
    assert windows
    return [
        Entry(
            id=n + 1,
            cluster=name("cluster", n),
            window=windows[n % len(windows)],
            source="x",
            declared_by=name("by", n),
        )
        for n in range(4)
    ]


def health(name: Naming) -> Any:
    return simulate_health(Recipe(weeks=8).model_copy(update={"cluster": name("cluster", 1)}), 7)


def backtests(name: Naming) -> list[RenderableType]:
    series = health(name)
    weekly = {p: promises(series, d, 1) for p, d in policies(TERMS).items()}
    return backtest.parts([record(series, p, promised, 1) for p, promised in weekly.items()], [series])


def haircuts(name: Naming, by: str) -> list[RenderableType]:
    known = renamed_fleet(name)
    found = compared([(snapshot_of(c), known.policy_of(c)) for c in known.clusters], USUAL, lambda *_: None)
    return haircut.fleet_parts(found, 2) if by == "fleet" else haircut.parts_by(found, by, 2)


def clusters(name: Naming) -> list[ClusterAnswer]:
    return [ClusterAnswer.of(c, "rolling_back") for c in renamed_fleet(name).clusters]


def requests(name: Naming) -> list[Any]:
    def own(state: Any, n: int) -> Any:
        names = {"cluster": name("cluster", n), "team": name("team", n), "actor": name("owner", n)}
        could = (f"user:{name('user', n)}",) if n == 1 else ()
        return state.model_copy(update={"ask": state.ask.model_copy(update=names), "could": could})

    return [own(asked(), 1), own(asked(fits=False), 2), own(granted(), 3)]


def milestone_lines(name: Naming) -> list[RenderableType]:
    plan = a_plan(3, NOON)
    document = renamed(plan.model_dump_json(by_alias=True), name)
    stands = standings(type(plan).model_validate_json(document), {"monitored_clusters": 2, "phantom_gpus": 30}, NOON)
    return milestones.milestones_parts(stands)


def summaries(name: Naming, many: int) -> list[Any]:
    return [
        one(
            n,
            cluster=name("cluster", n),
            owner=name("owner", n % 3),
            needs=f"paused by oncall: {command_line('resume', name('cluster', n))}" if n % 2 else "",
            unbacked_gpus=n,
            lost=n == 3,
            could=(f"user:{name('user', n)}", "group:hw-leads") if n % 4 == 1 else (),
        )
        for n in range(many)
    ]


def whys(name: Naming) -> tuple[WhyAnswers, dict[str, Any], list[Any]]:
    teams = [
        why_asked(400).model_copy(update={"cluster": name("cluster", n), "team": name("team", 1)}) for n in range(2)
    ]
    stands = {name("cluster", 1): full_status(name)}
    return WhyAnswers(teams=tuple(teams), unanswered={}), stands, [flex_of(name("cluster", 7), 90, 90)]


def aheads(name: Naming) -> list[Ahead]:
    """Return impacts before an undo or a close: quotas that come back, a stuck rollout, and one without effects."""
    back = tuple(
        TeamBack(team=name("team", t), gpus=306, back_gpus=345, backing_gpus=t or None, by_others=t == 2)
        for t in range(3)
    )
    one = Ahead(cluster=name("cluster", 0), rollout="r", stage=Stage.MONITORED, undoes=("restore",), back=back)
    one = one.but(told=tuple(b.team for b in back), close_told=(name("team", 1),), at_risk={b.team: 12 for b in back})
    stuck = one.but(cluster=name("cluster", 1), stage=Stage.STUCK, back=())
    return [one, stuck, Ahead(cluster=name("cluster", 2), rollout="s", stage=Stage.PLANNED)]


def import_told(name: Naming) -> FleetOutcome:
    """A line of each kind of difference, of long names."""
    lines = tuple(
        Line(
            verb=verb,
            kind=kind,
            cluster=name("cluster", n),
            name=name("team", n),
            field="gpus",
            before="160 GPUs",
            after="170 GPUs",
            why="the quotas of a cluster with an open rollout cannot be changed" if verb is Verb.REFUSED else "",
            path=("clusters", n, "quotas", 0),
        )
        for n, verb in enumerate(Verb)
        for kind in ("quota", "window")
    )
    untouched = {"clusters": 3, "quotas": 40, "teams": 1}
    return FleetOutcome(lines=lines, totals=dict.fromkeys(Verb, 2), untouched=untouched, counts={"clusters": 3})


def kept_fleet(name: Naming) -> KeptFleet:
    members = {name("cluster", n): list(Wave)[n % len(Wave)] for n in range(8)}
    return KeptFleet(
        fleet=name("fleet", 1),
        owner=name("owner", 1),
        launched_at=NOON,
        launched_by=name("by", 1),
        members=members,
        started=(*members,)[:3],
        skipped=(*members,)[3:4],
        held=("pause",),
        plan_hash="feed",
        approved_by=name("by", 2),
    )


def ahead(name: Naming) -> dict[str, Any]:
    found = {
        c.name: forecast_windows(c.name, c.quotas, c.islands, c.windows, NOON) for c in renamed_fleet(name).clusters
    }
    return {cluster: told for cluster, told in found.items() if told}


def story(name: Naming) -> Any:
    given = read_flex_story(str(ROOT / "examples" / "flex-story.yaml"))
    return tell_story(
        type(given).model_validate_json(renamed(given.model_dump_json(by_alias=True, exclude_none=True), name))
    )


def brought_up(n: Naming) -> BringupStatus:
    """One whose first step has failed."""
    made = BringupWorld()
    made.supply_comes()
    made.ends["bootstrap"] = run_report(RunPhase.FAILED, "exit status 1: no quota left")
    made.run()
    named = {"cluster": n("cluster", 1), "owner": n("owner", 1), "entered_by": n("owner", 2), "needs": ""}
    return status_of(made.b, made.now).model_copy(update=named)


def on_the_board(n: Naming, many: int) -> list[BringupRow]:
    made = BringupWorld()
    made.run()
    row_ = row_of(made.b, made.now)
    stages = list(BringupStage)
    return [
        row_.model_copy(
            update={
                "cluster": n("cluster", i),
                "owner": n("owner", i % 3),
                "stage": stages[i % len(stages)],
                "could": (f"user:{n('user', i)}",) if i % 5 == 0 else (),
            }
        )
        for i in range(many)
    ]


def access_file(n: Naming) -> AccessFile:
    grants = [
        {"to": [f"user:{n('user', 1)}"], "roles": ["admin"]},
        {"to": ["group:g", f"user:{n('user', 2)}"], "roles": ["operator", "approver"], "clusters": ["h100-*", "a100"]},
    ]
    return AccessFile.model_validate({"grants": grants})


def access_stands(n: Naming) -> AccessStands:
    file = access_file(n)
    version = AccessVersion(version=1, hash=file.hash, file=file, by="user:tpm", at=NOON, how=HowImported.FIRST)
    proposal = AccessProposal(hash="feed", file=file.but(two_person=False), by="user:tpm", at=NOON, after=1)
    return AccessStands(version=version, proposal=proposal)


def token(n: Naming) -> TokenLine:
    return TokenLine.model_validate(
        {"name": n("token", 1), "owner": "user:sre", "scope": {"roles": ["viewer"], "commands": ["read.*"]}}
        | {"made_by": "user:tpm", "made_at": NOON, "expires_at": NOON + timedelta(days=30)}
    )


def waits(n: Naming) -> Waiting:
    return Waiting(
        hash="4f2a9c1b7d3e5f60" * 4,
        command="bringup.add",
        what=f"begin a bring-up in {n('cluster', 1)}",
        cluster=n("cluster", 1),
        by=f"user:{n('person', 1)}",
        at=NOON,
        until=NOON + timedelta(days=1),
        could=(f"user:{n('person', 2)}",),
        message={"entry": {"cluster": n("cluster", 1), "nodes": 8, "values": {}}, "waves": [{"name": "a"}]},
    )


VIEWS: dict[str, Callable[[Naming], Sequence[RenderableType]]] = {
    "access.access_parts": lambda n: access_view.access_parts(access_stands(n)),
    "access.outcome_parts": lambda n: [
        *access_view.outcome_parts(AccessOutcome(hash="feed", said="it is in force")),
        *access_view.rights_parts([], who=True),
        *access_view.access_parts(access_stands(n)),
    ],
    "access.rights_parts": lambda n: access_view.rights_parts(
        [
            RightLine(
                command="rollout.approve",
                to="approve",
                roles=("approver",),
                where="cluster",
                second="not who launched it",
                who=(n("user", 1), "group:hw-leads"),
            )
        ],
        who=True,
    ),
    "access.token_parts": lambda n: access_view.token_parts([token(n)], NOON),
    "countersign.waiting_parts": lambda n: countersign_view.waiting_parts([waits(n)]),
    "countersign.whole_parts": lambda n: countersign_view.whole_parts(waits(n)),
    "overview.overview_parts": lambda n: [
        *overview.overview_parts(summaries(n, 7), NOON, all_lines=True),
        *overview.overview_parts(summaries(n, 40), NOON, all_lines=False),
    ],
    "overview.watch_parts": lambda n: overview.watch_parts(
        Check.bad("watch", f"away, last heard of {n('cluster', 1)}")
    ),
    "bringup.status_parts": lambda n: bringup_view.status_parts(brought_up(n)),
    "bringup.board_parts": lambda n: bringup_view.board_parts(on_the_board(n, 20), NOON),
    "recipe.recipe_parts": lambda n: recipe_view.recipe_parts(
        a_recipe(provision=[A_STEP | {"touch": n("cluster", 1)}])
    ),
    "recipe.entries_parts": lambda n: recipe_view.entries_parts(
        [bringup_entry().model_copy(update={"cluster": n("cluster", i), "owner": n("owner", i)}) for i in range(5)],
        [a_recipe()],
    ),
    "status.status_parts": lambda n: status_view.status_parts(full_status(n), NOON),
    "fleet.fleet_parts": lambda n: fleet.fleet_parts(clusters(n)),
    "fleet.cluster_parts": lambda n: [p for c in clusters(n) for p in fleet.cluster_parts(c)],
    "fleet_rollout.plan_parts": lambda n: fleet_rollout.plan_parts(
        FleetPlan(
            fleet="fleet/1",
            hash="feed",
            clusters=tuple(
                p.model_copy(update={"cluster": n("cluster", i), "why_last": "a floor holds it" if i % 7 == 5 else ""})
                for i, p in enumerate(prospects(60))
            ),
        ),
        (n("cluster", 1),),
        Pace(),
    ),
    "fleet_rollout.plan_diff_parts": lambda n: fleet_rollout.plan_diff_parts(
        FleetPlan(
            fleet="fleet/1",
            hash="feed",
            clusters=tuple(p.model_copy(update={"cluster": n("cluster", i)}) for i, p in enumerate(prospects(40))),
        ),
        FleetPlan(
            fleet="fleet/1",
            hash="f00d",
            clusters=tuple(
                p.model_copy(update={"cluster": n("cluster", i), "plan_hash": "x", "cut_gpus": 4 * i})
                for i, p in enumerate(prospects(60))
            ),
        ),
        NOON,
        {n("cluster", i): {n("team", i): 4} for i in range(40)},
        {n("cluster", i): {n("team", i): 5, n("other", i): 90} for i in range(60)},
    ),
    "fleet_rollout.status_parts": lambda n: [
        *fleet_rollout.status_parts(fleet_status(n)),
        *fleet_rollout.status_parts(fleet_status(n), fleet_status(n).members),
    ],
    "fleet_rollout.kept_parts": lambda n: fleet_rollout.kept_parts(
        kept_fleet(n), FleetLaunch(fleet="fleet/2", owner=n("owner", 2))
    ),
    "fleet_rollout.abort_parts": lambda n: [
        p for undo in (True, False) for p in fleet_rollout.abort_parts(fleet_status(n), undo=undo)
    ],
    "fleet_rollout.resume_parts": lambda n: fleet_rollout.resume_parts(
        fleet_status(n).but(members=tuple(m.but(failed_at=NOON) for m in fleet_status(n).members))
    ),
    "consequence.consequence_parts": lambda n: consequence.consequence_parts(ROLLOUT_ROWS["rollback"], aheads(n)),
    "consequence.undo_parts": lambda n: consequence.undo_parts(aheads(n), ends=True),
    "consequence.close_parts": lambda n: consequence.close_parts(aheads(n)),
    "consequence.promote_parts": lambda n: consequence.promote_parts(
        [a.model_copy(update={"promote_leaves": (f"held by {n('team', 7)}",)}) for a in aheads(n)]
    ),
    "consequence.left_parts": lambda n: consequence.left_parts(
        aheads(n),
        {a.cluster: REFUSED for a in aheads(n)},
        {n("cluster", 3): Unavailable(f"{n('cluster', 3)}: no answer")},
    ),
    "consequence.refusing_parts": lambda n: consequence.refusing_parts(
        aheads(n), {a.cluster: REFUSED for a in aheads(n)}
    ),
    "consequence.many_parts": lambda n: consequence.many_parts(
        [n("cluster", 1), n("cluster", 2)], [full_status(n), None]
    ),
    "fleet_diff.diff_parts": lambda n: fleet_diff.diff_parts(
        import_told(n), {line.path: "fleet.yaml:12" for line in import_told(n).lines}
    ),
    "fleet_diff.kept_parts": lambda n: fleet_diff.kept_parts(import_told(n)),
    "fleet_diff.left_out_parts": lambda n: fleet_diff.left_out_parts(import_told(n)),
    "fleet_diff.undone_parts": lambda n: fleet_diff.undone_parts(
        Departure(cluster=n("cluster", 1), summary="256 GPUs, 2 quotas", history={"health samples": 3, "tallies": 1}),
        renamed=True,
    ),
    "fleet_rollout_tree.tree_parts": lambda n: fleet_tree.tree_parts(FleetSeen(fleet_status(n)), NOON),
    "plan.plan_parts": lambda n: [part for p in plans(n) for part in plan_view.plan_parts(p)],
    "plan.plans_parts": lambda n: plan_view.plans_parts(plans(n)),
    "haircut.fleet_parts": lambda n: haircuts(n, "fleet"),
    "haircut.parts_by": lambda n: [*haircuts(n, "cluster"), *haircuts(n, "team"), *haircuts(n, "wave")],
    "flex.fleet_parts": lambda n: flex.fleet_parts(offers(n), RECORD),
    "flex.cluster_parts": lambda n: flex.cluster_parts(offers(n)[0], RECORD),
    "flex.parts": lambda n: flex.parts(
        (
            asked := type(d := read_flex_demand(str(ROOT / "examples" / "flex.yaml"))).model_validate_json(
                renamed(d.model_dump_json(by_alias=True), n)
            )
        ),
        division(asked),
    ),
    "flex.story_parts": lambda n: flex.story_parts(story(n)),
    "calendar.hold_parts": lambda n: calendar.hold_parts(
        entries(n)[0].window, [n("cluster", i) for i in range(20)], [n("cluster", 1)], {}, NOON
    ),
    "calendar.calendar_parts": lambda n: calendar.calendar_parts(entries(n), entries(n)[:1], ahead(n), NOON),
    "milestones.milestones_parts": milestone_lines,
    "request.list_parts": lambda n: request_view.list_parts(requests(n), "", ended=True),
    "request.request_parts": lambda n: [p for r in requests(n) for p in request_view.request_parts(r)],
    "why.in_full": lambda n: why_view.in_full(*whys(n)),
    "why.summary": lambda n: why_view.summary(whys(n)[0], whys(n)[2], hint=True),
    "burndown.burndown_parts": lambda n: burndown.burndown_parts(
        [point(NOON - i * HOUR, 3, 100 * i, 3) for i in range(20, 0, -1)], n("cluster", 1), NOON, NOON
    ),
    "backtest.parts": backtests,
    "buffer.parts": lambda n: buffer.parts(explain_buffer(health(n), TERMS, None)),
}


def test_no_view_is_missing_here() -> None:
    """Every function of views whose annotation says that it returns parts of a screen is drawn here."""
    found = set()
    for module in pkgutil.iter_modules(views.__path__):
        loaded = importlib.import_module(f"views.{module.name}")
        for name, made in vars(loaded).items():
            own = getattr(made, "__module__", "") == loaded.__name__ and not name.startswith("_")
            if own and "list[RenderableType]" in str(getattr(made, "__annotations__", {}).get("return")):
                found.add(f"{module.name}.{name}")
    parts = {
        "request.request_lines",
        "request.waiting_line",
        "plan.gates",
        "fleet_rollout.unknown_lines",
        "words.indent",
        "fleet_diff.lost_parts",
        "flex.at_most_note",
        "flex.fleet_summary",
    }
    assert found - parts == set(VIEWS), "parts of others are shown with these"


@pytest.mark.parametrize("naming", NAMINGS, ids=[n.__name__ for n in NAMINGS])
@pytest.mark.parametrize("view", VIEWS)
def test_at_80_columns_no_name_and_no_command_is_broken(
    view: str, naming: Naming, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: set[str] = set()

    def name(kind: str, n: int) -> str:
        made = naming(kind, n)
        assert cell_len(made) == LENGTH
        names.add(made)
        return made

    parts = VIEWS[view](name)
    screen, pipe = shown(parts, Screen(), monkeypatch), shown(parts, io.StringIO(), monkeypatch)
    assert any(n in pipe for n in names) or view == "haircut.fleet_parts"
    assert "…" not in pipe
    assert judge(screen, pipe, names) == [], screen


PARTS = st.sampled_from(["pod", "train", "h100", "a-rather-long-part", "名", "x", "-", "0", "1", "17"])
NAMES = st.lists(PARTS, min_size=1, max_size=8).map("".join)


@pytest.mark.fuzzed
@settings(max_examples=examples(800), deadline=None)
@given(
    rows=st.lists(st.tuples(NAMES, NAMES, st.integers(0, 10**7)), min_size=1, max_size=12),
    width=st.integers(40, 120),
)
@example(rows=[("podpart名part" * 4, "x", 0), ("podpartpart名" * 4, "x", 0)], width=60)
@example(
    rows=[
        ("pod", "podpodpod", 0),
        ("podpoda-rather-long-parta-rather-long-part名", "pod", 0),
        ("podpoda-rather-long-part名a-rather-long-part名", "pod", 0),
    ],
    width=60,
)
def test_any_names_are_told_apart_at_any_width(rows: list[tuple[str, str, int]], width: int) -> None:
    """Each shown name can stand for one real name, in the row where it is, and every number is there."""
    made = table("CLUSTER", "TEAM", ">GPUS", "=STAGE", "~WHY", least=["STAGE"])
    for cluster, team, number in rows:
        row(made, cluster, team, number, "rolling_back", "health does not back it: backstop retry x --reason '...'")
    out = io.StringIO()
    Console(file=out, width=width).print(Group(made), crop=False)
    text = out.getvalue()
    lines = [line for line in text.splitlines() if line.strip() and not line.strip().startswith("backstop ")]
    assert max(map(cell_len, lines)) <= max(width, *(cell_len(name) + 9 for r in rows for name in r[:2]))
    assert text.count("backstop retry x --reason '...'") == len(rows)
    every = {name for r in rows for name in r[:2]}
    if not lines[0].startswith("CLUSTER  ") or "TEAM" not in lines[0]:
        assert [name for r in rows for name in r[:2]] == re.findall(r"^(?:CLUSTER|TEAM) +(\S+)", text, re.MULTILINE)
        return
    cells = [line.split() for line in lines[1:] if re.match(r"\S+ +\S+ +\d+( |$)", line)]
    for (cluster, team, number), found in zip(rows, cells, strict=True):
        assert int(found[2]) == number
        for name, cell in ((cluster, found[0]), (team, found[1])):
            fits = [n for n in every if cell == n or ("…" in cell and _stands_for(cell, n))]
            assert fits == [name] or cell == name, (cell, name)


def _stands_for(cell: str, name: str) -> bool:
    begins, ends = cell.split("…", 1)
    return name.startswith(begins) and name.endswith(ends) and cell_len(name) > cell_len(cell)


@pytest.mark.parametrize(
    ("screen", "faults"),
    [
        ("unit-that-is-in-a-rather-far-region-001  12", 0),
        ("unit-that-is-in…-region-001  12", 0),
        ("unit-that-is-in-a-rather-\nfar-region-001", 1),
        ("unit-that-is…-region  12", 1),
        ("unit-that-is-in-…", 1),
        ("it-that-is…000", 1),
        ("x" * 81, 1),
        ("run: backstop status\n  unit-that-is-in-a-rather-far-region-001", 1),
    ],
)
def test_the_judge_sees_what_is_broken(screen: str, faults: int) -> None:
    names = {f"unit-that-is-in-a-rather-far-region-00{n}" for n in range(3)}
    pipe = "run: backstop status unit-that-is-in-a-rather-far-region-001" if "backstop" in screen else ""
    assert len(judge(screen, pipe, names)) >= faults
    assert bool(judge(screen, pipe, names)) == bool(faults)


def test_a_name_that_looks_like_the_short_form_of_another_is_shown_whole() -> None:
    """Somebody has called a cluster what a team of 24 characters would be shortened to."""
    made = table("CLUSTER", "TEAM", ">GPUS")
    row(made, "pod-xx…00000", "pod-xxyyyyyyyyyyyyyyy00000", 12)
    for width in (20, 30, 80):
        out = io.StringIO()
        Console(file=out, width=width).print(Group(made), crop=False)
        assert "pod-xx…00000 " in out.getvalue().replace("\n", " \n")


def test_what_became_of_a_command_is_told_whole_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {tail("cluster", n) for n in range(3)}
    outcomes: list[Any] = [
        (name, CommandAnswer(cluster=name, command=Command.PAUSE, stage=Stage.BUFFERED, said=f"paused by {n}"))
        for n, name in enumerate(sorted(names)[1:])
    ]
    outcomes.append((min(names), Refusal(f"pause is not possible while {min(names)} is rolling_back: {REFUSED}")))
    with monkeypatch.context() as patched:
        screen = Screen()
        patched.setattr(sys, "stdout", screen)
        patched.setenv("COLUMNS", str(WIDTH))
        with pytest.raises(typer.Exit):
            print_outcomes(outcomes, Selection(tuple(names)), as_json=False)
    text = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
    assert re.sub(r"\s+", " ", text).count(REFUSED) == 1, text
    assert judge(text, "", names) == [], text


@pytest.mark.parametrize(
    ("words", "listed"),
    [
        (
            ["hold", tail("cluster", 1), "--kind", "sev", "--until", "4h", "--gpus", "64", "--reason", "fabric flaps"],
            False,
        ),
        (["calendar", "show"], True),
    ],
)
def test_a_list_says_how_all_of_it_is_shown_where_that_can_be_asked_for(
    words: list[str], listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The option that is named is one that the command has."""
    window = Window(kind=WindowKind.SEV, starts=NOON, ends=NOON.replace(year=9000), reason="fabric flaps", gpus=1000)
    entry = Entry(id=1, cluster=tail("cluster", 1), window=window, source="x", declared_by="jana.novakova@example.org")
    screen = Screen()
    with monkeypatch.context() as patched, answering(FakeBackstop(entries=[entry])):
        patched.setattr(sys, "stdout", screen)
        patched.setenv("COLUMNS", str(WIDTH))
        patched.setenv("BACKSTOP_ACTOR", "jana.novakova@example.org")
        assert run(words) == 0
        hints = re.findall(r"No room for [A-Z, ]+: ([\w -]+)", screen.getvalue())
        assert hints in ([["-o wide"]] if listed else [["a wider terminal shows it"], ["a wider terminal shows them"]])
        assert run([*words, "-o", "wide"]) == (0 if listed else 2)
