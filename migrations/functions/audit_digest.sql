-- Hashes each row's text without its trailing nulls: a column that is added later changes no earlier hash. (A value
-- that ends in a comma or a bracket is quoted there.) Hashes second by second, so that no text grows too long, and in
-- the order of the hashes, since the rows have none.
create or replace function oncely.audit_digest(
    from_time timestamptz, until_time timestamptz, out row_count bigint, out digest bytea
)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set datestyle = 'ISO, YMD'
set bytea_output = 'hex'
as $$
#variable_conflict use_column
begin
    select coalesce(sum(s.row_count), 0)::bigint,
        sha256(coalesce(string_agg(s.digest, ''::bytea order by s.second), ''::bytea))
    into row_count, digest
    from (
        select r.second, count(*) as row_count, sha256(string_agg(r.digest, ''::bytea order by r.digest)) as digest
        from (
            select date_trunc('second', a.occurred_at) as second,
                sha256(convert_to(rtrim(a::text, ',)'), 'UTF8')) as digest
            from oncely.audit as a
            where a.occurred_at >= audit_digest.from_time and a.occurred_at < audit_digest.until_time
        ) as r
        group by r.second
    ) as s;
end
$$;
comment on function oncely.audit_digest is 'Rows of a span of the trail, and their hash.';
revoke execute on function oncely.audit_digest from public;
