"""The worker's settings: only this file reads them from the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import time as clock_time
from datetime import timedelta
from pathlib import Path

from activities.adapters.git.command_line import GitTerms
from activities.adapters.http import Network, networks_of
from activities.adapters.kubernetes.api import KubernetesConnection, KubernetesConnections
from activities.adapters.prometheus.prometheus import PrometheusConnection, PrometheusConnections
from activities.adapters.runners.settings import RunnerSettings
from activities.adapters.slurm.command_line import Connection, Connections
from client.front_key_files import front_key_file, key_book_file, read_book
from client.inputs.documents import read_document
from client.places import home, ledger_url
from client.slack_secret import configured_name
from models.base import Model, Name, Words, duration_text, parse_duration
from models.errors import BadInput
from models.texts import brief


class ContactBook(Model):
    """The file that BACKSTOP_CONTACTS names."""

    contacts: dict[Name, Words]


@dataclass(frozen=True)
class Settings:
    """The settings of a worker process. Durations in seconds."""

    ledger_url: str
    home: Path
    mail_server: str | None
    watch_interval_seconds: float
    build_id: str
    """The build of this worker's code; empty: workers are not versioned."""
    watch_shards: int = 1
    slurm: Mapping[str, Connection] = field(default_factory=dict)
    """Ways to Slurm clusters, by name."""
    git: GitTerms = field(default_factory=GitTerms)
    prometheus: Mapping[str, PrometheusConnection] = field(default_factory=dict)
    """Prometheus servers that are asked for health, by name."""
    kubernetes: Mapping[str, KubernetesConnection] = field(default_factory=dict)
    """Kubernetes API servers that report health and use, by name."""
    contacts: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The contacts behind `named:NAME` in a fleet file, by name."""
    digest_at: clock_time = clock_time(8)
    """The time of day, in UTC, at which digests are sent to teams that want them."""
    console_url: str = ""
    """The address at which people answer in a browser; empty: none."""
    contact_networks: tuple[Network, ...] = ()
    """Private networks to which contacts may lead nevertheless."""
    secrets: Path | None = None
    """The folder of the secrets behind `secret:NAME`; None: there is none."""
    seals: tuple[Path, ...] = ()
    """The places of the archive's seals: files, or folders that are Git repositories; empty: nothing is sealed."""
    seal_every: timedelta = timedelta(hours=1)
    runners: RunnerSettings | None = None
    """The programs, hosts and pipelines that bring-ups may use on this worker; None: it runs nothing for them."""
    keys: Path | None = None
    """The book of fronts' public keys; None: there is none, and commands need no ticket."""
    tickets_required: bool = False
    """True: every command needs a ticket from the beginning. False: only once there is an access file."""
    slack_buttons: bool = False
    """True: a front accepts presses in Slack, so notices there have buttons."""
    runs_dir: Path = Path("runs")
    """The folder for the runs of commands on this worker."""


def load_settings() -> Settings:
    """Read the settings. Errors: BadInput naming the variable and its value."""
    where = home()
    interval = os.environ.get("BACKSTOP_WATCH_INTERVAL", "15")
    try:
        seconds = float(interval)
    except ValueError:
        raise BadInput(f"BACKSTOP_WATCH_INTERVAL must be a number of seconds, not {interval!r}") from None
    if not 0.05 <= seconds <= 3600:
        raise BadInput(f"BACKSTOP_WATCH_INTERVAL must be between 0.05 and 3600 seconds, not {interval}")
    shards = os.environ.get("BACKSTOP_WATCH_SHARDS") or "1"
    if not (shards.isascii() and shards.isdigit() and 1 <= int(shards) <= 100):
        raise BadInput(f"BACKSTOP_WATCH_SHARDS must be a whole number from 1 to 100, not {brief(shards)}")
    return Settings(
        ledger_url=ledger_url(),
        home=where,
        mail_server=os.environ.get("BACKSTOP_MAIL_SERVER") or None,
        watch_interval_seconds=seconds,
        build_id=_build_id(os.environ.get("BACKSTOP_BUILD_ID", "")),
        watch_shards=int(shards),
        slurm=_slurms(os.environ.get("BACKSTOP_SLURM", "")),
        git=GitTerms(
            _duration("BACKSTOP_GIT_TIMEOUT", "20s", timedelta(seconds=1), timedelta(seconds=50)),
            _git_committer(os.environ.get("BACKSTOP_GIT_COMMITTER") or GitTerms().committer),
        ),
        prometheus=_prometheus(os.environ.get("BACKSTOP_PROMETHEUS", "")),
        kubernetes=_kubernetes(os.environ.get("BACKSTOP_KUBERNETES", "")),
        contacts=_contacts(os.environ.get("BACKSTOP_CONTACTS", "")),
        digest_at=_digest_at(os.environ.get("BACKSTOP_DIGEST_AT") or "08:00"),
        console_url=_console_url(),
        contact_networks=networks_of(os.environ.get("BACKSTOP_CONTACT_NETWORKS", "")),
        secrets=_secrets(os.environ.get("BACKSTOP_SECRETS", "")),
        seals=_seals(os.environ.get("BACKSTOP_SEALS", ""), where),
        seal_every=_duration("BACKSTOP_SEAL_EVERY", "1h", timedelta(seconds=10), timedelta(days=7)),
        keys=_keys(os.environ.get("BACKSTOP_KEYS", "")),
        tickets_required=bool(os.environ.get("BACKSTOP_KEYS")),
        runners=_runners(os.environ.get("BACKSTOP_RUNNERS", "")),
        slack_buttons=bool(configured_name()),
        runs_dir=_runs_dir(os.environ.get("BACKSTOP_RUNS_DIR", ""), where),
    )


