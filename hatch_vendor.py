"""Fetches the library that draws the pages' pictures from its registry: `python hatch_vendor.py`.

The pin (vendor.json) names one archive and its hash, and the files to take from it, each with its own. Files that are
already right stay; a wrong archive or file is not written. Without the library pages have only their tables. It needs
only the standard library, because the wheel's build runs it too. Source: docs/adr/0065-the-console.md.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import sys
import tarfile
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "web" / "console"
PIN = HERE / "vendor.json"
FOLDER = HERE / "static" / "vendor"
_SECONDS = 30
_MOST_BYTES = 10_000_000


class NotVendored(Exception):
    """The library could not be fetched; the message says why in a sentence."""


def integrity(data: bytes, of: str = "sha512-") -> str:
    """Return the hash as the registry writes it: algorithm, base64. Errors: ValueError for an unknown algorithm."""
    name = of.partition("-")[0]
    return f"{name}-{base64.b64encode(hashlib.new(name, data).digest()).decode()}"


def is_there(pin: Mapping[str, Any], folder: Path = FOLDER) -> bool:
    """Return whether the folder has each pinned file."""
    return all(_is(folder / Path(name).name, right) for name, right in pin["files"].items())


def vendor(pin: Mapping[str, Any], fetch: Callable[[str], bytes], folder: Path = FOLDER) -> bool:
    """Write all files of the pin; return whether any was missing. Errors: NotVendored, and nothing is written."""
    if is_there(pin, folder):
        return False
    what = f"{pin['name']} {pin['version']}"
    try:
        data = fetch(pin["url"])
    except OSError as error:
        raise NotVendored(f"{what} was not fetched, and pages have tables without pictures: {error}") from None
    if integrity(data, pin["integrity"]) != pin["integrity"]:
        raise NotVendored(f"{what} is not what was pinned, and nothing of it is kept: {pin['url']} has another hash")
    found = _files(data, pin["files"], what)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in found.items():
        part = folder / f".{name}.{os.getpid()}"
        part.write_bytes(content)
        part.replace(folder / name)
    return True


def _files(data: bytes, wanted: Mapping[str, str], what: str) -> dict[str, bytes]:
    """Return the wanted files by name, without the archive's folders. Errors: NotVendored."""
    found = dict[str, bytes]()
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            for path, right in wanted.items():
                file = archive.extractfile(f"package/{path}")
                content = b"" if file is None else file.read(_MOST_BYTES)
                if integrity(content, right) != right:
                    raise NotVendored(f"{path} of {what} is not what was pinned, and nothing of it is kept")
                found[Path(path).name] = content
    except (tarfile.TarError, KeyError, EOFError, OSError) as error:
        raise NotVendored(f"{what} cannot be read, and nothing of it is kept: {error}") from None
    return found


def _is(file: Path, right: str) -> bool:
    try:
        return integrity(file.read_bytes(), right) == right
    except OSError:
        return False


def _fetch(url: str) -> bytes:
    """Fetch the archive. Errors: OSError."""
    if not url.startswith("https://"):
        raise OSError(f"{url} is not https://")
    with urllib.request.urlopen(url, timeout=_SECONDS) as answer:  # noqa: S310 - https alone
        data: bytes = answer.read(_MOST_BYTES)
    return data


def main() -> None:
    """Fetch the library; report a failure, but exit with 0: pages work without it."""
    pin = json.loads(PIN.read_text())
    try:
        if vendor(pin, _fetch):
            print(f"vendor: {pin['name']} {pin['version']}", file=sys.stderr)
    except NotVendored as error:
        print(f"vendor: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
