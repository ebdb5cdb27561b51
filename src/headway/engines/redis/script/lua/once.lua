-- Port of core/once.py: a gate that lets an event through once. One command, decided in one step.
--
-- A call of the server from Lua costs more than what it does, so a command reads all that it needs by one HMGET and
-- writes it by one HSET, also for many events, and what time does is done in chunks. A function costs when it is made,
-- which is with every command: so this is one long text, and functions are made where they are needed.
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
-- ARGV[2]  what to do; ARGV[3..]: its arguments, as described where it is done
--
-- A body is made by a client and never changed: three lengths, then id, event and value. The time of an accepted event
-- counts for both of its ends: a pending event is due when it no longer counts, so :d is the queue for both.
--
-- The answer: numbers (a status, the time, the clock, when the gate began, when the next event is due or 0), then what
-- was asked for. With any status but OK nothing has changed, but for what time did by itself. A gate of which
-- nothing is left to say expires; the next one under its name counts from 0 again, and began at another time. Times are
-- microseconds: whole numbers below 2^53.
--
-- When the clock has moved, the same numbers are published on the channel :news, with the new lines of the log if there
-- are not too many of them.

local OK, OTHER, GONE, LOST, AGAIN = 0, 1, 2, 3, 4
local REJECTED, SUBMITTED, INVALIDATED, PUBLISHED, REUSED, FULL = 0, 1, 2, 3, 4, 5
local GRACE, MOST_STEPS = 60000000, 1000
local call, pack, read, sub = redis.call, struct.pack, struct.unpack, string.sub
local root, verb = KEYS[1], ARGV[2]
local now, duration, strict, room, retention = read('<ddddd', ARGV[1])

-- the gate ------------------------------------------------------------------------------------------------------------

if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
-- The fields that a command asks for: those of events and ids by turns, or one id's. Bodies of events come in one text.
local fields, bodies, many = {}, {}, 0
if verb == 'submit' then
  local given, at = ARGV[3], 1
  while at <= #given do
    local id_length, event_length, length, from = read('<III', given, at)
    local middle = from + id_length
    local value = middle + event_length
    many = many + 1
    fields[2 * many - 1], fields[2 * many] = 'e' .. sub(given, middle, value - 1), 'i' .. sub(given, from, middle - 1)
    bodies[many] = sub(given, at, value + length - 1)
    at = value + length
  end
elseif verb == 'status' then
  fields[1] = ARGV[3]
end
local found = call('HMGET', root, 'g', unpack(fields))
-- The gate's numbers: its clock, latest time, duration, mode and beginning; before when nothing is to be forgotten
-- (quiet), when the first pending event is due (0: none is), when its keys were last given more time to live; how many
-- events count and are pending; how long the lists are, and how many :d had that are no longer there.
local clock, last, own_duration, own_strict, began = 0, 0, duration, strict, now
local quiet, due, renewed, seen_count, pending_count = math.huge, 0, 0, 0, 0
local queue_count, queue_gone, silent_count, line_count, answer_count = 0, 0, 0, 0, 0
if found[1] then
  clock, last, own_duration, own_strict, began, quiet, due, renewed, seen_count, pending_count, queue_count, queue_gone,
    silent_count, line_count, answer_count = read('<ddddddddddddddd', found[1])
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
local kept = retention > duration and retention or duration
local old = now - kept
-- A server that evicts keys may have taken a part of a gate, which shows by the length of a list. Then all of it is
-- lost, and the command is sent again, to a gate that begins anew.
local lost = false
-- What is to be added to :l, :d, :s and :i, and to be set in the hash: fields and values by turns. The gate is first.
local lines, queued, silent, answers, writes = {}, {}, {}, {}, {'g', ''}
-- Whether it is to be found out anew when the first pending event is due.
local find_due = false
local status, said, list = OK, nil, nil

-- time ----------------------------------------------------------------------------------------------------------------

