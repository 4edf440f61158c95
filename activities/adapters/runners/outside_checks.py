"""Checks that ask a program, a URL or a Prometheus. Each answers green, red or unknown, and never raises.

A check that cannot be asked is unknown, and so is an unreadable answer: neither is ever green. Checks of the cluster's
own health (healthy, contiguous, and capacity by the health source) are not asked here.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from activities.adapters.http import Asked
from activities.adapters.prometheus.prometheus import PrometheusConnection, document
from activities.adapters.runners.http_requests import MOST_ANSWER, Web, place_of, refusal_text, url_of
from activities.adapters.runners.printed_text import last_line, one_line
from activities.adapters.runners.settings import Allowed
from activities.adapters.runners.short_program import Ended, run_program
from activities.clock import Clock, utc_now
from models.base import duration_text, in_one_sentence
from models.bringup.checks import CheckAnswer, CheckKind, CheckOrder, Colour, capacity_answer
from models.cluster.island import Island
from models.errors import BackstopError, Unavailable
from models.texts import count_text

_MOST_PRINTED = 1_000_000
"""Bytes at the end of a check's output that are kept."""
_NUMBER = re.compile(r"[-+]?\d{1,18}(\.\d{1,18})?([eE][-+]?\d{1,3})?", re.ASCII)
_MOST_ISLANDS = 10_000


class _Unknown(Exception):
    """The reason why a check is unknown, in one sentence."""


class OutsideChecks:
    """The checks that a worker's settings allow. `prometheus`: connections by name."""

    def __init__(
        self, allowed: Allowed, prometheus: Mapping[str, PrometheusConnection] | None = None, now: Clock = utc_now
    ) -> None:
        self._allowed = allowed
        self._web = Web(allowed)
        self._prometheus = prometheus or {}
        self._now = now
        self._ways: Mapping[CheckKind, Callable[[CheckOrder], CheckAnswer]] = {
            CheckKind.COMMAND: self._command,
            CheckKind.HTTP: self._http,
            CheckKind.PROMQL: self._promql,
            CheckKind.SUPPLY: self._supply,
            CheckKind.CAPACITY: self._capacity,
        }

    def check(self, order: CheckOrder) -> CheckAnswer:
        way = self._ways.get(order.kind)
        try:
            if way is None:
                raise _Unknown(
                    f"no runner answers a check of kind {order.kind}: Backstop reads the answer from the cluster itself"
                )
            return way(order)
        except _Unknown as error:
            return self._answer(Colour.UNKNOWN, str(error))
        except BackstopError as error:
            return self._answer(Colour.UNKNOWN, one_line(error.message))
        except Exception as error:  # a check that cannot be asked must not look like one that was
            return self._answer(Colour.UNKNOWN, f"cannot be asked: {type(error).__name__} {one_line(str(error))}")

    def _answer(self, colour: Colour, sentence: str, number: float | None = None) -> CheckAnswer:
        return CheckAnswer(colour=colour, said=sentence, number=number, at=self._now())

    def _command(self, order: CheckOrder) -> CheckAnswer:
        ended, what = self._run(order)
        last_words, number = last_line(ended.printed), _number(ended.printed)
        if ended.code == 0:
            return self._answer(Colour.GREEN, last_words or f"{what} ended with exit status 0", number)
        how = f"{what} {_how(ended.code)}"
        return self._answer(Colour.RED, f"{how}: {last_words}" if last_words else how, number)

    def _run(self, order: CheckOrder) -> tuple[Ended, str]:
        """Run the program; return how it ended, and its name for people."""
        self._allowed.check_program(order.run)
        what = one_line(order.run[0])
        environment = self._allowed.program_environment(BACKSTOP_CLUSTER=order.cluster)
        try:
            ended = run_program(order.run, environment, order.limit.total_seconds(), _MOST_PRINTED)
        except OSError as error:
            raise _Unknown(f"{what} cannot be run: {error.strerror}") from None
        if ended.code is None:
            raise _Unknown(f"{what} did not end within {duration_text(order.limit)}, and was killed")
        return ended, what

    def _http(self, order: CheckOrder) -> CheckAnswer:
        began = time.monotonic()
        url = url_of(order.url)
        answer = self._web.ask(Asked("GET", url, seconds=order.limit.total_seconds()))
        seconds = round(time.monotonic() - began, 3)
        colour = Colour.GREEN if answer.is_success else Colour.RED
        return self._answer(
            colour, refusal_text(answer, place_of(url)), seconds if answer.is_success else answer.status
        )

    def _promql(self, order: CheckOrder) -> CheckAnswer:
        connection = self._prometheus.get(order.connection)
        if connection is None:
            raise _Unknown(
                f"this worker has no Prometheus {order.connection!r}: add it to the file that BACKSTOP_PROMETHEUS names"
            )
        value = _one_number(self._query(connection, order))
        low, high = order.at_least, order.at_most
        if low is not None and value < low:
            return self._answer(Colour.RED, f"Prometheus says {value:g}, and at least {low:g} is required", value)
        if high is not None and value > high:
            return self._answer(Colour.RED, f"Prometheus says {value:g}, and at most {high:g} is required", value)
        return self._answer(Colour.GREEN, f"Prometheus says {value:g}", value)

    def _query(self, connection: PrometheusConnection, order: CheckOrder) -> Any:
        ends = time.monotonic() + order.limit.total_seconds()
        return document(connection, order.query, ends, self._allowed.secrets)

    def _supply(self, order: CheckOrder) -> CheckAnswer:
        there = self._document(order)
        if not isinstance(there, Mapping):
            raise _Unknown(f"{_source(order)} did not answer with a JSON object of numbers")
        short = list[str]()
        for name, needed in sorted(order.needs.items()):
            value = there.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise _Unknown(f"{_source(order)} gives no number for {one_line(name)}")
            if value < needed:
                short.append(f"{one_line(name)}: {value:g} of {needed}")
        if short:
            return self._answer(Colour.RED, f"too little is granted: {', '.join(short)}", float(len(short)))
        return self._answer(Colour.GREEN, f"{count_text(len(order.needs), 'need')} granted in full", 0.0)

    def _capacity(self, order: CheckOrder) -> CheckAnswer:
        if not order.run and not order.url:
            raise _Unknown(
                "this check runs no program and calls no service: Backstop reads the cluster's health source"
            )
        capacity_document = self._document(order)
        return capacity_answer(order, _islands(capacity_document, _source(order)), self._now())

    def _document(self, order: CheckOrder) -> Any:
        """Return the output of the program, or the answer of the URL, as JSON."""
        if order.run:
            ended, what = self._run(order)
            if ended.code != 0:
                last_words = last_line(ended.printed)
                raise _Unknown(f"{what} {_how(ended.code)}{f': {last_words}' if last_words else ''}")
            try:
                return json.loads(ended.output) if ended.whole else None
            except (ValueError, RecursionError):
                raise _Unknown(f"{what} did not print JSON: {last_line(ended.output) or 'nothing'}") from None
        url = url_of(order.url)
        headers = {"Accept": "application/json"}
        asked = Asked("GET", url, headers=headers, most=MOST_ANSWER, seconds=order.limit.total_seconds())
        answer = self._web.ask(asked)
        if not answer.is_success:
            raise _Unknown(refusal_text(answer, place_of(url)))
        return answer.document(place_of(url))


