-- What the server does when another one has taken its place. See losses.py.
--
-- A break is where the numbers of a log go on higher up. It is kept as two numbers: the last one below that this server
-- knows of, and the one that the next event comes behind.

-- Let numbers of events go on where no number was ever given out, unless that was done for this server already.
-- The arguments: the store's id, the server's name, the least step, how many breaks are kept; then of each log where it
-- keeps its last number, the number up to which events were deleted, and its breaks.
local function begin(keys, args)
  local meta = keys[1]
  local known = redis.call('HMGET', meta, 'id', 'history')
  if known[1] ~= args[1] then return gone() end
  local is_new = known[2] ~= args[2]
  local time = redis.call('TIME')
  -- Microseconds: an earlier process has not given out a number for each of them.
  local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
  local answers = {}
  for at = 5, #args, 3 do
    local last, trimmed, breaks = unpack(redis.call('HMGET', meta, args[at], args[at + 1], args[at + 2]))
    breaks = breaks or ''
    if is_new then
      last, trimmed = tonumber(last or '0'), tonumber(trimmed or '0')
      local start = math.max(now, last + tonumber(args[3]))
      local kept = {}
      for from, to in string.gmatch(breaks, '(%d+)-(%d+)') do
        if tonumber(to) > trimmed then kept[#kept + 1] = {tonumber(from), tonumber(to)} end
      end
      kept[#kept + 1] = {last, start}
      while #kept > tonumber(args[4]) do
        -- Nobody can be led across a break that is not kept: what lies below it counts as deleted.
        trimmed = table.remove(kept, 1)[2]
        redis.call('HSET', meta, args[at + 1], string.format('%.0f', trimmed))
      end
      local texts = {}
      for place, each in ipairs(kept) do texts[place] = string.format('%.0f-%.0f', each[1], each[2]) end
      breaks = table.concat(texts, ' ')
      redis.call('HSET', meta, args[at], string.format('%.0f', start), args[at + 2], breaks)
    end
    answers[#answers + 1] = breaks
  end
  if is_new then redis.call('HSET', meta, 'history', args[2]) end
  return answers
end

-- Write down what a process misses since another server has taken over; others may miss more, or less.
-- The arguments: the name of the new server, what is missed as JSON, how many such notes are kept.
local function miss(keys, args)
  local losses, name, most = keys[1], args[1], tonumber(args[3])
  local found = cjson.decode(args[2])
  local known = redis.call('HGET', losses, name)
  found.at_s = tonumber(redis.call('TIME')[1])
  if known then
    known = cjson.decode(known)
    found.at_s = known.at_s
    found.commits = found.commits + known.commits
    for log, count in pairs(known.events) do found.events[log] = math.max(count, found.events[log] or 0) end
  end
  redis.call('HSET', losses, name, cjson.encode(found))
  while redis.call('HLEN', losses) > most do
    local all, oldest, at_s = redis.call('HGETALL', losses), nil, math.huge
    for place = 1, #all, 2 do
      local each = cjson.decode(all[place + 1]).at_s
      if each < at_s then oldest, at_s = all[place], each end
    end
    redis.call('HDEL', losses, oldest)
  end
  return redis.status_reply('OK')
end

-- Both write next to nothing, and looking at a full server needs them.
redis.register_function{function_name = '@PREFIX@begin', callback = begin, flags = {'allow-oom'}}
redis.register_function{function_name = '@PREFIX@miss', callback = miss, flags = {'allow-oom'}}
