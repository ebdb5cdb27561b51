-- Port of core/once.py: a gate that lets an event through once. One command, decided in one step.
--
-- KEYS[1]  the root: a hash, m is the gate (numbers, below); the keys beside it share its hash tag:
--          :s  events that count (sorted by turn), and :t (hash: event -> time, id)
--          :d  pending events (sorted by the clock of their submission), and :p (hash: event -> a pending event)
--          :l  the log, a list of lines; its length and the clock say which line is first
--          :i  ids in the order of their submission, and :a (hash: id -> the answer that was given)
-- ARGV[1]  numbers: time (0: the server's), duration, strict or not, max_pending, retention
-- ARGV[2]  what to do: one of the functions at the end; ARGV[3..]: its arguments
--
-- The answer: numbers (a status, the time, the clock, when the gate began, when the next event is due or 0), then what
-- the function says. With any status but OK nothing has changed, but for what time did by itself. A gate of which
-- nothing is left to say expires; the next one under its name counts from 0 again, and began at another time. Times are
-- microseconds: whole numbers below 2^53.
--
-- When the clock has moved, the same numbers are published on the channel :news, with the new lines of the log (each
-- with its length) if there are not too many of them.

local OK, FULL, REUSED, OTHER, GONE = 0, 1, 2, 3, 4
local REJECTED, SUBMITTED, INVALIDATED, PUBLISHED = 0, 1, 2, 3
local GRACE = 60000000
local MOST_LINES, MOST_BYTES = 64, 65536
local call, pack, unpack_from = redis.call, struct.pack, struct.unpack
local root = KEYS[1]
local at, duration, strict, room, retention = unpack_from('<ddddd', ARGV[1])
strict = strict == 1

-- the gate ------------------------------------------------------------------------------------------------------------

local now = at
if at == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local clock, last, turn, own_duration, own_strict, began = 0, 0, 0, duration, strict and 1 or 0, now
local stored = call('HGET', root, 'm')
if stored then
  clock, last, turn, own_duration, own_strict, began = unpack_from('<dddddd', stored)
end
if own_duration ~= duration or own_strict ~= (strict and 1 or 0) then
  return {pack('<dddddd', OTHER, now, clock, began, own_duration, own_strict)}
end
if now < last then
  now = last
end
local kept = math.max(duration, retention)

local function text(value)
  return pack('<d', #value) .. value
end

local function read(packed, from)
  local length = unpack_from('<d', packed, from)
  return string.sub(packed, from + 8, from + 7 + length), from + 8 + length
end

local function next_turn()
  turn = turn + 1
  return string.format('%.0f', turn)
end

local function first_of(queue)
  return call('ZRANGE', root .. queue, 0, 0)[1]
end

-- A line of the log: its clock, status and time, then id, event and value (which is '' or begins with '=').
local fresh, fresh_count, fresh_bytes = {}, 0, 0
local function tick(status, id, event, value)
  clock = clock + 1
  local line = pack('<ddd', clock, status, now) .. text(id) .. text(event) .. value
  call('RPUSH', root .. ':l', line)
  fresh_count, fresh_bytes = fresh_count + 1, fresh_bytes + #line
  if fresh_count <= MOST_LINES and fresh_bytes <= MOST_BYTES then
    fresh[fresh_count] = text(line)
  end
  return clock
end

-- What is kept of an answer: when it was given, what became of it; accepted or not, clock, due; event and conflict.
local function keep_answer(id, when, status, said, event, conflict)
  call('HSET', root .. ':a', id, pack('<dd', when, status) .. said .. text(event) .. text(conflict))
end

local function finish(pending, status)
  local _, _, _, from = unpack_from('<ddd', pending)
  local id, event, value
  id, from = read(pending, from)
  event, from = read(pending, from)
  value = string.sub(pending, from)
  tick(status, id, event, value)
  local answer = call('HGET', root .. ':a', id)
  if answer then
    call('HSET', root .. ':a', id, string.sub(answer, 1, 8) .. pack('<d', status) .. string.sub(answer, 17))
  end
end

local function take_pending(event)
  local pending = call('HGET', root .. ':p', event)
  if pending then
    call('HDEL', root .. ':p', event)
    call('ZREM', root .. ':d', event)
  end
  return pending
end

-- Let time act: publish what is due, forget what is old.
local function advance()
  local event = first_of(':d')
  while event do
    local _, due = unpack_from('<dd', call('HGET', root .. ':p', event))
    if due > now then
      break
    end
    finish(take_pending(event), PUBLISHED)
    event = first_of(':d')
  end
  event = first_of(':s')
  while event and unpack_from('<d', call('HGET', root .. ':t', event)) + duration <= now do
    call('ZREM', root .. ':s', event)
    call('HDEL', root .. ':t', event)
    event = first_of(':s')
  end
  local old = now - kept
  local line = call('LINDEX', root .. ':l', 0)
  while line and select(3, unpack_from('<ddd', line)) < old do
    call('LPOP', root .. ':l')
    line = call('LINDEX', root .. ':l', 0)
  end
  local id = first_of(':i')
  while id do
    local answer = call('HGET', root .. ':a', id)
    local when, status = unpack_from('<dd', answer)
    if when >= old or status == SUBMITTED and call('HEXISTS', root .. ':p', (read(answer, 41))) == 1 then
      break
    end
    call('ZREM', root .. ':i', id)
    call('HDEL', root .. ':a', id)
    id = first_of(':i')
  end
end

-- Write the gate down, and let all of it live for as long as it says anything.
local function save(status, ...)
  call('HSET', root, 'm', pack('<dddddd', clock, now, turn, duration, strict and 1 or 0, began))
  local ms = math.ceil((kept + duration + GRACE) / 1000)
  for _, part in ipairs({'', ':s', ':t', ':d', ':p', ':l', ':i', ':a'}) do
    call('PEXPIRE', root .. part, ms)
  end
  local due, event = 0, strict and first_of(':d')
  if event then
    due = select(2, unpack_from('<dd', call('HGET', root .. ':p', event)))
  end
  local head = pack('<ddddd', status, now, clock, began, due)
  if fresh_count > 0 then
    -- Without the right to publish, waiters look by themselves: what was decided stands.
    redis.pcall('PUBLISH', root .. ':news', head .. (#fresh == fresh_count and table.concat(fresh) or ''))
  end
  return {head, ...}
end

-- commands ------------------------------------------------------------------------------------------------------------

local commands = {}

-- event, id, value ('' or '=' and the value): accepted, clock, due and the id that it conflicts with
function commands.submit(event, id, value)
  local known = call('HGET', root .. ':a', id)
  advance()
  if known then
    local before, from = read(known, 41)
    if before ~= event then
      return save(REUSED, before)
    end
    return save(OK, string.sub(known, 17, 40), (read(known, from)))
  end
  local seen = call('HGET', root .. ':t', event)
  if seen then
    local conflict = string.sub(seen, 9)
    if strict then
      -- It counts: silence begins anew. And what it repeats is not let through.
      call('ZADD', root .. ':s', next_turn(), event)
      call('HSET', root .. ':t', event, pack('<d', now) .. id)
      local repeated = take_pending(event)
      if repeated then
        finish(repeated, INVALIDATED)
      end
    end
    local said = pack('<ddd', 0, clock, 0)
    call('ZADD', root .. ':i', next_turn(), id)
    keep_answer(id, now, REJECTED, said, event, conflict)
    return save(OK, said, conflict)
  end
  if call('ZCARD', root .. ':s') >= room then
    local oldest = unpack_from('<d', call('HGET', root .. ':t', first_of(':s')))
    return save(FULL, pack('<d', oldest + duration - now))
  end
  call('ZADD', root .. ':s', next_turn(), event)
  call('HSET', root .. ':t', event, pack('<d', now) .. id)
  local due = strict and now + duration or now
  local said = pack('<ddd', 1, tick(SUBMITTED, id, event, value), due)
  call('ZADD', root .. ':i', next_turn(), id)
  keep_answer(id, now, SUBMITTED, said, event, '')
  local pending = pack('<ddd', now, due, clock) .. text(id) .. text(event) .. value
  if strict then
    call('ZADD', root .. ':d', string.format('%.0f', clock), event)
    call('HSET', root .. ':p', event, pending)
  else
    finish(pending, PUBLISHED)
  end
  return save(OK, said, '')
end

-- id: its status, if it is known
function commands.status(id)
  advance()
  local answer = call('HGET', root .. ':a', id)
  return answer and save(OK, string.sub(answer, 9, 16)) or save(OK)
end

-- since, at most so many: the value after which all lines are kept, and the lines after since
function commands.changes(since, most)
  advance()
  since, most = tonumber(since), tonumber(most)
  local oldest = clock - call('LLEN', root .. ':l')
  if since < oldest then
    return save(GONE, pack('<d', oldest))
  end
  return save(OK, pack('<d', oldest), unpack(call('LRANGE', root .. ':l', since - oldest, since - oldest + most - 1)))
end

-- pending events, in the order of being due: lists of so many each, as a call has no more arguments than the stack
function commands.snapshot(most)
  advance()
  local lists, from, events = {}, 0, nil
  repeat
    events = call('ZRANGE', root .. ':d', from, from + tonumber(most) - 1)
    if #events > 0 then
      lists[#lists + 1] = call('HMGET', root .. ':p', unpack(events))
    end
    from = from + #events
  until #events < tonumber(most)
  return save(OK, lists)
end

return commands[ARGV[2]](unpack(ARGV, 3))
