"""Real servers on this machine: Buildkite's REST API as it is documented, and a service that keeps keys."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

TOKEN = "bkua_0123456789"  # what only the worker's environment holds


@dataclass
class Trouble:
    """What goes wrong, each for so many of the next requests whose method and path begin so.

    `kind`: a status, answered before anything is done; "lost": done, and the connection is closed without an answer.
    """

    on: str
    kind: int | str
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Server:
    port: int = 0
    asked: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    over: threading.Event = field(default_factory=threading.Event)
    """Nobody is served any more."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def trouble(self, line: str) -> Trouble | None:
        for each in self.troubles:
            if each.times > 0 and line.startswith(each.on):
                each.times -= 1
                return each
        return None

    def answer(self, method: str, path: str, query: list[tuple[str, str]], body: Any, headers: dict[str, str]) -> Any:
        """(status, document) or (status, document, headers)."""
        raise NotImplementedError


@contextmanager
def serving(site: Server) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            parts = urlsplit(self.path)
            given = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            line = f"{self.command} {self.path}"
            with site.lock:
                site.asked.append(line)
                site.headers.append(dict(self.headers.items()))
                trouble = site.trouble(line)
                if trouble is not None and isinstance(trouble.kind, int):
                    return self.say(trouble.kind, {"message": "in trouble"}, trouble.headers)
                body = json.loads(given) if given.startswith((b"{", b"[")) else given or None
                query = parse_qsl(parts.query, keep_blank_values=True)
                status, document, *more = site.answer(self.command, parts.path, query, body, dict(self.headers.items()))
            if trouble is not None:
                self.close_connection = True
                return None
            return self.say(status, document, more[0] if more else {})

        do_GET = do_POST = do_PUT = handle_any  # noqa: N815 - http.server looks for these names

        def say(self, status: int, document: Any, headers: dict[str, str]) -> None:
            text = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        site.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


_BUILDS = re.compile(r"/v2/organizations/acme/pipelines/([^/]+)/builds(?:/(\d+)(/cancel|/jobs/([^/]+)/log)?)?")


