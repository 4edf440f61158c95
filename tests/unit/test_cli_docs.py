"""The docs of the command line are true: help, docs/commands.md, docs/fleet-file.md, docs/schemas."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from jsonschema import Draft202012Validator, FormatChecker
from rich.text import Text

from cli.app import app
from cli.commands.schemas import default_of, file_text, fleet_models, makers
from cli.main import run
from client.inputs.access_files import read_access
from client.inputs.documents import read_fleet
from models.bringup.stages import BringupCommand
from models.cluster.snapshot import snapshot_of
from models.errors import BadInput
from models.fleet.commands import FLEET_COMMANDS
from models.planning.plan import make_plan
from models.rollout.stages import Command
from tests.docs.commands_page import ANSWERED_BY, with_commands
from tests.docs.field_tables import ACCESS_DESCRIBED, BRINGUP_DESCRIBED, OTHERWISE, with_tables
from tests.docs.rights_table import with_rights
from tests.unit.cli_fakes import FakeBackstop, answering, status

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
COMMANDS_MD = (DOCS / "commands.md").read_text()
SCHEMAS = makers()
PLAIN = ("access-file", "recipe-file", "bringup-file", "flex-demand", "flex-shares", "flex-story", "flex-scenes")
"""Documents that do not name their version: their form was asked for."""
MILESTONES = ("milestones set", "milestones note", "milestones show")
CALENDAR = ("hold", "calendar show", "calendar import", "calendar end")
FLEET_FILE = ("diff", "export", "import", "remove", "rename", "show", "template")
FLEET = {f"fleet {name}" for name in (*FLEET_FILE, "plan", "status", "watch", *FLEET_COMMANDS)}
WANTED = set(Command) | {
    "up",
    "worker",
    "migrate",
    "demo",
    "doctor",
    "plan",
    "haircut",
    "buffer",
    "backtest",
    "simulate-health",
    "confirm",
    "detach",
    "mcp",
    "why",
    "flex show",
    "flex divide",
    "flex simulate",
    "burndown",
    "report",
    "launch",
    "status",
    "watch",
    "audit",
    "docs",
    "backup",
    *("serve", "login", "logout", "whoami"),
}
BRINGUPS = {
    "bringup recipe check",
    *(f"bringup {command}" for command in BringupCommand),
    *(f"bringup {name}" for name in ("add", "status", "watch", "audit", "template", "give-up")),
}
ACCESS = {
    *(f"access {name}" for name in ("import", "show", "who-can", "can", "recover", "seen")),
    *(f"access token {name}" for name in ("new", "list", "revoke")),
    *(f"countersign {name}" for name in ("list", "give", "withdraw")),
    "open",
}
REQUESTS = {f"request {verb}" for verb in ("new", "list", "show", "approve", "decline", "withdraw", "extend")}


def _commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(_commands(typer.main.get_command(app)))


@functools.cache
def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(SCHEMAS[name](), format_checker=FormatChecker())


# --- every command --------------------------------------------------------------------------------------


def test_the_commands_are_those_that_were_asked_for() -> None:
    builds = {"builds show", "builds use", "keys new", "keys rotate", "keys revoke", "keys show"}
    builds |= {f"keys payload {what}" for what in ("new", "rotate", "show")}
    asked_for = {*WANTED, *FLEET, *builds, "schema", *CALENDAR, *MILESTONES, *REQUESTS, *BRINGUPS, *ACCESS}
    assert set(COMMANDS) == asked_for


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_an_example_and_a_place_in_the_docs(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    texts = [command.help, *(p.help for p in command.params if getattr(p, "help", None))]
    assert [Text.from_markup(text).plain for text in texts] == texts, "rich takes [words] for markup, and hides them"
    assert f"backstop {name}" in command.epilog
    section = re.search(rf"^### {name}\n\n(.*?)(?=^##|^<!-- end)", COMMANDS_MD, re.DOTALL | re.MULTILINE)
    assert section is not None
    text = section[1]
    assert re.search(rf"(^    .*|`)backstop {name}\b", text, re.MULTILINE), f"{name} has neither usage nor example"
    assert command.help.split("\n\n")[0] in text, "the page has the first paragraph; --help has the rest"
    for option in (p.opts[0] for p in command.params if p.param_type_name == "option" and p.opts != ["--actor"]):
        assert re.search(rf"(?<![\w-]){option}(?![\w-])", text), f"{name} does not explain {option}"
    assert f"](#{name.replace(' ', '-')})" in COMMANDS_MD


def test_the_page_of_commands_is_current() -> None:
    assert with_commands(COMMANDS_MD) == COMMANDS_MD, "run: make docs"


def test_the_page_of_commands_is_the_same_on_every_machine(tmp_path: Path) -> None:
    """A narrow terminal, one with colours, other settings of Backstop and another home change nothing."""
    odd = {"COLUMNS": "40", "TERM": "xterm-256color", "FORCE_COLOR": "1", "LC_ALL": "C", "HOME": str(tmp_path)}
    ours = {"BACKSTOP_ACTOR": "kim", "BACKSTOP_HOME": str(tmp_path), "BACKSTOP_URL": "http://127.0.0.1:1"}
    script = (
        "import sys; from tests.docs import commands_page as p; sys.stdout.buffer.write(p.generate_page().encode())"
    )
    page = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7", **odd, **ours},
        capture_output=True,
        check=True,
    ).stdout.decode()
    assert page in COMMANDS_MD


def test_every_command_that_answers_in_json_has_its_schema() -> None:
    answering_in_json = {name for name, command in COMMANDS.items() if any("--json" in p.opts for p in command.params)}
    assert {name for names in ANSWERED_BY.values() for name in names.split(", ")} == answering_in_json


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_is_for(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert [p.name for p in COMMANDS[name].params if not p.help] == []
    assert run([*name.split(), "--help"]) == 0
    assert "Usage: backstop " in capsys.readouterr().out


@pytest.mark.parametrize(
    "name",
    [
        "plan",
        "haircut",
        "buffer",
        "backtest",
        "status",
        "watch",
        "audit",
        "doctor",
        "fleet show",
        "fleet status",
        "builds show",
        "keys payload show",
        "keys show",
        "burndown",
    ],
)
def test_every_read_command_answers_in_json(name: str) -> None:
    assert "--json" in {option for p in COMMANDS[name].params for option in p.opts}


def test_examples_parse_as_commands() -> None:
    """Each example names a command and options that exist."""
    for name, command in COMMANDS.items():
        for example in re.findall(r"^.*\bbackstop (.*)$", command.epilog, re.MULTILINE):
            words = shlex.split(example.split(" > ")[0])[len(name.split()) :]
            options = {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
            assert {word for word in words if word.startswith("--")} <= options, example


def test_the_terminal_transcripts_in_the_docs_are_real(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    shown = re.findall(
        r"```console\n\$ (backstop (?:plan --file|haircut)[^\n]*)\n(.*?)```",
        (DOCS / "reading.md").read_text(),
        re.DOTALL,
    )
    assert len(shown) == 5
    flex_md = (DOCS / "flex.md").read_text()
    classes = re.findall(r"```console\n\$ (backstop flex simulate [^\n]*classes.yaml)\n([^`]*)```", flex_md)
    assert len(classes) == 1
    for command, output in shown + classes:
        assert run(shlex.split(command)[1:]) == 0
        assert capsys.readouterr().out == output


def test_the_plan_that_readme_shows_first_is_real(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    readme = (ROOT / "README.md").read_text()
    shown = re.search(r"```\n\$ (backstop plan [^\n]*)\n(.*?)^\.\.\.\n(.*?)```", readme, re.DOTALL | re.MULTILINE)
    assert shown is not None
    assert readme[: shown.start()].count("\n") < 12, "the first screen shows it"
    assert run(shlex.split(shown[1])[1:]) == 0
    output = capsys.readouterr().out
    assert output.startswith(shown[2])
    assert output.endswith(shown[3])


def test_the_plan_that_readme_approves_is_the_demo_s() -> None:
    """The demo's ledger has counted two changes by then: the cluster and its quota."""
    fleet = read_fleet(ROOT / "examples" / "fleet.yaml")
    (worked,) = (cluster for cluster in fleet.clusters if cluster.name == "h100-worked")
    snapshot = snapshot_of(worked).model_copy(update={"generation": 2})
    (approved,) = re.findall(r"approve h100-worked --plan (\w+) ", (ROOT / "README.md").read_text())
    assert approved == make_plan(snapshot, fleet.policy).hash


