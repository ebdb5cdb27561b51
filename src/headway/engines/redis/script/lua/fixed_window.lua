-- Port of core/fixed_window.py: so many per period of the calendar. Calendars are the client's: it sends the edges of
-- the period it expects to be in and of the next; a time outside of them is answered with `edges`, and the client
-- sends the command again.

local fixed_window = {rule = 0, open = 0, state = 0, knows = 0, wait = 0, take = 0, reset_after = 0, more = 0}
kinds[4] = fixed_window

function fixed_window.rule(capacity, _, start, ends, next_ends)
  return {capacity = capacity, edges = {start, ends, next_ends}}
end

function fixed_window.open(ledger, state, from)
  ledger.edges = ledger.rule.edges
  ledger.ends, ledger.used, ledger.tally = LONG_AGO, 0, 0
  if state then
    ledger.ends, ledger.used, ledger.tally = unpack_from('<ddd', state, from)
  end
end

function fixed_window.state(ledger)
  return pack('<ddd', ledger.ends, ledger.used, ledger.tally)
end

-- Whether the client's edges tell the period of this moment. A client of an older version has edges of another
-- calendar, so it goes by those that are stored (`foreign`): it has no better ones to send.
function fixed_window.knows(ledger, now)
  return ledger.foreign or (ledger.edges[1] <= now and now < ledger.edges[3])
end

local function roll(ledger, now)
  if now >= ledger.ends then
    ledger.tally = ledger.tally + 1
    ledger.used = 0
    local edges = ledger.edges
    ledger.ends = now < edges[2] and edges[2] or edges[3]
    if now >= edges[3] then
      -- Foreign, and no client that knows the calendar came for a whole period: it goes on with the same length.
      local length = edges[3] - edges[2]
      ledger.ends = edges[3] + (divide(now - edges[3], length) + 1) * length
    end
  end
end

function fixed_window.wait(ledger, now, cost)
  if cost > ledger.rule.capacity then
    return FOREVER
  end
  roll(ledger, now)
  return cost <= ledger.rule.capacity - ledger.used and 0 or ledger.ends - now
end

function fixed_window.take(ledger, at, cost)
  roll(ledger, at)
  ledger.used = ledger.used + cost
  return ledger.ends
end

function fixed_window.reset_after(ledger, now)
  roll(ledger, now)
  return ledger.ends - now
end

-- What is needed less often: defined only when it is, since a script runs from its first line each time.
function fixed_window.more()
  function fixed_window.cancel(ledger, now, cost, mark, tally)
    if mark == ledger.ends and tally == ledger.tally then
      ledger.used = ledger.used - cost
    end
  end

  -- As new; and what was taken before is not of this period any more, so that nothing can come back for it.
  function fixed_window.anew(ledger)
    local past = ledger.tally
    fixed_window.open(ledger)
    ledger.tally = past + 1
  end

  function fixed_window.settle(ledger, now, cost, mark, tally, actual)
    roll(ledger, now)
    if actual < cost then
      fixed_window.cancel(ledger, now, cost - actual, mark, tally)
    else
      ledger.used = math.min(ledger.used + actual - cost, FOREVER)
    end
  end

  function fixed_window.remaining(ledger, now)
    roll(ledger, now)
    return math.max(0, ledger.rule.capacity - ledger.used)
  end

end
