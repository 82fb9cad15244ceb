set local search_path = pg_catalog, pg_temp;

drop function oncely.revoke_lease;
drop function oncely.release_lease;
drop function oncely.fail_lease;
drop function oncely.complete_lease;
drop function oncely.renew_lease;
drop function oncely.claim_lease;
drop function oncely.take_lease;
drop function oncely.lease_retention;
drop function oncely.lease_end;
drop function oncely.steps_begun;
drop function oncely.lease_is_lost;
drop function oncely.is_held;
drop function oncely.hold_lease;
drop function oncely.check_lease_time;
drop function oncely.lease_protocol_version;
