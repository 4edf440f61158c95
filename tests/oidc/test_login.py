"""The device flow to its end, with a real provider, a real front and the command line; and tokens that do not count."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import stat
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.client import Client

from cli.main import run
from client.connection import TemporalTarget
from client.login import kept_login
from models.errors import Unavailable
from tests.oidc.real import a_key, needs_provider, provider, says_yes
from tests.ports import free_port
from tests.waiting import PATIENCE
from web.callers import Callers
from web.front import Front
from web.oidc import Provider, Terms, how_to_log_in
from web.server import listening
from web.settings import Address, FrontSettings
from web.temporal_connection import Doors

pytestmark = [pytest.mark.e2e, needs_provider]


async def nowhere() -> tuple[Client, TemporalTarget]:
    raise Unavailable("there is no Temporal here")


@asynccontextmanager
async def a_front(asked: Provider) -> AsyncIterator[str]:
    """Run a front at a port of this machine, for the tokens of one provider. Yields its address."""
    front = Front(Doors(nowhere), Callers((asked,)), about=partial(how_to_log_in, asked))
    async with listening(front, FrontSettings(None, listen=Address("127.0.0.1", 0)), {}) as where:
        yield where[0]


def typed(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words)
    return code, out.getvalue(), err.getvalue()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("BACKSTOP_TOKEN", "BACKSTOP_ACTOR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("BACKSTOP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def at_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Somebody says yes as soon as they are told where."""
    from client import login

    begin = login.log_in

    def log_in(place: Any, tell: Any) -> None:
        def told(address: str, code: str) -> None:
            tell(address, code)
            says_yes(address, name)

        begin(place, told, lambda _: None)

    monkeypatch.setattr(login, "log_in", log_in)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_somebody_logs_in_is_known_and_logs_out(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    at_once(monkeypatch, "ana")
    with provider(tmp_path, a_key("one", algorithm), algorithm=algorithm) as issuer:
        async with a_front(Provider(Terms(issuer, "backstop-cli", "backstop-cli"))) as url:
            monkeypatch.setenv("BACKSTOP_URL", url)
            code, _, err = await asyncio.to_thread(typed, "whoami")
            assert (code, "backstop login" in err) == (3, True)
            code, out, err = await asyncio.to_thread(typed, "login")
            assert (code, err) == (0, "")
            assert "Logged in as oidc:ana@" in out
            assert stat.S_IMODE((home / "login.json").stat().st_mode) == 0o600
            code, out, _ = await asyncio.to_thread(typed, "whoami", "--json")
            found = json.loads(out)
            assert (found["name"], found["proof"], found["how"]) == (f"oidc:ana@{issuer}", "oidc", issuer)
            assert found["groups"] == ["gpu-operators", "research"]
            kept = kept_login()
            (home / "login.json").write_text(json.dumps({**kept, "at": 0, "token": "old"}))
            code, out, _ = await asyncio.to_thread(typed, "whoami")
            assert (code, kept_login()["token"] != "old") == (0, True)
            code, out, _ = await asyncio.to_thread(typed, "logout")
            assert out == f"Logged out of {url}.\n"
            assert not (home / "login.json").exists()
            assert (await asyncio.to_thread(typed, "whoami"))[0] == 3


async def test_somebody_else_s_name_and_another_machine_s_plain_http_are_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKSTOP_URL", "http://127.0.0.1:1")
    code, _, err = await asyncio.to_thread(typed, "status", "--actor", "somebody-else")
    assert (code, "the front records who logged in" in err) == (3, True)
    monkeypatch.setenv("BACKSTOP_URL", "http://10.0.0.1")
    code, _, err = await asyncio.to_thread(typed, "status")
    assert (code, "use https://" in err) == (2, True)


# --- tokens that do not count ---------------------------------------------------------------------------


def token_of(issuer: str, name: str, client: str = "backstop-cli", scope: str = "openid groups") -> str:
    """The identity's token of who says yes."""
    about = httpx.get(f"{issuer}/.well-known/openid-configuration", timeout=PATIENCE).json()
    begun = httpx.post(
        about["device_authorization_endpoint"], data={"client_id": client, "scope": scope}, timeout=PATIENCE
    ).json()
    says_yes(begun["verification_uri_complete"], name)
    given = {
        "grant_type": "urn:ietf:params:oauth:grant-type:device_code",
        "device_code": begun["device_code"],
        "client_id": client,
    }
    return str(httpx.post(about["token_endpoint"], data=given, timeout=PATIENCE).json()["id_token"])


def unsigned(token: str) -> str:
    head = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    return f"{head}.{token.split('.')[1]}."


@pytest.fixture(scope="module")
def keys() -> Any:
    return a_key("one"), a_key("two")


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory, keys: Any) -> Iterator[str]:
    with provider(tmp_path_factory.mktemp("oidc"), keys[0]) as found:
        yield found


async def said(asked: Provider, token: str) -> tuple[int, str]:
    async with a_front(asked) as url, httpx.AsyncClient(timeout=PATIENCE) as http:
        answer = await http.get(f"{url}/api/v1/whoami", headers={"authorization": f"Bearer {token}"})
        found = answer.json()
        return answer.status_code, found.get("detail") or found["name"]


