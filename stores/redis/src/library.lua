-- The rules of oncely.claim_lease (migrations/functions) and of src/lease/record.rs, for a key that is one hash:
--   s P in progress, C completed, F failed     f fingerprint     t token     a attempts     c crashes     k retention
--   o owner, m end of the run: while it is held     l end of the lease, or of a failed run's delay
--   (of a completed key no k, and no c of 0)     r response     w reason     d detail     x:STEP, y:STEP a step and its result
-- Times are microseconds since 1970 by this server. The hash expires when nobody needs it any more, and never with a lease.
-- What a function costs is how many commands it calls, and how many numbers it makes text of.

local SECOND, DAY, EARLY = 1000000, 86400000000, 100000
local MAX_STEPS, MAX_STEP_BYTES = 100, 1048576

local function now()
    local time = redis.call('TIME')
    return tonumber(time[1]) * SECOND + tonumber(time[2])
end

local function text(number)
    return string.format('%.0f', number)
end

local function number(given)
    if type(given) == 'string' and #given <= 17 and string.find(given, '^%d+$') then
        return tonumber(given)
    end
end

-- The key's record; nil where there is none; false, and which field, where it makes no sense.
local function load(key)
    local s, f, t, a, c, k, o, m, l = unpack(redis.call('HMGET', key, 's', 'f', 't', 'a', 'c', 'k', 'o', 'm', 'l'))
    if not s then
        if redis.call('EXISTS', key) == 1 then return false, 's' end
        return nil
    end
    if s ~= 'P' and s ~= 'C' and s ~= 'F' then return false, 's' end
    if not f or #f ~= 16 then return false, 'f' end
    local record = { s = s, f = f, t = number(t), a = number(a), c = number(c), k = number(k) }
    if not record.t then return false, 't' end
    if not record.a then return false, 'a' end
    -- A completed key has no retention to come, and says how often its runs died only where they did.
    if s == 'C' then
        if not c then record.c = 0 end
        if not k then record.k = 0 end
    end
    if not record.c then return false, 'c' end
    if not record.k then return false, 'k' end
    if m then
        record.m = number(m)
        if not record.m then return false, 'm' end
    end
    if l then
        record.l = number(l)
        if not record.l then return false, 'l' end
    end
    if o then
        if s ~= 'P' or not l or not m then return false, 'o' end
        record.o = o
    end
    return record
end

local function is_held(record, token)
    return record and record.o and record.t == token
end

local function expire(key, at)
    redis.call('PEXPIREAT', key, text(math.ceil(at / 1000)))
end

-- Later by a lease from now, never beyond the run.
local function extend(key, record, lease, at)
    record.l = math.min(math.max(record.l, at + lease), record.m)
    redis.call('HSET', key, 'l', text(record.l))
end

local function damaged(field)
    return { 'damaged', field }
end

local function refused(why)
    return { 'refused', why }
end

