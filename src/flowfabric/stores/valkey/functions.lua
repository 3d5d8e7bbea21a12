-- What the server does for the Valkey store: one function reads, one compares and writes. Neither knows what the values
-- mean; a value begins with VERSION bytes that no other value has ever begun with.
--
-- The first argument tells how the others are to be taken: it is a list of steps, packed, in which numbers say how many
-- of the arguments that follow belong to a step. So no text has to be packed or unpacked.
local VERSION = 10
-- Where an execution's value says at which attempt it is, and the size of its key.
local ATTEMPT_FROM, ATTEMPT_TO = 11, 14
local EXECUTION_KEY = 19
-- Attempts that an execution may have for all of them to be read at once.
local MOST_ATTEMPTS = 100000
-- Arguments that one command gets at most: Lua cannot pass more than some thousands.
local MOST = 2000

-- Run act(first, last) for parts of a list that a command can take. Parts hold an even number of arguments.
local function in_parts(from, to, act)
  for first = from, to, MOST do act(first, math.min(first + MOST - 1, to)) end
end

-- The values of the fields list[from], ..., list[to] of a hash.
local function values(key, list, from, to)
  if to < from then return {} end
  if to - from < MOST then return redis.call('HMGET', key, unpack(list, from, to)) end
  local found = {}
  in_parts(from, to, function(first, last)
    local part = redis.call('HMGET', key, unpack(list, first, last))
    for place = 1, #part do found[first - from + place] = part[place] end
  end)
  return found
end

local function gone()
  return redis.error_reply('GONE the data is not that of the store this process has opened')
end

local function number_of(bytes)
  local a, b, c, d = string.byte(bytes, 1, 4)
  return ((a * 256 + b) * 256 + c) * 256 + d
end