async def test_a_token_counts_for_whom_where_and_when_it_is_meant(issuer: str, tmp_path: Path, keys: Any) -> None:
    terms = Terms(issuer, "backstop-cli", "backstop-cli")
    token = await asyncio.to_thread(token_of, issuer, "ana")
    assert await said(Provider(terms), token) == (200, f"oidc:ana@{issuer}")
    status, why = await said(Provider(Terms(issuer, "another-front")), token)
    assert (status, "is not for this front, whose audience is another-front" in why) == (401, True)
    stray = await asyncio.to_thread(token_of, issuer, "ana", "another-tool")
    assert (await said(Provider(terms), stray))[0] == 401
    status, why = await said(Provider(terms, lambda: time.time() + 4000), token)
    assert (status, "has expired" in why) == (401, True)
    status, why = await said(Provider(terms, lambda: time.time() + 1000), token)
    assert (status, "more than 15 minutes ago" in why) == (401, True)
    status, why = await said(Provider(terms, lambda: time.time() - 600), token)
    assert (status, "issued in the future" in why) == (401, True)
    status, why = await said(Provider(terms), unsigned(token))
    assert (status, "must be signed with one of" in why) == (401, True)
    head, body, signature = token.split(".")
    for altered in (f"{head}.{body}.{signature[:-4]}AAAA", f"{head}.{body[:-4]}AAAA.{signature}", f"{head}.{body}."):
        status, why = await said(Provider(terms), altered)
        assert (status, "signature" in why) == (401, True)
    with provider(tmp_path, keys[0]) as other:  # another issuer with the same keys
        status, why = await said(Provider(terms), await asyncio.to_thread(token_of, other, "ana"))
        assert (status, "the token's issuer must be" in why) == (401, True)


def token_of_a_job(issuer: str, client: str, audience: str) -> str:
    """Return a token of a job, which logs in by its own secret because nobody is there to agree."""
    about = httpx.get(f"{issuer}/.well-known/openid-configuration", timeout=PATIENCE).json()
    given = {"grant_type": "client_credentials", "resource": audience}
    answer = httpx.post(about["token_endpoint"], data=given, auth=(client, "of a job"), timeout=PATIENCE)
    return str(answer.json()["access_token"])


async def test_a_job_of_ci_comes_in_by_a_token_for_this_front_alone(
    issuer: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audience = "https://backstop.example"
    terms = Terms(issuer, audience, "backstop-cli")
    token = await asyncio.to_thread(token_of_a_job, issuer, "ci", audience)
    async with a_front(Provider(terms)) as url:
        monkeypatch.setenv("BACKSTOP_URL", url)
        monkeypatch.setenv("BACKSTOP_TOKEN", token)
        code, out, _ = await asyncio.to_thread(typed, "whoami", "--json")
    job = json.loads(out)
    assert (code, job["name"], job["groups"]) == (0, f"oidc:ci@{issuer}", ["ci-jobs"])
    person = await asyncio.to_thread(token_of, issuer, "ana")
    here = Terms(issuer, "backstop-cli", "backstop-cli")
    known_as = [await Provider(terms).principal(token), await Provider(here).principal(person)]
    humans = [None if one is None else one.human for one in known_as]
    assert humans == ["", f"oidc:ana@{issuer}"], "a client's own account is no human's"
    stray = await asyncio.to_thread(token_of_a_job, issuer, "ci", "https://elsewhere.example")
    assert await said(Provider(terms), stray) == (401, f"the token is not for this front, whose audience is {audience}")
    loner = await asyncio.to_thread(token_of_a_job, issuer, "ci-loner", audience)
    status, why = await said(Provider(terms), loner)
    assert (status, "has no claim groups" in why) == (401, True)


async def test_groups_that_are_not_told_fail_closed(issuer: str) -> None:
    terms = Terms(issuer, "backstop-cli", "backstop-cli")
    crowd = await asyncio.to_thread(token_of, issuer, "crowd")
    assert await said(Provider(terms), crowd) == (
        401,
        "the token names 900 groups, but may name at most 500: configure the provider to send fewer",
    )
    loner = await asyncio.to_thread(token_of, issuer, "loner")
    status, why = await said(Provider(terms), loner)
    assert (status, "has no claim groups" in why) == (401, True)
    none_read = Provider(Terms(issuer, "backstop-cli", "backstop-cli", groups=""))
    assert await said(none_read, loner) == (200, f"oidc:loner@{issuer}")


async def test_keys_change_under_way(tmp_path: Path, keys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    terms = Terms(f"http://127.0.0.1:{port}", "backstop-cli", "backstop-cli")
    monkeypatch.setattr("web.oidc._REFETCH_SECONDS", float("inf"))  # however long what follows takes
    asked, stale = Provider(terms), Provider(terms)
    with provider(tmp_path, keys[0], port=port) as issuer:
        old = await asyncio.to_thread(token_of, issuer, "ana")
        assert (await said(asked, old))[0] == (await said(stale, old))[0] == 200
    with provider(tmp_path, keys[1], keys[0], port=port) as issuer:
        new = await asyncio.to_thread(token_of, issuer, "ana")
        status, why = await said(stale, new)
        assert (status, "a key that the provider does not have" in why) == (401, True), "it has just looked"
        monkeypatch.setattr("web.oidc._REFETCH_SECONDS", 0.0)
        assert (await said(asked, new))[0] == (await said(asked, old))[0] == 200
    with provider(tmp_path, keys[1], port=port):
        asked._looked = float("-inf")  # an hour is over
        assert ((await said(asked, new))[0], (await said(asked, old))[0]) == (200, 401)
    assert (await said(asked, new))[0] == 200, "the provider is away, and its keys are known"
    assert (await said(Provider(terms), new))[0] == 503
