"""What a build adds: to the index a README without dead links, to the wheel what the console draws with."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"!?\[([^\]]*)\]\((?!https?://)([^)\s]+)\)")


def without_dead_links(text: str) -> str:
    """A page of docs is named as its command, other files by their words alone."""

    def plain(link: re.Match[str]) -> str:
        page = re.fullmatch(r"docs/([\w./-]+)\.md(?:#.*)?", link[2])
        return f"{link[1]} (`backstop docs {page[1]}`)" if page else link[1]

    return _LINK.sub(plain, text)


class ReadmeHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": without_dead_links(text)}


class VendorHook(BuildHookInterface[Any]):
    """A wheel carries it, so that whoever installs the wheel fetches nothing; without a network it goes without."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            runpy.run_path(str(Path(self.root) / "hatch_vendor.py"), run_name="__main__")
