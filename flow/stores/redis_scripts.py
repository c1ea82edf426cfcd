"""The scripts of the Redis checkpointer; the server runs each as one step.

A thread is a hash (head, sums, token, owner, end of the lease), a list of checkpoints,
a list of their sums, a hash that leads from a checkpoint's id to `its number:number of
the whole one before it`, a list (journal) and a hash (answers). A set holds the threads
that have answers. Sorted sets hold the threads by their last change, one set for each
graph and status, `*` for any.
"""

_COMMON = """
local prefix, thread = KEYS[1], ARGV[1]
local function key(kind) return prefix .. kind .. ':' .. thread end
local row, records, sums = key('thread'), key('checkpoints'), key('sums')
local ids, journal, answers = key('ids'), key('journal'), key('answers')
local answered = prefix .. 'answered'

local function chained(before, text) return redis.sha1hex(before .. text) end

local function now()
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function lease(milliseconds)
    return string.format('%.0f', now() + tonumber(milliseconds))
end

local function is_held()
    local found = redis.call('HMGET', row, 'owner', 'until')
    return found[1] ~= '' and tonumber(found[2]) > now()
end

local function is_owned(asking, token)
    local found = redis.call('HMGET', row, 'owner', 'token')
    return found[1] == asking and found[2] == token
end

local function list_under(graph, status, change)
    for _, name in ipairs({'*:*', graph .. ':*', '*:' .. status,
                           graph .. ':' .. status}) do
        if change then
            redis.call('ZADD', prefix .. 'changed:' .. name, change, thread)
        else
            redis.call('ZREM', prefix .. 'changed:' .. name, thread)
        end
    end
end

local function unlist()
    local old = redis.call('HMGET', row, 'graph', 'status')
    if old[1] then list_under(old[1], old[2], false) end
end

local function set_head(head, chain, checkpoint, graph, status)
    unlist()
    list_under(graph, status, redis.call('INCR', prefix .. 'changes'))
    redis.call('HSET', row, 'head', head, 'sum', chained(chain, head), 'chain', chain,
               'checkpoint', checkpoint, 'graph', graph, 'status', status)
end

local function add(id, whole, record)
    local number = redis.call('LLEN', records)
    local first, before = number, thread
    if number > 0 then before = redis.call('LINDEX', sums, -1) end
    if whole == '0' then
        local last = redis.call('HGET', ids, redis.call('HGET', row, 'checkpoint'))
        first = string.match(last, ':(%d+)$')
    end
    local chain = chained(before, record)
    redis.call('RPUSH', records, record)
    redis.call('RPUSH', sums, chain)
    redis.call('HSET', ids, id, number .. ':' .. first)
    return chain
end
"""

CREATE = (
    _COMMON
    + """
local owner, milliseconds, head, checkpoint = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local record, graph, status = ARGV[6], ARGV[7], ARGV[8]
if redis.call('EXISTS', row) == 1 then return {'busy'} end
local chain = add(checkpoint, '1', record)
set_head(head, chain, checkpoint, graph, status)
redis.call('HSET', row, 'token', 1, 'owner', owner, 'until', lease(milliseconds))
return {'ok', 1}
"""
)
"""Arguments: thread, owner, milliseconds, head, checkpoint, record, graph, status."""

CLAIM = (
    _COMMON
    + """
local owner, milliseconds, steal = ARGV[2], ARGV[3], ARGV[4]
if redis.call('EXISTS', row) == 0 then return {'missing'} end
if steal == '0' and is_held() then return {'busy'} end
local token = redis.call('HINCRBY', row, 'token', 1)
redis.call('HSET', row, 'owner', owner, 'until', lease(milliseconds))
return {'ok', token}
"""
)
"""Arguments: thread, owner, milliseconds, steal."""

RENEW = (
    _COMMON
    + """
local owner, milliseconds, token = ARGV[2], ARGV[3], ARGV[4]
if not is_owned(owner, token) then return {'lost'} end
redis.call('HSET', row, 'until', lease(milliseconds))
return {'ok'}
"""
)
"""Arguments: thread, owner, milliseconds, token."""

RELEASE = (
    _COMMON
    + """
if is_owned(ARGV[2], ARGV[3]) then redis.call('HSET', row, 'owner', '') end
return {'ok'}
"""
)
"""Arguments: thread, owner, token."""

