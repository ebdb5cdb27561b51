-- Lending the tokens of a window: a token is a permit, free or cooling until a time of its own.

do
  function window.shrink(ledger)
    ledger.lent = ledger.lent or 0
    ledger.away = ledger.lent
  end

  function window.span(ledger)
    return math.max(1, ledger.rule.bare_gap)
  end

  function window.balance(ledger, now)
    advance(ledger, now)
    return ledger.free + ledger.cooling.total
  end

  -- Take so many of those that cool, evenly over all of them, and write the list anew without them.
  local function sample(ledger, now, wanted, batch)
    local runs, stay, seen, before = ledger.cooling, {}, 0, 0
    local total, size = runs.total, 0
    for from = 0, runs.size - 1, 256 do
      for _, run in ipairs(call('LRANGE', runs.key, from, from + 255)) do
        local time, count = unpack_from(RUN, run)
        seen = seen + count
        local upto = share_of(seen, wanted, total)
        local taken = upto - before
        before = upto
        if taken > 0 then
          batch[#batch + 1], batch[#batch + 2] = taken, time - now
        end
        if count > taken then
          size = size + 1
          stay[size] = taken > 0 and pack(RUN, time, count - taken) or run
        end
      end
    end
    call('DEL', runs.key)
    for from = 1, size, 256 do
      call('RPUSH', runs.key, unpack(stay, from, math.min(from + 255, size)))
    end
    runs.size, runs.total, runs.first, runs.last, runs.fresh = size, total - wanted, nil, nil, true
  end

  function window.withdraw(ledger, now, count)
    advance(ledger, now)
    local batch = {}
    local idle = math.min(count, math.max(0, ledger.free))
    if idle > 0 then
      ledger.free = ledger.free - idle
      batch[1], batch[2] = idle, 0
    end
    -- What is owed is paid by those that cool, so as many of them stay.
    local wanted = math.min(count - idle, ledger.cooling.total + math.min(0, ledger.free))
    if wanted > 0 then
      sample(ledger, now, wanted, batch)
    end
    ledger.lent = ledger.lent + idle + math.max(0, wanted)
    return batch
  end

  function window.deposit(ledger, now, count, after)
    advance(ledger, now)
    ledger.lent = ledger.lent - count
    if after <= 0 then
      ledger.free = ledger.free + count
    else
      ledger.unordered = true
      insert_run(ledger.cooling, on_grid(now + after, ledger.rule.grid), count)
    end
  end

  function window.forfeited(ledger)
    return ledger.rule.transit + math.max(ledger.rule.gap, ledger.rule.bare_gap)
  end

  function window.forfeit(ledger, now, count, until_when)
    window.deposit(ledger, now, count, until_when + window.forfeited(ledger) - now)
  end

  function window.forget(ledger)
    local lent = ledger.lent
    window.open(ledger, nil)
    ledger.free, ledger.lent = ledger.free - lent, lent
  end
end
