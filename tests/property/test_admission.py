"""For any access file and any ledger: admission lets nothing through that the table of rights denies."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.access.access_file import AccessFile
from models.access.decision import Permitted, Target, decide
from models.access.principals import Principal, Proof
from models.access.rights import RIGHTS, Case, Right, Second
from models.access.roles import Role, with_included
from models.access.tokens import TokenScope
from models.base import Model
from models.errors import Refusal
from models.fleet.commands import FLEET_COMMANDS, FleetCommandRequest
from models.requests.commands import RequestCommand, RequestOrder
from models.rollout.commands import CommandRequest
from models.rollout.messages import LaunchRequest
from models.rollout.stages import Command
from tests.property.test_access import CLUSTERS, NAMES, files, guises, owner_of
from tests.tried import examples
from tests.unit import test_admission as cells

PLACES = st.sampled_from([name for name in CLUSTERS if name])
FIRSTS = st.sampled_from([*(f"user:{n}" for n in NAMES), "service:ci", "ana", ""])
MESSAGES: dict[str, Any] = {
    **{f"rollout.{c.value}": CommandRequest for c in Command},
    **{f"fleet.{c}": FleetCommandRequest for c in FLEET_COMMANDS},
    **{f"request.{c.value}": RequestOrder for c in RequestCommand},
}


@st.composite
def asked(draw: st.DrawFn) -> tuple[str, str, dict[str, Any]]:
    """A command, a cluster, and what its message says beside who gives it."""
    command = draw(st.sampled_from([*sorted(MESSAGES), "rollout.launch"]))
    fields: dict[str, Any] = {"reason": draw(st.sampled_from(["", "r"]))}
    cluster = draw(PLACES)
    if command == "fleet.abort":
        fields["undo"] = draw(st.booleans())
    if command == "rollout.launch":
        fields |= {"cluster": cluster, "rollout": "r-2", "owner": "x", "adopt": draw(st.booleans())}
    if command == "rollout.resolve" and draw(st.booleans()):
        fields |= {"hold": "objection-research", "team": draw(st.sampled_from(["research", "evals"]))}
    if command in ("rollout.ack", "rollout.object"):
        fields["team"] = draw(st.sampled_from(["research", "evals"]))
    return command, cluster, fields


def target_by_hand(command: str, cluster: str, fields: dict[str, Any], world: cells.Ledger, short: bool) -> Target:
    """Return the target of a command by docs/access.md, put together from the world that the test made."""
    team, cases = fields.get("team", ""), set[Case]()
    if fields.get("undo"):
        cases.add(Case.UNDO)
    if fields.get("adopt") and world.lost:
        cases.add(Case.ADOPT)
    if fields.get("hold") == f"objection-{team}" and team:
        cases.add(Case.OWN_OBJECTION)
    if command == "rollout.close" and world.lost and (world.stage == "stuck" or (world.stage == "monitored" and short)):
        cases.add(Case.AT_RISK)
    if command.startswith("request."):
        cluster, team = "h100-a", "research"
    first = world.first if world.lost or not command.startswith("rollout.") else ""
    place = "" if command.startswith("fleet.") else cluster
    breaker = world.breaker and Case.UNDO in cases
    given: dict[str, Any] = {"first": first, "changed": world.changed, "breaker_open": breaker}
    return Target(cluster=place, team=team, cases=frozenset(cases), **given)


def lacks(file: AccessFile, who: Principal, right: Right, target: Target, human: str, emergency: bool) -> str:
    """Return what is missing by docs/access.md, without our code: a role anywhere, or a second human."""
    names = {who.name, *(f"group:{group}" for group in who.groups if who.proof is Proof.OIDC)}
    held = {role for one in file.grants if names & {*one.to} for role in with_included(one.roles)}
    if not held & {*right.roles}:
        return "a role"
    if right.second is Second.NONE or not file.two_person or (emergency and Role.APPROVER in held):
        return ""
    if right.second.needs_countersign:
        return "" if right.second is Second.APPROVER_OR_BREAKER and target.breaker_open else "a second ticket"
    changed = target.changed if right.second is Second.NOT_CHANGER else ()
    return "a second human" if human in {owner_of(file, name) for name in (target.first, *changed)} else ""


@pytest.mark.fuzzed
@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_admission_lets_through_nothing_that_the_table_denies(data: st.DataObject) -> None:
    file, (command, cluster, fields) = data.draw(files()), data.draw(asked())
    human, who, _ = data.draw(guises(file).filter(lambda one: one[2] is None))
    world = cells.Ledger(
        file=file,
        first=data.draw(FIRSTS.filter(bool) if command.startswith("request.") else FIRSTS),
        changed=tuple(data.draw(st.lists(FIRSTS.filter(bool), max_size=2))),
        breaker=data.draw(st.booleans()),
        stage=data.draw(st.sampled_from(["planned", "monitored", "stuck"])),
        lost=data.draw(st.booleans()),
    )
    short, emergency = data.draw(st.booleans()), data.draw(st.booleans())
    kind: type[Model] = MESSAGES.get(command, LaunchRequest)
    message = kind.model_validate({"actor": who.name, **fields})
    target = target_by_hand(command, cluster, fields, world, short)
    expected = decide(file, who, command, target, emergency=emergency, reason=fields["reason"])
    try:
        answer = cells.admitted(world, command, message, who, short, emergency=emergency, cluster=cluster)
    except Refusal:
        assert not (isinstance(expected, Permitted) and expected.complete)
        return
    assert isinstance(answer, Permitted)
    assert answer.complete
    assert isinstance(expected, Permitted)
    assert expected.complete
    for right in RIGHTS[command].rights_under(target.cases):
        assert lacks(file, who, right, target, human, emergency) == ""


@pytest.mark.fuzzed
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_token_that_the_ledger_does_not_have_admits_nothing(data: st.DataObject) -> None:
    file, (command, cluster, fields) = data.draw(files()), data.draw(asked())
    _, who, scope = data.draw(guises(file))
    if not isinstance(scope, TokenScope):
        return
    message = MESSAGES.get(command, LaunchRequest).model_validate({"actor": who.name, **fields})
    with pytest.raises(Refusal, match="is no longer valid"):
        cells.admitted(cells.Ledger(file=file), command, message, who, cluster=cluster)
