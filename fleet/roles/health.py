"""What a role tells those who watch it: /health/live, /health/ready, /health and /metrics.

Promise     Answering never touches the database: it tells what the role last learned. A liveness probe that asked
            Postgres would restart healthy processes whenever Postgres blinks.
Emits       health.listening, health.port_taken, health.cannot_listen
"""

import errno
from dataclasses import dataclass, field

from aiohttp import web

from fleet import log

_CLOSE_WITHIN = 1.0  # seconds; a scraper that keeps its connection open must not hold up the drain


@dataclass
class Health:
    """What a role knows about the things it needs: component name -> (ok, detail)."""

    components: dict[str, tuple[bool, str]] = field(default_factory=dict)

    def ok(self, name: str) -> None:
        self.components[name] = (True, "")

    def fail(self, name: str, why: str) -> None:
        self.components[name] = (False, why)

    @property
    def ready(self) -> bool:
        """Whether all is well; a role that has not reported anything yet is still starting."""
        return bool(self.components) and all(ok for ok, _ in self.components.values())


@dataclass(frozen=True)
class Server:
    """The running health server."""

    address: str
    runner: web.AppRunner

    async def close(self) -> None:
        await self.runner.cleanup()


async def serve(host: str, port: int, health: Health, metrics_enabled: bool) -> Server | None:
    """Listen; port 0 takes a free one. None when that fails: a role that cannot be watched still does its work."""
    runner = web.AppRunner(_application(health, metrics_enabled), access_log=None, shutdown_timeout=_CLOSE_WITHIN)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        event = "health.port_taken" if error.errno == errno.EADDRINUSE else "health.cannot_listen"
        log.get().warning(event, host=host, port=port, error=str(error))
        return None
    bound_host, bound_port = runner.addresses[0][:2]
    address = f"[{bound_host}]:{bound_port}" if ":" in bound_host else f"{bound_host}:{bound_port}"
    log.get().info("health.listening", address=address)
    return Server(address, runner)


def _application(health: Health, metrics_enabled: bool) -> web.Application:
    async def live(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def ready(_: web.Request) -> web.Response:
        return _status(health)

    async def whole(request: web.Request) -> web.Response:
        return _status(health, verbose=request.query.get("verbose", "").lower() in ("true", "1"))

    app = web.Application()
    app.router.add_get("/health/live", live)
    app.router.add_get("/health/ready", ready)
    app.router.add_get("/health", whole)
    if metrics_enabled:
        app.router.add_get("/metrics", _metrics)
    return app


def _status(health: Health, verbose: bool = False) -> web.Response:
    body: dict[str, object] = {"status": "ok" if health.ready else "degraded"}
    if verbose:
        body["components"] = {name: {"ok": ok, "detail": why} for name, (ok, why) in sorted(health.components.items())}
    return web.json_response(body, status=200 if health.ready else 503)


async def _metrics(_: web.Request) -> web.Response:
    from prometheus_client import CONTENT_TYPE_LATEST

    from fleet import metrics

    return web.Response(body=metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})
