"""Lists and watches objects of a Kubernetes API server, within limits of time and size.

kr8s has the connection: addresses, certificates and tokens of a kubeconfig or of a service account, which it reads
again when the server refuses them. Its own list and watch are not used: they keep whole objects, and know neither
resource versions nor bookmarks (docs/adr/0118).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import tempfile
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from pydantic import Field

from models.base import Duration, Model, Name
from models.errors import Refusal, Unavailable
from models.texts import brief, shorten

if TYPE_CHECKING:
    from kr8s.asyncio import Api

PAGE = 500
"""Objects of one page of a list, as many as kubectl requests."""
_PAGES = 4000
"""The most pages of one list: a faulty server could go on forever."""
_PAGE_BYTES = 64_000_000
_EVENT_BYTES = 8_000_000
"""The most bytes of one watch event; etcd takes objects of up to 1.5 MB."""
WATCH_SECONDS = 30
"""Seconds until the server ends a watch. A proper end proves that no change was missed; a dead connection has none."""
_APPLIES = {"Content-Type": "application/apply-patch+yaml"}
_CONFLICT = "FieldManagerConflict"
_MANAGER = re.compile(r'conflict with "([^"]{1,128})"')
_NUMBERS = itertools.count()
_SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_BAD_CREDENTIALS = (ValueError, LookupError, OSError, TypeError, RuntimeError)
"""Errors that kr8s raises for a kubeconfig, service account or login program that gives no credentials."""
_INSTALL = "kr8s is not installed on this worker: install backstop[kubernetes] (docs/kubernetes.md)"
warnings.filterwarnings("ignore", message="Kubernetes version .* is not supported", module="kr8s")


class KubernetesConnection(Model):
    """A Kubernetes API server, in the worker's own settings."""

    kubeconfig: Name | None = None
    """The absolute path of a kubeconfig. Default: the service account of the pod in which the worker runs."""
    context: Name | None = None
    """A context of that kubeconfig. Default: its current context."""
    timeout: Duration = Field(default=timedelta(seconds=20), gt=timedelta(0), le=timedelta(seconds=50))
    """The time limit of one page of a list."""


class KubernetesConnections(Model):
    """The file that BACKSTOP_KUBERNETES names."""

    connections: dict[Name, KubernetesConnection]


class ObjectKind(NamedTuple):
    """A kind of objects. `paths`: of its versions, the best first: an older server has the second only."""

    plural: str
    paths: tuple[str, ...]


NODES = ObjectKind("nodes", ("/api/v1",))
PODS = ObjectKind("pods", ("/api/v1",))
QUEUES = ObjectKind("clusterqueues", ("/apis/kueue.x-k8s.io/v1beta2", "/apis/kueue.x-k8s.io/v1beta1"))
RESOURCE_SLICES, RESOURCE_CLAIMS = (
    ObjectKind(plural, tuple(f"/apis/resource.k8s.io/{version}" for version in ("v1", "v1beta2", "v1beta1")))
    for plural in ("resourceslices", "resourceclaims")
)
DEVICE_TAINT_RULES = ObjectKind(
    "devicetaintrules", tuple(f"/apis/resource.k8s.io/{version}" for version in ("v1", "v1beta2", "v1alpha3"))
)


class Gone(Exception):
    """The server does not keep the version any more: the objects must be listed again."""


class NoSuchKind(Unavailable):
    """The server has no such kind of objects."""


class Moved(Exception):
    """The object is no longer at the version that the write was made for."""


class Managed(Exception):
    """Other field managers have what the write would change. `managers`: their names."""

    def __init__(self, managers: tuple[str, ...]) -> None:
        super().__init__(*managers)
        self.managers = managers


class NoEvent(Unavailable):
    """A watch sent what is no change of an object."""


class Page(NamedTuple):
    items: list[Any]
    version: str
    rest: str
    """The token of the next page; empty: this was the last page."""


