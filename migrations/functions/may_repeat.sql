-- Counts from the first call, and a tenth less than the other side says: its clock may differ. A call in the future was
-- noted by a clock that was ahead, and its time is unknown.
create or replace function oncely.may_repeat(rule text, period interval, started_at timestamptz, at timestamptz)
returns boolean
language sql stable
begin atomic
    select coalesce(
        rule = 'always' or (rule = 'within' and started_at <= at and at < started_at + period * 0.9), false
    );
end;
comment on function oncely.may_repeat is 'May a step be called again that may have happened?';
