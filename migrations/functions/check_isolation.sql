-- Requires READ COMMITTED: on an older snapshot, a session that had to wait would miss the previous session's work.
create or replace function oncely.check_isolation() returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception using errcode = 'ONC10',
            message = format('oncely: the transaction is %s', upper(current_setting('transaction_isolation'))),
            hint = 'Begin it with SET TRANSACTION ISOLATION LEVEL READ COMMITTED.';
    end if;
end
$$;
comment on function oncely.check_isolation is 'Refuses a transaction that is not READ COMMITTED (SQLSTATE ONC10).';
