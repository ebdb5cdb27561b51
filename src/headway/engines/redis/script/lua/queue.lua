-- Waiters where no time can be promised: first come first served, across all processes. No command walks the queue:
-- joining, leaving, polling and granting cost O(log n), and one script looks at a bounded number of waiters.
--
-- <root>:w  an entry for each waiter, by its process and ticket: number of arrival, deadline, how many costs (below 0
--           if its permit brackets a call), the costs,
--           and its class
-- <root>:q  the order: class, arrival, process and ticket, all with score 0, so that the order is that of the bytes
-- <root>:h  of each class: its head's process and ticket, and when that one was found to be ready; with metrics also
--           its arrival and the ledgers that hold it up
-- <root>:b  with metrics, the claims: ledger, arrival of a head that it holds up, class of that head
-- <root>:g  what was granted and may not have been heard of: the message can be lost
--
-- A class is all waiters that need the same ledgers. Without metrics there is one class. With metrics a class is named
-- after its ledgers, and only its head claims those that hold it up. A ledger that has a claim is kept for the oldest
-- head that claims it; a head that is held up by another ledger lets those pass that do not need that one. A command
-- looks at the claims on its own ledgers, in the order of arrival, until one cannot be served.
--
-- A script that changes a ledger serves its queue before it ends. A head that only waits for time is served when
-- its process polls, and that process is told when (`due`). A head whose rules this script does not have (a rolling
-- deploy, or a key with limits of its own) is served by a script of its own process, which is told to poll.

local process, seen = string.sub(stream, 1, 12), {}
local order, entries, heads, claims = root .. ':q', root .. ':w', root .. ':h', root .. ':b'
local metrics = #KEYS > 1
local NUMBERS, ID = 24, 20

-- Whether there is or was a queue. If not, its keys are left alone: a node to which the slot migrates has them not yet.
local queued = waiting > 0

-- How many waiters this script may still look at; what is left then, the next one does.
local work = 50

-- What was granted: how many, and for how long that is kept.
local granted_now, keep_grants = 0, 0

-- Waiters that have joined and are not written yet, and how many have joined.
local new_order, new_entries, joined = {}, {}, 0

-- Classes whose head has left; times that processes are told at the end, by process and class; and whether
-- something may have come back to a ledger since the queue was served.
local headless, due, released = {}, {}, false

-- The lease by which a process gives signs of life, or false if it has not for as long: it has crashed.
local function lives(of)
  if of == process then
    return lease
  end
  if seen[of] == nil then
    local sign = call('HGET', root, 'p' .. of)
    local when, its = 0, 0
    if sign then
      when, its = unpack_from('<dd', sign)
    end
    seen[of] = sign and when >= now - its and its or false
  end
  return seen[of]
end