APPEND = (
    _COMMON
    + """
if not is_owned(ARGV[2], ARGV[3]) then return {'lost'} end
local head, checkpoint, graph, status = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local chain = redis.call('HGET', row, 'chain')
for i = 8, #ARGV do
    chain = chained(chain, ARGV[i])
    redis.call('RPUSH', journal, ARGV[i])
end
if head ~= '' then
    set_head(head, chain, checkpoint, graph, status)
else
    head = redis.call('HGET', row, 'head')
    redis.call('HSET', row, 'chain', chain, 'sum', chained(chain, head))
end
return {'ok'}
"""
)
"""Arguments: thread, owner, token, head or '', checkpoint, graph, status, records."""

COMMIT = (
    _COMMON
    + """
if not is_owned(ARGV[2], ARGV[3]) then return {'lost'} end
local head, checkpoint, graph, status = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
if redis.call('HEXISTS', ids, checkpoint) == 1 then return {'taken'} end
local chain = add(checkpoint, ARGV[8], ARGV[9])
redis.call('DEL', journal, answers)
redis.call('SREM', answered, thread)
set_head(head, chain, checkpoint, graph, status)
return {'ok'}
"""
)
"""Arguments: thread, owner, token, head, checkpoint, graph, status, whole, record."""

PUT_ONCE = (
    _COMMON
    + """
if redis.call('EXISTS', row) == 0 then return {'missing'} end
local latest = redis.call('HGET', row, 'checkpoint')
if ARGV[4] ~= '' and ARGV[4] ~= latest then return {'ok', 0} end
local record = chained(thread .. '/' .. ARGV[2], ARGV[3]) .. ARGV[3]
redis.call('SADD', answered, thread)
return {'ok', redis.call('HSETNX', answers, ARGV[2], record)}
"""
)
"""Arguments: thread, key, record, checkpoint or ''."""

READ = (
    _COMMON
    + """
local head = redis.call('HMGET', row, 'head', 'sum', 'chain', 'checkpoint')
if not head[1] then return {'missing'} end
local wanted = ARGV[2]
if wanted == '' then wanted = head[4] end
local place = redis.call('HGET', ids, wanted)
if not place then return {'no checkpoint', wanted} end
local last, first = string.match(place, '(%d+):(%d+)')
return {'ok', head, wanted, first, last, redis.call('LRANGE', records, first, last),
        redis.call('LRANGE', sums, math.max(tonumber(first) - 1, 0), last),
        redis.call('LRANGE', journal, 0, -1), redis.call('HGETALL', answers)}
"""
)
"""Arguments: thread, checkpoint or ''."""

CHECKPOINTS = (
    _COMMON
    + """
local last = redis.call('LLEN', records)
if ARGV[3] ~= '' then
    last = string.match(redis.call('HGET', ids, ARGV[3]) or '0:0', '%d+')
end
local first = math.max(tonumber(last) - tonumber(ARGV[2]), 0)
if tonumber(last) == 0 then return {'ok', {}} end
return {'ok', redis.call('LRANGE', records, first, tonumber(last) - 1)}
"""
)
"""Arguments: thread, limit, checkpoint or ''. The oldest comes first."""

HEADS = """
local prefix, before, limit = KEYS[1], ARGV[1], ARGV[4]
local set = prefix .. 'changed:' .. ARGV[2] .. ':' .. ARGV[3]
local last = '+inf'
if before ~= '' then
    last = redis.call('ZSCORE', prefix .. 'changed:*:*', before)
    if not last then return {'ok', {}} end
    last = '(' .. last
end
local found = {}
for _, thread in ipairs(redis.call(
        'ZREVRANGEBYSCORE', set, last, '-inf', 'LIMIT', 0, limit)) do
    table.insert(found, thread)
    table.insert(found, redis.call('HGET', prefix .. 'thread:' .. thread, 'head') or '')
end
return {'ok', found}
"""
"""Arguments: the thread to go on after or '', graph or `*`, status or `*`, limit."""

ANSWERED = """
local prefix, graph, found = KEYS[1], ARGV[1], {}
for _, thread in ipairs(redis.call('SMEMBERS', prefix .. 'answered')) do
    local row = redis.call('HMGET', prefix .. 'thread:' .. thread, 'graph', 'status')
    if row[1] == graph and row[2] == 'interrupted' then table.insert(found, thread) end
end
return {'ok', found}
"""
"""Arguments: the graph."""

DELETE = (
    _COMMON
    + """
if redis.call('EXISTS', row) == 0 then return {'ok', 0} end
if is_held() then return {'busy'} end
unlist()
redis.call('DEL', row, records, sums, ids, journal, answers)
redis.call('SREM', answered, thread)
return {'ok', 1}
"""
)
"""Arguments: thread."""
