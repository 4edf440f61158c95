"""Slurm over SSH: a real sshd, a key that is this test's own, and the tools of a machine behind them."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from activities.adapters.slurm.command_line import Connection, Talk
from activities.adapters.slurm.parsing import ASSOC_FORMAT, NUMBERS_FORMAT, accounts_in
from models.errors import Unavailable
from tests.ports import free_port
from tests.slurm.conftest import Site

pytestmark = pytest.mark.nightly  # a real Slurm

_CONFIG = """\
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile {folder}/pid
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
SetEnv PATH={path}
"""


@pytest.fixture
def connection(site: Site, tmp_path: Path) -> Iterator[Connection]:
    """A way to this site's Slurm by a shell elsewhere, which is here."""
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if sshd is None or shutil.which("ssh") is None:
        reason = "no sshd here: make packages"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    (tmp_path / "config").write_text(_CONFIG.format(folder=tmp_path, path=site.lab.environment["PATH"]))
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    port = free_port()
    process = subprocess.Popen([sshd, "-D", "-e", "-f", str(tmp_path / "config"), "-p", str(port)])
    options = (
        *("-p", str(port), "-i", str(tmp_path / "user"), "-oStrictHostKeyChecking=no"),
        *("-oUserKnownHostsFile=/dev/null", "-oLogLevel=ERROR"),
    )
    try:
        made = Connection(
            ssh=f"{getpass.getuser()}@127.0.0.1",
            ssh_options=options,
            conf=str(site.lab.conf),
            timeout=timedelta(seconds=50),
        )
        ends = time.monotonic() + 90
        while True:
            try:
                Talk(made).run("true")
                break
            except Unavailable:
                assert time.monotonic() < ends, "sshd answers"
                time.sleep(0.2)
        yield made
    finally:
        process.terminate()
        process.wait(60)


def test_limits_are_read_and_written_over_ssh(site: Site, connection: Connection) -> None:
    talk = Talk(connection)
    asked = ("sacctmgr", "-n", "-P", "show", "assoc", "cluster=lab", "user=")
    printed, numbers = talk.run(*asked, ASSOC_FORMAT), talk.run(*asked, NUMBERS_FORMAT)
    assert accounts_in(printed, "gres/gpu", numbers)[site.team("a")].gpus == 24
    command = f"modify account {site.team('a')} cluster=lab set GrpTRES=gres/gpu=20\n"
    talk.run("sacctmgr", "-i", "-Q", stdin=command)
    assert site.lab.limit(site.team("a")) == "20"
    with pytest.raises(Unavailable):
        Talk(connection.model_copy(update={"ssh_options": ("-p", "1")})).run("true")
