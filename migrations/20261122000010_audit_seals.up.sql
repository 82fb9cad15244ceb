set local search_path = pg_catalog, pg_temp;

-- The trail is evidence only where nobody can change it without a trace. Rows are written by everybody's transactions,
-- so they can't be chained one by one; the maintenance seals closed spans of time instead: the hash of what they
-- hold, and of the seal before. Whoever changes a row afterwards must forge all later seals, and the last hash that
-- somebody has written down elsewhere (the relay logs it).
create table oncely.audit_seals (
    place bigint not null,
    kind text collate "C" not null,
    from_time timestamptz not null,
    until_time timestamptz not null,
    row_count bigint not null,
    digest bytea not null,
    previous bytea not null,
    hash bytea not null,
    sealed_at timestamptz not null,
    constraint audit_seals_pkey primary key (place),
    constraint audit_seals_kind check (kind in ('rows', 'erased', 'dropped')),
    constraint audit_seals_span check (from_time < until_time),
    constraint audit_seals_times check (
        least(from_time, until_time, sealed_at) >= '1970-01-01 00:00:00+00'
        and greatest(from_time, until_time, sealed_at) <= '9999-12-31 00:00:00+00'
    )
);
comment on table oncely.audit_seals is
    'A chain of seals over the trail; see oncely audit verify. They stay when their rows are dropped.';
comment on column oncely.audit_seals.place is 'Place in the chain, from 1.';
comment on column oncely.audit_seals.kind is
    'rows: what the trail held for the span. erased: what it holds since a tenant was erased from it. dropped: the '
    'trail was dropped up to the end of the span, after audit.retention.';
comment on column oncely.audit_seals.from_time is 'Beginning of the span; included.';
comment on column oncely.audit_seals.until_time is 'End of the span; not included.';
comment on column oncely.audit_seals.row_count is 'Rows of the span.';
comment on column oncely.audit_seals.digest is 'Hash of the rows (oncely.audit_digest).';
comment on column oncely.audit_seals.previous is 'Hash of the seal before; empty for the first.';
comment on column oncely.audit_seals.hash is 'Hash of all this (oncely.seal_hash).';
comment on column oncely.audit_seals.sealed_at is 'When it was sealed, by the database''s clock.';

-- As a row's text without the nulls at its end: a column that is added later changes no hash of before. (What ends in a
-- comma or a bracket stands in quotes there.) Second by second, so that no text grows too long, and in the order of the
-- hashes, since the rows have none.
create function oncely.audit_digest(
    from_time timestamptz, until_time timestamptz, out row_count bigint, out digest bytea
)
language sql stable
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set datestyle = 'ISO, YMD'
set bytea_output = 'hex'
as $$
    select coalesce(sum(s.row_count), 0)::bigint,
        sha256(coalesce(string_agg(s.digest, ''::bytea order by s.second), ''::bytea))
    from (
        select r.second, count(*) as row_count, sha256(string_agg(r.digest, ''::bytea order by r.digest)) as digest
        from (
            select date_trunc('second', a.occurred_at) as second,
                sha256(convert_to(rtrim(a::text, ',)'), 'UTF8')) as digest
            from oncely.audit as a
            where a.occurred_at >= audit_digest.from_time and a.occurred_at < audit_digest.until_time
        ) as r
        group by r.second
    ) as s
$$;
comment on function oncely.audit_digest is 'Rows of a span of the trail, and their hash.';
revoke execute on function oncely.audit_digest from public;

create function oncely.seal_hash(seal oncely.audit_seals) returns bytea
language sql stable
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
as $$
    select sha256(convert_to(
        jsonb_build_array(
            'oncely seal 1', seal.place, seal.kind, seal.from_time, seal.until_time, seal.row_count,
            encode(seal.digest, 'hex'), encode(seal.previous, 'hex'), seal.sealed_at
        )::text, 'UTF8'
    ))
$$;
comment on function oncely.seal_hash is 'The hash that a seal must have.';
revoke execute on function oncely.seal_hash from public;

create function oncely.append_seal(kind text, from_time timestamptz, until_time timestamptz) returns oncely.audit_seals
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    last record;
    seal oncely.audit_seals;
