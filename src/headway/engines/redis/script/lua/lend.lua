-- Port of core/tokens.py and core/lendable.py: how tokens leave a ledger and enter it. What all kinds need; each kind
-- that can be lent has a file of its own with these verbs (times in ticks, a batch is {count, after, count, after ..}):
--
--   shrink(ledger)                      what is lent does not lie here: called when the ledger is opened
--   span(ledger)                        for how long a token is gone once it is spent
--   balance(ledger, now)                how many could be withdrawn; below 0: how many a lower limit lacks
--   withdraw(ledger, now, count)        take up to so many out, idle ones first: a batch
--   deposit(ledger, now, count, after)  put tokens in that were withdrawn before
--   forfeit(ledger, now, count, until)  put tokens in whose holder vanished, and may have spent them until then
--   forfeited(ledger)                   for how long after that time they count
--   longest_lease(ledger, now)          how long tokens may be lent from now on, where there is an end
--   forget(ledger, now, held)           as new, but for what is lent

-- floor(a * b / n) and what is left, exact although the product need not be; n below 2^51.
local function share_of(a, b, n)
  if a * b < 2 * FOREVER then
    return divide(a * b, n)
  end
  local q, rest = divide(b, n)
  local base = n < 4294967296 and 1048576 or n < 4398046511104 and 1024 or n < 281474976710656 and 16 or 2
  -- a in digits, the highest first: with each, what is left so far counts `base` times as much.
  local digits = {}
  local left = a
  while left > 0 do
    left, digits[#digits + 1] = divide(left, base)
  end
  local quotient, over = 0, 0
  for i = #digits, 1, -1 do
    local more
    more, over = divide(over * base + digits[i] * rest, n)
    quotient = quotient * base + more
  end
  return a * q + quotient, over
end

local function share_up(a, b, n)
  local q, rest = share_of(a, b, n)
  return rest > 0 and q + 1 or q
end

-- What the parts of lending know of each other, by name: a script has room for no more than 200 locals.
local lending = {MILLI = 1000, ones = {}}
for i = 1, 64 do
  lending.ones[i] = 1
end
