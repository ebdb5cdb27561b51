-- Plays traces (tests/core/script_traces.py) on one ledger, behind prelude.lua, runs.lua and the file of its kind. So
-- what a limiter's script decides by can be compared with the core, command by command.
--
-- KEYS[1]  a hash; its field s1 has the ledger as a limiter's script stores it
-- ARGV[1]  the rule, for a ledger that is not there yet
-- ARGV[2..]  commands: packed numbers, the first says which, the second when; on a fixed window two edges at the end
-- The answer is, of each command, packed numbers: how many it answered, then these; how many tell the state, then
-- these; and the tally.

local WAIT, TAKE, RESERVE, COMPLETE, ABANDON, CANCEL, SETTLE, RENEW, PEEK, MARCH = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local HOLD, ENTER = 11, 12

local value = call('HGET', KEYS[1], 's1')
local record = value and string.sub(value, 1, 72) or ARGV[1]
local number, _, capacity, a, b, c, d, e, f = unpack_from('<ddddddddd', record)
local kind = kinds[number]
kind.more()
local ledger = {
  key = KEYS[1], index = 1, record = record, kind = kind, rule = kind.rule(capacity, a, b, c, d, e, f),
}
kind.open(ledger, value, 73)

-- What the core's Ledger does where a kind says nothing else.
local function slot(now, cost)
  if kind.slot then
    return kind.slot(ledger, now, cost)
  end
  local wait = kind.wait(ledger, now, cost)
  return wait < FOREVER and (not kind.exact or kind.exact(ledger, now, cost)) and now + wait or -1
end

local function latest_wait(now, cost)
  return (kind.latest_wait or kind.wait)(ledger, now, cost)
end

local run = {
  [WAIT] = function(now, cost)
    return {kind.wait(ledger, now, cost)}
  end,
  [TAKE] = function(now, cost)
    local wait = kind.wait(ledger, now, cost)
    if wait > 0 then
      return {wait}
    end
    local mark = kind.take(ledger, now, cost)
    return {0, mark, ledger.tally}
  end,
  [RESERVE] = function(now, cost)
    local at = slot(now, cost)
    if at < 0 or (ledger.edges and at >= ledger.edges[3]) then
      return {-1, kind.slot_after and kind.slot_after(ledger, now, cost) or 0}
    end
    local mark = kind.take(ledger, at, cost)
    return {at, mark, ledger.tally}
  end,
  [HOLD] = function(now, cost)
    local wait = kind.wait(ledger, now, cost)
    if wait > 0 then
      return {wait}
    end
    local mark = (kind.take_held or kind.take)(ledger, now, cost)
    return {0, mark, ledger.tally}
  end,
  [ENTER] = function(now, cost, mark, tally, at)
    return {kind.enter and kind.enter(ledger, now, cost, mark, tally, at) or mark}
  end,
  [COMPLETE] = function(now, cost, mark)
    if kind.complete then
      kind.complete(ledger, now, cost, mark)
    end
    return {}
  end,
  [ABANDON] = function(now, cost, mark)
    if kind.abandon then
      kind.abandon(ledger, now, cost, mark)
    end
    return {}
  end,
  [CANCEL] = function(now, cost, mark, tally)
    kind.cancel(ledger, now, cost, mark, tally)
    return {}
  end,
  [SETTLE] = function(now, cost, mark, tally, actual)
    kind.settle(ledger, now, cost, mark, tally, actual)
    return {}
  end,
  [RENEW] = function(now, cost, mark)
    return {kind.renew and kind.renew(ledger, now, cost, mark) or mark}
  end,
  [PEEK] = function(now, cost)
    local wait = kind.wait(ledger, now, cost)
    local exact = (not kind.exact or kind.exact(ledger, now, cost)) and 1 or 0
    local remaining, reset = kind.remaining(ledger, now), kind.reset_after(ledger, now)
    local out = kind.in_flight and kind.in_flight(ledger, now) or 0
    return {wait, exact, remaining, reset, out, latest_wait(now, cost)}
  end,
  -- So many grants, each at the first moment that `wait` tells: when the last one was.
  [MARCH] = function(now, cost, count)
    for _ = 1, count do
      now = now + kind.wait(ledger, now, cost)
      kind.take(ledger, now, cost)
    end
    return {now}
  end,
}

local answers = {}
for index = 2, #ARGV do
  local numbers = ARGV[index]
  local command = {unpack_from('<' .. string.rep('d', #numbers / 8), numbers)}
  if ledger.edges then
    ledger.edges = {0, command[#command - 2], command[#command - 1]} -- the last one is where unpack stopped
  end
  local answer = run[command[1]](unpack(command, 2))
  local state = kind.state(ledger)
  for _, runs in ipairs(ledger.lists or {}) do
    local list = table.concat(call('LRANGE', runs.key, 0, -1))
    state = state .. pack('<d', #list / 8) .. list
  end
  answers[#answers + 1] = pack('<d' .. string.rep('d', #answer), #answer, unpack(answer)) .. pack('<d', #state / 8)
    .. state .. pack('<d', ledger.tally)
end
call('HSET', KEYS[1], 's1', record .. kind.state(ledger))
return answers
