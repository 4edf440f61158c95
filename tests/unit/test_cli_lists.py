"""Lists in each form, sorted and filtered, beside a count by hand on the JSON document."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.main import run
from client.answer_models import AuditRecord
from models.audit_chain import AuditEntry, AuditKind
from models.cluster.fleet_file import ClusterSpec
from models.cluster.windows import Entry, Window, WindowKind
from models.reports.rollout_summary import RolloutSummary
from tests.unit.cli_fakes import NOON, WORKED, FakeBackstop, answering
from tests.unit.test_cli_fleet_rollout import fleet, status_at
from tests.unit.test_cli_request import asked
from tests.unit.test_flex_now import seen
from tests.unit.weeks import point

ROOT = Path(__file__).parents[2]
SPREAD = [("pods-1", "monitored", 0), ("lab", "stuck", 40), ("pods-2", "rolled_back", 7), ("aux", "rolling_back", None)]


def summary(cluster: str, stage: str, unbacked: int | None, n: int) -> RolloutSummary:
    return RolloutSummary(
        cluster=cluster,
        stage=stage,
        wave="busy",
        owner="tpm",
        unbacked_gpus=unbacked,
        started=NOON - timedelta(days=n),
        closed=None,
        open=n % 2 == 0,
        needs="",
        health_at=NOON,
    )


def window(number: int, kind: WindowKind) -> Entry:
    declared = Window(kind=kind, starts=NOON, ends=NOON + timedelta(days=number), reason="x")
    return Entry(id=number, cluster=WORKED.name, window=declared, source="", declared_by="")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBackstop]:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("BACKSTOP_ACTOR", "tpm")
    made = FakeBackstop(
        summaries=[summary(*given, n) for n, given in enumerate(SPREAD)],
        fleet=status_at(fleet()),
        entries=[window(2, WindowKind.SEV), window(3, WindowKind.MAINTENANCE)],
        flexes=[
            seen({"a": 10}, {}, (40, 30, 30)),
            seen({"a": 10}, {}, (90, 80, 80)).model_copy(update={"cluster": "b"}),
        ],
        points=[point(NOON - timedelta(days=n), 3, 10 * n) for n in (3, 2, 1)],
        requests_open=[asked(), asked(fits=False)],
    )
    with answering(made) as door:
        yield door


LISTS: list[tuple[str, Callable[[Any], list[Any]], str, str | None]] = [
    # command, rows of its document, a field to sort by, the field of the names
    ("status", lambda d: d["rollouts"], "stage", "cluster"),
    ("fleet show", lambda d: d["clusters"], "healthy_gpus", "name"),
    ("fleet status", lambda d: d["members"], "cut_gpus", "cluster"),
    ("calendar show", lambda d: d["windows"], "window.ends", "cluster"),
    ("milestones show", lambda d: d["milestones"], "milestone.target", "milestone.name"),
    ("builds show", lambda d: d["builds"], "rollouts", "build"),
    ("doctor", lambda d: d["checks"], "name", "name"),
    ("flex", lambda d: d["clusters"], "healthy_gpus", "cluster"),
    ("flex divide --file examples/flex.yaml", lambda d: d["shares"], "gpus", "team"),
    ("burndown --since 2026-01-01", lambda d: d["points"], "phantom_gpus", None),
    ("plan --file examples/fleet.yaml", lambda d: d["plans"], "cut_gpus", "cluster"),
]
COMMANDS = [pytest.param(*each, id=each[0].split(" --")[0]) for each in LISTS]


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run([*words]) == 0
    return capsys.readouterr().out


def at(row: Any, field: str) -> Any:
    for name in field.split("."):
        row = row[name]
    return row


@pytest.mark.parametrize(("command", "rows", "field", "name"), COMMANDS)
def test_every_list_has_every_form(
    fake: FakeBackstop,
    command: str,
    rows: Callable[[Any], list[Any]],
    field: str,
    name: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = command.split()
    document = json.loads(told(capsys, *words, "-o", "json"))
    found = rows(document)
    assert found
    assert rows(json.loads(told(capsys, *words, "--json"))) == found
    assert rows(yaml.safe_load(told(capsys, *words, "-o", "yaml"))) == found
    assert told(capsys, *words) == told(capsys, *words, "-o", "table") == told(capsys, *words, "-o", "wide")
    if name is None:
        assert run([*words, "-o", "name"]) == 2
        capsys.readouterr()
    else:
        names = [f"{at(row, name)} {row['id']}" if command == "calendar show" else at(row, name) for row in found]
        assert told(capsys, *words, "-o", "name").splitlines() == [*dict.fromkeys(names)]
    for sign, down in (("", False), ("-", True)):
        ordered = rows(json.loads(told(capsys, *words, "-o", "json", "--sort", sign + field)))
        assert [at(row, field) for row in ordered] == sorted((at(row, field) for row in found), reverse=down)
    kept = at(found[0], field)
    text = str(kept).lower() if isinstance(kept, bool) else str(kept)
    same = rows(json.loads(told(capsys, *words, "-o", "json", "--filter", f"{field}={text}")))
    assert same == [row for row in found if at(row, field) == kept]
    other = rows(json.loads(told(capsys, *words, "-o", "json", "--filter", f"{field}!={text}")))
    assert sorted(map(str, other + same)) == sorted(map(str, found))
    for option in (["--sort", "nonsense"], ["--filter", "nonsense=1"]):
        assert run([*words, *option]) == 2
        err = capsys.readouterr().err
        assert f"{option[0]} 'nonsense' is not a field of these rows; they have " in err
        assert field in err
    assert "match" in told(capsys, *words, "--filter", f"{field}=no such thing")


@pytest.mark.parametrize(
    ("words", "clusters"),
    [
        (["--sort", "unbacked_gpus"], ["pods-1", "pods-2", "lab", "aux"]),
        (["--sort", "-unbacked_gpus"], ["lab", "pods-2", "pods-1", "aux"]),
        (["--sort", "started"], ["aux", "pods-2", "lab", "pods-1"]),
        (["--filter", "stage=roll*"], ["pods-2", "aux"]),
        (["--filter", "stage!=*ed"], ["lab", "pods-2", "aux"]),
        (["--filter", "unbacked_gpus>0"], ["lab", "pods-2"]),
        (["--filter", "unbacked_gpus<=7", "--filter", "cluster=pods-*"], ["pods-1", "pods-2"]),
        (["--filter", "unbacked_gpus="], ["aux"]),
        (["--filter", "open=true", "--stage", "rolled_back"], ["pods-2"]),
    ],
)
def test_what_is_asked_for_is_left_in_that_order(
    fake: FakeBackstop, words: list[str], clusters: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(capsys, "status", "-o", "name", *words).split() == clusters
    shown = told(capsys, "status", *words).split("\n\n")[0].splitlines()
    assert [text.split()[0] for text in shown] == ["CLUSTER", *clusters]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("status --json -o yaml", "--json is given together with -o yaml"),
        ("status h100-worked --sort stage", "--sort is given together with CLUSTER 'h100-worked'"),
        ("fleet show h100-worked --filter stage=x", "--filter is given together with CLUSTER 'h100-worked'"),
        (
            "status --filter stage",
            "--filter takes FIELD=VALUE or FIELD!=VALUE, and for numbers >, <, >= or <=, not 'stage'",
        ),
        ("status --filter unbacked_gpus>many", "--filter unbacked_gpus>many: 'many' is not a number"),
        ("status --filter stage>3", "--filter stage>3: the field's values are not numbers"),
        ("haircut --file examples/fleet.yaml --sort cut_gpus", "--sort is given together with --by fleet"),
        ("audit h100-worked -o name", "-o name: audit entries have no names"),
    ],
)
def test_a_slip_is_one_sentence(fake: FakeBackstop, words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words.split()) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_requests_are_a_list_too(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    async def ask(question: Any) -> Any:
        return tuple(
            one.model_copy(update={"ask": one.ask.model_copy(update={"request": f"q-{n}", "gpus": n})})
            for n, one in enumerate((asked(), asked(fits=False), asked()))
        )

    fake.ask = ask  # type: ignore[method-assign]
    assert told(capsys, "request", "list", "-o", "name").split() == ["q-0", "q-1", "q-2"]
    assert told(capsys, "request", "list", "-o", "name", "--filter", "stage=asked", "--sort", "-ask.gpus").split() == [
        "q-2",
        "q-0",
    ]


def test_a_haircut_by_team_keeps_those_that_are_asked_for(
    fake: FakeBackstop, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["haircut", "--file", "examples/fleet.yaml", "--by", "team"]
    whole = json.loads(told(capsys, *words, "--json"))
    assert len(whole["buffers"]) == 4, "5, 10, 15 and 20 %"
    cuts = {team: parts[2]["cut_gpus"] for team, parts in whole["teams"].items()}
    wanted = sorted((t for t in cuts if cuts[t] > 7), key=lambda t: -cuts[t])
    chosen = [*words, "--filter", "cut_gpus>7", "--sort", "-cut_gpus"]
    assert [cuts[t] for t in told(capsys, *chosen, "-o", "name").split()] == [cuts[t] for t in wanted]
    assert len(wanted) > 2
    assert set(json.loads(told(capsys, *chosen, "-o", "json"))["teams"]) == set(wanted)


# --- audit -----------------------------------------------------------------------------------------------


DID = [
    # days before noon of 31 January, kind, actor
    (3.0, AuditKind.COMMAND, "tpm"),
    (2.0, AuditKind.PLAN, "backstop"),
    (1.5, AuditKind.EFFECT, "backstop"),
    (1.0, AuditKind.COMMAND, "research-lead"),
    (0.0, AuditKind.TRANSITION, "backstop"),
]


def when(days: float) -> datetime:
    return NOON - timedelta(days=days)


@pytest.fixture(params=["history", "archive"])
def audited(request: pytest.FixtureRequest, fake: FakeBackstop) -> list[str]:
    """The same in live workflows and in the archive: what people choose must not depend on where it stands."""

    async def history(cluster: str) -> list[AuditRecord]:
        return [AuditRecord(at=when(d), kind=k, actor=a, text=f"{n}") for n, (d, k, a) in enumerate(DID)]

    fake.audit = history  # type: ignore[method-assign]
    from tests.unit.cli_fakes import chain

    rows, head = chain(*(f"{n}" for n in range(len(DID))))
    told = [
        row.model_copy(update={"entry": AuditEntry(**{**dict(row.entry), "at": when(d), "kind": k, "actor": a})})
        for row, (d, k, a) in zip(rows, DID, strict=True)
    ]
    fake.archive = (told, head)
    return ["audit", WORKED.name, *(["--archive"] if request.param == "archive" else [])]


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ([], [0, 1, 2, 3, 4]),
        (["--kind", "command"], [0, 3]),
        (["--kind", "command", "--kind", "plan"], [0, 1, 3]),
        (["--actor", "tpm"], [0]),
        (["--actor", "res*", "--actor", "tpm"], [0, 3]),
        (["--actor", "backstop", "--kind", "transition"], [4]),
        (["--since", "2026-01-30"], [2, 3, 4]),
        (["--since", "2026-01-30T12:00Z"], [3, 4]),
        (["--until", "2026-01-30T12:00Z"], [0, 1, 2]),
        (["--until", "2026-01-30"], [0, 1, 2, 3]),
        (["--until", "20260130"], [0, 1, 2, 3]),
        (["--until", "2026-W05-5"], [0, 1, 2, 3]),
        (["--since", "2026-01-29", "--until", "2026-01-29"], [1]),
        (["--filter", "kind=e*"], [2]),
    ],
)
def test_entries_are_chosen_and_what_is_left_out_is_said(
    audited: list[str], words: list[str], left: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*audited, *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    few = [f"{len(left)} of 5 entries."] if len(left) < 5 else []
    assert [text.split()[-2] for text in lines[1 : 1 + len(left)]] == [f"{n}" for n in left]
    assert lines[1 + len(left) :] == few
    assert run([*audited, *words, "--json"]) == 0
    out, err = capsys.readouterr()
    assert [json.loads(text)["text"] for text in out.splitlines()] == [f"{n}" for n in left]
    assert err == "".join(f"{text[:-1]}\n" for text in few)
    assert run([*audited, *words, "-o", "yaml"]) == 0
    assert [one["text"] for one in yaml.safe_load_all(capsys.readouterr().out)] == [f"{n}" for n in left]


def test_what_is_verified_is_a_cluster_or_what_is_sealed(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(FakeBackstop()) as door:
        assert run(["audit", "--verify"]) == 2
    assert door.asked == []
    assert capsys.readouterr().err == "backstop: --verify needs a CLUSTER, or --seals to check every archive\n"
    assert run(["audit", "--help"]) == 0
    assert "or with --seals to check every archive" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_a_time_may_be_so_long_ago(audited: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*audited, "--since", "1h", "--json"]) == 0
    assert capsys.readouterr().out == "", "all of it is long over"
    assert run([*audited, "--since", "1h"]) == 0
    assert capsys.readouterr().out == "None of 5 entries matches.\n"
    assert run([*audited, "--until", "1h", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kind", "rumour"], "--kind must be one of command, transition, effect, notice, hold, guard, plan, not"),
        (["--since", "soon"], "--since must look like 28d, 2026-11-01 or 2026-11-01T12:00Z, not 'soon'"),
        (["--since", "2026-01-31", "--until", "2026-01-30"], "--until 2026-01-30 is not after --since 2026-01-31"),
        (["--until", "9999-12-31"], "--until 9999-12-31 gives a time outside the years 1 to 9999"),
    ],
)
def test_a_slip_in_the_audit_is_one_sentence(
    audited: list[str], words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*audited, *words]) == 2
    assert said in capsys.readouterr().err


def test_who_asks_for_an_audit_is_not_who_is_looked_for(fake: FakeBackstop) -> None:
    assert run(["audit", WORKED.name, "--actor", "somebody"]) == 0
    assert fake.actor == "tpm"


def test_the_sums_of_a_cluster_are_those_of_its_islands(fake: FakeBackstop, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = json.loads(told(capsys, "fleet", "show", "--json"))["clusters"]
    assert (row["total_gpus"], row["healthy_gpus"], row["promised_gpus"]) == (361, 319, 345)
    assert ClusterSpec.model_validate({k: row[k] for k in ClusterSpec.model_fields if k in row}) == WORKED
