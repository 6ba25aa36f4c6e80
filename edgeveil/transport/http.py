"""Serving a small local HTTP application next to a process's other work."""

from __future__ import annotations

import errno

from aiohttp import web

from edgeveil.errors import UsageError

SHUTDOWN_S = 2.0


class HttpServer:
    """A served application; `port` is the one it got when 0 was asked for."""

    def __init__(self, runner: web.AppRunner, host: str, port: int) -> None:
        self._runner, self.host, self.port = runner, host, port

    @property
    def url(self) -> str:
        """Address for clients on this machine."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    async def stop(self) -> None:
        """Stop listening; open requests get SHUTDOWN_S seconds to end."""
        await self._runner.cleanup()


async def serve(app: web.Application, host: str, port: int) -> HttpServer:
    """Serve `app` on the running loop. Raises UsageError if the port cannot be had."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        if error.errno == errno.EADDRINUSE:
            what, fix = f"port {port} is taken", "stop what uses it, or set another http.port"
        elif error.errno == errno.EACCES:
            what, fix = f"port {port} needs more rights", "set an http.port from 1024"
        else:
            what, fix = f"cannot listen ({error.strerror})", "check http.host and http.port"
        raise UsageError(what, where=f"{host}:{port}", fix=fix) from error
    return HttpServer(runner, host, runner.addresses[0][1])
