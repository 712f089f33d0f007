"""The spine: schedules, their versions, ticks, executions, attempts, gaps, workers.

Revision ID: 0001
Revises:
"""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# next_tick_needed_at is the cursor: the first planned time that has no row yet. It alone decides what is generated
# (never the absence of a row), so clean-up cannot cause anything to run again. next_n is that planned time's number.
SCHEDULES = """
CREATE TABLE cron_schedules (
    id uuid PRIMARY KEY,
    workspace_id text NOT NULL DEFAULT 'system',
    name text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    queue_name text NOT NULL DEFAULT 'default',
    interval_seconds integer CHECK (interval_seconds > 0),
    cron_expression text,
    run_at timestamptz,
    timezone text NOT NULL DEFAULT 'UTC',
    anchor_at timestamptz NOT NULL,
    start_at timestamptz NOT NULL,
    end_at timestamptz,
    max_runs bigint CHECK (max_runs > 0),
    capped boolean NOT NULL DEFAULT false,
    scopes text[] NOT NULL DEFAULT '{""}' CHECK (cardinality(scopes) > 0),
    tails text[] NOT NULL CHECK (cardinality(tails) = cardinality(scopes)),
    salt integer NOT NULL,
    jitter_ms integer NOT NULL DEFAULT 0 CHECK (jitter_ms >= 0),
    misfire_grace_seconds integer CHECK (misfire_grace_seconds >= 0),
    catch_up text NOT NULL DEFAULT 'latest' CHECK (catch_up IN ('latest', 'all', 'none')),
    catch_up_window_seconds integer NOT NULL DEFAULT 86400 CHECK (catch_up_window_seconds > 0),
    max_plans_per_tick integer NOT NULL DEFAULT 100 CHECK (max_plans_per_tick > 0),
    overlap text NOT NULL DEFAULT 'skip' CHECK (overlap IN ('skip', 'queue', 'allow')),
    target jsonb NOT NULL,
    payload jsonb,
    timeout_seconds double precision NOT NULL DEFAULT 30,
    delivery text NOT NULL DEFAULT 'at-least-once' CHECK (delivery IN ('at-least-once', 'at-most-once')),
    max_attempts integer NOT NULL DEFAULT 4 CHECK (max_attempts > 0),
    backoff_seconds double precision[] NOT NULL DEFAULT '{60}',
    lease_seconds double precision CHECK (lease_seconds > 0),
    labels jsonb NOT NULL DEFAULT '{}',
    metadata jsonb NOT NULL DEFAULT '{}',
    note text,
    enabled boolean NOT NULL DEFAULT true,
    version integer NOT NULL DEFAULT 1,
    next_tick_needed_at timestamptz,
    next_n bigint NOT NULL DEFAULT 1,
    accounted_n bigint NOT NULL DEFAULT 0,
    accounted_from timestamptz NOT NULL,
    runs_removed bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    paused_at timestamptz,
    cancelled_at timestamptz,
    deleted_at timestamptz,
    CONSTRAINT cron_schedules_one_rule CHECK (num_nonnulls(interval_seconds, cron_expression, run_at) = 1)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
CREATE UNIQUE INDEX cron_schedules_name ON cron_schedules (workspace_id, name) WHERE deleted_at IS NULL;
CREATE INDEX cron_schedules_due ON cron_schedules (next_tick_needed_at) WHERE enabled AND NOT capped;
"""

# The rule in force by number: the j-th planned time strictly after after_at has number after_n + j. Edits that leave
# the rule alone copy after_n and after_at from the version before.
VERSIONS = """
CREATE TABLE schedule_versions (
    schedule_id uuid NOT NULL,
    version integer NOT NULL,
    after_n bigint NOT NULL,
    after_at timestamptz NOT NULL,
    interval_seconds integer,
    cron_expression text,
    run_at timestamptz,
    timezone text NOT NULL,
    anchor_at timestamptz NOT NULL,
    start_at timestamptz NOT NULL,
    end_at timestamptz,
    scopes text[] NOT NULL,
    definition jsonb NOT NULL,
    zone_data text NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (schedule_id, version)
);
"""

# No status, no payload, no lease: deleting the tick and inserting its execution is one statement, which is the lease.
TICKS = """
CREATE TABLE cron_ticks (
    schedule_id uuid NOT NULL,
    scope text NOT NULL,
    scheduled_at timestamptz NOT NULL,
    execute_at timestamptz NOT NULL,
    n bigint NOT NULL,
    id uuid NOT NULL,
    PRIMARY KEY (schedule_id, scope, scheduled_at),
    CONSTRAINT cron_ticks_never_early CHECK (execute_at >= scheduled_at)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX cron_ticks_due ON cron_ticks (execute_at);
"""

