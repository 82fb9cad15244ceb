set local search_path = pg_catalog, pg_temp;

drop function oncely.retake_request;
drop function oncely.claim_request;
drop function oncely.handle_parts;
drop function oncely.handle_each;
drop function oncely.take_turn;
drop function oncely.handler_calls;
drop function oncely.record_fresh;
drop function oncely.response_texts;
drop function oncely.claim_fresh;
drop function oncely.handler_name;