begin
    -- One appends at a time.
    perform from oncely.maintenance for update;
    select s.place, s.hash into last from oncely.audit_seals as s order by s.place desc limit 1;
    seal.place := coalesce(last.place, 0) + 1;
    seal.previous := coalesce(last.hash, ''::bytea);
    seal.kind := append_seal.kind;
    seal.from_time := append_seal.from_time;
    seal.until_time := append_seal.until_time;
    seal.sealed_at := clock_timestamp();
    if append_seal.kind in ('rows', 'erased') then
        select d.row_count, d.digest into seal.row_count, seal.digest
        from oncely.audit_digest(append_seal.from_time, append_seal.until_time) as d;
    else
        seal.row_count := 0;
        seal.digest := ''::bytea;
    end if;
    seal.hash := oncely.seal_hash(seal);
    insert into oncely.audit_seals values (seal.*);
    return seal;
end
$$;
comment on function oncely.append_seal is 'Appends a seal to the chain.';
revoke execute on function oncely.append_seal from public;

-- A row's time is taken before its transaction commits, and a span is closed only when nobody can still add to it: when
-- every transaction is over that was there at a mark, and ten minutes more for a time that was taken before its
-- transaction began to write.
create function oncely.seal_audit(out until_time timestamptz, out row_count bigint, out hash bytea)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    held record;
    closed timestamptz;
    begins timestamptz;
    ends timestamptz;
    step interval;
    seal oncely.audit_seals;
begin
    select u.seal_mark_at, u.seal_mark_xid into held from oncely.maintenance as u for update;
    -- A restored copy counts its transactions anew.
    if held.seal_mark_xid is null or held.seal_mark_xid > pg_snapshot_xmax(pg_current_snapshot()) then
        held.seal_mark_at := clock_timestamp();
        -- Our own: a snapshot's xmax may lie below transactions that run, as long as no later one has ended.
        held.seal_mark_xid := pg_current_xact_id();
        update oncely.maintenance set seal_mark_at = held.seal_mark_at, seal_mark_xid = held.seal_mark_xid;
    end if;
    if pg_snapshot_xmin(pg_current_snapshot()) < held.seal_mark_xid then
        return;
    end if;
    closed := held.seal_mark_at - interval '10 minutes';
    select max(s.until_time) into begins from oncely.audit_seals as s;
    if begins is null then
        select min(to_date(right(c.relname, 8), 'YYYYMMDD'))::timestamp at time zone 'UTC' into begins
        from pg_inherits as i
        join pg_class as c on c.oid = i.inhrelid
        where i.inhparent = 'oncely.audit'::regclass and c.relname ~ '^audit_[0-9]{8}$';
    end if;
    if begins is null or begins >= closed then
        -- All is sealed up to the mark: the next one.
        update oncely.maintenance
        set seal_mark_at = clock_timestamp(), seal_mark_xid = pg_current_xact_id();
        return;
    end if;
    -- As much as one statement hashes in a moment; a day at most, so that no span reaches into another week's
    -- partition.
    foreach step in array array[
        interval '1 day', interval '1 hour', interval '10 minutes', interval '1 minute', interval '1 second'
    ] loop
        ends := least(closed, date_bin(step, begins, timestamptz '2000-01-03 00:00:00+00') + step);
        exit when (
            select count(*) from (
                select from oncely.audit as a where a.occurred_at >= begins and a.occurred_at < ends limit 50001
            ) as rows_there
        ) <= 50000;
    end loop;
    seal := oncely.append_seal('rows', begins, ends);
    until_time := seal.until_time;
    row_count := seal.row_count;
    hash := seal.hash;
end
$$;
comment on function oncely.seal_audit is
    'Seals the next closed span of the trail; returns nulls where there is none yet.';
revoke execute on function oncely.seal_audit from public;

