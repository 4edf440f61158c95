"""The worker's file of what recipes may use: each fault is a sentence with its place, and none shows a token."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from activities.adapters.runners.settings import Allowed, RunnerSettings
from models.errors import BadInput
from workers.settings import load_settings

GOOD = """
programs:
  - program: /opt/site/apply
  - program: /opt/site/terraform
    first: [plan, -no-color]
pass_environment: [KUBECONFIG]
launcher: [systemd-run, --scope, --quiet, --collect]
grace: 1m
hosts:
  - origin: https://*.example
  - {origin: "https://provision.example:8443", token: PROVISION_TOKEN}
networks: [10.1.0.0/16, "fd00::/8"]
buildkite:
  organization: acme
  pipelines: [cluster-bootstrapper, cluster-teardown]
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "runners.yaml"
    path.write_text(GOOD)
    monkeypatch.setenv("BACKSTOP_RUNNERS", str(path))
    monkeypatch.setenv("BACKSTOP_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("BACKSTOP_RUNS_DIR", raising=False)
    return path


def test_the_file_is_read_with_the_worker_s_settings(file: Path, tmp_path: Path) -> None:
    settings = load_settings()
    assert settings.runs_dir == tmp_path / "home" / "runs"
    runners = settings.runners
    assert runners is not None
    assert runners.grace == timedelta(minutes=1)
    assert runners.programs[1].first == ("plan", "-no-color")
    assert runners.buildkite is not None
    assert (runners.buildkite.token, runners.buildkite.url) == ("BUILDKITE_TOKEN", "https://api.buildkite.com/v2")
    assert runners.reach.admits("10.1.2.3")
    assert not runners.reach.admits("10.2.2.3")


def test_without_a_file_nothing_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BACKSTOP_RUNNERS", raising=False)
    monkeypatch.setenv("BACKSTOP_RUNS_DIR", str(tmp_path / "shared"))
    settings = load_settings()
    assert (settings.runners, settings.runs_dir) == (None, tmp_path / "shared")
    nothing = Allowed(RunnerSettings(), {})
    with pytest.raises(
        BadInput, match="may not run /bin/sh: add it to the programs in the worker's file that BACKSTOP_RUNNERS names"
    ):
        nothing.check_program(["/bin/sh"])
    with pytest.raises(BadInput, match="has no Buildkite"):
        nothing.pipeline("cluster-bootstrapper")


@pytest.mark.parametrize(
    ("good", "bad", "says"),
    [
        ("/opt/site/apply", "apply", "line 3: programs[0].program must be an absolute path, not 'apply'"),
        ("/opt/site/apply", "../apply", "line 3: programs[0].program must be an absolute path"),
        ("first: [plan, -no-color]", "frist: [plan]", "line 5: programs[1].frist is not a known field"),
        ("first: [plan, -no-color]", "first: [2]", "line 5: programs[1].first[0] must be text, not 2"),
        ("[KUBECONFIG]", "['A=B']", "line 6: pass_environment[0]"),
        ("grace: 1m", "grace: 1y", "line 8: grace must be a duration such as"),
        ("grace: 1m", "grace: 2h", "line 8: grace"),
        ("https://*.example", "provision.example", "line 10: hosts[0].origin must be a scheme and a host such as"),
        ("https://*.example", "https://a.example/path", "line 10: hosts[0].origin must be a scheme and a host"),
        ("https://*.example", "https://user:pw@a.example", "line 10: hosts[0].origin must be a scheme and a host"),
        ("https://*.example", "https://*", "line 10: hosts[0].origin must be a scheme and a host"),
        ("https://*.example", "ftp://a.example", "line 10: hosts[0].origin must be a scheme and a host"),
        ("10.1.0.0/16", "10.1.0.1/16", "line 12: networks[0] must be a network such as 10.1.0.0/16"),
        ("organization: acme", "organization: a/../b", "line 14: buildkite.organization"),
        ("cluster-teardown]", "'../x']", "line 15: buildkite.pipelines[1]"),
        ("organization: acme", "organisation: acme", "buildkite.organization is missing"),
        (
            "organization: acme",
            "organization: acme\n  token: bkua_0123",
            "line 15: buildkite.token must be the name, in capital letters, of the variable",
        ),
    ],
)
def test_a_bad_file_is_one_sentence_with_its_place(file: Path, good: str, bad: str, says: str) -> None:
    assert good in GOOD
    file.write_text(GOOD.replace(good, bad))
    with pytest.raises(BadInput) as error:
        load_settings()
    assert error.value.message.startswith(str(file))
    assert says in error.value.message
    assert "\n" not in error.value.message
    assert "bkua" not in error.value.message


def test_where_the_runs_are_kept_is_an_absolute_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKSTOP_RUNS_DIR", "runs")
    with pytest.raises(BadInput, match="BACKSTOP_RUNS_DIR must be an absolute path, not 'runs'"):
        load_settings()


def test_what_a_worker_is_allowed_shows_none_of_its_environment() -> None:
    assert "s3cret" not in repr(Allowed(RunnerSettings(), {"TOKEN": "s3cret"}))