# executions_slot decides overlap: NULL allows it, 0 lets one unfinished execution live, a queue takes the planned
# time in microseconds. leased_until is in no index, so that heartbeats are HOT. executions_identity also serves the
# history of one schedule and retention.
EXECUTIONS = """
CREATE TABLE executions (
    id uuid PRIMARY KEY,
    schedule_id uuid NOT NULL,
    scope text NOT NULL,
    scheduled_at timestamptz NOT NULL,
    run text NOT NULL DEFAULT '',
    n bigint,
    workspace_id text NOT NULL,
    execute_at timestamptz NOT NULL,
    status text NOT NULL DEFAULT 'emitted'
        CHECK (status IN ('emitted', 'in_progress', 'delivered', 'failed', 'cancelled')),
    slot bigint,
    attempt integer NOT NULL DEFAULT 0,
    next_attempt_at timestamptz NOT NULL,
    leased_by text,
    leased_at timestamptz,
    leased_until timestamptz,
    lease_token uuid,
    started_at timestamptz,
    finished_at timestamptz,
    error text,
    retry_of uuid,
    CONSTRAINT executions_planned CHECK ((run = '') = (n IS NOT NULL)),
    CONSTRAINT executions_token CHECK ((status = 'in_progress') = (lease_token IS NOT NULL)),
    CONSTRAINT executions_lease CHECK ((status = 'in_progress') = (leased_until IS NOT NULL)),
    CONSTRAINT executions_final CHECK ((finished_at IS NOT NULL) = (status IN ('delivered', 'failed', 'cancelled')))
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05,
        autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX executions_identity ON executions (schedule_id, scheduled_at, scope, run);
CREATE INDEX executions_due ON executions (next_attempt_at) WHERE status = 'emitted';
CREATE INDEX executions_in_flight ON executions (leased_by) WHERE status = 'in_progress';
CREATE UNIQUE INDEX executions_slot ON executions (schedule_id, scope, slot)
    WHERE slot IS NOT NULL AND status IN ('emitted', 'in_progress');

CREATE FUNCTION fleet_refuse_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'execution % is % and cannot change', OLD.id, OLD.status USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER executions_stay_final BEFORE UPDATE ON executions
    FOR EACH ROW WHEN (OLD.finished_at IS NOT NULL) EXECUTE FUNCTION fleet_refuse_final();
"""

# Written once, when the attempt is over (the lease on the execution's row is what is committed before sending), so
# the table only ever grows and shrinks: no dead rows.
ATTEMPTS = """
CREATE TABLE attempts (
    execution_id uuid NOT NULL,
    attempt integer NOT NULL,
    worker_id text NOT NULL,
    started_at timestamptz NOT NULL,
    finished_at timestamptz NOT NULL,
    outcome text NOT NULL CHECK (outcome IN
        ('delivered', 'refused', 'broken', 'timeout', 'lost', 'cancelled', 'handed_back')),
    status_code integer,
    error text,
    PRIMARY KEY (execution_id, attempt)
);
"""

GAPS = """
CREATE TABLE gaps (
    schedule_id uuid NOT NULL,
    scope text NOT NULL DEFAULT '',
    first_n bigint NOT NULL,
    last_n bigint NOT NULL,
    reason text NOT NULL CHECK (reason IN ('paused', 'overlap', 'catch_up', 'window', 'freeze', 'edited', 'deleted',
        'cancelled', 'dependency', 'ended')),
    first_scheduled_at timestamptz NOT NULL,
    last_scheduled_at timestamptz NOT NULL,
    count bigint GENERATED ALWAYS AS (last_n - first_n + 1) STORED,
    PRIMARY KEY (schedule_id, scope, first_n),
    CONSTRAINT gaps_in_order CHECK (last_n >= first_n AND last_scheduled_at >= first_scheduled_at)
);
"""

WORKERS = """
CREATE TABLE workers (
    id text PRIMARY KEY,
    role text NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    version text NOT NULL,
    shard_id integer NOT NULL,
    shard_count integer NOT NULL,
    health text,
    started_at timestamptz NOT NULL,
    heartbeat_at timestamptz NOT NULL
);
"""

# An id is a pure function of (schedule, scope, scheduled_at, run): a UUIDv8 of 48 bits of milliseconds and 72 bits of
# sha256. The hash's digits are stored per schedule and scope (tails), so that a tick costs no hashing. Jitter is two
# rounds of a linear congruence on whole milliseconds: integers only, the same in Python.
FUNCTIONS = """
CREATE FUNCTION fleet_tail(schedule uuid, scope text, run text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT substr(encode(sha256(convert_to(
        schedule::text || chr(31) || scope || chr(31) || run, 'UTF8')), 'hex'), 1, 18)
$$;
CREATE FUNCTION fleet_millis(at timestamptz) RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT round(date_part('epoch', at) * 1000)::bigint
$$;
CREATE FUNCTION fleet_id(tail text, at timestamptz) RETURNS uuid LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT (lpad(to_hex(fleet_millis(at)), 12, '0') || '8' || substr(tail, 1, 3) || '8' || substr(tail, 4))::uuid
$$;
CREATE FUNCTION fleet_jitter(salt integer, at timestamptz, jitter_ms integer) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN jitter_ms = 0 THEN 0 ELSE
        ((fleet_millis(at) % 2147483647 + salt) % 2147483647 * 48271 % 2147483647 * 69621 % 2147483647)
        % (jitter_ms + 1) END
$$;
CREATE FUNCTION fleet_shard(schedule uuid, shards integer) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (uuid_hash(schedule) & 2147483647) % shards
$$;
"""


def upgrade() -> None:
    for statement in (SCHEDULES, VERSIONS, TICKS, EXECUTIONS, ATTEMPTS, GAPS, WORKERS, FUNCTIONS):
        op.execute(statement)


def downgrade() -> None:
    op.execute("""
        DROP TABLE workers, gaps, attempts, executions, cron_ticks, schedule_versions, cron_schedules;
        DROP FUNCTION fleet_refuse_final(), fleet_shard(uuid, integer), fleet_jitter(integer, timestamptz, integer),
            fleet_id(text, timestamptz), fleet_millis(timestamptz), fleet_tail(uuid, text, text);
    """)
