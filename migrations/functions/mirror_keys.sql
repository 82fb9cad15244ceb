create or replace function oncely.mirror_keys(out id text, out secret bytea) returns setof record
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
    select s.id, s.secret
    from oncely.secrets as s, (select clock_timestamp() as at) as n
    where s.purpose = 'mirror' and (s.accepted_until is null or s.accepted_until > n.at)
    order by s.signs_from is null, s.signs_from > n.at, s.signs_from desc, s.id
$$;
comment on function oncely.mirror_keys is 'Keys of the tags; the first is the one that makes them now.';
revoke execute on function oncely.mirror_keys from public;
