"""A Kubernetes API server of tests: kmock's emulator, with what a list and a watch need of a real one.

kmock keeps the objects and answers discovery, reads and writes. Added here: resource versions, pages with `limit` and
`continue`, label selectors, watches that begin at a version, bookmarks, 410 for a version that is forgotten, tables
for kubectl's default output off, and switches with which a test breaks it. ClusterQueues have field managers,
server-side apply and versions that a write may ask for (managed_fields.py); Kueue's published schema checks them.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import attrs
import kmock
import yaml
from aiohttp import web
from aiohttp.test_utils import RawTestServer
from jsonschema import Draft202012Validator
from kmock import Request

from tests.kubernetes import managed_fields
from tests.kubernetes.managed_fields import json_patched, merged
from tests.waiting import PATIENCE

NODES, PODS = kmock.resource("", "v1", "nodes"), kmock.resource("", "v1", "pods")
QUEUES = kmock.resource("kueue.x-k8s.io", "v1beta1", "clusterqueues")
SLICES, RULES, CLAIMS = (
    kmock.resource("resource.k8s.io", "v1", plural)
    for plural in ("resourceslices", "devicetaintrules", "resourceclaims")
)
OLD_SLICES = kmock.resource("resource.k8s.io", "v1beta1", "resourceslices")
_APPLY = "application/apply-patch+yaml"
KINDS = {
    NODES: "Node",
    PODS: "Pod",
    QUEUES: "ClusterQueue",
    SLICES: "ResourceSlice",
    OLD_SLICES: "ResourceSlice",
    RULES: "DeviceTaintRule",
    CLAIMS: "ResourceClaim",
}


class Gone(kmock.KubernetesError):
    def __init__(self) -> None:
        super().__init__(status=410, reason="Expired", message="The resourceVersion for the provided list is too old.")


@attrs.define(kw_only=True)
class Emulator(kmock.KubernetesEmulator):
    """The handler. It lives on one loop; `Cluster` reaches it from other threads."""

    version: int = 1000
    oldest: int = 0
    """Watches and pages from before this version are answered with 410."""
    events: dict[Any, list[tuple[int, dict[str, Any]]]] = attrs.field(factory=dict)
    news: asyncio.Event = attrs.field(factory=asyncio.Event)
    hung_up: int = 0
    """Counts the times when all watches were dropped."""
    refusals: dict[str, int] = attrs.field(factory=dict)
    """By action and resource, such as `watch nodes`: the HTTP status to refuse it with."""
    answers: dict[str, Any] = attrs.field(factory=dict)
    """By the resource's plural: bytes to answer a list with."""
    asked: list[tuple[str, dict[str, str]]] = attrs.field(factory=list)
    """What lists and watches asked for: the action and resource, and its parameters."""
    writes: list[tuple[str, str, dict[str, str]]] = attrs.field(factory=list)
    """Writes to ClusterQueues that were kept: the method, the name, and its parameters."""
    interrupts: dict[str, Callable[[], int | None]] = attrs.field(factory=dict)
    """By ClusterQueue: what happens once just before a patch of it; a status refuses the patch with it."""
    lost: dict[str, int] = attrs.field(factory=dict)
    """By ClusterQueue: the status that answers a patch of it once, although it was kept."""
    unserved: set[Any] = attrs.field(factory=lambda: {OLD_SLICES})
    """The kinds that it does not have."""
    silent: bool = False
    """Whether it takes requests and says nothing."""
    tokens: set[str] = attrs.field(factory=set)
    """The tokens that it takes; none: it asks for no token."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.fallback["get /version/"] << self._serve_server_version  # as kr8s writes it

    async def _serve_server_version(self, request: Request) -> Any:
        return {"major": "1", "minor": "34", "gitVersion": "v1.34.1"}

    async def _serve_version(self, request: Request) -> Any:
        """Name the core group as a real server does: kubectl looks for it."""
        answer = await super()._serve_version(request)
        assert isinstance(answer, dict)
        return {**answer, "groupVersion": answer["groupVersion"].lstrip("/")}

    def note(self, resource: Any, kind: str, raw: Mapping[str, Any]) -> None:
        """Give the object the next version, and let the watches have the event."""
        self.version += 1
        meta = raw.setdefault("metadata", {})  # type: ignore[attr-defined]
        meta |= {"uid": f"uid-{self.version}", "generation": 1} | meta | {"resourceVersion": str(self.version)}
        event = {"type": kind, "object": json.loads(json.dumps(raw))}
        self.events.setdefault(resource, []).append((self.version, event))
        self.news.set()

    async def _handle(self, request: Request) -> web.StreamResponse:
        await self.until_heard()
        if self.tokens and request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            raise kmock.KubernetesError(status=401, reason="Unauthorized", message="Unauthorized")
        action, of = "" if request.action is None else request.action.value.lower(), request.resource
        if of in self.unserved:
            raise kmock.KubernetesError(status=404, reason="NotFound", message="the server could not find the resource")
        if of and (code := self.refusals.get(f"{action} {of.plural}")):
            raise kmock.KubernetesError(status=code, reason="Forbidden", message=f"{of.plural}: {code}")
        if of is not None and action == "list" and (body := self.answers.get(str(of.plural))) is not None:
            packed = {"Content-Encoding": "gzip"} if body.startswith(b"\x1f\x8b") else {}
            return web.Response(body=body, content_type="application/json", headers=packed)
        if of == QUEUES and request.method in ("POST", "PATCH", "PUT"):
            try:
                return web.json_response(self.write_queue(request), status=201 if action == "create" else 200)
            except Status as status:
                return web.json_response(status.body, status=status.body["code"])
        response = await super()._handle(request)
        if of in KINDS and action in ("create", "update", "delete"):
            key = (of, request.namespace, request.name or (request.data or {}).get("metadata", {}).get("name"))
            raw = self.objects[key].last.raw
            self.note(of, {"create": "ADDED", "update": "MODIFIED", "delete": "DELETED"}[action], raw)
        return response

    def write_queue(self, request: Request) -> dict[str, Any]:
        """Create, replace or patch a ClusterQueue, as its content type says. Errors: Status."""
        name = request.name or request.data["metadata"]["name"]
        key, params, kind = (QUEUES, None, name), request.params, request.headers.get("Content-Type", "")
        manager, now = params.get("fieldManager") or "unknown", f"2026-11-26T09:00:{self.version % 60:02}Z"
        if request.method == "PATCH" and name in self.interrupts and (code := self.interrupts.pop(name)()):
            raise Status(code, "Interrupted", f"{name}: {code}")
        there = key in self.objects and not self.objects[key].deleted
        old: dict[str, Any] = json.loads(json.dumps(self.objects[key].raw)) if there else {}
        wanted: Any = json.loads(request.body) if request.body[:1] in b"{[" else yaml.safe_load(request.body)
        asked = wanted.get("metadata", {}) if isinstance(wanted, dict) else {}
        if request.method == "POST" and there:
            raise Status(409, "AlreadyExists", f'clusterqueues.kueue.x-k8s.io "{name}" already exists')
        if not there and request.method != "POST" and not (kind.startswith(_APPLY) and "uid" not in asked):
            missing = Status(404, "NotFound", f'clusterqueues.kueue.x-k8s.io "{name}" not found')
            raise moved(name) if kind.startswith(_APPLY) else missing
        try:
            if kind.startswith(_APPLY):
                if "managedFields" in asked:
                    raise Status(400, "BadRequest", "metadata.managedFields must be nil")
                base = old or {"apiVersion": wanted["apiVersion"], "kind": "ClusterQueue", "metadata": {"name": name}}
                force = params.get("force") == "true"
                new = managed_fields.applied(base, wanted, manager, now, force=force)
            else:
                how: dict[str, Callable[[Any, Any], Any]] = {
                    "application/json-patch+json": json_patched,
                    "application/merge-patch+json": merged,
                }
                new = how[kind](old, wanted) if kind in how else wanted
                new = managed_fields.updated(old or {"metadata": {}}, new, manager, now)
        except managed_fields.Conflicts as conflicts:
            raise Status(409, body=managed_fields.conflict_status(conflicts, old["apiVersion"])) from None
        except ValueError as error:
            raise Status(422, "Invalid", str(error)) from None
        for field in ("uid", "resourceVersion"):
            if there and asked.get(field, old["metadata"][field]) != old["metadata"][field]:
                raise moved(name)
        check_queue(new)
        new["metadata"] |= {
            field: old["metadata"][field] for field in ("uid", "generation", "resourceVersion") if there
        }
        if params.get("dryRun") or new == old:
            return new
        if there and new["spec"] != old["spec"]:
            new["metadata"]["generation"] += 1
        self.writes.append((request.method.value, name, dict(params)))
        self.note(QUEUES, "MODIFIED" if there else "ADDED", new)
        self.objects[key] = new
        if request.method == "PATCH" and (code := self.lost.pop(name, 0)):
            raise Status(code, "Lost", f"{name}: {code}")
        return new

    async def until_heard(self) -> None:
        while self.silent:
            self.news.clear()
            await self.news.wait()

    def matching(self, request: Request) -> list[dict[str, Any]]:
        raws = [obj.raw for (res, _, _), obj in self.objects.items() if res == request.resource and not obj.deleted]
        return [raw for raw in raws if asks_for(request, raw)]

    async def _serve_list(self, request: Request) -> Any:
        plural = request.resource.plural  # type: ignore[union-attr]
        self.asked.append((f"list {plural}", dict(request.params)))
        if request.resource is None or request.resource not in KINDS:
            raise kmock.KubernetesNotFoundError
        items, first, version = self.matching(request), 0, self.version
        if token := request.params.get("continue"):
            version, first = map(int, token.split("-"))
            if version < self.oldest:
                raise Gone
        limit = int(request.params.get("limit") or len(items) or 1)
        page = items[first : first + limit]
        rest = f"{version}-{first + limit}" if first + limit < len(items) else ""
        kind = KINDS.get(request.resource, "")
        api = f"{request.resource.group}/{request.resource.version}".lstrip("/")
        return {
            "apiVersion": api,
            "kind": f"{kind}List",
            "metadata": {"resourceVersion": str(version), "continue": rest},
            "items": page,
        }

    async def _serve_watch(self, request: Request) -> AsyncIterator[Any]:
        of = request.resource
        self.asked.append((f"watch {of.plural}", dict(request.params)))  # type: ignore[union-attr]
        since, hung_up = int(request.params.get("resourceVersion") or self.version), self.hung_up
        yield b""
        if since < self.oldest:
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            yield {"type": "ERROR", "object": status}
            return
        log, position = self.events.setdefault(of, []), 0
        while self.hung_up == hung_up:
            await self.until_heard()
            while position < len(log):
                version, event = log[position]
                position += 1
                if version > since and (event["type"] == "DELETED" or asks_for(request, event["object"])):
                    yield event.get("raw", event)
            self.news.clear()
            await self.news.wait()


def asks_for(request: Request, raw: Mapping[str, Any]) -> bool:
    """Return whether the object has the labels asked for, and if it is a ResourceSlice the driver."""
    driver = request.params.get("fieldSelector", "").partition("spec.driver=")[2]
    has_driver = not driver or raw.get("spec", {}).get("driver") == driver
    return has_driver and selects(request.params.get("labelSelector", ""), raw)


def selects(selector: str, raw: Mapping[str, Any]) -> bool:
    labels = raw.get("metadata", {}).get("labels") or {}
    return all(labels.get(key) == value for key, _, value in (one.partition("=") for one in selector.split(",") if one))


class Status(Exception):
    """An answer that is no success."""

    def __init__(self, code: int, reason: str = "", message: str = "", body: dict[str, Any] | None = None) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
        self.body = body or {**status, "code": code, "reason": reason, "message": message}


def moved(name: str) -> Status:
    text = "the object has been modified; please apply your changes to the latest version and try again"
    return Status(409, "Conflict", f'Operation cannot be fulfilled on clusterqueues.kueue.x-k8s.io "{name}": {text}')


@functools.cache
def _schema(version: str) -> Any:
    path = Path(__file__).parents[3] / "shared" / "data" / "crds" / "kueue.x-k8s.io_clusterqueues.yaml"
    if not path.exists():
        return Draft202012Validator({})
    versions = yaml.safe_load(path.read_text())["spec"]["versions"]
    (one,) = (each["schema"]["openAPIV3Schema"] for each in versions if each["name"] == version)
    return Draft202012Validator(one)


def check_queue(raw: dict[str, Any]) -> None:
    """Check a ClusterQueue by Kueue's schema, and one rule of its webhook. Errors: Status."""
    errors = [error.message for error in _schema(raw["apiVersion"].rpartition("/")[2]).iter_errors(raw)]
    flavors = [flavor for group in raw["spec"].get("resourceGroups", ()) for flavor in group["flavors"]]
    for one in [one for flavor in flavors for one in flavor["resources"]]:
        if "lendingLimit" in one and int(one["lendingLimit"]) > int(one["nominalQuota"]):
            errors += ["lendingLimit: must be less than or equal to the nominalQuota"]
    if errors:
        name = raw["metadata"]["name"]
        raise Status(422, "Invalid", f'ClusterQueue.kueue.x-k8s.io "{name}" is invalid: {"; ".join(errors)}')


