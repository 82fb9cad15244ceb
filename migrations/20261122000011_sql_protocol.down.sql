set local search_path = pg_catalog, pg_temp;

drop function oncely.list_retentions;
drop function oncely.find_key;
drop function oncely.list_keys;
drop function oncely.seed_keys;
drop function oncely.mirror_again;
drop function oncely.park;
drop function oncely.settle_claim;

drop function oncely.fail;
drop function oncely.store_letter;
drop function oncely.check_message;
drop function oncely.stored_headers;
drop function oncely.stored_header;
drop function oncely.failure_group;
drop function oncely.letter_id;
drop function oncely.complete;
drop function oncely.claim;
drop function oncely.claimed_retention;
drop function oncely.note_claim;
drop function oncely.await_standby;
drop function oncely.check_failure;
drop function oncely.check_short;
drop function oncely.check_call;
drop function oncely.check_isolation;
drop function oncely.protocol_version;