def _contacts(path: str) -> dict[str, str]:
    """Read contacts by name, as `_slurms`. No error contains one."""
    return {} if not path else dict(read_document(path, ContactBook, "the field contacts").contacts)


def _prometheus(path: str) -> dict[str, PrometheusConnection]:
    """Read connections, as `_slurms`."""
    if not path:
        return {}
    return dict(read_document(path, PrometheusConnections, "the field connections").connections)


def _kubernetes(path: str) -> dict[str, KubernetesConnection]:
    """Read connections, as `_slurms`. A kubeconfig may come later, as a mounted one does."""
    if not path:
        return {}
    connections = dict(read_document(path, KubernetesConnections, "the field connections").connections)
    for name, connection in connections.items():
        if connection.kubeconfig is not None and not connection.kubeconfig.startswith("/"):
            raise BadInput(
                f"{path}: connections.{name}.kubeconfig must be an absolute path, not {brief(connection.kubeconfig)}"
            )
    return connections


def _slurms(path: str) -> dict[str, Connection]:
    """Read connections by name from a YAML or JSON file. Errors: BadInput naming the file, the field and the value."""
    if not path:
        return {}
    connections = dict(read_document(path, Connections, "the field connections").connections)
    for name, connection in connections.items():
        if connection.path is not None and connection.ssh is None and not Path(connection.path).is_dir():
            raise BadInput(
                f"{path}: connections.{name}.path is {connection.path!r}, which is not a folder on this machine"
            )
    return connections


def _runners(path: str) -> RunnerSettings | None:
    """Read the settings, as `_slurms`. No error contains the value of a variable that they name."""
    return None if not path else read_document(path, RunnerSettings, "fields such as programs, hosts and buildkite")


def _keys(path: str) -> Path | None:
    """Read the book, as `_slurms`. A book that is named must exist: else a typing error would open the door."""
    if not path and not key_book_file().exists():
        if front_key_file().exists():
            raise BadInput(
                f"{key_book_file()} is missing, but {front_key_file()} is there: restore the file of public keys "
                "from a backup"
            )
        return None
    read_book(key_book_file())
    return key_book_file()


def _runs_dir(path: str, home: Path) -> Path:
    if path and not path.startswith("/"):
        raise BadInput(f"BACKSTOP_RUNS_DIR must be an absolute path, not {brief(path)}")
    return Path(path) if path else home.absolute() / "runs"


def _secrets(path: str) -> Path | None:
    """Return the folder. It may come later, as a mounted one does; another kind of path is refused at once."""
    if path and not path.startswith("/"):
        raise BadInput(f"BACKSTOP_SECRETS must be the absolute path of a folder, not {brief(path)}")
    if path and Path(path).exists() and not Path(path).is_dir():
        raise BadInput(f"BACKSTOP_SECRETS is {brief(path)}, which is not a folder")
    return Path(path) if path else None


def _seals(text: str, home: Path) -> tuple[Path, ...]:
    """Parse absolute paths with commas between; none: nothing is sealed."""
    if text.strip().lower() == "none":
        return ()
    places = [part.strip() for part in text.split(",") if part.strip()]
    for place in places:
        if not place.startswith("/"):
            raise BadInput(f"BACKSTOP_SEALS must be absolute paths with commas between, or none, not {brief(place)}")
    return tuple(map(Path, places)) or (home.absolute() / "seals" / "seals.txt",)


def _duration(variable: str, default: str, least: timedelta, most: timedelta) -> timedelta:
    text = os.environ.get(variable) or default
    try:
        span = parse_duration(text)
    except ValueError:
        span = timedelta(0)
    if not least <= span <= most:
        limits = f"from {duration_text(least)} to {duration_text(most)}"
        raise BadInput(f"{variable} must be a duration {limits} such as {default}, not {brief(text)}")
    return span


def _digest_at(text: str) -> clock_time:
    if not re.fullmatch(r"([01][0-9]|2[0-3]):[0-5][0-9]", text, re.ASCII):
        raise BadInput(f"BACKSTOP_DIGEST_AT must be a time of day in UTC such as 08:00, not {brief(text)}")
    return clock_time.fromisoformat(text)


def _console_url() -> str:
    """Return the address that notices link to: the console's, or the front's that commands go through."""
    name = "BACKSTOP_PUBLIC_URL" if os.environ.get("BACKSTOP_PUBLIC_URL") else "BACKSTOP_URL"
    text = os.environ.get(name, "")
    if text and not re.fullmatch(r"https?://[!-~]{1,500}", text):
        raise BadInput(f"{name} must begin with https:// or http:// and hold no space, not {brief(text)}")
    return text


def _git_committer(text: str) -> str:
    if not re.fullmatch(r"[^<>\x00-\x1f\x7f]{1,100} <[^<>\s@]+@[^<>\s@]+>", text):
        example = GitTerms().committer
        raise BadInput(f"BACKSTOP_GIT_COMMITTER must be a name and an address such as {example}, not {brief(text)}")
    return text


def _build_id(text: str) -> str:
    if text and not re.fullmatch(r"[\w.+-]{1,100}", text, re.ASCII):
        raise BadInput(f"BACKSTOP_BUILD_ID must be up to 100 letters, digits, '.', '_', '+' or '-', not {brief(text)}")
    return text
