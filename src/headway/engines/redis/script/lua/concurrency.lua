-- Port of core/concurrency.py: at most n at the same time, each until its release or the end of its lease. The lease
-- is the ledger's and not the rule's: under a newer rule, holders rely on the lease that they were given. It is the
-- longest lease of the holders: each process renews three times in the lease that its own address names.

local concurrency = {
  held = true, rule = 0, open = 0, state = 0, advance = 0, wait = 0, exact = 0, take = 0, complete = 0, reset_after = 0,
  more = 0,
}
kinds[5] = concurrency

function concurrency.rule(capacity, lease)
  return {capacity = capacity, lease = lease}
end

function concurrency.open(ledger, state, from)
  local key = ledger.key .. ':o' .. ledger.index
  ledger.tally = 0
  if state then
    ledger.lease = unpack_from('<d', state, from)
    ledger.out = open_runs(key, unpack_from('<ddddd', state, from + 8))
    if #state >= from + 55 then
      ledger.lent = unpack_from('<d', state, from + 48)
    end
  else
    ledger.lease = ledger.rule.lease
    ledger.out = new_runs(key)
  end
  ledger.lists = {ledger.out}
end

function concurrency.state(ledger)
  return pack('<d', ledger.lease) .. runs_state(ledger.out) .. (ledger.lent and pack('<d', ledger.lent) or '')
end

function concurrency.advance(ledger, now)
  local out, lease = ledger.out, ledger.lease
  while first_time(out) <= now - lease do
    count_abandoned(ledger, pop_run(out))
  end
end

function concurrency.wait(ledger, now, cost)
  if cost > ledger.rule.capacity then
    return FOREVER
  end
  concurrency.advance(ledger, now)
  return cost <= ledger.rule.capacity - ledger.out.total and 0 or 1
end

function concurrency.exact(ledger, now, cost)
  concurrency.advance(ledger, now)
  return cost <= ledger.rule.capacity - ledger.out.total
end

-- Under a mark of its own.
local function note(ledger, at, cost)
  local out = ledger.out
  if out.size > 0 and last_run(out) >= at then
    at = last_run(out) + 1
  end
  return add_run(out, at, cost)
end

function concurrency.take(ledger, at, cost)
  if ledger.out.total == 0 or ledger.lease < ledger.rule.lease then
    ledger.lease = ledger.rule.lease
  end
  return note(ledger, at, cost)
end

function concurrency.complete(ledger, now, cost, mark)
  concurrency.advance(ledger, now)
  remove_run(ledger.out, mark, cost)
end

function concurrency.reset_after(ledger, now)
  concurrency.advance(ledger, now)
  if ledger.out.size == 0 then
    return 0
  end
  return last_run(ledger.out) + ledger.lease - now
end

-- What is needed less often: defined only when it is, since a script runs from its first line each time.
function concurrency.more()
  function concurrency.latest_wait(ledger, now, cost)
    concurrency.advance(ledger, now)
    local need = cost - (ledger.rule.capacity - ledger.out.total)
    if need <= 0 then
      return 0
    end
    if cost > ledger.rule.capacity then
      return FOREVER
    end
    return time_of(ledger.out, need) + ledger.lease - now
  end

  function concurrency.abandon(ledger, now, cost, mark)
    concurrency.advance(ledger, now)
    count_abandoned(ledger, remove_run(ledger.out, mark, cost))
  end

  concurrency.cancel = concurrency.complete
  concurrency.settle = concurrency.complete

  function concurrency.renew(ledger, now, cost, mark)
    concurrency.advance(ledger, now)
    local found = remove_run(ledger.out, mark, cost)
    return found > 0 and note(ledger, now, found) or -1
  end

  function concurrency.remaining(ledger, now)
    concurrency.advance(ledger, now)
    return math.max(0, ledger.rule.capacity - ledger.out.total)
  end

  function concurrency.in_flight(ledger, now)
    concurrency.advance(ledger, now)
    return ledger.out.total
  end
end
