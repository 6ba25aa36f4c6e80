"""A served cloud and a client of it: a program with a token, or a browser with its cookies."""

import functools
import inspect
import json
from contextlib import asynccontextmanager
from types import SimpleNamespace

import aiohttp

from edgeveil_cloud.http import make_app
from edgeveil_cloud.http_guard import Scope
from edgeveil_cloud.store import Store
from tests.kits.cloud_control import PlainControl

TOKENS = {Scope.READ: "r" * 43, Scope.SUBMIT: "s" * 43, Scope.ADMIN: "t" * 43}


class Client:
    def __init__(self, session, server, store):
        self.session, self.server, self.store = session, server, store
        self.url, self.token = server.url, None

    async def ask(self, method, path, token=None, **options):
        options.setdefault("allow_redirects", False)
        if token := token if token is not None else self.token:
            options["headers"] = {"Authorization": f"Bearer {token}"} | options.get("headers", {})
        async with self.session.request(method, path, **options) as answer:
            found = {"status": answer.status, "headers": answer.headers}
            return SimpleNamespace(**found, body=await answer.read())

    async def status(self, *asked, **options):
        return (await self.ask(*asked, **options)).status

    async def json(self, *asked, **options):
        return json.loads((await self.ask(*asked, **options)).body)

    async def log_in(self, scope=Scope.SUBMIT, token=None, **options):
        data = {"token": TOKENS[scope] if token is None else token}
        return await self.ask("POST", "/login", data=data, **options)


@asynccontextmanager
async def served(tokens=lambda: TOKENS, control=PlainControl, at=None, clients=None, **session):
    """The client of a served cloud; `control` makes that of its store."""
    store = Store()
    app = make_app(store, control(store), tokens, at=at, clients=clients)
    server = await (app.start(at) if session else app.start())
    jar = aiohttp.CookieJar(unsafe=True)  # also from an address without a name
    try:
        async with aiohttp.ClientSession(server.url, cookie_jar=jar, **session) as opened:
            yield Client(opened, server, store)
    finally:
        await server.stop()
        store.close()


def inside(context, **options):
    """Give an async test what `async with context(**options)` yields as its first argument."""

    def decorate(test):
        @functools.wraps(test)
        async def run(**fixtures):
            async with context(**options) as given:
                await test(given, **fixtures)

        signature = inspect.signature(test)
        run.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])
        return run

    return decorate
