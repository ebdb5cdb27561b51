-- How a request is weighed, granted and reported, whatever its kinds. What the fast path could not decide comes here,
-- and only then are the rarer functions of each kind defined.

for _, kind in pairs(kinds) do
  if kind.more then
    kind.more()
  end
end

-- The slot for which all of `costs` can be taken, or nil; then `holding` has the ledgers that lack permits, `ready`
-- is when to request again, and `least` is the earliest time at which it can succeed. One ledger alone can promise
-- a time. Several are taken at one moment, when all of them have permits; otherwise a permit that waits for another
-- ledger would be lost to other callers. `blocked` has the ledgers for which earlier waiters wait, and until when:
-- a waiter that only waits for those need not request earlier.
--
-- While the whole limiter is paused a key promises nothing to a waiter, as its ledger does not learn when the pause
-- is lifted; a reservation (`firm`) is promised a time after the pause. With metrics nothing is ever promised to a
-- waiter: a pause of its key alone could not move its slot, as one sum of shifts is kept for all keys.
local function weigh(mine, costs, offset, blocked, firm)
  local needed, slot, ready, least, holding, never = 0, base, base, base, nil, false
  for i = 1, #costs - offset do
    if costs[offset + i] > 0 then
      needed = needed + 1
    end
  end
  for i = 1, #costs - offset do
    local cost = costs[offset + i]
    if cost > 0 then
      local ledger = mine[i]
      local kind = ledger.kind
      local wait, latest_wait = kind.wait(ledger, now, cost), kind.latest_wait or kind.wait
      local held = ledger.paused > now
      local promise = needed == 1 and kind.reserves and (firm or #KEYS == 1 and halted <= now)
        and (not kind.exact or kind.exact(ledger, now, cost))
      if ledger.away and ledger.away > 0 and wait > 0 then
        -- Tokens are with clients, and may come back at any time: nothing is promised, and it is asked again.
        wait, promise, latest_wait = math.min(wait, ledger.poll or lease / 3), false, nil
      end
      if cost > (ledger.capacity or ledger.rule.capacity) then
        never = true
      elseif blocked and blocked[ledger.id] then
        holding = holding or {}
        holding[ledger.id] = true
        local latest = latest_wait and latest_wait(ledger, now, cost) or wait
        ready = math.max(ready, latest > 0 and now + latest or blocked[ledger.id])
        least = math.max(least, now + wait)
      elseif promise then
        if kind.slot and kind.slot(ledger, now, cost) < 0 then
          holding = holding or {}
          holding[ledger.id] = true
          ready = math.max(ready, now + (kind.slot_after or kind.wait)(ledger, now, cost))
          least = math.max(least, now + wait)
        end
        slot = math.max(slot, now + wait, ledger.paused)
      elseif wait > 0 or base > now or held then
        holding = holding or {}
        holding[ledger.id] = true
        ready = math.max(ready, now + (latest_wait and latest_wait(ledger, now, cost) or wait))
        least = math.max(least, now + wait)
      end
      if held then
        ready, least = math.max(ready, ledger.paused), math.max(least, ledger.paused)
      end
    end
  end
  return (not holding and not never) and slot or nil, holding, ready, never, least
end

local function take(mine, costs, offset, slot, into)
  for i = 1, #costs - offset do
    local cost = costs[offset + i]
    local mark, tally = 0, 0
    if cost > 0 then
      local kind = mine[i].kind
      mark = (costs.held and kind.take_held or kind.take)(mine[i], slot, cost)
      tally = mine[i].tally
    end
    into[#into + 1] = mark
    into[#into + 1] = tally
  end
end

-- One row per rule: remaining, wait, time until it is as new, waiting, in flight, whether the wait is exact, and the
-- generation of the limit that governs, if that is another than the client's (else 0).
local function snapshot(costs, offset, into)
  for i = 1, count do
    local ledger, cost = own[i], costs[offset + i]
    local kind = ledger.kind
    local wait = cost > 0 and kind.wait(ledger, now, cost) or 0
    local exact = cost == 0 or not kind.exact or kind.exact(ledger, now, cost)
    if ledger.away and ledger.away > 0 and wait > 0 then
      wait, exact = math.min(wait, ledger.poll or lease / 3), false
    end
    local base = math.max(base, ledger.paused)
    local remaining = (base > now or waiting > 0) and 0 or kind.remaining(ledger, now)
    if cost > 0 and waiting > 0 then
      wait, exact = math.max(1, wait), false
    end
    into[#into + 1] = remaining
    into[#into + 1] = cost > 0 and math.max(wait, base - now) or 0
    into[#into + 1] = kind.reset_after(ledger, now)
    into[#into + 1] = waiting + (kind.reserved and kind.reserved(ledger, now) or 0)
    into[#into + 1] = kind.in_flight and kind.in_flight(ledger, now) or 0
    into[#into + 1] = exact and 1 or 0
    into[#into + 1] = ledger.other and governed or 0
  end
end
