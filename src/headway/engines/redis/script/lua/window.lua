-- Port of core/window.py: never more than n in any w. Permits are free, cooling or out, and the sum is n.

local window = {
  reserves = true, alike = true, rule = 0, open = 0, state = 0, wait = 0, exact = 0, take = 0, take_held = 0,
  complete = 0, reset_after = 0, more = 0, remaining = 0, in_flight = 0, reserved = 0,
}
kinds[2] = window

function window.rule(capacity, gap, grid, transit, out_grid, which, bare_gap)
  return {
    capacity = capacity, gap = gap, grid = grid, transit = transit, out_grid = out_grid, held = which == 1,
    bracketed = which == 2, bare_gap = which == 2 and bare_gap or gap,
  }
end

function window.open(ledger, state, from)
  ledger.free, ledger.tally, ledger.enterable, ledger.lost = ledger.rule.capacity, 0, 0, 0
  local cooling, out = ledger.key .. ':c' .. ledger.index, ledger.key .. ':o' .. ledger.index
  if state then
    ledger.free, ledger.tally = unpack_from('<dd', state, from)
    ledger.cooling = open_runs(cooling, unpack_from('<ddddd', state, from + 16))
    ledger.out = open_runs(out, unpack_from('<ddddd', state, from + 56))
    if #state >= from + 111 then
      ledger.enterable, ledger.lost = unpack_from('<dd', state, from + 96)
      if #state >= from + 127 then
        local unordered
        ledger.lent, unordered = unpack_from('<dd', state, from + 112)
        ledger.unordered = unordered == 1
      end
    end
  else
    ledger.cooling, ledger.out = new_runs(cooling), new_runs(out)
  end
  ledger.lists = {ledger.cooling, ledger.out}
end

function window.state(ledger)
  return pack('<dd', ledger.free, ledger.tally) .. runs_state(ledger.cooling) .. runs_state(ledger.out)
    .. pack('<dd', ledger.enterable, ledger.lost)
    -- Where tokens were ever lent: how many are, and whether permits may cool before those that were recorded earlier.
    .. (ledger.lent and pack('<dd', ledger.lent, ledger.unordered and 1 or 0) or '')
end

local function on_grid(at, grid)
  return grid > 1 and ceil_to(at, grid) or at
end

local function cool(ledger, at, count)
  local cooling, rule = ledger.cooling, ledger.rule
  if cooling.size == 0 or last_run(cooling) < at then
    return add_run(cooling, on_grid(at, rule.grid), count)
  elseif (rule.bracketed or ledger.unordered) and last_run(cooling) - rule.grid >= at then
    return insert_run(cooling, on_grid(at, rule.grid), count)
  end
  return add_run(cooling, at, count)
end

local function advance(ledger, now)
  local out, cooling, transit = ledger.out, ledger.cooling, ledger.rule.transit
  while out.size > 0 and first_time(out) <= now - transit do
    local due, count = first_time(out) + transit, pop_run(out)
    ledger.lost = math.max(0, ledger.lost - count)
    cool(ledger, due + ledger.rule.gap, count)
    count_abandoned(ledger, count)
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
  end
  local least = ledger.rule.gap > 1 and ledger.rule.gap or 1
  if need <= ledger.cooling.total then
    local wait = time_of(ledger.cooling, need) - now
    if wait <= least or ledger.out.total == 0 then
      return wait
    end
    -- It cools behind what was promised for later, and what is out may come back before.
    need = need - ledger.out.total
    return need > 0 and math.max(least, time_of(ledger.cooling, need) - now) or least
  elseif cost > ledger.rule.capacity then
    return FOREVER
  end
  if ledger.lost == 0 then
    return least
  end
  -- At best those that are out complete this instant; what was abandoned must sit out its transit.
  need = need - ledger.cooling.total - ledger.out.total + ledger.lost
  if need <= 0 then
    return least
  end
  local due = time_of(ledger.out, need) + ledger.rule.transit
  return math.max(least, on_grid(due + ledger.rule.gap, ledger.rule.grid) - now)
end

function window.exact(ledger, now, cost)
  advance(ledger, now)
  local need = cost - ledger.free
  if need > ledger.cooling.total then
    return ledger.rule.held and ledger.lost > 0 and ledger.lost == ledger.out.total and cost <= ledger.rule.capacity
  end
  return need <= 0 or ledger.out.total == 0 or time_of(ledger.cooling, need) - now <= ledger.rule.gap
