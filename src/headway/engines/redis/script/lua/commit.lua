-- Write down what has changed, and answer.

seq = seq + 1
local reset = base - now
local values = {}
for _, ledger in pairs(opened) do
  local left = math.max(ledger.kind.reset_after(ledger, now), ledger.paused - now, ledger.lent_for or 0)
  if left > reset then
    reset = left
  end
  if ledger.key == root then
    values[#values + 1] = 's' .. ledger.index
    values[#values + 1] = ledger.record .. ledger.kind.state(ledger)
  else
    local value = ledger.record .. epoch .. ledger.kind.state(ledger)
    call('HSET', ledger.key, 's' .. ledger.index, value)
    if ledger.moved and ledger.paused > now then
      call('HSET', ledger.key, 'h', pack('<d', ledger.paused))
    elseif ledger.moved then
      call('HDEL', ledger.key, 'h')
    end
    call('PEXPIRE', ledger.key, math.ceil((left + GRACE) / 1000) + 1)
    if ledger.lists then
      keep_lists(ledger, left + GRACE, true)
    end
    if ledger.book then
      lending.keep(ledger, left + GRACE, true)
    end
  end
end
if waiting > 0 and reset < 4 * lease then
  reset = 4 * lease
end
if generation > governed then
  governed = generation
end

-- A ledger lives until it equals a fresh one, and a little longer: clients may rely on it until then. The time to
-- live is written only when half of that little is used up.
local renewed = due_for_renewal(reset)
if renewed then
  expires = math.max(expires, now + reset + GRACE)
end
local held_up = math.max(0, paused - now, halted - now)
for i = 1, count do
  held_up = math.max(held_up, own[i].paused - now)
end
local held = quarantined > now and quarantined - now or born > now and now - born or 0
local answer = pack('<dddddddd', OK, now, seq, expires - now, held, held_up, shift, waiting)
  .. epoch .. pack_numbers(said)
local meta = pack('<dddddddddd', format, seq, now, quarantined, paused, expires, waiting, shift, governed, born)
  .. epoch .. served_by
if can_queue then
  values[#values + 1] = 'p' .. string.sub(stream, 1, 12)
  values[#values + 1] = pack('<dd', now, lease)
end
call('HSET', root, 'm', meta, 'c' .. stream, pack('<dd', number, now) .. answer, unpack(values))
if not stored[1] then
  call('HSET', root, 'l', ARGV[6], 'n', shape())
end
if renewed then
  prolong(expires - now)
elseif fresh_queue then
  keep_queue(math.ceil((expires - now) / 1000) + 1)
end
for _, ledger in pairs(opened) do
  if ledger.key == root and ledger.lists then
    keep_lists(ledger, expires - now, renewed)
  end
  if ledger.key == root and ledger.book then
    lending.keep(ledger, expires - now, renewed)
  end
end

-- One message for each process: the time, the epoch, then of each waiter its ticket, how many marks it has and its
-- slot, and the marks. Without marks: when to poll for it.
for of, records in pairs(mail) do
  local message = pack('<d', now) .. epoch .. table.concat(records)
  if sharded == 1 then
    call('SPUBLISH', root .. ':wake:' .. of, message)
  else
    call('PUBLISH', string.match(root, '^(.-):{') .. ':wake:' .. of, message)
  end
end
return answer
