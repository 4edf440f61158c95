"""A path that is no regular file is refused at once, and leaves nothing open however often it is tried."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from activities.adapters.seals.keepers import read_seals
from activities.secret_files import SecretFiles
from client.inputs.seals import read_seals as read_handed_seals
from client.payload_keys import read_keys
from models.errors import BackstopError

READERS: dict[str, Callable[[Path], object]] = {
    "payload keys": read_keys,
    "a secret": lambda path: SecretFiles(path.parent).resolve(f"secret:{path.name}"),
    "a keeper's seals": lambda path: read_seals(path.parent),
    "a public key": lambda path: read_handed_seals(str(path.parent), [str(path)]),
}


@pytest.mark.parametrize("what", ["a folder", "a pipe"])
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused_and_nothing_stays_open(reader: str, what: str, tmp_path: Path) -> None:
    """A worker looks for its keys every second, whatever lies there by then."""
    path = tmp_path / "seals.txt"
    path.mkdir() if what == "a folder" else os.mkfifo(path)
    with pytest.raises(BackstopError):
        READERS[reader](path)
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        with pytest.raises(BackstopError, match="it is no file"):
            READERS[reader](path)
    assert os.listdir("/proc/self/fd") == before