end

-- What brackets a call, where that makes a difference: it is out until its end is told.
function window.take_held(ledger, at, cost)
  if not (ledger.rule.held or ledger.rule.bracketed) then
    return window.take(ledger, at, cost)
  end
  ledger.free = ledger.free - cost
  local out = ledger.out
  if out.size == 0 or last_run(out) < at then
    at = on_grid(at, ledger.rule.out_grid)
  end
  return add_run(out, at, cost)
end

function window.take(ledger, at, cost)
  if ledger.rule.held then
    return window.take_held(ledger, at, cost)
  end
  ledger.free = ledger.free - cost
  local usable = cool(ledger, at + ledger.rule.bare_gap, cost)
  if ledger.rule.bracketed then
    ledger.enterable = math.max(ledger.enterable, math.min(usable, at + ledger.rule.transit))
  end
  return -usable
end

function window.complete(ledger, now, cost, mark)
  advance(ledger, now)
  if mark >= 0 then
    local found = remove_run(ledger.out, mark, cost)
    if found > 0 then
      cool(ledger, now + ledger.rule.gap, found)
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
    local rule = ledger.rule
    last = math.max(last, on_grid(last_run(ledger.out) + rule.transit + rule.gap, rule.grid))
  end
  return last - now
end

function window.remaining(ledger, now)
  advance(ledger, now)
  return math.max(0, ledger.free)
end

function window.in_flight(ledger, now)
  advance(ledger, now)
  return ledger.out.total
end

-- Permits that are promised for later are those that are missing.
function window.reserved(ledger)
  return math.max(0, -ledger.free)
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
    local rule = ledger.rule
    local due = time_of(ledger.out, need - ledger.cooling.total) + rule.transit
    local last = ledger.cooling.size > 0 and last_run(ledger.cooling) or now
    return math.max(on_grid(due + rule.gap, rule.grid), last) - now
  end

  -- It stays out until its transit is over.
  function window.abandon(ledger, now, cost, mark)
    advance(ledger, now)
    if mark >= 0 and mark >= first_time(ledger.out) then
      ledger.lost = math.min(ledger.lost + cost, ledger.out.total)
    end
  end

  function window.cancel(ledger, now, cost, mark, tally)
    advance(ledger, now)
    if mark < 0 then
      ledger.free = ledger.free + remove_run(ledger.cooling, ledger.tally - tally - mark, cost)
    else
      ledger.free = ledger.free + remove_run(ledger.out, mark, cost)
    end
  end

  -- What was taken brackets a call after all. If it has cooled meanwhile it may be another's by now, and is owed.
  function window.enter(ledger, now, cost, mark, tally, at)
    if mark >= 0 or not ledger.rule.bracketed then
      return mark
    end
    advance(ledger, now)
    ledger.free = ledger.free - cost + remove_run(ledger.cooling, ledger.tally - tally - mark, cost)
    return insert_run(ledger.out, on_grid(at, ledger.rule.out_grid), cost)
  end

  function window.settle(ledger, now, cost, mark, tally, actual)
    advance(ledger, now)
    if actual < cost then
      window.cancel(ledger, now, cost - actual, mark, tally)
    elseif actual > cost then
      local extra = math.min(actual - cost, ledger.free + FOREVER - 1)
      if extra > 0 then
        ledger.free = ledger.free - extra
        cool(ledger, now + (mark >= 0 and ledger.rule.gap or ledger.rule.bare_gap), extra)
      end
    end
    window.complete(ledger, now, math.min(cost, actual), mark)
  end

  -- Neither its times nor what is owed may leave the horizon, where numbers end. Nothing is promised while a bare
  -- permit cools that may still be entered.
  function window.slot(ledger, now, cost)
    local rule = ledger.rule
    local wait = window.wait(ledger, now, cost)
    if wait > FOREVER - rule.gap - rule.transit or cost - ledger.free >= FOREVER
      or wait > 0 and ledger.enterable > now then
      return -1
    end
    return window.exact(ledger, now, cost) and now + wait or -1
  end

  -- A waiter that was promised a time in a pause, or after it, requests again when the pause changes: permits cool by
  -- their own time. If the pause ends sooner, what they had is moved as they would be, or all that is taken next
  -- would be kept as long as that.
  function window.shift(ledger, now, by)
    local rule = ledger.rule
    local runs, least, ahead = ledger.cooling, on_grid(now + rule.gap, rule.grid), {}
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
