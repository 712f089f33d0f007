"""fleetctl run: one role in the foreground."""

import asyncio
from typing import Any

import click

from fleet.roles import ROLES, load_role


@click.command()
@click.argument("role", type=click.Choice(ROLES), metavar="ROLE")
@click.option("--once", is_flag=True, help="Do what there is to do now, then end.")
@click.option("--shard-id", metavar="N", help="Slice of the schedules to look after first (SHARD_ID).")
@click.option("--shard-count", metavar="N", help="Number of slices (SHARD_COUNT).")
@click.option("--port", metavar="PORT", help="Serve /health and /metrics here (PORT).")
@click.option("--data-dir", metavar="DIR", help="Folder of the embedded Postgres (FLEET_DATA_DIR).")
@click.option("--json", "as_json", is_flag=True, help="Log as JSON (LOG_FORMAT=json).")
def run(role: str, once: bool, as_json: bool, **flags: Any) -> None:
    """Run one role in the foreground."""
    from fleet import log
    from fleet.cli.session import settings
    from fleet.roles import loop

    own = settings(**flags, log_format="json" if as_json else None)
    log.setup(own.log_format, own.log_level)

    async def main() -> None:
        worker = loop.worker_id(role)
        await loop.run(load_role(role)(own, worker), own, once=once)

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main())


def _loop_factory() -> Any:
    """uvloop halves the cost of a delivery; where it has no build, asyncio's own loop does."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