def _source(order: CheckOrder) -> str:
    return one_line(order.run[0]) if order.run else place_of(url_of(order.url))


def _how(code: int | None) -> str:
    return f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit status {code}"


def _number(printed: bytes) -> float | None:
    """Return the number if the last line is a number, or `NAME NUMBER`, or `NAME: NUMBER`."""
    words = last_line(printed).split()
    if len(words) not in (1, 2) or not _NUMBER.fullmatch(words[-1]):
        return None
    number = float(words[-1])
    return number if math.isfinite(number) else None


def _one_number(answer: Any) -> float:
    """Return the one value of an instant query's answer. Errors: Unavailable for any other answer."""
    try:
        if answer["status"] != "success":
            raise Unavailable(f"Prometheus refused the query: {one_line(str(answer.get('error', '')))}")
        kind, result = answer["data"]["resultType"], answer["data"]["result"]
        if kind == "vector" and len(result) != 1:
            raise Unavailable(f"Prometheus answered with {len(result)} series instead of one: narrow the query")
        text = result[1] if kind == "scalar" else result[0]["value"][1]
        number = float(text)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise Unavailable("Prometheus did not answer with a number") from None
    if not math.isfinite(number):
        raise Unavailable(f"Prometheus says {number}, which is not a finite number")
    return number


def _islands(capacity_document: Any, where: str) -> tuple[Island, ...]:
    """Parse the islands. Errors: _Unknown."""
    listed = capacity_document.get("islands") if isinstance(capacity_document, Mapping) else None
    if not isinstance(listed, list) or not 0 < len(listed) <= _MOST_ISLANDS:
        raise _Unknown(f"{where} did not answer with a list of islands")
    try:
        islands = tuple(Island.model_validate(each) for each in listed)
    except ValidationError as error:
        raise _Unknown(
            f"{where} answered with islands that are not valid: {one_line(in_one_sentence(error))}"
        ) from None
    if len({island.name for island in islands}) < len(islands):
        raise _Unknown(f"{where} names an island twice")
    return islands