-- Publish what is due, and forget what is old. A server that does nothing else for seconds serves no other client: what
-- is too much for one command is left to the next, which comes at once if a process waits. Nothing is decided by what
-- is left: a submission that depends on it is sent again (AGAIN) until nothing is.
--
-- To forget may be late: times are looked at where it matters. So it is done for many at a time, unless it matters now.
local behind = false
local is_due = due > 0 and due <= now
local exact = verb == 'changes' or many > 0 and seen_count + many > room
if is_due or now >= quiet and (exact or now >= quiet + math.min(1000000, duration / 8)) then
  local FIRST_CHUNK, CHUNK = 8, 128
  local steps = MOST_STEPS

  -- Take from the front of a list of so many what is over, by chunks; how many are left. `over(value)` is a field, and
  -- a fact about it; nil if it is not over. `ends(fact, record)` says whether what the field has is to go too.
  local function take(key, count, over, ends)
    local size = FIRST_CHUNK
    while count > 0 and steps > 0 and not lost do
      local some = call('LRANGE', root .. key, 0, math.min(size, steps) - 1)
      lost = #some ~= math.min(size, steps, count)
      local their, facts, ended, gone = {}, {}, {}, {}
      for i = 1, #some do
        local field, fact = over(some[i])
        if not field then
          break
        end
        their[i], facts[i] = field, fact
      end
      if #their > 0 then
        local records = call('HMGET', root, unpack(their))
        for i = 1, #their do
          -- The same may be there twice: of two repeats at one time, say.
          if records[i] and not gone[their[i]] and ends(facts[i], records[i]) then
            ended[#ended + 1] = their[i]
            gone[their[i]] = true
          end
        end
        if #ended > 0 then
          call('HDEL', root, unpack(ended))
        end
        call('LTRIM', root .. key, #their, -1)
        count, steps = count - #their, steps - #their
      end
      if #their < #some then
        break
      end
      size = CHUNK
    end
    return count
  end

  if is_due then
    local before = queue_count
    queue_count = take(':d', queue_count, function(value)
      local time, own_clock, from = read('<dd', value)
      if time + duration <= now then
        return sub(value, from), own_clock
      end
    end, function(own_clock, record)
      local _, its_clock, from = read('<dd', record)
      if its_clock == own_clock then
        clock = clock + 1
        lines[#lines + 1] = pack('<ddB', clock, now, PUBLISHED) .. sub(record, from)
        seen_count, pending_count = seen_count - 1, pending_count - 1
        return true
      end
    end)
    queue_gone = queue_gone + before - queue_count
    find_due = true
    behind = steps <= 0
  end
  if now >= quiet and steps > 0 then
    quiet = math.huge
    local function note(at)
      if at < quiet then
        quiet = at
      end
    end
    local function answer_is_old(_, record)
      return select(2, read('<Bd', record)) < old
    end
    silent_count = take(':s', silent_count, function(value)
      local time, from = read('<d', value)
      if time + duration <= now then
        return sub(value, from), time
      end
      note(time + duration)
    end, function(time, record)
      if read('<d', record) == time then
        seen_count = seen_count - 1
        return true
      end
    end)
    line_count = take(':l', line_count, function(value)
      local _, time, _, length = read('<ddBI', value)
      if time < old then
        return 'i' .. sub(value, 30, 29 + length)
      end
      note(time + kept + 1)
    end, answer_is_old)
    answer_count = take(':i', answer_count, function(value)
      local time, from = read('<d', value)
      if time < old then
        return sub(value, from)
      end
      note(time + kept + 1)
    end, answer_is_old)
    if steps <= 0 then
      quiet = 0
    end
  end
  found = call('HMGET', root, 'g', unpack(fields))
end

-- submit --------------------------------------------------------------------------------------------------------------

-- A body for each event, in one text. What is said of each, in one text: what became of it, the clock, when it is due
-- (or when there may be room), the length of a text; the id that it repeats, or the event that its id belongs to.
if behind or quiet <= now then
  if many > 0 and seen_count + many > room then
    status = AGAIN
  end
  for k = 2, many * 2, 2 do
    if behind and found[k] then
      local time, own_clock = read('<dd', found[k])
      if own_clock > 0 and time + duration <= now then
        status = AGAIN
      end
    end
  end
end
if many > 0 and status == OK then
  -- What was written so far, to be read by later events of this command. To pack numbers is most of the work: those
  -- that are the same for all events are packed once, and small ones are written as they are packed.
  local written, about, line_total, write_total, silent_total = {}, {}, #lines, #writes, 0
  local time, no_clock, no_length = pack('<d', now), '\0\0\0\0\0\0\0\0', '\0\0\0\0'
  local own_due = strict and pack('<d', now + duration) or time
  for k = 1, many do
    local event, id, body = fields[2 * k - 1], fields[2 * k], bodies[k]
    local seen, known = written[event] or found[2 * k], written[id] or found[2 * k + 1]
    local seen_time, seen_clock, rest
    if seen then
      seen_time, seen_clock, rest = read('<dd', seen)
    end
    if known and select(2, read('<Bd', known)) >= old then
      local outcome, when, own_clock, length, from = read('<BddI', known)
      local before = sub(known, from + length)
      if before ~= event then
        about[k] = pack('<BddI', REUSED, 0, 0, #before) .. before
      elseif outcome == REJECTED then
        about[k] = pack('<BddI', REJECTED, own_clock, 0, length) .. sub(known, from, from + length - 1)
      else
        about[k] = pack('<BddI', SUBMITTED, own_clock, strict and when + duration or when, 0)
      end
    elseif seen and seen_time + duration > now then
      local conflict
      if seen_clock > 0 then
        -- What it repeats is not let through.
        local its_body = sub(seen, rest)
        conflict = 'i' .. sub(its_body, 13, 12 + read('<I', its_body))
        clock = clock + 1
        line_total = line_total + 1
        lines[line_total] = pack('<ddB', clock, now, INVALIDATED) .. its_body
        pending_count = pending_count - 1
        find_due = find_due or seen_time + duration == due
        local answer = written[conflict] or call('HGET', root, conflict)
        if answer then
          answer = pack('<B', INVALIDATED) .. sub(answer, 2)
          written[conflict] = answer
          writes[write_total + 1], writes[write_total + 2] = conflict, answer
          write_total = write_total + 2
        end
      else
        conflict = sub(seen, rest)
      end
      if strict then
        -- It counts: silence begins anew.
        local record = time .. no_clock .. id
        written[event] = record
        writes[write_total + 1], writes[write_total + 2] = event, record
        write_total = write_total + 2
        silent_total = silent_total + 1
        silent[silent_total] = time .. event
      end
      local answer = pack('<BddI', REJECTED, now, clock, #conflict) .. conflict .. event
      written[id] = answer
      writes[write_total + 1], writes[write_total + 2] = id, answer
      write_total = write_total + 2
      answers[#answers + 1] = time .. id
      about[k] = pack('<BddI', REJECTED, clock, 0, #conflict) .. conflict
    elseif not seen and seen_count >= room then
      -- The oldest event that counts tells when there may be room. The front of a list may have some that do not.
      local function record_of(field)
        return written[field] or call('HGET', root, field)
      end
      local oldest = math.huge
      for _, one in ipairs({{':d', queue_count, queued, 17}, {':s', silent_count, silent, 9}}) do
        local key, count, more, from = unpack(one)
        for i = 0, math.min(count + #more, MOST_STEPS) - 1 do
          local value = i < count and call('LINDEX', root .. key, i) or more[i - count + 1]
          lost = lost or not value
          local record = value and record_of(sub(value, from))
          if record and sub(record, 1, from - 1) == sub(value, 1, from - 1) then
            oldest = math.min(oldest, (read('<d', value)))
            break
          end
        end
      end
      about[k] = pack('<BddI', FULL, 0, oldest + duration - now, 0)
    else
      if not seen then
        seen_count = seen_count + 1
      end
      clock = clock + 1
      local own_clock, record, answer = pack('<d', clock), nil, nil
      line_total = line_total + 1
      lines[line_total] = own_clock .. time .. '\1' .. body
      about[k] = '\1' .. own_clock .. own_due .. no_length
      if strict then
        record = time .. own_clock .. body
        answer = '\1' .. time .. own_clock .. no_length .. event
        queued[#queued + 1] = time .. own_clock .. event
        pending_count = pending_count + 1
        if due == 0 then
          due = now + duration
        end
      else
        record = time .. no_clock .. id
        answer = '\3' .. time .. own_clock .. no_length .. event
        silent_total = silent_total + 1
        silent[silent_total] = time .. event
        clock = clock + 1
        line_total = line_total + 1
        lines[line_total] = pack('<d', clock) .. time .. '\3' .. body
      end
      if many > 1 then
        written[event], written[id] = record, answer
      end
      writes[write_total + 1], writes[write_total + 2] = event, record
      writes[write_total + 3], writes[write_total + 4] = id, answer
      write_total = write_total + 4
    end
  end
  said = table.concat(about)
end

-- write ---------------------------------------------------------------------------------------------------------------

-- A list that begins has no end yet: it is to be given one.
if #lines > 0 then
  renewed = line_count == 0 and 0 or renewed
  line_count = line_count + #lines
  lost = lost or call('RPUSH', root .. ':l', unpack(lines)) ~= line_count
  quiet = math.min(quiet, now + kept + 1)
end
if #queued > 0 then
  renewed = queue_count == 0 and 0 or renewed
  queue_count = queue_count + #queued
  lost = lost or call('RPUSH', root .. ':d', unpack(queued)) ~= queue_count
end
if #silent > 0 then
  renewed = silent_count == 0 and 0 or renewed
  silent_count = silent_count + #silent
  lost = lost or call('RPUSH', root .. ':s', unpack(silent)) ~= silent_count
  quiet = math.min(quiet, now + duration)
end
if #answers > 0 then
  renewed = answer_count == 0 and 0 or renewed
  answer_count = answer_count + #answers
  lost = lost or call('RPUSH', root .. ':i', unpack(answers)) ~= answer_count
  quiet = math.min(quiet, now + kept + 1)
end

-- When the first pending event is due. Those that were invalidated are taken from the front, but not too many at once.
if find_due and not lost then
  if #writes > 2 then
    call('HSET', root, unpack(writes, 3))
    writes = {'g', ''}
  end
  due = 0
  if pending_count == 0 then
    call('DEL', root .. ':d')
    queue_count, queue_gone = 0, queue_gone + queue_count
  end
  for step = 1, queue_count do
    local first = call('LINDEX', root .. ':d', 0)
    if not first then
      break
    end
    local time, own_clock, from = read('<dd', first)
    local record = call('HGET', root, sub(first, from))
    if step > MOST_STEPS or record and select(2, read('<dd', record)) == own_clock then
      due = time + duration
      break
    end
    call('LPOP', root .. ':d')
    queue_count, queue_gone = queue_count - 1, queue_gone + 1
  end
  lost = pending_count > 0 and due == 0
end

-- look ----------------------------------------------------------------------------------------------------------------

if verb == 'status' then
  -- An id's field: its status, if it is known. The answer to an event that was published still says SUBMITTED.
  local answer = found[2]
  local outcome, when, own_clock, length, from
  if answer then
    outcome, when, own_clock, length, from = read('<BddI', answer)
  end
  if answer and when >= old then
    if outcome == SUBMITTED and when + duration <= now then
      local event = behind and call('HGET', root, sub(answer, from + length))
      if not event or select(2, read('<dd', event)) ~= own_clock then
        outcome = PUBLISHED
      end
    end
    said = pack('<B', outcome)
  end
elseif verb == 'changes' then
  -- since, at most so many: the value after which all lines are kept, and the lines after since.
  local since, most, oldest = tonumber(ARGV[3]), tonumber(ARGV[4]), clock - line_count
  said, list = pack('<d', oldest), {}
  if since < oldest then
    status = GONE
  elseif since < clock then
    list = call('LRANGE', root .. ':l', since - oldest, since - oldest + most - 1)
    lost = lost or #list ~= math.min(most, clock - since)
  end
elseif verb == 'snapshot' then
  -- Where to begin in :d (counted since the gate began), at most so many: where the next part begins, where :d ends,
  -- and the pending events between, in the order of being due.
  local first, most = math.max(tonumber(ARGV[3]), queue_gone), tonumber(ARGV[4])
  local some = call('LRANGE', root .. ':d', first - queue_gone, first - queue_gone + most - 1)
  lost = lost or #some ~= math.max(0, math.min(most, queue_gone + queue_count - first))
  for i = 1, #some do
    fields[i] = sub(some[i], 17)
  end
  local records = #fields > 0 and call('HMGET', root, unpack(fields)) or {}
  list = {}
  for i = 1, #some do
    if records[i] and sub(records[i], 9, 16) == sub(some[i], 9, 16) then
      list[#list + 1] = records[i]
    end
  end
  said = pack('<dd', first + #some, queue_gone + queue_count)
end

-- the end -------------------------------------------------------------------------------------------------------------

if lost then
  call('DEL', root, root .. ':d', root .. ':s', root .. ':l', root .. ':i')
  return {pack('<ddddd', LOST, now, clock, began, 0)}
end
-- All of it lives for as long as it says anything.
local renew = now >= renewed + GRACE / 2 or now < renewed
if renew then
  renewed = now
end
writes[2] = pack('<ddddddddddddddd', clock, now, duration, strict and 1 or 0, began, quiet, due, renewed, seen_count,
  pending_count, queue_count, queue_gone, silent_count, line_count, answer_count)
call('HSET', root, unpack(writes))
if renew then
  local ms = math.ceil((kept + duration + GRACE) / 1000)
  for _, part in ipairs({'', ':d', ':s', ':l', ':i'}) do
    call('PEXPIRE', root .. part, ms)
  end
end
local head = pack('<ddddd', status, now, clock, began, due)
if #lines > 0 then
  local MOST_LINES, MOST_BYTES = 64, 65536
  local news = #lines <= MOST_LINES and table.concat(lines) or ''
  -- Without the right to publish, waiters look by themselves: what was decided stands.
  redis.pcall('PUBLISH', root .. ':news', #news <= MOST_BYTES and head .. news or head)
end
return {head, said, list}
