"""The tables, declared once more for composing the queries of lists and for comparing with the migrations."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    Double,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, TIMESTAMP, UUID

metadata = MetaData()
Instant = TIMESTAMP(timezone=True)

cron_schedules = Table(
    "cron_schedules",
    metadata,
    Column("id", UUID, primary_key=True),
    Column("workspace_id", Text, nullable=False, server_default="system"),
    Column("name", Text, nullable=False),
    Column("queue_name", Text, nullable=False, server_default="default"),
    Column("interval_seconds", Integer),
    Column("cron_expression", Text),
    Column("run_at", Instant),
    Column("timezone", Text, nullable=False, server_default="UTC"),
    Column("anchor_at", Instant, nullable=False),
    Column("start_at", Instant, nullable=False),
    Column("end_at", Instant),
    Column("max_runs", BigInteger),
    Column("capped", Boolean, nullable=False, server_default=text("false")),
    Column("scopes", ARRAY(Text), nullable=False, server_default='{""}'),
    Column("tails", ARRAY(Text), nullable=False),
    Column("salt", Integer, nullable=False),
    Column("jitter_ms", Integer, nullable=False, server_default="0"),
    Column("misfire_grace_seconds", Integer),
    Column("catch_up", Text, nullable=False, server_default="latest"),
    Column("catch_up_window_seconds", Integer, nullable=False, server_default="86400"),
    Column("max_plans_per_tick", Integer, nullable=False, server_default="100"),
    Column("overlap", Text, nullable=False, server_default="skip"),
    Column("target", JSONB, nullable=False),
    Column("payload", JSONB),
    Column("timeout_seconds", Double, nullable=False, server_default="30"),
    Column("delivery", Text, nullable=False, server_default="at-least-once"),
    Column("max_attempts", Integer, nullable=False, server_default="4"),
    Column("backoff_seconds", ARRAY(Double), nullable=False, server_default="{60}"),
    Column("lease_seconds", Double),
    Column("labels", JSONB, nullable=False, server_default="{}"),
    Column("metadata", JSONB, nullable=False, server_default="{}"),
    Column("note", Text),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("next_tick_needed_at", Instant),
    Column("next_n", BigInteger, nullable=False, server_default="1"),
    Column("accounted_n", BigInteger, nullable=False, server_default="0"),
    Column("accounted_from", Instant, nullable=False),
    Column("runs_removed", BigInteger, nullable=False, server_default="0"),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("paused_at", Instant),
    Column("cancelled_at", Instant),
    Column("deleted_at", Instant),
    CheckConstraint("num_nonnulls(interval_seconds, cron_expression, run_at) = 1", "cron_schedules_one_rule"),
)
Index(
    "cron_schedules_name",
    cron_schedules.c.workspace_id,
    cron_schedules.c.name,
    unique=True,
    postgresql_where=text("deleted_at IS NULL"),
)
Index(
    "cron_schedules_due",
    cron_schedules.c.next_tick_needed_at,
    postgresql_where=text("enabled AND NOT capped"),
)

schedule_versions = Table(
    "schedule_versions",
    metadata,
    Column("schedule_id", UUID, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("after_n", BigInteger, nullable=False),
    Column("after_at", Instant, nullable=False),
    Column("interval_seconds", Integer),
    Column("cron_expression", Text),
    Column("run_at", Instant),
    Column("timezone", Text, nullable=False),
    Column("anchor_at", Instant, nullable=False),
    Column("start_at", Instant, nullable=False),
    Column("end_at", Instant),
    Column("scopes", ARRAY(Text), nullable=False),
    Column("definition", JSONB, nullable=False),
    Column("zone_data", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
)

cron_ticks = Table(
    "cron_ticks",
    metadata,
    Column("schedule_id", UUID, primary_key=True),
    Column("scope", Text, primary_key=True),
    Column("scheduled_at", Instant, primary_key=True),
    Column("execute_at", Instant, nullable=False),
    Column("n", BigInteger, nullable=False),
    Column("id", UUID, nullable=False),
    CheckConstraint("execute_at >= scheduled_at", "cron_ticks_never_early"),
)
Index("cron_ticks_due", cron_ticks.c.execute_at)

executions = Table(
    "executions",
    metadata,
    Column("id", UUID, primary_key=True),
    Column("schedule_id", UUID, nullable=False),
    Column("scope", Text, nullable=False),
    Column("scheduled_at", Instant, nullable=False),
    Column("run", Text, nullable=False, server_default=""),
    Column("n", BigInteger),
    Column("workspace_id", Text, nullable=False),
    Column("execute_at", Instant, nullable=False),
    Column("status", Text, nullable=False, server_default="emitted"),
    Column("slot", BigInteger),
    Column("attempt", Integer, nullable=False, server_default="0"),
    Column("next_attempt_at", Instant, nullable=False),
    Column("leased_by", Text),
    Column("leased_at", Instant),
    Column("leased_until", Instant),
    Column("lease_token", UUID),
    Column("started_at", Instant),
    Column("finished_at", Instant),
    Column("error", Text),
    Column("retry_of", UUID),
    Column("fence", BigInteger),
)
Index(
    "executions_identity",
    executions.c.schedule_id,
    executions.c.scheduled_at,
    executions.c.scope,
    executions.c.run,
    unique=True,
)
Index("executions_due", executions.c.next_attempt_at, postgresql_where=text("status = 'emitted'"))
Index("executions_in_flight", executions.c.leased_by, postgresql_where=text("status = 'in_progress'"))
Index(
    "executions_slot",
    executions.c.schedule_id,
    executions.c.scope,
    executions.c.slot,
    unique=True,
    postgresql_where=text("slot IS NOT NULL AND status IN ('emitted', 'in_progress')"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("execution_id", UUID, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("worker_id", Text, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("finished_at", Instant, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("status_code", Integer),
    Column("error", Text),
    Column("response", JSONB),
)

gaps = Table(
    "gaps",
    metadata,
    Column("schedule_id", UUID, primary_key=True),
    Column("scope", Text, primary_key=True, server_default=""),
    Column("first_n", BigInteger, primary_key=True),
    Column("last_n", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("first_scheduled_at", Instant, nullable=False),
    Column("last_scheduled_at", Instant, nullable=False),
    Column("count", BigInteger, Computed("last_n - first_n + 1", persisted=True)),
    CheckConstraint("last_n >= first_n AND last_scheduled_at >= first_scheduled_at", "gaps_in_order"),
)

workers = Table(
    "workers",
    metadata,
    Column("id", Text, primary_key=True),
    Column("role", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("version", Text, nullable=False),
    Column("shard_id", Integer, nullable=False),
    Column("shard_count", Integer, nullable=False),
    Column("health", Text),
    Column("started_at", Instant, nullable=False),
    Column("heartbeat_at", Instant, nullable=False),
)
