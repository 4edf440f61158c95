"""Folders of secrets as operators, Docker and Kubernetes leave them, and as nobody should.

The real folder on disk; whatever stands in it, a healthy secret beside it is read, and no error holds what a file has.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from activities.secret_files import LARGEST_SECRET, SecretFiles
from models.errors import BackstopError, Refusal, Unavailable
from tests.hostile import NAMES, Rubbish, table, threw

HIDDEN = "HiDdEnVaLuE42"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder as Kubernetes mounts it: names are links to `..data`, a link to the folder that it swaps."""
    version = tmp_path / "secrets" / "..2026_11_23"
    version.mkdir(parents=True)
    (version / "healthy").write_text("token-of-health\n")
    (tmp_path / "secrets" / "..data").symlink_to("..2026_11_23")
    (tmp_path / "secrets" / "healthy").symlink_to("..data/healthy")
    (tmp_path / "outside").write_text(HIDDEN)
    return tmp_path / "secrets"


def a_folder(at: Path) -> None:
    at.mkdir()


def a_fifo(at: Path) -> None:
    os.mkfifo(at)


def a_socket(at: Path) -> None:
    here = os.getcwd()
    os.chdir(at.parent)  # a socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(at.name)
    finally:
        os.chdir(here)


def written(content: bytes) -> Rubbish:
    return Rubbish(f"{len(content)} bytes {content[:8]!r}", lambda at: at.write_bytes(content))


FILES = [
    Rubbish("a folder", a_folder),
    Rubbish("a FIFO that nobody writes", a_fifo),
    Rubbish("a socket", a_socket),
    Rubbish("an endless device", lambda at: at.symlink_to("/dev/zero")),
    Rubbish("a link out of the folder", lambda at: at.symlink_to("../outside")),
    Rubbish("an absolute link out of the folder", lambda at: at.symlink_to(at.parent.parent / "outside")),
    Rubbish("a link to the folder above", lambda at: at.symlink_to("..")),
    Rubbish("a link to itself", lambda at: at.symlink_to(at.name)),
    Rubbish("a link to nothing", lambda at: at.symlink_to("..data/gone")),
    Rubbish("nothing", lambda at: None),
    written(b""),
    written(b"\n\n"),
    written(b"\xff\xfe\x00"),
    written(b"\0" * 20),
    written(f"{HIDDEN}\nsecond line".encode()),
    written(f"{HIDDEN}\x1b[31m".encode()),
    written(HIDDEN.encode() * (LARGEST_SECRET // len(HIDDEN) + 1)),
]


@table(FILES)
def test_what_is_no_secret_is_named_and_the_others_are_read(rubbish: Rubbish, folder: Path) -> None:
    rubbish.value(folder / "bad")
    with pytest.raises(
        Unavailable, match=r"^secret:bad cannot be read from the worker's folder of secrets: "
    ) as refused:
        SecretFiles(folder).resolve("secret:bad")
    assert HIDDEN not in refused.value.message
    assert SecretFiles(folder).resolve("secret:healthy") == "token-of-health"
    threw("folders of secrets")


@table(
    [
        *NAMES,
        Rubbish("the folder above", ".."),
        Rubbish("out of it", "../outside"),
        Rubbish("its own data", "..data/healthy"),
    ]
)
def test_a_name_leads_to_no_other_place(rubbish: Rubbish, folder: Path) -> None:
    with pytest.raises(BackstopError) as refused:
        SecretFiles(folder).read(rubbish.value)
    assert HIDDEN not in refused.value.message
    threw("folders of secrets")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_said(folder: Path) -> None:
    (folder / "closed").write_text(HIDDEN)
    (folder / "closed").chmod(0)
    with pytest.raises(Unavailable, match="permission denied"):
        SecretFiles(folder).read("closed")


def test_a_secret_is_read_when_it_is_used(folder: Path) -> None:
    """Kubernetes swaps the folder that `..data` leads to."""
    secrets = SecretFiles(folder)
    assert secrets.read("healthy") == "token-of-health"
    newer = folder / "..2026_11_24"
    newer.mkdir()
    (newer / "healthy").write_text("renewed\r\n")
    (folder / "..tmp").symlink_to("..2026_11_24")
    (folder / "..tmp").replace(folder / "..data")
    assert secrets.read("healthy") == "renewed"


def test_a_folder_that_is_not_there_is_said_and_may_come(tmp_path: Path) -> None:
    secrets = SecretFiles(tmp_path / "late")
    with pytest.raises(Unavailable, match=r"secret:hook cannot be read .*: no such file or directory"):
        secrets.read("hook")
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "hook").write_text("x")
    assert secrets.read("hook") == "x"
    with pytest.raises(Refusal, match=r"this worker has no folder of secrets: set BACKSTOP_SECRETS"):
        SecretFiles().read("hook")
