-- A business "no" (sold out, account closed) is no failure: nothing is to be mended, and it is not requeued. It is
-- recorded like an effect, with its answer, and makes no dead letter.
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
