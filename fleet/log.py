"""Logs: one event per line on stderr, with a stable dotted name, fields, and a UTC RFC 3339 time.

Event names are an API: people alert on them. structlog is imported only when something is logged, because
`fleetctl --help` must answer at once.
"""

import contextlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger, Processor


def setup(format: str = "auto", level: str = "info") -> None:
    """Send every event of this process to stderr; `auto` is text on a terminal and json otherwise."""
    import structlog

    as_text = format == "text" or (format == "auto" and sys.stderr.isatty())
    threshold = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderers = _text() if as_text else _json()
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _Stderr())),
    )
    _adopt_libraries(shared, renderers, threshold)


def bind(*, role: str, worker: str) -> None:
    """Put the role and the worker on every event of this context and of the tasks it starts."""
    import structlog

    structlog.contextvars.bind_contextvars(role=role, worker=worker)


def get() -> "FilteringBoundLogger":
    """The logger. Without a setup yet it makes the default one: structlog's own would write to stdout, among data."""
    import structlog

    if not structlog.is_configured():
        setup()
    logger: FilteringBoundLogger = structlog.get_logger()
    return logger


class _Stderr:
    """stderr, but a log that nobody reads any more stops no work: a role whose supervisor was killed still drains."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()


def _text() -> "list[Processor]":
    import structlog

    colors = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    # The plain traceback: the pretty one prints local variables, and those hold secrets.
    return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)]


def _json() -> "list[Processor]":
    import structlog

    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _adopt_libraries(shared: "list[Processor]", renderers: "list[Processor]", threshold: int) -> None:
    """Give the warnings of libraries (psycopg's pool, aiohttp) the same shape, so that every line parses."""
    import structlog

    handler: logging.StreamHandler[Any] = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(threshold, logging.WARNING), force=True)