local function claim(keys, args)
    local key, print, owner = keys[1], args[1], args[2]
    local lease, max_run, retention, max_crashes = tonumber(args[3]), tonumber(args[4]), tonumber(args[5]), tonumber(args[6])
    local at = now()
    local record, field = load(key)
    if record == false then return damaged(field) end
    if not record then
        local token = text(at)
        redis.call('HSET', key, 's', 'P', 'f', print, 't', token, 'a', '0', 'c', '0', 'k', args[5], 'o', owner,
            'm', text(at + max_run), 'l', text(at + lease))
        expire(key, at + retention)
        return { 'granted', token, '1', '0' }
    end
    if record.f ~= print and string.sub(record.f, 1, 4) == string.sub(print, 1, 4) then return { 'conflict' } end
    if record.s == 'C' then return { 'done', redis.call('HGET', key, 'r') } end
    if record.s == 'F' then
        local why = redis.call('HMGET', key, 'w', 'd')
        return { 'given_up', why[1], why[2] }
    end
    -- The same acquisition, whose reply was lost: its run has not begun, and gets its whole time.
    if record.o == owner then
        record.m = at + max_run
        redis.call('HSET', key, 'm', text(record.m))
        extend(key, record, lease, at)
        return { 'granted', text(record.t), text(record.a + 1), text(record.c) }
    end
    -- No lease is longer than a day: one that is was granted by a clock that was ahead.
    if record.o and record.l > at and record.l <= at + DAY then
        return { 'in_flight', text(record.l - at) }
    end
    if not record.o and record.l and record.l > at + EARLY then
        return { 'wait', text(record.l - at) }
    end
    local token = math.max(record.t + 1, at)
    local crashes = record.c + (record.o and 1 or 0)
    if record.o and crashes >= max_crashes then
        local detail = text(crashes) .. ' runs under a lease ended without a word'
        redis.call('HSET', key, 's', 'F', 't', text(token), 'c', text(crashes), 'k', text(retention), 'w', 'crash', 'd', detail)
        redis.call('HDEL', key, 'o', 'm', 'l')
        expire(key, at + retention)
        return { 'crashed', 'crash', detail }
    end
    redis.call('HSET', key, 't', text(token), 'c', text(crashes), 'k', text(retention), 'o', owner,
        'm', text(at + max_run), 'l', text(at + lease))
    expire(key, at + retention)
    return { 'granted', text(token), text(record.a + 1), text(crashes) }
end

local function renew(keys, args)
    local token, lease, at = tonumber(args[1]), tonumber(args[2]), now()
    local record, field = load(keys[1])
    if record == false then return damaged(field) end
    if not is_held(record, token) or record.m <= at then return { 'lost' } end
    extend(keys[1], record, lease, at)
    return { 'held', text(record.l - at) }
end

-- A step as it is written: state|round|token|when it began|rule|window|call, and where there is one |the last lease that was told that the
-- outcome is unknown
local function load_step(key, step)
    local written = redis.call('HGET', key, 'x:' .. step)
    if not written then return nil end
    local state, round, token, began, rule, window, call, doubted_by =
        string.match(written, '^(%l+)|(%d+)|(%d+)|(%d*)|(%l*)|(%d*)|([%x-]*)|?(%d*)$')
    if not state then return false end
    return {
        state = state, round = tonumber(round), token = tonumber(token), began = tonumber(began), rule = rule,
        window = tonumber(window), call = call, doubted_by = tonumber(doubted_by)
    }
end

local function save_step(key, step, known)
    redis.call('HSET', key, 'x:' .. step, table.concat({
        known.state, text(known.round), text(known.token), known.began and text(known.began) or '', known.rule or '',
        known.window and text(known.window) or '', known.call or ''
    }, '|') .. (known.doubted_by and '|' .. text(known.doubted_by) or ''))
end

-- From the first call on, and a tenth less than the other side says. A call of tomorrow was noted by a clock that was ahead.
local function may_repeat(rule, window, began, at)
    if rule == 'always' then return true end
    return rule == 'within' and began ~= nil and window ~= nil and began <= at and at < began + window / 10 * 9
end

local function check_steps(key)
    local count, bytes = 0, 0
    for _, field in ipairs(redis.call('HKEYS', key)) do
        if string.sub(field, 1, 2) == 'x:' then count = count + 1 end
        if string.sub(field, 1, 2) == 'y:' then bytes = bytes + redis.call('HSTRLEN', key, field) end
    end
    if count >= MAX_STEPS then return 'the key has ' .. MAX_STEPS .. ' steps, and may have no more' end
    if bytes > MAX_STEP_BYTES then return 'the steps of the key have more than ' .. MAX_STEP_BYTES .. ' bytes' end
end

