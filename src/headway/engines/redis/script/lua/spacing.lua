-- Port of core/spacing.py: one at a time, never closer than an interval, slots that can be reserved ahead. Holders do
-- not report their uses to a shared ledger, so there is no `used`: the allowance between slots is for late holders.

local spacing = {
  reserves = true, rule = 0, open = 0, state = 0, wait = 0, reserved = 0, slot = 0, take = 0, reset_after = 0, more = 0,
}
kinds[3] = spacing

function spacing.rule(capacity, interval, step, max_reserved)
  return {capacity = capacity, interval = interval, step = step, max_reserved = max_reserved}
end

function spacing.open(ledger, state, from)
  if state then
    ledger.last, ledger.slack, ledger.before, ledger.older, ledger.tally = unpack_from('<ddddd', state, from)
  else
    ledger.last, ledger.slack, ledger.before, ledger.older, ledger.tally = LONG_AGO, 0, 0, 0, LONG_AGO
  end
end

function spacing.state(ledger)
  return pack('<ddddd', ledger.last, ledger.slack, ledger.before, ledger.older, ledger.tally)
end

local function next_slot(ledger)
  return ledger.last + ledger.slack + ledger.rule.interval
end

function spacing.wait(ledger, now, cost)
  if cost > 1 then
    return FOREVER
  end
  return math.max(0, next_slot(ledger) - now)
end

function spacing.reserved(ledger, now)
  local ahead = ledger.last - now
  if ahead <= 0 then
    return 0
  end
  local slots, rest = divide(ahead, ledger.rule.step)
  return rest > 0 and slots + 1 or slots
end

function spacing.slot(ledger, now, cost)
  local slot = next_slot(ledger)
  if now >= slot then
    return now
  end
  return spacing.reserved(ledger, now) < ledger.rule.max_reserved and slot or -1
end

function spacing.take(ledger, at, cost)
  if ledger.before > ledger.older then
    ledger.older = ledger.before
  end
  ledger.before = ledger.slack
  ledger.slack = ledger.rule.step - ledger.rule.interval
  ledger.tally = ledger.last
  ledger.last = at
  return at
end

function spacing.reset_after(ledger, now)
  return math.max(0, next_slot(ledger) - now)
end

-- What is needed less often: defined only when it is, since a script runs from its first line each time.
function spacing.more()
  -- The last slot moved without being granted: the holder before may be as late as it was told.
  local function widen(ledger)
    ledger.slack = math.max(ledger.slack, ledger.rule.step - ledger.rule.interval)
  end

  function spacing.slot_after(ledger, now, cost)
    local rule = ledger.rule
    if spacing.slot(ledger, now, cost) >= 0 then
      return 0
    elseif rule.max_reserved == 0 then
      return next_slot(ledger) - now
    end
    return ledger.last - (rule.max_reserved - 1) * rule.step - now
  end

  function spacing.cancel(ledger, now, cost, mark, tally)
    if ledger.last == mark then
      ledger.last, ledger.tally = tally, LONG_AGO
      ledger.slack, ledger.before = ledger.before, ledger.older
    end
  end

  function spacing.settle(ledger, now, cost, mark, tally, actual)
    if actual < cost then
      spacing.cancel(ledger, now, cost, mark, tally)
    elseif actual > cost then
      ledger.tally = ledger.last
      local start = math.max(ledger.last, now)
      local most = math.max(0, divide(now + FOREVER - start, ledger.rule.step) - 1)
      ledger.last = start + math.min(actual - cost, most) * ledger.rule.step
      widen(ledger)
    end
  end

  function spacing.remaining(ledger, now)
    return now >= next_slot(ledger) and 1 or 0
  end

  function spacing.shift(ledger, now, by)
    if ledger.last > now then
      ledger.last = math.max(now, ledger.last + by)
    end
  end
end
