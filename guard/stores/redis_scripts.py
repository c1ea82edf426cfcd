"""The scripts of the Redis store; the server runs each as one step.

Numbers stay below 2^53 and are written with `%.0f`, since Lua's own way of writing
them rounds. An account is a hash, a window a sorted set of times, a bucket a string.
A hold is a list: `open` or `ended`, then key, amount, refund and keep of each part. A
part without a key is counted in another slot of a cluster.
"""

from .redis_threads import Script

_COMMON = """
local prefix = KEYS[1]
local DAY = 86400000000
-- How much longer a rate is kept than it counts: keys end by the server's time, which
-- may go faster than the clock that calls are counted by.
local MARGIN = 60000000

local function text(number) return string.format('%.0f', number) end

local function number(value) return tonumber(value or 0) or 0 end

local function time(given)
    if given ~= '' then return tonumber(given) end
    local now = redis.call('TIME')
    return tonumber(now[1]) * 1000000 + tonumber(now[2])
end

-- Never shortens: another hold may need the account for longer.
local function remember(key, microseconds)
    if microseconds == 0 then return redis.call('PERSIST', key) end
    local wanted = math.ceil(microseconds / 1000)
    if redis.call('PTTL', key) < wanted then
        redis.call('PEXPIRE', key, text(wanted))
    end
end

-- The member of a window that stands for one of the calls of a hold.
local function call(number)
    if number == 1 then return ARGV[2] end
    return ARGV[2] .. ':' .. text(number)
end

local function use(key, amount, freed, keep)
    local account = prefix .. 'account:' .. key
    local used = number(redis.call('HGET', account, 'used')) + amount
    local held = number(redis.call('HGET', account, 'held')) - freed
    redis.call('HSET', account, 'used', text(math.max(used, 0)), 'held', text(held))
    remember(account, keep)
end

local function finish(hold, now)
    local parts = redis.call('LRANGE', hold, 0, -1)
    if parts[1] ~= 'open' then
        redis.call('DEL', hold)
        return redis.call('ZREM', prefix .. 'ends', hold)
    end
    for i = 2, #parts, 4 do
        if parts[i] ~= '' then
            local held = tonumber(parts[i + 1])
            local due = held
            if parts[i + 2] == '1' then due = 0 end
            use(parts[i], due, held, tonumber(parts[i + 3]))
        end
    end
    redis.call('LSET', hold, 0, 'ended')
    redis.call('ZADD', prefix .. 'ends', text(now + DAY), hold)
end

local function tick(given)
    local now = time(given)
    local ended
    repeat
        -- In parts, for what Lua can hold; all of them, for one left would refuse.
        ended = redis.call(
            'ZRANGEBYSCORE', prefix .. 'ends', '-inf', text(now), 'LIMIT', 0, 1000)
        for _, hold in ipairs(ended) do finish(hold, now) end
    until #ended < 1000
    return now
end
"""

RESERVE = Script.of(
    _COMMON
    + """
local now = tick(ARGV[1])
local hold, length, take = prefix .. 'hold:' .. ARGV[2], tonumber(ARGV[3]), ARGV[4]
local next = 5
local function arg() next = next + 1; return ARGV[next - 1] end

local admitted, hits, charges, answer = 1, {}, {}, {}
for i = 1, tonumber(arg()) do
    local hit = {key = arg(), limit = tonumber(arg()), window = tonumber(arg()),
                 interval = tonumber(arg()), enforced = arg(),
                 calls = tonumber(arg()), wait = 0}
    local room
    if hit.interval > 0 then
        hit.name = prefix .. 'bucket:' .. hit.key
        hit.full = number(redis.call('GET', hit.name))
        local behind = math.max(hit.full - now, 0)
        hit.wait = math.max(behind + (hit.calls - hit.limit) * hit.interval, 0)
        room = hit.limit - math.ceil(behind / hit.interval)
    else
        hit.name = prefix .. 'window:' .. hit.key
        redis.call('ZREMRANGEBYSCORE', hit.name, '-inf', text(now - hit.window))
        room = hit.limit - redis.call('ZCARD', hit.name)
        if hit.calls > hit.limit then
            hit.wait = hit.window
        elseif hit.calls > room then
            local at = text(hit.calls - room - 1)
            local first = redis.call('ZRANGE', hit.name, at, at, 'WITHSCORES')
            hit.wait = tonumber(first[2]) + hit.window - now
        end
        room = math.max(room, 0)
    end
    if hit.wait > 0 and hit.enforced == '1' then admitted = 0 end
    hits[i] = hit
    table.insert(answer, hit.wait)
    table.insert(answer, room)
end

for i = 1, tonumber(arg()) do
    local charge = {key = arg(), amount = arg(), limit = tonumber(arg()),
                    keep = tonumber(arg()), refund = arg(), enforced = arg()}
    local used = 0
    if charge.key == '' then
        charge.held, charge.amount = 0, 0
    else
        charge.name = prefix .. 'account:' .. charge.key
        used = number(redis.call('HGET', charge.name, 'used'))
        charge.held = number(redis.call('HGET', charge.name, 'held'))
        charge.amount = tonumber(charge.amount)
            or math.max(charge.limit - used - charge.held, 1)
        if used + charge.held + charge.amount > charge.limit
                and charge.enforced == '1' then
            admitted = 0
        end
    end
    charges[i] = charge
    table.insert(answer, used)
    table.insert(answer, charge.held)
    table.insert(answer, charge.amount)
end

if redis.call('EXISTS', prefix .. 'void:' .. ARGV[2]) == 1 then admitted = 0 end
if take == '1' and admitted == 1 then
    for _, hit in ipairs(hits) do
        if hit.wait == 0 and hit.interval > 0 then
            local full = math.max(hit.full, now) + hit.interval * hit.calls
            redis.call('SET', hit.name, text(full))
            remember(hit.name, full - now + MARGIN)
        elseif hit.wait == 0 then
            for i = 1, hit.calls do
                redis.call('ZADD', hit.name, text(now), call(i))
            end
            remember(hit.name, hit.window + MARGIN)
        end
    end
    for _, charge in ipairs(charges) do
        if charge.key ~= '' then
            redis.call('HSET', charge.name, 'held', text(charge.held + charge.amount))
            local keep = charge.keep
            if keep > 0 then keep = keep + length end
            remember(charge.name, keep)
        end
        if redis.call('EXISTS', hold) == 0 then redis.call('RPUSH', hold, 'open') end
        redis.call('RPUSH', hold, charge.key, text(charge.amount), charge.refund,
                   text(charge.keep))
    end
    if #charges > 0 then
        redis.call('ZADD', prefix .. 'ends', text(now + length), hold)
    end
end
return {admitted, answer}
"""
)
"""Arguments: time or '', hold, its length, take, hits of 6 values, charges of 6."""

