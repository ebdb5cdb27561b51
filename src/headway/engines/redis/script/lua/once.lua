-- Port of core/once.py: a gate that lets an event through once. One command, decided in one step.
--
-- KEYS[1]  the root: a hash, m is the gate (numbers, below); the keys beside it share its hash tag:
--          :s  events that count (sorted by turn), and :t (hash: event -> time, id)
--          :d  pending events (sorted by the clock of their submission), and :p (hash: event -> a pending event)
--          :l  the log, a list of lines; its length and the clock say which line is first
--          :i  a list of ids in the order of their submission, and :a (hash: id -> the answer that was given)
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

local OK, FULL, REUSED, OTHER, GONE, LOST = 0, 1, 2, 3, 4, 5
local REJECTED, SUBMITTED, INVALIDATED, PUBLISHED = 0, 1, 2, 3
local GRACE = 60000000
local MOST_LINES, MOST_BYTES = 64, 65536
local MOST_STEPS = 1000
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
-- The gate's numbers: its clock, latest time, turns given, duration, mode and beginning; before when time changes
-- nothing (quiet), when the first pending event is due (0: none is), when its keys were last given more time to live;
-- how many events count and are pending, and how many lines and answers are kept.
local clock, last, turn, own_duration, own_strict, began = 0, 0, 0, duration, strict and 1 or 0, now
local quiet, due, renewed, seen_count, pending_count, line_count, answer_count = now, 0, 0, 0, 0, 0, 0
local stored = call('HGET', root, 'm')
if stored then
  clock, last, turn, own_duration, own_strict, began, quiet, due, renewed, seen_count, pending_count, line_count,
    answer_count = unpack_from('<ddddddddddddd', stored)
else
  -- What a gate has left whose numbers were evicted.
  call('DEL', root .. ':s', root .. ':t', root .. ':d', root .. ':p', root .. ':l', root .. ':i', root .. ':a')
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

-- What the gate's numbers say is there. A server that evicts keys may have taken a part of a gate: then all of it is
-- lost, and the command is sent again, to a gate that begins anew.
local function must(found)
  if not found then
    error({lost = true})
  end
  return found
end

local function first_of(queue)
  return must(call('ZRANGE', root .. queue, 0, 0)[1])
end

-- Something changes by itself at that time, unless it is later than what is known of.
local function note(at)
  if at < quiet then
    quiet = at
  end
end

-- One more in a queue that had so many: a key that begins has no end yet.
local function add(count)
  if count == 0 then
    renewed = 0
  end
  return count + 1
end

-- A line of the log: its clock, status and time, then id, event and value (which is '' or begins with '=').
local lines, news, news_count, news_bytes = {}, {}, 0, 0
local function write_lines()
  if #lines > 0 then
    call('RPUSH', root .. ':l', unpack(lines))
    lines = {}
  end
end

