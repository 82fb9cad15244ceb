-- Locks the consumer's row: while its batches collide, they run one at a time, over all processes. Only their speed
-- depends on it.
create or replace function oncely.take_turn(consumer text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
begin
    perform from oncely.turns as t where t.consumer = take_turn.consumer for no key update;
    return found;
exception
    when lock_not_available then
        return false;
end
$$;
comment on function oncely.take_turn is
    'Makes the transaction the only batch of its consumer that takes turns, until its end; false where another one has '
    'been that for two seconds.';
revoke execute on function oncely.take_turn from public;
