-- Erases a tenant from the trail, one sealed span after another, each call in a transaction of its own. Sealed rows
-- change, so the span gets another seal, which says why. A span that does not match its seal gets none: an erasure must
-- not hide changes by another session. The remaining rows do not reveal the tenant: the pseudonym says nothing, and the
-- salt is stored nowhere. For the schema's owner alone.
create or replace function oncely.erase_trail(
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
    -- No session seals meanwhile.
    perform from oncely.maintenance for update;
    select s.place, s.from_time, s.until_time into span
    from oncely.audit_seals as s
    where s.kind = 'rows' and s.place > erase_trail.place
    order by s.place
    limit 1;
    -- Rows that no seal covers come last.
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
            -- Rows of one key keep a common key.
            key = case
                when a.key = '' then ''
                else 'erased-' || encode(substr(sha256(erase_trail.salt || convert_to(a.key, 'UTF8')), 1, 16), 'hex')
            end,
            detail = null, trace_id = null,
            -- Removes names that contain the tenant's.
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
