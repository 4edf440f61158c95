"""`secret:NAME` where a worker uses it: contacts, the mail server, Buildkite's and other hosts' tokens, Prometheus."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from activities.adapters.http import Reach, networks_of
from activities.adapters.ledger.facade import Ledger
from activities.adapters.notify.notifier import Notifier
from activities.adapters.prometheus.prometheus import PrometheusConnection, document
from activities.adapters.runners.settings import Allowed, RunnerSettings
from activities.secret_files import SecretFiles
from client.doctor import contacts_checks
from models.cluster.contact_secrets import in_clear, is_secret, mask_secrets
from models.cluster.fleet_file import Fleet
from models.cluster.import_outcome import ImportTerms
from models.errors import BadInput, Refusal, Unavailable
from models.notices import Notice, NoticeKind
from tests.integration.notice_servers import mail_server, web_server
from tests.ports import free_port
from tests.servers import new_ledger
from workers.settings import load_settings

NOW = datetime(2026, 11, 23, tzinfo=UTC)
HERE = Reach(networks_of("127.0.0.0/8"))
TOKEN = "ToKeN4secretFiles"
CLUSTER = {
    "name": "c",
    "islands": [{"name": "i", "total_gpus": 8, "healthy_gpus": 8}],
    "quotas": [{"team": "clear", "gpus": 8, "scheduled_gpus": 8, "idle_gpus": 0}],
}

pytestmark = pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secrets").mkdir()
    return tmp_path / "secrets"


def notice(*contacts: str) -> Notice:
    return Notice(key="k1", cluster="c", kind=NoticeKind.PLANNED, audience="research", owner="tpm", contacts=contacts)


def test_a_contact_by_name_is_told_and_its_token_is_shown_nowhere(folder: Path, tmp_path: Path) -> None:
    with web_server() as web:
        (folder / "hook").write_text(f"webhook+http://127.0.0.1:{web.port}/{TOKEN}\n")
        (folder / "other").write_text(f"webhook+http://127.0.0.1:{web.port}/other-{TOKEN}\n")
        notifier = Notifier(
            tmp_path / "notices.jsonl",
            lambda: NOW,
            reach=HERE,
            named={"theirs": "secret:other"},
            secrets=SecretFiles(folder),
        )
        told = notifier.deliver(notice("secret:hook", "named:theirs"), "subject", "body")
        assert [post.path for post in web.posts("/")] == [f"/{TOKEN}", f"/other-{TOKEN}"]
    assert TOKEN not in repr(told) + (tmp_path / "notices.jsonl").read_text()


def test_a_secret_that_comes_late_is_told_late_and_the_others_at_once(folder: Path, tmp_path: Path) -> None:
    notifier = Notifier(tmp_path / "notices.jsonl", lambda: NOW, reach=HERE, secrets=SecretFiles(folder))
    with web_server() as web:
        contacts = ("secret:late", f"webhook+http://127.0.0.1:{web.port}/at-once")
        with pytest.raises(Unavailable, match=r"contact 1 of research \(secret:late cannot be read .* no such file"):
            notifier.deliver(notice(*contacts), "subject", "body")
        (folder / "late").write_text(f"webhook+http://127.0.0.1:{web.port}/late")
        notifier.deliver(notice(*contacts), "subject", "body")
        assert [post.path for post in web.posts("/")] == ["/at-once", "/late"]


def test_the_mail_server_s_password_may_be_a_secret_and_is_read_anew(folder: Path, tmp_path: Path) -> None:
    with mail_server("robot", TOKEN) as mail:
        url = f"mailto://robot:{TOKEN}@127.0.0.1:PORT?from=backstop@ops.example"
        (folder / "mail").write_text(url.replace("PORT", str(free_port())))
        notifier = Notifier(tmp_path / "notices.jsonl", lambda: NOW, "secret:mail", secrets=SecretFiles(folder))
        with pytest.raises(Unavailable):
            notifier.deliver(notice("someone@team.example"), "subject", "body")
        (folder / "mail").write_text(url.replace("PORT", str(mail.port)))
        notifier.deliver(notice("someone@team.example"), "subject", "body")
        assert len(mail.to("someone@team.example")) == 1
    with pytest.raises(Unavailable, match="secret:gone cannot be read"):
        Notifier(tmp_path / "notices.jsonl", lambda: NOW, "secret:gone", secrets=SecretFiles(folder))


def test_tokens_of_runners_may_be_secrets(folder: Path) -> None:
    settings = RunnerSettings.model_validate(
        {"buildkite": {"organization": "acme", "pipelines": ["burn-in"], "token": "secret:buildkite"}}
    )
    allowed = Allowed(settings, {}, SecretFiles(folder))
    with pytest.raises(Unavailable, match="secret:buildkite cannot be read"):
        allowed.token("secret:buildkite")
    (folder / "buildkite").write_text(f"{TOKEN}\n")
    assert allowed.token("secret:buildkite") == TOKEN
    (folder / "buildkite").write_text("tökén")
    with pytest.raises(BadInput, match="secret:buildkite has a character that an HTTP header cannot hold"):
        allowed.token("secret:buildkite")
    with pytest.raises(BadInput, match="has no folder of secrets"):
        Allowed(settings, {}).token("secret:buildkite")
    assert TOKEN not in repr(allowed)


def test_prometheus_gets_its_token_from_a_secret(folder: Path) -> None:
    (folder / "prom").write_text(f"{TOKEN}\n")
    with web_server() as web:
        connection = PrometheusConnection.model_validate(
            {"url": f"http://127.0.0.1:{web.port}", "token": "secret:prom"}
        )
        with pytest.raises(Unavailable) as refused:  # what answers is no Prometheus
            document(connection, "up", secrets=SecretFiles(folder))
        (asked,) = web.posts("/api/v1/query")
    assert asked.headers["Authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in refused.value.message
    with pytest.raises(ValueError, match="token"):
        PrometheusConnection.model_validate({"url": "http://p", "token": TOKEN})


def test_a_name_is_no_secret_and_may_be_shown() -> None:
    assert (is_secret("secret:hook"), mask_secrets("secret:hook")) == (False, "secret:hook")


def test_tokens_in_clear_are_refused_once_access_is_configured(tmp_path: Path) -> None:
    """The function, and the ledger that uses it: nothing of such a file is imported."""
    ledger = Ledger(new_ledger(tmp_path / "ledger.db"))
    teams = [
        {"name": "clear", "contacts": [f"slack://T/B/{TOKEN}"]},
        {"name": "named", "contacts": ["secret:hook", "log", "a@team.example"]},
    ]
    says = (
        "contacts of clear contain a token in clear text, which is refused once an access file is in force: "
        "put each token into a file of "
        r"the workers' folder of secrets \(BACKSTOP_SECRETS\), and write secret:NAME in its place"
    )

    def take(name: str) -> None:
        document = Fleet.model_validate({"teams": teams, "clusters": [CLUSTER]}).model_dump_json(exclude_unset=True)
        ledger.fleet.stage_import(name, 0, zlib.compress(document.encode()))
        ledger.fleet.take_import(name, 1, ImportTerms(whole=True), "tpm", NOW)

    ledger.fleet.tokens_in_clear = lambda: False
    with pytest.raises(Refusal, match=f"^{says}$"):
        take("first")
    assert ledger.fleet.fleet_page("", 10).teams == ()
    ledger.fleet.tokens_in_clear = lambda: True
    take("second")
    assert ledger.fleet.teams_in_clear() == ()
    ledger.fleet.tokens_in_clear = lambda: False
    (check,) = contacts_checks(ledger.fleet.teams_in_clear())  # what stands there already is named by doctor
    assert (check.ok, check.text) == (
        False,
        "contacts of clear contain a token in clear text, which an import now refuses",
    )
    assert "import secret:NAME in its place, and renew the token (docs/secrets.md, Contacts)" in check.remedy
    assert contacts_checks(()) == []
    teams[0]["contacts"] = ["slack://***"]  # it stands for what the ledger has
    take("third")
    assert in_clear({"clear": ["slack://***"]}) == ""
    assert in_clear({"clear": ["slack://T0/B0/x"]}).startswith("contacts of clear contain a token in clear text")


def test_the_folder_is_an_absolute_path_of_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BACKSTOP_SECRETS", "secrets")
    with pytest.raises(BadInput, match="BACKSTOP_SECRETS must be the absolute path of a folder, not 'secrets'"):
        load_settings()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BACKSTOP_SECRETS", str(tmp_path / "file"))
    with pytest.raises(BadInput, match="which is not a folder"):
        load_settings()
    monkeypatch.setenv("BACKSTOP_SECRETS", str(tmp_path))
    assert load_settings().secrets == tmp_path