# --- the fleet file ----------------------------------------------------------------------------------------


def test_every_field_of_the_fleet_file_is_described() -> None:
    for model in (*fleet_models(), *BRINGUP_DESCRIBED, *ACCESS_DESCRIBED):
        descriptions = model.field_docs()
        for name, field in model.model_fields.items():
            described = descriptions.get(name, "")
            assert described, f"{model.__name__}.{name} has no docstring"
            plain = field.is_required() or default_of(field) is not None
            assert plain != (OTHERWISE in described), f"{model.__name__}.{name}: what holds when it is left out?"


def test_the_tables_in_the_docs_are_current() -> None:
    text = (DOCS / "fleet-file.md").read_text()
    assert with_tables(text) == text, "run: make docs"
    assert all(f"<!-- fields {model.__name__} -->" in text for model in fleet_models())
    bringup = (DOCS / "bringup.md").read_text()
    assert with_tables(bringup) == bringup, "run: make docs"
    assert all(f"<!-- fields {model.__name__} -->" in bringup for model in BRINGUP_DESCRIBED)
    access = (DOCS / "access.md").read_text()
    assert with_tables(access) == access, "run: make docs"
    assert with_rights(access) == access, "run: make docs"
    assert all(f"<!-- fields {model.__name__} -->" in access for model in ACCESS_DESCRIBED)


