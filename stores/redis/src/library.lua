-- The rules of oncely.claim_lease (migrations/functions) and of crates/lease/src/record.rs, for a key that is one string:
--   packed (WHOLE, and HEAD of a completed key):
--     status H held, P in progress without a holder, C completed, F failed     fingerprint     token     attempts     crashes
--     unless completed: retention, end of the run, end of the lease or of a failed run's delay; 0 where there is none
--     bytes of the value
--   the value: owner of H, response of C (empty: none), reason and detail of F with a line feed between them
--   the steps by name (MessagePack), if there are any
-- Times are microseconds since 1970 by this server. The string expires when nobody needs it any more, and never with a lease.
-- Each command that a function calls costs as much as its arithmetic, so a record is read and written whole; a number that is returned as text
-- costs as much as reading a key.

local SECOND, DAY, EARLY = 1000000, 86400000000, 100000
local MAX_STEPS, MAX_STEP_BYTES = 100, 1048576
local HEAD, WHOLE = '>c1c16dI4I4I4', '>c1c16dI4I4dddI4'
local HEAD_BYTES, WHOLE_BYTES = 37, 61
-- Where the end of the lease lies in WHOLE.
local LEASE_END = 49
-- A double holds each whole number up to it.
local MAX_NUMBER = 9007199254740992

local function now()
    local time = redis.call('TIME')
    return tonumber(time[1]) * SECOND + tonumber(time[2])
end

