"""Security headers and cookies of the console's pages, and checks of their requests.

A page loads nothing from elsewhere and runs only scripts in files of ours. A form counts only from a page of ours. Over
plain HTTP, which only this machine may use, the request must name this machine as its host: any other name that leads
here belongs to somebody else's page.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request

from web.failures import Problem, forbidden_problem

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
}
COOKIE = "backstop"
"""The name of a session's cookie."""
_OWN_NAMES = ("127.0.0.1", "localhost", "::1", "[::1]")


def cookie_name(*, secure: bool, name: str = COOKIE) -> str:
    """Return the cookie's name. Its prefix over TLS means that no other host and no plain page can have set it."""
    return f"__Host-{name}" if secure else name


def cookie(secret: str, seconds: float, *, secure: bool, name: str = COOKIE) -> str:
    """Return the header that sets the cookie; without a secret the one that removes it."""
    age = int(seconds) if secret else 0
    tls = "; Secure" if secure else ""
    return f"{cookie_name(secure=secure, name=name)}={secret}; Path=/; HttpOnly; SameSite=Lax; Max-Age={age}{tls}"


def of_this_machine(request: Request, public_url: str) -> None:
    """Refuse plain HTTP to a host that is neither local nor `public_url`, a TLS proxy's name. Errors: Problem 421."""
    if request.url.scheme == "https" or request.client is None:
        return
    name = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    if name not in (*_OWN_NAMES, urlsplit(public_url).hostname):
        raise Problem(
            "misdirected",
            421,
            "This is the wrong address.",
            "over plain HTTP the console answers only at 127.0.0.1: use that address, or HTTPS",
        )


def from_our_page(request: Request, public_url: str) -> None:
    """Refuse a form that another site's page sent. Errors: Problem 403."""
    site, origin = request.headers.get("sec-fetch-site", ""), request.headers.get("origin", "")
    own = (f"{request.url.scheme}://{request.headers.get('host', '')}", public_url)
    if site not in ("", "same-origin", "none") or (origin and origin not in own):
        raise forbidden_problem(
            "this form was not sent from a page of this console: reload the page, and send it again"
        )
