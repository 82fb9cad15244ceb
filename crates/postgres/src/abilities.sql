-- Returns the actions that the session's user may perform, by its privileges on the objects that each action needs.
select session_user::text as "login!",
    has_function_privilege('oncely.decide_letters(text, text[], uuid[], integer[], jsonb, text, text)', 'execute')
        and has_function_privilege('oncely.finish_requeue(text[], uuid[], integer[])', 'execute')
        and has_function_privilege('oncely.free_keys(text[], uuid[], boolean)', 'execute')
        and has_function_privilege('oncely.record_action(text, text, jsonb, bigint, text, text)', 'execute')
        and has_function_privilege('oncely.signing_keys()', 'execute') as "change_letters!",
    has_function_privilege(
        'oncely.change_events(text, timestamptz, text[], uuid[], text, jsonb, text, text)', 'execute'
    ) as "change_events!",
    has_function_privilege('oncely.pause_consumer(text, timestamptz, text, text)', 'execute')
        and has_function_privilege('oncely.resume_consumer(text, text, text)', 'execute') as "pause!",
    has_function_privilege('oncely.revoke_lease(text, text, text, text, bigint, text)', 'execute') as "release_leases!",
    has_function_privilege('oncely.settle_claim(text, text, text, boolean, text, text, integer, bigint)', 'execute') as "settle!",
    has_column_privilege('oncely.dead_letters', 'body', 'select')
        and has_column_privilege('oncely.dead_letters', 'headers', 'select') as "read_messages!",
    has_function_privilege('oncely.record_action(text, text, jsonb, bigint, text, text)', 'execute') as "record!"