class ApiServer:
    """A connection to an API server, for one task: kr8s forgets the address for a moment while it reads credentials."""

    def __init__(self, name: str, connection: KubernetesConnection) -> None:
        self._name = name
        self._connection = connection
        self._api: Api | None = None
        self._paths: dict[str, str] = {}

    @property
    def seconds(self) -> float:
        return self._connection.timeout.total_seconds()

    async def pages(self, kind: ObjectKind, selector: str | None, limit: int = PAGE) -> AsyncGenerator[Page, None]:
        """Yield the pages of a list. Errors: Gone, Unavailable."""
        rest = ""
        for _ in range(_PAGES):
            page = await self.page(kind, selector, limit, rest)
            yield page
            rest = page.rest
            if not rest:
                return
        raise Unavailable(f"its list of {kind.plural} has more than {_PAGES:,} pages")

    async def page(self, kind: ObjectKind, selector: str | None, limit: int = PAGE, rest: str = "") -> Page:
        """Read one page. Errors: Gone, NoSuchKind, Unavailable."""
        asked = {"limit": str(limit), **_build_filter(kind, selector), **({"continue": rest} if rest else {})}
        paths = sorted(kind.paths, key=lambda path: path != self._paths.get(kind.plural))  # the last one first
        for path in paths:
            try:
                async with asyncio.timeout(self.seconds):
                    chunks = [chunk async for chunk in self._stream(kind, path, asked, _PAGE_BYTES)]
            except NoSuchKind:
                if path == paths[-1]:
                    raise
                continue
            except TimeoutError:
                raise Unavailable(f"it sent no list of {kind.plural} within {self.seconds:g} s") from None
            self._paths[kind.plural] = path
            return _page_in(kind, b"".join(chunks))
        raise AssertionError("a kind has a path")

    async def events(
        self, kind: ObjectKind, selector: str | None, version: str
    ) -> AsyncGenerator[tuple[str, Any], None]:
        """Yield the type and object of each change after the version, until the server ends the watch.

        Errors: Gone, Unavailable.
        """
        watches = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        asked = {**watches, "timeoutSeconds": str(WATCH_SECONDS), **_build_filter(kind, selector)}
        try:
            async with asyncio.timeout(WATCH_SECONDS + self.seconds):
                path = self._paths.get(kind.plural, kind.paths[0])
                async for line in _lines(self._stream(kind, path, asked, None), kind):
                    yield _event_in(kind, line)
        except TimeoutError:
            raise Unavailable(f"its watch of {kind.plural} did not end in time: the connection is dead") from None

    async def get(self, kind: ObjectKind, name: str) -> Any:
        """Read one object. Errors: NoSuchKind if it is gone, Unavailable."""
        return await self._exchange(kind, name, {}, None)

    async def apply(self, kind: ObjectKind, raw: Mapping[str, Any], manager: str, *, dry_run: bool = False) -> Any:
        """Write the object's fields by server-side apply, without force; return it as it is then.

        With `metadata.resourceVersion` in it only at that version. `dry_run`: as if, nothing is kept.
        Errors: Moved, Managed, Refusal; Unavailable, also where it may have been written.
        """
        asked = {"fieldManager": manager, "force": "false", **({"dryRun": "All"} if dry_run else {})}
        return await self._exchange(kind, raw["metadata"]["name"], asked, json.dumps(raw).encode())

    async def _exchange(self, kind: ObjectKind, name: str, asked: Mapping[str, str], body: bytes | None) -> Any:
        """Return the one object that the server answers with. Errors: as `apply`; NoSuchKind."""
        path = self._paths.get(kind.plural, kind.paths[0])
        try:
            async with asyncio.timeout(self.seconds):
                chunks = [chunk async for chunk in self._stream(kind, path, asked, _EVENT_BYTES, name, body)]
            document = json.loads(b"".join(chunks))
        except TimeoutError:
            raise Unavailable(f"it did not answer about {kind.plural}/{name} within {self.seconds:g} s") from None
        except (ValueError, RecursionError) as error:
            raise Unavailable(
                f"its answer about {kind.plural}/{name} is not valid JSON: {type(error).__name__}"
            ) from None
        return document

    async def _stream(
        self,
        kind: ObjectKind,
        path: str,
        asked: Mapping[str, str],
        most: int | None,
        name: str = "",
        body: bytes | None = None,
    ) -> AsyncIterator[bytes]:
        """Yield the body of an answer as it comes. `body`: to apply. Errors: Gone, NoSuchKind; `apply`'s."""
        try:
            import httpx
            from kr8s import APITimeoutError, ServerError
        except ImportError:
            raise Unavailable(_INSTALL) from None
        size, (base, _, version) = 0, path.rpartition("/")
        applies: dict[str, Any] = {} if body is None else {"content": body, "headers": _APPLIES}
        api = await self._open()
        try:
            async with api.call_api(
                "GET" if body is None else "PATCH",
                version=version,
                base=base,
                url=f"{kind.plural}/{quote(name)}" if name else kind.plural,
                params=dict(asked),
                stream=True,
                timeout=self._limits(),
                **applies,
            ) as answer:
                _remove_key_files(api)
                async for chunk in answer.aiter_bytes():
                    size += len(chunk)
                    if most is not None and size > most:
                        raise Unavailable(
                            f"its answer about {kind.plural} has more than {most:,} bytes, the most that Backstop reads"
                        )
                    yield chunk
        except ServerError as error:
            raise (_explain_refusal(kind, error) if body is None else _not_applied(kind, name, error)) from None
        except APITimeoutError:
            raise Unavailable(f"it did not answer about {kind.plural} within {self.seconds:g} s") from None
        except httpx.HTTPError as error:
            self._api = None  # its address may have changed
            raise Unavailable(f"no connection: {type(error).__name__} {brief(str(error))}") from None
        except _BAD_CREDENTIALS as error:  # those of a second reading, after the first were refused
            self._api = None
            raise Unavailable(f"its credentials cannot be used: {brief(str(error))}") from None
        finally:
            _remove_key_files(api)

    def _limits(self) -> Any:
        import httpx

        return httpx.Timeout(self.seconds, read=WATCH_SECONDS + self.seconds)

    async def _open(self) -> Api:
        """Return the connection. Errors: Unavailable, also for a kubeconfig that cannot be used."""
        import httpx
        import kr8s.asyncio

        if self._api is None:
            connection = self._connection
            # A path that does not exist has kr8s take the service account, and nothing else of this machine.
            config = connection.kubeconfig or f"{_SERVICE_ACCOUNT}/kubeconfig"
            account = "" if connection.kubeconfig else _SERVICE_ACCOUNT
            if connection.kubeconfig and not _is_file(connection.kubeconfig):
                raise Unavailable(f"{connection.kubeconfig} is missing on this worker")
            if account and not _is_file(f"{account}/token"):
                raise Unavailable(f"it names no kubeconfig, and this worker runs in no pod: {account}/token is missing")
            try:
                async with asyncio.timeout(self.seconds):
                    self._api = await kr8s.asyncio.api(
                        kubeconfig=config,
                        serviceaccount=account,
                        context=connection.context,
                        namespace=f"of connection {next(_NUMBERS)}",  # not used; kr8s shares what has equal terms
                    )
            except TimeoutError:
                raise Unavailable(f"no answer within {self.seconds:g} s") from None
            except httpx.HTTPError as error:
                raise Unavailable(f"no connection: {type(error).__name__} {brief(str(error))}") from None
            except kr8s.ServerError as error:
                code = getattr(error.response, "status_code", 0)
                raise Unavailable(f"it refuses the worker ({code}): {brief(str(error))} (docs/kubernetes.md)") from None
            except _BAD_CREDENTIALS as error:
                raise Unavailable(f"its credentials cannot be used: {brief(str(error))}") from None
        return self._api