local function begin_step(keys, args)
    local key, token, lease, step, rule, window, call =
        keys[1], tonumber(args[1]), tonumber(args[2]), args[3], args[4], tonumber(args[5]), args[6]
    local at = now()
    local record, field = load(key)
    if record == false then return damaged(field) end
    if not is_held(record, token) or record.m <= at then return { 'lost' } end
    local known = load_step(key, step)
    if known == false then return damaged('x:' .. step) end
    local state, result = 'run', nil
    if known and known.state == 'done' then
        state, result = 'done', redis.call('HGET', key, 'y:' .. step)
    elseif known and known.state == 'started' then
        if known.call == call and known.token == token then
            -- The reply to this very call was lost: the call outside was not made.
            state = 'run'
        elseif may_repeat(rule, window, known.began, at) and may_repeat(known.rule, known.window, known.began, at) then
            state = 'repeat'
            known.call, known.token = nil, token
            save_step(key, step, known)
        else
            state = 'unknown'
            known.doubted_by = token
            save_step(key, step, known)
        end
    else
        local why = not known and check_steps(key)
        if why then return refused(why) end
        known = { state = 'started', round = known and known.round or 0, token = token, began = at, rule = rule,
            window = window, call = call }
        save_step(key, step, known)
    end
    extend(key, record, lease, at)
    return { state, text(known.round), result }
end

-- Its call may have happened, and no other lease decides on it by now.
local function is_in_doubt(record, known, token)
    return record and record.s ~= 'C' and known and known.state == 'started' and known.token == token
end

-- The outcome of a call whose lease is over is stored. A key that was given up only for that, or whose run was told that the outcome is
-- unknown, may run again.
local function resolve(key, record, known)
    if record.s == 'F' then
        if redis.call('HGET', key, 'w') ~= 'outcome_unknown' then return end
        for _, field in ipairs(redis.call('HKEYS', key)) do
            if string.sub(field, 1, 2) == 'x:' and string.sub(redis.call('HGET', key, field), 1, 8) == 'started|' then return end
        end
        redis.call('HSET', key, 's', 'P')
        redis.call('HDEL', key, 'w', 'd')
    elseif record.o and known.doubted_by == record.t then
        redis.call('HDEL', key, 'o', 'm', 'l')
    end
end

local function checkpoint(keys, args)
    local key, token, lease, step, result = keys[1], tonumber(args[1]), tonumber(args[2]), args[3], args[4]
    local record, field = load(key)
    if record == false then return damaged(field) end
    local known = load_step(key, step)
    if known == false then return damaged('x:' .. step) end
    if not is_held(record, token) then
        -- Said again, after a lost reply.
        if known and known.state == 'done' and known.token == token and redis.call('HGET', key, 'y:' .. step) == result then
            return { 'stored' }
        end
        if not is_in_doubt(record, known, token) then return { 'lost' } end
        redis.call('HSET', key, 'y:' .. step, result)
        save_step(key, step, { state = 'done', round = known.round, token = token, began = known.began })
        resolve(key, record, known)
        return { 'stored' }
    end
    if known and known.state == 'done' and redis.call('HGET', key, 'y:' .. step) == result then return { 'stored' } end
    if not known or known.state ~= 'started' then
        return refused('the step ' .. step .. ' has not begun, or is done with another result')
    end
    redis.call('HSET', key, 'y:' .. step, result)
    save_step(key, step, { state = 'done', round = known.round, token = token, began = known.began })
    extend(key, record, lease, now())
    return { 'stored' }
end

