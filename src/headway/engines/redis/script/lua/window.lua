-- Port of core/window.py: never more than n in any w. Permits are free, cooling or out, and the sum is n.

local window = {
  reserves = true, alike = true, rule = 0, open = 0, state = 0, wait = 0, exact = 0, take = 0, complete = 0, reset_after = 0, more = 0,
}
kinds[2] = window

function window.rule(capacity, gap, grid, transit, out_grid, held)
  return {capacity = capacity, gap = gap, grid = grid, transit = transit, out_grid = out_grid, held = held == 1}
end

function window.open(ledger, state, from)
  ledger.free, ledger.tally, ledger.lost = ledger.rule.capacity, 0, 0
  local cooling, out = ledger.key .. ':c' .. ledger.index, ledger.key .. ':o' .. ledger.index
  if state then
    ledger.free, ledger.tally = unpack_from('<dd', state, from)
    ledger.cooling = open_runs(cooling, unpack_from('<ddddd', state, from + 16))
    ledger.out = open_runs(out, unpack_from('<ddddd', state, from + 56))
    ledger.lost = #state >= from + 103 and unpack_from('<d', state, from + 96) or 0
  else
    ledger.cooling, ledger.out = new_runs(cooling), new_runs(out)
  end
  ledger.lists = {ledger.cooling, ledger.out}
end

function window.state(ledger)
  return pack('<dd', ledger.free, ledger.tally) .. runs_state(ledger.cooling) .. runs_state(ledger.out)
    .. pack('<d', ledger.lost)
end

local function usable(rule, completed)
  local at = completed + rule.gap
  return rule.grid > 1 and ceil_to(at, rule.grid) or at
end

local function cool(ledger, completed, count)
  local cooling, at = ledger.cooling, completed + ledger.rule.gap
  if cooling.size == 0 or last_run(cooling) < at then
    at = usable(ledger.rule, completed)
  end
  return add_run(cooling, at, count)
end

local function advance(ledger, now)
  local out, cooling, transit = ledger.out, ledger.cooling, ledger.rule.transit
  if ledger.rule.held then
    while first_time(out) <= now - transit do
      local due, count = first_time(out) + transit, pop_run(out)
      ledger.lost = math.max(0, ledger.lost - count)
      cool(ledger, due, count)
      count_abandoned(ledger, count)
    end
  end
  while first_time(cooling) <= now do
    ledger.free = ledger.free + pop_run(cooling)
  end
end

function window.wait(ledger, now, cost)
  advance(ledger, now)
  local need = cost - ledger.free
  if need <= 0 then
    return 0
  elseif need <= ledger.cooling.total then
    return time_of(ledger.cooling, need) - now
  elseif cost > ledger.rule.capacity then
    return FOREVER
  end
  -- At best those that are out complete this instant; what was abandoned must sit out its transit.
  local least = ledger.rule.gap > 1 and ledger.rule.gap or 1
  need = need - ledger.cooling.total - ledger.out.total + ledger.lost
  if need <= 0 then
    return least
  end
  return math.max(least, usable(ledger.rule, time_of(ledger.out, need) + ledger.rule.transit) - now)
end

function window.exact(ledger, now, cost)
  advance(ledger, now)
  if cost - ledger.free <= ledger.cooling.total then
    return true
  end
  return ledger.rule.held and ledger.lost == ledger.out.total and cost <= ledger.rule.capacity
end

function window.take(ledger, at, cost)
  ledger.free = ledger.free - cost
  if not ledger.rule.held then
    return -cool(ledger, at, cost)
  end
  local out = ledger.out
  if ledger.rule.out_grid > 1 and (out.size == 0 or last_run(out) < at) then
    at = ceil_to(at, ledger.rule.out_grid)
  end
  return add_run(out, at, cost)
end

function window.complete(ledger, now, cost, mark)
  advance(ledger, now)
  if ledger.rule.held and mark >= 0 then
    local found = remove_run(ledger.out, mark, cost)
    if found > 0 then
      cool(ledger, now, found)
    end
  end
end

function window.reset_after(ledger, now)
  advance(ledger, now)
  local last = now
  if ledger.cooling.size > 0 then
    last = last_run(ledger.cooling)
  end
  if ledger.out.size > 0 then
    last = math.max(last, usable(ledger.rule, last_run(ledger.out) + ledger.rule.transit))
  end
  return last - now
end

-- What is needed less often: defined only when it is, since a script runs from its first line each time.
function window.more()
  function window.latest_wait(ledger, now, cost)
    advance(ledger, now)
    local need = cost - ledger.free
    if need <= 0 then
      return 0
    elseif need <= ledger.cooling.total then
      return time_of(ledger.cooling, need) - now
    elseif cost > ledger.rule.capacity then
      return FOREVER
    end
    return usable(ledger.rule, time_of(ledger.out, need - ledger.cooling.total) + ledger.rule.transit) - now
  end

  -- It stays out until its transit is over.
  function window.abandon(ledger, now, cost, mark)
    advance(ledger, now)
    if ledger.rule.held and mark >= first_time(ledger.out) then
      ledger.lost = math.min(ledger.lost + cost, ledger.out.total)
    end
  end

  function window.cancel(ledger, now, cost, mark, tally)
    advance(ledger, now)
    if mark < 0 then
      ledger.free = ledger.free + remove_run(ledger.cooling, ledger.tally - tally - mark, cost)
    elseif ledger.rule.held then
      ledger.free = ledger.free + remove_run(ledger.out, mark, cost)
    end
  end

  function window.settle(ledger, now, cost, mark, tally, actual)
    advance(ledger, now)
    if actual < cost then
      window.cancel(ledger, now, cost - actual, mark, tally)
    elseif actual > cost then
      local extra = math.min(actual - cost, ledger.free + FOREVER - 1)
      if extra > 0 then
        ledger.free = ledger.free - extra
        cool(ledger, now, extra)
      end
    end
    window.complete(ledger, now, math.min(cost, actual), mark)
  end

  function window.remaining(ledger, now)
    advance(ledger, now)
    return math.max(0, ledger.free)
  end

  function window.in_flight(ledger, now)
    advance(ledger, now)
    return ledger.out.total
  end

  function window.exhaust(ledger, now)
    advance(ledger, now)
    if ledger.free > 0 then
      local count = ledger.free
      ledger.free = 0
      if ledger.rule.held then
        add_run(ledger.out, now, count)
      else
        cool(ledger, now, count)
      end
    end
  end

  -- Neither its times nor what is owed may leave the horizon, where numbers end.
  function window.slot(ledger, now, cost)
    local rule = ledger.rule
    local wait = window.wait(ledger, now, cost)
    if wait > FOREVER - rule.gap - rule.transit or cost - ledger.free >= FOREVER then
      return -1
    end
    return window.exact(ledger, now, cost) and now + wait or -1
  end

  -- Permits that are promised for later are those that are missing.
  function window.reserved(ledger)
    return math.max(0, -ledger.free)
  end

  -- A waiter that was promised a time in a pause, or after it, requests again when the pause changes: permits cool by
  -- their own time. If the pause ends sooner, what they had is moved as they would be, or all that is taken next
  -- would be kept as long as that.
  function window.shift(ledger, now, by)
    local runs, least, ahead = ledger.cooling, usable(ledger.rule, now), {}
    while by < 0 and runs.size > 0 and last_run(runs) > least do
      local time, count = last_run(runs)
      ahead[#ahead + 1] = {time, count}
      remove_run(runs, time, count)
    end
    for i = #ahead, 1, -1 do
      add_run(runs, math.max(least, ahead[i][1] + by), ahead[i][2])
    end
  end
end
