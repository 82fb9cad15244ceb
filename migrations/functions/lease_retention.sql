-- The retention of a key that carries its own end counts from its last word, and the token is the time of the claim
-- that said it, unless the clock was set back.
create or replace function oncely.lease_retention(held oncely.idempotency_keys) returns interval
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select case
        -- greatest leaves nulls out.
        when held.expires_at is not null
        then greatest(held.expires_at - to_timestamp(held.fencing_token / 1000000.0), interval '0')
    end
$$;
comment on function oncely.lease_retention is 'How long a held key is remembered; null where its consumer says that.';
