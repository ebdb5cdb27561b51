-- Lending the tokens of a fixed window: a token is a count of the current window. A lease of them ends with the window
-- at the latest, and what is lent counts as used.

do
  function fixed_window.span(_, ttl)
    return 2 * ttl
  end

  function fixed_window.balance(ledger, now)
    roll(ledger, now)
    return ledger.rule.capacity - ledger.used
  end

  function fixed_window.withdraw(ledger, now, count)
    count = math.min(count, fixed_window.balance(ledger, now))
    if count <= 0 then
      return {}
    end
    fixed_window.take(ledger, now, count)
    return {count, 0}
  end

  -- The lease they are of is alive: so they are of the window that is.
  function fixed_window.deposit(ledger, now, count)
    roll(ledger, now)
    ledger.used = ledger.used - count
  end

  function fixed_window.forfeited()
    return 0
  end

  -- They count as used since they were lent.
  function fixed_window.forfeit() end

  function fixed_window.longest_lease(ledger, now)
    return fixed_window.reset_after(ledger, now)
  end

  function fixed_window.forget(ledger, now, held)
    fixed_window.anew(ledger)
    roll(ledger, now)
    ledger.used = held
  end
end
