"""The programs, pipelines and hosts that a worker lets recipes use. Nothing else is run or called.

A recipe's author must not gain the worker's rights. So programs are listed with their first arguments, hosts with
scheme and port, and tokens by the name of a variable in the worker's environment or of a file in its folder of secrets
(`secret:NAME`): a recipe, an order, a report or a log contains none.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated

import httpx
from pydantic import AfterValidator, Field

from activities.adapters.http import Network, Reach
from activities.adapters.runners.printed_text import one_line
from activities.secret_files import SecretFiles
from models.base import Duration, Model, Name, Text
from models.cluster.contact_secrets import SECRET
from models.errors import BadInput, Refusal
from models.texts import brief

_PORTS = {"https": 443, "http": 80}
_ORIGIN = re.compile(r"(https?)://((?:\*\.)?[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(\d{1,5}))?")
ALWAYS_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""Variables that every program gets. Others must be listed, because the worker's variables hold its passwords."""
_NAMED_BY = "the worker's file that BACKSTOP_RUNNERS names"


def _origin(text: str) -> str:
    if not _ORIGIN.fullmatch(text):
        raise ValueError(
            "must be a scheme and a host such as https://provision.example or https://*.example:8443, "
            f"not {brief(text)}"
        )
    return text


def _absolute(text: str) -> str:
    if not text.startswith("/") or "\0" in text:
        raise ValueError(f"must be an absolute path, not {brief(text)}")
    return text


def _network(text: str) -> str:
    try:
        ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(f"must be a network such as 10.1.0.0/16, not {brief(text)}: {error}") from None
    return text


def _names_token(text: str) -> str:
    named = re.fullmatch(r"[A-Z_][A-Z0-9_]{0,99}|secret:[A-Za-z0-9._-]{1,253}", text)
    if not named:  # the text may be the token, so the error does not contain it
        raise ValueError(
            "must be the name, in capital letters, of the variable with the token, or secret:NAME; not the token itself"
        )
    return text


Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")]
"""The name of a variable in the worker's environment."""
TokenVariable = Annotated[str, AfterValidator(_names_token)]
Slug = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class AllowedProgram(Model):
    program: Annotated[Name, AfterValidator(_absolute)]
    first: tuple[Text, ...] = ()
    """The arguments with which its command must begin, exactly as here."""


class AllowedHost(Model):
    origin: Annotated[str, AfterValidator(_origin)]
    """Scheme, host and port. A leading `*.` stands for one or more labels of the host name."""
    token: TokenVariable | None = None
    """The variable or secret with a bearer token, which is sent to this host only; None: no token."""

    def holds(self, url: httpx.URL) -> bool:
        match = _ORIGIN.fullmatch(self.origin)
        assert match is not None
        scheme, host, port = match.groups()
        named = url.host.endswith(host[1:]) and url.host != host[2:] if host[0] == "*" else url.host == host.strip("[]")
        return url.scheme == scheme and named and (url.port or _PORTS[scheme]) == int(port or _PORTS[scheme])


class BuildkiteAccess(Model):
    organization: Slug
    pipelines: tuple[Slug, ...]
    token: TokenVariable = "BUILDKITE_TOKEN"  # noqa: S105 - the variable's name
    url: Annotated[str, Field(pattern=r"^https?://[!-~]+[^/]$")] = "https://api.buildkite.com/v2"


class RunnerSettings(Model):
    """The file that BACKSTOP_RUNNERS names."""

    programs: tuple[AllowedProgram, ...] = ()
    pass_environment: tuple[Variable, ...] = ()
    """Further variables of the worker that programs get, in addition to `ALWAYS_PASSED`."""
    launcher: tuple[Text, ...] = ()
    """A command prefix that starts a supervisor, such as [systemd-run, --scope, --quiet, --collect]."""
    grace: Duration = Field(default=timedelta(seconds=30), le=timedelta(hours=1))
    """The time between SIGTERM and SIGKILL."""
    hosts: tuple[AllowedHost, ...] = ()
    networks: tuple[Annotated[str, AfterValidator(_network)], ...] = ()
    """Private networks to which hosts' names may lead nevertheless."""
    buildkite: BuildkiteAccess | None = None

    @property
    def reach(self) -> Reach:
        inside: tuple[Network, ...] = tuple(ipaddress.ip_network(text) for text in self.networks)
        return Reach(inside, listed_in=f"the field networks of {_NAMED_BY}")


@dataclass(frozen=True)
class Allowed:
    """The settings, and the environment whose variables they name."""

    settings: RunnerSettings = field(default_factory=RunnerSettings)
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    secrets: SecretFiles = field(default_factory=SecretFiles)

    def check_program(self, run: Sequence[str]) -> None:
        """Raise BadInput if the worker may not run this."""
        if not run:
            raise BadInput("a command has no program to run")
        if any("\0" in part or not _encodes(part) for part in run):
            raise BadInput(f"a command's arguments must be valid text without NUL characters: {brief(list(run))}")
        ways = [each for each in self.settings.programs if each.program == run[0]]
        if not ways:
            raise BadInput(f"this worker may not run {one_line(run[0])}: add it to the programs in {_NAMED_BY}")
        if not any(tuple(run[1 : 1 + len(way.first)]) == way.first for way in ways):
            allowed = " or ".join(" ".join(way.first) for way in ways)
            raise BadInput(
                f"this worker may run {one_line(run[0])} only with {one_line(allowed)} as first arguments, "
                f"but the command has {one_line(' '.join(run[1:])) or 'none'}"
            )

    def program_environment(self, **more: str) -> dict[str, str]:
        names = (*ALWAYS_PASSED, *self.settings.pass_environment)
        return {name: self.environment[name] for name in names if name in self.environment} | more

    def host_of(self, url: httpx.URL) -> AllowedHost:
        """Return the host's settings. Errors: BadInput, without the rest of the URL: it may be secret."""
        if url.userinfo:
            raise BadInput("a URL must not have a user or a password: set the host's token in the worker's settings")
        for each in self.settings.hosts:
            if each.holds(url):
                return each
        place = one_line(f"{url.scheme}://{url.netloc.decode(errors='replace')}")
        raise BadInput(f"this worker may not call {place}: add it to the hosts in {_NAMED_BY}")

    def pipeline(self, slug: str) -> BuildkiteAccess:
        """Return the access to the pipeline. Errors: BadInput."""
        access = self.settings.buildkite
        if access is None:
            raise BadInput(f"this worker has no Buildkite: set the field buildkite in {_NAMED_BY}")
        if slug not in access.pipelines:
            raise BadInput(
                f"this worker may not start pipeline {one_line(slug)}: add it to the pipelines in {_NAMED_BY}"
            )
        return access

    def token(self, variable: str) -> str:
        """Return the token. Errors: BadInput for a variable without one, or that no header can hold; Unavailable."""
        if variable.startswith(SECRET):
            return self._secret_token(variable)
        token = self.environment.get(variable, "").strip()
        if not _may_be_sent(token):
            raise BadInput(
                f"this worker's environment has no usable token in {variable}: set that variable, to which "
                f"{_NAMED_BY} refers"
            )
        return token

    def _secret_token(self, named: str) -> str:
        try:
            token = self.secrets.resolve(named).strip()
        except Refusal as error:
            raise BadInput(error.message) from None
        if not _may_be_sent(token):
            raise BadInput(f"{named} has a character that an HTTP header cannot hold")
        return token


def _may_be_sent(token: str) -> bool:
    return bool(token) and token.isascii() and token.isprintable()


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
