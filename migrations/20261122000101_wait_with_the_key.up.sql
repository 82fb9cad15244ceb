set local search_path = pg_catalog, pg_temp;

-- How long a failed message waits was known to its copy alone: each further copy of it (a producer's repetition, an original that is
-- redelivered beside its copy) ran at once and spent an attempt. The time belongs to the key.
alter table oncely.idempotency_keys add column not_before timestamptz;
comment on column oncely.idempotency_keys.not_before is 'IN_PROGRESS: no copy of the message runs before this time. Null: any may.';

-- What a message answers for once it answers for again: whose fault an error is takes a witness, and there may be none the next time.
alter table oncely.idempotency_keys add column error_code text collate "C";
comment on column oncely.idempotency_keys.error_code is 'SQLSTATE of the last failure that spent an attempt.';

-- A count of runs that nobody reported could not tell a run that died from one that is at work elsewhere.
alter table oncely.idempotency_keys add column marked_pid integer;
alter table oncely.idempotency_keys add column marked_backend_start timestamptz;
comment on column oncely.idempotency_keys.marked_pid is 'With crash_attempts: the PostgreSQL process that serves the run counted last. As long as it is there, that run is no death.';
comment on column oncely.idempotency_keys.marked_backend_start is 'When that PostgreSQL process started: tells it from a later one of the same number.';

-- As pg::class_of in Rust. 2200H (an exhausted sequence) strikes every message alike, so it is the environment's.
create or replace function oncely.error_class(code text) returns text
language sql immutable parallel safe
as $$
    select case
        when code = 'ONC01' then 'handler_rejected'
        when code = 'ONC02' then 'invalid_json'
        when code in ('ONC04', 'ONC05', 'ONC11', 'ONC15') then 'poison'
        when code = '57014' then 'transient'
        when code in ('25006', '2200H') or left(code, 2) in ('08', '57', '53', '58', '42', '3F', '3D', '28', 'XX', 'F0')
            then 'environment'
        when left(code, 2) in ('22', '54') then 'poison'
        else 'transient'
    end
$$;