SETTLE = Script.of(
    _COMMON
    + """
local now = tick(ARGV[1])
local hold = prefix .. 'hold:' .. ARGV[2]
local parts = redis.call('LRANGE', hold, 0, -1)
if #parts == 0 then
    -- Its reservation may be late, and nobody waits for it any more.
    redis.call('SET', prefix .. 'void:' .. ARGV[2], '', 'PX', 3600000)
    return 0
end
if parts[1] == 'ended' and #ARGV == 2 then return 0 end
local settled = 1
for i = 2, #parts, 4 do
    local held, due = tonumber(parts[i + 1]), 0
    if parts[i + 2] ~= '1' then due = held end
    local actual = tonumber(ARGV[3 + (i - 2) / 4] or due)
    if parts[i] == '' then
        settled = 2
    elseif parts[1] == 'open' then
        use(parts[i], actual, held, tonumber(parts[i + 3]))
    else
        use(parts[i], actual - due, 0, tonumber(parts[i + 3]))
    end
end
redis.call('DEL', hold)
redis.call('ZREM', prefix .. 'ends', hold)
return settled
"""
)
"""Arguments: time or '', hold, and what each part cost, or nothing. Returns 0 if it was
settled before, 2 if it has parts in another slot too, else 1."""

TAKE_BACK = Script.of(
    _COMMON
    + """
tick(ARGV[1])
local hold = prefix .. 'hold:' .. ARGV[2]
for i = 3, #ARGV, 3 do
    local key, interval, calls = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
    if interval == 0 then
        for n = 1, calls do redis.call('ZREM', prefix .. 'window:' .. key, call(n)) end
    else
        local bucket = prefix .. 'bucket:' .. key
        local full = number(redis.call('GET', bucket)) - interval * calls
        if full > 0 then redis.call('SET', bucket, text(full), 'KEEPTTL') end
    end
end
local parts = redis.call('LRANGE', hold, 0, -1)
for i = 2, #parts, 4 do
    if parts[1] == 'open' and parts[i] ~= '' then
        use(parts[i], 0, tonumber(parts[i + 1]), tonumber(parts[i + 3]))
    end
end
redis.call('DEL', hold)
redis.call('ZREM', prefix .. 'ends', hold)
"""
)
"""Undoes a reservation that another slot refused. Arguments: time or '', hold, and key,
interval and calls of each rate that has counted it."""

LAYOUT = "toolcell 2: keys by agent"
"""The text in the place of the ends of holds, which older hosts, that have all keys in
one slot, cannot read as such: they refuse every call."""

CLAIM = Script.of("""
local ends = KEYS[1] .. 'ends'
local kind = redis.call('TYPE', ends).ok
if kind == 'none' then redis.call('SET', ends, ARGV[1]) return 1 end
if kind == 'string' and redis.call('GET', ends) == ARGV[1] then return 1 end
return 0
""")
"""Marks the keys of a prefix with a layout; returns 0 if they have another one."""

FIND_HOMES = Script.of("""
local found = {}
for i = 2, #ARGV do
    redis.call('HSETNX', KEYS[1] .. 'homes', ARGV[i], ARGV[1])
    found[i - 1] = redis.call('HGET', KEYS[1] .. 'homes', ARGV[i])
end
return found
""")
"""Returns where the counters of agents are. Arguments: where they would be begun, and
the agents."""