local function refuse_step(keys, args)
    -- Without a round it is the call for which the step was begun, if it was.
    local key, token, lease, step, round, call =
        keys[1], tonumber(args[1]), tonumber(args[2]), args[3], tonumber(args[4]), args[5]
    local record, field = load(key)
    if record == false then return damaged(field) end
    local known = load_step(key, step)
    if known == false then return damaged('x:' .. step) end
    local is_begun = round or known and known.state == 'started' and known.call == call
    if not is_held(record, token) then
        if known and known.state == 'refused' and known.token == token and (not round or known.round == round + 1) then
            return { 'round', text(known.round) }
        end
        -- Of a repeated call it says nothing of the first.
        if not is_in_doubt(record, known, token) or known.call == '' or known.round ~= (round or known.round)
            or not is_begun
        then
            return { 'lost' }
        end
        save_step(key, step, { state = 'refused', round = known.round + 1, token = token })
        resolve(key, record, known)
        return { 'round', text(known.round + 1) }
    end
    if not is_begun then return { 'round', text(known and known.round or 0) } end
    local why = 'the step ' .. step .. ' has not begun, or is done with another result'
    if not known then return refused(why) end
    -- Said again, after a lost reply; or of a round that is over.
    if (known.state == 'refused' and known.token == token) or known.round > (round or known.round) then
        return { 'round', text(known.round) }
    end
    if known.state ~= 'started' then return refused(why) end
    -- The call that was refused is a repeated one: that says nothing of the first. Where the other side was asked instead, the
    -- token is an older one.
    if known.token == token and known.call == '' then return { 'round', text(known.round) } end
    save_step(key, step, { state = 'refused', round = known.round + 1, token = token })
    extend(key, record, lease, now())
    return { 'round', text(known.round + 1) }
end

local function complete(keys, args)
    local key, token, response = keys[1], tonumber(args[1]), args[2]
    local record, field = load(key)
    if record == false then return damaged(field) end
    if record and record.s == 'C' and record.t == token then return { 'done' } end
    if not is_held(record, token) then return { 'lost' } end
    redis.call('HDEL', key, 'o', 'm', 'l', 'd', 'k', record.c == 0 and 'c' or 'k')
    if response then
        redis.call('HSET', key, 's', 'C', 'a', text(record.a + 1), 'r', response)
    else
        redis.call('HSET', key, 's', 'C', 'a', text(record.a + 1))
    end
    expire(key, now() + record.k)
    return { 'done' }
end

local function fail(keys, args)
    local key, token, max_attempts, delay, reason, detail =
        keys[1], tonumber(args[1]), tonumber(args[2]), tonumber(args[3]), args[4], args[5]
    local at = now()
    local record, field = load(key)
    if record == false then return damaged(field) end
    if not record or record.t ~= token then return { 'lost' } end
    if record.s == 'C' then return { 'completed' } end
    if record.s == 'F' then return { 'given_up', text(record.a), redis.call('HGET', key, 'w') } end
    -- Said again, after a lost reply; or the key was given back by this very run.
    if not record.o then return { 'retry', text(record.a) } end
    local attempts = record.a + 1
    if reason == '' and attempts >= max_attempts then reason = 'attempts_exhausted' end
    redis.call('HDEL', key, 'o', 'm', 'l')
    expire(key, at + delay + record.k)
    if reason ~= '' then
        redis.call('HSET', key, 's', 'F', 'a', text(attempts), 'w', reason, 'd', detail)
        return { 'given_up', text(attempts), reason }
    end
    -- The process lives: it reports this failure.
    redis.call('HSET', key, 'a', text(attempts), 'c', '0', 'l', text(at + delay), 'd', detail)
    return { 'retry', text(attempts) }
end

local function release(keys, args)
    local token = tonumber(args[1])
    local record, field = load(keys[1])
    if record == false then return damaged(field) end
    if is_held(record, token) then
        redis.call('HDEL', keys[1], 'o', 'm', 'l')
        return { 'released' }
    end
    if record and record.s == 'P' and record.t == token then return { 'released' } end
    return { 'lost' }
end

local function look_up(keys)
    local record, field = load(keys[1])
    if record == false then return damaged(field) end
    if not record then return { 'none' } end
    local more = redis.call('HMGET', keys[1], 'w', 'r')
    return { 'known', record.s, record.o or false, text(record.t), text(record.a), text(record.c), more[1], more[2] }
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
