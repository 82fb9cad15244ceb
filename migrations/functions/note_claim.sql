-- Notes the claim in a setting, which a rollback to a savepoint undoes together with the claim.
create or replace function oncely.note_claim(tenant text) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform set_config(
        'oncely.claimed',
        case
            when coalesce(current_setting('oncely.claimed', true), '') in ('', '=' || tenant) then '=' || tenant
            else '*'
        end,
        true
    );
end
$$;
comment on function oncely.note_claim is 'Notes for oncely.emit whose message this transaction has claimed.';
revoke execute on function oncely.note_claim from public;
