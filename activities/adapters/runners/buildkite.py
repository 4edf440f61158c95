"""Steps that are builds of Buildkite, by its REST API (v2). A build carries its run's key in its meta-data.

The API makes a new build with each such request: so a build of the key is searched first, and again if the answer to a
request was lost. Source: Buildkite's documentation of the REST API (builds, rate limits). A build that waits at a
block step keeps its last state, `passed` say, beside `blocked`: it has not ended.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from activities.adapters.http import Answered, Asked
from activities.adapters.runners.http_requests import MOST_ANSWER, ask_runner, bearer, refusal_text
from activities.adapters.runners.printed_text import one_line, tail_of
from activities.adapters.runners.settings import Allowed, BuildkiteAccess
from activities.clock import Clock, utc_now
from models.base import Time, duration_text
from models.bringup.runs import RunOrder, RunPhase, RunReport
from models.errors import BadInput, Unavailable

KEY = "backstop-run"
"""The key of a build's meta-data that names the run."""
_UNDER_WAY = ("creating", "scheduled", "running", "failing", "blocked", "canceling")
"""States by which builds are listed. A build at a block step is listed as blocked, whatever state its document has."""
_SAME_LIST = 5.0
"""Seconds for which one list of open builds serves all runs of its pipeline."""
_PAGES = 10
_PER_PAGE = 100
_LOOKS_AGAIN = (0.5, 1.5, 3.0)
"""Seconds before each look for a build after its creation request got no answer."""
_LONGEST_PAUSE = 300.0
_NEXT = re.compile(r'<([^<>]*)>\s*;[^,]*rel="?next"?')

PHASES: Mapping[str, RunPhase] = {
    "creating": RunPhase.RUNNING,
    "scheduled": RunPhase.RUNNING,
    "waiting": RunPhase.RUNNING,
    "running": RunPhase.RUNNING,
    "failing": RunPhase.RUNNING,
    "blocked": RunPhase.RUNNING,
    "canceling": RunPhase.RUNNING,
    "passed": RunPhase.SUCCEEDED,
    "failed": RunPhase.FAILED,
    "waiting_failed": RunPhase.FAILED,
    "skipped": RunPhase.FAILED,
    "not_run": RunPhase.FAILED,
    "canceled": RunPhase.STOPPED,
}
"""Phases by Buildkite's state. An unknown state ends nothing: the step's time limit does."""


class BuildkiteBuild(BaseModel):
    """The fields that are read of a build."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    number: int
    state: str
    blocked: bool = False
    web_url: str = ""
    meta_data: dict[str, Any] = Field(default_factory=dict)
    created_at: Time
    started_at: Time | None = None
    finished_at: Time | None = None
    jobs: tuple[dict[str, Any], ...] = ()

    @property
    def phase(self) -> RunPhase:
        return RunPhase.RUNNING if self.blocked else PHASES.get(self.state, RunPhase.RUNNING)


@dataclass
class _Pause:
    """The time, by time.monotonic(), before which Buildkite wants no request; shared by all runs of a worker."""

    until: float = 0.0


class _Throttled(Unavailable):
    """Buildkite did nothing, and says when it will."""


class _UnderWay:
    """The builds of each pipeline that have not ended: one request for all its runs, as a worker may make few."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lists: dict[str, tuple[float, dict[str, BuildkiteBuild] | Unavailable]] = {}

    def build_of(self, api: _Api, order: RunOrder) -> BuildkiteBuild | None:
        """Return the run's build as it was some seconds ago, if it had not ended. Errors: Unavailable."""
        with self._lock:
            at, builds = self._lists.get(order.pipeline, (-math.inf, Unavailable("")))
            if time.monotonic() - at >= _SAME_LIST:
                try:
                    builds = {str(build.meta_data.get(KEY)): build for build in api.under_way(order.pipeline)}
                except Unavailable as error:  # the callers that waited for it get the same error
                    builds = error
                self._lists[order.pipeline] = time.monotonic(), builds
        if isinstance(builds, Unavailable):
            raise Unavailable(builds.message)
        return builds.get(order.key.text)


