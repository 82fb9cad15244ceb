-- Returns the retention of a key with its own end, counted from the last claim, which set it: the token is the time of
-- that claim, unless the clock was set back.
create or replace function oncely.lease_retention(expires_at timestamptz, token bigint) returns interval
language sql immutable
begin atomic
    select case
        -- greatest ignores nulls.
        when expires_at is not null
        then greatest(expires_at - to_timestamp(token / 1000000.0), interval '0')
    end;
end;
comment on function oncely.lease_retention is 'How long a held key is remembered; null where its consumer says that.';
