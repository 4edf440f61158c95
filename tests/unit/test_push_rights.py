"""The right to push health: an operator of all the clusters has it, and a token that can do nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from models.access.access_file import AccessFile
from models.access.command_targets import target_of
from models.access.decision import Denied, Permitted, decide
from models.access.principals import Principal, Proof
from models.access.roles import Role
from models.access.tokens import TokenScope
from models.health_pushes import AlertmanagerPush, HealthPush

PUSH = "desk.push_health"
FILE = AccessFile.model_validate(
    {
        "services": [{"name": "alertmanager", "owner": "user:tpm"}],
        "grants": [
            {"to": ["user:tpm"], "roles": ["admin"]},
            {"to": ["service:alertmanager"], "roles": ["operator"], "clusters": ["h100-*"]},
            {"to": ["user:ana"], "roles": ["viewer"]},
        ],
    }
)
ALERTMANAGER = Principal(name="service:alertmanager", proof=Proof.TOKEN, how="token alertmanager")
ALONE = TokenScope(roles=(Role.OPERATOR,), commands=(PUSH,))


def judged(message: Any, who: Principal = ALERTMANAGER, command: str = PUSH) -> Permitted | Denied:
    scope = ALONE if who.proof is Proof.TOKEN else None
    return decide(FILE, who, command, target_of(command, message), scope=scope)


def push(*clusters: str) -> HealthPush:
    return HealthPush(clusters=clusters)


def test_a_service_pushes_where_it_is_an_operator_and_nowhere_else() -> None:
    assert isinstance(judged(push("h100-a", "h100-b")), Permitted)
    for clusters in (("gb200-a",), ("h100-a", "gb200-a"), ("gb200-a", "h100-a")):
        assert isinstance(judged(push(*clusters)), Denied)


def test_alerts_are_judged_by_the_clusters_that_they_name() -> None:
    def alerts(*clusters: str) -> AlertmanagerPush:
        return AlertmanagerPush.model_validate(
            {
                "version": "4",
                "label": "site",
                "alerts": [{"labels": {"site": c, "cluster": "h100-a"}} for c in clusters],
            }
        )

    assert isinstance(judged(alerts("h100-a", "h100-a", "h100-b")), Permitted)
    assert isinstance(judged(alerts("h100-a", "gb200-a")), Denied)


@pytest.mark.parametrize("command", ["rollout.abort", "desk.declare", "desk.confirm_source", "rollout.pause"])
def test_a_token_for_pushes_does_nothing_else(command: str) -> None:
    answer = decide(FILE, ALERTMANAGER, command, target_of(command, None, "h100-a"), scope=ALONE)
    assert isinstance(answer, Denied)


def test_who_may_only_read_pushes_nothing() -> None:
    answer = judged(push("h100-a"), Principal(name="user:ana", proof=Proof.PEER))
    assert isinstance(answer, Denied)
    assert "may not have health looked at" in answer.reason
