create or replace function oncely.signing_keys(out purpose text, out id text, out secret bytea) returns setof record
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
    select s.purpose, s.id, s.secret
    from oncely.secrets as s, (select clock_timestamp() as at) as n
    where s.purpose in ('identity', 'letter') and (s.accepted_until is null or s.accepted_until > n.at)
    order by s.purpose, s.signs_from is null, s.signs_from > n.at, s.signs_from desc, s.id
$$;
comment on function oncely.signing_keys is
    'Keys of signed identities and of letter marks; of each purpose the first is the one that signs now.';
revoke execute on function oncely.signing_keys from public;