local function pack(s, f, t, a, c, k, m, l, value, steps)
    if s == 'C' then return struct.pack(HEAD, s, f, t, a, c, #value) .. value .. steps end
    return struct.pack(WHOLE, s, f, t, a, c, k, m, l, #value) .. value .. steps
end

-- The parts of what is written, and where the value begins; nothing where they make no sense.
local function parse(written)
    local s, f, t, a, c, k, m, l, bytes, from = string.sub(written, 1, 1), nil, nil, nil, nil, 0, 0, 0, nil, nil
    if s == 'C' and #written >= HEAD_BYTES then
        s, f, t, a, c, bytes, from = struct.unpack(HEAD, written)
    elseif (s == 'H' or s == 'P' or s == 'F') and #written >= WHOLE_BYTES then
        s, f, t, a, c, k, m, l, bytes, from = struct.unpack(WHOLE, written)
    else
        return
    end
    local sum = t + k + m + l
    if not (t >= 0 and k >= 0 and m >= 0 and l >= 0 and sum <= 4 * MAX_NUMBER and sum % 1 == 0) then return end
    if s ~= 'C' and k == 0 then return end
    if from - 1 + bytes > #written or s == 'H' and (m == 0 or l == 0 or bytes == 0) then return end
    return s, f, t, a, c, k, m, l, bytes, from
end

-- The key's record; nil where there is none; false where it makes no sense.
local function load(key)
    local written = redis.call('GET', key)
    if not written then return nil end
    local s, f, t, a, c, k, m, l, bytes, from = parse(written)
    if not s then return false end
    return {
        s = s, f = f, t = t, a = a, c = c, k = k, m = m, l = l,
        value = string.sub(written, from, from + bytes - 1), steps = string.sub(written, from + bytes)
    }
end

-- Without a retention the key expires when it would have.
local function save(key, record, retention)
    local written = pack(record.s, record.f, record.t, record.a, record.c, record.k, record.m, record.l, record.value, record.steps)
    if retention then
        redis.call('SET', key, written, 'PX', math.ceil(retention / 1000))
    else
        redis.call('SET', key, written, 'KEEPTTL')
    end
end

local function is_held(record, token)
    return record and record.s == 'H' and record.t == token
end

local function free(record)
    record.s, record.m, record.l, record.value = 'P', 0, 0, ''
end

local function give_up(record, reason, detail)
    record.s, record.m, record.l, record.value = 'F', 0, 0, reason .. '\n' .. detail
end

-- Later by a lease from now, never beyond the run.
local function extend(record, lease, at)
    record.l = math.min(math.max(record.l, at + lease), record.m)
end

-- Reason and detail of F.
local function reason_and_detail(record)
    return string.match(record.value, '^([^\n]*)\n?(.*)$')
end

-- The response of C; false where there is none.
local function response(record)
    return record.s == 'C' and record.value ~= '' and record.value
end

local function damaged(part)
    return { 'damaged', part or 'record' }
end

local function refused(why)
    return { 'refused', why }
end

local function claim(keys, args)
    local key, print, owner = keys[1], args[1], args[2]
    local lease, max_run, retention, max_crashes = tonumber(args[3]), tonumber(args[4]), tonumber(args[5]), tonumber(args[6])
    local at = now()
    local fresh = pack('H', print, at, 0, 0, retention, at + max_run, at + lease, owner, '')
    if redis.call('SET', key, fresh, 'NX', 'PX', math.ceil(retention / 1000)) then return { 'granted', at, 1, 0 } end
    local record = load(key)
    if not record then return damaged() end
    if record.f ~= print and string.sub(record.f, 1, 4) == string.sub(print, 1, 4) then return { 'conflict' } end
    if record.s == 'C' then return { 'done', response(record) } end
    if record.s == 'F' then return { 'given_up', reason_and_detail(record) } end
    local has_holder = record.s == 'H'
    -- The same acquisition, whose reply was lost: its run has not begun, and gets its whole time.
    if has_holder and record.value == owner then
        record.m = at + max_run
        extend(record, lease, at)
        save(key, record)
        return { 'granted', record.t, record.a + 1, record.c }
    end
    -- No lease is longer than a day: one that is was granted by a clock that was ahead.
    if has_holder and record.l > at and record.l <= at + DAY then
        return { 'in_flight', record.l - at }
    end
    if not has_holder and record.l > at + EARLY then
        return { 'wait', record.l - at }
    end
    record.t, record.k = math.max(record.t + 1, at), retention
    record.c = record.c + (has_holder and 1 or 0)
    if has_holder and record.c >= max_crashes then
        local detail = record.c .. ' runs under a lease ended without a word'
        give_up(record, 'crash', detail)
        save(key, record, retention)
        return { 'crashed', 'crash', detail }
    end
    record.s, record.m, record.l, record.value = 'H', at + max_run, at + lease, owner
    save(key, record, retention)
    return { 'granted', record.t, record.a + 1, record.c }
end

local function renew(keys, args)
    local token, lease, at = tonumber(args[1]), tonumber(args[2]), now()
    local record = load(keys[1])
    if record == false then return damaged() end
    if not is_held(record, token) or record.m <= at then return { 'lost' } end
    extend(record, lease, at)
    -- The end of the lease alone: the steps may be large, and replicas and the append-only file get what is written.
    redis.call('SETRANGE', keys[1], LEASE_END, struct.pack('>d', record.l))
    return { 'held', record.l - at }
end

-- The steps of a record by name: state, round, token, began, rule, window, call, result, and doubted_by, the last lease that was told that the
-- outcome is unknown. Nil where they can't be read.
local function load_steps(record)
    if not record or record.steps == '' then return {} end
    local is_read, steps = pcall(cmsgpack.unpack, record.steps)
    if not is_read or type(steps) ~= 'table' then return nil end
    for _, step in pairs(steps) do
        if type(step) ~= 'table' or type(step.state) ~= 'string' or type(step.round) ~= 'number'
            or type(step.token) ~= 'number' or type(step.result or '') ~= 'string'
        then
            return nil
        end
    end
    return steps
end

local function save_with(key, record, steps)
    record.steps = cmsgpack.pack(steps)
    save(key, record)
end

-- From the first call on, and a tenth less than the other side says. A call of tomorrow was noted by a clock that was ahead.
local function may_repeat(rule, window, began, at)
    if rule == 'always' then return true end
    return rule == 'within' and began ~= nil and window ~= nil and began <= at and at < began + window / 10 * 9
end

local function check_steps(steps)
    local count, bytes = 0, 0
    for _, step in pairs(steps) do
        count, bytes = count + 1, bytes + #(step.result or '')
    end
    if count >= MAX_STEPS then return 'the key has ' .. MAX_STEPS .. ' steps, and may have no more' end
    if bytes > MAX_STEP_BYTES then return 'the steps of the key have more than ' .. MAX_STEP_BYTES .. ' bytes' end
end

local function begin_step(keys, args)
    local key, token, lease, name, rule, window, call =
        keys[1], tonumber(args[1]), tonumber(args[2]), args[3], args[4], tonumber(args[5]), args[6]
    local at = now()
    local record = load(key)
    if record == false then return damaged() end
    if not is_held(record, token) or record.m <= at then return { 'lost' } end
    local steps = load_steps(record)
    if not steps then return damaged('steps') end
    local known = steps[name]
    local state = 'run'
    if known and known.state == 'done' then
        state = 'done'
    elseif known and known.state == 'started' then
        if known.call == call and known.token == token then
            -- The reply to this very call was lost: the call outside was not made.
            state = 'run'
        elseif may_repeat(rule, window, known.began, at) and may_repeat(known.rule, known.window, known.began, at) then
            state = 'repeat'
            known.call, known.token = nil, token
        else
            state = 'unknown'
            known.doubted_by = token
        end
    else
        local why = not known and check_steps(steps)
        if why then return refused(why) end
        known = { state = 'started', round = known and known.round or 0, token = token, began = at, rule = rule,
            window = window, call = call }
        steps[name] = known
    end
    extend(record, lease, at)
    save_with(key, record, steps)
    return { state, known.round, state == 'done' and known.result }
end

-- Its call may have happened, and no other lease decides on it by now.
local function is_in_doubt(record, known, token)
    return record and record.s ~= 'C' and known and known.state == 'started' and known.token == token
end

-- The outcome of a call whose lease is over is known, and stored next. A key that was given up only for that, or whose run was told that the
-- outcome is unknown, may run again.
local function resolve(record, steps, known)
    local doubted_by = known.doubted_by
    known.doubted_by = nil
    if record.s == 'F' then
        if reason_and_detail(record) ~= 'outcome_unknown' then return end
        for _, step in pairs(steps) do
            if step.state == 'started' then return end
        end
        free(record)
    elseif record.s == 'H' and doubted_by == record.t then
        free(record)
    end
end

local function finish(known, result)
    known.state, known.result = 'done', result
    known.rule, known.window, known.call = nil, nil, nil
end

local function checkpoint(keys, args)
    local key, token, lease, name, result = keys[1], tonumber(args[1]), tonumber(args[2]), args[3], args[4]
    local record = load(key)
    if record == false then return damaged() end
    local steps = load_steps(record)
    if not steps then return damaged('steps') end
    local known = steps[name]
    local is_stored = known and known.state == 'done' and known.result == result
    if not is_held(record, token) then
        -- Said again, after a lost reply.
        if is_stored and known.token == token then return { 'stored' } end
        if not is_in_doubt(record, known, token) then return { 'lost' } end
        finish(known, result)
        resolve(record, steps, known)
        save_with(key, record, steps)
        return { 'stored' }
    end
    if is_stored then return { 'stored' } end
    if not known or known.state ~= 'started' then
        return refused('the step ' .. name .. ' has not begun, or is done with another result')
    end
    finish(known, result)
    known.token, known.doubted_by = token, nil
    extend(record, lease, now())
    save_with(key, record, steps)
    return { 'stored' }
end

local function refuse_step(keys, args)
    -- Without a round it is the call for which the step was begun, if it was.
    local key, token, lease, name, round, call =
        keys[1], tonumber(args[1]), tonumber(args[2]), args[3], tonumber(args[4]), args[5]
    local record = load(key)
    if record == false then return damaged() end
    local steps = load_steps(record)
    if not steps then return damaged('steps') end
    local known = steps[name]
    local is_begun = round or known and known.state == 'started' and known.call == call
    if not is_held(record, token) then
        if known and known.state == 'refused' and known.token == token and (not round or known.round == round + 1) then
            return { 'round', known.round }
        end
        -- Of a repeated call it says nothing of the first.
        if not is_in_doubt(record, known, token) or not known.call or known.round ~= (round or known.round)
            or not is_begun
        then
            return { 'lost' }
        end
        local next_round = { state = 'refused', round = known.round + 1, token = token }
        steps[name] = next_round
        resolve(record, steps, known)
        save_with(key, record, steps)
        return { 'round', next_round.round }
    end
    if not is_begun then return { 'round', known and known.round or 0 } end
    local why = 'the step ' .. name .. ' has not begun, or is done with another result'
    if not known then return refused(why) end
    -- Said again, after a lost reply; or of a round that is over.
    if (known.state == 'refused' and known.token == token) or known.round > (round or known.round) then
        return { 'round', known.round }
    end
    if known.state ~= 'started' then return refused(why) end
    -- The call that was refused is a repeated one: that says nothing of the first. Where the other side was asked instead, the
    -- token is an older one.
    if known.token == token and not known.call then return { 'round', known.round } end
    steps[name] = { state = 'refused', round = known.round + 1, token = token }
    extend(record, lease, now())
    save_with(key, record, steps)
    return { 'round', known.round + 1 }
end

local function complete(keys, args)
    local key, token, given = keys[1], tonumber(args[1]), args[2] or ''
    local written = redis.call('GET', key)
    if not written then return { 'lost' } end
    local s, f, t, a, c, k, m, l, bytes, from = parse(written)
    if not s then return damaged() end
    if s == 'C' and t == token then return { 'done' } end
    if s ~= 'H' or t ~= token then return { 'lost' } end
    local done = pack('C', f, t, a + 1, c, k, m, l, given, string.sub(written, from + bytes))
    redis.call('SET', key, done, 'PX', math.ceil(k / 1000))
    return { 'done' }
end

local function fail(keys, args)
    local key, token, max_attempts, delay, reason, detail =
        keys[1], tonumber(args[1]), tonumber(args[2]), tonumber(args[3]), args[4], args[5]
    local record = load(key)
    if record == false then return damaged() end
    if not record or record.t ~= token then return { 'lost' } end
    if record.s == 'C' then return { 'completed' } end
    if record.s == 'F' then return { 'given_up', record.a, (reason_and_detail(record)) } end
    -- Said again, after a lost reply; or the key was given back by this very run.
    if record.s == 'P' then return { 'retry', record.a } end
    record.a = record.a + 1
    if reason == '' and record.a >= max_attempts then reason = 'attempts_exhausted' end
    if reason ~= '' then
        give_up(record, reason, detail)
    else
        free(record)
        -- The process lives: it reports this failure.
        record.c, record.l = 0, now() + delay
    end
    save(key, record, delay + record.k)
    if reason ~= '' then return { 'given_up', record.a, reason } end
    return { 'retry', record.a }
end

local function release(keys, args)
    local token = tonumber(args[1])
    local record = load(keys[1])
    if record == false then return damaged() end
    if is_held(record, token) then
        free(record)
        save(keys[1], record)
        return { 'released' }
    end
    if record and record.s == 'P' and record.t == token then return { 'released' } end
    return { 'lost' }
end

local function look_up(keys)
    local record = load(keys[1])
    if record == false then return damaged() end
    if not record then return { 'none' } end
    local status, owner, reason = record.s, false, false
    if status == 'H' then status, owner = 'P', record.value end
    if status == 'F' then reason = reason_and_detail(record) end
    return { 'known', status, owner, record.t, record.a, record.c, reason, response(record) }
end

redis.register_function('NAME_claim', claim)
redis.register_function('NAME_renew', renew)
redis.register_function('NAME_begin_step', begin_step)
redis.register_function('NAME_checkpoint', checkpoint)
redis.register_function('NAME_refuse_step', refuse_step)
redis.register_function('NAME_complete', complete)
redis.register_function('NAME_fail', fail)
redis.register_function('NAME_release', release)
redis.register_function{ function_name = 'NAME_look_up', callback = look_up, flags = { 'no-writes' } }
