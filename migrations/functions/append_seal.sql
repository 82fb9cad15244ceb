create or replace function oncely.append_seal(kind text, from_time timestamptz, until_time timestamptz)
returns oncely.audit_seals
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    last record;
    seal oncely.audit_seals;
begin
    -- Only one session appends at a time.
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
