-- Port of core/bucket.py: a steady rate with a burst, as one number.

local bucket = {reserves = true, rule = 0, open = 0, state = 0, wait = 0, take = 0, reset_after = 0, more = 0}
kinds[1] = bucket

function bucket.rule(capacity, whole, part, parts, room, room_part)
  return {capacity = capacity, whole = whole, part = part, parts = parts, room = room, room_part = room_part}
end

function bucket.open(ledger, state, from)
  if state then
    ledger.tat, ledger.part, ledger.latest, ledger.tally = unpack_from('<dddd', state, from)
    if #state >= from + 39 then
      ledger.lent = unpack_from('<d', state, from + 32)
    end
  else
    ledger.tat, ledger.part, ledger.latest, ledger.tally = LONG_AGO, 0, LONG_AGO, 0
  end
end

function bucket.state(ledger)
  return pack('<dddd', ledger.tat, ledger.part, ledger.latest, ledger.tally)
    .. (ledger.lent and pack('<d', ledger.lent) or '')
end

function bucket.wait(ledger, now, cost)
  local rule = ledger.rule
  if cost > rule.capacity then
    return FOREVER
  end
  local ahead, part = ledger.tat - now, ledger.part
  if ahead < 0 then
    ahead, part = 0, 0
  end
  local over = ahead + cost * rule.whole - rule.room
  if rule.parts > 1 then
    local carry, rest = divide(part + cost * rule.part, rule.parts)
    over = over + carry
    if rest > rule.room_part then
      over = over + 1
    end
  end
  return over > 0 and over or 0
end

function bucket.take(ledger, at, cost)
  local rule = ledger.rule
  local tat = ledger.tat
  if tat < at and (ledger.part == 0 or tat + 1 < at) then
    tat, ledger.part = at, 0
  end
  tat = tat + cost * rule.whole
  if rule.parts ~= 1 then
    local carry, rest = divide(ledger.part + cost * rule.part, rule.parts)
    tat, ledger.part = tat + carry, rest
  end
  ledger.tat = tat
  if at > ledger.latest and at > tat - rule.room + 1 then
    ledger.latest = at
  end
  return tat
end

function bucket.reset_after(ledger, now)
  if ledger.tat > now then
    return ledger.tat - now + (ledger.part > 0 and 1 or 0)
  end
  return ledger.tat == now and ledger.part > 0 and 1 or 0
end

-- What is needed less often: defined only when it is, since a script runs from its first line each time.
function bucket.more()
  local function refund(ledger, now, cost, mark, tally, happened)
    local rule = ledger.rule
    local since = (ledger.tally - tally) % FOREVER
    if cost > rule.capacity then
      cost = rule.capacity
    end
    local carry, part = divide(cost * rule.part, rule.parts)
    local whole = cost * rule.whole + carry
    local last = since == 0 and mark == ledger.tat and rule.whole > 0
    if not last then
      local left = mark - since
      local most = left - (ledger.latest > now and ledger.latest or now)
      local busy = ledger.tat - rule.room + 1
      if most <= 0 or left - since <= busy then
        return
      end
      if most > left - since - busy then
        most = left - since - busy
      end
      if whole >= most then
        whole, part = most, 0
      end
    end
    if happened or not last then
      ledger.tally = (ledger.tally + whole + (part > 0 and 1 or 0)) % FOREVER
    end
    ledger.tat = ledger.tat - whole
    ledger.part = ledger.part - part
    if ledger.part < 0 then
      ledger.part = ledger.part + rule.parts
      ledger.tat = ledger.tat - 1
    end
  end

  function bucket.cancel(ledger, now, cost, mark, tally)
    refund(ledger, now, cost, mark, tally, false)
  end

  function bucket.settle(ledger, now, cost, mark, tally, actual)
    local rule = ledger.rule
    if actual < cost then
      refund(ledger, now, cost - actual, mark, tally, actual > 0)
    elseif actual > cost then
      local ahead = ledger.tat > now and ledger.tat - now or 0
      local most = divide(FOREVER - ahead, rule.whole + 1)
      bucket.take(ledger, now, math.min(actual - cost, most, (divide(FOREVER, rule.parts))))
    end
  end

  function bucket.remaining(ledger, now)
    local low, high = 0, ledger.rule.capacity
    while low < high do
      local middle = low + floor((high - low + 1) / 2)
      if bucket.wait(ledger, now, middle) == 0 then
        low = middle
      else
        high = middle - 1
      end
    end
    return low
  end

  -- As new; and what was taken before has all been refunded, so that nothing can come back for it.
  function bucket.anew(ledger, now)
    local past = ledger.tally + math.max(0, ledger.tat - now) + 1
    bucket.open(ledger)
    ledger.tally = past % FOREVER
  end

  -- No debt and no reservation goes beyond the horizon, where numbers end.
  function bucket.slot(ledger, now, cost)
    local wait = bucket.wait(ledger, now, cost)
    return cost <= ledger.rule.capacity and wait <= FOREVER - ledger.rule.room and now + wait or -1
  end

  -- How many slots lie ahead of what the bucket holds.
  function bucket.reserved(ledger, now)
    local rule = ledger.rule
    local ahead = ledger.tat - rule.room - now
    return ahead > 0 and rule.capacity > 0 and math.ceil(ahead / (rule.whole + rule.part / rule.parts)) or 0
  end

  function bucket.shift(ledger, now, by)
    if ledger.tat > now then
      ledger.tat = math.max(now, ledger.tat + by)
      ledger.latest = ledger.latest > now and math.max(now, ledger.latest + by) or ledger.latest
    end
  end
end
