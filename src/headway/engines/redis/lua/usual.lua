-- The usual case, before anything else is even defined: one rule, one command, nobody waits, nothing has to be noticed, and
-- the answer is yes. It leaves everything as the long way would; whatever is not so goes the long way.

local what = unpack_from('<d', ARGV[7])
if count == 1 and #ARGV == 7 and #KEYS == 1 and stored[1] and stored[3] and (what == TRY or what == END) then
  local format, seq, last, quarantined, paused, expires, waiting, shift, governed, born =
    unpack_from('<dddddddddd', stored[1])
  local epoch = string.sub(stored[1], 81, 104)
  local record = string.sub(stored[3], 1, RECORD)
  if format == FORMAT and now >= last and now >= quarantined and now >= paused and waiting == 0
    and (epoch_seen == '' or (epoch_seen == epoch and seq >= seq_seen))
    and (lo == 0 or (lo <= now and now <= hi))
    and record == ARGV[5] and string.sub(stored[1], 105) == ident then
    local kind, _, capacity, a, b, c, d, e, f = unpack_from('<ddddddddd', record)
    kind = kinds[kind]
    local ledger = {key = root, index = 1, rule = {a, b, c, d, e, f, capacity = capacity}}
    kind.open(ledger, string.sub(stored[3], RECORD + 1))
    local said
    local _, x, ticket, y, cost = unpack_from('<ddddd', ARGV[7])
    if what == TRY then
      if cost > 0 and kind.wait(ledger, now, cost) == 0 then
        said = pack('<dddd', 1, 0, kind.take(ledger, now, cost), ledger.tally)
      end
    elseif x == 1 and kind.complete then
      kind.complete(ledger, now, y, cost)
      if ticket > 0 then
        call('HDEL', root .. ':g', string.sub(stream, 1, 12) .. pack('<d', ticket))
      end
      said = ''
    end
    if said then
      local reset = kind.reset_after(ledger, now)
      seq = seq + 1
      local renewed = expires < now + reset + GRACE / 2
      if renewed then
        expires = now + reset + GRACE
      end
      local answer = pack('<ddddddd', OK, now, seq, expires - now, 0, 0, shift) .. epoch .. said
      call('HSET', root,
        'm', pack('<dddddddddd', FORMAT, seq, now, quarantined, paused, expires, 0, shift, governed, born)
          .. string.sub(stored[1], 81),
        'c' .. stream, pack('<dd', number, now) .. answer,
        's1', record .. kind.state(ledger))
      if renewed then
        prolong(expires - now)
      end
      if ledger.lists then
        keep_lists(ledger, expires - now, renewed)
      end
      return answer
    end
  end
end
