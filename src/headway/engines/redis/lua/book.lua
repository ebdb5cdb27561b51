-- One round trip: everything that one process wants of one limiter's ledgers for one key, decided in one step.
--
-- KEYS[1]  the root: a hash with the meta data, what each stream was told last, and (where the limiter has no metrics)
--          the ledgers; KEYS[2..]: one hash per metric's ledger. All share the root's hash tag, as do the lists beside
--          them: <key>:c<i> and :o<i> (runs of a window), <root>:q (who waits), <root>:g (granted, not yet heard of).
-- ARGV[1]  numbers: time (0: the server's), earliest and latest time expected, number of this command in its stream,
--          least sequence number expected, lease, generation of the limits, number of rules, sharded channels or not
-- ARGV[2]  the stream: 12 characters for the process, 4 for which of its streams
-- ARGV[3]  the epoch in which the client knows this ledger; empty if it does not, or if the ledger may have expired
-- ARGV[4]  the identity of the server, as the client found it on this connection
-- ARGV[5]  the rules: 9 numbers each (kind, which key, capacity, and six of its own)
-- ARGV[6]  the limits as text, for people
-- ARGV[7..]  commands: numbers, the first one says which
--
-- The answer is packed numbers: status, time, sequence number, time to live, time left in quarantine and in a pause, sum
-- of all shifts, the epoch (24 characters), then what each command has to say. With any status but OK nothing has changed.

local OK, STALE, LOST, MOVED, CLOCK, MISMATCH, ADOPT, EDGES, VERSION = 0, 1, 2, 3, 4, 5, 6, 7, 8
local TRY, END, WITHDRAW, POLL, RENEW, LOOK, PAUSE, RESET, QUARANTINE, TRUST = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local FORMAT, GRACE, RECORD = 1, 60000000, 72

local root, stream, epoch_seen, ident = KEYS[1], ARGV[2], ARGV[3], ARGV[4]
local at, lo, hi, number, seq_seen, lease, generation, count, sharded = unpack_from('<ddddddddd', ARGV[1])
local now = at
if at == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local asked = {'m', 'c' .. stream}
for i = 1, count do
  asked[i + 2] = 's' .. i
end
local stored = call('HMGET', root, unpack(asked))

-- A command is applied once: its stream's last answer is kept, and a late twin of an older one is nobody's any more.
if stored[2] then
  local done = unpack_from('<d', stored[2])
  if done == number then
    return string.sub(stored[2], 17)
  elseif done > number then
    return pack('<d', STALE)
  end
end

local function commands(index)
  local numbers = ARGV[index]
  return {unpack_from('<' .. string.rep('d', #numbers / 8), numbers)}
end

local first = commands(7)
local seq, last, quarantined, paused, expires, waiting, shift, governed, born = 0, 0, 0, 0, 0, 0, 0, generation, 0
local epoch, served_by = stream .. pack('<d', number), ident

local function refuse(status, detail)
  return pack('<ddddddd', status, now, seq, detail or 0, 0, 0, 0) .. epoch
end

if stored[1] then
  local format
  format, seq, last, quarantined, paused, expires, waiting, shift, governed, born =
    unpack_from('<dddddddddd', stored[1])
  epoch, served_by = string.sub(stored[1], 81, 104), string.sub(stored[1], 105)
  if format ~= FORMAT then
    return refuse(VERSION, format)
  end
end

if first[1] == QUARANTINE then
  -- A client has seen that grants were forgotten: start anew, and grant nothing until they are all harmless. Who comes
  -- late with the same news finds an epoch that was born in quarantine, and does not start another.
  if not stored[1] or born == 0 or epoch == epoch_seen then
    local old = call('HKEYS', root)
    for _, field in ipairs(old) do
      if string.sub(field, 1, 1) == 's' then
        call('HDEL', root, field)
        call('DEL', root .. ':c' .. string.sub(field, 2), root .. ':o' .. string.sub(field, 2))
      end
    end
    for i = 2, #KEYS do
      call('DEL', KEYS[i])
      for j = 1, count do
        call('DEL', KEYS[i] .. ':c' .. j, KEYS[i] .. ':o' .. j)
      end
    end
    call('DEL', root .. ':q', root .. ':g')
    stored = {}
    epoch, served_by = stream .. pack('<d', number), ident
    seq, last, paused, expires, waiting, shift, governed = 0, 0, 0, 0, 0, 0, generation
    quarantined, born = now + first[2], 1
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
if lo > 0 and (now < lo or now > hi) and first[1] ~= QUARANTINE then
  return refuse(CLOCK)
end
if now < last then
  now = last
end

-- ledgers ---------------------------------------------------------------------------------------------------------------

local opened, trouble = {}, nil

-- A ledger by its rule and key. `value` is what is stored of it: the rule it is kept by, the epoch of the root (where it
-- is not in the root itself: after a loss it is void), and its state. Ledgers of others in the queue are taken as they are.
local function open(i, key, value, others)
  local mine = string.sub(ARGV[5], (i - 1) * RECORD + 1, i * RECORD)
  local record, state = mine, nil
  if value then
    record, state = string.sub(value, 1, RECORD), string.sub(value, RECORD + 1)
    if key ~= root then
      if string.sub(state, 1, 24) == epoch then
        state = string.sub(state, 25)
      else
        record, state = mine, nil
        call('DEL', key .. ':c' .. i, key .. ':o' .. i)
      end
    end
  end
  local kind = unpack_from('<d', mine)
  local same = record == mine
  if kind == 4 then
    -- Of a calendar quota, the edges of its period are news with every call.
    same = string.sub(record, 1, 32) == string.sub(mine, 1, 32)
    record = string.sub(record, 1, 24) .. string.sub(mine, 25)
  end
  if not same and not others then
    if unpack_from('<d', record) ~= kind then
      trouble = MISMATCH
      return
    elseif generation >= governed then
      trouble = ADOPT
      return
    end
  end
  local _, _, capacity, a, b, c, d, e, f = unpack_from('<ddddddddd', record)
  local ledger = {
    id = key .. ':' .. i, key = key, index = i, record = record, kind = kinds[kind],
    rule = {a, b, c, d, e, f, capacity = capacity},
  }
  ledger.kind.open(ledger, state)
  if ledger.kind.knows and not ledger.kind.knows(ledger, now) then
    trouble = EDGES
  end
  opened[ledger.id] = ledger
  return ledger
end

local own = {}
for i = 1, count do
  local _, key = unpack_from('<dd', ARGV[5], (i - 1) * RECORD + 1)
  if key == 1 then
    own[i] = open(i, root, stored[i + 2])
  else
    own[i] = open(i, KEYS[key], call('HGET', KEYS[key], 's' .. i))
  end
end
if trouble then
  return refuse(trouble)
end

-- Nothing is granted for a time before this one.
local base = math.max(now, quarantined, paused)

local said = {}
