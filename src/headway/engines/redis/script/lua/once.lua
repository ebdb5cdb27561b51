-- Port of core/once.py: a gate that lets an event through once. One command, decided in one step.
--
-- A call of the server from Lua costs more than what it does, so a command reads all that it needs by one HMGET and
-- writes it by one HSET, also for many events, and what time does is done in chunks.
--
-- KEYS[1]  the root, a hash. The keys beside it share its hash tag; all four are lists in the order of time.
--          g        the gate: numbers, below
--          e.EVENT  an event that counts: time, clock (of its submission while it is pending, else 0), then while it
--                   is pending its body, otherwise the field of its id
--          i.ID     an answer that was given: status, time, clock, length of the conflict; the conflict (a field),
--                   then the event's field
--          :d  accepted events of a strict gate: time, clock, field. Pending, if the event still has that clock
--          :s  other events that count: time, field. It counts, if the event still has that time
--          :l  the log: lines (clock, time, status, then a body); its length and the clock say which line is first
--          :i  answers that have no line, as they reject: time, field
-- ARGV[1]  numbers: time (0: the server's), duration, strict or not, max_pending, retention
-- ARGV[2]  what to do: one of the functions at the end; ARGV[3..]: its arguments
--
-- A body is made by a client and never changed: three lengths, then id, event and value. The time of an accepted event
-- counts for both of its ends: a pending event is due when it no longer counts, so :d is the queue for both.
--
-- The answer: numbers (a status, the time, the clock, when the gate began, when the next event is due or 0), then what
-- the function says. With any status but OK nothing has changed, but for what time did by itself. A gate of which
-- nothing is left to say expires; the next one under its name counts from 0 again, and began at another time. Times are
-- microseconds: whole numbers below 2^53.
--
-- When the clock has moved, the same numbers are published on the channel :news, with the new lines of the log if there
-- are not too many of them.

local OK, OTHER, GONE, LOST, AGAIN = 0, 1, 2, 3, 4
local REJECTED, SUBMITTED, INVALIDATED, PUBLISHED = 0, 1, 2, 3
local REUSED, FULL = 4, 5
local GRACE = 60000000
local MOST_LINES, MOST_BYTES = 64, 65536
local MOST_STEPS, FIRST_CHUNK, CHUNK = 1000, 8, 128
local call, pack, unpack_from, sub = redis.call, struct.pack, struct.unpack, string.sub
local root, verb = KEYS[1], ARGV[2]
local now, duration, strict, room, retention = unpack_from('<ddddd', ARGV[1])

-- the gate ------------------------------------------------------------------------------------------------------------

if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
-- The fields that a command asks for: those of events and ids by turns, or one id's.
local asked = verb == 'submit' and (#ARGV - 2) / 3 * 2 or verb == 'status' and 1 or 0
local found = call('HMGET', root, 'g', unpack(ARGV, 3, 2 + asked))
-- The gate's numbers: its clock, latest time, duration, mode and beginning; before when nothing is to be forgotten
-- (quiet), when the first pending event is due (0: none is), when its keys were last given more time to live; how many
-- events count and are pending; how long the lists are, and how many :d had that are no longer there.
local clock, last, own_duration, own_strict, began = 0, 0, duration, strict, now
local quiet, due, renewed, seen_count, pending_count = math.huge, 0, 0, 0, 0
local queue_count, queue_gone, silent_count, line_count, answer_count = 0, 0, 0, 0, 0
if found[1] then
  clock, last, own_duration, own_strict, began, quiet, due, renewed, seen_count, pending_count, queue_count, queue_gone,
    silent_count, line_count, answer_count = unpack_from('<ddddddddddddddd', found[1])
else
  -- What a gate has left whose numbers were evicted.
  call('DEL', root, root .. ':d', root .. ':s', root .. ':l', root .. ':i')
end
if own_duration ~= duration or own_strict ~= strict then
  return {pack('<dddddd', OTHER, now, clock, began, own_duration, own_strict)}
end
strict = strict == 1
if now < last then
  now = last
end
local kept = math.max(duration, retention)
local old = now - kept

-- What the gate's numbers say is there. A server that evicts keys may have taken a part of a gate: then all of it is
-- lost, and the command is sent again, to a gate that begins anew.
local lost = {}
local function must(found)
  if not found then
    error(lost)
  end
  return found
end

-- Something is to be forgotten at that time, unless something else is before.
local function note(at)
  if at < quiet then
    quiet = at
  end
end

-- So many more at the end of a list that had `count`; its new length. A key that begins has no end yet.
local function push(list, count, values, more)
  if count == 0 then
    renewed = 0
  end
  must(call('RPUSH', root .. list, unpack(values)) == count + more)
  return count + more
end

local lines, line_total, news_bytes = {}, 0, 0
local news = {}
local function write_lines()
  if #lines > 0 then
    line_count = push(':l', line_count, lines, #lines)
    lines = {}
    note(now + kept + 1)
  end
end

local function tick(status, body)
  clock = clock + 1
  local line = pack('<ddB', clock, now, status) .. body
  lines[#lines + 1] = line
  line_total, news_bytes = line_total + 1, news_bytes + #line
  if line_total <= MOST_LINES and news_bytes <= MOST_BYTES then
    news[line_total] = line
  end
  return clock
end

-- Time ----------------------------------------------------------------------------------------------------------------

-- Take from the front of a list what `over` says is over, by chunks of its fields; the numbers of steps that are left,
-- and of values. `over(value)` is a field, and what else there is to know of it; nil if it is not over. Then
-- `act(what, record)` is called for each, with what the field has, and says whether that ends.
local function take(list, count, steps, over, act)
  local size = FIRST_CHUNK
  while count > 0 and steps > 0 do
    local some = call('LRANGE', root .. list, 0, math.min(size, steps) - 1)
    must(#some == math.min(size, steps, count))
    local fields, facts, ends, gone = {}, {}, {}, {}
    for i = 1, #some do
      local field, fact = over(some[i])
      if not field then
        break
      end
      fields[i], facts[i] = field, fact
    end
    if #fields > 0 then
      local records = call('HMGET', root, unpack(fields))
      for i = 1, #fields do
        -- The same may be there twice: of two repeats at one time, say.
        if records[i] and not gone[fields[i]] and act(facts[i], records[i]) then
          ends[#ends + 1] = fields[i]
          gone[fields[i]] = true
        end
      end
      if #ends > 0 then
        call('HDEL', root, unpack(ends))
      end
      call('LTRIM', root .. list, #fields, -1)
      count, steps = count - #fields, steps - #fields
    end
    if #fields < #some then
      break
    end
    size = CHUNK
  end
  return count, steps
end

-- When the first pending event is due. Those that were invalidated are taken from the front, but not too many at once.
local function first_due()
  due = 0
  if pending_count == 0 and queue_count > 0 then
    call('DEL', root .. ':d')
    queue_count, queue_gone = 0, queue_gone + queue_count
  end
  for step = 1, queue_count do
    local first = must(call('LINDEX', root .. ':d', 0))
    local time, own_clock, from = unpack_from('<dd', first)
    local record = call('HGET', root, sub(first, from))
    due = time + duration
    if step > MOST_STEPS or record and select(2, unpack_from('<dd', record)) == own_clock then
      return
    end
    call('LPOP', root .. ':d')
    queue_count, queue_gone = queue_count - 1, queue_gone + 1
  end
  must(pending_count == 0)
  due = 0
end

-- Publish what is due. A server that does nothing else for seconds serves no other client: what is too much for one
-- command is left to the next, which comes at once if a process waits. Nothing is decided by what is left: a submission
-- that depends on it is sent again (AGAIN) until nothing is.
local acted = false
local function publish()
  if due == 0 or now < due then
    return
  end
  acted = true
  local before, steps = queue_count, nil
  queue_count, steps = take(':d', queue_count, MOST_STEPS, function(value)
    local time, own_clock, from = unpack_from('<dd', value)
    if time + duration <= now then
      return sub(value, from), own_clock
    end
  end, function(own_clock, record)
    local _, its_clock, from = unpack_from('<dd', record)
    if its_clock == own_clock then
      tick(PUBLISHED, sub(record, from))
      seen_count, pending_count = seen_count - 1, pending_count - 1
      return true
    end
  end)
  queue_gone = queue_gone + before - queue_count
  write_lines()
  first_due()
end

-- Forget what is old. That may be late: where it matters, times are looked at. So it is done for many at a time, and
-- before a command to which it does matter (`exact`).
local function forget(exact)
  if now < quiet or not exact and now < quiet + math.min(1000000, duration / 8) then
    return
  end
  acted = true
  local steps = MOST_STEPS
  quiet = math.huge
  silent_count, steps = take(':s', silent_count, steps, function(value)
    local time, from = unpack_from('<d', value)
    if time + duration <= now then
      return sub(value, from), time
    end
    note(time + duration)
  end, function(time, record)
    if unpack_from('<d', record) == time then
      seen_count = seen_count - 1
      return true
    end
  end)
  local function answer_is_old(_, record)
    return select(2, unpack_from('<Bd', record)) < old
  end
  line_count, steps = take(':l', line_count, steps, function(value)
    local _, time, _, length = unpack_from('<ddBI', value)
    if time < old then
      return 'i' .. sub(value, 30, 29 + length)
    end
    note(time + kept + 1)
  end, answer_is_old)
  answer_count, steps = take(':i', answer_count, steps, function(value)
    local time, from = unpack_from('<d', value)
    if time < old then
      return sub(value, from)
    end
    note(time + kept + 1)
  end, answer_is_old)
  if steps <= 0 then
    quiet = now
  end
end

-- commands ------------------------------------------------------------------------------------------------------------

-- Write the gate down, let all of it live for as long as it says anything, and publish what is new.
local function save(status, writes, ...)
  write_lines()
  local renew = now >= renewed + GRACE / 2 or now < renewed
  if renew then
    renewed = now
  end
  call('HSET', root, 'g', pack('<ddddddddddddddd', clock, now, duration, strict and 1 or 0, began, quiet, due, renewed,
    seen_count, pending_count, queue_count, queue_gone, silent_count, line_count, answer_count), unpack(writes))
  if renew then
    local ms = math.ceil((kept + duration + GRACE) / 1000)
    for _, part in ipairs({'', ':d', ':s', ':l', ':i'}) do
      call('PEXPIRE', root .. part, ms)
    end
  end
  local head = pack('<ddddd', status, now, clock, began, due)
  if line_total > 0 then
    -- Without the right to publish, waiters look by themselves: what was decided stands.
    redis.pcall('PUBLISH', root .. ':news', #news == line_total and head .. table.concat(news) or head)
  end
  return {head, ...}
end

local commands = {}

-- The oldest event that counts; the front of a list may have some that do not.
local function oldest_seen()
  first_due()
  local oldest = due > 0 and due - duration or math.huge
  for _ = 1, math.min(silent_count, MOST_STEPS) do
    local first = must(call('LINDEX', root .. ':s', 0))
    local time, from = unpack_from('<d', first)
    local record = call('HGET', root, sub(first, from))
    if record and unpack_from('<d', record) == time then
      return math.min(oldest, time)
    end
    call('LPOP', root .. ':s')
    silent_count = silent_count - 1
  end
  return oldest
end

-- The fields of events and ids by turns, then a body for each event. What is said of each, in one string: what became
-- of it, the clock, when it is due (or when there may be room), the length of a text; the id that it repeats, or the
-- event that its id belongs to.
function commands.submit()
  local many = asked / 2
  publish()
  forget(seen_count + many > room)
  if acted then
    found = call('HMGET', root, 'g', unpack(ARGV, 3, 2 + asked))
  end
  local behind = due > 0 and due <= now
  if behind or quiet <= now then
    local again = seen_count + many > room
    for k = 2, asked, 2 do
      local time, own_clock = 0, 0
      if found[k] then
        time, own_clock = unpack_from('<dd', found[k])
      end
      again = again or behind and own_clock > 0 and time + duration <= now
    end
    if again then
      return save(AGAIN, {})
    end
  end
  -- What is written, to be read by later events of this command, and as arguments of commands.
  local written, writes, said = {}, {}, {}
  local queued, silent, answers = {}, {}, {}
  local first_ended = false
  local function write(field, record)
    written[field] = record
    writes[#writes + 1] = field
    writes[#writes + 1] = record
  end
  local function push_all()
    if #queued > 0 then
      queue_count = push(':d', queue_count, queued, #queued)
    end
    if #silent > 0 then
      silent_count = push(':s', silent_count, silent, #silent)
      note(now + duration)
    end
    if #answers > 0 then
      answer_count = push(':i', answer_count, answers, #answers)
      note(now + kept + 1)
    end
  end
  local function flush()
    push_all()
    if #writes > 0 then
      call('HSET', root, unpack(writes))
    end
    queued, silent, answers, writes = {}, {}, {}, {}
  end
  for k = 1, many do
    local event, id, body = ARGV[2 * k + 1], ARGV[2 * k + 2], ARGV[2 + asked + k]
    local seen, known = written[event] or found[2 * k], written[id] or found[2 * k + 1]
    local status, when, own_clock, length, from
    if known then
      status, when, own_clock, length, from = unpack_from('<BddI', known)
      known = when >= old
    end
    local seen_time, seen_clock, rest
    if seen and not known then
      seen_time, seen_clock, rest = unpack_from('<dd', seen)
    end
    if known then
      local answer = written[id] or found[2 * k + 1]
      local before = sub(answer, from + length)
      if before ~= event then
        said[k] = pack('<BddI', REUSED, 0, 0, #before) .. before
      elseif status == REJECTED then
        said[k] = pack('<BddI', REJECTED, own_clock, 0, length) .. sub(answer, from, from + length - 1)
      else
        said[k] = pack('<BddI', SUBMITTED, own_clock, strict and when + duration or when, 0)
      end
    elseif seen and seen_time + duration > now then
      local conflict
      if seen_clock > 0 then
        -- What it repeats is not let through.
        local its_body = sub(seen, rest)
        conflict = 'i' .. sub(its_body, 13, 12 + unpack_from('<I', its_body))
        tick(INVALIDATED, its_body)
        pending_count = pending_count - 1
        first_ended = first_ended or seen_time + duration == due
        local answer = written[conflict] or call('HGET', root, conflict)
        if answer then
          write(conflict, pack('<B', INVALIDATED) .. sub(answer, 2))
        end
      else
        conflict = sub(seen, rest)
      end
      if strict then
        -- It counts: silence begins anew.
        write(event, pack('<dd', now, 0) .. id)
        silent[#silent + 1] = pack('<d', now) .. event
      end
      write(id, pack('<BddI', REJECTED, now, clock, #conflict) .. conflict .. event)
      answers[#answers + 1] = pack('<d', now) .. id
      said[k] = pack('<BddI', REJECTED, clock, 0, #conflict) .. conflict
    elseif not seen and seen_count >= room then
      flush()
      said[k] = pack('<BddI', FULL, 0, oldest_seen() + duration - now, 0)
    else
      if not seen then
        seen_count = seen_count + 1
      end
      own_clock = tick(SUBMITTED, body)
      if strict then
        write(event, pack('<dd', now, own_clock) .. body)
        write(id, pack('<BddI', SUBMITTED, now, own_clock, 0) .. event)
        queued[#queued + 1] = pack('<dd', now, own_clock) .. event
        pending_count = pending_count + 1
        if due == 0 then
          due = now + duration
        end
        said[k] = pack('<BddI', SUBMITTED, own_clock, now + duration, 0)
      else
        tick(PUBLISHED, body)
        write(event, pack('<dd', now, 0) .. id)
        write(id, pack('<BddI', PUBLISHED, now, own_clock, 0) .. event)
        silent[#silent + 1] = pack('<d', now) .. event
        said[k] = pack('<BddI', SUBMITTED, own_clock, now, 0)
      end
    end
  end
  if first_ended then
    flush()
    first_due()
  end
  push_all()
  return save(OK, writes, table.concat(said))
end

-- An id's field: its status, if it is known. The answer to an event that was published still says SUBMITTED.
function commands.status()
  publish()
  forget(false)
  local answer = acted and call('HGET', root, ARGV[3]) or not acted and found[2]
  if not answer then
    return save(OK, {})
  end
  local status, when, own_clock, length, from = unpack_from('<BddI', answer)
  if when < old then
    return save(OK, {})
  end
  if status == SUBMITTED and when + duration <= now then
    local event = due > 0 and due <= now and call('HGET', root, sub(answer, from + length))
    if not event or select(2, unpack_from('<dd', event)) ~= own_clock then
      status = PUBLISHED
    end
  end
  return save(OK, {}, pack('<B', status))
end

-- since, at most so many: the value after which all lines are kept, and the lines after since
function commands.changes()
  publish()
  forget(true)
  local since, most = tonumber(ARGV[3]), tonumber(ARGV[4])
  local oldest = clock - line_count
  if since < oldest then
    return save(GONE, {}, pack('<d', oldest))
  end
  local some = call('LRANGE', root .. ':l', since - oldest, since - oldest + most - 1)
  must(#some == math.max(0, math.min(most, clock - since)))
  return save(OK, {}, pack('<d', oldest), some)
end

-- Where to begin in :d (counted since the gate began), at most so many: where the next part begins, where :d ends, and
-- the pending events between, in the order of being due.
function commands.snapshot()
  publish()
  forget(false)
  local first, most = math.max(tonumber(ARGV[3]), queue_gone), tonumber(ARGV[4])
  local some = call('LRANGE', root .. ':d', first - queue_gone, first - queue_gone + most - 1)
  must(#some == math.max(0, math.min(most, queue_gone + queue_count - first)))
  local fields, pending = {}, {}
  for i = 1, #some do
    fields[i] = sub(some[i], 17)
  end
  local records = #fields > 0 and call('HMGET', root, unpack(fields)) or {}
  for i = 1, #some do
    if records[i] and sub(records[i], 9, 16) == sub(some[i], 9, 16) then
      pending[#pending + 1] = records[i]
    end
  end
  return save(OK, {}, pack('<dd', first + #some, queue_gone + queue_count), pending)
end

local whole, reply = pcall(commands[verb])
if whole then
  return reply
end
if reply == lost then
  call('DEL', root, root .. ':d', root .. ':s', root .. ':l', root .. ':i')
  return {pack('<ddddd', LOST, now, clock, began, 0)}
end
error(reply)
