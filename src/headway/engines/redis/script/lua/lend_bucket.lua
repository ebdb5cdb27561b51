-- Lending the tokens of a bucket: a token is a unit, one of the burst and one n-th of the rate. The stored rule is that
-- of the whole bucket; the ledger goes by that of the units that lie here.

do
  local function common_divisor(a, b)
    while b > 0 do
      a, b = b, math.fmod(a, b)
    end
    return a
  end

  -- The time in which an empty bucket fills; the same for any number of units.
  function bucket.span(ledger)
    local whole = ledger.whole
    return whole.room + (whole.room_part > 0 and 1 or 0)
  end

  local function rule_of(ledger, units)
    if units <= 0 then
      return bucket.rule(0, 0, 0, 1, 0, 0)
    end
    local whole = ledger.whole
    if units == whole.capacity then
      return whole
    end
    local span, parts = (whole.whole * whole.parts + whole.part) * whole.capacity, whole.parts * units
    local interval, part
    if span < 2 * FOREVER then
      local common = common_divisor(span, parts)
      span, parts = span / common, parts / common
    end
    if span < 2 * FOREVER and (units + 1) * parts <= FOREVER then
      interval, part = divide(span, parts)
    else
      -- The fraction does not fit: an interval is a whole number of ticks.
      local q, rest = divide(bucket.span(ledger), units)
      interval, part, parts = rest > 0 and q + 1 or q, 0, 1
    end
    local carry, rest = divide(units * part, parts)
    return bucket.rule(units, interval, part, parts, units * interval + carry, rest)
  end

  function bucket.shrink(ledger)
    ledger.lent = ledger.lent or 0
    ledger.away = ledger.lent
    ledger.whole, ledger.capacity = ledger.rule, ledger.rule.capacity
    if ledger.lent ~= 0 then
      ledger.rule = rule_of(ledger, ledger.capacity - ledger.lent)
    end
  end

  function bucket.balance(ledger)
    return ledger.capacity - ledger.lent
  end

  local function full_in(ledger, now)
    return ledger.rule.capacity > 0 and bucket.reset_after(ledger, now) or 0
  end

  -- Permits that were taken before weigh nothing from now on.
  local function resize(ledger, now, units, after)
    ledger.lent = ledger.capacity - units
    ledger.tally = (ledger.tally + ledger.rule.room + 2) % FOREVER
    ledger.rule = rule_of(ledger, units)
    ledger.tat, ledger.part = after > 0 and now + after or LONG_AGO, 0
  end

  function bucket.withdraw(ledger, now, count)
    local units = ledger.capacity - ledger.lent
    count = math.min(count, units)
    if count <= 0 then
      return {}
    end
    local after, left = full_in(ledger, now), units - count
    local more = left > 0 and share_up(units, after, left)
    if more and more <= bucket.span(ledger) then
      -- As many are idle: what was spent is put down to those that stay.
      resize(ledger, now, left, more)
      return {count, 0}
    end
    resize(ledger, now, left, after)
    return {count, after}
  end

  function bucket.deposit(ledger, now, count, after)
    local units = ledger.capacity - ledger.lent
    local here, stay = math.max(0, units), math.max(0, units + count)
    local there = full_in(ledger, now)
    local low, high, of = there, after, stay - here
    if low > high then
      low, high, of = after, there, here
    end
    local mean = stay == 0 and 0 or here == 0 and after or stay == here and there
      or low + share_up(of, high - low, stay)
    resize(ledger, now, units + count, mean)
  end

  function bucket.forfeited(ledger)
    return bucket.span(ledger)
  end

  function bucket.forfeit(ledger, now, count, until_when)
    bucket.deposit(ledger, now, count, math.max(0, until_when + bucket.span(ledger) - now))
  end

  function bucket.forget(ledger, now)
    local lent = ledger.lent
    bucket.anew(ledger, now)
    ledger.lent = lent
  end
end
