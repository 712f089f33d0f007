"""Runs migrations on the connection handed over by fleet.store.migrate, or on sqlalchemy.url."""

from alembic import context
from sqlalchemy import create_engine, pool

from fleet.store.schema import metadata


def migrate(connection) -> None:
    context.configure(connection=connection, target_metadata=metadata, transaction_per_migration=True)
    with context.begin_transaction():
        context.run_migrations()


connection = context.config.attributes.get("connection")
if connection is not None:
    migrate(connection)
else:
    from fleet.store.migrate import engine_url

    url = context.config.get_main_option("sqlalchemy.url") or engine_url()
    with create_engine(url, poolclass=pool.NullPool).connect() as fresh:
        migrate(fresh)
        fresh.commit()