class BuildkiteRunner:
    """The pipelines that a worker's settings list. `pause`: sleeps for so many seconds."""

    def __init__(self, allowed: Allowed, pause: Callable[[float], None] = time.sleep, now: Clock = utc_now) -> None:
        self._now = now
        self._allowed = allowed
        self._pause = pause
        self._quiet = _Pause()
        self._being_made: set[str] = set()
        self._under_way = _UnderWay()

    def start(self, order: RunOrder) -> RunReport:
        api = self._api(order)
        key = order.key.text
        if key in self._being_made:  # a call that its caller has given up, and that is still on its way
            raise Unavailable(f"another call is creating a build of {order.pipeline}")
        self._being_made.add(key)
        try:
            build = api.find_build(order) or self._make(api, order)
        finally:
            self._being_made.discard(key)
        return self._report(api, order, build)

    def look(self, order: RunOrder) -> RunReport | None:
        api = self._api(order)
        build = self._under_way.build_of(api, order) or api.find_build(order)
        return None if build is None else self._report(api, order, build)

    def stop(self, order: RunOrder) -> RunReport | None:
        api = self._api(order)
        for build in list(api.builds(order)):
            if not build.phase.has_ended and build.state != "canceling":
                api.cancel_build(order, build)
        last_build = api.find_build(order)
        return None if last_build is None else self._report(api, order, last_build)

    def _api(self, order: RunOrder) -> _Api:
        return _Api(self._allowed, self._allowed.pipeline(order.pipeline), self._quiet)

    def _make(self, api: _Api, order: RunOrder) -> BuildkiteBuild:
        """Make the build. Errors: BadInput if Buildkite refused: there is no build. Unavailable if nobody knows."""
        try:
            build = api.make_build(order)
        except _Throttled:
            raise
        except Unavailable as error:
            landed_build = self._search_again(api, order)
            if landed_build is None:
                raise Unavailable(f"{error.message}; Buildkite shows no build for this run yet") from None
            return landed_build
        return self._the_first(api, order, build)

    def _search_again(self, api: _Api, order: RunOrder) -> BuildkiteBuild | None:
        for seconds in _LOOKS_AGAIN:
            self._pause(seconds)
            try:
                build = api.find_build(order)
            except Unavailable:
                continue
            if build is not None:
                return build
        return None

    @staticmethod
    def _the_first(api: _Api, order: RunOrder, own: BuildkiteBuild) -> BuildkiteBuild:
        """Return the first build: two workers may have made one each at the same moment, and the other is cancelled."""
        try:
            others = [build for build in api.builds(order) if build.number < own.number and not build.phase.has_ended]
            if not others:
                return own
            api.cancel_build(order, own)
        except Unavailable:
            return own
        return min(others, key=lambda build: build.number)

    def _report(self, api: _Api, order: RunOrder, build: BuildkiteBuild) -> RunReport:
        over = (build.finished_at or self._now()) - build.created_at >= order.limit
        if over and build.phase is RunPhase.RUNNING and build.state != "canceling":
            build = api.cancel_build(order, build)
        phase, sentence = _describe(build, order, over)
        code, tail = (
            api.failure_text(order, build) if phase is RunPhase.FAILED and build.state == "failed" else (None, "")
        )
        return RunReport(
            phase=phase,
            said=sentence,
            code=code,
            tail=tail,
            link=one_line(build.web_url),
            started_at=build.started_at or build.created_at,
            ended_at=build.finished_at if phase.has_ended else None,
        )


def _describe(build: BuildkiteBuild, order: RunOrder, over: bool) -> tuple[RunPhase, str]:
    what = f"build {build.number} of {order.pipeline}"
    if over and build.phase in (RunPhase.STOPPED, RunPhase.RUNNING):
        limit = duration_text(order.limit)
        if build.phase is RunPhase.STOPPED:
            return RunPhase.FAILED, f"{what} did not end within {limit}, and was cancelled"
        does = "is being" if build.state == "canceling" else "could not be"
        return RunPhase.RUNNING, f"{what} did not end within {limit}, and {does} cancelled"
    if build.blocked or build.state == "blocked":
        return RunPhase.RUNNING, f"{what} waits at a block step, for a person who unblocks it in Buildkite"
    if build.state not in PHASES:
        return RunPhase.RUNNING, f"{what} is in a state that Backstop does not know: {one_line(build.state)}"
    ways = {"passed": "has passed", "failed": "has failed", "canceled": "was cancelled"}
    return build.phase, f"{what} {ways.get(build.state) or f'is {build.state}'}"


