-- Plays traces of leases on one ledger (test_lease_traces.py), behind prelude.lua, runs.lua, the files of its kind and
-- of lending, shares.lua and lease.lua. So what a limiter's script lends by can be compared with the core.
--
-- KEYS[1]  a hash; its field s1 has the ledger as a limiter's script stores it
-- ARGV[1]  the rule, for a ledger that is not there yet
-- ARGV[2..]  commands: which, the time, TTL and prediction window, two edges of a fixed window, how many wait; then of
--            a call its numbers, its client's name (8 bytes) and what it hands back; of a single permit its cost; of
--            an end its cost and mark
-- The answer is, of each command: how many numbers it answered, these; the book; the leases, in the order of their
-- calls; the state of the ledger.

local value = call('HGET', KEYS[1], 's1')
local record = value and string.sub(value, 1, 72) or ARGV[1]
local number, _, capacity, a, b, c, d, e, f = unpack_from('<ddddddddd', record)
local kind = kinds[number]
kind.more()
local ledger = {
  key = KEYS[1], index = 1, record = record, kind = kind, rule = kind.rule(capacity, a, b, c, d, e, f),
  known = value ~= false,
}
kind.open(ledger, value, 73)
if kind.shrink then
  kind.shrink(ledger)
end
local book = lending.open(ledger, 0, 'an epoch of twenty-four.')

local function read(numbers, from, count)
  local list = {unpack_from('<' .. string.rep('d', count), numbers, from)}
  list[count + 1] = nil
  return list
end

local answers = {}
for index = 2, #ARGV do
  local packed = ARGV[index]
  local what, now, ttl, predict, ends, next_ends, waiting = unpack_from('<ddddddd', packed)
  if ledger.edges then
    ledger.edges = {0, ends, next_ends}
  end
  book.waiting = waiting
  lending.agree(ledger, ttl, predict)
  local answer = {}
  if what == 1 then
    local ask = {ttl = ttl, total = 0}
    ask.seq, ask.attempt, ask.lease, ask.want, ask.holding, ask.closing = unpack_from('<dddddd', packed, 57)
    ask.client = string.match(string.sub(packed, 105, 112), '^%w+')
    ask.back = read(packed, 113, (#packed - 112) / 8)
    for i = 1, #ask.back, 2 do
      ask.total = ask.total + ask.back[i]
    end
    local said = lending.sync(ledger, now, ask)
    answer = said and read(said, 1, #said / 8) or {}
  elseif what == 2 then
    local cost = unpack_from('<d', packed, 57)
    lending.direct(ledger, now, cost, 1)
    answer = {kind.wait(ledger, now, cost)}
    if answer[1] == 0 then
      answer[2] = (kind.take_held or kind.take)(ledger, now, cost)
    end
  elseif what == 4 then
    -- under another rule
    lending.expire(ledger, now)
    lending.divide(ledger, now)
  elseif kind.complete then
    local cost, mark = unpack_from('<dd', packed, 57)
    kind.complete(ledger, now, cost, mark)
  end
  lending.save(ledger) -- a script has one time; here, leases may end that were made by the command before
  local parts = {
    pack_numbers({#answer}), pack_numbers(answer),
    pack_numbers({
      book.named, book.clients, book.held, book.short, book.recalled, book.changes, book.direct_share, book.window_end,
      kind.balance(ledger, now), ledger.away,
    }),
  }
  local leases = lending.all(book)
  table.sort(leases, function(one, other) return one.turn < other.turn end)
  for _, one in ipairs(leases) do
    parts[#parts + 1] = pack_numbers({one.number, one.seq, one.held, one.want, one.share, one.recall, one.ends})
  end
  local state = kind.state(ledger)
  parts[#parts + 1] = state
  for _, runs in ipairs(ledger.lists or {}) do
    parts[#parts + 1] = table.concat(call('LRANGE', runs.key, 0, -1))
  end
  answers[#answers + 1] = table.concat(parts)
end
call('HSET', KEYS[1], 's1', record .. kind.state(ledger))
return answers