local function tell(of, record)
  local records = mail[of] or {}
  records[#records + 1] = record
  mail[of] = records
end

local function write_joined()
  if #new_order > 0 then
    call('ZADD', order, unpack(new_order))
    call('HSET', entries, unpack(new_entries))
    new_order, new_entries = {}, {}
  end
end

-- The class of a request for these costs of our own ledgers.
local function class_of(costs, offset)
  if not metrics then
    return ''
  end
  local names = {}
  for i = 1, count do
    if costs[offset + i] > 0 then
      names[#names + 1] = string.sub(own[i].id, #root + 1)
    end
  end
  return table.concat(names, '\2')
end

local function metric_of(key)
  return string.match(key, '}/([^:]*)')
end

-- The ledgers and costs of an entry; nil if this script cannot open all of them.
local function needs_of(entry, class)
  local _, _, width = unpack_from('<ddd', entry)
  local held = width < 0
  width = math.abs(width)
  if width ~= count or (class ~= '') ~= metrics then
    return
  end
  local costs = numbers_in(entry, width, NUMBERS + 1)
  costs.held = held
  if not metrics then
    return own, costs
  end
  local mine = {}
  for name in string.gmatch(class, '[^\2]+') do
    local key, index = string.match(name, '^(.*):(%d+)$')
    local i, id = tonumber(index), root .. name
    if not opened[id] then
      key = root .. key
      if metric_of(own[i].key) ~= metric_of(key) or not open(i, key, nil, true) then
        return
      end
    end
    mine[i] = opened[id]
  end
  return mine, costs
end

local function claim_of(name, arrival, class)
  return root .. name .. '\0' .. arrival .. class
end

-- Note the head of a class (nil: it has no waiter any more), when it is ready and what holds it up.
local function note_head(class, id, arrival, ready, holding)
  local before, after = call('HGET', heads, class), nil
  if id then
    after = id .. pack('<d', ready)
    if metrics then
      local names = {}
      for name in pairs(holding) do
        names[#names + 1] = string.sub(name, #root + 1)
      end
      table.sort(names)
      after = after .. pack('>d', arrival) .. table.concat(names, '\2')
    end
  end
  if before == after then
    return
  end
  if metrics and string.sub(before or '', ID + 9) ~= string.sub(after or '', ID + 9) then
    for _, head in ipairs({before or false, after or false}) do
      for name in string.gmatch(head and string.sub(head, ID + 17) or '', '[^\2]+') do
        local claim = claim_of(name, string.sub(head, ID + 9, ID + 16), class)
        if head == before then
          call('ZREM', claims, claim)
        else
          call('ZADD', claims, 0, claim)
        end
      end
    end
  end
  if not after then
    call('HDEL', heads, class)
    return
  end
  call('HSET', heads, class, after)
  if not before or string.sub(before, 1, ID + 8) ~= string.sub(after, 1, ID + 8) then
    local of = string.sub(id, 1, 12)
    due[of] = due[of] or {}
    due[of][class] = pack('<d', ready)
  end
end

-- Until when a ledger is kept for a head of another class that came before `arrival` (nil: any), or nil.
local function claimed(ledger, class, arrival)
  local first = call('ZRANGEBYLEX', claims, '[' .. ledger.id .. '\0', '(' .. ledger.id .. '\1', 'LIMIT', 0, 1)[1]
  if first then
    local from = #ledger.id + 2
    local other = string.sub(first, from + 8)
    if other ~= class and (not arrival or unpack_from('>d', first, from) < arrival) then
      local head = call('HGET', heads, other)
      local ready = head and unpack_from('<d', head, ID + 1) or 0
      return ready > now and ready or now + lease / 3
    end
  end
end

-- Hand over what a waiter needs.
local function grant(id, mine, costs, slot)
  local of, marks = string.sub(id, 1, 12), {}
  local its = lives(of)
  for _, ledger in pairs(mine) do
    if ledger.rule.lease then
      ledger.rule.lease = math.max(ledger.rule.lease, its)
    end
  end
  take(mine, costs, 0, slot, marks)
  local values = pack('<' .. string.rep('d', #marks), unpack(marks))
  call('HSET', root .. ':g', id, pack('<dd', now, slot) .. values)
  granted_now, keep_grants = granted_now + 1, math.max(keep_grants, 4 * math.max(lease, its) + slot - now)
  tell(of, string.sub(id, 13) .. pack('<dd', #marks, slot) .. values)
end

-- Serve a class from its head on; returns what holds up the first waiter that stays (ids of ledgers), or nil if none
-- stays. `untried`: the head could not be looked at, and its process has to poll.
local function serve_class(class)
  local from, to, size = '[' .. class .. '\0', '(' .. class .. '\1', 2
  local function untried(id, arrival)
    local holding = {}
    for name in string.gmatch(class, '[^\2]+') do
      holding[root .. name] = true
    end
    note_head(class, id, arrival, now, holding)
    return holding
  end
  headless[class] = nil
  while true do
    local members, ids, gone = call('ZRANGEBYLEX', order, from, to, 'LIMIT', 0, size), {}, 0
    if #members == 0 then
      note_head(class, nil)
      return
    end
    for j, member in ipairs(members) do
      ids[j] = string.sub(member, -ID)
    end
    local found, stays = call('HMGET', entries, unpack(ids)), nil
    for j, id in ipairs(ids) do
      local entry = found[j]
      if entry then
        local of, arrival, deadline = string.sub(id, 1, 12), unpack_from('<dd', entry)
        work = work - 1
        if work < 0 then
          stays = untried(id, arrival)
          break
        end
        if deadline >= now and lives(of) then
          local mine, costs = needs_of(entry, class)
          if not mine then
            local head = call('HGET', heads, class)
            if released or not head or string.sub(head, 1, ID) ~= id then
              stays = untried(id, arrival)
            else
              stays = {}
              for name in string.gmatch(string.sub(head, ID + 17), '[^\2]+') do
                stays[root .. name] = true
              end
            end
            break
          end
          local blocked
          if metrics then
            blocked = {}
            for _, ledger in pairs(mine) do
              blocked[ledger.id] = claimed(ledger, class, arrival)
            end
          end
          local slot, holding, ready, never = weigh(mine, costs, 0, blocked)
          if slot and slot <= deadline then
            grant(id, mine, costs, slot)
          elseif slot or never then
            tell(of, string.sub(id, 13) .. pack('<dd', 0, now)) -- its process asks after it, and finds it gone
          else
            note_head(class, id, arrival, ready, holding)
            stays = holding
            break
          end
        end
      end
      gone = j
    end
    if gone > 0 then
      call('ZREM', order, unpack(members, 1, gone))
      call('HDEL', entries, unpack(ids, 1, gone))
      waiting = waiting - gone
    end
    if stays then
      return stays
    end
    size = 32
  end
end

-- Serve the heads that claim a ledger, in the order of arrival.
local function serve_ledger(id)
  while true do
    local first = call('ZRANGEBYLEX', claims, '[' .. id .. '\0', '(' .. id .. '\1', 'LIMIT', 0, 1)[1]
    if not first then
      return
    end
    local stays = serve_class(string.sub(first, #id + 10))
    if work < 0 or stays and stays[id] then
      return
    end
  end
end

-- Serve the waiters whose turn has come; returns until when our own ledgers are kept for those that stay.
local function serve()
  write_joined()
  if waiting > 0 then
    waiting = call('ZCARD', order)
  end
  local blocked = {}
  if waiting > 0 then
    for class in pairs(headless) do
      serve_class(class)
    end
    if metrics then
      for i = 1, count do
        serve_ledger(own[i].id)
      end
      for i = 1, count do
        blocked[own[i].id] = claimed(own[i])
      end
    elseif serve_class('') then
      local ready = unpack_from('<d', call('HGET', heads, ''), ID + 1)
      for i = 1, count do
        blocked[own[i].id] = ready > now and ready or now + lease / 3
      end
    end
  end
  released = false
  return blocked
end

-- How long this process may leave a class alone: until its head is ready, if that is ours. Others come a little later,
-- in case that process does not.
local function time_for(class)
  local head = call('HGET', heads, class)
  if not head then
    return lease / 3
  end
  local ready = unpack_from('<d', head, ID + 1)
  if string.sub(head, 1, 12) == process then
    if due[process] then
      due[process][class] = nil
    end
    return math.max(0, ready - now)
  end
  return math.max(0, ready - now) + math.max(50000, lease / 30)
end

-- Tickets in a row join the queue; the first of them was weighed.
local function stand(ticket, times, deadline, costs, offset, ready, holding)
  if waiting == 0 then
    call('DEL', order, entries, heads, claims) -- of a root that is gone; they may outlive it by a little
    fresh_queue, queued = true, true
  end
  local class = class_of(costs, offset)
  local numbers = pack('<d' .. string.rep('d', count), costs.held and -count or count,
    unpack(costs, offset + 1, offset + count))
  for i = ticket, ticket + times - 1 do
    local id, arrival = process .. pack('<d', i), (seq + 1) * 4096 + joined
    if i == ticket and not call('HGET', heads, class) then
      note_head(class, id, arrival, ready, holding)
    end
    new_order[#new_order + 1] = 0
    new_order[#new_order + 1] = class .. '\0' .. pack('>d', arrival) .. id
    new_entries[#new_entries + 1] = id
    new_entries[#new_entries + 1] = pack('<dd', arrival, deadline) .. numbers .. class
    waiting, joined = waiting + 1, joined + 1
  end
  local wait = time_for(class)
  for _ = 1, times do
    said[#said + 1] = 2
    said[#said + 1] = wait
  end
end

local function withdraw(ticket, costs, offset)
  write_joined()
  released = true
  local id = process .. pack('<d', ticket)
  local entry = call('HGET', entries, id)
  if entry then
    local arrival, _, width = unpack_from('<ddd', entry)
    local class = string.sub(entry, NUMBERS + 1 + 8 * math.abs(width))
    call('ZREM', order, class .. '\0' .. pack('>d', arrival) .. id)
    call('HDEL', entries, id)
    waiting = waiting - 1
    local head = call('HGET', heads, class)
    if not head or string.sub(head, 1, ID) == id then
      headless[class] = true
    end
    return
  end
  local granted = call('HGET', root .. ':g', id)
  if granted then
    local marks = numbers_in(granted, 2 * count, 17)
    for i = 1, count do
      if costs[offset + i] > 0 then
        own[i].kind.cancel(own[i], now, costs[offset + i], marks[2 * i - 1], marks[2 * i])
      end
    end
    call('HDEL', root .. ':g', id)
  end
end

-- For each ticket: granted (1, slot, marks), still waiting (2) or unknown (0); then when to poll again. What was
-- granted stays known until its end: two polls of a process may be under way, and a ticket may just be withdrawn.
local function poll(tickets, offset, into)
  local ids, wait = {}, lease / 3
  for j = offset + 1, offset + tickets[offset] do
    ids[#ids + 1] = process .. pack('<d', tickets[j])
  end
  if #ids > 0 then
    local grants, found, classes = call('HMGET', root .. ':g', unpack(ids)), call('HMGET', entries, unpack(ids)), {}
    for j, id in ipairs(ids) do
      if grants[j] then
        local numbers = numbers_in(grants[j], #grants[j] / 8, 1)
        into[#into + 1] = 1
        into[#into + 1] = numbers[2] - now
        for k = 3, 2 + 2 * count do
          into[#into + 1] = numbers[k]
        end
      elseif found[j] then
        local _, _, width = unpack_from('<ddd', found[j])
        classes[string.sub(found[j], NUMBERS + 1 + 8 * math.abs(width))] = true
        into[#into + 1] = 2
      else
        into[#into + 1] = 0
      end
    end
    for class in pairs(classes) do
      wait = math.min(wait, time_for(class))
    end
  end
  into[#into + 1] = wait
end

-- At the end: times go with the messages, and what was granted long ago is looked at, some of it each time.
local function close_queue()
  write_joined()
  if waiting == 0 and queued then
    call('DEL', heads, claims)
  end
  for of, classes in pairs(due) do
    for class, at in pairs(classes) do
      local head = call('HGET', heads, class)
      if head and string.sub(head, 1, 12) == of and unpack_from('<d', at) < now + (lives(of) or 0) / 3 then
        tell(of, string.sub(head, 13, ID) .. pack('<d', 0) .. at)
      end
    end
  end
  if granted_now > 0 then
    local grants = root .. ':g'
    call('PEXPIRE', grants, math.ceil(keep_grants / 1000) + 1)
    local some = call('HRANDFIELD', grants, math.min(2 * granted_now, 64), 'WITHVALUES')
    for i = 1, #some, 2 do
      local _, slot = unpack_from('<dd', some[i + 1])
      if slot < now - 4 * lease then
        call('HDEL', grants, some[i])
      end
    end
  end
end