@dataclass
class Buildkite(Server):
    """One organization, acme. What it does with a build is the test's: `move`.

    `heeds_filter`: false: it lists all builds, whatever was asked for. `hides`: so many of the next lists do not have
    a build yet.
    """

    pipelines: tuple[str, ...] = ("bootstrap", "teardown")
    builds: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    per_page: int = 30
    heeds_filter: bool = True
    hides: int = 0
    logs: dict[str, str] = field(default_factory=dict)

    def answer(self, method: str, path: str, query: list[tuple[str, str]], body: Any, headers: dict[str, str]) -> Any:
        if headers.get("Authorization") != f"Bearer {TOKEN}":
            return 401, {"message": "Authentication required. Please supply a valid API Access Token"}
        found = _BUILDS.fullmatch(path)
        if found is None or found[1] not in self.pipelines:
            return 404, {"message": "No pipeline found"}
        builds = self.builds.setdefault(found[1], [])
        if found[2] is None:
            return self.created(found[1], body) if method == "POST" else self.listed(path, query, builds)
        build = next((b for b in builds if b["number"] == int(found[2])), None)
        if build is None:
            return 404, {"message": "No build found"}
        if found[3] == "/cancel":
            if build["state"] not in ("scheduled", "running", "failing"):
                return 422, {"message": "Build can't be canceled because it's already finished."}
            build["state"], build["finished_at"] = "canceled", now()
            return 200, build
        if found[4]:
            log = self.logs[found[4]]
            return 200, {"url": path, "content": log, "size": len(log), "header_times": []}
        return 200, build

    def created(self, pipeline: str, body: Any) -> Any:
        if not isinstance(body, dict) or not body.get("commit") or not body.get("branch"):
            return 422, {"message": "Validation Failed", "errors": [{"field": "commit", "code": "missing_field"}]}
        builds = self.builds[pipeline]
        number = len(builds) + 1
        build = {
            "id": f"f62a1b4d-10f9-4790-bc1c-{number:012}",
            "url": f"{self.url}/v2/organizations/acme/pipelines/{pipeline}/builds/{number}",
            "web_url": f"https://buildkite.com/acme/{pipeline}/builds/{number}",
            "number": number,
            "state": "scheduled",
            "cancel_reason": None,
            "blocked": False,
            "message": body.get("message"),
            "commit": body["commit"],
            "branch": body["branch"],
            "env": body.get("env", {}),
            "source": "api",
            "jobs": [],
            "created_at": now(),
            "scheduled_at": now(),
            "started_at": None,
            "finished_at": None,
            "meta_data": body.get("meta_data", {}),
            "pipeline": {"slug": pipeline},
        }
        builds.append(build)
        return 201, build

    def listed(self, path: str, query: list[tuple[str, str]], builds: list[dict[str, Any]]) -> Any:
        asked = dict(query)
        wanted = {k[10:-1]: v for k, v in asked.items() if k.startswith("meta_data[")} if self.heeds_filter else {}
        found = [b for b in reversed(builds) if all((b["meta_data"] or {}).get(k) == v for k, v in wanted.items())]
        states = {v for k, v in query if k == "state[]"}
        if states and self.heeds_filter:
            found = [b for b in found if ("blocked" if b["blocked"] else b["state"]) in states]
        if self.hides > 0:
            self.hides -= 1
            found = []
        size, page = min(int(asked.get("per_page", 30)), self.per_page), int(asked.get("page", 1))
        shown = found[(page - 1) * size : page * size]
        if asked.get("exclude_jobs") == "true":
            shown = [{k: v for k, v in b.items() if k != "jobs"} for b in shown]
        rest = "&".join(f"{k}={v}" for k, v in query if k != "page").replace("[", "%5B").replace("]", "%5D")
        link = f'<{self.url}{path}?{rest}&page={page + 1}>; rel="next", <{self.url}{path}?page=9>; rel="last"'
        return 200, shown, {"Link": link} if page * size < len(found) else {}

    def move(self, pipeline: str, number: int, **fields: Any) -> None:
        """Let a build go on."""
        with self.lock:
            build = self.builds[pipeline][number - 1]
            build.update(fields)
            if build["state"] in ("passed", "failed", "canceled"):
                build["finished_at"] = fields.get("finished_at", now())

    def of(self, key: str) -> list[dict[str, Any]]:
        return [b for builds in self.builds.values() for b in builds if b["meta_data"].get("backstop-run") == key]


def now(ago: timedelta = timedelta(0)) -> str:
    return (datetime.now(UTC) - ago).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass
class Service(Server):
    """Provisions: POST /runs with an Idempotency-Key, the same answer for the same key; GET /runs/ID, /by-key/KEY.

    /silent is answered when nobody is served any more.
    """

    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    """By key: what was asked for first."""

    def answer(self, method: str, path: str, query: list[tuple[str, str]], body: Any, headers: dict[str, str]) -> Any:
        from urllib.parse import unquote

        if method == "POST" and path == "/runs":
            key = unquote(headers.get("Idempotency-Key", ""))
            if not key:
                return 400, {"detail": "Idempotency-Key is missing"}
            asked = json.dumps(body, sort_keys=True)
            if self.first.setdefault(key, asked) != asked:
                return 422, {"detail": "this key was used with another request"}
            run = self.runs.setdefault(key, {"id": len(self.runs) + 1, "state": {"name": "working"}})
            return 202, run
        if method == "GET" and path.startswith("/by-key/"):
            run_of = self.runs.get(unquote(path.removeprefix("/by-key/")))
            return (200, run_of) if run_of else (404, {"error": "no such run"})
        if method == "GET" and path.startswith("/runs/"):
            found = [r for r in self.runs.values() if str(r["id"]) == path.removeprefix("/runs/")]
            return (200, found[0]) if found else (404, {"error": "no such run"})
        if path == "/silent":
            self.over.wait()
        return {"/ready": 200, "/broken": 503, "/moved": 302}.get(path, 404), {"message": "\x1b[31mas it is\x1b[0m"}