-- Takes a tenant out of the trail, one sealed span after another, each call in a transaction of its own. What is sealed
-- changes, so the span gets another seal, which says why. A span that is not as it was sealed gets none: an erasure
-- must not hide what somebody else has changed. Whose rows they were can't be found out from what stays: the pseudonym
-- says nothing, and the salt is kept nowhere. For the schema's owner alone.
create function oncely.erase_trail(
    tenant text, pseudonym text, salt bytea, inout place bigint, out rows_erased bigint, out was_whole boolean
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    span record;
    begins timestamptz := '-infinity';
    ends timestamptz := 'infinity';
begin
    rows_erased := 0;
    was_whole := true;
    -- Nobody seals meanwhile.
    perform from oncely.maintenance for update;
    select s.place, s.from_time, s.until_time into span
    from oncely.audit_seals as s
    where s.kind = 'rows' and s.place > erase_trail.place
    order by s.place
    limit 1;
    -- What no seal covers comes last.
    place := span.place;
    if span.place is not null then
        begins := span.from_time;
        ends := span.until_time;
        if not exists (
            select from oncely.audit as a
            where a.tenant = erase_trail.tenant and a.occurred_at >= begins and a.occurred_at < ends
        ) then
            return;
        end if;
        select s.row_count = d.row_count and s.digest = d.digest into was_whole
        from oncely.audit_seals as s
        cross join oncely.audit_digest(begins, ends) as d
        where s.kind in ('rows', 'erased') and s.from_time = begins and s.until_time = ends
        order by s.place desc
        limit 1;
    end if;
    if pseudonym is null then
        delete from oncely.audit as a
        where a.tenant = erase_trail.tenant and a.occurred_at >= begins and a.occurred_at < ends;
    else
        update oncely.audit as a
        set tenant = erase_trail.pseudonym,
            -- Rows of one key stay together.
            key = case
                when a.key = '' then ''
                else 'erased-' || encode(substr(sha256(erase_trail.salt || convert_to(a.key, 'UTF8')), 1, 16), 'hex')
            end,
            detail = null, trace_id = null,
            -- Names that say whose it was.
            queue = case when strpos(a.queue, erase_trail.tenant) > 0 then '' else a.queue end,
            worker = case when strpos(a.worker, erase_trail.tenant) > 0 then '' else a.worker end,
            login = case when strpos(a.login, erase_trail.tenant) > 0 then null else a.login end
        where a.tenant = erase_trail.tenant and a.occurred_at >= begins and a.occurred_at < ends;
    end if;
    get diagnostics rows_erased = row_count;
    if span.place is not null and was_whole then
        perform oncely.append_seal('erased', begins, ends);
    end if;
end
$$;
comment on function oncely.erase_trail is
    'Erases a tenant from the next sealed span of the trail after a place of the chain, or from what is not sealed '
    'where there is none (place is null then): its rows get a pseudonym, or go where that is null. Seals the span '
    'anew, unless it was not as it was sealed. For the schema''s owner; see oncely tenant erase.';
revoke execute on function oncely.erase_trail from public;

create function oncely.drop_audit_partition(before_time timestamptz) returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '900ms'
as $$
declare
    partition text;
    cutoff timestamptz;
    least_age interval;
    known timestamptz;
    gone bigint;
begin
    select c.audit_floor into least_age from oncely.cell as c;
    -- A clock that has jumped makes nothing old (oncely.observe_clock).
    select least(u.clock_seen_at, clock_timestamp()) into known from oncely.maintenance as u;
    if before_time is null or before_time > known - least_age then
        raise exception using errcode = 'ONC20',
            message = format('oncely: the trail is kept for %s at least, up to %s', least_age, known),
            hint = 'The owner of the schema can lower it: update oncely.cell set audit_floor = …';
    end if;
    perform oncely.take_lock('audit_partitions', false);
    select c.relname, (to_date(right(c.relname, 8), 'YYYYMMDD') + 7)::timestamp at time zone 'UTC'
    into partition, cutoff
    from pg_inherits as i
    join pg_class as c on c.oid = i.inhrelid
    where i.inhparent = 'oncely.audit'::regclass
      and c.relname ~ '^audit_[0-9]{8}$'
      and to_date(right(c.relname, 8), 'YYYYMMDD') + 7 <= before_time at time zone 'UTC'
    order by c.relname
    limit 1;
    if partition is not null then
        execute format('drop table oncely.%I', partition);
    else
        cutoff := date_trunc('week', before_time at time zone 'UTC') at time zone 'UTC';
    end if;
    delete from oncely.audit_default where occurred_at < cutoff;
    get diagnostics gone = row_count;
    if partition is not null or gone > 0 then
        select max(s.until_time) into known from oncely.audit_seals as s where s.kind = 'dropped';
        if known is null or known < cutoff then
            perform oncely.append_seal('dropped', coalesce(known, '1970-01-01 00:00:00+00'), cutoff);
        end if;
    end if;
    return partition;
end
$$;
comment on function oncely.drop_audit_partition is
    'Drops the oldest partition that lies wholly before the time; returns its name, or null where there is none. '
    'Nothing that is younger than oncely.cell.audit_floor (SQLSTATE ONC20). To be called in a transaction of its '
    'own.';
revoke execute on function oncely.drop_audit_partition from public;

create function oncely.drop_audit_partitions(before_time timestamptz) returns setof text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    partition text;
begin
    loop
        partition := oncely.drop_audit_partition(before_time);
        exit when partition is null;
        return next partition;
    end loop;
end
$$;
comment on function oncely.drop_audit_partitions is
    'Drops the partitions that lie wholly before the time, in one transaction; returns their names. See '
    'oncely.drop_audit_partition.';
revoke execute on function oncely.drop_audit_partitions from public;
