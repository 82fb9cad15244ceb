-- The script of "Idempotency Layers … with Redis & Lua": JSON with owner and timestamp, taken over so many milliseconds after its start.
local existing = redis.call('get', KEYS[1])
local at = redis.call('time')[1] * 1000
if not existing then
    redis.call('set', KEYS[1], cjson.encode({ status = 'PROCESSING', owner = ARGV[1], since = at }), 'EX', ARGV[3])
    return 'ACQUIRED'
end
local data = cjson.decode(existing)
if data.status == 'COMPLETED' then return 'DUPLICATE' end
if data.status == 'PROCESSING' and at - data.since > tonumber(ARGV[2]) then
    redis.call('set', KEYS[1], cjson.encode({ status = 'PROCESSING', owner = ARGV[1], since = at }), 'EX', ARGV[3])
    return 'ACQUIRED_STALE'
end
return 'CONFLICT'