local function tick(status, id, event, value)
  clock = clock + 1
  local line = pack('<ddd', clock, status, now) .. text(id) .. text(event) .. value
  line_count = add(line_count)
  note(now + kept + 1)
  lines[#lines + 1] = line
  if #lines == 1000 then
    write_lines()
  end
  news_count, news_bytes = news_count + 1, news_bytes + #line
  if news_count <= MOST_LINES and news_bytes <= MOST_BYTES then
    news[news_count] = text(line)
  end
  return clock
end

-- What is kept of an answer: when it was given, what became of it; accepted or not, clock, due; event and conflict.
local function keep_answer(id, when, status, said, event, conflict)
  answer_count = add(answer_count)
  note(when + kept + 1)
  call('RPUSH', root .. ':i', id)
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

local function first_due()
  due = 0
  local event = pending_count > 0 and first_of(':d')
  if event then
    due = select(2, unpack_from('<dd', must(call('HGET', root .. ':p', event))))
    note(due)
  end
end

local function take_pending(event)
  local pending = pending_count > 0 and call('HGET', root .. ':p', event)
  if pending then
    call('HDEL', root .. ':p', event)
    call('ZREM', root .. ':d', event)
    pending_count = pending_count - 1
  end
  return pending
end

-- Let time act: publish what is due, forget what is old. A server that does nothing else for seconds serves no other
-- client: what is too much for one command (unless it may take any number of steps) is left to the next, which comes at
-- once if a process waits. Nothing is decided by what is left: `submit` looks at times, and catches up where it must.
local behind = false
local function advance(steps)
  if now < quiet then
    return
  end
  quiet, behind = math.huge, false
  first_due()
  while due > 0 and due <= now and steps > 0 do
    finish(take_pending(first_of(':d')), PUBLISHED)
    first_due()
    steps = steps - 1
  end
  while seen_count > 0 and steps > 0 do
    local event = first_of(':s')
    local ends = unpack_from('<d', must(call('HGET', root .. ':t', event))) + duration
    if ends > now then
      note(ends)
      break
    end
    call('ZREM', root .. ':s', event)
    call('HDEL', root .. ':t', event)
    seen_count = seen_count - 1
    steps = steps - 1
  end
  write_lines()
  local old = now - kept
  while line_count > 0 and steps > 0 do
    local time = select(3, unpack_from('<ddd', must(call('LINDEX', root .. ':l', 0))))
    if time >= old then
      note(time + kept + 1)
      break
    end
    call('LPOP', root .. ':l')
    line_count = line_count - 1
    steps = steps - 1
  end
  while answer_count > 0 and steps > 0 do
    local id = must(call('LINDEX', root .. ':i', 0))
    local when = unpack_from('<d', must(call('HGET', root .. ':a', id)))
    if when >= old then
      note(when + kept + 1)
      break
    end
    call('LPOP', root .. ':i')
    call('HDEL', root .. ':a', id)
    answer_count = answer_count - 1
    steps = steps - 1
  end
  if steps <= 0 then
    quiet, behind = now, true
  end
end

-- Write the gate down, let all of it live for as long as it says anything, and publish what is new.
local function save(status, ...)
  write_lines()
  local renew = now >= renewed + GRACE / 2 or now < renewed
  if renew then
    renewed = now
  end
  call('HSET', root, 'm', pack('<ddddddddddddd', clock, now, turn, duration, strict and 1 or 0, began,
    quiet, due, renewed, seen_count, pending_count, line_count, answer_count))
  if renew then
    local ms = math.ceil((kept + duration + GRACE) / 1000)
    for _, part in ipairs({'', ':s', ':t', ':d', ':p', ':l', ':i', ':a'}) do
      call('PEXPIRE', root .. part, ms)
    end
  end
  local head = pack('<ddddd', status, now, clock, began, due)
  if news_count > 0 then
    -- Without the right to publish, waiters look by themselves: what was decided stands.
    redis.pcall('PUBLISH', root .. ':news', head .. (#news == news_count and table.concat(news) or ''))
  end
  return {head, ...}
end

-- commands ------------------------------------------------------------------------------------------------------------

local commands = {}

-- An event comes: a status, what was said (accepted, clock, due) or the reason, and the id that it conflicts with.
local function submit(event, id, value)
  local seen = seen_count > 0 and call('HGET', root .. ':t', event)
  if behind and (seen_count >= room or seen and unpack_from('<d', seen) + duration <= now) then
    advance(math.huge)
    seen = seen_count > 0 and call('HGET', root .. ':t', event)
  end
  local known = answer_count > 0 and call('HGET', root .. ':a', id)
  if known then
    local before, from = read(known, 41)
    if before ~= event then
      return REUSED, before, ''
    end
    return OK, string.sub(known, 17, 40), (read(known, from))
  end
  if seen then
    local conflict = string.sub(seen, 9)
    if strict then
      -- It counts: silence begins anew. And what it repeats is not let through.
      call('ZADD', root .. ':s', next_turn(), event)
      call('HSET', root .. ':t', event, pack('<d', now) .. id)
      local repeated = take_pending(event)
      if repeated then
        finish(repeated, INVALIDATED)
        first_due()
      end
    end
    local said = pack('<ddd', 0, clock, 0)
    keep_answer(id, now, REJECTED, said, event, conflict)
    return OK, said, conflict
  end
  if seen_count >= room then
    local oldest = unpack_from('<d', must(call('HGET', root .. ':t', first_of(':s'))))
    return FULL, pack('<d', oldest + duration - now), ''
  end
  seen_count = add(seen_count)
  note(now + duration)
  call('ZADD', root .. ':s', next_turn(), event)
  call('HSET', root .. ':t', event, pack('<d', now) .. id)
  local own_due = strict and now + duration or now
  local said = pack('<ddd', 1, tick(SUBMITTED, id, event, value), own_due)
  if strict then
    keep_answer(id, now, SUBMITTED, said, event, '')
    call('ZADD', root .. ':d', string.format('%.0f', clock), event)
    call('HSET', root .. ':p', event, pack('<ddd', now, own_due, clock) .. text(id) .. text(event) .. value)
    pending_count = add(pending_count)
    if due == 0 then
      due = own_due
    end
  else
    tick(PUBLISHED, id, event, value)
    keep_answer(id, now, PUBLISHED, said, event, '')
  end
  return OK, said, ''
end

-- event, id, value ('' or '=' and the value), for each of them: its status, what was said, and the conflict
function commands.submit(...)
  local given, said = {...}, {}
  advance(MOST_STEPS)
  for i = 1, #given, 3 do
    local status, what, conflict = submit(given[i], given[i + 1], given[i + 2])
    said[i], said[i + 1], said[i + 2] = pack('<d', status), what, conflict
  end
  return save(OK, unpack(said))
end

-- id: its status, if it is known
function commands.status(id)
  advance(MOST_STEPS)
  local answer = call('HGET', root .. ':a', id)
  return answer and save(OK, string.sub(answer, 9, 16)) or save(OK)
end

-- since, at most so many: the value after which all lines are kept, and the lines after since
function commands.changes(since, most)
  advance(MOST_STEPS)
  since, most = tonumber(since), tonumber(most)
  write_lines()
  local oldest = clock - line_count
  if since < oldest then
    return save(GONE, pack('<d', oldest))
  end
  local found = call('LRANGE', root .. ':l', since - oldest, since - oldest + most - 1)
  must(#found == math.max(0, math.min(most, clock - since)))
  return save(OK, pack('<d', oldest), unpack(found))
end

-- pending events, in the order of being due: lists of so many each, as a call has no more arguments than the stack
function commands.snapshot(most)
  advance(MOST_STEPS)
  local lists, from, events = {}, 0, nil
  repeat
    events = call('ZRANGE', root .. ':d', from, from + tonumber(most) - 1)
    if #events > 0 then
      local some = call('HMGET', root .. ':p', unpack(events))
      for _, pending in ipairs(some) do
        must(pending)
      end
      lists[#lists + 1] = some
    end
    from = from + #events
  until #events < tonumber(most)
  must(from == pending_count)
  return save(OK, lists)
end

local whole, reply = pcall(commands[ARGV[2]], unpack(ARGV, 3))
if whole then
  return reply
end
if type(reply) == 'table' and reply.lost then
  call('DEL', root, root .. ':s', root .. ':t', root .. ':d', root .. ':p', root .. ':l', root .. ':i', root .. ':a')
  return {pack('<ddddd', LOST, now, clock, began, 0)}
end
error(reply)
