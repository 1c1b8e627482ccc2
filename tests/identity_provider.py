"""An OpenID Connect provider on loopback: the authorization code flow with PKCE, and keys of its own."""

from __future__ import annotations

import base64
import hashlib
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any
from urllib.parse import urlencode

import uvicorn
from joserfc import jwt
from joserfc.jwk import RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from tests.conftest import wait_for

CLIENT, SECRET = "mirrorboard", "of-the-client"


class Provider:
    """Signs in whoever chooses a name on its page, without a password.

    Args:
        address: Where it can be reached.
        people: Claims of each person beside ``sub``, by subject.
    """

    def __init__(self, address: str, people: dict[str, dict[str, Any]]) -> None:
        self.address = address
        self.people = people
        self._key = RSAKey.generate_key(2048, parameters={"kid": "1", "use": "sig", "alg": "RS256"})
        self._codes: dict[str, dict[str, str]] = {}
        """What each code that was not used yet was asked for with."""
        self.app = Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._discovery),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/keys", self._keys),
                Route("/end", self._end),
            ]
        )

    async def _discovery(self, _: Request) -> Response:
        return JSONResponse(
            {
                "issuer": self.address,
                "authorization_endpoint": f"{self.address}/authorize",
                "token_endpoint": f"{self.address}/token",
                "jwks_uri": f"{self.address}/keys",
                "end_session_endpoint": f"{self.address}/end",
                "response_types_supported": ["code"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256"],
                "token_endpoint_auth_methods_supported": ["client_secret_basic"],
                "code_challenge_methods_supported": ["S256"],
            }
        )

    async def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        assert asked["client_id"] == CLIENT
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        person = asked.pop("person", None)
        if person is None:
            links = [
                f'<p><a href="?{escape(urlencode({**asked, "person": name}))}">{escape(name)}</a></p>'
                for name in self.people
            ]
            return HTMLResponse(f"<title>Who are you?</title>{''.join(links)}")
        code = secrets.token_urlsafe()
        self._codes[code] = {**asked, "person": person}
        answer = urlencode({"code": code, "state": asked["state"]})
        return RedirectResponse(f"{asked['redirect_uri']}?{answer}", status_code=302)

    async def _token(self, request: Request) -> Response:
        form = await request.form()
        client = base64.b64decode(request.headers["authorization"].removeprefix("Basic ")).decode()
        asked = self._codes.pop(str(form["code"]), None)
        challenge = hashlib.sha256(str(form["code_verifier"]).encode()).digest()
        if (
            client != f"{CLIENT}:{SECRET}"
            or asked is None
            or form["redirect_uri"] != asked["redirect_uri"]
            or base64.urlsafe_b64encode(challenge).decode().rstrip("=") != asked["code_challenge"]
        ):
            return JSONResponse({"error": "invalid_grant"}, status_code=400)
        now = int(time.time())
        claims = {
            "iss": self.address,
            "aud": CLIENT,
            "sub": asked["person"],
            "iat": now,
            "exp": now + 600,
            "nonce": asked["nonce"],
            **self.people[asked["person"]],
        }
        token = jwt.encode({"alg": "RS256", "kid": "1"}, claims, self._key)
        return JSONResponse(
            {"access_token": secrets.token_urlsafe(), "token_type": "Bearer", "id_token": token}
        )

    async def _keys(self, _: Request) -> Response:
        return JSONResponse({"keys": [self._key.as_dict(private=False)]})

    async def _end(self, request: Request) -> Response:
        return RedirectResponse(request.query_params["post_logout_redirect_uri"], status_code=302)


@contextmanager
def provider(people: dict[str, dict[str, Any]]) -> Iterator[Provider]:
    """Runs a provider on a free port while the block does."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        made = Provider(f"http://127.0.0.1:{listener.getsockname()[1]}", people)
        server = uvicorn.Server(uvicorn.Config(made.app, ws="none", lifespan="off", log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        wait_for(lambda: server.started, 20, "the identity provider")
        yield made
        server.should_exit = True
        thread.join(timeout=20)


def secrets_file(made: Provider, mirrorboard: str) -> str:
    """A secrets file of a dashboard that signs people in there.

    Args:
        made: The provider.
        mirrorboard: The sections of Mirrorboard's own.
    """
    return f"""
[auth]
redirect_uri = "http://127.0.0.1:{{port}}/oauth2callback"
cookie_secret = "{secrets.token_hex(32)}"
client_id = "{CLIENT}"
client_secret = "{SECRET}"
server_metadata_url = "{made.address}/.well-known/openid-configuration"

{mirrorboard}
"""
