-- Port of core/spacing.py: one at a time, never closer than an interval, slots that can be reserved ahead.

local spacing = {reserves = true}
kinds[3] = spacing

function spacing.open(ledger, state)
  local rule = ledger.rule
  rule.interval, rule.step, rule.max_reserved = rule[1], rule[2], rule[3]
  ledger.last, ledger.slack, ledger.tally = LONG_AGO, 0, LONG_AGO
  if state then
    ledger.last, ledger.slack = unpack_from('<dd', state)
  end
end

function spacing.state(ledger)
  return pack('<dd', ledger.last, ledger.slack)
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
  ledger.tally = ledger.last
  ledger.last = at
  ledger.slack = ledger.rule.step - ledger.rule.interval
  return at
end

function spacing.reset_after(ledger, now)
  return math.max(0, next_slot(ledger) - now)
end

-- What is asked for less often: made only when it is, since a script is run from its first line each time.
function spacing.more()
  function spacing.cancel(ledger, now, cost, mark, tally)
    if ledger.last == mark then
      ledger.last = tally
      ledger.tally = LONG_AGO
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
    end
  end

  function spacing.remaining(ledger, now)
    return now >= next_slot(ledger) and 1 or 0
  end

  function spacing.exhaust(ledger, now)
    ledger.last = math.max(ledger.last, now)
  end

  function spacing.shift(ledger, now, by)
    if ledger.last > now then
      ledger.last = math.max(now, ledger.last + by)
    end
  end
end
