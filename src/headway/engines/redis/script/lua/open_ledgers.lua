-- The general path: everything else.

-- `count` numbers, without what struct says after them: where to read on.
local function numbers_in(packed, count, from)
  local numbers = {unpack_from('<' .. string.rep('d', count), packed, from)}
  numbers[count + 1] = nil
  return numbers
end

-- Of a command that is longer (SYNC) the front.
local function commands(index)
  return numbers_in(ARGV[index], math.min(floor(#ARGV[index] / 8), 500), 1)
end

local first = commands(from)
local epoch, served_by
if names then
  epoch, served_by = string.sub(names, 1, 24), string.sub(names, 25)
else
  epoch, served_by = stream .. pack('<d', number), ident
end
local BACKWARD = 1000000

local function refuse(status, detail)
  return pack('<dddddddd', status, now, seq, detail or 0, 0, 0, 0, 0) .. epoch
end

if format == LENDING and not can_lend then
  -- For how long clients may hold tokens: a quarantine has to be longer.
  local longest = 0
  for i = 1, count do
    local _, key = unpack_from('<dd', ARGV[5], (i - 1) * RECORD + 1)
    local book = call('HGET', KEYS[key] .. ':l' .. i, 'b')
    longest = math.max(longest, book and unpack_from('<d', book, 25) or 0)
  end
  return refuse(LEASED, longest)
elseif format ~= FORMAT and format ~= LENDING then
  return refuse(VERSION, format)
end

if first[1] == QUARANTINE then
  -- A client has seen that grants were forgotten: start anew, and grant nothing until they are all harmless. A later
  -- client with the same news finds an epoch that began in quarantine, and does not start another; unless that one was
  -- moved or had its clock set since.
  -- Its fields: for how long nothing is granted; if that was cut short, for how long it would have had to be; and
  -- whether the client trusts what is there: that is kept, and only known to be in doubt.
  if stored[1] and first[4] == 1 then
    served_by, born = ident, math.max(born, now + first[3])
  elseif not stored[1] or born == 0 or epoch == epoch_seen or served_by ~= ident or now < last - BACKWARD then
    local old = call('HKEYS', root)
    for _, field in ipairs(old) do
      local what = string.sub(field, 1, 1)
      if what == 's' or what == 'a' then
        call('HDEL', root, field)
      end
      if what == 's' then
        for _, part in ipairs({':c', ':o', ':l', ':e'}) do
          call('DEL', root .. part .. string.sub(field, 2))
        end
      end
    end
    for i = 2, #KEYS do
      call('DEL', KEYS[i])
      for j = 1, count do
        for _, part in ipairs({':c', ':o', ':l', ':e'}) do
          call('DEL', KEYS[i] .. part .. j)
        end
      end
    end
    call('DEL', root .. ':q', root .. ':w', root .. ':h', root .. ':b', root .. ':g')
    call('HDEL', root, 'b')
    stored, only, format = {}, nil, FORMAT
    epoch, served_by = stream .. pack('<d', number), ident
    seq, last, paused, expires, waiting, shift, governed = 0, 0, 0, 0, 0, 0, generation
    -- Cut short, it is trusted before all is harmless: until then every reply says so.
    quarantined, born = now + first[2], first[3] > 0 and now + first[3] or 1
  end
elseif not stored[1] then
  if epoch_seen ~= '' then
    return refuse(LOST, 1)
  end
else
  if epoch_seen ~= '' and epoch ~= epoch_seen and born == 0 then
    return refuse(LOST, 2)
  elseif epoch == epoch_seen and seq < seq_seen then
    return refuse(LOST, 3)
  elseif served_by ~= ident then
    if first[1] ~= TRUST then
      return refuse(MOVED)
    end
    served_by = ident
  end
end
if first[1] ~= QUARANTINE then
  -- Even a client that has no expectation of the time sees that it went back.
  if now < last - BACKWARD then
    return refuse(CLOCK, 1)
  elseif lo > 0 and (now < lo or now > hi) then
    return refuse(CLOCK)
  end
end
if now < last then
  now = last
end

-- ledgers -----------------------------------------------------------------------------------------------------------

local opened, trouble = {}, nil

-- A ledger by its rule and key. `value` is what is stored of it: the rule it is kept by, the epoch of the root (where
-- it is not in the root itself: after a loss it is void), and its state. Those of other waiters in the queue (`others`)
-- are taken as they are stored; nil if nothing is stored, or a kind that this script does not have. A metric's ledger
-- of a key may be paused by itself: h is until when.
local function open(i, key, value, others)
  local mine = string.sub(ARGV[5], (i - 1) * RECORD + 1, i * RECORD)
  local held_until = 0
  if key ~= root then
    local found = call('HMGET', key, 's' .. i, 'h')
    value, held_until = found[1], found[2] and unpack_from('<d', found[2]) or 0
  end
  local record, state, from = mine, nil, 1
  if value then
    record, state, from = string.sub(value, 1, RECORD), value, RECORD + 1
    if key ~= root then
      if string.sub(value, RECORD + 1, RECORD + 24) == epoch then
        from = from + 24
      else
        record, state = mine, nil
        call('HDEL', key, 'a' .. i)
        for _, part in ipairs({':c', ':o', ':l', ':e'}) do
          call('DEL', key .. part .. i)
        end
      end
    end
  end
  if others then
    if not state or not kinds[unpack_from('<d', record)] then
      return
    end
    mine = record
  end
  local kind = unpack_from('<d', mine)
  local same, foreign = record == mine, others
  if kind == 4 and not foreign then
    -- Of a calendar quota, the edges of its period are news with every call; but not those of another calendar.
    same = string.sub(record, 1, 32) == string.sub(mine, 1, 32)
    foreign = string.sub(record, 25, 32) ~= string.sub(mine, 25, 32)
    if not foreign then
      record = string.sub(record, 1, 24) .. string.sub(mine, 25)
    end
  end
  if not same and not others then
    if unpack_from('<d', record) ~= kind then
      trouble = MISMATCH
      return
    elseif generation >= governed then
      trouble = RECONFIGURE
      return
    end
  end
  local _, _, capacity, a, b, c, d, e, f = unpack_from('<ddddddddd', record)
  local ledger = {
    id = key .. ':' .. i, key = key, index = i, record = record, kind = kinds[kind],
    rule = kinds[kind].rule(capacity, a, b, c, d, e, f), foreign = foreign,
    other = not same, paused = held_until, known = state ~= nil,
  }
  if ledger.rule.lease then
    ledger.rule.lease = math.max(ledger.rule.lease, lease) -- a holder renews by its own lease, whichever rule governs
  end
  ledger.kind.open(ledger, state, from)
  if ledger.kind.shrink then
    ledger.kind.shrink(ledger)
  end
  if ledger.kind.knows and not ledger.kind.knows(ledger, now) then
    trouble = EDGES
  end
  opened[ledger.id] = ledger
  return ledger
end

-- How many rules the limiter has, and of which metrics. Under one name that never changes: a caller with one rule more
-- would be served past those that wait for fewer, and no script could serve both. A client that knows the epoch has
-- passed this check.
local function shape()
  local metrics = {}
  for i = 1, count do
    local _, key = unpack_from('<dd', ARGV[5], (i - 1) * RECORD + 1)
    metrics[i] = key == 1 and '' or string.match(KEYS[key], '}/([^:]*)')
  end
  return table.concat(metrics, '\2')
end

if stored[1] and epoch ~= epoch_seen then
  local kept = call('HGET', root, 'n')
  if kept and kept ~= shape() then
    return refuse(MISMATCH)
  end
end

local own = {}
if only then
  only.id, only.paused, only.known = root .. ':1', 0, true
  if only.kind.shrink then
    only.kind.shrink(only)
  end
  own[1], opened[only.id] = only, only
end
for i = only and 2 or 1, count do
  local _, key = unpack_from('<dd', ARGV[5], (i - 1) * RECORD + 1)
  -- The ledgers of metrics are not in the root, and theirs is the text with colons: otherwise a limiter of another form
  -- has this name, and would begin anew.
  local missing = not stored[i + 2]
  if stored[1] and (key ~= 1 and not missing
    or key == 1 and missing and i == 1 and string.find(call('HGET', root, 'l') or '', ': ', 1, true)) then
    trouble = MISMATCH
    break
  end
  if key == 1 then
    own[i] = open(i, root, stored[i + 2])
  else
    own[i] = open(i, KEYS[key])
  end
end
if trouble then
  return refuse(trouble)
end

-- Nothing is granted for a time before this one.
local base = math.max(now, quarantined, paused, halted)

