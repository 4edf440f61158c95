"""Rubbish as pushes of health: one sentence and a status, nothing is passed on, and the next caller is served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models.errors import BadInput
from models.health_pushes import MOST_ALERTS, MOST_CLUSTERS, AlertmanagerPush, HealthPush
from tests.hostile.test_front import NOT_PASSED_ON, at, front, one_sentence, serves
from tests.tried import TRIED

__all__ = ["front"]
ALERT = {"status": "firing", "labels": {"cluster": "h100"}, "annotations": {}, "startsAt": "2026-01-01T00:00:00Z"}
DOCUMENT = {
    "version": "4",
    "groupKey": "g",
    "truncatedAlerts": 0,
    "status": "firing",
    "receiver": "r",
    "alerts": [ALERT],
}


def with_labels(labels: Any) -> dict[str, Any]:
    return {**DOCUMENT, "alerts": [{**ALERT, "labels": labels}]}


PUSHES: list[Any] = [
    *({}, [], "h100", {"clusters": None}, {"clusters": []}, {"clusters": "h100"}, {"clusters": [""]}),
    *({"clusters": [7]}, {"clusters": ["a\nb"]}, {"clusters": ["x" * 201]}, {"clusters": [["h100"]]}),
    {"clusters": [f"c-{n}" for n in range(MOST_CLUSTERS + 1)]},
    *({"clusters": ["h100"], "word": "x" * 2001}, {"clusters": ["h100"], "word": {"$ne": 1}}),
    *({"clusters": ["h100"], "healthy_gpus": 0}, {"clusters": ["h100"], "word": "\ud800"}),
]
ALERTS: list[Any] = [
    *({}, [], {"version": "4"}, {**DOCUMENT, "alerts": []}, {**DOCUMENT, "alerts": {}}, {**DOCUMENT, "version": "3"}),
    *({**DOCUMENT, "version": 4}, {**DOCUMENT, "alerts": [None]}, {**DOCUMENT, "alerts": ["h100"]}),
    {**DOCUMENT, "alerts": [{}] * (MOST_ALERTS + 1)},
    *(with_labels(None), with_labels([]), with_labels({"cluster": 7}), with_labels({"cluster": ["h100"]})),
    *(with_labels({f"l{n}": "" for n in range(201)}), {**DOCUMENT, "label": ""}, {**DOCUMENT, "label": 7}),
]
UNNAMED = [
    with_labels({}),
    with_labels({"cluster": ""}),
    with_labels({"cluster": "a\nb"}),
    {**DOCUMENT, "label": "pod"},
]


@pytest.mark.parametrize(
    ("path", "document"), [*(("/health", one) for one in PUSHES), *(("/alertmanager", one) for one in ALERTS)]
)
async def test_a_push_that_is_none_is_refused(front: Path, path: str, document: Any) -> None:
    async with at(front) as http:
        body = json.dumps(document).encode()
        answer = await http.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 422, answer.text
        one_sentence(answer)
    await serves(front)
    TRIED["pushes thrown at the front"] += 1


@pytest.mark.parametrize("document", UNNAMED)
def test_alerts_that_name_no_cluster_are_no_push(document: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as refused:
        AlertmanagerPush.model_validate(document).to_question()
    assert "\n" not in refused.value.message


async def test_what_is_right_is_passed_on(front: Path) -> None:
    """Fields that Alertmanager has and we do not read are no reason to refuse it."""
    async with at(front) as http:
        for path, document in (("/health", {"clusters": ["h100"]}), ("/alertmanager?label=pod", DOCUMENT)):
            answer = await http.post(path, json=document)
            assert answer.status_code == 503, answer.text
            assert one_sentence(answer) == NOT_PASSED_ON
        assert (await http.post("/alertmanager?label=" + "x" * 201, json=DOCUMENT)).status_code == 422
        assert (await http.get("/health")).status_code == 405
    assert HealthPush(clusters=("h100",)).word == ""