def test_an_installed_backstop_prints_the_examples_that_help_and_pages_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["docs", "examples/fleet.yaml"]) == 0
    assert capsys.readouterr().out == (ROOT / "examples" / "fleet.yaml").read_text()
    assert run(["docs", "examples/../pyproject.toml"]) == 2


def test_the_access_file_in_the_docs_is_the_example(tmp_path: Path) -> None:
    (snippet,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "access.md").read_text(), re.DOTALL)
    path = tmp_path / "access.yaml"
    path.write_text(snippet)
    assert read_access(path) == read_access(ROOT / "examples" / "access.yaml")


def test_the_examples_in_the_docs_are_fleet_files(tmp_path: Path) -> None:
    text = (DOCS / "fleet-file.md").read_text()
    (snippet,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    path = tmp_path / "fleet.yaml"
    path.write_text(snippet)
    assert read_fleet(path).clusters[0].name == "h100-worked"
    path.write_text(snippet.replace("gpus: 345", "gpus: many"))
    with pytest.raises(BadInput) as refused:
        read_fleet(path)
    (shown,) = re.findall(r"backstop: fleet.yaml, (.*)", text)
    assert refused.value.message == f"{path}, {shown}"


# --- schemas ---------------------------------------------------------------------------------------------------


def test_the_schemas_in_the_docs_are_current() -> None:
    kept = {path.stem: path.read_text() for path in (DOCS / "schemas").glob("*.json")}
    made = {name: file_text(make()) for name, make in SCHEMAS.items()}
    assert kept == made, "run: make docs"


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_is_one_and_is_named_in_the_docs(name: str) -> None:
    made = SCHEMAS[name]()
    Draft202012Validator.check_schema(made)
    if name != "fleet":
        assert made["title"] == f"backstop.{name}/1"
        if made["type"] == "object" and name not in PLAIN:
            assert made["properties"]["schema"]["const"] == made["title"]
        assert f"`backstop.{name}/1`" in COMMANDS_MD or name in COMMANDS["schema"].help


def test_the_example_fleet_fits_its_schema() -> None:
    fleet = json.loads(json.dumps(yaml.safe_load((ROOT / "examples" / "fleet.yaml").read_text()), default=_iso))
    validator("fleet").validate(fleet)


def _iso(value: Any) -> str:
    return str(value.isoformat()).replace("+00:00", "Z")


ISLANDS = [{"name": "x", "total_gpus": 4, "healthy_gpus": 4}]


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({"policy": {"buffer": 0.1, "notice": "10m"}}, True),
        ({"policy": {"buffer": {"ramp": [0.1, 0.2]}, "notice": 60}}, True),
        ({"policy": {"buffer": 1.0}}, False),
        ({"policy": {"buffer": {"ramp": []}}}, False),
        ({"policy": {"buffer": {"ramp": [1.5]}}}, False),
        ({"policy": {"notice": "3 days"}}, False),
        ({"policy": {"notice": "P3D"}}, False),
        ({"policy": {"max_tier": "deep"}}, False),
        ({"policy": {"sok": 1}}, False),
        ({"quotas": [{"team": "a", "gpus": 0}]}, True),
        ({"quotas": [{"team": "a", "gpus": -1}]}, False),
        ({"quotas": [{"team": "a", "gpus": "1"}]}, False),
        ({"quotas": [{"team": "a", "gpus": 10**8}]}, False),
        ({"quotas": [{"team": "a", "gpus": 1, "gpu": 1}]}, False),
        ({"quotas": [{"team": "a", "gpus": 1, "protected_blocks": [0]}]}, False),
        ({"islands": []}, False),
        ({"name": ""}, False),
    ],
)
def test_the_fleet_schema_says_what_the_reader_says(change: dict[str, Any], fits: bool, tmp_path: Path) -> None:
    fleet = {"clusters": [{"name": "c", "islands": ISLANDS, **change}]}
    assert validator("fleet").is_valid(fleet) is fits
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps(fleet))
    if fits:
        assert read_fleet(path).clusters
    else:
        with pytest.raises(BadInput):
            read_fleet(path)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ("plan h100-worked", "plan"),
        ("plan --file examples/fleet.yaml --cluster h100-pods --max-tier idle", "plan"),
        ("plan --file examples/fleet.yaml", "plans"),
        ("status h100-worked", "status"),
        ("status", "rollouts"),
        ("watch h100-worked --once", "status"),
        ("audit h100-worked", "audit"),
        ("audit h100-worked --archive", "archive"),
        ("audit h100-worked --verify", "chain"),
        ("burndown --since 7d", "burndown"),
        ("milestones show", "milestones"),
        ("milestones set examples/milestones.yaml", "milestones"),
        ("milestones note trained 3 --reason x", "milestones"),
        ("report --weekly", "report"),
        ("report --weekly --at 2026-01-01", "report"),
        ("doctor", "doctor"),
        ("fleet show", "clusters"),
        ("builds show", "builds"),
        ("fleet import examples/fleet.yaml", "import"),
        ("launch h100-worked", "launch"),
        ("promote h100-worked --reason x", "command"),
    ],
)
def test_real_answers_fit_their_schema(
    arguments: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    with answering(FakeBackstop(statuses=[status()])):
        assert run([*arguments.split(), "--json"]) == 0
    out = capsys.readouterr().out
    words = arguments.split()
    assert any(" ".join(words[:n]) in ANSWERED_BY[name].split(", ") for n in (1, 2))
    documents = [json.loads(text) for text in out.splitlines()] if name in ("audit", "archive") else [json.loads(out)]
    assert documents
    for document in documents:
        assert document["schema"] == f"backstop.{name}/1"
        validator(name).validate(document)


def test_schema_prints_one_or_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "plan"]) == 0
    assert capsys.readouterr().out == file_text(SCHEMAS["plan"]())
    assert run(["schema", "nope"]) == 2
    assert "NAME must be one of fleet, " in capsys.readouterr().err


