-- Lifecycles by the batch, with what the Valkey store keeps of them and nothing checked. What stands between at signs
-- is filled in by valkey.py with the names and values of the store; values have the variables of their holes in them.

-- Number events and write them.
local function tell(log, last, events)
  local number = redis.call('HINCRBY', @META@, last, #events) - #events
  for place = 1, #events do
    redis.call('XADD', log, string.format('%.0f-0', number + place), 'e', events[place])
  end
end

-- Arguments: the time, a version; then key, text and payload of each execution.
local function create(keys, list)
  local created, version = list[1], list[2]
  local rows, payloads, documents = {}, {}, {}
  local queue, every, listed = {}, {}, {}
  local two = 0
  for at = 3, #list, 3 do
    local key, uuid = list[at], list[at + 1]
    local field, place = @EXECUTION_FIELD@, @QUEUE_ENTRY@
    local one = two + 1
    two = two + 2
    rows[one], rows[two] = field, @NEW_EXECUTION@
    payloads[one], payloads[two] = field, list[at + 2]
    documents[one], documents[two] = field, @DOCUMENT@
    queue[one], queue[two] = '0', place
    every[one], every[two] = '0', @EXECUTIONS_ENTRY@
    listed[one], listed[two] = '0', @CREATED_ENTRY@
  end
  redis.call('HSET', @EXECUTIONS@, unpack(rows))
  redis.call('HSET', @PAYLOADS@, unpack(payloads))
  redis.call('HSET', @DOCUMENTS@, unpack(documents))
  redis.call('ZADD', @QUEUE@, unpack(queue))
  redis.call('ZADD', @QUEUE_OF_NAMESPACE@, unpack(queue))
  redis.call('ZADD', @EXECUTIONS_RUN@, unpack(every))
  redis.call('ZADD', @CREATED_RUN@, unpack(listed))
  return two / 2
end

-- Arguments: the time, when leases end, a version; then ids of an attempt and of a lease for each that is wanted.
-- Answers with text and key of each execution that was there.
local function claim(keys, list)
  local started, expires, version = list[1], list[2], list[3]
  local found = redis.call('ZRANGE', @QUEUE@, 0, (#list - 3) / 2 - 1)
  if #found == 0 then return found end
  local rows, attempts, leases, events, answers = {}, {}, {}, {}, {}
  for number, member in ipairs(found) do
    local key, uuid, created = @KEY_OF_ENTRY@, @UUID_OF_ENTRY@, @CREATED_OF_ENTRY@
    local attempt_id, lease_id = list[2 * number + 2], list[2 * number + 3]
    local two = 2 * number
    local one = two - 1
    rows[one], rows[two] = @EXECUTION_FIELD@, @CLAIMED_EXECUTION@
    attempts[one], attempts[two] = @ATTEMPT_FIELD@, @RUNNING_ATTEMPT@
    leases[one], leases[two] = '0', @LEASE_ENTRY@
    events[number] = @ACQUIRED@
    answers[one], answers[two] = key, uuid
  end
  redis.call('ZREMRANGEBYRANK', @QUEUE@, 0, #found - 1)
  redis.call('ZREM', @QUEUE_OF_NAMESPACE@, unpack(found))
  redis.call('HSET', @EXECUTIONS@, unpack(rows))
  redis.call('HSET', @ATTEMPTS@, unpack(attempts))
  redis.call('ZADD', @LEASE_RUN@, unpack(leases))
  tell(@LEASE_LOG@, @LEASE_LAST@, events)
  return answers
end

-- Fields of the executions whose keys and texts stand behind the first arguments, and of their attempts.
local function held(list, from)
  local fields, attempt_fields = {}, {}
  for at = from, #list, 2 do
    local key = list[at]
    fields[#fields + 1] = @EXECUTION_FIELD@
    attempt_fields[#attempt_fields + 1] = @ATTEMPT_FIELD@
  end
  return fields, attempt_fields
end

-- Arguments: the time, a version, the result; then key and text of each execution.
local function complete(keys, list)
  local ended, version, result = list[1], list[2], list[3]
  local fields, attempt_fields = held(list, 4)
  local executions = redis.call('HMGET', @EXECUTIONS@, unpack(fields))
  local running = redis.call('HMGET', @ATTEMPTS@, unpack(attempt_fields))
  local rows, attempts, results, leases, ends, events, completions = {}, {}, {}, {}, {}, {}, {}
  for number, execution in ipairs(executions) do
    local two = 2 * number
    local one = two - 1
    local key, uuid, attempt, field = list[two + 2], list[two + 3], running[number], fields[number]
    local created, started = @CREATED_OF_EXECUTION@, @STARTED_OF_EXECUTION@
    local expires, attempt_id, lease_id = @EXPIRES_OF_ATTEMPT@, @ATTEMPT_ID_OF_ATTEMPT@, @LEASE_ID_OF_ATTEMPT@
    rows[one], rows[two] = field, @ENDED_EXECUTION@
    attempts[one], attempts[two] = attempt_fields[number], @ENDED_ATTEMPT@
    results[one], results[two] = field, result
    leases[number] = @LEASE_ENTRY@
    ends[one], ends[two] = '0', @ENDED_ENTRY@
    events[number] = @REVOKED@
    completions[number] = @COMPLETION@
  end
  redis.call('HSET', @EXECUTIONS@, unpack(rows))
  redis.call('HSET', @ATTEMPTS@, unpack(attempts))
  redis.call('HSET', @RESULTS@, unpack(results))
  redis.call('ZREM', @LEASE_RUN@, unpack(leases))
  redis.call('ZADD', @ENDED_RUN@, unpack(ends))
  tell(@LEASE_LOG@, @LEASE_LAST@, events)
  tell(@COMPLETION_LOG@, @COMPLETION_LAST@, completions)
  return #executions
end

-- Arguments: the time, when leases end, a version; then key and text of each execution.
local function renew(keys, list)
  local renewed, version = list[1], list[3]
  local _, attempt_fields = held(list, 4)
  local running = redis.call('HMGET', @ATTEMPTS@, unpack(attempt_fields))
  local attempts, before, after, events = {}, {}, {}, {}
  for number, attempt in ipairs(running) do
    local two = 2 * number
    local one = two - 1
    local key, uuid, started = list[two + 2], list[two + 3], @STARTED_OF_ATTEMPT@
    local attempt_id, lease_id = @ATTEMPT_ID_OF_ATTEMPT@, @LEASE_ID_OF_ATTEMPT@
    local expires = @EXPIRES_OF_ATTEMPT@
    before[number] = @LEASE_ENTRY@
    expires = list[2]
    after[one], after[two] = '0', @LEASE_ENTRY@
    attempts[one], attempts[two] = attempt_fields[number], @RENEWED_ATTEMPT@
    events[number] = @RENEWED@
  end
  redis.call('HSET', @ATTEMPTS@, unpack(attempts))
  redis.call('ZREM', @LEASE_RUN@, unpack(before))
  redis.call('ZADD', @LEASE_RUN@, unpack(after))
  tell(@LEASE_LOG@, @LEASE_LAST@, events)
  return #running
end

redis.register_function('@prefix@create', create)
redis.register_function('@prefix@claim', claim)
redis.register_function('@prefix@complete', complete)
redis.register_function('@prefix@renew', renew)
