"""Steps that are runs of a service over HTTP: a POST with an Idempotency-Key, and a field with the run's state.

The service promises that one key is one run. So a POST that was not answered is sent again; and if no status URL names
the run without its id, the same POST is sent again to find the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from activities.adapters.http import Answered, Asked, header_text
from activities.adapters.runners.http_requests import MOST_ANSWER, Web, place_of, refusal_text, url_of
from activities.adapters.runners.printed_text import one_line, tail_of
from activities.adapters.runners.settings import Allowed
from models.bringup.runs import NOTHING_BEGUN, RunOrder, RunPhase, RunReport
from models.errors import BadInput, Unavailable

_AGAIN = frozenset((408, 425, 429))
"""Statuses besides 5xx that say nothing about the request, which is sent again."""
_UNDER_WAY = 409
"""The first request with the key has no answer yet. Source: IETF draft, Idempotency-Key HTTP Header Field."""
_IDS = 10_000


class HttpRunner:
    """The hosts that a worker's settings list."""

    def __init__(self, allowed: Allowed) -> None:
        self._web = Web(allowed)
        self._ids: dict[str, str] = {}
        """By key, the run's id in the first answer; a forgotten id is asked for again."""

    def start(self, order: RunOrder) -> RunReport:
        return self._by_post(order, starts=True)

    def look(self, order: RunOrder) -> RunReport | None:
        if not order.status_url:
            return self._by_post(order)
        if "{id}" in order.status_url and order.key.text not in self._ids:
            report = self._by_post(order)
            if report.phase.has_ended or order.key.text not in self._ids:
                return report
        return self._by_status(order)

    def stop(self, order: RunOrder) -> RunReport | None:
        """Report the run, and that somebody else has to end it: the service has no way to."""
        cannot = f"Backstop cannot end a run at {place_of(url_of(order.url))}: end it there"
        if not order.status_url or ("{id}" in order.status_url and order.key.text not in self._ids):
            return RunReport(
                phase=RunPhase.RUNNING, said=cannot, endless=True
            )  # to ask would be to begin it, where it never was
        report = self._by_status(order)
        if report is None or report.phase.has_ended:
            return report
        return report.but(said=f"{report.said}; {cannot}", endless=True)

    def _by_post(self, order: RunOrder, *, starts: bool = False) -> RunReport:
        url = url_of(order.url)
        answer = self._web.ask(Asked("POST", url, order.values, _headers(order), most=MOST_ANSWER))
        where = place_of(url)
        if answer.status == _UNDER_WAY:
            return RunReport(phase=RunPhase.RUNNING, said=f"{where} is still accepting an earlier request for this run")
        if starts and 400 <= answer.status < 500 and answer.status not in _AGAIN:
            raise BadInput(f"{refusal_text(answer, where)}{NOTHING_BEGUN}")
        return self._report(order, self._take_id(order, answer, where), where)

    def _by_status(self, order: RunOrder) -> RunReport | None:
        text = order.status_url.replace("{id}", quote(self._ids.get(order.key.text, ""), safe=""))
        url = url_of(text.replace("{key}", quote(order.key.text, safe="")))
        answer, where = self._web.ask(Asked("GET", url, None, _headers(order), most=MOST_ANSWER)), place_of(url)
        if answer.status in (404, 410):
            return None
        return self._report(order, _whole_document(answer, where), where)

    def _take_id(self, order: RunOrder, answer: Answered, where: str) -> Any:
        document = _whole_document(answer, where)
        run_id = document.get("id") if isinstance(document, Mapping) else None
        if isinstance(run_id, str | int) and not isinstance(run_id, bool):
            while len(self._ids) >= _IDS:
                del self._ids[next(iter(self._ids))]
            self._ids[order.key.text] = str(run_id)
        return document

    @staticmethod
    def _report(order: RunOrder, document: Any, where: str) -> RunReport:
        status = _field_text(document, order.field)
        phase = RunPhase.RUNNING
        if status is None:
            sentence = f"{where} answered without the field {one_line(order.field)}"
        else:
            sentence = f"{where} says {one_line(status, 100) or 'nothing'}"
            if status in order.succeeded:
                phase = RunPhase.SUCCEEDED
            elif status in order.failed:
                phase = RunPhase.FAILED
        tail, link = (_field_text(document, name) or "" for name in ("log", "link"))
        return RunReport(phase=phase, said=sentence, tail=tail_of(tail), link=one_line(link))


def _headers(order: RunOrder) -> dict[str, str]:
    return {"Idempotency-Key": header_text(order.key.text), "Accept": "application/json"}


def _whole_document(answer: Answered, where: str) -> Any:
    """Return the answer's document. Errors: Unavailable for any answer but a good one."""
    if not answer.is_success:
        raise Unavailable(refusal_text(answer, where))
    return answer.document(where)


def _field_text(document: Any, path: str) -> str | None:
    """Return the value at the dotted path, as text; None if it is not one value."""
    for step in path.split("."):
        if isinstance(document, Mapping):
            document = document.get(step)
        elif isinstance(document, list) and step.isascii() and step.isdigit() and int(step) < len(document):
            document = document[int(step)]
        else:
            return None
    if isinstance(document, bool):
        return str(document).lower()
    return str(document) if isinstance(document, str | int | float) else None
