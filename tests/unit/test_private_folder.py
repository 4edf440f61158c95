"""Missing folders of a path are created for us alone, whatever the umask."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from client.private_files import private_folder


def test_each_folder_that_was_missing_is_closed_and_others_stay(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        tmp_path.chmod(0o755)
        private_folder(tmp_path / "home" / "keys" / "deep")
        private_folder(tmp_path / "home" / "keys" / "deep")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("", "home", "home/keys", "home/keys/deep")]
    assert modes == [0o755, 0o700, 0o700, 0o700]
