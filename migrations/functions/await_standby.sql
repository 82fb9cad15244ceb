-- Makes COMMIT wait for the standby. A commit with an interrupted wait for the standby is visible, and would still be
-- lost by a failover. A transaction that relies on it must wait by its own commit, which waits only if the transaction
-- has written something.
create or replace function oncely.await_standby() returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('synchronous_standby_names') <> '' then
        perform pg_logical_emit_message(true, 'oncely', '');
    end if;
end
$$;
comment on function oncely.await_standby is
    'Makes the COMMIT of this transaction wait for the synchronous standby, where there is one.';
