-- Decide, and write down what has changed.

if count == 1 and #ARGV == 7 and #KEYS == 1 and waiting == 0 and base == now and first[1] == TRY
  and own[1].kind.wait(own[1], now, first[5]) == 0 and first[5] > 0 then
  said[1], said[2] = 1, 0
  said[3] = own[1].kind.take(own[1], now, first[5])
  said[4] = own[1].tally
elseif count == 1 and #ARGV == 7 and #KEYS == 1 and waiting == 0 and first[1] == END and first[2] == 1
  and (epoch_seen == '' or epoch_seen == epoch) then
  if own[1].kind.complete then
    own[1].kind.complete(own[1], now, first[4], first[5])
  end
  if can_queue and first[3] > 0 and call('EXISTS', root .. ':g') == 1 then
    call('HDEL', root .. ':g', string.sub(stream, 1, 12) .. pack('<d', first[3]))
  end
else
  general()
end

seq = seq + 1
local reset = base - now
local values = {}
for id, ledger in pairs(opened) do
  local left = ledger.kind.reset_after(ledger, now)
  if left > reset then
    reset = left
  end
  if ledger.key == root then
    values[#values + 1] = 's' .. ledger.index
    values[#values + 1] = ledger.record .. ledger.kind.state(ledger)
  else
    local value = ledger.record .. epoch .. ledger.kind.state(ledger)
    local ms = math.ceil((left + GRACE) / 1000) + 1
    call('HSET', ledger.key, 's' .. ledger.index, value)
    call('PEXPIRE', ledger.key, ms)
    for _, runs in ipairs(ledger.lists or {}) do
      call('PEXPIRE', runs.key, ms)
    end
  end
end
if waiting > 0 and reset < 4 * lease then
  reset = 4 * lease
end
if generation > governed then
  governed = generation
end

-- A ledger lives until it equals a fresh one, and a little longer: clients may rely on it until then. The time to live is
-- written only when half of that little is used up.
local renewed = expires < now + reset + GRACE / 2
if renewed then
  expires = now + reset + GRACE
end
local answer = pack('<ddddddd', OK, now, seq, expires - now, math.max(0, quarantined - now),
  math.max(0, paused - now), shift) .. epoch
for from = 1, #said, 100 do
  local to = math.min(from + 99, #said)
  answer = answer .. pack('<' .. string.rep('d', to - from + 1), unpack(said, from, to))
end
local meta = pack('<dddddddddd', FORMAT, seq, now, quarantined, paused, expires, waiting, shift, governed, born)
  .. epoch .. served_by
if can_queue then
  values[#values + 1] = 'p' .. string.sub(stream, 1, 12)
  values[#values + 1] = pack('<d', now)
end
call('HSET', root, 'm', meta, 'c' .. stream, pack('<dd', number, now) .. answer, unpack(values))
if not stored[1] then
  call('HSET', root, 'l', ARGV[6])
end
local ms = math.ceil((reset + GRACE) / 1000) + 1
if renewed then
  call('PEXPIRE', root, ms)
  call('PEXPIRE', root .. ':q', ms)
  -- Streams of processes that are gone.
  if call('HLEN', root) > 64 then
    for _, field in ipairs(call('HKEYS', root)) do
      local what = string.sub(field, 1, 1)
      if what == 'c' or what == 'p' then
        local value = call('HGET', root, field)
        local when = unpack_from('<d', value, what == 'c' and 9 or 1)
        if when < now - 5 * GRACE then
          call('HDEL', root, field)
        end
      end
    end
  end
end
for i = 1, count do
  if own[i].key == root then
    for _, runs in ipairs(own[i].lists or {}) do
      if renewed or runs.size == 1 then
        call('PEXPIRE', runs.key, ms)
      end
    end
  end
end
return answer
