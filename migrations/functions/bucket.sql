-- Maps a tenant to a bucket, for ever: first two bytes of SHA-256, modulo 1,024. Cells will own buckets, not tenants.
create or replace function oncely.bucket(tenant text) returns integer
language sql immutable strict parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select (
        get_byte(sha256(convert_to(tenant, 'UTF8')), 0) * 256 + get_byte(sha256(convert_to(tenant, 'UTF8')), 1)
    ) % 1024
$$;
comment on function oncely.bucket is 'Bucket 0..1023 of a tenant; never changes.';
