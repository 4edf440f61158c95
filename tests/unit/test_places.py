"""State is stored where README says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from client import places

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_all_that_a_newcomer_s_machine_keeps_is_in_the_folder_that_readme_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("BACKSTOP_HOME", "BACKSTOP_LEDGER_URL", "BACKSTOP_SOCKET", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    named = re.search(r"in one folder: `~/(\S+)`", README)
    assert named is not None
    kept = [places.embedded_file(), Path(places.ledger_url().removeprefix("sqlite:///")), places.front_socket()]
    assert {path.parent for path in kept} == {tmp_path / named[1]}


def test_the_setting_that_readme_names_moves_all_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("BACKSTOP_LEDGER_URL", "BACKSTOP_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    named = re.search(r"`export (\w+)=\$PWD/try`", README)
    assert named is not None
    monkeypatch.setenv(named[1], str(tmp_path / "try"))
    kept = [places.embedded_file(), Path(places.ledger_url().removeprefix("sqlite:///")), places.front_socket()]
    assert {path.parent for path in [*kept, places.login_file()]} == {tmp_path / "try"}
