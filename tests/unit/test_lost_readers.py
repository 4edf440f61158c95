"""The people reported as losing their right to read are those whom the table of rights then refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from models.access.access_file import AccessFile
from models.access.decision import Denied, Target, decide
from models.access.lost_readers import no_longer_read
from models.access.principals import Principal
from tests.unit.access_world import ADMINS, access, at_provider, grant

ALL = (grant("user:tpm", "viewer"), grant("user:sre-lead", "viewer"))


def may(file: AccessFile | None, who: Principal, command: str, cluster: str = "") -> bool:
    return file is None or not isinstance(decide(file, who, command, Target(cluster=cluster)), Denied)


def reads_something(file: AccessFile | None, who: Principal) -> bool:
    return any(may(file, who, "read.status", cluster) for cluster in ("h100-a", "a100-b"))


@pytest.mark.parametrize("before", [None, access(*ALL), access()], ids=["none", "all read", "none reads"])
@pytest.mark.parametrize(
    "grants",
    [
        (),
        ALL,
        ALL[:1],
        ALL[1:],
        (*ALL[1:], grant("user:tpm", "viewer", clusters=["h100-*"])),
        (*ALL[1:], grant("user:tpm", "operator", clusters=["a100-b"])),
        (*ALL[1:], grant("group:eng", "viewer")),
        (*ALL[1:], grant("user:tpm", "viewer", teams=["research"])),
        (grant("user:tpm", "approver"), grant("user:sre-lead", "member")),
    ],
)
@pytest.mark.parametrize("groups", [(), ("eng",)])
def test_those_are_named_who_could_read_and_then_may_not(
    before: AccessFile | None, grants: tuple[dict[str, Any], ...], groups: tuple[str, ...]
) -> None:
    after = access(*grants)
    importer = at_provider(after, "tpm", *groups)
    people = [importer, at_provider(after, "sre-lead")]
    blind = sorted(p.name for p in people if reads_something(before, p) and not reads_something(after, p))
    fewer = sorted(
        p.name
        for p in people
        if may(before, p, "read.overview") and reads_something(after, p) and not may(after, p, "read.overview")
    )
    said = no_longer_read(before, after, importer)
    assert [text for text in said if "all clusters at once" not in text] == (
        [text for text in said if all(name in text for name in blind)][:1] if blind else []
    )
    named = {name for text in said for name in ADMINS["to"] if name in text}
    assert named == {*blind, *fewer}
    assert len(said) == bool(blind) + bool(fewer)
    none_reads = not any(reads_something(after, p) for p in people)
    assert any("no admin can read" in text for text in said) == (bool(blind) and none_reads)


def test_the_words() -> None:
    before, after = access(*ALL), access(*ALL[1:], grant("group:eng", "viewer"))
    what = "clusters and their rollouts (status, plan, report)"
    (own,) = no_longer_read(before, after, at_provider(before, "tpm"))
    why = "reading needs the role viewer, which admin does not include"
    assert own == f"after this import user:tpm can no longer read {what}: {why}"
    (other,) = no_longer_read(before, after, at_provider(before, "sre-lead"))
    assert other.endswith(f", except as a member of group:eng: {why}")
    (none,) = no_longer_read(None, access(), at_provider(before, "tpm"))
    assert none.startswith(f"after this import no admin can read {what} any more (user:sre-lead, user:tpm): ")
    assert no_longer_read(access(), access(grant("user:sre", "viewer")), at_provider(before, "tpm")) == ()


def test_before_a_recovery_it_is_said_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cli.consent.can_ask", lambda **_: True)
    monkeypatch.setattr("typer.confirm", lambda _: False)
    path = tmp_path / "access.yaml"
    for roles, warned in (("[admin]", True), ("[admin, viewer]", False)):
        path.write_text(f"grants:\n  - to: [user:tpm]\n    roles: {roles}\n")
        assert run(["access", "recover", str(path), "--reason", "both have left"]) == 1
        assert ("! after this import no admin can read" in capsys.readouterr().out) is warned
