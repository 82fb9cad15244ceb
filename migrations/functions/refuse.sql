-- Refuses a message for business reasons (sold out, account closed). This is no failure: nothing needs repair, and no
-- requeue follows. A refusal is recorded like an effect, with its answer, and makes no dead letter.
create or replace function oncely.refuse(reason text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using errcode = 'ONC07', message = coalesce(reason, '');
end
$$;
comment on function oncely.refuse is
    'For handlers: no, and that is the answer. Rolls back what the handler wrote for this message (SQLSTATE ONC07); '
    'the key is completed with the response {"refused": reason}, which a duplicate gets again, and the message is '
    'acknowledged.';