class _Api:
    """The requests to Buildkite. Errors of each: Unavailable."""

    def __init__(self, allowed: Allowed, access: BuildkiteAccess, quiet: _Pause) -> None:
        self._headers = bearer(allowed, access.token)
        self._access = access
        self._quiet = quiet
        self._base = f"{access.url}/organizations/{access.organization}/pipelines"

    def find_build(self, order: RunOrder) -> BuildkiteBuild | None:
        """Return the build of this key: one that has not ended, else the newest that was not cancelled."""
        builds = list(self.builds(order))
        return max(
            builds, key=lambda build: (not build.phase.has_ended, build.state != "canceled", build.number), default=None
        )

    def builds(self, order: RunOrder) -> Iterator[BuildkiteBuild]:
        query = f"{quote(f'meta_data[{KEY}]')}={quote(order.key.text, safe='')}"
        # Check the key again: a filter that the server ignored would give us another run's build.
        for document in self._list_builds(order.pipeline, query):
            build = _build(document)
            if build.meta_data.get(KEY) == order.key.text:
                yield build

    def under_way(self, pipeline: str) -> Iterator[BuildkiteBuild]:
        """Yield those that have not ended. Unreadable builds of others are left out: they are not ours."""
        for document in self._list_builds(pipeline, "&".join(f"{quote('state[]')}={state}" for state in _UNDER_WAY)):
            try:
                build = _build(document)
            except Unavailable:
                continue
            if not build.phase.has_ended:
                yield build

    def _list_builds(self, pipeline: str, query: str) -> Iterator[Any]:
        rest = f"per_page={_PER_PAGE}&exclude_jobs=true&exclude_pipeline=true"
        url = f"{self._base}/{quote(pipeline)}/builds?{query}&{rest}"
        for _ in range(_PAGES):
            answer = self._ask("GET", url)
            listed = self._document(answer, 200)
            if not isinstance(listed, list):
                raise Unavailable("Buildkite did not answer with a list of builds")
            yield from listed
            following = _NEXT.search(answer.headers.get("link", ""))
            if following is None:
                return
            url = following[1]
            if not url.startswith(f"{self._base}/"):  # the token goes nowhere else
                raise Unavailable("the next page of Buildkite's list of builds is at another address than the first")
        raise Unavailable(f"Buildkite lists more than {_PAGES * _PER_PAGE} builds")

    def make_build(self, order: RunOrder) -> BuildkiteBuild:
        """Make a build. Errors: BadInput if Buildkite says that it made none."""
        content = {
            "commit": order.commit,
            "branch": order.branch,
            "message": f"{order.key.step} of {order.key.cluster} (Backstop, attempt {order.key.attempt})",
            "env": {**order.values, "BACKSTOP_RUN": order.key.text},
            "meta_data": {**order.values, KEY: order.key.text},
        }
        answer = self._ask("POST", f"{self._base}/{quote(order.pipeline)}/builds", content)
        if answer.status in (400, 401, 403, 404, 410, 422):
            raise BadInput(refusal_text(answer, f"Buildkite made no build of {order.pipeline}: it"))
        return _build(self._document(answer, 201))

    def cancel_build(self, order: RunOrder, build: BuildkiteBuild) -> BuildkiteBuild:
        """Cancel the build; return it as it is then, or as it ended meanwhile."""
        answer = self._ask("PUT", f"{self._build_url(order, build)}/cancel")
        if answer.status == 422:
            return self._get_build(order, build)
        return _build(self._document(answer, 200))

    def failure_text(self, order: RunOrder, build: BuildkiteBuild) -> tuple[int | None, str]:
        """Return the exit status of the first job that failed, and the end of its log, as far as they are available."""
        try:
            jobs = self._get_build(order, build).jobs
            job = next(
                job for job in jobs if job.get("state") in ("failed", "timed_out") and not job.get("soft_failed")
            )
            code = job.get("exit_status")
            answer = self._ask("GET", f"{self._build_url(order, build)}/jobs/{quote(str(job['id']), safe='')}/log")
            return code if type(code) is int else None, tail_of(str(self._document(answer, 200)["content"]))
        except (Unavailable, StopIteration, LookupError, TypeError):
            return None, ""

    def _get_build(self, order: RunOrder, build: BuildkiteBuild) -> BuildkiteBuild:
        return _build(self._document(self._ask("GET", self._build_url(order, build)), 200))

    def _build_url(self, order: RunOrder, build: BuildkiteBuild) -> str:
        return f"{self._base}/{quote(order.pipeline)}/builds/{build.number}"

    @staticmethod
    def _document(answer: Answered, status: int) -> Any:
        if answer.status != status:
            raise Unavailable(refusal_text(answer, "Buildkite"))
        return answer.document("Buildkite")

    def _ask(self, method: str, url: str, content: Mapping[str, Any] | None = None) -> Answered:
        wait = self._quiet.until - time.monotonic()
        if wait > 0:
            raise _Throttled(f"Buildkite's rate limit is reached: Backstop asks again in {math.ceil(wait)} s")
        asked = Asked(method, httpx.URL(url), content, self._headers, most=MOST_ANSWER)
        answer = ask_runner(asked)
        if answer.status == 429:
            self._quiet.until = time.monotonic() + _pause_of(answer.headers)
            raise _Throttled(refusal_text(answer, "Buildkite"))
        return answer


def _pause_of(headers: Mapping[str, str]) -> float:
    """Return the seconds until the next request: the longest that an answer names."""
    texts = [headers.get(name, "") for name in ("retry-after", "ratelimit-reset", "ratelimit-user-reset")]
    seconds = [float(text) for text in texts if re.fullmatch(r"\d{1,6}", text)]
    return min(max(seconds, default=30.0), _LONGEST_PAUSE)


def _build(document: Any) -> BuildkiteBuild:
    try:
        return BuildkiteBuild.model_validate(document)
    except ValidationError as error:
        place = ".".join(str(step) for step in error.errors()[0]["loc"])
        raise Unavailable(
            f"Buildkite sent a build in which Backstop cannot read {one_line(place) or 'any field'}"
        ) from None
