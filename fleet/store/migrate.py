"""Brings a database to this version's schema, and says which one it has.

Alembic takes two thirds of a second to import, so it is imported only when there is something to migrate; HEAD is
compared with the newest migration by a test.
"""

from pathlib import Path
from urllib.parse import urlencode, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from fleet.errors import FleetError

HEAD = "0002"

# One migration at a time: roles that start together on an empty database queue up here.
LOCK = "SELECT pg_advisory_lock(hashtext('fleet.migrate'))"

CURRENT = "SELECT version_num FROM alembic_version"


def script_location() -> Path:
    """The migrations: inside an installed wheel, or at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    shipped = package / "_alembic"
    return shipped if shipped.is_dir() else package.parent / "alembic"


def current(dsn: str) -> str | None:
    with psycopg.connect(dsn) as connection:
        try:
            row = connection.execute(CURRENT).fetchone()
        except psycopg.errors.UndefinedTable:
            return None
        return str(row[0]) if row else None


def upgrade(dsn: str, revision: str = "head") -> None:
    _run(dsn, "upgrade", revision)


def downgrade(dsn: str, revision: str) -> None:
    _run(dsn, "downgrade", revision)


def engine_url(dsn: str | None = None) -> str:
    """SQLAlchemy's spelling of a Postgres address."""
    if dsn is None:
        from fleet.config import load

        dsn = load().database_url
        if dsn is None:
            raise FleetError("DATABASE_URL is not set, so alembic has no database; use `fleetctl db upgrade`.")
    if dsn.startswith(("postgres://", "postgresql://")):
        return "postgresql+psycopg://" + urlsplit(dsn)._replace(scheme="").geturl().lstrip("/")
    return "postgresql+psycopg://?" + urlencode(conninfo_to_dict(dsn))  # host=… dbname=…, as psql takes it too


def _run(dsn: str, command: str, revision: str) -> None:
    from alembic import command as alembic
    from alembic.config import Config
    from sqlalchemy import create_engine, pool, text

    config = Config()
    config.set_main_option("script_location", str(script_location()).replace("%", "%%"))
    engine = create_engine(engine_url(dsn), poolclass=pool.NullPool)
    with engine.connect() as connection:
        connection.execute(text(LOCK))
        connection.commit()
        config.attributes["connection"] = connection
        getattr(alembic, command)(config, revision)
        connection.commit()