# --- what programs print -----------------------------------------------------------------------------------

PRINTED = re.compile(r"backstop ((?:[a-z]+(?:-[a-z]+)*)(?: [^\"`;()\n]*)?)")
PROSE = {"import", "backstop"}


def printed() -> set[str]:
    """Commands in the sentences of the product's sources and templates, with what was filled in left out."""
    texts = [
        path.read_text()
        for room in ("models", "client", "views", "cli", "activities", "workers")
        for path in sorted((ROOT / room).rglob("*"))
        if path.suffix in (".py", ".txt", ".html") and "epilog" not in path.name
    ]
    return {found.strip() for text in texts for found in PRINTED.findall(text)}


def test_every_command_that_is_printed_exists_with_its_options() -> None:
    """This covers notices, status, `doctor` and refusals. tests/property/witness.py covers the state machine's own."""
    seen = 0
    for line in printed():
        words = line.split()
        names = [" ".join(words[:n]) for n in (3, 2, 1) if " ".join(words[:n]) in COMMANDS]
        groups = {name.split()[0] for name in COMMANDS}
        assert names or words[0] in groups | PROSE, f"there is no command `backstop {line}`"
        if not names:
            continue
        seen += 1
        options = {option for p in COMMANDS[names[0]].params for option in (*p.opts, *p.secondary_opts)}
        told = {re.sub(r"[^a-z-].*", "", word) for word in words if re.match(r"--[a-z]", word)}
        assert told <= options | {"--json"}, line
    assert seen > 40
