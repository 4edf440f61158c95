"""One plan in four quota systems: docs/quota-systems.md shows what each has at each stage, read by its own tools.

`BACKSTOP_WRITE_SYSTEMS=1 pytest tests/loop/test_four_systems.py` writes the page's columns and blocks again; with
`-m nightly` Slurm's.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from temporalio.client import Client

from activities.adapters.ledger.facade import Ledger
from activities.adapters.slurm.command_line import Connection
from activities.adapters.slurm.quotas import SlurmQuotas
from activities.adapters.slurm.slurm import Slurms
from activities.ports.quota_systems import QuotaPort
from models.rollout.stages import Command, Stage
from tests.e2e.world import Sql, cluster, team, world_of
from tests.git.world import QUEUE, Forge
from tests.git.world import worker as git_worker
from tests.kubernetes.emulator import QUEUES, queue, running
from tests.kubernetes.kueue_world import kubectl_for
from tests.kubernetes.kueue_world import worker as kueue_worker
from tests.slurm.conftest import lab  # noqa: F401 - a fixture
from tests.slurm.lab import CLUSTER, Lab

PAGE = Path(__file__).parents[2] / "docs" / "quota-systems.md"
WRITES = "BACKSTOP_WRITE_SYSTEMS" in os.environ
BEFORE = {"vision": 200, "speech": 161}
FOLDER = "clusters/h100/queues"


class Quotas(NamedTuple):
    """A quota system of vision (200 GPUs) and speech (161)."""

    title: str
    source: dict[str, Any]
    """What names it in the fleet file."""
    port: Callable[[Ledger], QuotaPort]
    there: Callable[[], dict[str, str]]
    """The text of each quota there, by its own tools."""
    shown: Callable[[], str] = str
    """What its users see of speech, in full."""


def _ledger(url: str) -> Quotas:
    def there() -> dict[str, str]:
        rows = Sql(url).rows("SELECT team, gpus, mode FROM quotas")
        return {team: f"{gpus}, {mode}" for team, gpus, mode in rows}

    return Quotas("ledger", {}, lambda ledger: ledger.quotas, there)


def _git(folder: Path) -> Quotas:
    files = {f"{FOLDER}/{name}.yaml": QUEUE.format(name=name, gpus=gpus) for name, gpus in BEFORE.items()}
    forge = Forge(folder, files)
    source = {"repository": forge.url, "path": FOLDER, "dialect": "kueue"}

    def there() -> dict[str, str]:
        texts = {name: yaml.safe_load(forge.text(f"{FOLDER}/{name}.yaml")) for name in BEFORE}
        return {name: str(_nominal(raw)) for name, raw in texts.items()}

    return Quotas("Git", {"git": source}, lambda ledger: git_worker(ledger, folder / "worker"), there)


def _kueue(folder: Path, stack: ExitStack) -> Quotas:
    server = stack.enter_context(running())
    for name, gpus in BEFORE.items():
        server.put(QUEUES, queue(name, gpus))
    kubectl = kubectl_for(server, folder)

    def shown() -> str:
        return kubectl("get", "clusterqueue", "speech", "-o", "yaml")

    return Quotas(
        "Kueue",
        {"kueue": {"connection": "east"}},
        lambda ledger: kueue_worker(ledger, kubectl.kubeconfig),
        lambda: {name: str(kubectl.gpus(name)) for name in BEFORE},
        shown,
    )


def _slurm(lab: Lab) -> Quotas:  # noqa: F811
    lab.accounts(["four-systems"])
    for name, gpus in BEFORE.items():
        lab.account(name, "four-systems", gpus)
    connection = Connection(conf=str(lab.conf), path=f"{lab.folder}/bin")

    def port(ledger: Ledger) -> QuotaPort:
        return SlurmQuotas(Slurms(ledger, ledger.schedulers, {"lab": connection}, timedelta(0), timedelta(0)))

    source = {"connection": "lab", "cluster": CLUSTER, "root": "four-systems", "size_flex": False}
    return Quotas("Slurm", {"slurm": source}, port, lambda: dict(zip(BEFORE, lab.limits(*BEFORE), strict=True)))


def _nominal(raw: dict[str, Any]) -> int:
    ((flavor,),) = (group["flavors"] for group in raw["spec"]["resourceGroups"])
    (resource,) = flavor["resources"]
    return int(resource["nominalQuota"])


@pytest.fixture(
    params=[
        "ledger",
        "git",
        pytest.param("kueue", marks=pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")),
        pytest.param("slurm", marks=pytest.mark.nightly),
    ]
)
def quotas(request: pytest.FixtureRequest, sqlite_ledger_url: str, tmp_path: Path) -> Iterator[Quotas]:
    with ExitStack() as stack:
        match request.param:
            case "ledger":
                yield _ledger(sqlite_ledger_url)
            case "git":
                yield _git(tmp_path / "forge")
            case "kueue":
                yield _kueue(tmp_path / "kube", stack)
            case _:
                yield _slurm(request.getfixturevalue("lab"))


async def test_one_plan_has_the_same_values_in_each_system(
    quotas: Quotas, temporal: Client, sqlite_ledger_url: str, tmp_path: Path
) -> None:
    own = cluster(
        *("h100", {"main": (361, 361)}, [team("vision", 200), team("speech", 161, busy=100)]),
        buffer=0.1,
        spare_gpus=0,
        soak_buffered="1h",
        soak_enforced="1h",
    )
    ledgers, rows = list[Ledger](), dict[str, tuple[str, str]]()

    async with world_of(
        temporal,
        sqlite_ledger_url,
        tmp_path / "home",
        wrapped=lambda _: quotas.port(ledgers[0]),
        touch=lambda ledger, _: ledgers.append(ledger),
    ) as world:

        def note(stage: str) -> None:
            there, ours = quotas.there(), world.sql.gpus("h100")
            assert ours["vision"] == 200
            assert there["vision"].startswith("200")
            rows[stage] = str(ours["speech"]), there["speech"]
            check_block(stage, quotas.shown())

        await world.fleet({**own, **quotas.source})
        note("before")
        await world.start("h100")
        await world.until("h100", Stage.BUFFERED)
        note("buffered")
        await world.say("h100", Command.PROMOTE)
        await world.until("h100", Stage.ENFORCED)
        note("enforced")
        await world.say("h100", Command.PROMOTE)
        await world.until("h100", Stage.MONITORED)
        note("monitored")
        await world.say("h100", Command.ROLLBACK)
        await world.until("h100", Stage.ROLLED_BACK)
        note("rolled back")
    check_column("quota of speech", {stage: ours for stage, (ours, _) in rows.items()})
    check_column(quotas.title, {stage: there for stage, (_, there) in rows.items()})


def check_column(title: str, cells: dict[str, str]) -> None:
    """The table of the page has these cells below this title."""
    lines = PAGE.read_text().splitlines()
    (head,) = (number for number, line in enumerate(lines) if line.startswith("| stage |"))
    place = [cell.strip().partition(" (")[0] for cell in lines[head].split("|")].index(title)
    shown = dict[str, str]()
    for number in range(head + 2, head + 2 + len(cells)):
        row = [cell.strip() for cell in lines[number].split("|")[1:-1]]
        if WRITES:
            row[place - 1] = cells[row[0]]
            lines[number] = f"| {' | '.join(row)} |"
        shown[row[0]] = row[place - 1]
    if WRITES:
        PAGE.write_text("\n".join(lines) + "\n")
    assert shown == cells


def check_block(stage: str, text: str) -> None:
    """The page has this text as what kubectl shows at this stage; an empty text is of a system without kubectl."""
    page, name = PAGE.read_text(), {"buffered": "before", "monitored": "enforced"}.get(stage, stage)
    if not text:
        return
    block = re.search(rf"(?<=<!-- kubectl {name} -->\n```yaml\n).*?(?=```\n)", page, re.DOTALL)
    assert block is not None
    if WRITES:
        page = f"{page[: block.start()]}{text}{page[block.end() :]}"
        PAGE.write_text(page)
        return
    assert block[0] == text
