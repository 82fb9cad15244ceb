create or replace function oncely.lease_is_lost() returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using errcode = 'ONC18', message = 'oncely: this lease of the key is over',
        hint = 'Another run has the key, or it was given back, failed or settled. Roll back; oncely.fail_lease says '
            'so in the trail.';
end
$$;
comment on function oncely.lease_is_lost is 'Raises SQLSTATE ONC18.';