class Cluster:
    """A running emulator, which other threads and programs can talk to."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.url = ""
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._over: asyncio.Event
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()), daemon=True)

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        self.emulator = Emulator()
        for resource, kind in [(one, kind) for one, kind in KINDS.items() if one not in self.emulator.unserved]:
            self.emulator.resources[resource] = kmock.ResourceInfo(
                kind=kind,
                singular=kind.lower(),
                namespaced=resource in (PODS, CLAIMS),
                verbs={"get", "list", "watch", "patch", "update", "delete", "create"},
            )
        # Not kmock's own server: it replaces the resolver of the whole process.
        async with self.emulator:
            server = RawTestServer(self.emulator, host="127.0.0.1")
            await server.start_server(None, **({"ssl": self._tls} if self._tls else {}))
            self.url = str(server.make_url(""))
            self._up.set()
            await self._over.wait()
            await server.close()

    def start(self) -> Self:
        self._thread.start()
        assert self._up.wait(PATIENCE)
        return self

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)

    def on_loop(self, do: Any) -> Any:
        """Return the result of `do(emulator)`, run on its loop."""

        async def call() -> Any:
            return do(self.emulator)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(PATIENCE)

    def put(self, resource: Any, raw: dict[str, Any]) -> None:
        """Create the object, or replace it."""
        meta = raw.get("metadata", {})
        key = (resource, meta.get("namespace"), meta.get("name"))

        def do(emulator: Emulator) -> None:
            kind = "MODIFIED" if key in emulator.objects and not emulator.objects[key].deleted else "ADDED"
            emulator.note(resource, kind, raw)
            emulator.objects[key] = raw

        self.on_loop(do)

    def remove(self, resource: Any, name: str, namespace: str | None = None) -> None:
        def do(emulator: Emulator) -> None:
            obj = emulator.objects[resource, namespace, name]
            emulator.note(resource, "DELETED", obj.raw)
            obj.delete()

        self.on_loop(do)

    def send(self, resource: Any, event: Any) -> None:
        """Let the watches have this as an event, whatever it is."""

        def do(emulator: Emulator) -> None:
            emulator.version += 1
            events = emulator.events.setdefault(resource, [])
            events.append((emulator.version, {"type": "DELETED", "object": {}, "raw": event}))
            emulator.news.set()

        self.on_loop(do)

    def hang_up(self) -> None:
        def do(emulator: Emulator) -> None:
            emulator.hung_up += 1
            emulator.news.set()

        self.on_loop(do)

    def silence(self, silent: bool) -> None:
        """Let it take requests and say nothing, or speak again."""

        def do(emulator: Emulator) -> None:
            emulator.silent = silent
            emulator.news.set()

        self.on_loop(do)

    def forget(self, *, without: str, of: Any = NODES, refused: bool = False) -> None:
        """Keep no version from before now, let this node go unseen, and drop all watches, in one step.

        In steps of its own a watch that begins in between would be answered with 410 while the node is still there: it
        would be listed, and nothing would say afterwards that it has gone. `of`: its kind, if it is no node. `refused`:
        a watch of nodes is refused with 410.
        """

        def do(emulator: Emulator) -> None:
            emulator.version += 1
            emulator.oldest = emulator.version
            emulator.objects[of, None, without].delete()
            if refused:
                emulator.refusals["watch nodes"] = 410
            emulator.hung_up += 1
            emulator.news.set()

        self.on_loop(do)

    def kubeconfig(self) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "double", "cluster": {"server": self.url.rstrip("/")}}],
            "users": [{"name": "backstop", "user": {"token": "of-a-test"}}],
            "contexts": [{"name": "double", "context": {"cluster": "double", "user": "backstop"}}],
            "current-context": "double",
        }


def kubectl_command(kubeconfig: str, *arguments: str) -> list[str]:
    """A command that keeps what it learns of a server beside the emulator's own kubeconfig.

    kubectl keeps the kinds of a server by its address for hours, and the next emulator may have the same port.
    """
    kept = [] if kubeconfig == os.environ.get("BACKSTOP_KUBECONFIG") else ["--cache-dir", f"{kubeconfig}.cache"]
    return ["kubectl", "--kubeconfig", kubeconfig, *kept, *arguments]


@contextmanager
def running(tls: ssl.SSLContext | None = None) -> Iterator[Cluster]:
    cluster = Cluster(tls).start()
    try:
        yield cluster
    finally:
        cluster.stop()


def node(name: str, gpus: int | str | None = 8, /, **changes: Any) -> dict[str, Any]:
    """A ready node with so many GPUs. `changes`: allocatable, labels, taints, ready, unschedulable, deleting."""
    capacity = {"cpu": "96", "memory": "1000Gi"} | ({} if gpus is None else {"nvidia.com/gpu": str(gpus)})
    allocatable = dict(capacity)
    if "allocatable" in changes:
        allocatable["nvidia.com/gpu"] = str(changes["allocatable"])
    meta: dict[str, Any] = {"name": name, "labels": changes.get("labels", {})}
    if changes.get("deleting"):
        meta["deletionTimestamp"] = "2026-11-26T09:00:00Z"
    spec: dict[str, Any] = {}
    if changes.get("unschedulable"):
        spec["unschedulable"] = True
    if changes.get("taints"):
        spec["taints"] = changes["taints"]
    conditions = [
        {"type": "MemoryPressure", "status": "False"},
        {"type": "Ready", "status": changes.get("ready", "True")},
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": meta,
        "spec": spec,
        "status": {"capacity": capacity, "allocatable": allocatable, "conditions": conditions},
    }


def pod(name: str, namespace: str, gpus: int, on: str | None = "n1", **changes: Any) -> dict[str, Any]:
    """A pod that asks for so many GPUs. `changes`: phase, labels."""
    meta = {"name": name, "namespace": namespace, "labels": changes.get("labels", {})}
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    spec: dict[str, Any] = {"containers": [container]} | ({} if on is None else {"nodeName": on})
    status = {"phase": changes.get("phase", "Pending" if on is None else "Running")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}


def queue(name: str, gpus: int | str, /, **changes: Any) -> dict[str, Any]:
    """A ClusterQueue with so many GPUs in the flavor h100. `changes`: of its one resource, and `labels`."""
    labels = changes.pop("labels", {})
    meta = {"name": name, **({"labels": labels} if labels else {})}
    resource = {"name": "nvidia.com/gpu", "nominalQuota": gpus, **changes}
    groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "h100", "resources": [resource]}]}]
    spec = {"cohort": "research", "namespaceSelector": {}, "resourceGroups": groups}
    return {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "ClusterQueue", "metadata": meta, "spec": spec}