-- Executions with all their attempts, which are numbered from 0 to the current one. A damaged value must not keep the
-- server busy.
local function executions(key, attempts_key, list, from, to)
  local found = values(key, list, from, to)
  local wanted = {}
  for place = 1, to - from + 1 do
    local value = found[place]
    if value then
      local current = string.sub(value, ATTEMPT_FROM, ATTEMPT_TO)
      local field = list[from + place - 1]
      local last = number_of(current)
      if last > MOST_ATTEMPTS then error('a value says that its execution is at attempt ' .. last) end
      for index = 0, last - 1 do wanted[#wanted + 1] = field .. struct.pack('>I4', index) end
      wanted[#wanted + 1] = field .. current
    end
  end
  return {found, values(attempts_key, wanted, 1, #wanted)}
end

local function range(key, low, high, limit, backwards)
  if backwards == 1 then return redis.call('ZREVRANGEBYLEX', key, high, low, 'LIMIT', 0, limit) end
  return redis.call('ZRANGEBYLEX', key, low, high, 'LIMIT', 0, limit)
end

local function count(key, low, high)
  if low == '-' and high == '+' then return redis.call('ZCARD', key) end
  return redis.call('ZLEXCOUNT', key, low, high)
end

-- Each takes the arguments from a place on, and tells its answer and the place behind its own arguments.
local reads = {
  rows = function(step, list, at)
    local last = at + step[2]
    return values(list[at], list, at + 1, last), last + 1
  end,
  executions = function(step, list, at)
    local last = at + 1 + step[2]
    return executions(list[at], list[at + 1], list, at + 2, last), last + 1
  end,
  range = function(step, list, at)
    return range(list[at], list[at + 1], list[at + 2], step[2], step[3]), at + 3
  end,
  queue = function(step, list, at)
    local members = range(list[at], list[at + 1], list[at + 2], step[2], step[3])
    local fields = {}
    for place = 1, #members do fields[place] = string.sub(members[place], -EXECUTION_KEY) end
    return {members, executions(list[at + 3], list[at + 4], fields, 1, #fields)}, at + 5
  end,
  -- Members that end with the field of a row, each behind so many bytes, and those rows.
  joined = function(step, list, at)
    local members = range(list[at], list[at + 1], list[at + 2], step[2], step[3])
    local fields = {}
    for place = 1, #members do fields[place] = string.sub(members[place], step[4] + 1) end
    return {members, values(list[at + 3], fields, 1, #fields)}, at + 4
  end,
  count = function(step, list, at) return count(list[at], list[at + 1], list[at + 2]), at + 3 end,
  names = function(step, list, at) return redis.call('SMEMBERS', list[at]), at + 1 end,
  wide = function(step, list, at)
    local found, from = {}, at + step[2]
    local last = from + step[3] - 1
    for place = 1, step[2] do found[place] = values(list[at + place - 1], list, from, last) end
    return found, last + 1
  end,
  size = function(step, list, at) return redis.call('HLEN', list[at]), at + 1 end,
  scan = function(step, list, at) return redis.call('HSCAN', list[at], list[at + 1], 'COUNT', step[2]), at + 2 end,
  log = function(step, list, at)
    return redis.call('XRANGE', list[at], list[at + 1], '+', 'COUNT', step[2]), at + 2
  end,
  bounds = function(step, list, at)
    local facts = redis.call('HMGET', list[at + 1], list[at + 2], list[at + 3], list[at + 4], list[at + 5])
    return {facts, redis.call('XREVRANGE', list[at], '+', '-', 'COUNT', 1)}, at + 6
  end,
}

local function read(keys, list)
  -- Where nothing is left, an answer would say that nothing has ever been.
  if redis.call('HGET', keys[1], 'id') ~= list[2] then return gone() end
  local answers, at = {}, 3
  for place, step in ipairs(cmsgpack.unpack(list[1])) do
    answers[place], at = reads[step[1]](step, list, at)
  end
  return answers
end

-- Compare everything that the batch was decided upon; what has moved, and which field, or the place behind these
-- arguments.
local function compare(batch, list, at)
  for _, size in ipairs(batch.rows) do
    local key, from = list[at], at + 1
    local found = values(key, list, from, from + size - 1)
    for place = 1, size do
      local value, version = found[place], list[from + size + place - 1]
      if version == '' then
        if value then return nil, key .. ': a row appeared' end
      elseif not value then
        return nil, key .. ': a row vanished', list[from + place - 1]
      elseif string.sub(value, 1, VERSION) ~= version then
        return nil, key .. ': a row has changed', list[from + place - 1]
      end
    end
    at = from + 2 * size
  end
  for _, check in ipairs(batch.ranges) do
    local members = range(list[at], list[at + 1], list[at + 2], check[1], check[2])
    if redis.sha1hex(table.concat(members)) ~= list[at + 3] then return nil, list[at] .. ': other entries' end
    at = at + 4
  end
  for _, expected in ipairs(batch.counts) do
    if count(list[at], list[at + 1], list[at + 2]) ~= expected then return nil, list[at] .. ': another count' end
    at = at + 3
  end
  return at
end

local function on_parts(command, key, list, from, size)
  in_parts(from, from + size - 1, function(first, last) redis.call(command, key, unpack(list, first, last)) end)
end

local function add(key, list, from, size)
  in_parts(from, from + size - 1, function(first, last)
    local members = {}
    for place = first, last do
      members[#members + 1] = '0'
      members[#members + 1] = list[place]
    end
    redis.call('ZADD', key, unpack(members))
  end)
end

-- Whether the next number of a log can be added to its stream: not if another program has added to it, or has written
-- into our count.
local function is_ahead(meta, field, key)
  local last = tonumber(redis.call('HGET', meta, field) or '0')
  if not last then return false end
  if redis.call('EXISTS', key) == 0 then return true end
  local facts = redis.call('XINFO', 'STREAM', key)
  for place = 1, #facts, 2 do
    if facts[place] == 'last-generated-id' then return tonumber(string.match(facts[place + 1], '^%d+')) <= last end
  end
  return false
end

-- The first of the keys to be written that holds something of another program's. A function cannot be undone half way,
-- so this is asked before anything is written.
local function taken_by_others(meta, batch, list, at)
  local function is_taken(key, kind)
    local found = redis.call('TYPE', key).ok
    return found ~= kind and found ~= 'none'
  end
  for _, sizes in ipairs({batch.deletes, batch.puts}) do
    for _, size in ipairs(sizes) do
      if is_taken(list[at], 'hash') then return list[at] end
      at = at + 1 + size
    end
  end
  for _, steps in ipairs({batch.removes, batch.adds}) do
    for _, step in ipairs(steps) do
      if is_taken(list[at], 'zset') then return list[at] end
      at = at + 1 + step[1]
      if step[2] == 1 then
        if is_taken(list[at], 'set') then return list[at] end
        at = at + 2
      end
    end
  end
  for _, entries in ipairs(batch.if_absent) do
    if is_taken(list[at], 'hash') then return list[at] end
    at = at + 3
    for _ = 1, entries do
      if is_taken(list[at], 'zset') then return list[at] end
      at = at + 2
    end
  end
  for _, size in ipairs(batch.logs) do
    if is_taken(list[at], 'stream') or not is_ahead(meta, list[at + 1], list[at]) then return list[at] end
    at = at + 2 + size
  end
  for _, step in ipairs(batch.trims) do
    if is_taken(list[at], 'stream') then return list[at] end
    at = at + 3 + step[1]
  end
end

local function write(meta, batch, list, at)
  for _, size in ipairs(batch.deletes) do
    on_parts('HDEL', list[at], list, at + 1, size)
    at = at + 1 + size
  end
  for _, size in ipairs(batch.puts) do
    on_parts('HSET', list[at], list, at + 1, size)
    at = at + 1 + size
  end
  for _, step in ipairs(batch.removes) do
    local key, size = list[at], step[1]
    on_parts('ZREM', key, list, at + 1, size)
    at = at + 1 + size
    if step[2] == 1 then
      -- A run that has a name in a list leaves it with its last entry.
      if redis.call('EXISTS', key) == 0 then redis.call('SREM', list[at], list[at + 1]) end
      at = at + 2
    end
  end
  for _, step in ipairs(batch.adds) do
    add(list[at], list, at + 1, step[1])
    at = at + 1 + step[1]
    if step[2] == 1 then
      redis.call('SADD', list[at], list[at + 1])
      at = at + 2
    end
  end
  for _, entries in ipairs(batch.if_absent) do
    local is_new = redis.call('HSETNX', list[at], list[at + 1], list[at + 2]) == 1
    at = at + 3
    for _ = 1, entries do
      if is_new then redis.call('ZADD', list[at], '0', list[at + 1]) end
      at = at + 2
    end
  end
  local numbers = {}
  for _, size in ipairs(batch.logs) do
    local number = redis.call('HINCRBY', meta, list[at + 1], size) - size
    numbers[#numbers + 1] = number + size
    for place = 1, size do
      redis.call('XADD', list[at], string.format('%.0f-0', number + place), 'e', list[at + 1 + place])
    end
    at = at + 2 + size
  end
  for _, step in ipairs(batch.trims) do
    on_parts('XDEL', list[at], list, at + 1, step[1])
    at = at + 1 + step[1]
    for place = 0, 1 do
      local before = tonumber(redis.call('HGET', meta, list[at + place]) or '0')
      if step[2 + place] > before then
        redis.call('HSET', meta, list[at + place], string.format('%.0f', step[2 + place]))
      end
    end
    at = at + 2
  end
  -- It leaves with the answer to this call, once everything is as durable as the server makes it.
  if batch.told[1] then redis.call('PUBLISH', list[at], list[at + 1]) end
  return numbers
end

local function commit(keys, list)
  local batch = cmsgpack.unpack(list[1])
  local known = redis.call('HMGET', keys[1], 'id', 'history')
  if known[1] ~= list[2] then return gone() end
  if known[2] ~= list[3] then return {'elsewhere'} end
  local at, reason, field = compare(batch, list, 4)
  if not at then return {'moved', reason, field or ''} end
  local taken = taken_by_others(keys[1], batch, list, at)
  if taken then return redis.error_reply('WRONGTYPE the key ' .. taken .. ' holds something else') end
  local numbers = write(keys[1], batch, list, at)
  return {'done', redis.call('TIME'), numbers}
end

-- Write in every way in which a commit writes, and leave nothing behind: an account that lacks a right for one of them
-- is refused before a commit could stop half way.
local function rehearse(keys, list)
  local hash, sorted, set, stream = unpack(keys)
  redis.call('HSET', hash, 'f', '1')
  redis.call('HSETNX', hash, 'f', '1')
  redis.call('HINCRBY', hash, 'f', 1)
  redis.call('HDEL', hash, 'f')
  redis.call('ZADD', sorted, '0', 'm')
  redis.call('ZREM', sorted, 'm')
  redis.call('SADD', set, 'm')
  redis.call('SREM', set, 'm')
  redis.call('XADD', stream, 'NOMKSTREAM', '*', 'e', '')
  redis.call('XDEL', stream, '1-0')
  redis.call('PUBLISH', list[1], list[2])
  return redis.status_reply('OK')
end

redis.register_function('@PREFIX@commit', commit)
-- Looking at a full server needs it.
redis.register_function{function_name = '@PREFIX@rehearse', callback = rehearse, flags = {'allow-oom'}}
redis.register_function{function_name = '@PREFIX@read', callback = read, flags = {'no-writes'}}
