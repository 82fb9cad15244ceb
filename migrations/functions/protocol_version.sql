create or replace function oncely.protocol_version() returns integer
language sql immutable parallel safe
begin atomic
    select 1;
end;
comment on function oncely.protocol_version is
    'Version of oncely.claim, complete and fail. Within a version parameters with defaults and columns are only '
    'added. Reserved: the outcome elsewhere and SQLSTATE ONC17, not in this cell: do nothing, requeue.';
