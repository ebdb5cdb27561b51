-- Lending the tokens of a concurrency limit: a token is a slot. One in use stays where it is.

do
  local function move(ledger, count)
    ledger.lent = ledger.lent - count
    ledger.rule.capacity = math.max(0, ledger.capacity - ledger.lent)
  end

  function concurrency.shrink(ledger)
    ledger.lent, ledger.capacity = ledger.lent or 0, ledger.rule.capacity
    ledger.away = ledger.lent
    move(ledger, 0)
  end

  function concurrency.span()
    return 1
  end

  function concurrency.balance(ledger, now)
    concurrency.advance(ledger, now)
    return ledger.capacity - ledger.lent - ledger.out.total
  end

  function concurrency.withdraw(ledger, now, count)
    count = math.min(count, concurrency.balance(ledger, now))
    if count <= 0 then
      return {}
    end
    move(ledger, -count)
    return {count, 0}
  end

  function concurrency.deposit(ledger, now, count)
    move(ledger, count)
  end

  function concurrency.forfeited()
    return 0
  end

  -- In a shared ledger a slot expires with its holder.
  function concurrency.forfeit(ledger, now, count)
    move(ledger, count)
  end

  function concurrency.forget(ledger)
    local lent = ledger.lent
    concurrency.open(ledger, nil)
    ledger.lent = lent
  end
end
