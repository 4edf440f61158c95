"""The library that draws pictures: only the pinned files are written."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from hatch_vendor import PIN, NotVendored, integrity, is_there, vendor

FILES = {"dist/plot.js": b"var plot;", "LICENSE": b"do as you like"}


def archive(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, content in files.items():
            about = tarfile.TarInfo(f"package/{name}")
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return made.getvalue()


def pin(data: bytes, **more: Any) -> dict[str, Any]:
    hashes = {name: integrity(content, "sha256-") for name, content in FILES.items()}
    about = {"name": "plot", "version": "1.0.0", "url": "https://registry.example/plot.tgz"}
    return {**about, "integrity": integrity(data), "files": hashes, **more}


def test_what_is_pinned_is_written_once(tmp_path: Path) -> None:
    data, asked = archive({**FILES, "dist/other.js": b"not wanted"}), list[str]()

    def fetch(url: str) -> bytes:
        asked.append(url)
        return data

    assert vendor(pin(data), fetch, tmp_path / "vendor")
    assert {file.name: file.read_bytes() for file in (tmp_path / "vendor").iterdir()} == {
        "plot.js": b"var plot;",
        "LICENSE": b"do as you like",
    }
    assert not vendor(pin(data), fetch, tmp_path / "vendor")
    assert asked == ["https://registry.example/plot.tgz"], "what is there is not fetched again"
    (tmp_path / "vendor" / "plot.js").write_bytes(b"altered")
    assert not is_there(pin(data), tmp_path / "vendor")
    assert vendor(pin(data), fetch, tmp_path / "vendor")
    assert (tmp_path / "vendor" / "plot.js").read_bytes() == b"var plot;"


@pytest.mark.parametrize(
    "kind", ["another hash", "cut", "no archive", "a file is missing", "a file is another", "away"]
)
def test_of_what_is_wrong_nothing_is_written(tmp_path: Path, kind: str) -> None:
    whole = archive(FILES)
    data = {
        "another hash": archive({**FILES, "dist/plot.js": b"alert(1)"}),
        "cut": whole[: len(whole) // 2],
        "no archive": b"<html>not here</html>",
        "a file is missing": archive({"dist/plot.js": b"var plot;"}),
        "a file is another": archive({**FILES, "LICENSE": b"pay"}),
        "away": b"",
    }[kind]

    def fetch(_: str) -> bytes:
        if kind == "away":
            raise OSError("nobody answers")
        return data

    wanted = pin(whole if kind == "another hash" else data)
    with pytest.raises(NotVendored, match=r"^(dist/plot.js of |LICENSE of )?plot 1\.0\.0 ") as error:
        vendor(wanted, fetch, tmp_path / "vendor")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "vendor").exists()


def test_the_pin_names_three_files_of_one_archive() -> None:
    found = json.loads(PIN.read_text())
    assert (found["name"], found["version"], sorted(found["files"])) == (
        "uplot",
        "1.6.32",
        ["LICENSE", "dist/uPlot.iife.min.js", "dist/uPlot.min.css"],
    )
    assert found["url"].startswith("https://registry.npmjs.org/")
    assert found["integrity"].startswith("sha512-")
