"""A real provider of OpenID Connect, the certified one of npm, and somebody who says yes to it in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path

import httpx
import pytest
from joserfc.jwk import ECKey, KeyParameters, OKPKey, RSAKey

from tests.ports import free_port

HERE = Path(__file__).parent
MODULES = HERE / "node_modules"
needs_provider = pytest.mark.skipif(
    shutil.which("node") is None or not (MODULES / "oidc-provider").is_dir(),
    reason="needs node and `npm ci` in tests/oidc: tests/packages.sh",
)
FORM = re.compile(r'<form[^>]*action="([^"]*)"[^>]*>(.*?)</form>', re.DOTALL)
INPUT = re.compile(r"<(?:input|button)\b[^>]*>")
Key = RSAKey | ECKey | OKPKey


def a_key(key_id: str, algorithm: str = "RS256") -> Key:
    about: KeyParameters = {"use": "sig", "alg": algorithm, "kid": key_id}
    if algorithm == "ES256":
        return ECKey.generate_key("P-256", about, private=True)
    if algorithm == "EdDSA":
        return OKPKey.generate_key("Ed25519", about, private=True)
    return RSAKey.generate_key(2048, about, private=True)


@contextmanager
def provider(
    folder: Path, *keys: Key, port: int = 0, algorithm: str = "RS256", redirect: str = "", secret: str = ""
) -> Iterator[str]:
    """Run a provider with these keys; yield its issuer. `redirect`: where browsers return; `secret`: the client's."""
    port = port or free_port()
    file = folder / f"jwks-{port}.json"
    file.write_text(json.dumps({"keys": [key.as_dict(private=True) for key in keys]}))
    command = ["node", str(HERE / "provider.mjs"), str(port), str(file), str(HERE)]
    environment = {"PATH": "/usr/bin:/bin:/usr/local/bin", "ALGORITHM": algorithm}
    environment |= {name: text for name, text in (("REDIRECT", redirect), ("SECRET", secret)) if text}
    running = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "listening\n"
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait(60)


def fields_of(form: re.Match[str], name: str) -> dict[str, str]:
    """Return the fields that a browser would send of a provider's form, with the name if the form asks for one."""
    fields = {}
    for tag in INPUT.findall(form[2]):
        field = dict(re.findall(r'(name|value)="([^"]*)"', tag))
        if "name" in field:
            fields[field["name"]] = unescape(field.get("value", ""))
    return fields | ({"login": name, "password": "x"} if "login" in fields else {})


def says_yes(address: str, name: str) -> None:
    """Send each form in a browser, as it is, with the name if the form asks for one."""
    with httpx.Client(follow_redirects=True, timeout=120) as browser:
        page = browser.get(address)
        for _ in range(8):
            form = FORM.search(page.text)
            if form is None:
                break
            fields = fields_of(form, name)
            fields.pop("abort", None)
            page = browser.post(str(page.url.join(unescape(form[1]))), data=fields)
        assert "Success" in page.text, page.text[:500]
