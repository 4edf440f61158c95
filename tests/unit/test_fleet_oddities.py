"""Legal but odd entries are reported, and ordinary ones are not. Contacts are judged as the notifier itself would."""

from __future__ import annotations

from typing import Any

import pytest

from activities.adapters.http import EVERYWHERE
from activities.adapters.notify.contact_routes import routes
from models.cluster.fleet_file import Fleet
from models.cluster.fleet_oddities import contact_fault, oddities_of
from models.errors import Refusal


def fleet(**changes: Any) -> dict[str, Any]:
    cluster = {
        "name": "c",
        "islands": [
            {"name": "X", "total_gpus": 64, "healthy_gpus": 64},
            {"name": "Y", "total_gpus": 32, "healthy_gpus": 32},
        ],
        "quotas": [{"team": "a", "gpus": 90}],
        **changes,
    }
    return {"clusters": [cluster], "teams": [{"name": "a", "contacts": ["log"]}]}


def odd(document: dict[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    made = Fleet.model_validate(document)
    contacts = {team.name: team.contacts for team in made.teams}
    return [(each.path, each.text) for each in oddities_of(made, contacts)]


QUOTA = ("clusters", 0, "quotas", 0)


@pytest.mark.parametrize(
    ("changes", "path", "text"),
    [
        ({}, None, ""),
        ({"quotas": [{"team": "a", "gpus": 960}]}, None, ""),  # ten times the 96
        (
            {"quotas": [{"team": "a", "gpus": 970}]},
            QUOTA[:2],
            "c promises 970 GPUs, 10 times the 96 installed",
        ),
        (
            {"islands": [{"name": "X", "total_gpus": 0, "healthy_gpus": 0}]},
            QUOTA[:2],
            "c promises 90 GPUs, but has none installed",
        ),
        ({"quotas": [{"team": "a", "gpus": 64, "protected_blocks": [64]}]}, None, ""),
        (
            {"quotas": [{"team": "a", "gpus": 65, "protected_blocks": [65]}]},
            (*QUOTA, "protected_blocks"),
            "a of c has a protected block of 65 GPUs, larger than any island (at most 64)",
        ),
        (
            {"quotas": [{"team": "a", "gpus": 40, "protected_blocks": [33], "islands": ["Y"]}]},
            (*QUOTA, "protected_blocks"),
            "a of c has a protected block of 33 GPUs, larger than any of its islands (at most 32)",
        ),
        (
            {"quotas": [{"team": "a", "gpus": 33, "islands": ["Y"]}]},
            (*QUOTA, "islands"),
            "a of c has a quota of 33 GPUs, above the 32 installed in its islands",
        ),
        (
            {"quotas": [{"team": "a", "gpus": 90, "scheduled_gpus": 97}]},
            QUOTA[:2],
            "c has 97 GPUs scheduled, more than the 96 installed",
        ),
    ],
)  # fmt: skip
def test_what_a_cluster_says_is_odd_beyond_a_bound_alone(
    changes: dict[str, Any], path: tuple[str | int, ...] | None, text: str
) -> None:
    found = odd(fleet(**changes))
    if path is None:
        assert found == []
    else:
        assert (path, text) in found


def test_teams_without_a_contact_are_named_once_and_a_slip_of_the_pen_is_guessed() -> None:
    document = fleet(
        quotas=[{"team": t, "gpus": 1} for t in ("a", "research", "evals", "org")]
        + [{"team": "k", "gpus": 1, "parent": "org"}]
    )
    document["teams"] += [{"name": "reserach", "contacts": ["log"]}, {"name": "elsewhere", "contacts": ["log"]}]
    assert odd(document) == [
        (("teams",), "3 teams have no contact, so their notices go only to the log: evals, k, research"),
        (("teams", 1, "name"), "team reserach has no quota in this file: did you mean research?"),
    ]


def test_one_team_without_a_contact_has_its_notices_in_the_log() -> None:
    document = fleet(quotas=[{"team": "evals", "gpus": 1}])
    document["teams"] = [{"name": "research", "contacts": ["log"]}]
    assert odd(document) == [(("teams",), "1 team has no contact, so its notices go only to the log: evals")]


CONTACTS = [
    *("#ml-research", "@ann", "ml-research", "slack:ml-research", "slack://T/B", "slack:", "mailto:", "http://x.org/y"),
    *("ftp://x.org", "x.org", "https:x.org", "webhook+https:x", "json:x", "hooks.slack.com/services/A/B/C", "a@", "@"),
    *("a@x.org", "mailto:a@x.org", "slack://T1AAA/B1BBB/ToKeN", "slack://bot@T1AAA/B1BBB/ToKeN/#ml", "https://x.org/y"),
    *("https://hooks.slack.com/services/A/B/C", "jsons://x.org/y", "webhook+http://10.0.0.1/x"),
]  # fmt: skip


@pytest.mark.parametrize("contact", CONTACTS)
def test_a_contact_is_warned_of_where_the_notifier_would_refuse_it(contact: str) -> None:
    try:
        routes(contact, "mailto://mail.example.org?from=backstop@example.org", EVERYWHERE)
    except Refusal:
        assert contact_fault(contact)
        assert "ToKeN" not in contact_fault(contact)
    else:
        assert contact_fault(contact) == ""


@pytest.mark.parametrize("contact", ["log", "log:", "named:ml", "slack://***", "***"])
def test_the_log_a_name_and_what_stands_are_well(contact: str) -> None:
    assert contact_fault(contact) == ""
