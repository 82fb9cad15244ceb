create or replace function oncely.seal_hash(seal oncely.audit_seals) returns bytea
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