def _is_file(path: str) -> bool:
    return Path(path).is_file()


def _build_filter(kind: ObjectKind, selector: str | None) -> dict[str, str]:
    """Return the parameters that leave out objects that do not count: a selector of labels, or of a slice's fields."""
    if kind is PODS:
        return {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
    if kind is RESOURCE_SLICES:
        return {"fieldSelector": selector} if selector else {}
    return {"labelSelector": selector} if selector else {}


def _page_in(kind: ObjectKind, body: bytes) -> Page:
    try:
        document = json.loads(body)
        meta = document["metadata"]
        items, version, rest = document["items"], meta["resourceVersion"], meta.get("continue") or ""
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise Unavailable(f"it did not answer with a list of {kind.plural}: {type(error).__name__}") from None
    if not isinstance(items, list | None) or not isinstance(version, str) or not isinstance(rest, str) or not version:
        raise Unavailable(f"it did not answer with a list of {kind.plural}: a field has another type")
    return Page(items or [], version, rest)


async def _lines(chunks: AsyncIterator[bytes], kind: ObjectKind) -> AsyncIterator[bytes]:
    """Yield the lines. Errors: Unavailable, also for a last one that is not whole."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _EVENT_BYTES:
            raise Unavailable(f"its watch of {kind.plural} sent a line of more than {_EVENT_BYTES:,} bytes")
        for line in lines:
            if line.strip():
                yield line
    if rest.strip():
        raise Unavailable(f"its watch of {kind.plural} ended in the middle of an event")


def _event_in(kind: ObjectKind, line: bytes) -> tuple[str, Any]:
    """Parse one line of a watch. Errors: Gone, NoEvent."""
    try:
        event = json.loads(line)
        what, raw = event["type"], event["object"]
        code = raw.get("code") if what == "ERROR" else None
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise NoEvent(f"its watch of {kind.plural} sent a line that is not an event: {type(error).__name__}") from None
    if what == "ERROR":
        if code == 410:
            raise Gone
        raise NoEvent(f"its watch of {kind.plural} ended: {brief(raw.get('message'))}")
    if what not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
        raise NoEvent(f"its watch of {kind.plural} sent an event of an unknown type: {brief(what)}")
    return what, raw


def _explain_refusal(kind: ObjectKind, error: Any) -> Exception:
    code, message, _ = _status_of(error)
    text = brief(message) if message else "it does not say why"
    if code == 410:
        return Gone()
    if code == 404:
        return NoSuchKind(f"it has no {kind.plural} (404): {text}")
    if code in (401, 403):
        return Unavailable(f"the worker may not list and watch {kind.plural} ({code}): {text} (docs/kubernetes.md)")
    return Unavailable(f"it refused to list or watch {kind.plural} ({code}): {text}")


def _not_applied(kind: ObjectKind, name: str, error: Any) -> Exception:
    code, message, causes = _status_of(error)
    text = shorten(" ".join(message.split()), 300) or "it does not say why"
    what = f"{kind.plural}/{name}"
    if code == 409:
        managers = [_MANAGER.search(str(one.get("message"))) for one in causes if one.get("reason") == _CONFLICT]
        names = tuple(sorted({match[1] for match in managers if match}))
        return Managed(names or ("another field manager",)) if managers else Moved()
    if code == 403:
        return Refusal(f"Kubernetes does not let the worker change {what} (403): {text} (docs/kubernetes.md)")
    if code in (401, 408, 429) or code >= 500:
        return Unavailable(f"it could not change {what} ({code}): {text}")
    return Refusal(f"Kubernetes refused the change of {what} ({code}): {text}")


def _status_of(error: Any) -> tuple[int, str, list[dict[str, Any]]]:
    """Return the HTTP status of an answer that is no success, its message, and its causes."""
    code = getattr(error.response, "status_code", 0)
    try:
        status = error.response.json()
        message = str(status["message"])
        causes = (status.get("details") or {}).get("causes") or []
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return code, "", []
    return code, message, [one for one in causes if isinstance(one, dict)] if isinstance(causes, list) else []


def _remove_key_files(api: Any) -> None:
    """Remove the files into which kr8s copied keys of a kubeconfig: they are loaded, and it would leave them there."""
    for path in (api.auth.client_key_file, api.auth.client_cert_file, api.auth.server_ca_file):
        if path and Path(str(path)).parent == Path(tempfile.gettempdir()) and Path(str(path)).name.startswith("tmp"):
            with suppress(OSError):
                Path(str(path)).unlink()
