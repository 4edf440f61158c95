"""A command imports only what it needs: the list of commands is a table, which equals what the modules say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.app import Commands
from tests.docs.commands_list import with_every_command

ROOT = Path(__file__).parents[2]
HEAVY = ("temporalio", "matplotlib", "scipy", "opentelemetry", "sqlalchemy", "jinja2", "httpx", "grpc")
SLOW = (*HEAVY, "numpy")
"""Each takes a tenth of a second or more to import."""
OF_A_PLAN = (*SLOW, "asyncio", "ssl", "joserfc", "cryptography", "cli.json_answers", "cli.session", "models.questions")
"""What the plan or haircut of a file has no use for: a conversation, and the models of all other answers."""

OF_A_QUESTION = ("opentelemetry", "joserfc", "numpy", "scipy")
"""What a question to Temporal has no use for: signatures, and the arithmetic of health."""
OF_A_STATUS = (
    *(*OF_A_QUESTION, "cryptography"),
    *("models.questions", "models.access.access_file", "models.bringup", "models.cluster", "models.fleet"),
    *("models.requests", "models.rollout.messages", "models.rollout.state", "client.composed", "client.doctor"),
)
"""What `status` straight at Temporal has no use for: the models of all other answers, and of what people send."""


def test_the_table_lists_what_the_modules_add() -> None:
    text = (ROOT / "cli" / "commands.json").read_text()
    assert with_every_command(text) == text, "run: make docs"


def test_a_command_that_is_not_listed_yet_comes_last_and_one_that_is_gone_leaves() -> None:
    names = list(json.loads(with_every_command('{"status": [], "gone": [], "doctor": []}')))
    assert names[:2] == ["status", "doctor"]
    assert sorted(names) == sorted(Commands.table)


@pytest.mark.parametrize(
    ("words", "settings", "said", "spared"),
    [
        (["--version"], {}, "backstop 0.", (*SLOW, "typer", "rich", "pydantic")),
        (["--help"], {}, "Show where rollouts are", (*SLOW, "pydantic")),
        ([], {"_BACKSTOP_COMPLETE": "complete_bash", "COMP_WORDS": "backstop sta", "COMP_CWORD": "1"}, "status", SLOW),
        (["status", "--help"], {}, "--needs", SLOW),
        (["stauts"], {}, "Did you mean 'status'", SLOW),
        (["plan", "--file", "examples/fleet.yaml"], {}, "h100-worked", OF_A_PLAN),
        (["plan", "--file", "examples/fleet.yaml", "--json"], {}, "h100-worked", OF_A_PLAN),
        (["plan", "--file", "examples/fleet.yaml", "--cluster", "h100-pods", "--json"], {}, "rl-training", OF_A_PLAN),
        (["haircut", "--file", "examples/fleet.yaml"], {}, "phantom", OF_A_PLAN),
        (["haircut", "--file", "examples/fleet.yaml", "--by", "team", "--json"], {}, "rl-training", OF_A_PLAN),
        (["status"], {"TEMPORAL_ADDRESS": "127.0.0.1:1", "BACKSTOP_HOME": "/nowhere"}, "does not answer", OF_A_STATUS),
        (
            ["audit", "x"],
            {"TEMPORAL_ADDRESS": "127.0.0.1:1"},
            "Temporal does not answer",
            ("opentelemetry", "joserfc", "numpy"),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_command_imports_nothing_that_it_does_not_need(
    words: list[str], settings: dict[str, str], said: str, spared: tuple[str, ...]
) -> None:
    """The modules are told by an exit hook: completion ends the process by itself."""
    script = (
        "import atexit, sys; atexit.register(lambda: print('|', *sys.modules));"
        "from cli.main import run; sys.exit(run(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        cwd=ROOT,
        env={**os.environ, **settings, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    output, _, modules = done.stdout.rpartition("| ")
    assert said in output + done.stderr
    assert set(modules.split()) >= {"cli"}
    assert set(modules.split()) & set(spared) == set()


def _run(script: str) -> str:
    """Run a program of its own, and return what it prints."""
    return subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_an_empty_answer_to_status_imports_and_builds_nothing() -> None:
    script = (
        "import sys; from cli.lazy_models import import_lightly; import_lightly();"
        "from models.status_questions import FleetKept, OpenRollouts, Overview, RequestsOf;"
        "print(FleetKept.read(None), OpenRollouts.read([]), RequestsOf.read([]), Overview.__pydantic_complete__);"
        "print(*sys.modules)"
    )
    answers, modules = _run(script).splitlines()
    assert answers == "None () () False"
    assert set(modules.split()) & {"models.fleet", "models.requests", "models.rollout.status_models"} == set()


def test_a_command_builds_no_validator_before_it_is_used() -> None:
    script = (
        "from cli.lazy_models import import_lightly; import_lightly();"
        "from models.access.access_file import AccessFile;"
        "from models.cluster.fleet_file import Fleet;"
        "print(*(kind.__pydantic_complete__ for kind in (AccessFile, Fleet)))"
    )
    assert _run(script).split() == ["False", "False"]
