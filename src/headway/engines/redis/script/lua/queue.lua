  -- Who waits where no time can be promised: first come, first served, across all processes.
  --
  -- An entry is the process, the number of its ticket, the time after which nobody waits for it, and how many costs it
  -- has (negative, if its permit brackets a call) and which; where the limiter has metrics, the keys of its ledgers follow. Whoever changes the ledgers serves the
  -- queue before it leaves: the head gets what it needs as soon as it is certain when that is there, and hears of it on
  -- its process's channel. What was granted is kept in <root>:g until it has been heard of, in case the message is lost.
  --
  -- In a rolling deploy some have more rules than we do. Their ledgers are opened as they are stored. If one cannot be (of
  -- a kind that this script does not have, or not there), nobody is served here who stands behind: when our part of it
  -- is there, or has a time, its process is told to ask after it, and serves it by a script of its own.

  local process, seen = string.sub(stream, 1, 12), {}

  -- When those who stay were found to be ready, by process and ticket.
  local times = {}

  -- The lease by which a process asks after its tickets, or false if it does not any more: one that crashed does not.
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

  local function tell(of, message)
    local namespace = string.match(root, '^(.-):{')
    if sharded == 1 then
      call('SPUBLISH', root .. ':wake:' .. of, message)
    else
      call('PUBLISH', namespace .. ':wake:' .. of, message)
    end
  end

  local function metric_of(key)
    return string.match(key, '}/([^:]*)')
  end

  -- The ledgers and the costs of an entry, and how many of its ledgers cannot be opened; those cost nothing here.
  local function needs_of(entry)
    local width = unpack_from('<d', entry, 29)
    local held = width < 0
    width = math.abs(width)
    local costs = numbers_in(entry, width, 37)
    costs.held = held
    local keys = string.sub(entry, 37 + 8 * width)
    if keys == '' and width == count and #KEYS == 1 then
      return own, costs, 0
    end
    local mine, unknown, next_key = {}, 0, string.gmatch(keys, '[^%z]+')
    for i = 1, width do
      local key = next_key() or root
      local foreign = not own[i] or metric_of(own[i].key) ~= metric_of(key)
      mine[i] = opened[key .. ':' .. i] or open(i, key, call('HGET', key, 's' .. i), true, foreign)
      if not mine[i] then
        unknown, costs[i] = unknown + 1, 0
      end
    end
    return mine, costs, unknown
  end

  -- Who needs several ledgers was told when it came how long all of them may take, those who are out included. Once it
  -- only waits for time, nobody has to come by whom it is served: so its process is told to ask after it, once for each
  -- such time, which is kept in the root as h<process and ticket>.
  local function tell_when(of, entry, ready)
    local field, at = 'h' .. string.sub(entry, 1, 20), pack('<d', ready)
    if call('HGET', root, field) ~= at then
      call('HSET', root, field, at)
      tell(of, string.sub(entry, 13, 20) .. pack('<d', 0))
    end
  end

  -- Serve everybody whose turn has come; returns the ledgers that those who stay wait for, and until when.
  local function serve()
    local blocked, from = {}, 0
    while from < waiting do
      local entries = call('LRANGE', root .. ':q', from, from + 63)
      if #entries == 0 then
        waiting = from
        break
      end
      for _, entry in ipairs(entries) do
        local of = string.sub(entry, 1, 12)
        local _, deadline = unpack_from('<dd', entry, 13)
        local gone = deadline < now or not lives(of)
        local slot, holding, ready, never, unknown
        local mine, costs = nil, nil
        if not gone then
          mine, costs, unknown = needs_of(entry)
          slot, holding, ready, never = weigh(mine, costs, 0, blocked)
          gone = never or (slot and slot > deadline)
          if unknown > 0 and not gone then
            slot, ready, holding = nil, slot or ready, {}
            for i, cost in ipairs(costs) do
              if cost > 0 then
                holding[mine[i].id] = true
              end
            end
          end
        end
        if gone or slot then
          call('LREM', root .. ':q', 1, entry)
          if not costs or #costs > 1 then
            call('HDEL', root, 'h' .. string.sub(entry, 1, 20))
          end
          waiting = waiting - 1
          if not gone then
            local marks, its = {}, lives(of)
            for _, ledger in pairs(mine) do
              if ledger.rule.lease then
                ledger.rule.lease = math.max(ledger.rule.lease, its)
              end
            end
            take(mine, costs, 0, slot, marks)
            local granted = pack('<dd' .. string.rep('d', #marks), now, slot, unpack(marks))
            call('HSET', root .. ':g', string.sub(entry, 1, 20), granted)
            call('PEXPIRE', root .. ':g', math.ceil((4 * math.max(lease, its) + slot - now) / 1000) + 1)
            tell(of, string.sub(entry, 13, 20) .. pack('<d', #marks) .. epoch .. granted .. root)
          end
        else
          if #costs > 1 and ready < now + lease / 3 then
            tell_when(of, entry, ready)
          end
          times[string.sub(entry, 1, 20)] = ready
          -- Where only its own process knows when it can be served, those behind are called, or ask now and then.
          local later = ready > now and ready or now + lease / 3
          for id in pairs(holding) do
            blocked[id] = math.max(blocked[id] or later, later)
          end
          if #KEYS == 1 then
            return blocked -- everybody behind needs the same ledgers
          end
          from = from + 1
        end
      end
    end
    return blocked
  end

  local function stand(ticket, deadline, costs, offset)
    local entry = process .. pack('<ddd' .. string.rep('d', count), ticket, deadline, costs.held and -count or count,
      unpack(costs, offset + 1, offset + count))
    if #KEYS > 1 then
      local keys = {}
      for i = 1, count do
        keys[i] = own[i].key
      end
      entry = entry .. table.concat(keys, '\0')
    end
    if waiting == 0 then
      call('DEL', root .. ':q') -- of a root that is gone; a list may outlive it by a little
      fresh_queue = true
    end
    call('RPUSH', root .. ':q', entry)
    waiting = waiting + 1
  end

  -- The place of a ticket in the queue, or nil.
  local function find(ticket)
    local prefix, from = process .. pack('<d', ticket), 0
    while from < waiting do
      for place, entry in ipairs(call('LRANGE', root .. ':q', from, from + 63)) do
        if string.sub(entry, 1, 20) == prefix then
          return from + place - 1, entry
        end
      end
      from = from + 64
    end
  end

  local function withdraw(ticket, costs, offset)
    local _, entry = find(ticket)
    if entry then
      call('LREM', root .. ':q', 1, entry)
      call('HDEL', root, 'h' .. string.sub(entry, 1, 20))
      waiting = waiting - 1
      return
    end
    local field = process .. pack('<d', ticket)
    local granted = call('HGET', root .. ':g', field)
    if granted then
      local marks = numbers_in(granted, 2 * count, 17)
      for i = 1, count do
        if costs[offset + i] > 0 then
          own[i].kind.cancel(own[i], now, costs[offset + i], marks[2 * i - 1], marks[2 * i])
        end
      end
      call('HDEL', root .. ':g', field)
    end
  end

  -- For each ticket: granted (1, slot, marks), still waiting (2, when to ask again) or unknown (0).
  local function poll(tickets, offset, blocked, into)
    for j = offset + 1, offset + tickets[offset] do
      local field = process .. pack('<d', tickets[j])
      local granted = call('HGET', root .. ':g', field)
      if granted then
        local numbers = numbers_in(granted, #granted / 8, 1)
        into[#into + 1] = 1
        into[#into + 1] = numbers[2] - now
        for k = 3, 2 + 2 * count do
          into[#into + 1] = numbers[k]
        end
        call('HDEL', root .. ':g', field)
      else
        local _, entry = find(tickets[j])
        if entry then
          local ready = times[field]
          if not ready then
            local mine, costs = needs_of(entry)
            _, _, ready = weigh(mine, costs, 0, blocked)
          end
          into[#into + 1] = 2
          into[#into + 1] = ready - now
        else
          into[#into + 1] = 0
        end
      end
    end
  end
